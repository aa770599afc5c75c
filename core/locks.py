"""Locks that no interrupt leaves held, and signals between threads.

An interrupt is an exception that the handler of a signal raises in the main thread, as that of
Ctrl-C does. CPython calls handlers

(a) when a function begins or a generator continues, at a jump backwards, and after a call of a C
    function by a bytecode that calls;
(b) in a C function that waits, which then raises and has acquired nothing.

Hence no interrupt leaves a ``Lock`` held after ``with lock:``:

1. ``Lock.__enter__`` acquires while it unpacks a ``map``. That bytecode calls nothing in the sense
   of (a), and neither do those that follow: the return, and the entry into the ``with`` block. In
   ``acquire`` itself (b) holds.
2. From there on Python calls ``__exit__`` however the block ends. ``__exit__`` is a C function: the
   handler of a signal that comes before its end is called when the lock is free.

``with`` does not do this for locks of ``threading``. Python 3.14 calls their ``__enter__`` by a
bytecode that calls, and a handler may raise after it. ``Condition`` and ``Event`` acquire a lock
in Python code, on all versions. So does the start of a thread (see ``core.uninterrupted``).

What this means for code that the main thread may run:

* Acquire by ``with lock:`` only.
* What a thread has claimed, such as the work on a block, is a ``Lock`` that it holds, not a flag
  that ``finally`` sets back: an interrupt may come before the first line of what ``finally`` calls.
* Wait for a ``Signal``, and hold no lock meanwhile.
"""

from __future__ import annotations

import threading
from typing import Any

_ONCE = (True,)
_ReentrantLock: Any = type(threading.RLock())


class Lock(_ReentrantLock):  # type: ignore[misc]  # a type without a public name
    """A reentrant lock, as that of ``threading``, which an interrupt cannot leave held.

    Example:
        >>> lock = Lock()
        >>> with lock:
        ...     pass
    """

    __slots__ = ()

    def __enter__(self) -> None:
        [_] = map(self.acquire, _ONCE)  # not a plain call, see above

    def is_free(self, seconds: float = 0) -> bool:
        """Wait until no other thread holds the lock.

        Args:
            seconds: the longest time to wait; 0 only looks.

        Returns:
            False if the time was over first.
        """
        answers: list[bool] = []
        try:
            # Stored before a handler is called.
            answers.extend(map(self.acquire, _ONCE, (max(0.0, seconds),)))
            return answers[0]
        finally:
            if answers == [True]:
                self.release()


class Signal:
    """Wakes up one thread. Once set, it stays so until a thread has waited for it.

    ``set`` may be called anywhere, also by a finalizer. An interrupt of ``wait`` may take the
    signal away. So a thread looks for what it waits for before each wait.

    Example:
        >>> signal = Signal()
        >>> signal.set()
        >>> signal.wait(), signal.wait(0.001)
        (True, False)
    """

    __slots__ = ("_lock",)

    def __init__(self) -> None:
        self._lock = threading.Lock()  # held unless the signal is set
        self._lock.acquire()

    def set(self) -> None:
        """Sets the signal, if it is not set."""
        if self._lock.locked():
            try:
                self._lock.release()
            except RuntimeError:  # another thread has just set it
                pass

    def clear(self) -> None:
        """Takes the signal away, if it is set."""
        self._lock.acquire(blocking=False)

    def wait(self, seconds: float = -1) -> bool:
        """Waits until the signal is set, and takes it away.

        Args:
            seconds: the longest time to wait; -1 for no limit.

        Returns:
            False if the time was over first.
        """
        return self._lock.acquire(timeout=seconds)
