"""Workers that run in this process: everything of ``mp_prefetch`` but the processes and how their messages are written."""

from __future__ import annotations

import json
import os
import pickle
from collections.abc import Sequence
from typing import Any

import cloudpickle

from gristmill.core.options import MultiprocessingOptions
from gristmill.dataset import IterDataset
from gristmill.dataset.bases.round_robin import Shard
from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterator, ProcessShard
from gristmill.dataset.worker_task import PipelineProducer, PipelineTask
from gristmill.workers.arena import Arena, open_memory
from gristmill.workers.logbook import Logbook
from gristmill.workers.messages import END, ERROR, OUTPUTS, SKIPPED, Care
from gristmill.workers.remote_errors import encode_error

_MAX_BLOCK = 16


def through_pickle(value: Any) -> Any:
    return pickle.loads(cloudpickle.dumps(value))


def through_json(state: Any) -> Any:
    return json.loads(json.dumps(state))


class LocalWorkersIterDataset(IterDataset[Any]):
    """``parent.mp_prefetch(MultiprocessingOptions(num_workers))`` without processes: it costs no time to start.

    With ``care``, workers go on as they do after one that died.
    """

    _adds_step = False

    def __init__(self, parent: IterDataset[Any], num_workers: int = 1, care: Care | None = None) -> None:
        super().__init__(parent)
        self._options = MultiprocessingOptions(num_workers)
        self._care = care

    def __iter__(self) -> LocalWorkersIterator:
        it = LocalWorkersIterator(self._parent, self._options, None, sequential_slice=False)
        it._care = self._care
        return it


class LocalWorkersIterator(MultiprocessPrefetchIterator[Any]):
    _care: Care | None = None

    def _open(self) -> Sequence[Shard]:
        task = PipelineTask(self._ds, self._ctx.options, None, self._sequential_slice)
        pool: Any = LocalPool([LocalWorker(task(i, self._count, None), self._care) for i in range(self._count)])
        return [ProcessShard(pool, i, self._count, None) for i in range(self._count)]


class LocalPool:
    def __init__(self, workers: list[LocalWorker]) -> None:
        self.workers = workers

    def worker(self, index: int) -> LocalWorker:
        return self.workers[index]


class LocalWorker:
    """Does when it is asked what a process does ahead, message by message."""

    def __init__(self, producer: PipelineProducer, care: Care | None) -> None:
        self._producer = producer
        self._care = care
        memory = open_memory("test")
        producer.log = Logbook(Arena(memory))
        os.close(memory)  # it is mapped
        self._begin: tuple[Any, bool] | None = None
        self._stop: BaseException | None = None
        self._size = 1

    def start(self, state: Any, *, skip: bool = False, care: Care | None = None) -> None:
        self._producer.care = self._care or care
        self._begin, self._stop, self._size = (through_pickle(state), skip), None, 1

    def receive(self, patience: float | None = None) -> tuple[int, Any]:
        try:
            if self._begin is not None:
                (state, skip), self._begin = self._begin, None
                state = self._producer.start(state, skip=skip)
                if skip:
                    return SKIPPED, pickle.dumps(state)
            if self._stop is None:
                self._producer.begin(self._size)
                elements, states, self._stop = self._producer.take(self._size)
                self._size = min(2 * self._size, _MAX_BLOCK) if self._care is None else 1
                if elements:
                    return OUTPUTS, (*through_pickle((elements, list(states))), None)
        except Exception as error:
            self._stop = error
        assert self._stop is not None
        return (END, b"") if isinstance(self._stop, StopIteration) else (ERROR, encode_error(self._stop))
