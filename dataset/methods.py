"""The fluent methods of datasets, and their factories.

This is the one file that knows all stages; each is imported when its method is called.
``MapDataset`` and ``IterDataset`` are these methods and what the files of that name in ``bases``
say of datasets.
"""

from __future__ import annotations

import abc
import builtins
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

import numpy as np

from gristmill.core.errors import as_int, check_word
from gristmill.core.options import MultiprocessingOptions, NumberOrAuto, ReadOptions
from gristmill.core.ray_options import (
    RayOptions,
    WorkerOptions,
    check_worker_options,
    in_lanes,
    with_number,
)
from gristmill.core.sharding import ShardOptions
from gristmill.dataset.bases.migration_hints import lookup_with_hint
from gristmill.transforms import (
    DatasetSelectionMap,
    Filter,
    FlatMap,
    Map,
    MapWithIndex,
    RandomMap,
    Transformation,
    Transformations,
)

if TYPE_CHECKING:
    from gristmill.dataset.bases.iter import IterDataset
    from gristmill.dataset.bases.map import MapDataset
    from gristmill.dataset.bases.node import DatasetNode

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")


def _check_order(order: object, options: WorkerOptions, sequential_slice: bool) -> Any:
    """Returns ``order``, if it is one that goes with the other arguments of ``mp_prefetch``."""
    check_word("order", order, "workers", "stream")
    if order == "stream" and (options.num_lanes is not None or sequential_slice):
        name = "sequential_slice=True" if sequential_slice else f"num_lanes={options.num_lanes}"
        raise ValueError(
            f"order='stream' cannot be used with {name}, which divides the stream into others: its"
            " stream is that of no workers at all. Use one of the two"
        )
    return order


def _by_workers(
    ds: object,
    options: WorkerOptions,
    worker_init_fn: Any,
    sequential_slice: bool = False,
    by_lanes: bool | None = None,
) -> Any:
    """Returns ``ds``, computed by workers."""
    if options.num_workers == 0 and options.num_lanes is None:
        return ds
    if not isinstance(options, RayOptions):
        as_int(
            "per_worker_buffer_size",
            options.per_worker_buffer_size,
            minimum=1 if options.num_workers else 0,
        )
    from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterDataset

    computed: Any = MultiprocessPrefetchIterDataset(ds, options, worker_init_fn, sequential_slice)
    return computed if by_lanes is None else computed.divided_by_lanes(by_lanes)


def _in_lanes(
    ds: DatasetNode, num_lanes: int | None = None, *, options: WorkerOptions, worker_init_fn: object
) -> Any:
    if options.num_workers == "auto":
        options = replace(options, num_lanes=num_lanes)
    else:
        num_workers = (
            options.num_workers if num_lanes is None else min(options.num_workers, num_lanes)
        )
        options = replace(options, num_workers=num_workers, num_lanes=num_lanes)
    return _by_workers(ds, options, worker_init_fn, by_lanes=False)


def _warn_of_small_groups(ds: Any, batch_size: Any) -> None:
    from gristmill.dataset.bases.node import ancestors

    for node in ancestors(ds):
        if (
            node._gm_mixes_over is not None
            and isinstance(batch_size, int)
            and node._gm_mixes_over < batch_size
        ):
            warnings.warn(
                f"{node!s:.200} mixes {node._gm_mixes_over} elements at a time, fewer than a batch"
                f" of {batch_size} has: every batch is of few blocks. Use a larger group_size, so"
                " that a group has the elements of many batches",
                stacklevel=3,
            )


class _DatasetMeta(abc.ABCMeta):
    if not TYPE_CHECKING:  # with it, type checkers would accept any attribute

        def __getattr__(cls, name: str) -> Any:
            return lookup_with_hint(type.__getattribute__, cls, name)


class MapDatasetMeta(_DatasetMeta):
    """The factories of ``MapDataset``: methods of the class, not of its instances."""

    def source(cls, source: Any) -> MapDataset[Any]:
        """Returns a dataset of the records of ``source``: anything with ``__getitem__`` and
        ``__len__``.

        Element ``i`` is ``source[i % len(source)]``. Nothing is read at construction.

        A ``dict`` whose keys are all ``str`` is columns: arrays, lists or sources of one length, or
        dicts of such again. Element ``i`` is a ``dict`` of the entries ``i`` then, those of NumPy
        arrays being copies.

        Args:
            source: a list, array, data source, other dataset or dict of columns; must be safe to
                read from several threads.

        Raises:
            TypeError: ``source`` has no ``__getitem__``, or is text or bytes, or one of its columns
                is no sequence.
            ValueError: the lengths of columns differ, or there are no columns.

        Example:
            >>> list(MapDataset.source(["a", "b"]))
            ['a', 'b']
            >>> MapDataset.source({"x": np.arange(6).reshape(3, 2), "y": ["a", "b", "c"]})[1]
            {'x': array([2, 3]), 'y': 'b'}
        """
        from gristmill.dataset.stages.source import SourceMapDataset

        return SourceMapDataset(source)

    def range(cls, start: int, stop: int | None = None, step: int = 1) -> MapDataset[int]:
        """Returns a dataset of the integers that the builtin ``range`` of the same arguments has.

        Args:
            start: first value; without ``stop``, the number of values from 0.
            stop: the value before which to stop.
            step: difference of consecutive values, not 0.

        Raises:
            TypeError: an argument is not an integer.
            ValueError: ``step`` is 0.

        Example:
            >>> list(MapDataset.range(2, 8, 3))
            [2, 5]
        """
        from gristmill.dataset.stages.range import RangeMapDataset

        return RangeMapDataset(start, stop, step)

    def concatenate(cls, datasets: Sequence[MapDataset[Any]]) -> MapDataset[Any]:
        """Returns a dataset of the elements of each of ``datasets`` after those of the one before
        it.

        Epoch ``e`` is made of the epochs ``e`` of all of them.

        Args:
            datasets: a sequence of map datasets; empty ones are skipped.

        Raises:
            TypeError: ``datasets`` is not a sequence of map datasets.
            ValueError: one of them is endless.

        Example:
            >>> list(MapDataset.concatenate([MapDataset.range(2), MapDataset.range(10, 12)]))
            [0, 1, 10, 11]
        """
        from gristmill.dataset.mixtures.map_dataset import concatenate

        return concatenate(datasets)

    def mix(
        cls, datasets: Any, weights: Any = None, *, by: Any = "elements", stop: str = "first"
    ) -> MapDataset[Any]:
        """Returns a dataset that draws from ``datasets`` in turn, as often as ``weights`` say, in a
        fixed pattern.

        Each component is read in its own order. The mixture ends before it would need more than an
        epoch of a component; at indices past its end it continues with their next epochs.
        Proportions are exact to about 1 % of the smallest weight: weights are scaled so that the
        smallest is 100, and truncated to integers. A ``Schedule`` is exact: every prefix is within
        one element of the integral of the weights.

        Args:
            datasets: a sequence of map datasets, none of them empty, or a mapping of names to such;
                components of a mapping are in the order of their sorted names.
            weights: a positive number for each, in the same form, or a ``Schedule``; equal by
                default.
            by: ``"elements"``; for lengths, mix streams.
            stop: ``"first"`` ends with the first component that is exhausted; ``"all"`` leaves that
                out and continues with the others, until all are; ``"never"`` continues with the
                next epoch of each, at its own pace.

        Raises:
            TypeError: ``datasets`` is neither.
            ValueError: there are no datasets, one is empty, the weights are not one positive finite
                number for each, or an argument has a wrong type.

        Example:
            >>> list(
            ...     MapDataset.mix([MapDataset.range(4), MapDataset.range(10, 18)], weights=[1, 2])
            ... )
            [0, 10, 11, 1, 12, 13, 2, 14, 15, 3, 16, 17]
        """
        from gristmill.dataset.mixtures.map_dataset import mix

        return mix(datasets, weights, by, stop)

    def select_from_datasets(
        cls,
        datasets: Sequence[MapDataset[Any]],
        selection_map: DatasetSelectionMap | Sequence[tuple[int, int]],
    ) -> MapDataset[Any]:
        """Returns a dataset whose element ``i`` is ``datasets[j][k]`` with ``(j, k) =
        selection_map[i]``.

        Args:
            datasets: a sequence of map datasets.
            selection_map: a ``DatasetSelectionMap``, or any object with its ``__len__`` and
                ``__getitem__``. A repeated dataset asks for entries beyond the length. A list has
                none there, which is an ``IndexError`` when iterating.

        Raises:
            TypeError: an argument has the wrong type.

        Example:
            >>> datasets = [MapDataset.range(4), MapDataset.range(10, 14)]
            >>> list(MapDataset.select_from_datasets(datasets, [(1, 0), (0, 3), (1, 0)]))
            [10, 3, 10]
        """
        from gristmill.dataset.mixtures.map_dataset import MixedMapDataset

        return MixedMapDataset(datasets, selection_map)


