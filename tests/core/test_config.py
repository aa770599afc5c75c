import copy
import inspect
import os
import pickle
import re
import threading
from pathlib import Path

import pytest
from programs import output
from refusing import assert_raises

from gristmill.core.config import Config, ConfigOptionError, config

SWITCHES = ("py_debug_mode", "py_relay_sigterm_to_main", "enable_multiprocess_worker_profiling", "tf_interleaved_shuffle")
DEFAULTS = {
    **dict.fromkeys((*SWITCHES, "tf_lookup_fast_warmup", "tf_optimized_sequential_read"), False),
    **dict.fromkeys(("num_threads_computing_num_records", "num_threads_fetching_records"), 64),
    **dict.fromkeys(("tf_interleaved_shuffle_block_size", "tf_interleaved_shuffle_parallel_blocks"), 10),
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


def test_defaults_and_update_which_takes_effect_and_beats_the_environment(fresh, monkeypatch):
    for name, default in DEFAULTS.items():
        for value in (getattr(fresh, name), fresh.get_or_default(name)):
            assert value == default and type(value) is type(default)
    assert set(dir(fresh)) - set(dir(Config)) - {"_updates"} == set(DEFAULTS)  # what tab completion offers
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
            assert getattr(fresh, name) == fresh.get_or_default(name) == (str(value) if isinstance(value, Path) else value)


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
    assert copy.copy(config) is copy.deepcopy(config) is pickle.loads(pickle.dumps(config)) is config
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
    for name, text in (("py_debug_mode", "maybe"), ("py_traceback_filtering", "Auto"), (number, "many"), (number, "0")):
        monkeypatch.setenv(f"GRISTMILL_{name.upper()}", text)
        assert_raises(ValueError, f"GRISTMILL_{name.upper()} must be .*{text}", getattr, fresh, name)


def test_override_restores_what_was_set_and_what_was_not(fresh, monkeypatch):
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
    assert output(tmp_path, FLAGS_PROGRAM, "--nograin_py_debug_mode", "--grain_py_traceback_filtering=some") == [
        "True",
        "False 5",
        "--grain_py_traceback_filtering must be one of auto, off, tracebackhide, quiet_remove_frames, remove_frames, got 'some'",
        "True",
    ]


def test_whether_somebody_has_set_an_option(fresh, monkeypatch):
    names = ("py_debug_mode", "num_threads_fetching_records")
    assert fresh.are_unset(names)
    with fresh.override(py_debug_mode=False):
        assert not fresh.are_unset(names) and fresh.are_unset(names[1:])
    assert fresh.are_unset(names)
    monkeypatch.setenv("GRISTMILL_NUM_THREADS_FETCHING_RECORDS", "3")
    assert not fresh.are_unset(names)
