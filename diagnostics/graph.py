"""A pipeline as a graph: its stages, what each draws from, and what the elements look like after
it.

Nothing is run for it. What it becomes is in ``graph_texts`` and ``drawing``, and where that goes in
``graph_files``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from gristmill.core.state import shown
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import DatasetNode
from gristmill.dataset.descriptions.display import (
    component_names,
    stage_inputs,
    stage_length,
    stage_name,
)
from gristmill.diagnostics.spec_text import static_spec_text
from gristmill.loader.data_loader import DataLoader
from gristmill.loader.iterator import DataLoaderIterator

Notes: TypeAlias = Mapping[int, Sequence[str]] | None  # lines about stages, by their numbers
Weights: TypeAlias = Mapping[int, float] | None  # in [0, 1], how much a stage is to catch the eye


@dataclass(frozen=True)
class Stage:
    """One stage of a pipeline.

    Args:
        id: its number: 0 for the output, then depth first, the first input first.
        name: what it is, with its parameters.
        inputs: the numbers of the stages that it draws from.
        spec: what the elements after it look like, as ``spec_text`` says it; ``None`` if that is
            not known.
        length: number of its elements, if it has one.
        input_names: of a mixture, the names of its components, if they have any.
    """

    id: int
    name: str
    inputs: tuple[int, ...] = ()
    spec: str | None = None
    length: int | None = None
    input_names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Graph:
    """The stages of a pipeline, the output first."""

    stages: tuple[Stage, ...]

    @property
    def by_id(self) -> dict[int, Stage]:
        """The stages by their numbers."""
        return {stage.id: stage for stage in self.stages}

    def with_specs(self, specs: Mapping[int, str]) -> Graph:
        """Returns the same graph, with what was seen of the elements after some of the stages."""
        return Graph(
            tuple([replace(stage, spec=specs.get(stage.id) or stage.spec) for stage in self.stages])
        )


def graph_of(pipeline: Any) -> Graph:
    """Returns the graph of a dataset, an iterator, a ``DataLoader`` or its iterator. Nothing is
    run, and no iterator made.

    A dataset that several stages draw from is one stage. What runs in worker threads and processes
    belongs to it, and so do the datasets of an interleave, and a dataset that is the source of
    another one.

    Raises:
        TypeError: ``pipeline`` is of another type.

    Example:
        >>> for stage in graph_of(MapDataset.range(4).batch(2, drop_remainder=True)).stages:
        ...     print(stage.id, stage.name, stage.inputs, stage.spec)
        0 BatchMapDataset(batch_size=2, drop_remainder=True) (1,) int64[2]
        1 RangeMapDataset(start=0, stop=4, step=1) () int64[]
    """
    output = pipeline
    if isinstance(pipeline, DataLoader):
        output = pipeline._dataset
    elif isinstance(pipeline, DataLoaderIterator):
        output = pipeline._iterator
    if not isinstance(output, DatasetNode | DatasetIterator):
        raise TypeError(
            "pipeline must be a dataset, a DataLoader or an iterator of one of them, "
            f"got {shown(pipeline)} of type {type(pipeline).__name__}"
        )
    nodes: list[Any] = []
    ids: dict[int, int] = {}
    todo = [output]
    while todo:
        node = todo.pop()
        if id(node) not in ids:
            ids[id(node)] = len(nodes)
            nodes.append(node)
            todo.extend(reversed(stage_inputs(node)))
    inputs = [tuple([ids[id(x)] for x in stage_inputs(node)]) for node in nodes]
    unknown = _made_by_running(nodes, inputs)
    return Graph(
        tuple(
            [
                Stage(
                    i,
                    stage_name(node),
                    inputs[i],
                    None if i in unknown else static_spec_text(node),
                    stage_length(node),
                    tuple(component_names(node) or ()),
                )
                for i, node in enumerate(nodes)
            ]
        )
    )


def _made_by_running(nodes: list[Any], inputs: list[tuple[int, ...]]) -> set[int]:
    """Returns the stages downstream of an interleave of datasets that a ``MapDataset`` makes: to
    describe them, one would have to be made.
    """
    found = {
        i for i, node in enumerate(nodes) if isinstance(vars(node).get("_gm_datasets"), MapDataset)
    }
    is_growing = bool(found)
    while is_growing:
        before = len(found)
        found |= {i for i in range(len(nodes)) if not found.isdisjoint(inputs[i])}
        is_growing = len(found) > before
    return found
