"""``IterDataset``: a lazily computed stream."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from gristmill.dataset.graph import DatasetNode, as_parents
from gristmill.dataset.iterator import DatasetIterator
from gristmill.dataset.map_dataset import MapDataset

if TYPE_CHECKING:
    from gristmill.transforms import Filter, Map, MapWithIndex, RandomMap, Transformation, Transformations

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")


class IterDatasetMeta(abc.ABCMeta):
    """The factories of ``IterDataset``."""


class IterDataset(DatasetNode, Generic[T_co], metaclass=IterDatasetMeta):
    """A stream of elements without random access, whose iterators can be saved and restored.

    Immutable; every ``iter(ds)`` is an independent iterator at the beginning. Most are made by
    ``MapDataset.to_iter_dataset()``.

    Subclasses define ``__iter__``.

    Args:
        parents: the dataset or datasets that this one is made of.

    Example:
        >>> ds = MapDataset.range(5).to_iter_dataset().filter(lambda x: x % 2 == 0).batch(2)
        >>> list(ds)
        [array([0, 2]), array([4])]
    """

    def __init__(self, parents: Any | Iterable[Any] = ()) -> None:
        self._parents = as_parents(parents, MapDataset, IterDataset)

    @abc.abstractmethod
    def __iter__(self) -> DatasetIterator[T_co]:
        """Returns an iterator at the beginning."""

    def apply(self, transformations: Transformation | Transformations) -> IterDataset[Any]:
        """Returns a dataset with the given transformations applied in order.

        Args:
            transformations: one transformation or a sequence of them; random maps take their seed from ``ds.seed``.

        Raises:
            NotImplementedError: an object is none of the transformation classes.
        """
        from gristmill.dataset.apply import apply_transformations

        return apply_transformations(self, transformations)

    def batch(
        self, batch_size: int, *, drop_remainder: bool = False, batch_fn: Callable[[Sequence[Any]], Any] | None = None
    ) -> IterDataset[Any]:
        """Returns a dataset of batches of consecutive elements.

        Args:
            batch_size: elements per batch, at least 1.
            drop_remainder: drop the last batch if it is smaller.
            batch_fn: makes a batch of a list of elements; by default their leaves are stacked along a new first axis.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: ``batch_size`` is not positive.

        Example:
            >>> list(MapDataset.range(3).to_iter_dataset().batch(2))
            [array([0, 1]), array([2])]
        """
        from gristmill.dataset.stages.batch import BatchIterDataset

        return BatchIterDataset(self, batch_size, drop_remainder=drop_remainder, batch_fn=batch_fn)

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

    def map(self, transform: Map | Callable[[Any], S]) -> IterDataset[S]:
        """Returns a dataset of the elements transformed by ``transform``.

        Args:
            transform: a ``Map`` or a callable of an element.

        Raises:
            TypeError: ``transform`` is not callable.
        """
        from gristmill.dataset.stages.map import MapIterDataset

        return MapIterDataset(self, transform)

    def map_with_index(self, transform: MapWithIndex | Callable[[int, Any], S]) -> IterDataset[S]:
        """Returns a dataset of the elements transformed by ``transform``, which is also given their count from 0.

        Args:
            transform: a ``MapWithIndex`` or a callable of index and element.

        Raises:
            TypeError: ``transform`` is not callable.

        Example:
            >>> list(MapDataset.source("ab").to_iter_dataset().map_with_index(lambda i, x: (i, x)))
            [(0, 'a'), (1, 'b')]
        """
        from gristmill.dataset.stages.map_with_index import MapWithIndexIterDataset

        return MapWithIndexIterDataset(self, transform)

    def random_map(
        self, transform: RandomMap | Callable[[Any, np.random.Generator], S], *, seed: int | None = None
    ) -> IterDataset[S]:
        """Returns a dataset of the elements transformed by ``transform``, which is also given a random generator.

        The ``i``-th element that arrives here has stream ``i`` of the seed. The generator must not be kept after the call.

        Args:
            transform: a ``RandomMap`` or a callable of element and generator.
            seed: seed of the streams, a non-negative integer; by default derived from ``ds.seed(...)``.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or ``seed`` is negative.
        """
        from gristmill.dataset.stages.random_map import RandomMapIterDataset

        return RandomMapIterDataset(self, transform, seed=seed)

    def seed(self, seed: int | None) -> IterDataset[T_co]:
        """Returns the same dataset, from whose ``seed`` later random steps derive their own (as ``MapDataset.seed``).

        Args:
            seed: a non-negative integer of any size; ``None`` leaves everything as it is.

        Raises:
            TypeError: ``seed`` is not an integer.
            ValueError: ``seed`` is negative.
        """
        from gristmill.dataset.stages.seed import SeedIterDataset

        return SeedIterDataset(self, seed)
