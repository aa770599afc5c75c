"""Batches of one shard of a map dataset, whose position is the same in all shards."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.core.indices import Indices
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.core.sharding import ShardOptions
from gristmill.core.state import plain_int, shown, state_count, state_field
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, iterate, share_context, skip_one
from gristmill.dataset.bases.length import Length, Unknown
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset
from gristmill.dataset.bases.next_index import move_to_index, next_index_of
from gristmill.dataset.bases.node import dropping_steps, only_parent, tolerances
from gristmill.dataset.engine.round_robin import RoundRobinIterator
from gristmill.dataset.faults.shards import ShardFaults
from gristmill.dataset.stages.batch import batch_function
from gristmill.dataset.stages.filter_guard import FilterGuard
from gristmill.dataset.stages.map import MapMapDataset
from gristmill.dataset.stages.map_with_index import MapWithIndexMapDataset
from gristmill.dataset.stages.random_map import RandomMapMapDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchDatasetIterator


class BatchesIterator(BlockIterator[Any]):
    """The batches of one shard of a map dataset that has an element at every index."""

    _flow = "stateful"
    _running: DatasetIterator[Any] | None = None  # delivers the batches from a position on
    _batch_fn: Any = None

    def __init__(
        self,
        ds: MapDataset[Any],
        global_batch_size: int,
        shard: ShardOptions,
        read_options: ReadOptions,
        multiprocessing_options: MultiprocessingOptions,
    ) -> None:
        super().__init__()
        self._ds = ds
        self._length = len(ds)
        self._global_batch_size = global_batch_size
        self._shard = shard
        self._batch_size = global_batch_size // shard.shard_count
        self._read_options = read_options
        self._multiprocessing_options = multiprocessing_options
        self._position = 0
        self._faults = ShardFaults(ds, is_common=isinstance(self, SparseBatchesIterator))

    def __str__(self) -> str:
        return f"ElasticIterator(global_batch_size={self._global_batch_size}, shard_options={self._shard})"

    def _inner_iterators(self) -> Iterable[DatasetIterator[Any]]:
        return () if self._running is None else (self._running,)

    def _share_context(self, ctx: IteratorContext) -> None:
        super()._share_context(ctx)
        share_context(self._inner_iterators(), ctx)

    def make_batches_with(self, batch_fn: Any) -> None:
        """Lets ``batch_fn`` make the batches, from the first one on."""
        self._batch_fn = batch_fn

    @property
    def _num_left(self) -> int:
        return max(0, self._length - self._position) // self._global_batch_size

    def _run(self) -> DatasetIterator[Any]:
        """What delivers the batches, where this iterator is."""
        if self._running is None:
            running = self._start()
            share_context([running], self._ctx)
            if self._faults:
                self._faults.go_on(running)
            self._running = running
        if self._closed:  # perhaps in the meantime
            self._running.close()
            raise ValueError(f"{self} is closed")
        return self._running

    def _start(self) -> DatasetIterator[Any]:
        step, first = divmod(self._position, self._global_batch_size)
        stop = self._position + self._num_left * self._global_batch_size
        shard = self._ds[first + self._shard.shard_index : stop : self._shard.shard_count]
        # A batch of nothing but missing elements is missing itself, and must not be passed over.
        batches = shard.batch(self._batch_size, batch_fn=self._batch_fn).to_iter_dataset(self._read_options, allow_nones=True)
        running = iterate(batches.mp_prefetch(self._multiprocessing_options))
        move_to_index(running, step)
        return running

    def _take(self, n: int) -> list[Any]:
        if self._running is None and not self._num_left:
            return []
        batches = self._run()._take(n)
        if any([batch is None for batch in batches]):
            raise _missing_error(self._ds)
        self._position += len(batches) * self._global_batch_size
        return batches

    def _skip(self) -> None:
        if self._num_left:
            skip_one(self._run())
            self._position += self._global_batch_size

    def start_prefetch(self) -> None:
        if self._num_left and not self._closed:
            self._run().start_prefetch()

    def close(self) -> None:
        super().close()
        if self._running is not None:
            self._running.close()

    def get_state(self) -> Any:
        state: dict[str, Any] = {"global_next_index": self._position}
        return {**state, "faults": self._faults.of(self._running)} if self._faults else state

    def _restore(self, state: Any) -> None:
        value = state_field(state, "global_next_index", self)
        position = plain_int(value)
        end = self._length + self._global_batch_size  # some of Grain's shards go on for a step when others have ended
        if position is None or not 0 <= position < end:
            raise StateIndexError(
                f"global_next_index in the state of {self} must be in [0, {end}), for a dataset of length {self._length}, "
                f"got {shown(value)}"
            )
        if self._faults:
            self._faults.restore(state.get("faults"), self)
        self._move(position)

    def _move(self, position: int) -> None:
        step, first = divmod(position, self._global_batch_size)
        is_of_running = first == self._position % self._global_batch_size
        self._position = position
        if self._running is None:
            return
        if is_of_running and self._num_left:
            move_to_index(self._running, step)
            if self._faults:
                self._faults.go_on(self._running)
        else:
            self._stop()

    def _stop(self) -> None:
        running, self._running = self._running, None  # before an interrupt of ``close``
        if running is not None:
            running.close()

    def _merged_state(self, states: Any) -> Any:
        positions = {state_count(state, "global_next_index", self) for state in _list_of(states, self)}
        if len(positions) != 1:
            raise StateMismatchError(
                f"all shards of {self} must be at the same global_next_index when their number changes, got {sorted(positions)}"
            )
        merged: dict[str, Any] = {"global_next_index": positions.pop()}
        return {**merged, "faults": self._faults.merged(states, self)} if self._faults else merged


class SparseBatchesIterator(BatchesIterator):
    """The batches of one shard of a map dataset that leaves out elements."""

    def _start(self) -> DatasetIterator[Any]:
        steps = _Steps(self._ds, self._global_batch_size, self._shard, self._read_options, self._position)
        batches = steps.map(_Batch(self._ds, self._batch_fn))
        if self._multiprocessing_options.num_workers:
            running = iterate(batches.mp_prefetch(self._multiprocessing_options))
            assert isinstance(running, RoundRobinIterator)
            running.judge_by(tolerances(self._ds), is_common=True)
            return running
        num_ahead = self._read_options.prefetch_buffer_size if self._read_options.num_threads else 0
        return ThreadPrefetchDatasetIterator(iterate(batches), num_ahead)

    def _take(self, n: int) -> list[Any]:
        if self._running is None and not self._num_left:
            return []
        steps = self._run()._take(n)
        if steps:
            self._position = steps[-1][0]
        return [batch for _, batch in steps]

    def _skip(self) -> None:
        steps = _Steps(self._ds, self._global_batch_size, self._shard, self._read_options, self._position).__iter__()
        if self._faults:
            self._faults.take_from(self._run())
            self._faults.go_on(steps)
        steps.pass_step()
        if self._faults:
            self._faults.take_from(steps)
        self._move(steps.position)
        steps.close()

    def _move(self, position: int) -> None:
        self._stop()
        self._position = position


class _Steps(IterDataset[tuple[int, list[int]]]):
    """For every step the index in ``ds`` after its last element, and the indices of the elements of one shard.

    Several workers take the steps in turn, each of them looks for all of them.
    """

    def __init__(self, ds: MapDataset[Any], size: int, shard: ShardOptions, read_options: ReadOptions, start: int) -> None:
        super().__init__()
        self._name = str(dropping_steps(ds)[0])
        self._presence = _presence(ds).to_iter_dataset(read_options)
        self._length = len(ds)
        self._size = size
        self._shard = shard
        self._start = start
        self._slice = slice(0, None, 1)

    def _num_elements(self) -> Length:
        return Unknown()  # which elements there are is looked up

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        del sequential_slice
        self._slice = sl

    def __iter__(self) -> _StepsIterator:
        presence = iterate(self._presence)
        move_to_index(presence, self._start)
        return _StepsIterator(presence, self._length, self._name, self._size, self._shard, self._slice)


class _StepsIterator(BlockIterator[Any]):
    _flow = "stateful"

    def __init__(
        self, presence: DatasetIterator[bool], length: int, name: str, size: int, shard: ShardOptions, sl: slice
    ) -> None:
        super().__init__(presence)
        self._length = length  # of the dataset
        self._guard = FilterGuard(name)
        self._size = size
        self._shard = shard
        self._slice = sl
        self._num_steps = 0

    def _take(self, n: int) -> list[Any]:
        steps: list[Any] = []
        while len(steps) < n:
            position, indices = self._next_step()
            if len(indices) < self._size:
                break
            if self._is_next_own():
                steps.append((position, indices[self._shard.shard_index :: self._shard.shard_count]))
            self._num_steps += 1
        return steps

    def _is_next_own(self) -> bool:
        """Whether the next step is one of this worker's."""
        return bool(self._num_steps % self._slice.step == self._slice.start)

    def _next_step(self) -> tuple[int, list[int]]:
        presence = self._parents[0]
        position, indices = self.position, list[int]()
        while len(indices) < self._size:
            is_present = presence._take(self._size - len(indices))
            if not is_present:
                break
            self._observe(is_present)
            indices += [i for i, flag in enumerate(is_present, position) if flag]
            position += len(is_present)
        return position, indices

    def _observe(self, is_present: list[bool]) -> None:
        try:
            self._guard.observe(is_present, self._ctx.options)
        except ValueError:
            for flag in is_present:
                self._guard.observe([flag], self._ctx.options)

    def get_state(self) -> Any:
        return {"parent": self._parents[0].get_state(), "num_steps": self._num_steps}

    def _restore(self, state: Any) -> None:
        self._parents[0].set_state(state_field(state, "parent", self))
        self._num_steps = state_count(state, "num_steps", self)

    def _mark(self) -> Any:
        return self._parents[0]._mark(), self._num_steps, self._guard.counts

    def _return_to(self, mark: Any) -> None:
        parent, self._num_steps, self._guard.counts = mark
        self._parents[0]._return_to(parent)

    @property
    def position(self) -> int:
        """The index in the dataset after the last step."""
        return next_index_of(self._parents[0])

    def _skip(self) -> None:
        self.pass_step()

    def pass_step(self) -> None:
        """Moves past the next step.

        What fails counts as an element, so that shards that fail and shards that do not go on at the same place.
        """
        presence, is_own = self._parents[0], False
        while not is_own and self.position < self._length:
            num = 0
            while num < self._size and self.position < self._length:
                try:
                    num += presence._take(1) == [True]
                except Exception:  # what it is does not matter here: this is called to move past it
                    presence._skip()
                    num += 1
            is_own = self._is_next_own()
            self._num_steps += 1


