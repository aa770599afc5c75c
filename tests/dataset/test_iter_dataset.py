"""Promises of ``IterDataset`` beyond the laws: checks of arguments, read options, options of a
whole pipeline.
"""

import re

import numpy as np
import pytest
from local_workers import LocalWorkersIterDataset
from refusing import assert_raises

from gristmill.core.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.stages.prefetch import PrefetchIterDataset
from gristmill.experimental import InterleaveIterDataset, ZipIterDataset, multithread_prefetch

FIVE = MapDataset.range(5).to_iter_dataset()
BAD_CALLS = [
    (
        lambda: FIVE.random_map(len),
        ValueError,
        r"random_map.*(ds\.seed\(seed\).*seed=|seed=.*ds\.seed\(seed\))",
    ),
    (lambda: FIVE.random_map(len, seed=-1), ValueError, "seed .*-1"),
    (lambda: FIVE.random_map(len, seed="1"), TypeError, "seed .*'1'"),
    (lambda: FIVE.seed(-1), ValueError, "seed .*-1"),
    (lambda: FIVE.seed(1.0), TypeError, r"seed .*1\.0"),
    (lambda: FIVE.batch(2, batch_fn="x"), TypeError, "batch_fn .*'x'"),
    (
        lambda: WithOptionsIterDataset(FIVE, None),
        TypeError,
        "options must be a DatasetOptions, got None",
    ),
    (lambda: WithOptionsIterDataset(FIVE, {}), TypeError, "options .*{}"),
    (lambda: WithOptionsIterDataset([1], DatasetOptions()), TypeError, "parents .*MapDataset"),
    (lambda: PrefetchIterDataset(FIVE), TypeError, "parent .*MapDataset"),
    (IterDataset, TypeError, "abstract"),
    (DatasetIterator, TypeError, "abstract"),
]


def test_wrong_arguments_and_no_random_access():
    for call, error, match in BAD_CALLS:
        assert_raises(error, re.compile(match, re.DOTALL), call)
    assert not [
        name
        for name in ("__getitem__", "shuffle", "slice", "to_iter_dataset")
        if hasattr(FIVE, name)
    ]
    assert isinstance(iter(FIVE), DatasetIterator)
    assert isinstance(iter(MapDataset.range(3)), DatasetIterator)


def test_states_of_the_specification_and_texts():
    def indices(ds):
        it = iter(ds)
        return [
            state["next_index"]
            for state in [it.get_state(), *[it.get_state() for _ in it], it.get_state()]
        ]

    assert indices(MapDataset.range(5).filter(lambda x: x in (1, 2)).to_iter_dataset()) == [
        0,
        2,
        3,
        5,
    ]
    assert indices(FIVE.batch(2)) == [0, 2, 4, 5, 5]
    assert indices(FIVE.batch(2, drop_remainder=True)) == [0, 2, 4, 5]
    kept = list(MapDataset.range(6).map(lambda i: np.full(200_000, i)).to_iter_dataset().batch(2))
    assert [b[:, 0].tolist() for b in kept] == [[0, 1], [2, 3], [4, 5]]
    assert all(batch.flags.c_contiguous and batch.flags.writeable for batch in kept)
    for value, text in TEXTS:
        assert str(value) == text


TEXTS = [
    (FIVE.batch(2), "BatchIterDataset(batch_size=2, drop_remainder=False)"),
    (iter(FIVE.batch(2)), "BatchDatasetIterator(batch_size=2, drop_remainder=False)"),
    (FIVE.map(len), "MapIterDataset(transform=len)"),
    (iter(FIVE.map(len)), "MapDatasetIterator(transform=len)"),
    (FIVE.filter(len), "FilterIterDataset(transform=len)"),
    (iter(FIVE.filter(len)), "FilterDatasetIterator(transform=len)"),
    (iter(FIVE.map_with_index(len)), "MapWithIndexDatasetIterator(transform=len)"),
    (iter(FIVE.random_map(len, seed=1)), "RandomMapDatasetIterator(transform=len)"),
    (
        iter(MapDataset.source([1])),
        f"PrefetchDatasetIterator(read_options={ReadOptions()}, allow_nones=False)",
    ),
]


def test_where_none_is_an_element():
    for num_threads in (0, 2):
        healthy = set()
        ds = MapDataset.range(5).map(
            lambda i, healthy=healthy: i if i != 2 else None if healthy else 1 / 0
        )
        it = iter(ds.to_iter_dataset(ReadOptions(num_threads, 4), allow_nones=True))
        assert [next(it), next(it)] == [0, 1]
        assert_raises(ZeroDivisionError, None, next, it)
        healthy.add("now")
        it.skip_failed()
        assert list(it) == [3, 4]


