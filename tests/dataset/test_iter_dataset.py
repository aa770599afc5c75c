"""What ``IterDataset`` promises beyond the laws: element by element, checks of arguments, options."""

import numpy as np
import pytest

from gristmill.core.options import DatasetOptions, ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.dataset.bases.iterator import BlockIterator
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.stages.prefetch import PrefetchIterDataset

FIVE = MapDataset.range(5).to_iter_dataset()


def identity(x):
    return x


BAD_CALLS = [
    (lambda: FIVE.map(3), TypeError, ["transform", "3", "Map"]),
    (lambda: FIVE.filter(None), TypeError, ["transform", "None", "Filter"]),
    (lambda: FIVE.map_with_index("x"), TypeError, ["transform", "'x'"]),
    (lambda: FIVE.random_map(3, seed=1), TypeError, ["transform", "3"]),
    (lambda: FIVE.random_map(identity), ValueError, ["random_map", "ds.seed(seed)", "seed="]),
    (lambda: FIVE.random_map(identity, seed=-1), ValueError, ["seed", "-1"]),
    (lambda: FIVE.random_map(identity, seed="1"), TypeError, ["seed", "'1'"]),
    (lambda: FIVE.seed(-1), ValueError, ["seed", "-1"]),
    (lambda: FIVE.seed(1.0), TypeError, ["seed", "1.0"]),
    (lambda: FIVE.batch(0), ValueError, ["batch_size", "0"]),
    (lambda: FIVE.batch(1.5), TypeError, ["batch_size", "1.5"]),
    (lambda: FIVE.batch(2, batch_fn="x"), TypeError, ["batch_fn", "'x'"]),
    (lambda: FIVE.apply(identity), NotImplementedError, ["identity"]),
    (lambda: WithOptionsIterDataset(FIVE, None), TypeError, ["options", "None"]),
    (lambda: WithOptionsIterDataset(FIVE, {}), TypeError, ["options", "{}"]),
    (lambda: WithOptionsIterDataset([1], DatasetOptions()), TypeError, ["parents", "MapDataset"]),
    (lambda: PrefetchIterDataset(FIVE), TypeError, ["parent", "MapDataset"]),
    (lambda: ReadOptions(-1), ValueError, ["num_threads", "-1"]),
    (lambda: ReadOptions(1, -1), ValueError, ["prefetch_buffer_size", "-1"]),
    (lambda: ReadOptions(1.5), TypeError, ["num_threads", "1.5"]),
    (lambda: ReadOptions(None), TypeError, ["num_threads", "None"]),
]


@pytest.mark.parametrize(("call", "error", "words"), BAD_CALLS, ids=range(len(BAD_CALLS)))
def test_wrong_arguments(call, error, words):
    with pytest.raises(error) as caught:
        call()
    for word in words:
        assert word in str(caught.value)


def test_bases_are_abstract():
    with pytest.raises(TypeError, match="abstract"):
        IterDataset()
    with pytest.raises(TypeError, match="abstract"):
        DatasetIterator()


def test_streams_have_no_random_access():
    for name in ("__len__", "__getitem__", "shuffle", "slice", "to_iter_dataset"):
        assert not hasattr(FIVE, name)


def test_iterators_are_independent():
    ds = MapDataset.range(5).map(str).to_iter_dataset().batch(2, batch_fn=list)
    one, other = iter(ds), iter(ds)
    assert next(one) == ["0", "1"] and next(one) == ["2", "3"]
    assert next(other) == ["0", "1"]
    assert next(one) == ["4"]
    assert isinstance(one, DatasetIterator)
    assert isinstance(iter(MapDataset.range(3)), DatasetIterator)


def test_states_of_the_specification():
    def states(ds):
        it = iter(ds)
        found = [it.get_state()]
        for _ in it:
            found.append(it.get_state())
        return [*found, it.get_state()]

    def indices(ds):
        return [state["next_index"] for state in states(ds)]

    assert indices(MapDataset.range(5).filter(lambda x: x in (1, 2)).to_iter_dataset()) == [0, 2, 3, 5]
    assert indices(FIVE.batch(2)) == [0, 2, 4, 5, 5]
    assert indices(FIVE.batch(2, drop_remainder=True)) == [0, 2, 4, 5]
    it = iter(FIVE.filter(lambda x: x % 2).map_with_index(lambda i, x: x).random_map(lambda x, rng: x, seed=1))
    next(it)
    assert it.get_state() == {"parent": {"parent": {"next_index": 2}, "counter": 1}, "index_for_rng": 1}


def test_none_is_delivered_by_map_and_offered_to_filter():
    nones = FIVE.map(lambda x: None if x % 2 else x)
    assert list(nones) == [0, None, 2, None, 4]
    assert list(nones.map(lambda x: x + 1)) == [1, None, 3, None, 5]
    seen = []
    assert list(nones.filter(lambda x: seen.append(x) or x is None)) == [None, None]
    assert seen == [0, None, 2, None, 4]
    assert list(nones.map_with_index(lambda i, x: (i, x))) == [(0, 0), None, (2, 2), None, (4, 4)]
    assert list(nones.batch(2, batch_fn=list)) == [[0, None], [2, None], [4]]


