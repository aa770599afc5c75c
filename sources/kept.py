"""Values that are costly to make, kept as long as there is room.

What holds when several threads use one ``KeptValues``:

1. A value that several threads ask for is made by one of them; the others wait for it.
2. An error goes to all who wait. Whoever asks later makes the value anew.
3. The values kept and those being made have at most ``max_bytes`` together: those used longest ago are dropped, and making one
   waits until others are made. A value that is larger than ``max_bytes`` is made, and kept, alone.
4. Nothing is held while a value is made, and making one never waits for another: nobody waits for ever. The size of a value
   that is being made is an estimate; what was wrong about it is made up for when it is made.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Entry(Generic[V]):
    """A value, or one that is being made."""

    __slots__ = ("error", "is_done", "num_bytes", "value")

    value: V
    num_bytes: int

    def __init__(self) -> None:
        self.is_done = False
        self.error: BaseException | None = None


class KeptValues(Generic[K, V]):
    """Values by key, made when they are first asked for. See the guarantees above.

    Args:
        max_bytes: how many bytes all values may have.

    Example:
        >>> squares = KeptValues(max_bytes=16)
        >>> [squares.get(x, lambda: 8, lambda x=x: (x * x, 8)) for x in (1, 2, 3, 2)], squares.num_bytes
        ([1, 4, 9, 4], 16)
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()  # the one used last comes last
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._kept_bytes = 0
        self._made_bytes = 0  # of those that are being made

    @property
    def num_bytes(self) -> int:
        """The bytes of the values that are kept."""
        return self._kept_bytes

    def get(self, key: K, estimate: Callable[[], int], make: Callable[[], tuple[V, int]]) -> V:
        """The value of ``key``.

        Args:
            key: which one.
            estimate: how many bytes it will have, about.
            make: the value, and how many bytes it has.

        Raises:
            Exception: what ``estimate`` and ``make`` raise.
        """
        while True:
            with self._lock:
                entry = self._entries.get(key)
                if entry is None:
                    entry = self._entries[key] = _Entry()
                    break
                self._entries.move_to_end(key)
                while not entry.is_done:
                    self._changed.wait()
            if entry.error is None:
                return entry.value
            if isinstance(entry.error, Exception):
                raise entry.error
            # Somebody interrupted the thread that made it: that was not meant for this one.
        return self._made(key, entry, estimate, make)

    def _made(self, key: K, entry: _Entry[V], estimate: Callable[[], int], make: Callable[[], tuple[V, int]]) -> V:
        num_bytes = 0  # that are reserved
        try:
            expected = estimate()
            with self._lock:
                while not self._has_room(expected):
                    self._changed.wait()
                num_bytes = expected
                self._made_bytes += num_bytes
            entry.value, entry.num_bytes = make()
        except BaseException as error:
            entry.error = error
            raise
        finally:
            self._settle(key, entry, num_bytes)
        return entry.value

    def _settle(self, key: K, entry: _Entry[V], reserved_bytes: int) -> None:
        with self._lock:
            self._made_bytes -= reserved_bytes
            if entry.error is None:
                self._make_room(entry.num_bytes)
                self._kept_bytes += entry.num_bytes
            else:
                self._entries.pop(key, None)
            entry.is_done = True
            self._changed.notify_all()

    def _has_room(self, num_bytes: int) -> bool:
        if self._made_bytes and self._made_bytes + num_bytes > self._max_bytes:
            return False
        self._make_room(num_bytes)
        return True

    def _make_room(self, num_bytes: int) -> None:
        """Drops values that were used longest ago, until ``num_bytes`` more have room, or nothing is left."""
        surplus = self._kept_bytes + self._made_bytes + num_bytes - self._max_bytes
        for key in list(self._entries) if surplus > 0 else ():
            if self._entries[key].is_done:
                dropped = self._entries.pop(key).num_bytes
                self._kept_bytes -= dropped
                surplus -= dropped
                if surplus <= 0:
                    break
