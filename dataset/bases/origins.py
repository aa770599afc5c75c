"""The lineage of elements, as stages declare it: one stage upstream at a time.

A stage of map datasets answers ``_gm_origins(index)``, a stream ``place(pos)``. What they cannot
know is missing there.
"""

from __future__ import annotations

from typing import Any

from gristmill.core.value import Value


class UpstreamElement(Value):
    """An element of another dataset that an element is made of."""

    ds: Any
    index: int
    epoch: int = 0  # that the index does not count
    components: tuple[Any, ...] = ()  # of a mixture, which one it is
    # of the random stream that the stage draws from for it: (seed, index)
    seeds: tuple[tuple[int, int], ...] = ()


class RecordKey(Value):
    """A record of a source that an element is."""

    key: Any
    epoch: int | None
    sampled: int | None = None  # where a sampler chose it, the index at which that was asked
    seeds: tuple[tuple[int, int], ...] = ()  # of the random stream that belongs to it


class Place(Value):
    """The position of an iterator in the random access part of its pipeline.

    Args:
        ds: that part.
        last: the index in it that was given last.
        size: elements of it that make one of the iterator's.
        is_exact: no element is dropped on the way.
        epoch: how often an iterator has restarted.
    """

    ds: Any
    last: int
    size: int = 1
    is_exact: bool = True
    epoch: int = 0

    def in_groups(self, size: int) -> Place:
        """Returns the place in a stage that makes one element of ``size``."""
        return self.replaced(size=self.size * size)

    def with_gaps(self) -> Place:
        """Returns the place in a stage that may drop elements."""
        return self.replaced(is_exact=False)

    def in_epoch(self, epoch: int) -> Place:
        """Returns the place in a stage that has restarted ``epoch`` times."""
        return self.replaced(epoch=self.epoch + epoch)
