"""``mp_prefetch(order="stream")`` of a pipeline that begins with an interleave: workers compute its
datasets, each a whole one.

Guarantees:

1. Which elements come from where is decided by the interleave, in the consumer, from the elements
   of its datasets alone. Its states are those without workers.
2. Dataset ``i`` is lane ``i`` of the workers. Only lanes of datasets that are open are computed.
"""

from __future__ import annotations

import itertools
import os
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, TypeAlias, TypeVar

from gristmill.core.options import MAX_LANES
from gristmill.dataset.bases.context import ComponentContext, IteratorContext, collected_options
from gristmill.dataset.bases.division import Division
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate, share_context, snapshot
from gristmill.dataset.bases.length import Length, Unknown, same_number
from gristmill.dataset.bases.node import is_of_library, spec_of_first_parent, tolerances
from gristmill.dataset.bases.parameters import Parameters, field, parameters_of
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.choices import Records, number_choosers
from gristmill.dataset.engine.iterators import Given, StreamIterator, fault_reporter_of, stream_of
from gristmill.dataset.engine.recording import add_choices, key_prefix, state_in, with_known
from gristmill.dataset.engine.round_robin import RoundRobinIterator
from gristmill.dataset.engine.stream import Cell, Pos, Stream, are_equal, observed
from gristmill.dataset.faults.lanes import lane_budgets
from gristmill.dataset.lanes.processes import WorkerLane
from gristmill.dataset.slicing import replaced_in
from gristmill.dataset.stages.interleave import (
    InterleaveDatasetIterator,
    InterleaveIterDataset,
    IteratorOpener,
    as_stream,
    dataset_at,
)
from gristmill.dataset.states.values import copied

T = TypeVar("T")

Workers = Callable[..., IterDataset[Any]]  # of a dataset, and optionally the number of lanes


def needs_of(step: Any) -> str | None:
    """Return the property of elements that a stage needs to be applied to each alone; ``None`` if
    that is not enough or unknown.
    """
    needs: str | None = step._gm_works_on
    return needs if is_of_library(step) else None


def interleaved_part(ds: IterDataset[Any]) -> IterDataset[Any] | None:
    """Returns the interleave at the beginning of ``ds``, with the downstream stages that change
    every element alone; ``None`` without an interleave.
    """
    chain = _chain(ds)
    if type(chain[0]) is not InterleaveIterDataset:
        return None
    rest = itertools.takewhile(lambda step: needs_of(step) in ("elements", "nothing"), chain[1:])
    return [chain[0], *rest][-1]


def _chain(ds: IterDataset[Any]) -> list[IterDataset[Any]]:
    """Return the streams that lead to ``ds``, as long as each has one parent."""
    chain = [ds]
    while len(chain[0]._gm_parents) == 1 and isinstance(chain[0]._gm_parents[0], IterDataset):
        chain.insert(0, chain[0]._gm_parents[0])
    return chain


class MemberParameters(Parameters):
    datasets: Any = field(in_checkpoint=False, in_repr=False)
    steps: Sequence[Any] = field(in_checkpoint=False, in_repr=False)
    index: int
    number: str = field(in_checkpoint=False, in_repr=False)


class MemberIterDataset(IterDataset[Any]):
    """Dataset ``index`` of an interleave, with the stages ``steps`` downstream of it.

    Worker ``i`` of as many as there are datasets has dataset ``i`` in place of it.
    """

    def __init__(
        self, datasets: Any, steps: Sequence[IterDataset[Any]], index: int = 0, number: str = ""
    ) -> None:
        super().__init__()
        self._gm_datasets = datasets
        self._number = number
        self._steps = steps
        self._index = index
        self._gm_parameters = MemberParameters(datasets, steps, index, number)

    def __str__(self) -> str:
        return f"MemberIterDataset(index={self._index}, [{len(self._gm_datasets)} datasets])"

    def _gm_num_elements(self) -> Length:
        return Unknown()

    def _gm_divided(self, division: Division) -> MemberIterDataset:
        if division.num_workers != len(self._gm_datasets):
            raise ValueError(
                f"{self} cannot be sliced among {division.num_workers} workers: each is to have a"
                " dataset"
            )
        return MemberIterDataset(self._gm_datasets, self._steps, division.index, self._number)

    def _gm_traced(self, tracing: Tracing) -> Any:
        return tracing.of(self._whole())

    def _whole(self) -> IterDataset[Any]:
        ds = as_stream(dataset_at(self._gm_datasets, self._index, self._number))
        for step in self._steps:
            ds = replaced_in(step, step._gm_parents[0], ds)
        return ds

    def __iter__(self) -> DatasetIterator[Any]:
        ds = self._whole()
        it = iterate(ds)
        number_choosers(stream_of(it), key_prefix("", self._index))  # as without workers
        share_context([it], _OfWhole(collected_options(ds)))
        return it


