"""Streams that collect elements until outputs can be made of them, and those that pack sequences
into rows.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.core.state import plain_counts, plain_int, shown, state_count, state_field
from gristmill.dataset.bases.parameters import Described, Parameters
from gristmill.dataset.engine.choices import Records, Replaying
from gristmill.dataset.engine.draws import Delivery
from gristmill.dataset.engine.stream import Cell, Pos, Stream, pass_outputs
from gristmill.dataset.states.replaying import replaying
from gristmill.transforms.bin_packing import Bins
from gristmill.transforms.concat_split import Concatenation, Target, is_full_length
from gristmill.transforms.pack_layout import PackedRows
from gristmill.transforms.sequences import Array

if TYPE_CHECKING:
    from gristmill.dataset.stages.bin_packing import Packing

_log = logging.getLogger("gristmill")

M = TypeVar("M")  # what a stage makes of the elements

_NOTHING: Any = object()


class Collected(Generic[M]):
    """Consecutive elements that a stage has collected since a position of its stream.

    Attributes:
        pos: the position.
        num: the number of the next element, counted from where the collection began.
        after: the parent's position before that element.
        counts: how many choices each stage upstream had made there.
        skipped: numbers of elements that are skipped.
        next: the next element, if it has been read.
        is_last: the parent has ended.
        made: what the stage has made of the elements.
        resume: after a failure: the parent's position to continue at, and the choices until then.
    """

    __slots__ = ("after", "counts", "is_last", "made", "next", "num", "pos", "resume", "skipped")

    def __init__(self, pos: Pos, skipped: Sequence[int] | frozenset[int], made: M) -> None:
        self.pos = pos
        self.num = 0
        self.after: Pos = pos[0]
        self.counts: dict[str, int] = {}
        self.skipped = skipped
        self.next = _NOTHING
        self.is_last = False
        self.made = made
        self.resume: tuple[Pos, Records] = pos[0], ()


class Collecting(Replaying, Generic[M]):
    """A layer that collects elements whose number is not known beforehand.

    What it has collected when computing the next element fails is kept, so that ``next`` continues
    with that element.
    """

    _kept: Collected[M] | None = None

    def collected(
        self, cell: Cell, skipped: Sequence[int] | frozenset[int], make: Callable[[], M]
    ) -> Collected[M]:
        """Return what was kept at ``cell.pos``, or the beginning of a new collection."""
        kept, self._kept = self._kept, None
        pos = cell.pos
        if kept is None or not (kept.pos is pos or kept.pos == pos):
            self.begin(cell, pos[0], pos[-1])
            return Collected(pos, skipped, make())
        start, records = kept.resume
        self.begin(cell, start, pos[-1])
        if self.choices is not None:
            self.choices.add(records)
        return kept

    def elements(self, found: Collected[M]) -> Iterator[Any]:
        """Return the next elements but ``None`` and skipped ones; each is collected when the next
        one is requested.
        """
        inner, skipped, choices = self.inner, found.skipped, self.choices
        run = self.parent.run(inner)
        while True:
            if skipped and found.num in skipped:
                pass_outputs(self.parent, inner, 1)
                run = self.parent.run(inner)
            else:
                if found.next is _NOTHING:
                    found.next = next(run, _NOTHING)
                if found.next is _NOTHING:
                    found.is_last = True
                    return
                if found.next is not None:
                    yield found.next
            found.next = _NOTHING  # as ``move_on`` does, which a call would make slower
            found.num += 1
            found.after = inner.settle()
            if choices is not None:
                found.counts = {**choices.counts}

    def move_on(self, found: Collected[M]) -> None:
        """Take the next element for collected."""
        found.next = _NOTHING
        found.num += 1
        found.after = self.inner.settle()
        if self.choices is not None:
            found.counts = {**self.choices.counts}

    def keep(self, cell: Cell, found: Collected[M], error: Exception) -> None:
        """Keep what was collected before ``error`` was raised."""
        is_read = found.next is not _NOTHING
        records = (
            ()
            if self.choices is None
            else self.choices.since(until=None if is_read else found.counts)
        )
        found.resume = self.inner.settle() if is_read else found.after, records
        if isinstance(error, StateMismatchError):
            cell.past_failed = partial(_raise, type(error), str(error))
        else:
            self._kept, cell.past_failed = found, partial(self._pass, cell, found)

    def _pass(self, cell: Cell, found: Collected[M]) -> None:
        self.inner.pass_failed()
        number = found.num
        self.move_on(found)
        cell.pos = found.pos = self.without(found, number)
        found.resume = found.after, self.records()
        self._kept = found

    def without(self, found: Collected[M], number: int) -> Pos:
        """Return the position at which the elements are collected but for ``number``, the last one,
        which has failed.
        """
        raise NotImplementedError

    def known_records(self) -> Records:
        """Return the choices so far, and those that are known to follow."""
        return () if self.choices is None else self.choices.known()

    def end(self, cell: Cell, *own: Any) -> None:
        """Move to the end, where choices that were made after the last output need not be
        replayed.
        """
        if self.choices is not None:
            cell.pos = self.inner.settle(), *own, ()

    def load(self, state: object) -> Pos:
        self._kept = None
        return *self.load_layer(state), self._load_records(state)

    def load_parent(self, state: Any, held: str | None) -> Pos:
        """Return the parent's position in a state.

        Args:
            state: the state.
            held: what is computed again there, in words.
        """
        with replaying(self, None if "choices" in state else held):
            return self.parent.load(state_field(state, self.keys[0], self))

    def load_skipped(self, state: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the numbers of skipped elements in a state."""
        numbers = plain_counts(state.get("skipped", []))
        if numbers is None:
            raise StateMismatchError(
                f"skipped in the state of {self} must be a list of non-negative integers, got"
                f" {shown(state['skipped'])}"
            )
        return tuple(numbers)


