"""Worker processes in profiles of JAX: each has a profiler server of its own, which the main process knows of."""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("gristmill")


def serve_profiles() -> int | None:
    """Called in a worker: starts a server on a free port and returns the port; ``None`` if that is impossible."""
    try:
        import jax.profiler

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        jax.profiler.start_server(port, requires_backend=False)
    except Exception:
        return None
    return port


class ProfiledWorkers:
    """The workers of a stage, as the profiler of this process knows them."""

    def __init__(self) -> None:
        self._known: dict[int, Callable[[], None]] = {}  # by process id: what makes the profiler forget the process

    def update(self, ports: dict[int, int]) -> None:
        """Makes just these known, from process id to port."""
        for process_id in self._known.keys() - ports.keys():
            _try(self._known.pop(process_id))
        profiler: Any = sys.modules.get("jax.profiler")  # nobody takes a profile who has not imported it
        if profiler is not None:
            for process_id in ports.keys() - self._known.keys():
                self._known[process_id] = _try(profiler.register_subprocess, process_id, ports[process_id]) or _nothing


def _nothing() -> None:
    pass


def _try(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        _log.warning("a worker process will not be in profiles: %s", error)
        return None
