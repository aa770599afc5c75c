"""Program: copy files. Arguments: the files and a folder."""

import sys

from gristmill.sources import cached

print("begun", flush=True)
print(*cached(sys.argv[1].split(), sys.argv[2], int(sys.argv[3]) or None), flush=True)
