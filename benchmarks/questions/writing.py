"""Time to prepare a data set with two processes, in files that are read at random afterwards; time
of ``write`` beyond the format's writer, and of a cache on disk beyond ``memcpy``. ``TMPDIR`` says
on which file system: the disk, or memory.
"""

import functools
import importlib
import io
import itertools
import multiprocessing
import os
import re
import shutil
import tempfile
import time
from pathlib import Path

import numpy as np
from workload import Measured, Workload

os.environ["HF_HUB_OFFLINE"] = "1"
WORKERS = 2
DOCUMENTS = 10_000
PICTURES = 2_000
FILES = 8
KEPT = 800
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


@functools.cache
def records(size):
    """Records that cannot be compressed, of which few fit into the processor's cache."""
    return [np.random.default_rng(i).bytes(size) for i in range(64)]


def one_record(size, i):
    return records(size)[i % 64]


def alone(size, count):
    """``write`` in this process, and the writer without anything else, into as many files."""
    ours, bare = by_write(size, count, 0, cpu_time), by_writer(size, count, 1, cpu_time)
    durable = by_writer(size, count, 1, cpu_time, is_durable=True)
    return Workload(
        f"write records of {size // 1000} kB in one process",
        "µs of CPU time/record",
        1e6,
        count,
        {"gristmill": ours, "ArrayRecord's writer": bare, "and fsync": durable},
        {"≤ 1.11 × the writer": lambda m: m["gristmill"] <= 1.11 * m["ArrayRecord's writer"]},
        compare=False,
    )


def together(size, count, workers):
    """The wall time of ``write``, and of the writer in one process and in as many. The start of the
    workers, which larger data sets do not notice, is measured apart, and is not in the goal.
    """
    single = by_writer(size, count, 1, wall_time)
    candidates = {
        "gristmill": by_write(size, count, workers, wall_time),
        "of which start": by_write(size, FILES, workers, wall_time),
        "ArrayRecord's writer": single,
        "and fsync": by_writer(size, count, 1, wall_time, is_durable=True),
    }
    if workers > 1:
        candidates |= {
            f"{workers} writers": by_writer(size, count, workers, wall_time),
            f"{workers} and fsync": by_writer(size, count, workers, wall_time, is_durable=True),
        }
    speed = 0.9 * max(1, workers)
    return Workload(
        f"write records of {size // 1000} kB, {workers} workers",
        "µs/record",
        1e6,
        count,
        candidates,
        {
            f"≥ {speed:.1f} × the speed of the writer without the start": lambda m: (
                (m["gristmill"] - m["of which start"]) * speed <= m["ArrayRecord's writer"]
            )
        },
        compare=False,
    )


def by_write(size, count, workers, timed):
    def candidate(_):
        grain = importlib.import_module("gristmill")

        def write(path):
            ds = grain.MapDataset.range(count).map(functools.partial(one_record, size))
            size_of_file = -(-count // FILES)
            grain.write(ds, path, records_per_file=size_of_file, workers=workers, progress=False)

        return timed(write)

    return candidate


def by_writer(size, count, processes, timed, is_durable=False):
    def candidate(np):
        def write(path):
            Path(path).mkdir()
            fork = multiprocessing.get_context("fork")  # which begins at once
            parts = [range(first, FILES, processes) for first in range(processes)]
            started = [
                fork.Process(target=write_bare, args=(path, size, count, part, is_durable))
                for part in parts[1:]
            ]
            for process in started:
                process.start()
            write_bare(path, size, count, parts[0], is_durable)
            for process in started:
                process.join()
                assert process.exitcode == 0

        records(size)
        return timed(write)

    return candidate


def write_bare(path, size, count, numbers, is_durable):
    kind = importlib.import_module("array_record.python.array_record_module")
    for number in numbers:
        writer = kind.ArrayRecordWriter(f"{path}/{number}", "group_size:1")
        for i in range(number * count // FILES, (number + 1) * count // FILES):
            writer.write(one_record(size, i))
        writer.close()
        if is_durable:
            file = os.open(f"{path}/{number}", os.O_RDONLY)
            os.fsync(file)
            os.close(file)


def cpu_time(write):
    return measured_by(time.process_time, write)


def wall_time(write):
    return measured_by(time.perf_counter, write)


def measured_by(clock, write):
    numbers = itertools.count()

    def run():
        path = str(Path(folder().name, f"{next(numbers)}"))
        start = clock()
        write(path)
        seconds = clock() - start
        shutil.rmtree(path)
        return Measured(seconds, ())

    return run


def kept(clock, is_stream):
    """The second epoch of a cache of decoded pictures, without threads."""

    def by_gristmill(grain):
        options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        ds = grain.MapDataset.range(KEPT).map(decoded)
        ds = ds.to_iter_dataset(options) if is_stream else ds
        ds = ds.cache(Path(folder().name, "kept"))
        ds = ds if is_stream else ds.to_iter_dataset(options)
        for _ in ds:
            pass
        return lambda: clock(ds)

    return by_gristmill


def copies(clock):
    def by_numpy(np):
        pictures = [decoded(i) for i in range(KEPT)]
        return lambda: clock(picture.copy() for picture in pictures)

    return by_numpy


def timed(elements):
    """Each element is dropped, so that the next one is put into its memory."""
    start = time.process_time()
    for _ in elements:
        pass
    return Measured(time.process_time() - start, ())


def timed_kept(elements):
    """All elements are kept, so that the kernel has to find memory for each."""
    start = time.process_time()
    every = [*elements]
    seconds = time.process_time() - start
    del every
    return Measured(seconds, ())


def decoded(i):
    return np.full((224, 224, 3), i % 256, np.uint8)


def kept_workload(name, clock, is_stream):
    return Workload(
        f"second epoch of a cache on disk, pictures of 150 kB: {name}",
        "µs of CPU time/element",
        1e6,
        KEPT,
        {"gristmill": kept(clock, is_stream), "memcpy": copies(clock)},
        {"≤ 2 × memcpy": lambda m: m["gristmill"] <= 2 * m["memcpy"]},
        compare=False,
    )


WORKLOADS = [
    alone(1_000, 200_000),
    alone(100_000, 4_000),
    *[together(1_000, 1_000_000, workers) for workers in (1, 2)],
    *[together(100_000, 20_000, workers) for workers in (1, 2)],
    kept_workload("map dataset", timed, is_stream=False),
    kept_workload("map dataset, into new memory", timed_kept, is_stream=False),
    kept_workload("stream", timed, is_stream=True),
    kept_workload("stream, into new memory", timed_kept, is_stream=True),
    workload("prepare documents of 400 tokens, 2 workers", document, DOCUMENTS),
    workload("prepare pictures of 27 kB, 2 workers", picture, PICTURES),
]
