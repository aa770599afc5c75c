"""Lanes that are computed in this process."""

from __future__ import annotations

import abc
import copy
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice, repeat
from types import TracebackType
from typing import Any, TypeVar

from gristmill.core.pacing import BlockSize
from gristmill.dataset.ahead.blocks import blocks_of
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, skip_one, snapshot
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.bases.round_robin import RoundRobinIterator, Shard
from gristmill.dataset.slicing import slice_pipeline
from gristmill.dataset.states.values import copied
from gristmill.dataset.worker_task import share_threads

T = TypeVar("T")

_MAX_BLOCK = 64  # elements


class InProcessIterator(RoundRobinIterator[T]):
    """The elements of lanes in turn, where their iterators are in this process."""

    _tell: Callable[[Any], None] | None = None  # is told of every iterator that is opened

    @abc.abstractmethod
    def _shard(self, it: DatasetIterator[Any]) -> Shard:
        """What computes the lane of ``it``."""

    def _tell_opened(self, tell: Callable[[Any], None] | None) -> None:
        self._tell = tell

    def _share_iterators(self) -> list[DatasetIterator[Any]]:
        shares, tell = super()._share_iterators(), self._tell
        if tell is not None:
            for it in shares:
                it._ctx.joined = None  # it is no pipeline of its own, although it was made like one
                tell(it)
        return shares

    def _share(self, index: int) -> IterDataset[T]:
        how: Any = {"sequential": self._sequential_slice, "by_lanes": self._by_lanes}
        return slice_pipeline(self._ds, index, self._count, **how)

    def _open(self) -> Sequence[Shard]:
        return [self._shard(it) for it in self._share_iterators()]


class LocalLanesIterator(InProcessIterator[T]):
    """Each lane is computed by whoever asks for its next element."""

    _begins_as_a_whole = True

    def __str__(self) -> str:
        return f"LocalLanesIterator(num_lanes={self._count})"

    def _work_ahead(self) -> WorkAhead:
        return super()._work_ahead()._replace(waits=False)

    def _shard(self, it: DatasetIterator[Any]) -> Shard:
        share_threads(it, self._count)
        return LocalLane(it, self._count)

    def __del__(self) -> None:
        pass  # what works in the background ends with the iterator that it works for

    def close(self) -> None:
        super().close()
        lanes, self._members = self._members, {}
        for lane in lanes.values():
            assert isinstance(lane, LocalLane)
            lane.close()


class LocalLane(Shard):
    """Computes the elements of ``it``, each when its turn comes where that costs little.

    Args:
        it: the iterator of the lane.
        num_lanes: how many lanes there are.
    """

    def __init__(self, it: DatasetIterator[Any], num_lanes: int) -> None:
        super().__init__()
        self._iterator = it
        self._num_lanes = num_lanes
        self._begin()

    def _begin(self) -> None:
        self._blocks = blocks_of(self._iterator)
        self._block_size = BlockSize()
        self._each: Any = self._blocks.each(_MAX_BLOCK)

    def start(self, state: Any) -> None:
        if state is not None:
            self._iterator.set_state(copied(state))
        self._iterator.start_prefetch()

    def make_ready(self) -> bool:
        if self._each is not None and not self.has_ended and self.failure is None:
            for fetched in self._each:
                self.ready.append(fetched)
                return True
            self._each = None
        return False

    def fetch(self, num: int) -> None:
        if self.make_ready():
            self.ready.extend(islice(self._each, (num - 1) // self._num_lanes))
            return
        stop, self._blocks.stopped = self._blocks.stopped, None
        if stop is None:
            began, size = time.perf_counter(), self._block_size.now if self._blocks.are_whole else 1
            elements, states, stop = self._blocks.take(size)
            self._block_size.adapt(time.perf_counter() - began, size, _MAX_BLOCK, num=len(elements))
            self.ready.extend(zip(elements, repeat(states), range(len(elements))))
        if isinstance(stop, Exception):
            self.has_ended = isinstance(stop, StopIteration)
            self.final = stop.value if isinstance(stop, StopIteration) else None
            self.failure = None if self.has_ended else partial(raised_again, stop, stop.__traceback__)
        elif stop is not None:
            raise stop

    def skip(self, state: Any) -> Any:
        skip_one(self._iterator)
        self._begin()
        return copied(snapshot(self._iterator))

    def close(self) -> None:
        self._iterator.close()
        self.clear()


def raised_again(error: BaseException, traceback: TracebackType | None) -> BaseException:
    """An error equal to ``error``, which is not to refer to all the frames that it is raised through; if it can be copied."""
    try:
        new = copy.copy(error)
        is_equal = type(new) is type(error) and bool(new.args == error.args)
    except Exception:
        is_equal = False
    if not is_equal:
        new = error
    new.__cause__, new.__context__, new.__suppress_context__ = error.__cause__, error.__context__, error.__suppress_context__
    return new.with_traceback(traceback)
