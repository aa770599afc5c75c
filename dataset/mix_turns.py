"""Whose turn it is in a mixture of streams, and what was drawn of whom."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from gristmill.core.errors import as_int
from gristmill.core.state import state_flag
from gristmill.dataset.bases.iterator import BlockIterator, go_to, marked, return_to
from gristmill.dataset.drawn import Draws
from gristmill.dataset.pieces import Piece
from gristmill.dataset.plans import Plan, plan_of
from gristmill.dataset.states.mixtures import OWN
from gristmill.dataset.states.turns import Turns
from gristmill.dataset.tally import Tally
from gristmill.dataset.telling.failures import tell

T = TypeVar("T")


class CountedIterator(BlockIterator[T]):
    """Knows what was drawn of each component of a mixture."""

    _names: list[str] | None
    _plan: Plan
    _own: dict[str, Any]
    _is_plain: bool
    _whole: int
    _index: int
    _has_ended: bool
    _tally: Tally | None

    def _nothing(self) -> Tally:
        return Tally.nothing(len(self._parents), self._whole)

    def _tally_in(self, state: Mapping[str, Any], index: int) -> Tally | None:  # ``None``: it follows from the index
        if "counts" in state or not (self._is_plain or self._names):
            return Tally.read(state, self._plan.names, self._whole, self)
        weights = state.get(OWN, self._own if self._is_plain else None)
        if self._is_plain and weights == self._own:
            return None
        # Of states that do not say their weights nothing is known.
        elements = {} if weights is None else plan_of(weights).counts_by_name(index - state_flag(state, "stop", self))
        return self._nothing().added({i: elements.get(name, 0) for i, name in enumerate(self._plan.names)})

    def _counts_in(self, state: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """What was drawn of each component up to a state of this iterator, or of one like it."""
        return self._numbers(self._tally_in(state, state["index"]), state["index"] - bool(state["stop"]))

    def _drawn(self) -> dict[str, dict[str, int]]:
        return self._numbers(self._tally, self._index - self._has_ended)

    def _numbers(self, tally: Tally | None, index: int) -> dict[str, dict[str, int]]:
        return (tally or Tally.of_elements(self._plan.counts(index))).by_name(self._plan.names)


class _Mark:
    """Where a mixture was: an element moves one of many parents, so each is marked when it is moved for the first time since.

    Args:
        values: of the attributes that say where it is.

    Attributes:
        parents: the marks of those that have been moved.
    """

    def __init__(self, values: list[Any]) -> None:
        self.values = values
        self.parents: dict[int, Any] = {}


class TurnsIterator(CountedIterator[T]):
    """Knows whose turn it is in a mixture, and counts what comes."""

    _by: Callable[[Any], Any] | None
    _stop: str
    _pieces: tuple[Piece, ...]
    _again: tuple[Turns, Any] | None  # what is drawn again, and what of it is passed over; the same as states say it
    _left: tuple[Any, Plan, Sequence[int | None]] | None  # what is left of a plan when some have ended
    _own_draws: Draws | None
    _marks: list[weakref.ref[_Mark]]
    _have_states = False  # all parents

    def _mark(self) -> Any:
        if self._stop == "never":
            return self.get_state()
        if not self._have_states:
            super()._mark()  # which raises an error if one has none
            self._have_states = True
        mark = _Mark([getattr(self, name) for name in self._placed_by or ()])
        self._marks = [*[ref for ref in self._marks if ref() is not None], weakref.ref(mark)]
        return mark

    def _moves(self, components: Iterable[int]) -> None:
        """Called before these are moved, so that whoever has marked this iterator can go back."""
        marks = self._live_marks()
        for i in components if marks else ():
            if places := [mark.parents for mark in marks if i not in mark.parents]:
                place = marked(self._parents[i])
                for others in places:
                    others[i] = place

    def _move_from(self, places: Mapping[int, Any]) -> None:
        """The same where the marks of these components are known."""
        for mark in self._live_marks():
            for i, place in places.items():
                mark.parents.setdefault(i, place)

    def _live_marks(self) -> list[_Mark]:
        return [mark for ref in self._marks if (mark := ref()) is not None]

    def _return_to(self, mark: Any) -> None:
        if not isinstance(mark, _Mark):
            go_to(self, mark)
            return
        moved = [*mark.parents.items()]
        self._moves([i for i, _ in moved])
        for i, place in moved:
            return_to(self._parents[i], place)
        for name, value in zip(self._placed_by or (), mark.values, strict=True):
            setattr(self, name, value)

    def _state_at(self, mark: Any) -> Any:
        if not isinstance(mark, _Mark):
            return mark
        places = [mark.parents[i] if i in mark.parents else marked(parent) for i, parent in enumerate(self._parents)]
        return super()._state_at((places, mark.values))

    def _current(self) -> tuple[Plan, Sequence[int | None]]:
        """The plan at this position, without components that have ended, and which component each of its own is."""
        pieces = self._pieces
        if pieces and pieces[0].stop <= self._index:
            self._pieces = pieces = tuple([piece for piece in pieces if piece.stop > self._index])
        plan, places = pieces[0][1:] if pieces else (self._plan, range(len(self._parents)))
        if self._stop != "all" or self._tally is None or not self._tally.ended:
            return plan, places
        key = id(plan), self._tally.ended
        if self._left is None or self._left[0] != key:
            kept = [i for i, place in enumerate(places) if place not in self._tally.ended]
            self._left = key, plan.only([plan.names[i] for i in kept]), [places[i] for i in kept]
        return self._left[1:]

    def _next_component(self) -> int | None:
        """Which component is next; ``None`` if there is none that has a weight. Moves past those that are not there any more."""
        while True:
            if self._is_again:
                turn = self._turn_again()
                if turn is not None:
                    return max(turn, ~turn)
                self._index += 1
                continue
            plan, places = self._current()
            if not places or (plan.end is not None and self._index >= plan.end):
                return None
            due = self._due(plan, places)
            if due is not None or not self._pieces:
                return due
            self._index = self._index + 1 if self._by is None else self._pieces[0].stop

    def _due(self, plan: Plan, places: Sequence[int | None]) -> int | None:
        """Whose turn it is; ``None``: nobody's, or of one that is not there any more."""
        if self._by is None:
            return places[plan.at(self._index)[0]]
        tally = self._tally
        assert tally is not None
        weights = zip(places, plan.weights(self._index), strict=True)
        owed = [(tally.behind(i), i) for i, weight in weights if weight and i is not None]
        return min(owed)[1] if owed else None

    @property
    def _is_again(self) -> bool:
        return self._again is not None and self._index < self._again[0].stop

    def _turn_again(self) -> int | None:
        """Whose element is drawn again now, the complement if it is passed over; ``None``: nobody's who is still there."""
        assert self._again is not None
        turn = self._again[0].at(self._index)
        has_ended = turn is not None and self._tally is not None and self._stop == "all" and max(turn, ~turn) in self._tally.ended
        return None if has_ended else turn

    def _pass(self, component: int, element: Any) -> bool:
        """Counts an element; whether it is passed over."""
        if self._by is None:
            length = 1
        else:
            try:
                length = as_int("the length of an element", self._by(element), minimum=0)
            except Exception as error:
                tell(error, self)
                raise
        tally = self._tally
        if tally is not None:
            tally = tally.added({component: 1}, length)
            if self._by is not None and length:
                plan, places = self._current()
                weights = zip(places, plan.weights(self._index), strict=True)
                tally = tally.aimed({i: weight for i, weight in weights if i is not None}, length)
            if self._stop == "never" and tally.ended:
                tally = tally._replace(ended=tally.ended - {component})
        is_passed = self._is_again and self._turn_again() == ~component
        if (draws := self._draws) is not None:
            draws.note(self._index, [~component if is_passed else component])
        self._tally = tally
        self._index += 1
        return is_passed

    def _forgotten(self) -> list[str]:
        """Components that are left out where elements are drawn again."""
        found = [zip(piece.plan.names, piece.places, strict=True) for piece in self._pieces if piece.stop > self._index]
        return sorted({name for names in found for name, place in names if place is None})

    @property
    def _draws(self) -> Draws | None:
        """Which components the last elements were of, if a step behind may take them again."""
        if self._own_draws is None and self._is_taken_again and self._names is not None:
            self._own_draws = Draws(self._names)
        return self._own_draws


def known(place: int | None) -> int:
    """Which component comes at a place of a plan."""
    assert place is not None, "what is no longer there is refused when it would be drawn from"
    return place
