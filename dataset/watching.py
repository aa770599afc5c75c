"""Connects pipelines that are observed with their observers (``gristmill.diagnostics``).

Stages know nothing of it. The context that the iterators of a pipeline share notifies it of every
one that joins; the presence of an observer is looked up when a context is made, once for each
pipeline.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from gristmill.core import hooks
from gristmill.core.config import config
from gristmill.core.options import DatasetOptions, ExecutionTrackingMode
from gristmill.workers.setup import is_worker

if TYPE_CHECKING:
    from gristmill.dataset.bases.iterator import DatasetIterator

# Callbacks that get the observer of every new pipeline when it is first used; pipelines are
# observed while there is a callback.
exporters: list[Callable[[Any], None]] = []

_OPTIONS = (
    *("py_debug_mode", "py_dataset_visualization_output_dir", "stall_seconds"),
    "enable_multiprocess_worker_profiling",
)


_look = threading.local()


@contextlib.contextmanager
def looking_once() -> Iterator[None]:
    """Looks up now if there is an observer, for all pipelines begun in this context."""
    before = getattr(_look, "finds_nobody", False)
    _look.finds_nobody = watcher() is None
    try:
        yield
    finally:
        _look.finds_nobody = before


def watcher() -> Callable[[Any], None] | None:
    """Returns the function to call with the iterators of a new pipeline; ``None`` if it is not
    observed.

    Worker processes observe what the process asks for that they work for, and nothing by
    themselves.
    """
    if getattr(_look, "finds_nobody", False):
        return None
    if not exporters and config.are_unset(_OPTIONS):
        return None
    wanted = (
        exporters
        or config.py_debug_mode
        or config.py_dataset_visualization_output_dir is not None
        or config.stall_seconds
        or config.enable_multiprocess_worker_profiling
    )
    return _new_watcher() if wanted and not is_worker() else None


def watch_if_tracked(it: DatasetIterator[Any], options: DatasetOptions) -> None:
    """Lets the pipeline that ends in ``it`` be observed if its options say so."""
    ctx = it._gm_ctx
    if (
        options.execution_tracking_mode is ExecutionTrackingMode.STAGE_TIMING
        and ctx.joined is None
        and not is_worker()
    ):
        ctx.joined = _new_watcher()
        ctx.joined(it)


def _new_watcher() -> Callable[[Any], None]:
    adopt: Callable[[Any], None] = hooks.new_observer().adopt
    return adopt


def report_joining(it: DatasetIterator[Any], report: Callable[[Any], None]) -> bool:
    """Has ``report`` called with every iterator that joins; false if it was so before."""
    ctx = it._gm_ctx
    before, ctx.joined = ctx.joined, report
    return bool(before != report)


def observe_as(it: DatasetIterator[Any], observer: object, part: object) -> None:
    """Records the observer of an iterator, and the part of the pipeline that it is."""
    it._gm_observed = observer, part


def observed_as(it: DatasetIterator[Any]) -> tuple[Any, Any]:
    """Returns the observer of an iterator and the part that it is; ``None`` for both if none."""
    return getattr(it, "_gm_observed", None) or (None, None)


def observed_by(it: DatasetIterator[Any]) -> Any:
    """Returns the observer of an iterator; ``None`` if there is none."""
    return observed_as(it)[0]


def report_faults_of(it: Any, step: str, num: int) -> None:
    """Reports to the observer of an iterator that it has skipped ``num`` more faults."""
    observer = observed_by(it)
    if observer is not None:
        observer.add_faults(step, num)


def unobserve(it: DatasetIterator[Any]) -> None:
    """Ends the observation of an iterator and of its pipeline."""
    del it._gm_observed
    if it._gm_own_ctx is not None:
        it._gm_own_ctx.joined = None
