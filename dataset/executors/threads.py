"""The executor of shards that threads compute, which share sources and functions."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any

from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.engine.blocks import SavedPositions, final_state
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.engine.prefetch import Prefetch, reraise
from gristmill.dataset.executors.inline import InProcessExecutor, raised_again
from gristmill.dataset.executors.protocol import Shard
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchDatasetIterator

_CLOSE_SECONDS = 0.2  # how long ``close`` waits for the threads to come out of user code


class ThreadExecutor(InProcessExecutor):
    """Computes each shard with a thread of the pipeline's budget.

    ``receive`` waits in ``PullAhead.wait``: the thread sets a signal after each block, and where
    the budget has no thread, the caller computes the element. ``start`` does not wait for threads
    of a former start, which work on other iterators and end when they are out of user code.

    Args:
        num_threads: how many shards there are.
        buffer_size: the most elements for each thread to be ahead; with 0 the caller computes them.
    """

    begins_as_a_whole = False
    shards: list[ThreadShard]

    def __init__(self, num_threads: int, buffer_size: int) -> None:
        self.shards = []
        self._num_threads = num_threads
        self._buffer_size = buffer_size
        self.budget_waits = BudgetWaits()
        self.closes_anytime = buffer_size > 0

    def __str__(self) -> str:
        return (
            f"MultithreadPrefetchIterator(num_threads={self._num_threads},"
            f" buffer_size={self._buffer_size})"
        )

    def start(self, states: Mapping[int, Any]) -> None:
        self.ctx.budget.allow(self._num_threads)
        for shard in self.shards:
            shard.clear()
        assert self.budget_waits is not None
        self.shards = shards = [
            ThreadShard(it, self._buffer_size, self.budget_waits) for it in self.opened()
        ]
        for number, state in states.items():
            shards[number].start(state)

    def close(self) -> None:
        super().close()
        deadline = time.monotonic() + _CLOSE_SECONDS
        for shard in self.shards:
            shard.clear()
            shard.close(max(0.0, deadline - time.monotonic()))

    def work_ahead(self) -> WorkAhead:
        return (
            super()
            .work_ahead()
            ._replace(waits=self._buffer_size > 0, num_threads=self._num_threads)
        )


class ThreadShard(Shard):
    """The shard of one thread."""

    def __init__(self, it: DatasetIterator[Any], buffer_size: int, waits: BudgetWaits) -> None:
        super().__init__()
        self._iterator: ThreadPrefetchDatasetIterator[Any] = ThreadPrefetchDatasetIterator(
            it, buffer_size
        )
        self._iterator._gm_engine.budget_waits = waits

    def start(self, state: object) -> None:
        if state is not None:
            self._iterator.set_state(state)
        self._iterator.start_prefetch()

    def receive(self, num: int) -> None:
        it = self._iterator
        try:
            elements = it._gm_take(1)
        except BaseException as error:
            # an interrupt of this thread
            if not isinstance(error, Exception) and it._gm_engine.raised != id(error):
                raise
            traceback = error.__traceback__
            # which refers to the iterator
            while traceback is not None and traceback.tb_frame.f_code in _OWN_CODE:
                traceback = traceback.tb_next
            self.failure = partial(raised_again, error.with_traceback(traceback), traceback)
            return
        if elements:
            self.ready.append((elements.pop(), SavedPositions(it._gm_engine, None, [it.pos]), 0))
        else:
            self.has_ended = True
            self.final = final_state(it)

    def skip(self, state: object) -> Any:
        self._iterator._gm_skip()
        state = self._iterator.get_state()
        self._iterator.start_prefetch()
        return state

    def clear(self) -> None:
        """Forget what was received, and let the thread end."""
        super().clear()
        if self._iterator._ahead is not None:
            self._iterator._ahead.stop()

    def close(self, seconds: float) -> None:
        self._iterator.close_within(seconds)


_OWN_CODE = {
    function.__code__
    for function in (ThreadShard.receive, StreamIterator._gm_take, Prefetch._threaded, reraise)
}
