"""The plan: how many positions or elements belong to a file, from arguments and a sample."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.options import ReadOptions
from gristmill.core.value import Value
from gristmill.dataset.bases.length import Infinite, dataset_length
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import tolerances
from gristmill.prepare.files import unwritable
from gristmill.prepare.formats.base import Format
from gristmill.prepare.ranges import Ranges, records_at

DEFAULT_BYTES = 1 << 28
DEFAULT_RECORDS = 1 << 20  # writers keep an index of a file's records in memory
_NUM_SAMPLED = 32


class WritePlan(Value):
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
) -> WritePlan:
    """Reads a sample and returns the plan, which follows from the pipeline and the arguments alone.

    Args:
        ds: the pipeline.
        format: as requested.
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
    sample = _sample(ds, _NUM_SAMPLED if is_measured else format.num_firsts, is_measured)
    elements = [element for _, element in sample]
    try:
        fitted = format if is_fitted else format.fitted(elements)
    except (TypeError, ValueError, RecursionError) as error:
        wrong = [
            place
            for num, (place, _) in enumerate(sample, 1)
            if not _fits(format, elements[:num])  # one alone may fit, but not with others
        ]
        name = _name(ds, wrong[0]) if wrong else "the first elements"
        raise unwritable(name, format, error) from error
    sizes = []
    for place, element in sample:
        try:
            sizes.append(fitted.size(fitted.encode(element)))
        except Exception as error:  # of the user's codec, too
            if is_fitted:  # before it is noted in the folder that these elements are appended
                raise unwritable(_name(ds, place), format, error) from error
            sizes = []  # the element is named when it is written
            break
    record_bytes = sum(sizes) / len(sizes) if sizes else 0.0
    num_records = request["records_per_file"]
    if num_records is None:
        num_records = file_records(request["bytes_per_file"], record_bytes)
    return WritePlan(fitted, num_records, num_files_of(ds, num_records), record_bytes)


def file_records(bytes_per_file: int | None, record_bytes: float) -> int:
    """Returns how many records a file has if ``records_per_file`` is not given.

    Example:
        >>> file_records(None, 1 << 20), file_records(None, 1), file_records(1 << 30, 1)
        (256, 1048576, 1073741824)
    """
    num_bytes = DEFAULT_BYTES if bytes_per_file is None else bytes_per_file
    num = max(1, round(num_bytes / record_bytes)) if record_bytes else num_bytes
    return num if bytes_per_file is not None else min(num, DEFAULT_RECORDS)


def num_files_of(ds: Any, records_per_file: int) -> int | None:
    """Returns how many files a pipeline with ranges becomes; ``None`` for another one."""
    return -(-len(Ranges(ds)) // records_per_file) if Ranges.has_ranges(ds) else None


def _sample(ds: Any, num: int, is_measured: bool) -> list[tuple[int, Any]]:
    """Returns the first ``num`` elements with their places, up to one that fails.

    If their size is measured, there are as many from all over a map dataset.

    Raises:
        Exception: what the first element fails with.
    """
    found: list[tuple[int, Any]] = []
    places, stream = [*range(num)], ds
    if isinstance(ds, MapDataset):
        spread = range(0, len(ds), len(ds) // num) if is_measured and len(ds) > num else ()
        places = [*range(min(num, len(ds))), *spread[:num]]
        options = ReadOptions(num_threads=0, prefetch_buffer_size=0)  # nothing is computed ahead
        stream = MapDataset.slice(ds, places).to_iter_dataset(options, allow_nones=True)
    try:
        with contextlib.closing(iter(stream)) as it:
            for place, element in zip(places, it, strict=False):
                found += [] if element is None else [(place, element)]
    except Exception:  # raised again where the element is written
        if not found:
            raise
    return found


def _fits(format: Format, elements: Sequence[Any]) -> bool:
    try:
        format.fitted(elements)
    except (TypeError, ValueError, RecursionError):
        return False
    return True


def _name(ds: Any, place: int) -> str:
    """Returns the name of an element of the sample."""
    if not isinstance(ds, MapDataset):
        return f"element {place} of the stream"
    if tolerances(ds):  # elements that were skipped are not counted
        return "one of the first elements"
    return f"element {place}{records_at(ds, place)}"
