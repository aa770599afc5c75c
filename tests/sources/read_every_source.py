"""Program: read every source of the table in this process, and then in a fork of it.

Arguments: a folder that has a folder of files for each source. It prints a JSON object: by the name
of each source its ``repr`` and values here, and those in the fork.
"""

import json
import os
import sys
from pathlib import Path

from source_table import SOURCES


def read(entry, source):
    keys = range(entry.length)
    values = [entry.value(source[key]) for key in keys]
    records = source.__getitems__([*keys]) if hasattr(source, "__getitems__") else []
    return [repr(source), values, [entry.value(record) for record in records]]


def read_in_fork(entries_and_sources):
    from_child, to_parent = os.pipe()
    if not os.fork():
        os.write(to_parent, json.dumps([read(*one) for one in entries_and_sources]).encode())
        os._exit(0)
    os.close(to_parent)
    with os.fdopen(from_child) as file:
        return json.loads(file.read() or "null")


def main(folder, names):
    entries = [entry for entry in SOURCES if entry.name in names]
    both = [(entry, entry.make(Path(folder) / entry.name)) for entry in entries]
    here = [read(*one) for one in both]
    print(json.dumps([here, read_in_fork(both)]))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
