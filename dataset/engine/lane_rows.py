"""The stream of steps of several lanes: the rows of a host, or of one of its workers, in a global
batch.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import shown, state_count, state_field
from gristmill.dataset.bases.context import collected_options
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.next_index import check_no_gaps
from gristmill.dataset.bases.node import ancestors, makes_choices, tolerances
from gristmill.dataset.engine.choices import Records, Replaying, number_choosers
from gristmill.dataset.engine.elements import BatchStream
from gristmill.dataset.engine.iterators import StreamIterator, stream_of
from gristmill.dataset.engine.recording import key_prefix
from gristmill.dataset.engine.stream import Cell, Pos, Stream, are_equal, pass_outputs
from gristmill.dataset.errors.context import add_error_context
from gristmill.dataset.stages.batch import batch_function
from gristmill.dataset.states.values import states_by_index
from gristmill.dataset.workers.task import share_threads
from gristmill.transforms.batching import Allocate

if TYPE_CHECKING:
    from gristmill.dataset.lanes.rows import LaneRowsIterDataset

# The rows of lanes that have any, in the order of lanes, and how many of them are elements, of each
# lane; ``NEVER``: it has no rows, since it never had an element to copy. Where padding is not
# wanted and a lane is short, there are no rows at all.
Part: TypeAlias = tuple[Any, tuple[int, ...]]
NEVER = -1

Rows: TypeAlias = tuple[list[Any], int]  # of a lane, and how many of them are elements


class PaddedLane(Replaying):
    """The next ``size`` elements of a lane, step by step and without end. When it has ended, copies
    of its last element take the place of elements.

    The position: the parent's before the last step that had elements, and how many these were. To
    continue, they are computed again, so that the last one is there.

    Args:
        stage: the definition of the rows.
        parent: the stream of the lane.
        name: the name of the lane, for errors.
        size: the number of elements in a step.
        keeps_copies: consumers get the elements themselves, so that they may change them.
    """

    keys = ("state", "rows")

    def __init__(
        self, stage: Any, parent: Stream, name: str, size: int, *, keeps_copies: bool
    ) -> None:
        self._name = name
        super().__init__(stage, parent)
        self.size = size
        self.keeps_copies = keeps_copies
        # a position, the last element before it in a list, and the parent's position
        self._held: tuple[Pos, list[Any], Pos] | None = None

    def held(self, state: object) -> str | None:
        num = state_count(state, "rows", self)
        return f"the last of {num} elements, as end='pad' copies it" if num else None

    def _run(self, cell: Cell) -> Iterator[Rows]:
        last, choices = self._begin(cell), self.choices
        inner, size = self.inner, self.size
        run, has_ended = self.parent.run(inner), False
        while True:
            before, rows = inner.settle(), list[Any]()
            counts = None if choices is None else {**choices.counts}
            inner.wanted = size
            try:
                while not has_ended and len(rows) < size:
                    rows.extend(islice(run, size - len(rows)))
                    has_ended = len(rows) < size
                    if not rows and self.continues(cell, cell.pos):
                        before, counts, has_ended = inner.settle(), {}, False
                        run = self.parent.run(inner)
            except Exception:
                cell.past_failed = partial(self._pass, cell, size - len(rows) - 1)
                raise
            num = len(rows)
            if num and choices is not None:
                choices.forget_until(counts or {})
            if num:
                last = copy.deepcopy(rows[-1:]) if self.keeps_copies else rows[-1:]
                cell.pos = before, num, self.records()
            elif has_ended and choices is not None:
                cell.pos = *cell.pos[:-1], self.records()
            self._held = cell.pos, last, inner.settle()
            made = [(self._padded(rows, last), num if last else NEVER)]
            del rows
            yield made.pop()

    def _begin(self, cell: Cell) -> list[Any]:
        """Move the parent past its last element before ``cell.pos``; return that in a list, which
        is empty if there is none.
        """
        before, num, records = cell.pos
        held = self._held
        if held is not None and are_equal(held[0], cell.pos):
            self.begin(cell, held[2], ())
            if self.choices is not None:
                self.choices.resume(records)
            return held[1]
        inner = self.begin(cell, before, records)
        inner.wanted = num
        rows = list(islice(self.parent.run(inner), num))
        if len(rows) < num:
            raise StateMismatchError(
                f"rows in the state of {self} must be at most the number of elements that follow,"
                f" {len(rows)}, got {num}: the state was taken with other data"
            )
        return rows[-1:]

    def _padded(self, rows: list[Any], last: list[Any]) -> list[Any]:
        padding = [x for x in last for _ in range(self.size - len(rows))]
        return rows + ([copy.deepcopy(x) for x in padding] if self.keeps_copies else padding)

    def _pass(self, cell: Cell, num: int) -> None:
        """Move past the element that failed, and the ``num`` that would follow it in the step."""
        self.inner.pass_failed()
        pass_outputs(self.parent, self.inner, num)
        cell.pos = self.inner.settle(), 0, ()

    def __str__(self) -> str:
        return self._name


class Lane(NamedTuple):
    """A lane that is open.

    Attributes:
        it: its iterator.
        inner: the stream of that.
        rows: the stream of its steps.
        cell: where it is.
    """

    it: DatasetIterator[Any]
    inner: Stream
    rows: Stream
    cell: Cell


class LaneRows(Stream):
    """A step of every lane at a time. The position: those of the lanes; ``None`` at the beginning,
    so that lanes are opened when they are first needed.

    Args:
        stage: the definition.
    """

    _lanes: Sequence[Lane] = ()
    _is_closed = False
    _key = ""
    _tell: Callable[[Any], None] | None = None  # called with the iterators of lanes

    def __init__(self, stage: LaneRowsIterDataset) -> None:
        self.makes_choices = makes_choices(stage)  # in the lanes
        super().__init__(stage)
        self._ds = stage
        self._stack = batch_function(None) if stage.stacks else None
        self.counts_faults = bool(tolerances(stage))

    @property
    def key(self) -> str:
        """Begins the keys of stages in lanes; empty if no stage downstream records choices."""
        return self._key

    @key.setter
    def key(self, key: str) -> None:
        self._key = key
        self._number(self._lanes)

    def _number(self, lanes: Sequence[Lane]) -> None:
        for number, lane in zip(self._ds.lanes, lanes, strict=bool(lanes)):
            if self._key:
                number_choosers(lane.rows, key_prefix(self._key, number))

    def _opened(self) -> Sequence[Lane]:
        if not self._lanes:
            lanes = [self._open(number) for number in self._ds.lanes]
            if self._is_closed:
                raise ValueError(f"{self} is closed")
            self._number(lanes)
            self._lanes = lanes
        return self._lanes

    def _open(self, number: int) -> Lane:
        ds = self._ds
        it = iterate(ds.share(number))
        it._gm_ctx.belong_to(number, ds.num_lanes, self.ctx)
        share_threads(it, len(ds.lanes))
        if self._tell is not None:
            it._gm_ctx.joined = None  # it is no pipeline of its own, although it was made like one
            self._tell(it)
        inner = stream_of(it)
        rows = (
            PaddedLane(
                ds, inner, f"lane {number} of {self}", ds.size, keeps_copies=self._stack is None
            )
            if ds.pads
            else BatchStream(ds, inner, ds.size, _counted, drop_remainder=False)
        )
        return Lane(it, inner, rows, Cell())

    def start(self) -> Pos:
        return None

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        if end is None and not records:
            return None
        return tuple([lane.rows.next_epoch(pos, records) for lane, pos in self._pairs(end)])

    def _pairs(self, pos: Pos) -> Sequence[tuple[Lane, Pos]]:
        """Return the lanes with their positions in ``pos``."""
        lanes = self._opened()
        positions = [lane.rows.start() for lane in lanes] if pos is None else pos
        return [*zip(lanes, positions, strict=True)]

    # Running.

    def _run(self, cell: Cell) -> Iterator[Part]:
        pairs = self._pairs(cell.pos)
        for lane, pos in pairs:
            lane.cell.at(pos, choices=cell.choices)
        lanes, pads, size = [lane for lane, _ in pairs], self._ds.pads, self._ds.size
        while True:
            rows: list[Any] = []
            counts: list[int] = []
            # all of them, also where one has ended: what they raise does not depend on workers
            for i, lane in enumerate(lanes):
                try:
                    elements, count = next(lane.rows.run(lane.cell), _NO_ROWS)
                except Exception:
                    cell.past_failed = partial(self._pass, cell, i)
                    raise
                rows += elements
                del elements
                counts.append(count)
            after = tuple([lane.cell.settle() for lane in lanes])
            if not rows or (not pads and min(counts) < size):
                rows = []
                cell.pos = after
                yield None, tuple(counts)
                continue
            made = [rows if self._stack is None else self._stacked(cell, rows, after)]
            del rows
            cell.pos = after
            yield made.pop(), tuple(counts)

    def _stacked(self, cell: Cell, rows: list[Any], after: Pos) -> Any:
        assert self._stack is not None
        try:
            return self._stack(rows)
        except Exception as error:
            add_error_context(error, self)
            cell.past_failed = partial(setattr, cell, "pos", after)
            raise

    def _pass(self, cell: Cell, failed: int) -> None:
        """Move past a step of which lane ``failed`` in the list of lanes has failed."""
        self._lanes[failed].cell.pass_failed()
        for lane in self._lanes[failed + 1 :]:
            pass_outputs(lane.rows, lane.cell, 1)
        cell.pos = tuple([lane.cell.settle() for lane in self._lanes])

    # Positions and states.

    def save(self, pos: Pos) -> Any:
        pairs = zip(self._ds.lanes, self._pairs(pos), strict=True)
        return {"lanes": {str(number): lane.rows.save(part) for number, (lane, part) in pairs}}

    def saves_anywhere(self) -> bool:
        return all([lane.rows.saves_anywhere() for lane in self._opened()])

    def kind(self, index: int) -> tuple[Any, ...]:
        return LaneRows, index

    def faults_in(self, pos: Pos) -> Any:
        return [lane.rows.faults_in(part) for lane, part in self._pairs(pos)]

    def load(self, state: object) -> Pos:
        numbers = [*self._ds.lanes]
        states = states_by_index(state_field(state, "lanes", self), f"lanes in the state of {self}")
        if sorted(states) != numbers:
            raise StateMismatchError(
                f"the state of {self} must be of the same lanes, got {shown(sorted(states))}"
            )
        pairs = zip(numbers, self._opened(), strict=True)
        return tuple([lane.rows.load(states[number]) for number, lane in pairs])

    def at_index(self, index: int) -> Pos:
        check_no_gaps(self)
        if self._ds.pads:
            raise NotImplementedError(
                f"{self} cannot jump to an index: of a lane that has ended it would have to read"
                " the last element"
            )
        return tuple([lane.inner.at_index(index * self._ds.size) for lane in self._opened()])

    def has_gaps(self) -> bool:
        return any([lane.inner.has_gaps() for lane in self._opened()])

    # Resources, and what observers ask.

    def open_iterators(self) -> Sequence[DatasetIterator[Any]]:
        return [] if self._is_closed else [lane.it for lane in self._opened()]

    def report_opened(self, add_error_context: Callable[[Any], None] | None) -> None:
        self._tell = add_error_context

    def allocate_with(self, allocate: Allocate) -> None:
        if self._stack is not None and hasattr(self._stack, "allocate_with"):
            self._stack.allocate_with(allocate)

    def start_prefetch(self) -> None:
        if not self._is_closed:
            for lane in self._opened():
                lane.inner.start_prefetch()

    def reads_once(self) -> bool:
        return any([lane.inner.reads_once() for lane in self._opened()])

    def close(self) -> None:
        self._is_closed = True
        for lane in self._lanes:
            lane.it.close()

    def drop(self) -> None:
        self.forget_run()
        lanes, self._lanes = self._lanes, ()
        for lane in lanes:
            lane.rows.drop()

    def forget(self) -> None:
        super().forget()
        for lane in self._lanes:
            lane.rows.forget()

    def __str__(self) -> str:
        ds = self._ds
        return f"LaneRowsDatasetIterator(lanes={ds.lanes}, num_lanes={ds.num_lanes})"


_NO_ROWS: Rows = [], 0


def _counted(rows: list[Any]) -> Rows:
    return rows, len(rows)


class LaneRowsDatasetIterator(StreamIterator[Part]):
    """The iterator of steps of several lanes.

    Args:
        stage: the definition.
    """

    def __init__(self, stage: LaneRowsIterDataset) -> None:
        super().__init__(stage, [], LaneRows)
        self._gm_ctx.options = collected_options(stage)

    @property
    def _gm_draws_from(self) -> Sequence[Any]:
        parents: Sequence[Any] = self._stage.parents
        return parents

    @property
    def _gm_observed_upstream(self) -> Sequence[Any]:
        return ()

    @property
    def _gm_work_options(self) -> Sequence[Any]:
        return [options for node in ancestors(self._stage) for options in node._gm_work_options]
