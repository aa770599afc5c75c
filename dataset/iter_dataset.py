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
    from gristmill.transforms import Filter, FlatMap, Map, MapWithIndex, RandomMap, Transformation, Transformations

T_co = TypeVar("T_co", covariant=True)
S = TypeVar("S")


class IterDatasetMeta(abc.ABCMeta):
    """The factories of ``IterDataset``: methods of the class, not of its instances."""

    def mix(cls, datasets: Any, weights: Any = None) -> IterDataset[Any]:
        """Returns a dataset that draws from ``datasets`` in turn, as often as ``weights`` say, in a fixed pattern.

        Ends for good when the dataset whose turn it is has no element left. Proportions are exact to about 1 % of the smallest
        weight (see ``MapDataset.mix``). With mappings the components stand in the order of their sorted keys, and states hold
        their positions by key: components may be added or removed, and weights may change, between saving and restoring.

        Args:
            datasets: a sequence of datasets, or a mapping of names to datasets.
            weights: a positive number for each, in the same form; equal by default.

        Raises:
            TypeError: ``datasets`` is neither, or has something else in it.
            ValueError: there are no datasets, or the weights are not one positive finite number for each.

        Example:
            >>> ds = IterDataset.mix([MapDataset.range(5).to_iter_dataset(), MapDataset.range(7, 10).to_iter_dataset()])
            >>> list(ds)
            [0, 7, 1, 8, 2, 9, 3]
        """
        from gristmill.dataset.stages.mix import MixedIterDataset

        return MixedIterDataset(datasets, weights)


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

    def __repr__(self) -> str:
        from gristmill.dataset.display import chain_text

        return chain_text(self)

    def __str__(self) -> str:
        return type(self).__name__ if type(self).__repr__ is IterDataset.__repr__ else repr(self)

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

    def cache(self, *, copy_elements: bool = False) -> IterDataset[T_co]:
        """Returns the same elements, kept in memory as they pass: ``ds.cache().repeat(n)`` computes them once.

        An addition to Grain's methods: it stands for ``CacheIterDataset``.

        Args:
            copy_elements: hand out deep copies, so that elements may be changed in place.

        Example:
            >>> list(MapDataset.range(3).to_iter_dataset().cache().repeat(2))
            [0, 1, 2, 0, 1, 2]
        """
        from gristmill.dataset.stages.cache import CacheIterDataset

        return CacheIterDataset(self, copy_elements=copy_elements)

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

    def flat_map(self, transform: FlatMap | Callable[[Any], Iterable[S]]) -> IterDataset[S]:
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

    def multithread_prefetch(self, num_threads: int, buffer_size: int, *, sequential_slice: bool = False) -> IterDataset[T_co]:
        """Returns a dataset of the same elements, computed by threads: what ``mp_prefetch`` does with processes.

        An addition to Grain's methods: it stands for ``gristmill.experimental.multithread_prefetch``.

        Args:
            num_threads: number of threads; 0 returns this dataset itself.
            buffer_size: the most outputs for each thread to be ahead; 0 computes in the calling thread.
            sequential_slice: give each thread a contiguous part of the source instead of every ``num_threads``-th element.

        Raises:
            TypeError: an argument has the wrong type.
            ValueError: a number is negative, or the pipeline cannot be shared out.

        Example:
            >>> ds = MapDataset.range(4).map(lambda x: x * x).to_iter_dataset()
            >>> list(ds.multithread_prefetch(num_threads=2, buffer_size=1))
            [0, 1, 4, 9]
        """
        from gristmill.dataset.stages.multithread_prefetch import multithread_prefetch

        return multithread_prefetch(self, num_threads, buffer_size, sequential_slice)

    def prefetch(self, multiprocessing_options: MultiprocessingOptions) -> IterDataset[T_co]:
        """Deprecated: use ``mp_prefetch``."""
        warnings.warn("IterDataset.prefetch is deprecated: use mp_prefetch", DeprecationWarning, stacklevel=2)
        return self.mp_prefetch(multiprocessing_options)

    def prefetch_to_device(self, device: Any, *, cpu_buffer_size: int = 4, device_buffer_size: int = 2) -> IterDataset[Any]:
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

        return device_put(self, device, cpu_buffer_size=cpu_buffer_size, device_buffer_size=device_buffer_size)

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
        """Returns a dataset of the same elements again and again; every epoch is identical, random steps included.

        An addition to Grain's methods: it stands for ``RepeatIterDataset``. ``MapDataset.repeat`` shuffles anew in every epoch.

        Args:
            num_epochs: number of epochs, at least 1; ``None`` repeats for ever.

        Raises:
            TypeError: ``num_epochs`` is not an integer.
            ValueError: it is not positive.

        Example:
            >>> list(MapDataset.range(2).to_iter_dataset().repeat(2))
            [0, 1, 0, 1]
        """
        from gristmill.dataset.stages.repeat import RepeatIterDataset

        return RepeatIterDataset(self, num_epochs)

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

        return ThreadPrefetchIterDataset(self, prefetch_buffer_size=prefetch_buffer_size)

    def window_shuffle(self, window_size: int, *, seed: int | None = None) -> IterDataset[T_co]:
        """Returns the same elements, shuffled within windows of ``window_size``.

        An addition to Grain's methods: it stands for ``WindowShuffleIterDataset``.

        Args:
            window_size: elements per window, at least 1, all held in memory; the last window may be shorter.
            seed: an unsigned 32-bit integer; by default derived from ``ds.seed(...)``.

        Raises:
            TypeError: an argument is not an integer.
            ValueError: there is neither ``seed`` nor a ``ds.seed(...)`` upstream, or a number is out of range.

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
            strict: raise ``ValueError`` when one ends before another; otherwise end with the first that ends.

        Raises:
            TypeError: one of them is not a dataset.

        Example:
            >>> list(MapDataset.range(2).to_iter_dataset().zip(MapDataset.source("ab").to_iter_dataset()))
            [(0, 'a'), (1, 'b')]
        """
        from gristmill.dataset.stages.zip import ZipIterDataset

        return ZipIterDataset([self, *others], strict=strict)
