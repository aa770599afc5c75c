"""Pipelines that tests write, and what a folder has afterwards."""

import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

import gristmill as grain
from gristmill.prepare.files import Finished
from gristmill.prepare.manifest import WrittenFile, WrittenPart
from gristmill.prepare.report import ProgressBar


def element(i):
    """Of all types that MessagePack and arrays have."""
    return {
        "id": i,
        "image": np.full((2, 3), i, np.float32),
        "tokens": np.arange(i % 5, dtype=np.uint16),
        "scalar": np.int8(i % 7),
        "flag": np.array(True),
        "nested": {"tuple": (i, [1.5, None, "é"]), 7: b"\0\xff"},
        "complex": complex(i, 1),
    }


def is_kept(element):
    return element["id"] % 3 != 0


def sparse(num=100):
    return grain.MapDataset.range(num).seed(3).shuffle().map(element).filter(is_kept)


def stream(num=100):
    return grain.MapDataset.range(num).map(element).to_iter_dataset().filter(is_kept)


def packed(num=100):
    ds = (
        grain.MapDataset.range(num)
        .map(lambda i: {"tokens": np.full(1 + i % 7, i)})
        .to_iter_dataset()
    )
    return grain.experimental.FirstFitPackIterDataset(
        ds, length_struct={"tokens": 16}, num_packing_bins=4, seed=1
    )


def contents(folder):
    """The bytes of all files in a folder, by name; of a complete one nothing else is there."""
    return {
        path.name: path.read_bytes() if path.is_file() else "a folder"
        for path in Path(folder).iterdir()
    }


class Meeting:
    """Two threads meet in the first element, which each computes after it has read the manifest."""

    def __init__(self):
        self.barrier = threading.Barrier(2)

    def __call__(self, i):
        if not i % 10 and self.barrier is not None:
            self.barrier.wait(10)
            self.barrier = None
        return b"%d" % i

    def __getstate__(self):
        return {}


def check_appends_at_once(folder):
    """Of two pipelines that are appended at the same time, one is appended, one is an error."""
    grain.write(grain.MapDataset.range(5).map(lambda i: b"old"), folder, records_per_file=2)
    meeting = Meeting()

    def append(start):
        ds = grain.MapDataset.range(start, start + 7).map(meeting)
        try:
            return grain.write(ds, folder, records_per_file=2, append=True).new_records
        except ValueError as error:
            assert "An append is not finished" in str(error)
            return start

    with ThreadPoolExecutor() as pool:
        results = [*pool.map(append, (10, 20))]
    grain.verify_files(folder)
    [start] = {10, 20} - {*results}
    assert sorted(results) == [7, 30 - start]
    assert [*grain.read(folder)] == [b"old"] * 5 + [b"%d" % i for i in range(start, start + 7)]


def check_files_in_work(folder):
    """The progress bar counts parts of files that are not whole yet."""
    part = WrittenPart({}, {}, 100, 40, 0, 3, {})
    with ProgressBar(False, folder, part, 3, 0) as bar:
        with folder.workspace("part-000000") as workspace:
            (workspace / "part-000000.bin").write_bytes(bytes(1000))
            num, text = bar.text()
            assert num == 0.25 and text.startswith("25 records, 1.0 kB, ")
        file = WrittenFile("part-000000.bin", 90, 2000, "")
        bar.add(Finished((file, WrittenFile("part-000000.idx", 0, 0, "")), {}, {}))
        with folder.workspace("part-000001") as workspace:
            (workspace / "part-000001.bin").write_bytes(bytes(1000))
            num, text = bar.text()
            assert num == 1.5 and text.startswith("135 records, 3.0 kB, ")
