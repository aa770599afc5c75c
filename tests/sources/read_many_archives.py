"""Program: read 300 archives with at most 400 open files. Argument: their pattern."""

import resource
import sys

from gristmill.sources import TarSource

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (400, hard))
source = TarSource(sys.argv[1])
assert len(source) == 600
for _ in range(2):
    records = source.__getitems__(range(1, 600, 2))
    assert [record["jpg"].decode() for record in records] == [f"{i} 1 jpg" for i in range(300)]
