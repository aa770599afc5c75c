import copy
import dataclasses
import logging
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusing import assert_raises

from gristmill.core.options import DatasetOptions, ExecutionTrackingMode, MultiprocessingOptions, ReadOptions


def test_read_and_multiprocessing_options_are_mutable_values_with_slots():
    multiprocessing = "MultiprocessingOptions(num_workers={}, per_worker_buffer_size={}, enable_profiling={})"
    for options, text in [
        (ReadOptions(), "ReadOptions(num_threads=16, prefetch_buffer_size=500)"),
        (ReadOptions(3, 4), "ReadOptions(num_threads=3, prefetch_buffer_size=4)"),
        (MultiprocessingOptions(), multiprocessing.format(0, 1, False)),
        (MultiprocessingOptions(2, 3, True), multiprocessing.format(2, 3, True)),
    ]:
        assert repr(options) == text
        for other in (copy.copy(options), pickle.loads(pickle.dumps(options)), dataclasses.replace(options)):
            assert other == options
        first = dataclasses.fields(options)[0].name
        setattr(options, first, 7)
        assert getattr(options, first) == 7 and repr(options) != text
        assert_raises(AttributeError, None, setattr, options, "other", 1)


@pytest.mark.parametrize("kind", [ReadOptions, MultiprocessingOptions])
def test_counts_are_checked(kind):
    for field in dataclasses.fields(kind)[:2]:
        for value in (None, 1.0, "1"):
            assert_raises(TypeError, f"^{field.name} must be an integer, got", kind, **{field.name: value})
        assert_raises(ValueError, f"^{field.name} must be a non-negative integer, got -1", kind, **{field.name: -1})
        assert kind(**{field.name: 0}) == kind(**{field.name: np.int64(0)})
        assert type(getattr(kind(**{field.name: np.int64(3)}), field.name)) is int


def test_threads_and_workers_need_a_buffer(caplog):
    assert MultiprocessingOptions(0, 0).per_worker_buffer_size == 0
    assert_raises(ValueError, r"^per_worker_buffer_size must be a positive integer, got 0", MultiprocessingOptions, 1, 0)
    caplog.set_level(logging.WARNING, "gristmill")
    for threads, buffer in ((16, 0), (0, 5), (5, 5)):
        ReadOptions(threads, buffer)
    assert caplog.records == []
    ReadOptions(6, 5)
    (record,) = caplog.records
    assert "num_threads=6" in record.getMessage() and "only 5 threads can be busy" in record.getMessage()


OPTIONAL = dict.fromkeys(["filter_warn_threshold_ratio", "filter_raise_threshold_ratio"], st.none() | st.floats(0, 1))
OPTIONAL |= {"execution_tracking_mode": st.sampled_from(ExecutionTrackingMode), "min_shm_size": st.integers(0, 2**40)}
GIVEN = st.fixed_dictionaries({}, optional=OPTIONAL)
DEFAULTS = {"filter_warn_threshold_ratio": 0.9, "filter_raise_threshold_ratio": None}
DEFAULTS |= {"execution_tracking_mode": ExecutionTrackingMode.DISABLED, "min_shm_size": 0}


@given(GIVEN, GIVEN, GIVEN)
def test_laws_of_dataset_options(one, other, third):
    a, b, c = (DatasetOptions(**given) for given in (one, other, third))
    assert {name: getattr(a, name) for name in DEFAULTS} == {**DEFAULTS, **one}
    assert repr(a) == f"DatasetOptions({', '.join(f'{k}={one[k]!r}' for k in DEFAULTS if k in one)})"
    assert a.merge(b) == DatasetOptions(**{**other, **one})  # what the first gives explicitly
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) == a == a.merge(None)
    assert a.merge(DatasetOptions()) == a == DatasetOptions().merge(a)
    assert (a == b) == (one == other)
    assert hash(a) == hash(DatasetOptions(**one))
    for clone in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert clone == a
        assert clone.merge(b) == a.merge(b)


def test_dataset_options_are_frozen_checked_and_know_what_was_given():
    explicit, half = DatasetOptions(filter_warn_threshold_ratio=0.9), DatasetOptions(filter_warn_threshold_ratio=0.5)
    assert explicit != DatasetOptions()
    assert explicit.merge(half).filter_warn_threshold_ratio == 0.9
    assert DatasetOptions().merge(half).filter_warn_threshold_ratio == 0.5
    assert_raises(dataclasses.FrozenInstanceError, None, setattr, DatasetOptions(), "min_shm_size", 3)
    assert_raises(TypeError, None, DatasetOptions, 0.5)
    assert_raises(TypeError, None, DatasetOptions, unknown=1)
    for name, error, values in [
        ("filter_warn_threshold_ratio", ValueError, [1.5, -0.1, float("nan")]),
        ("filter_raise_threshold_ratio", TypeError, ["0.5", [0.5]]),
        ("execution_tracking_mode", TypeError, [1, None]),
        ("min_shm_size", ValueError, [-1]),
        ("min_shm_size", TypeError, [1.5, None]),
    ]:
        for value in values:
            assert_raises(error, f"^{name} must be", DatasetOptions, **{name: value})
    assert [(mode.name, mode.value) for mode in ExecutionTrackingMode] == [("DISABLED", 1), ("STAGE_TIMING", 2)]
