"""What all tests need."""

import os
import signal
import sys

import new_seed

# Where this is set, each of the hundreds of programs and workers that are started from here compiles what it imports anew.
sys.dont_write_bytecode = os.environ.get("PYTHONDONTWRITEBYTECODE") == "mutants"  # of which the code changes within seconds
if not sys.dont_write_bytecode:
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Background jobs and nohup ignore these, and programs that are started from here would inherit it: some tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_report_header() -> str:
    return f"slow property tests: {new_seed.VARIABLE}={new_seed.SEED} draws these examples again"