class MapElementMethods(Generic[T_co]):
    """Methods that transform each element."""

    def apply(self, transformations: Transformation | Transformations) -> MapDataset[Any]:
        """Returns a dataset with the given transformations applied in order.

        Args:
            transformations: one transformation or a sequence of them; random maps take their seed
                from ``ds.seed``.

        Raises:
            NotImplementedError: an object is of no transformation class.

        Example:
            >>> from gristmill.transforms import Batch
            >>> list(MapDataset.range(3).apply([Batch(2)]))
            [array([0, 1]), array([2])]
        """
        from gristmill.dataset.apply import apply_transformations

        return apply_transformations(self, transformations)

    def tolerate(
        self,
        errors: type[Exception] | tuple[type[Exception], ...] = (Exception,),
        *,
        max_rate: float | None = 1e-3,
        max_total: int | None = None,
        max_consecutive: int | None = 100,
        retries: int = 0,
        backoff_seconds: float = 0.1,
        then: Literal["skip", "replace"] = "skip",
        log: Any = None,
    ) -> MapDataset[T_co | None]:
        """Returns a dataset in which elements that fail are ``None``, or another element, within a
        budget.

        ``it.faults()`` counts them. It covers the stages between it and the nearest ``tolerate``
        upstream, or the source. What is skipped depends on the elements alone: streams are the same
        for any number of threads, workers and hosts; and a state says what it was, so that a
        restored iterator skips the same. What is wrong with the program is never tolerated:
        ``NameError``, ``SyntaxError``, ``MemoryError``, ``StateMismatchError``, interrupts, workers
        that die. Iterators count, and apply the limits; ``ds[i]`` does not.

        Args:
            errors: the exceptions that count as faults.
            max_rate: the most faults, as a fraction of the elements tried so far, or of 1 000 if
                these are fewer, in this run and those that it continues; ``None``: no limit.
            max_total: the most faults; ``None``: no limit.
            max_consecutive: the most in a row, in a lane if there are lanes; ``None``: no limit.
            retries: how often to try an element again before that is a fault, for what is
                transient. Of several elements that are computed at once it is unknown which has
                failed: each is computed again alone, which is its first try.
            backoff_seconds: to wait before the first of them; twice as long before each further
                one.
            then: ``"skip"``: there is no element at the index, as downstream of a filter.
                ``"replace"``: the element at another index of the epoch, and of the same component
                of a mixture, takes its place; which one follows from the seed that a random stage
                would have here (0 if there is none) and the index. So lengths hold, and map batches
                can follow.
            log: a path, or a file open for text, to which a line of JSON is added for every fault
                when it is skipped.

        Raises:
            TypeError, ValueError: an argument is of the wrong type, or out of range.
            FaultBudgetError: (when iterating) a limit is exceeded. The iterator stays where it is.

        Example:
            >>> ds = MapDataset.source([1, 0, 2, 4]).map(lambda x: 8 // x)
            >>> list(ds.tolerate(max_rate=None)), list(ds.tolerate(max_rate=None, then="replace"))
            ([8, 4, 2], [8, 2, 4, 2])
        """
        from gristmill.dataset.faults.budget import TolerateParameters
        from gristmill.dataset.faults.tolerate import TolerateMapDataset

        given = (errors, max_rate, max_total, max_consecutive, retries, backoff_seconds, then, log)
        return TolerateMapDataset(self, TolerateParameters(*given))

    def filter(self, transform: Filter | Callable[[Any], bool]) -> MapDataset[T_co | None]:
        """Returns a dataset in which the elements that ``transform`` rejects are ``None``; its
        length is unchanged.

        Args:
            transform: a ``Filter`` or a callable of an element; called only for elements that are
                there.

        Raises:
            TypeError: ``transform`` is not callable.

        Example:
            >>> ds = MapDataset.range(4).filter(lambda x: x % 2 == 0)
            >>> ds[1], list(ds)
            (None, [0, 2])
        """
        from gristmill.dataset.stages.filter import FilterMapDataset

        return FilterMapDataset(self, transform)

    @overload
    def flat_map(self, transform: FlatMap) -> MapDataset[Any]: ...
    @overload
    def flat_map(
        self, transform: Callable[[Any], Iterable[S]], *, max_fan_out: int | None = None
    ) -> MapDataset[S | None]: ...
    def flat_map(
        self, transform: FlatMap | Callable[[Any], Iterable[Any]], *, max_fan_out: int | None = None
    ) -> MapDataset[Any]:
        """Returns a dataset of the items that ``transform`` makes of each element.

        Every element has ``max_fan_out`` indices, so the length is multiplied by it; those without
        an item are ``None``. An addition to Grain's methods: it stands for ``FlatMapMapDataset``.

        Args:
            transform: a ``FlatMap``, or a callable that makes an iterable of items of an element.
            max_fan_out: the most items of one element; that of the ``FlatMap`` by default.

        Raises:
            TypeError: ``transform`` is not callable, or there is no ``max_fan_out``.
            ValueError: ``max_fan_out`` is not positive.

        Example:
            >>> list(MapDataset.range(4).flat_map(lambda x: [x] * x, max_fan_out=3))
            [1, 2, 2, 3, 3, 3]
        """
        from gristmill.dataset.stages.flat_map import FlatMapMapDataset, flat_map_of

        return FlatMapMapDataset(self, flat_map_of(transform, max_fan_out))

    @overload
    def map(self, transform: Map) -> MapDataset[Any]: ...
    @overload
    def map(self, transform: Callable[[Any], S]) -> MapDataset[S]: ...
    def map(self, transform: Map | Callable[[Any], Any]) -> MapDataset[Any]:
        """Returns a dataset of the elements transformed by ``transform``; a result of ``None``
        removes the element.

        Args:
            transform: a ``Map`` or a callable of an element; must be thread-safe.

        Raises:
            TypeError: ``transform`` is not callable.

        Example:
            >>> list(MapDataset.range(3).map(lambda x: x + 10))
            [10, 11, 12]
        """
        from gristmill.dataset.stages.map import MapMapDataset

        return MapMapDataset(self, transform)

    @overload
    def map_with_index(self, transform: MapWithIndex) -> MapDataset[Any]: ...
    @overload
    def map_with_index(self, transform: Callable[[int, Any], S]) -> MapDataset[S]: ...
    def map_with_index(
        self, transform: MapWithIndex | Callable[[int, Any], Any]
    ) -> MapDataset[Any]:
        """Returns a dataset of the elements transformed by ``transform``, which is also given their
        index.

        The index keeps growing in later epochs: it is the one of ``ds[index]``, not the position in
        the epoch.

        Args:
            transform: a ``MapWithIndex`` or a callable of index and element.

        Raises:
            TypeError: ``transform`` is not callable.

        Example:
            >>> list(MapDataset.source(list("ab")).map_with_index(lambda i, x: x + str(i)))
            ['a0', 'b1']
        """
        from gristmill.dataset.stages.map_with_index import MapWithIndexMapDataset

        return MapWithIndexMapDataset(self, transform)

    @overload
    def random_map(self, transform: RandomMap, *, seed: int | None = None) -> MapDataset[Any]: ...
    @overload
    def random_map(
        self, transform: Callable[[Any, np.random.Generator], S], *, seed: int | None = None
    ) -> MapDataset[S]: ...
    def random_map(
        self,
        transform: RandomMap | Callable[[Any, np.random.Generator], Any],
        *,
        seed: int | None = None,
    ) -> MapDataset[Any]:
        """Returns a dataset of the elements transformed by ``transform``, which is also given a
        random generator.

        Every index has its own random stream, so the draws do not depend on the order of reading;
        later epochs draw again. The generator must not be kept after the call.

        Args:
            transform: a ``RandomMap`` or a callable of element and generator.
            seed: seed of the streams, a non-negative integer; by default derived from
                ``ds.seed(...)``.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or ``seed`` is
                negative.

        Example:
            >>> list(MapDataset.range(3).random_map(lambda x, rng: int(rng.integers(100)), seed=0))
            [13, 95, 20]
        """
        from gristmill.dataset.stages.random_map import RandomMapMapDataset

        return RandomMapMapDataset(self, transform, seed=seed)

    def seed(self, seed: int | None) -> MapDataset[T_co]:
        """Returns the same dataset, from whose ``seed`` later random stages derive their own.

        Each later ``shuffle`` or ``random_map`` without a seed of its own gets one that depends on
        ``seed`` and on the number of stages between the two. A later ``seed`` replaces this one for
        the stages downstream of it.

        Args:
            seed: a non-negative integer of any size; ``None`` leaves everything as it is.

        Raises:
            TypeError: ``seed`` is not an integer.
            ValueError: ``seed`` is negative.

        Example:
            >>> list(MapDataset.range(5).seed(42).shuffle())
            [1, 3, 4, 2, 0]
        """
        from gristmill.dataset.stages.seed import SeedMapDataset

        return SeedMapDataset(self, seed)


