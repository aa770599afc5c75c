"""A stage that chooses which elements it drops."""

from gristmill.dataset.engine.choices import NEW, USUAL
from gristmill.dataset.engine.stream import Stream

END = object()


class Dropping(Stream):
    """Drops about a third of the elements; ``decisions`` are those that were made first."""

    makes_choices = True

    def __init__(self, stage, parent, rng):
        super().__init__(stage, parent)
        self.rng, self.decisions = rng, []

    def _run(self, cell):
        run, choices = self.parent.run(cell), cell.choices
        while True:
            known = NEW if choices is None else choices.ask(self.key)
            if (x := next(run, END)) is END:
                if choices is not None:
                    choices.retract(self.key)
                return
            drops = known is not USUAL
            if known is NEW:
                drops = self.rng.random() < 0.3
                self.decisions.append(drops)
            if drops:
                if choices is not None:
                    choices.note(self.key, "dropped")
                continue
            yield x

    def model(self, xs):
        return [x for x, drops in zip(xs, self.decisions, strict=True) if not drops]
