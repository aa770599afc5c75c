"""An interrupt at any line of what looks after worker processes: nothing hangs, and nothing is
lost, repeated or left.
"""

import pytest
from fault_harness import check_silent, run, run_all
from new_seed import SEED

TOOLS = """
from interrupting import interrupted

FILES = ("workers/process.py", "workers/handle.py", "workers/pool.py", "workers/registry.py")
FILES += ("workers/exits.py", "workers/arena.py", "workers/fork_server.py", "workers/starts.py")
FILES += ("workers/descriptors.py", "core/uninterrupted.py", "mp_prefetch.py", "subprocess.py")
ds = mp(gm.MapDataset.range(10**6).to_iter_dataset().map(lambda x: np.full(10_000, x)), 1)

def delivered(it):
    (worker,) = it.get_state()["iterators_in_use_states"]
    return worker["next_index"]

def process_id(it):
    return it.pool.workers[0].process_id

def kill(it):
    os.kill(process_id(it), signal.SIGKILL)

def obituary(it, seen):
    assert "SIGKILL" in take_all(it, seen)

def close_all():
    from gristmill.workers.registry import registry
    registry.close_all()
"""

# What is interrupted, and what is made ready for it: an iterator whose worker has delivered an
# element (in `first`: has not).
OPERATIONS = {
    "next": ("pass", "seen.append(int(next(it)[0]))"),
    "first": ("close_all(); it, seen = iter(ds), []", "seen.append(int(next(it)[0]))"),
    "death": (
        "kill(it); wait_for(lambda: has_ended(process_id(it)), 'it lives')",
        "obituary(it, seen)",
    ),
    "after_death": (
        "kill(it); obituary(it, seen); it.set_state(it.get_state())",
        "seen.append(int(next(it)[0]))",
    ),
    "close": ("pass", "it.close()"),
}


def check_interrupts(folder, name, first, step):
    """Interrupts before every ``step``-th line, beginning with ``first``."""
    ready, operation = OPERATIONS[name]
    script = f"""{TOOLS}
close_all(), obituary  # imported
watch = Watch()
it, seen, number = iter(ds), [], {first}
seen.append(int(next(it)[0]))
while True:
    {ready}
    was_interrupted = interrupted(lambda: {operation}, number, FILES)
    if delivered(it) == len(seen) + 1:  # between next() and append()
        seen.append(len(seen))
    if {name!r} == "close":
        it.close()
        it, seen = iter(ds), []
    else:
        it.set_state(it.get_state())  # where it met a death
    began = time.monotonic()
    seen.append(int(next(it)[0]))
    assert time.monotonic() - began < PATIENCE_SECONDS, number
    assert seen == list(range(delivered(it))), (number, seen)
    if not was_interrupted:
        break
    number += {step}
assert number > 40, number
it.close()
watch.check()
"""
    check_silent(run(folder, script), out="")


@pytest.mark.parametrize("name", ["next", "close"])
def test_interrupt_at_some_lines(tmp_path, name):
    check_interrupts(tmp_path, name, 0, 19)


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_interrupt_at_more_lines(tmp_path):
    run_all(tmp_path, check_interrupts, [(name, 1 + SEED % 14, 14) for name in OPERATIONS])
