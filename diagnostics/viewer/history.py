"""How a row of an output came about: the record that it is made of, before and after every transformation."""

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
from gristmill.dataset.bases.origins import Part, RecordKey
from gristmill.dataset.telling.display import stage_name
from gristmill.dataset.telling.tracebacks import filter_traceback
from gristmill.diagnostics.viewer.leaves import Leaf, leaves_of
from gristmill.diagnostics.viewer.steps import Output

_MAX_STAGES = 40
_MAX_BRANCHES = 4
_MAX_PARTS = 100_000
_MAX_COMPARED = 4_000_000  # values of an array


@dataclass(frozen=True)
class Stage:
    """An element after one stage.

    Args:
        name: of the stage.
        index: of the element there, if it has one.
        element: what it is there; nothing if ``is_same``.
        error: what the stage raised instead.
        is_same: the stage only chooses elements, it changes none.
        note: what has to be said about it.
        branch: which of several inputs of a stage further down it belongs to; empty if there is one.
        unchanged: the paths of the leaves that are the same as before the stage.
    """

    name: str
    index: int | None = None
    element: Any = None
    error: BaseException | None = None
    is_same: bool = False
    note: str = ""
    branch: str = ""
    unchanged: frozenset[tuple[str, ...]] = frozenset()

    @cached_property
    def leaves(self) -> list[Leaf]:
        return leaves_of(self.element)


@dataclass(frozen=True)
class Story:
    """The stages that a row went through, the source first.

    Args:
        stages: those that can be shown.
        reason: why others cannot, if there are others.
    """

    stages: list[Stage]
    reason: str = ""


def story_of(pipeline: Any, output: Output, row: int | None, num_rows: int | None) -> Story:
    """The element of a row after every stage, computed again by random access, as far as that is possible.

    Args:
        pipeline: a dataset or a ``DataLoader``.
        output: of the pipeline.
        row: which row of it; ``None`` for all of it.
        num_rows: how many there are.
    """
    story = _story(pipeline, output, row, num_rows)
    before: Stage | None = None
    stages = []
    for stage in story.stages:
        is_next = before is not None and before.branch == stage.branch and not stage.is_same and stage.error is None
        stages.append(replace(stage, unchanged=_unchanged(before, stage)) if before is not None and is_next else stage)
        before = before if stage.is_same else stage
    return Story(stages, story.reason)


def _unchanged(before: Stage, after: Stage) -> frozenset[tuple[str, ...]]:
    old = {leaf.path: leaf.value for leaf in before.leaves}
    return frozenset({leaf.path for leaf in after.leaves if leaf.path in old and _is_same(old[leaf.path], leaf.value)})


