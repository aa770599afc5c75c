"""``IterDataset``: a lazily computed stream."""

from __future__ import annotations

import abc
import sys
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from gristmill.core.errors import as_int
from gristmill.core.options import MultiprocessingOptions
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

    def mp_prefetch(
        self,
        options: MultiprocessingOptions | None = None,
        worker_init_fn: Callable[[int, int], Any] | None = None,
        sequential_slice: bool = False,
    ) -> IterDataset[T_co]:
        """Returns a dataset of the same elements, computed by worker processes.

        Each worker runs the whole pipeline before this point on its share: worker ``i`` of ``n`` has the elements ``i``,
        ``i + n``, … of the ``MapDataset`` that ``to_iter_dataset`` was called on. Outputs are taken from the workers in turn, so
        for steps that make one element of one the order does not depend on ``n``; batches, filters and the like are made by
        each worker for itself. Processes start with the first element and need no ``if __name__ == "__main__"``. An error
        stays until the state is set: ``it.set_state(it.get_state())`` tries again.

        Args:
            options: number of workers (0 returns this dataset itself) and outputs that each keeps ready; by default 10 workers.
            worker_init_fn: called with worker index and number of workers in each process before anything else.
            sequential_slice: give each worker a contiguous part of the source instead of every ``n``-th element.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: the pipeline cannot be shared out, or has workers already.

        Example:
            >>> ds = MapDataset.range(4).map(lambda x: x * x).to_iter_dataset()
            >>> list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
            [0, 1, 4, 9]
        """
        if options is None:
            options = MultiprocessingOptions(num_workers=10)
        if not isinstance(options, MultiprocessingOptions):
            raise TypeError(f"options must be a MultiprocessingOptions, got {options!r:.200}")
        if options.num_workers == 0:
            return self
        as_int("per_worker_buffer_size", options.per_worker_buffer_size, minimum=1)
        if not getattr(sys, "_is_gil_enabled", lambda: True)():  # threads of a free-threaded Python do as well
            from gristmill.dataset.stages.multithread_prefetch import multithread_prefetch

            if worker_init_fn is not None:
                warnings.warn("worker_init_fn is ignored: in free-threaded Python the workers are threads", stacklevel=2)
            return multithread_prefetch(self, options.num_workers, options.per_worker_buffer_size, sequential_slice)
        from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterDataset

        return MultiprocessPrefetchIterDataset(self, options, worker_init_fn, sequential_slice)

    def prefetch(self, multiprocessing_options: MultiprocessingOptions) -> IterDataset[T_co]:
        """Deprecated: use ``mp_prefetch``."""
        warnings.warn("IterDataset.prefetch is deprecated: use mp_prefetch", DeprecationWarning, stacklevel=2)
        return self.mp_prefetch(multiprocessing_options)

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