@pytest.mark.parametrize(
    ("where", "num_threads"),
    [("source", 0), ("source", 2), ("map", 2), ("filter", 0), ("filters", 2)],
)
def test_only_the_element_that_failed_in_a_filter_is_skipped(where, num_threads):
    for failing in range(10):
        broken = {failing}

        def check(x, broken=broken):
            return 1 // (x not in broken) and x

        root = MapDataset.range(10)
        stream = (root.map(check) if where == "source" else root).to_iter_dataset(
            ReadOptions(num_threads, 4)
        )
        stream = stream.map(check) if where == "map" else stream
        stream = stream.filter(
            (lambda x, check=check: check(x) % 2) if where.startswith("filter") else lambda x: x % 2
        )
        it, found = iter(stream.filter(lambda x: x != 9) if where == "filters" else stream), []
        while it.get_state() != {"next_index": 10}:
            try:
                found.append(next(it))
            except StopIteration:
                break
            except ZeroDivisionError:
                broken.clear()
                it.skip_failed()
                assert it.get_state() == {"next_index": failing + 1}
        assert not broken and found == [
            x for x in range(1, 10, 2) if x != failing and (x != 9 or where != "filters")
        ]


STRICT = DatasetOptions(filter_raise_threshold_ratio=0.5)
LENIENT = DatasetOptions(filter_raise_threshold_ratio=None, filter_warn_threshold_ratio=None)
NUMBERS = MapDataset.range(4000).to_iter_dataset()
SMALL = DatasetOptions(filter_raise_threshold_ratio=None, min_shm_size=7)


def with_options(ds, *options):
    for each in options:
        ds = WithOptionsIterDataset(ds, each)
    return ds


def options_of(ds):
    it = iter(ds)
    found = it._ctx.options
    while it._parents:  # the whole pipeline shares them
        it = it._parents[0]
        assert it._ctx.options is found
    return found


def rare(ds):
    return ds.filter(lambda x: (x[0] if isinstance(x, tuple) else x) % 100 == 0)


STAGES = {
    "in process": lambda ds: ds,
    "workers": lambda ds: LocalWorkersIterDataset(ds, 2),
    "threads": lambda ds: multithread_prefetch(ds, 2, 1),
}


@pytest.mark.parametrize("stage", STAGES)
def test_options_nearest_the_output_win_field_by_field(stage):
    run, inner = STAGES[stage], DatasetOptions(filter_raise_threshold_ratio=0.5, min_shm_size=5)
    for ds in (
        run(rare(with_options(NUMBERS, STRICT))),
        with_options(run(rare(NUMBERS)), STRICT),
        rare(run(with_options(NUMBERS, STRICT))),
        with_options(rare(run(NUMBERS)), STRICT),
    ):
        assert_raises(ValueError, "FilterDatasetIterator", list, ds)
    for ds in (
        run(with_options(NUMBERS, inner, LENIENT)),
        with_options(run(with_options(NUMBERS, inner)), LENIENT),
    ):
        assert iter(ds)._ctx.options == LENIENT.merge(inner)
    assert len(list(rare(ds))) == 40
    if stage == "workers":  # in processes too
        in_process = rare(NUMBERS).mp_prefetch(MultiprocessingOptions(1))
        assert_raises(ValueError, "FilterDatasetIterator", list, with_options(in_process, STRICT))
    # Across branches the first parent wins.
    join = IterDataset.mix if stage == "threads" else ZipIterDataset
    branches = [with_options(NUMBERS, STRICT), with_options(NUMBERS, SMALL)]
    ds = run(join(branches))
    assert iter(ds)._ctx.options == DatasetOptions(filter_raise_threshold_ratio=0.5, min_shm_size=7)
    for strict in (rare(ds), run(rare(join(branches)))):
        assert_raises(ValueError, "dropped", list, strict)
    assert len(list(run(rare(join(branches[::-1]))))) > 0


def test_options_of_an_interleaved_dataset_stay_in_it():
    ds = InterleaveIterDataset([with_options(NUMBERS, STRICT), NUMBERS], cycle_length=2)
    for stage in STAGES.values():
        assert iter(stage(ds))._ctx.options == DatasetOptions()
    inner = DatasetOptions(filter_warn_threshold_ratio=0.1, min_shm_size=1)
    outer = DatasetOptions(filter_warn_threshold_ratio=0.2, filter_raise_threshold_ratio=0.3)
    ds = with_options(with_options(NUMBERS.map(str), inner).map(str).batch(2), outer)
    for made in (ds, ds.map(str)):
        assert options_of(made) == outer.merge(inner)
    found = options_of(ds)
    assert (
        found.filter_warn_threshold_ratio,
        found.filter_raise_threshold_ratio,
        found.min_shm_size,
    ) == (0.2, 0.3, 1)
    assert options_of(NUMBERS.map(str)) == DatasetOptions()
    default = with_options(NUMBERS, inner, DatasetOptions(filter_warn_threshold_ratio=0.9))
    # given explicitly, although the default
    assert options_of(default).filter_warn_threshold_ratio == 0.9
    ds = with_options(NUMBERS, STRICT)
    assert iter(ds).get_state() == {"next_index": 0} and type(iter(ds)) is type(iter(NUMBERS))
    expected = "WithOptionsIterDataset(options=DatasetOptions(filter_raise_threshold_ratio=0.5))"
    assert (str(ds)) == expected
    assert ds.options is STRICT and ds.parents == (NUMBERS,)
