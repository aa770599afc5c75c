"""Program: write a part in a fork that is killed in a write. Arguments: the files of the parts.

The name of a file says in which write, and whether half of it is done. The exit codes are printed.
"""

import os
import random
import signal
import sys
from pathlib import Path

from gristmill.sources.storage import parts


def fill_and_die(name, num_writes, half):
    """Write the part, killed in write number ``num_writes`` before or in the middle of it."""
    write, calls = os.pwrite, iter(range(num_writes))

    def dying(descriptor, data, place):
        if next(calls, None) is None:
            write(descriptor, data[: half * len(data) // 2], place)
            os.kill(os.getpid(), signal.SIGKILL)
        return write(descriptor, data, place)

    os.pwrite = dying
    layout = parts.layout_for(1 << 20)
    content = random.Random(0).randbytes(layout.block_bytes)
    parts.CachePart(name, layout.block_bytes, layout).fill(0, content)


for path in sys.argv[1:]:
    process = os.fork()
    if not process:
        fill_and_die(path, *map(int, Path(path).stem.split("-")))
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]))
