"""Cost of a row of a Parquet file in a shuffled order, and of decoding a row group for each row."""

import functools
import importlib
import pickle
import random
import tempfile
import time
from pathlib import Path

import numpy as np
from workload import Measured, Workload

ROWS = 32_768
GROUP = 1_024  # rows of a row group
TRIED = 100  # rows that are read with a row group each, which is slow


@functools.cache
def folder():
    """A folder which is deleted when the process ends."""
    return tempfile.TemporaryDirectory()


@functools.cache
def columns():
    rng = np.random.default_rng(0)
    texts = [f"the text of row {i}, and some more of it " * 3 for i in range(ROWS)]
    tokens = list(rng.integers(0, 50_000, size=(ROWS, 64), dtype=np.int32))
    return {"id": np.arange(ROWS), "score": rng.random(ROWS), "text": texts, "tokens": tokens}


@functools.cache
def path():
    import pyarrow
    import pyarrow.parquet

    path = str(Path(folder().name) / "rows.parquet")
    pyarrow.parquet.write_table(pyarrow.table(columns()), path, row_group_size=GROUP)
    return path


@functools.cache
def array_record_path():
    """The rows as pickles."""
    from array_record.python import array_record_module

    path = str(Path(folder().name) / "rows.array_record")
    writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
    for row in zip(*columns().values(), strict=True):
        writer.write(pickle.dumps(dict(zip(columns(), row, strict=True))))
    writer.close()
    return path


def measured(make):
    """The candidate that reads all rows of a dataset or stream of ``make(grain)``."""

    def candidate(_):
        ds = make(importlib.import_module("gristmill"))

        def run():
            start = time.perf_counter()
            with iter(ds) as it:
                ids = [int(row["id"]) for row in it]
            seconds = time.perf_counter() - start
            assert len(ids) == len(set(ids)) == ROWS
            return Measured(seconds, ids)

        return run

    return candidate


@functools.cache
def decoded_bytes(grain):
    source = grain.sources.ParquetSource(path())
    source.__getitems__(range(0, ROWS, GROUP))
    return source.kept_bytes


def from_source(shuffle, share):
    """A shuffle of the source, which keeps so much of the decoded file."""

    def make(grain):
        source = grain.sources.ParquetSource(path(), max_bytes=int(decoded_bytes(grain) * share))
        return shuffle(grain.MapDataset.source(source)).to_iter_dataset()

    return measured(make)


def shuffled(ds):
    return ds.shuffle(seed=0)


def block_shuffled(ds):
    return ds.block_shuffle(GROUP, group_size=8, seed=0)


def stream(grain):
    return grain.experimental.ParquetIterDataset(path())


def array_record(grain):
    source = grain.sources.ArrayRecordDataSource(array_record_path())
    return grain.MapDataset.source(source).shuffle(seed=0).map(pickle.loads).to_iter_dataset()


def row_group_per_row(_):
    """Seconds of the rows that are tried, as if all of them were read."""
    import pyarrow.parquet

    file = pyarrow.parquet.ParquetFile(path())
    keys = random.Random(0).sample(range(ROWS), TRIED)

    def run():
        start = time.perf_counter()
        rows = [
            file.read_row_group(key // GROUP).slice(key % GROUP, 1).to_pylist()[0] for key in keys
        ]
        seconds = time.perf_counter() - start
        assert [row["id"] for row in rows] == keys
        return Measured(seconds * ROWS / TRIED, keys)

    return run


def workload(name, shuffle, share):
    return Workload(
        name=f"rows of a Parquet file, {name}",
        unit="µs/row",
        scale=1e6,
        count=ROWS,
        candidates={
            "gristmill": from_source(shuffle, share),
            "a row group per row": row_group_per_row,
            "stream, not shuffled": measured(stream),
            "ArrayRecord, shuffle": measured(array_record),
        },
        goals={
            "≥ 20 × a row group per row": lambda m: m["gristmill"] * 20 <= m["a row group per row"]
        },
        compare=False,
    )


WORKLOADS = [
    workload("shuffle, all of it kept", shuffled, 2),
    workload("block shuffle by row groups, an eighth of it kept", block_shuffled, 1 / 8),
]
