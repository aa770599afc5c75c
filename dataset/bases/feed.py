"""Elements one after the other, of a block that another thread may shorten meanwhile.

A block is quick because each stage computes all of its elements in one loop; but nobody sees one of them before the last one is
there. ``MapDataset._stream`` computes the same elements one after the other through all stages: what is finished can be
delivered while the next one takes long, or for ever, and what was not begun can be left to others. That costs some 0.02 µs more
for an element and stage.

Guarantees:

1. A stream gives the elements at the indices of its feed, in their order, each computed when it is asked for. It may compute less
   than that only after ``leave``.
2. ``leave(num)`` may be called by any thread at any time. The element that is being computed then is finished; none at or
   after ``num`` is begun, but for one that was begun in the same moment.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gristmill.core.indices import Indices
from gristmill.sources.reading import is_read_in_blocks, read_keys


class _Steps:
    """What decides how many elements come: a list, one entry for each, that may get shorter."""

    __slots__ = ("entries", "limit")

    def __init__(self) -> None:
        self.entries: list[Any] | None = None
        self.limit: int | None = None


class Feed:
    """Indices for a stream.

    Args:
        indices: where to compute elements, at least one.
    """

    __slots__ = ("_steps", "indices")

    def __init__(self, indices: Indices) -> None:
        self.indices = indices
        self._steps = _Steps()

    def over(self, indices: Indices) -> Feed:
        """This feed with as many other ``indices``, for the parent of a stage."""
        new = Feed(indices)
        new._steps = self._steps
        return new

    def steps(self, entries: list[Any]) -> Iterator[Any]:
        """Iterates over ``entries``, a list with one entry for every index that nobody else has, until told to leave off."""
        self._steps.entries = entries
        if self._steps.limit is not None:
            del entries[self._steps.limit :]
        return iter(entries)

    def leave(self, num: int) -> None:
        """Lets the stream end after ``num`` elements."""
        self._steps.limit = num
        if self._steps.entries is not None:
            del self._steps.entries[num:]


def read_stream(source: Any, keys: list[Any], feed: Feed) -> Iterator[Any]:
    """The records at ``keys``, one for every index of ``feed``: read at once where the source can do that, else one by one."""
    if is_read_in_blocks(source):
        return feed.steps(read_keys(source, keys))
    return (source[key] for key in feed.steps(keys))
