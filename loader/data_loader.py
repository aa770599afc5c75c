"""``DataLoader``: a sampler, a source and operations, lowered onto the Dataset engine."""

from __future__ import annotations

import dataclasses
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

from gristmill.core import grain_names, hooks
from gristmill.core.cached import cached
from gristmill.core.errors import as_int
from gristmill.core.live import LiveObjects
from gristmill.core.naming import stable_repr, transform_name, without_addresses
from gristmill.core.options import MultiprocessingOptions, NumberOrAuto, ReadOptions, number_or_auto
from gristmill.core.ray_options import RayOptions, WorkerOptions, check_worker_options, in_lanes
from gristmill.core.sharding import ShardOptions
from gristmill.core.state import shown
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.length import Exact, Infinite, Length, length_hint, num_elements
from gristmill.dataset.descriptions.pipeline import (
    MAX_FILES,
    as_json,
    complete_repr,
    few_files,
    source_files,
    source_text,
)
from gristmill.loader.iterator import DataLoaderIterator
from gristmill.loader.plan import LoaderPlan
from gristmill.loader.pytorch import for_indices, refusing_pytorch
from gristmill.loader.records import (
    DataIterDataset,
    SampledMapDataset,
    apply_operation,
    operation_kind,
)
from gristmill.samplers import IndexSampler, IterableSampler, Sampler, SequentialSampler
from gristmill.samplers.base import BlockSampler, answers_blocks, num_records_of, seed_of
from gristmill.sources.base import check_source
from gristmill.sources.columns import by_position
from gristmill.transforms import (
    Batch,
    Filter,
    FlatMap,
    Map,
    RandomMap,
    TfRandomMap,
    Tolerate,
    Transformation,
)
from gristmill.transforms.base import check_batch_size, check_max_fan_out, for_a_class

_CALLER = 4  # of the constructor: as a level of the stack, seen from what it calls


