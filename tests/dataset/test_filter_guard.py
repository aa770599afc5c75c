"""The check for filters that throw away nearly everything: exact windows of 1000, however the elements are read."""

import logging

import pytest

from gristmill.core.options import DatasetOptions, ReadOptions
from gristmill.dataset import MapDataset
from gristmill.dataset.stages.filter_guard import FilterGuard
from gristmill.dataset.stages.options import WithOptionsIterDataset


@pytest.fixture(autouse=True)
def never_warned(monkeypatch):
    """A warning comes once a minute and stage: let every test have its own."""
    monkeypatch.setattr(FilterGuard, "_last_warned", {})


def kept_at(*positions):
    positions = set(positions)
    return lambda x: x in positions


# How the pipeline filters: on the way (a step of the stream), or before it became a stream.
PLACES = {
    "iter": lambda keep, n, options: MapDataset.range(n).to_iter_dataset(options).filter(keep),
    "map": lambda keep, n, options: MapDataset.range(n).filter(keep).to_iter_dataset(options),
    "map_none": lambda keep, n, options: MapDataset.range(n).map(lambda x: x if keep(x) else None).to_iter_dataset(options),
}
MODES = {"direct": ReadOptions(0), "threads": ReadOptions(3, 64), "one_ahead": ReadOptions(1, 1)}
each_place = pytest.mark.parametrize("place", PLACES)
each_mode = pytest.mark.parametrize("mode", MODES)


def pipeline(place, keep, n, mode="direct", **thresholds):
    return WithOptionsIterDataset(PLACES[place](keep, n, MODES[mode]), DatasetOptions(**thresholds))


@each_place
@each_mode
@pytest.mark.parametrize("batch", [None, 1, 7, 50, 2000])
def test_the_window_is_a_thousand_elements_sharp(place, mode, batch):
    """100 of the first 1000 elements are kept, or 99: the ratio is 0.9 or 0.901."""

    def run(keep, n, threshold):
        ds = pipeline(place, keep, n, mode, filter_warn_threshold_ratio=None, filter_raise_threshold_ratio=threshold)
        if batch is None:
            return list(ds)
        return [x for group in ds.batch(batch, batch_fn=list) for x in group]

    first = list(range(100))
    last = list(range(900, 1000))
    for kept in (first, last, list(range(0, 1000, 10))):
        assert run(kept_at(*kept), 1000, 0.9001) == kept
        assert run(kept_at(*kept), 999, 0.5) == [x for x in kept if x < 999]  # never judged
        with pytest.raises(ValueError, match=r"90\.00%"):
            run(kept_at(*kept), 1000, 0.9)
    # An element at 1000 is in the second window, which is not full.
    assert run(kept_at(*first, *range(1000, 1900)), 1999, 0.901) == [*first, *range(1000, 1900)]
    with pytest.raises(ValueError, match=r"90\.10%"):
        run(kept_at(*range(99), *range(1000, 1900)), 1999, 0.901)


@each_place
@each_mode
def test_an_error_comes_at_its_element_and_reading_can_go_on(place, mode):
    keep = kept_at(5, *range(1000, 1010))
    ds = pipeline(place, keep, 1010, mode, filter_warn_threshold_ratio=None, filter_raise_threshold_ratio=0.9)
    it = iter(ds)
    assert next(it) == 5
    with pytest.raises(ValueError, match=r"99\.90%"):
        next(it)
    if place != "iter":
        assert it.get_state() == {"next_index": 999}  # what was dropped properly is behind
        assert list(it) == list(range(1000, 1010))
    else:
        assert it.get_state() == {"next_index": 6}
        assert next(it) == 1000  # counting began anew: 994 dropped elements make no full window


@each_place
@pytest.mark.parametrize("mode", ["direct", "threads"])
@pytest.mark.parametrize("batch", [1, 3, 64, 400])
def test_blocks_judge_the_same_windows_as_single_elements(place, mode, batch):
    """A block in which a window fails is read again, one by one: it must not be counted twice."""
    ds = pipeline(
        place, lambda x: x % 1000 >= 501, 5000, mode, filter_warn_threshold_ratio=None, filter_raise_threshold_ratio=0.501
    )
    num_delivered = 0
    with pytest.raises(ValueError, match=r"50\.10%"):
        for group in ds.batch(batch, batch_fn=list):
            num_delivered += len(group)
    assert num_delivered == 498 // batch * batch  # the last of the 499 that are kept completes the window


