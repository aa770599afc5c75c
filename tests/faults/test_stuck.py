"""A pipeline that is stuck ends what looks at it: in time, or at once when the user interrupts,
with the line where it hangs.
"""

import signal
import sys

import pytest
from fault_harness import GONE_SECONDS, Program, run, start

PIPELINES = """
from fault_tools import *

def say_ready():
    os.write(1, f"ready {time.monotonic()}\\n".encode())

def hang(x):
    if x == 5:
        say_ready()
        time.sleep(1000)
    return x

def hang_for_good(x):
    while x == 5:
        try:
            hang(x)
        except BaseException:
            pass  # as code that retries after any error
    return x

def hold_the_lock(x):
    if x == 5:
        say_ready()
        re.match(r"(a+)+$", "a" * 60 + "b")
    return x

class Hang(Map):
    def map(self, x):
        return hang(x)

ds, at_once, ahead = gm.MapDataset.range(20), gm.ReadOptions(num_threads=0), gm.ReadOptions(2, 8)
sampler = gm.samplers.IndexSampler(20, num_epochs=1)
KINDS = {
    "direct": lambda: ds.map(hang).to_iter_dataset(at_once),
    "for_good": lambda: ds.to_iter_dataset(at_once).map(hang_for_good),
    "first": lambda: ds.map(lambda x: hang(5)).to_iter_dataset(),
    "threads": lambda: ds.map(hang).to_iter_dataset(ahead),
    "thread": lambda: gm.experimental.ThreadPrefetchIterDataset(
        ds.map(hang).to_iter_dataset(at_once), prefetch_buffer_size=2
    ),
    "workers": lambda: ds.map(hang).to_iter_dataset().mp_prefetch(processes(2)),
    "lock": lambda: ds.map(hold_the_lock).to_iter_dataset(ahead),
    "loader": lambda: gm.DataLoader(
        data_source=range(20), sampler=sampler, operations=[Hang()], workers=processes(2)
    ),
}
globals().update(KINDS)
"""
DIAGNOSE = (
    PIPELINES + "\nif __name__ == '__main__': gm.diagnose(KINDS[sys.argv[1]](), 0.5,"
    " stall_seconds=float(sys.argv[2]))"
)
slow = pytest.mark.slow  # programs of their own take seconds


def seconds_for(kind):
    """The seconds that an element may take: workers start within that."""
    return 8 if kind in ("workers", "loader") else 1.5


def command(folder, *args):
    (folder / "program.py").write_text(PIPELINES)
    return Program(folder, [sys.executable, "-m", "gristmill", *args])


def check_names_the_line(err):
    assert "next() of " in err, err
    assert " has waited " in err, err
    assert "in hang" in err, err
    assert 'program.py", line' in err, err


@pytest.mark.parametrize(
    "kind",
    ["direct", *[pytest.param(kind, marks=slow) for kind in ("for_good", "thread", "workers")]],
)
def test_a_diagnosis_ends_in_time(kind, tmp_path):
    outcome = run(tmp_path, DIAGNOSE, kind, seconds_for(kind))
    assert outcome.code == 1 and "PipelineStalledError: next() of " in outcome.err
    assert "stall_seconds=60" in outcome.err
    check_names_the_line(outcome.err)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=slow) for kind in ("direct", "first", "threads", "loader")]
)
def test_an_interrupt_ends_a_diagnosis(kind, tmp_path):
    # which would wait forever
    outcome = start(tmp_path, DIAGNOSE, kind, 0).signal_when_ready(signal.SIGINT)
    assert outcome.code == -signal.SIGINT and outcome.err.splitlines()[-1] == "KeyboardInterrupt"
    assert outcome.err.count('  File "') == 1 and outcome.seconds < GONE_SECONDS, outcome.err


COMMANDS = {
    "inspect": ["inspect", "program.py:first", "--run"],
    "head": ["head", "program.py:threads", "-n", "20"],
    "head of workers": ["head", "program.py:workers", "-n", "20"],
    "lock": ["head", "program.py:lock", "-n", "20"],
    "diagnose": ["diagnose", "program.py:workers", "--seconds", "0.5"],
    "bench": ["bench", "program.py:for_good"],
    "bench of workers": ["bench", "program.py:workers"],
}


@pytest.mark.parametrize(
    "name", ["lock", *[pytest.param(name, marks=slow) for name in ("inspect", "diagnose", "bench")]]
)
def test_commands_end(name, tmp_path):
    args = COMMANDS[name]
    outcome = command(
        tmp_path, *args, "--stall-seconds", str(seconds_for(args[1].partition(":")[2]))
    ).outcome()
    if name == "lock":  # of the interpreter: no other thread can answer
        assert outcome.code == 1 and "in hold_the_lock" in outcome.err
        return
    assert outcome.code == 1, outcome.err
    assert outcome.err.startswith("python -m gristmill: next() of "), outcome.err
    assert "If it is only slow, allow more time" in outcome.err and "Traceback" not in outcome.err
    check_names_the_line(outcome.err)


@pytest.mark.parametrize(
    "name",
    ["head", *[pytest.param(name, marks=slow) for name in ("head of workers", "bench of workers")]],
)
def test_an_interrupt_ends_commands(name, tmp_path):
    outcome = command(tmp_path, *COMMANDS[name], "--stall-seconds", "0").signal_when_ready(
        signal.SIGINT
    )
    assert (outcome.code, outcome.err) == (130, "") and outcome.seconds < GONE_SECONDS