class DataLoader(grain_names.DataLoader):
    """Reads records in the order of a sampler and applies operations to them.

    Each ``iter(loader)`` is an independent iterator from the beginning, whose position can be saved
    and restored. Order: element ``k`` is record ``sampler[k * shard_count +
    shard_index].record_key`` of the source; operations are applied one after the other, lazily,
    while threads read records ahead. With ``worker_count`` workers, worker ``w`` does all this for
    the elements ``w``, ``w + worker_count``, …, and outputs are taken from the workers in turn;
    ``num_lanes`` makes that independent of the number of workers. They are processes, or threads if
    Python runs without the GIL when iteration begins (see ``MultiprocessingOptions``). Scripts need
    no ``if __name__ == "__main__"`` for that.

    ``len(loader)`` is the number of elements of one iterator, for this shard and all workers, where
    it follows from sampler and operations, and a ``TypeError`` that says why where it does not:
    without end, or with a ``Filter``, a ``FlatMap`` or a function among the operations. A source
    that ends before its length says ends the elements earlier.

    Args:
        data_source: where to read records: anything with ``__getitem__``, safe to use from several
            threads.
        sampler: which records to read and in which order.
        operations: transformations (``gristmill.transforms``) in the order to apply them.
        worker_count: number of workers; 0 does everything in the calling thread, ``None`` means one
            per CPU. ``"auto"`` finds the number while they run, in 16 lanes unless ``num_lanes`` is
            given (see ``MultiprocessingOptions``); to bound it, give
            ``workers=MultiprocessingOptions("auto", max_workers=...)``.
        worker_buffer_size: outputs that each worker keeps ready.
        shard_options: which part of the sampler's indices to read; by default the sampler's own
            sharding.
        read_options: how records are read ahead; ``ReadOptions()`` by default.
        enable_profiling: accepted for compatibility, without effect.
        worker_init_fn: called with worker index and worker count in each worker before anything
            else.
        worker_env: environment variables of worker processes (see ``MultiprocessingOptions``).
        num_lanes: into how many lanes the elements are divided, at least as many as workers.
            Elements and states are those of as many workers then, for any ``worker_count``: a state
            that was taken with 8 workers continues with ``num_lanes=8`` and 0 to 8 workers.
            ``None``: one lane for each worker. See ``MultiprocessingOptions`` for what a lane
            costs.
        order: ``"workers"``, as described above; or ``"stream"``: elements and states are those of
            ``worker_count=0``, for any number of workers. Workers compute the operations up to the
            first ``FlatMap``, function, ``Batch`` downstream of a ``Filter``, or second ``Batch``;
            these and later operations are computed in this process.
        workers: which workers, in place of ``worker_count``, ``worker_buffer_size``, ``worker_env``
            and ``num_lanes``: a ``RayOptions``, which has them on other machines, or a
            ``MultiprocessingOptions``, whose ``executor`` chooses between processes and threads.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: an argument is out of range, or a random operation meets a sampler without seed.

    Example:
        >>> from gristmill.samplers import IndexSampler
        >>> sampler = IndexSampler(num_records=5, shuffle=True, num_epochs=1, seed=0)
        >>> loader = DataLoader(
        ...     data_source=[10, 11, 12, 13, 14], sampler=sampler, operations=[Batch(2)]
        ... )
        >>> for batch in loader:
        ...     print(batch)
        [10 14]
        [11 12]
        [13]
    """

    @refusing_pytorch
    def __init__(
        self,
        *,
        data_source: Any,
        sampler: Sampler,
        operations: Sequence[Transformation | Any] = (),
        worker_count: NumberOrAuto = 0,  # or None
        worker_buffer_size: int = 1,
        shard_options: ShardOptions | None = None,
        read_options: ReadOptions | None = None,
        enable_profiling: bool = False,
        worker_init_fn: Callable[[int, int], Any] | None = None,
        worker_env: Mapping[str, str | None] | None = None,
        num_lanes: int | None = None,
        order: Literal["workers", "stream"] = "workers",
        workers: WorkerOptions | None = None,
    ) -> None:
        check_source("data_source", data_source)
        data_source = by_position(data_source)
        if not hasattr(sampler, "__getitem__"):
            kind = type(sampler).__name__
            raise TypeError(
                f"sampler must have __getitem__, got {shown(sampler):.100} of type"
                f" {kind}{for_indices(sampler)}"
            )
        options = _worker_options(
            workers, worker_count, worker_buffer_size, bool(enable_profiling), worker_env, num_lanes
        )
        if read_options is not None and not isinstance(read_options, ReadOptions):
            raise TypeError(f"read_options must be a ReadOptions, got {read_options!r:.200}")
        self._data_source = data_source
        self._sampler = sampler
        self._operations = [
            _as_operation(i, operation) for i, operation in enumerate(_as_iterable(operations))
        ]
        self._read_options = read_options or ReadOptions()
        self._multiprocessing_options = options
        self._num_lanes = in_lanes(options).num_lanes if order == "workers" else options.num_lanes
        self._order = order
        self._worker_init_fn = worker_init_fn
        self._shard_options = _sharding(sampler, shard_options)
        _check_seed(sampler, self._operations)
        _check_length(sampler, data_source)
        self._length = _local_length(sampler, self._shard_options)
        self._dataset = self._lower()
        kinds = {operation_kind(operation) for operation in self._operations}
        self._plan = LoaderPlan(
            data_source,
            sampler,
            self._shard_options,
            self._length,
            self._num_lanes or (0 if order == "stream" else options.num_workers),
            not kinds.isdisjoint((FlatMap, Tolerate)),
            self._dataset,
        )
        self._iterators: LiveObjects[DataLoaderIterator] = LiveObjects()

    def _lower(self) -> IterDataset[Any]:
        kinds = [operation_kind(operation) for operation in self._operations]
        as_records = any([kind not in (Map, FlatMap, Filter, Batch, Tolerate) for kind in kinds])
        seed = seed_of(self._sampler) if isinstance(self._sampler, BlockSampler) else None
        records = SampledMapDataset(
            self._data_source,
            self._sampler,
            self._shard_options,
            self._length,
            as_records=as_records,
        )
        ds: IterDataset[Any] = records.to_iter_dataset(self._read_options, allow_nones=True)
        for operation in self._operations:
            ds = apply_operation(ds, operation, as_records=as_records, seed=seed)
        self._chain = DataIterDataset(ds) if as_records else ds
        return self._chain.mp_prefetch(
            self._multiprocessing_options, self._worker_init_fn, order=self._order
        )

    def global_batch(
        self,
        batch_size: int,
        *,
        num_lanes: int | None = None,
        shard_options: ShardOptions | None = None,
        workers: WorkerOptions | None = None,
        end: Literal["drop", "pad", "repeat"] = "drop",
        agree: Callable[..., int] | None = None,
        agree_every: int = 16,
        batch_fn: Callable[[list[Any]], Any] | None = None,
    ) -> IterDataset[Any]:
        """Returns this host's rows of batches that all hosts share, made of what the operations
        give.

        See ``IterDataset.global_batch``. Its lanes are those of the sampler's indices, which must
        not be sharded. States are those of the dataset, not of a ``DataLoaderIterator``.

        Args:
            batch_size, shard_options, end, agree, agree_every, batch_fn: as there.
            num_lanes: as there; by default the loader's own, if it has been given any.
            workers: as there; by default as many as the loader has. Its ``worker_init_fn`` gets
                worker index and count.

        Raises:
            TypeError, ValueError: as there. Or the sampler or the loader is sharded.

        Example:
            >>> from gristmill.samplers import IndexSampler
            >>> sampler = IndexSampler(num_records=8, shuffle=True, num_epochs=1, seed=0)
            >>> loader = DataLoader(data_source=range(8), sampler=sampler)
            >>> list(loader)
            [0, 4, 6, 7, 5, 3, 1, 2]
            >>> list(loader.global_batch(4))
            [array([0, 4, 6, 7]), array([5, 3, 1, 2])]
        """
        from gristmill.dataset.stages.global_batch import (
            GlobalBatchIterDataset,
            GlobalBatchParameters,
        )

        if self._shard_options.shard_count > 1:
            raise ValueError(
                f"global_batch needs a loader that is not sharded, got {self._shard_options}: give"
                " NoSharding() to the sampler, and shard_options to global_batch"
            )
        own = self._multiprocessing_options
        if workers is None and own.num_workers:
            workers = dataclasses.replace(own, num_lanes=None)
        num_lanes = self._num_lanes if num_lanes is None else num_lanes
        init_fn = self._worker_init_fn
        given: Any = (num_lanes, shard_options, workers, end, agree, agree_every, batch_fn, init_fn)
        return GlobalBatchIterDataset(self._chain, GlobalBatchParameters(batch_size, *given))

    @property
    def multiprocessing_options(self) -> WorkerOptions:
        """The number of workers and how far they run ahead."""
        return self._multiprocessing_options

    def __iter__(self) -> DataLoaderIterator:
        return DataLoaderIterator(self)

    def __len__(self) -> int:
        length = self._gm_num_elements()
        if isinstance(length, Exact):
            return length.num
        if isinstance(length, Infinite):
            reason = "it does not end. Give num_epochs to its sampler (or to gristmill.load)"
        else:
            reason = (
                f"how many elements {self._first_unsteady()} makes is known when they have been"
                " read. Count them"
            )
        raise TypeError(
            f"object of type 'DataLoader' has no len(): {reason}, or take n:"
            " itertools.islice(loader, n)"
        )

    __length_hint__ = length_hint

    def __bool__(self) -> bool:
        return True  # also without elements

    def _gm_num_elements(self) -> Length:
        return self._length_of_all

    @cached
    def _length_of_all(self) -> Length:
        is_endless = self._length >= sys.maxsize // self._shard_options.shard_count
        may_stop = None in map(operation_kind, self._operations)
        return Infinite() if is_endless and not may_stop else num_elements(self._dataset)

    def _first_unsteady(self) -> str:
        """Returns the first operation whose number of elements is unknown beforehand."""
        for position, operation in enumerate(self._operations):
            if operation_kind(operation) in (None, Filter, FlatMap, Tolerate):
                return f"operations[{position}], {transform_name(operation)},"
        raise AssertionError("all operations keep the number of elements")

    def __repr__(self) -> str:
        return (
            f"DataLoader(data_source={complete_repr(self._data_source):.200},"
            f" sampler={self._sampler!r}, "
            f"operations=[{', '.join(map(transform_name, self._operations))}],"
            f" shard_options={self._shard_options!r}, "
            f"{_settings_text(self._multiprocessing_options, self._read_options)}"
            f"{'' if self._order == 'workers' else f', order={self._order!r}'})"
        )

    def _repr_html_(self) -> str:
        return hooks.pipeline_html(self)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_iterators": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._iterators = LiveObjects()

    def close(self) -> None:
        """Closes the iterators of this loader that are still alive; may be called again."""
        for iterator in self._iterators.all():
            iterator.close()

    @property
    def _description(self) -> dict[str, Any]:
        """The description of this loader in a checkpoint, in the terms of its arguments."""
        description: dict[str, Any] = {
            "stage": "DataLoader",
            "length": self._length,
            "worker_count": self._plan.num_lanes,
            "shard_options": stable_repr(self._shard_options),
            "sampler": without_addresses(stable_repr(self._sampler)),
            # not part of every sampler's repr
            "sampler_seed": as_json(getattr(self._sampler, "_seed", None)),
            "source": source_text(self._data_source),
        }
        files = source_files(self._data_source)
        if files is not None:
            description["source_files"] = few_files(files, MAX_FILES)
        for operation in self._operations:
            kind = operation_kind(operation)
            parameters: dict[str, Any] = {}
            if kind is Batch:  # NumPy's integers are no JSON
                parameters = {
                    "batch_size": int(operation.batch_size),
                    "drop_remainder": bool(operation.drop_remainder),
                }
            elif kind is FlatMap:
                parameters = {"max_fan_out": check_max_fan_out(operation)}
            name = "legacy operation" if kind is None else kind.__name__
            description = {"stage": name, **parameters, "parents": [description]}
        return description


