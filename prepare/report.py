"""The report that ``write`` returns, and the progress bar that it shows."""

from __future__ import annotations

import contextlib
import importlib
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.locks import Lock, Signal
from gristmill.core.value import Value
from gristmill.dataset.ahead.threads import start_thread
from gristmill.prepare.files import Finished, Folder
from gristmill.prepare.manifest import WrittenFile, WrittenPart

_SECONDS = 0.5  # between two looks at the files in work
_PLAIN_SECONDS = 5.0  # between two lines, without a bar


class WriteReport(Value):
    """Report of a call of ``write``, and of the folder as it is now. It prints as a line.

    Args:
        path: the folder, absolute, or its URL.
        format: the name of the format.
        codec: the name of the codec; ``None`` for formats that have their own types.
        complete: True if all files are there. False on a host whose shard is written while others
            are not.
        records: the records in the folder's finished files.
        bytes: the size of these files.
        files: these files, in the order of their records.
        new_records: the records that this call has written.
        new_bytes: the size of the files that this call has written.
        new_files: how many files this call has written.
        seconds: how long it took.
        faults: elements that ``tolerate`` has skipped: ``total``, and ``last`` with their record
            keys.
    """

    path: str
    format: str
    codec: str | None
    complete: bool
    records: int
    bytes: int
    files: Sequence[WrittenFile]
    new_records: int
    new_bytes: int
    new_files: int
    seconds: float
    faults: Mapping[str, Any]

    @property
    def records_per_second(self) -> float:
        """The records that this call has written in a second."""
        return self.new_records / self.seconds if self.seconds else 0.0

    def __str__(self) -> str:
        texts = ["nothing was to be written"]
        if self.new_files:
            rate = f"{self.seconds:.1f} s, {self.records_per_second:,.0f} records/s"
            texts = [
                f"wrote {counts_text(self.new_records, self.new_bytes, self.new_files)} in {rate}"
            ]
        texts.append(f"{self.path} has {counts_text(self.records, self.bytes, len(self.files))}")
        if self.faults.get("total"):
            texts.append(f"{self.faults['total']:,} elements were skipped")
        is_whole = f"read them with gristmill.read({self.path!r})"
        texts.append(is_whole if self.complete else "other hosts have not written all of theirs")
        return "; ".join(texts)


def is_shown(progress: bool | None) -> bool:
    """Returns True if a progress bar is wanted; for ``None``, if stderr is a terminal."""
    if progress is None:
        return sys.stderr is not None and sys.stderr.isatty()
    return progress


class ProgressBar:
    """Records, bytes, rate and time left, on a terminal, also of files that are not whole yet.

    Args:
        show: as for ``is_shown``.
        folder: where files are written.
        part: the plan of these files.
        num_files: the number of files at the end; ``None`` if that is not known.
        num_done: files that are there already.
    """

    def __init__(
        self,
        show: bool | None,
        folder: Folder,
        part: WrittenPart,
        num_files: int | None,
        num_done: int,
    ) -> None:
        self._is_shown = is_shown(show)
        self._folder, self._part = folder, part
        self._num_files, self._num_done, self._num_new = num_files, num_done, 0
        self._records = self._bytes = 0
        self._bar: Any = None
        self._lock, self._stop = Lock(), Signal()
        self._thread: threading.Thread | None = None
        self._start = time.monotonic()

    def add(self, done: Finished) -> None:
        """Counts a file that was written, with those that belong to it."""
        with self._lock:
            self._num_new += 1
            self._records += sum([file.records for file in done.files])
            self._bytes += sum([file.bytes for file in done.files])

    def text(self) -> tuple[float, str]:
        """Returns how many files are there, with fractions of those in work, and the counts.

        The records of a file in work are estimated from its size.
        """
        with self._lock:
            num_new, records, num_bytes = self._num_new, self._records, self._bytes
        in_work = self._folder.unfinished_sizes()
        mean = num_bytes / num_new if num_bytes else self._part.record_bytes * self._size
        fractions = sum([min(size / mean, 0.99) for size in in_work]) if mean else 0.0
        records += round(fractions * (records / num_new if num_new else self._size))
        rate = records / max(time.monotonic() - self._start, 1e-9)
        size = size_text(num_bytes + sum(in_work))
        counts = f"{records:,} records, {size}, {rate:,.0f} records/s"
        return self._num_done + num_new + fractions, counts

    @property
    def _size(self) -> int:
        return self._part.records_per_file

    def _show(self) -> None:
        num, counts = self.text()
        whole = "" if self._num_files is None else f"/{self._num_files:,}"
        counts = f"{int(num):,}{whole} files, {counts}"
        if self._bar is None:
            print(f"writing: {counts}", file=sys.stderr)
            return
        self._bar.n = num if self._num_files is None else min(num, self._num_files)
        self._bar.set_postfix_str(counts)

    def _show_often(self) -> None:
        while not self._stop.wait(_SECONDS if self._bar is not None else _PLAIN_SECONDS):
            self._show()

    def __enter__(self) -> ProgressBar:
        if self._is_shown:
            with contextlib.suppress(ImportError):
                tqdm = importlib.import_module("tqdm").tqdm  # which has no types
                text = "{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}"
                text = text if self._num_files else "{desc}: {elapsed}{postfix}"
                self._bar = tqdm(
                    total=self._num_files,
                    initial=self._num_done,
                    desc="writing",
                    file=sys.stderr,
                    bar_format=text,
                )
            self._thread = start_thread(self._show_often, "gristmill-progress", self._stop.set)
        return self

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._show()
        if self._bar is not None:
            self._bar.close()


def counts_text(num_records: int, num_bytes: int, num_files: int) -> str:
    """Returns counts for people.

    Example:
        >>> counts_text(1000, 3_200_000, 1)
        '1,000 records, 3.2 MB in 1 file'
    """
    files = f"{num_files:,} file{'' if num_files == 1 else 's'}"
    records = f"{num_records:,} record{'' if num_records == 1 else 's'}"
    return f"{records}, {size_text(num_bytes)} in {files}"


def size_text(num_bytes: float) -> str:
    """Returns a size for people.

    Example:
        >>> size_text(900), size_text(3_200_000)
        ('900 B', '3.2 MB')
    """
    for unit in ("B", "kB", "MB", "GB"):
        if num_bytes < 1000:
            return f"{num_bytes:.0f} B" if unit == "B" else f"{num_bytes:.1f} {unit}"
        num_bytes /= 1000
    return f"{num_bytes:.1f} TB"
