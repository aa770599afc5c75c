"""``random_map``: an element and random numbers into another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

from gristmill.core.indices import Indices, as_ints
from gristmill.core.seeds import RngPool
from gristmill.dataset.bases.counting import CountingIterator
from gristmill.dataset.bases.element_spec import transformed_spec
from gristmill.dataset.bases.feed import failed_at_last
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate, stream_of
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.node import random_seed
from gristmill.dataset.bases.origins import Part
from gristmill.dataset.bases.parameters import Parameters, function, silent
from gristmill.dataset.bases.traced import Traced, Tracing
from gristmill.dataset.telling.failures import failed_at, tell_at_last
from gristmill.transforms.base import RandomMap, transform_function

T = TypeVar("T")


class RandomMapParameters(Parameters):
    transform: Any = function()
    seed: int = silent()


class RandomMapMapDataset(BlockMapDataset[T]):
    """``transform(element, rng)`` of every element of the parent, ``rng`` at the start of stream ``i`` of the seed.

    Order: the parent's. Cost: 0.7 µs and one call per element.
    """

    _element_spec = transformed_spec
    _may_leave_out = True
    _keeps_indices = True
    _parameters: RandomMapParameters

    def __init__(self, parent: Any, transform: Any, *, seed: int | None = None) -> None:
        super().__init__(parent)
        self._fn = transform_function(transform, RandomMap, "random_map")
        self._parameters = RandomMapParameters(transform, random_seed(self, seed, "random_map"))
        self._rng_pool = RngPool(self._parameters.seed)

    def _items(self, indices: Indices) -> Iterator[Any]:
        return map(self._mapped, self._parents[0]._items(indices), as_ints(indices))

    def _mapped(self, x: Any, index: int) -> Any:
        try:
            return _random_map(self._fn, x, index, self._rng_pool)
        except Exception as error:
            failed_at(error, self, index)
            raise

    def _origins(self, index: int) -> Iterable[Part]:
        return [Part(self._parents[0], index, seeds=((self._parameters.seed, index),))]


class RandomMapIterDataset(IterDataset[T]):
    """``transform(element, rng)`` of every element of the parent, the ``c``-th with stream ``c`` of the seed.

    Order: the parent's. State: the parent's and the count. Cost: 0.7 µs and one call per element.
    """

    _element_spec = transformed_spec
    _num_elements = same_number
    _works_on = "numbered elements"
    _parameters: RandomMapParameters

    def __init__(self, parent: Any, transform: Any, *, seed: int | None = None) -> None:
        super().__init__(parent)
        self._fn = transform_function(transform, RandomMap, "random_map")
        self._parameters = RandomMapParameters(transform, random_seed(self, seed, "random_map"))
        self._rng_pool = RngPool(self._parameters.seed)

    def _traced(self, tracing: Tracing) -> Any:
        fn, seed, pool = self._fn, self._parameters.seed, self._rng_pool

        def drawn(x: Traced, stream: int) -> Traced:
            known = x.with_pieces(lambda piece: piece.replaced(seeds=(*piece.seeds, (seed, stream))))
            return known.then(lambda value: _random_map(fn, value, stream, pool), self)

        return tracing.over(self, _fn=drawn, _rng_pool=_Streams())

    def __iter__(self) -> DatasetIterator[T]:
        return RandomMapDatasetIterator(iterate(self._parent), self._fn, self._rng_pool, self._parameters)


class RandomMapDatasetIterator(CountingIterator[T]):
    _count_key = "index_for_rng"

    def __init__(self, parent: DatasetIterator[Any], fn: Any, rng_pool: RngPool, parameters: Parameters) -> None:
        super().__init__(parent)
        self._fn = fn
        self._rng_pool = rng_pool
        self._parameters = parameters

    def _take(self, n: int) -> list[Any]:
        fn, pool, elements = self._fn, self._rng_pool, self._parents[0]._take(n)
        streams = self._ctx.numbers.of(self._count, len(elements))
        try:
            result = [_random_map(fn, x, stream, pool) for x, stream in zip(elements, streams, strict=True)]
        except Exception as error:
            tell_at_last(error, self, self._parents[0])
            raise
        self._count += len(elements)
        return result

    def _stream(self, n: int) -> Iterator[Any]:
        for x, stream in zip(stream_of(self._parents[0], n), self._ctx.numbers.of(self._count, n), strict=False):
            self._count += 1
            try:
                yield _random_map(self._fn, x, stream, self._rng_pool)
            except Exception as error:
                failed_at_last(error, self, self._parents[0])
                raise


class _Streams:
    """Gives the numbers of streams in place of their generators."""

    def acquire_rng(self, stream: int) -> int:
        return stream

    def release_rng(self, rng: int) -> None: ...


def _random_map(fn: Any, x: Any, stream: int, pool: Any) -> Any:
    if x is None:
        return None
    rng = pool.acquire_rng(stream)
    x = fn(x, rng)
    pool.release_rng(rng)  # not after an error: somebody may look at it in a debugger
    return x