@each_place
def test_an_error_can_be_skipped_up_to_the_next_element_or_the_end(place):
    ds = pipeline(place, kept_at(1500), 2900, filter_warn_threshold_ratio=None, filter_raise_threshold_ratio=0.9)
    it = iter(ds)
    with pytest.raises(ValueError, match="beforehand"):
        next(it)
    it.skip_failed()
    assert it.get_state() == {"next_index": 1501}
    with pytest.raises(ValueError, match="beforehand"):
        next(it)
    it.skip_failed()
    assert it.get_state() == {"next_index": 2900}
    with pytest.raises(StopIteration):
        next(it)


def test_counters_are_not_touched_by_set_state():
    ds = pipeline("iter", kept_at(600), 2000, filter_warn_threshold_ratio=None, filter_raise_threshold_ratio=0.9)
    it = iter(ds)
    assert next(it) == 600
    it.set_state({"next_index": 601})
    with pytest.raises(ValueError, match=r"99\.90%"):
        next(it)
    other = iter(ds)  # an iterator of its own counts for itself
    assert next(other) == 600


def test_each_filter_counts_for_itself():
    half = MapDataset.range(4000).to_iter_dataset().filter(lambda x: x % 2).filter(lambda x: x % 4 == 1)
    ds = WithOptionsIterDataset(half, DatasetOptions(filter_raise_threshold_ratio=0.6))
    assert len(list(ds)) == 1000


def test_allowed_nones_are_not_dropped():
    nones = MapDataset.range(1500).map(lambda x: None).to_iter_dataset(allow_nones=True)
    ds = WithOptionsIterDataset(nones, DatasetOptions(filter_raise_threshold_ratio=0.1))
    assert list(ds) == [None] * 1500


@each_place
def test_warning(place, caplog):
    keep = kept_at(*range(0, 100_000, 10))
    ds = PLACES[place](keep, 5000, MODES["direct"])
    with caplog.at_level(logging.WARNING, logger="gristmill"):
        assert len(list(ds)) == 500
        assert len(list(ds)) == 500
    assert len(caplog.records) == 1  # at most one a minute
    assert caplog.records[0].name == "gristmill"
    text = caplog.text
    assert "90.00%" in text and "1000" in text and "filter_warn_threshold_ratio=None" in text
    assert ("Filter" in text) or place == "map_none"


@each_place
@pytest.mark.parametrize("off", [None, 0])
def test_checks_can_be_switched_off(place, off, caplog):
    with caplog.at_level(logging.WARNING, logger="gristmill"):
        ds = pipeline(place, kept_at(3), 5000, filter_warn_threshold_ratio=off, filter_raise_threshold_ratio=off)
        assert list(ds) == [3]
    assert caplog.records == []


def test_no_warning_below_the_threshold(caplog):
    with caplog.at_level(logging.WARNING, logger="gristmill"):
        assert len(list(MapDataset.range(3000).filter(lambda x: x % 1000 < 101))) == 303
        assert list(MapDataset.range(999).filter(lambda x: False)) == []
    assert caplog.records == []


def test_an_error_instead_of_a_warning(caplog):
    with caplog.at_level(logging.WARNING, logger="gristmill"), pytest.raises(ValueError) as caught:
        list(pipeline("iter", kept_at(3), 5000, filter_raise_threshold_ratio=0.95))
    assert caplog.records == []
    text = str(caught.value)
    assert "FilterDatasetIterator(transform=" in text and "99.90%" in text
    assert "filter_raise_threshold_ratio=None" in text and "1000" in text


def test_an_endless_pipeline_that_never_passes_ends_with_an_error():
    ds = WithOptionsIterDataset(
        MapDataset.range(5).filter(lambda x: False).repeat().to_iter_dataset(),
        DatasetOptions(filter_raise_threshold_ratio=1.0),
    )
    it = iter(ds)
    for _ in range(3):
        with pytest.raises(ValueError, match=r"100\.00%"):
            next(it)
    it.close()


def test_the_warning_of_one_stage_does_not_swallow_that_of_another(caplog):
    none = MapDataset.range(1000).to_iter_dataset().filter(lambda x: False)
    few = MapDataset.range(1000).to_iter_dataset().filter(lambda x: x % 100 == 0)
    with caplog.at_level(logging.WARNING, logger="gristmill"):
        assert len(list(none)) == 0
        assert len(list(few)) == 10
    assert ["100.00%" in record.getMessage() for record in caplog.records] == [True, False]
