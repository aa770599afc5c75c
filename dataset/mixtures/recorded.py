"""Draws of a mixture that a stage downstream records, or has recorded in an earlier run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import StateMismatchError
from gristmill.dataset.engine.choices import NEW, Choices
from gristmill.dataset.engine.draws import DELIVERED, ELEMENT, END, EXHAUSTED, Draw
from gristmill.dataset.errors.context import with_error_context
from gristmill.dataset.mixtures.plans import Plan, plan_of

if TYPE_CHECKING:
    from gristmill.dataset.mixtures.stream import Mix

# which component each one of a plan is; ``None``: it is no longer there
Places = Sequence[int | None]


class Recorded:
    """The record of a mixture's draws.

    Attributes:
        then: under which plan the last draw was made, and which component each of that is;
            ``None``: the own one.
    """

    def __init__(self, mix: Mix, choices: Choices) -> None:
        self._mix, self._choices = mix, choices
        self._known: Draw | None = None  # what is recorded of the last draw
        # a description of a plan, and the plan
        self._read: tuple[Any, tuple[Plan, Places] | None] | None = None
        self.then: tuple[Plan, Places] | None = None

    def ask(self) -> Draw | None:
        """Return the next draw if it is known."""
        mix = self._mix
        known = self._choices.ask(mix.key)
        if not isinstance(known, Draw):
            self._known = self.then = None
            return None
        self._known = known
        self.note(known)
        if self._read is None or self._read[0] is not known.weights:
            self._read = (
                known.weights,
                (None if known.weights == mix.own else self._plan(known.weights)),
            )
        self.then = self._read[1]
        return known

    def _plan(self, description: object) -> tuple[Plan, Places]:
        plan = plan_of(description)
        return plan, [self._mix.places.get(name) for name in plan.names]

    def note(self, draw: Draw) -> None:
        self._choices.note(self._mix.key, draw)

    def new(self, components: Iterable[int]) -> Iterator[int]:
        """Return new draws, each recorded when requested; the first one was asked for."""
        choices, key, draws = self._choices, self._mix.key, self._mix.draws
        has_asked = True
        for i in components:
            if not has_asked and choices.ask(key) is not NEW:  # others replay now
                choices.retract(key)
                return
            choices.note(key, draws[i])
            yield i
            has_asked = False

    def drops(self) -> bool:
        """Return true if the element that the last draw gave was delivered before."""
        known = self._known
        if known is not None and known.kind not in (ELEMENT, DELIVERED):
            raise self._changed(f"component {known.name!r} has more elements")
        return known is not None and known.kind == DELIVERED

    def end(self, i: int) -> None:
        """Record that component ``i`` had no element when its turn came."""
        mix, known = self._mix, self._known
        if known is not None and known.kind not in (ELEMENT, DELIVERED):
            return
        self._choices.retract(mix.key)
        if mix.stop == "never":  # its next epoch follows
            return
        if known is not None:
            raise self._changed(f"component {known.name!r} has fewer elements")
        self._choices.ask(mix.key)
        self.note(Draw(mix.own, mix.plan.names[i], END if mix.stop == "first" else EXHAUSTED))

    def _changed(self, what: str) -> Exception:
        text = (
            f"a step after {self._mix} holds elements that are drawn again as its state says, but"
            f" {what} now"
        )
        return with_error_context(StateMismatchError(f"{text}: data have changed since"), self._mix)
