"""The counts taken while an observed pipeline runs, and the functions that take them.

A stage's method (``_gm_take`` of an iterator, ``_gm_items`` of a map dataset) is shadowed, on the
one object that is observed, by a function that calls it and adds up. Nothing here grows with the
length of a run:

1. Every thread has its own ``ThreadCounters``, so nothing is locked and nothing is lost, with any
   number of threads. They have one ``StageCounts`` for each stage.
2. ``ThreadCounters.inner`` is the duration of the calls that the call in progress has made; the
   rest of its own time is the stage's.
3. One call in some is timed where calls take less than 0.4 ms and are not for blocks, and stands
   for those before it, which are only counted. So the cost stays below a few per cent. Where that
   misses long calls after all, all are timed from then on.
4. What is expensive (how large an element is, what it looks like) is looked at now and then, when
   ``attend_at`` says so.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from typing import Any, TypeAlias

from gristmill.core.locks import Lock
from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.node import DatasetNode, ancestors, parents_of
from gristmill.dataset.bases.observing import Computed, Instrument, Method
from gristmill.dataset.descriptions.display import component_names
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.diagnostics.graph.spec_text import element_nbytes, spec_text
from gristmill.diagnostics.runtime.metrics.histogram import Histogram

clock = time.perf_counter_ns
thread_clock = time.thread_time_ns

_ATTEND_NS = 20_000_000
_MAX_MARKS = 200
_MAX_LANES = 64
_NEVER = 1 << 62
_MIN_BLOCK = 8  # elements, for which a call is always timed
_NUM_TIMED = 200  # the first calls of a thread are all timed
_DEAR_NS = 400_000  # a call that takes so long may be timed every time
_MAX_LEFT = 20
_MISSED_SHARE = 0.02
_COUNTING = 1  # modes of a lane: what is called is counted alone,
_TIMING = 2  # or timed as well; None: no call is in progress
# Counts of a stage that are added up.
_SUMS = (
    *("bytes_read", "cpu", "elements", "errors"),
    *("own", "sampled", "sampled_bytes", "stood_for"),
)


class StageCounts:
    """The counts of one thread for one stage. Times in nanoseconds."""

    __slots__ = (*_SUMS, "attend_at", "histogram", "least", "most")

    def __init__(self) -> None:
        self.elements = self.errors = 0
        self.stood_for = 0  # elements that the timed calls stand for
        self.own = 0  # in the stage itself, its parents' calls excluded
        self.cpu = 0  # CPU time, if it is measured (see ``alone``)
        self.least, self.most = _NEVER, 0  # own time per element
        self.sampled = self.sampled_bytes = 0
        self.attend_at = 0
        self.bytes_read = 0  # if reads are measured,
        # and their times, or what else is measured of the stage
        self.histogram: Histogram | None = None

    def add(self, other: StageCounts) -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.least, self.most = min(self.least, other.least), max(self.most, other.most)
        if other.histogram is not None:
            self.histogram = self.histogram or Histogram()
            self.histogram.add_all(other.histogram)


class ThreadCounters:
    """The events of one thread."""

    def __init__(self, name: str, thread: threading.Thread) -> None:
        self.name = name
        self.ident = thread.ident
        self.thread = weakref.ref(thread)
        self.inner = self.inner_cpu = 0
        self.mode: int | None = None
        self.weight = 1  # how many calls the one in progress stands for
        self.left = 0  # calls that need not be timed
        self.skipped = 0  # and were not
        self._untimed_after = _NUM_TIMED  # calls
        self._random = 1
        self.cells: list[StageCounts] = []
        self.began = clock()
        self.events: deque[tuple[int, int, int, int]] | None = None

    @property
    def is_over(self) -> bool:
        thread = self.thread()
        return thread is None or not thread.is_alive()

    def plan(self, spent: int) -> None:
        """Sets the number of calls that are only counted after one that took this long."""
        if self._untimed_after:
            self._untimed_after -= 1
        elif self.events is None and spent < _DEAR_NS:
            most = min(_MAX_LEFT, _DEAR_NS // (spent + 1))
            self._random = (1103515245 * self._random + 12345) & 0x7FFFFFFF
            self.left = (self._random >> 8) % (2 * most + 1)

    def time_all(self) -> None:
        """Times all calls from now on: some that were only counted took too long."""
        self._untimed_after = _NEVER
        self.left = 0

    def __enter__(self) -> None:
        """Counts a call that is not timed."""
        self.left -= 1
        self.skipped += 1
        self.mode = _COUNTING

    def __exit__(self, *exception: object) -> None:
        self.mode = None

    def record(self, max_events: int) -> None:
        """Remembers single calls from now on."""
        if self.events is None:
            self.events = deque(maxlen=max_events)
            self.left = 0
            for cell in self.cells:
                cell.attend_at = 0

    def cell(self, number: int) -> StageCounts:
        while len(self.cells) <= number:
            self.cells.append(StageCounts())
        return self.cells[number]

    def attend(
        self, cell: StageCounts, probe: Probe, began: int, ended: int, elements: list[Any]
    ) -> None:
        """Looks at one of the elements, and at the time."""
        if self.events is not None:
            self.events.append((began, ended, probe.number, len(elements)))
        if ended >= probe.sample_at:
            for element in elements:
                if element is not None:
                    probe.sample_at = ended + _ATTEND_NS
                    probe.look_at(element)
                    cell.sampled += 1
                    cell.sampled_bytes += element_nbytes(element)
                    break
        # before there was any element, the next call may give one
        if self.events is None and probe.spec:
            cell.attend_at = ended + _ATTEND_NS

    def absorb(self, other: ThreadCounters) -> None:
        """Continues where a thread that has ended stopped."""
        for number, cell in enumerate(other.cells):
            self.cell(number).add(cell)
        if self.events is not None and other.events is not None:
            self.events.extend(other.events)


class CountersOfThreads(threading.local):
    """Holds the ``ThreadCounters`` of the calling thread, as ``lane``."""

    def __init__(self, known: list[ThreadCounters], max_events: Callable[[], int]) -> None:
        thread = threading.current_thread()
        self.lane = ThreadCounters(thread.name, thread)
        if max_events():
            self.lane.record(max_events())
        if len(known) >= _MAX_LANES:
            _merge_ended(known)
        known.append(self.lane)


# Held while lanes become one, and while they are added up.
merging = Lock()


def _merge_ended(known: list[ThreadCounters]) -> None:
    """Puts the numbers of threads that have ended into one lane."""
    with merging:
        over = [lane for lane in known if lane.is_over]
        if len(over) > 1:
            for lane in over[1:]:
                over[0].absorb(lane)
                known.remove(lane)
            over[0].name = "threads that have ended"


class Probe:
    """One stage of an observed pipeline; stages in the same place of several equal components have
    one probe.
    """

    def __init__(self, number: int, stage: Any, category: str, inputs: list[Probe]) -> None:
        self.number = number
        self.name = name_of(stage)
        self.input_names = component_names(stage)
        self.kind = stage._gm_class_name
        # the class of what is read
        self.source = _source_name(stage) if category == "read" else None
        self.category = category  # "read", "preprocessing" or "prefetch"
        self.inputs = inputs
        # the outputs of pipelines that this stage opens by itself
        self.components: list[Probe] = []
        self.waits = False  # for elements that other threads or processes compute
        self.reads_ahead = False  # by threads, a dataset by index
        self.takes_indices = not hasattr(stage, "__next__")
        self.drops = category != "prefetch" and (
            stage._gm_drops or getattr(getattr(stage, "_gm_engine", None), "flow", "") == "dropping"
        )
        self.depth: Callable[[], int | None] = _unknown  # how many elements are ready
        self.num_threads: int | None = None  # that may compute its elements ahead
        self.budget_waits = BudgetWaits()
        self.sample_at = 0
        self.spec = ""

    def look_at(self, element: Any) -> None:
        if not self.spec and not getattr(element, "stands_for_another", False):
            self.spec = spec_text(element)

    def has_shape_of(self, stage: Any, category: str) -> bool:
        return self.kind == stage._gm_class_name and self.category == category


def _source_name(stage: Any) -> str | None:
    source = stage._gm_source
    while isinstance(source, DatasetNode):  # in place of a source
        source = next(
            (node._gm_source for node in ancestors(source) if not parents_of(node)),
            None,
        )
    return None if source is None else type(source).__name__


def _unknown() -> None:
    return None


def name_of(stage: Any) -> str:
    try:
        return str(stage)
    except Exception:  # a user's, or one whose constructor has not ended
        return type(stage).__name__


class OutputCounts:
    """The outputs as the consumer sees them: the wait for each."""

    def __init__(self, on_attend: Callable[[int], None], on_end: Callable[[], None]) -> None:
        self.began = 0  # of the call in progress; 0: no call
        self.thread: int | None = None  # that is in it
        self.first: int | None = None  # when the first call began,
        self.last = 0  # and the last one ended
        self.waited = 0
        self.waited_in_vain = 0  # of that, in calls that gave nothing
        self.elements = 0
        self.waited_itself = 0  # of that, in the last stage, in calls that were only counted
        # in calls that took long, and were only counted, so that the stage is unknown
        self.missed = 0
        self.unrecorded = 0  # delays, which the next one of their kind stands for
        self.delays = Histogram()
        self.attend_at = 0
        # times, and how many elements there were until then: every second one is dropped whenever
        # there are too many
        self.marks: list[tuple[int, int]] = []
        self._mark_at, self._mark_interval = 0, _ATTEND_NS
        self.is_profiling: Callable[[], bool] = _never
        self.annotates = False
        self.switch: Callable[[bool], None] = _ignore
        self.on_end = on_end  # called when there is nothing more
        self._on_attend = on_attend

    def failed(self, began: int, ended: int) -> None:
        self.began, self.last = 0, ended
        self.waited += ended - began
        self.waited_in_vain += ended - began
        self.settle()

    def settle(self) -> None:
        """Records pending delays. Where there may be no next output, delays not yet recorded count
        as the most frequent ones.
        """
        self.delays.add_to_most_frequent(self.unrecorded)
        self.unrecorded = 0

    def record(self, delay: int) -> None:
        """Counts a delay in its class; in large classes it also stands for delays that were not
        recorded.
        """
        times = 1
        if delay < _DEAR_NS:
            times += self.unrecorded
            self.unrecorded = 0
        self.delays.add(delay, times)

    def misses_too_much(self, delay: int) -> bool:
        """Adds the delay of a call that was only counted; returns true if such calls take too
        long too often.
        """
        self.missed += delay
        return self.missed > _MISSED_SHARE * self.waited

    def start(self, began: int) -> None:
        self.first = began
        self.thread = threading.get_ident()

    def attend(self, ended: int) -> None:
        self.attend_at = ended + _ATTEND_NS
        self.thread = threading.get_ident()
        if ended >= self._mark_at:
            self.marks.append((ended, self.elements))
            if len(self.marks) >= _MAX_MARKS:
                del self.marks[:-1:2]
                self._mark_interval *= 2
            self._mark_at = ended + self._mark_interval
        self._on_attend(ended)


# of a lane, what the method is called with, and how many that are
_Timed: TypeAlias = Callable[[ThreadCounters, Any, int], list[Any]]


def _never() -> bool:
    return False


def _ignore(is_on: bool) -> None:
    pass


def counting(
    original: Method,
    owner: Callable[[], Any],
    probe: Probe,
    lanes: CountersOfThreads,
    *,
    timed_original: Method,
    is_sparse: bool = False,
    unobserved: Instrument | None = None,
    output: OutputCounts | None = None,
) -> Instrument:
    """Returns ``original`` of the object that ``owner`` gives, which counts.

    Args:
        original: a stage's method.
        owner: gives the stage; it does not keep an iterator alive, which would then be closed later
            than it is now.
        probe: the stage's.
        lanes: the observer's.
        timed_original: ``original``, or what measures more, where calls are timed.
        is_sparse: ``None`` in a block is no element.
        unobserved: what to call instead where calls are not timed, of a map dataset from which an
            iterator reads.
        output: for the last stage.
    """
    number, waits, takes_number = probe.number, probe.waits, not probe.takes_indices

    def run(argument: Any) -> list[Any]:
        lane = lanes.lane
        size = argument if takes_number else len(argument)
        if lane.mode is not _COUNTING or size >= _MIN_BLOCK or waits:
            return timed(lane, argument, size)
        try:
            elements = original(owner(), argument) if unobserved is None else unobserved(argument)
        except BaseException as error:
            lane.cell(number).errors += not isinstance(error, StopIteration)
            raise
        num = _number_of(elements) if is_sparse else len(elements)
        try:
            cell = lane.cells[number]
        except IndexError:
            cell = lane.cell(number)
        cell.elements += num
        if type(elements) is Computed and elements.error is not None:
            cell.errors += 1
        return elements

    is_bypassed = probe.takes_indices and unobserved is None  # where calls are not timed
    timed = _timing(timed_original, owner, probe, run, is_sparse=is_sparse, is_bypassed=is_bypassed)
    return run if output is None else _taking(timed, original, owner, probe, lanes, output)


def _timing(
    original: Method,
    owner: Callable[[], Any],
    probe: Probe,
    count: Instrument,
    *,
    is_sparse: bool,
    is_bypassed: bool,
) -> _Timed:
    """Returns what times ``original``, or has ``count`` only count it where that will do."""
    number = probe.number
    # all of its time is that of what it waits for, be it computed here or elsewhere
    is_prefetch = probe.category == "prefetch"
    waits = probe.waits  # few calls do for long

    def timed(lane: ThreadCounters, argument: Any, size: int) -> list[Any]:
        mode, weight, outer = lane.mode, lane.weight, lane.inner
        if size >= _MIN_BLOCK or waits:
            lane.weight = 1
        elif mode is None:
            if lane.left:
                with lane:
                    return count(argument)
            lane.weight = lane.skipped + 1
            lane.skipped = 0
        lane.mode = _TIMING
        lane.inner = 0
        began = clock()
        try:
            elements = original(owner(), argument)
        except BaseException as error:
            lane.cell(number).errors += not isinstance(error, StopIteration)
            raise
        finally:
            ended = clock()
            own = ended - began
            if mode is None:
                lane.plan(own)
            lane.inner, inner = outer + own, lane.inner
            if not is_prefetch:
                own -= inner
            cell = lane.cell(number)
            cell.own += own * lane.weight
            stands_for = lane.weight
            lane.weight, lane.mode = weight, mode
        num = _number_of(elements) if is_sparse else len(elements)
        if num:
            cell.stood_for += num * stands_for
            cell.elements += num * stands_for if is_bypassed else num
            own //= num
            if own < cell.least:
                cell.least = own
            if own > cell.most:
                cell.most = own
        if type(elements) is Computed and elements.error is not None:
            cell.errors += 1
        if ended >= cell.attend_at:
            lane.attend(cell, probe, began, ended, elements)
        return elements

    return timed


def timing_thread(original: Method, number: int, lanes: CountersOfThreads) -> Method:
    """Returns ``original``, which also counts the CPU time of its thread."""

    def call(stage: Any, argument: Any) -> Any:
        lane = lanes.lane
        outer, lane.inner_cpu = lane.inner_cpu, 0
        began = thread_clock()
        try:
            return original(stage, argument)
        finally:
            spent = thread_clock() - began
            lane.cell(number).cpu += (spent - lane.inner_cpu) * lane.weight
            lane.inner_cpu = outer + spent

    return call


def take_anew(it: Any, n: int, original: Method) -> list[Any]:
    """Returns the next elements of an iterator, through the instrument that it has by now; of a
    user's one of them.

    Args:
        it: the iterator.
        n: how many.
        original: the method that the instrument is of.
    """
    if isinstance(it, StreamIterator):
        wrap = it._gm_engine.wrap
        return original(it, n) if wrap is None else wrap(original)(n)
    return [next(it)]


def _number_of(elements: list[Any]) -> int:
    return len([True for x in elements if x is not None])


def _taking(
    timed: _Timed,
    original: Method,
    owner: Callable[[], Any],
    probe: Probe,
    lanes: CountersOfThreads,
    output: OutputCounts,
) -> Callable[[int], list[Any]]:
    """Takes elements for the last stage, and the time that the consumer waits."""
    number, waits, is_profiling = probe.number, probe.waits, output.is_profiling

    def take(n: int) -> list[Any]:
        lane = lanes.lane
        if is_profiling() is not output.annotates:
            # which puts another function in the place of this one
            output.switch(not output.annotates)
            return take_anew(owner(), n, original)
        output.began = began = clock()
        is_counted = lane.left and n < _MIN_BLOCK
        try:
            if is_counted:
                lane.left -= 1
                lane.skipped += 1
                lane.mode = _COUNTING
                try:
                    elements = original(owner(), n)
                finally:
                    lane.mode = None
            else:
                if output.first is None:
                    output.start(began)
                elements = timed(lane, n, n)
        except BaseException as error:
            output.failed(began, clock())
            if isinstance(error, StopIteration):
                output.on_end()
            elif is_counted:
                lane.cell(number).errors += 1
            raise
        output.last = ended = clock()
        output.began = 0
        if elements:
            delay = ended - began
            output.elements += len(elements)
            output.waited += delay
            if is_counted and waits:
                output.waited_itself += delay
            if is_counted and delay < _DEAR_NS:
                output.unrecorded += 1
            else:
                if is_counted and not waits and output.misses_too_much(delay):
                    lane.time_all()
                output.record(delay)
        else:
            output.failed(began, ended)
            output.on_end()
        if ended >= output.attend_at:
            output.attend(ended)
        return elements

    return take
