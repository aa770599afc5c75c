"""Program: read a Bagz file before and after a change. Arguments: its path, the change."""

import os
import sys
from pathlib import Path

import bagz

from gristmill.sources import BagDataSource, ChangedFileError


def write_in_place(path):
    with Path(path).open("r+b") as file:
        file.write(b"12345678")


def lengthen(path):
    with Path(path).open("ab") as file:
        file.write(b"12345678")


def replace(path):
    Path(f"{path}~").write_bytes(Path(path).read_bytes())
    Path(f"{path}~").replace(path)


CHANGES = {
    "cut off": lambda path: os.truncate(path, 30),
    "longer": lengthen,
    "written in place": write_in_place,
    "replaced": replace,
}


def main(path, change):
    with bagz.Writer(path) as writer:
        for i in range(20000):
            writer.write(b"record %d" % i)
    os.utime(path, (1, 1))
    source = BagDataSource(path)
    assert source[19999] == b"record 19999"
    CHANGES[change](path)
    for read in (lambda: source[10000], lambda: source.__getitems__([3, 10000])):
        try:
            read()
        except ChangedFileError as error:
            print(error)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
