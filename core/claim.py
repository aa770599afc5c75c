"""Exclusive use of an object, without waiting."""

from __future__ import annotations


class Claim:
    """Right to use an object, which one thread has at a time. Used inline::

        try:
            del claim.is_free
        except AttributeError:
            raise RuntimeError("it is in use") from None
        try:
            ...
        finally:
            claim.is_free = True

    Law: one thread at a time is between the two statements, with and without the GIL. Deleting an
    attribute is atomic, unless the class has ``__slots__``. An interrupt never leaves the claim
    taken: neither statement calls anything, and interrupts come after calls. (After
    ``Lock.acquire``, which is a call, an interrupt may come before its result is known.)
    """

    def __init__(self) -> None:
        self.is_free = True
