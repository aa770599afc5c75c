"""Leaving the interpreter with live iterators: silently, whatever they are doing, in C++ code too."""

import signal
import subprocess
import sys

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

# What comes back from C++ to an interpreter that has gone aborts the process: about nine times in ten, without the wait.
ARRAY_RECORDS = """
from array_record.python.array_record_module import ArrayRecordWriter
writer = ArrayRecordWriter(sys.argv[1], "group_size:1")
for _ in range(5000):
    writer.write(bytes(2000))
writer.close()
ds = MapDataset.source(gm.sources.ArrayRecordDataSource([sys.argv[1]])).shuffle(seed=1)
dropped = iter(ds.to_iter_dataset()); next(dropped); del dropped
its = [iter(ds.to_iter_dataset()) for _ in range(9)]
its.append(iter(ThreadPrefetchIterDataset(ds.to_iter_dataset(ReadOptions(0, 0)), prefetch_buffer_size=500)))
[next(it) for it in its]
"""

PROGRAMS = {
    "read": f"make = read\n{LIVE}",
    "read_stuck": f"make = read\n{STUCK}",
    "prefetch_and_sys_exit": f"make = prefetch\n{LIVE}for x in live: sys.exit(0)",
    "prefetch_stuck": f"make = prefetch\n{STUCK}",
    "array_records": ARRAY_RECORDS,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_exit_is_silent(name, tmp_path):
    command = [sys.executable, *["-X", "dev"] * ("array" not in name), "-c", PRELUDE + PROGRAMS[name], str(tmp_path / "a")]
    for _ in range(2 if "array" in name else 1):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", "")


WAITING = "list(MapDataset.range(9).map(lambda x: x if x < 5 else threading.Event().wait(ready())).to_iter_dataset())"
BUSY = "for i, x in enumerate(plain.repeat().to_iter_dataset().map(lambda x: x)): i == 500 and ready()"


@pytest.mark.parametrize("program", [WAITING, BUSY], ids=["waiting", "busy"])
def test_interrupt(program):
    command = [sys.executable, "-c", f"{PRELUDE}def ready(): print('ready', flush=True)\n{program}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            _, stderr = process.communicate(timeout=30)
        finally:
            process.kill()
    assert process.returncode == -signal.SIGINT and stderr.count("Traceback") == 1
    assert stderr.rstrip().endswith("KeyboardInterrupt")
