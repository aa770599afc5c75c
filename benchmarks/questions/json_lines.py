"""Cost of a record of a JSON lines file in any order, beyond its line, and of finding the lines
first.
"""

import functools
import json
import tempfile
from pathlib import Path

import numpy as np
from workload import Workload

RECORDS = 20_000
LINE_BYTES = 800
BLOCK = 128
MEGABYTES = 64


@functools.cache
def folder():
    """A folder for the files, which is deleted when the process ends."""
    return tempfile.TemporaryDirectory()


@functools.cache
def path():
    """Lines of some 800 bytes: a number, and a text of words."""
    rng = np.random.default_rng(0)
    words = [f"word{i}" for i in range(1000)]
    path = Path(folder().name) / "records.jsonl"
    with path.open("w") as file:
        for i, numbers in enumerate(
            rng.integers(0, 1000, size=(RECORDS, LINE_BYTES // 8)).tolist()
        ):
            file.write(
                json.dumps({"id": i, "text": " ".join([words[number] for number in numbers])})
                + "\n"
            )
    return path


@functools.cache
def large_path():
    path_ = Path(folder().name) / "large.jsonl"
    text = path().read_bytes()
    path_.write_bytes((text * (1 + MEGABYTES * 10**6 // len(text)))[: MEGABYTES * 10**6])
    return path_


def blocks(read):
    """All records in an order of their own, a block at a time; of each its number."""
    keys = np.random.default_rng(1).permutation(RECORDS).tolist()

    def run():
        for start in range(0, RECORDS, BLOCK):
            yield np.array([record["id"] for record in read(keys[start : start + BLOCK])])

    return run


def source(grain):
    return blocks(grain.sources.JsonlSource(path()).__getitems__)


def offsets_in_memory(np):
    """``seek`` and ``readline`` by a list of all places: the least that one does by hand."""
    with path().open("rb") as lines:
        starts = [0, *np.cumsum([len(line) for line in lines]).tolist()]
    file = path().open("rb")

    def read(keys):
        records = []
        for key in keys:
            file.seek(starts[key])
            records.append(json.loads(file.readline()))
        return records

    return blocks(read)


def array_record(np):
    """The same lines, converted to ArrayRecord, by its own reader."""
    from array_record.python import array_record_module

    copy = str(Path(folder().name) / "records.array_record")
    writer = array_record_module.ArrayRecordWriter(copy, "group_size:1")
    for line in path().read_bytes().splitlines():
        writer.write(line)
    writer.close()
    reader = array_record_module.ArrayRecordReader(copy)
    return blocks(lambda keys: [json.loads(line) for line in reader.read(keys)])


def hugging_face(np):
    """The same records, converted to Arrow by ``datasets``, whose rows need no parsing any more."""
    import datasets

    datasets.disable_progress_bars()
    rows = datasets.Dataset.from_json(str(path()), cache_dir=folder().name)
    return blocks(rows.__getitems__)


def make_index(grain):
    def run():
        large_path().with_name("large.jsonl.gmidx").unlink(missing_ok=True)
        yield len(grain.sources.JsonlSource(large_path()))

    large_path()
    return run


def count_newlines(np):
    """Count lines as ``wc -l`` does, in Python."""

    def run():
        num_lines, piece = 0, b""
        with large_path().open("rb") as file:
            while read := file.read(1 << 18):
                piece = read
                num_lines += piece.count(b"\n")
        yield num_lines + (not piece.endswith(b"\n"))

    large_path()
    return run


WORKLOADS = [
    Workload(
        name="JSON lines of 800 bytes, any order, blocks of 128",
        unit="µs/record",
        scale=1e6,
        count=RECORDS,
        candidates={
            "gristmill": source,
            "offsets in memory": offsets_in_memory,
            "ArrayRecord": array_record,
            "datasets": hugging_face,
        },
        goals={
            "≤ 1.5 × offsets in memory": lambda m: m["gristmill"] <= 1.5 * m["offsets in memory"],
            "≤ 1.2 × ArrayRecord": lambda m: m["gristmill"] <= 1.2 * m["ArrayRecord"],
        },
    ),
    Workload(
        name="JSON lines, finding all lines of 64 MB",
        unit="ms",
        scale=1e3,
        count=1,
        candidates={"gristmill": make_index, "count newlines": count_newlines},
        goals={"≤ 5 × counting newlines": lambda m: m["gristmill"] <= 5 * m["count newlines"]},
    ),
]
