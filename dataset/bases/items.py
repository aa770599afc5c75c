"""The iterators that ``_gm_items`` of map datasets is made of.

``ds._gm_items(indices)`` returns an iterator over the elements at ``indices``: as many, in the same
order, ``None`` where there is none. It guarantees:

1. Each element is computed when it is requested, through all upstream stages, before the next one.
   Only sources that read many records in one call read them when ``_gm_items`` is called.
2. The iterator raises what computing the next element alone raises, with a note that says where,
   after the elements before it. ``StopIteration`` of a user's function becomes ``RuntimeError``.
3. What ``_gm_items`` itself raises is about the first element.
4. The iterator refers to no element that it has returned: an error would keep that alive. That of
   ``map`` refers to the last element of its parent.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from itertools import chain, repeat
from typing import TYPE_CHECKING, Any

import numpy as np

from gristmill.core.errors import SourceEnded
from gristmill.core.indices import Indices, as_ints
from gristmill.dataset.errors.context import add_error_context
from gristmill.sources.reading import is_read_in_blocks, read_keys

if TYPE_CHECKING:
    from gristmill.dataset.bases.map import MapDataset
    from gristmill.dataset.bases.node import DatasetNode

_NEVER_FAILING = (list, tuple, range, str, bytes, np.ndarray)  # at keys below their length


def item(ds: MapDataset[Any], index: int) -> Any:
    """Returns the element of ``ds`` at ``index``; ``SourceEnded`` at the end of its source."""
    [element] = ds._gm_items([index])
    return element


def check_number(found: int, expected: int) -> None:
    """Raises ``RuntimeError`` if an iterator has returned too few elements."""
    if found < expected:
        raise RuntimeError(
            f"a map dataset returned {found} elements for {expected} indices: its _gm_items returns"
            " one for each"
        )


def given_out(elements: list[Any]) -> Iterator[Any]:
    """Returns an iterator over ``elements``, a list without other references, which it empties."""
    elements.reverse()
    return map(list.pop, repeat(elements, len(elements)))


def begun_when_needed(ds: MapDataset[Any], indices: Indices) -> Iterator[Any]:
    """Returns ``ds._gm_items(indices)``, which is called when the first element is requested."""
    return chain.from_iterable(map(ds._gm_items, (indices,)))


def each_alone(ds: MapDataset[Any], indices: Indices) -> Iterator[Any]:
    """Returns the elements at ``indices``, each of them requested alone."""
    return chain.from_iterable(map(ds._gm_items, [[i] for i in as_ints(indices)]))


def read_items(stage: DatasetNode, source: Any, indices: Indices, keys: list[Any]) -> Iterator[Any]:
    """Returns the records at ``keys``, one for each of the ``indices`` of ``stage``.

    A source that can read several records in one call does so; if that fails, they are read alone.
    """
    if type(source) in _NEVER_FAILING:
        return map(operator.getitem, repeat(source), keys)
    if len(keys) > 1 and is_read_in_blocks(source):
        try:
            return given_out(read_keys(source, keys))
        except Exception:
            pass
    return _read_alone(stage, source, indices, keys)


def _read_alone(
    stage: DatasetNode, source: Any, indices: Indices, keys: list[Any]
) -> Iterator[Any]:
    for number, key in enumerate(keys):
        try:
            record = source[key]
        except StopIteration as error:
            raise SourceEnded from error
        except Exception as error:
            add_error_context(error, stage, [indices[number]])
            raise
        yield (record, record := None)[0]
