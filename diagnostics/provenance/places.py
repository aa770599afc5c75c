"""The files of records, and their places in these."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.telling.description import file_paths
from gristmill.diagnostics.provenance.records import Provenance, Record, Row
from gristmill.loader.data_loader import DataLoader


def with_places(found: Provenance, definition: Any) -> Provenance:
    """Returns ``found`` with the file and the place in it of each record of a source of files.

    Args:
        found: its records name their sources by text.
        definition: the dataset or ``DataLoader`` that it is of.
    """
    sources = _sources_of(definition._dataset if isinstance(definition, DataLoader) else definition)
    if not sources:
        return found
    rows = [Row([_placed(record, sources) for record in row.records]) for row in found.rows]
    return Provenance(rows, [_placed(record, sources) for record in found.faults], found.step)


def _sources_of(ds: Any) -> dict[str, Any]:
    """The sources of files upstream that can locate a record, by the texts that records have."""
    found: dict[str, Any] = {}
    for node in ancestors(ds):
        source = getattr(node, "_source", None)
        if file_paths(source) and hasattr(source, "_locate"):
            found[node._record_source] = source
    return found


def _placed(record: Record, sources: dict[str, Any]) -> Record:
    source = sources.get(record.source)
    place = None if source is None else _place(source._locate, file_paths(source), record.record_key)
    return record if place is None else record.replaced(place=place)


def _place(locate: Callable[[Any], tuple[Any, ...]], paths: Any, key: Any) -> str | None:
    try:
        file, *position = locate(key)
    except Exception:  # of a file that is gone meanwhile
        return None
    name = PurePath(file if isinstance(file, str) else paths[file]).name
    words = ("record",) if len(position) == 1 else ("row group", "row")
    return f"{name}, {', '.join([f'{word} {number}' for word, number in zip(words, position, strict=True)])}"
