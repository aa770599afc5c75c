"""Going to an output of an iterator without those before it."""

from __future__ import annotations

from typing import Any

from gristmill.dataset.bases.next_index import set_next_index
from gristmill.diagnostics.view import dataset_iterator


def jumped(it: Any, index: int) -> bool:
    """True if ``it`` could continue at an index without the elements before it; where elements are
    dropped, they must be counted.
    """
    if dataset_iterator(it)._gm_has_gaps():
        return False
    try:
        set_next_index(it, index)
    except (NotImplementedError, ValueError):
        # it cannot, or there are fewer, which are counted then
        return False
    return True
