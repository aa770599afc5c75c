"""Leaving the interpreter with live iterators: silently, whatever they are doing."""

import signal
import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import gc, sys, threading, time
import gristmill as gm
from gristmill.dataset import MapDataset
from gristmill.core.options import ReadOptions

ds = MapDataset.range(100_000).shuffle(seed=1).map(lambda x: [x])
"""

ENDINGS = {
    "live": "it = iter(ds.to_iter_dataset().batch(10)); next(it)",
    "prefetching": "it = iter(ds.to_iter_dataset()); it.start_prefetch()",
    "never_used": "it = iter(ds.to_iter_dataset())",
    "circle": "it = iter(ds.to_iter_dataset()); it.circle = it; next(it); del it",
    "closed": "it = iter(ds.to_iter_dataset()); next(it); it.close()",
    "exhausted": "it = iter(ds[:100].to_iter_dataset()); list(it)",
    "break": "for x in ds: break",
    "sys_exit": "it = iter(ds)\nfor x in it: sys.exit(0)",
    "many": "its = [iter(ds) for _ in range(30)]; [next(it) for it in its]",
    "module": "sys.modules['keeper'] = iter(ds); next(sys.modules['keeper'])",
    "user_code_that_never_ends": (
        "stuck = threading.Event()\n"
        "it = iter(MapDataset.range(9).map(lambda x: stuck.set() or threading.Event().wait()).to_iter_dataset())\n"
        "it.start_prefetch(); stuck.wait()"
    ),
    "in_another_thread": (
        "it = iter(ds); t = threading.Thread(target=lambda: [next(it) for _ in range(10)]); t.start(); t.join()"
    ),
    "after_an_error": ("it = iter(ds.map(lambda x: 1 / 0).to_iter_dataset())\ntry: next(it)\nexcept ZeroDivisionError: pass"),
    "data_loader": (
        "loader = gm.DataLoader(data_source=range(1000), sampler=gm.samplers.IndexSampler(1000, seed=1, shuffle=True))\n"
        "it = iter(loader); next(it)"
    ),
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_exit_is_silent(ending):
    script = PRELUDE + ENDINGS[ending]
    done = subprocess.run([sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


@pytest.mark.parametrize(
    "body",
    [
        "stuck = threading.Event()\n"
        "def wait(x):\n"
        "    if x == 5: print('ready', flush=True); threading.Event().wait()\n"
        "    return x\n"
        "for x in MapDataset.range(100).map(wait).to_iter_dataset(): pass",
        "for i, x in enumerate(ds.repeat().to_iter_dataset().map(lambda x: x)):\n    if i == 500: print('ready', flush=True)",
        "for i, x in enumerate(ds.repeat().batch(10, batch_fn=list).to_iter_dataset(ReadOptions(0, 0))):\n"
        "    if i == 500: print('ready', flush=True)",
    ],
    ids=["waiting", "busy", "busy_without_threads"],
)
def test_interrupt(body):
    with subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(body)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT
    assert stderr.count("Traceback") == 1
    assert stderr.rstrip().endswith("KeyboardInterrupt")
