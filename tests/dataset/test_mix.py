"""Mixtures, concatenations and selections of map datasets, and mixtures of streams."""

import json
import math
import sys
from functools import partial

import numpy as np
import pytest
from computing_ahead import DIRECT, Boom, Failing
from computing_ahead import numbers as stream
from refusing import assert_raises, assert_stays
from users_datasets import BareIterator, BareStream, Given, Plain

from gristmill import DatasetSelectionMap, IterDataset, MapDataset, ReadOptions
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError
from gristmill.experimental import ThreadPrefetchIterDataset, multithread_prefetch

HANDLER = CheckpointHandler()
NOTE = "It happened in the component with dataset_index=1 of MixedMapDataset[2 parents]."


def components(*lengths):
    """Datasets whose elements say where they come from: component and raw index."""
    return [
        MapDataset.range(n).map_with_index(lambda i, _, j=j: (j, i)) for j, n in enumerate(lengths)
    ]


def numbers(n, start=0, fn=None):
    return stream(start, start + n, fn=fn)


def mixture(*streams, weights=None):
    return IterDataset.mix(list(streams), weights)


def named(**lengths):
    return {name: numbers(n, start=100 * (ord(name[0]) - ord("a"))) for name, n in lengths.items()}


def select(parts, selection=((0, 0),)):
    return MapDataset.select_from_datasets(parts, selection)


class Diagonal(DatasetSelectionMap):
    """A user's selection of five, which fails at 2; notes what it was asked."""

    def __init__(self):
        self.asked = []

    def __len__(self):
        return 5

    def __getitem__(self, index):
        assert type(index) is int
        self.asked.append(index)
        if index == 2:
            raise StopIteration
        return index % 2, 3 * index

    def __repr__(self):
        return "Diagonal"


class Name(str):
    """A text that is no other text: as a key it differs from any text that looks the same."""

    __hash__ = object.__hash__

    def __eq__(self, other):
        return self is other


THREE = MapDataset.range(3)
EMPTY = MapDataset.range(0).map(str)
STREAM = numbers(3)
TWO = named(a=3, b=3)
MAKES = (MapDataset.mix, MapDataset.concatenate, select)
MIXES = (lambda w: MapDataset.mix([THREE] * 2, w), lambda w: mixture(STREAM, STREAM, weights=w))
NO_LISTS = ({THREE}, iter([THREE]), THREE, None, 3, "ab")
NO_MAP_DATASETS = ([THREE, 5], [THREE, [1, 2]], [THREE, STREAM], (THREE, None))
EMPTIES = r"datasets\[1\], MapMapDataset.*datasets\[3\], RangeMapDataset.*leave it out"
ENDLESS = r"datasets\[1\], RepeatMapDataset.*endless: slice it"
WRONG = [
    *[(make, NO_LISTS, TypeError, "datasets must be a list of datasets") for make in MAKES],
    *[(make, NO_MAP_DATASETS, TypeError, r"\[1\] must be a MapDataset") for make in MAKES],
    (
        IterDataset.mix,
        (STREAM, THREE, None, "ab", iter([STREAM])),
        TypeError,
        "datasets must be a list",
    ),
    (
        IterDataset.mix,
        ([STREAM, [1]], [STREAM, None]),
        TypeError,
        r"datasets\[1\] must be a MapDataset or IterDataset",
    ),
    (MapDataset.mix, ([],), ValueError, "must not be empty"),
    (IterDataset.mix, ([], {}), ValueError, "must not be empty"),
    (MapDataset.mix, ([THREE, EMPTY, THREE, EMPTY.parents[0]],), ValueError, EMPTIES),
    (MapDataset.mix([THREE.repeat()] * 2).repeat, (None,), ValueError, "endless"),
    (MapDataset.mix([THREE.filter(bool), THREE]).batch, (2,), ValueError, "to_iter_dataset"),
    (MapDataset.mix([THREE, THREE]).__getitem__, (1.0, "1", None, [1]), TypeError, "index"),
    (MapDataset.concatenate, ([THREE, THREE.repeat()],), ValueError, ENDLESS),
    *[
        (
            mix,
            ([1, 0], [1, math.nan], np.array([0.0, 1])),
            ValueError,
            r"positive and finite.*weights\[",
        )
        for mix in MIXES
    ],
    *[
        (mix, ([1], [1, 2, 3], np.ones(3)), ValueError, "one number for each of the 2 datasets")
        for mix in MIXES
    ],
    *[(mix, (["1", "2"], "12", 3, np.ones((2, 2))), TypeError, "weights must be") for mix in MIXES],
    (
        lambda x: select([THREE] * 2, [x])[0],
        (5, None, (1,), (1.0, 0), (0, "1")),
        TypeError,
        r"selection_map\[0\]",
    ),
    (
        lambda x: list(select([THREE] * 2, [x, x])._gm_items(range(2))),
        (5, (1, 2, 3), (0, None)),
        TypeError,
        r"selection_map\[0\]",
    ),
    (
        lambda j: select([THREE] * 2, [(j, 0)])[0],
        (2, 100, -3),
        IndexError,
        "dataset index -?[0-9]+, of 2 datasets",
    ),
    (
        lambda j: [*select([THREE] * 2, [(j, 0)] * 2)._gm_items(range(2))],
        (2, -3),
        IndexError,
        "dataset index (2|-3), of 2 datasets",
    ),
    (
        lambda x: select([THREE], x),
        (None, 5, iter([]), {(0, 0)}, max),
        TypeError,
        "selection_map must be a DatasetSelectionMap",
    ),
    # it is the user's
    (select([THREE], [(0, 0)]).__getitem__, (1,), IndexError, "list index out of range"),
    (select([THREE], []).__getitem__, (0,), IndexError, "empty"),
    (lambda w: IterDataset.mix(TWO, w), ({"a": 1}, {"a": 1, "c": 1}), ValueError, "same keys"),
    (lambda w: IterDataset.mix(TWO, w), ([1, 2],), TypeError, "mapping like datasets"),
    (MIXES[1], ({"a": 1, "b": 2},), TypeError, "sequence like datasets"),
    (IterDataset.mix, ({"a": STREAM, 1: STREAM},), TypeError, "keys"),
    (IterDataset.mix, ({Name("a"): STREAM, Name("a"): STREAM},), ValueError, "differ as text"),
]


