"""Cost of windows and documents of token files, beside memory maps and the same windows as
records.
"""

import functools
import mmap
import os
import struct
import tempfile
import time
from pathlib import Path

import numpy as np
from workload import Measured, Workload

WINDOWS, INPUTS, BATCH = 8_192, 2_048, 64
DOCUMENTS, DOCUMENT_TOKENS, LOOK_UPS, COLD, PASSES, SLICE = 10**10, 16, 1_024, 40, 30, 128
HEADER = 34  # bytes of an index before its tables


@functools.cache
def folder():
    """A folder with the files, which is deleted when the process ends."""
    return tempfile.TemporaryDirectory()


@functools.cache
def raw():
    """Tokens as nanoGPT has them."""
    path = Path(folder().name) / "train.bin"
    np.random.default_rng(0).integers(0, 50_257, WINDOWS * INPUTS + 1, dtype=np.uint16).tofile(path)
    return path


@functools.cache
def records():
    """The same windows, each a record."""
    from array_record.python import array_record_module

    path, tokens = Path(folder().name) / "records", np.fromfile(raw(), np.uint16)
    writer = array_record_module.ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for start in range(0, WINDOWS * INPUTS, INPUTS):
        writer.write(tokens[start : start + INPUTS + 1].tobytes())
    writer.close()
    return path


def keys():
    return np.random.default_rng(2).choice(DOCUMENTS, LOOK_UPS).tolist()


@functools.cache
def megatron():
    """A pair of Megatron's, of files with holes: what is there is the header and the entries of the
    documents that are read.
    """
    prefix = Path(folder().name) / "corpus"
    with prefix.with_suffix(".idx").open("wb") as index:
        index.write(struct.pack("<9sQBQQ", b"MMIDIDX", 1, 8, DOCUMENTS, DOCUMENTS + 1))
        index.truncate(HEADER + 20 * DOCUMENTS + 8)
        for key in sorted(keys()):
            index.seek(HEADER + 4 * key)
            index.write(struct.pack("<i", DOCUMENT_TOKENS))
        for key in sorted(keys()):
            index.seek(HEADER + 4 * DOCUMENTS + 8 * key)
            index.write(struct.pack("<q", 2 * DOCUMENT_TOKENS * key))
        index.seek(HEADER + 20 * DOCUMENTS)
        index.write(struct.pack("<q", DOCUMENTS))
        index.flush()
        os.fsync(index.fileno())  # what waits to be written stays in the cache
    with prefix.with_suffix(".bin").open("wb") as data:
        data.truncate(2 * DOCUMENT_TOKENS * DOCUMENTS)
    return prefix


def batches(source_of):
    def candidate(grain):
        ds = grain.MapDataset.source(source_of(grain)).shuffle(seed=1)
        if source_of is of_records:
            ds = ds.map(lambda record: np.frombuffer(record, np.uint16))
        ds = ds.batch(BATCH).to_iter_dataset()
        return lambda: iter(ds)

    return candidate


def of_tokens(grain):
    return grain.sources.TokenSource(raw(), "raw", dtype=np.uint16, window=INPUTS + 1)


def of_records(grain):
    return grain.sources.ArrayRecordDataSource(str(records()))


def with_gristmill(candidate):
    """For candidates of other names, which are given NumPy."""

    def named(_):
        import gristmill

        return candidate(gristmill)

    return named


def slices(np):
    """As nanoGPT does it: a memory map for each batch, of which slices are stacked."""
    path = raw()

    def run():
        order = np.random.default_rng(1).permutation(WINDOWS) * INPUTS
        for start in range(0, WINDOWS, BATCH):
            data = np.memmap(path, np.uint16, "r")
            yield np.stack(
                [data[first : first + INPUTS + 1] for first in order[start : start + BATCH]]
            )

    return run


def forget():
    """Takes the files out of the system's cache."""
    for suffix in (".bin", ".idx"):
        with megatron().with_suffix(suffix).open("rb") as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def looked_up(prepare, is_cold):
    """The candidate: documents, after a memory map or a source is there.

    What is in memory is read in several passes, and of each slice the shortest time counts: others
    use the machine, too.
    """

    def candidate(module):
        wanted, passes = (keys()[:COLD], 1) if is_cold else (keys(), PASSES)
        slices = [wanted[start : start + SLICE] for start in range(0, len(wanted), SLICE)]
        megatron()

        def run():
            if is_cold:
                forget()
            read = prepare(module)
            seconds = [[] for _ in slices]
            for _ in range(passes):
                documents = []
                for part, times in zip(slices, seconds, strict=True):
                    began = time.perf_counter()
                    documents += read(part)
                    times.append(time.perf_counter() - began)
            return Measured(sum(map(min, seconds)), documents)

        return run

    return candidate


def one_by_one(read_of):
    def prepared(module):
        read = read_of(module)
        return lambda wanted: [read(key) for key in wanted]

    return prepared


def by_source(grain):
    return grain.sources.TokenSource(megatron()).__getitem__


def in_blocks(grain):
    """A slice at a time, as pipelines read them."""
    return grain.sources.TokenSource(megatron()).__getitems__


def by_map(np, advice=None):
    """As Megatron does it: from a map of the index to a map of the tokens."""
    maps = [np.memmap(megatron().with_suffix(suffix), mode="r") for suffix in (".idx", ".bin")]
    if advice is not None:
        for array in maps:
            array._mmap.madvise(advice)
    index, tokens = maps[0], maps[1].view(np.uint16)
    lengths = index[HEADER : HEADER + 4 * DOCUMENTS].view("<i4")
    places = index[HEADER + 4 * DOCUMENTS : HEADER + 12 * DOCUMENTS].view("<i8")

    def read(key):
        first = int(places[key]) // 2
        return np.array(tokens[first : first + int(lengths[key])])

    return read


def by_random_map(np):
    return by_map(np, mmap.MADV_RANDOM)


def documents(name, is_cold, goals):
    ways = {"gristmill": by_source, "np.memmap": by_map, "MADV_RANDOM": by_random_map}
    candidates = {way: looked_up(one_by_one(read_of), is_cold) for way, read_of in ways.items()}
    if not is_cold:
        candidates["in blocks"] = with_gristmill(looked_up(in_blocks, is_cold))
    count = COLD if is_cold else LOOK_UPS
    return Workload(
        name=name, unit="µs/document", scale=1e6, count=count, candidates=candidates, goals=goals
    )


WORKLOADS = [
    Workload(
        name="windows of 2,048 tokens, global shuffle, batch 64",
        unit="ns/token",
        scale=1e9,
        count=WINDOWS * INPUTS,
        candidates={
            "gristmill": batches(of_tokens),
            "np.memmap": slices,
            "ArrayRecord": with_gristmill(batches(of_records)),
        },
        goals={
            "at least 10⁸ tokens a second": lambda m: m["gristmill"] <= 10,
            "at least as fast as ArrayRecord": lambda m: m["gristmill"] <= m["ArrayRecord"],
        },
    ),
    documents(
        "10¹⁰ documents, index in memory",
        False,
        {"≤ 10 µs in blocks": lambda m: m["in blocks"] <= 10},
    ),
    documents(
        "10¹⁰ documents, index on the disk",
        True,
        {"10 × np.memmap": lambda m: 10 * m["gristmill"] <= m["np.memmap"]},
    ),
]
