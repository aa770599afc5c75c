import copy
import dataclasses
import logging
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.options import DatasetOptions, ExecutionTrackingMode, MultiprocessingOptions, ReadOptions


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (ReadOptions(), "ReadOptions(num_threads=16, prefetch_buffer_size=500)"),
        (ReadOptions(3, 4), "ReadOptions(num_threads=3, prefetch_buffer_size=4)"),
        (
            MultiprocessingOptions(),
            "MultiprocessingOptions(num_workers=0, per_worker_buffer_size=1, enable_profiling=False)",
        ),
        (
            MultiprocessingOptions(2, 3, True),
            "MultiprocessingOptions(num_workers=2, per_worker_buffer_size=3, enable_profiling=True)",
        ),
    ],
)
def test_read_and_multiprocessing_options_are_mutable_values_with_slots(options, text):
    assert repr(options) == text
    for other in (copy.copy(options), pickle.loads(pickle.dumps(options)), dataclasses.replace(options)):
        assert other == options
    first = dataclasses.fields(options)[0].name
    setattr(options, first, 7)
    assert getattr(options, first) == 7 and repr(options) != text
    with pytest.raises(AttributeError):
        options.other = 1


@pytest.mark.parametrize("kind", [ReadOptions, MultiprocessingOptions])
@pytest.mark.parametrize("position", [0, 1])
def test_counts_are_checked(kind, position):
    name = dataclasses.fields(kind)[position].name
    for value in (None, 1.0, "1"):
        with pytest.raises(TypeError, match=f"^{name} must be an integer, got"):
            kind(**{name: value})
    with pytest.raises(ValueError, match=f"^{name} must be a non-negative integer, got -1"):
        kind(**{name: -1})
    assert kind(**{name: 0}) == kind(**{name: np.int64(0)})
    assert type(getattr(kind(**{name: np.int64(3)}), name)) is int


def test_workers_need_a_buffer():
    assert MultiprocessingOptions(0, 0).per_worker_buffer_size == 0
    with pytest.raises(ValueError, match=r"^per_worker_buffer_size must be a positive integer, got 0"):
        MultiprocessingOptions(1, 0)


def test_threads_that_cannot_be_busy_are_worth_a_warning(caplog):
    caplog.set_level(logging.WARNING, "gristmill")
    ReadOptions(16, 0)
    ReadOptions(0, 5)
    ReadOptions(5, 5)
    assert caplog.records == []
    ReadOptions(6, 5)
    (record,) = caplog.records
    assert "num_threads=6" in record.getMessage() and "only 5 threads can be busy" in record.getMessage()


RATIOS = st.none() | st.floats(0, 1)
GIVEN = st.fixed_dictionaries(
    {},
    optional={
        "filter_warn_threshold_ratio": RATIOS,
        "filter_raise_threshold_ratio": RATIOS,
        "execution_tracking_mode": st.sampled_from(ExecutionTrackingMode),
        "min_shm_size": st.integers(0, 2**40),
    },
)
DEFAULTS = {
    "filter_warn_threshold_ratio": 0.9,
    "filter_raise_threshold_ratio": None,
    "execution_tracking_mode": ExecutionTrackingMode.DISABLED,
    "min_shm_size": 0,
}


def values(options):
    return {name: getattr(options, name) for name in DEFAULTS}


@given(GIVEN)
def test_values_and_defaults(given):
    options = DatasetOptions(**given)
    assert values(options) == {**DEFAULTS, **given}
    assert repr(options) == f"DatasetOptions({', '.join(f'{k}={given[k]!r}' for k in DEFAULTS if k in given)})"


@given(GIVEN, GIVEN)
def test_merge_prefers_what_the_first_gives_explicitly(one, other):
    merged = DatasetOptions(**one).merge(DatasetOptions(**other))
    assert merged == DatasetOptions(**{**other, **one})


@given(GIVEN, GIVEN, GIVEN)
def test_merge_laws(a, b, c):
    a, b, c = (DatasetOptions(**given) for given in (a, b, c))
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) == a == a.merge(None)
    assert a.merge(DatasetOptions()) == a == DatasetOptions().merge(a)


@given(GIVEN, GIVEN)
def test_equality_and_hash_go_by_values_and_by_what_was_given(one, other):
    first, second = DatasetOptions(**one), DatasetOptions(**other)
    assert (first == second) == (one == other)
    assert hash(first) == hash(DatasetOptions(**one))
    for clone in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert clone == first
        assert clone.merge(second) == first.merge(second)


def test_an_explicit_default_counts_as_given():
    explicit = DatasetOptions(filter_warn_threshold_ratio=0.9)
    assert explicit != DatasetOptions()
    assert explicit.merge(DatasetOptions(filter_warn_threshold_ratio=0.5)).filter_warn_threshold_ratio == 0.9
    assert DatasetOptions().merge(DatasetOptions(filter_warn_threshold_ratio=0.5)).filter_warn_threshold_ratio == 0.5


def test_dataset_options_are_frozen_and_keyword_only():
    options = DatasetOptions()
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.min_shm_size = 3
    with pytest.raises(TypeError):
        DatasetOptions(0.5)
    with pytest.raises(TypeError):
        DatasetOptions(unknown=1)


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("filter_warn_threshold_ratio", 1.5, ValueError),
        ("filter_warn_threshold_ratio", -0.1, ValueError),
        ("filter_warn_threshold_ratio", float("nan"), ValueError),
        ("filter_raise_threshold_ratio", "0.5", TypeError),
        ("filter_raise_threshold_ratio", [0.5], TypeError),
        ("execution_tracking_mode", 1, TypeError),
        ("execution_tracking_mode", None, TypeError),
        ("min_shm_size", -1, ValueError),
        ("min_shm_size", 1.5, TypeError),
        ("min_shm_size", None, TypeError),
    ],
)
def test_dataset_options_are_checked(name, value, error):
    with pytest.raises(error, match=f"^{name} must be"):
        DatasetOptions(**{name: value})


def test_execution_tracking_modes():
    assert [(mode.name, mode.value) for mode in ExecutionTrackingMode] == [("DISABLED", 1), ("STAGE_TIMING", 2)]
