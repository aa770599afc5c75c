"""Programs whose elements fail by chance, killed and restored again and again: what is skipped once
stays skipped.
"""

import random
import signal

import pytest
from fault_harness import run_all, start

PROGRAM = """
import json
from gristmill import MapDataset, MultiprocessingOptions
from gristmill.dataset.stages.bin_packing import FirstFitPackIterDataset
FILE, N = FOLDER / "progress", 400
def fail_at(x, passed):
    if x in passed if passed is not None else os.urandom(1)[0] < 16:
        raise OSError(f"{x} could not be read")
    return x
def pipeline(kind, num_workers, passed=None):
    ds = (
        MapDataset.range(N)
        .shuffle(seed=3)
        .map(lambda x: fail_at(x, passed))
        .tolerate(OSError, max_rate=None)
    )
    ds, options = (
        ds.to_iter_dataset(),
        MultiprocessingOptions(num_workers, num_lanes=4, executor="processes"),
    )
    if kind == "packed":
        ds = ds.map(lambda x: {"x": np.full(1 + x % 4, x)})
        return FirstFitPackIterDataset(ds, length_struct={"x": 10}, num_packing_bins=4).mp_prefetch(
            options
        )
    ds = ds.window_shuffle(8, seed=1).mp_prefetch(options)
    return ds.window_shuffle(16, seed=2) if kind == "behind" else ds
def plain(x):
    return x["x"][x["x_segment_ids"] > 0].tolist() if isinstance(x, dict) else [int(x)]
def run(kind, num_steps):
    it = iter(pipeline(kind, 2))
    state, outputs, passed = (
        json.loads(FILE.read_text()) if FILE.exists() else (it.get_state(), [], [])
    )
    it.set_state(state)
    is_at_end = False
    for step in range(num_steps):
        try:
            outputs.append(plain(next(it)))
        except StopIteration:  # what fails after the last output is skipped here
            is_at_end = True
        except OSError as error:  # what did not fail when the state was taken
            assert any("does not pass over it" in note for note in error.__notes__)
            it.set_state(it.get_state())
        passed = sorted({*passed, *[fault.record_key for fault in it.faults().last]})
        FILE.with_suffix(".new").write_text(json.dumps([it.get_state(), outputs, passed]))
        FILE.with_suffix(".new").replace(FILE)
        if is_at_end:
            break
        if step == num_steps - 2:  # it is killed now, at work or waiting
            print("ready", time.monotonic(), flush=True)
    else:
        time.sleep(1000)
    again = iter(pipeline(kind, 0, passed))
    assert [plain(x) for x in again] == outputs
    assert it.faults().total == again.faults().total == len(passed) > 5
    assert sorted({*passed, *[x for output in outputs for x in output]}) == [*range(N)]
if __name__ == "__main__":
    run(sys.argv[1], int(sys.argv[2]))
"""


def check_restarts(folder, kind):
    chance = random.Random(kind)
    for _ in range(5):
        num_steps = chance.randrange(2, 10 if kind == "packed" else 40)
        outcome = start(folder, PROGRAM, kind, num_steps).signal_when_ready(
            signal.SIGKILL, group=True
        )
        assert (outcome.code, outcome.err) == (-signal.SIGKILL, "")
    outcome = start(folder, PROGRAM, kind, 2000).outcome()
    assert (outcome.code, outcome.out, outcome.err) == (0, "", "")


@pytest.mark.slow
def test_after_kills_every_record_came_once_or_was_passed_over(tmp_path):
    run_all(tmp_path, check_restarts, [("windows",), ("behind",), ("packed",)])
