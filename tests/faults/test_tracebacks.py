"""What a user sees when his code fails: his own lines, then where in the pipeline and at which record that was."""

import re
import signal

import pytest
from fault_harness import run, start

FAIL = """
def decode(x):
    return 100 // (x - 7)

class Decode(Map):
    def map(self, x):
        return decode(x)

def pipeline(kind):
    ds = gm.MapDataset.source(range(20)).shuffle(seed=1)
    if kind == "map":
        return ds.map(decode).to_iter_dataset()
    if kind == "iter":
        return ds.to_iter_dataset().map(decode).batch(3)
    if kind == "workers":
        return ds.map(Decode()).to_iter_dataset().batch(3).mp_prefetch(gm.MultiprocessingOptions(2))
    sampler = gm.samplers.IndexSampler(20, shuffle=True, seed=1, num_epochs=2)
    count = 2 if kind == "loader with workers" else 0
    return gm.DataLoader(data_source=range(20), sampler=sampler, operations=[Decode()], worker_count=count)

def train(kind):
    if kind == "item":
        ds = gm.MapDataset.source(range(20)).shuffle(seed=1).map(decode)
        for i in range(len(ds)):
            ds[i]
    for batch in pipeline(kind):
        pass

train(sys.argv[1])
"""

NOTE = "Frames of gristmill are left out of this traceback."


def functions_in(text):
    return re.findall(r'^  File ".*", line \d+, in (\S+)$', text, re.MULTILINE)


def stack(outcome):
    """The functions of the traceback, and what follows it."""
    assert outcome.code == 1 and outcome.err.startswith("Traceback (most recent call last):\n"), outcome.err
    lines = outcome.err.splitlines()
    error = next(i for i, line in enumerate(lines) if line.startswith("ZeroDivisionError"))
    return functions_in("\n".join(lines[:error])), lines[error:]


WHERE = {
    "item": r"Raised by MapMapDataset\(transform=decode @ \S+program\.py:\d+\) at element \d+ \(epoch 0, source key 7\)\.",
    "map": r"Raised by MapMapDataset\(transform=decode @ \S+program\.py:\d+\) at element \d+ \(epoch 0, source key 7\)\.",
    "iter": r"Raised by MapDatasetIterator\(transform=decode @ \S+program\.py:\d+\) at element \d+ \(epoch 0, source key 7\)\.",
    "workers": r"Raised in worker \d of 2 by MapMapDataset\(transform=Decode\) at element \d+ \(epoch 0, source key 7\)\.",
    "loader": r"Raised by MapDatasetIterator\(transform=Decode\) at element (\d+) \(epoch 0, sampler index \1, record key 7\)\.",
    "loader with workers": r"Raised in worker \d of 2 by MapDatasetIterator\(transform=Decode\) at element (\d+) "
    r"\(epoch 0, sampler index \1, record key 7\)\.",
}


@pytest.mark.parametrize("kind", WHERE)
def test_only_the_users_own_lines(tmp_path, kind):
    functions, (error, where, note) = stack(run(tmp_path, FAIL, kind))
    methods = [] if kind in ("item", "map", "iter") else ["map"]
    assert functions == ["<module>", "train", *methods, "decode"]
    assert error.startswith("ZeroDivisionError:")
    assert re.fullmatch(WHERE[kind], where)
    assert note.startswith(NOTE) and "GRISTMILL_PY_TRACEBACK_FILTERING=off" in note


@pytest.mark.parametrize("kind", ["item", "iter", "loader with workers"])
def test_all_lines_when_asked_for(tmp_path, kind):
    script = "os.environ['GRISTMILL_PY_TRACEBACK_FILTERING'] = 'off'\n" + FAIL
    functions, (_, where) = stack(run(tmp_path, script, kind))
    assert functions[:2] == ["<module>", "train"] and functions[-1] == "decode"
    assert ({"__getitem__", "_block"} if kind == "item" else {"__next__", "_take"}) < set(functions)
    assert re.fullmatch(WHERE[kind], where)


@pytest.mark.parametrize("kind", ["item", "map"])
def test_both_when_asked_for(kind, tmp_path):
    script = "gm.config.update('py_traceback_filtering', 'remove_frames')\n" + FAIL
    outcome = run(tmp_path, script, kind)
    whole, link, filtered = outcome.err.partition("\nThe above exception was the direct cause of the following exception:\n\n")
    assert outcome.code == 1 and link
    assert "in _block" in whole and "UnfilteredTraceback: ZeroDivisionError" in whole
    assert functions_in(filtered.partition("ZeroDivisionError")[0]) == ["<module>", "train", "decode"]


INTERRUPTED = """
def stop_at_5(x):
    if x == 5:
        os.write(1, f"ready {time.monotonic()}\\n".encode())
        time.sleep(1000)
    return x

class StopAt5(Map):
    def map(self, x):
        return stop_at_5(x)

def pipeline(kind):
    ds = gm.MapDataset.range(20).map(stop_at_5)
    direct = gm.ReadOptions(num_threads=0)
    if kind == "direct":
        return ds.to_iter_dataset(direct)
    if kind == "threads":
        return ds.to_iter_dataset(gm.ReadOptions(2, 8))
    if kind == "thread":
        return gm.experimental.ThreadPrefetchIterDataset(ds.to_iter_dataset(direct), prefetch_buffer_size=2)
    if kind == "workers":
        return ds.to_iter_dataset().mp_prefetch(gm.MultiprocessingOptions(2))
    sampler = gm.samplers.IndexSampler(20, num_epochs=1)
    return gm.DataLoader(data_source=range(20), sampler=sampler, operations=[StopAt5()], worker_count=2)

def train(kind):
    if kind == "item":
        gm.MapDataset.range(20).map(stop_at_5)[5]
    for element in pipeline(kind):
        pass

train(sys.argv[1])
"""


def interrupted(folder, script, kind):
    program = start(folder, script, kind)
    program.wait_until_ready()
    program.send(signal.SIGINT)
    outcome = program.outcome()
    assert outcome.code == -signal.SIGINT and outcome.err.splitlines()[-1] == "KeyboardInterrupt"
    return outcome.err


@pytest.mark.parametrize("kind", ["item", "direct", "threads", "thread", "workers", "loader with workers"])
def test_an_interrupt_shows_the_users_own_lines_alone(kind, tmp_path):
    err = interrupted(tmp_path, INTERRUPTED, kind)
    own = ["stop_at_5"] if kind in ("item", "direct") else []
    assert functions_in(err) == ["<module>", "train", *own] and err.count("Traceback") == 1


def test_an_interrupt_shows_all_lines_when_asked_for(tmp_path):
    script = "os.environ['GRISTMILL_PY_TRACEBACK_FILTERING'] = 'off'\n" + INTERRUPTED
    assert {"__next__", "take", "wait"} < set(functions_in(interrupted(tmp_path, script, "threads")))


def test_what_raises_after_the_interpreter_has_begun_to_end(tmp_path):
    script = """
    class Late:
        def __init__(self):
            self.it = iter(gm.MapDataset.range(3).map(lambda x: 1 // 0).to_iter_dataset(gm.ReadOptions(num_threads=0)))

        def __del__(self):
            try:
                next(self.it)
            except ZeroDivisionError:
                os.write(1, b"as it was")

    late = Late()
    """
    outcome = run(tmp_path, script)
    assert (outcome.code, outcome.out, outcome.err) == (0, "as it was", "")