@pytest.mark.parametrize(("call", "arguments", "error", "match"), WRONG)
def test_wrong_arguments(call, arguments, error, match):
    for wrong in arguments:
        assert_raises(error, match, call, wrong)


def test_selection_that_fails_is_not_asked_again_and_again():
    """Its error context has the records of the element, for which it is asked once more."""

    class Counted(list):
        num_asked = 0

        def __getitem__(self, index):
            self.num_asked += 1
            return super().__getitem__(index)

    selection_map = Counted([(100, 0)])
    with pytest.raises(IndexError, match="of 2 datasets"):
        select([THREE] * 2, selection_map)[0]
    assert selection_map.num_asked <= 2


def test_texts_seeds_and_mixtures_of_one_empty_or_endless():
    ds = MapDataset.mix([MapDataset.range(5), MapDataset.range(5)], [0.7, 0.3])
    assert str(ds) == "MixedMapDataset[2 parents]"
    text = "SelectionWithProportionsMap(proportions=(233, 100), length=7)"
    assert repr(ds) == f"MixedMapDataset(parent_lengths=[5, 5], selection_map={text})"
    assert str(MapDataset.concatenate(components(1, 2, 3))) == "MixedMapDataset[3 parents]"
    assert "parent_lengths=[1, 2, 3]" in repr(MapDataset.concatenate(components(1, 2, 3)))
    assert "selection_map=Diagonal" in repr(select(components(10, 10), Diagonal()))
    ds = mixture(STREAM, STREAM, weights=[0.7, 0.3])
    assert str(ds) == "MixedIterDataset([2 parents], proportions=[233, 100])"
    assert str(iter(ds)) == "MixedDatasetIterator([2 parents], proportions=(233, 100))"
    # Equal weights, however they are given, are the same pipeline.
    assert {
        str(mixture(STREAM, STREAM, weights=w))
        for w in (None, [1, 1], (0.5, 0.5), np.array([7, 7]))
    } == {"MixedIterDataset([2 parents], proportions=[100, 100])"}
    a, b, c = MapDataset.range(4), MapDataset.range(10, 14), MapDataset.range(20, 24)
    ds = MapDataset.mix([a.seed(1).shuffle(), b.map(str).seed(2), c])
    assert ds.random_map(lambda x, rng: x)._default_seed == 397260373
    (ds,) = components(4)
    assert list(MapDataset.mix([ds, ds])) == [(0, i) for i in range(4) for _ in range(2)]
    ds = MapDataset.mix(components(3, 3))
    assert ds[np.int64(3)] == ds[True + 2] == (1, 1) and list(ds[1:4]) == [(1, 0), (0, 1), (1, 1)]
    # Endless components.
    ds = MapDataset.mix(
        [MapDataset.range(3).repeat(), MapDataset.range(10, 15).shuffle(seed=2).repeat()], [2, 1]
    )
    assert len(ds) == sys.maxsize
    assert ds[sys.maxsize - 1] in range(15)
    assert [ds[i] for i in range(6)] == list(ds._gm_items(range(6)))
    assert len(MapDataset.mix([THREE.repeat(), MapDataset.range(5)])) == 10
    # Uniform and tiny weights of endless ones do not overflow either.
    assert len(MapDataset.mix([THREE.repeat()] * 2, [1e-250, 1.0])) == sys.maxsize
    for parts in ([], [MapDataset.range(0)], [MapDataset.range(0)] * 3):
        ds = MapDataset.concatenate(parts)
        assert len(ds) == len(ds.repeat()) == len(list(ds)) == 0
        for index in (0, -1, 5):
            assert_raises(IndexError, "empty", ds.__getitem__, index)
    half, whole = 2**62, 2**63
    ds = MapDataset.concatenate(
        [MapDataset.range(half), MapDataset.range(half, whole), MapDataset.range(-3, 0)]
    )
    assert len(ds) == sys.maxsize
    indices = [0, half - 1, half, whole - 1, whole, whole + 3, -1, -4]
    expected = [0, half - 1, half, whole - 1, -3, 0, -1, whole - 1]
    assert [ds[i] for i in indices] == list(ds._gm_items(indices)) == expected
    assert list(ds._gm_items(np.array([half, 5]))) == [half, 5]


