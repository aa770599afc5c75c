"""Time to prepare a data set with two processes, in files that are read at random afterwards."""

import functools
import importlib
import io
import itertools
import multiprocessing
import os
import re
import tempfile
import time
from pathlib import Path

import numpy as np
from workload import Measured, Workload

os.environ["HF_HUB_OFFLINE"] = "1"
WORKERS = 2
DOCUMENTS = 10_000
PICTURES = 2_000
BYTES = 1 << 26  # of a file, where a library can be determined


@functools.cache
def folder():
    """A folder for the files, which is deleted when the process ends."""
    return tempfile.TemporaryDirectory()


@functools.cache
def words():
    return [f"word{number}" for number in range(1000)]


def document(i):
    """A text of 400 words, and the number of each."""
    numbers = np.random.default_rng(i).integers(0, 1000, 400).tolist()
    tokens = [
        int(word[4:])
        for word in re.findall(r"\w+", " ".join([words()[number] for number in numbers]))
    ]
    return {"id": i, "values": np.array(tokens, np.int32)}


@functools.cache
def picture_file():
    image = importlib.import_module("PIL.Image")
    file = io.BytesIO()
    image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8)).resize(
        (256, 256)
    ).save(file, "jpeg")
    return file.getvalue()


def picture(i):
    """A picture of 256 x 256, decoded and resized."""
    image = importlib.import_module("PIL.Image").open(io.BytesIO(picture_file())).resize((96, 96))
    return {"id": i, "values": (np.asarray(image) + np.uint8(i % 16)).reshape(-1)}


def by_gristmill(make, count):
    def candidate(grain):
        def write(path):
            ds = grain.MapDataset.range(count).map(make)
            grain.write(ds, path, records_per_file=-(-count // 8), workers=WORKERS, progress=False)

        return measured(write, lambda path: grain.read(path))

    return candidate


def by_litdata(make, count):
    def candidate(litdata):
        def write(path):
            litdata.optimize(
                make, [*range(count)], path, num_workers=WORKERS, chunk_bytes=BYTES, verbose=False
            )

        return measured(write, litdata.StreamingDataset)

    return candidate


def by_mds_writer(make, count):
    def candidate(streaming):
        def write(path):
            parts = [(make, path, number, count) for number in range(WORKERS)]
            with multiprocessing.Pool(WORKERS) as pool:
                pool.starmap(write_mds, parts)
            importlib.import_module("streaming.base.util").merge_index(path)

        def read(path):
            dataset = streaming.LocalDataset(path)
            return map(dataset.__getitem__, range(len(dataset)))

        return measured(write, read)

    return candidate


def write_mds(make, path, number, count):
    """Writes one of the parts, in a process of its own."""
    streaming = importlib.import_module("streaming")
    columns = {"id": "int", "values": f"ndarray:{make(0)['values'].dtype}"}
    with streaming.MDSWriter(out=f"{path}/{number}", columns=columns, size_limit=BYTES) as writer:
        for i in range(number * count // WORKERS, (number + 1) * count // WORKERS):
            writer.write(make(i))


def by_datasets(make, count):
    def candidate(datasets):
        datasets.disable_progress_bars()
        datasets.disable_caching()

        def write(path):
            rows = datasets.Dataset.from_dict({"id": [*range(count)]})
            rows = rows.map(functools.partial(of_row, make), num_proc=WORKERS)
            rows.save_to_disk(path)

        return measured(write, lambda path: datasets.load_from_disk(path).with_format("numpy"))

    return candidate


def of_row(make, row):
    return make(row["id"])


def measured(write, read):
    """Writes to a new folder. What is there is read only when it is compared."""
    numbers = itertools.count()

    def run():
        path = str(Path(folder().name, f"{next(numbers)}"))
        start = time.perf_counter()
        write(path)
        return Measured(
            time.perf_counter() - start, (np.asarray(element["values"]) for element in read(path))
        )

    return run


def workload(name, make, count):
    candidates = {
        "gristmill": by_gristmill(make, count),
        "LitData": by_litdata(make, count),
        "MDSWriter": by_mds_writer(make, count),
        "datasets.map": by_datasets(make, count),
    }
    goals = {
        "quicker than each": lambda m: (
            m["gristmill"] < min(m["LitData"], m["MDSWriter"], m["datasets.map"])
        )
    }
    return Workload(name, "µs/element", 1e6, count, candidates, goals)


WORKLOADS = [
    workload("prepare documents of 400 tokens, 2 workers", document, DOCUMENTS),
    workload("prepare pictures of 27 kB, 2 workers", picture, PICTURES),
]