class _OfWhole(IteratorContext):
    """Of a dataset that one worker has as a whole, so that its elements have the numbers that they
    have without workers.
    """

    def belong_to(self, index: int, count: int, whole: IteratorContext) -> None:
        super().belong_to(0, 1, whole)


class StreamInterleaveParameters(Parameters):
    workers: Workers = field(in_checkpoint=False, in_repr=False)


class StreamInterleaveIterDataset(IterDataset[T]):
    """The elements of the parent, an interleave and stages for every element alone, whose datasets
    are computed by ``workers``.

    Order: the parent's. State: the parent's. Cost: when a dataset is opened, its worker goes back
    to what has arrived.
    """

    _gm_adds_step = False
    _gm_starts_workers = True
    _element_spec = spec_of_first_parent
    _gm_num_elements = same_number

    def __init__(self, parent: IterDataset[T], workers: Workers) -> None:
        super().__init__(parent)
        self._gm_parameters = StreamInterleaveParameters(workers)
        self._workers = workers
        interleave, *steps = _chain(parent)
        assert isinstance(interleave, InterleaveIterDataset)
        self._gm_datasets = interleave.datasets
        self._number = interleave._gm_number
        if len(self._gm_datasets) > MAX_LANES:
            raise ValueError(
                f"order='stream' cannot divide {interleave} among workers: it has more than"
                f" {MAX_LANES} datasets. Use order='workers', where each worker has an interleave"
                " of its own"
            )
        self._cycle_length = min(parameters_of(interleave).cycle_length, len(self._gm_datasets))
        self._by_workers = (
            workers(
                MemberIterDataset(self._gm_datasets, steps, number=self._number),
                len(self._gm_datasets),
            )
            if self._cycle_length
            else None
        )

    def __str__(self) -> str:
        return f"StreamInterleaveIterDataset([{len(self._gm_datasets)} datasets])"

    def _gm_over(self, replaced: Callable[[Any], Any]) -> StreamInterleaveIterDataset[T]:
        return StreamInterleaveIterDataset(replaced(self._gm_parent), self._workers)

    def _gm_traced(self, tracing: Tracing) -> Any:
        return tracing.of(self._gm_parent)  # which has the same states

    def __iter__(self) -> DatasetIterator[T]:
        workers = None if self._by_workers is None else iterate(self._by_workers)
        if not isinstance(workers, RoundRobinIterator):
            return iterate(self._gm_parent)  # there are no datasets
        members = _Members(workers)
        opener = IteratorOpener(self._gm_datasets, self._number, 0, members)
        members.ctx = opener.ctx
        interleave: InterleaveDatasetIterator[T] = InterleaveDatasetIterator(
            _chain(self._gm_parent)[0], opener, self._cycle_length
        )
        return StreamInterleaveIterator(self, interleave, members)


class StreamInterleave(Stream):
    """The elements of an interleave whose datasets are computed by ``members``. The position is
    its.
    """

    flow = "one_to_one"

    def __init__(self, stage: Any, parent: Stream, members: _Members) -> None:
        super().__init__(stage, parent)
        self._members = members

    def run(self, cell: Cell) -> Iterator[Any]:
        run = self.parent.run(cell)
        return run if self.wrap is None else observed(run, self)

    def start_prefetch(self) -> None:
        super().start_prefetch()
        self._members.start()

    def index_of(self, pos: Pos) -> int:
        return self.parent.index_of(pos)

    def at_index(self, index: int) -> Pos:
        return self.parent.at_index(index)

    def __str__(self) -> str:
        return "StreamInterleaveIterator"


class StreamInterleaveIterator(StreamIterator[T]):
    """The iterator of such elements, which is described as that of the pipeline without workers."""

    _gm_stage_name: ClassVar = None  # type: ignore[assignment]  # the same elements and states

    def __init__(
        self,
        stage: StreamInterleaveIterDataset[T],
        interleave: DatasetIterator[T],
        members: _Members,
    ) -> None:
        super().__init__(stage, [interleave], partial(StreamInterleave, members=members))
        self._ds = stage._gm_parents[0]
        self._gm_ctx.options = collected_options(self._ds).merge(self._gm_ctx.options)

    @property
    def _gm_described_upstream(self) -> Sequence[Any]:
        return (iterate(self._ds),)


_User: TypeAlias = "weakref.ref[MemberElements]"


