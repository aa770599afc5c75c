"""Fixtures of all tests."""

import _imp
import contextlib
import gc
import os
import re
import signal
import sys
import sysconfig
import tempfile
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path

import new_seed
import pytest

# Where this is set, each of the hundreds of programs and workers that are started from here
# compiles what it imports again.
# of which the code changes within seconds
sys.dont_write_bytecode = os.environ.get("PYTHONDONTWRITEBYTECODE") == "mutants"
if not sys.dont_write_bytecode:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Background jobs and nohup ignore these, and programs that are started from here would inherit it:
# some tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):  # Windows has none
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@pytest.fixture
def no_garbage() -> None:
    """Collects the garbage of earlier tests, for tests that count open files or threads.

    An error that an earlier test has raised may be in a cycle with its traceback, and through it
    with readers and iterators, which hold theirs until the cycle is collected.
    """
    gc.collect()


def pytest_runtest_teardown() -> None:
    """Release CPython's import lock if an interrupted import has left it held by this thread.

    Python loses track of the lock if an interrupt arrives between its acquisition and the ``try``
    after it. Every other thread that imports a module waits for the lock from then on.
    """
    with contextlib.suppress(RuntimeError):  # another thread holds it, and releases it itself
        while _imp.lock_held():
            _imp.release_lock()


_FOLDER = "GRISTMILL_TEST_FOLDER"  # the variable that has the folder of temporary files
_SHARE_A_SITE = ("test_site", "test_release")  # or archives, which take long to build
# Files and folders whose tests start programs, clusters or workers, and wait for these.
_TAKE_LONG = {"clients", "examples", "faults", "guides", "peer", "verification", "test_ray.py"}


def pytest_configure(config: pytest.Config) -> None:
    """Let the temporary files that tests, pages and programs leave be removed at the end."""
    if tempfile.gettempdir() == os.environ.get(_FOLDER):  # of the run that has started this one
        return
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", tempfile.gettempdir())  # of ``tmp_path``
    folder = tempfile.TemporaryDirectory(prefix="gm-", ignore_cleanup_errors=True)
    config.add_cleanup(folder.cleanup)
    Path(folder.name).chmod(0o755)  # a test becomes another user
    os.environ["TMPDIR"] = os.environ[_FOLDER] = tempfile.tempdir = folder.name


def pytest_report_header() -> str:
    return f"slow property tests: {new_seed.VARIABLE}={new_seed.SEED} draws these examples again"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each process begins with its share of the tests that take long or wait, so that none has them
    all at the end.
    """
    num = getattr(config, "workerinput", {}).get("workercount", 1)
    takes_long = [
        item.get_closest_marker("slow") is not None
        or not _TAKE_LONG.isdisjoint((item.path.parent.name, item.path.name))
        for item in items
    ]
    long = [item for item, is_long in zip(items, takes_long, strict=True) if is_long]
    rest = [item for item, is_long in zip(items, takes_long, strict=True) if not is_long]
    together = [
        list(same)
        for _, same in groupby(
            long, lambda item: item.path if item.path.stem in _SHARE_A_SITE else item
        )
    ]
    items.clear()
    for i in range(num):
        part = [item for same in together[i::num] for item in same]
        size = len(rest) // (num - i)
        items += part + rest[:size]
        del rest[:size]


# Packages that some tests need and that have no wheels for free-threaded builds, or need others
# that have none.
_WITHOUT_WHEELS = {
    *("array_record", "bagz", "basedpyright", "datasets", "ipykernel", "jupyter_client", "moto"),
    *(
        "nbclient",
        "nbformat",
        "obstore",
        "orbax",
        "ray",
        "sphinx",
        "tensorflow_datasets",
        "zstandard",
    ),
}
_NEEDS = re.compile(r"No module named '([\w.]+)|needs the package ([\w-]+)")


def _skipped_without_wheels(
    report: pytest.TestReport | pytest.CollectReport,
) -> pytest.TestReport | pytest.CollectReport:
    """Skips on a free-threaded build what failed since such a package is not installed there."""
    if report.failed and sysconfig.get_config_var("Py_GIL_DISABLED"):
        named = {(a or b).replace("-", "_") for a, b in _NEEDS.findall(report.longreprtext)}
        missing = {name for name in named if name.partition(".")[0] in _WITHOUT_WHEELS}
        if missing and not any(map(find_spec, missing)):
            report.outcome = "skipped"
            reason = f"needs {', '.join(sorted(missing))}, without wheels for free-threaded builds"
            report.longrepr = (report.nodeid, 0, reason)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> object:
    return _skipped_without_wheels((yield))


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> object:
    return _skipped_without_wheels((yield))
