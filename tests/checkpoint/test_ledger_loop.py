"""A long run that is killed: workers with lanes, ``tolerate``, ``observe``, a ledger and Orbax."""

import importlib.util
import json
import signal
import subprocess
import sys

import orbax.checkpoint as ocp

from gristmill import Ledger, explain

PROGRAM = """
import json, os, signal
from pathlib import Path

import orbax.checkpoint as ocp
import gristmill as gm

def checked(x):
    if x % 11 == 7:
        raise OSError(x)
    return x

def make():
    ds = (
        gm.MapDataset.range(200)
        .shuffle(seed=3)
        .filter(lambda x: x % 5 != 1)
        .map(checked)
        .tolerate(max_rate=None)
    )
    return ds.to_iter_dataset().batch(3).mp_prefetch(gm.MultiprocessingOptions(num_workers=2))

def loop(folder, kill_at):
    folder = Path(folder)
    manager = ocp.CheckpointManager(
        folder / "checkpoints", options=ocp.CheckpointManagerOptions(save_interval_steps=4)
    )
    seen = []
    with gm.Ledger(folder / "ledger") as ledger, manager:
        it = ledger.follow(iter(make()))
        if manager.latest_step() is not None:
            assert (
                manager.restore(manager.latest_step(), args=gm.checkpoint.CheckpointRestore(it))
                is it
            )
            assert it.step == manager.latest_step()
        with it, gm.observe(it) as view, (folder / "seen").open("a") as file:
            for batch in it:
                seen.append([it.step - 1, batch.tolist()])
                print(json.dumps(seen[-1]), file=file, flush=True)
                if it.step == kill_at:
                    os.kill(os.getpid(), signal.SIGKILL)
                manager.save(it.step, args=gm.checkpoint.CheckpointSave(it))
            manager.wait_until_finished()
            assert view.summary()[0].num_produced_elements == len(seen)
    return it.faults(), seen

if __name__ == "__main__":
    import sys
    loop(sys.argv[1], int(sys.argv[2]))
"""


def test_a_killed_run_continues_exactly_with_its_ledger(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    spec = importlib.util.spec_from_file_location("ledger_loop_program", path)
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    ran = iter(program.make())
    expected = [batch.tolist() for batch in ran]
    done = subprocess.run([sys.executable, path, tmp_path, "11"], capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    before = [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()]
    assert before == [[step, expected[step]] for step in range(11)]
    saved = ocp.CheckpointManager(tmp_path / "checkpoints").latest_step()
    assert 4 <= saved <= 8  # the save of step 8 may have been in progress
    faults, seen = program.loop(tmp_path, None)
    assert seen == [[step, expected[step]] for step in range(saved, len(expected))]
    failing = [x for x in range(200) if x % 11 == 7 and x % 5 != 1]
    assert faults.total == ran.faults().total == len(failing)
    ledger = Ledger(tmp_path / "ledger")
    assert list(ledger.steps()) == list(range(len(expected)))
    skipped = []
    for step, batch in enumerate(expected):
        told = explain(program.make(), step=step, ledger=ledger)
        assert [record.record_key for record in told.records] == batch
        skipped += [record.record_key for record in told.faults]
    assert sorted(skipped) == failing
