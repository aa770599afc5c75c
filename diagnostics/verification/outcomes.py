"""The outcomes of a pipeline, step by step, and their comparison."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from gristmill.core.naming import one_line, without_addresses
from gristmill.dataset.descriptions.equality import Leaf, difference, digest_of, leaves_of

_MAX_STATE = 1 << 16  # characters of a state that are kept
_MAX_TEXT = 300
_END = "the end"


@dataclass(frozen=True, slots=True)
class StepOutcome:
    """An element, an error or the end.

    Args:
        leaves: what it is made of.
        is_last: nothing comes after it: it is an error or the end.
        state: the text of the state after it, or its digest if it is long; nothing if there is
            none.
    """

    leaves: tuple[Leaf, ...]
    is_last: bool = False
    state: str | bytes | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first difference between two runs.

    Args:
        step: at which output, from 0 on.
        leaf: where in it.
        values: that of the reference and the other one.
    """

    step: int
    leaf: str
    values: tuple[Any, Any]


class Clock:
    """When to stop."""

    def __init__(self, seconds: float) -> None:
        self.end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return max(0.0, self.end - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.end

    def part(self, share: float) -> Clock:
        """Returns one that stops after this share of what is left."""
        return Clock(self.left * share)


def element_outcome(element: Any, state: Any = None) -> StepOutcome:
    return StepOutcome(tuple(leaves_of(element)), False, state)


def end_outcome() -> StepOutcome:
    return StepOutcome((Leaf("", b"end", _END),), True)


def error_outcome(error: BaseException) -> StepOutcome:
    """Returns the outcome of an error: its type and text, without parts that differ between
    processes.
    """
    text = f"{type(error).__name__}: {one_line(without_addresses(str(error)), _MAX_TEXT)}"
    return StepOutcome((Leaf("", digest_of(text), f"raised {text}"),), True)


def state_text(it: Any) -> str | bytes | None:
    """Returns the state of an iterator as text; ``None`` if it has none."""
    try:
        state = it.get_state()
    except NotImplementedError:
        return None
    except Exception as error:  # of a user's iterator
        return digest_of(error_outcome(error).leaves[0].shown)
    try:
        text = state.decode() if isinstance(state, bytes) else json.dumps(state, sort_keys=True)
    except (TypeError, ValueError):  # no JSON
        return digest_of(state)
    return text if len(text) <= _MAX_STATE else digest_of(text)


def outcomes_of(it: Any, with_states: bool = True) -> Iterator[StepOutcome]:
    """Yields the outcomes of an iterator, up to the end or the first error."""
    while True:
        try:
            element = next(it)
        except StopIteration:
            yield end_outcome()
            return
        except Exception as error:
            yield error_outcome(error)
            return
        yield element_outcome(element, state_text(it) if with_states else None)


def recorded(
    open_iterator: Callable[[], Any], num: int, clock: Clock, with_states: bool = True
) -> list[StepOutcome]:
    """Returns the first ``num`` outcomes, or those that there is time for, at least one."""
    found: list[StepOutcome] = []
    try:
        it = open_iterator()
    except Exception as error:
        return [error_outcome(error)]
    try:
        for outcome in outcomes_of(it, with_states):
            found.append(outcome)
            if len(found) >= num or clock.is_over:
                break
    finally:
        closed(it)
    return found


def closed(it: Any) -> None:
    """Closes an iterator, if it can be closed."""
    if hasattr(it, "close"):
        it.close()


def first_difference(step: int, expected: StepOutcome, got: StepOutcome) -> Difference | None:
    """Returns the difference between two outcomes, ignoring states."""
    if expected.is_last != got.is_last:
        return Difference(step, "", (expected.leaves[0].shown, got.leaves[0].shown))
    found = difference(expected.leaves, got.leaves)
    return None if found is None else Difference(step, found[0], (found[1], found[2]))
