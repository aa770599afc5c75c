"""The index of a Megatron data set: a file ``.idx`` that says where in the file ``.bin`` beside it
each sequence is.

Its layout, little-endian: the magic ``MMIDIDX\\0\\0``, the version 1 (8 bytes), the code of the
dtype (1 byte), the number of sequences ``n`` and the number ``m`` of entries in the list of
documents (8 bytes each); then ``n`` lengths in tokens (int32), ``n`` places in bytes (int64), and
``m`` numbers of sequences (int64): document ``d`` has the sequences from entry ``d`` to below entry
``d + 1``. Data sets for language models have one sequence for each document.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gristmill.sources.storage.errors import DamagedFileError, damaged
from gristmill.sources.storage.files import Files
from gristmill.sources.tokens.megatron_faults import (
    Entries,
    fault_of_picked,
    flipped_document,
    size_of_tokens,
)
from gristmill.sources.tokens.tables import Range

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_LENGTH, _POINTER, _PAIR = struct.Struct("<i"), struct.Struct("<q"), struct.Struct("<qq")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_FLOATS = {6: "float64", 7: "float32"}
_CHUNK = 1 << 20  # lengths read together
_MAX_CHECKED = 1 << 22  # sequences of an index that is checked as a whole: 80 MB
_MAX_CHECKED_AFAR = 1 << 16  # the same in a store or on a server: 1.3 MB
_WHOLE_STRETCH = 1 << 18  # sequences of such an index that are read together
_BREAKS_OF_AN_ENTRY = 2  # the most that one wrong entry makes: before and after it
_NUM_STRETCHES, _STRETCH = 16, 1 << 11  # of an index that has more sequences
_NOT_FOR_WINDOWS = (
    "Take the index that was written with these tokens; one that picks some of them can be read by"
    " documents"
)
_WRITE_AGAIN = "Copy both files again, or write the data set again"


class _Breaks(NamedTuple):
    """Number of entries that do not follow the previous one; the byte and a text of the first."""

    number: int
    place: int
    first: str
    is_mostly_filled: bool  # most of these sequences have tokens


class MegatronIndex:
    """One pair of files.

    An index of up to ``_MAX_CHECKED`` sequences (``_MAX_CHECKED_AFAR`` in a store) is checked as a
    whole, and a longer one in stretches. If the sequences in these follow one another, with at most
    one exception, each read of an entry checks that it fits its two neighbours.

    Args:
        files: the files that they are two of.
        data, index: the numbers of the files ``.bin`` and ``.idx`` among them.

    Raises:
        DamagedFileError: the file is no index, is cut short, or ends elsewhere than the file of
            tokens allows.
    """

    def __init__(self, files: Files, data: int, index: int) -> None:
        self._files, self.data, self._index = files, data, index
        self._path, self._size = files.paths[index], files.sizes[index]
        self.num_bytes = files.sizes[data]
        self.dtype, self.num_sequences, self._num_entries = self._read_header()
        self._itemsize = self.dtype.itemsize
        self._pointers = _HEADER.size + 4 * self.num_sequences
        self._documents = self._pointers + 8 * self.num_sequences
        # document d is sequence d
        self.has_one_sequence_each = self._num_entries - 1 == self.num_sequences
        self._check_size()
        self._check_documents()
        self._fits_neighbours = False  # each entry that is read must
        max_checked = _MAX_CHECKED if files.is_local(index) else _MAX_CHECKED_AFAR
        self._is_long = self.num_sequences > max_checked

    def _read_header(self) -> tuple[np.dtype[Any], int, int]:
        (head,) = self._files.read([(self._index, 0, min(self._size, _HEADER.size))])
        if not head.startswith(_MAGIC[: len(head)]) or not head:
            what = "it does not begin as an index of Megatron's does"
            raise self._damaged(0, what, "Name the prefix of a pair .bin and .idx")
        if len(head) < _HEADER.size:
            raise self._damaged(len(head), "it ends within its header")
        _, version, code, num_sequences, num_entries = _HEADER.unpack(head)
        if version != 1:
            what = f"it has the version {version}, and 1 is known"
            raise self._damaged(9, what, "Write the data set by a newer Megatron")
        if code in _FLOATS:
            raise ValueError(
                f"paths: tokens must be integers, got {_FLOATS[code]} in"
                f" {self._files.paths[self.data]}, as {self._path} says. Read such values by"
                " numpy.memmap"
            )
        if code not in _DTYPES:
            known = ", ".join(f"{code} ({np.dtype(name).name})" for code, name in _DTYPES.items())
            raise self._damaged(17, f"its tokens have the type {code}, and known are {known}")
        return np.dtype(_DTYPES[code]), num_sequences, num_entries

    def _check_size(self) -> None:
        size = self._documents + 8 * self._num_entries
        if self._size == size + self.num_sequences != size:
            modes = (
                "it has a mode for each sequence, as data sets of texts and images do, which are"
                " not read"
            )
            raise self._damaged(size, modes, "Take a data set of texts")
        if self._size != size:
            what = f"its header says that it has {size} bytes, but it has {self._size}"
            raise self._damaged(min(size, self._size), what)

    def _check_documents(self) -> None:
        first, last = self._documents, self._documents + 8 * (self._num_entries - 1)
        if self._num_entries:
            begin, end = self._files.read(
                [(self._index, place, place + 8) for place in (first, last)]
            )
            if _PAIR.unpack(begin + end) == (0, self.num_sequences):
                return
        what = f"its documents are not those of its {self.num_sequences} sequences"
        raise self._damaged(first, what)

    def _damaged(self, offset: int, what: str, remedy: str = _WRITE_AGAIN) -> DamagedFileError:
        return damaged(self._path, offset, what, remedy)

    @property
    def num_documents(self) -> int:
        return self._num_entries - 1

    def check_is_gapless(self) -> None:
        """Checks that sequences follow one another from the first token to the last, for windows.

        Raises:
            DamagedFileError: they do not, in what is checked of the index.
        """
        found = self._breaks()
        if found.number:
            raise self._damaged(found.place, found.first, _NOT_FOR_WINDOWS)

    def check_documents(self) -> None:
        """Checks the places of sequences that are read one by one.

        They may be picked from the file, repeated, and in any order (see ``fault_of_picked``).

        Raises:
            DamagedFileError: the index is damaged.
        """
        found = self._breaks()
        if self._is_long:
            self._fits_neighbours = found.number <= _BREAKS_OF_AN_ENTRY and found.is_mostly_filled
            return
        if found.number:
            (entries,) = self._read_stretches([(0, self.num_sequences)])
            if (fault := fault_of_picked(entries, self.num_bytes, self._itemsize)) is not None:
                raise self._damaged(
                    self._pointers + 8 * fault[0], f"{fault[1]} of {self._files.paths[self.data]}"
                )
        (table,) = self._files.read(
            [(self._index, self._documents, self._documents + 8 * self._num_entries)]
        )
        numbers = np.frombuffer(table, "<i8")
        if self.has_one_sequence_each:  # or some are empty
            others = np.flatnonzero(numbers != np.arange(len(numbers)))
            if (what := flipped_document(numbers, others)) is not None:
                raise self._damaged(self._documents + 8 * int(others[0]), what)
            self.has_one_sequence_each = not len(others)
        is_wrong = numbers[1:] < numbers[:-1]
        if is_wrong.any():
            self.sequences_of(int(np.argmax(is_wrong)))  # raises

    def _breaks(self) -> _Breaks:
        """Returns the number of entries that do not follow the previous one.

        Raises:
            DamagedFileError: an entry is not within the file of tokens.
        """
        path, begin, end, number, num_filled, num_seen = self._files.paths[self.data], 0, 0, 0, 0, 0
        place, first = self._pointers, ""
        for stretch in self._stretches():
            if stretch.first == 0:
                begin = int(stretch.starts[0])
                size = size_of_tokens(stretch, self.num_bytes, self._itemsize)
                if size != self._itemsize:
                    what = f"its tokens are {self.dtype.name}, but have {size} bytes each in {path}"
                    raise self._damaged(17, what)
            end = int(stretch.ends[-1])
            is_break = stretch.ends[:-1] != stretch.starts[1:]
            if not number and is_break.any():
                i = int(np.argmax(is_break))
                place += 8 * (stretch.first + i + 1)
                first = (
                    f"sequence {stretch.first + i} ends at byte {stretch.ends[i]} of {path}, and"
                    f" the next begins at {stretch.starts[i + 1]}"
                )
            number += int(is_break.sum())
            num_filled += int(np.count_nonzero(stretch.lengths))
            num_seen += len(stretch.lengths)
        if begin or end != self.num_bytes:
            number += (begin != 0) + (end != self.num_bytes)
            place = self._pointers
            first = (
                f"its sequences lie in the bytes from {begin} to {end} of {path}, which has"
                f" {self.num_bytes}"
            )
        return _Breaks(number, place, first, 2 * num_filled > num_seen)

    def _stretches(self) -> Iterator[Entries]:
        """Yields the whole index in stretches that overlap by one sequence.

        For a long index it yields some stretches, among them the first and the last.
        """
        num = self.num_sequences
        if self._is_long:
            firsts = np.linspace(0, num - _STRETCH, _NUM_STRETCHES).astype(np.int64).tolist()
            yield from self._read_stretches([(first, first + _STRETCH) for first in firsts])
            return
        for first in range(0, max(num - 1, min(num, 1)), _WHOLE_STRETCH):
            yield from self._read_stretches([(first, min(first + _WHOLE_STRETCH + 1, num))])

    def _read_stretches(self, bounds: Sequence[tuple[int, int]]) -> Iterator[Entries]:
        tables = ((_HEADER.size, 4), (self._pointers, 8))
        places = [
            (self._index, begin + size * a, begin + size * b)
            for a, b in bounds
            for begin, size in tables
        ]
        pieces = iter(self._files.read(places))
        for first, _ in bounds:
            lengths, starts = np.frombuffer(next(pieces), "<i4"), np.frombuffer(next(pieces), "<i8")
            ends = starts + lengths.astype(np.int64) * self._itemsize
            is_wrong = (np.minimum(lengths, starts) < 0) | (starts % self._itemsize != 0)
            is_wrong |= np.maximum(starts, ends) > self.num_bytes
            if is_wrong.any():
                i = int(np.argmax(is_wrong))
                raise self._misplaced(first + i, int(lengths[i]), int(starts[i]))
            yield Entries(first, lengths, starts, ends)

    def _misplaced(self, sequence: int, num_tokens: int, start: int) -> DamagedFileError:
        where = f"{self._files.paths[self.data]}, which has {self.num_bytes} bytes"
        what = f"sequence {sequence} has {num_tokens} tokens from byte {start} on of {where}"
        within = " and tokens of more than one" if start % self._itemsize else ""
        return self._damaged(self._pointers + 8 * sequence, what + within)

    def entry(self, sequence: int) -> list[Range]:
        """Returns the places of the length and pointer of a sequence, and of checked neighbours."""
        first, stop, number = sequence, sequence + 1, self._index
        if self._fits_neighbours:
            first, stop = max(first - 1, 0), min(stop + 1, self.num_sequences)
        length, pointer = _HEADER.size, self._pointers
        return [
            (number, length + 4 * first, length + 4 * stop),
            (number, pointer + 8 * first, pointer + 8 * stop),
        ]

    def span(self, sequence: int, lengths: bytes, pointers: bytes) -> Range:
        """Returns the place of the tokens of a sequence, from its entry.

        Raises:
            DamagedFileError: it is not within the file of tokens, or not between its neighbours.
        """
        if len(lengths) > _LENGTH.size:
            return self._span_between(sequence, lengths, pointers)
        (num_tokens,), (start,) = _LENGTH.unpack(lengths), _POINTER.unpack(pointers)
        stop = start + num_tokens * self._itemsize
        if start < 0 or num_tokens < 0 or stop > self.num_bytes or start % self._itemsize:
            raise self._misplaced(sequence, num_tokens, start)
        return self.data, start, stop

    def _span_between(self, sequence: int, lengths: bytes, pointers: bytes) -> Range:
        count, is_first = len(lengths) // _LENGTH.size, sequence == 0
        nums, starts = struct.unpack(f"<{count}i", lengths), struct.unpack(f"<{count}q", pointers)
        place = 0 if is_first else 1
        start = starts[place]
        stop = start + nums[place] * self._itemsize
        begin = 0 if is_first else starts[0] + nums[0] * self._itemsize
        end = self.num_bytes if place + 1 == count else starts[place + 1]
        if nums[place] < 0 or (start, stop) != (begin, end):
            what = (
                f"sequence {sequence} has the bytes from {start} to {stop} of"
                f" {self._files.paths[self.data]}, and its neighbours"
            )
            raise self._damaged(
                self._pointers + 8 * sequence, f"{what} leave those from {begin} to {end} for it"
            )
        return self.data, start, stop

    def span_of(self, sequence: int) -> Range:
        """Returns the place of the tokens of one sequence. Raises: as ``span``."""
        lengths, pointers = self._files.read(self.entry(sequence))
        return self.span(sequence, lengths, pointers)

    def spans(self, sequences: Sequence[int]) -> list[Range]:
        """Returns the places of the tokens of sequences. Raises: as ``span``."""
        return spans(self._files, [(self, sequence) for sequence in sequences])

    def sequences_of(self, document: int) -> range:
        """Returns the sequences of a document."""
        place = self._documents + 8 * document
        (pair,) = self._files.read([(self._index, place, place + 16)])
        start, stop = _PAIR.unpack(pair)
        if not 0 <= start <= stop <= self.num_sequences:
            what = f"document {document} has the sequences from {start} to {stop} of"
            raise self._damaged(place, f"{what} {self.num_sequences}")
        return range(start, stop)

    def lengths(self, start: int, stop: int) -> NDArray[np.int32]:
        """Returns the lengths of the sequences from ``start`` to ``stop - 1``, in tokens; read into
        memory.
        """
        found = np.empty(stop - start, "<i4")
        if len(found):
            self._files.read_into(self._index, _HEADER.size + 4 * start, found.view(np.uint8).data)
            if found.min() < 0:
                place = start + int(np.argmax(found < 0))
                raise self._damaged(
                    _HEADER.size + 4 * place, f"sequence {place} has {found[place - start]} tokens"
                )
        return found

    def num_tokens(self, start: int, stop: int) -> int:
        """Returns the number of tokens of the sequences from ``start`` to ``stop - 1``."""
        parts = (
            self.lengths(place, min(place + _CHUNK, stop)) for place in range(start, stop, _CHUNK)
        )
        found = sum(int(part.sum(dtype=np.int64)) for part in parts)
        if self._fits_neighbours and start < stop:
            (_, begin, _), (_, _, end) = self.spans([start, stop - 1])
            if end - begin != found * self._itemsize:
                what = (
                    f"the sequences from {start} to {stop - 1} have {found} tokens, but lie in the"
                    f" bytes from {begin} to {end}"
                )
                raise self._damaged(
                    _HEADER.size + 4 * start, f"{what} of {self._files.paths[self.data]}"
                )
        return found

    def mapped_lengths(self) -> NDArray[np.int32]:
        """Returns all lengths, as a memory map of a local file: for programs that go through all of
        them.
        """
        return np.memmap(
            self._files.local_path(self._index), "<i4", "r", _HEADER.size, (self.num_sequences,)
        )


def spans(files: Files, places: Sequence[tuple[MegatronIndex, int]]) -> list[Range]:
    """Returns the places of the tokens of sequences, each of an index; looked up together."""
    entries: list[Range] = []
    for index, sequence in places:
        entries += index.entry(sequence)
    pieces = files.read(entries)
    return [
        index.span(sequence, pieces[2 * i], pieces[2 * i + 1])
        for i, (index, sequence) in enumerate(places)
    ]
