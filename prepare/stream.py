"""Streams that are computed from their beginning: files of a fixed number of elements, in order.

With what is known of a file is the state of the stream after it, from which the next file is
written after an interruption.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

from gristmill.core.state import state_from_text, state_to_text
from gristmill.prepare.files import FileWriter, Finished
from gristmill.prepare.ranges import NO_FAULTS, faults_of, records_of_last

_END = object()


def write_stream(
    writer: FileWriter,
    ds: Any,
    first_file: int,
    records_per_file: int,
    progress: Callable[[Finished], None],
) -> list[Finished]:
    """Writes the files of a stream that are not written yet. The caller holds its lock.

    Args:
        writer: of the folder.
        ds: the stream.
        first_file: the number of its first file.
        records_per_file: elements of a file; the last one may have fewer.
        progress: called with each file that was written.

    Returns:
        all files of the stream.
    """
    done = finished_files(writer, first_file)
    if done and (done[-1].is_last or done[-1].state is None):  # None: another has completed it
        return done
    with closing(iter(ds)) as it:
        if done:
            it.set_state(state_from_text(done[-1].state or "", it))
        head: list[Any] = []  # the element that showed that the stream had not ended
        while not (done and done[-1].is_last):
            done.append(_next_file(writer, it, head, first_file, len(done), records_per_file))
            progress(done[-1])
    return done


def finished_files(writer: FileWriter, first_file: int) -> list[Finished]:
    """Returns what is known of the files of a stream that are written."""
    found: list[Finished] = []
    while not (found and found[-1].is_last):
        done = writer.finished(first_file + len(found))
        if done is None:
            break
        found.append(done)
    return found


def _next_file(
    writer: FileWriter, it: Any, head: list[Any], first_file: int, num_done: int, size: int
) -> Finished:
    state: list[str] = []

    def elements() -> Iterator[Any]:
        yield from head
        yield from itertools.islice(it, size - len(head))
        state.append(state_to_text(it.get_state()))
        head[:] = [*itertools.islice(it, 1)]

    return writer.write(
        first_file + num_done,
        elements(),
        lambda: faults_of(it) if hasattr(it, "faults") else NO_FAULTS,
        lambda place: f"element {num_done * size + place} of the stream{records_of_last(it)}",
        lambda: (state[0], not head),
    )
