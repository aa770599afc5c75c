"""A pipeline as a graph: its stages, what each draws from, and what the elements look like after
it.

Nothing is run for it. What it becomes is in ``texts`` and ``drawing``, and where that goes in
``files``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from gristmill.core.state import shown
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import DatasetNode
from gristmill.dataset.descriptions.display import (
    component_names,
    joined,
    named,
    stage_inputs,
    stage_length,
    stage_name,
)
from gristmill.diagnostics.graph.spec_text import static_spec_text
from gristmill.loader.data_loader import DataLoader
from gristmill.loader.iterator import DataLoaderIterator


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
        seen = [replace(stage, spec=specs.get(stage.id) or stage.spec) for stage in self.stages]
        return Graph(tuple(seen))

    def inputs_of(self, stage: Stage) -> list[tuple[int, str]]:
        """Returns the numbers of the stages that one draws from, and the names of components."""
        names = stage.input_names or ("",) * len(stage.inputs)
        return [*zip(stage.inputs, names, strict=True)]

    @property
    def rows(self) -> list[GraphRow]:
        """The stages from the sources down. The stage that joins several branches is below them;
        one with several consumers has a row for the first of them, to which other rows refer.
        """
        stages, drawn = self.by_id, set[int]()

        def upstream(output: int) -> list[GraphRow]:
            if output in drawn:
                return [GraphRow(stages[output], is_again=True)]
            chain = [stages[output]]
            drawn.add(output)
            while len(chain[-1].inputs) == 1 and chain[-1].inputs[0] not in drawn:
                chain.append(stages[chain[-1].inputs[0]])
                drawn.add(chain[-1].id)
            branches = [(upstream(i), name) for i, name in self.inputs_of(chain[-1])]
            rows = branches[0][0] if len(branches) == 1 else _joined(branches)
            return [*rows, GraphRow(chain[-1], begins=True), *map(GraphRow, chain[-2::-1])]

        return upstream(self.stages[0].id)


@dataclass(frozen=True)
class GraphRow:
    """A stage in a drawing of lines.

    Args:
        stage: the stage.
        is_again: the row refers to one further up.
        begins: the stage does not continue the row above it.
        bars: before its text: lines from branches to where they are joined, names of components.
        more_bars: the same before further lines of text.
    """

    stage: Stage
    is_again: bool = False
    begins: bool = False
    bars: str = ""
    more_bars: str = ""

    @property
    def text(self) -> str:
        """The stage in words."""
        return f"{self.stage.name}  (as above)" if self.is_again else self.stage.name


def _joined(branches: list[tuple[list[GraphRow], str]]) -> list[GraphRow]:
    bars = joined([named([row.bars for row in rows], name) for rows, name in branches])
    rows = [row for rows, _ in branches for row in rows]
    return [
        replace(row, bars=text, more_bars=f"│  {row.more_bars}")
        for row, text in zip(rows, bars, strict=True)
    ]


def last_stage(pipeline: Any) -> Any:
    """Returns the dataset or iterator that gives the elements of a pipeline."""
    if isinstance(pipeline, DataLoader):
        return pipeline._dataset
    return pipeline._iterator if isinstance(pipeline, DataLoaderIterator) else pipeline


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
    output = last_stage(pipeline)
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
    stages = [
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
    return Graph(tuple(stages))


def _made_by_running(nodes: list[Any], inputs: list[tuple[int, ...]]) -> set[int]:
    """Returns the stages downstream of an interleave of datasets that a ``MapDataset`` makes: to
    describe them, one would have to be made.
    """
    makers = [
        i for i, node in enumerate(nodes) if isinstance(vars(node).get("_gm_datasets"), MapDataset)
    ]
    found: set[int] = set()
    while makers:
        found.update(makers)
        makers = [i for i in range(len(nodes)) if i not in found and found & {*inputs[i]}]
    return found