class MapSequenceMethods(Generic[T_co]):
    """Which elements there are, in which order, and how many are one."""

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> MapDataset[Any]:
        """Returns a dataset of batches of consecutive elements.

        A batch never reaches from one epoch into the next. By default the leaves of the elements,
        which must be pytrees of one structure, are stacked along a new first axis.

        Args:
            batch_size: elements per batch, at least 1.
            drop_remainder: drop the last batch of each epoch if it is smaller.
            batch_fn: makes a batch of a list of elements.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: ``batch_size`` is not positive, or elements may have been filtered out
                before (convert with ``to_iter_dataset()`` first).

        Example:
            >>> list(MapDataset.range(3).batch(2))
            [array([0, 1]), array([2])]
        """
        from gristmill.dataset.stages.batch import BatchMapDataset

        _warn_of_small_groups(self, batch_size)
        return BatchMapDataset(self, batch_size, drop_remainder=drop_remainder, batch_fn=batch_fn)

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
        """Returns ``self.to_iter_dataset().global_batch(...)``: this host's rows of batches that
        all hosts share.

        An addition to Grain's methods; see ``IterDataset.global_batch``, also for ``len``, states
        and what is raised.

        Example:
            >>> list(MapDataset.range(7).global_batch(4, num_lanes=2))
            [array([0, 2, 1, 3])]
        """
        ds = MapSequenceMethods.to_iter_dataset(self)
        return ds.global_batch(
            batch_size,
            num_lanes=num_lanes,
            shard_options=shard_options,
            workers=workers,
            end=end,
            agree=agree,
            agree_every=agree_every,
            batch_fn=batch_fn,
        )

    def interleave(
        self, make_dataset: Callable[[Any], Any] | None = None, *, cycle_length: int
    ) -> IterDataset[Any]:
        """Returns the elements of several datasets in turn, one dataset for every element of this
        dataset.

        An addition to Grain's methods: it stands for
        ``InterleaveIterDataset(self.map(make_dataset), ...)``.

        Args:
            make_dataset: makes a dataset of an element, when its turn comes; ``None`` if the
                elements are datasets already.
            cycle_length: the number of datasets that are read at a time, at least 1.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: ``cycle_length`` is not positive.

        Example:
            >>> starts = MapDataset.source([0, 10, 20])
            >>> list(
            ...     starts.interleave(
            ...         lambda start: MapDataset.range(start, start + 2), cycle_length=2
            ...     )
            ... )
            [0, 10, 1, 11, 20, 21]
        """
        from gristmill.dataset.stages.interleave import InterleaveIterDataset

        ds: Any = self
        datasets: MapDataset[Any] = (
            ds if make_dataset is None else MapElementMethods.map(ds, make_dataset)
        )
        return InterleaveIterDataset(datasets, cycle_length=cycle_length)

    def shuffle(self, seed: int | None = None) -> MapDataset[T_co]:
        """Returns a dataset of the same elements in a globally shuffled order, another one in every
        epoch.

        Costs no memory that grows with the data and no time at construction.

        Args:
            seed: an unsigned 32-bit integer; by default derived from ``ds.seed(...)``.

        Raises:
            TypeError: ``seed`` is not an integer.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or ``seed`` is
                out of range.

        Example:
            >>> list(MapDataset.range(5).shuffle(seed=0))
            [0, 4, 1, 2, 3]
        """
        from gristmill.dataset.stages.shuffle import ShuffleMapDataset

        return ShuffleMapDataset(self, seed=seed)

    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> MapDataset[T_co]:
        """Returns a dataset in which each window of consecutive elements is shuffled, differently
        in every window and epoch.

        Reads stay near one another, as slow storage wants it. An addition to Grain's methods: it
        stands for ``WindowShuffleMapDataset``.

        Args:
            window_size: elements per window, at least 1; the last window of an epoch may be
                shorter.
            seed: an unsigned 32-bit integer; by default derived from ``ds.seed(...)``.

        Raises:
            TypeError: an argument is not an integer.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or a number is
                out of range.

        Example:
            >>> sorted(MapDataset.range(6).window_shuffle(3, seed=1)[:3])
            [0, 1, 2]
        """
        from gristmill.dataset.stages.window_shuffle import WindowShuffleMapDataset

        return WindowShuffleMapDataset(self, window_size=window_size, seed=seed)

    def zip(
        self, *others: MapDataset[Any], drop_missing: bool = False
    ) -> MapDataset[tuple[Any, ...]]:
        """Returns a dataset of tuples: the elements of this and of ``others`` at the same index.

        An addition to Grain's methods: it stands for ``ZipMapDataset``.

        Args:
            others: datasets of the same length.
            drop_missing: give no element where one of the datasets has none; by default the tuple
                contains ``None``.

        Raises:
            TypeError: one of them is not a map dataset.
            ValueError: the lengths differ.

        Example:
            >>> list(MapDataset.range(2).zip(MapDataset.source(list("ab"))))
            [(0, 'a'), (1, 'b')]
        """
        from gristmill.dataset.stages.zip import ZipMapDataset

        return ZipMapDataset([self, *others], drop_missing=drop_missing)

    @overload
    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: Literal[True]
    ) -> IterDataset[T_co]: ...
    @overload
    def to_iter_dataset(
        self: MapSequenceMethods[S | None],
        read_options: ReadOptions | None = None,
        *,
        allow_nones: bool = False,
    ) -> IterDataset[S]: ...
    def to_iter_dataset(
        self, read_options: ReadOptions | None = None, *, allow_nones: bool = False
    ) -> IterDataset[Any]:
        """Returns an ``IterDataset`` of one epoch of this dataset.

        Elements are computed ahead by threads, in blocks, and come out in order.

        Args:
            read_options: number of threads and elements ahead; default ``ReadOptions()`` (none for
                a bare range).
            allow_nones: keep ``None`` where there is no element; by default such indices are left
                out.

        Example:
            >>> list(MapDataset.range(3).to_iter_dataset())
            [0, 1, 2]
        """
        from gristmill.dataset.stages.prefetch import PrefetchIterDataset

        return PrefetchIterDataset(self, read_options, allow_nones=allow_nones)


