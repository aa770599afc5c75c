"""The plan: how many positions or elements belong to a file, from arguments and a sample."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Mapping
from typing import Any

from gristmill.core.options import ReadOptions
from gristmill.core.value import Value
from gristmill.dataset.bases.length import Infinite, dataset_length
from gristmill.dataset.bases.map import MapDataset
from gristmill.prepare.files import ElementError
from gristmill.prepare.formats.base import Format
from gristmill.prepare.ranges import Ranges

DEFAULT_BYTES = 1 << 28
_NUM_SAMPLED = 32


class Plan(Value):
    """The division of a pipeline into files.

    Args:
        format: fitted to the first elements.
        records_per_file: positions, or elements of a stream, that belong to one file.
        num_files: how many files there will be; ``None`` for a stream of unknown length.
        record_bytes: the mean size of a record in the sample, before compression.
    """

    format: Format
    records_per_file: int
    num_files: int | None
    record_bytes: float


def planned(
    ds: Any, format: Format, request: Mapping[str, Any], *, is_fitted: bool = False
) -> Plan:
    """Reads a sample and returns the plan, which follows from the pipeline and the arguments alone.

    Args:
        ds: the pipeline.
        format: as it was asked for.
        request: ``records_per_file`` and ``bytes_per_file``, either of which may be ``None``.
        is_fitted: True if the format is that of a folder, which further elements must fit.

    Raises:
        ElementError: the format cannot hold the first elements.
        ValueError: the pipeline does not end.
    """
    if isinstance(dataset_length(ds), Infinite):
        raise ValueError(
            "the dataset does not end, so it cannot be written: use repeat(num_epochs) or a "
            f"slice, got {ds!s:.200}"
        )
    is_measured = request["records_per_file"] is None
    elements = _sample(ds, _NUM_SAMPLED if is_measured else format.num_firsts, is_measured)
    try:
        fitted = format if is_fitted else format.fitted(elements)
    except (TypeError, ValueError) as error:
        raise ElementError(
            f"the first elements cannot be written as {format.name}: {error}"
        ) from error
    try:
        sizes = [fitted.size(fitted.encode(element)) for element in elements]
    except (TypeError, ValueError):  # the element is named when it is written
        sizes = []
    record_bytes = sum(sizes) / len(sizes) if sizes else 0.0
    num_records = request["records_per_file"]
    if num_records is None:
        wanted = request["bytes_per_file"] or DEFAULT_BYTES
        num_records = max(1, round(wanted / record_bytes)) if record_bytes else wanted
    return Plan(fitted, num_records, num_files_of(ds, num_records), record_bytes)


def num_files_of(ds: Any, records_per_file: int) -> int | None:
    """Returns how many files a pipeline with ranges becomes; ``None`` for another one."""
    return -(-len(Ranges(ds)) // records_per_file) if Ranges.has_ranges(ds) else None


def _sample(ds: Any, num: int, is_measured: bool) -> list[Any]:
    """The first ``num`` elements, up to one that fails.

    If their size is measured, there are as many from all over a map dataset.

    Raises:
        Exception: what the first element fails with.
    """
    found: list[Any] = []
    streams = [ds]
    if is_measured and isinstance(ds, MapDataset) and len(ds) > num:
        streams.append(ds[:: len(ds) // num])
    try:
        for stream in streams:
            if isinstance(stream, MapDataset):  # nothing is computed ahead
                options = ReadOptions(num_threads=0, prefetch_buffer_size=0)
                stream = stream.to_iter_dataset(options)
            with contextlib.closing(iter(stream)) as it:
                for element in itertools.islice(it, num):
                    found += [] if element is None else [element]
    except Exception:  # raised again where the element is written
        if not found:
            raise
    return found
