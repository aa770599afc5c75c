"""Program: read files at random, so that they are kept. Arguments: files, folder, bytes, seed."""

import random
import sys

from fixed_rows import FixedRows

from gristmill.sources import cached

rows = FixedRows(sys.argv[1].split(), row_bytes=1000)
source = cached(rows, sys.argv[2], int(sys.argv[3]) or None)
keys = list(range(len(source)))
random.Random(sys.argv[4]).shuffle(keys)
print("begun", flush=True)
for start in range(0, len(keys), 5):
    source.__getitems__(keys[start : start + 5])
print("done", flush=True)
