"""Cost of a record of WebDataset shards, at random and in order, beside ``tarfile`` and a copy in
ArrayRecord files.
"""

import functools
import importlib
import io
import json
import random
import tarfile
import tempfile
from pathlib import Path

import numpy as np
from workload import Workload

SHARDS = 4
RECORDS = 8_000
IMAGE_BYTES = 16_384  # on average
BATCH = 128


@functools.cache
def folder():
    """A folder with the shards and a copy of the images, which is deleted when the process ends."""
    folder = tempfile.TemporaryDirectory()
    rng = np.random.default_rng(0)
    for shard in range(SHARDS):
        with tarfile.open(Path(folder.name) / f"{shard:03}.tar", "w") as tar:
            for key in range(shard * RECORDS // SHARDS, (shard + 1) * RECORDS // SHARDS):
                image = rng.bytes(int(rng.integers(1, 2 * IMAGE_BYTES)))
                for name, data in (
                    ("jpg", image),
                    ("cls", b"7"),
                    ("json", json.dumps({"key": key}).encode()),
                ):
                    member = tarfile.TarInfo(f"{key:06}.{name}")
                    # written as WebDataset's writer does: with an extended header
                    member.size, member.mtime = len(data), 1.5
                    tar.addfile(member, io.BytesIO(data))
    return folder


def paths():
    return sorted(map(str, Path(folder().name).glob("*.tar")))


@functools.cache
def array_record_copy():
    from array_record.python import array_record_module

    path = str(Path(folder().name) / "copy.array_record")
    writer = array_record_module.ArrayRecordWriter(path, "group_size:1,uncompressed")
    for record in importlib.import_module("gristmill").sources.TarSource(paths()):
        writer.write(record["jpg"])
    writer.close()
    return path


@functools.cache
def keys(in_order):
    order = list(range(RECORDS))
    if not in_order:
        random.Random(0).shuffle(order)
    return order


def blocks(source, in_order, image_of):
    def run():
        for start in range(0, RECORDS, BATCH):
            for record in source.__getitems__(keys(in_order)[start : start + BATCH]):
                yield image_of(record)

    return run


def tar_source(grain, in_order):
    return blocks(grain.sources.TarSource(paths()), in_order, lambda record: record["jpg"])


def array_record(_, in_order):
    source = importlib.import_module("gristmill").sources.ArrayRecordDataSource(array_record_copy())
    return blocks(source, in_order, lambda record: record)


def known_members(_):
    """``tarfile`` that has found all files before; a record is its three files."""
    tars = [tarfile.open(path) for path in paths()]  # noqa: SIM115 (open until the end)
    members = [(tar, member) for tar in tars for member in tar]

    def run():
        for key in keys(False):
            image, _, _ = [
                tar.extractfile(member).read() for tar, member in members[3 * key : 3 * key + 3]
            ]
            yield image

    return run


def stream(_):
    """Files one after another, as WebDataset reads them."""

    def run():
        for path in paths():
            with tarfile.open(path, "r|") as tar:
                for member in tar:
                    data = tar.extractfile(member).read()
                    tar.members.clear()  # or it keeps them all
                    if member.name.endswith("jpg"):
                        yield data

    return run


def index(grain):
    """An index made again; how many files it found."""
    tar_members = importlib.import_module("gristmill.sources.tar_members").tar_members
    files = importlib.import_module("gristmill.sources.storage.files").Files(paths())
    return lambda: [sum(1 for _ in tar_members(files, number)) for number in range(len(files))]


def tarfile_index(_):
    return lambda: [sum(1 for _ in tarfile.open(path)) for path in paths()]


WORKLOADS = [
    Workload(
        name=f"tar, records of 3 files, 16 kB an image, global shuffle, blocks of {BATCH}",
        unit="µs/record",
        scale=1e6,
        count=RECORDS,
        candidates={
            "gristmill": functools.partial(tar_source, in_order=False),
            "tarfile": known_members,
            "ArrayRecord of the images": functools.partial(array_record, in_order=False),
        },
        goals={
            "≤ 1.5 × tarfile that knows all places": lambda m: m["gristmill"] <= 1.5 * m["tarfile"]
        },
    ),
    Workload(
        name=f"tar, records of 3 files, 16 kB an image, in order, blocks of {BATCH}",
        unit="µs/record",
        scale=1e6,
        count=RECORDS,
        candidates={
            "gristmill": functools.partial(tar_source, in_order=True),
            "tarfile, a stream": stream,
            "ArrayRecord of the images": functools.partial(array_record, in_order=True),
        },
        goals={"≤ tarfile / 5": lambda m: m["gristmill"] <= m["tarfile, a stream"] / 5},
    ),
    Workload(
        name="tar, finding the files",
        unit="µs/file",
        scale=1e6,
        count=3 * RECORDS,
        candidates={"gristmill": index, "tarfile": tarfile_index},
        goals={"≤ tarfile / 3": lambda m: m["gristmill"] <= m["tarfile"] / 3},
    ),
]
