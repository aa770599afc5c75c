"""The history of a row of an output: the record that it was made from, before and after every
transformation.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from gristmill.core.state import shown
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import is_of_library, parents_of, spec_of_first_parent
from gristmill.dataset.bases.origins import RecordKey, UpstreamElement
from gristmill.dataset.bases.parameters import parameters_of
from gristmill.dataset.descriptions.display import stage_name
from gristmill.dataset.errors.tracebacks import filter_traceback
from gristmill.diagnostics.graph.stages import last_stage
from gristmill.diagnostics.provenance import Provenance, Record
from gristmill.diagnostics.viewer.leaves import ElementLeaf, leaves_of
from gristmill.diagnostics.viewer.steps import Output

_MAX_STAGES = 40
_MAX_BRANCHES = 4
_MAX_PARTS = 1000
_MAX_COMPARED = 4_000_000  # values of an array


@dataclass(frozen=True)
class StageResult:
    """An element after one stage.

    Args:
        name: of the stage.
        index: of the element there, if it has one.
        element: what it is there; nothing if ``is_same``.
        error: what the stage raised instead.
        is_same: the stage only chooses elements, it changes none.
        note: what has to be said about it.
        branch: which of several inputs of a stage further down it belongs to; empty if there is
            one.
        unchanged: the paths of the leaves that are the same as before the stage.
        source, key: of a stage that reads, what and which record.
    """

    name: str
    index: int | None = None
    element: Any = None
    error: BaseException | None = None
    is_same: bool = False
    note: str = ""
    branch: str = ""
    unchanged: frozenset[tuple[str, ...]] = frozenset()
    source: str = ""
    key: Any = None

    @cached_property
    def leaves(self) -> list[ElementLeaf]:
        return leaves_of(self.element)


@dataclass(frozen=True)
class RowHistory:
    """The stages that a row went through, the source first.

    Args:
        stages: those that can be shown.
        reason: why others cannot, if there are others.
    """

    stages: list[StageResult]
    reason: str = ""


def history_of(
    pipeline: Any,
    output: Output,
    row: int | None,
    provenance: Provenance | str,
) -> RowHistory:
    """Returns the element of a row after every stage, computed again by random access where
    possible.

    Args:
        pipeline: a dataset or a ``DataLoader``.
        output: of the pipeline.
        row: which row of it; ``None`` for all of it.
        provenance: what it is made of; of a stream whose provenance is not known, there is no
            story.
    """
    if isinstance(pipeline, MapDataset):
        stages = [*_upstream(pipeline, output.step.number, row, "")][::-1]
        history = RowHistory(stages[:_MAX_STAGES])
    elif isinstance(provenance, str):
        history = RowHistory([])
    else:
        history = _of_records(pipeline, provenance, row)
    before: StageResult | None = None
    for i, stage in enumerate(history.stages):
        if stage.is_same:
            continue
        if before is not None and before.branch == stage.branch and stage.error is None:
            history.stages[i] = replace(stage, unchanged=_unchanged(before, stage))
        before = stage
    return history


def _of_records(pipeline: Any, provenance: Provenance, row: int | None) -> RowHistory:
    """Returns the history of a row of a stream."""
    if row is None and len(provenance.rows) > 1:
        return RowHistory([], "It is made of several rows: look at one of them.")
    records = provenance.rows[row or 0].records if (row or 0) < len(provenance.rows) else []
    if not records:
        return RowHistory([], "It is made of no record.")
    stages, reason = [], ""
    for number, record in enumerate(records[:_MAX_BRANCHES], 1):
        history = _of_record(pipeline, record, f"{number}" if len(records) > 1 else "")
        stages += history.stages
        reason = reason or history.reason
    if len(records) > _MAX_BRANCHES and not reason:
        reason = f"So much of the first {_MAX_BRANCHES} of its {len(records)} records."
    return RowHistory(stages[: _MAX_BRANCHES * _MAX_STAGES], reason)


def _of_record(pipeline: Any, record: Record, branch: str) -> RowHistory:
    source, steps, has_batches = _way_of(pipeline, record)
    if source is None or record.index is None:
        reason = "Elements that are not read by an index cannot be computed again alone."
        return RowHistory([], reason)
    stages = [*_upstream(source, record.index, None, branch)][::-1]
    if (record.source, record.record_key) not in [(stage.source, stage.key) for stage in stages]:
        reason = "Where its record was on the way does not follow from what is known of it."
        return RowHistory([], reason)
    stages = stages[:_MAX_STAGES]
    return RowHistory(stages) if has_batches else _downstream(steps, stages, branch)


def _way_of(pipeline: Any, record: Record) -> tuple[MapDataset[Any] | None, list[Any], bool]:
    """Returns the map dataset in which a record has its index, the stages from there to the
    output, and whether batches are between.
    """
    step, components = last_stage(pipeline), list(record.components)
    steps: list[Any] = []
    while not isinstance(step, MapDataset):
        above = parents_of(step)
        steps.insert(0, step)
        if (
            len(above) > 1
            and components
            and isinstance(components[0], int)
            and components[0] < len(above)
        ):
            step = above[components.pop(0)]
        elif len(above) == 1:
            step = above[0]
        else:
            return None, steps, False
    source = step
    while len(parents_of(step)) == 1:
        step = parents_of(step)[0]
        if makes_batches(step):
            source = step
    if makes_batches(source):
        return parents_of(source)[0], steps, True
    return source, steps, False


def _is_of_batches(step: Any) -> bool:
    """True if elements of a map dataset are made of batches."""
    while len(parents_of(step)) == 1:
        step = parents_of(step)[0]
        if is_of_library(step) and step._gm_makes_batches:
            return True
    return False


def makes_batches(step: Any) -> bool:
    """True if a stage says that it makes batches."""
    return is_of_library(step) and hasattr(parameters_of(step), "batch_size")


def _unchanged(before: StageResult, after: StageResult) -> frozenset[tuple[str, ...]]:
    old = {leaf.path: leaf.value for leaf in before.leaves}
    kept = [x for x in after.leaves if x.path in old and _is_same(old[x.path], x.value)]
    return frozenset([leaf.path for leaf in kept])


def _is_same(a: Any, b: Any) -> bool:
    """True if two leaves are equal, as established by looking at a limited amount of data."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        is_alike = (
            a.dtype == b.dtype
            and a.shape == b.shape
            and a.dtype.kind in "biufcSU"
            and a.size <= _MAX_COMPARED
        )
        return is_alike and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    return isinstance(a, str | bytes | bool | int | float | np.generic) and bool(a == b)