def _worker_options(
    workers: Any,
    worker_count: NumberOrAuto,
    buffer_size: Any,
    profiles: bool,
    worker_env: Any,
    num_lanes: int | None,
) -> WorkerOptions:
    """Returns ``workers``, or what the arguments say together that stand for it."""
    num_workers = number_or_auto(
        "worker_count", os.cpu_count() or 1 if worker_count is None else worker_count, 0
    )
    if workers is None:
        buffer_size = as_int("worker_buffer_size", buffer_size, minimum=1 if num_workers else 0)
        return MultiprocessingOptions(
            num_workers, buffer_size, profiles, worker_env=worker_env, num_lanes=num_lanes
        )
    for name, value in (
        ("worker_count", worker_count),
        ("worker_env", worker_env),
        ("num_lanes", num_lanes),
    ):
        if value not in (0, None):
            raise ValueError(
                f"{name} must not be given beside workers, got {name}={value!r:.100} and"
                f" workers={workers!r:.200}"
            )
    options: WorkerOptions = check_worker_options("workers", workers)
    return options


def _settings_text(workers: WorkerOptions, read_options: ReadOptions) -> str:
    if isinstance(workers, RayOptions):
        return f"workers={workers}, read_options={read_options}"
    names = [name for name in ("num_lanes", "executor") if getattr(workers, name) is not None]
    more = "".join([f", {name}={getattr(workers, name)!r}" for name in names])
    return f"worker_count={workers.num_workers}, read_options={read_options}{more}"


