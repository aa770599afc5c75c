"""The check for filters that throw away nearly everything: exact windows of 1000, however the
elements are read.
"""

import logging

import pytest
from refusing import assert_raises

from gristmill import MapDataset, ReadOptions
from gristmill.dataset.stages.filter_guard import FilterGuard
from gristmill.experimental import DatasetOptions, WithOptionsIterDataset


@pytest.fixture(autouse=True)
def never_warned(monkeypatch, caplog):
    """A warning comes once a minute and stage: let every test have its own."""
    monkeypatch.setattr(FilterGuard, "_last_warned", {})
    caplog.set_level(logging.WARNING, logger="gristmill")


def kept_at(*positions):
    return frozenset(positions).__contains__


# How the pipeline filters: as a stage of the stream, or before it became a stream.
PLACES = {
    "iter": lambda keep, n, options: MapDataset.range(n).to_iter_dataset(options).filter(keep),
    "map": lambda keep, n, options: MapDataset.range(n).filter(keep).to_iter_dataset(options),
    "map_none": lambda keep, n, options: (
        MapDataset.range(n).map(lambda x: x if keep(x) else None).to_iter_dataset(options)
    ),
}
MODES = {"direct": ReadOptions(0), "threads": ReadOptions(3, 64), "one_ahead": ReadOptions(1, 1)}
each_place = pytest.mark.parametrize("place", PLACES)


def pipeline(place, keep, n, ratio, mode="direct"):
    options = DatasetOptions(filter_warn_threshold_ratio=None, filter_raise_threshold_ratio=ratio)
    return WithOptionsIterDataset(PLACES[place](keep, n, MODES[mode]), options)


READING = [("direct", None), ("one_ahead", 7), ("threads", 2000)]


@each_place
@pytest.mark.parametrize(("mode", "batch"), READING)
def test_the_window_is_a_thousand_elements_sharp(place, mode, batch):
    """100 of the first 1000 elements are kept, or 99: the ratio is 0.9 or 0.901."""

    def run(keep, n, threshold):
        ds = pipeline(place, keep, n, threshold, mode)
        return (
            list(ds)
            if batch is None
            else [x for group in ds.batch(batch, batch_fn=list) for x in group]
        )

    first, second = range(100), range(1000, 1900)
    for kept in ([*first], [*range(900, 1000)], [*range(0, 1000, 10)]):
        assert run(kept_at(*kept), 1000, 0.9001) == kept
        assert run(kept_at(*kept), 999, 0.5) == [x for x in kept if x < 999]  # never checked
        assert_raises(ValueError, r"90\.00%", run, kept_at(*kept), 1000, 0.9)
    # An element at 1000 is in the second window, which is not full.
    assert run(kept_at(*first, *second), 1999, 0.901) == [*first, *second]
    assert_raises(ValueError, r"90\.10%", run, kept_at(*range(99), *second), 1999, 0.901)


@each_place
def test_an_error_comes_at_its_element_and_can_be_skipped(place):
    for mode in MODES:
        it = iter(pipeline(place, kept_at(5, *range(1000, 1010)), 1010, 0.9, mode))
        assert next(it) == 5
        assert_raises(ValueError, r"99\.90%", next, it)
        assert it.get_state() == {"next_index": 6}
        assert next(it) == 1000  # counting restarts: 994 make no full window
    it = iter(pipeline(place, kept_at(1500), 2900, 0.9))
    for after, following in ((1000, 1500), (2000, None)):
        assert_raises(ValueError, "beforehand", next, it)
        it.skip_failed()
        assert it.get_state() == {"next_index": after}
        assert next(it, None) == following
    assert_raises(StopIteration, None, next, it)


@each_place
@pytest.mark.parametrize(("mode", "batch"), [("direct", 64), ("threads", 3)])
def test_blocks_judge_the_same_windows_as_single_elements(place, mode, batch):
    """A block in which a window fails is read again, one by one: it must not be counted twice."""
    num_delivered = 0
    with pytest.raises(ValueError, match=r"50\.10%"):
        for group in pipeline(place, lambda x: x % 1000 >= 501, 5000, 0.501, mode).batch(
            batch, batch_fn=list
        ):
            num_delivered += len(group)
    # the last of the 499 that are kept completes the window
    assert num_delivered == 498 // batch * batch


def test_who_counts():
    ds = pipeline("iter", kept_at(600), 2000, 0.9)
    it = iter(ds)
    assert next(it) == 600
    it.set_state({"next_index": 601})  # continues counting
    assert_raises(ValueError, r"99\.90%", next, it)
    assert next(iter(ds)) == 600  # an iterator of its own counts for itself
    filters = (
        MapDataset.range(4000)
        .to_iter_dataset()
        .filter(lambda x: x % 2)
        .filter(lambda x: x % 4 == 1)
    )
    # these are not dropped
    nones = MapDataset.range(1500).map(lambda x: None).to_iter_dataset(allow_nones=True)
    for ds, num in ((filters, 1000), (nones, 1500)):
        assert (
            len(list(WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=0.6))))
            == num
        )
    endless = MapDataset.range(5).filter(lambda x: False).repeat().to_iter_dataset()
    with iter(
        WithOptionsIterDataset(endless, DatasetOptions(filter_raise_threshold_ratio=1.0))
    ) as it:
        for _ in range(3):
            assert_raises(ValueError, r"100\.00%", next, it)


@each_place
def test_when_it_warns(place, caplog):
    ds = PLACES[place](lambda x: x % 10 == 0, 5000, MODES["direct"])
    assert len(list(ds)) == len(list(ds)) == 500
    (record,) = caplog.records  # at most one a minute
    assert record.name == "gristmill"
    text = record.getMessage()
    assert "90.00%" in text and "1000" in text and "filter_warn_threshold_ratio=None" in text
    assert "Filter" in text or place == "map_none"
    assert list(PLACES[place](kept_at(0), 1000, MODES["direct"])) == [0]
    # the warning of one stage does not swallow that of another
    assert len(caplog.records) == 1 + (place != "map_none")
    caplog.clear()
    for off in (None, 0):
        options = DatasetOptions(filter_warn_threshold_ratio=off, filter_raise_threshold_ratio=off)
        assert list(
            WithOptionsIterDataset(PLACES[place](kept_at(3), 5000, MODES["direct"]), options)
        ) == [3]
    # below the threshold
    assert len(list(PLACES[place](lambda x: x % 1000 < 101, 3000, MODES["direct"]))) == 303
    assert list(PLACES[place](kept_at(), 999, MODES["direct"])) == []
    with pytest.raises(ValueError) as caught:  # an error instead
        list(pipeline(place, kept_at(3), 5000, 0.95))
    assert caplog.records == []
    text = str(caught.value)
    assert "99.90%" in text and "filter_raise_threshold_ratio=None" in text and "1000" in text
    assert place != "iter" or "FilterDatasetIterator(transform=" in text


@each_place
def test_blocks_of_blocks_do_not_swallow_the_error(place):
    """A block that fails is taken again by every downstream stage: the error must come again, until
    the user has it.
    """
    shuffled = lambda ds: ds.window_shuffle(3, seed=0).batch(2)  # noqa: E731
    for wrap in (lambda ds: ds.batch(3).batch(2), lambda ds: ds.cache().batch(3), shuffled):
        it, num_errors = iter(wrap(pipeline(place, lambda x: x % 100 == 0, 5000, 0.5))), 0
        for _ in range(40):
            try:
                next(it, None)
            except ValueError:
                num_errors += 1
        assert 4 <= num_errors <= 10, wrap
