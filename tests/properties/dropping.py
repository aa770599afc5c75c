"""A stage that drops elements as it likes: that is in no position, so stages must record it."""

from functools import partial

from gristmill import IterDataset
from gristmill.dataset.engine.choices import NEW, USUAL
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.engine.stream import Stream, pass_outputs

_END = object()


class Dropping(Stream):
    """Drops the elements for which ``decide`` returns true; if ``passes``, those that it has
    dropped before are not computed again, and may be no ends.
    """

    makes_choices = True

    def __init__(self, stage, parent, decide, passes):
        super().__init__(stage, parent)
        self.decide, self.passes = decide, passes

    def _run(self, cell):
        run, choices = self.parent.run(cell), cell.choices
        while True:
            known = NEW if choices is None else choices.ask(self.key)
            if self.passes and known is not NEW and known is not USUAL:
                pass_outputs(self.parent, cell, 1)  # whether it fails now or not
                run = self.parent.run(cell)
                choices.note(self.key, known)
                continue
            if (x := next(run, _END)) is _END:
                if choices is not None:
                    choices.retract(self.key)
                return
            if not (self.decide(x) if known is NEW else known is not USUAL):
                yield x
            elif choices is not None:
                choices.note(self.key, "dropped")


class DroppingIterDataset(IterDataset):
    def __init__(self, parent, decide, passes=True):
        super().__init__(parent)
        self.decide, self.passes = decide, passes

    def __iter__(self):
        return open_stage(self, partial(Dropping, decide=self.decide, passes=self.passes))
