"""The report that ``write`` returns, and the progress bar that it shows."""

from __future__ import annotations

import contextlib
import importlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.value import Value
from gristmill.prepare.manifest import WrittenFile


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


class ProgressBar:
    """Records, bytes, rate and time left, on a terminal.

    Args:
        show: ``None``: if stderr is a terminal.
        num_files: files to write; ``None`` if that is not known.
        num_done: files that are there already.
    """

    def __init__(self, show: bool | None, num_files: int | None, num_done: int) -> None:
        self._bar: Any = None
        self._records = self._bytes = 0
        self._start = self._last = time.monotonic()
        if show or (show is None and sys.stderr is not None and sys.stderr.isatty()):
            with contextlib.suppress(ImportError):
                tqdm = importlib.import_module("tqdm").tqdm  # which has no types
                self._bar = tqdm(
                    total=num_files, initial=num_done, unit="file", desc="writing", file=sys.stderr
                )
        self._is_plain = bool(show) and self._bar is None

    def add(self, file: WrittenFile) -> None:
        """Counts a file that was written."""
        self._records += file.records
        self._bytes += file.bytes
        seconds = max(time.monotonic() - self._start, 1e-9)
        rate = f"{self._records / seconds:,.0f} records/s"
        text = f"{self._records:,} records, {size_text(self._bytes)}, {rate}"
        if self._bar is not None:
            self._bar.set_postfix_str(text, refresh=False)
            self._bar.update(1)
        elif self._is_plain and time.monotonic() - self._last > 1:
            self._last = time.monotonic()
            print(f"writing: {text}", file=sys.stderr)

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *_: object) -> None:
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
