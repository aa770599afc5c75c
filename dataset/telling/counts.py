"""What was drawn of the components of a mixture, told by the state of an iterator."""

from __future__ import annotations

from typing import Any

from gristmill.dataset.states.mixtures import mixtures_in
from gristmill.dataset.tally import sum_of_counts


def counts_of(it: Any) -> dict[str, dict[str, int]]:
    """See ``DatasetIterator.counts``. All lanes of workers count; without ``by`` an element has the length 1.

    Raises:
        ValueError: there is no ``IterDataset.mix`` upstream.

    Example:
        >>> from gristmill.dataset import IterDataset, MapDataset
        >>> it = iter(IterDataset.mix({"a": MapDataset.range(9), "b": MapDataset.range(9)}, {"a": 2, "b": 1}).batch(3))
        >>> _ = next(it)
        >>> it.counts()["a"]
        {'elements': 2, 'lengths': 2, 'epochs': 0}
    """
    mixture = _nearest_mixture(it)
    if mixture is None:
        raise ValueError(f"{it} draws from no IterDataset.mix, whose components could be counted")
    total: dict[str, dict[str, int]] = {}
    for state in mixtures_in(it.get_state(), with_lists=True):  # one for each lane
        total = sum_of_counts(total, mixture._counts_in(state))
    return total


def _nearest_mixture(it: Any) -> Any:
    """An iterator like that of the mixture nearest to the output, which need not be where that one is."""
    level = [it]
    while level:
        found = next((node for node in level if hasattr(node, "_counts_in")), None)
        if found is not None:
            return found
        level = [upstream for node in level for upstream in node._described_upstream]
    return None
