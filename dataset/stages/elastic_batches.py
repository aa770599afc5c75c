"""Batches of one shard of a map dataset, whose position is the same in all shards."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.core.indices import Indices
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.core.sharding import ShardOptions
from gristmill.core.state import plain_int, shown, state_count, state_field
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.length import unknown_number
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset
from gristmill.dataset.bases.node import dropping_steps, only_parent, tolerances
from gristmill.dataset.engine.iterators import StreamIterator, stream_of
from gristmill.dataset.engine.round_robin import RoundRobinIterator
from gristmill.dataset.engine.stream import Cell, Layer, Pos, Stream, pass_outputs
from gristmill.dataset.faults.shards import ShardFaults
from gristmill.dataset.stages.batch import BatchFn, batch_function
from gristmill.dataset.stages.filter_guard import WINDOW, FilterGuard
from gristmill.dataset.stages.map import MapMapDataset
from gristmill.dataset.stages.map_with_index import MapWithIndexMapDataset
from gristmill.dataset.stages.random_map import RandomMapMapDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchDatasetIterator
from gristmill.dataset.states.values import copied

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

_END: Any = object()


class Batches(Stream):
    """The batches of one shard of a map dataset that has an element at every index.

    The position: the index of the next element of all shards, and the counts of faults. The batches
    come from a pipeline that begins at an index.

    Args:
        ds: the dataset.
        size: elements in a batch of all shards together.
        shard: the shard.
        options: of reading, and of worker processes.
        batch_fn: makes a batch; by default as ``ds.batch`` does.
    """

    name = "ElasticIterator"
    is_common: ClassVar = False  # every shard reads all elements
    running: DatasetIterator[Any] | None = None  # the pipeline
    _stream: Stream
    _is_closed = False
    _at: Pos = None  # the position of the pipeline,
    _inner_pos: Pos = None  # and what that is there
    _cell: Cell | None = None  # of the last run

    def __init__(
        self,
        stage: DatasetNode,
        ds: MapDataset[Any],
        size: int,
        shard: ShardOptions,
        options: tuple[ReadOptions, MultiprocessingOptions],
        batch_fn: BatchFn,
    ) -> None:
        super().__init__(stage)
        self.ds, self.length = ds, len(ds)
        self.size, self.shard = size, shard
        self.read_options, self.multiprocessing_options = options
        self.batch_fn = batch_fn
        self.closes_anytime = True  # type: ignore[misc]
        self.faults = ShardFaults(ds, self.is_common)
        self._pos = self.start()  # of the next run, without a cell

    def _run(self, cell: Cell) -> Iterator[Any]:
        self._cell = cell
        if not self._num_left(cell.pos):
            return
        inner = self.inner
        try:
            run = self._begin(cell.pos)
            while True:
                inner.wanted = max(1, cell.take_wanted())
                found = next(run, _END)
                if found is _END:
                    return
                index, batch = self._delivered(found, cell.pos)
                del found
                self._move_to(cell, index)
                yield (batch, batch := None)[0]
        except Exception:
            cell.past_failed = partial(self._pass, cell)
            raise

    def _move_to(self, cell: Cell, index: int) -> None:
        """Note that the pipeline is after an output, which ended at ``index``."""
        self._inner_pos = pos = self.inner.settle()
        self._at = cell.pos = index, self.faults.found_at(self._stream, pos)

    def _num_left(self, pos: Pos) -> int:
        return max(0, self.length - int(pos[0])) // self.size

    def _begin(self, pos: Pos) -> Iterator[Any]:
        """Return the outputs of the pipeline from ``pos`` on."""
        if self.running is not None and self._at != pos and not self._can_move_to(pos):
            self._stop()
        if self.running is None:
            self._at, running = None, self._opened(pos[0])
            running._gm_share_context(self.ctx)
            self._stream, self.running = stream_of(running), running
        if self._is_closed:  # perhaps in the meantime
            self.running.close()
            raise ValueError(f"{self} is closed")
        if self._at != pos:
            start = self._start_of(pos[0])
            self._inner_pos = self.faults.with_counts(self._stream, start, pos[1])
            self._at = pos
        return self._stream.run(self.inner.at(self._inner_pos))

    def _opened(self, index: int) -> DatasetIterator[Any]:
        """Return a pipeline for the outputs from ``index`` on."""
        first = index % self.size
        stop = index + self._num_left((index,)) * self.size
        share = slice(first + self.shard.shard_index, stop, self.shard.shard_count)
        shard = MapDataset.slice(self.ds, share)
        # A batch of nothing but missing elements is missing itself, and must not be skipped.
        batches = shard.batch(self.size // self.shard.shard_count, batch_fn=self.batch_fn)
        return iterate(
            batches.to_iter_dataset(self.read_options, allow_nones=True).mp_prefetch(
                self.multiprocessing_options
            )
        )

    def _start_of(self, index: int) -> Pos:
        """Return the position of the pipeline at ``index``."""
        return self._stream.at_index(index // self.size)

    def _can_move_to(self, pos: Pos) -> bool:
        """Return true if the pipeline has the outputs from ``pos`` on, although it is elsewhere."""
        return self._at is not None and bool((pos[0] - self._at[0]) % self.size == 0)

    def _delivered(self, found: object, pos: Pos) -> tuple[int, Any]:
        """Return the index after an output of the pipeline, and the batch."""
        if found is None:
            raise _missing_error(self.ds)
        return pos[0] + self.size, found

    def _pass(self, cell: Cell) -> None:
        if self._at == cell.pos:
            self.inner.pass_failed()
        else:  # it could not be opened
            self._begin(cell.pos)
            pass_outputs(self._stream, self.inner, 1)
        self._move_to(cell, cell.pos[0] + self.size)

    def _stop(self) -> None:
        running, self.running = self.running, None  # before an interrupt of ``close``
        if running is not None:
            running.close()

    # Positions and states.

    def start(self) -> Pos:
        return 0, self.faults.load(None, self)

    def save(self, pos: Pos) -> Any:
        index, faults = pos
        state: dict[str, Any] = {"global_next_index": index}
        return {**state, "faults": copied([*faults])} if faults else state

    def load(self, state: Any) -> Pos:
        value = state_field(state, "global_next_index", self)
        index = plain_int(value)
        # some of Grain's shards continue for a step when others have ended
        end = self.length + self.size
        if index is None or not 0 <= index < end:
            raise StateIndexError(
                f"global_next_index in the state of {self} must be in [0, {end}), for a dataset of"
                f" length {self.length}, got {shown(value)}"
            )
        self._cell, self._pos = None, (index, self.faults.load(state.get("faults"), self))
        return self._pos

    def merge(self, states: Any) -> Any:
        positions = {
            state_count(state, "global_next_index", self) for state in _list_of(states, self)
        }
        if len(positions) != 1:
            raise StateMismatchError(
                f"all shards of {self} must be at the same global_next_index when their number"
                f" changes, got {sorted(positions)}"
            )
        merged: dict[str, Any] = {"global_next_index": positions.pop()}
        faults = self.faults.merged(states, self)
        return {**merged, "faults": faults} if faults else merged

    # Resources.

    def start_prefetch(self) -> None:
        pos = self._pos if self._cell is None else self._cell.pos
        if self._num_left(pos) and not self._is_closed:
            self._begin(pos)
            assert self.running is not None
            self.running.start_prefetch()

    def open_iterators(self) -> Sequence[DatasetIterator[Any]]:
        return () if self.running is None else (self.running,)

    def close(self) -> None:
        self._is_closed = True
        if self.running is not None:
            self.running.close()

    def drop(self) -> None:
        self.forget_run()
        self.running = None


class SparseBatches(Batches):
    """The batches of one shard of a sparse map dataset."""

    is_common = True

    def _steps(self, index: int) -> StepsIterDataset:
        return StepsIterDataset(self.ds, self.size, self.shard, self.read_options, index)

    def _opened(self, index: int) -> DatasetIterator[Any]:
        batches = self._steps(index).map(_Batch(self.ds, self.batch_fn))
        if self.multiprocessing_options.num_workers:
            running = iterate(batches.mp_prefetch(self.multiprocessing_options))
            assert isinstance(running, RoundRobinIterator)
            running.use_limits(tolerances(self.ds), is_common=True)
            return running
        num_ahead = self.read_options.prefetch_buffer_size if self.read_options.most_threads else 0
        return ThreadPrefetchDatasetIterator(iterate(batches), num_ahead)

    def _start_of(self, index: int) -> Pos:
        return self._stream.start()

    def _can_move_to(self, pos: Pos) -> bool:
        return False

    def _delivered(self, found: Any, pos: Pos) -> tuple[int, Any]:
        index, batch = found
        return index, batch

    def _pass(self, cell: Cell) -> None:
        index, faults = cell.pos
        it = self._steps(index).__iter__()
        steps = it._gm_engine
        assert isinstance(steps, StepsOfWorker)
        here = Cell(self.faults.with_counts(steps, steps.start(), faults))
        steps.pass_step(here)
        found = self.faults.found_at(steps, here.pos)
        it.close()
        cell.pos = steps.index_in_dataset(here.pos), found


def batches_of(ds: MapDataset[Any], **given: Any) -> Callable[[Any], Batches]:
    """Return what makes the stream of the batches of ``ds``."""
    return partial(SparseBatches if dropping_steps(ds) else Batches, ds=ds, **given)


class StepsIterDataset(IterDataset[tuple[int, list[int]]]):
    """For every step the index in ``ds`` after its last element, and the indices of the elements of
    one shard.

    Several workers take the steps in turn, each of them looks for all of them.
    """

    _gm_num_elements = unknown_number  # which elements there are is looked up

    def __init__(
        self,
        ds: MapDataset[Any],
        size: int,
        shard: ShardOptions,
        read_options: ReadOptions,
        start: int,
    ) -> None:
        super().__init__()
        self._ds = ds
        self._presence = _presence(ds).to_iter_dataset(read_options)
        self._size = size
        self._shard = shard
        self._start = start
        self._slice = slice(0, None, 1)

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        del sequential_slice
        self._slice = sl

    def __iter__(self) -> StreamIterator[tuple[int, list[int]]]:
        name, sl = str(dropping_steps(self._ds)[0]), self._slice
        make = partial(
            StepsOfWorker,
            start=self._start,
            length=len(self._ds),
            name=name,
            size=self._size,
            shard=self._shard,
            sl=sl,
        )
        return StreamIterator(self, [iterate(self._presence)], make)


class StepsOfWorker(Layer):
    """The steps of one worker. The position: the parent's, and the number of the next step of all
    workers.

    Args:
        parent: says of each index whether the dataset has an element there.
        start: the index at which the first step begins.
        length: of the dataset.
        name: of the stage that drops elements.
        size: elements of a step.
        shard: whose elements are delivered.
        sl: which steps are.
    """

    keys = ("parent", "num_steps")

    def __init__(
        self,
        stage: DatasetNode,
        parent: Stream,
        *,
        start: int,
        length: int,
        name: str,
        size: int,
        shard: ShardOptions,
        sl: slice,
    ) -> None:
        super().__init__(stage, parent)
        self._start, self._length = start, length
        self._guard = FilterGuard(name)
        self._decisions: list[bool] = []  # about the last elements
        self._size, self._shard, self._slice = size, shard, sl

    def start(self) -> Pos:
        return self.parent.at_index(self._start), 0

    def _run(self, cell: Cell) -> Iterator[Any]:
        pos, num = cell.pos
        inner = self.inner.at(pos, choices=cell.choices)
        try:
            while True:
                index, indices = self._next_step(inner)
                if len(indices) < self._size:
                    break
                num += 1
                if self._is_own(num - 1):
                    cell.pos = inner.settle(), num
                    yield index, indices[self._shard.shard_index :: self._shard.shard_count]
        except Exception:
            cell.past_failed = partial(self.pass_step, cell)
            raise
        cell.pos = inner.settle(), num

    def _next_step(self, inner: Cell) -> tuple[int, list[int]]:
        """Return the indices of the elements of the next step, and the index after them."""
        index, indices = self.parent.index_of(inner.settle()), list[int]()
        while len(indices) < self._size:
            inner.wanted = num = self._size - len(indices)
            are_there = list(islice(self.parent.run(inner), num))
            if not are_there:
                break
            for is_there in are_there:
                self._decisions.append(is_there)
                if len(self._decisions) >= WINDOW:
                    self._guard.check(self._decisions, self.ctx.options)
            indices += [i for i, is_there in enumerate(are_there, index) if is_there]
            index += len(are_there)
        return index, indices

    def _is_own(self, num: int) -> bool:
        """Return true if a step is one of this worker's."""
        return bool(num % self._slice.step == self._slice.start)

    def index_in_dataset(self, pos: Pos) -> int:
        """Return the index in the dataset at a position."""
        return self.parent.index_of(pos[0])

    def pass_step(self, cell: Cell) -> None:
        """Move past the next step.

        What fails counts as an element, so that shards that fail and shards that do not continue at
        the same place.
        """
        pos, num_steps = cell.pos
        inner, is_own = self.inner.at(pos, choices=cell.choices), False
        while not is_own and self.parent.index_of(inner.settle()) < self._length:
            num = 0
            while num < self._size and self.parent.index_of(inner.settle()) < self._length:
                try:
                    num += next(self.parent.run(inner), False)
                except Exception:  # what it is does not matter here: this is called to move past it
                    inner.pass_failed()
                    num += 1
            is_own = self._is_own(num_steps)
            num_steps += 1
        cell.pos = inner.settle(), num_steps


