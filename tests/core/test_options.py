"""Options of calls and shards, which are values; and options of the process."""

import copy
import dataclasses
import inspect
import logging
import os
import pickle
import re
import threading
from pathlib import Path

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from programs import output
from refusing import assert_raises

from gristmill.core.config import Config, ConfigOptionError, config
from gristmill.core.options import (
    DatasetOptions,
    ExecutionTrackingMode,
    MultiprocessingOptions,
    ReadOptions,
)
from gristmill.core.sharding import (
    NoSharding,
    ShardByJaxProcess,
    ShardOptions,
    even_split,
    process_index_and_count,
)


def test_options_are_mutable_values_with_slots():
    multiprocessing = (
        "MultiprocessingOptions(num_workers={}, per_worker_buffer_size={}, enable_profiling={})"
    )
    for options, text in [
        (ReadOptions(), "ReadOptions(num_threads=16, prefetch_buffer_size=500)"),
        (ReadOptions(3, 4), "ReadOptions(num_threads=3, prefetch_buffer_size=4)"),
        (MultiprocessingOptions(), multiprocessing.format(0, 1, False)),
        (MultiprocessingOptions(2, 3, True), multiprocessing.format(2, 3, True)),
    ]:
        assert repr(options) == text
        for other in (
            copy.copy(options),
            pickle.loads(pickle.dumps(options)),
            dataclasses.replace(options),
        ):
            assert other == options
        first = dataclasses.fields(options)[0].name
        setattr(options, first, 7)
        assert getattr(options, first) == 7 and repr(options) != text
        assert_raises(AttributeError, None, setattr, options, "other", 1)
        assert_raises(TypeError, "unhashable", hash, options)


def test_counts_are_checked_and_threads_need_a_buffer(caplog):
    caplog.set_level(logging.WARNING, "gristmill")
    fields = [
        (kind, field)
        for kind in (ReadOptions, MultiprocessingOptions)
        for field in dataclasses.fields(kind)[:2]
    ]
    for kind, field in fields:
        for value in (None, 1.0, "1"):
            with pytest.raises(
                TypeError, match=f"^{field.name} must be an integer( or 'auto')?, got"
            ):
                kind(**{field.name: value})
        with pytest.raises(
            ValueError, match=f"^{field.name} must be a non-negative integer, got -1"
        ):
            kind(**{field.name: -1})
        assert kind(**{field.name: 0}) == kind(**{field.name: np.int64(0)})
        assert type(getattr(kind(**{field.name: np.int64(3)}), field.name)) is int
    assert MultiprocessingOptions(0, 0).per_worker_buffer_size == 0
    with pytest.raises(
        ValueError, match=r"^per_worker_buffer_size must be a positive integer, got 0"
    ):
        MultiprocessingOptions(1, 0)
    caplog.clear()
    for threads, buffer in ((16, 0), (0, 5), (5, 5)):
        ReadOptions(threads, buffer)
    assert caplog.records == []
    ReadOptions(6, 5)
    (record,) = caplog.records
    assert "num_threads=6" in record.getMessage()
    assert "only 5 threads can be busy" in record.getMessage()


OPTIONAL = dict.fromkeys(
    ["filter_warn_threshold_ratio", "filter_raise_threshold_ratio"], st.none() | st.floats(0, 1)
)
OPTIONAL |= {
    "execution_tracking_mode": st.sampled_from(ExecutionTrackingMode),
    "min_shm_size": st.integers(0, 2**40),
    "max_threads": st.none() | st.integers(1, 99),
    "max_bytes_ahead": st.integers(1, 2**40),
}
GIVEN = st.fixed_dictionaries({}, optional=OPTIONAL)
OF_DATASETS = {"filter_warn_threshold_ratio": 0.9, "filter_raise_threshold_ratio": None}
OF_DATASETS |= {"execution_tracking_mode": ExecutionTrackingMode.DISABLED, "min_shm_size": 0}
OF_DATASETS |= {"max_threads": None, "max_bytes_ahead": None}


