"""A log kept by an iterator that reads a map dataset in a worker, so that a record that kills the
process can be named.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gristmill.dataset.errors.context import pipeline_error
from gristmill.workers.crash_journal import CrashJournal
from gristmill.workers.protocol import Passed, Quarantine

if TYPE_CHECKING:
    from gristmill.dataset.engine.stream import Cell


class RootLog:
    """The records that one such iterator of a worker's pipeline is reading, and those that it must
    not read again.

    Args:
        book: where that is noted.
        number: which of these iterators of the pipeline it is.
        quarantine: how to continue after a worker that died.
    """

    def __init__(self, book: CrashJournal, number: int, quarantine: Quarantine | None) -> None:
        self._book = book
        self._number = number
        self._quarantine = quarantine
        self.is_careful = quarantine is not None
        self.is_silent = False  # what is read for outputs is not to be noted
        # where the iterator is in a block that it reads, and the end of that
        self.block: tuple[Cell, int] | None = None

    def note(self, start: int, stop: int) -> None:
        """Notes what is read, or was, for the output that is being computed."""
        if not self.is_silent:
            self._book.note(self._number, start, stop)

    def note_block(self) -> None:
        """Notes what is left of a block of which earlier outputs were made."""
        if self.block is not None and self.block[0].is_counting:
            self.note(self.block[0].settle(), self.block[1])

    def note_alone(self, index: int) -> None:
        """Notes the only element that is being read.

        Raises:
            RuntimeError: it is what killed a worker.
            Passed: nothing is left of what may have.
        """
        assert self._quarantine is not None
        refused = self._quarantine.refused.get((self._number, index))
        if refused is not None:
            raise pipeline_error(refused)
        until = self._quarantine.until
        if index >= until.get(self._number, index + 1):
            del until[self._number]
            if not until:  # the other iterators are behind theirs, too
                raise Passed
        self._book.note_alone(self._number, index)

    def enter(self, start: int, stop: int) -> int:
        """Notes what a thread reads ahead; returns what to give to ``leave`` afterwards."""
        return self._book.enter(self._number, start, stop)

    def leave(self, entry: int) -> None:
        self._book.leave(entry)
