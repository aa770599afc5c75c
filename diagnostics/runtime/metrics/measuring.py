"""Additional measurements of pipelines whose metrics are exported.

These calls are among those that are timed; each stands for the ones before it that were not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gristmill.dataset.bases.observing import Method
from gristmill.diagnostics.graph.spec_text import element_nbytes
from gristmill.diagnostics.runtime.metrics.histogram import Histogram
from gristmill.diagnostics.runtime.probe import CountersOfThreads, Probe, StageCounts, clock

_SHARE = 50  # expensive measurements may take this fraction of the time


def measured(original: Method, probe: Probe, lanes: CountersOfThreads) -> Method:
    """Returns ``original`` of a stage, which measures reads of a source, or how many elements are
    ready for the consumer.

    A block that is read at once counts as reads of equal time, each of the size of the first one.
    """
    if probe.source is not None:
        return _reading(original, probe.number, lanes)
    if probe.reads_ahead:
        return _taking(original, probe.number, lanes)
    return original


def _reading(original: Method, number: int, lanes: CountersOfThreads) -> Method:
    size = _now_and_then(element_nbytes)

    def read(ds: Any, indices: Any) -> list[Any]:
        began = clock()
        elements = original(ds, indices)
        spent = clock() - began
        num = len(elements)
        if num:
            lane = lanes.lane
            cell = lane.cell(number)
            cell.bytes_read += num * lane.weight * size(elements[0])
            _histogram(cell).add(spent // num, num * lane.weight)
        return elements

    return read


def _taking(original: Method, number: int, lanes: CountersOfThreads) -> Method:
    num_ready = _now_and_then(_num_ready)

    def take(it: Any, n: int) -> list[Any]:
        lane = lanes.lane
        _histogram(lane.cell(number)).add(num_ready(it), lane.weight)
        return original(it, n)

    return take


def _num_ready(it: Any) -> int:
    work = it._gm_engine.work_ahead()
    return 0 if work is None else work.num_ready


def _histogram(cell: StageCounts) -> Histogram:
    if cell.histogram is None:
        cell.histogram = Histogram()
    return cell.histogram


def _now_and_then(measure: Callable[[Any], int]) -> Callable[[Any], int]:
    """Returns ``measure``, or what it said a moment ago if asking it again would take more than its
    share of the time.
    """
    number = ask_at = 0

    def ask(argument: Any) -> int:
        nonlocal number, ask_at
        now = clock()
        if now >= ask_at:
            number = measure(argument)
            ended = clock()
            ask_at = ended + _SHARE * (ended - now)
        return number

    return ask