def test_random_streams_count_nones():
    def draw(x, rng):
        return (x, int(rng.integers(1000)))

    dense = list(FIVE.random_map(draw, seed=3))
    sparse = list(FIVE.map(lambda x: None if x == 1 else x).random_map(draw, seed=3))
    assert sparse == [dense[0], None, *dense[2:]]
    assert dense == list(MapDataset.range(5).random_map(draw, seed=3))
    assert [n for _, n in MapDataset.range(5).to_iter_dataset().random_map(draw, seed=1)] == [420, 330, 432, 243, 389]


def test_batches_go_across_epochs():
    assert list(MapDataset.range(3).repeat(2).to_iter_dataset().batch(2, batch_fn=tuple)) == [(0, 1), (2, 0), (1, 2)]
    assert list(MapDataset.range(9).filter(lambda x: x % 2).to_iter_dataset().batch(3, batch_fn=list)) == [[1, 3, 5], [7]]


def test_batches_of_one_iterator_do_not_share_memory():
    ds = MapDataset.range(6).map(lambda i: np.full(200_000, i)).to_iter_dataset().batch(2)
    kept = list(ds)
    assert [b[:, 0].tolist() for b in kept] == [[0, 1], [2, 3], [4, 5]]
    for batch in kept:
        assert batch.flags.c_contiguous and batch.flags.writeable


def test_texts():
    assert str(FIVE.batch(2)) == "BatchIterDataset(batch_size=2, drop_remainder=False)"
    assert str(iter(FIVE.batch(2))) == "BatchDatasetIterator(batch_size=2, drop_remainder=False)"
    assert str(FIVE.map(len)) == "MapIterDataset(transform=len)"
    assert str(iter(FIVE.map(len))) == "MapDatasetIterator(transform=len)"
    assert str(FIVE.filter(len)) == "FilterIterDataset(transform=len)"
    assert str(iter(FIVE.filter(len))) == "FilterDatasetIterator(transform=len)"
    assert str(iter(FIVE.map_with_index(len))) == "MapWithIndexDatasetIterator(transform=len)"
    assert str(iter(FIVE.random_map(len, seed=1))) == "RandomMapDatasetIterator(transform=len)"
    assert str(iter(MapDataset.source([1]))) == (
        "PrefetchDatasetIterator(read_options=ReadOptions(num_threads=16, prefetch_buffer_size=500), allow_nones=False)"
    )


def test_read_options():
    assert ReadOptions(np.int64(3), np.int8(7)) == ReadOptions(3, 7)
    assert type(ReadOptions(np.int64(3)).num_threads) is int
    with pytest.raises(TypeError, match="unhashable"):
        hash(ReadOptions())
    options = ReadOptions()
    options.num_threads = 2
    assert repr(options) == "ReadOptions(num_threads=2, prefetch_buffer_size=500)"
    with pytest.raises(AttributeError):
        options.threads = 3


def test_read_options_with_a_small_buffer_warn(caplog):
    ReadOptions(16, 4)
    assert "16" in caplog.text and "4" in caplog.text
    caplog.clear()
    ReadOptions(16, 16), ReadOptions(16, 0), ReadOptions(0, 4)
    assert caplog.records == []


def options_of(ds):
    it = iter(ds)
    found = it._ctx.options
    while True:  # the whole pipeline shares them
        assert it._ctx.options is found
        if not it._parents:
            return found
        it = it._parents[0]


def test_options_reach_the_whole_pipeline_and_the_outermost_wins():
    inner = DatasetOptions(filter_warn_threshold_ratio=0.1, min_shm_size=1)
    outer = DatasetOptions(filter_warn_threshold_ratio=0.2, filter_raise_threshold_ratio=0.3)
    ds = WithOptionsIterDataset(WithOptionsIterDataset(FIVE.map(identity), inner).map(identity).batch(2), outer)
    for made in (ds, ds.map(identity)):
        found = options_of(made)
        assert (found.filter_warn_threshold_ratio, found.filter_raise_threshold_ratio, found.min_shm_size) == (0.2, 0.3, 1)
    assert options_of(FIVE.map(identity)) == DatasetOptions()
    default = WithOptionsIterDataset(WithOptionsIterDataset(FIVE, inner), DatasetOptions(filter_warn_threshold_ratio=0.9))
    assert options_of(default).filter_warn_threshold_ratio == 0.9  # given explicitly, although the default


def test_options_add_no_layer():
    ds = WithOptionsIterDataset(FIVE.map(identity), DatasetOptions(min_shm_size=2))
    assert ds.options == DatasetOptions(min_shm_size=2)
    assert ds.parents[0] is not None and len(ds.parents) == 1
    assert type(iter(ds)) is type(iter(FIVE.map(identity)))
    assert iter(ds).get_state() == {"next_index": 0}


def test_every_iterator_of_ours_says_what_becomes_of_its_parents_elements():
    kinds = [BlockIterator]
    while kinds:
        kind = kinds.pop()
        kinds += kind.__subclasses__()
        if kind.__module__.startswith("gristmill") and not kind.__abstractmethods__:
            assert kind._flow in ("one_to_one", "dropping", "stateful")


@pytest.mark.parametrize("num_threads", [0, 2])
def test_where_none_is_an_element_only_the_failed_one_is_skipped(num_threads):
    failing = [True]

    def element(i):
        if i == 2 and failing:
            raise KeyError(i)
        return None if i == 2 else i

    it = iter(MapDataset.range(5).map(element).to_iter_dataset(ReadOptions(num_threads, 4), allow_nones=True))
    assert [next(it), next(it)] == [0, 1]
    with pytest.raises(KeyError):
        next(it)
    failing.clear()
    it.skip_failed()
    assert list(it) == [3, 4]
