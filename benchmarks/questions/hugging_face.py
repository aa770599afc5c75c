"""Cost of a row of Hugging Face's ``datasets`` and of a record of a Bagz file, beyond the cost of
their libraries.
"""

import functools
import importlib
import os
import tempfile
from pathlib import Path

import numpy as np
from workload import Workload

os.environ["HF_HUB_OFFLINE"] = "1"
ROWS = 4_096
STREAMED = 20_000
RECORDS = 20_000
RECORD_BYTES = 784
BLOCK = 256


def gristmill():
    return importlib.import_module("gristmill")


@functools.cache
def folder():
    """A folder for the files, which is deleted when the process ends."""
    return tempfile.TemporaryDirectory()


@functools.cache
def rows(format_type):
    """A data set on disk."""
    import datasets

    datasets.disable_progress_bars()
    path = Path(folder().name) / "rows"
    rng = np.random.default_rng(0)
    columns = {
        "x": list(range(ROWS)),
        "y": rng.random(ROWS),
        "tokens": [rng.integers(0, 50_000, 16) for _ in range(ROWS)],
    }
    datasets.Dataset.from_dict(columns).save_to_disk(path)
    return datasets.load_from_disk(path).with_format(
        format_type, columns=["x", "y"] if format_type == "numpy" else None
    )


def shuffled(source):
    ds = gristmill().MapDataset.source(source).shuffle(seed=42)
    return [list(ds._gm_items(range(start, start + BLOCK))) for start in range(0, ROWS, BLOCK)]


def numbers(blocks):
    return [np.array([row["x"] for row in block]) for block in blocks]


def by_source(format_type):
    def candidate(_):
        source = gristmill().sources.HuggingFaceSource(rows(format_type))
        return lambda: numbers(shuffled(source))

    return candidate


def one_by_one(format_type):
    def candidate(_):
        dataset = rows(format_type)

        def run():
            keys = np.random.default_rng(1).permutation(ROWS).tolist()
            return numbers(
                [
                    [dataset[key] for key in keys[start : start + BLOCK]]
                    for start in range(0, ROWS, BLOCK)
                ]
            )

        return run

    return candidate


def as_it_is(format_type):
    def candidate(_):
        dataset = rows(format_type)
        return lambda: numbers(shuffled(dataset))

    return candidate


def random_access(format_type, text, goal):
    return Workload(
        name=f"rows of a Hugging Face data set, global shuffle, {text}",
        unit="µs/row",
        scale=1e6,
        count=ROWS,
        candidates={
            "gristmill": by_source(format_type),
            "the data set as a source": as_it_is(format_type),
            "dataset[i]": one_by_one(format_type),
        },
        goals={f"≤ {goal} × dataset[i]": lambda m: m["gristmill"] <= goal * m["dataset[i]"]},
    )


@functools.cache
def stream():
    import datasets
    import pyarrow
    import pyarrow.parquet

    datasets.disable_progress_bars()
    files = []
    for file in range(4):
        files.append(str(Path(folder().name) / f"{file}.parquet"))
        x = pyarrow.array(range(file * STREAMED // 4, (file + 1) * STREAMED // 4))
        pyarrow.parquet.write_table(
            pyarrow.table({"x": x, "y": x}), files[-1], row_group_size=1_000
        )
    return datasets.load_dataset(
        "parquet", data_files=files, split="train", streaming=True, cache_dir=folder().name
    )


def by_stream(_):
    ds = gristmill().experimental.HuggingFaceIterDataset(stream())
    return lambda: (row["x"] for row in ds)


def by_library(_):
    return lambda: (row["x"] for row in stream())


@functools.cache
def records(suffix):
    """The same records in a Bagz file and in an ArrayRecord file."""
    path = str(Path(folder().name) / f"records.{suffix}")
    data = np.random.default_rng(0).integers(0, 256, size=(RECORDS, RECORD_BYTES), dtype=np.uint8)
    if suffix == "array_record":
        from array_record.python import array_record_module

        writer = array_record_module.ArrayRecordWriter(path, "group_size:1")
    else:
        import bagz

        writer = bagz.Writer(path)
    for record in data:
        writer.write(record.tobytes())
    writer.close()
    return path


def record_blocks(source):
    ds = gristmill().MapDataset.source(source).shuffle(seed=42)
    return (
        list(ds._gm_items(range(start, start + BLOCK)))
        for start in range(0, RECORDS - BLOCK + 1, BLOCK)
    )


def permuted():
    keys = np.random.default_rng(1).permutation(RECORDS).tolist()
    return [keys[start : start + BLOCK] for start in range(0, RECORDS - BLOCK + 1, BLOCK)]


def by_bag_source(suffix):
    def candidate(_):
        source = gristmill().sources.BagDataSource(records(suffix))
        return lambda: record_blocks(source)

    return candidate


def by_array_record(_):
    source = gristmill().sources.ArrayRecordDataSource(records("array_record"))
    return lambda: record_blocks(source)


def by_reader(suffix, at_once):
    def candidate(_):
        import bagz

        reader = bagz.Reader(records(suffix))
        if at_once:
            return lambda: (reader.read_indices(keys) for keys in permuted())
        return lambda: ([reader[key] for key in keys] for keys in permuted())

    return candidate


def bags(suffix, text):
    return Workload(
        name=f"Bagz records of 784 bytes, {text}, global shuffle, blocks of {BLOCK}",
        unit="µs/record",
        scale=1e6,
        count=RECORDS,
        candidates={
            "gristmill": by_bag_source(suffix),
            "bagz.Reader[i]": by_reader(suffix, at_once=False),
            "bagz.Reader.read_indices": by_reader(suffix, at_once=True),
            "ArrayRecord": by_array_record,
        },
        goals={
            "≤ read_indices": lambda m: m["gristmill"] <= m["bagz.Reader.read_indices"],
            "≤ ArrayRecord": lambda m: m["gristmill"] <= m["ArrayRecord"],
        },
        compare=False,  # the orders drop other records
    )


WORKLOADS = [
    random_access(None, "no format", 0.8),
    random_access("numpy", "columns of numbers in NumPy", 0.3),
    Workload(
        name="rows of a Hugging Face stream of Parquet files",
        unit="µs/row",
        scale=1e6,
        count=STREAMED,
        candidates={"gristmill": by_stream, "datasets": by_library},
        goals={"≤ 1.3 × datasets": lambda m: m["gristmill"] <= 1.3 * m["datasets"]},
    ),
    bags("bag", "plain"),
    bags("bagz", "compressed"),
]
