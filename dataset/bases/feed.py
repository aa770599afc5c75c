"""What iterators that give one element after the other raise beside errors of users' functions."""

from __future__ import annotations

from typing import Any

from gristmill.dataset.telling.failures import tell_at_last


class StopInStream(Exception):
    """A generator must not raise ``StopIteration``, which is the cause of this."""


class OneByOne(Exception):
    """Several elements were asked for: whoever did takes them one by one now, as after any error."""


def what_failed(error: BaseException) -> BaseException:
    """What a stream has met that raises ``error``."""
    return error.__cause__ if isinstance(error, StopInStream) and error.__cause__ is not None else error


def failed_at_last(error: Exception, stage: Any, it: Any) -> None:
    """Notes at ``error`` that ``stage`` has raised it with the element that the iterator ``it`` gave last."""
    tell_at_last(error, stage, it)
    if isinstance(error, StopIteration):
        raise StopInStream from error
