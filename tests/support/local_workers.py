"""Workers that run in this process: everything of ``mp_prefetch`` but the processes and how their
messages are written.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import pickle
import random
from collections.abc import Callable, Mapping
from typing import Any

import cloudpickle
from new_seed import SEED

from gristmill.core.options import MultiprocessingOptions
from gristmill.dataset import IterDataset
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.round_robin import RoundRobinIterator
from gristmill.dataset.executors.pools import PoolExecutor
from gristmill.dataset.stages.mp_prefetch import TracedLanesIterDataset, lanes_of, lanes_task
from gristmill.dataset.workers.task import PipelineProducer
from gristmill.workers.crash_journal import LOG_BYTES, CrashJournal
from gristmill.workers.protocol import END, ERROR, OUTPUTS, SKIPPED, Quarantine
from gristmill.workers.remote_errors import decode_error, encode_error

_MAX_BLOCK = 16


def through_pickle(value: Any) -> Any:
    return pickle.loads(cloudpickle.dumps(value))


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


class LocalWorkersIterDataset(IterDataset[Any]):
    """``parent.mp_prefetch(MultiprocessingOptions(num_workers, num_lanes))`` without processes: it
    costs no time to start.

    With ``quarantine``, workers continue as they do after one that died. Each worker runs
    ``through(task)``, such as a copy.
    """

    _gm_adds_step = False

    def __init__(
        self,
        parent: IterDataset[Any],
        num_workers: int = 1,
        quarantine: Quarantine | None = None,
        num_lanes: int | None = None,
        through: Callable[[Any], Any] = lambda task: task,
    ) -> None:
        super().__init__(parent)
        self._options = MultiprocessingOptions(num_workers, num_lanes=num_lanes)
        self._quarantine = quarantine
        self._through = through

    def __iter__(self) -> RoundRobinIterator[Any]:
        by_lanes = self._options.num_lanes is not None
        task = lanes_task(self._parent, lanes_of(self._options), False, by_lanes)
        return RoundRobinIterator(
            self, task, LocalWorkersExecutor(self._options, self._quarantine, self._through)
        )


class LocalWorkersExecutor(PoolExecutor):
    def __init__(
        self,
        options: MultiprocessingOptions,
        quarantine: Quarantine | None,
        through: Callable[[Any], Any],
    ) -> None:
        super().__init__(options, None)
        self._quarantine = quarantine
        self._through = through

    def start(self, states: Mapping[int, Any]) -> None:
        task, num_workers = self._task, self._options.num_workers
        workers = [
            LocalWorker(self._through(task)(i, num_workers, None), self._quarantine)
            for i in range(num_workers)
        ]
        pool: Any = LocalPool(workers)
        self._start_in(pool, states)


class ResizedIterDataset(LocalWorkersIterDataset):
    """``parent`` in lanes that threads compute, whose number changes at random steps."""

    def _gm_traced(self, tracing: Tracing) -> Any:
        return TracedLanesIterDataset(
            tracing.of(self._parent), lanes_of(self._options), False, by_lanes=True
        )

    def __iter__(self) -> RoundRobinIterator[Any]:
        task = lanes_task(self._parent, lanes_of(self._options), False, True)
        executor = ResizedExecutor(self._options, None)
        executor.tune(self._options, self._options.num_workers, may_be_here=True)
        return RoundRobinIterator(self, task, executor)


class ResizedExecutor(PoolExecutor):
    """Has another number of workers whenever it waits for an element, or none."""

    def __init__(self, options: MultiprocessingOptions, init_fn: Any) -> None:
        super().__init__(dataclasses.replace(options, executor="threads"), init_fn)
        self._random = random.Random(SEED)

    def receive(self, number: int, num: int) -> None:
        self._use(self._random.randint(0, lanes_of(self._options)))
        super().receive(number, num)


class LocalPool:
    def __init__(self, workers: list[LocalWorker]) -> None:
        self.workers = workers

    def worker(self, index: int) -> LocalWorker:
        return self.workers[index]


class LocalWorker:
    """Does when it is asked what a process does ahead, message by message."""

    def __init__(self, producer: PipelineProducer, quarantine: Quarantine | None) -> None:
        self._producer = producer
        self._quarantine = quarantine
        producer.log = CrashJournal(bytearray(LOG_BYTES))
        self._begin: tuple[dict[int, Any], bool] | None = None
        self._num_sent: dict[int, int] = {}  # of lanes that have not come to an end
        self._stops: dict[int, BaseException | None] = {}  # the end or the error of a lane

    def start(
        self, states: dict[int, Any], *, skip: bool = False, quarantine: Quarantine | None = None
    ) -> None:
        self._producer.quarantine = self._quarantine or quarantine
        self._begin, self._size = (through_pickle(states), skip), 1
        self._num_sent, self._stops = dict.fromkeys(states, 0), {}

    def receive(self, patience: float | None = None) -> tuple[int, int, Any]:
        lane = min(self._num_sent, key=self._num_sent.__getitem__)
        try:
            if self._begin is not None:
                (states, skip), self._begin = self._begin, None
                states = self._producer.start(states, skip=skip)
                if skip:
                    return SKIPPED, lane, through_pickle(states[lane])
            if self._stops.get(lane) is None:
                self._producer.begin(self._size)
                elements, states, self._stops[lane] = self._producer.take(lane, self._size)
                self._num_sent[lane] += len(elements)
                self._size = min(2 * self._size, _MAX_BLOCK) if self._quarantine is None else 1
                if elements:
                    return OUTPUTS, lane, (*through_pickle((elements, list(states))), None)
            stop = self._stops[lane]
        except Exception as error:
            stop = error
        del self._num_sent[lane]
        assert stop is not None
        if isinstance(stop, StopIteration):
            return END, lane, through_pickle(stop.value)
        return ERROR, lane, functools.partial(decode_error, encode_error(stop))
