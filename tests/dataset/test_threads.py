"""Threads that compute ahead end with the interpreter, also when they are in C++ code."""

import subprocess
import sys

import pytest

PRELUDE = """
import sys
from array_record.python.array_record_module import ArrayRecordWriter
import gristmill as gm

writer = ArrayRecordWriter(sys.argv[1], "group_size:1")
for _ in range(5000):
    writer.write(bytes(2000))
writer.close()
ds = gm.MapDataset.source(gm.sources.ArrayRecordDataSource([sys.argv[1]])).shuffle(seed=1)
"""
READERS = {
    "read_ahead": "it = iter(ds.to_iter_dataset())",
    "thread_prefetch": """
it = iter(gm.experimental.ThreadPrefetchIterDataset(ds.to_iter_dataset(gm.ReadOptions(0, 0)), prefetch_buffer_size=500))
""",
    "dropped": "it = iter(ds.to_iter_dataset()); next(it); it = iter([1])",
    "several": "its = [iter(ds.to_iter_dataset()) for _ in range(9)]; [next(it) for it in its]; it = its[0]",
}


@pytest.mark.parametrize("reader", READERS)
def test_a_program_may_end_while_array_records_are_being_read(tmp_path, reader):
    # What comes back from C++ to an interpreter that has gone aborts the process: about nine times in ten, without the wait.
    script = PRELUDE + READERS[reader] + "\nnext(it)"
    command = [sys.executable, "-c", script, str(tmp_path / "a.array_record")]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr, done.stdout) == (0, "", "")
