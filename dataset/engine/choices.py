"""Choices: what the position of a stream does not determine, recorded by the stage that replays elements.

An element that an error budget skipped, the component that a mixture drew under earlier weights: a
stage that makes such a choice *chooses*. A stage that restores its buffer by computing elements
again, from a position on, *replays* them. It owns ``Choices``: a record of the choices that were
made upstream since that position, which is part of its own position and of its state. Stages
upstream ask the record first, and do what it says.

Each stage that chooses has a key and counts its own choices, so that the order in which threads
make them does not matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import plain_int, shown
from gristmill.dataset.engine.stream import Cell, Layer, Pos, Stream

NEW: Any = object()  # nothing is recorded: the stage chooses
USUAL: Any = object()  # the stage did what it does without a record, such as keeping an element


class Record(NamedTuple):
    """Consecutive choices of one stage: ``num``, and those of them that were unusual as ``(index, choice)``."""

    key: str
    num: int
    unusual: tuple[tuple[int, Any], ...]


Records = tuple[Record, ...]


class Choices:
    """The choices since a position, of which the first ones may be known from an earlier run."""

    __slots__ = ("_known", "_made", "counts", "num_restarts", "outer", "until")

    def __init__(self) -> None:
        self.outer: Choices | None = None  # of the next stage downstream that replays elements
        self.num_restarts = 0
        self.restart()

    def restart(self, known: Iterable[Record] = ()) -> None:
        """Begin at a position after which the choices in ``known`` were made."""
        self.counts: dict[str, int] = {}  # choices of each stage
        self._made: dict[str, list[tuple[int, Any]]] = {}
        self.until: dict[str, int] = {}  # how many choices of each stage are known
        self._known: dict[tuple[str, int], Any] = {}
        for key, num, unusual in known:
            self.until[key] = num
            self._known.update({(key, i): choice for i, choice in unusual})
        self.num_restarts += 1

    def ask(self, key: str) -> Any:
        """Count one choice of a stage; return what is recorded of it, ``USUAL``, or ``NEW`` if nothing is."""
        num = self.counts.get(key, 0)
        self.counts[key] = num + 1
        if num < self.until.get(key, 0):
            return self._known.get((key, num), USUAL)
        return NEW if self.outer is None else self.outer.ask(key)

    def note(self, key: str, choice: Any) -> None:
        """Record that the choice that was asked for last is ``choice``, which is unusual."""
        num = self.counts[key]
        self._made.setdefault(key, []).append((num - 1, choice))
        if num > self.until.get(key, 0) and self.outer is not None:
            self.outer.note(key, choice)

    def retract(self, key: str) -> None:
        """Take back the last ``ask``: there was no element to choose about."""
        if self.counts[key] > self.until.get(key, 0) and self.outer is not None:
            self.outer.retract(key)
        self.counts[key] -= 1

    def add(self, records: Iterable[Record]) -> None:
        """Record choices that another thread or worker has made."""
        for key, num, unusual in records:
            choices = dict(unusual)
            for i in range(num):
                self.ask(key)
                if i in choices:
                    self.note(key, choices[i])

    def since(self, counts: Mapping[str, int] | None = None) -> Records:
        """Return the choices that were made after there were ``counts``, by default all."""
        counts = counts or {}
        records = []
        for key, num in self.counts.items():
            start = counts.get(key, 0)
            if num > start:
                records.append(Record(key, num - start, tuple(_from(start, self._made.get(key, ())))))
        return tuple(records)

    def to_come(self) -> Records:
        """Return what is known of choices that have not been asked for."""
        outer = () if self.outer is None else self.outer.to_come()
        found = {key: (num, dict(unusual)) for key, num, unusual in outer}
        for key, until in self.until.items():
            num = self.counts.get(key, 0)
            if until > num:
                own = dict(_from(num, sorted([(i, choice) for (k, i), choice in self._known.items() if k == key], key=_index)))
                num_outer, unusual = found.get(key, (0, {}))
                later = {i + until - num: choice for i, choice in unusual.items()}
                found[key] = until - num + num_outer, {**own, **later}
        return tuple([Record(key, num, tuple(unusual.items())) for key, (num, unusual) in found.items()])

    def forget_until(self, counts: Mapping[str, int]) -> None:
        """Begin where there were ``counts``: the elements before that will not be replayed."""
        made, outer, self.outer = self.since(counts), self.outer, None
        self.counts = {**counts}
        self.restart(self.to_come())
        self.add(made)
        self.outer = outer


def _from(start: int, unusual: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """Return the unusual ones of the choices from ``start`` on, counted from there.

    A choice that is a mapping, such as the weights of a mixture, holds until the next unusual one.
    """
    found, holds = [], None
    for i, choice in unusual:
        if i < start:
            holds = choice
        else:
            found.append((i - start, choice))
    is_first_usual = not found or found[0][0]
    return [(0, holds), *found] if is_first_usual and isinstance(holds, Mapping) else found


def _index(choice: tuple[int, Any]) -> int:
    return choice[0]


def number_choosers(stream: Stream, prefix: str = "", start: int = 0) -> int:
    """Give each stage that chooses, here and upstream, its key; return how many there are, and ``start``.

    The keys count from the source on, so that they do not depend on the stages downstream.
    """
    for parent in stream.parents:
        start = number_choosers(parent, prefix, start)
    if stream.makes_choices:
        stream.key = f"{prefix}{start}"
        start += 1
    return start


class Refilling(Layer):
    """A layer that replays the elements after the parent's position in its own.

    The records of the choices since then are the last item of its position.
    """

    def __init__(self, stage: Any, parent: Stream) -> None:
        super().__init__(stage, parent)
        self.choices = Choices() if parent.chooses else None
        number_choosers(self)

    def start(self) -> Pos:
        return *super().start(), ()

    def save(self, pos: Pos) -> Any:
        records = {key: [num, [[i, choice] for i, choice in unusual]] for key, num, unusual in pos[-1]}
        return {**self.save_layer(pos[:-1]), **({"choices": records} if records else {})}

    def load(self, state: Any) -> Pos:
        return *self.load_layer(state), self._load_records(state)

    def save_layer(self, pos: Pos) -> Any:
        """Return the state of a position without its records."""
        return super().save(pos)

    def load_layer(self, state: Any) -> Pos:
        """Return the position of a state, without its records."""
        return super().load(state)

    def _load_records(self, state: Any) -> Records:
        records = state.get("choices", {})
        try:
            return tuple([Record(key, _count(num), _unusual(unusual)) for key, (num, unusual) in records.items()])
        except (AttributeError, TypeError, ValueError):
            raise StateMismatchError(f"choices in the state of {self} is no record of choices, got {shown(records)}") from None

    def begin(self, cell: Cell, pos: Pos, records: Records) -> Cell:
        """Return the parent's cell at ``pos``, from where on elements are replayed."""
        if self.choices is None:
            return self.inner.at(pos)
        self.choices.outer = cell.choices
        self.choices.restart(records)
        return self.inner.at(pos, choices=self.choices)

    def records(self) -> Records:
        """Return the choices since the parent's position in that of this stage."""
        return () if self.choices is None else self.choices.since()

    def next_group(self) -> None:
        """Begin a new record: the parent's position has moved on."""
        if self.choices is not None:
            self.choices.restart()


def _count(value: Any) -> int:
    num = plain_int(value)
    if num is None or num < 0:
        raise ValueError(value)
    return num


def _unusual(value: Any) -> tuple[tuple[int, Any], ...]:
    return tuple([(_count(i), choice) for i, choice in value])
