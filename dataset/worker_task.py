"""What a worker process does for ``mp_prefetch``: it runs its share of the pipeline."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.core.options import DatasetOptions
from gristmill.dataset.ahead.blocks import Growing, StatedBlocks
from gristmill.dataset.ahead.root_log import RootLog
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate, snapshot
from gristmill.dataset.slicing import slice_pipeline, worker_slice
from gristmill.dataset.stages.prefetch import PrefetchDatasetIterator
from gristmill.transforms.batching import Allocate
from gristmill.workers.logbook import Logbook
from gristmill.workers.messages import Care


@dataclass(frozen=True)
class PipelineTask:
    """Called in a worker: runs ``init_fn`` and returns what produces the elements of its share."""

    dataset: IterDataset[Any]
    options: DatasetOptions
    init_fn: Callable[[int, int], Any] | None
    sequential_slice: bool

    def __call__(self, index: int, count: int, allocate: Any) -> PipelineProducer:
        if self.init_fn is not None:
            self.init_fn(index, count)
        numbers = None if self.sequential_slice else worker_slice(index, count)
        return PipelineProducer(self.share(index, count), self.options, index, count, numbers, allocate)

    def share(self, index: int, count: int) -> IterDataset[Any]:
        return slice_pipeline(self.dataset, index, count, sequential=self.sequential_slice)


class PipelineProducer:
    """The elements of a share with the states after them."""

    def __init__(
        self,
        ds: IterDataset[Any],
        options: DatasetOptions,
        index: int,
        count: int,
        numbers: slice | None,
        allocate: Allocate | None = None,
    ) -> None:
        self._ds = ds
        self._options = options
        self.index = index
        self._count = count
        self._numbers = numbers
        self._allocate = allocate
        self.iterator: DatasetIterator[Any] | None = None
        self._blocks: StatedBlocks | None = None
        self.log: Logbook | None = None
        self.care: Care | None = None

    def renew(self, task: PipelineTask) -> None:
        """For another iterator: sources and transforms are as they were sent, whatever the last one has left in them."""
        it, self.iterator = self.iterator, None
        if it is not None:
            it.close()
        self._ds = task.share(self.index, self._count)

    def start(self, state: Any, *, skip: bool) -> Any:
        it = self.iterator
        if it is None or state is None:
            if it is not None:
                it.close()
            it = self.iterator = iterate(self._ds)
            it._ctx.belong_to(self.index, self._count, self._options)
            if self._allocate is not None:
                it._allocate_with(self._allocate)
        if self.log is not None:
            for number, root in enumerate(_roots(it)):
                root._reader.log = RootLog(self.log, number, self.care)
        if state is not None:
            it.set_state(state)
        if skip:
            it._skip()
        self._blocks = StatedBlocks(it)
        return snapshot(it)

    def begin(self, n: int) -> None:
        assert self._blocks is not None
        self._blocks.growing = Growing()
        if self.log is not None:
            self.log.begin(n)

    def end(self) -> None:
        if self.log is not None:
            self.log.begin(0)

    def finished(self) -> tuple[Sequence[Any], Sequence[Any]]:
        assert self._blocks is not None
        growing = self._blocks.growing
        return growing.elements, growing.states

    def take(self, n: int) -> tuple[list[Any], Sequence[Any], BaseException | None]:
        assert self._blocks is not None
        return self._blocks.take(n)

    def annotate(self, error: BaseException, state: Any) -> None:
        from gristmill.dataset.telling.failures import tell_in_worker

        tell_in_worker(error, f"worker {self.index} of {self._count}", place(state, self._numbers))


def _roots(it: DatasetIterator[Any]) -> list[PrefetchDatasetIterator[Any]]:
    """The iterators that everything upstream begins with, as far as they read map datasets, always in the same order."""
    if isinstance(it, PrefetchDatasetIterator):
        return [it]
    return [root for parent in it._parents for root in _roots(parent)]


def place(state: Any, numbers: slice | None, *, exact: bool = False) -> str:
    """Where a worker is, in words.

    Args:
        state: its state.
        numbers: which of the elements of the whole pipeline are its own; ``None`` if that is not known.
        exact: it is at the very next element.
    """
    around = "in what is made of it" if exact else "soon after it"
    position = state
    while isinstance(position, dict) and "parent" in position:
        position = position["parent"]
    if isinstance(position, dict) and set(position) == {"next_index"}:
        index = position["next_index"]
        if numbers is not None:
            return f"at element {numbers.start + index * numbers.step} or {around}"
        return f"at element {index} of its share or {around}"
    return "at the beginning" if state is None else f"after state {state!r:.200}"
