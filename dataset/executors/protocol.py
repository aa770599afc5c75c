"""The protocol between ``RoundRobin``, which delivers the elements of shards in turn, and what
computes them.

An executor belongs to one stream. ``join``, ``open``, ``start``, ``receive``, ``skip`` and ``rest``
are called by one thread at a time. Guarantees:

1. ``open`` takes note of a task; nothing starts. ``start`` computes shards from positions on, and
   forgets what was received before: elements that an earlier start still sends are dropped.
2. ``receive`` returns when its shard has an element, a failure or the end, and raises if the
   executor was closed. It waits for nothing else than a user's function or source: workers that
   die or do not answer are noticed by the waiting thread.
3. After an interrupt of any method, ``start`` restarts from the positions that it is given.
4. ``rest`` does not wait: all shards have ended, or the stream is not used any more. ``close`` may
   be called by any thread, at any time and again. It waits for a limited time; what is stuck in
   a user's function after that is left behind.
5. In a forked process, ``start`` uses new workers, and those of the other process are its own.
"""

from __future__ import annotations

import abc
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.states.values import Fetched
from gristmill.dataset.workers.task import PipelineTask

Failure: TypeAlias = Callable[[], BaseException]  # makes the error to be raised
Report: TypeAlias = Callable[[Any], None]


class Shard(abc.ABC):
    """Holds what was received of a shard and not delivered: elements, then a failure or the end.

    A failure makes a new error for each ``raise``: an error that was raised refers to the frames it
    came through, and would keep alive all that is in them.
    """

    computes_here = False  # the caller does, in ``make_ready``

    def __init__(self) -> None:
        self.ready: deque[Fetched] = deque()
        self.failure: Failure | None = None
        self.has_ended = False
        self.final: Any = None  # the state at the end, if it says more than the last one before

    def make_ready(self) -> None:
        """Compute the next element, or do nothing: then ``receive`` computes it."""
        raise AssertionError(f"{self} computes nothing")

    @abc.abstractmethod
    def receive(self, num: int) -> None:
        """Wait until there is something, where ``num`` elements of all shards will surely be
        taken.
        """

    @abc.abstractmethod
    def skip(self, state: object) -> Any:
        """Move past the element after ``state``, whether it fails or not.

        Returns:
            The state then; ``None`` if what failed was no element, so that the shard is where it
            was.
        """

    def clear(self) -> None:
        """Forget what was received."""
        self.ready.clear()
        self.failure, self.has_ended, self.final = None, False, None


class Executor(abc.ABC):
    """Computes the shards of a pipeline. Its text is that of the iterator that delivers them."""

    closes_anytime = True  # ``close`` ends a ``receive`` of another thread
    # the state of a shard before its first element is that of the pipeline
    begins_as_a_whole = True
    budget_waits: BudgetWaits | None = None
    is_closed = False
    shards: Sequence[Shard] = ()  # since the last ``start``
    pool: Any = None  # the workers that are in use
    workers: Sequence[Any] = ()  # of the pool
    options: Sequence[Any] = ()  # that users gave
    tuning: Any = None  # finds the number of workers, with ``"auto"``
    ctx: IteratorContext
    _task: PipelineTask
    _report_opened: Report | None = None
    _report_pool: Report | None = None

    def join(self, ctx: IteratorContext) -> None:
        """Belong to the pipeline of ``ctx`` from now on."""
        self.ctx = ctx

    def open(self, task: PipelineTask) -> None:
        """Compute ``task.num_lanes`` shards of ``task`` from the next ``start`` on."""
        self._task = task

    @abc.abstractmethod
    def start(self, states: Mapping[int, Any]) -> None:
        """Compute shards from these states on, without waiting for elements.

        Args:
            states: by shard, in the order in which elements are needed; ``None`` is the beginning.
        """

    def receive(self, number: int, num: int) -> None:
        """Wait until a shard has something.

        Args:
            number: of the shard.
            num: how many elements the consumer will surely take, of all shards together.
        """
        self.shards[number].receive(num)

    def skip(self, number: int, state: object) -> Any:
        """Move a shard past the element after ``state`` (see ``Shard``)."""
        return self.shards[number].skip(state)

    def resize(self, num_workers: int) -> bool:
        """Use another number of workers, if that is possible. Any thread may call this."""
        return False

    def rest(self) -> None:
        """Forget what was received, and let others use the workers. May be called again."""
        for shard in self.shards:
            shard.clear()

    def close(self) -> None:
        """End the workers."""
        self.is_closed = True

    def work_ahead(self) -> WorkAhead:
        """Describe how elements are computed ahead. Any thread may call this."""
        return WorkAhead(True, None, sum([len(shard.ready) for shard in [*self.shards]]))

    def report_opened(self, report: Report | None) -> None:
        """Call ``report`` with each iterator that the caller draws from, now and from now on."""
        self._report_opened = report
        if report is not None:
            for it in self.drawn_from():
                report(it)

    def opens(self, it: DatasetIterator[Any] | None) -> None:
        """Take note that the caller draws from ``it``."""
        if self._report_opened is not None:
            self._report_opened(it)

    def drawn_from(self) -> Sequence[DatasetIterator[Any]]:
        """Return the open iterators of shards that the caller computes."""
        return ()

    def report_pool(self, report: Report | None) -> None:
        """Call ``report`` with the pool of workers that is used, now or whenever that is another
        one.
        """
        self._report_pool = report

    def where(self, number: int) -> str | None:
        """Return which worker computes a shard, and where that is in the pipeline; ``None`` if
        there is none.
        """
        return None


def open_shards(task: PipelineTask, ctx: IteratorContext) -> list[DatasetIterator[Any]]:
    """Return new iterators of all shards, in this process, which compute nothing yet.

    Args:
        task: the pipeline and how it is divided.
        ctx: that of the whole pipeline, which may itself be of one worker.
    """
    own, count = ctx.numbers, task.num_lanes
    iterators = [iterate(share) for share in [task.share(i) for i in range(count)]]
    for i, it in enumerate(iterators):
        task.number_stages(it, i)
        it._gm_ctx.belong_to(own.index + i * own.count, count * own.count, ctx)
    return iterators
