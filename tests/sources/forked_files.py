"""Program: read a file of a server, and again in a fork. Argument: its address."""

import os
import sys

from gristmill.sources.storage.files import Files

files = Files([sys.argv[1]])
files.read([(0, 0, 5)])
child = os.fork()
if not child:
    try:
        files.read([(0, 0, 5)])
    except RuntimeError as error:
        os._exit(7 if "forked" in str(error) and "forkserver" in str(error) else 1)
    os._exit(2)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
print(files.read([(0, 0, 5)])[0] == bytes(5))