class MapPartMethods(Generic[T_co]):
    """Some of the elements, all of them several times, or blocks of them."""

    def block_shuffle(
        self, block_size: int = 256, *, group_size: int = 512, seed: int | None = None
    ) -> MapDataset[T_co]:
        """Returns a dataset of the same elements, shuffled so that storage is read in blocks.

        An addition to Grain's methods: elements are nearly as well mixed as by ``shuffle``. Blocks
        of ``block_size`` consecutive elements are permuted; ``group_size`` of them in a row make a
        group, all elements of which are permuted; every epoch has another order. Iteration reads
        each block once, in one call of a source's ``__getitems__``, and keeps what is still to
        come: up to ``block_size * group_size`` elements of this stage's input, if there is memory
        for them (``DatasetOptions(max_bytes_ahead=...)``). So call it directly on the source.

        Costs no time at construction, and no memory that grows with the data.

        Args:
            block_size: elements per block, at least 1; as many as storage reads well at once. The
                last block may be shorter.
            group_size: blocks per group, at least 1. A group should have many times the elements of
                a batch.
            seed: an unsigned 32-bit integer; by default derived from ``ds.seed(...)``.

        Raises:
            TypeError: an argument is not an integer.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or a number is
                out of range.

        Example:
            >>> list(MapDataset.range(12).block_shuffle(3, group_size=2, seed=1))
            [6, 5, 3, 7, 4, 8, 10, 0, 11, 2, 1, 9]
        """
        from gristmill.dataset.stages.block_shuffle import BlockShuffleMapDataset

        return BlockShuffleMapDataset(self, block_size, group_size=group_size, seed=seed)

    def cache(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        max_bytes: int | None = None,
        freeze: bool = False,
    ) -> MapDataset[T_co]:
        """Returns the same elements, kept on disk when they are first computed, and read from there
        afterwards.

        An addition to Grain's methods, for stages that take long and do not change: decoding,
        tokenising. Elements are kept by their index, whichever worker, process or host of a shared
        file system computes them, and found by all with the same pipeline. The pipeline is
        identified by its description and the code of its functions; a changed one begins another
        cache in ``path``, which the logger ``gristmill`` reports. Elements are pickled: only you
        should have the right to write there.

        What a process has kept before it was killed stays. A cache that cannot be written to is
        read, with a warning. If ``max_bytes`` is reached, caches of other pipelines in ``path`` are
        removed, the one that was opened longest ago first; after that nothing more is kept.

        Args:
            path: a folder.
            max_bytes: how much may be kept in ``path``; ``None``: no limit.
            freeze: allow random stages upstream: all epochs have the elements of the first one.

        Raises:
            TypeError, ValueError: an argument is wrong; or an element may change from epoch to
                epoch, by ``random_map``, ``shuffle`` or ``mix`` upstream: call ``cache`` before
                them.

        Example:
            >>> import tempfile
            >>> ds = (
            ...     MapDataset.range(3)
            ...     .map(lambda x: print("computing", x) or x)
            ...     .cache(tempfile.mkdtemp())
            ... )
            >>> ds[1], ds[1]
            computing 1
            (1, 1)
        """
        if path is None:
            raise TypeError(
                "cache needs path=, a folder; to keep elements in memory write"
                " ds.to_iter_dataset().cache()"
            )
        from gristmill.dataset.stages.disk_cache import DiskCacheMapDataset

        return DiskCacheMapDataset(self, path, max_bytes, freeze)

    def slice(self, sl: builtins.slice | Sequence[int]) -> MapDataset[T_co]:
        """Returns a dataset of some of the elements; ``ds[a:b:c]`` is ``ds.slice(slice(a, b, c))``.

        Epochs stay aligned: epoch ``e`` of the slice takes from epoch ``e`` of this dataset.
        ``ds[i::n]`` is shard ``i`` of ``n``.

        Args:
            sl: a slice, or a sequence of indices to take.

        Raises:
            TypeError: ``sl`` is neither (the error is a ``ValueError`` too).
            ValueError: the step of the slice is 0.

        Example:
            >>> (
            ...     list(MapDataset.range(5).slice(slice(1, None, 2))),
            ...     list(MapDataset.range(5).slice([4, 0, 4])),
            ... )
            ([1, 3], [4, 0, 4])
        """
        from gristmill.dataset.stages.slice import slice_dataset

        return slice_dataset(self, sl)

    def repeat(
        self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True
    ) -> MapDataset[T_co]:
        """Returns a dataset of some epochs of this one.

        Since indices past the end reach later epochs anyway, this changes only the length.

        Args:
            num_epochs: number of epochs, at least 1; ``None`` repeats forever (``len(ds)`` is
                ``sys.maxsize``).
            reseed_each_epoch: whether the epochs differ in what is random; if not, the first one is
                repeated.

        Raises:
            TypeError: ``num_epochs`` is not an integer.
            ValueError: it is not positive, or this dataset is endless already.

        Example:
            >>> list(MapDataset.range(2).repeat(2))
            [0, 1, 0, 1]
        """
        from gristmill.dataset.bases.epochs import part_that_changes
        from gristmill.dataset.stages.repeat import RepeatMapDataset

        part = part_that_changes(self) if reseed_each_epoch and num_epochs != 1 else None
        if part is not None:
            warnings.warn(
                f"{part!s:.200} takes a part of shuffled elements, and with repeat() it has other"
                " ones in every epoch: what was held out of it comes in later epochs. Use"
                " ds.split({'train': 0.98, 'test': 0.02}) instead of slices, or slice before you"
                " shuffle",
                stacklevel=2,
            )
        return RepeatMapDataset(self, num_epochs, reseed_each_epoch=reseed_each_epoch)

    def split(
        self, weights: Mapping[str, float], seed: int = 0, by: Callable[[T_co], Any] | None = None
    ) -> dict[str, MapDataset[T_co]]:
        """Returns parts of this dataset, by their names, that have no record in common, in all
        later uses.

        An addition to Grain's methods. A part has its records in every epoch, in the order of this
        dataset, with the index that they have here: random stages upstream still differ between
        epochs.

        Without ``by`` the sizes are exact (those of largest remainders), every record is as likely
        as any other to be in a part, and every stretch of the dataset has its share of each. Costs
        no memory and no time at construction.

        With ``by``, records of one key are in one part, which a hash of the key and ``seed``
        decides, and nothing else: sizes are as exact as the number of keys allows, and records
        added later move none. All elements of an epoch are read once, by threads, when the first
        length or element is requested; four bytes (eight beyond ``2**32``) are kept of each, which
        worker processes get. Elements that are ``None`` are in no part.

        *What is split.* Elements are, where each position has the same records in every epoch.
        ``shuffle``, ``repeat`` and mixtures do not keep them there: what they are made of is split,
        each component of a mixture by itself, and the parts are shuffled, repeated and mixed with
        the same seeds and weights; components without a record in a part are not in it. Of
        what cannot be made of parts, as a slice of a shuffled dataset, the elements of the first
        epoch are split, and are what the parts have in every epoch.

        Args:
            weights: the share of each part by its name: positive numbers whose sum is 1.
            seed: a non-negative integer.
            by: the key of an element: a ``str``, ``bytes``, integer or a tuple of these. For a
                mixture, of its elements.

        Raises:
            TypeError: an argument has the wrong type. When elements are read: a key has.
            ValueError: weights are not positive or their sum is not 1, ``seed`` is negative, or
                without ``by`` a record may be at several positions.

        Example:
            >>> parts = MapDataset.range(10).split({"train": 0.8, "test": 0.2})
            >>> list(parts["train"]), list(parts["test"])
            ([0, 2, 3, 4, 6, 7, 8, 9], [1, 5])
            >>> parts = MapDataset.range(10).split({"train": 0.6, "test": 0.4}, by=lambda x: x // 2)
            >>> list(parts["train"]), list(parts["test"])
            ([0, 1, 6, 7, 8, 9], [2, 3, 4, 5])
        """
        from gristmill.dataset.splitting import split

        return split(self, weights, seed, by)


