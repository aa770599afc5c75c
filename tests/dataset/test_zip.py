import re

import numpy as np
import pytest

from gristmill import IterDataset, MapDataset, MultiprocessingOptions
from gristmill.core.errors import StateMismatchError
from gristmill.core.options import DatasetOptions, ReadOptions
from gristmill.experimental import ShapeDtypeStruct, WithOptionsIterDataset, ZipIterDataset, ZipMapDataset, get_element_spec


def numbers(n):
    return MapDataset.range(n).to_iter_dataset()


def test_methods_stand_for_the_classes():
    assert list(MapDataset.range(2).zip(MapDataset.range(5, 7), MapDataset.source("ab"))) == [(0, 5, "a"), (1, 6, "b")]
    assert list(numbers(2).zip(numbers(3), strict=False)) == [(0, 0), (1, 1)]


def test_arguments():
    for kind in (ZipMapDataset, ZipIterDataset):
        with pytest.raises(ValueError, match="at least one"):
            kind([])
        with pytest.raises(TypeError, match="parents must be"):
            kind([MapDataset.range(2), [1, 2]])
        with pytest.raises(TypeError, match="parents must be"):
            kind(3)
    with pytest.raises(ValueError, match=re.escape("must have the same length, got the lengths [2, 3, 2]")):
        ZipMapDataset([MapDataset.range(2), MapDataset.range(3), MapDataset.range(2)])
    with pytest.raises(TypeError, match="parents must be"):
        ZipMapDataset([numbers(3)])
    assert list(ZipIterDataset([numbers(2), MapDataset.range(2)])) == [(0, 0), (1, 1)]


def test_every_parent_has_its_own_epochs():
    ds = MapDataset.range(4).shuffle(seed=1).zip(MapDataset.range(8).shuffle(seed=2)[:4])
    for i in range(-8, 12):
        assert ds[i] == (MapDataset.range(4).shuffle(seed=1)[i], MapDataset.range(8).shuffle(seed=2)[:4][i])


def test_missing_elements_stay_or_drop_the_tuple():
    odd = MapDataset.range(4).filter(lambda x: x % 2 == 1)
    kept = ZipMapDataset([odd, MapDataset.range(4)])
    dropped = ZipMapDataset([odd, MapDataset.range(4)], drop_missing=True)
    assert [kept[i] for i in range(4)] == [(None, 0), (1, 1), (None, 2), (3, 3)]
    assert [dropped[i] for i in range(4)] == [None, (1, 1), None, (3, 3)]
    assert list(dropped) == [(1, 1), (3, 3)]
    holes = MapDataset.range(4).map(lambda x: None if x == 1 else x)
    assert len(ZipMapDataset([holes]).batch(2)) == 2
    with pytest.raises(ValueError, match="ZipMapDataset"):
        ZipMapDataset([holes], drop_missing=True).batch(2)


def test_arrays_are_not_taken_for_missing():
    ds = ZipMapDataset([MapDataset.source([np.zeros(2), np.ones(2)]), MapDataset.range(2)], drop_missing=True)
    assert [row[1] for row in ds] == [0, 1]


