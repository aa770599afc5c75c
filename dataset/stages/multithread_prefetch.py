"""``multithread_prefetch``: the pipeline so far, run by threads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeVar

from gristmill.core.errors import as_int
from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Length
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.bases.parameters import Parameters, aside
from gristmill.dataset.bases.round_robin import Shard
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.blocks import SavedPositions
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.engine.prefetch import Prefetch, reraise
from gristmill.dataset.local_lanes import InProcessIterator, raised_again
from gristmill.dataset.mixtures.shares import warn_if_one_sided
from gristmill.dataset.slicing import num_elements_of_shares, slice_pipeline
from gristmill.dataset.stages.mp_prefetch import TracedLanesIterDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchDatasetIterator

T = TypeVar("T")

_CLOSE_SECONDS = 0.2  # how long ``close`` waits for the threads to come out of user code


def multithread_prefetch(
    ds: IterDataset[T], num_threads: int, buffer_size: int, sequential_slice: bool = False
) -> IterDataset[T]:
    """Returns a dataset of the same elements, computed by threads.

    Each thread runs the whole pipeline before this point on its share, as a worker process of ``IterDataset.mp_prefetch`` does,
    with the same order, states and errors: outputs are taken from the threads in turn, an error stays until the state is set. The
    datasets are copied for each thread; sources, transformations and what comes before ``to_iter_dataset`` are shared, and are
    used by several threads at once. Threads start with the first element.

    Args:
        ds: the dataset.
        num_threads: number of threads; 0 returns ``ds`` itself.
        buffer_size: the most outputs for each thread to be ahead; 0 computes in the calling thread.
        sequential_slice: give each thread a contiguous part of the source instead of every ``num_threads``-th element.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is negative, or the pipeline cannot be shared out.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(7).to_iter_dataset().batch(2)
        >>> list(multithread_prefetch(ds, num_threads=3, buffer_size=1))
        [array([0, 3]), array([1, 4]), array([2, 5]), array([6])]
    """
    num_threads = as_int("num_threads", num_threads, minimum=0)
    buffer_size = as_int("buffer_size", buffer_size, minimum=0)
    if not num_threads:
        return ds
    computed: IterDataset[T] = MultithreadPrefetchIterDataset(ds, num_threads, buffer_size, sequential_slice)
    if not sequential_slice:
        warn_if_one_sided(ds, num_threads, "multithread_prefetch", "thread")
    return computed


class MultithreadPrefetchParameters(Parameters):
    num_threads: int = aside(in_text=True)
    buffer_size: int = aside(in_text=True)
    sequential_slice: bool = aside()


class MultithreadPrefetchIterDataset(IterDataset[T]):
    """The parent's elements, computed by ``num_threads`` threads, each of which has every ``num_threads``-th one.

    Order: one output of each thread in turn. State: that of every thread's pipeline after its last delivered output. Cost:
    handing over outputs from thread to thread.
    """

    _adds_step = False  # seeds are those of the same pipeline without threads
    _tells_place = True
    _element_spec = spec_of_first_parent

    def __init__(self, parent: Any, num_threads: int, buffer_size: int, sequential_slice: bool = False) -> None:
        super().__init__(parent)
        self._num_threads = num_threads
        self._buffer_size = buffer_size
        self._sequential_slice = bool(sequential_slice)
        self._parameters = MultithreadPrefetchParameters(num_threads, buffer_size, self._sequential_slice)
        slice_pipeline(parent, 0, num_threads, sequential=self._sequential_slice)  # raises if that is impossible

    def _num_elements(self) -> Length:
        return num_elements_of_shares(self._parent, self._num_threads, self._sequential_slice)

    def _traced(self, tracing: Tracing) -> Any:
        return TracedLanesIterDataset(tracing.of(self._parent), self._num_threads, self._sequential_slice)

    def __iter__(self) -> DatasetIterator[T]:
        return MultithreadPrefetchIterator(
            self._parent, self._num_threads, self._buffer_size, sequential_slice=self._sequential_slice
        )


class MultithreadPrefetchIterator(InProcessIterator[T]):
    _budget_waits: BudgetWaits

    def __init__(self, ds: IterDataset[T], num_threads: int, buffer_size: int, *, sequential_slice: bool) -> None:
        super().__init__(ds, num_threads, sequential_slice=sequential_slice)
        self._buffer_size = buffer_size
        self._budget_waits = BudgetWaits()
        self._closes_anytime = buffer_size > 0

    def __str__(self) -> str:
        return f"MultithreadPrefetchIterator(num_threads={self._count}, buffer_size={self._buffer_size})"

    def _work_ahead(self) -> WorkAhead:
        return super()._work_ahead()._replace(waits=self._buffer_size > 0, num_threads=self._count)

    def _open(self) -> Sequence[Shard]:
        self._ctx.budget.allow(self._count)
        return super()._open()

    def _shard(self, it: DatasetIterator[Any]) -> Shard:
        return ThreadShard(it, self._buffer_size, self._budget_waits)

    def _forget(self) -> None:
        for shard in self._members.values():  # an error may keep them alive
            assert isinstance(shard, ThreadShard)
            shard.stop()
        super()._forget()

    def __del__(self) -> None:
        pass  # what belongs to the shards ends with them, where close would wait for that

    def close(self) -> None:
        super().close()
        shards, self._members = self._members, {}
        deadline = time.monotonic() + _CLOSE_SECONDS
        for shard in shards.values():
            assert isinstance(shard, ThreadShard)
            shard.close(max(0.0, deadline - time.monotonic()))


class ThreadShard(Shard):
    """The share of one thread."""

    def __init__(self, it: DatasetIterator[Any], buffer_size: int, waits: BudgetWaits) -> None:
        super().__init__()
        self._iterator: ThreadPrefetchDatasetIterator[Any] = ThreadPrefetchDatasetIterator(it, buffer_size)
        self._iterator._engine.budget_waits = waits

    def start(self, state: Any) -> None:
        if state is not None:
            self._iterator.set_state(state)
        self._iterator.start_prefetch()

    def fetch(self, num: int) -> None:
        it = self._iterator
        try:
            elements = it._take(1)
        except BaseException as error:
            if not isinstance(error, Exception) and it._engine.raised != id(error):  # an interrupt of this thread
                raise
            traceback = error.__traceback__
            while traceback is not None and traceback.tb_frame.f_code in _OWN_CODE:  # which refers to the iterator
                traceback = traceback.tb_next
            self.failure = partial(raised_again, error.with_traceback(traceback), traceback)
            return
        if elements:
            self.ready.append((elements.pop(), SavedPositions(it._engine, None, [it.pos]), 0))
        else:
            self.has_ended = True
            self.final = it.get_state() if it._counts_faults else None

    def skip(self, state: Any) -> Any:
        self._iterator._skip()
        state = self._iterator.get_state()
        self._iterator.start_prefetch()
        return state

    def stop(self) -> None:
        if self._iterator._ahead is not None:
            self._iterator._ahead.stop()

    def close(self, seconds: float) -> None:
        self._iterator.close_within(seconds)


_OWN_CODE = {function.__code__ for function in (ThreadShard.fetch, StreamIterator._take, Prefetch._threaded, reraise)}
