"""The stream of ``global_batch``: it puts together what the lanes of a host give, and finds out
where they end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from gristmill.core.errors import StateIndexError, StateMismatchError, as_int
from gristmill.dataset.bases.context import collected_options
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.bases.length import Exact, Infinite
from gristmill.dataset.bases.node import ancestors, tolerances
from gristmill.dataset.engine.choices import Choices, Records
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.engine.lane_rows import Part
from gristmill.dataset.engine.round_robin import RoundRobinIterator
from gristmill.dataset.engine.stream import Cell, Pos, Stream, are_equal, pass_outputs
from gristmill.dataset.faults.lanes import lane_budgets
from gristmill.dataset.lanes.rows import join_parts
from gristmill.dataset.slicing import part_of_lanes
from gristmill.dataset.stages.map import MapMapDataset
from gristmill.dataset.stages.map_with_index import MapWithIndexMapDataset
from gristmill.dataset.stages.random_map import RandomMapMapDataset
from gristmill.dataset.states.lanes import LanesState, Position, check_mixed_in_lanes, merge_states
from gristmill.dataset.states.shards import shards_state
from gristmill.dataset.watching import watch_if_tracked
from gristmill.transforms.batching import Allocate, BufferPool

if TYPE_CHECKING:
    from gristmill.dataset.stages.global_batch import GlobalBatchIterDataset, GlobalBatchParameters

T = TypeVar("T")

_ENDLESS = 2**63 - 1
_UNKNOWN: Any = object()


class Here(NamedTuple):
    """A position of the parent, and how many choices each stage upstream has made until there in
    this run.
    """

    place: Pos
    counts: Mapping[str, int] = {}


class RowsOfStep(NamedTuple):
    """A step of the parent.

    Attributes:
        parts: of all workers.
        after: where the parent is afterwards.
        made: the choices that were made for it.
    """

    parts: list[Part]
    after: Here
    made: Records


class StepReader:
    """Reads the steps of the parent.

    Args:
        parent: the stream of parts.
        cell: where it is.
        num_parts: how many there are in a step.
    """

    # of the steps that were read in this run, if a stage downstream records choices
    choices: Choices | None = None

    def __init__(self, parent: Stream, cell: Cell, num_parts: int) -> None:
        self._parent, self._cell, self._num_parts = parent, cell, num_parts

    def read(self, here: Here) -> RowsOfStep:
        """Return the step after ``here``."""
        cell = self._move_to(here)
        cell.wanted = self._num_parts
        return self._since(here, list(islice(self._parent.run(cell), self._num_parts)))

    def pass_parts(self, here: Here) -> RowsOfStep:
        """Return the next step without its parts, whether it fails or not."""
        pass_outputs(self._parent, self._move_to(here), self._num_parts)
        return self._since(here, [])

    def _move_to(self, here: Here) -> Cell:
        if self.choices is not None:
            self.choices.go_back(here.counts)
        return self._cell.at(here.place, choices=self.choices)

    def _since(self, here: Here, parts: list[Part]) -> RowsOfStep:
        place, choices = self._cell.settle(), self.choices
        if choices is None:
            return RowsOfStep(parts, Here(place), ())
        return RowsOfStep(parts, Here(place, {**choices.counts}), choices.hand_over(here.counts))


class GlobalBatch(Stream):
    """Steps of lanes, put together. The parent gives a part of every worker for each step.

    The position is ``(the parent's, Position)``.

    Args:
        stage: the definition.
        parent: the stream of parts.
    """

    is_restored = False  # a state was loaded
    # the parent's position before the steps that were read and not delivered
    _ahead_from: Pos = _UNKNOWN
    # the parent's position after the last step, and what was read there, which fills no step
    _rest: tuple[Pos, RowsOfStep] | None = None
    # The position at which it was last found out how many steps follow, and the one with the
    # answer.
    _extended: tuple[Pos, Position] = _UNKNOWN, Position()

    def __init__(self, stage: GlobalBatchIterDataset[Any], parent: Stream) -> None:
        super().__init__(stage, parent)
        self._ds = stage
        given: Any = self.parameters
        self.given: GlobalBatchParameters = given
        self._pads = given.end == "pad"
        self._is_agreed = given.agree is not None and not stage.is_computed
        self._has_workers = given.workers is not None and given.workers.num_workers != 0
        self._num_parts = given.num_parts
        self._allocate: Allocate = BufferPool()
        self._ahead: deque[RowsOfStep] = deque()
        self.reader = StepReader(parent, self.inner, self._num_parts)
        found = tolerances(stage)
        self.counts_faults = bool(found)
        self._budgets = lane_budgets(self, found)
        self._now: Pos = self.start()  # where the budgets are

    def start(self) -> Pos:
        return self.parent.start(), Position()

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        rest = None if records else self._rest_after(end[0])
        place = end[0] if rest is None else rest.after.place
        return self.parent.next_epoch(place, records), Position()

    def pos_of_parent(self, pos: Pos, i: int) -> Pos:
        return pos[0]

    # Running.

    def _run(self, cell: Cell) -> Iterator[Any]:
        here, at = Here(cell.pos[0]), cell.pos[1]
        self.reader.choices = choices = None
        if cell.choices is not None and self.parent.chooses:
            self.reader.choices, choices = Choices(), cell.choices
            self.reader.choices.restart(choices.to_come())
            self._keep([], _UNKNOWN)
            self.inner.go_to(here.place)  # a live run may have asked before
        if self._budgets is not None and self._now is not cell.pos:
            self._now = cell.pos
            self._budgets.restart()
        while True:
            cell.past_failed = partial(self._pass, cell, here, at, None)
            if at.step == at.horizon and not at.is_last:
                at = self._with_horizon(here, at)
            if at.step == at.horizon:
                break
            step = self._next_step(here, at)
            cell.past_failed = partial(self._pass, cell, here, at, step._replace(parts=[]))
            try:
                batch = self._batch(step.parts)
            except Exception as error:
                self.fail(error, self.inner)
                raise
            next_at = self._after(at)
            self._check_budgets(cell, step.after, next_at)
            if self._ahead:
                self._ahead_from = _UNKNOWN
                self._ahead.popleft()
                self._ahead_from = step.after.place
            if choices is not None:
                choices.add(step.made)
            cell.past_failed, here, at = None, step.after, next_at
            del step
            cell.pos = self._now = here.place, at
            yield (batch, batch := None)[0]
        rest = self._rest_after(here.place)
        if rest is not None:
            if choices is not None:
                choices.add(rest.made)
            if max(_num_rows(rest.parts)) <= 0:  # otherwise a smaller batch may follow
                here = rest.after
                self._check_budgets(cell, here, at)
        cell.past_failed = None
        cell.pos = self._now = here.place, at

    def _rest_after(self, place: Pos) -> RowsOfStep | None:
        """Return what was read after the last step, if that is at ``place``."""
        rest = self._rest
        return rest[1] if rest is not None and are_equal(rest[0], place) else None

    def _check_budgets(self, cell: Cell, here: Here, at: Position) -> None:
        """Raise an error if what was read until ``here`` exceeds the error budgets."""
        if self._budgets is not None:
            self._now = here.place, at
            exceeded = self._budgets.check(0, None, partial(self.save, self._now))
            if exceeded is not None:
                raise exceeded

    def _after(self, at: Position) -> Position:
        return at.replaced(step=at.step + 1, rows=at.rows + self.given.rows_per_lane)

    def _next_step(self, here: Here, at: Position) -> RowsOfStep:
        """Return what the parent gives for the next step."""
        if self._ahead and not are_equal(self._ahead_from, here.place):
            self._ahead.clear()
        if self._ahead:
            return self._ahead[0]
        step = self.reader.read(here)
        check_parts(self, step.parts, at)
        return step

    def _pass(self, cell: Cell, here: Here, at: Position, step: RowsOfStep | None) -> None:
        """Move past a step that failed, after it was read if it is given."""
        if step is None:
            if at.step == at.horizon:
                if self._is_agreed:
                    self._with_horizon(here, at)  # raises again: hosts have to agree first
                    return
                at = at.replaced(horizon=at.step + 1)
            step = self.reader.pass_parts(here)
        if cell.choices is not None:
            cell.choices.add(step.made)
        cell.pos = self._now = step.after.place, self._after(at)
        if self._budgets is not None:
            self._budgets.pass_skipped()

    # Finding out how many steps follow.

    def _with_horizon(self, here: Here, at: Position) -> Position:
        """Return ``at`` with the number of steps that certainly follow."""
        before = here.place, at
        if not are_equal(self._extended[0], before):
            self._extended = before, self._extend(here, at)
        return self._extended[1]

    def _extend(self, here: Here, at: Position) -> Position:
        if self._ds.is_computed:
            length = self._ds.num_steps_after(at.rows)
            horizon = at.step + length.num if isinstance(length, Exact) else _ENDLESS
            return at.replaced(horizon=horizon, is_last=True)
        if self._is_agreed:
            ahead, agreed = agree_on_steps(self, here)
            self._keep(ahead[:agreed], here.place)
            is_last = agreed < self.given.agree_every
            return at.replaced(horizon=at.step + agreed, is_last=is_last)
        step = self.reader.read(here)
        is_step = self.is_step(step)
        self._rest = None if is_step else (here.place, step)
        self._keep([step] if is_step else [], here.place)
        return at.replaced(horizon=at.step + is_step, is_last=not is_step)

    def _keep(self, steps: Sequence[RowsOfStep], place: Pos) -> None:
        """Keep steps that were read after ``place``."""
        self._ahead_from = _UNKNOWN
        self._ahead = deque(steps)
        self._ahead_from = place

    def is_step(self, step: RowsOfStep) -> bool:
        """Return true if the lanes fill a step with what was read."""
        counts = _num_rows(step.parts)
        return max(counts) > 0 if self._pads else min(counts) == self.given.rows_per_lane

    def _batch(self, parts: list[Part]) -> Any:
        size, batch_fn = self.given.rows_per_lane, self.given.batch_fn
        stacks = batch_fn is None
        rows = join_parts(
            parts, size, stacks=stacks, allocate=self._allocate, unknown_row=self._ds.zero_row
        )
        batch = rows if stacks else batch_fn(rows)
        if not self._pads:
            return batch
        counts = np.array(_num_rows(parts))
        return batch, (np.arange(size) < counts[:, None]).ravel()

    # Positions and states.

    def save(self, pos: Pos) -> Any:
        state = self.parent.save(pos[0])
        parts = state["iterators_in_use_states"] if self._has_workers else [state]
        lanes = {int(number): x for part in parts for number, x in part["lanes"].items()}
        num, size, is_mixed = self.given.num_lanes, self.given.batch_size, self._ds.mixes_in_lanes
        return LanesState(num, size, pos[1], self._is_agreed, is_mixed, lanes).as_state()

    def states_now(self) -> list[Any]:
        """Return the state after what was delivered, for the budgets."""
        return [self.save(self._now)]

    def load(self, state: Any) -> Pos:
        given, num = self.given, self._num_parts
        parsed = LanesState.parse(state, self)
        if parsed.num_lanes != given.num_lanes:
            raise StateMismatchError(
                f"the state was taken with num_lanes={parsed.num_lanes}, and this global_batch has"
                f" {given.num_lanes}: pass num_lanes={parsed.num_lanes}, with any batch_size that"
                " it divides, and any number of hosts that divides it"
            )
        check_mixed_in_lanes(state, self._ds.mixes_in_lanes, parsed.num_lanes, self)
        found = parsed.of_lanes(given.lanes, self)
        of_parts = [
            {str(i): found[i] for i in part_of_lanes(given.lanes, index, num)}
            for index in range(num)
        ]
        states: list[Any] = [{"lanes": lanes} for lanes in of_parts]
        place = self.parent.load(
            shards_state(0, states).as_state() if self._has_workers else states[0]
        )
        is_as_agreed = (
            self._is_agreed and parsed.is_agreed and parsed.batch_size == given.batch_size
        )
        at = parsed.position
        self.is_restored = True
        return self._moved_to(
            (place, at if is_as_agreed else at.replaced(horizon=at.step, is_last=False))
        )

    def _moved_to(self, pos: Pos) -> Pos:
        """Forget what was read and agreed on: other hosts may begin here, too."""
        self._keep([], _UNKNOWN)
        self._extended = _UNKNOWN, Position()
        return pos

    def merge(self, states: Any) -> Any:
        if isinstance(states, Mapping):
            raise StateMismatchError(f"the files shard_state_*.json are not those of {self}")
        return merge_states(states)

    def index_of(self, pos: Pos) -> int:
        at: Position = pos[1]
        return at.step

    def at_index(self, index: int) -> Pos:
        length = self._ds.num_steps_after(0)
        if not isinstance(length, Exact | Infinite):
            raise NotImplementedError(
                f"{self} has no index for its outputs: how many elements its lanes have is not"
                " known before"
            )
        if isinstance(length, Exact) and index > length.num:
            raise StateIndexError(
                f"the index of the next output of {self} must be in [0, {length.num}], got {index}"
            )
        place = self.parent.at_index(index * self._num_parts)
        return self._moved_to((place, Position(index, index * self.given.rows_per_lane, index)))

    def allocate_with(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self.parent.allocate_with(allocate)


def agree_on_steps(stream: GlobalBatch, first: Here) -> tuple[list[RowsOfStep], int]:
    """Read steps ahead and ask all hosts how many they have; return these steps, and how many all
    hosts make. A step that fails counts, and fails again in its turn.
    """
    given, reader = stream.given, stream.reader
    every, agree, pads = given.agree_every, given.agree, given.end == "pad"
    ahead: list[RowsOfStep] = []
    num, here, has_failed = 0, first, False
    while num < every:
        try:
            step = reader.read(here)
        except Exception:
            here, has_failed = reader.pass_parts(here).after, True
        else:
            if not stream.is_step(step):
                break
            here = step.after
            if not has_failed:
                ahead.append(step)
        num += 1
    agreed = as_int(
        "the number that agree returns",
        agree(num, largest=True) if pads else agree(num),
        minimum=0,
    )
    if not (num <= agreed <= every if pads else agreed <= num):
        raise ValueError(
            f"agree must return the {'largest' if pads else 'smallest'} of the numbers of"
            f" all hosts, got {agreed}: this host has {num}, of {every} asked for"
        )
    return ahead, agreed


class GlobalBatchIterator(StreamIterator[T]):
    """The iterator of ``global_batch``.

    Args:
        stage: the definition.
        rows: the iterator of the parts of its workers.
    """

    def __init__(self, stage: GlobalBatchIterDataset[T], rows: Any) -> None:
        if isinstance(rows, RoundRobinIterator):
            rows.use_limits([])  # this stage does so
        super().__init__(stage, [rows], GlobalBatch)
        watch_if_tracked(self, collected_options(stage))

    @property
    def _gm_described_upstream(self) -> Sequence[Any]:
        return [iterate(parent) for parent in self._stage._gm_parents]


def check_parts(stream: GlobalBatch, parts: list[Part], at: Position) -> None:
    """Raise an error if a lane has fewer elements than it was said to have.

    Args:
        stream: of the step.
        parts: of the step.
        at: the position before it.
    """
    ds, given = stream.stage, stream.given
    size, pads = given.rows_per_lane, given.end == "pad"
    if pads and not ds.is_computed:
        return  # hosts have agreed on the greatest number of steps
    for lane, num in zip(given.lanes, _num_rows(parts), strict=True):
        length = ds.lane_lengths[lane]
        expected = (
            min(size, max(0, length.num - at.rows)) if pads and isinstance(length, Exact) else size
        )
        if max(0, num) < expected:
            kind = StateMismatchError if stream.is_restored else ValueError
            raise kind(
                f"lane {lane} of {stream} ends after {at.rows + max(0, num)} elements, where its"
                f" length, or what hosts have agreed on, says {at.rows + expected}:"
                f" {_dropping(ds)} gives None for some elements, or ends before its length"
                f" says{', or the state is of other data' if stream.is_restored else ''}. Leave"
                " elements out with filter, which lengths know of"
            )


def _num_rows(parts: list[Part]) -> list[int]:
    """Return the number of rows of each lane."""
    return [num for _, counts in parts for num in counts]


def _dropping(ds: GlobalBatchIterDataset[Any]) -> str:
    """Return the names of stages that may drop elements although lengths count them."""
    functions = (MapMapDataset, RandomMapMapDataset, MapWithIndexMapDataset)
    found = [node for node in ancestors(ds) if isinstance(node, functions)] or [
        x for x in ancestors(ds) if not x._gm_parents
    ]
    return " or ".join(map(str, found[:3]))