class IterDatasetMeta(_DatasetMeta):
    """The factories of ``IterDataset``: methods of the class, not of its instances."""

    def mix(
        cls, datasets: Any, weights: Any = None, *, by: Any = "elements", stop: Any = "first"
    ) -> IterDataset[Any]:
        """Returns a dataset that draws from ``datasets`` in turn, as often as ``weights`` say, in a
        fixed pattern.

        Ends for good when the dataset whose turn it is has no element left. Proportions are exact
        to about 1 % of the smallest weight (see ``MapDataset.mix``), and exact with a ``Schedule``
        or ``by``. With mappings the components are in the order of their sorted keys, and states
        hold their positions by key: components may be added, weights may change, and components may
        be removed that are dropped by name (``it.set_state(state, drop={"name"})``), between saving
        and restoring. Elements that downstream stages hold come again as they were; what is drawn
        after that is drawn as it is now.

        Args:
            datasets: a sequence of datasets, or a mapping of names to datasets.
            weights: a positive number for each, in the same form, or a ``Schedule``; equal by
                default.
            by: ``"elements"``, or a function that gives the length of an element, an integer (such
                as tokens): next is the component whose lengths so far are furthest behind its share
                of all, so that the shares of lengths are those of the weights, within one longest
                element for each component. Ties go to the first component.
            stop: ``"first"`` as above; ``"all"``: a component that has ended is not drawn from any
                more, and the others continue with their weights, until all have; ``"never"``: each
                restarts when it has ended, reshuffled.

        Raises:
            TypeError: ``datasets`` is neither, or has something else in it; ``by`` is no function.
            ValueError: there are no datasets, the weights are not one positive finite number for
                each, or ``stop`` is not one of these. When iterating: an epoch without elements,
                with ``stop="never"``.

        Example:
            >>> ds = IterDataset.mix(
            ...     [
            ...         MapDataset.range(5).to_iter_dataset(),
            ...         MapDataset.range(7, 10).to_iter_dataset(),
            ...     ]
            ... )
            >>> list(ds)
            [0, 7, 1, 8, 2, 9, 3]
        """
        from gristmill.dataset.mixtures.iter_dataset import MixedIterDataset

        return MixedIterDataset(datasets, weights, by, stop)


class MapBucketMethods(Generic[T_co]):
    """Batches by length."""

    def bucket_batch(
        self,
        lengths: Any,
        boundaries: int | Sequence[int],
        *,
        max_tokens: int | None = None,
        batch_sizes: int | Sequence[int] | None = None,
        window: int = 65_536,
        seed: int | None = None,
        pad_to: Any = "boundary",
        pad_value: Any = 0,
        drop_remainder: bool = False,
        on_long: Literal["raise", "truncate", "drop"] = "raise",
        with_lengths: bool = False,
        shard_options: ShardOptions | None = None,
    ) -> MapDataset[Any]:
        """Returns batches of elements of similar lengths, padded to a few shapes. Only lengths are
        read to plan them.

        An addition to Grain's methods. Within each window of the order of ``self`` elements go into
        buckets, and these are cut into batches, which are permuted; what is left continues into the
        next window. Laws: every element is in one batch of its epoch; which are in batch ``i``
        follows from ``i``; batch ``i`` of every shard is of the same bucket and has the same
        shapes, and the rows of all shards, one after the other, are the batch of one that has all.

        Args:
            lengths: non-negative integers, an array or memory map; ``None``: the attribute
                ``lengths`` of the source. One for each record of the source, wherever ``shuffle``,
                a slice and the like have it; of each element of a ``zip``.
            boundaries: the greatest length of each bucket, increasing; or a number of buckets,
                whose boundaries are those that leave the least padding (``bucket_boundaries``), up
                to the greatest length or ``max_tokens``.
            max_tokens, batch_sizes: rows of a batch, of all shards together: as many as there are
                boundaries of its bucket in ``max_tokens``, in multiples of the number of shards; or
                one number for each bucket, or for all.
            window: how many elements are looked at together, at least 1.
            seed: of the order of batches, an unsigned 32-bit integer; by default derived from
                ``ds.seed(...)``, or 0.
            pad_to: what the first axis of leaves is padded to: ``"boundary"``; ``"longest"``, the
                greatest length in the batch; a number of cells; ``None`` for leaves of one shape.
                For all, or a pytree like the elements, with one for each leaf. For the first two,
                that axis must have the length of the record. Leaves without axes are not padded.
            pad_value: what unused cells are filled with, as for ``batch_and_pad``: for all leaves,
                or a pytree like the elements.
            drop_remainder: drop the batches with fewer rows at the end of an epoch, at most
                one for each bucket.
            on_long: whether elements longer than the last boundary are an error when the dataset is
                made, or cut to it (leaves that have their length), or dropped. ``num_long`` of the
                dataset is how many there are.
            with_lengths: return pairs, of the batch and an ``int32`` array of the length of each
                row. Batches with fewer rows are filled up with rows of length 0, so that there is
                one shape for each bucket.
            shard_options: this shard and how many there are; by default only one. Several need one
                of the two above.

        Raises:
            TypeError: an argument has the wrong type, or not one of ``max_tokens`` and
                ``batch_sizes`` is given.
            ValueError: a number is out of range or does not fit the others; elements are too long;
                or those of an epoch are not those of others, as in a mixture. When an element is
                read: a leaf does not have the length of its record.

        Example:
            >>> records = [np.arange(n) for n in (3, 1, 8, 2, 7)]
            >>> ds = MapDataset.source(records).bucket_batch([3, 1, 8, 2, 7], [4, 8], batch_sizes=2)
            >>> [batch.shape for batch in ds]
            [(2, 4), (2, 8), (1, 4)]
        """
        from gristmill.dataset.stages.bucket_batch import BucketBatchMapDataset

        given = (
            max_tokens,
            batch_sizes,
            window,
            seed,
            pad_to,
            pad_value,
            drop_remainder,
            on_long,
            with_lengths,
            shard_options,
        )
        return BucketBatchMapDataset(self, lengths, boundaries, *given)


