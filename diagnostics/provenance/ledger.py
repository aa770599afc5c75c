"""``Ledger``: a file that says where a stream was before each of its steps.

Two files. ``PATH`` has a header and one record of ``_RECORD.size`` bytes for every ``every`` steps,
at the place that follows from the step: the step, the offset of the state before it in the other
file, its length and checksum, and a checksum of the record. ``PATH.states`` has these states, one
after another, each with its step; and those that were requested in between.

Guarantees:

1. A record that is there is whole: the state is written before it, and data that does not agree
   with its checksum is ignored.
2. A step is recorded before its output is computed, so no output is lost if the record cannot be
   written. At the end of a stream there is no record of the output that would follow.
3. A step that is known already is compared, and not written again. If it differs, it and all later
   ones are written again.
"""

from __future__ import annotations

import json
import os
import struct
import weakref
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gristmill.core.errors import as_int
from gristmill.core.state import shown, state_to_line
from gristmill.diagnostics.provenance.following import (
    FollowedIterator,
    FollowedLoaderIterator,
    followed,
)

_HEADER = struct.Struct("<20sIQ")  # what it is, the number of the form, every
_MAGIC = b"gristmill ledger\n\0\0\0"
_FORM = 1
# step, offset and length of the state, its checksum, that of the fields before, unused
_RECORD = struct.Struct("<QQIIII")
_CHECKED = 24  # bytes of a record that its checksum is of
_FRAME = struct.Struct("<4sQII")  # before each state: a mark, the step, length and checksum
_MARK = b"\xfestp"  # cannot be in a state, which is text
_STEP_END = 12


class Ledger:
    """A file with the place of a stream before each step, so that ``explain`` can find the records
    of any past output.

    Args:
        path: the file; it is made if missing, and continued if it exists. ``PATH.states``
            is beside it.
        every: steps from one record to the next, at least 1. ``explain`` runs the steps from the
            record before the requested one: more than 1 writes less and takes longer to
            answer.

    Raises:
        TypeError: ``path`` is no path, or ``every`` no integer.
        ValueError: ``every`` is not positive, or the file is no ledger, or one with another
            ``every``.

    Example:
        >>> import os, tempfile
        >>> from gristmill import MapDataset, explain
        >>> path = os.path.join(tempfile.mkdtemp(), "ledger")
        >>> ds = MapDataset.range(20).to_iter_dataset().filter(lambda x: x % 3 == 0).batch(2)
        >>> for batch in Ledger(path).follow(iter(ds)):
        ...     print(batch)
        [0 3]
        [6 9]
        [12 15]
        [18]
        >>> [row.records[0].record_key for row in explain(ds, step=2, ledger=path).rows]
        [12, 15]
    """

    def __init__(self, path: str | os.PathLike[str], every: int = 1) -> None:
        self.path = Path(path)
        self._states_path = self.path.with_name(f"{self.path.name}.states")
        self.every = as_int("every", every, minimum=1)
        known = _every_of(self.path)
        if known not in (None, self.every):
            raise ValueError(
                f"every must be {known}, as in the ledger {self.path} that is there, got {every}:"
                " or take another path"
            )
        self._files: tuple[int, int] | None = None  # open while something is written
        self._closing: Any = None

    def __repr__(self) -> str:
        return f"Ledger({str(self.path)!r}, every={self.every})"

    def follow(
        self, iterator: Any, *, step: int | None = None
    ) -> FollowedIterator | FollowedLoaderIterator:
        """Returns an iterator of the same elements and states that writes where it is, step by
        step.

        It is a ``DatasetIterator`` or ``DataLoaderIterator``, as ``iterator`` is: checkpoints,
        ``observe`` and ``explain`` take it. The ledger looks up the number of the next step by the
        state, now and after each ``set_state``. An unknown state gives the number only if no stage
        may drop elements.

        Args:
            iterator: of a dataset or ``DataLoader``.
            step: the number of the next output, where the ledger cannot know it: it was begun after
                a restart.

        Raises:
            TypeError: ``iterator`` is not one of a dataset or ``DataLoader``.
            ValueError: the ledger has no record of the state, and it is not that of a new iterator:
                give ``step``.
        """
        return followed(self, iterator, step)

    def steps(self) -> Iterator[int]:
        """Yields the steps that are recorded, in order."""
        for number in range(self._num_records()):
            if self._record(number) is not None:
                yield number * self.every

    def state_at(self, step: int) -> Any:
        """Returns the state before ``step``; ``None`` if it is not recorded."""
        text = self._text_at(step)
        if text is None:
            return None
        return text[1:] if text[:1] == b"b" else json.loads(text[1:])

    def state_before(self, step: int) -> tuple[int, Any]:
        """Returns the last step up to ``step`` that has a whole record, and the state before it.

        These are ``(0, None)``, the beginning, if no record is whole.

        Raises:
            IndexError: ``step`` was not made while the ledger was written.
        """
        last = step // self.every
        if not self._is_written(last):
            known = self._num_records() * self.every
            has = f"has records of steps below {known}" if known else "has no records"
            raise IndexError(
                f"there is no output {step} in {self}, which {has}: give a step that was made while"
                " the ledger was written"
            )
        for number in range(last, -1, -1):
            state = self.state_at(number * self.every)
            if state is not None:
                return number * self.every, state
        return 0, None

    def step_of(self, text: bytes) -> int | None:
        """Returns the last step before which the encoded state was ``text``, of those that are
        recorded or were saved.
        """
        content = self._states_path.read_bytes() if self._states_path.exists() else b""
        wanted = _FRAME.pack(_MARK, 0, *_checks(text))[_STEP_END:] + text
        place = content.rfind(wanted)
        while place >= _STEP_END:
            mark, step, *_ = _FRAME.unpack_from(content, place - _STEP_END)
            if mark == _MARK:
                return int(step)
            place = content.rfind(wanted, 0, place + len(wanted) - 1)
        return None

    def note(self, step: int, text: bytes) -> int:
        """Writes that the encoded state before ``step`` is ``text``, for ``step_of``; returns its
        offset.
        """
        file = self._opened()[1]
        offset = os.fstat(file).st_size
        _write(file, _FRAME.pack(_MARK, step, *_checks(text)) + text, offset)
        return offset + _FRAME.size

    def note_unless_recorded(self, step: int, text: bytes) -> None:
        """Writes down what ``step_of`` would not find otherwise."""
        if self._text_at(step) != text:
            self.note(step, text)

    def encoded(self, state: Any) -> bytes:
        """Returns a state as it is written: text of a ``DataLoader``, or JSON."""
        return b"b" + state if isinstance(state, bytes) else b"j" + state_to_line(state).encode()

    def write(self, step: int, text: bytes) -> bool:
        """Records ``text``, the encoded state before ``step``; returns false if already done."""
        if self._text_at(step) == text:
            return False
        offset = self.note(step, text)
        self.forget(step)  # other data, or another pipeline, from here on; or a torn record
        fields = _RECORD.pack(step, offset, *_checks(text), 0, 0)[:_CHECKED]
        record = fields + struct.pack("<II", zlib.crc32(fields), 0)
        _write(self._opened()[0], record, self._place(step))
        return True

    def forget(self, step: int) -> None:
        """Removes the records of ``step`` and all later ones."""
        file, place = self._opened()[0], self._place(step)
        if os.fstat(file).st_size > place:
            os.ftruncate(file, place)

    def close(self) -> None:
        """Closes the files; they are opened again when something is written. May be called
        again.
        """
        if self._closing is not None:
            self._closing()
        self._files = self._closing = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def _opened(self) -> tuple[int, int]:
        """Returns the file and that of the states, to be written to."""
        if self._files is None:
            file, states = (
                os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
                for path in (self.path, self._states_path)
            )
            self._files = file, states
            self._closing = weakref.finalize(self, _close, self._files)
            try:
                if os.fstat(file).st_size < _HEADER.size:
                    _write(file, _HEADER.pack(_MAGIC, _FORM, self.every), 0)
            except BaseException:
                self.close()  # or the header would stay as it is
                raise
        return self._files

    def _read(self, path: Path, offset: int, num: int) -> bytes:
        if self._files is None:
            return _read(path, offset, num)
        return os.pread(self._files[path is self._states_path], num, offset)

    def _num_records(self) -> int:
        if self._files is None:
            size = self.path.stat().st_size if self.path.exists() else 0
        else:
            size = os.fstat(self._files[0]).st_size
        return max(0, size - _HEADER.size) // _RECORD.size  # a torn record is ignored

    def _place(self, step: int) -> int:
        return _HEADER.size + step // self.every * _RECORD.size

    def _is_written(self, number: int) -> bool:
        """Returns true if there is a record, whole or damaged; a missing one reads as zeros."""
        return number < self._num_records() and any(
            self._read(self.path, self._place(number * self.every), _RECORD.size)
        )

    def _record(self, number: int) -> tuple[int, int, int] | None:
        """Offset, length and checksum of a state."""
        packed = self._read(self.path, self._place(number * self.every), _RECORD.size)
        if len(packed) < _RECORD.size:
            return None
        step, offset, length, checksum, own, _ = _RECORD.unpack(packed)
        if own != zlib.crc32(packed[:_CHECKED]) or step != number * self.every:
            return None
        return offset, length, checksum

    def _text_at(self, step: int) -> bytes | None:
        number, rest = divmod(step, self.every)
        is_recorded = not rest and 0 <= number < self._num_records()
        record = self._record(number) if is_recorded else None
        if record is None:
            return None
        offset, length, checksum = record
        text = self._read(self._states_path, offset, length)
        return text if len(text) == length and zlib.crc32(text) == checksum else None


