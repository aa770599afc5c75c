"""Servers on this machine, for tests of what reads from far away: one that speaks S3, and one that
speaks HTTP and has faults.
"""

import contextlib
import datetime
import http.server
import logging
import os
import socket
import threading
import time
import urllib.parse
import urllib.request
from pathlib import Path

# The Content-Range of an answer with the bytes from start to last of size; None for no such header.
RANGES = {
    "other range": lambda start, last, size: f"bytes {start + 1}-{last + 1}/{size}",
    "shorter range": lambda start, last, size: f"bytes {start}-{last - 1}/{size}",
    "other size": lambda start, last, size: f"bytes {start}-{last}/{size + 1}",
    "no size": lambda start, last, size: f"bytes {start}-{last}/*",
    "no range": None,
}
STATUSES = ("403", "404", "412", "429", "500", "503")
FAULTS = ("cut", "silent", "short", "long", *RANGES, "other tag", "whole", *STATUSES)


def retry_quickly(monkeypatch):
    """Let clients try as often as ever, and wait little in between."""
    from gristmill.sources.storage import remote

    waits = {
        "init_backoff": datetime.timedelta(milliseconds=5),
        "max_backoff": datetime.timedelta(milliseconds=20),
        "base": 2,
    }
    monkeypatch.setattr(remote, "_RETRY", {**remote._RETRY, "backoff": waits})
    monkeypatch.setattr(remote, "_PAUSES", (0.005, 0.01, 0.02))


class HttpServer:
    """Serves the files of a folder by ranges, and counts what it is asked for.

    Args:
        folder: what is served; a file's entity tag is made of its size and time of change.
        delay_seconds: what each answer takes.
        faults: a function of the number of a request, from 0, that returns what goes wrong with it,
            one of ``FAULTS``, or ``None``; it may wait for other requests.
        tags: whether answers have an entity tag.
    """

    def __init__(self, folder, delay_seconds=0.0, faults=None, tags=True):
        self.folder, self.delay_seconds = Path(folder), delay_seconds
        self.faults, self.tags = faults, tags
        self.requests = []  # method, path and range of each
        self.lock = threading.Lock()
        self.closing = threading.Event()

    def __enter__(self):
        outer = self

        class Handler(_Handler):
            server_of_test = outer

        self._server = _Server(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}
        )
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.closing.set()
        self._server.shutdown()
        self._server.end_connections()
        self._server.server_close()
        self._thread.join()

    @property
    def num_requests(self):
        return len(self.requests)


class CutConnections:
    """Passes connections on to a server; after a number of bytes it ends all and takes no more.

    Args:
        endpoint: the URL of the server.
        what: "up" for the bytes that clients send, "down" for those that they receive.
        limit: how many of them are passed on.
    """

    def __init__(self, endpoint, what, limit):
        address = urllib.parse.urlsplit(endpoint)
        self.server, self.what, self.left = (address.hostname, address.port), what, limit
        self.sockets, self.threads = [], []

    def __enter__(self):
        self.listener = socket.create_server(("127.0.0.1", 0))
        self._start(self._accept)
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def __exit__(self, *_):
        self._end()
        for thread in self.threads:
            thread.join()

    def _start(self, function, *arguments):
        self.threads.append(threading.Thread(target=function, args=arguments))
        self.threads[-1].start()

    def _accept(self):
        with contextlib.suppress(OSError), self.listener:
            while True:
                client, _ = self.listener.accept()
                server = socket.create_connection(self.server)
                self.sockets += [client, server]
                self._start(self._pass, client, server, "up")
                self._start(self._pass, server, client, "down")

    def _pass(self, source, target, what):
        with contextlib.suppress(OSError), source:
            while data := source.recv(1 << 16):
                if what == self.what:
                    self.left -= len(data)
                    if self.left < 0:
                        self._end()
                        return
                target.sendall(data)
            target.shutdown(socket.SHUT_WR)

    def _end(self):
        for each in [self.listener, *self.sockets]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = False
    request_queue_size = 128

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.connections = set()

    def process_request(self, request, client_address):
        self.connections.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request):
        self.connections.discard(request)
        super().shutdown_request(request)

    def end_connections(self):
        for connection in list(self.connections):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request, client_address):
        pass  # a client that went away


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_):
        pass

    def do_HEAD(self):
        self.answer(with_body=False)

    def do_GET(self):
        self.answer(with_body=True)

    def answer(self, with_body):
        server = self.server_of_test
        with server.lock:
            number = len(server.requests)
            server.requests.append((self.command, self.path, self.headers["Range"]))
        if server.delay_seconds:
            time.sleep(server.delay_seconds)
        self.send(server.faults and server.faults(number), with_body)

    def send(self, fault, with_body):
        path = self.server_of_test.folder / urllib.parse.unquote(
            self.path.partition("?")[0]
        ).lstrip("/")
        if fault == "silent":
            self.server_of_test.closing.wait()
            self.close_connection = True
            return
        if (fault and fault.isdigit()) or not path.is_file():
            self.status(int(fault) if fault else 404)
            return
        size = path.stat().st_size
        start, stop = 0, size
        by_range = self.headers["Range"] and fault != "whole"
        if by_range:
            first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
            start, stop = int(first), int(last) + 1
            if start >= size:
                self.status(416)
                return
        with path.open("rb") as file:
            file.seek(start)
            body = file.read(stop - start)
        self.send_response(206 if by_range else 200)
        said = RANGES.get(fault, "bytes {}-{}/{}".format)
        if by_range and said is not None:
            self.send_header("Content-Range", said(start, start + len(body) - 1, size))
        body = {"short": body[: len(body) // 2], "long": body + b"more"}.get(fault, body)
        self.send_header("Content-Length", str(len(body)))
        if self.server_of_test.tags:
            status = path.stat()
            self.send_header(
                "ETag", f'"{status.st_size:x}-{status.st_mtime_ns + (fault == "other tag"):x}"'
            )
        self.end_headers()
        if with_body and fault == "cut":
            self.wfile.write(body[: len(body) // 2])
            self.close_connection = True
        elif with_body:
            self.wfile.write(body)

    def status(self, status):
        self.send_response(status)
        self.send_header("Content-Length", "0")
        self.end_headers()


class Bucket:
    """A bucket of a server that speaks S3. ``variables`` are those of the environment that clients
    find it by.
    """

    def __init__(self, name, endpoint):
        self.name, self.endpoint, self.url = name, endpoint, f"s3://{name}"
        self.variables = {
            "AWS_ENDPOINT_URL": endpoint,
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "user",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
        }

    def put(self, key, data):
        """Makes an object, or replaces it."""
        import obstore

        obstore.put(obstore.store.from_url(self.url), key, data)
        return f"{self.url}/{key}"


def _call(url, method):
    with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=30):
        pass


@contextlib.contextmanager
def s3_bucket(name="bucket"):
    """A bucket on a server of its own, with what clients need in the environment."""
    from moto.server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = dict(os.environ)
    try:
        bucket = Bucket(name, f"http://{host}:{port}")
        os.environ.update(bucket.variables)
        # all servers of a process have the same buckets
        _call(f"{bucket.endpoint}/moto-api/reset", "POST")
        _call(f"{bucket.endpoint}/{name}", "PUT")
        yield bucket
    finally:
        os.environ.clear()
        os.environ.update(before)
        server.stop()