def test_texts():
    ds = ZipMapDataset([MapDataset.range(2), MapDataset.range(2).shuffle(seed=1)])
    assert str(ds) == "ZipMapDataset(parents=(RangeMapDataset(start=0, stop=2, step=1), ShuffleMapDataset), drop_missing=False)"
    ds = ZipIterDataset([numbers(2).map(len), numbers(2)], strict=False)
    assert str(ds).startswith("ZipIterDataset(parents=(MapIterDataset(transform=len), PrefetchIterDataset(")
    assert str(ds).endswith("strict=False)")
    assert str(iter(ds)) == "ZipDatasetIterator([2 parents])"


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
@pytest.mark.parametrize("size", [1, 2, 5])
def test_a_strict_zip_of_other_lengths_fails_behind_its_last_row_and_stays_there(lengths, message, size):
    it = iter(ZipIterDataset([numbers(n) for n in lengths]))
    rows = min(lengths)
    for i in range(rows):
        assert next(it) == (i,) * len(lengths)
    state = it.get_state()
    assert state == {"parents": [{"next_index": rows}] * len(lengths)}
    for _ in range(3):
        with pytest.raises(ValueError, match=message):
            next(it)
        assert it.get_state() == state
    it.set_state({"parents": [{"next_index": 0}] * len(lengths)})
    assert next(it) == (0,) * len(lengths)

    # A batch that reaches into the error fails as a whole; those before it do not.
    it = iter(ZipIterDataset([numbers(n) for n in lengths]).batch(size, batch_fn=list))
    for k in range(rows // size):
        assert next(it) == [(i,) * len(lengths) for i in range(k * size, (k + 1) * size)]
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            next(it)
        assert it.get_state() == {"parents": [{"next_index": rows // size * size}] * len(lengths)}


def test_skipping_behind_a_strict_error_uses_up_the_longer_ones():
    it = iter(ZipIterDataset([numbers(4), numbers(2)]))
    assert [next(it), next(it)] == [(0, 0), (1, 1)]
    for _ in range(2):
        with pytest.raises(ValueError, match="shorter"):
            next(it)
        it.skip_failed()
    with pytest.raises(StopIteration):
        next(it)


@pytest.mark.parametrize("block", [1, 2, 3, 4, 50])
def test_without_strict_the_parents_before_the_first_that_ends_are_one_further(block):
    def ds():
        dropping = MapDataset.range(9).filter(lambda x: x < 4).to_iter_dataset()  # looks at 9 to see that it has ended
        return ZipIterDataset([numbers(9), dropping, numbers(3), numbers(7)], strict=False)

    it = iter(ds())
    rows = []
    while taken := it._take(block):
        rows += taken
    assert rows == [(i,) * 4 for i in range(3)]
    end = {"parents": [{"next_index": 4}, {"next_index": 4}, {"next_index": 3}, {"next_index": 3}]}
    assert it.get_state() == end
    for _ in range(3):  # the end is the end: nobody is asked for more
        with pytest.raises(StopIteration):
            next(it)
        assert it.get_state() == end
    with pytest.raises(StateMismatchError):
        it.set_state({"parents": [{"next_index": 0}, {"next_index": 0}, {"next_index": 0}, {"next_index": -1}]})
    assert it.get_state() == end and list(it) == []
    it.set_state({"parents": [{"next_index": 1}] * 4})
    assert list(it) == [(1, 1, 1, 1), (2, 2, 2, 2)]


def test_states_that_do_not_fit():
    it = iter(ZipIterDataset([numbers(4), numbers(4)]))
    next(it)
    for parents in ([{"next_index": 2}], [{"next_index": 2}] * 3, {"0": {"next_index": 2}}, None):
        with pytest.raises(StateMismatchError, match="list of 2, the number of datasets, got"):
            it.set_state({"parents": parents})
    with pytest.raises(StateMismatchError, match="next_index"):
        it.set_state({"parents": [{"next_index": 3}, {"next_index": 99}]})
    assert it.get_state() == {"parents": [{"next_index": 1}] * 2}
    it.set_state({"parents": ({"next_index": 3}, {"next_index": 3})})
    assert list(it) == [(3, 3)]


class Plain(IterDataset):
    """A user's dataset whose iterators have no state."""

    def __init__(self, n):
        super().__init__()
        self.n = n

    def __iter__(self):
        return iter(range(self.n))


def test_of_iterators_without_a_state():
    assert list(ZipIterDataset([Plain(3), numbers(3)]).batch(2, batch_fn=list)) == [[(0, 0), (1, 1)], [(2, 2)]]
    assert list(ZipIterDataset([Plain(9), Plain(3)], strict=False).batch(2, batch_fn=list)) == [[(0, 0), (1, 1)], [(2, 2)]]
    it = iter(ZipIterDataset([numbers(9), Plain(2)]))
    assert [next(it), next(it)] == [(0, 0), (1, 1)]
    with pytest.raises(ValueError, match="shorter"):
        next(it)
    with pytest.raises(NotImplementedError):
        it.get_state()


def test_workers_have_the_same_rows():
    ds = ZipIterDataset([numbers(7), MapDataset.range(7).shuffle(seed=2).to_iter_dataset()])
    assert list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2))) == list(ds)


def test_options_of_all_parents_are_merged():
    first = WithOptionsIterDataset(numbers(3), DatasetOptions(filter_raise_threshold_ratio=0.5))
    second = WithOptionsIterDataset(numbers(3), DatasetOptions(filter_raise_threshold_ratio=0.1, min_shm_size=7))
    options = iter(ZipIterDataset([first, second]))._ctx.options
    assert (options.filter_raise_threshold_ratio, options.min_shm_size) == (0.5, 7)


def test_the_spec_of_an_element_is_a_tuple():
    spec = get_element_spec(MapDataset.range(3))
    zipped = MapDataset.range(3).zip(MapDataset.range(3).batch(1, drop_remainder=True).shuffle(seed=1))
    batched = ShapeDtypeStruct((1,), np.int64)
    assert get_element_spec(zipped) == (spec, batched)
    assert get_element_spec(ZipIterDataset([zipped.to_iter_dataset(), numbers(3)])) == ((spec, batched), spec)


def test_read_ahead_of_a_parent_does_not_lose_rows():
    ds = ZipIterDataset([MapDataset.range(50).to_iter_dataset(ReadOptions(4, 9)), numbers(50)])
    it = iter(ds)
    assert [next(it) for _ in range(20)] == [(i, i) for i in range(20)]
    again = iter(ds)
    again.set_state(it.get_state())
    assert list(again) == [(i, i) for i in range(20, 50)]
