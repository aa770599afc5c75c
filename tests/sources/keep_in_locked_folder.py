"""Program: keep files in a folder that cannot be written. Arguments: the folder, and a file."""

import os
import sys

from fixed_rows import FixedRows

from gristmill.sources import cached

if os.getuid() == 0:
    os.setuid(65_534)
for folder in (sys.argv[1], sys.argv[1] + "/deeper"):
    for what in ("https://host/a.bin", FixedRows(sys.argv[2])):
        try:
            cached(what, folder)
        except PermissionError as error:
            print(error)