def _as_iterable(operations: Any) -> Iterable[Any]:
    if not isinstance(operations, Iterable):
        raise TypeError(
            f"operations must be a sequence of transformations, got {shown(operations)} of type"
            f" {type(operations).__name__}"
        )
    return operations


def _as_operation(position: int, operation: Any) -> Any:
    if operation_kind(operation) is None:
        from gristmill.transforms.operations import BatchOperation

        if type(operation) is BatchOperation:
            operation = Batch(operation.batch_size, operation.drop_remainder, operation.batch_fn)
    if isinstance(operation, Batch):
        check_batch_size(operation.batch_size)
    elif operation_kind(operation) is FlatMap:
        check_max_fan_out(operation)
    for_class = for_a_class(operation)
    if for_class or (operation_kind(operation) is None and not callable(operation)):
        raise TypeError(
            f"operations[{position}] must be a transformation (an instance of Map, RandomMap,"
            " FlatMap, Filter, Batch, …) or an operation on an iterator of records, got"
            f" {shown(operation)} of type {type(operation).__name__}{for_class}"
        )
    return operation


def _sharding(sampler: Any, options: Any) -> ShardOptions:
    own = getattr(sampler, "_shard_options", None)
    if options is None:
        if not isinstance(own, ShardOptions):
            raise ValueError(
                "shard_options must be passed to the DataLoader: the sampler"
                f" {type(sampler).__name__} has no sharding of its own{for_indices(sampler)}"
            )
        return own
    if not isinstance(options, ShardOptions):
        raise TypeError(f"shard_options must be a ShardOptions, got {options!r:.200}")
    if isinstance(own, ShardOptions) and own.shard_count > 1 and not _is_same_shard(own, options):
        warnings.warn(
            f"the sharding of the DataLoader, {options}, replaces that of the sampler, {own}, by"
            " which the sampler splits the records: some may be read twice or never. Give the"
            " sharding to the sampler only.",
            stacklevel=_CALLER,
        )
    return options


