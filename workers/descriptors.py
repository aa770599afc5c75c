"""File descriptors that this process holds for others."""

from __future__ import annotations

import contextlib
import os
from collections import deque


def close_all(fds: list[int]) -> None:
    """Closes descriptors and takes them out of their list; two threads may do so at once.

    One call of C: an interrupt between taking one and closing it would leave it open.
    """
    with contextlib.suppress(IndexError):
        deque(map(os.close, iter(fds.pop, None)), 0)


def above_standard(fd: int, stack: contextlib.ExitStack) -> int:
    """Returns the descriptor or, in a program whose standard streams are closed, a copy that is not
    in their place.
    """
    if fd > 2:
        return fd
    import fcntl

    copy = fcntl.fcntl(fd, fcntl.F_DUPFD_CLOEXEC, 3)
    stack.callback(os.close, copy)
    return copy
