"""Write a pipeline to files, kill the program in the middle, and continue: the files are those of a
run without a kill.

A process makes features of 600 documents and is killed after some files. The same call continues;
another folder is written without a kill, by two workers. To run it: python examples/prepare_once.py
--folder /tmp/prepared
"""

import argparse
import hashlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import gristmill as grain

DOCUMENTS, PER_FILE = 600, 50


def features(number: int) -> dict:
    """A stage that takes long: some milliseconds for each document."""
    rng = np.random.default_rng(number)
    values = np.sort(rng.normal(size=64_000))[::1000]
    return {"id": number, "values": values.astype(np.float32), "text": f"document {number}"}


def make_pipeline() -> grain.MapDataset:
    return grain.MapDataset.range(DOCUMENTS).map(features)


def prepare(folder: Path, workers: int = 0) -> grain.WriteReport:
    return grain.write(make_pipeline(), folder, records_per_file=PER_FILE, workers=workers)


def whole_files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("part-*"))


def digest(folder: Path) -> str:
    names = [*whole_files(folder), "manifest.json"]
    return hashlib.sha256(b"".join([(folder / name).read_bytes() for name in names])).hexdigest()[
        :16
    ]


def kill_a_writer(folder: Path) -> None:
    """Starts this program as a writer, and kills it after three files."""
    writer = subprocess.Popen([sys.executable, __file__, "--only-write", folder])
    while len(whole_files(folder)) < 3:
        time.sleep(0.01)
    writer.send_signal(signal.SIGKILL)
    writer.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--folder", type=Path, help="where to write; by default a folder that is deleted afterwards"
    )
    parser.add_argument("--only-write", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.only_write is not None:
        prepare(arguments.only_write)
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = arguments.folder or Path(temporary)
        kill_a_writer(folder / "killed")
        num_files = len(whole_files(folder / "killed"))
        print(
            f"killed after {'some' if num_files < DOCUMENTS // PER_FILE else 'all'} of"
            f" {DOCUMENTS // PER_FILE} files"
        )
        report = prepare(folder / "killed")
        is_rest = report.new_files == DOCUMENTS // PER_FILE - num_files
        print(
            f"continued: {'wrote the rest' if is_rest else 'WROTE FILES AGAIN'}, {report.records}"
            " records in all"
        )
        prepare(folder / "at once", workers=min(2, os.cpu_count() or 1))
        is_same = digest(folder / "killed") == digest(folder / "at once")
        print(f"without a kill, by two workers: {'the same bytes' if is_same else 'OTHER BYTES'}")
        ds = grain.read(folder / "killed").seed(1).shuffle().batch(100)
        print(f"{len(ds)} batches of shape {ds[0]['values'].shape}")


if __name__ == "__main__":
    main()
