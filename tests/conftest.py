"""What all tests need."""

import signal

import new_seed

# Background jobs and nohup ignore these, and programs that are started from here would inherit it: some tests send them.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_report_header() -> str:
    return f"slow property tests: {new_seed.VARIABLE}={new_seed.SEED} draws these examples again"
