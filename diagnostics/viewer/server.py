"""The server of the pages: on the loopback address, for all that know the address that it prints.

Guarantees:

1. Only GET and HEAD are answered, and only below an address with a random token; every other one is
   "not found". Requests for another host than the loopback one are refused, so that no other name
   that resolves to this machine is accepted.
2. Nothing that an element contains is run: it is text in pages, or a picture or a sound that was
   made here; scripts and styles come from this package alone, and a header restricts browsers to
   it.
3. Errors are shown in a page. The server continues.
"""

from __future__ import annotations

import re
import secrets
import urllib.parse
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from gristmill.diagnostics.viewer.site import Answer, Site

HOST = "127.0.0.1"
# also at the other end of a forwarded port
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "[::1]", "::1"})
_IDLE_SECONDS = 10.0
_MAX_REQUEST = 8192  # characters of an address
_POLICY = (
    "default-src 'none'; img-src 'self'; media-src 'self'; style-src 'self'; script-src 'self';"
    " form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "Content-Security-Policy": _POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
_RANGE = re.compile(r"bytes=(\d{1,18})-(\d{0,18})")


class Server(ThreadingHTTPServer):
    """Serves a site until it is shut down.

    Args:
        site: what there is to see.
        port: of the loopback address; 0 for any that is free.

    Raises:
        OSError: the port is taken, or not ours to take.
    """

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, site: Site, port: int) -> None:
        self.site = site
        super().__init__((HOST, port), _Handler)

    def server_bind(self) -> None:
        self.socket.bind(self.server_address)  # without the look-up of this machine's name
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = HOST, self.server_address[1]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Prints nothing if a browser has closed the connection."""


class _Handler(BaseHTTPRequestHandler):
    server: Server
    # a connection is for one answer: none is left when the server is closed
    protocol_version = "HTTP/1.0"
    server_version, sys_version = "gristmill", ""
    timeout = _IDLE_SECONDS

    def do_GET(self) -> None:
        self._send(self._answer())

    do_HEAD = do_GET

    def _answer(self) -> Answer:
        if not _is_loopback(self.headers.get("Host", "")):
            return Answer(
                b"This server answers requests for 127.0.0.1 and localhost only.",
                status=HTTPStatus.FORBIDDEN,
            )
        if len(self.path) > _MAX_REQUEST:
            return Answer(b"The address is too long.", status=HTTPStatus.REQUEST_URI_TOO_LONG)
        address = urllib.parse.urlsplit(self.path)
        site = self.server.site
        _, token, *rest = [*address.path.split("/", 2), ""][:3]
        if not secrets.compare_digest(token.encode("utf-8", "replace"), site.token.encode()):
            return Answer(
                b"There is nothing here. The address is the one that was printed.",
                status=HTTPStatus.NOT_FOUND,
            )
        query = {name: values[-1] for name, values in urllib.parse.parse_qs(address.query).items()}
        return site.answer(rest[0], query)

    def _send(self, answer: Answer) -> None:
        body, status, headers = answer.body, answer.status, {}
        found = (
            _RANGE.fullmatch(self.headers.get("Range", ""))
            if status == HTTPStatus.OK and answer.is_media
            else None
        )
        if found is not None and int(found[1]) < len(body):
            start, stop = int(found[1]), min(len(body), int(found[2] or len(body)) + 1)
            headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
            body, status = body[start:stop], HTTPStatus.PARTIAL_CONTENT
        self.send_response(status)
        self.send_header("Content-Type", answer.media_type)
        self.send_header("Content-Length", str(len(body)))
        if answer.is_media:
            self.send_header("Accept-Ranges", "bytes")
        for name, value in {**_HEADERS, **headers, **answer.headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *message: Any) -> None:
        """Nothing is logged."""


def _is_loopback(host: str) -> bool:
    """True if a ``Host`` header names this machine by its loopback address; the port may be that of
    a tunnel.
    """
    name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
    return name.lower() in _LOOPBACK
