"""The next elements of several lanes, side by side: what a host, or one of its workers, gives to a
global batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from itertools import groupby
from typing import Any, TypeAlias

import numpy as np

from gristmill.core import tree
from gristmill.core.errors import StateMismatchError
from gristmill.core.sharding import ShardOptions, even_split
from gristmill.core.state import shown, state_count, state_field
from gristmill.dataset.bases.context import collected_options
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import (
    BlockIterator,
    DatasetIterator,
    are_taken_again,
    iterate,
    marked,
    pull,
    return_to,
    skip_one,
    snapshot,
    state_at,
    state_to_refill,
)
from gristmill.dataset.bases.length import Infinite, Length
from gristmill.dataset.bases.next_index import (
    check_no_gaps,
    may_have_gaps,
    move_to_index,
    next_index_of,
)
from gristmill.dataset.bases.node import ancestors, tolerances
from gristmill.dataset.errors.context import tell
from gristmill.dataset.slicing import slice_pipeline
from gristmill.dataset.stages.batch import batch_function
from gristmill.dataset.states.mixtures import drawn_until, has_mixtures
from gristmill.dataset.states.refilling import refilling
from gristmill.dataset.states.values import copied, states_by_index
from gristmill.dataset.workers.task import share_threads
from gristmill.transforms.batching import Allocate, concatenate, stack

# The rows of lanes that have any, in the order of lanes, and how many of them are elements, of each
# lane; ``NEVER``: it has no rows, since it never had an element to copy. Where padding is not
# wanted and a lane is short, there are no rows at all.
Part: TypeAlias = tuple[Any, tuple[int, ...]]
NEVER = -1


def join_parts(
    parts: Sequence[Part],
    size: int,
    *,
    stacks: bool,
    allocate: Allocate,
    unknown_row: Callable[[], Any],
) -> Any:
    """The rows of all lanes of a host, ``size`` of each, where those of lanes without any are
    zeros.

    Args:
        parts: of all workers, none of which lacks rows since a lane is short.
        size: rows of each lane.
        stacks: whether rows are stacked, and are to be.
        allocate: makes the arrays that rows are copied to, where there are several parts.
        unknown_row: gives a row of zeros where no part has any.
    """
    if all([NEVER not in counts for _, counts in parts]):
        pieces = [rows for rows, _ in parts]
    else:
        present = next((rows for rows, _ in parts if rows is not None), None)
        zero = (
            unknown_row()
            if present is None
            else zero_like(_at(present, 0) if stacks else present[0])
        )
        pieces = []
        for rows, counts in parts:
            start = 0
            for is_never, lanes in groupby([num == NEVER for num in counts]):
                num = size * len([*lanes])
                if is_never:
                    copies = [copy.deepcopy(zero) for _ in range(num)]
                    pieces.append(stack(copies) if stacks else copies)
                else:
                    part = slice(start, start + num)
                    pieces.append(_at(rows, part) if stacks else rows[part])
                    start += num
    return concatenate(pieces, allocate) if stacks else [row for piece in pieces for row in piece]


def _at(batch: Any, rows: Any) -> Any:
    leaves, structure = tree.flatten(batch)
    return tree.unflatten(structure, [leaf[rows] for leaf in leaves])


def zero_like(element: Any) -> Any:
    """An element of the same shape, all of whose leaves are zero, or empty text."""
    leaves, structure = tree.flatten(element)
    zeros = [
        (
            type(leaf)()
            if isinstance(leaf, np.generic | int | float | complex | str | bytes)
            else np.zeros_like(np.asarray(leaf))
        )
        for leaf in leaves
    ]
    return tree.unflatten(structure, zeros)


def part_of_lanes(lanes: range, index: int, count: int) -> range:
    """Those of worker ``index`` of ``count``, which stand side by side in a batch."""
    return lanes[slice(*even_split(len(lanes), ShardOptions(index, count)))]


class LaneRowsIterDataset(IterDataset[Part]):
    """The next ``size`` elements of each lane, step by step and without end: a lane that has ended
    gives no more.

    Order: that of the lanes. State: that of every lane. Cost: one copy, of all rows of a step.

    Args:
        parent: the whole pipeline.
        lanes: those whose elements are wanted.
        num_lanes: how many the pipeline is divided into.
        size: elements of each lane in a step.
        stacks: whether rows are stacked; else they stand in a list.
        pads: whether a lane that has ended gives copies of its last element.
    """

    _adds_step = False

    def __init__(
        self, parent: Any, lanes: range, num_lanes: int, size: int, *, stacks: bool, pads: bool
    ) -> None:
        super().__init__(parent)
        self._lanes = lanes
        self._num_lanes = num_lanes
        self._size = size
        self._stacks = stacks
        self._pads = pads

    def __str__(self) -> str:
        return (
            f"LaneRowsIterDataset(lanes={self._lanes}, num_lanes={self._num_lanes},"
            f" size={self._size})"
        )

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps the lanes of one of several workers."""
        del sequential_slice
        self._lanes = part_of_lanes(self._lanes, sl.start, sl.step)

    def _num_elements(self) -> Length:
        return Infinite()

    def share(self, lane: int) -> IterDataset[Any]:
        """The pipeline of a lane."""
        return slice_pipeline(self._parents[0], lane, self._num_lanes, by_lanes=True)

    def __iter__(self) -> DatasetIterator[Part]:
        return LaneRowsDatasetIterator(
            self, self._lanes, self._num_lanes, self._size, stacks=self._stacks, pads=self._pads
        )


