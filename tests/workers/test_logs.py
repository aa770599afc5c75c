"""What workers log looks like what the program logs."""

import subprocess
import sys
import textwrap

import pytest

SCRIPT = """
import logging, sys
import gristmill
{setup}
log = logging.getLogger("train.data")
log.setLevel(logging.INFO)

def tell(x):
    log.info("element %d", x)
    log.debug("not this one")
    logging.getLogger("other").info("nor this one")
    return x

def init(index, count):
    {init}

ds = gristmill.MapDataset.range(4).map(tell).to_iter_dataset().mp_prefetch(gristmill.MultiprocessingOptions({workers}), init)
print(list(ds))
"""


def stderr_of(setup, *, workers=2, init="pass"):
    script = textwrap.dedent(SCRIPT).format(setup=setup, init=init, workers=workers)
    process = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert process.stdout == "[0, 1, 2, 3]\n", process.stderr
    return sorted(process.stderr.splitlines())


@pytest.mark.parametrize(
    ("setup", "first"),
    [
        ("logging.basicConfig(format='%(levelname)s %(name)s: %(message)s')", "[worker 0] INFO train.data: element 0"),
        ("logging.basicConfig(format='{name}: {message}', style='{')", "[worker 0] train.data: element 0"),
        ("logging.basicConfig(format='$name: $message', style='$')", "[worker 0] train.data: element 0"),
    ],
)
def test_format_and_levels_are_those_of_the_program(setup, first):
    lines = stderr_of(setup)
    assert lines[0] == first and len(lines) == 4
    assert [line.split("]")[0] for line in lines] == ["[worker 0", "[worker 0", "[worker 1", "[worker 1"]


def test_one_worker_has_no_number():
    lines = stderr_of("logging.basicConfig(format='%(message)s')", workers=1)
    assert lines[0] == "[worker] element 0"


def test_what_users_set_up_in_the_worker_stays():
    init = "logging.basicConfig(level=logging.INFO, format='mine: %(message)s')"
    assert stderr_of("logging.basicConfig(format='%(message)s')", init=init)[0] == "mine: element 0"


def test_a_program_that_does_not_log_has_quiet_workers():
    assert stderr_of("") == []