def less(counts: Mapping[str, int], base: Mapping[str, int]) -> dict[str, int]:
    """Return how many choices of each stage came after there were ``base``."""
    return {key: num - base.get(key, 0) for key, num in counts.items()}


def _raise(kind: type[StateMismatchError], text: str) -> NoReturn:
    raise kind(text)


class BinPack(Collecting[Bins | None]):
    """Rows of bins. The position: the parent's before the bins, their row, rows since the
    beginning, skipped elements.
    """

    keys = ("parent", "next_row", "counter")
    own = (0, 0, ())
    knows_draws = True

    def __init__(self, stage: Any, parent: Stream, packing: Packing) -> None:
        super().__init__(stage, parent)
        self.packing = packing
        # the states of positions within a block are known
        self.reads_many = parent.saves_anywhere()
        self.num_bytes: int | None = None

    @property
    def name(self) -> str:
        return "BinPackDatasetIterator"

    @property
    def parameters(self) -> Parameters:
        return Described(self.packing.described())

    def _run(self, cell: Cell) -> Iterator[Any]:
        found = self.collected(cell, cell.pos[3], lambda: None)
        while True:
            try:
                rows = self._pack(found)
            except Exception as error:
                self.keep(cell, found, error)
                raise
            start, row, count, skipped, _ = found.pos
            if rows is not None:
                left = [rows[i] for i in reversed(range(row, len(rows)))]
                records = self.records(self._delivery(rows))  # of the element that did not fit, too
                del rows
                while left:
                    row, count = row + 1, count + 1
                    if left[1:]:
                        cell.pos = start, row, count, skipped, records
                    else:
                        self._forget(found)
                        cell.pos = found.after, 0, count, (), self.records()
                    yield left.pop()
            if found.is_last:
                self.end(cell, 0, count, ())
                if self.continues(cell, cell.pos):
                    yield from self._run(cell)
                return
            element, found = found.next, Collected(cell.pos, (), None)
            found.next = element
            del element

    def _delivery(self, rows: PackedRows) -> Delivery:
        if self.mixture is None or self.choices is None:
            return Delivery()
        found = [-1] * self.choices.counts.get(self.mixture.key, 0)
        for row, extras in enumerate(rows.extras):
            for *_, draw in extras:
                if draw >= 0:
                    found[draw] = row
        return Delivery(tuple(found))

    def _forget(self, found: Collected[Bins | None]) -> None:
        if self.choices is not None:
            self.choices.forget_until(found.counts)

    def _pack(self, found: Collected[Bins | None]) -> PackedRows | None:
        """Fill bins; return their rows, ``None`` if no element follows."""
        packing, inner, reads_many = self.packing, self.inner, self.reads_many
        for x in self.elements(found):
            try:
                sequences, carried = packing.layout.read(x)
                bins = found.made or packing.bins_like(sequences)
                if self.mixture is not None:
                    carried = *carried, self.draw_index
                if not bins.add(sequences, carried):
                    break
                found.made = bins
                if reads_many:  # as many as there are empty bins follow, unless the parent ends
                    inner.wanted = max(1, packing.num_packing_bins - len(bins))
            except Exception as error:
                self.fail(error, inner)
                raise
        _, row, count, *_ = found.pos
        num_rows = 0 if found.made is None else len(found.made)
        if row and row >= num_rows:
            raise StateIndexError(
                f"next_row in the state of {self} is {row}, but there are only {num_rows} rows in"
                " that place: data or arguments have changed since"
            )
        if found.made is None:
            return None
        self.num_bytes = found.made.num_bytes(packing.num_packing_bins)
        return packing.rows(found.made, count - row)

    def without(self, found: Collected[Bins | None], number: int) -> Pos:
        start, row, count, skipped, _ = found.pos
        return start, row, count, (*skipped, number), self.known_records()

    def save_layer(self, pos: Pos) -> Any:
        *pos, skipped = pos
        return {**super().save_layer(pos), **({"skipped": [*skipped]} if skipped else {})}

    def load_layer(self, state: Any) -> Pos:
        row, count = state_count(state, "next_row", self), state_count(state, "counter", self)
        if row > count:
            raise StateMismatchError(
                f"counter in the state of {self} must be at least next_row, {row}, got {count}"
            )
        skipped = self.load_skipped(state)
        held = (
            f"up to {self.packing.num_packing_bins} rows, {row} of them delivered"
            if row or skipped
            else None
        )
        return self.load_parent(state, held), row, count, skipped


