"""The elements of a source of tokens, and the places of their tokens."""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from gristmill.core.locks import Lock
from gristmill.sources.storage import forks
from gristmill.sources.storage.errors import damaged
from gristmill.sources.storage.files import Files
from gristmill.sources.storage.per_process import PerProcess
from gristmill.sources.tokens.megatron_index import MegatronIndex, spans
from gristmill.sources.tokens.tables import FileTable, Range, Table


class Layout(Protocol):
    """Elements by number."""

    def __len__(self) -> int: ...

    def ranges(self, keys: Sequence[int], /) -> list[list[Range]]:
        """Returns the places of the tokens of each element, in their order; all keys are numbers of
        elements.
        """
        ...


class Run(NamedTuple):
    """The tokens of one file, which are contiguous."""

    number: int
    start: int  # byte
    num_tokens: int


class Documents:
    """One element for each document of Megatron's files."""

    def __init__(self, files: Files, indexes: Sequence[MegatronIndex]) -> None:
        self._files, self._indexes = files, indexes
        self._starts = [0, *itertools.accumulate(index.num_documents for index in indexes)]

    def __len__(self) -> int:
        return self._starts[-1]

    def ranges(self, keys: Sequence[int]) -> list[list[Range]]:
        if len(keys) == 1 and keys[0] < self._starts[1] and self._indexes[0].has_one_sequence_each:
            return [[self._indexes[0].span_of(keys[0])]]
        places: list[tuple[MegatronIndex, int]] = []
        ends = []  # of each document's sequences among all
        for key in keys:
            part = bisect_right(self._starts, key) - 1
            index, document = self._indexes[part], key - self._starts[part]
            if index.has_one_sequence_each:
                places.append((index, document))
            else:
                places += [(index, sequence) for sequence in index.sequences_of(document)]
            ends.append(len(places))
        found = spans(self._files, places)
        return [found[start:end] for start, end in zip([0, *ends], ends, strict=False)]