def _presence(ds: MapDataset[Any]) -> MapDataset[bool]:
    # Behind the last step that leaves out elements, they are still at the same indices.
    while type(ds) in (MapMapDataset, MapWithIndexMapDataset, RandomMapMapDataset):
        ds = only_parent(ds)
    return _PresenceMapDataset(ds)


class _PresenceMapDataset(BlockMapDataset[bool]):
    """True at each index at which the parent has an element, else false."""

    _keeps_indices = True

    def _items(self, indices: Indices) -> Iterator[Any]:
        return map(operator.is_not, self._parents[0]._items(indices), itertools.repeat(None))


class _Batch:
    """Reads the elements of a step."""

    def __init__(self, ds: MapDataset[Any], batch_fn: Any) -> None:
        self._ds = ds
        self._batch_fn = batch_function(batch_fn)

    def __call__(self, step: tuple[int, list[int]]) -> tuple[int, Any]:
        position, indices = step
        elements = list(self._ds._items(indices))
        if any([x is None for x in elements]):
            raise _missing_error(self._ds)
        return position, self._batch_fn(elements)


def _list_of(states: Any, owner: object) -> Any:
    if isinstance(states, Mapping):
        raise StateMismatchError(f"the files shard_state_*.json are not those of {owner}, which is over a MapDataset")
    return states


def _missing_error(ds: Any) -> ValueError:
    return ValueError(
        f"an element of {ds} is None, so that no shard can know which elements are its own. Leave elements out with filter, "
        "which is the only step that may"
    )