# the bounds of what is left of an element, for each feature that may be cut
Slices = tuple[tuple[int, int], ...]


class CutRows:
    """A row in the making, and the rows of the full-length elements that come meanwhile.

    Attributes:
        start: the parent's position before the first element, and what is left of that; ``None`` if
            it has not been cut.
        row: the row.
        first: the number of the first element.
        counts: how many choices each stage upstream had made before it.
        cut: its sequences, if it has been cut.
        is_next: the stream's position is still that of the rows before.
        passed: the rows of full-length elements.
        draws: of the elements that are wholly in a row, with its number: 0 for the row in the
            making.
        left: what is left of the last element, if that has been cut.
    """

    def __init__(self, start: tuple[Pos, Slices | None], row: Concatenation) -> None:
        self.start = start
        self.row = row
        self.first = 0
        self.counts: dict[str, int] = {}
        self.cut: list[Array] | None = None
        self.is_next = False
        self.passed: list[dict[str, Array]] = []
        self.draws: dict[int, int] = {}
        self.left: Slices | None = None

    def __len__(self) -> int:
        return len(self.passed) + (len(self.row) > 0)


class ConcatSplit(Collecting[CutRows]):
    """Rows that are cut from sequences joined one after another.

    The position: the parent's before the element in which a row begins, what is left of that, the
    number of rows that were yielded since, skipped elements. It moves on with the next row, not
    with the last one of these.
    """

    keys = ("parent_state", "remainder_slices", "elements_from_buffer_after_checkpoint")
    own = (None, 0, ())
    knows_draws = True

    def __init__(
        self,
        stage: Any,
        parent: Stream,
        targets: list[Target],
        read: Callable[[Any], list[Array]],
        *,
        splits_full_length: bool,
    ) -> None:
        super().__init__(stage, parent)
        self.targets = targets
        self.read = read
        self.splits_full_length = splits_full_length
        self.cut_names = [target.name for target in targets if not target.is_meta]
        self._has_warned = False

    @property
    def parameters(self) -> Parameters:
        return Described(
            {"targets": self.targets, "split_full_length_features": self.splits_full_length}
        )

    def _run(self, cell: Cell) -> Iterator[Any]:
        start = cell.pos[:2]
        found = self.collected(
            cell, cell.pos[3], lambda: CutRows(start, Concatenation(self.targets))
        )
        while True:
            try:
                following = self._fill(found)
            except Exception as error:
                self.keep(cell, found, error)
                raise
            made = found.made
            if not len(made):
                break
            *_, taken, skipped, _ = found.pos
            records = self.records(self._delivery(made))  # of the element that is cut, too
            left = [*([made.row.output()] if len(made.row) else ()), *made.passed][
                : taken - len(made) - 1 : -1
            ]
            while left:
                taken += 1
                cell.pos = *made.start, taken, skipped, records
                yield left.pop()
            if found.is_last:
                break
            found.pos, found.made = cell.pos, following
        self.end(cell, None, 0, ())
        if self.continues(cell, cell.pos):
            yield from self._run(cell)

    def _delivery(self, made: CutRows) -> Delivery:
        if self.mixture is None or self.choices is None:
            return Delivery()
        rows = [-1] * self.choices.counts.get(self.mixture.key, 0)
        has_no_row = not len(made.row)
        for draw, row in made.draws.items():
            if draw >= 0:
                rows[draw] = row - has_no_row
        return Delivery(tuple(rows), None if made.left is None else self._saved_slices(made.left))

    def _fill(self, found: Collected[CutRows]) -> CutRows:
        """Read elements until the row is full, or to the end; return the beginning of the next
        row.
        """
        made, cut, rest = found.made, None, None
        for x in self.elements(found):
            try:
                left = made.start[1] if found.num == made.first else None
                sequences = self.read(x) if left is None or made.cut is None else made.cut
                if (
                    left is None
                    and not self.splits_full_length
                    and is_full_length(self.targets, sequences)
                ):
                    made.passed.append(Concatenation(self.targets, sequences).output())
                    if self.mixture is not None:
                        made.draws[self.draw_index] = len(made.passed)
                    continue
                starts = made.row.add(sequences, self._starts(left, sequences))
            except Exception as error:
                self.fail(error, self.inner)
                raise
            if starts is None:
                if self.mixture is not None:
                    made.draws[self.draw_index] = 0
                continue
            if any(starts):
                cut = sequences
                bounds = zip(self.targets, starts, map(len, sequences), strict=True)
                rest = tuple(
                    [(start, stop) for target, start, stop in bounds if not target.is_meta]
                )
            break
        else:
            if made.start[1] is not None and found.num == made.first:
                raise StateMismatchError(
                    f"the state of {self} says that an element was cut, but there is none left"
                )
        made.left = rest
        self._check(found)
        self._move_to_rows(found)
        following = CutRows((found.after, rest), Concatenation(self.targets))
        following.first, following.counts, following.cut, following.is_next = (
            found.num,
            found.counts,
            cut,
            True,
        )
        return following

    def _check(self, found: Collected[CutRows]) -> None:
        made, taken = found.made, found.pos[2]
        if not made.is_next and 0 < len(made) < taken:
            raise StateIndexError(
                f"the state of {self} says that {taken} outputs were made of the elements that now"
                f" make {len(made)}: data or arguments have changed since"
            )
        limiting = made.row.limiting
        if limiting is not None and not self._has_warned:
            self._has_warned = True
            _log.error(
                "meta feature %r limits how much is packed into a row: consider more than %d cells"
                " for it in length_struct",
                limiting.name,
                limiting.length,
            )

    def _move_to_rows(self, found: Collected[CutRows]) -> None:
        """Let the position be that of the rows that are being made."""
        made = found.made
        if made.is_next:
            found.skipped = skipped = tuple(
                [i - made.first for i in found.pos[3] if i >= made.first]
            )
            if self.choices is not None:
                self.choices.forget_until(made.counts)
                found.counts = less(found.counts, made.counts)
                if self.mixture is not None:
                    num_before = made.counts.get(self.mixture.key, 0)
                    made.draws = {draw - num_before: row for draw, row in made.draws.items()}
            found.num -= made.first
            made.first, made.is_next = 0, False
            found.pos = *made.start, 0, skipped, self.known_records()

    def _starts(self, left: Slices | None, sequences: list[Array]) -> list[int]:
        """Return where what is left of an element begins, for each feature."""
        if left is None:
            return [0] * len(sequences)
        bounds = dict(zip(self.cut_names, left, strict=True))
        starts = []
        for target, array in zip(self.targets, sequences, strict=True):
            start, stop = bounds.get(target.name, (0, len(array)))
            if stop != len(array):
                raise StateMismatchError(
                    f"the state of {self} says that {shown([start, stop])} is left of feature"
                    f" {target.name!r} of an element, which is now {len(array)} long: data have"
                    " changed since"
                )
            starts.append(start)
        return starts

    def without(self, found: Collected[CutRows], number: int) -> Pos:
        made = found.made
        if made.is_next and number == made.first:  # the rows before cannot be made without it
            made.start, made.cut, made.first, made.counts = (
                (found.after, None),
                None,
                found.num,
                found.counts,
            )
            self._move_to_rows(found)
            return found.pos
        *start, skipped, _ = found.pos
        return *start, (*skipped, number), self.known_records()

    def save_layer(self, pos: Pos) -> Any:
        parent, left, taken, skipped = pos
        return {
            self.keys[0]: self.parent.save(parent),
            "remainder_slices": self._saved_slices(left),
            "elements_from_buffer_after_checkpoint": taken,
            **({"skipped": [*skipped]} if skipped else {}),
        }

    def load_layer(self, state: Any) -> Pos:
        taken = state_count(state, "elements_from_buffer_after_checkpoint", self)
        left, skipped = self._load_slices(state), self.load_skipped(state)
        held = (
            f"rows, {taken} of them delivered"
            if taken or skipped
            else None
            if left is None
            else "the rest of an element"
        )
        return self.load_parent(state, held), left, taken, skipped

    def _saved_slices(self, left: Slices | None) -> dict[str, list[int]]:
        slices = [[-1, -1]] * len(self.cut_names) if left is None else map(list, left)
        return dict(zip(self.cut_names, slices, strict=True))

    def _load_slices(self, state: object) -> Slices | None:
        given = state_field(state, "remainder_slices", self)
        slices = tuple(
            [self._load_slice(name, state_field(given, name, self)) for name in self.cut_names]
        )
        if not isinstance(given, Mapping) or len(given) > len(slices):
            raise StateMismatchError(
                f"remainder_slices in the state of {self} must be of the features {self.cut_names},"
                f" got {shown(given)}"
            )
        starts = [start for start, _ in slices]
        if min(starts, default=-1) >= 0:
            return slices
        if max(starts, default=-1) >= 0:
            raise StateMismatchError(
                f"remainder_slices in the state of {self} must be of all features, or none, got"
                f" {shown(given)}"
            )
        return None

    def _load_slice(self, name: str, value: object) -> tuple[int, int]:
        start, stop = (
            map(plain_int, value)
            if isinstance(value, list | tuple) and len(value) == 2
            else (None, None)
        )
        if start is None or stop is None or not (-1 == start == stop or 0 <= start <= stop):
            raise StateMismatchError(
                f"remainder_slices[{name!r}] in the state of {self} must be [start, stop], or [-1,"
                f" -1], got {shown(value)}"
            )
        return start, stop
