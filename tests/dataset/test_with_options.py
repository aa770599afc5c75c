"""Options hold for a whole pipeline: before and after where they are given, in workers too, across branches."""

import pytest
from local_workers import LocalWorkersIterDataset
from refusing import assert_raises

from gristmill import IterDataset, MapDataset, MultiprocessingOptions
from gristmill.experimental import (
    DatasetOptions,
    InterleaveIterDataset,
    WithOptionsIterDataset,
    ZipIterDataset,
    get_element_spec,
    multithread_prefetch,
)

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
def test_they_act_before_and_after_and_the_one_nearest_the_output_wins_field_by_field(stage):
    run, inner = STAGES[stage], DatasetOptions(filter_raise_threshold_ratio=0.5, min_shm_size=5)
    for ds in (
        run(rare(with_options(NUMBERS, STRICT))),
        with_options(run(rare(NUMBERS)), STRICT),
        rare(run(with_options(NUMBERS, STRICT))),
        with_options(rare(run(NUMBERS)), STRICT),
    ):
        assert_raises(ValueError, "FilterDatasetIterator", list, ds)
    for ds in (run(with_options(NUMBERS, inner, LENIENT)), with_options(run(with_options(NUMBERS, inner)), LENIENT)):
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


def test_options_of_an_interleaved_dataset_stay_in_it_and_others_reach_the_whole_pipeline():
    ds = InterleaveIterDataset([with_options(NUMBERS, STRICT), NUMBERS], cycle_length=2)
    for stage in STAGES.values():
        assert iter(stage(ds))._ctx.options == DatasetOptions()
    inside = InterleaveIterDataset([rare(with_options(NUMBERS, STRICT))], cycle_length=1)
    assert_raises(ValueError, "dropped", list, inside)
    assert len(list(with_options(inside, LENIENT))) == 40
    inner = DatasetOptions(filter_warn_threshold_ratio=0.1, min_shm_size=1)
    outer = DatasetOptions(filter_warn_threshold_ratio=0.2, filter_raise_threshold_ratio=0.3)
    ds = with_options(with_options(NUMBERS.map(str), inner).map(str).batch(2), outer)
    for made in (ds, ds.map(str)):
        assert options_of(made) == outer.merge(inner)
    found = options_of(ds)
    assert (found.filter_warn_threshold_ratio, found.filter_raise_threshold_ratio, found.min_shm_size) == (0.2, 0.3, 1)
    assert options_of(NUMBERS.map(str)) == DatasetOptions()
    default = with_options(NUMBERS, inner, DatasetOptions(filter_warn_threshold_ratio=0.9))
    assert options_of(default).filter_warn_threshold_ratio == 0.9  # given explicitly, although the default
    ds = with_options(NUMBERS, STRICT)
    assert iter(ds).get_state() == {"next_index": 0} and type(iter(ds)) is type(iter(NUMBERS))
    assert str(ds) == "WithOptionsIterDataset(options=DatasetOptions(filter_raise_threshold_ratio=0.5))"
    assert get_element_spec(ds) == get_element_spec(NUMBERS)
    assert ds.options is STRICT and ds.parents == (NUMBERS,)
