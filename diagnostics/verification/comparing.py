"""True if a pipeline gives the same under a condition."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gristmill.core.state import state_from_text
from gristmill.diagnostics.verification.conditions import CannotRunError, Condition, Found
from gristmill.diagnostics.verification.outcomes import (
    Clock,
    Difference,
    StepOutcome,
    closed,
    error_outcome,
    first_difference,
    outcomes_of,
    recorded,
)
from gristmill.diagnostics.verification.subject import Subject, SubPipeline

_MAX_FOLLOWED = 3  # states that are written otherwise and are followed, to see where they lead
_FOLLOWED_STEPS = 8


@dataclass
class Comparison:
    """The result of comparing two runs.

    Args:
        difference: the first one; ``None`` if there is none.
        num: how many outcomes were compared.
        num_wanted: how many there were to compare.
    """

    difference: Difference | None
    num: int
    num_wanted: int


def base_of(
    condition: Condition, part: SubPipeline, num: int, seconds: float, pipeline: Any
) -> list[StepOutcome]:
    """Returns the outcomes of a pipeline as it is, which must be the same under ``condition``.

    Raises:
        CannotRunError: the condition does not apply.
    """
    subject, clock = Subject(pipeline, part), Clock(seconds)
    own = condition.base(subject, num, clock)
    return recorded(subject.open, num, clock) if own is None else own


def compared(
    condition: Condition,
    part: SubPipeline,
    base: Sequence[StepOutcome],
    seconds: float,
    pipeline: Any,
) -> Comparison | CannotRunError:
    """Returns what ``compare`` returns, or its ``CannotRunError``; runs in another process, too."""
    try:
        return compare(condition, Subject(pipeline, part), base, Clock(seconds))
    except CannotRunError as error:
        return error


def compare(
    condition: Condition, subject: Subject, base: Sequence[StepOutcome], clock: Clock
) -> Comparison:
    """Runs ``subject`` under ``condition``, and compares the outcomes with ``base``.

    Raises:
        CannotRunError: the condition does not apply.
    """
    seen: set[int] = set()
    others: list[tuple[int, Any, Any]] = []
    found: Difference | None = None
    for step, outcome in _found(condition, subject, base, clock):
        if step >= len(base):
            continue
        seen.add(step)
        expected = base[step]
        difference = first_difference(step, expected, outcome)
        if difference is not None and (found is None or step < found.step):
            found = difference
            if not condition.is_unordered:
                break
        if (
            condition.compares_states
            and outcome.state is not None is not expected.state
            and outcome.state != expected.state
        ):
            others.append((step, expected.state, outcome.state))
    if found is None:
        found = _different_places(others, condition.open(subject), clock) if others else None
    return Comparison(found, len(seen), len(base))


def _found(
    condition: Condition, subject: Subject, base: Sequence[StepOutcome], clock: Clock
) -> Found:
    """Yields the outcomes under a condition; an exception takes the place of the next outcome."""
    last = -1
    try:
        for last, outcome in condition.run(subject, base, clock):
            yield last, outcome
    except CannotRunError:
        raise
    except Exception as error:
        yield last + 1, error_outcome(error)


def _different_places(
    states: Sequence[tuple[int, Any, Any]], open_iterator: Callable[[], Any], clock: Clock
) -> Difference | None:
    """Returns the first of some pairs of states that do not lead to the same elements. How a state
    is written may vary with what an iterator has in memory.
    """
    for step, *pair in states[:_MAX_FOLLOWED]:
        if not all([isinstance(state, str) for state in pair]):
            continue  # too long to be kept
        following = [_following(open_iterator, state) for state in pair]
        for x, y in zip(*following, strict=False):
            if isinstance(x, str) or isinstance(y, str) or first_difference(step, x, y) is not None:
                shown = [text if len(text) <= 200 else f"{text[:200]}…" for text in pair]
                return Difference(step, "the state after it", (shown[0], shown[1]))
        if clock.is_over:
            break
    return None


def _following(open_iterator: Callable[[], Any], state: str) -> list[Any]:
    """Returns the elements after a state; the error as text if the state is refused."""
    it = None
    try:
        it = open_iterator()
        it.set_state(state_from_text(state, it))
        return list(itertools.islice(outcomes_of(it, with_states=False), _FOLLOWED_STEPS))
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]
    finally:
        closed(it)
