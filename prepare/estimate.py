"""``--dry-run``: how large, how long and how many files, from a sample."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from typing import Any

from gristmill.core.value import Value
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.length import AtMost, Exact, dataset_length
from gristmill.dataset.bases.map import MapDataset
from gristmill.prepare.planning import file_records
from gristmill.prepare.report import WriteReport, counts_text, size_text
from gristmill.prepare.writing import write

_FIRST_SAMPLE = 64
_SECONDS = 2.0  # that the second sample is to take
_MAX_SAMPLE = 100_000


class Estimate(Value):
    """The size and time of writing a pipeline, from a sample.

    Args:
        records: how many; ``None`` if the length of the pipeline is not known.
        bytes: the size of all files; ``None`` likewise.
        files: how many; ``None`` likewise.
        seconds: how long one process would take; ``None`` likewise.
        sample_records: the records of the sample.
        sample_bytes: their size in a file.
        sample_seconds: how long they took.
    """

    records: int | None
    bytes: int | None
    files: int | None
    seconds: float | None
    sample_records: int
    sample_bytes: int
    sample_seconds: float

    def __str__(self) -> str:
        num = max(self.sample_records, 1)
        size, milliseconds = size_text(self.sample_bytes / num), 1e3 * self.sample_seconds / num
        sample = f"{self.sample_records:,} records, {size} and {milliseconds:.3g} ms each"
        if self.records is None or self.bytes is None or self.files is None or self.seconds is None:
            return f"sample: {sample}; the number of elements is not known before the end"
        whole = counts_text(self.records, self.bytes, self.files)
        return f"sample: {sample}; all: about {whole}, {_time_text(self.seconds)} in one process"


def estimate(ds: Any, **arguments: Any) -> Estimate:
    """Write a sample of a pipeline into a folder that is removed; return what all of it gives.

    Args:
        ds: the pipeline.
        arguments: those of ``write`` that say how files are written.
    """
    length = dataset_length(ds)
    total = length.num if isinstance(length, Exact | AtMost) else None
    positions = min(_FIRST_SAMPLE, total or _FIRST_SAMPLE)
    report = _written_sample(ds, positions, arguments)
    more = round(positions * _SECONDS / max(report.seconds, 1e-3))
    more = min(more, _MAX_SAMPLE, total or _MAX_SAMPLE)
    if more > positions:
        positions, report = more, _written_sample(ds, more, arguments)
    sample = (report.records, report.bytes, report.seconds)
    if total is None:
        return Estimate(None, None, None, None, *sample)
    factor = total / max(positions, 1)
    size = arguments.get("records_per_file")
    if size is None:
        size = file_records(arguments.get("bytes_per_file"), report.bytes / max(positions, 1))
    records, num_bytes = round(report.records * factor), round(report.bytes * factor)
    return Estimate(records, num_bytes, -(-total // size), report.seconds * factor, *sample)


def _written_sample(ds: Any, num: int, arguments: Mapping[str, Any]) -> WriteReport:
    """Writes the first ``num`` positions or elements to one file."""
    is_map = isinstance(ds, MapDataset)
    sample = MapDataset.slice(ds, slice(num)) if is_map else IterDataset.limit(ds, max(num, 1))
    given = {**arguments, "records_per_file": max(num, 1), "bytes_per_file": None}
    with tempfile.TemporaryDirectory(prefix="gristmill-sample-") as folder:
        return write(sample, folder, progress=False, **given)


def _time_text(seconds: float) -> str:
    """Returns a time for people.

    Example:
        >>> _time_text(5400), _time_text(75), _time_text(2.25)
        ('1 h 30 min', '1 min 15 s', '2.2 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest} s"
    return f"{minutes // 60} h {minutes % 60} min"
