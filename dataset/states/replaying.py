"""Steps that take elements again when they are restored, and mixtures that would give them others.

A window, a bin, a batch that is being cut is not in a state: the state says where it began, and it
is filled again from there. A mixture with other weights or components fills it with other elements;
some would come twice, others never.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from gristmill.core.errors import StateMismatchError


class _Replaying(threading.local):
    # must be replayed, and by which stage, while this thread restores the stages upstream of it
    what: str | None = None


_replaying = _Replaying()


@contextlib.contextmanager
def replaying(step: object, what: str | None) -> Iterator[None]:
    """Mark that the parents of ``step`` are being restored, of which it holds ``what``, a part of a
    sentence; ``None``: nothing.
    """
    outer = _replaying.what
    _replaying.what = outer if what is None else f"{step} holds {what}"
    try:
        yield
    finally:
        _replaying.what = outer


def refuse_replay(mixture: object, change: str) -> None:
    """Raises ``StateMismatchError`` if a stage downstream of ``mixture``, which is another one by
    ``change``, replays elements.
    """
    if _replaying.what is not None:
        raise StateMismatchError(
            f"{mixture} has {change} than when the state was taken, and {_replaying.what}: filled"
            " again from another mixture, some elements would come twice and others never. Restore"
            " with the earlier weights and components, or mix downstream of that stage"
        )
