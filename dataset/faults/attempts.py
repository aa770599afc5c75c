"""What a thread notes while it computes one element of a map dataset in which stages tolerate faults."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from gristmill.dataset.faults.budget import Fault


class Event(NamedTuple):
    """Elements that failed in a stage when it was asked for the element at an index.

    Args:
        stage: the number of the stage (see ``Limits``).
        at: the index.
        num: how many elements failed: several, if replacements did.
        faults: of those that were not known from an earlier run.
        counts: false if another element of the dataset that is read counts them.
    """

    stage: str
    at: int
    num: int
    faults: tuple[Fault, ...]
    counts: bool = True


Known = Mapping[tuple[str, int], int]  # how many elements fail, by the number of the stage and the index


class Attempt(threading.local):
    """What the current thread computes.

    Attributes:
        events: takes the events; ``None`` if they are not needed.
        known: the events, where the element was computed before; ``None`` if it was not.
    """

    events: list[Event] | None = None
    known: Known | None = None


current = Attempt()


@contextlib.contextmanager
def noted_events(*, passes_on: bool = False) -> Iterator[list[Event]]:
    """Return the list of the events in this context.

    Args:
        passes_on: let those who note events outside of the context have them too.
    """
    outer, current.events = current.events, []
    try:
        yield current.events
    finally:
        events, current.events = current.events, outer
        if passes_on and outer is not None:
            outer += events


def note_events(events: Iterable[Event], *, count: bool) -> None:
    """Note events of an earlier computation; ``count`` is false if another element counts them."""
    if current.events is not None:
        current.events += events if count else [event._replace(counts=False) for event in events]
