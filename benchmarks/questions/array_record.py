"""Cost of a record of an ArrayRecord file in a global shuffle, beyond the cost of the reader."""

import functools
import tempfile
from pathlib import Path

import numpy as np
from questions.data_loader import one_epoch
from workload import Workload

RECORDS = 10_000
RECORD_BYTES = 784
BATCH = 128


@functools.cache
def folder():
    """A folder with the file, which is deleted when the process ends."""
    from array_record.python import array_record_module

    folder = tempfile.TemporaryDirectory()
    writer = array_record_module.ArrayRecordWriter(
        str(Path(folder.name) / "records"), "group_size:1"
    )
    for record in np.random.default_rng(0).integers(
        0, 256, size=(RECORDS, RECORD_BYTES), dtype=np.uint8
    ):
        writer.write(record.tobytes())
    writer.close()
    return folder


def path():
    return str(Path(folder().name) / "records")


def decode(record):
    return np.frombuffer(record, np.uint8)


def shuffled(grain):
    return (
        grain.MapDataset.source(grain.sources.ArrayRecordDataSource(path()))
        .shuffle(seed=42)
        .map(decode)
    )


def map_batch(grain):
    ds = shuffled(grain).batch(BATCH).to_iter_dataset()
    return lambda: iter(ds)


def iter_batch(grain):
    ds = shuffled(grain).to_iter_dataset().batch(BATCH)
    return lambda: iter(ds)


def data_loader(grain):
    class Decode(grain.transforms.Map):
        def map(self, element):
            return decode(element)

    source = grain.sources.ArrayRecordDataSource(path())
    loader = one_epoch(grain, source, Decode(), grain.transforms.Batch(BATCH))
    return lambda: iter(loader)


def raw_reader(np):
    """The reader's answers to lists of keys: no decoding, no batching."""
    from array_record.python import array_record_module

    reader = array_record_module.ArrayRecordReader(path())

    def run():
        permutation = np.random.permutation(RECORDS).tolist()
        for start in range(0, RECORDS, BATCH):
            yield reader.read(permutation[start : start + BATCH])

    return run


def workload(name, candidate):
    return Workload(
        name=f"ArrayRecord of 784 bytes, global shuffle, batch 128: {name}",
        unit="µs/record",
        scale=1e6,
        count=RECORDS,
        candidates={"gristmill": candidate, "grain": candidate, "raw reader": raw_reader},
        goals={"≤ 1.5 × raw reader": lambda m: m["gristmill"] <= 1.5 * m["raw reader"]},
    )


WORKLOADS = [
    workload("MapDataset.batch", map_batch),
    workload("IterDataset.batch", iter_batch),
    workload("DataLoader", data_loader),
]
