"""The stages that a ``DataLoader`` adds to the Dataset engine: reading by a sampler, and operations
on records.

As long as no operation looks at a record's metadata (index, generator), the pipeline carries the
bare data; otherwise it carries ``Record`` objects and these adaptors apply the user's function to
their data.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

from gristmill.core.cached import cached
from gristmill.core.errors import add_note
from gristmill.core.indices import Indices, as_ints
from gristmill.core.naming import stable_repr, transform_name, without_addresses
from gristmill.core.record import Record, RecordMetadata, sampled
from gristmill.dataset.bases.items import each_alone, read_items
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Length, Unknown, same_number
from gristmill.dataset.bases.map import BlockMapDataset, source_reads_once
from gristmill.dataset.bases.node import DatasetNode
from gristmill.dataset.bases.origins import Place, RecordKey
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Traced, Tracing
from gristmill.dataset.descriptions.pipeline import (
    as_json,
    short_source_text,
    source_files,
    source_text,
)
from gristmill.dataset.engine.elements import Each
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.engine.stream import Cell, Pos, Stream, pass_outputs
from gristmill.dataset.errors.context import add_error_context, failed_at
from gristmill.dataset.stages.batch import BatchIterDataset, batch_function
from gristmill.dataset.stages.filter import FilterIterDataset
from gristmill.dataset.stages.map import MapIterDataset
from gristmill.samplers.base import answers_blocks, epoch_of, seed_of
from gristmill.sources.reading import is_read_in_blocks, wrap_keys
from gristmill.transforms import Batch, Filter, FlatMap, Map, MapWithIndex, RandomMap, Tolerate
from gristmill.transforms.base import TRANSFORMATION_CLASSES, check_max_fan_out
from gristmill.transforms.batching import Allocate
from gristmill.workers.setup import preload

preload(__name__)


class SampledParameters(Parameters):
    source: Any = field(in_checkpoint=False, in_repr=False)
    sampler: Any = field(in_checkpoint=False, in_repr=False)
    shard: Any = field(in_checkpoint=False, in_repr=False)
    length: int = field(in_checkpoint=False, in_repr=False)
    as_records: bool = field(in_checkpoint=False, in_repr=False)


class SampledMapDataset(BlockMapDataset[Any]):
    """Element ``k`` is the record at ``sampler[k * shard_count + shard_index]``: its data, or a
    ``Record``.

    Order: the sampler's. Cost: that of the source's reads; about 0.5 µs more for a ``Record``.
    """

    _gm_shared_by_threads = ("_gm_source",)

    def __init__(
        self, source: Any, sampler: Any, shard: Any, length: int, *, as_records: bool
    ) -> None:
        super().__init__()
        self._gm_source = source
        self._sampler = sampler
        self._shard = shard
        self._length = length
        self._as_records = as_records
        self._gm_parameters = SampledParameters(source, sampler, shard, length, as_records)

    @property
    def _gm_draws_from(self) -> Sequence[Any]:
        return [self._gm_source] if isinstance(self._gm_source, DatasetNode) else []

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return {
            "sampler": without_addresses(stable_repr(self._sampler)),
            # not part of every sampler's repr
            "sampler_seed": as_json(getattr(self._sampler, "_seed", None)),
            "source": source_text(self._gm_source),
        }

    @cached
    def _gm_record_source(self) -> str:
        return short_source_text(self._gm_source)

    @property
    def _gm_source_files(self) -> list[str] | None:
        return source_files(self._gm_source)

    @property
    def _gm_reads_once(self) -> bool:
        return source_reads_once(self._gm_source)

    @property
    def _gm_reads_many(self) -> bool:
        return is_read_in_blocks(self._gm_source)

    def __len__(self) -> int:
        return self._length

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        try:
            keys, metadata = self._sampled(indices)
        except Exception as error:
            if len(indices) > 1:
                return each_alone(self, indices)
            failed_at(error, self, indices[0])
            raise
        data = read_items(self, self._gm_source, indices, keys)
        return data if metadata is None else map(Record, metadata, data)

    def _gm_origins(self, index: int) -> Iterable[RecordKey]:
        sampled = self._shard.shard_index + index * self._shard.shard_count
        key, is_ours = self._sampler[sampled].record_key, answers_blocks(self._sampler)
        seed = seed_of(self._sampler) if is_ours and self._as_records else None
        epoch = epoch_of(self._sampler, sampled) if is_ours else None
        return [RecordKey(key, epoch, sampled, () if seed is None else ((seed, sampled),))]

    def _sampled(self, indices: Indices) -> tuple[list[Any], list[Any] | None]:
        """Returns the keys of the records at ``indices`` and, if elements are records, their
        metadata.
        """
        first, step = self._shard.shard_index, self._shard.shard_count
        sampled: Any
        if isinstance(indices, range):
            sampled = range(
                first + indices.start * step, first + indices.stop * step, indices.step * step
            )
        else:
            sampled = [first + i * step for i in as_ints(indices)]
        sampler, metadata = self._sampler, None
        if not answers_blocks(sampler):
            metadata = [_check_metadata(sampler[i], i) for i in sampled]
        elif self._as_records:
            metadata = sampler._block(sampled)
        keys = (
            as_ints(sampler._keys(sampled))
            if metadata is None
            else [m.record_key for m in metadata]
        )
        return wrap_keys(self._gm_source, keys), metadata if self._as_records else None


def _check_metadata(metadata: Any, index: int) -> Any:
    if not hasattr(metadata, "record_key"):
        raise TypeError(
            f"a sampler must return RecordMetadata, got {metadata!r:.200} from sampler[{index}]; a"
            " sequence of indices becomes one as gristmill.samplers.IterableSampler(indices)"
        )
    return metadata


_NOT_A_MAP = (
    "A function among the operations is called once, with the iterator of all records, and returns"
    " an iterator of records. To transform elements one by one, derive a class from"
    " gristmill.transforms.Map."
)


class OperationParameters(Parameters):
    operation: Any = field(is_function=True)


class LegacyOperationIterDataset(IterDataset[Any]):
    """The records that a legacy operation makes of the parent's.

    State: the parent's, which counts what the operation has read; a restored operation starts
    again.
    """

    def __init__(self, parent: Any, operation: Callable[[Iterator[Any]], Iterator[Any]]) -> None:
        super().__init__(parent)
        self._operation = operation
        self._gm_parameters = OperationParameters(operation)

    def _gm_num_elements(self) -> Length:
        return Unknown()  # the operation decides it

    def __iter__(self) -> DatasetIterator[Any]:
        return open_stage(self, partial(LegacyOperation, operation=self._operation))


class LegacyOperation(Stream):
    """The records that ``operation`` makes of the parent's. Every run calls it once."""

    name = "LegacyOperationIterator"

    def __init__(self, stage: Any, parent: Stream, operation: Any) -> None:
        super().__init__(stage, parent)
        self._operation = operation

    def _run(self, cell: Cell) -> Iterator[Any]:
        inner = self.inner.at(cell.pos, choices=cell.choices)
        cell.past_failed = partial(self._pass, cell, cell.pos)
        try:
            records = iter(self._operation(self.parent.run(inner)))
        except TypeError as error:
            add_note(error, _NOT_A_MAP)
            raise
        while True:
            cell.past_failed = partial(self._pass, cell, cell.pos)
            try:
                record = [next(records)]
            except StopIteration:
                break
            except Exception as error:
                add_error_context(error, self)
                raise
            cell.past_failed, cell.pos = None, inner.settle()
            yield record.pop()
        cell.past_failed, cell.pos = None, inner.settle()

    def _pass(self, cell: Cell, pos: Pos) -> None:
        """Move past the next record that the operation would read from ``pos`` on."""
        inner = self.inner.at(pos, choices=cell.choices)
        pass_outputs(self.parent, inner, 1)
        cell.pos = inner.settle()

    def place(self, pos: Pos) -> Place | None:
        return None

    def __str__(self) -> str:
        return self.name