def _is_same(a: Any, b: Any) -> bool:
    """Whether two leaves are equal, as far as that is known without looking at much."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, np.ndarray):
        is_alike = a.dtype == b.dtype and a.shape == b.shape and a.dtype.kind in "biufcSU" and a.size <= _MAX_COMPARED
        return is_alike and np.array_equal(a, b, equal_nan=a.dtype.kind in "fc")
    return isinstance(a, str | bytes | bool | int | float | np.generic) and bool(a == b)


def _story(pipeline: Any, output: Output, row: int | None, num_rows: int | None) -> Story:
    if isinstance(pipeline, MapDataset):
        return Story([*_upstream(pipeline, output.step.number, row, num_rows, "")][::-1][:_MAX_STAGES])
    place = output.place
    if place is None:
        return Story([], f"{_first_unknown(pipeline)} does not say which elements its outputs are made of.")
    if place.size > 1 and row is None:
        return Story([], "It is made of several elements: choose a row.")
    if not place.is_exact and place.size > 1:
        return Story([], "A step leaves out elements, so that the indices of the rows do not follow from the position.")
    index = place.last if place.size == 1 else place.last - (num_rows or 1) + 1 + (row or 0)
    stages = [*_upstream(place.ds, index, row if place.size == 1 else None, num_rows, "")][::-1]
    return _downstream(pipeline, place.ds, stages[:_MAX_STAGES])


def _upstream(ds: Any, index: int, row: int | None, num_rows: int | None, branch: str) -> Iterator[Stage]:
    """The element at an index of a map dataset and what it is made of, the output first."""
    origins = _origins(ds, index)
    parts = [one for one in origins if isinstance(one, Part)]
    if len(parts) > 1 and row is not None and len(parts) == num_rows:  # a batch: the row is one of these
        parts, row = [parts[row]], None
    else:
        keys = [one.key for one in origins if isinstance(one, RecordKey)]
        yield _stage(ds, index, parts, keys, branch)
    if not parts and not is_of_library(ds):
        return
    for number, part in enumerate(parts[:_MAX_BRANCHES]):
        below = f"{branch}{number + 1}" if len(parts) > 1 else branch
        yield from _upstream(part.ds, part.index, row, num_rows, f"{below}." if len(parts) > 1 and below else below)
    if len(parts) > _MAX_BRANCHES:
        yield Stage(f"… {len(parts) - _MAX_BRANCHES} more elements …", branch=branch, is_same=True)


def _origins(ds: Any, index: int) -> list[Any]:
    try:
        return list(itertools.islice(ds._origins(index), _MAX_PARTS))
    except Exception:  # of a user's source, sampler or function: what it raises, the element shows
        return []


def _stage(ds: Any, index: int, parts: list[Part], keys: list[Any], branch: str) -> Stage:
    name, note = stage_name(ds), f"record {shown(keys[0])}" if keys else ""
    if len(parts) == 1 and _passes_on(ds):
        moved = "" if parts[0].index == index else f"index {parts[0].index:,} of the step before"
        return Stage(name, index, is_same=True, note=moved, branch=branch)
    try:
        element = ds[index]
    except Exception as error:
        filter_traceback(error)
        return Stage(name, index, error=error, note=note, branch=branch)
    return Stage(name, index, element, note=note, branch=branch)


def _downstream(pipeline: Any, source: MapDataset[Any], stages: list[Stage]) -> Story:
    """Adds the stages of the stream, up to where rows are put together."""
    element = next((stage.element for stage in reversed(stages) if not stage.is_same), None)
    for step in _stream_steps(pipeline, source):
        name, works_on = stage_name(step), step._works_on if is_of_library(step) else None
        if works_on == "batches" or len(stages) >= _MAX_STAGES:
            return Story(stages)
        if works_on == "elements":
            try:
                element = iterate(step)._function(element)  # type: ignore[attr-defined, misc]
            except Exception as error:
                filter_traceback(error)
                return Story([*stages, Stage(name, error=error)])
            stages.append(Stage(name, element=element))
        elif works_on == "numbered elements":
            return Story(stages, f"{name} needs the number of the element in the stream, so that it cannot be computed alone.")
        elif _passes_on(step):
            stages.append(Stage(name, is_same=True))
        else:
            return Story(stages, f"{name} changes elements in a way that cannot be shown for one of them alone.")
    return Story(stages)


def _passes_on(stage: Any) -> bool:
    """Whether a stage gives elements on as they are."""
    return is_of_library(stage) and type(stage)._element_spec is spec_of_first_parent


def _stream_steps(pipeline: Any, source: Any) -> list[Any]:
    """The steps of a stream after a map dataset, in order."""
    steps: list[Any] = []
    step = getattr(pipeline, "_dataset", pipeline)
    while step is not source and len(parents_of(step)) == 1:
        steps.insert(0, step)
        step = parents_of(step)[0]
    return steps[1:]  # the first one makes a stream of it


def _first_unknown(pipeline: Any) -> str:
    """The step nearest to the output that may be the reason that nothing is known."""
    step = getattr(pipeline, "_dataset", pipeline)
    while len(parents_of(step)) == 1 and is_of_library(step) and step._works_on is not None:
        step = parents_of(step)[0]
    return stage_name(step)
