"""Objects that are still alive."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

T = TypeVar("T")


class LiveObjects(Generic[T]):
    """Set of objects that does not keep them alive.

    Law: any number of threads may add objects, list them and drop them at the same time. (Iterating
    over a ``WeakSet`` raises an error if another thread adds to it.)

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
