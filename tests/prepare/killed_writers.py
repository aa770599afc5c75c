"""Forks processes that write a folder, kills them at random moments, and checks the folder.

Arguments: the folder, the name of a pipeline in ``written``, how many to kill, the number of
    workers, a seed.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

import array_record.python.array_record_module  # noqa: F401  - before the fork
import written

import gristmill as grain
from gristmill.prepare.files import Finished

NUM = 400


def write(folder, name, workers):
    return grain.write(getattr(written, name)(NUM), folder, records_per_file=8, workers=workers)


def check(folder, finished):
    """Files under their names are whole, and those that were there are the same files."""
    for path in sorted(folder.glob("part-*")):
        known = folder / ".unfinished" / f"{path.name.partition('.')[0]}.json"
        if known.exists():  # else the folder is complete
            [file] = Finished.from_bytes(known.read_bytes()).files
            assert path.stat().st_size == file.bytes, path
        status = path.stat()
        now = (status.st_ino, status.st_mtime_ns, status.st_size)
        assert finished.setdefault(path.name, now) == now, f"{path} was written again"


def main(folder, name, num_kills, workers, seed):
    folder, draw, finished, kills, seconds = Path(folder), random.Random(int(seed)), {}, 0, 0.2
    while kills < int(num_kills):
        start = time.monotonic()
        child = os.fork()
        if not child:
            try:
                write(folder, name, int(workers))
            finally:
                os._exit(0)
        time.sleep(draw.uniform(0, min(seconds, 0.3)))
        done, _ = os.waitpid(child, os.WNOHANG)
        if done:
            seconds = time.monotonic() - start
            for path in folder.iterdir():  # complete: from the beginning again
                path.unlink()
            finished.clear()
            continue
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        kills += 1
        if folder.exists():
            check(folder, finished)
    report = write(folder, name, 0)
    check(folder, finished)
    assert report.complete and grain.verify_files(folder) is None
    print(kills, len(report.files))


if __name__ == "__main__":
    main(*sys.argv[1:])
