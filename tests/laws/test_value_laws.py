"""Laws of data sets as values: they pickle, copy, print and compare."""

import copy
import pickle
import re

import cloudpickle
import pytest
from entry import add_ten, nodes, plain
from stage_table import WITH_PROCESSES, each_of_all

from gristmill.dataset.bases.node import ancestors

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
    for how, copied in COPIES.items() if entry.name not in WITH_PROCESSES else [("pickle", COPIES["pickle"])]:
        ds = entry.make()
        assert contents(copied(ds)) == expected, how
        assert contents(ds) == expected, how
        again = copied(ds)
        assert contents(again) == contents(copied(again)) == expected, how
        if hasattr(ds, "__len__"):
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
            with pytest.raises(TypeError, match="get_state"):
                attempt(it)
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
    assert all([type(node).__name__ in str(node) or "ReindexMapDataset" in str(node) for node in ancestors(ds)])
    assert all([type(node).__name__ in repr(it) for node in nodes(it)])
    if ds.parents:
        head, *lines = repr(ds.map(add_ten)).splitlines()
        assert re.match("(Map|Iter)Dataset.*:$", head) and len(lines) > len(ds.parents)
    it.close()
