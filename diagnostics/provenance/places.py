"""The files of records, and their places in these."""

from __future__ import annotations

from pathlib import PurePath
from typing import Any

from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.descriptions.pipeline import file_paths
from gristmill.diagnostics.graph.stages import last_stage
from gristmill.diagnostics.provenance.records import Provenance, Record, Row
from gristmill.sources.sharded import ShardedSource, ShardMap


def with_places(found: Provenance, definition: Any) -> Provenance:
    """Returns ``found`` with the file and the place in it of each record of a source of files.

    Args:
        found: its records name their sources by text.
        definition: the dataset or ``DataLoader`` that it is of.
    """
    sources = _sources_of(last_stage(definition))
    if not sources:
        return found
    rows = [Row([_placed(record, sources) for record in row.records]) for row in found.rows]
    return Provenance(rows, [_placed(record, sources) for record in found.faults], found.step)


def _sources_of(ds: Any) -> dict[str, Any]:
    """Returns the sources of files upstream that can locate a record, by the texts that records
    have.
    """
    found: dict[str, Any] = {}
    for node in ancestors(ds):
        source = node._gm_source
        if (
            isinstance(source, ShardedSource)
            and len(file_paths(source) or ()) == len(source.shards.bounds) - 1
        ):
            found[node._gm_record_source] = source
    return found


def _placed(record: Record, sources: dict[str, Any]) -> Record:
    source = sources.get(record.source)
    place = None if source is None else _place(source.shards, file_paths(source), record.record_key)
    return record if place is None else record.replaced(place=place)


def _place(shards: ShardMap, paths: Any, key: Any) -> str | None:
    try:
        number, position = shards.locate(key)
    except (IndexError, TypeError):  # of other data, which a ledger has noted
        return None
    return f"{PurePath(paths[number]).name}, record {position}"
