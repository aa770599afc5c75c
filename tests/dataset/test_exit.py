"""Leaving the interpreter with live iterators is silent, in any state of theirs, also in C++."""

from pathlib import Path

import pytest
from programs import output

PRELUDE = """
import atexit, sys, threading
import gristmill as gm
from gristmill import MapDataset, ReadOptions
from gristmill.experimental import InterleaveIterDataset, ThreadPrefetchIterDataset

def read(ds, options=None): return ds.to_iter_dataset(options)
def prefetch(ds, options=None): return read(ds, options).thread_prefetch(3)
def threads(ds, options=None): return read(ds, options).multithread_prefetch(3, 2)
def interleave(ds):
    return InterleaveIterDataset(
        [ds[i::5] for i in range(5)], cycle_length=3, make_iter_buffer_size=3
    )

plain = MapDataset.range(100_000).shuffle(seed=1).map(lambda x: [x])
"""
LIVE = """
def keep(make):
    ds = make(plain)
    live = iter(ds.batch(10, batch_fn=list)); next(live)
    prefetching = iter(ds); prefetching.start_prefetch()
    never_used, asked = iter(ds), iter(ds); asked.get_state()
    circle = iter(ds); circle.circle = circle; next(circle); del circle
    closed = iter(ds); next(closed); closed.close()
    exhausted = iter(make(plain[:100])); list(exhausted)
    for x in ds: break
    many = [iter(ds) for _ in range(9)]; [next(it) for it in many]
    sys.modules[f'keeper of {make}'] = iter(ds); next(sys.modules[f'keeper of {make}'])
    elsewhere = iter(ds)
    t = threading.Thread(target=lambda: [next(elsewhere) for _ in range(10)])
    t.start()
    t.join()
    sampler = gm.samplers.IndexSampler(1000, seed=1, shuffle=True)
    loader = iter(gm.DataLoader(data_source=range(1000), sampler=sampler)); next(loader)
    failed = iter(make(plain.map(lambda x: 1 / 0)))
    try: next(failed)
    except ZeroDivisionError: return locals()

kept = [keep(make) for make in (read, prefetch, threads, interleave)]
"""
STUCK = """
for make in read, prefetch, threads:
    its = []
    for _ in range(4):
        stuck = threading.Event()
        ds = MapDataset.range(9).map(lambda x, stuck=stuck: stuck.set() or threading.Event().wait())
        its.append(iter(make(ds, ReadOptions(1, 4) if make is read else ReadOptions(0))))
        its[-1].start_prefetch()
        stuck.wait()
    its[0].close()
    atexit.register(its[1].close)
    sys.modules[f'keeper of {make}'] = its[3]
    del its[2]
sys.exit(0)
"""

# A thread that returns from C++ to an interpreter that has gone aborts the process: about nine
# times in ten, without the wait.
ARRAY_RECORDS = """
from array_record.python.array_record_module import ArrayRecordWriter
writer = ArrayRecordWriter(sys.argv[1], "group_size:1")
for _ in range(5000):
    writer.write(bytes(2000))
writer.close()
ds = MapDataset.source(gm.sources.ArrayRecordDataSource([sys.argv[1]])).shuffle(seed=1)
dropped = iter(ds.to_iter_dataset()); next(dropped); del dropped
its = [iter(ds.to_iter_dataset()) for _ in range(9)]
its.append(
    iter(ThreadPrefetchIterDataset(ds.to_iter_dataset(ReadOptions(0, 0)), prefetch_buffer_size=500))
)
[next(it) for it in its]
"""
# Extension modules, such as JAX's, may keep this module and its objects until all other modules are
# empty. The program keeps all modules that long.
TORN_DOWN = """
import ctypes, json
sys.path.insert(0, sys.argv[2])
from stage_table import STREAMS

class Mine(gm.DatasetIterator):
    def __next__(self): return next(self._parents[0])
    def get_state(self): return self._parents[0].get_state()
    def set_state(self, state): self._parents[0].set_state(state)
    def close(self): json.dumps(self._parents[0].close())

with open(sys.argv[1], "w") as file:
    file.write("1\\n2\\n")
source = gm.sources.JsonlSource(sys.argv[1])
mine = Mine(iter(MapDataset.source(source).to_iter_dataset()))
# Objects that pyarrow has seen are never collected then.
streams = [x for x in STREAMS if not x.name.startswith(("parquet", "hugging_face"))]
its = [mine, *[iter(x.make()) for x in streams]]
for it in its:
    next(it, None)
for module in list(sys.modules.values()):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(module))
"""
DAEMONS = """
def workers(ds): return read(ds).mp_prefetch(gm.MultiprocessingOptions(2, executor="processes"))
def loader(ds):
    sampler = gm.samplers.IndexSampler(10**6)
    return gm.DataLoader(data_source=range(10**6), sampler=sampler, read_options=ReadOptions(2, 8))

for make in (read, prefetch, threads, interleave, workers, loader):
    begun = threading.Event()
    def iterate(ds=make(plain)):
        while True:
            for _ in ds: begun.set()
    threading.Thread(target=iterate, daemon=True).start()
    begun.wait()
"""
# The library's own generators use pyarrow when they are closed.
HUGGING_FACE = """
import jax, datasets, pyarrow, pyarrow.parquet
pyarrow.parquet.write_table(pyarrow.table({"x": [*range(99)]}), sys.argv[1], row_group_size=9)
stream = datasets.load_dataset("parquet", data_files=sys.argv[1], split="train", streaming=True)
it = iter(gm.experimental.HuggingFaceIterDataset(stream)); next(it)
"""
PROGRAMS = {
    "live": LIVE,
    "stuck": STUCK,
    "array_records": ARRAY_RECORDS,
    "torn_down": TORN_DOWN,
    "daemons": DAEMONS,
    "hugging_face": HUGGING_FACE,
}
DEVELOPED = ("live", "stuck", "daemons")  # run with Python's own warnings, too
SUPPORT = Path(__file__).parents[1] / "support"


NAMES = [x if x != "hugging_face" else pytest.param(x, marks=pytest.mark.slow) for x in PROGRAMS]


@pytest.mark.parametrize("name", NAMES)
def test_exit_is_silent(name, tmp_path, monkeypatch):
    if name in DEVELOPED:
        monkeypatch.setenv("PYTHONDEVMODE", "1")
    for _ in range(2 if name == "array_records" else 1):
        arguments = tmp_path / "a", SUPPORT
        assert output(tmp_path, PRELUDE + PROGRAMS[name], *arguments) == []
