"""The table of stages is complete, every stage describes itself, and data sets are values: they
pickle, copy, compare.
"""

import copy
import inspect
import operator
import pickle
import re

import cloudpickle
import numpy as np
import pytest
from entry import add_ten, nodes, plain
from refusing import assert_raises
from stage_table import ITER_ENTRIES, MAP_ENTRIES, WITH_PROCESSES, each_of_all, stage_classes

from gristmill.dataset import IterDataset, MapDataset
from gristmill.dataset.bases.length import AtMost, Exact, Infinite, Unknown, num_elements
from gristmill.dataset.bases.node import ancestors, is_of_library
from gristmill.dataset.bases.observing import running_upstream
from gristmill.dataset.bases.parameters import Parameters
from gristmill.dataset.descriptions.lineage import origin
from gristmill.dataset.stages.map import MapMapDataset
from gristmill.loader.records import LegacyOperationIterDataset


def test_every_stage_is_in_the_table():
    seen = {type(ds) for entry in [*MAP_ENTRIES, *ITER_ENTRIES] for ds in ancestors(entry.make())}
    iterators = [iter(entry.make()) for entry in ITER_ENTRIES]
    for it in iterators:
        it.get_state()  # which opens what is opened late
    seen |= {type(node) for it in iterators for node in running(it)}
    assert stage_classes() - seen == set()
    assert len(stage_classes()) > 20  # the search itself finds something


def running(it):
    """Return ``it`` and all iterators that it runs."""
    return [it, *[node for upstream in running_upstream(it) for node in running(upstream)]]


@pytest.mark.parametrize(
    "stage", sorted(stage_classes(), key=lambda x: x.__qualname__), ids=lambda x: x.__name__
)
def test_every_stage_answers_for_itself(stage):
    unanswered = []
    if (
        issubclass(stage, MapDataset)
        and stage._gm_origins is MapDataset._gm_origins
        and not stage._gm_keeps_indices
    ):
        unanswered.append("_gm_keeps_indices or _gm_origins(index): what an element is made of")
    if issubclass(stage, IterDataset) and stage._gm_num_elements is IterDataset._gm_num_elements:
        unanswered.append("_gm_num_elements(): how many elements it delivers")
    is_function_of_iterators = stage is LegacyOperationIterDataset  # which cannot be inspected
    if (
        issubclass(stage, IterDataset)
        and stage._gm_traced is IterDataset._gm_traced
        and not stage._gm_passes_on | is_function_of_iterators
    ):
        unanswered.append("_gm_passes_on or _gm_traced(tracing): what its outputs are made of")
    assert not unanswered, f"{stage.__qualname__} must answer {unanswered}"


@each_of_all
def test_a_stage_has_its_parameters_and_its_length(entry):
    ds = entry.make()
    made_with = set(inspect.signature(type(ds).__init__).parameters) - {
        "self",
        "args",
        "ds",
        "parent",
        "parameters",
        "parents",
        "datasets",
    }
    declared = {*ds._gm_parameters.as_dict(), *ds._gm_described_parameters}
    if "proportions" in declared:  # given as weights
        made_with -= {"weights"}
    if {"start", "stop", "step"} <= declared:
        made_with -= {"sl"}
    if "multiprocessing_options" in declared:
        made_with -= {"options"}
    assert not is_of_library(ds) or made_with <= declared, (
        f"{ds} must declare {made_with - declared} in its parameters"
    )
    if entry in MAP_ENTRIES:
        for index in range(min(len(ds), 30)):
            origins = origin(ds, [index])
            assert origins, f"{ds} does not say what element {index} is made of"
            assert all(records.keys and not records.source.parents for records in origins)
        return
    # by ``None``, which counts in lengths
    drops = any(isinstance(node, MapMapDataset) for node in ancestors(ds))
    length = num_elements(ds)
    if isinstance(length, Exact):
        assert len(ds) == length.num == len(entry.expected) or (
            drops and len(ds) == length.num > len(entry.expected)
        )
        return
    assert isinstance(length, AtMost | Infinite | Unknown)
    assert_raises(TypeError, r"has no len\(\): ", len, ds)
    assert operator.length_hint(ds, -1) == getattr(length, "num", -1)
    assert getattr(length, "num", 10**9) >= len(entry.expected)


# Of these, constructors check what is given, or any value will do.
OTHER_NUMBERS = {"seed", "start", "stop", "step", "length", "index", "pad_value", "bos_token_id"}
OTHER_NUMBERS |= {"num_threads", "buffer_size"}


@each_of_all
def test_counts_among_its_parameters_are_checked(entry):
    parameters = entry.make()._gm_parameters
    values = parameters.as_dict()
    for name in [x for x, value in values.items() if type(value) is int and x not in OTHER_NUMBERS]:

        def made_with(value, name=name):
            return type(parameters)(**{**values, name: value})

        for wrong in (1.5, "1", [1]):
            assert_raises(TypeError, f"^{name} must be an integer, got", made_with, wrong)
        too_small = rf"^{name} must be a (positive|non-negative) integer, got -1"
        assert_raises(ValueError, too_small, made_with, -1)
        assert type(getattr(made_with(np.int64(values[name])), name)) is int


COPIES = {
    "pickle": lambda ds: pickle.loads(pickle.dumps(ds)),
    "cloudpickle": lambda ds: cloudpickle.loads(cloudpickle.dumps(ds)),
    "deepcopy": copy.deepcopy,
    "copy": copy.copy,
}


def contents(ds):
    return [plain(x) for x in ds]


@each_of_all
def test_copies_are_equal_before_and_after_reading(entry):
    expected = contents(entry.make())
    for how, copied in (
        COPIES.items() if entry.name not in WITH_PROCESSES else [("pickle", COPIES["pickle"])]
    ):
        ds = entry.make()
        assert contents(copied(ds)) == expected, how
        assert contents(ds) == expected, how
        again = copied(ds)
        assert contents(again) == contents(copied(again)) == expected, how
        if isinstance(ds, MapDataset):
            assert len(again) == len(ds), how
            later = range(min(len(ds), 100))[::-1]
            assert [plain(again[i]) for i in later] == [plain(ds[i]) for i in later], how
    other = entry.make()
    assert ds == ds and ds != other and len({ds, other, ds}) == 2  # by identity


@each_of_all
def test_iterators_refuse_to_be_copied(entry):
    it = iter(entry.make())
    for used in range(2):
        for attempt in (pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy):
            assert_raises(TypeError, "get_state", attempt, it)
        if not used:
            next(it, None)
    it.close()


@each_of_all
def test_texts(entry):
    ds = entry.make()
    list(ds)
    it = iter(ds)
    for node in [*ancestors(ds), *nodes(it)]:
        assert not re.search(r"0x[0-9a-f]{6,}", str(node) + repr(node))
        assert "\n" not in str(node)
    assert all(
        [
            type(node).__name__ in str(node) or "ReindexMapDataset" in str(node)
            for node in ancestors(ds)
        ]
    )
    assert all([str(node).partition("(")[0] in repr(it) for node in nodes(it)])
    if ds.parents:
        head, *lines = repr(ds.map(add_ten)).splitlines()
        assert re.match("(Map|Iter)Dataset.*:$", head) and len(lines) > len(ds.parents)
    it.close()


def test_a_plain_default_of_a_parameter_is_refused():
    with pytest.raises(TypeError, match=r"Grouping\.size has the default 3\. .* field\(\.\.\.\)"):
        type("Grouping", (Parameters,), {"__annotations__": {"size": "int"}, "size": 3})
