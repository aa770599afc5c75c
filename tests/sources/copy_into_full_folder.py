"""Program: copy files where no large file can be written. Arguments: files and a folder."""

import resource
import sys

from gristmill.sources import cached

resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
try:
    cached(sys.argv[1].split(), sys.argv[2])
except OSError as error:
    print(error)
