"""The table of stages is complete, and every stage tells about itself: one that is not seen, or silent, fails here."""

import inspect

import pytest
from entry import nodes
from stage_table import ITER_ENTRIES, MAP_ENTRIES, each_of_all, stage_classes

from gristmill.dataset import IterDataset, MapDataset
from gristmill.dataset.bases.iterator import BlockIterator
from gristmill.dataset.bases.length import AtMost, Exact, Infinite, Unknown, num_elements
from gristmill.dataset.bases.node import ancestors, is_of_library
from gristmill.dataset.stages.map import MapMapDataset
from gristmill.dataset.telling.origin import origin


def test_every_stage_is_in_the_table():
    seen = {type(ds) for entry in [*MAP_ENTRIES, *ITER_ENTRIES] for ds in ancestors(entry.make())}
    seen |= {type(node) for entry in ITER_ENTRIES for node in nodes(iter(entry.make()))}
    assert stage_classes() - seen == set()
    assert len(stage_classes()) > 20  # the search itself finds something


@pytest.mark.parametrize("stage", sorted(stage_classes(), key=lambda x: x.__qualname__), ids=lambda x: x.__name__)
def test_every_stage_answers_for_itself(stage):
    unanswered = []
    if issubclass(stage, MapDataset) and stage._origins is MapDataset._origins:
        unanswered.append("_origins(index): what an element is made of")
    if issubclass(stage, IterDataset) and stage._num_elements is IterDataset._num_elements:
        unanswered.append("_num_elements(): how many elements it delivers")
    if issubclass(stage, BlockIterator) and not hasattr(stage, "_flow"):
        unanswered.append("_flow: whether it is one-to-one, dropping or stateful")
    assert not unanswered, f"{stage.__qualname__} must answer {unanswered}"


@each_of_all
def test_a_stage_tells_what_it_was_made_with_and_its_length(entry):
    ds = entry.make()
    made_with = set(inspect.signature(type(ds).__init__).parameters) - {"self", "args", "ds", "parent", "parents", "datasets"}
    declared = {*ds._parameters.as_dict(), *ds._described_parameters}
    if "proportions" in declared:  # given as weights
        made_with -= {"weights"}
    if {"start", "stop", "step"} <= declared:
        made_with -= {"sl"}
    if "multiprocessing_options" in declared:
        made_with -= {"options"}
    assert not is_of_library(ds) or made_with <= declared, f"{ds} must declare {made_with - declared} in its parameters"
    if entry in MAP_ENTRIES:
        for index in range(min(len(ds), 30)):
            origins = origin(ds, [index])
            assert origins, f"{ds} does not say what element {index} is made of"
            assert all(records.keys and not records.source.parents for records in origins)
        return
    leaves_out = any(isinstance(node, MapMapDataset) for node in ancestors(ds))  # by ``None``, which counts in lengths
    match num_elements(ds):
        case Exact(num):
            assert num == len(entry.expected) or (leaves_out and num > len(entry.expected))
        case AtMost(num):
            assert num >= len(entry.expected)
        case length:
            assert isinstance(length, Infinite | Unknown)
