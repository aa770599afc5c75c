"""Leaving the interpreter with live iterators: silently, whatever they are doing."""

import signal
import subprocess
import sys
import textwrap

import pytest

PRELUDE = """
import atexit, gc, sys, threading, time
import gristmill as gm
from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.experimental import ThreadPrefetchIterDataset

def read(ds, options=None): return ds.to_iter_dataset(options)
def prefetch(ds, options=None): return ThreadPrefetchIterDataset(ds.to_iter_dataset(options), prefetch_buffer_size=3)

plain = MapDataset.range(100_000).shuffle(seed=1).map(lambda x: [x])
"""

LIVE = """
ds = make(plain)
live = iter(ds.batch(10, batch_fn=list)); next(live)
prefetching = iter(ds); prefetching.start_prefetch()
never_used = iter(ds)
circle = iter(ds); circle.circle = circle; next(circle); del circle
closed = iter(ds); next(closed); closed.close()
exhausted = iter(make(plain[:100])); list(exhausted)
for x in ds: break
many = [iter(ds) for _ in range(30)]; [next(it) for it in many]
sys.modules['keeper'] = iter(ds); next(sys.modules['keeper'])
elsewhere = iter(ds); t = threading.Thread(target=lambda: [next(elsewhere) for _ in range(10)]); t.start(); t.join()
sampler = gm.samplers.IndexSampler(1000, seed=1, shuffle=True)
loader = iter(gm.DataLoader(data_source=range(1000), sampler=sampler)); next(loader)
failed = iter(make(plain.map(lambda x: 1 / 0)))
try: next(failed)
except ZeroDivisionError: pass
"""

STUCK = """
its = []
for _ in range(4):
    stuck = threading.Event()
    ds = MapDataset.range(9).map(lambda x: stuck.set() or threading.Event().wait())
    its.append(iter(make(ds, ReadOptions(1, 4) if make is read else ReadOptions(0)))); its[-1].start_prefetch(); stuck.wait()
its[0].close()
atexit.register(its[1].close)
del its[2]
"""

ENDINGS = {
    "end": LIVE,
    "sys_exit": LIVE + "for x in live: sys.exit(0)",
    "stuck": STUCK,
    "processes": (
        "ds = make(plain).mp_prefetch(MultiprocessingOptions(2))\n"
        "it = iter(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2)); next(it); it.start_prefetch()"
    ),
}


@pytest.mark.parametrize(
    ("make", "ending"),
    [(make, ending) for make in ("read", "prefetch") for ending in ENDINGS if make == "prefetch" or ending in ("end", "stuck")],
)
def test_exit_is_silent(make, ending):
    script = PRELUDE + f"make = {make}\n" + ENDINGS[ending]
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
        "for i, x in enumerate(plain.repeat().to_iter_dataset().map(lambda x: x)):\n    if i == 500: print('ready', flush=True)",
        "for i, x in enumerate(plain.repeat().batch(10, batch_fn=list).to_iter_dataset(ReadOptions(0, 0))):\n"
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
