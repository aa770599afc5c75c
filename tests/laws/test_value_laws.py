"""Laws of data sets as values: they pickle, copy, print, and can be iterated by many threads, always to the same end."""

import copy
import pickle
import re
from concurrent.futures import ThreadPoolExecutor

import cloudpickle
import pytest
from entry import add_ten, nodes, plain
from stage_table import ITER_ENTRIES, MAP_ENTRIES

from gristmill.dataset.bases.node import ancestors

EVERY = [pytest.param(entry, id=f"{type(entry).__name__}-{entry.name}") for entry in [*MAP_ENTRIES, *ITER_ENTRIES]]


def contents(ds):
    return [plain(x) for x in ds]


@pytest.mark.parametrize("entry", EVERY)
@pytest.mark.parametrize(
    "copied",
    [lambda ds: pickle.loads(pickle.dumps(ds)), lambda ds: cloudpickle.loads(cloudpickle.dumps(ds)), copy.deepcopy, copy.copy],
    ids=["pickle", "cloudpickle", "deepcopy", "copy"],
)
def test_copies_are_equal_before_and_after_reading(entry, copied):
    ds = entry.make()
    expected = contents(entry.make())
    assert contents(copied(ds)) == expected
    assert contents(ds) == expected
    again = copied(ds)
    assert contents(again) == expected
    assert contents(copied(again)) == expected
    if hasattr(ds, "__len__"):
        assert len(again) == len(ds)
        later = range(len(ds))[::-1]
        assert [plain(again[i]) for i in later] == [plain(ds[i]) for i in later]


@pytest.mark.parametrize("entry", EVERY)
def test_iterators_refuse_to_be_copied(entry):
    it = iter(entry.make())
    for used in range(2):
        for attempt in (pickle.dumps, cloudpickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="get_state"):
                attempt(it)
        if not used:
            next(it, None)
    it.close()


@pytest.mark.parametrize("entry", EVERY)
def test_texts(entry):
    ds = entry.make()
    list(ds)
    it = iter(ds)
    for node in ancestors(ds):
        assert type(node).__name__ in str(node) or "ReindexMapDataset" in str(node)
        assert not re.search(r"0x[0-9a-f]{6,}", str(node) + repr(node))
        assert "\n" not in str(node)
    for node in nodes(it):
        assert not re.search(r"0x[0-9a-f]{6,}", str(node) + repr(node))
        assert "\n" not in str(node)
    assert all([type(node).__name__ in repr(it) for node in nodes(it)])
    if ds.parents:
        head, *lines = repr(ds.map(add_ten)).splitlines()
        assert re.match("(Map|Iter)Dataset.*:$", head) and len(lines) > len(ds.parents)
    it.close()


@pytest.mark.parametrize("entry", EVERY)
def test_iterators_of_eight_threads_are_independent(entry):
    ds = entry.make()
    expected = contents(entry.make())
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(contents, [ds] * 16)) == [expected] * 16


@pytest.mark.parametrize("entry", EVERY)
def test_equality_and_hash_are_by_identity(entry):
    one, other = entry.make(), entry.make()
    assert one == one and one != other
    assert len({one, other, one}) == 2