def _is_same_shard(a: ShardOptions, b: ShardOptions) -> bool:
    return (a.shard_index, a.shard_count) == (b.shard_index, b.shard_count)


def _check_seed(sampler: Any, operations: list[Any]) -> None:
    if isinstance(sampler, BlockSampler) and seed_of(sampler) is None and answers_blocks(sampler):
        for position, operation in enumerate(operations):
            if operation_kind(operation) in (RandomMap, TfRandomMap):
                raise ValueError(
                    f"operations[{position}], {transform_name(operation)}, is random and needs a"
                    f" sampler with a seed: pass seed=... to {type(sampler).__name__}"
                )


def _check_length(sampler: Any, source: Any) -> None:
    if isinstance(sampler, BlockSampler) and hasattr(source, "__len__"):
        try:
            length = len(source)
        except TypeError:  # keys go to such a source as they are
            return
        num_records = num_records_of(sampler)
        if length and num_records > length and isinstance(sampler, IterableSampler):
            raise ValueError(
                f"the indices of the sampler must be below {length}, the number of records, got"
                f" {num_records - 1}"
            )
        if length and num_records > length:
            warnings.warn(
                f"the sampler has num_records={num_records}, but the source only {length} records:"
                " keys past its end start again, so some records are read more often than others",
                stacklevel=_CALLER,
            )


def _is_unchanged(sampler: Any) -> bool:
    """True if the object is of a class of this library, and no subclass overrides its lookup or
    length.
    """
    return answers_blocks(sampler) and type(sampler).__len__ in (
        IndexSampler.__len__,
        SequentialSampler.__len__,
    )


def _local_length(sampler: Any, shard: ShardOptions) -> int:
    """Returns the number of elements of this shard."""
    if (
        isinstance(sampler, IndexSampler)
        and _is_unchanged(sampler)
        and not shard.drop_remainder
        and _is_same_shard(shard, sampler._shard_options)
    ):
        exact = sampler._local_length()
        if exact is not None:
            return min(exact, sys.maxsize)
    length, remainder = divmod(_sampler_length(sampler), shard.shard_count)
    return length + (not shard.drop_remainder and shard.shard_index < remainder)


def _sampler_length(sampler: Any) -> int:
    """Returns the number of indices that ``sampler`` answers; ``sys.maxsize`` if it answers all."""
    length = sys.maxsize
    if hasattr(sampler, "__len__"):
        length = len(sampler)
        if _is_unchanged(sampler) or not length or _answers(sampler, length - 1):
            return length
    first_missing, low = length, 0
    while low < first_missing:
        middle = (low + first_missing) // 2
        if _answers(sampler, middle):
            low = middle + 1
        else:
            first_missing = middle
    return first_missing


def _answers(sampler: Any, index: int) -> bool:
    try:
        sampler[index]
    except IndexError:
        return False
    return True
