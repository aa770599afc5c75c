"""Program: read files where no large file can be written. Arguments: files and a folder."""

import logging
import resource
import sys

from fixed_rows import FixedRows

from gristmill.sources import cached

logging.basicConfig(stream=sys.stdout)
plain = FixedRows(sys.argv[1].split(), row_bytes=1000)
resource.setrlimit(resource.RLIMIT_FSIZE, (1_500_000, 1_500_000))
source = cached(plain, sys.argv[2])
keys = range(0, len(plain), 7)
assert source.__getitems__(keys) == plain.__getitems__(keys)
assert source.__getitems__(keys) == plain.__getitems__(keys)