class IterElementMethods(Generic[T_co]):
    """Methods that transform each element."""

    def apply(self, transformations: Transformation | Transformations) -> IterDataset[Any]:
        """Returns a dataset with the given transformations applied in order.

        Args:
            transformations: one transformation or a sequence of them; random maps take their seed
                from ``ds.seed``.

        Raises:
            NotImplementedError: an object is of no transformation class.
        """
        from gristmill.dataset.apply import apply_transformations

        return apply_transformations(self, transformations)

    def tolerate(
        self,
        errors: type[Exception] | tuple[type[Exception], ...] = (Exception,),
        *,
        max_rate: float | None = 1e-3,
        max_total: int | None = None,
        max_consecutive: int | None = 100,
        retries: int = 0,
        backoff_seconds: float = 0.1,
        then: Literal["skip", "replace"] = "skip",
        log: Any = None,
    ) -> IterDataset[T_co]:
        """Returns a dataset of the elements that do not fail, within a budget.

        ``it.faults()`` counts the others. It covers the stages between it and the nearest
        ``tolerate`` upstream, or the source. What fails is an output of its parent, so after
        ``batch`` a whole batch. See ``MapDataset.tolerate`` for what is never tolerated, and for
        the arguments.

        Args:
            errors, max_rate, max_total, max_consecutive, retries, backoff_seconds, log: as there.
            then: ``"skip"``, since a stream has no other elements.

        Raises:
            TypeError, ValueError: an argument is of the wrong type, or out of range.
            FaultBudgetError: (when iterating) a limit is exceeded. The iterator stays where it is.

        Example:
            >>> ds = MapDataset.source([1, 0, 2]).to_iter_dataset().map(lambda x: 2 // x)
            >>> list(ds.tolerate(max_rate=None))
            [2, 1]
        """
        from gristmill.dataset.faults.budget import TolerateParameters
        from gristmill.dataset.faults.tolerate import TolerateIterDataset

        given = (errors, max_rate, max_total, max_consecutive, retries, backoff_seconds, then, log)
        return TolerateIterDataset(self, TolerateParameters(*given))

    def filter(self, transform: Filter | Callable[[Any], bool]) -> IterDataset[T_co]:
        """Returns a dataset of the elements that ``transform`` accepts.

        Warns when 90 % of 1000 consecutive elements are rejected (see ``DatasetOptions``).

        Args:
            transform: a ``Filter`` or a callable of an element.

        Raises:
            TypeError: ``transform`` is not callable.
        """
        from gristmill.dataset.stages.filter import FilterIterDataset

        return FilterIterDataset(self, transform)

    @overload
    def flat_map(self, transform: FlatMap) -> IterDataset[Any]: ...
    @overload
    def flat_map(self, transform: Callable[[Any], Iterable[S]]) -> IterDataset[S]: ...
    def flat_map(self, transform: FlatMap | Callable[[Any], Iterable[Any]]) -> IterDataset[Any]:
        """Returns a dataset of the items that ``transform`` makes of each element, in order.

        An addition to Grain's methods: it stands for ``FlatMapIterDataset``.

        Args:
            transform: a ``FlatMap``, or a callable that makes an iterable of items of an element.

        Raises:
            TypeError: ``transform`` is not callable.

        Example:
            >>> list(MapDataset.range(4).to_iter_dataset().flat_map(lambda x: [x] * x))
            [1, 2, 2, 3, 3, 3]
        """
        from gristmill.dataset.stages.flat_map import FlatMapIterDataset

        return FlatMapIterDataset(self, transform)

    @overload
    def map(self, transform: Map) -> IterDataset[Any]: ...
    @overload
    def map(self, transform: Callable[[Any], S]) -> IterDataset[S]: ...
    def map(self, transform: Map | Callable[[Any], Any]) -> IterDataset[Any]:
        """Returns a dataset of the elements transformed by ``transform``.

        Args:
            transform: a ``Map`` or a callable of an element.

        Raises:
            TypeError: ``transform`` is not callable.
        """
        from gristmill.dataset.stages.map import MapIterDataset

        return MapIterDataset(self, transform)

    @overload
    def map_with_index(self, transform: MapWithIndex) -> IterDataset[Any]: ...
    @overload
    def map_with_index(self, transform: Callable[[int, Any], S]) -> IterDataset[S]: ...
    def map_with_index(
        self, transform: MapWithIndex | Callable[[int, Any], Any]
    ) -> IterDataset[Any]:
        """Returns a dataset of the elements transformed by ``transform``, which is also given their
        count from 0.

        Args:
            transform: a ``MapWithIndex`` or a callable of index and element.

        Raises:
            TypeError: ``transform`` is not callable.

        Example:
            >>> list(
            ...     MapDataset.source(list("ab"))
            ...     .to_iter_dataset()
            ...     .map_with_index(lambda i, x: (i, x))
            ... )
            [(0, 'a'), (1, 'b')]
        """
        from gristmill.dataset.stages.map_with_index import MapWithIndexIterDataset

        return MapWithIndexIterDataset(self, transform)

    @overload
    def random_map(self, transform: RandomMap, *, seed: int | None = None) -> IterDataset[Any]: ...
    @overload
    def random_map(
        self, transform: Callable[[Any, np.random.Generator], S], *, seed: int | None = None
    ) -> IterDataset[S]: ...
    def random_map(
        self,
        transform: RandomMap | Callable[[Any, np.random.Generator], Any],
        *,
        seed: int | None = None,
    ) -> IterDataset[Any]:
        """Returns a dataset of the elements transformed by ``transform``, which is also given a
        random generator.

        The ``i``-th element that arrives here has stream ``i`` of the seed. The generator must not
        be kept after the call.

        Args:
            transform: a ``RandomMap`` or a callable of element and generator.
            seed: seed of the streams, a non-negative integer; by default derived from
                ``ds.seed(...)``.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or ``seed`` is
                negative.
        """
        from gristmill.dataset.stages.random_map import RandomMapIterDataset

        return RandomMapIterDataset(self, transform, seed=seed)

    def seed(self, seed: int | None) -> IterDataset[T_co]:
        """Returns the same dataset, from whose ``seed`` later random stages derive their own (as
        ``MapDataset.seed``).

        Args:
            seed: a non-negative integer of any size; ``None`` leaves everything as it is.

        Raises:
            TypeError: ``seed`` is not an integer.
            ValueError: ``seed`` is negative.
        """
        from gristmill.dataset.stages.seed import SeedIterDataset

        return SeedIterDataset(self, seed)

    def cache(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        copy_elements: bool = False,
        max_bytes: int | None = None,
        freeze: bool = False,
    ) -> IterDataset[T_co]:
        """Returns the same elements, kept as they pass: ``ds.cache().repeat(n)`` computes them
        once.

        An addition to Grain's methods. Without ``path`` elements are kept in memory, by each
        iterator for itself (``CacheIterDataset``). With ``path`` they are kept there on disk, for
        all later programs and workers with the same pipeline (see ``MapDataset.cache``).

        Args:
            path: a folder.
            copy_elements: hand out deep copies of what is in memory, so that elements may be
                changed in place. Those from disk are copies.
            max_bytes: how much may be kept in ``path``; above that, elements are computed each
                time.
            freeze: allow ``random_map`` upstream, whose draws are then the same in all epochs.

        Raises:
            TypeError, ValueError: an argument is wrong, or ``random_map`` is upstream.

        Example:
            >>> list(MapDataset.range(3).to_iter_dataset().cache().repeat(2))
            [0, 1, 2, 0, 1, 2]
        """
        if path is None:
            for name, value in (("max_bytes", max_bytes), ("freeze", freeze)):
                if value:
                    raise ValueError(f"{name} is for a cache on disk: pass path=, too")
            from gristmill.dataset.stages.cache import CacheIterDataset

            return CacheIterDataset(self, copy_elements=copy_elements)
        from gristmill.dataset.stages.disk_cache_stream import DiskCacheIterDataset

        return DiskCacheIterDataset(self, path, max_bytes, freeze)


