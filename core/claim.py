"""Exclusive use of an object, without waiting."""

from __future__ import annotations


class Claim:
    """Whether nobody uses an object. Used like this, inline::

        try:
            del claim.is_free
        except AttributeError:
            raise RuntimeError("it is in use") from None
        try:
            ...
        finally:
            claim.is_free = True

    Law: of several threads, with or without the GIL, one at a time is between the two statements.
    Deleting an attribute of an object without ``__slots__`` is atomic. Neither statement calls
    anything, so an interrupt comes before both or after both. ``Lock.acquire`` is a call, after
    which an interrupt may come before its result is known.
    """

    def __init__(self) -> None:
        self.is_free = True
