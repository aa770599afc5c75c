"""File descriptors, of which a process may have few.

Guarantees:

1. If no descriptor is left (``EMFILE``, ``ENFILE``) for a call by ``with_descriptors``, idle
   resources are closed and the call is made again: first files between two reads, then worker
   processes that wait for another iterator. The error is raised, with the remedy, only if that does
   not suffice.
2. A function that releases may run in any thread that opens something, and in several at once.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable
from typing import TypeVar

from gristmill.core.errors import add_note

T = TypeVar("T")

_releases: list[Callable[[], object]] = []


def release_when_scarce(release: Callable[[], object], *, first: bool = False) -> None:
    """Register ``release`` to be called when descriptors run out, before others if ``first``."""
    _releases.insert(0 if first else len(_releases), release)


def with_descriptors(opened: Callable[[], T]) -> T:
    """Return ``opened()``, called again after each release while descriptors are lacking.

    Args:
        opened: opens something, and leaves nothing open if it raises.

    Raises:
        OSError: ``opened`` raised it. It has a note if descriptors are still lacking.
    """
    for release in _releases:
        try:
            return opened()
        except OSError as error:
            if not is_scarcity(error):
                raise
        release()
    try:
        return opened()
    except OSError as error:
        if is_scarcity(error):
            add_note(
                error,
                f"This process may have {max_descriptors()} files, sockets and pipes open at a"
                " time. Let it have more (ulimit -n), or close() iterators and files that are not"
                " needed: each worker process takes 3 or 4.",
            )
        raise


def is_scarcity(error: OSError) -> bool:
    """Return True if this process, or the system, may have no more descriptors."""
    return error.errno in (errno.EMFILE, errno.ENFILE)


def max_descriptors() -> int:
    """Return how many descriptors this process may have open at a time."""
    try:
        import resource
    except ImportError:  # Windows
        return sys.maxsize
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return sys.maxsize if limit == resource.RLIM_INFINITY else limit
