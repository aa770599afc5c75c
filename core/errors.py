"""Errors that teach, and the checks that raise them.

A message says which parameter is wrong, what it got, what is allowed and, where it is not obvious,
what to do.
"""

from __future__ import annotations

import json
import math
import operator
from typing import Any


class StateMismatchError(ValueError):
    """An iterator state does not fit the pipeline it was given to; the iterator is unchanged."""


class StateKeyError(StateMismatchError, KeyError):
    """A state lacks a key of its layout."""

    __str__ = Exception.__str__  # KeyError would show the repr of the message


class StateIndexError(StateMismatchError, IndexError):
    """A state names a position outside the data."""


class StateTextError(StateMismatchError, json.JSONDecodeError):
    """The text of a state is no JSON."""


class FeatureKeyError(KeyError, ValueError):
    """An element lacks a feature that an argument of a stage names; Grain raises ``KeyError``."""

    __str__ = Exception.__str__  # KeyError would show the repr of the message


class FaultBudgetError(RuntimeError):
    """More elements failed than ``tolerate`` allows; asking again raises it again.

    Args:
        message: which limit was exceeded, and the faults.
        last: the last of them, each with ``record_key``, ``stage`` and ``error``.
    """

    def __init__(self, message: str, last: tuple[Any, ...] = ()) -> None:
        super().__init__(message)
        self.last = last


class KeyRangeError(IndexError, ValueError):
    """A record key outside a source. Grain raises ``ValueError`` for it, Python's protocols expect
    ``IndexError``.
    """


def key_out_of_range(key: int, length: int) -> KeyRangeError:
    """Return the error for a key outside a source of ``length`` records."""
    return KeyRangeError(f"record key must be in [0, {length}), the number of records, got {key}")


class SliceTypeError(TypeError, ValueError):
    """Something that is no slice. Grain raises ``ValueError`` for it."""


def as_int(name: str, value: Any, *, minimum: int | None = None, maximum: int | None = None) -> int:
    """Returns ``value`` as a built-in ``int``.

    Args:
        name: the parameter's name, for the message.
        value: anything with ``__index__`` (Python and NumPy integers, ``bool``).
        minimum: smallest allowed value.
        maximum: largest allowed value.

    Raises:
        TypeError: ``value`` is not an integer.
        ValueError: it is out of range.

    Example:
        >>> as_int("batch_size", 0, minimum=1)
        Traceback (most recent call last):
        ...
        ValueError: batch_size must be a positive integer, got 0
    """
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(
            f"{name} must be an integer, got {value!r} of type {type(value).__name__}"
        ) from None
    if (minimum is not None and number < minimum) or (maximum is not None and number > maximum):
        if maximum is not None:
            allowed = f"an integer in [{'-inf' if minimum is None else minimum}, {maximum}]"
        else:
            allowed = {0: "a non-negative integer", 1: "a positive integer"}.get(
                minimum or 0, f"at least {minimum}"
            )
        raise ValueError(f"{name} must be {allowed}, got {number}")
    return number


def check_word(name: str, value: Any, *words: str | None) -> None:
    """Refuses ``value`` if it is not one of ``words``, also if it is an array that is equal to one.

    Raises:
        ValueError: it is not one of them.

    Example:
        >>> check_word("then", ["skip"], "skip", "replace")
        Traceback (most recent call last):
        ...
        ValueError: then must be 'skip' or 'replace', got ['skip']
    """
    if not isinstance(value, str | None) or value not in words:
        *others, last = map(repr, words)
        raise ValueError(f"{name} must be {', '.join(others)} or {last}, got {value!r:.200}")


def as_seconds(name: str, value: Any, *, minimum: float = 0.0) -> float:
    """Returns ``value``, a time, as a ``float``.

    Args:
        name: the parameter's name, for the message.
        value: any real number.
        minimum: what it must not be less than.

    Raises:
        TypeError: ``value`` is not a number.
        ValueError: it is too small, infinite or not a number.

    Example:
        >>> as_seconds("seconds", 2)
        2.0
    """
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise TypeError(
            f"{name} must be a number of seconds, got {value!r:.200} of type {type(value).__name__}"
        )
    seconds = float(value)
    if not minimum <= seconds < math.inf:
        raise ValueError(
            f"{name} must be a finite number of seconds, at least {minimum:g}, got {value}"
        )
    return seconds


def add_note(error: BaseException, note: str) -> None:
    """Adds ``note`` to ``error``, as ``error.add_note`` does, also where that raises: at a frozen
    dataclass.

    Example:
        >>> error = ValueError("bad record")
        >>> add_note(error, "in file 3")
        >>> error.__notes__
        ['in file 3']
    """
    notes = vars(error).setdefault("__notes__", [])
    if isinstance(notes, list):
        notes.append(note)


def drop_notes_of_serializing(error: BaseException) -> None:
    """Drops the notes that pickle and json add from Python 3.14 on, except the last one.

    They add one for each enclosing object. If these are nested too deeply, cloudpickle raises
    another error, whose cause has the notes.
    """
    for each in (error, error.__cause__):
        notes = None if each is None else vars(each).get("__notes__")
        if isinstance(notes, list):
            added = [i for i, note in enumerate(notes) if str(note).startswith("when serializing ")]
            dropped = {*added[:-1]}
            notes[:] = [note for i, note in enumerate(notes) if i not in dropped]


class MissingPackageError(ImportError):
    """An optional dependency is not installed. Users know it as ``ImportError``."""


def missing_package(package: str, extra: str, purpose: str) -> MissingPackageError:
    """Returns the error for an optional dependency that is not installed.

    Example:
        >>> print(missing_package("jax", "jax", "device_put"))
        device_put needs the package jax, which is not installed; run: pip install 'gristmill[jax]'
    """
    return MissingPackageError(
        f"{purpose} needs the package {package}, which is not installed; run: pip install"
        f" 'gristmill[{extra}]'"
    )


class SourceEnded(Exception):
    """A source has raised ``StopIteration``: there is nothing at this key nor after it, and streams
    end here.
    """


def stop_iteration_error(source: str) -> RuntimeError:
    """Returns the error raised in place of a ``StopIteration`` that escapes from a user's function:
    it must not end the stream (as in PEP 479).
    """
    return RuntimeError(
        f"user code in {source} raised StopIteration, which would have ended the data silently; "
        "raise another exception, or catch it where it happens"
    )