def operation_kind(operation: Any) -> type | None:
    """Returns the class of transformations that ``operation`` is treated as; ``None`` for a legacy
    operation.
    """
    return next((kind for kind in TRANSFORMATION_CLASSES if isinstance(operation, kind)), None)


class _OnRecord:
    """A function of records that bears the name of the user's operation."""

    def __init__(self, operation: Any, fn: Callable[[Any], Any]) -> None:
        self._operation = operation
        self._fn = fn

    def __call__(self, record: Any) -> Any:
        return self._fn(record)

    def __str__(self) -> str:
        return transform_name(self._operation)


def apply_operation(
    ds: IterDataset[Any], operation: Any, *, as_records: bool, seed: int | None
) -> IterDataset[Any]:
    """Returns ``ds`` with one operation of a ``DataLoader`` applied to its elements.

    Args:
        ds: the dataset.
        operation: a transformation or a legacy operation.
        as_records: whether the elements are records; otherwise they are bare data.
        seed: that of the sampler, from which items that are made of a record have their generators.
    """
    kind = operation_kind(operation)
    if kind is None:
        return LegacyOperationIterDataset(ds, operation)
    if kind is Tolerate:
        tolerant: IterDataset[Any] = IterDataset.tolerate(ds, **vars(operation))
        return tolerant
    if kind is Batch:
        size, drop, batch_fn = operation.batch_size, operation.drop_remainder, operation.batch_fn
        if as_records:
            batch_fn = _BatchRecords(batch_function(batch_fn))
        return BatchIterDataset(ds, size, drop_remainder=drop, batch_fn=batch_fn)
    if kind is FlatMap:
        from gristmill.dataset.stages.flat_map import FlatMapIterDataset

        return FlatMapIterDataset(
            ds, _OnRecord(operation, _splitter(operation, as_records, seed)), with_nones=True
        )
    if kind is Filter:
        return FilterIterDataset(
            ds,
            _OnRecord(operation, lambda r: operation.filter(r.data)) if as_records else operation,
        )
    if kind is Map:
        on_record = _OnRecord(operation, lambda r: Record(r.metadata, operation.map(r.data)))
        return MapIterDataset(ds, on_record if as_records else operation, with_nones=True)
    if kind is MapWithIndex:
        fn = operation.map_with_index
        transform = _OnRecord(operation, lambda r: Record(r.metadata, fn(r.metadata.index, r.data)))
    else:
        fn = operation.random_map if kind is RandomMap else operation.np_random_map
        transform = _OnRecord(operation, lambda r: Record(r.metadata, fn(r.data, _rng(r.metadata))))
    return MapIterDataset(ds, transform, with_nones=True)


