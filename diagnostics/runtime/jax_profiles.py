"""Profiles of JAX: the names of stages in them, and worker processes, each of which has a profiler
server of its own that the main process knows of.
"""

from __future__ import annotations

import functools
import logging
import socket
import sys
from collections.abc import Callable
from typing import Any

_log = logging.getLogger("gristmill")

_modules: Any = sys.modules
_MAX_ATTEMPTS = 50  # to reach a server, one every 20 ms or so

_known_to_all: set[int] = set()  # processes that some stage has made known


def annotate_while_profiling(observer: Any) -> None:
    """Has ``observer`` mark the calls of stages while JAX records a profile; looked at once for
    each output.
    """
    observer.output.is_profiling = _is_profiling
    observer.output.switch = observer.annotate


def _is_profiling() -> bool:
    profiler = _modules.get("jax.profiler")  # no profile is taken without importing it
    return profiler is not None and profiler.TraceAnnotation.is_enabled() is True


def annotated(
    original: Callable[[Any, Any], list[Any]],
    probe: Any,
    method: str,
    *,
    is_read_ahead: bool = False,
) -> Callable[[Any, Any], list[Any]]:
    """Returns ``original``, whose calls appear in the profile under the names that tools for input
    pipelines look for.
    """
    from jax.profiler import TraceAnnotation

    labels = {
        "_ipl_stage_name": probe.name,
        "_ipl_stage_id": probe.number,
        "_ipl_stage_cat": probe.category,
    }

    def call(owner: Any, argument: Any) -> list[Any]:
        with TraceAnnotation(f"{probe.kind}.{method}", **labels):
            return original(owner, argument)

    def read(owner: Any, indices: Any) -> list[Any]:
        with TraceAnnotation(
            "Prefetch._getitem",
            _ipl_dataset_name=probe.name,
            _ipl_dataset_index=int(indices[0]),
            **labels,
        ):
            return call(owner, indices)

    return read if is_read_ahead else call


@functools.cache
def serve_profiles() -> int | None:
    """Called in a worker: starts a server on a free port and returns the port; ``None`` if that is
    impossible.

    Workers in one process have one server.
    """
    try:
        import jax.profiler

        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        jax.profiler.start_server(port, requires_backend=False)
    except Exception as error:
        _log.warning("this worker will not be in profiles: %s", error)
        return None
    return port


class ProfiledWorkers:
    """The workers of a stage, as the profiler of this process knows them."""

    def __init__(self) -> None:
        # by process id: what makes the profiler forget the process
        self._known: dict[int, Callable[[], None]] = {}
        self._attempts: dict[int, int] = {}

    def __len__(self) -> int:
        return len(self._known)

    def update(self, ports: dict[int, int]) -> None:
        """Makes just these known, from process id to port."""
        for process_id in self._known.keys() - ports.keys():
            self._known.pop(process_id)()
            _known_to_all.discard(process_id)
        profiler = _modules.get("jax.profiler")
        if profiler is None:
            return
        for process_id in ports.keys() - self._known.keys() - _known_to_all:
            attempts = self._attempts[process_id] = self._attempts.get(process_id, 0) + 1
            if attempts > _MAX_ATTEMPTS:
                continue
            try:
                self._known[process_id] = profiler.register_subprocess(
                    process_id, ports[process_id]
                )
                _known_to_all.add(process_id)
            except Exception as error:
                if attempts == _MAX_ATTEMPTS:
                    _log.warning("worker process %d will not be in profiles: %s", process_id, error)