def _upstream(ds: Any, index: int, row: int | None, branch: str) -> Iterator[StageResult]:
    """Yields the element at an index of a map dataset and what it is made of, the output first."""
    name = stage_name(ds)
    is_cut = row is not None and is_of_library(ds) and ds._gm_makes_batches
    origins = _origins(ds, index, row if is_cut else None)
    parts = [one for one in origins if isinstance(one, UpstreamElement)]
    if is_cut:
        yield StageResult(name, index, is_same=True, note=f"row {row}", branch=branch)
        row = None
    elif row is not None and _is_of_batches(ds):
        note = "of the whole batch, which the row above is part of"
        yield StageResult(name, index, is_same=True, note=note, branch=branch)
    else:
        keys = [one.key for one in origins if isinstance(one, RecordKey)]
        yield replace(_stage(ds, index, parts, keys), branch=branch)
    for number, part in reversed([*enumerate(parts[:_MAX_BRANCHES])]):  # the caller reverses it
        below = f"{branch}{number + 1}." if len(parts) > 1 else branch
        yield from _upstream(part.ds, part.index, row, below)
    if len(parts) > _MAX_BRANCHES:
        more = f"… {len(parts) - _MAX_BRANCHES} more elements …"
        yield StageResult(more, branch=branch, is_same=True)


def _origins(ds: Any, index: int, row: int | None) -> list[Any]:
    """Returns the lineage of an element, or of a row of it; at most some hundreds of records."""
    try:
        stop = _MAX_PARTS if row is None else row + 1
        return list(itertools.islice(ds._gm_origins(index), row or 0, stop))
    except Exception:  # of a user's source, sampler or function: what it raises, the element shows
        return []


def _stage(ds: Any, index: int, parts: list[UpstreamElement], keys: list[Any]) -> StageResult:
    if len(parts) == 1 and _passes_on(ds):
        moved = "" if parts[0].index == index else f"which is {parts[0].index:,} before"
        return StageResult(stage_name(ds), index, is_same=True, note=moved)
    found = StageResult(stage_name(ds), index)
    if keys:
        note = f"record {shown(keys[0])}"
        found = replace(found, note=note, source=ds._gm_record_source, key=keys[0])
    try:
        return replace(found, element=ds[index])
    except Exception as error:
        filter_traceback(error)
        return replace(found, error=error)


def _downstream(steps: list[Any], stages: list[StageResult], branch: str) -> RowHistory:
    """Adds the stages of the stream, up to where elements are put together."""
    element = next((stage.element for stage in reversed(stages) if not stage.is_same), None)
    for step in steps[1:]:  # the first one makes a stream of it
        name, works_on = stage_name(step), step._gm_works_on if is_of_library(step) else None
        if makes_batches(step) or len(stages) >= _MAX_STAGES:
            return RowHistory(stages)
        if works_on == "elements":
            try:
                element = iterate(step)._gm_engine.function(element)  # type: ignore[attr-defined]
            except Exception as error:
                filter_traceback(error)
                return RowHistory([*stages, StageResult(name, error=error, branch=branch)])
            stages.append(StageResult(name, element=element, branch=branch))
        elif _passes_on(step):
            stages.append(StageResult(name, is_same=True, branch=branch))
        else:
            return RowHistory(
                stages, f"What {name} makes of it cannot be computed for one element alone."
            )
    return RowHistory(stages)


def _passes_on(stage: Any) -> bool:
    """True if a stage yields elements unchanged."""
    return is_of_library(stage) and type(stage)._element_spec is spec_of_first_parent