class LaneRowsDatasetIterator(BlockIterator[Part]):
    _flow = "stateful"
    _tell: Callable[[Any], None] | None = None  # is told of the iterators of lanes

    def __init__(
        self,
        ds: LaneRowsIterDataset,
        lanes: range,
        num_lanes: int,
        size: int,
        *,
        stacks: bool,
        pads: bool,
    ) -> None:
        super().__init__()
        self._ctx.options = collected_options(ds)
        self._ds = ds
        self._numbers = lanes
        self._num_lanes = num_lanes
        self._size = size
        self._pads = pads
        self._stack = batch_function(None) if stacks else None
        self._counts_faults = bool(tolerances(ds))
        self._lanes: list[_Lane] = []  # from the time they are first needed

    def __str__(self) -> str:
        return f"LaneRowsDatasetIterator(lanes={self._numbers}, num_lanes={self._num_lanes})"

    @property
    def _draws_from(self) -> Sequence[Any]:
        return self._ds.parents

    @property
    def _work_options(self) -> Sequence[Any]:
        return [options for node in ancestors(self._ds) for options in node._work_options]

    def _inner_iterators(self) -> Iterable[DatasetIterator[Any]]:
        return [] if self._closed else [lane.iterator for lane in self._opened()]

    def _tell_opened(self, tell: Callable[[Any], None] | None) -> None:
        self._tell = tell

    def _allocate_with(self, allocate: Allocate) -> None:
        if self._stack is not None and hasattr(self._stack, "allocate_with"):
            self._stack.allocate_with(allocate)

    def _opened(self) -> list[_Lane]:
        if not self._lanes:
            lanes = [self._open(number) for number in self._numbers]
            if self._closed:
                raise ValueError(f"{self} is closed")
            self._lanes = lanes
        return self._lanes

    def _open(self, number: int) -> _Lane:
        it = iterate(self._ds.share(number))
        it._ctx.belong_to(number, self._num_lanes, self._ctx)
        share_threads(it, len(self._numbers))
        if self._tell is not None:
            it._ctx.joined = None  # it is no pipeline of its own, although it was made like one
            self._tell(it)
        return (
            _PaddedLane(it, f"lane {number} of {self}", keeps_copies=self._stack is None)
            if self._pads
            else _Lane(it)
        )

    def _take(self, n: int) -> list[Part]:
        return [self._part() for _ in range(n)]

    def _part(self) -> Part:
        rows: list[Any] = []
        counts: list[int] = []
        # all of them, also where one has ended: what they raise does not depend on workers
        for lane in self._opened():
            elements, count = lane.take(self._size)
            rows += elements
            counts.append(count)
        if not rows or (not self._pads and min(counts) < self._size):
            return None, tuple(counts)
        if self._stack is None:
            return rows, tuple(counts)
        try:
            return self._stack(rows), tuple(counts)
        except Exception as error:
            tell(error, self)
            raise

    def get_state(self) -> Any:
        lanes = zip(self._numbers, self._opened(), strict=True)
        return {"lanes": {str(number): lane.get_state() for number, lane in lanes}}

    def _restore(self, state: Any) -> None:
        states = states_by_index(state_field(state, "lanes", self), f"lanes in the state of {self}")
        if sorted(states) != [*self._numbers]:
            raise StateMismatchError(
                f"the state of {self} must be of the same lanes, got {shown(sorted(states))}"
            )
        for number, lane in zip(self._numbers, self._opened(), strict=True):
            lane.set_state(states[number])

    def _mark(self) -> Any:
        return [lane.mark() for lane in self._opened()]

    def _state_at(self, mark: Any) -> Any:
        lanes = zip(self._numbers, self._opened(), mark, strict=True)
        return {
            "lanes": {
                str(number): lane.state_at(mark_of_lane) for number, lane, mark_of_lane in lanes
            }
        }

    def _return_to(self, mark: Any) -> None:
        for lane, mark_of_lane in zip(self._lanes, mark, strict=True):
            lane.return_to(mark_of_lane)

    def _skip(self) -> None:
        for lane in self._opened():
            lane.skip(self._size)

    def _get_next_index(self) -> int:
        return next_index_of(self._opened()[0].iterator) // self._size

    def _has_gaps(self) -> bool:
        return any([may_have_gaps(lane.iterator) for lane in self._opened()])

    def _set_next_index(self, index: int) -> None:
        check_no_gaps(self)
        if self._pads:
            raise NotImplementedError(
                f"{self} cannot jump to an index: of a lane that has ended it would have to read"
                " the last element"
            )
        for lane in self._opened():
            move_to_index(lane.iterator, index * self._size)

    def start_prefetch(self) -> None:
        if not self._closed:
            for lane in self._opened():
                lane.iterator.start_prefetch()

    def close(self) -> None:
        super().close()
        for lane in self._lanes:
            lane.iterator.close()

    def __del__(self) -> None:
        pass  # what works in the background ends with the iterator that it works for