class Windows:
    """Windows of ``window`` tokens over the files one after the other, each ``step`` tokens after
    the one before.
    """

    def __init__(self, runs: Sequence[Run], itemsize: int, window: int, step: int) -> None:
        self._runs, self._itemsize = [run for run in runs if run.num_tokens], itemsize
        self._window, self._step = window, step
        self._starts = [0, *itertools.accumulate(run.num_tokens for run in self._runs)]
        self._length = max(0, (self._starts[-1] - window) // step + 1)

    def __len__(self) -> int:
        return self._length

    def ranges(self, keys: Sequence[int]) -> list[list[Range]]:
        return [self._tokens(key * self._step, key * self._step + self._window) for key in keys]

    def _tokens(self, start: int, stop: int) -> list[Range]:
        starts, itemsize = self._starts, self._itemsize
        part = bisect_right(starts, start) - 1
        found = []
        while start < stop:
            run, end = self._runs[part], min(stop, starts[part + 1])
            first = run.start - starts[part] * itemsize
            found.append((run.number, first + start * itemsize, first + end * itemsize))
            start, part = end, part + 1
        return found


class Chunks:
    """Windows that follow one another within each file; what is left at its end is not used."""

    def __init__(self, runs: Sequence[Run], itemsize: int, window: int) -> None:
        self._runs, self._bytes = (
            [run for run in runs if run.num_tokens >= window],
            itemsize * window,
        )
        self._starts = [0, *itertools.accumulate(run.num_tokens // window for run in self._runs)]

    def __len__(self) -> int:
        return self._starts[-1]

    def ranges(self, keys: Sequence[int]) -> list[list[Range]]:
        found = []
        for key in keys:
            part = bisect_right(self._starts, key) - 1
            run = self._runs[part]
            start = run.start + (key - self._starts[part]) * self._bytes
            found.append([(run.number, start, start + self._bytes)])
        return found


class Reordered:
    """The elements of another layout, by a table of their numbers."""

    def __init__(self, layout: Layout, table: Tables) -> None:
        self._layout, self._table = layout, table

    def __len__(self) -> int:
        return self._table.num_rows

    def ranges(self, keys: Sequence[int]) -> list[list[Range]]:
        (table,) = self._table.get()
        numbers = [int(rows[0]) for rows in table.rows([(key, key + 1) for key in keys])]
        for key, number in zip(keys, numbers, strict=True):
            if not 0 <= number < len(self._layout):
                what = f"element {key} is window {number}, but the files have {len(self._layout)}"
                raise self._table.damaged(0, key, what)
        return self._layout.ranges(numbers)


class Samples:
    """Megatron's samples: windows over the documents in a shuffled order, in a shuffled order.

    Args:
        files: the files.
        index: the data set.
        window: how many tokens a sample has.
        tables: ``document_index``, ``sample_index`` and ``shuffle_index`` as ``GPTDataset`` calls
            them. Element ``i`` is sample ``s = shuffle_index[i]``; it begins at token ``t`` of
            document ``document_index[p]``, ``p, t = sample_index[s]``. Its last token is the one at
            which sample ``s + 1`` begins.
    """

    def __init__(self, files: Files, index: MegatronIndex, window: int, tables: Tables) -> None:
        self._files, self._index, self._window, self._tables = files, index, window, tables

    def __len__(self) -> int:
        return self._tables.num_rows

    def ranges(self, keys: Sequence[int]) -> list[list[Range]]:
        documents, samples, shuffle = self._tables.get()
        numbers = [int(rows[0]) for rows in shuffle.rows([(key, key + 1) for key in keys])]
        for key, number in zip(keys, numbers, strict=True):
            if not 0 <= number < len(samples) - 1:
                raise self._tables.damaged(
                    2, key, f"element {key} is sample {number}, but there are {len(samples) - 1}"
                )
        bounds = [
            rows.tolist() for rows in samples.rows([(number, number + 2) for number in numbers])
        ]
        for number, ((first, _), (last, _)) in zip(numbers, bounds, strict=True):
            if not 0 <= first <= last < len(documents):
                what = (
                    f"sample {number} has the documents from {first} to {last} of {len(documents)}"
                )
                raise self._tables.damaged(1, number, what)
        members = documents.rows([(first, last + 1) for (first, _), (last, _) in bounds])
        found = iter(self._spans(bounds, members))
        answer = []
        for number, ((_, begin), (_, end)), sequences in zip(numbers, bounds, members, strict=True):
            answer.append(
                self._cut(number, list(itertools.islice(found, len(sequences))), begin, end)
            )
        return answer

    def _spans(self, bounds: list[Any], members: list[NDArray[Any]]) -> list[Range]:
        for ((first, _), _), sequences in zip(bounds, members, strict=True):
            for place, sequence in enumerate(sequences.tolist(), first):
                if not 0 <= sequence < self._index.num_sequences:
                    what = (
                        f"document {sequence} is named, but the data set has"
                        f" {self._index.num_sequences}"
                    )
                    raise self._tables.damaged(0, place, what)
        return self._index.spans(
            [sequence for sequences in members for sequence in sequences.tolist()]
        )

    def _cut(self, number: int, ranges: list[Range], begin: int, end: int) -> list[Range]:
        """Returns the documents of a sample without what is before token ``begin`` of the first and
        after ``end`` of the last.
        """
        itemsize = self._index.dtype.itemsize
        data, start, stop = ranges[-1]
        ranges[-1] = data, start, min(stop, start + (end + 1) * itemsize)
        data, start, stop = ranges[0]
        ranges[0] = data, start + begin * itemsize, stop
        num_bytes = sum(stop - start for _, start, stop in ranges)
        if (
            begin < 0
            or end < 0
            or num_bytes != self._window * itemsize
            or any(stop < start for _, start, stop in ranges)
        ):
            what = f"sample {number} has {num_bytes // itemsize} tokens, not {self._window}"
            raise self._tables.damaged(1, number, what)
        return ranges


class Tables(PerProcess):
    """Tables that are in files, or are computed in each process when they are first needed; not
    pickled then.

    1. Threads that need them at the same time wait for one that computes them.
    2. A thread that has them keeps them; nothing is ever replaced.

    Args:
        num_rows: how many elements they give an order to.
        compute: computes them, or
        stored: they are there already.
        files: the files that stored ones are in, for messages.
        numbers: which of them.
    """

    _of_process = ("_found", "_lock")

    def __init__(
        self,
        num_rows: int,
        compute: Callable[[], Sequence[Table]] | None = None,
        stored: Sequence[FileTable] | None = None,
        files: Files | None = None,
        numbers: Sequence[int] = (),
    ) -> None:
        self.num_rows = num_rows
        self._compute, self._stored, self._files, self._numbers = compute, stored, files, numbers
        self._start_closed()

    def _start_closed(self) -> None:
        self._found: Sequence[Table] | None = self._stored
        self._lock = Lock()
        super()._start_closed()

    def get(self) -> Sequence[Table]:
        found = self._found
        if found is None:
            if self._fork != forks.number:
                self._start_closed()
            with self._lock:
                found = self._found
                if found is None:
                    assert self._compute is not None
                    found = self._found = self._compute()
        return found

    def damaged(self, table: int, row: int, what: str) -> Exception:
        """Returns the error for a row that cannot be right."""
        assert self._stored is not None and self._files is not None, what
        path, remedy = (
            self._files.paths[self._numbers[table]],
            "Name the index that was made of these files and this window",
        )
        return damaged(path, self._stored[table].byte_of(row), what, remedy)


def shuffled_numbers(length: int, seed: int) -> NDArray[np.uint32]:
    """Returns the order in which OLMo trains on ``length`` chunks in the epoch for which its seed
    and its epoch add up to ``seed``.
    """
    numbers = np.arange(length, dtype=np.uint32)
    # As OLMo's, this order is NumPy's: a test would notice a version that shuffles otherwise.
    np.random.Generator(np.random.PCG64(seed)).shuffle(numbers)
    return numbers
