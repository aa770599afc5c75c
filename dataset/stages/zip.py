"""``zip``: elements of several datasets side by side."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeVar

from gristmill.core.indices import Indices
from gristmill.dataset.bases.epochs import any_pair
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Length, num_elements, shortest
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.node import spec_of
from gristmill.dataset.bases.origins import UpstreamElement
from gristmill.dataset.bases.parameters import Parameters
from gristmill.dataset.bases.traced import Tracing, side_by_side
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.engine.joining import Zip

T = TypeVar("T")


class MapZipParameters(Parameters):
    drop_missing: bool


class ZipParameters(Parameters):
    strict: bool


class ZipMapDataset(BlockMapDataset[T]):
    """Returns tuples: the elements of all parents at the same index.

    A missing element is ``None`` in its tuple. Order: the parents'. Cost: about 0.1 µs per element.

    Args:
        parents: map datasets of the same length.
        drop_missing: give no element where one of the parents has none. An addition to Grain's
            parameters.

    Raises:
        TypeError: one of ``parents`` is not a map dataset.
        ValueError: there are no parents, or their lengths differ.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> odd = MapDataset.range(3).filter(lambda x: x % 2 == 1)
        >>> list(ZipMapDataset([odd, MapDataset.source(list("abc"))]))
        [(None, 'a'), (1, 'b'), (None, 'c')]
        >>> list(ZipMapDataset([odd, MapDataset.source(list("abc"))], drop_missing=True))
        [(1, 'b')]
    """

    def __init__(self, parents: object, *, drop_missing: bool = False) -> None:
        super().__init__(parents)
        lengths = [len(parent) for parent in _at_least_one(self._gm_parents)]
        if len(set(lengths)) > 1:
            raise ValueError(
                f"all parents of a zip must have the same length, got the lengths {lengths}"
            )
        self._gm_drops = bool(drop_missing)
        self._gm_parameters = MapZipParameters(self._gm_drops)

    def __len__(self) -> int:
        return len(self._gm_parents[0])

    @property
    def _gm_shares_records(self) -> bool:
        return any_pair(self._gm_parents, parallel_ones=False) is not None

    def _gm_over_parts(self, replaced: Callable[[Any], Any]) -> ZipMapDataset[T]:
        return ZipMapDataset([*map(replaced, self._gm_parents)], drop_missing=self._gm_drops)

    def __str__(self) -> str:
        return f"ZipMapDataset(parents={_names(self._gm_parents)}, {self._gm_parameters.text()})"

    def _gm_chain_text(self) -> str:
        return f"ZipMapDataset([{len(self._gm_parents)} parents], {self._gm_parameters.text()})"

    @property
    def _element_spec(self) -> Any:
        return tuple([spec_of(parent) for parent in self._gm_parents])

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        columns = [parent._gm_items(indices) for parent in self._gm_parents]
        return map(_complete_row if self._gm_drops else _row, *columns)

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement]:
        return [UpstreamElement(parent, index) for parent in self._gm_parents]


def _row(*elements: object) -> tuple[Any, ...]:
    return elements


def _complete_row(*elements: object) -> tuple[Any, ...] | None:
    return None if any([x is None for x in elements]) else elements


class ZipIterDataset(IterDataset[T]):
    """Returns tuples of one element of each parent.

    Order: the parents'. State: the parents'. Cost: about 0.1 µs per element.

    Args:
        parents: datasets.
        strict: raise ``ValueError`` when one ends before another; otherwise end with the first that
            ends.

    Raises:
        TypeError: one of ``parents`` is not a dataset.
        ValueError: there are no parents.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> short = MapDataset.range(2).to_iter_dataset()
        >>> long = MapDataset.range(10, 20).to_iter_dataset()
        >>> list(ZipIterDataset([short, long], strict=False))
        [(0, 10), (1, 11)]
    """

    _gm_parameters: ZipParameters

    def __init__(self, parents: object, *, strict: bool = True) -> None:
        super().__init__(parents)
        _at_least_one(self._gm_parents)
        self._gm_parameters = ZipParameters(bool(strict))

    def __str__(self) -> str:
        return f"ZipIterDataset(parents={_names(self._gm_parents)}, {self._gm_parameters.text()})"

    def _gm_chain_text(self) -> str:
        return f"ZipIterDataset([{len(self._gm_parents)} parents], {self._gm_parameters.text()})"

    @property
    def _element_spec(self) -> Any:
        return tuple([spec_of(parent) for parent in self._gm_parents])

    def _gm_num_elements(self) -> Length:
        return shortest([num_elements(parent) for parent in self._gm_parents])

    def _gm_traced(self, tracing: Tracing) -> Any:
        return tracing.over(self).map(side_by_side)

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(self, partial(Zip, strict=self._gm_parameters.strict))


def _at_least_one(parents: tuple[Any, ...]) -> tuple[Any, ...]:
    if not parents:
        raise ValueError("parents must be at least one dataset, got none")
    return parents


def _names(parents: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, parents))})"
