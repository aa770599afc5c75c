"""Draw counts of the components of a mixture, read from the state of an iterator."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gristmill.dataset.mixtures.draw_counts import sum_of_counts
from gristmill.dataset.states.mixtures import mixtures_in

if TYPE_CHECKING:
    from gristmill.dataset.bases.iterator import DatasetIterator
    from gristmill.dataset.bases.node import Node


def counts_of(it: DatasetIterator[Any]) -> dict[str, dict[str, int]]:
    """See ``DatasetIterator.counts``. All lanes of workers count; without ``by`` an element has the
    length 1.

    Of a ``MapDataset.mix`` that is the first elements, where these are read in its order, by one
    process.

    Raises:
        ValueError: there is no ``IterDataset.mix`` upstream, nor a ``MapDataset.mix`` that is read
            in its order.

    Example:
        >>> from gristmill.dataset import IterDataset, MapDataset
        >>> parts = {"a": MapDataset.range(9), "b": MapDataset.range(9)}
        >>> it = iter(IterDataset.mix(parts, {"a": 2, "b": 1}).batch(3))
        >>> _ = next(it)
        >>> it.counts()["a"]
        {'elements': 2, 'lengths': 2, 'epochs': 0}
    """
    mixture = _nearest(it, lambda node: hasattr(node, "_gm_counts_in"))
    if mixture is None:
        counts = _counts_of_map_datasets(it)
        if counts is None:
            raise ValueError(
                f"{it} draws from no IterDataset.mix, nor in order and in this process from a"
                " MapDataset.mix, whose components could be counted"
            )
        return counts
    total: dict[str, dict[str, int]] = {}
    for state in mixtures_in(it.get_state(), with_lists=True):  # one for each lane
        total = sum_of_counts(total, mixture._gm_counts_in(state))
    return total


def _counts_of_map_datasets(it: DatasetIterator[Any]) -> dict[str, dict[str, int]] | None:
    reading = _nearest(it, lambda node: _counts_at(node) is not None)
    places = [*_places_in(it.get_state())]
    counts: dict[str, dict[str, int]] | None = (
        _counts_at(reading)(places[0]) if reading and len(places) == 1 else None
    )
    return counts


def _counts_at(it: object) -> Any:
    return getattr(getattr(it, "_gm_engine", None), "counts_at", None)


def _places_in(state: object) -> Iterator[int]:
    """Yields how many elements of map datasets have been read, as a state says."""
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list) else ()
    inner = [place for part in parts for place in _places_in(part)]
    if not inner and isinstance(state, dict) and type(state.get("next_index")) is int:
        inner = [state["next_index"]]
    yield from inner


def _nearest(it: Node, is_one: Callable[[Any], bool]) -> Any:
    """Returns the nearest such iterator to the output, or one like that in use."""
    level = [it]
    while level:
        found = next(filter(is_one, level), None)
        if found is not None:
            return found
        level = [upstream for node in level for upstream in node._gm_described_upstream]
    return None