@given(GIVEN, GIVEN, GIVEN)
def test_laws_of_dataset_options(one, other, third):
    a, b, c = (DatasetOptions(**given) for given in (one, other, third))
    assert {name: getattr(a, name) for name in OF_DATASETS} == {**OF_DATASETS, **one}
    expected = f"DatasetOptions({', '.join(f'{k}={one[k]!r}' for k in OF_DATASETS if k in one)})"
    assert (repr(a)) == expected
    assert a.merge(b) == DatasetOptions(**{**other, **one})  # what the first gives explicitly
    assert a.merge(b).merge(c) == a.merge(b.merge(c))
    assert a.merge(a) == a == a.merge(None)
    assert a.merge(DatasetOptions()) == a == DatasetOptions().merge(a)
    assert (a == b) == (one == other)
    assert hash(a) == hash(DatasetOptions(**one))
    for clone in (copy.deepcopy(a), pickle.loads(pickle.dumps(a))):
        assert clone == a
        assert clone.merge(b) == a.merge(b)


def test_dataset_options_are_frozen_and_checked():
    explicit = DatasetOptions(filter_warn_threshold_ratio=0.9)
    half = DatasetOptions(filter_warn_threshold_ratio=0.5)
    assert explicit != DatasetOptions()
    assert explicit.merge(half).filter_warn_threshold_ratio == 0.9
    assert DatasetOptions().merge(half).filter_warn_threshold_ratio == 0.5
    assert_raises(
        dataclasses.FrozenInstanceError, None, setattr, DatasetOptions(), "min_shm_size", 3
    )
    assert_raises(TypeError, None, DatasetOptions, 0.5)
    assert_raises(TypeError, None, DatasetOptions, unknown=1)
    for name, error, values in [
        ("filter_warn_threshold_ratio", ValueError, [1.5, -0.1, float("nan")]),
        ("filter_raise_threshold_ratio", TypeError, ["0.5", [0.5]]),
        ("execution_tracking_mode", TypeError, [1, None]),
        ("min_shm_size", ValueError, [-1]),
        ("min_shm_size", TypeError, [1.5, None]),
        *[(name, ValueError, [0]) for name in ("max_threads", "max_bytes_ahead")],
        *[(name, TypeError, ["many"]) for name in ("max_threads", "max_bytes_ahead")],
    ]:
        for value in values:
            assert_raises(error, f"^{name} must be", DatasetOptions, **{name: value})
    assert [(mode.name, mode.value) for mode in ExecutionTrackingMode] == [
        ("DISABLED", 1),
        ("STAGE_TIMING", 2),
    ]


def test_fields_wrong_arguments_and_equality_by_class():
    options = ShardOptions(1, 3)
    assert dataclasses.astuple(options) == (1, 3, False)
    assert dataclasses.astuple(ShardOptions(shard_index=2, shard_count=4, drop_remainder=True)) == (
        2,
        4,
        True,
    )
    assert dataclasses.astuple(NoSharding()) == (0, 1, False)
    assert repr(options) == "ShardOptions(shard_index=1, shard_count=3, drop_remainder=False)"
    assert repr(NoSharding()) == "NoSharding(shard_index=0, shard_count=1, drop_remainder=False)"
    same = ShardOptions(np.int64(1), np.uint8(3))
    assert repr(same) == repr(options) and same == options
    assert type(same.shard_index) is type(same.shard_count) is int
    for call, arguments, error, match in [
        # The count is checked before the index.
        *(
            (ShardOptions, (5, n), ValueError, f"^shard_count must be a positive integer, got {n}")
            for n in (0, -1)
        ),
        *(
            (ShardOptions, (i, 3), ValueError, rf"^shard_index must be in .* \[0, 3\), got {i}$")
            for i in (-1, 3, 7)
        ),
        *(
            (ShardOptions, (value, 3), TypeError, r"^shard_index must be an integer")
            for value in (1.0, "1", None)
        ),
        *(
            (ShardOptions, (0, value), TypeError, r"^shard_count must be an integer")
            for value in (1.0, "1", None)
        ),
        (NoSharding, (0,), TypeError, None),
        (even_split, (-1, NoSharding()), ValueError, r"^num_examples must be"),
        *(
            (even_split, (value, NoSharding()), TypeError, r"^num_examples must be")
            for value in (1.5, None)
        ),
    ]:
        assert_raises(error, match, call, *arguments)
    for options in (ShardOptions(1, 3), NoSharding(), ShardByJaxProcess()):
        assert_raises(dataclasses.FrozenInstanceError, None, setattr, options, "shard_index", 0)
        other = pickle.loads(pickle.dumps(options))
        assert other == options and type(other) is type(options) and hash(other) == hash(options)
        assert isinstance(options, ShardOptions)
    assert NoSharding() == NoSharding() != ShardOptions(0, 1) != ShardByJaxProcess() != NoSharding()
    assert len({ShardOptions(0, 2), ShardOptions(0, 2), ShardOptions(0, 2, True)}) == 2


