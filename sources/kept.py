"""Values that are costly to make, kept as long as there is room.

Guarantees where several threads use one ``KeptValues``:

1. A value that several threads ask for is made by one of them; the others wait for it. After an
   interrupt of the thread that makes it, one of the others makes it.
2. An error is raised in all threads that wait. A later call makes the value again.
3. The values kept and those being made have at most ``max_bytes`` together. The least recently used
   are dropped, and making a value waits until others are made. A value that is larger than
   ``max_bytes`` is made, and kept, alone.
4. Making a value never waits for another one, so no thread waits forever. The size of a value that
   is being made is an estimate, which is corrected when it is made.

The thread that makes a value holds the lock of its entry. A thread that waits for room holds the
lock of the entry that it is going to make, and waits for that of one which is being made.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from gristmill.core.locks import Lock

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class _Entry(Generic[V]):
    """A value, or one that is being made."""

    __slots__ = ("error", "is_done", "lock", "num_bytes", "value")

    value: V
    num_bytes: int

    def __init__(self) -> None:
        self.lock = Lock()
        self.is_done = False
        self.error: Exception | None = None


class KeptValues(Generic[K, V]):
    """Values by key, made when they are first asked for. See the guarantees above.

    Args:
        max_bytes: how many bytes all values may have.

    Example:
        >>> squares = KeptValues(max_bytes=16)
        >>> [squares.get(x, lambda: 8, lambda x=x: (x * x, 8)) for x in (1, 2, 3, 2)]
        [1, 4, 9, 4]
        >>> squares.num_bytes
        16
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._entries: OrderedDict[K, _Entry[V]] = OrderedDict()  # the one used last comes last
        self._lock = Lock()
        self._kept_bytes = 0
        self._making: dict[_Entry[V], int] = {}  # the bytes that are reserved for each

    @property
    def num_bytes(self) -> int:
        """The bytes of the values that are kept."""
        return self._kept_bytes

    def get(self, key: K, estimate: Callable[[], int], make: Callable[[], tuple[V, int]]) -> V:
        """Return the value of ``key``.

        Args:
            key: which one.
            estimate: how many bytes it will have, about.
            make: the value, and how many bytes it has.

        Raises:
            Exception: what ``estimate`` and ``make`` raise.
        """
        with self._lock:
            entry = self._entries.get(key)
            if entry is None:
                entry = self._entries[key] = _Entry()
            self._entries.move_to_end(key)
        if not entry.is_done:
            with entry.lock:
                if not entry.is_done:
                    self._make(key, entry, estimate, make)
        if entry.error is not None:
            raise entry.error
        return entry.value

    def _make(
        self,
        key: K,
        entry: _Entry[V],
        estimate: Callable[[], int],
        make: Callable[[], tuple[V, int]],
    ) -> None:
        entry.error = None
        try:
            try:
                num_bytes = estimate()
                while (other := self._reserve(entry, num_bytes)) is not None:
                    with other.lock:
                        pass  # it is made, or its thread was interrupted
                entry.value, entry.num_bytes = make()
            except Exception as error:
                entry.error = error
            self._settle(key, entry)
        finally:
            self._making.pop(entry, None)  # after an interrupt it is still there

    def _reserve(self, entry: _Entry[V], num_bytes: int) -> _Entry[V] | None:
        """Reserve bytes; without room for them, return an entry that is being made."""
        with self._lock:
            if self._making and sum(self._making.values()) + num_bytes > self._max_bytes:
                return next(iter(self._making))
            self._make_room(num_bytes)
            self._making[entry] = num_bytes
            return None

    def _settle(self, key: K, entry: _Entry[V]) -> None:
        with self._lock:
            self._making.pop(entry, None)
            if entry.error is None:
                self._make_room(entry.num_bytes)
                self._kept_bytes += entry.num_bytes
            entry.is_done = True  # nothing is called between these lines, so no interrupt comes
            if entry.error is not None:
                self._entries.pop(key, None)

    def _make_room(self, num_bytes: int) -> None:
        """Drops values that were used longest ago, until ``num_bytes`` more have room, or nothing
        is left.
        """
        surplus = self._kept_bytes + sum(self._making.values()) + num_bytes - self._max_bytes
        for key in list(self._entries) if surplus > 0 else ():
            entry = self._entries[key]
            if entry.is_done:
                surplus -= entry.num_bytes
                self._kept_bytes -= entry.num_bytes
                del self._entries[key]  # not by a call, after which an interrupt may come
                if surplus <= 0:
                    break
