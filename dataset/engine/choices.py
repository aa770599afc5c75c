"""Choices: what the position of a stream does not determine, recorded by the stage that replays
elements.

An element that an error budget skipped, the component that a mixture drew under earlier weights: a
stage that makes such a choice *chooses*. A stage that restores its buffer by computing elements
again, from a position on, *replays* them. It owns ``Choices``: a record of the choices that were
made upstream since that position, which is part of its own position and of its state. Stages
upstream ask the record first, and do what it says.

A known choice that cannot be made any more, as its component was dropped, is skipped: the stage
asks for the next one. So the stage that replays sees at the number of choices which element is
missing, if it knows that each choice gave one of its elements at most (``mixture``). Otherwise
dropping is refused.

That the elements ended is a choice, too. If more follow now, those that the stage held then make no
outputs together with these: it begins a new group (``continues``).

Each stage that chooses has a key and counts its own choices, so that the order in which threads
make them does not matter.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, ClassVar, NamedTuple

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import shown
from gristmill.dataset.engine.draws import Delivery, Draw, SavedDraws, count_in, names_lost, needed
from gristmill.dataset.engine.stream import Cell, Layer, Pos, Stream, are_equal
from gristmill.dataset.states.replaying import replaying
from gristmill.dataset.states.values import copied, given

NEW: Any = object()  # nothing is recorded: the stage chooses
USUAL: Any = object()  # the stage did what it does without a record, such as keeping an element


class Beginning(Sequence[tuple[int, Any]]):
    """The first items of a list that only grows. It is equal to a tuple of these."""

    __slots__ = ("_items", "_num")

    def __init__(self, items: list[tuple[int, Any]]) -> None:
        self._items = items
        self._num = len(items)

    def __len__(self) -> int:
        return self._num

    def __iter__(self) -> Iterator[tuple[int, Any]]:
        return islice(self._items, self._num)

    def __getitem__(self, i: Any) -> Any:
        return tuple(self)[i]

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Beginning) and other._items is self._items:
            return other._num == self._num
        return isinstance(other, Beginning | tuple) and tuple(self) == tuple(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> Any:
        return tuple, (tuple(self),)


class ChoiceRecord(NamedTuple):
    """Consecutive choices of one stage.

    Attributes:
        key: the stage's.
        num: how many.
        unusual: those that were unusual, as ``(index, choice)``.
        delivery: where the elements are that draws gave, if the stage that replays them knows it.
    """

    key: str
    num: int
    unusual: Sequence[tuple[int, Any]]
    delivery: Delivery | None = None


Records = tuple[ChoiceRecord, ...]


class Choices:
    """The choices since a position, of which the first ones may be known from an earlier run."""

    __slots__ = ("_known", "_made", "counts", "met_end", "outer", "until")

    def __init__(self) -> None:
        self.outer: Choices | None = None  # of the next stage downstream that replays elements
        self.restart()

    def restart(self, known: Iterable[ChoiceRecord] = ()) -> None:
        """Begin at a position after which the choices in ``known`` were made."""
        self.counts: dict[str, int] = {}  # choices of each stage
        self._made: dict[str, list[tuple[int, Any]]] = {}
        self.until: dict[str, int] = {}  # how many choices of each stage are known
        self.met_end = False  # a stage upstream that replays elements has met a known end
        self._known: dict[str, dict[int, Any]] = {}
        for key, num, unusual, _ in known:
            self.until[key] = num
            self._known[key] = dict(unusual)

    def ask(self, key: str) -> Any:
        """Count one choice of a stage; return what is recorded of it, ``USUAL``, or ``NEW`` if
        nothing is.
        """
        num = self.counts.get(key, 0)
        self.counts[key] = num + 1
        if num < self.until.get(key, 0):
            return self._known[key].get(num, USUAL)
        return NEW if self.outer is None else self.outer.ask(key)

    @property
    def num_asked(self) -> int:
        """The number of choices that were requested."""
        return sum(self.counts.values())

    @property
    def are_new(self) -> bool:
        """True if more was requested than is known: what was chosen last is of no element of an
        earlier run.
        """
        return any([num > self.until.get(key, 0) for key, num in self.counts.items()])

    def note(self, key: str, choice: object) -> None:
        """Record that the choice that was requested last is ``choice``, which is unusual."""
        num = self.counts[key]
        self._made.setdefault(key, []).append((num - 1, choice))
        if num > self.until.get(key, 0) and self.outer is not None:
            self.outer.note(key, choice)

    def retract(self, key: str) -> None:
        """Take back the last ``ask``: there was no element to choose about, or it will be asked
        again.
        """
        num = self.counts[key]
        if num > self.until.get(key, 0) and self.outer is not None:
            self.outer.retract(key)
        made = self._made.get(key)
        if made and made[-1][0] == num - 1:
            self._made[key] = made[:-1]  # records may have the list
        self.counts[key] = num - 1

    def go_back(self, counts: Mapping[str, int]) -> None:
        """Take back what was asked after there were ``counts``: the same elements are computed
        again.
        """
        for key, num in self.counts.items():
            for _ in range(num - counts.get(key, 0)):
                self.retract(key)

    def resume(self, records: Iterable[ChoiceRecord]) -> None:
        """Begin after the choices in ``records``, about elements that are not computed again."""
        self.restart()
        for key, num, unusual, _ in records:
            self.counts[key], self._made[key] = num, [*unusual]

    def begin_with(self, records: Iterable[ChoiceRecord]) -> bool:
        """Return true if the first choices that were made are those in ``records``."""
        return all(
            [
                num <= self.counts.get(key, 0)
                and tuple(_between(self._made.get(key, []), 0, num)) == unusual
                for key, num, unusual, _ in records
            ]
        )

    def num_since(self, counts: Mapping[str, int]) -> dict[str, int]:
        """Return how many choices each stage has made after there were ``counts``."""
        return {
            key: num - counts.get(key, 0)
            for key, num in self.counts.items()
            if num > counts.get(key, 0)
        }

    def repeat(self, nums: Mapping[str, int]) -> None:
        """Make ``nums[key]`` recorded choices of each stage again, in place of the stage."""
        for key, num in nums.items():
            for _ in range(num):
                choice = self.ask(key)
                if choice is not NEW and choice is not USUAL:
                    self.note(key, choice)

    def add(self, records: Iterable[ChoiceRecord]) -> None:
        """Record choices that another thread or worker has made."""
        for key, num, unusual, _ in records:
            choices = dict(unusual)
            for i in range(num):
                self.ask(key)
                if i in choices:
                    self.note(key, choices[i])

    def since(
        self, counts: Mapping[str, int] | None = None, *, until: Mapping[str, int] | None = None
    ) -> Records:
        """Return the choices that were made after there were ``counts``, and before there were
        ``until``; by default all.
        """
        counts = counts or {}
        records = []
        for key, num in (self.counts if until is None else until).items():
            start = counts.get(key, 0)
            if num > start:
                made = _between(self._made.get(key, []), start, num)
                records.append(
                    ChoiceRecord(
                        key, num - start, tuple([(i - start, choice) for i, choice in made])
                    )
                )
        return tuple(records)

    def hand_over(self, counts: Mapping[str, int]) -> Records:
        """Return the choices that were made after there were ``counts``, and keep none."""
        records = self.since(counts)
        self._made = {}
        return records

    def known(self) -> Records:
        """Return the choices that were made, and those that are known to follow."""
        records = []
        for key in {**self.until, **self.counts}:
            num = self.counts.get(key, 0)
            until = self.until.get(key, 0)
            made = self._made.setdefault(key, [])
            if until > num:
                later = [(i, choice) for i, choice in self._known[key].items() if i >= num]
                records.append(ChoiceRecord(key, until, (*made, *later)))
            else:
                records.append(ChoiceRecord(key, num, Beginning(made)))
        return tuple([record for record in records if record.num])

    def to_come(self) -> Records:
        """Return what is known of choices that have not been asked for."""
        outer = () if self.outer is None else self.outer.to_come()
        found = {key: (num, dict(unusual)) for key, num, unusual, _ in outer}
        for key, until in self.until.items():
            num = self.counts.get(key, 0)
            if until > num:
                own = {i - num: choice for i, choice in self._known[key].items() if i >= num}
                num_outer, unusual = found.get(key, (0, {}))
                later = {i + until - num: choice for i, choice in unusual.items()}
                found[key] = until - num + num_outer, {**own, **later}
        return tuple(
            [
                ChoiceRecord(key, num, tuple(unusual.items()))
                for key, (num, unusual) in found.items()
            ]
        )

    def forget_until(self, counts: Mapping[str, int]) -> None:
        """Begin where there were ``counts``: the elements before that will not be replayed."""
        made, outer, self.outer = self.since(counts), self.outer, None
        self.counts = {**counts}
        self.restart(self.to_come())
        self.add(made)
        self.outer = outer


def choosers(stream: Stream) -> Iterator[Stream]:
    """Return the stages that choose, here and upstream."""
    for parent in stream.parents:
        yield from choosers(parent)
    if stream.makes_choices:
        yield stream


def _between(unusual: list[tuple[int, Any]], start: int, stop: int) -> list[tuple[int, Any]]:
    return unusual[bisect_left(unusual, (start,)) : bisect_left(unusual, (stop,))]


def number_choosers(stream: Stream, prefix: str = "", start: int = 0) -> int:
    """Give each stage that chooses, here and upstream, its key; return how many there are, and
    ``start``.

    The keys count from the source on, so that they do not depend on the stages downstream. Those in
    components that have names begin with these, so that they do not depend on the other components.
    """
    if stream.component_names is None:
        for parent in stream.parents:
            start = number_choosers(parent, prefix, start)
    else:
        for name, parent in zip(stream.component_names, stream.parents, strict=True):
            number_choosers(parent, f"{prefix}{start}.{name}/")
    if stream.makes_choices:
        stream.key = f"{prefix}{start}"
        start += 1
    return start


class Replaying(Layer):
    """A layer that replays the elements after the parent's position in its own.

    The records of the choices since then are the last item of its position.
    """

    # its states allow that components of ``mixture`` are dropped
    knows_draws: ClassVar[bool] = False
    _same: tuple[Pos, Pos] | None = None  # two positions, the second of which needs no replay

    def __init__(self, stage: Any, parent: Stream) -> None:
        super().__init__(stage, parent)
        self.choices = Choices() if parent.chooses else None
        # each draw of which gives one element at most
        self.mixture = _mixture(parent) if self.knows_draws else None
        # by added components
        self.may_grow = any([stage.component_names is not None for stage in choosers(parent)])
        number_choosers(self)

    def start(self) -> Pos:
        return *super().start(), ()

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        return self.next_of_parent(end, records), *self.own, ()

    def next_of_parent(self, end: Pos, records: Records) -> Pos:
        """Return ``next_epoch`` of the parent, whose position in ``end`` is the one before a
        group.
        """
        live = self._live
        if (
            live is not None
            and live[0].gi_frame is None
            and live[2] == live[1].moves
            and are_equal(live[1].pos, end)
        ):
            return self.parent.next_epoch(self.inner.settle(), records)
        return self.parent.next_epoch(end[0], (*end[-1], *records))

    def save(self, pos: Pos) -> Any:
        records = {record.key: _saved(record) for record in pos[-1]}
        return {
            **self.save_layer(pos[:-1]),
            **({} if self.choices is None else {"choices": records}),
        }

    def faults_in(self, pos: Pos) -> Any:
        return super().faults_in(pos), pos[-1]

    def load(self, state: Any) -> Pos:
        is_mapping = isinstance(state, Mapping)
        records = self._load_records(state) if is_mapping else ()
        with replaying(self, None if is_mapping and "choices" in state else self.held(state)):
            return *self.load_layer(state), records

    def held(self, state: object) -> str | None:
        """Return what a state lets be computed again, in words; ``None`` for nothing.

        Stages upstream that chose before there were records refuse to do so under other settings.
        """
        return None

    def save_layer(self, pos: Pos) -> Any:
        """Return the state of a position without its records."""
        return super().save(pos)

    def load_layer(self, state: object) -> Pos:
        """Return the position of a state, without its records."""
        return super().load(state)

    def _load_records(self, state: Any) -> Records:
        records = state.get("choices", {})
        try:
            found = tuple([_record(key, record) for key, record in records.items()])
        except (AttributeError, TypeError, ValueError, KeyError):
            raise StateMismatchError(
                f"choices in the state of {self} is no record of choices, got {shown(records)}"
            ) from None
        stages = {stage.key: stage for stage in choosers(self.parent)}
        for record in found:
            lost = names_lost(records[record.key])
            if lost:
                raise needed(lost, stages.get(record.key, self))
            if record.key in stages:
                for choice in {id(choice): choice for _, choice in record.unusual}.values():
                    stages[record.key].check_choice(choice)
        return found

    def note_same(self, pos: Pos, after: Pos) -> None:
        """Note that ``pos``, after the last output of a group, and ``after``, before the next
        group, are the same.
        """
        self._same = pos, after

    def same_as(self, pos: Pos) -> Pos:
        """Return ``pos``, or the position before the next group that is known to be the same."""
        return self._same[1] if self._same is not None and are_equal(self._same[0], pos) else pos

    def begin(self, cell: Cell, pos: Pos, records: Records) -> Cell:
        """Return the parent's cell at ``pos``, from where on elements are replayed."""
        if self.choices is None:
            return self.inner.at(pos)
        self.choices.outer = cell.choices
        self.choices.restart(records)
        return self.inner.at(pos, choices=self.choices)

    def records(self, delivery: Delivery = Delivery()) -> Records:  # noqa: B008  (never changed)
        """Return the choices since the parent's position in that of this stage, with those that are
        known to follow.

        Args:
            delivery: where the elements of the mixture are.
        """
        if self.choices is None:
            return ()
        records = self.choices.known()
        if self.mixture is None:
            return records
        key = self.mixture.key
        return tuple(
            [
                record._replace(delivery=delivery) if record.key == key else record
                for record in records
            ]
        )

    @property
    def draw_index(self) -> int:
        """The index of the draw of the mixture that gave the last element; -1 if that is not
        recorded.
        """
        assert self.choices is not None
        assert self.mixture is not None
        return self.choices.counts.get(self.mixture.key, 0) - 1

    def is_missing(self) -> bool:
        """Return true if the element that was held is gone: the parent has yielded another one
        instead.
        """
        return self.choices is not None and bool(self.choices.until) and self.choices.are_new

    def continues(self, cell: Cell, following: Pos) -> bool:
        """Return true if the parent's end, which was met, is known from an earlier run: more
        elements may follow now.

        Those make outputs of their own. The outermost stage that replays continues with these at
        once. Others end their run, so that stages in between do so, too.

        Args:
            cell: where the run is; it is moved if more may follow.
            following: the position before the next group.
        """
        choices = self.choices
        if (
            choices is None
            or not self.may_grow
            or not (choices.met_end or (choices.until and not choices.are_new))
        ):
            return False
        choices.restart()
        cell.pos = following
        if cell.choices is not None:
            cell.choices.met_end = True
        return cell.choices is None

    def next_group(self) -> None:
        """Begin a new record: the parent's position has moved on."""
        if self.choices is not None:
            self.choices.restart()


def _mixture(stream: Stream) -> Stream | None:
    """Return the mixture upstream each draw of which gives one element of ``stream`` at most, if
    there is one.
    """
    if stream.component_names is not None:
        return stream
    is_simple = (
        len(stream.parents) == 1
        and stream.flow in ("one_to_one", "dropping")
        and not stream.makes_choices
    )
    return _mixture(stream.parent) if is_simple else None


def _saved(record: ChoiceRecord) -> Any:
    """Return the JSON-able form of a record."""
    choices = [choice for _, choice in record.unusual]
    if choices and isinstance(choices[0], Draw):
        return SavedDraws.of(choices, record.delivery).saved()
    return [record.num, [[i, copied(choice)] for i, choice in record.unusual]]


def _record(key: str, saved: Any) -> ChoiceRecord:
    """Return the record that ``_saved`` has made a form of."""
    if isinstance(saved, Mapping):
        found = SavedDraws.read(saved)
        return ChoiceRecord(key, len(found.codes), tuple(enumerate(found.draws())), found.delivery)
    num, unusual = saved
    return ChoiceRecord(
        key, count_in(num), tuple([(count_in(i), given(choice)) for i, choice in unusual])
    )