class _Members:
    """The lanes of workers, for the iterators of the datasets that are open.

    Args:
        workers: has the processes; nothing is taken from it.
    """

    def __init__(self, workers: RoundRobinIterator[Any]) -> None:
        # of the interleave
        self.ctx: IteratorContext = ComponentContext(IteratorContext(joined=None))
        self.key = ""  # of the interleave, if choices are recorded
        self._workers = workers
        self._lanes: Sequence[WorkerLane] = ()
        self._process_id = 0
        self._users: dict[int, _User] = {}  # whose lanes are running or waiting
        self._waiting: dict[int, Any] = {}  # states of lanes that were not started

    def iterator(
        self, index: int, whole: DatasetIterator[Any], key: str
    ) -> MemberDatasetIterator[Any]:
        """See ``Elsewhere``."""
        self.key = key
        number_choosers(stream_of(whole), key_prefix(key, index))  # its states have the keys
        return MemberDatasetIterator(self, index, whole)

    def close(self) -> None:
        self._workers.close()

    def use(self, index: int, user: _User, state: object) -> None:
        """Lets lane ``index`` continue from ``state``, for ``user``."""
        self._users[index], self._waiting[index] = user, state

    def is_used(self, index: int, user: _User) -> bool:
        """True if lane ``index`` is computed for ``user``."""
        return self._users.get(index) is user

    def leave(self, index: int, user: _User) -> None:
        """Release lane ``index``, unless another user has acquired it."""
        if self._users.get(index) is user:
            del self._users[index]
            self._waiting.pop(index, None)
            if self._lanes:
                self._lanes[index].has_ended = True

    def lane(self, index: int) -> WorkerLane:
        """Lane ``index``, which is being computed."""
        self.start()
        return self._lanes[index]

    def start(self) -> None:
        """Has the workers compute all lanes that are used."""
        try:
            self._start()
        except BaseException:
            self.start_again()
            raise

    def start_again(self) -> None:
        """Has all lanes computed from the states of their users, after an interrupt."""
        self._process_id = 0

    def _start(self) -> None:
        if self._process_id != os.getpid():
            self._workers._gm_ctx.options = self.ctx.options
            self._workers._gm_engine.key = self.key
            self._lanes = [lane for lane in self._workers.lanes() if isinstance(lane, WorkerLane)]
            self._process_id = os.getpid()
            users = {i: user() for i, user in self._users.items()}
            self._waiting = {i: user.state() for i, user in users.items() if user is not None}
        waiting, self._waiting = self._waiting, {}
        for worker in {self._lanes[i].worker: None for i in waiting}:
            worker.go_on_with(
                {i: state for i, state in waiting.items() if self._lanes[i].worker is worker}
            )


_UNKNOWN: Any = object()


