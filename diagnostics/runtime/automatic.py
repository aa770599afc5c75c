"""Sets up the observation of a pipeline that an option requests."""

from __future__ import annotations

import logging
import sys
import weakref

from gristmill.core.config import config
from gristmill.dataset.watching import exporters
from gristmill.diagnostics.runtime.jax_profiles import annotate_while_profiling
from gristmill.diagnostics.runtime.observer import Observer
from gristmill.diagnostics.runtime.probe import clock
from gristmill.diagnostics.runtime.stalls import watch
from gristmill.diagnostics.runtime.summary import take_snapshot

_log = logging.getLogger("gristmill")

_NOTE = (
    "Look at the percent wait time first: it says which stage the consumer waits for. Stages of map"
    " datasets run in several threads at once, so their total time is not comparable to that of"
    " iterators."
)


def automatic_observer() -> Observer:
    """Returns an observer for a new pipeline, with all that the process's options ask for."""
    observer = Observer()
    annotate_while_profiling(observer)
    if exporters:
        observer.measures = True
        observer.on_use += exporters
    if config.stall_seconds:
        watch(observer, config.stall_seconds)
    if config.py_debug_mode:
        _DebugReports(observer)
    if config.py_dataset_visualization_output_dir is not None:
        _draw_once(observer, config.py_dataset_visualization_output_dir)
    return observer


class _DebugReports:
    """Logs the summary of a pipeline from time to time, when it has ended, and when its iterator is
    gone.
    """

    def __init__(self, observer: Observer) -> None:
        self._period = config.debug_report_seconds * 1e9
        self._next = clock() + self._period
        self._last = -1  # how many elements there were at the last report
        self._observer = weakref.ref(observer)
        observer.on_attend.append(self._attend)
        observer.on_end.append(self.report)

    def _attend(self, now: int) -> None:
        if now >= self._next:
            self._next = now + self._period
            self.report()

    def report(self) -> None:
        observer = self._observer()
        if observer is not None and observer.output.elements != self._last:
            self._last = observer.output.elements
            summary = take_snapshot(observer).summary
            text = f"Grain Dataset Execution Summary:\n\n{_NOTE}\n\n{summary}"
            slowest = summary.bottleneck
            if slowest is not None and slowest.category == "read":
                text += (
                    f"\n\nThe slowest stage is the source, {slowest.name}, which is probably the"
                    " bottleneck: are its data near this machine, and is reading them limited by a"
                    " quota?"
                )
            print_notice(text)


def _draw_once(observer: Observer, destination: str) -> None:
    from gristmill.diagnostics.graph.files import emit_graph
    from gristmill.diagnostics.graph.seen_specs import graph_that_ran

    def draw(now: int) -> None:
        observer.on_attend.remove(draw)
        emit_graph(graph_that_ran(take_snapshot(observer).summary), destination)

    observer.on_attend.append(draw)


def print_notice(text: str) -> None:
    """Logs, and prints where people look at outputs rather than at logs."""
    _log.info("%s", text)
    if "google.colab" in sys.modules:
        print(text)
