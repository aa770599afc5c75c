"""The lanes that the consumer computes itself, until workers are up, and where workers would gain
nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import repeat
from typing import Any

from gristmill.dataset.ahead.budget import Budget
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.engine.blocks import SavedPositions
from gristmill.dataset.executors.inline import raised_again
from gristmill.dataset.lanes.processes import LaneOwner, WorkerLane
from gristmill.dataset.workers.task import PipelineProducer, PipelineTask, share_threads

_MAX_BLOCK = 64  # elements that are computed before the consumer gets one, unless they take long


class LanesHere(LaneOwner):
    """Interface of ``LanesOfWorker``, for the consumer in place of a worker.

    Args:
        task: the pipeline.
        budget: of the consumer.
        report: is called with each iterator that is opened.
    """

    is_up = is_calm = True

    def __init__(self, task: PipelineTask, budget: Budget, report: Callable[[Any], None]) -> None:
        super().__init__()
        self.waited_seconds = 0.0  # while elements were computed
        self._producer = PipelineProducer(replace(task, budget=budget), 0, 1)
        self._num_lanes = task.num_lanes
        self._reads_ahead = True
        self._budget, self._report = budget, report
        self._is_closed = False

    @property
    def are_beginning(self) -> bool:
        """True if nothing was computed yet of some lanes."""
        return not all([self._producer.has(number) for number in filter(self.computes, self.lanes)])

    @property
    def iterators(self) -> list[DatasetIterator[Any]]:
        """Return the open iterators of lanes."""
        return self._producer.iterators

    def text(self, lane: WorkerLane) -> str:
        """Return the owner that computes a lane."""
        return f"this process, lane {lane.number}"

    def recount(self, count: int) -> None:
        """Do nothing: the consumer is no worker."""

    def close(self) -> None:
        """End what reads ahead. Any thread may call this."""
        self._is_closed = True
        self._producer.close()

    def start(self, states: dict[int, Any]) -> None:
        """Compute these lanes from these states on, each when it is fetched."""
        self._producer.close()
        self._states = {}
        self.add([], states)

    def go_on_with(self, states: dict[int, Any]) -> None:
        """Compute these lanes, too, from these states on."""
        for number in states:
            self.lanes[number].clear()
            self.leaving.discard(number)
        self.add([], states)

    def add(self, lanes: Sequence[WorkerLane], states: Mapping[int, Any]) -> None:
        super().add(lanes, states)
        for number in states:
            self._producer.forget(number)

    def leave(self, numbers: Sequence[int]) -> None:
        """Let others compute these lanes, once what was computed ahead is taken."""
        self.leaving.update(numbers)
        self.receive_sent()

    def receive_sent(self) -> None:
        """Leave the lanes that can be left."""
        for number in [*self.leaving]:
            if not self.computes(number):
                self.leaving.discard(number)
            elif not self._producer.has(number) or self._is_drained(number):
                self._producer.forget(number)
                self.leaving.discard(number)
                self.left.append((self.lanes.pop(number), self._states.pop(number)))

    def _is_drained(self, number: int) -> bool:
        self._producer.drain(number)
        return self._producer.is_drained(number)

    def read_ahead(self, reads_ahead: bool) -> None:
        """Read ahead from now on; or nothing more, since others will take over soon."""
        if self._reads_ahead and not reads_ahead:
            for number in filter(self._producer.has, self._states):
                self._producer.drain(number)
        self._reads_ahead = reads_ahead

    def _open(self, number: int) -> None:
        """Begin to compute a lane; as long as it is alone, it has all threads that read."""
        producer = self._producer
        before = producer.iterators
        producer.add(number, self._states[number])
        self._report(producer.iterator(number))
        if self._is_closed:  # by another thread
            producer.close()
            return
        if not self._reads_ahead:
            producer.drain(number)
        elif not before:
            share_threads(producer.iterators[0], 1)
        elif len(before) == 1:
            share_threads(before[0], self._num_lanes)
        if self._budget.tuning is not None:
            # As long as workers compute the lanes, these threads read nothing.
            self._budget.tuning.restart()

    def fetch(self, lane: WorkerLane) -> None:
        """Compute elements of ``lane``, one if it takes long."""
        began = time.monotonic()
        try:
            self._compute(lane)
        finally:
            self.waited_seconds += time.monotonic() - began

    def _compute(self, lane: WorkerLane) -> None:
        number, producer = lane.number, self._producer
        try:
            if not producer.has(number):
                self._open(number)
            elements, states, stop = producer.take(number, _MAX_BLOCK)
        except Exception as error:
            elements, states, stop = [], [], error
        if isinstance(states, SavedPositions):
            states = states.without_stream()  # which is closed when another takes over
        if elements:
            self._states[number] = states[len(elements) - 1]
            self.num_received += len(elements)
            lane.ready.extend(zip(elements, repeat(states), range(len(elements))))
        if isinstance(stop, StopIteration):
            lane.has_ended, lane.final = True, stop.value
        elif isinstance(stop, Exception):
            lane.failure = partial(raised_again, stop, stop.__traceback__)
        elif stop is not None:
            raise stop

    def skip(self, lane: WorkerLane, state: object) -> Any:
        """See ``Shard``."""
        lane.failure = None
        self._states[lane.number] = self._producer.skip(lane.number, state)
        return self._states[lane.number]
