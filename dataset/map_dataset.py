"""``MapDataset``: an endless, lazily computed sequence with random access."""

from __future__ import annotations

import abc
import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, overload

import numpy as np

from gristmill.core.errors import stop_iteration_error
from gristmill.core.indices import Indices, as_array, as_ints
from gristmill.core.options import ReadOptions
from gristmill.dataset.feed import Feed
from gristmill.dataset.graph import DatasetNode, as_parents, spec_of_first_parent

if TYPE_CHECKING:
    from gristmill.dataset.iter_dataset import IterDataset
    from gristmill.dataset.iterator import DatasetIterator
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

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")


class MapDatasetMeta(abc.ABCMeta):
    """The factories of ``MapDataset``: methods of the class, not of its instances."""

    def source(cls, source: Any) -> MapDataset[Any]:
        """Returns a dataset of the records of ``source``: anything with ``__getitem__`` and ``__len__``.

        Element ``i`` is ``source[i % len(source)]``. Nothing is read at construction.

        Args:
            source: a list, array, data source or other dataset; must be safe to read from several threads.

        Raises:
            TypeError: ``source`` has no ``__getitem__``.

        Example:
            >>> list(MapDataset.source(["a", "b"]))
            ['a', 'b']
        """
        from gristmill.dataset.stages.source import SourceMapDataset

        return SourceMapDataset(source)

    def range(cls, start: int, stop: int | None = None, step: int = 1) -> MapDataset[int]:
        """Returns a dataset of the integers that the builtin ``range`` of the same arguments has.

        Args:
            start: first value; with ``stop`` left out, the number of values from 0.
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
        """Returns a dataset of the elements of each of ``datasets`` after those of the one before it.

        Epoch ``e`` is made of the epochs ``e`` of all of them.

        Args:
            datasets: a sequence of map datasets; empty ones are passed over.

        Raises:
            TypeError: ``datasets`` is not a sequence of map datasets.
            ValueError: one of them is endless.

        Example:
            >>> list(MapDataset.concatenate([MapDataset.range(2), MapDataset.range(10, 12)]))
            [0, 1, 10, 11]
        """
        from gristmill.dataset.stages.mix import concatenate

        return concatenate(datasets)

    def mix(cls, datasets: Sequence[MapDataset[Any]], weights: Sequence[float] | None = None) -> MapDataset[Any]:
        """Returns a dataset that draws from ``datasets`` in turn, as often as ``weights`` say, in a fixed pattern.

        Each component is read in its own order. The mixture ends before it would need more than an epoch of a component; at
        indices past its end it goes on with their next epochs. Proportions are exact to about 1 % of the smallest weight:
        weights are scaled so that the smallest is 100, and truncated to integers.

        Args:
            datasets: a sequence of map datasets, none of them empty.
            weights: a positive number for each; equal by default.

        Raises:
            TypeError: ``datasets`` is not a sequence of map datasets.
            ValueError: there are no datasets, one is empty, or the weights are not one positive finite number for each.

        Example:
            >>> list(MapDataset.mix([MapDataset.range(4), MapDataset.range(10, 18)], weights=[1, 2]))
            [0, 10, 11, 1, 12, 13, 2, 14, 15, 3, 16, 17]
        """
        from gristmill.dataset.stages.mix import mix

        return mix(datasets, weights)

    def select_from_datasets(
        cls, datasets: Sequence[MapDataset[Any]], selection_map: DatasetSelectionMap | Sequence[tuple[int, int]]
    ) -> MapDataset[Any]:
        """Returns a dataset whose element ``i`` is ``datasets[j][k]`` with ``(j, k) = selection_map[i]``.

        Args:
            datasets: a sequence of map datasets.
            selection_map: a ``DatasetSelectionMap``, or anything with its ``__len__`` and ``__getitem__``. It is asked with any
                index, also past its length.

        Raises:
            TypeError: an argument has the wrong type.

        Example:
            >>> datasets = [MapDataset.range(4), MapDataset.range(10, 14)]
            >>> list(MapDataset.select_from_datasets(datasets, [(1, 0), (0, 3), (1, 0)]))
            [10, 3, 10]
        """
        from gristmill.dataset.stages.mix import MixedMapDataset

        return MixedMapDataset(datasets, selection_map)


class MapDataset(DatasetNode, Generic[T_co], metaclass=MapDatasetMeta):
    """A lazily computed sequence with random access: ``ds[i]`` is the element at ``i``, ``len(ds)`` the length of an epoch.

    Any integer is a valid index: ``i // len(ds)`` is the epoch it lies in. ``None`` means that there is no element at an
    index (it was filtered out); iteration leaves such indices out. Datasets are immutable: every method returns a new one.
    ``ds[i]`` depends on ``i`` alone, and may be asked for from several threads.

    Subclasses define ``__len__`` and ``__getitem__``.

    Args:
        parents: the dataset or datasets that this one is made of.

    Example:
        >>> ds = MapDataset.source([1, 2, 3, 4]).map(lambda x: x * 10).batch(2)
        >>> len(ds), ds[1]
        (2, array([30, 40]))
    """

    _parents: tuple[MapDataset[Any], ...] = ()

    def __init__(self, parents: MapDataset[Any] | Iterable[MapDataset[Any]] = ()) -> None:
        self._parents = as_parents(parents, MapDataset)

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the length of one epoch."""

    @overload
    def __getitem__(self, index: builtins.slice) -> MapDataset[T_co]: ...
    @overload
    def __getitem__(self, index: int) -> T_co | None: ...
    @abc.abstractmethod
    def __getitem__(self, index: Any) -> Any:
        """Returns the element at ``index``, ``None`` if there is none; for a slice, the dataset of those elements."""

    def __iter__(self) -> DatasetIterator[T_co]:
        return self.to_iter_dataset().__iter__()

    def __repr__(self) -> str:
        from gristmill.dataset.display import chain_text

        return chain_text(self)

    def __str__(self) -> str:
        return type(self).__name__ if type(self).__repr__ is MapDataset.__repr__ else repr(self)

    def _block(self, indices: Indices) -> list[Any]:
        """The elements at ``indices``: as many, in the same order, ``None`` where there is none.

        Law: the same as ``[self[i] for i in indices]``. If that raises, so does this, but not always the same error;
        ``read`` makes up for it.
        """
        return [self[i] for i in as_ints(indices)]

    def _stream(self, feed: Feed) -> Iterator[Any]:
        """The elements of ``_block(feed.indices)``, each computed when it is asked for (see ``feed``)."""
        return (self[i] for i in feed.steps([*as_ints(feed.indices)]))

    def _over(self, replaced: Callable[[Any], Any]) -> MapDataset[T_co]:
        """This step over a part of its parent, for ``sequential_slice``.

        A copy will do if element ``i`` is made of the parent's at ``i``. That cannot be proved of code; what the other
        kinds of steps have in common is that they have several parents, or a length of their own, or keep something of the
        parent's length (a permutation, labels). Steps of ours that do so nevertheless make themselves anew.

        Raises:
            ValueError: this step may be of such a kind.
        """
        if len(self._parents) != 1:
            raise not_over_a_part(self, "combines several datasets")
        new = super()._over(replaced)
        length = len(self)
        if len(self._parent) != length or len(new) != len(new._parent):
            raise not_over_a_part(self, "has a length of its own")
        for name, value in vars(self).items():
            if _is_per_element(value, length) and replaced(value) is value:
                raise not_over_a_part(self, f"has an attribute, {name}, with an entry for every element")
        return new

    def apply(self, transformations: Transformation | Transformations) -> MapDataset[Any]:
        """Returns a dataset with the given transformations applied in order.

        Args:
            transformations: one transformation or a sequence of them; random maps take their seed from ``ds.seed``.

        Raises:
            NotImplementedError: an object is none of the transformation classes.

        Example:
            >>> from gristmill.transforms import Batch
            >>> list(MapDataset.range(3).apply([Batch(2)]))
            [array([0, 1]), array([2])]
        """
        from gristmill.dataset.apply import apply_transformations

        return apply_transformations(self, transformations)

    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: Callable[[Sequence[Any]], Any] | None = None
    ) -> MapDataset[Any]:
        """Returns a dataset of batches of consecutive elements.

        A batch never reaches from one epoch into the next. By default the leaves of the elements, which must be pytrees of
        one structure, are stacked along a new first axis.

        Args:
            batch_size: elements per batch, at least 1.
            drop_remainder: drop the last batch of each epoch if it is smaller.
            batch_fn: makes a batch of a list of elements.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: ``batch_size`` is not positive, or elements may have been filtered out before (convert with
                ``to_iter_dataset()`` first).

        Example:
            >>> list(MapDataset.range(3).batch(2))
            [array([0, 1]), array([2])]
        """
        from gristmill.dataset.stages.batch import BatchMapDataset

        return BatchMapDataset(self, batch_size, drop_remainder=drop_remainder, batch_fn=batch_fn)

    def filter(self, transform: Filter | Callable[[Any], bool]) -> MapDataset[T_co]:
        """Returns a dataset in which the elements that ``transform`` rejects are ``None``; its length is unchanged.

        Args:
            transform: a ``Filter`` or a callable of an element; called only for elements that are there.

        Raises:
            TypeError: ``transform`` is not callable.

        Example:
            >>> ds = MapDataset.range(4).filter(lambda x: x % 2 == 0)
            >>> ds[1], list(ds)
            (None, [0, 2])
        """
        from gristmill.dataset.stages.filter import FilterMapDataset

        return FilterMapDataset(self, transform)

    def flat_map(self, transform: FlatMap | Callable[[Any], Iterable[S]], *, max_fan_out: int | None = None) -> MapDataset[S]:
        """Returns a dataset of the items that ``transform`` makes of each element.

        Every element has ``max_fan_out`` indices, so the length is multiplied by it; those without an item are ``None``.
        An addition to Grain's methods: it stands for ``FlatMapMapDataset``.

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

    def interleave(self, make_dataset: Callable[[Any], Any] | None = None, *, cycle_length: int) -> IterDataset[Any]:
        """Returns the elements of several datasets in turn, one dataset for every element of this one.

        An addition to Grain's methods: it stands for ``InterleaveIterDataset(self.map(make_dataset), ...)``.

        Args:
            make_dataset: makes a dataset of an element, when its turn comes; ``None`` if the elements are datasets already.
            cycle_length: the number of datasets that are read at a time, at least 1.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: ``cycle_length`` is not positive.

        Example:
            >>> starts = MapDataset.source([0, 10, 20])
            >>> list(starts.interleave(lambda start: MapDataset.range(start, start + 2), cycle_length=2))
            [0, 10, 1, 11, 20, 21]
        """
        from gristmill.dataset.stages.interleave import InterleaveIterDataset

        datasets: MapDataset[Any] = self if make_dataset is None else self.map(make_dataset)
        return InterleaveIterDataset(datasets, cycle_length=cycle_length)

    def map(self, transform: Map | Callable[[Any], S]) -> MapDataset[S]:
        """Returns a dataset of the elements transformed by ``transform``; a result of ``None`` removes the element.

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

    def map_with_index(self, transform: MapWithIndex | Callable[[int, Any], S]) -> MapDataset[S]:
        """Returns a dataset of the elements transformed by ``transform``, which is also given their index.

        The index goes on growing in later epochs: it is the one of ``ds[index]``, not the position in the epoch.

        Args:
            transform: a ``MapWithIndex`` or a callable of index and element.

        Raises:
            TypeError: ``transform`` is not callable.

        Example:
            >>> list(MapDataset.source("ab").map_with_index(lambda i, x: x + str(i)))
            ['a0', 'b1']
        """
        from gristmill.dataset.stages.map_with_index import MapWithIndexMapDataset

        return MapWithIndexMapDataset(self, transform)

    def random_map(
        self, transform: RandomMap | Callable[[Any, np.random.Generator], S], *, seed: int | None = None
    ) -> MapDataset[S]:
        """Returns a dataset of the elements transformed by ``transform``, which is also given a random generator.

        Every index has its own random stream, so the draws do not depend on the order of reading; later epochs draw anew.
        The generator must not be kept after the call.

        Args:
            transform: a ``RandomMap`` or a callable of element and generator.
            seed: seed of the streams, a non-negative integer; by default derived from ``ds.seed(...)``.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or ``seed`` is negative.

        Example:
            >>> list(MapDataset.range(3).random_map(lambda x, rng: int(rng.integers(100)), seed=0))
            [13, 95, 20]
        """
        from gristmill.dataset.stages.random_map import RandomMapMapDataset

        return RandomMapMapDataset(self, transform, seed=seed)

    def seed(self, seed: int | None) -> MapDataset[T_co]:
        """Returns the same dataset, from whose ``seed`` later random steps derive their own.

        Each later ``shuffle`` or ``random_map`` without a seed of its own gets one that depends on ``seed`` and on how many
        steps lie between. A later ``seed`` replaces this one for the steps after it.

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

    def shuffle(self, seed: int | None = None) -> MapDataset[T_co]:
        """Returns a dataset of the same elements in a globally shuffled order, another one in every epoch.

        Costs no memory that grows with the data and no time at construction.

        Args:
            seed: an unsigned 32-bit integer; by default derived from ``ds.seed(...)``.

        Raises:
            TypeError: ``seed`` is not an integer.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or ``seed`` is out of range.

        Example:
            >>> list(MapDataset.range(5).shuffle(seed=0))
            [0, 4, 1, 2, 3]
        """
        from gristmill.dataset.stages.shuffle import ShuffleMapDataset

        return ShuffleMapDataset(self, seed=seed)

    def slice(self, sl: builtins.slice | Sequence[int]) -> MapDataset[T_co]:
        """Returns a dataset of some of the elements; ``ds[a:b:c]`` is ``ds.slice(slice(a, b, c))``.

        Epochs stay aligned: epoch ``e`` of the slice takes from epoch ``e`` of this dataset. ``ds[i::n]`` is shard ``i`` of
        ``n``.

        Args:
            sl: a slice, or a sequence of indices to take.

        Raises:
            TypeError: ``sl`` is neither (the error is a ``ValueError`` too).
            ValueError: the step of the slice is 0.

        Example:
            >>> list(MapDataset.range(5).slice(slice(1, None, 2))), list(MapDataset.range(5).slice([4, 0, 4]))
            ([1, 3], [4, 0, 4])
        """
        from gristmill.dataset.stages.slice import slice_dataset

        return slice_dataset(self, sl)

    def repeat(self, num_epochs: int | None = None, *, reseed_each_epoch: bool = True) -> MapDataset[T_co]:
        """Returns a dataset of some epochs of this one.

        Since indices past the end reach later epochs anyway, this changes only the length.

        Args:
            num_epochs: number of epochs, at least 1; ``None`` repeats for ever (``len(ds)`` is ``sys.maxsize``).
            reseed_each_epoch: whether the epochs differ in what is random; if not, the first one is repeated.

        Raises:
            TypeError: ``num_epochs`` is not an integer.
            ValueError: it is not positive, or this dataset is endless already.

        Example:
            >>> list(MapDataset.range(2).repeat(2))
            [0, 1, 0, 1]
        """
        from gristmill.dataset.stages.repeat import RepeatMapDataset

        return RepeatMapDataset(self, num_epochs, reseed_each_epoch=reseed_each_epoch)

    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> MapDataset[T_co]:
        """Returns a dataset in which each window of consecutive elements is shuffled, differently in every window and epoch.

        Reads stay near one another, as slow storage wants it. An addition to Grain's methods: it stands for
        ``WindowShuffleMapDataset``.

        Args:
            window_size: elements per window, at least 1; the last window of an epoch may be shorter.
            seed: an unsigned 32-bit integer; by default derived from ``ds.seed(...)``.

        Raises:
            TypeError: an argument is not an integer.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or a number is out of range.

        Example:
            >>> sorted(MapDataset.range(6).window_shuffle(3, seed=1)[:3])
            [0, 1, 2]
        """
        from gristmill.dataset.stages.window_shuffle import WindowShuffleMapDataset

        return WindowShuffleMapDataset(self, window_size=window_size, seed=seed)

    def zip(self, *others: MapDataset[Any], drop_missing: bool = False) -> MapDataset[tuple[Any, ...]]:
        """Returns a dataset of tuples: the elements of this and of ``others`` at the same index.

        An addition to Grain's methods: it stands for ``ZipMapDataset``.

        Args:
            others: datasets of the same length.
            drop_missing: give no element where one of the datasets has none; by default ``None`` stands in the tuple.

        Raises:
            TypeError: one of them is not a map dataset.
            ValueError: the lengths differ.

        Example:
            >>> list(MapDataset.range(2).zip(MapDataset.source("ab")))
            [(0, 'a'), (1, 'b')]
        """
        from gristmill.dataset.stages.zip import ZipMapDataset

        return ZipMapDataset([self, *others], drop_missing=drop_missing)

    def to_iter_dataset(self, read_options: ReadOptions | None = None, *, allow_nones: bool = False) -> IterDataset[T_co]:
        """Returns an ``IterDataset`` of one epoch of this dataset.

        Elements are computed ahead by threads, in blocks, and come out in order.

        Args:
            read_options: number of threads and elements ahead; default ``ReadOptions()`` (none for a bare range).
            allow_nones: keep ``None`` where there is no element; by default such indices are left out.

        Example:
            >>> list(MapDataset.range(3).to_iter_dataset())
            [0, 1, 2]
        """
        from gristmill.dataset.stages.prefetch import PrefetchIterDataset

        return PrefetchIterDataset(self, read_options, allow_nones=allow_nones)


class BlockMapDataset(MapDataset[T]):
    """The base of our own stages: an element is derived from a block of one."""

    @abc.abstractmethod
    def _block(self, indices: Indices) -> list[Any]: ...

    def _stream(self, feed: Feed) -> Iterator[Any]:
        return (self._block([i])[0] for i in feed.steps([*as_ints(feed.indices)]))

    def __len__(self) -> int:
        return len(self._parent)

    def __getitem__(self, index: Any) -> Any:
        if type(index) is not int:
            if isinstance(index, slice):
                return self.slice(index)
            index = _as_index(index)
        try:
            return self._block([index])[0]
        except BaseException as error:
            from gristmill.dataset.iterator import explainer  # which knows this module

            explain = explainer(error)
            if isinstance(error, StopIteration):
                raise explain(stop_iteration_error(str(self))) from error
            explain(error)
            raise

    def __str__(self) -> str:
        return type(self).__name__

    def _check_not_empty(self, length: int) -> None:
        if not length:
            raise IndexError(f"{self} is empty: it has no element at any index")


class ReindexMapDataset(BlockMapDataset[T]):
    """The base of stages that give their parent's elements at other indices."""

    _element_spec = spec_of_first_parent

    @abc.abstractmethod
    def _reindex(self, index: Any) -> Any:
        """The parent's index for an ``int``, or the indices for an array [n]: written once with operators that take both."""

    def _reindex_range(self, indices: range) -> Indices | None:
        """The parent's indices for a ``range`` of at least two, where that is quicker than for an array; else ``None``."""
        return None

    @property
    @abc.abstractmethod
    def _limit(self) -> int:
        """Up to this magnitude of an index all arithmetic of ``_reindex`` stays within int64."""

    def _block(self, indices: Indices) -> list[Any]:
        if len(indices) == 1:
            return self._parents[0]._block([self._reindex(as_ints(indices)[0])])
        return self._parents[0]._block(self._moved(indices))

    def _stream(self, feed: Feed) -> Iterator[Any]:
        return self._parents[0]._stream(feed.over(self._moved(feed.indices)))

    def _moved(self, indices: Indices) -> Indices:
        moved = self._reindex_range(indices) if isinstance(indices, range) and len(indices) > 1 else None
        result: Indices = self._reindex(as_array(indices, self._limit)) if moved is None else moved
        return result


def not_over_a_part(step: Any, reason: str) -> ValueError:
    return ValueError(
        f"sequential_slice=True gives every worker a part of the source, but {step!s:.200} {reason}: over a part, elements "
        "would be lost or repeated. Use sequential_slice=False"
    )


def _is_per_element(value: Any, length: int) -> bool:
    if callable(value) or isinstance(value, str | bytes | Mapping):
        return False
    try:
        return 0 < len(value) == length
    except TypeError:
        return False


def _as_index(index: Any) -> int:
    try:
        return index.__index__()
    except AttributeError:
        raise TypeError(f"index must be an integer or a slice, got {index!r:.100} of type {type(index).__name__}") from None


def read(ds: MapDataset[Any], indices: Indices) -> list[Any]:
    """The elements of ``ds`` at ``indices``, or the error that computing them one after another would meet first."""
    try:
        return ds._block(indices)
    except Exception:
        if len(indices) == 1:
            raise
    return [ds._block([i])[0] for i in as_ints(indices)]


def ancestors(ds: Any) -> Iterator[Any]:
    """``ds`` and everything upstream, each object once."""
    seen: set[int] = set()
    todo = [ds]
    while todo:
        node = todo.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            todo.extend(node._parents)
