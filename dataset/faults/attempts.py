"""The notes of a thread while it computes one element of a map dataset in which stages tolerate
faults.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping
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


# how many elements fail, by the number of the stage and the index
Known = Mapping[tuple[str, int], int]


class Attempt(threading.local):
    """The element that the current thread computes.

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
        passes_on: whether observers outside of the context have them too.
    """
    outer, current.events = current.events, []
    try:
        yield current.events
    finally:
        events, current.events = current.events, outer
        if passes_on and outer is not None:
            outer += events


class Reports(dict[int, list[Event]]):
    """Takes the events of stages that were copied for one reader, by thread.

    No context is entered for each element, which takes longer than to look whether this is empty.
    """

    __slots__ = ()

    def here(self) -> list[Event]:
        """Return the list of events of this thread."""
        return self.setdefault(threading.get_ident(), [])

    def take(self) -> list[Event]:
        """Return the events of this thread, and forget them."""
        return self.pop(threading.get_ident(), [])


def events_here(reports: Reports | None) -> list[Event] | None:
    """Return the list that takes the events of a stage; ``None`` if they are not needed."""
    return current.events if reports is None else reports.here()


class Outcome:
    """An element in whose computation something failed, with the events."""

    __slots__ = ("element", "events")
    stands_for_another = True

    def __init__(self, element: object, events: list[Event]) -> None:
        self.element, self.events = element, events
