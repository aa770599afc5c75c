"""Observes the iterators of one pipeline, from outside.

Guarantees:

1. Elements, errors, order and states are those of the pipeline that is not observed. What cannot be
   observed runs as it is.
2. Only the objects of this pipeline are changed, and ``stop`` changes them back. Map datasets,
   which pipelines share, are observed in copies.
3. Iterators are not kept alive by being observed.
4. Pipelines that a stage opens by itself (the data sets of an interleave, the shares of threads and
   workers) are counted together where they are of the same form, so that memory does not grow with
   their number.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from gristmill.core.config import config
from gristmill.core.locks import Lock
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.node import parents_of, upstream_for_observers
from gristmill.dataset.bases.observing import (
    Instrument,
    Method,
    let_observe,
    opens_pipelines,
)
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.watching import observe_as, observed_as, report_joining, unobserve
from gristmill.diagnostics.runtime.jax_profiles import annotated
from gristmill.diagnostics.runtime.metrics.measuring import measured
from gristmill.diagnostics.runtime.observed_maps import ObservedMaps
from gristmill.diagnostics.runtime.probe import (
    CountersOfThreads,
    OutputCounts,
    Probe,
    StageCounts,
    ThreadCounters,
    counting,
    merging,
    name_of,
    take_anew,
    timing_thread,
)
from gristmill.diagnostics.runtime.remote import WorkerGroup

_log = logging.getLogger("gristmill")

_MAX_COMPONENTS = 32  # of different forms, in one stage


class Observer:
    """Counts what the stages of a pipeline do."""

    def __init__(self) -> None:
        self.probes: list[Probe] = []
        self.lanes: list[ThreadCounters] = []
        self.output = OutputCounts(self._attend, self._end)
        self.max_events = 0  # see ``record``
        self.groups: dict[int, WorkerGroup] = {}  # the workers of a stage, by its number
        self.faults: dict[str, int] = {}  # skipped or replaced, by stage
        self.measures = False  # see ``measuring``; to be set before anything joins
        self.times_threads = False  # if it also measures CPU times (see ``alone``)
        self.name: str | None = None  # in metrics
        self.on_use: list[Callable[[Observer], None]] = []  # called at the first use of an iterator
        # called now and then, by the thread that takes outputs
        self.on_attend: list[Callable[[int], None]] = []
        # called at the end of the data, and when the last iterator is gone
        self.on_end: list[Callable[[], None]] = []
        self.root: Probe | None = None
        self._local = CountersOfThreads(self.lanes, lambda: self.max_events)
        self._adopted: list[weakref.ref[DatasetIterator[Any]]] = []
        self._waiting: list[weakref.ref[DatasetIterator[Any]]] = []  # adopted, and not yet changed
        self._lock = Lock()
        self._is_stopped = False

    # Joining.

    def join(self, it: DatasetIterator[Any]) -> None:
        """Observes a pipeline that may be in use, and what joins it later."""
        if report_joining(it, self.adopt):
            if self.root is None:
                self.adopt(it)
            else:
                self.adopt_again(it)
            self.prepare()

    def adopt(self, it: DatasetIterator[Any]) -> None:
        """Observes ``it`` and what it draws from; called when an iterator joins the pipeline."""
        with self._lock:
            if self._is_stopped or self.probe_of(it) is not None:
                return
            if self.root is not None and not any(map(self.probe_of, parents_of(it))):
                # It was made by a stage that is at work, which is unknown.
                self._adopt_component(self._last_opener(), it)
                return
            for parent in parents_of(it):
                self.adopt(parent)
            inputs = [probe for probe in map(self.probe_of, parents_of(it)) if probe is not None]
            self._assign(it, self._new_probe(it, _category(it), inputs))

    def adopt_again(self, it: DatasetIterator[Any]) -> None:
        """Observes another iterator of the same pipeline, in place of the one before."""
        with self._lock:
            if not self._is_stopped and self.root is not None and _fits(self.root, it):
                self._assign_tree(it, self.root)

    def record(self, max_events: int) -> None:
        """Remembers the last calls of stages in each thread, as many as that, for a trace."""
        with self._lock:
            self.max_events = max_events
            for lane in [*self.lanes]:
                lane.record(max_events)
            for group in self.groups.values():
                group.update()

    def annotate(self, is_on: bool) -> None:
        """Marks the calls of stages in the profile that JAX is taking, or does so no more."""
        with self._lock:
            self.output.annotates = is_on
            for it in self.alive():
                probe = self.probe_of(it)
                if probe is not None and not self._is_stopped:
                    self._change(it, probe)

    def stop(self) -> None:
        """Leaves everything as it was."""
        with self._lock:
            self._is_stopped = True
            for ref in self._adopted:
                it = ref()
                if it is not None and self.probe_of(it) is not None:
                    let_observe(it, None)
                    unobserve(it)
            for group in self.groups.values():
                group.stop()

    def _new_probe(self, stage: Any, category: str, inputs: list[Probe]) -> Probe:
        probe = Probe(len(self.probes), stage, category, inputs)
        self.probes.append(probe)
        return probe

    def probe_of(self, it: DatasetIterator[Any]) -> Probe | None:
        """Returns the probe that counts what ``it`` does, if that is observed here."""
        observer, probe = observed_as(it)
        return probe if observer is self else None

    def _assign(self, it: DatasetIterator[Any], probe: Probe) -> None:
        """Replaces the methods of ``it`` when it is first used: it may be under construction."""
        observe_as(it, self, probe)
        self._adopted = [ref for ref in self._adopted if ref() is not None]
        self._adopted.append(weakref.ref(it))
        owner = weakref.ref(it)
        self._waiting.append(owner)

        def first_call(original: Method, argument: Any) -> list[Any]:
            self.prepare()
            return take_anew(owner(), argument, original)

        it._gm_set_instrument(lambda original: partial(first_call, original))

    def _last_opener(self) -> Probe:
        openers = [it for it in self.alive() if opens_pipelines(it)]
        probe = self.probe_of(openers[-1]) if openers else None
        assert self.root is not None
        return probe or self.root

    def alive(self) -> Iterable[DatasetIterator[Any]]:
        """Returns the iterators that are observed and still there."""
        return [it for it in [ref() for ref in self._adopted] if it is not None]

    def add_faults(self, step: str, num: int) -> None:
        """Counts elements that a stage with ``tolerate`` has skipped, in any process."""
        with self._lock:
            self.faults[step] = self.faults.get(step, 0) + num

    def streams(self) -> Iterator[tuple[int, StreamIterator[Any]]]:
        """Yields the streams that are observed and still there, with the numbers of their
        probes.
        """
        for it in self.alive():
            probe = self.probe_of(it)
            if probe is not None and isinstance(it, StreamIterator):
                yield probe.number, it

    def _adopt_component(self, opener: Probe, it: DatasetIterator[Any]) -> None:
        """Observes the output of a pipeline that the stage of ``opener`` has opened."""
        with self._lock:
            if self._is_stopped or self.probe_of(it) is not None:
                return
            for probe in opener.components:
                if _fits(probe, it):
                    self._assign_tree(it, probe)
                    return
            if len(opener.components) < _MAX_COMPONENTS:
                opener.components.append(self._new_tree(it))
                self._assign_tree(it, opener.components[-1])

    def _new_tree(self, stage: Any) -> Probe:
        known: dict[int, Probe] = {}  # what several stages draw from has one probe

        def probe_of(node: Any) -> Probe:
            if id(node) not in known:
                inputs = [probe_of(x) for x in upstream_for_observers(node)]
                known[id(node)] = self._new_probe(node, _category(node), inputs)
            return known[id(node)]

        return probe_of(stage)

    def _assign_tree(self, it: DatasetIterator[Any], probe: Probe) -> None:
        self._assign(it, probe)
        for parent, parent_probe in zip(parents_of(it), probe.inputs, strict=False):
            self._assign_tree(parent, parent_probe)

    # Beginning.

    def prepare(self) -> None:
        """Changes what has joined since the last call."""
        with self._lock:
            refs, self._waiting = self._waiting, []
            waiting = [it for it in [ref() for ref in refs] if it is not None]
            if self.root is None or not self._is_input(self.root):
                probes = map(self.probe_of, self.alive())
                outputs = [probe for probe in probes if probe and not self._is_input(probe)]
                before, self.root = self.root, outputs[-1] if outputs else self.root
                if before is None and self.root is not None:
                    for callback in self.on_use:
                        _try(callback, self)
                # there is another downstream stage now
                if before is not None and before is not self.root:
                    waiting += [it for it in self.alive() if self.probe_of(it) is before]
            for it in waiting:
                probe = self.probe_of(it)
                if probe is not None and not self._is_stopped:
                    self._change(it, probe)

    def _is_input(self, probe: Probe) -> bool:
        return any(probe in other.inputs or probe in other.components for other in self.probes)

    def _change(self, it: DatasetIterator[Any], probe: Probe) -> None:
        probe.name = name_of(it)
        work = it._gm_engine.work_ahead()
        if work is not None:
            probe.depth = partial(_num_ready, weakref.ref(it))
            probe.waits, probe.num_threads = work.waits, work.num_threads
            probe.reads_ahead = work.waits and work.reads
        if probe is self.root and self.on_end:
            weakref.finalize(it, self._end)
        let_observe(
            it,
            partial(self._instrument_of, weakref.ref(it), probe),
            reads=partial(self._observed_copy, probe),
            opened=partial(self._adopt_component, probe),
            pools=partial(self._attach, probe),
            waits=probe.budget_waits,
        )
        for inner in it._gm_engine.open_iterators():
            self._adopt_component(probe, inner)
        if self._waiting:
            self.prepare()

    def _instrument_of(
        self, owner: Callable[[], Any], probe: Probe, original: Method
    ) -> Instrument:
        if self.output.annotates:
            original = annotated(original, probe, "__next__")
        timed, output = self._timed(original, probe), self.output if probe is self.root else None
        return counting(original, owner, probe, self._local, timed_original=timed, output=output)

    def _timed(self, original: Method, probe: Probe) -> Method:
        timed = measured(original, probe, self._local) if self.measures else original
        return timing_thread(timed, probe.number, self._local) if self.times_threads else timed

    def _observed_copy(self, probe: Probe, ds: Any) -> Any:
        if not probe.inputs:
            probe.inputs.append(self._new_tree(ds))
        try:
            annotates = self.output.annotates
            maps = ObservedMaps(ds, probe.inputs[0], self._local, self._timed, annotates=annotates)
            return maps.replaced(ds)
        except Exception:  # of a user's class that cannot be copied
            text = "what comes before %s cannot be observed, and runs as it is"
            _log.warning(text, probe.name, exc_info=True)
            return ds

    def _attach(self, probe: Probe, pool: Any) -> None:
        with self._lock:
            if self._is_stopped:
                return
            group = self.groups.get(probe.number)
            if group is None:
                group = self.groups[probe.number] = WorkerGroup(self)
                if config.enable_multiprocess_worker_profiling:
                    self.on_attend.append(lambda now: group.update_profiler())
        group.attach(pool)

    # Reading.

    def _attend(self, now: int) -> None:
        for callback in [*self.on_attend]:
            _try(callback, now)

    def _end(self) -> None:
        for callback in [*self.on_end]:
            _try(callback)

    def cell(self, probe: Probe) -> StageCounts:
        """Returns the sum of the counts of all threads for a stage."""
        total = StageCounts()
        with merging:
            for lane in [*self.lanes]:
                if probe.number < len(lane.cells):
                    total.add(lane.cells[probe.number])
        if probe is self.root:
            total.elements = self.output.elements
            total.own += self.output.waited_itself
        return total


def _try(callback: Callable[..., None], *args: Any) -> None:
    try:
        callback(*args)
    except Exception:  # training must not end because of a report
        _log.warning("an observer of a pipeline failed", exc_info=True)


def _category(stage: Any) -> str:
    stream = getattr(stage, "_gm_engine", None)
    category: str | None = stream and stream.work_category
    return category or ("preprocessing" if upstream_for_observers(stage) else "read")


def _fits(probe: Probe, stage: Any) -> bool:
    """True if a stage and everything upstream have the same form as those of a probe."""
    inputs = upstream_for_observers(stage)
    return (
        probe.has_shape_of(stage, _category(stage))
        and len(inputs) == len(probe.inputs)
        and all(map(_fits, probe.inputs, inputs))
    )


def _num_ready(owner: Callable[[], Any]) -> int | None:
    """Returns the number of elements that a prefetching stage could deliver at once."""
    it = owner()
    work = None if it is None else it._gm_engine.work_ahead()
    return None if work is None else work.num_ready
