"""Specs of elements seen while a pipeline ran, for the stages of the graph of its datasets.

What runs is not drawn one to one: a stage of a dataset may have no iterator of its own, workers
read slices, equal datasets of an interleave are counted together. So the two are laid side by side
from the output upwards, by what kind of stage each is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gristmill.diagnostics.graph.stages import Graph, Stage
from gristmill.diagnostics.runtime.summary import ExecutionSummary, StageSummary

_MAX_SKIPPED = 8  # stages in a row of which the other side knows nothing


def graph_that_ran(summary: ExecutionSummary) -> Graph:
    """Returns the stages of a pipeline that was observed, with the elements that were seen."""
    nodes = sorted(summary.items())
    stages = [Stage(i, x.name, x.inputs, x.output_spec or None) for i, x in nodes]
    return Graph(tuple(stages))


def seen_specs(graph: Graph, summary: ExecutionSummary) -> dict[int, str]:
    """Returns how the elements after each stage of ``graph`` looked, by its number that ``summary``
    has seen.

    Args:
        graph: of a dataset or a ``DataLoader``.
        summary: of an iterator of the same.
    """
    specs: dict[int, str] = {}
    if summary:
        _lay(graph.by_id, summary, graph.stages[0].id, 0, specs)
    return {number: spec for number, spec in specs.items() if spec}


def _lay(
    stages: Mapping[int, Stage],
    summary: ExecutionSummary,
    number: int,
    seen: int,
    specs: dict[int, str],
) -> None:
    """Compares a stage and those upstream with the specs that were seen."""
    if number in specs:
        return
    passed, ran = _chain(stages, number), _chain(summary, seen)
    places = {_kind(stages[i].name): i for i in reversed(passed)}
    seen = next((node for node in ran if _kind(summary[node].name) in places), seen)
    number = places.get(_kind(summary[seen].name), number)
    skipped, extra = passed[: passed.index(number)], ran[: ran.index(seen)]
    specs[number] = summary[seen].output_spec
    if not extra:  # those have no iterators of their own, so they change nothing
        extra = [seen] * len(skipped)
    if len(skipped) == len(extra):  # or iterators of other names
        specs.update({i: summary[node].output_spec for i, node in zip(skipped, extra, strict=True)})
    inputs, above = summary[seen].inputs, stages[number].inputs
    if inputs and not _makes_datasets(stages[number]):
        for i, stage in enumerate(above):
            if i < len(inputs):
                _lay(stages, summary, stage, inputs[i], specs)
            elif _branch(stages, stage) == _branch(stages, above[len(inputs) - 1]):
                # counted together with that one
                _lay(stages, summary, stage, inputs[-1], specs)


def _branch(stages: Mapping[int, Stage], number: int) -> list[str]:
    """Returns the stages of a branch, and its kind of source: where these are the same, so are its
    elements.
    """
    stage = stages[number]
    name = stage.name if stage.inputs else _kind(stage.name)
    return [name, *[text for above in stage.inputs for text in _branch(stages, above)]]


def _makes_datasets(stage: Stage) -> bool:
    """True if the inputs of a stage are datasets made as it runs, which the graph does not show."""
    number = re.search(r"\[(\d+) datasets]", stage.name)
    return number is not None and int(number[1]) != len(stage.inputs)


def _chain(stages: Mapping[int, Stage] | Mapping[int, StageSummary], number: int) -> list[int]:
    """Returns a stage and those before it, as long as each has one input."""
    found = [number]
    while len(found) <= _MAX_SKIPPED and len(inputs := stages[found[-1]].inputs) == 1:
        found.append(inputs[0])
    return found


def _kind(name: str) -> str:
    """Returns the name that a dataset and its iterator share."""
    return re.sub(r"(Iter)?Dataset|Iterator", "", re.split(r"[(\[]", name)[0])
