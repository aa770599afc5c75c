"""Streams that are computed from their beginning: files of a fixed number of elements, in order.

With what is known of a file is the state of the stream after it, from which the next file is
written after an interruption, or after another process has written this one.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from gristmill.core.sharding import ShardOptions
from gristmill.core.state import state_from_text, state_to_text
from gristmill.prepare.files import FileWriter, Finished, stem_of
from gristmill.prepare.ranges import NO_FAULTS, faults_of, records_of_last


class StreamJob:
    """Writes the files of a stream, from the first to the last.

    Args:
        writer: of the folder.
        first_file: the number of the first file.
        records_per_file: elements of a file; the last one may have fewer.
        shard: which of the files this host writes. It computes those of other hosts, too, except
            for files that are written by the time it reaches them.
    """

    def __init__(
        self, writer: FileWriter, first_file: int, records_per_file: int, shard: ShardOptions
    ) -> None:
        self._writer = writer
        self._first = first_file
        self._size = records_per_file
        self._shard = shard

    def finished(self) -> list[Finished]:
        """Returns what is known of the files that are written, up to the first that is not."""
        found: list[Finished] = []
        while not (found and found[-1].is_last):
            done = self._writer.finished(self._first + len(found))
            if done is None:
                break
            found.append(done)
        return found

    def write(self, ds: Any, progress: Callable[[Finished], None]) -> list[Finished]:
        """Writes the files of this host that are not written. Returns those that it has written.

        Args:
            ds: the stream.
            progress: called with each file that was written.
        """
        new: list[Finished] = []
        with closing(iter(ds)) as it:
            stream = _Stream(it, self._size)
            for place in itertools.count():
                done, is_new = self._found_or_written(stream, place)
                if done is None:  # of another host
                    for _ in stream.elements():
                        pass
                    if stream.is_at_end:
                        break
                    continue
                if is_new:
                    new.append(done)
                    progress(done)
                else:
                    stream.jump(done.state)
                if done.is_last or done.state is None:  # None: another call has completed them all
                    break
        return new

    def _found_or_written(self, stream: _Stream, place: int) -> tuple[Finished | None, bool]:
        """Returns what is known of a file, and True if this call has written it."""
        number = self._first + place
        if place % self._shard.shard_count != self._shard.shard_index:
            return self._writer.finished(number), False
        with self._writer.folder.lock(stem_of(number)):
            done = self._writer.finished(number)
            return (self._written(stream, place), True) if done is None else (done, False)

    def _written(self, stream: _Stream, place: int) -> Finished:
        def name(i: int) -> str:
            return f"element {place * self._size + i} of the stream{records_of_last(stream.it)}"

        def ended() -> tuple[str | None, bool]:
            return stream.state_after, stream.is_at_end

        number = self._first + place
        return self._writer.write(number, stream.elements(), stream.faults, name, False, ended)


class _Stream:
    """A stream at the beginning of a file.

    Args:
        it: its iterator.
        size: elements of a file.

    Attributes:
        state_after: the state after the elements of the last file, as text.
    """

    def __init__(self, it: Any, size: int) -> None:
        self.it = it
        self.state_after: str | None = None
        self._size = size
        self._head: list[Any] = []  # the element that showed that the stream had not ended
        self._jump: str | None = None

    @property
    def is_at_end(self) -> bool:
        """True if no element follows those of the last file."""
        return not self._head

    def jump(self, state: str | None) -> None:
        """Continue after elements that another call has written."""
        self._jump = state

    def elements(self) -> Iterator[Any]:
        """Yield the elements of the next file."""
        if self._jump is not None:
            self.it.set_state(state_from_text(self._jump, self.it))
            self._jump, self._head = None, []
        yield from self._head
        yield from itertools.islice(self.it, self._size - len(self._head))
        self.state_after = state_to_text(self.it.get_state())
        self._head = [*itertools.islice(self.it, 1)]

    def faults(self) -> Any:
        """Returns what was skipped so far."""
        return faults_of(self.it) if hasattr(self.it, "faults") else NO_FAULTS