class IterSequenceMethods(Generic[T_co]):
    """Which elements there are, in which order, and how many are one."""

    def batch(
        self,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[Sequence[Any]], Any] | None = None,
    ) -> IterDataset[Any]:
        """Returns a dataset of batches of consecutive elements.

        Args:
            batch_size: elements per batch, at least 1.
            drop_remainder: drop the last batch if it is smaller.
            batch_fn: makes a batch of a list of elements; by default their leaves are stacked along
                a new first axis.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: ``batch_size`` is not positive.

        Example:
            >>> list(MapDataset.range(3).to_iter_dataset().batch(2))
            [array([0, 1]), array([2])]
        """
        from gristmill.dataset.stages.batch import BatchIterDataset

        _warn_of_small_groups(self, batch_size)
        return BatchIterDataset(self, batch_size, drop_remainder=drop_remainder, batch_fn=batch_fn)

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
        """Returns this host's rows of batches that all hosts share, the same for any number of
        hosts and of workers.

        An addition to Grain's methods. The stream is divided into ``num_lanes`` fixed lanes: lane
        ``l`` is everything upstream over every ``num_lanes``-th element of each
        ``MapDataset`` that it reads, of each component of a mixture. Every step takes ``k =
        batch_size / num_lanes`` elements of each lane; row ``r`` comes from lane ``r // k``. Host
        ``h`` of ``H`` owns the lanes ``[h * num_lanes / H, (h + 1) * num_lanes / H)`` and gets
        their rows, in order.

        Law: laid side by side, the rows of all hosts are the same for every ``H`` that divides
        ``num_lanes`` and all workers. Filters, packing, shuffles and the like work inside of a
        lane; each has what they hold in memory.

        State: ``{"num_lanes", "batch_size", "step", "lanes": {number: state}}``, and what hosts
        have agreed on. Restored with any number of workers, any ``batch_size`` that ``num_lanes``
        divides, and any number of hosts (``CheckpointRestore`` reads the files of all; see also
        ``gristmill.checkpoint.merge_states``), every lane continues with its next element.

        Args:
            batch_size: rows of a batch of all hosts together.
            num_lanes: number of lanes, a divisor of ``batch_size``; by default the largest power of
                two up to 64 that is one.
            shard_options: this host and the number of hosts, which divides ``num_lanes``; by
                default there is only one.
            workers: computes the lanes of this host in worker processes, each of them several whole
                lanes.
            end: ``"drop"``: all hosts end before the first step that some lane cannot fill.
                ``"pad"``: every element comes exactly once, and elements are ``(batch, mask)``;
                where a lane has ended, its rows are copies of its last one (zeros if it never had
                one), and ``mask``, a bool for each row, is false there. ``"repeat"``: a lane that
                has ended starts again, each at its own pace.
            agree: for several hosts, where lengths are not known before: called by all hosts at the
                same steps, with how many of the next ``agree_every`` steps this host has, it
                returns the smallest of all their numbers; with ``largest=True``, for ``"pad"``, the
                largest. As ``gristmill.checkpoint.agree_jax`` and ``agree_torch``.
            agree_every: how many steps to take ahead for that, and keep in memory.
            batch_fn: makes a batch of a list of rows; by default their leaves are stacked along a
                new first axis.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: numbers do not divide one another, a root is shorter than ``num_lanes``,
                workers are more than lanes, or ``agree`` is needed. When iterating: ``map`` has
                dropped elements, by ``None``, that lengths count.

        Example:
            >>> from gristmill import ShardOptions
            >>> ds = MapDataset.range(16).to_iter_dataset().map(lambda x: x * 10)
            >>> for host in range(2):
            ...     print(
            ...         list(ds.global_batch(8, num_lanes=4, shard_options=ShardOptions(host, 2)))
            ...     )
            [array([ 0, 40, 10, 50]), array([ 80, 120,  90, 130])]
            [array([20, 60, 30, 70]), array([100, 140, 110, 150])]
            >>> list(MapDataset.range(5).to_iter_dataset().global_batch(2, end="pad"))[-1]
            (array([4, 3]), array([ True, False]))
        """
        from gristmill.dataset.stages.global_batch import (
            GlobalBatchIterDataset,
            GlobalBatchParameters,
        )

        _warn_of_small_groups(self, batch_size)
        given: Any = (num_lanes, shard_options, workers, end, agree, agree_every, batch_fn, None)
        return GlobalBatchIterDataset(self, GlobalBatchParameters(batch_size, *given))

    def rebatch(self, batch_size: int, *, drop_remainder: bool = False) -> IterDataset[T_co]:
        """Returns a dataset of the same rows in batches of another size.

        An addition to Grain's methods: it stands for ``RebatchIterDataset``.

        Args:
            batch_size: rows per batch, at least 1.
            drop_remainder: drop the last batch if it is smaller.

        Raises:
            TypeError: ``batch_size`` is not an integer.
            ValueError: it is not positive.

        Example:
            >>> list(MapDataset.range(5).to_iter_dataset().batch(2).rebatch(3))
            [array([0, 1, 2]), array([3, 4])]
        """
        from gristmill.dataset.stages.rebatch import RebatchIterDataset

        return RebatchIterDataset(self, batch_size, drop_remainder)

    def repeat(self, num_epochs: int | None = None) -> IterDataset[T_co]:
        """Returns a dataset of the same elements again and again; every epoch is identical, random
        stages included.

        An addition to Grain's methods: it stands for ``RepeatIterDataset``. ``MapDataset.repeat``
        shuffles again in every epoch.

        Args:
            num_epochs: number of epochs, at least 1; ``None`` repeats forever.

        Raises:
            TypeError: ``num_epochs`` is not an integer.
            ValueError: it is not positive.

        Example:
            >>> list(MapDataset.range(2).to_iter_dataset().repeat(2))
            [0, 1, 0, 1]
        """
        from gristmill.dataset.stages.repeat import RepeatIterDataset

        return RepeatIterDataset(self, num_epochs)

    def limit(self, count: int) -> IterDataset[T_co]:
        """Returns a dataset of the first ``count`` elements.

        An addition to Grain's methods: it stands for ``LimitIterDataset``.

        Args:
            count: the most elements, at least 1.

        Raises:
            TypeError: ``count`` is not an integer.
            ValueError: it is not positive.

        Example:
            >>> list(MapDataset.range(10).to_iter_dataset().limit(3))
            [0, 1, 2]
        """
        from gristmill.dataset.stages.limit import LimitIterDataset

        return LimitIterDataset(self, count)

    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> IterDataset[T_co]:
        """Returns the same elements, shuffled within windows of ``window_size``.

        An addition to Grain's methods: it stands for ``WindowShuffleIterDataset``.

        Args:
            window_size: elements per window, at least 1, all held in memory; the last window may be
                shorter.
            seed: an unsigned 32-bit integer; by default derived from ``ds.seed(...)``.

        Raises:
            TypeError: an argument is not an integer.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or a number is
                out of range.

        Example:
            >>> list(MapDataset.range(10).to_iter_dataset().window_shuffle(4, seed=3))
            [1, 0, 3, 2, 7, 6, 4, 5, 8, 9]
        """
        from gristmill.dataset.stages.window_shuffle import WindowShuffleIterDataset

        return WindowShuffleIterDataset(self, window_size=window_size, seed=seed)

    def zip(self, *others: Any, strict: bool = True) -> IterDataset[tuple[Any, ...]]:
        """Returns a dataset of tuples: one element of this and of each of ``others``.

        An addition to Grain's methods: it stands for ``ZipIterDataset``.

        Args:
            others: datasets.
            strict: raise ``ValueError`` when one ends before another; otherwise end with the first
                that ends.

        Raises:
            TypeError: one of them is not a dataset.

        Example:
            >>> list(
            ...     MapDataset.range(2)
            ...     .to_iter_dataset()
            ...     .zip(MapDataset.source(list("ab")).to_iter_dataset())
            ... )
            [(0, 'a'), (1, 'b')]
        """
        from gristmill.dataset.stages.zip import ZipIterDataset

        return ZipIterDataset([self, *others], strict=strict)


class IterBucketMethods(Generic[T_co]):
    """Batches by length."""

    def bucket_batch(
        self,
        length_fn: Callable[[Any], int],
        boundaries: Sequence[int],
        *,
        max_tokens: int | None = None,
        batch_sizes: int | Sequence[int] | None = None,
        pad_to: Any = "boundary",
        pad_value: Any = 0,
        drop_remainder: bool = False,
        on_long: Literal["raise", "truncate", "drop"] = "raise",
        with_lengths: bool = False,
    ) -> IterDataset[Any]:
        """Returns a dataset of batches of elements of similar lengths, padded to a few shapes.

        An addition to Grain's methods. Elements go into buckets as they come; a bucket is given out
        as a batch when it is full, and at the end what is left in each. Under ``mp_prefetch`` and
        ``global_batch`` each lane has buckets of its own. Several hosts do *not* meet the same
        bucket in the same step: that needs lengths that are known beforehand, see
        ``MapDataset.bucket_batch``.

        State: the parent's before the oldest element that is held, how many were read since, and
        which of them are held. They are read again when it is restored; a bucket that seldom gets
        full makes that long.

        Args:
            length_fn: gives the length of an element, a non-negative integer. ``None`` is passed
                over, and is no element.
            boundaries: the greatest length of each bucket, increasing. ``bucket_boundaries``
                chooses them by some lengths.
            max_tokens, batch_sizes: as for ``MapDataset.bucket_batch``, one of them.
            pad_to, pad_value, with_lengths: as for ``MapDataset.bucket_batch``.
            drop_remainder: drop the batches with fewer rows at the end.
            on_long: the treatment of elements longer than the last boundary: an error when one
                comes, or they are cut to it, or dropped. ``num_long`` of the iterator, and in its
                state, is how many have come.

        Raises:
            TypeError: an argument has the wrong type, or neither or both of ``max_tokens`` and
                ``batch_sizes`` are given.
            ValueError: a number is out of range or does not fit the others. When iterating, an
                element is too long, or has a leaf that does not have its length.

        Example:
            >>> records = MapDataset.source(
            ...     [np.arange(n) for n in (3, 1, 8, 2, 7)]
            ... ).to_iter_dataset()
            >>> [batch.shape for batch in records.bucket_batch(len, [4, 8], max_tokens=16)]
            [(2, 8), (3, 4)]
        """
        from gristmill.dataset.stages.bucket_batch import BucketBatchIterDataset

        given = (max_tokens, batch_sizes, pad_to, pad_value, drop_remainder, on_long, with_lengths)
        return BucketBatchIterDataset(self, length_fn, boundaries, *given)


