"""Speed of a block shuffle and of other shuffles where every read is a request of 30 ms.

``shuffle`` is global; ``window_shuffle`` shuffles among as many records as the groups of blocks
have, one by one, too.
"""

import http.client
import importlib
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from workload import Measured, Workload

RECORDS = 65_536
SHUFFLED = 1_024  # read with a global shuffle, which is slow
RECORD = struct.Struct("<q56x")
SECONDS = 0.03  # of a request


class Store(BaseHTTPRequestHandler):
    """An object store with one object, of which ranges are read."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        time.sleep(SECONDS)
        first, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        body = b"".join(
            RECORD.pack(key) for key in range(first // RECORD.size, (last + 1) // RECORD.size)
        )
        self.send_response(206)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


class Remote:
    """Records of an object: consecutive ones are one request."""

    def __init__(self, port):
        self.port = port
        self.local = threading.local()

    def __len__(self):
        return RECORDS

    def __getitem__(self, key):
        return self.__getitems__([key])[0]

    def __getitems__(self, keys):
        found, start = [], 0
        for stop in range(1, len(keys) + 1):
            if stop == len(keys) or keys[stop] != keys[stop - 1] + 1:
                found += self.range(keys[start], keys[stop - 1])
                start = stop
        return found

    def range(self, first, last):
        if not hasattr(self.local, "connection"):
            self.local.connection = http.client.HTTPConnection("127.0.0.1", self.port)
        span = f"bytes={first * RECORD.size}-{(last + 1) * RECORD.size - 1}"
        self.local.connection.request("GET", "/", headers={"Range": span})
        return [key for (key,) in RECORD.iter_unpack(self.local.connection.getresponse().read())]


def reading(shuffle, num):
    """Seconds of the records that are read, as if all of them were."""

    def candidate(_):
        grain = importlib.import_module("gristmill")
        server = ThreadingHTTPServer(("127.0.0.1", 0), Store)
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        ds = shuffle(grain.MapDataset.source(Remote(server.server_port)))

        def run():
            start = time.perf_counter()
            with iter(ds[:num].to_iter_dataset().batch(256)) as it:
                elements = [x for batch in it for x in batch.tolist()]
            seconds = time.perf_counter() - start
            assert len(set(elements)) == num
            return Measured(seconds * RECORDS / num, elements)

        return run

    return candidate


WORKLOADS = [
    Workload(
        name="shuffled records over HTTP, 30 ms a request",
        unit="µs/record",
        scale=1e6,
        count=RECORDS,
        candidates={
            "gristmill": reading(lambda ds: ds.block_shuffle(256, group_size=128, seed=0), RECORDS),
            "shuffle": reading(lambda ds: ds.shuffle(seed=0), SHUFFLED),
            "window_shuffle": reading(lambda ds: ds.window_shuffle(32_768, seed=0), SHUFFLED),
        },
        goals={
            "at least 50 times as fast as shuffle": lambda medians: (
                medians["gristmill"] * 50 <= medians["shuffle"]
            ),
            "at least 50 times as fast as window_shuffle": lambda medians: (
                medians["gristmill"] * 50 <= medians["window_shuffle"]
            ),
        },
        compare=False,
    )
]
