"""A watchdog: says what ``next`` waits for when it waits for long.

One thread looks after all pipelines that are watched, as long as there are some. A ``next`` that
takes longer than its limit is logged, as a warning of the logger ``gristmill``, and again each time
it has taken twice as long.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from gristmill.core.locks import Lock, Signal
from gristmill.core.uninterrupted import uninterrupted
from gristmill.dataset.ahead.threads import running_threads
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.node import DatasetNode
from gristmill.dataset.bases.observing import running_upstream
from gristmill.dataset.engine.stream import Stream
from gristmill.dataset.executors.running import RunningShards
from gristmill.diagnostics.runtime.probe import clock, name_of
from gristmill.diagnostics.runtime.stacks import stack_text, worker_stacks
from gristmill.diagnostics.units import time_text

_log = logging.getLogger("gristmill")


class _Watch:
    def __init__(self, observer: Any, seconds: float) -> None:
        self.observer = weakref.ref(observer)
        self.limit = seconds * 1e9
        self.call = 0  # that was reported last, by its beginning,
        self.next_limit = self.limit  # and when to do so again


_watches: list[_Watch] = []
_changed = Signal()  # for the thread
_lock = Lock()
_thread: threading.Thread | None = None


def watch(observer: Any, seconds: float) -> _Watch:
    """Watches a pipeline until its observer is gone."""
    watched = _Watch(observer, seconds)
    uninterrupted(partial(_begin, watched))
    return watched


def _begin(watched: _Watch) -> None:
    global _thread
    with _lock:
        _watches.append(watched)
        if _thread is None:
            _thread = threading.Thread(target=_run, name="gristmill-stalls", daemon=True)
            _thread.start()
    _changed.set()


@contextlib.contextmanager
def watching(observer: Any, seconds: float) -> Iterator[None]:
    watched = watch(observer, seconds)
    try:
        yield
    finally:
        with _lock, contextlib.suppress(ValueError):
            _watches.remove(watched)
        _changed.set()


def _run() -> None:
    global _thread
    while True:
        with _lock:
            _watches[:] = [watched for watched in _watches if watched.observer() is not None]
            if not _watches:
                _thread = None
                return
            watches = [*_watches]
        _changed.wait(min([watched.limit for watched in watches]) / 1e9 / 4)
        for watched in watches:
            try:
                _look(watched)
            except Exception:
                _log.warning("the watchdog of a pipeline failed", exc_info=True)


def _look(watched: _Watch) -> None:
    observer = watched.observer()
    if observer is None:
        return
    began = observer.output.began
    if not began:
        return
    if began != watched.call:
        watched.call, watched.next_limit = began, watched.limit
    waited = clock() - began
    if waited >= watched.next_limit:
        watched.next_limit = 2 * waited
        text = stall_text(observer, waited / 1e9)
        if observer.output.began == began:
            _log.warning("%s", text)


def stall_text(observer: Any, seconds: float) -> str:
    """Returns a text on what an observed pipeline waits for at the moment."""
    output, root = observer.output, observer.root
    threads = [(lane.name, lane.ident) for lane in [*observer.lanes] if not lane.is_over]
    workers = [worker for group in observer.groups.values() for worker in group.processes]
    name = root.name if root else "a pipeline"
    return _text(_waiting(name, seconds, output.elements), output.thread, threads, workers)


def waiting_text(it: Any, thread: int | None, num: int, seconds: float) -> str:
    """Returns a text on what a thread that uses an iterator, which need not be observed, waits for
    at the moment.

    Args:
        it: the iterator.
        thread: the identity of the thread.
        num: how many elements it has taken.
        seconds: how long it has waited.
    """
    threads = [
        (x.name, x.ident)
        for x in threading.enumerate()
        if x.ident == thread or x in running_threads()
    ]
    return _text(_waiting(name_of(it), seconds, num), thread, threads, [*_workers_of(it)])


def _waiting(name: str, seconds: float, num: int) -> str:
    return f"next() of {name} has waited {time_text(1e9 * seconds)} for output {num}"


def _workers_of(it: DatasetIterator[Any]) -> Iterator[Any]:
    yield from it._gm_engine.worker_processes()
    for upstream in running_upstream(it):
        yield from _workers_of(upstream)


def _text(
    beginning: str, thread: int | None, threads: list[tuple[str, int | None]], workers: list[Any]
) -> str:
    where = _innermost(_frame_of(thread))
    lines = [beginning + (f", in {where}." if where else ".") + _awaited_worker(_frame_of(thread))]
    library = library_folders()
    for name, ident in threads:
        frame = _frame_of(ident)
        place = _innermost(frame)
        if ident == thread or (place and _is_in_user_code(frame, library)):
            lines.append(
                f"Thread {name}{place and ', in '}{place}:\n{stack_text(ident, library)}".rstrip()
            )
    for place in dict.fromkeys([worker.transport.place for worker in workers]):
        worker, *others = [worker for worker in workers if worker.transport.place == place]
        name = f"{1 + len(others)} workers" if others else f"Worker {worker.index}"
        state = "" if worker.is_alive() else ", which has ended"
        lines.append(f"{name} ({place}){state}:\n{_stacks_of(worker)}".rstrip())
    return "\n".join(lines)


def _stacks_of(worker: Any) -> str:
    stacks: str | None = worker.transport.stacks()
    return worker_stacks(worker.process_id) if stacks is None else stacks


def _frame_of(thread: int | None) -> FrameType | None:
    """Returns the current frame of a thread."""
    return sys._current_frames().get(thread or 0)


def _awaited_worker(frame: FrameType | None) -> str:
    """Returns which worker a thread waits for, and where that is in the pipeline."""
    while frame is not None:
        owner = frame.f_locals.get("self")
        awaited = owner.awaited_worker() if isinstance(owner, RunningShards) else None
        if awaited is not None:
            return f" It waits for {awaited}."
        frame = frame.f_back
    return ""


def library_folders() -> tuple[str, ...]:
    """Returns the folders of the files of this package."""
    names = [name for name in sys.modules if name.startswith("gristmill.")]
    files = [getattr(sys.modules[name], "__file__", None) for name in names]
    return tuple({f"{Path(file).parent}{os.sep}" for file in files if file} | {threading.__file__})


def _innermost(frame: FrameType | None) -> str:
    """Returns the innermost stage that a thread is in, and the elements that it computes."""
    while frame is not None:
        variables = frame.f_locals
        owner = variables.get("self", variables.get("stage"))
        if isinstance(owner, DatasetIterator | DatasetNode | Stream):
            indices = [variables["index"]] if "index" in variables else variables.get("indices")
            if indices is None or not len(indices):
                return str(owner)
            first, last = int(indices[0]), int(indices[-1])
            elements = f"element {first}" if first == last else f"elements {first} to {last}"
            return f"{owner}, {elements}"
        frame = frame.f_back
    return ""


def _is_in_user_code(frame: FrameType | None, library: tuple[str, ...]) -> bool:
    while frame is not None and frame.f_code.co_filename.startswith(library):
        frame = frame.f_back
    return frame is not None
