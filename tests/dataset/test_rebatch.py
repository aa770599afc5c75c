"""What ``RebatchIterDataset`` does beyond the laws of all stages."""

import itertools

import numpy as np
import pytest
from computing_ahead import DIRECT, Boom, Failing
from local_workers import LocalWorkersIterDataset
from refusing import assert_raises

from gristmill import MapDataset, MultiprocessingOptions
from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import StateIndexError
from gristmill.dataset.bases.element_spec import get_element_spec
from gristmill.dataset.telling.description import describe
from gristmill.experimental import RebatchIterDataset


def batches(*elements):
    return MapDataset.source(elements).to_iter_dataset(DIRECT, allow_nones=True)


def ragged(sizes):
    """Batches of these sizes."""
    starts = np.cumsum([0, *sizes])
    return MapDataset.range(len(sizes)).map(lambda i: {"a": np.arange(starts[i], starts[i + 1])}).to_iter_dataset(DIRECT)


def plain(got):
    return [x.tolist() for x in got]


def test_views_dtypes_and_structures():
    whole = np.arange(10)
    got = list(RebatchIterDataset(batches({"x": whole}), 4))
    assert [x["x"].tolist() for x in got] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert all([np.shares_memory(x["x"], whole) for x in got])
    # Dtypes are promoted only where batches are joined.
    got = list(RebatchIterDataset(batches(np.int8([1, 2, 3]), np.float32([4, 5, 6])), 2))
    assert [(x.dtype, x.tolist()) for x in got] == [("int8", [1, 2]), ("float32", [3, 4]), ("float32", [5, 6])]
    (words,) = RebatchIterDataset(batches(np.array(["a"]), np.array(["bcd"])), 2)
    assert words.tolist() == ["a", "bcd"]
    jax = pytest.importorskip("jax")
    (first, second) = RebatchIterDataset(batches([jax.numpy.arange(4), None], [jax.numpy.arange(2), None]), 3)
    assert isinstance(first[0], jax.Array)
    assert second[0].tolist() == [3, 0, 1] and second[1] is None


def test_large_joined_batches_that_are_kept_are_not_overwritten():
    rows = 1 << 16
    ds = batches(*[np.full((rows, 4), i) for i in range(12)]).rebatch(rows + rows // 2)
    kept = list(ds)
    assert all([x.nbytes > 1 << 20 for x in kept])
    assert [sorted(set(x[:, 0].tolist())) for x in kept] == [[3 * i // 2, 3 * i // 2 + 1] for i in range(8)]
    assert all(map(np.array_equal, ds, kept[:2]))


def test_the_batch_that_is_cut_is_read_once():
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
    failing = Failing(4, times=2)  # in a block, and singly

    def double(batch):
        batch *= 2
        failing(batch[0])
        return batch

    it = iter(RebatchIterDataset(MapDataset.range(4).to_iter_dataset().batch(4), 2).map(double).batch(2))
    assert_raises(Boom, "4", next, it)
    assert next(it).tolist() == [[0, 2], [4, 6]]


@pytest.mark.parametrize("worker", [False, True])
def test_an_error_does_not_make_the_batch_be_read_again(worker):
    """But a failed worker is asked again when the state is set."""
    seen, failing = [], Failing(1, times=99 if worker else 2)
    ds = MapDataset.range(3).map(lambda i: (seen.append(i), failing(i), np.arange(2) + 2 * i)[2]).to_iter_dataset(DIRECT)
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
        ({"a": np.arange(2), "b": np.arange(3)}, ValueError, r"same number of rows; leaf \['a'\] has 2, leaf \['b'\] has 3"),
        ({"a": np.arange(0), "b": np.arange(0)}, ValueError, "a batch without rows"),
        ({"a": np.arange(2), "b": 3}, TypeError, r"arrays with a first axis, leaf \['b'\] is 3"),
        ({"a": np.arange(2), "b": np.array(3)}, TypeError, r"leaf \['b'\] is array\(3\)"),
        ({"a": np.arange(2), "b": "ab"}, TypeError, r"leaf \['b'\] is 'ab'"),
    ],
)
def test_elements_that_are_no_batches_are_errors_that_say_why_and_can_be_skipped(bad, error, message):
    it = iter(RebatchIterDataset(batches(GOOD, bad, GOOD), 2))
    next(it)
    state = it.get_state()
    for _ in range(2):
        assert_raises(error, message, next, it)
        assert it.get_state() == state
    it.skip_failed()
    assert [x["a"].tolist() for x in it] == [[0, 1]]


def test_batches_that_cannot_be_joined_or_have_no_arrays():
    it = iter(RebatchIterDataset(batches({"a": np.zeros((3, 2))}, {"a": np.zeros((3, 4))}), 2))
    next(it)
    assert_raises(ValueError, r"leaf \['a'\] whose shapes .* do not agree: float64\[1, 2\] and float64\[1, 4\]", next, it)
    it.skip_failed()
    assert [x["a"].shape for x in it] == [(2, 4)]
    for element in (None, {}, [None]):
        it = iter(RebatchIterDataset(batches(element, np.arange(2)), 2))
        assert_raises(ValueError, "needs batches, pytrees with arrays", next, it)
        it.skip_failed()
        assert next(it).tolist() == [0, 1]
    # A row behind the batch is refused when it is read.
    it = iter(RebatchIterDataset(ragged([4, 4]), 3))
    it.set_state({"parent": {"next_index": 0}, "batch_idx": 5})
    for _ in range(2):
        assert_raises(StateIndexError, r"batch_idx .* must be in \[0, 4\], the rows there, got 5", next, it)
    it.set_state({"parent": {"next_index": 0}, "batch_idx": 4})
    assert [x["a"].tolist() for x in it] == [[4, 5, 6], [7]]


def test_arguments_texts_and_specs():
    for wrong in (0, -3):
        assert_raises(ValueError, f"batch_size must be a positive integer, got {wrong}", ragged([2]).rebatch, wrong)
    assert_raises(TypeError, "batch_size must be an integer", RebatchIterDataset, ragged([2]), 1.5)
    ds = RebatchIterDataset(MapDataset.range(9).to_iter_dataset().batch(2), 3, drop_remainder=True)
    assert str(ds) == "RebatchIterDataset(batch_size=3, drop_remainder=True)"
    assert str(iter(ds)) == "RebatchDatasetIterator(batch_size=3, drop_remainder=True)"
    assert get_element_spec(ds) == get_element_spec(ds.rebatch(3)) == ShapeDtypeStruct((3,), np.int64)
    description = describe(iter(ds))
    assert (description["batch_size"], description["drop_remainder"]) == (3, True)
    assert_raises(NotImplementedError, None, iter(ds)._get_next_index)
    ds = MapDataset.range(30).to_iter_dataset().batch(4)
    assert sorted(np.concatenate(list(ds.mp_prefetch(MultiprocessingOptions(2)).rebatch(7))).tolist()) == list(range(30))
