"""The index of a Megatron data set: a file ``.idx`` that says where in the file ``.bin`` beside it each sequence lies.

Its layout, little-endian: the magic ``MMIDIDX\\0\\0``, the version 1 (8 bytes), the code of the dtype (1 byte), the number of
sequences ``n`` and the number ``m`` of entries in the list of documents (8 bytes each); then ``n`` lengths in tokens (int32),
``n`` places in bytes (int64), and ``m`` numbers of sequences (int64): document ``d`` has the sequences from entry ``d`` to below
entry ``d + 1``. Data sets for language models have one sequence for each document.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.sources.storage.errors import DamagedFileError, damaged
from gristmill.sources.storage.files import Files
from gristmill.sources.tokens.tables import Range

_MAGIC = b"MMIDIDX\0\0"
_HEADER = struct.Struct("<9sQBQQ")
_LENGTH, _POINTER, _PAIR = struct.Struct("<i"), struct.Struct("<q"), struct.Struct("<qq")
_DTYPES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
_CHUNK = 1 << 20  # lengths read together
_NUM_CHECKED = 16  # neighbours, at least
_NOT_FOR_WINDOWS = "Take the index that was written with these tokens; one that picks some of them can be read by documents"
_WRITE_AGAIN = "Copy both files again, or write the data set again"


class MegatronIndex:
    """One pair of files.

    Args:
        files: the files that they are two of.
        data: the number of the file ``.bin``.
        index: the number of the file ``.idx``.

    Raises:
        DamagedFileError: the index is none, is cut short, or ends elsewhere than the file of tokens allows.
    """

    def __init__(self, files: Files, data: int, index: int) -> None:
        self._files, self.data, self._index = files, data, index
        self._path, self._size = files.paths[index], files.sizes[index]
        self.num_bytes = files.sizes[data]
        self.dtype, self.num_sequences, self._num_entries = self._read_header()
        self._itemsize = self.dtype.itemsize
        self._pointers = _HEADER.size + 4 * self.num_sequences
        self._documents = self._pointers + 8 * self.num_sequences
        self.has_one_sequence_each = self._num_entries - 1 == self.num_sequences  # document d is sequence d
        self._check_size()
        self._check_documents()
        self.end = self.spans([self.num_sequences - 1])[0][2] if self.num_sequences else 0

    def _read_header(self) -> tuple[np.dtype[Any], int, int]:
        (head,) = self._files.read([(self._index, 0, min(self._size, _HEADER.size))])
        if not head.startswith(_MAGIC[: len(head)]) or not head:
            raise self._damaged(0, "it does not begin as an index of Megatron's does", "Name the prefix of a pair .bin and .idx")
        if len(head) < _HEADER.size:
            raise self._damaged(len(head), "it ends within its header")
        _, version, code, num_sequences, num_entries = _HEADER.unpack(head)
        if version != 1:
            raise self._damaged(9, f"it has the version {version}, and 1 is known", "Write the data set by a newer Megatron")
        if code not in _DTYPES:
            known = ", ".join(f"{code} ({np.dtype(name).name})" for code, name in _DTYPES.items())
            raise self._damaged(17, f"its tokens have the type {code}, and known are {known}", _WRITE_AGAIN)
        return np.dtype(_DTYPES[code]), num_sequences, num_entries

    def _check_size(self) -> None:
        size = self._documents + 8 * self._num_entries
        if self._size == size + self.num_sequences != size:
            modes = "it has a mode for each sequence, as data sets of texts and images do, which are not read"
            raise self._damaged(size, modes, "Take a data set of texts")
        if self._size != size:
            raise self._damaged(min(size, self._size), f"its header says that it has {size} bytes, but it has {self._size}")

    def _check_documents(self) -> None:
        first, last = self._documents, self._documents + 8 * (self._num_entries - 1)
        if self._num_entries:
            begin, end = self._files.read([(self._index, place, place + 8) for place in (first, last)])
            if _PAIR.unpack(begin + end) == (0, self.num_sequences):
                return
        raise self._damaged(first, f"its documents are not those of its {self.num_sequences} sequences")

    def _damaged(self, offset: int, what: str, remedy: str = _WRITE_AGAIN) -> DamagedFileError:
        return damaged(self._path, offset, what, remedy)

    @property
    def num_documents(self) -> int:
        return self._num_entries - 1

    def check_is_gapless(self) -> None:
        """Checks what windows over the file of tokens rely on: sequences follow one another from its begin to its end.

        Only some neighbours are looked at. Indexes that pick sequences or have them in another order are noticed, but for those
        that do so in few places.

        Raises:
            DamagedFileError: it is not so.
        """
        begin = self.spans([0])[0][1] if self.num_sequences else 0
        if begin or self.end != self.num_bytes:
            where = f"{self._files.paths[self.data]}, which has {self.num_bytes}"
            what = f"its sequences lie in the bytes from {begin} to {self.end} of {where}"
            raise self._damaged(self._pointers, what, _NOT_FOR_WINDOWS)
        firsts = range(0, self.num_sequences - 1, max(1, (self.num_sequences - 1) // _NUM_CHECKED))
        found = self.spans([sequence for first in firsts for sequence in (first, first + 1)])
        for first, (_, _, end), (_, begin, _) in zip(firsts, found[::2], found[1::2], strict=True):
            if begin != end:
                what = f"sequence {first} ends at byte {end} of {self._files.paths[self.data]}, and the next begins at {begin}"
                raise self._damaged(self._pointers + 8 * first + 8, what, _NOT_FOR_WINDOWS)

    def entry(self, sequence: int) -> list[Range]:
        """Where the length and the place of a sequence are."""
        length, pointer, number = _HEADER.size + 4 * sequence, self._pointers + 8 * sequence, self._index
        return [(number, length, length + 4), (number, pointer, pointer + 8)]

    def span(self, sequence: int, length: bytes, pointer: bytes) -> Range:
        """Where the tokens of a sequence are, from its entry.

        Raises:
            DamagedFileError: not within the file of tokens.
        """
        (num_tokens,), (start,) = _LENGTH.unpack(length), _POINTER.unpack(pointer)
        stop = start + num_tokens * self._itemsize
        if start < 0 or num_tokens < 0 or stop > self.num_bytes:
            where = f"{self._files.paths[self.data]}, which has {self.num_bytes} bytes"
            what = f"sequence {sequence} has {num_tokens} tokens from byte {start} on of {where}"
            raise self._damaged(self._pointers + 8 * sequence, what)
        return self.data, start, stop

    def spans(self, sequences: Sequence[int]) -> list[Range]:
        """Where the tokens of sequences are. Raises: as ``span``."""
        return spans(self._files, [(self, sequence) for sequence in sequences])

    def sequences_of(self, document: int) -> range:
        """The sequences of a document."""
        place = self._documents + 8 * document
        (pair,) = self._files.read([(self._index, place, place + 16)])
        start, stop = _PAIR.unpack(pair)
        if not 0 <= start <= stop <= self.num_sequences:
            raise self._damaged(place, f"document {document} has the sequences from {start} to {stop} of {self.num_sequences}")
        return range(start, stop)

    def lengths(self, start: int, stop: int) -> NDArray[np.int32]:
        """The lengths of the sequences from ``start`` to ``stop - 1``, in tokens; read into memory."""
        found = np.empty(stop - start, "<i4")
        if len(found):
            self._files.read_into(self._index, _HEADER.size + 4 * start, found.view(np.uint8).data)
            if found.min() < 0:
                place = start + int(np.argmax(found < 0))
                raise self._damaged(_HEADER.size + 4 * place, f"sequence {place} has {found[place - start]} tokens")
        return found

    def num_tokens(self, start: int, stop: int) -> int:
        """How many tokens the sequences from ``start`` to ``stop - 1`` have."""
        parts = (self.lengths(place, min(place + _CHUNK, stop)) for place in range(start, stop, _CHUNK))
        return sum(int(part.sum(dtype=np.int64)) for part in parts)

    def mapped_lengths(self) -> NDArray[np.int32]:
        """All lengths, as a memory map of a local file: for programs that go through all of them."""
        return np.memmap(self._files.local_path(self._index), "<i4", "r", _HEADER.size, (self.num_sequences,))


def spans(files: Files, places: Sequence[tuple[MegatronIndex, int]]) -> list[Range]:
    """Where the tokens of sequences are, each of an index; looked up together."""
    entries: list[Range] = []
    for index, sequence in places:
        entries += index.entry(sequence)
    pieces = files.read(entries)
    return [index.span(sequence, pieces[2 * i], pieces[2 * i + 1]) for i, (index, sequence) in enumerate(places)]
