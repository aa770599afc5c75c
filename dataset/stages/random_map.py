"""``random_map``: an element and random numbers into another."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, TypeAlias, TypeVar

from gristmill.core.seeds import RngPool
from gristmill.dataset.bases.element_spec import transformed_spec
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.node import random_seed
from gristmill.dataset.bases.origins import UpstreamElement
from gristmill.dataset.bases.parameters import FunctionParameters, field
from gristmill.dataset.bases.traced import Traced, Tracing
from gristmill.dataset.engine.elements import Numbered
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.stages.map_with_index import NumberedMapDataset
from gristmill.transforms.base import RandomMap, transform_function

T = TypeVar("T")
Draw: TypeAlias = Callable[[int, Any], Any]


class RandomMapParameters(FunctionParameters):
    seed: int = field(in_repr=False)


class RandomMapMapDataset(NumberedMapDataset[T]):
    """``transform(element, rng)`` of every element of the parent, ``rng`` at the start of stream
    ``i`` of the seed.

    Order: the parent's. Cost: 0.7 µs and one call per element.
    """

    _gm_parameters: RandomMapParameters

    def __init__(self, parent: object, transform: object, *, seed: int | None = None) -> None:
        super().__init__(parent)
        self._fn = transform_function(transform, RandomMap, "random_map")
        self._gm_parameters = RandomMapParameters(transform, random_seed(self, seed, "random_map"))
        self._rng_pool = RngPool(self._gm_parameters.seed)

    def _function(self) -> Draw:
        return _drawing(self._fn, self._rng_pool)

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement]:
        return [
            UpstreamElement(self._gm_parents[0], index, seeds=((self._gm_parameters.seed, index),))
        ]


class RandomMapIterDataset(IterDataset[T]):
    """``transform(element, rng)`` of every element of the parent, the ``c``-th with stream ``c`` of
    the seed.

    Order: the parent's. State: the parent's and the count. Cost: 0.7 µs and one call per element.
    """

    _element_spec = transformed_spec
    _gm_num_elements = same_number
    _gm_works_on = "numbered elements"
    _gm_parameters: RandomMapParameters

    def __init__(self, parent: object, transform: object, *, seed: int | None = None) -> None:
        super().__init__(parent)
        self._fn = transform_function(transform, RandomMap, "random_map")
        self._gm_parameters = RandomMapParameters(transform, random_seed(self, seed, "random_map"))
        self._rng_pool = RngPool(self._gm_parameters.seed)

    def _gm_traced(self, tracing: Tracing) -> Any:
        draw, seed = _drawing(self._fn, self._rng_pool), self._gm_parameters.seed

        def drawn(x: Traced, stream: int) -> Traced:
            known = x.with_records(
                lambda record: record.replaced(seeds=(*record.seeds, (seed, stream)))
            )
            return known.then(lambda value: None if value is None else draw(stream, value), self)

        return tracing.over(self, _fn=drawn, _rng_pool=_Streams())

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(
            self, partial(Numbered, fn=_drawing(self._fn, self._rng_pool), key="index_for_rng")
        )


class _Streams:
    """Gives the numbers of streams in place of their generators."""

    def acquire_rng(self, stream: int) -> int:
        return stream

    def release_rng(self, rng: int) -> None: ...


def _drawing(fn: Callable[..., Any], pool: Any) -> Draw:
    """Return a function of a number and an element: ``fn`` with the generator of that number."""
    acquire, release = pool.acquire_rng, pool.release_rng

    def draw(number: int, x: object) -> Any:
        rng = acquire(number)
        x = fn(x, rng)
        release(rng)  # not after an error: a debugger may show it
        return x

    return draw
