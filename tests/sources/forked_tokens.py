"""Program: read tokens in a process and in its fork. Argument: the prefix of the files."""

import os
import sys

from gristmill.sources import TokenSource

source = TokenSource(sys.argv[1])
expected = source[1].tolist()
opened = source._files._file(0)
child = os.fork()
is_right = source[1].tolist() == expected and (source._files._file(0) is opened) == bool(child)
if not child:
    os._exit(is_right)
print(is_right and os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
