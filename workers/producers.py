"""The interfaces of the objects that workers run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeAlias, TypeGuard

from gristmill.core.errors import add_note
from gristmill.workers.arena import Array, DType
from gristmill.workers.connections import Frugal
from gristmill.workers.crash_journal import CrashJournal
from gristmill.workers.protocol import Quarantine, States
from gristmill.workers.turns import Turns

# The next elements of a lane, the state after each, and the outcome: see ``Producer.take``.
Taken: TypeAlias = tuple[list[object], Sequence[object], BaseException | None]
Allocate: TypeAlias = Callable[[tuple[int, ...], DType], Array]
# The task of a worker: called with its index, the number of workers, and what allocates arrays.
Task: TypeAlias = "Callable[[int, int, Allocate | None], Producer]"


class Producer(Protocol):
    """Interface of the object that a worker runs. May also have the methods of the other interfaces
    of this module.
    """

    log: CrashJournal | None  # is set before the first start in a process
    place: str  # is set before the first start, if that is not on the consumer's machine

    def start(self, states: States, *, skip: bool) -> dict[int, object]:
        """Continues the lanes from these states (``None``: the beginning), the first one past its
        next element if ``skip``.

        Returns:
            The states then.
        """

    def take(self, lane: int, n: int) -> Taken:
        """The lane's next elements, at most ``n``, the state after each, and the outcome: error,
        ``StopIteration``, or more.
        """

    def add(self, lane: int, state: object) -> None:
        """Compute this lane, too, from ``state`` on."""

    def annotate(self, error: BaseException, lane: int, state: object) -> None:
        """Notes at an error where in the pipeline it came up; ``state`` is the lane's before the
        element that raised it.
        """


class WatchedProducer(Producer, Protocol):
    """A producer that shows what it is at."""

    quarantine: Quarantine | None  # is set before every start

    def begin(self, n: int) -> None:
        """Called before ``take(n)``: what was finished before is not to be shown any more."""

    def end(self) -> None:
        """Called when what ``take`` has given is ready to be sent: nothing of it can fail any
        more.
        """

    def take_beside(self, lane: int) -> Taken:
        """As ``take(lane, 1)``, while that is at another lane. Called by another thread."""

    def finished(self) -> tuple[Sequence[object], Sequence[object]]:
        """The elements that ``take`` has finished, and the states; as many as there are of both.
        Called by another thread.
        """


class Divided(Producer, Protocol):
    """A producer whose lanes may change."""

    def drain(self, lane: int) -> None:
        """Compute nothing more ahead for this lane."""

    def is_drained(self, lane: int) -> bool:
        """Return true if nothing is left of the lane that was computed ahead. Called between two
        blocks.
        """

    def remove(self, lane: int) -> None:
        """Release what the lane holds."""


class Renewed(Producer, Protocol):
    """A producer that serves one consumer after another."""

    def renew(self, task: Task) -> None:
        """Called before a start for another consumer, whose task is ``task``."""


class Sharing(Producer, Protocol):
    """A producer that may share its process."""

    def share(self, turns: Turns) -> None:
        """Called when there may be others in the process."""


class Closing(Producer, Protocol):
    """A producer that holds something."""

    def close(self) -> None:
        """Release it."""


def is_watched(producer: Producer) -> TypeGuard[WatchedProducer]:
    return hasattr(producer, "finished")


def is_divided(producer: Producer) -> TypeGuard[Divided]:
    return hasattr(producer, "drain")


def is_renewed(producer: Producer) -> TypeGuard[Renewed]:
    return hasattr(producer, "renew")


def is_sharing(producer: Producer) -> TypeGuard[Sharing]:
    return hasattr(producer, "share")


def is_closing(producer: Producer) -> TypeGuard[Closing]:
    return hasattr(producer, "close")


def is_frugal(producer: object) -> TypeGuard[Frugal]:
    return hasattr(producer, "hold")


class Failed:
    """The producer in place of one whose task could not be unpickled."""

    log: CrashJournal | None = None
    place = ""

    def __init__(self, error: BaseException) -> None:
        self._error = error

    @classmethod
    def to_start(cls, error: BaseException, index: int, count: int, place: str = "") -> Failed:
        """Return the producer of worker ``index`` of ``count``, whose start raised ``error``.

        Args:
            error, index, count: see above.
            place: the location of the worker, if it is not in a process of this machine.
        """
        if isinstance(error, Exception):
            name = f"worker {index} of {count}{place and ', '}{place}"
            add_note(error, f"Raised in {name}, when it was started.")
        return cls(error)

    def start(self, states: States, *, skip: bool) -> dict[int, object]:
        raise self._error

    def add(self, lane: int, state: object) -> None:
        raise self._error

    def take(self, lane: int, n: int) -> Taken:
        return [], [], self._error

    def annotate(self, error: BaseException, lane: int, state: object) -> None:
        pass
