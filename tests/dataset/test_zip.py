"""What zips do beyond the laws of all stages: ends of other lengths, missing elements, states, parents of users."""

import numpy as np
import pytest
from refusing import assert_raises
from users_datasets import Plain

from gristmill import MapDataset
from gristmill.core.errors import StateMismatchError
from gristmill.experimental import ShapeDtypeStruct, ZipIterDataset, ZipMapDataset, get_element_spec


def numbers(n):
    return MapDataset.range(n).to_iter_dataset()


def at(*indices):
    return {"parents": [{"next_index": i} for i in indices]}


def test_arguments_methods_and_texts():
    for kind in (ZipMapDataset, ZipIterDataset):
        assert_raises(ValueError, "at least one", kind, [])
        for wrong in ([MapDataset.range(2), [1, 2]], 3):
            assert_raises(TypeError, "parents must be", kind, wrong)
    assert_raises(TypeError, "parents must be", ZipMapDataset, [numbers(3)])
    match = r"must have the same length, got the lengths \[2, 3, 2\]"
    assert_raises(ValueError, match, ZipMapDataset, [MapDataset.range(n) for n in (2, 3, 2)])
    assert list(ZipIterDataset([numbers(2), MapDataset.range(2)])) == [(0, 0), (1, 1)]
    assert list(MapDataset.range(2).zip(MapDataset.range(5, 7), MapDataset.source("ab"))) == [(0, 5, "a"), (1, 6, "b")]
    assert list(numbers(2).zip(numbers(3), strict=False)) == [(0, 0), (1, 1)]
    ds = ZipMapDataset([MapDataset.range(2), MapDataset.range(2).shuffle(seed=1)])
    assert str(ds) == "ZipMapDataset(parents=(RangeMapDataset(start=0, stop=2, step=1), ShuffleMapDataset), drop_missing=False)"
    ds = ZipIterDataset([numbers(2).map(len), numbers(2)], strict=False)
    assert str(ds).startswith("ZipIterDataset(parents=(MapIterDataset(transform=len), PrefetchIterDataset(")
    assert str(ds).endswith("strict=False)")
    assert str(iter(ds)) == "ZipDatasetIterator([2 parents])"

    holes = MapDataset.range(4).map(lambda x: None if x == 1 else x)
    assert list(ZipMapDataset([holes, MapDataset.range(4)], drop_missing=True)) == [(0, 0), (2, 2), (3, 3)]
    assert len(ZipMapDataset([holes]).batch(2)) == 2
    assert_raises(ValueError, "ZipMapDataset", ZipMapDataset([holes], drop_missing=True).batch, 2)
    arrays = ZipMapDataset([MapDataset.source([np.zeros(2), np.ones(2)]), MapDataset.range(2)], drop_missing=True)
    assert [row[1] for row in arrays] == [0, 1]  # these are not taken for missing


ENDS = [
    ((3, 2), "argument 2 is shorter than argument 1"),
    ((2, 3), "argument 2 is longer than argument 1"),
    ((3, 3, 2), "argument 3 is shorter than arguments 1-2"),
    ((2, 2, 3), "argument 3 is longer than arguments 1-2"),
    ((2, 3, 2), "argument 2 is longer than argument 1"),
    ((3, 2, 2), "argument 2 is shorter than argument 1"),
    ((2, 2, 9, 1), "argument 4 is shorter than arguments 1-3"),
]


@pytest.mark.parametrize(("lengths", "message"), ENDS)
def test_a_strict_zip_of_other_lengths_fails_behind_its_last_row_and_stays_there(lengths, message):
    """A batch that reaches into the error fails as a whole; those before it do not."""
    ds, rows = ZipIterDataset([numbers(n) for n in lengths]), min(lengths)
    for size in (1, 2, 5):
        it = iter(ds.batch(size, batch_fn=list))
        for k in range(rows // size):
            assert next(it) == [(i,) * len(lengths) for i in range(k * size, (k + 1) * size)]
        for _ in range(3):
            assert_raises(ValueError, message, next, it)
            assert it.get_state() == at(*[rows // size * size] * len(lengths))
        it.set_state(at(*[rows] * len(lengths)))
        assert_raises(ValueError, message, next, it)
    it.set_state(at(*[0] * len(lengths)))
    assert_raises(ValueError, message, next, it)
    it = iter(ds)
    assert [next(it) for _ in range(rows)] == [(i,) * len(lengths) for i in range(rows)]
    while True:  # skipping uses up the longer ones
        try:
            next(it)
        except ValueError:
            it.skip_failed()
        except StopIteration:
            break


@pytest.mark.parametrize("block", [1, 2, 3, 4, 50])
def test_without_strict_the_parents_before_the_first_that_ends_are_one_further(block):
    dropping = MapDataset.range(9).filter(lambda x: x < 4).to_iter_dataset()  # looks at 9 to see that it has ended
    it, rows = iter(ZipIterDataset([numbers(9), dropping, numbers(3), numbers(7)], strict=False)), []
    while taken := it._take(block):
        rows += taken
    assert rows == [(i,) * 4 for i in range(3)]
    for _ in range(3):  # the end is the end: nobody is asked for more
        assert it.get_state() == at(4, 4, 3, 3)
        assert_raises(StopIteration, None, next, it)
    assert_raises(StateMismatchError, None, it.set_state, at(0, 0, 0, -1))
    assert it.get_state() == at(4, 4, 3, 3) and list(it) == []
    it.set_state(at(1, 1, 1, 1))
    assert list(it) == [(1, 1, 1, 1), (2, 2, 2, 2)]


def test_states_that_do_not_fit_and_iterators_without_a_state():
    it = iter(ZipIterDataset([numbers(4), numbers(4)]))
    next(it)
    for parents in ([{"next_index": 2}], [{"next_index": 2}] * 3, {"0": {"next_index": 2}}, None):
        assert_raises(StateMismatchError, "list of 2, the number of datasets, got", it.set_state, {"parents": parents})
    assert_raises(StateMismatchError, "next_index", it.set_state, at(3, 99))
    assert it.get_state() == at(1, 1)
    it.set_state({"parents": ({"next_index": 3}, {"next_index": 3})})
    assert list(it) == [(3, 3)]
    for ds in (ZipIterDataset([Plain(3), numbers(3)]), ZipIterDataset([Plain(9), Plain(3)], strict=False)):
        assert list(ds.batch(2, batch_fn=list)) == [[(0, 0), (1, 1)], [(2, 2)]]
    it = iter(ZipIterDataset([numbers(9), Plain(2)]))
    assert [next(it), next(it)] == [(0, 0), (1, 1)]
    assert_raises(ValueError, "shorter", next, it)
    assert_raises(NotImplementedError, None, it.get_state)


def test_specs():
    spec, batched = get_element_spec(MapDataset.range(3)), ShapeDtypeStruct((1,), np.int64)
    zipped = MapDataset.range(3).zip(MapDataset.range(3).batch(1, drop_remainder=True).shuffle(seed=1))
    assert get_element_spec(zipped) == (spec, batched)
    assert get_element_spec(ZipIterDataset([zipped.to_iter_dataset(), numbers(3)])) == ((spec, batched), spec)
