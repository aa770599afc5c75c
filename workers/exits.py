"""The end of a process, found without a lock.

``Popen.poll`` and ``Popen.wait`` take one, which a signal handler that raises in their middle
leaves held forever.

Guarantees:

1. No call waits longer than it says, regardless of interrupts of calls before it, in this thread or
   another one.
2. How the process ended is not lost by an interrupt: it is requested and stored in one call of a
   function of C, in the middle of which no handler runs.
3. A process that has ended is sent no signal: another one may have its number by now.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from operator import itemgetter

SHORTEST_SECONDS = 0.0005  # between two looks; then twice as long each time
_LONGEST_SECONDS = 0.05

_process_id_of = itemgetter(0)  # 0 while the process runs


class Process(ABC):
    """A process with its exit watched."""

    @property
    def was_born(self) -> bool:
        """True if the process exists, or existed."""
        return True

    @property
    def was_lost(self) -> bool:
        """True if the process ended, or was never created, without being stopped by this one."""
        return False

    @property
    @abstractmethod
    def process_id(self) -> int: ...

    @abstractmethod
    def has_ended(self) -> bool:
        """True if the process has ended; does not wait."""

    @property
    @abstractmethod
    def exit_code(self) -> int | None:
        """Of a process that has ended: its exit code, or the number of the signal that ended it
        times -1; ``None``: unknown.
        """

    @abstractmethod
    def kill(self) -> None:
        """Ends it by force, without waiting."""

    @abstractmethod
    def forget(self) -> None:
        """Drop the process after a fork: the child does not own it."""

    def is_gone(self) -> bool:
        """Return True if the process runs no more, even if its exit status is not known yet."""
        return self.has_ended()

    def wait(self, seconds: float) -> bool:
        """True if the process ends within this time."""
        return _becomes_true(self.has_ended, seconds)

    def wait_until_gone(self, seconds: float) -> bool:
        """Wait for ``is_gone``; return False if that takes longer."""
        return _becomes_true(self.is_gone, seconds)

    def how_it_ended(self) -> str:
        """Return in words how the process ended."""
        code = self.exit_code
        if code is None:
            return (
                "ended in an unknown way: this program ignores SIGCHLD, or something in it waits"
                " for all child processes"
            )
        if code >= 0:
            return f"exited with code {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = "unknown"
        hint = ", as the system does when memory runs out" if -code == signal.SIGKILL else ""
        return f"was killed by signal {-code} ({name}{hint})"


def _becomes_true(condition: Callable[[], bool], seconds: float) -> bool:
    deadline, pause = time.monotonic() + seconds, SHORTEST_SECONDS
    while not condition():
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            return False
        time.sleep(min(pause, remaining))
        pause = min(2 * pause, _LONGEST_SECONDS)
    return True


class ChildProcess(Process):
    """Waits for a process in place of the ``Popen`` that has started it."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process_id = process.pid
        self._ends: list[tuple[int, int]] = []  # its id and status, when it has ended
        self._is_lost = False  # another thread has waited for it
        # so that it does not wait for it too, or warn that it was not waited for
        process.returncode = 0

    @property
    def process_id(self) -> int:
        return self._process_id

    def has_ended(self) -> bool:
        """True if the process has ended; does not wait."""
        if self._ends or self._is_lost:
            return True
        try:
            # one call (2)
            self._ends.extend(
                filter(_process_id_of, map(os.waitpid, [self._process_id], [os.WNOHANG]))
            )
        except ChildProcessError:
            # the program ignores SIGCHLD or waits for all its children; or another thread is just
            # here:
            time.sleep(SHORTEST_SECONDS)  # let it finish
            self._is_lost = True
        return bool(self._ends) or self._is_lost

    @property
    def exit_code(self) -> int | None:
        """See ``Process``."""
        return os.waitstatus_to_exitcode(self._ends[0][1]) if self._ends else None

    def kill(self) -> None:
        """See ``Process``."""
        if not self.has_ended():
            # another thread is waiting for it right now
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process_id, signal.SIGKILL)

    def forget(self) -> None:
        """See ``Process``."""
        self._is_lost = True