class _Lane:
    """One lane."""

    def __init__(self, it: DatasetIterator[Any]) -> None:
        self.iterator = it

    def take(self, size: int) -> tuple[list[Any], int]:
        """The rows of a step, and how many of them are elements."""
        elements = pull(self.iterator, size)
        return elements, len(elements)

    def skip(self, size: int) -> None:
        """Moves past as many elements, whether or not they fail."""
        for _ in range(size):
            skip_one(self.iterator)

    def get_state(self) -> Any:
        return self.iterator.get_state()

    def set_state(self, state: Any) -> None:
        self.iterator.set_state(state)

    def mark(self) -> Any:
        return marked(self.iterator)

    def state_at(self, mark: Any) -> Any:
        return state_at(self.iterator, mark)

    def return_to(self, mark: Any) -> None:
        return_to(self.iterator, mark)


class _PaddedLane(_Lane):
    """One that gives copies of its last element when it has ended.

    The state is that before the last step that had elements, with their number: to continue, they
    are taken once more, so that the last one is there.
    """

    _before: Any = None
    _num = 0  # elements since then
    # of them, if there are any; ``None``: they are to be taken once more
    _last: list[Any] | None = None

    def __init__(self, it: DatasetIterator[Any], name: str, *, keeps_copies: bool) -> None:
        super().__init__(it)
        self._name = name
        are_taken_again([it])
        self._keeps_copies = keeps_copies  # since whoever gets the elements may change them

    def take(self, size: int) -> tuple[list[Any], int]:
        self._take_again()
        before = copied(snapshot(self.iterator))
        elements, num = super().take(size)
        if elements:
            last = elements[-1:]
            if has_mixtures(before):
                before = drawn_until(before, snapshot(self.iterator), is_last=num < size)
            self._before, self._num, self._last = (
                before,
                num,
                copy.deepcopy(last) if self._keeps_copies else last,
            )
        last = self._last or []
        padding = [
            copy.deepcopy(last[0]) if self._keeps_copies else last[0]
            for _ in range(num, size)
            if last
        ]
        return elements + padding, num if last else NEVER

    def _take_again(self) -> None:
        if self._last is None:
            elements = pull(self.iterator, self._num)
            if len(elements) < self._num:
                raise StateMismatchError(
                    f"rows in the state of {self._name} must be at most the number of elements that"
                    f" follow, {len(elements)}, got {self._num}: the state was taken with other"
                    " data"
                )
            self._last = elements[-1:]

    def skip(self, size: int) -> None:
        for _ in range(size + (self._num if self._last is None else 0)):
            skip_one(self.iterator)
        self._before, self._num, self._last = None, 0, []

    def get_state(self) -> Any:
        return self._saved(self._before, self._num, self.iterator.get_state)

    def state_at(self, mark: Any) -> Any:
        place, before, num, _ = mark
        return self._saved(before, num, lambda: state_at(self.iterator, place))

    def _saved(self, before: Any, num: int, now: Callable[[], Any]) -> Any:
        is_known = num and before is not None
        return {
            "state": state_to_refill(self.iterator, before, now) if is_known else now(),
            "rows": num,
        }

    def set_state(self, state: Any) -> None:
        num, before = (
            state_count(state, "rows", self._name),
            state_field(state, "state", self._name),
        )
        with refilling("end='pad'", f"{num} rows of {self._name}" if num else None):
            self.iterator.set_state(before)
        self._before = self.iterator.get_state() if self.iterator._counts_faults else copied(before)
        self._num, self._last = num, None

    def mark(self) -> Any:
        return super().mark(), self._before, self._num, self._last

    def return_to(self, mark: Any) -> None:
        place, self._before, self._num, self._last = mark
        super().return_to(place)
