"""Options hold for a whole pipeline: before and after where they are given, in workers too, across branches."""

import pytest

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


def with_options(ds, *options):
    for each in options:
        ds = WithOptionsIterDataset(ds, each)
    return ds


def numbers():
    return MapDataset.range(4000).to_iter_dataset()


def options_of(ds):
    return iter(ds)._ctx.options


def rare(ds):
    return ds.filter(lambda x: (x[0] if isinstance(x, tuple) else x) % 100 == 0)


STAGES = {
    "in process": lambda ds: ds,
    "workers": lambda ds: ds.mp_prefetch(MultiprocessingOptions(2)),
    "threads": lambda ds: multithread_prefetch(ds, 2, 1),
}


@pytest.mark.parametrize("stage", STAGES)
def test_they_act_before_and_after(stage):
    run = STAGES[stage]
    for ds in (
        run(rare(with_options(numbers(), STRICT))),
        run(with_options(rare(numbers()), STRICT)),
        rare(run(with_options(numbers(), STRICT))),
        with_options(run(rare(numbers())), STRICT),
        with_options(rare(run(numbers())), STRICT),
    ):
        with pytest.raises(ValueError, match="FilterDatasetIterator"):
            list(ds)


@pytest.mark.parametrize("stage", STAGES)
def test_the_one_nearest_the_output_wins_field_by_field(stage):
    run = STAGES[stage]
    inner = DatasetOptions(filter_raise_threshold_ratio=0.5, min_shm_size=5)
    for ds in (run(with_options(numbers(), inner, LENIENT)), with_options(run(with_options(numbers(), inner)), LENIENT)):
        assert options_of(ds) == LENIENT.merge(inner)
        assert len(list(rare(ds))) == 40


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("join", [ZipIterDataset, IterDataset.mix])
def test_across_branches_the_first_parent_wins(stage, join):
    first = DatasetOptions(filter_raise_threshold_ratio=0.5)
    second = DatasetOptions(filter_raise_threshold_ratio=None, min_shm_size=7)
    run = STAGES[stage]
    ds = run(join([with_options(numbers(), first), with_options(numbers(), second)]))
    assert options_of(ds) == DatasetOptions(filter_raise_threshold_ratio=0.5, min_shm_size=7)
    with pytest.raises(ValueError, match="dropped"):
        list(rare(ds))
    with pytest.raises(ValueError, match="dropped"):
        list(run(rare(join([with_options(numbers(), first), with_options(numbers(), second)]))))
    swapped = join([with_options(numbers(), second), with_options(numbers(), first)])
    assert len(list(run(rare(swapped)))) > 0


def test_options_of_an_interleaved_dataset_stay_in_it():
    ds = InterleaveIterDataset([with_options(numbers(), STRICT), numbers()], cycle_length=2)
    for stage in STAGES.values():
        assert options_of(stage(ds)) == DatasetOptions()
    inside = InterleaveIterDataset([rare(with_options(numbers(), STRICT))], cycle_length=1)
    with pytest.raises(ValueError, match="dropped"):
        list(inside)
    assert len(list(with_options(inside, LENIENT))) == 40


def test_they_add_no_layer():
    ds = with_options(numbers().map(lambda x: x), STRICT)
    assert iter(ds).get_state() == {"next_index": 0}
    assert str(iter(ds)).startswith("MapDatasetIterator")
    assert str(ds) == "WithOptionsIterDataset(options=DatasetOptions(filter_raise_threshold_ratio=0.5))"
    assert get_element_spec(with_options(numbers(), STRICT)) == get_element_spec(numbers())
    assert ds.options is STRICT
    with pytest.raises(TypeError, match="options must be a DatasetOptions, got None"):
        WithOptionsIterDataset(numbers(), None)


def test_small_arrays_need_not_go_through_shared_memory():
    """The option holds wherever it is given: the workers' side of it is tested with the transport."""
    for ds in (
        with_options(numbers(), DatasetOptions(min_shm_size=10**6)).mp_prefetch(MultiprocessingOptions(1)),
        with_options(numbers().mp_prefetch(MultiprocessingOptions(1)), DatasetOptions(min_shm_size=10**6)),
    ):
        assert options_of(ds).min_shm_size == 10**6