def _presence(ds: MapDataset[Any]) -> MapDataset[bool]:
    # Downstream of the last stage that drops elements, they are still at the same indices.
    while type(ds) in (MapMapDataset, MapWithIndexMapDataset, RandomMapMapDataset):
        ds = only_parent(ds)
    return _PresenceMapDataset(ds)


class _PresenceMapDataset(BlockMapDataset[bool]):
    """True at each index at which the parent has an element, else false."""

    _gm_keeps_indices = True

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        return map(operator.is_not, self._gm_parents[0]._gm_items(indices), itertools.repeat(None))


class _Batch:
    """Reads the elements of a step."""

    def __init__(self, ds: MapDataset[Any], batch_fn: BatchFn) -> None:
        self._ds = ds
        self._batch_fn = batch_function(batch_fn)

    def __call__(self, step: tuple[int, list[int]]) -> tuple[int, Any]:
        position, indices = step
        elements = list(self._ds._gm_items(indices))
        if any([x is None for x in elements]):
            raise _missing_error(self._ds)
        return position, self._batch_fn(elements)


def _list_of(states: object, owner: object) -> Any:
    if isinstance(states, Mapping):
        raise StateMismatchError(
            f"the files shard_state_*.json are not those of {owner}, which is over a MapDataset"
        )
    return states


def _missing_error(ds: DatasetNode) -> ValueError:
    return ValueError(
        f"an element of {ds} is None, so that no shard can know which elements are its own. Leave"
        " elements out with filter, which is the only step that may"
    )