def test_selections_of_users():
    selection_map = Diagonal()
    ds = select(components(10, 10), selection_map)
    assert len(ds) == 5
    assert [ds[i] for i in (0, 3, 9, -5, 2**70)] == [(i % 2, 3 * i) for i in (0, 3, 9, -5, 2**70)]
    assert selection_map.asked == [0, 3, 9, -5, 2**70]  # raw indices
    assert list(ds._gm_items(np.array([4, -1, 4]))) == [(0, 12), (1, -3), (0, 12)]
    it = iter(ds)
    assert [next(it), next(it)] == [(0, 0), (1, 3)]
    assert_raises(RuntimeError, "StopIteration", next, it)
    it.skip_failed()
    assert list(it) == [(1, 9), (0, 12)]
    pairs = [(0, 0), (1, 0)]
    ds = select(components(3, 3), pairs)
    pairs.append((0, 2))
    assert len(ds) == 2 and ds[2] == (0, 2)  # the length is taken once
    assert len(select([THREE], [])) == len(list(select([THREE], []))) == 0


@pytest.mark.parametrize(
    "make",
    [
        MapDataset.mix,
        MapDataset.concatenate,
        lambda parts: select(parts, [(i % 2, i // 2) for i in range(12)]),
    ],
)
def test_the_component_that_fails_is_named_once(make):
    ds = make([MapDataset.range(6), MapDataset.range(10, 16).map(Failing(12))])
    expected = list(make([MapDataset.range(6), MapDataset.range(10, 16)]))
    position = expected.index(12)
    for block in (lambda: ds[position], lambda: list(ds._gm_items(range(12)))):
        with pytest.raises(Boom) as caught:
            block()
        assert caught.value.__notes__.count(NOTE) == 1
    for read_options, size in ((DIRECT, 5), (ReadOptions(1, 1), 1), (ReadOptions(2, 50), 5)):
        it = iter(ds.to_iter_dataset(read_options).batch(size, batch_fn=list))
        got = []
        for _ in range(2):  # the same error again
            with pytest.raises(Boom) as caught:
                got.extend(it)
            assert caught.value.__notes__[0] == NOTE and caught.value.__notes__.count(NOTE) == 1
        groups = [expected[i : i + size] for i in range(0, 12, size)]
        assert got == groups[: position // size]
        it.skip_failed()
        assert list(it) == groups[position // size + 1 :]


def test_nested_mixtures_name_every_level():
    inner = MapDataset.mix([THREE, THREE, THREE.map(Failing(0))])
    with pytest.raises(Boom) as caught:
        MapDataset.concatenate([MapDataset.range(2), inner])[4]
    level = "It happened in the component with dataset_index=2 of MixedMapDataset[3 parents]."
    assert caught.value.__notes__[:2] == [level, NOTE]
    with pytest.raises(Boom) as caught:
        list(mixture(numbers(4), numbers(4, fn=Failing(1))))
    level = (
        "It happened in the component with input_index=1 of MixedDatasetIterator([2 parents],"
        " proportions=(100, 100))."
    )
    assert [note for note in caught.value.__notes__ if "component" in note] == [level]
    it = iter(mixture(numbers(5), numbers(3, start=7)))
    assert list(it) == [0, 7, 1, 8, 2, 9, 3]
    assert it.get_state() == {
        "parents": [{"next_index": 4}, {"next_index": 3}],
        "index": 8,
        "stop": True,
    }
    assert list(mixture(MapDataset.range(4).filter(lambda x: x % 2), MapDataset.range(9))) == [
        1,
        0,
        3,
        1,
    ]
    assert list(mixture(numbers(3), numbers(0), weights=[2.5, 1])) == [0, 1, 2]
    assert list(mixture(STREAM, STREAM)) == [0, 0, 1, 1, 2, 2]  # the same twice
    it = iter(mixture(numbers(2)))
    assert it._gm_take(0) == [] and list(it) == [0, 1] and it._gm_take(0) == []
    assert it.get_state() == {"parents": [{"next_index": 2}], "index": 3, "stop": True}


def test_the_error_of_a_block_is_the_first_in_order():
    ds = mixture(Plain(3), numbers(5, start=10))
    assert (
        list(ds)
        == list(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2))
        == [0, 10, 1, 11, 2, 12]
    )
    assert list(ds.batch(4, batch_fn=list)) == [[0, 10, 1, 11], [2, 12]]
    it = iter(ds)
    next(it)
    assert_raises(NotImplementedError, "range_iterator", it.get_state)
    assert list(it) == [10, 1, 11, 2, 12]
    it = iter(mixture(BareStream(5), BareStream(5)))
    assert it._gm_take(3) == [0, 0, 1]
    closed = []
    for parent in it._parents:
        parent.close = lambda parent=parent: closed.append(parent)
    it.close()
    assert closed == list(it._parents)
    assert_raises(ValueError, "closed", next, it)
    # Blocks read one component after the other; the error that is met first must not depend on
    # that.
    it = iter(
        mixture(numbers(9, fn=Failing(4)), numbers(9, 10, Failing(12))).batch(3, batch_fn=list)
    )
    assert next(it) == [0, 10, 1]
    assert_stays(it, Boom, "12")
    it.skip_failed()  # 11 2 12
    assert_raises(Boom, "4", next, it)
    it.skip_failed()
    assert list(it) == [[14, 5, 15], [6, 16, 7], [17, 8, 18]]

    class FailsAtItsEnd(BareIterator):
        has_failed = False

        def __next__(self):
            if self.position == self.n and not self.has_failed:
                self.has_failed = True
                raise Boom
            return super().__next__()

    it = iter(mixture(Given(lambda: FailsAtItsEnd(2)), numbers(9)))
    assert [next(it) for _ in range(4)] == [0, 0, 1, 1]
    assert_raises(Boom, None, next, it)
    it.skip_failed()  # where it was is the end now
    assert list(it) == []
    assert it.get_state() == {
        "parents": [{"position": 2}, {"next_index": 2}],
        "index": 5,
        "stop": True,
    }


def test_names_of_components():
    ds = IterDataset.mix({10: numbers(3), 9: numbers(3, start=10)})
    it, fresh = iter(ds), iter(ds)
    assert [next(it), next(it), next(it)] == [10, 0, 11]
    state = json.loads(json.dumps(it.get_state()))
    fresh.set_state(state)
    assert list(fresh) == list(it) == [1, 12, 2]
    # as Grain has them in memory
    fresh.set_state({**state, "parents": {int(k): v for k, v in state["parents"].items()}})
    assert list(fresh) == [1, 12, 2]


def test_checkpoints(tmp_path):
    it = iter(IterDataset.mix(named(a=9, b=9), {"a": 1, "b": 2}))
    it._gm_take(5)
    HANDLER.save(tmp_path, it)
    again = iter(IterDataset.mix(named(b=9, a=9), {"a": 1, "b": 2}))
    assert list(HANDLER.restore(tmp_path, again)) == list(it)
    # A component under the name of another one is not that one.
    other = iter(IterDataset.mix({"a": numbers(9), "b": numbers(9, start=100).filter(bool)}))
    assert_raises(StateMismatchError, "component 'b'", HANDLER.restore, tmp_path, other)
    HANDLER.save(tmp_path, iter(mixture(numbers(9), numbers(9), weights=[1, 2])))
    for weights in ([1, 3], [1, 2, 3]):
        other = iter(mixture(*[numbers(9)] * len(weights), weights=weights))
        assert_raises(StateMismatchError, "proportions", HANDLER.restore, tmp_path, other)
    HANDLER.restore(tmp_path, iter(mixture(numbers(9), numbers(9), weights=[0.5, 1])))


@pytest.mark.filterwarnings("ignore:.*takes every n-th element")
def test_parts_of_the_sources_of_several_datasets_are_refused():
    for ds in (MapDataset.mix(components(4, 4)), MapDataset.concatenate(components(4, 4))):
        shared = partial(multithread_prefetch, ds.to_iter_dataset(), 2, 2)
        assert_raises(ValueError, "combines several datasets", shared, sequential_slice=True)
        assert sorted(shared()) == sorted(ds)
