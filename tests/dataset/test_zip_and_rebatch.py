"""Behaviour of zips and ``RebatchIterDataset`` beyond the laws: other lengths, missing elements,
states, views, errors.
"""

import itertools

import numpy as np
import pytest
from computing_ahead import DIRECT, Boom, Failing, numbers
from local_workers import LocalWorkersIterDataset
from operations import plain
from refusing import assert_raises, assert_refused, assert_stays
from users_datasets import Plain

from gristmill import IterDataset, MapDataset, MultiprocessingOptions
from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.experimental import (
    RebatchIterDataset,
    ShapeDtypeStruct,
    ZipIterDataset,
    ZipMapDataset,
    get_element_spec,
)


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
    assert list(MapDataset.range(2).zip(MapDataset.range(5, 7), MapDataset.source(list("ab")))) == [
        (0, 5, "a"),
        (1, 6, "b"),
    ]
    assert list(numbers(2).zip(numbers(3), strict=False)) == [(0, 0), (1, 1)]
    ds = ZipMapDataset([MapDataset.range(2), MapDataset.range(2).shuffle(seed=1)])
    assert (
        str(ds)
        == "ZipMapDataset(parents=(RangeMapDataset(start=0, stop=2, step=1), ShuffleMapDataset),"
        " drop_missing=False)"
    )
    ds = ZipIterDataset([numbers(2).map(len), numbers(2)], strict=False)
    assert str(ds).startswith(
        "ZipIterDataset(parents=(MapIterDataset(transform=len), PrefetchIterDataset("
    )
    assert str(ds).endswith("strict=False)")
    assert str(iter(ds)) == "ZipDatasetIterator([2 parents])"
    holes = MapDataset.range(4).map(lambda x: None if x == 1 else x)
    assert list(ZipMapDataset([holes, MapDataset.range(4)], drop_missing=True)) == [
        (0, 0),
        (2, 2),
        (3, 3),
    ]
    assert len(ZipMapDataset([holes]).batch(2)) == 2
    assert_raises(ValueError, "ZipMapDataset", ZipMapDataset([holes], drop_missing=True).batch, 2)
    arrays = ZipMapDataset(
        [MapDataset.source([np.zeros(2), np.ones(2)]), MapDataset.range(2)], drop_missing=True
    )
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
def test_a_strict_zip_of_other_lengths_fails_at_its_end(lengths, message):
    """A batch that reaches into the error fails as a whole; those before it do not."""
    ds, rows = ZipIterDataset([numbers(n) for n in lengths]), min(lengths)
    for size in (1, 2, 5):
        it = iter(ds.batch(size, batch_fn=list))
        for k in range(rows // size):
            assert next(it) == [(i,) * len(lengths) for i in range(k * size, (k + 1) * size)]
        assert_stays(it, ValueError, message, at(*[rows // size * size] * len(lengths)), times=3)
        it.set_state(at(*[rows] * len(lengths)))
        assert_raises(ValueError, message, next, it)
    it.set_state(at(*[0] * len(lengths)))
    assert_raises(ValueError, message, next, it)
    it = iter(ds)
    assert [next(it) for _ in range(rows)] == [(i,) * len(lengths) for i in range(rows)]
    for _ in range(max(lengths) - rows):  # skipping uses up the longer ones
        assert_raises(ValueError, "argument", next, it)
        it.skip_failed()
    assert list(it) == []


@pytest.mark.parametrize("block", [1, 3, 50])
def test_without_strict_some_parents_are_one_further(block):
    # looks at 9 to see that it has ended
    dropping = MapDataset.range(9).filter(lambda x: x < 4).to_iter_dataset()
    it = iter(ZipIterDataset([numbers(9), dropping, numbers(3), numbers(7)], strict=False))
    rows = []
    while taken := it._gm_take(block):
        rows += taken
    assert rows == [(i,) * 4 for i in range(3)]
    for _ in range(3):  # the end is the end: no parent is read any more
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
        with pytest.raises(StateMismatchError, match="list of 2, the number of datasets, got"):
            it.set_state({"parents": parents})
    assert_refused(it, StateMismatchError, "next_index", at(3, 99), at(1, 1))
    it.set_state({"parents": ({"next_index": 3}, {"next_index": 3})})
    assert list(it) == [(3, 3)]
    for ds in (
        ZipIterDataset([Plain(3), numbers(3)]),
        ZipIterDataset([Plain(9), Plain(3)], strict=False),
    ):
        assert list(ds.batch(2, batch_fn=list)) == [[(0, 0), (1, 1)], [(2, 2)]]
    it = iter(ZipIterDataset([numbers(9), Plain(2)]))
    assert [next(it), next(it)] == [(0, 0), (1, 1)]
    assert_raises(ValueError, "shorter", next, it)
    assert_raises(NotImplementedError, None, it.get_state)


def batches(*elements):
    return MapDataset.source(elements).to_iter_dataset(DIRECT, allow_nones=True)


def ragged(sizes):
    """Batches of these sizes."""
    starts = np.cumsum([0, *sizes])
    return (
        MapDataset.range(len(sizes))
        .map(lambda i: {"a": np.arange(starts[i], starts[i + 1])})
        .to_iter_dataset(DIRECT)
    )


def test_views_dtypes_and_structures():
    whole = np.arange(10)
    got = list(RebatchIterDataset(batches({"x": whole}), 4))
    assert [x["x"].tolist() for x in got] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all([np.shares_memory(x["x"], whole) for x in got])
    # Dtypes are promoted only where batches are joined.
    got = list(RebatchIterDataset(batches(np.int8([1, 2, 3]), np.float32([4, 5, 6])), 2))
    assert [(x.dtype, x.tolist()) for x in got] == [
        ("int8", [1, 2]),
        ("float32", [3, 4]),
        ("float32", [5, 6]),
    ]
    (words,) = RebatchIterDataset(batches(np.array(["a"]), np.array(["bcd"])), 2)
    assert words.tolist() == ["a", "bcd"]
    jax = pytest.importorskip("jax")
    first, second = RebatchIterDataset(
        batches([jax.numpy.arange(4), None], [jax.numpy.arange(2), None]), 3
    )
    assert isinstance(first[0], jax.Array)
    assert second[0].tolist() == [3, 0, 1] and second[1] is None


def test_large_joined_batches_are_not_overwritten():
    rows = 1 << 16
    ds = batches(*[np.full((rows, 4), i) for i in range(12)]).rebatch(rows + rows // 2)
    kept = list(ds)
    assert all([x.nbytes > 1 << 20 for x in kept])
    assert [sorted(set(x[:, 0].tolist())) for x in kept] == [
        [3 * i // 2, 3 * i // 2 + 1] for i in range(8)
    ]
    assert all(map(np.array_equal, ds, kept[:2]))
    seen = []
    ds = MapDataset.range(3).map(lambda i: (seen.append(i), np.arange(4 * i, 4 * i + 4))[1])
    it = iter(RebatchIterDataset(ds.to_iter_dataset(DIRECT), 3))
    states = [it.get_state() for _ in itertools.islice(it, 3)]
    assert seen == [0, 1, 2]
    it.set_state(states[2])
    assert next(it).tolist() == [9, 10, 11]
    it.set_state(states[0])
    assert seen == [0, 1, 2]  # nothing is read before it is needed
    assert next(it).tolist() == [3, 4, 5]
    assert seen == [0, 1, 2, 0, 1]


def test_rows_that_were_handed_out_and_changed_are_read_again():
    it = iter(RebatchIterDataset(ragged([4, 4]), 2))
    state = it.get_state()
    next(it)["a"].fill(-1)
    it.set_state(state)
    assert next(it)["a"].tolist() == [0, 1]
    failing = Failing(4, times=1)

    def double(batch):
        batch *= 2
        failing(batch[0])
        return batch

    it = iter(
        RebatchIterDataset(MapDataset.range(4).to_iter_dataset().batch(4), 2).map(double).batch(2)
    )
    assert_raises(Boom, "4", next, it)
    assert next(it).tolist() == [[0, 2], [4, 6]]


@pytest.mark.parametrize("worker", [False, True])
def test_an_error_does_not_make_the_batch_be_read_again(worker):
    """But a failed worker is asked again when the state is set."""
    seen, failing = [], Failing(1, times=99 if worker else 2)
    ds = (
        MapDataset.range(3)
        .map(lambda i: (seen.append(i), failing(i), np.arange(2) + 2 * i)[2])
        .to_iter_dataset(DIRECT)
    )
    it = iter(RebatchIterDataset(LocalWorkersIterDataset(ds) if worker else ds, 1))
    assert plain([next(it), next(it)]) == [[0], [1]]
    for _ in range(2):
        before = it.get_state()
        assert_raises(Boom, "1", next, it)
        assert it.get_state() == before and before["batch_idx"] == 2
    if worker:
        failing.left.clear()
        it.set_state(it.get_state())
    assert plain(it) == [[2], [3], [4], [5]]
    assert worker or seen == [0, 1, 1, 1, 2]


GOOD = {"a": np.arange(2), "b": np.arange(2)}
MESSAGE = "must have the same structure"


@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ({"a": np.arange(2)}, ValueError, MESSAGE + r"; the first one is .*b.*another one .*a"),
        (None, ValueError, MESSAGE),
        ([np.arange(2)] * 2, ValueError, MESSAGE),
        (
            {"a": np.arange(2), "b": np.arange(3)},
            ValueError,
            r"same number of rows; leaf \['a'\] has 2, leaf \['b'\] has 3",
        ),
        ({"a": np.arange(0), "b": np.arange(0)}, ValueError, "a batch without rows"),
        ({"a": np.arange(2), "b": 3}, TypeError, r"arrays with a first axis, leaf \['b'\] is 3"),
        ({"a": np.arange(2), "b": np.array(3)}, TypeError, r"leaf \['b'\] is array\(3\)"),
        ({"a": np.arange(2), "b": "ab"}, TypeError, r"leaf \['b'\] is 'ab'"),
    ],
)
def test_elements_that_are_no_batches_are_errors(bad, error, message):
    it = iter(RebatchIterDataset(batches(GOOD, bad, GOOD), 2))
    next(it)
    assert_stays(it, error, message)
    it.skip_failed()
    assert [x["a"].tolist() for x in it] == [[0, 1]]


def test_batches_that_cannot_be_joined_or_have_no_arrays():
    it = iter(RebatchIterDataset(batches({"a": np.zeros((3, 2))}, {"a": np.zeros((3, 4))}), 2))
    next(it)
    with pytest.raises(
        ValueError,
        match=r"leaf \['a'\] whose shapes .* do not agree: float64\[1, 2\] and float64\[1, 4\]",
    ):
        next(it)
    it.skip_failed()
    assert [x["a"].shape for x in it] == [(2, 4)]
    for element in (None, {}, [None]):
        it = iter(RebatchIterDataset(batches(element, np.arange(2)), 2))
        assert_raises(ValueError, "needs batches, pytrees with arrays", next, it)
        it.skip_failed()
        assert next(it).tolist() == [0, 1]
    # A row past the end of the batch is refused when it is read.
    it = iter(RebatchIterDataset(ragged([4, 4]), 3))
    it.set_state({"parent": {"next_index": 0}, "batch_idx": 5})
    assert_stays(it, StateIndexError, r"batch_idx .* must be in \[0, 4\], the rows there, got 5")
    it.set_state({"parent": {"next_index": 0}, "batch_idx": 4})
    assert [x["a"].tolist() for x in it] == [[4, 5, 6], [7]]


def test_texts_and_specs():

    ds = RebatchIterDataset(MapDataset.range(9).to_iter_dataset().batch(2), 3, drop_remainder=True)
    assert str(ds) == "RebatchIterDataset(batch_size=3, drop_remainder=True)"
    assert str(iter(ds)) == "RebatchDatasetIterator(batch_size=3, drop_remainder=True)"
    assert (
        get_element_spec(ds) == get_element_spec(ds.rebatch(3)) == ShapeDtypeStruct((3,), np.int64)
    )
    assert_raises(NotImplementedError, None, iter(ds)._get_next_index)


class NotReady:
    """A source that cannot be sent to workers yet."""

    is_ready = False

    def __len__(self):
        return 4

    def __getitem__(self, index):
        return index

    def __getstate__(self):
        if not NotReady.is_ready:
            raise OSError("not ready")
        return {}


def with_a_worker(*datasets):
    return [
        MapDataset.source(NotReady()).to_iter_dataset().mp_prefetch(MultiprocessingOptions(1)),
        *datasets,
    ]


@pytest.mark.parametrize("kind", ["zip", "zip of others first", "mix"])
def test_a_failure_of_no_element_takes_none_along(kind):
    parents = with_a_worker(numbers(4) if kind != "mix" else numbers(4).map(lambda x: x + 100))
    ds = {
        "zip": lambda: ZipIterDataset(parents),
        "zip of others first": lambda: ZipIterDataset(parents[::-1]),
        "mix": lambda: IterDataset.mix(parents).map(lambda x: (x, x)),
    }[kind]()
    NotReady.is_ready = False
    with iter(ds) as it:
        assert_raises(OSError, "not ready", next, it)
        NotReady.is_ready = True
        if kind == "zip of others first":
            assert_raises(ValueError, "argument 2: it was no element", it.skip_failed)
        else:
            it.skip_failed()
        assert next(it) == (0, 0)