IN_A_CLUSTER = """
import sys
from types import ModuleType
jax = sys.modules["jax"] = ModuleType("jax")
jax.process_index, jax.process_count = lambda: 2, lambda: 5
from gristmill.sharding import ShardByJaxProcess
print(ShardByJaxProcess(drop_remainder=True))
jax.process_index = lambda: 1 / 0
try:
    ShardByJaxProcess()
except ZeroDivisionError:
    print("not swallowed")
sys.modules["jax"] = None
print(ShardByJaxProcess())
"""


def test_by_jax_process_here_in_a_cluster_and_without_jax(tmp_path):
    """Real processes of a cluster are out of reach here; a module with the same
    answers replaces them.
    """
    assert process_index_and_count() == (jax.process_index(), jax.process_count())
    assert dataclasses.astuple(ShardByJaxProcess(drop_remainder=True)) == (
        jax.process_index(),
        jax.process_count(),
        True,
    )
    expected = "ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=False)"
    assert (repr(ShardByJaxProcess())) == expected
    assert output(tmp_path, IN_A_CLUSTER) == [
        "ShardByJaxProcess(shard_index=2, shard_count=5, drop_remainder=True)",
        "not swallowed",
        "ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=False)",
    ]


@given(st.integers(0, 10**6), st.integers(1, 50))
def test_shards_follow_one_another_and_are_nearly_equal(num_examples, count):
    intervals = [even_split(num_examples, ShardOptions(i, count)) for i in range(count)]
    ends = [0, *(end for _, end in intervals)]
    assert ends[:-1] == [start for start, _ in intervals] and ends[-1] == num_examples
    sizes = [end - start for start, end in intervals]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
    size = num_examples // count
    for i in (0, count // 2, count - 1):
        assert even_split(num_examples, ShardOptions(i, count, drop_remainder=True)) == (
            size * i,
            size * (i + 1),
        )


def test_a_dropped_remainder_is_logged_with_its_size(caplog):
    caplog.set_level(logging.WARNING, "gristmill")
    even_split(9, ShardOptions(0, 3, drop_remainder=True))
    even_split(10, ShardOptions(0, 3, drop_remainder=False))
    assert caplog.records == []
    even_split(11, ShardOptions(0, 3, drop_remainder=True))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert [int(word) for word in record.getMessage().split() if word.isdigit()] == [2, 11, 3]


SWITCHES = (
    "py_debug_mode",
    "py_relay_sigterm_to_main",
    "enable_multiprocess_worker_profiling",
    "tf_interleaved_shuffle",
)
DEFAULTS = {
    **dict.fromkeys((*SWITCHES, "tf_lookup_fast_warmup", "tf_optimized_sequential_read"), False),
    **dict.fromkeys(("num_threads_computing_num_records", "num_threads_fetching_records"), 64),
    **dict.fromkeys(
        ("tf_interleaved_shuffle_block_size", "tf_interleaved_shuffle_parallel_blocks"), 10
    ),
    **dict.fromkeys(("tf_lookup_num_parallel_calls", "tf_prefetch_buffer_size"), -1),
}
DEFAULTS |= {"tf_lookup_batch_size": 100, "stall_seconds": 0, "debug_report_seconds": 60}
DEFAULTS |= {"py_dataset_visualization_output_dir": None, "py_traceback_filtering": "auto"}


@pytest.fixture
def fresh(monkeypatch):
    """A config of its own, in an environment that sets no option."""
    for name in list(os.environ):
        if name.startswith("GRISTMILL_"):
            monkeypatch.delenv(name)
    return Config()


def test_update_takes_effect_and_beats_the_environment(fresh, monkeypatch):
    for name, default in DEFAULTS.items():
        for value in (getattr(fresh, name), fresh.get_or_default(name)):
            assert value == default and type(value) is type(default)
    # what tab completion offers
    assert set(dir(fresh)) - set(dir(Config)) - {"_updates"} == set(DEFAULTS)
    for name, values in [
        ("py_debug_mode", [True]),
        ("py_dataset_visualization_output_dir", ["/some/where", None, Path("some") / "where"]),
        ("py_traceback_filtering", ["remove_frames"]),
        ("num_threads_fetching_records", [1]),
        ("tf_prefetch_buffer_size", [-7]),
    ]:
        monkeypatch.setenv(f"GRISTMILL_{name.upper()}", "never parsed")
        for value in values:
            fresh.update(name, value)
            assert (
                getattr(fresh, name)
                == fresh.get_or_default(name)
                == (str(value) if isinstance(value, Path) else value)
            )


def test_wrong_values_what_is_no_option_and_python_s_protocols(fresh):
    for name, error, values in [
        ("py_debug_mode", TypeError, [1, None, "true"]),
        ("py_dataset_visualization_output_dir", TypeError, [3, b"bytes"]),
        ("py_traceback_filtering", TypeError, [None]),
        ("py_traceback_filtering", ValueError, ["none"]),
        ("num_threads_fetching_records", ValueError, [0]),
        ("num_threads_fetching_records", TypeError, [1.5]),
        ("tf_lookup_batch_size", TypeError, ["10"]),
    ]:
        for value in values:
            assert_raises(error, f"{name}.*{re.escape(repr(value))}", fresh.update, name, value)
            assert getattr(fresh, name) == DEFAULTS[name]
    for error in (AttributeError, ValueError, ConfigOptionError):
        unknown = error, r"^Unrecognized config option: x$"
        assert_raises(*unknown, getattr, fresh, "x")
        assert_raises(*unknown, fresh.get_or_default, "x")
        assert_raises(*unknown, fresh.update, "x", 1)
        assert_raises(*unknown, fresh.override(x=1).__enter__)
    assert_raises(ConfigOptionError, None, fresh.get_or_default, "update")  # a method
    for name in ("py_debug_mode", "x"):
        assert_raises(ValueError, r"Please use update\(\)\.", setattr, fresh, name, True)
    half_wrong = fresh.override(py_debug_mode=True, py_traceback_filtering="bad")
    assert_raises(ValueError, "py_traceback_filtering", half_wrong.__enter__)
    assert fresh.py_debug_mode is False
    assert hasattr(config, "py_debug_mode") and not hasattr(config, "x")
    assert (
        copy.copy(config) is copy.deepcopy(config) is pickle.loads(pickle.dumps(config)) is config
    )
    assert dict(inspect.getmembers(config)).keys() >= DEFAULTS.keys()
    assert inspect.unwrap(config) is config


def test_environment(fresh, monkeypatch):
    for name, texts, value in [
        ("py_debug_mode", ["1", "true", "True", "YES", "on"], True),
        ("tf_lookup_fast_warmup", ["0", "false", "False", "no", "OFF"], False),
        ("py_dataset_visualization_output_dir", ["some/where"], "some/where"),
        ("py_traceback_filtering", ["off"], "off"),
        ("num_threads_fetching_records", ["8"], 8),
        ("tf_prefetch_buffer_size", ["-2"], -2),
        *((name, [""], default) for name, default in DEFAULTS.items()),
    ]:
        for text in texts:
            monkeypatch.setenv(f"GRISTMILL_{name.upper()}", text)
            read = getattr(fresh, name)
            assert read == value and type(read) is type(value)
    number = "num_threads_fetching_records"
    for name, text in (
        ("py_debug_mode", "maybe"),
        ("py_traceback_filtering", "Auto"),
        (number, "many"),
        (number, "0"),
    ):
        monkeypatch.setenv(f"GRISTMILL_{name.upper()}", text)
        assert_raises(
            ValueError, f"GRISTMILL_{name.upper()} must be .*{text}", getattr, fresh, name
        )


def test_override_restores_what_was_set_and_what_was_not(fresh, monkeypatch):
    names = ("py_debug_mode", "num_threads_fetching_records")
    assert fresh.are_unset(names)
    with fresh.override(py_debug_mode=False):
        assert not fresh.are_unset(names) and fresh.are_unset(names[1:])
    assert fresh.are_unset(names)
    monkeypatch.setenv("GRISTMILL_NUM_THREADS_FETCHING_RECORDS", "3")
    assert not fresh.are_unset(names)
    monkeypatch.delenv("GRISTMILL_NUM_THREADS_FETCHING_RECORDS")
    fresh.update("num_threads_fetching_records", 3)
    monkeypatch.setenv("GRISTMILL_PY_DEBUG_MODE", "1")
    overridden = fresh.override(num_threads_fetching_records=4, py_debug_mode=False)
    with pytest.raises(RuntimeError, match="inside"), overridden:
        assert (fresh.num_threads_fetching_records, fresh.py_debug_mode) == (4, False)
        with fresh.override(num_threads_fetching_records=5):
            assert fresh.num_threads_fetching_records == 5
        assert fresh.num_threads_fetching_records == 4
        raise RuntimeError("inside")
    assert (fresh.num_threads_fetching_records, fresh.py_debug_mode) == (3, True)
    monkeypatch.setenv("GRISTMILL_PY_DEBUG_MODE", "0")
    assert fresh.py_debug_mode is False


def test_threads_read_only_values_that_were_set(fresh):
    fresh.update("num_threads_fetching_records", 1)
    stop, seen = threading.Event(), set()

    def read():
        while not stop.is_set():
            seen.add(fresh.num_threads_fetching_records)

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for _ in range(2000):
        with fresh.override(num_threads_fetching_records=2):
            fresh.update("num_threads_fetching_records", 3)
    stop.set()
    for reader in readers:
        reader.join()
    assert seen and seen <= {1, 2, 3}


FLAGS_PROGRAM = """
    import sys
    from absl import flags
    from gristmill.core.config import config
    flags.DEFINE_bool("grain_py_debug_mode", False, "")
    flags.DEFINE_string("grain_py_traceback_filtering", "auto", "")
    print(config.py_debug_mode)  # defined but not parsed: the environment counts
    flags.FLAGS(sys.argv)
    print(config.py_debug_mode, config.num_threads_fetching_records)
    try:
        print(config.py_traceback_filtering)
    except ValueError as error:
        print(error)
    config.update("py_debug_mode", True)
    print(config.py_debug_mode)
"""


def test_absl_flag_counts_once_parsed(monkeypatch, tmp_path):
    monkeypatch.setenv("GRISTMILL_PY_DEBUG_MODE", "1")
    monkeypatch.setenv("GRISTMILL_NUM_THREADS_FETCHING_RECORDS", "5")
    assert output(
        tmp_path, FLAGS_PROGRAM, "--nograin_py_debug_mode", "--grain_py_traceback_filtering=some"
    ) == [
        "True",
        "False 5",
        (
            "--grain_py_traceback_filtering must be one of auto, off, tracebackhide,"
            " quiet_remove_frames, remove_frames, got 'some'"
        ),
        "True",
    ]
