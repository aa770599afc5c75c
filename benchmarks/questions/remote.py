"""Cost of rows from a server that answers after 20 ms: one by one, in blocks, and from the disk
cache.
"""

import contextlib
import functools
import http.server
import operator
import os
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
from workload import Workload

ROW_BYTES = 1024
FEW, MANY = 2048, 65_536
DELAY_SECONDS = 0.02
BATCH = 64


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers requests for ranges of one file, late."""

    protocol_version = "HTTP/1.1"
    path_of_data = Path()

    def do_GET(self):
        time.sleep(DELAY_SECONDS)
        start, stop = (
            int(number) for number in self.headers["Range"].removeprefix("bytes=").split("-")
        )
        with self.path_of_data.open("rb") as file:
            file.seek(start)
            data = file.read(stop + 1 - start)
        self.send_response(206)
        self.send_header(
            "Content-Range",
            f"bytes {start}-{start + len(data) - 1}/{self.path_of_data.stat().st_size}",
        )
        self.send_header("Content-Length", str(len(data)))
        self.send_header("ETag", '"rows"')
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@contextlib.contextmanager
def surroundings():
    """Has the file and the server of all candidates; passes them their locations."""
    with tempfile.TemporaryDirectory() as folder:
        Handler.path_of_data = Path(folder, "rows.bin")
        rows = np.random.default_rng(0).integers(0, 256, size=(MANY, ROW_BYTES), dtype=np.uint8)
        Handler.path_of_data.write_bytes(rows.tobytes())
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield {
                "ROWS_URL": f"http://127.0.0.1:{server.server_port}/rows.bin",
                "ROWS_FOLDER": folder,
            }
        finally:
            server.shutdown()
            server.server_close()


class Rows:
    """The rows of a file, one by one."""

    def __init__(self, path, number):
        from gristmill.sources.storage.files import Files

        self._files, self._number = Files([path]), number

    def __len__(self):
        return self._number

    def __getitem__(self, key):
        start = operator.index(key) * ROW_BYTES
        return self._files.read([(0, start, start + ROW_BYTES)])[0]


class Blocks(Rows):
    """The rows of a file, many at a time."""

    def __getitems__(self, keys):
        return self._files.read([(0, key * ROW_BYTES, (key + 1) * ROW_BYTES) for key in keys])


def decode(record):
    return np.frombuffer(record, np.uint8)


def batches(source, shuffle):
    import gristmill as grain

    ds = shuffle(grain.MapDataset.source(source)).map(decode).batch(BATCH).to_iter_dataset()
    return lambda: iter(ds)


def from_afar(kind, _):
    return batches(kind(os.environ["ROWS_URL"], FEW), lambda ds: ds.block_shuffle(256, seed=1))


@functools.cache
def kept():
    return tempfile.TemporaryDirectory(dir=os.environ["ROWS_FOLDER"])


def from_the_cache(grain):
    """Rows that an earlier epoch has read."""
    source = grain.sources.cached(Blocks(os.environ["ROWS_URL"], MANY), kept().name)
    for _ in batches(source, lambda ds: ds)():
        pass
    return batches(source, lambda ds: ds.shuffle(seed=1))


def from_a_local_file(_):
    return batches(
        Blocks(str(Path(os.environ["ROWS_FOLDER"], "rows.bin")), MANY),
        lambda ds: ds.shuffle(seed=1),
    )


WORKLOADS = [
    Workload(
        name="rows of 1 KB from a server, 20 ms an answer: first epoch, shuffled in blocks",
        unit="µs/row",
        scale=1e6,
        count=FEW,
        candidates={
            "gristmill": functools.partial(from_afar, Blocks),
            "one by one, 16 threads": functools.partial(from_afar, Rows),
        },
        goals={
            "≥ 10 × quicker than one by one": lambda m: (
                m["one by one, 16 threads"] >= 10 * m["gristmill"]
            )
        },
    ),
    Workload(
        name="rows of 1 KB from a server, kept on the disk: second epoch, global shuffle",
        unit="µs/row",
        scale=1e6,
        count=MANY,
        candidates={"gristmill": from_the_cache, "local file": from_a_local_file},
        goals={"≤ 1.2 × a local file": lambda m: m["gristmill"] <= 1.2 * m["local file"]},
    ),
]