def as_ledger(ledger: Any) -> Ledger:
    """Returns a ``Ledger``, or that at a path, which must be there."""
    if isinstance(ledger, Ledger):
        return ledger
    if not isinstance(ledger, str | os.PathLike):
        raise TypeError(
            f"ledger must be a Ledger or its path, got {shown(ledger)} of type"
            f" {type(ledger).__name__}"
        )
    if not Path(ledger).exists():
        raise FileNotFoundError(f"there is no ledger {Path(ledger)}")
    return Ledger(ledger, _every_of(Path(ledger)) or 1)


def _every_of(path: Path) -> int | None:
    """Returns the number of steps between records of the ledger at ``path``; ``None`` if no ledger
    was begun there.
    """
    header = _read(path, 0, _HEADER.size)
    if len(header) < _HEADER.size:
        if not _MAGIC.startswith(header[: len(_MAGIC)]):
            raise ValueError(f"{path} is no ledger: give another path")
        return None
    magic, form, every = _HEADER.unpack(header)
    if magic != _MAGIC or form != _FORM or not every:
        raise ValueError(f"{path} is no ledger, or one of a later version: give another path")
    return int(every)


def _close(files: tuple[int, int]) -> None:
    for file in files:
        os.close(file)


def _checks(text: bytes) -> tuple[int, int]:
    return len(text), zlib.crc32(text)


def _write(file: int, content: bytes, offset: int) -> None:
    """Writes all of ``content``, of which one call may write only a part."""
    while content:
        num = os.pwrite(file, content, offset)
        content, offset = content[num:], offset + num


def _read(path: Path, offset: int, num: int) -> bytes:
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            return file.read(num)
    except FileNotFoundError:
        return b""