def _splitter(operation: FlatMap, as_records: bool, seed: int | None) -> Callable[[Any], list[Any]]:
    """Returns a function that splits bare data, or a record: the items have the record's index and
    no key.
    """
    from gristmill.dataset.stages.flat_map import items_of

    most = check_max_fan_out(operation)

    def split_record(record: Record[Any]) -> list[Record[Any]]:
        index = record.metadata.index
        key = None if seed is None else seed + index
        items = items_of(operation, record.data, most)
        return [Record(sampled(index * most + p, None, key, p + 1), x) for p, x in enumerate(items)]

    return split_record if as_records else lambda data: items_of(operation, data, most)


class DataIterDataset(IterDataset[Any]):
    """The data of the parent's records.

    State: the parent's.
    """

    _gm_num_elements = same_number
    _gm_works_on = "elements"

    def __str__(self) -> str:
        return "DataIterDataset"

    def _gm_traced(self, tracing: Tracing) -> Any:
        return tracing.of(self._gm_parent).map(_data_of)

    def __iter__(self) -> DatasetIterator[Any]:
        return open_stage(self, Data)


def _data_of(x: Traced) -> Traced:
    return x.then(operator.attrgetter("data"), "DataIterDataset")


class Data(Each):
    """The data of the parent's records."""

    def __init__(self, stage: Any, parent: Stream) -> None:
        super().__init__(stage, parent, operator.attrgetter("data"), with_nones=True)

    def allocate_with(self, allocate: Allocate) -> None:
        self.parent.allocate_with(allocate)


class _BatchRecords:
    """Batches the data of records; the metadata is that of the last one."""

    def __init__(self, batch_fn: Callable[[list[Any]], Any]) -> None:
        self._batch_fn = batch_fn

    def __call__(self, records: list[Any]) -> Record[Any]:
        return Record(
            records[-1].metadata.remove_record_key(),
            self._batch_fn([record.data for record in records]),
        )

    def allocate_with(self, allocate: Allocate) -> None:
        if hasattr(self._batch_fn, "allocate_with"):
            self._batch_fn.allocate_with(allocate)


def _rng(metadata: RecordMetadata) -> Any:
    if metadata.rng is None:
        raise ValueError(
            "a random transformation needs a sampler with a seed, but the record has no generator"
            " (rng is None); what a FlatMap makes has one only if the sampler is an IndexSampler or"
            " a SequentialSampler"
        )
    return metadata.rng
