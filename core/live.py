"""Objects that are still alive."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class LiveObjects(Generic[T]):
    """Objects as long as something else refers to them.

    Law: ``add``, ``all`` and the end of an object may come from several threads at a time, with or
    without the GIL. (Iterating over a ``WeakSet`` fails if another thread adds to it.)

    Example:
        >>> class Thing: ...
        >>> live: LiveObjects[Thing] = LiveObjects()
        >>> kept = Thing()
        >>> live.add(kept)
        >>> live.add(Thing())
        >>> live.all() == [kept]
        True
    """

    def __init__(self) -> None:
        self._by_id: weakref.WeakValueDictionary[int, T] = weakref.WeakValueDictionary()

    def add(self, thing: T) -> None:
        """Add an object; again, without effect."""
        self._by_id[id(thing)] = thing

    def all(self) -> list[T]:
        """Return the objects that are alive, in the order of adding."""
        # ``valuerefs`` copies the dictionary at once.
        return [thing for ref in self._by_id.valuerefs() if (thing := ref()) is not None]
