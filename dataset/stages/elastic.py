"""``ElasticIterator``: batches of one of several shards, whose position does not depend on their number."""

from __future__ import annotations

import operator
from typing import Any, TypeVar

from gristmill.core.errors import StateIndexError, as_int
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.core.sharding import ShardOptions
from gristmill.core.state import state_field
from gristmill.dataset.element_spec import batched_spec
from gristmill.dataset.iter_dataset import IterDataset
from gristmill.dataset.iterator import BlockIterator, DatasetIterator, IteratorContext, iterate, skip_one
from gristmill.dataset.map_dataset import MapDataset, ancestors
from gristmill.dataset.stages.batch import batch_function

T = TypeVar("T")


class ElasticIterator(BlockIterator[T], IterDataset[T]):
    """Iterates over one shard of ``ds`` in batches; a state taken with any number of shards restores with any other.

    Law: the ``n`` shards together deliver, in step ``t``, the elements ``g`` to ``g + global_batch_size - 1`` of ``ds``, where
    ``g`` has grown by the global batch size in each step before; shard ``s`` has ``g + s``, ``g + s + n``, …. All shards end
    with the same step, the last one for which a whole global batch is there.

    It is an iterator, and also a dataset that can be chained (``it.map(...)``) whose only iterator it is itself: iterating over
    it again goes on where it is.

    Order: as above. State: ``{"global_next_index": g}``, the same in all shards after the same number of steps. Cost: that of
    ``ds``, sliced, batched and converted by ``to_iter_dataset``.

    Args:
        ds: the dataset, neither batched nor sharded, without ``filter``.
        global_batch_size: elements per step in all shards together, a multiple of their number.
        shard_options: this shard and the number of shards.
        read_options: number of threads and batches ahead.
        multiprocessing_options: computes the batches in worker processes.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: ``global_batch_size`` is not a positive multiple of the number of shards, or ``ds`` may leave out elements.

    Example:
        >>> ds = MapDataset.range(16)
        >>> it = ElasticIterator(ds, 4, ShardOptions(shard_index=1, shard_count=2))
        >>> next(it), next(it), it.get_state()
        (array([1, 3]), array([5, 7]), {'global_next_index': 8})
        >>> of_four = ElasticIterator(ds, 8, ShardOptions(shard_index=3, shard_count=4))
        >>> of_four.set_state(it.get_state())
        >>> next(of_four)
        array([11, 15])
    """

    _kind = "stateful"
    _closes_anytime = True
    _running: DatasetIterator[Any] | None = None  # delivers the batches at this position modulo the global batch size

    def __init__(
        self,
        ds: MapDataset[Any],
        global_batch_size: int,
        shard_options: ShardOptions,
        *,
        read_options: ReadOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
    ) -> None:
        if not isinstance(ds, MapDataset):
            raise TypeError(f"ds must be a MapDataset, got {ds!r:.200} of type {type(ds).__name__}")
        if not isinstance(shard_options, ShardOptions):
            raise TypeError(f"shard_options must be a ShardOptions, got {shard_options!r:.200}")
        for name, value, kind in (
            ("read_options", read_options, ReadOptions),
            ("multiprocessing_options", multiprocessing_options, MultiprocessingOptions),
        ):
            if not isinstance(value, kind | None):
                raise TypeError(f"{name} must be a {kind.__name__} or None, got {value!r:.200}")
        sparse = next((node for node in ancestors(ds) if node._drops), None)
        if sparse is not None:
            raise ValueError(f"filter is not supported: {sparse} may leave out elements, and batches by index would have holes")
        self._ds = ds
        self._length = len(ds)
        self._global_batch_size = as_int("global_batch_size", global_batch_size, minimum=1)
        self._shard = shard_options
        self._batch_size, rest = divmod(self._global_batch_size, shard_options.shard_count)
        if rest:
            raise ValueError(
                f"global_batch_size must be divisible by the number of shards, {shard_options.shard_count}, "
                f"got {self._global_batch_size}"
            )
        self._read_options = read_options or ReadOptions()
        self._multiprocessing_options = multiprocessing_options or MultiprocessingOptions()
        self._position = 0

    def __str__(self) -> str:
        return f"ElasticIterator(global_batch_size={self._global_batch_size}, shard_options={self._shard})"

    @property
    def _element_spec(self) -> Any:
        return batched_spec(batch_function(None), self._ds._element_spec, self._batch_size, True)

    @property
    def _upstream(self) -> tuple[MapDataset[Any]]:
        return (self._ds,)

    def _share_context(self, ctx: IteratorContext) -> None:
        super()._share_context(ctx)
        if self._running is not None:
            self._running._share_context(ctx)

    @property
    def _num_left(self) -> int:
        return max(0, self._length - self._position) // self._global_batch_size

    def _run(self) -> DatasetIterator[Any]:
        """What delivers the batches, where this iterator is."""
        if self._running is None:
            step, first = divmod(self._position, self._global_batch_size)
            stop = self._position + self._num_left * self._global_batch_size
            shard = self._ds[first + self._shard.shard_index : stop : self._shard.shard_count]
            batches = shard.batch(self._batch_size).to_iter_dataset(self._read_options)
            running = iterate(batches.mp_prefetch(self._multiprocessing_options))
            running._share_context(self._ctx)
            running._set_next_index(step)
            self._running = running
        if self._closed:  # perhaps in the meantime
            self._running.close()
            raise ValueError(f"{self} is closed")
        return self._running

    def _take(self, n: int) -> list[Any]:
        if self._running is None and not self._num_left:
            return []
        batches = self._run()._take(n)
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

    def __del__(self) -> None:
        pass  # what works in the background ends with the iterator that it works for

    def get_state(self) -> Any:
        return {"global_next_index": self._position}

    def _restore(self, state: Any) -> None:
        value = state_field(state, "global_next_index", self)
        try:
            position = operator.index(value)
        except TypeError:
            position = -1
        end = self._length + self._global_batch_size  # some of Grain's shards go on for a step when others have ended
        if not 0 <= position < end:
            raise StateIndexError(
                f"global_next_index must be in [0, {end}), for a dataset of length {self._length}, got {value!r:.200}"
            )
        step, first = divmod(position, self._global_batch_size)
        is_of_running = first == self._position % self._global_batch_size
        self._position = position
        if self._running is None:
            return
        if is_of_running and self._num_left:
            self._running._set_next_index(step)
        else:
            self._running.close()
            self._running = None
