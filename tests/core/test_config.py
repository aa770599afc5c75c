import copy
import inspect
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from gristmill.core.config import Config, ConfigOptionError, config

DEFAULTS = {
    "py_debug_mode": False,
    "py_dataset_visualization_output_dir": None,
    "py_traceback_filtering": "auto",
    "stall_seconds": 0,
    "debug_report_seconds": 60,
    "py_relay_sigterm_to_main": False,
    "enable_multiprocess_worker_profiling": False,
    "num_threads_computing_num_records": 64,
    "num_threads_fetching_records": 64,
    "tf_interleaved_shuffle": False,
    "tf_interleaved_shuffle_block_size": 10,
    "tf_interleaved_shuffle_parallel_blocks": 10,
    "tf_lookup_batch_size": 100,
    "tf_lookup_num_parallel_calls": -1,
    "tf_lookup_fast_warmup": False,
    "tf_optimized_sequential_read": False,
    "tf_prefetch_buffer_size": -1,
}


@pytest.fixture
def fresh(monkeypatch):
    """A config of its own, in an environment that sets no option."""
    for name in list(os.environ):
        if name.startswith("GRISTMILL_"):
            monkeypatch.delenv(name)
    return Config()


@pytest.mark.parametrize(("name", "default"), DEFAULTS.items())
def test_default_is_read_without_absl(fresh, name, default):
    for value in (getattr(fresh, name), fresh.get_or_default(name)):
        assert value == default and type(value) is type(default)


def test_tab_completion_offers_exactly_the_options(fresh):
    assert set(dir(fresh)) - set(dir(Config)) - {"_updates"} == set(DEFAULTS)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("py_debug_mode", True),
        ("py_dataset_visualization_output_dir", "/some/where"),
        ("py_dataset_visualization_output_dir", None),
        ("py_traceback_filtering", "remove_frames"),
        ("num_threads_fetching_records", 1),
        ("tf_prefetch_buffer_size", -7),
    ],
)
def test_update_takes_effect_and_beats_the_environment(fresh, monkeypatch, name, value):
    monkeypatch.setenv(f"GRISTMILL_{name.upper()}", "never parsed")
    fresh.update(name, value)
    assert getattr(fresh, name) == value
    assert fresh.get_or_default(name) == value


def test_a_path_becomes_a_string(fresh):
    fresh.update("py_dataset_visualization_output_dir", Path("some") / "where")
    assert fresh.py_dataset_visualization_output_dir == str(Path("some") / "where")


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("py_debug_mode", 1, TypeError),
        ("py_debug_mode", None, TypeError),
        ("py_debug_mode", "true", TypeError),
        ("py_dataset_visualization_output_dir", 3, TypeError),
        ("py_dataset_visualization_output_dir", b"bytes", TypeError),
        ("py_traceback_filtering", None, TypeError),
        ("py_traceback_filtering", "none", ValueError),
        ("num_threads_fetching_records", 0, ValueError),
        ("num_threads_fetching_records", 1.5, TypeError),
        ("tf_lookup_batch_size", "10", TypeError),
    ],
)
def test_update_refuses_a_wrong_value_and_changes_nothing(fresh, name, value, error):
    with pytest.raises(error, match=name) as caught:
        fresh.update(name, value)
    assert repr(value) in str(caught.value)
    assert getattr(fresh, name) == DEFAULTS[name]


@pytest.mark.parametrize(
    "access",
    [
        lambda c: c.x,
        lambda c: c.get_or_default("x"),
        lambda c: c.update("x", 1),
        lambda c: c.override(x=1).__enter__(),
    ],
)
def test_unknown_option(fresh, access):
    for error in (AttributeError, ValueError, ConfigOptionError):
        with pytest.raises(error, match=r"^Unrecognized config option: x$"):
            access(fresh)


def test_a_method_is_no_option(fresh):
    with pytest.raises(ConfigOptionError):
        fresh.get_or_default("update")


@pytest.mark.parametrize("name", ["py_debug_mode", "x"])
def test_assignment_points_to_update(fresh, name):
    with pytest.raises(ValueError, match=r"Please use update\(\)\."):
        setattr(fresh, name, True)
    assert fresh.py_debug_mode is False


def test_python_protocols_work():
    assert hasattr(config, "py_debug_mode") and not hasattr(config, "x")
    assert copy.copy(config) is config
    assert copy.deepcopy(config) is config
    assert pickle.loads(pickle.dumps(config)) is config
    assert dict(inspect.getmembers(config)).keys() >= DEFAULTS.keys()
    assert inspect.unwrap(config) is config


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        *(("py_debug_mode", text, True) for text in ("1", "true", "True", "YES", "on")),
        *(("tf_lookup_fast_warmup", text, False) for text in ("0", "false", "False", "no", "OFF")),
        ("py_dataset_visualization_output_dir", "some/where", "some/where"),
        ("py_traceback_filtering", "off", "off"),
        ("num_threads_fetching_records", "8", 8),
        ("tf_prefetch_buffer_size", "-2", -2),
        *((name, "", default) for name, default in DEFAULTS.items()),
    ],
)
def test_environment(fresh, monkeypatch, name, text, value):
    monkeypatch.setenv(f"GRISTMILL_{name.upper()}", text)
    read = getattr(fresh, name)
    assert read == value and type(read) is type(value)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("py_debug_mode", "maybe"),
        ("py_traceback_filtering", "Auto"),
        ("num_threads_fetching_records", "many"),
        ("num_threads_fetching_records", "0"),
    ],
)
def test_a_wrong_environment_variable_is_named(fresh, monkeypatch, name, text):
    monkeypatch.setenv(f"GRISTMILL_{name.upper()}", text)
    with pytest.raises(ValueError, match=f"GRISTMILL_{name.upper()} must be .*{text}"):
        getattr(fresh, name)


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


def test_override_is_all_or_nothing(fresh):
    with pytest.raises(ValueError, match="py_traceback_filtering"):
        fresh.override(py_debug_mode=True, py_traceback_filtering="bad").__enter__()
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


def run(script: str, *arguments: str, **environment: str) -> str:
    process = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_config_imports_no_absl():
    script = "import sys; from gristmill.core.config import config; config.py_debug_mode; print('absl' in sys.modules)"
    assert run(script) == "False\n"


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


def test_absl_flag_counts_once_parsed():
    output = run(
        FLAGS_PROGRAM,
        "--nograin_py_debug_mode",
        "--grain_py_traceback_filtering=some",
        GRISTMILL_PY_DEBUG_MODE="1",
        GRISTMILL_NUM_THREADS_FETCHING_RECORDS="5",
    )
    assert output.splitlines() == [
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