class MemberElements(Stream):
    """The elements of dataset ``index``, taken from its lane. The position: states, and which of
    them it is at.

    Args:
        stage: the definition.
        members: has the lane.
        index: of the dataset.
        whole: an iterator of the dataset, which computes no element.
    """

    def __init__(
        self, stage: Any, members: _Members, index: int, whole: DatasetIterator[Any]
    ) -> None:
        super().__init__(stage, stream_of(whole))
        self._members = members
        self._index = index
        self._user = weakref.ref(self)
        self._first: Pos = [copied(snapshot(whole))], 0
        self._pos: Pos = self._first  # where the first run begins; ``None`` afterwards
        self._lane_pos: Pos = self._first  # where the lane was started, or taken from last
        self._at: Pos = _UNKNOWN  # where the lane is; known after no interrupt
        found = [] if whole._gm_definition is None else tolerances(whole._gm_definition)
        self._budgets = lane_budgets(self, found)
        self._now: Pos = self._first  # the position that the budgets are at

    def start(self) -> Pos:
        return self._first

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        return self._saved(self.parent.next_epoch(self._loaded(end), records))

    # Running.

    def state(self) -> Any:
        """Return the state that the lane continues from."""
        return _state(self._lane_pos)

    def _use_lane(self, pos: Pos, known: Records = ()) -> None:
        """Let the lane continue from ``pos``, unless it is there.

        Args:
            pos: the position.
            known: choices that an earlier run made after ``pos``; by default those in ``pos``.
        """
        is_there = are_equal(self._at, pos) and self._members.is_used(self._index, self._user)
        if known or not is_there:
            state = _state(pos)
            if known:
                state = with_known(state, known, (key_prefix(self._members.key, self._index),))
            self._at, self._lane_pos = _UNKNOWN, ([state], 0)
            self._members.use(self._index, self._user, state)
            self._at = pos

    def _run(self, cell: Cell) -> Iterator[Any]:
        self._pos = None
        choices = cell.choices if self.chooses else None
        known = () if choices is None else choices.to_come()
        if self._budgets is not None:
            self._now = cell.pos
            self._budgets.restart()
        while True:
            # a state may have been loaded, and then refused by another stage
            self._use_lane(cell.pos, known)
            known = ()
            lane = self._members.lane(self._index)
            try:
                while not lane.ready and lane.is_running:
                    lane.receive(1)
            except BaseException:
                self._members.start_again()
                raise
            if not lane.ready:
                break
            self._check_budgets(cell, lane.ready[0][1:])
            self._at = _UNKNOWN
            x, *pos = lane.ready.popleft()
            add_choices(choices, _state(pos))
            cell.pos = self._at = self._lane_pos = tuple(pos)
            yield (x, x := None)[0]
        if lane.failure is not None:
            cell.past_failed = partial(self._pass, cell)
            raise lane.failure()
        # otherwise the position is that after the last element, as without workers
        if lane.final is not None and self.parent.may_have_chosen():
            self._check_budgets(cell, ([lane.final], 0))
            add_choices(choices, lane.final)
            cell.pos = self._at = self._lane_pos = [lane.final], 0

    def _check_budgets(self, cell: Cell, pos: Pos) -> None:
        """Raise an error if the element before ``pos``, or the end, exceeds an error budget."""
        budgets, (states, i) = self._budgets, pos
        if budgets is None or budgets.has_checked(0, states):
            return
        self._now = pos
        exceeded = budgets.check(0, states, lambda: state_in(states[i]))
        if exceeded is not None:
            cell.past_failed = partial(self._pass, cell)
            raise exceeded

    def states_now(self) -> list[Any]:
        """Return the state that the budgets are at."""
        return [state_in(_state(self._now))]

    def _pass(self, cell: Cell) -> None:
        pos = cell.pos
        self._use_lane(pos)
        lane, self._at = self._members.lane(self._index), _UNKNOWN
        if lane.ready:  # it is an element with too many faults before it
            pos = lane.ready.popleft()[1:]
        elif lane.has_ended:
            pos = [lane.final], 0
        elif (state := lane.skip(_state(pos))) is not None:
            pos = [state], 0
        if pos is not cell.pos:
            add_choices(cell.choices, _state(pos))
        cell.pos = self._at = self._lane_pos = self._now = pos
        if self._budgets is not None:
            self._budgets.pass_skipped()

    # Positions and states.

    def save(self, pos: Pos) -> Any:
        return copied(state_in(_state(pos)))

    def saves_anywhere(self) -> bool:
        return self.parent.saves_anywhere()

    def kind(self, index: int) -> tuple[Any, ...]:
        return *super().kind(index), index * (not self.saves_anywhere())

    def load(self, state: object) -> Pos:
        self._pos = self._saved(self.parent.load(state))
        return self._pos

    def _saved(self, pos: Pos) -> Pos:
        """Return the position of a position of the dataset."""
        return [self.parent.save(pos)], 0

    def _loaded(self, pos: Pos) -> Pos:
        """Return the position of the dataset."""
        return self.parent.load(state_in(_state(pos)))

    def place(self, pos: Pos) -> None:
        return None

    def index_of(self, pos: Pos) -> int:
        return self.parent.index_of(self._loaded(pos))

    def at_index(self, index: int) -> Pos:
        self._pos = self._saved(self.parent.at_index(index))
        return self._pos

    # Resources.

    def start_prefetch(self) -> None:
        if self._pos is not None:
            self._use_lane(self._pos)

    def expect(self, rate: float, due: float | None) -> None:
        pass  # the dataset computes nothing here

    def close(self) -> None:
        self._pos = None
        self._members.leave(self._index, self._user)

    def __str__(self) -> str:
        return str(self.parent)


def _state(pos: Pos) -> Any:
    states, i = pos
    return states[i]


class MemberDatasetIterator(StreamIterator[T]):
    """The iterator of such elements, which stands for ``whole``."""

    _gm_stage_name: ClassVar = None  # type: ignore[assignment]  # the same elements and states

    def __init__(self, members: _Members, index: int, whole: DatasetIterator[T]) -> None:
        self._whole = whole
        stage = Given(Parameters())
        super().__init__(
            stage, [], partial(MemberElements, members=members, index=index, whole=whole)
        )
        self._gm_ctx.options = whole._gm_ctx.options
        self._gm_engine.report_faults = fault_reporter_of(self)

    @property
    def _gm_described_upstream(self) -> Sequence[Any]:
        return (self._whole,)
