"""What all tests need."""

import os
import signal
import sys
from itertools import groupby

import new_seed
import pytest

# Where this is set, each of the hundreds of programs and workers that are started from here compiles what it imports anew.
sys.dont_write_bytecode = os.environ.get("PYTHONDONTWRITEBYTECODE") == "mutants"  # of which the code changes within seconds
if not sys.dont_write_bytecode:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Background jobs and nohup ignore these, and programs that are started from here would inherit it: some tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


_SHARE_A_SITE = ("test_site", "test_release")  # or archives, which take long to build
# Files and folders whose tests start programs, clusters or workers, and wait for these.
_TAKE_LONG = {"clients", "examples", "faults", "guides", "peer", "verification", "test_ray.py"}


def pytest_report_header() -> str:
    return f"slow property tests: {new_seed.VARIABLE}={new_seed.SEED} draws these examples again"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Each process begins with its share of the tests that take long or wait, so that none has them all at the end."""
    num = getattr(config, "workerinput", {}).get("workercount", 1)
    takes_long = [item.get_closest_marker("slow") is not None or not _TAKE_LONG.isdisjoint(item.path.parts) for item in items]
    long = [item for item, is_long in zip(items, takes_long, strict=True) if is_long]
    rest = [item for item, is_long in zip(items, takes_long, strict=True) if not is_long]
    together = [list(same) for _, same in groupby(long, lambda item: item.path if item.path.stem in _SHARE_A_SITE else item)]
    items.clear()
    for i in range(num):
        part = [item for same in together[i::num] for item in same]
        size = len(rest) // (num - i)
        items += part + rest[:size]
        del rest[:size]