class IterAheadMethods(Generic[T_co]):
    """Computing elements before they are wanted."""

    def mp_prefetch(
        self,
        options: WorkerOptions | None = None,
        worker_init_fn: Callable[[int, int], Any] | None = None,
        sequential_slice: bool = False,
        *,
        order: Literal["workers", "stream"] = "workers",
    ) -> IterDataset[T_co]:
        """Returns a dataset of the same elements, computed by workers: processes, or threads if
        Python runs without the GIL.

        Each worker runs the whole pipeline upstream on its share: worker ``i`` of ``n``
        has the elements ``i``, ``i + n``, … of the ``MapDataset`` that ``to_iter_dataset`` was
        called on. Outputs are taken from the workers in turn, so for stages that make one element
        of one the order does not depend on ``n``; batches, filters and the like are made by each
        worker for itself. Workers start with the first element; processes need no
        ``if __name__ == "__main__"``. An error stays until the state is set:
        ``it.set_state(it.get_state())`` tries again.

        With ``order="stream"`` elements, errors and states are those of the pipeline without
        workers, so that a state that was taken with 7 workers continues with 1, or with none.
        Workers compute the stages from ``to_iter_dataset`` on whose outputs follow from an index:
        ``map``, ``random_map``, ``map_with_index``, ``filter``, ``batch``, and ``map`` and
        ``filter`` of batches. This process computes the rest: the first stage of another kind, or
        the first that numbers or batches what a ``filter`` has left. If ``MapDataset.map`` gives
        ``None`` upstream of stages of workers that number or batch elements, that is an error. Of
        an ``interleave`` workers compute whole datasets, and ``map`` downstream of it.

        Args:
            options: number of workers, what they are, outputs that each keeps ready, and
                ``num_lanes``, with which the stream does not depend on the number of workers at
                all; by default 10 workers. 0 workers without lanes return this dataset itself.
            worker_init_fn: called with worker index and number of workers in each worker before
                anything else.
            sequential_slice: give each worker a contiguous part of the source instead of every
                ``n``-th element.
            order: ``"workers"``: outputs of the workers' own streams in turn, as in Grain;
                ``"stream"``: see above.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: the pipeline cannot be shared out, or has workers already; or ``order`` is
                ``"stream"``, and there is nothing in the pipeline whose elements follow from an
                index, or one of the arguments that divide the stream.

        Example:
            >>> ds = MapDataset.range(4).map(lambda x: x * x).to_iter_dataset()
            >>> list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
            [0, 1, 4, 9]
            >>> batches = ds.batch(2).mp_prefetch(
            ...     MultiprocessingOptions(num_workers=2), order="stream"
            ... )
            >>> list(batches)
            [array([0, 1]), array([4, 9])]
        """
        if options is None:
            options = MultiprocessingOptions(num_workers=10)
        check_worker_options("options", options)
        ds = cast("IterDataset[T_co]", self)
        if _check_order(order, options, sequential_slice) == "workers" or 0 in (
            options.num_workers,
            options.max_workers,
        ):
            options = in_lanes(options) if order == "workers" else with_number(options, 0)
            if options.num_lanes is None and not sequential_slice:
                from gristmill.dataset.mixtures.shares import warn_if_one_sided

                warn_if_one_sided(
                    ds, options.num_workers, "mp_prefetch without num_lanes", "worker"
                )
            return _by_workers(ds, options, worker_init_fn, sequential_slice)
        from gristmill.dataset.stages.stream_order import in_stream_order

        return in_stream_order(
            ds, partial(_in_lanes, options=options, worker_init_fn=worker_init_fn)
        )

    def multithread_prefetch(
        self,
        num_threads: NumberOrAuto,
        buffer_size: int,
        *,
        sequential_slice: bool = False,
        max_workers: int | None = None,
    ) -> IterDataset[T_co]:
        """Returns a dataset of the same elements, computed by threads: what ``mp_prefetch`` does
        with processes.

        An addition to Grain's methods: it stands for
        ``gristmill.experimental.multithread_prefetch``.

        Args:
            num_threads: number of threads; 0 returns this dataset itself. ``"auto"``: the stream is
                that of 16, and the number of threads that compute it is found while they run.
            buffer_size: the most outputs for each thread to be ahead; 0 computes in the calling
                thread.
            sequential_slice: give each thread a contiguous part of the source instead of every
                ``num_threads``-th element.
            max_workers: the largest number for ``"auto"``; 0 computes in the calling thread.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: a number is negative, ``max_workers`` is given beside a number, or the
                pipeline cannot be shared out.

        Example:
            >>> ds = MapDataset.range(4).map(lambda x: x * x).to_iter_dataset()
            >>> list(ds.multithread_prefetch(num_threads=2, buffer_size=1))
            [0, 1, 4, 9]
        """
        from gristmill.dataset.stages.multithread_prefetch import multithread_prefetch

        return multithread_prefetch(
            cast("IterDataset[T_co]", self), num_threads, buffer_size, sequential_slice, max_workers
        )

    def prefetch(self, multiprocessing_options: MultiprocessingOptions) -> IterDataset[T_co]:
        """Deprecated: use ``mp_prefetch``."""
        warnings.warn(
            "IterDataset.prefetch is deprecated: use mp_prefetch", DeprecationWarning, stacklevel=2
        )
        return IterAheadMethods.mp_prefetch(self, multiprocessing_options)

    def prefetch_to_device(
        self, device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2
    ) -> IterDataset[Any]:
        """Returns the same elements as JAX arrays on ``device``, sent there ahead of their use.

        An addition to Grain's methods: it stands for ``gristmill.experimental.device_put``.

        Args:
            device: what ``jax.device_put`` takes: a device, a sharding, or a pytree of them.
            cpu_buffer_size: elements kept ready on the host; 0 for no thread.
            device_buffer_size: elements kept ready on the device; 0 for no thread.

        Raises:
            ImportError: JAX is not installed.
        """
        from gristmill.dataset.stages.device_put import device_put

        return device_put(
            cast("IterDataset[T_co]", self),
            device,
            cpu_buffer_size=cpu_buffer_size,
            device_buffer_size=device_buffer_size,
        )

    def thread_prefetch(self, prefetch_buffer_size: int) -> IterDataset[T_co]:
        """Returns the same elements, computed ahead by one thread.

        An addition to Grain's methods: it stands for ``ThreadPrefetchIterDataset``.

        Args:
            prefetch_buffer_size: the most elements to be ahead; 0 computes in the calling thread.

        Raises:
            TypeError: ``prefetch_buffer_size`` is not an integer.
            ValueError: it is negative.

        Example:
            >>> list(MapDataset.range(3).to_iter_dataset().thread_prefetch(2))
            [0, 1, 2]
        """
        from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchIterDataset

        return ThreadPrefetchIterDataset(
            cast("IterDataset[T_co]", self), prefetch_buffer_size=prefetch_buffer_size
        )
