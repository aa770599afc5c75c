"""The task of a worker of ``mp_prefetch``, a process or a thread: it runs its share of the
pipeline.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gristmill.core.node_types import register_expected
from gristmill.core.options import DatasetOptions
from gristmill.dataset.ahead.budget import Budget, divide
from gristmill.dataset.ahead.memory import Holding
from gristmill.dataset.ahead.reader import Reader
from gristmill.dataset.ahead.root_log import RootLog
from gristmill.dataset.bases.context import IteratorContext, Numbers
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate, snapshot
from gristmill.dataset.bases.observing import running_upstream
from gristmill.dataset.engine.blocks import Growing, StreamBlocks
from gristmill.dataset.engine.choices import number_choosers
from gristmill.dataset.engine.iterators import StreamIterator, stream_of
from gristmill.dataset.engine.prefetch import Prefetch
from gristmill.dataset.engine.recording import key_prefix, shard_iterator, state_in
from gristmill.dataset.slicing import numbers_of, part_of_lanes, slice_pipeline
from gristmill.transforms.batching import Allocate
from gristmill.workers.crash_journal import CrashJournal, who_reads
from gristmill.workers.protocol import Quarantine
from gristmill.workers.turns import Turns

_DRAIN_SECONDS = 1.0  # for which a lane of several datasets waits for what each has computed ahead


@dataclass(frozen=True)
class PipelineTask:
    """Called in a worker: runs ``init_fn`` and returns what produces the elements of its lanes."""

    dataset: IterDataset[Any]
    options: DatasetOptions
    init_fn: Callable[[int, int], Any] | None
    sequential_slice: bool
    num_lanes: int
    key: str = ""  # of the stage of the lanes, if their choices are recorded
    # of ``global_batch``, of which each lane here has a part
    rows_of: range | None = None
    budget: Budget | None = None  # of the consumer, if the worker is a thread of its process
    by_lanes: bool = False

    def __call__(self, index: int, count: int, allocate: Allocate | None) -> PipelineProducer:
        if self.init_fn is not None:
            self.init_fn(index, count)
        # After ``init_fn``, which may register the same classes.
        register_expected()
        return PipelineProducer(self, index, count, allocate)

    def share(self, lane: int) -> IterDataset[Any]:
        return slice_pipeline(
            self.dataset,
            lane,
            self.num_lanes,
            sequential=self.sequential_slice,
            by_lanes=self.by_lanes,
        )

    def number_stages(self, it: DatasetIterator[Any], lane: int) -> None:
        """Give the stages of a lane that choose their keys, if choices are recorded."""
        if self.key and self.rows_of is not None:
            stream_of(it).key = self.key  # the keys do not depend on the number of workers
        elif self.key:
            number_choosers(stream_of(it), key_prefix(self.key, lane))

    def key_prefixes(self, lane: int) -> tuple[str, ...]:
        """Return what the keys of stages in a lane begin with."""
        rows = self.rows_of
        numbers = [lane] if rows is None else part_of_lanes(rows, lane, self.num_lanes)
        return tuple([key_prefix(self.key, number) for number in numbers])


class _LaneIterator:
    """A lane of the pipeline."""

    def __init__(self, ds: IterDataset[Any]) -> None:
        self.ds = ds
        self.iterator: StreamIterator[Any] | None = None
        self.drained_by = math.inf  # then it is left, also with elements in its buffer
        self.blocks: StreamBlocks | None = None
        self.logs: list[RootLog] = []  # of what it reads

    def close(self) -> None:
        it, self.iterator, self.blocks = self.iterator, None, None
        self.drained_by = math.inf
        if it is not None:
            it.close()


class PipelineProducer:
    """The elements of the lanes of a worker with the states after them."""

    def __init__(
        self, task: PipelineTask, index: int, count: int, allocate: Allocate | None = None
    ) -> None:
        self.index = index
        self._count = count
        self._allocate = allocate
        self._lanes: dict[int, _LaneIterator] = {}
        self._blocks: StreamBlocks | None = None  # of the lane that ``take`` is at
        self._lender: IteratorContext | None = None
        self._outputs = Holding()  # that wait to be taken
        self.place = ""  # where this is, if that is not on the consumer's machine
        self.log: CrashJournal | None = None
        self.quarantine: Quarantine | None = None
        self.renew(task)

    @property
    def iterators(self) -> list[DatasetIterator[Any]]:
        """Those that are open."""
        return [lane.iterator for lane in self._lanes.values() if lane.iterator is not None]

    def renew(self, task: PipelineTask) -> None:
        """Prepares for another iterator, with sources and transforms as they were sent."""
        self.close()
        self._task = task
        self._lanes = {}
        self._ctx = self._new_context()

    def _new_context(self) -> IteratorContext:
        task = self._task
        ctx = IteratorContext(task.options, num_processes=self._count, lender=self._lender)
        if task.budget is not None:
            ctx.use(task.budget)
        return ctx

    def share(self, turns: Turns) -> None:
        """Reads ahead with the threads and memory of all that work in this process."""
        common = turns.common
        self._lender = common.get("context") or common.setdefault("context", self._new_context())
        self._ctx = self._new_context()

    def close(self) -> None:
        for lane in self._lanes.values():
            lane.close()

    def start(self, states: Mapping[int, Any], *, skip: bool) -> dict[int, Any]:
        if self.quarantine is not None:
            # finished entries are removed from it
            self.quarantine = replace(self.quarantine, until={**self.quarantine.until})
        for number in self._lanes.keys() - states:
            self._lanes[number].close()
        num = len(states)
        return {
            lane: self._start(lane, state, num, skip=skip and i == 0)
            for i, (lane, state) in enumerate(states.items())
        }

    def add(self, number: int, state: object) -> None:
        """See ``Divided``."""
        self._start(number, state, len(self.iterators) + 1, skip=False)
        self._share_threads()

    def has(self, number: int) -> bool:
        """Return true if the lane is open."""
        return number in self._lanes and self._lanes[number].iterator is not None

    def iterator(self, number: int) -> DatasetIterator[Any] | None:
        """Return the iterator of a lane, if it is open."""
        return self._lanes[number].iterator

    def forget(self, number: int) -> None:
        """Close a lane, if it is open."""
        if number in self._lanes:
            self._lanes[number].close()

    def skip(self, number: int, state: object) -> Any:
        """Continue a lane past the element after ``state``; return the state then."""
        return self._start(number, state, len(self.iterators) or 1, skip=True)

    def drain(self, number: int) -> None:
        """See ``Divided``."""
        lane = self._lanes[number]
        lane.drained_by = min(lane.drained_by, time.monotonic() + _DRAIN_SECONDS)
        for part in ahead_of(lane.iterator):
            part.drain()

    def is_drained(self, number: int) -> bool:
        """See ``Divided``. One of several datasets may seldom be drawn from: no wait."""
        lane = self._lanes[number]
        found = ahead_of(lane.iterator)
        return all([part.is_drained for part in found]) or (
            len(found) > 1 and time.monotonic() > lane.drained_by
        )

    def remove(self, number: int) -> None:
        """See ``Divided``."""
        self._lanes[number].close()
        self._share_threads()

    def _share_threads(self) -> None:
        if self._task.budget is None:
            iterators = self.iterators
            for it in iterators:
                share_threads(it, len(iterators))

    def divide(self, count: int) -> None:
        """Be one of ``count`` workers from now on."""
        self._count = self._ctx.num_processes = count
        budget = self._ctx.known_budget
        if self._task.budget is None and self._lender is None and budget is not None:
            divide(budget, self._task.options, count)

    def _start(self, number: int, state: object, num_lanes: int, *, skip: bool) -> Any:
        lane = self._lanes.get(number)
        if lane is None:
            lane = self._lanes[number] = _LaneIterator(self._task.share(number))
        if lane.drained_by < math.inf:
            lane.close()  # nothing would be read ahead
        it = lane.iterator
        if it is None or state_in(state) is None:
            lane.close()
            share = iterate(lane.ds)
            self._task.number_stages(share, number)
            lane.iterator = it = shard_iterator(share, records=bool(self._task.key))
            it._gm_ctx.joined = None  # it is no pipeline of its own, although it was made like one
            it._gm_ctx.belong_to(number, self._task.num_lanes, self._ctx)
            share_threads(it, num_lanes if self._task.budget is None else self._task.num_lanes)
            if self._allocate is not None:
                it._gm_engine.allocate_with(self._allocate)
        if self.log is not None:
            lane.logs = []
            for root, reader in enumerate(readers(it)):
                reader.log = RootLog(self.log, who_reads(number, root), self.quarantine)
                lane.logs.append(reader.log)
        if state is not None:
            it.set_state(state)
        if skip:
            it._gm_skip()
        lane.blocks = StreamBlocks(it)
        return snapshot(it)

    def affords(self, num_bytes: int) -> bool:
        budget = self._ctx.budget
        with budget.lock:
            return bool(budget.memory.affords(1, num_bytes))

    def hold(self, num_bytes: int) -> None:
        budget = self._ctx.budget
        with budget.lock:
            budget.memory.hold(self._outputs, num_bytes)
            if num_bytes < 0:
                budget.wake()

    def begin(self, n: int) -> None:
        if self._blocks is not None:
            self._blocks.growing = Growing()
        if self.log is not None:
            self.log.begin(n)

    def end(self) -> None:
        if self.log is not None:
            self.log.begin(0)

    def finished(self) -> tuple[Sequence[Any], Sequence[Any]]:
        if self._blocks is None:  # ``take`` was not called yet
            return [], []
        growing = self._blocks.growing
        return growing.elements, growing.states

    def take(self, lane: int, n: int) -> tuple[list[Any], Sequence[Any], BaseException | None]:
        self._blocks = blocks = self._lanes[lane].blocks
        assert blocks is not None
        for log in self._lanes[lane].logs:
            log.note_block()
        return blocks.take(n)

    def take_beside(self, number: int) -> tuple[list[Any], Sequence[Any], BaseException | None]:
        lane = self._lanes[number]
        assert lane.blocks is not None
        for log in lane.logs:
            log.is_silent = True  # what is noted is what takes long
        try:
            return lane.blocks.take(1)
        finally:
            for log in lane.logs:
                log.is_silent = False

    def annotate(self, error: BaseException, lane: int, state: object) -> None:
        from gristmill.dataset.errors.context import add_error_worker, add_settings_note

        task = self._task
        if task.sequential_slice:
            numbers = None
        else:
            numbers = numbers_of(task.dataset).replaced(index=lane, count=task.num_lanes)
        name = worker_name(self.index, self._count, lane, task.num_lanes)
        add_error_worker(error, f"{name} {self.place}".rstrip(), place(state, numbers))
        if task.init_fn is None and task.budget is None:
            add_settings_note(error)


def worker_name(index: int, count: int, lane: int, num_lanes: int) -> str:
    """Return the name of a worker in messages about one of its lanes."""
    worker = f"worker {index} of {max(count, index + 1)}"
    return (
        worker if count == num_lanes and index == lane else f"{worker}, lane {lane} of {num_lanes}"
    )


def share_threads(it: DatasetIterator[Any], num_lanes: int) -> None:
    """Has all that reads upstream use its part of what lanes share."""
    for reader in readers(it):
        reader.share(num_lanes)


def ahead_of(it: Any) -> list[Any]:
    """Return what computes ahead below ``it``: readers and threads that pull."""
    upstream = {id(inner): inner for inner in running_upstream(it)}
    found = [part for inner in upstream.values() for part in ahead_of(inner)]
    if isinstance(it, StreamIterator):
        stream = it._gm_engine
        if stream.draws_from:
            return [stream.reader]
        if isinstance(stream, Prefetch) and stream.ahead is not None:
            found.append(stream.ahead)
    return found


def divide_worker(count: int, worker: Any) -> None:
    """Let a worker be one of ``count``. Called in the worker."""
    if hasattr(worker.producer, "divide"):  # else it has failed to start
        worker.producer.divide(count)


def roots(it: DatasetIterator[Any]) -> list[StreamIterator[Any]]:
    """Return the iterators upstream that read map datasets, always in the same order."""
    if isinstance(it, StreamIterator) and it._gm_engine.draws_from:
        return [it]
    upstream = {id(inner): inner for inner in running_upstream(it)}
    return [root for inner in upstream.values() for root in roots(inner)]


def readers(it: DatasetIterator[Any]) -> list[Reader]:
    """Return the readers of ``roots(it)``."""
    return [root._gm_engine.reader for root in roots(it)]


def place(state: object, numbers: Numbers | None, *, exact: bool = False) -> str:
    """Return the description of the location of a worker.

    Args:
        state: its state.
        numbers: which of the elements of the whole pipeline are its own; ``None`` if that is not
            known.
        exact: it is at the very next element.
    """
    around = "in what is made of it" if exact else "soon after it"
    position = state = state_in(state)
    while isinstance(position, dict) and "parent" in position:
        position = position["parent"]
    if isinstance(position, dict) and set(position) == {"next_index"}:
        index = position["next_index"]
        if numbers is not None:
            return f"at element {numbers(index)} or {around}"
        return f"at element {index} of its share or {around}"
    return "at the beginning" if state is None else f"after state {state!r:.200}"
