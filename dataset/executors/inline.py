"""The executor of shards that the caller computes."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from functools import partial
from itertools import islice, repeat
from types import TracebackType
from typing import Any

from gristmill.dataset.bases.iterator import snapshot
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.engine.blocks import StreamBlocks
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.engine.recording import shard_iterator
from gristmill.dataset.executors.protocol import Executor, Shard, open_shards
from gristmill.dataset.states.values import copied
from gristmill.dataset.workers.task import share_threads


class InProcessExecutor(Executor):
    """The base of those whose shards have iterators in this process."""

    def opened(self) -> list[StreamIterator[Any]]:
        """Return new iterators of all shards, and register them with observers."""
        opened, report = open_shards(self._task, self.ctx), self._report_opened
        iterators = [shard_iterator(it, records=bool(self._task.key)) for it in opened]
        if report is not None:
            for it in iterators:
                # It is no pipeline of its own, although it was made like one.
                it._gm_ctx.joined = None
                report(it)
        return iterators


class InlineExecutor(InProcessExecutor):
    """Computes each element when it is received. Nothing waits."""

    shards: list[LocalShard]

    def __init__(self, num_lanes: int) -> None:
        self.shards = []
        self._num_lanes = num_lanes

    def __str__(self) -> str:
        return f"LocalLanesIterator(num_lanes={self._num_lanes})"

    def start(self, states: Mapping[int, Any]) -> None:
        self.shards = [LocalShard(it, self._num_lanes) for it in self.opened()]
        for number, state in states.items():
            self.shards[number].start(state)

    def close(self) -> None:
        super().close()
        shards, self.shards = self.shards, []
        for shard in shards:
            shard.close()

    def work_ahead(self) -> WorkAhead:
        return super().work_ahead()._replace(waits=False)


class LocalShard(Shard):
    """Computes the elements of ``it``, each when its turn comes where that costs little.

    Args:
        it: the iterator of the shard.
        num_lanes: how many shards there are.
    """

    computes_here = True

    def __init__(self, it: StreamIterator[Any], num_lanes: int) -> None:
        super().__init__()
        share_threads(it, num_lanes)
        self._iterator = it
        self._num_lanes = num_lanes
        self._begin()

    def _begin(self) -> None:
        self._blocks = StreamBlocks(self._iterator)
        self._each: Any = self._blocks.each()

    def start(self, state: object) -> None:
        if state is not None:
            self._iterator.set_state(copied(state))
        self._iterator.start_prefetch()

    def make_ready(self) -> None:
        if self._each is not None and self.failure is None and not self.has_ended:
            for fetched in self._each:
                self.ready.append(fetched)
                return
            self._each = None

    def receive(self, num: int) -> None:
        wanted = 1 + (num - 1) // self._num_lanes  # of this shard
        if self._each is not None:
            self.ready.extend(islice(self._each, wanted))
            if self.ready:
                return
            self._each = None
        stop, self._blocks.stopped = self._blocks.stopped, None
        if stop is None:
            elements, states, stop = self._blocks.take(1)
            self.ready.extend(zip(elements, repeat(states), range(len(elements))))
        if isinstance(stop, Exception):
            self.has_ended = isinstance(stop, StopIteration)
            self.final = stop.value if isinstance(stop, StopIteration) else None
            self.failure = (
                None if self.has_ended else partial(raised_again, stop, stop.__traceback__)
            )
        elif stop is not None:
            raise stop

    def skip(self, state: object) -> Any:
        self._iterator._gm_skip()
        self._begin()
        return copied(snapshot(self._iterator))

    def close(self) -> None:
        self._iterator.close()
        self.clear()


def raised_again(error: BaseException, traceback: TracebackType | None) -> BaseException:
    """Return an error equal to ``error``, or itself if it cannot be copied.

    The copy refers to none of the frames that it will be raised through.
    """
    try:
        new = copy.copy(error)
        is_equal = type(new) is type(error) and bool(new.args == error.args)
    except Exception:
        is_equal = False
    if not is_equal:
        new = error
    new.__cause__, new.__context__, new.__suppress_context__ = (
        error.__cause__,
        error.__context__,
        error.__suppress_context__,
    )
    return new.with_traceback(traceback)
