"""Observes the iterators of one pipeline, from outside.

Guarantees:

1. Elements, errors, order and states are those of the pipeline that is not observed. What cannot be observed runs as it is.
2. Only the objects of this pipeline are changed, and ``stop`` changes them back. Map datasets, which pipelines share, are
   observed in copies.
3. Iterators are not kept alive by being observed.
4. Pipelines that a stage opens by itself (the data sets of an interleave, the shares of threads and workers) are counted
   together where they are of the same form, so that memory does not grow with their number.
"""

from __future__ import annotations

import copy
import itertools
import logging
import threading
import weakref
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from gristmill.core.config import config
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.node import DatasetNode, ancestors
from gristmill.dataset.bases.round_robin import RoundRobinIterator
from gristmill.dataset.slicing import PipelineEditor
from gristmill.dataset.stages.interleave import InterleaveDatasetIterator
from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterator
from gristmill.dataset.stages.multithread_prefetch import MultithreadPrefetchIterator
from gristmill.dataset.stages.prefetch import PrefetchDatasetIterator
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchDatasetIterator
from gristmill.diagnostics.annotations import annotated
from gristmill.diagnostics.metrics.measuring import Method, measured
from gristmill.diagnostics.probe import Cell, Lane, Lanes, Output, Probe, counting, name_of, place_of
from gristmill.diagnostics.remote import WorkerGroup

_log = logging.getLogger("gristmill")

_MAX_COMPONENTS = 32  # of different forms, in one stage
_PREFETCH = (PrefetchDatasetIterator, ThreadPrefetchDatasetIterator, RoundRobinIterator)


class Observer:
    """Counts what the stages of a pipeline do."""

    def __init__(self) -> None:
        self.probes: list[Probe] = []
        self.lanes: list[Lane] = []
        self.output = Output(self._attend, self._end)
        self.max_events = 0  # see ``record``
        self.groups: dict[int, WorkerGroup] = {}  # the workers of a stage, by its number
        self.measures = False  # see ``measuring``; to be set before anything joins
        self.name: str | None = None  # in metrics
        self.on_use: list[Callable[[Observer], None]] = []  # called at the first use of an iterator
        self.on_attend: list[Callable[[int], None]] = []  # called now and then, by the thread that takes outputs
        self.on_end: list[Callable[[], None]] = []  # called at the end of the data, and when the last iterator is gone
        self.root: Probe | None = None
        self._local = Lanes(self.lanes, lambda: self.max_events)
        self._adopted: list[weakref.ref[DatasetIterator[Any]]] = []
        self._waiting: list[weakref.ref[DatasetIterator[Any]]] = []  # adopted, and not yet changed
        self._lock = threading.RLock()
        self._is_stopped = False

    # Joining.

    def adopt(self, it: DatasetIterator[Any]) -> None:
        """Observes ``it`` and what it draws from; called when an iterator joins the pipeline."""
        with self._lock:
            if self._is_stopped or self._probe_of(it) is not None:
                return
            if self.root is not None and not any(self._probe_of(parent) for parent in it._parents):
                # It was made by a stage that is at work, which nobody can tell.
                self._adopt_component(self._last_opener(), it)
                return
            for parent in it._parents:
                self.adopt(parent)
            inputs = [probe for probe in map(self._probe_of, it._parents) if probe is not None]
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
            for it in self._alive():
                probe = self._probe_of(it)
                if probe is not None and not self._is_stopped:
                    self._change(it, probe)

    def stop(self) -> None:
        """Leaves everything as it was."""
        with self._lock:
            self._is_stopped = True
            for ref in self._adopted:
                it = ref()
                if it is not None and self._probe_of(it) is not None:
                    _restore(it)
                    if it._own_ctx is not None:
                        it._own_ctx.joined = None
            for group in self.groups.values():
                group.stop()

    def _new_probe(self, stage: Any, category: str, inputs: list[Probe]) -> Probe:
        probe = Probe(len(self.probes), stage, category, inputs)
        self.probes.append(probe)
        return probe

    def _probe_of(self, it: DatasetIterator[Any]) -> Probe | None:
        observer, probe = getattr(it, "_observed", (None, None))
        return probe if observer is self else None

    def _assign(self, it: DatasetIterator[Any], probe: Probe) -> None:
        """Its methods are replaced when it is first used: it may be under construction."""
        setattr(it, "_observed", (self, probe))  # noqa: B010  (``vars`` would make all its attributes slower, from then on)
        self._adopted = [ref for ref in self._adopted if ref() is not None]
        self._adopted.append(weakref.ref(it))
        owner = weakref.ref(it)
        self._waiting.append(owner)

        def first_call(argument: Any) -> list[Any]:
            self.prepare()
            stage = owner()
            result: list[Any] = getattr(stage, place_of(stage))(argument)
            return result

        _shadow(it, first_call)

    def _last_opener(self) -> Probe:
        openers = [it for it in self._alive() if type(it)._inner_iterators is not DatasetIterator._inner_iterators]
        probe = self._probe_of(openers[-1]) if openers else None
        assert self.root is not None
        return probe or self.root

    def _alive(self) -> Iterable[DatasetIterator[Any]]:
        return [it for it in [ref() for ref in self._adopted] if it is not None]

    def _adopt_component(self, opener: Probe, it: DatasetIterator[Any]) -> None:
        """Observes the output of a pipeline that the stage of ``opener`` has opened."""
        with self._lock:
            if self._is_stopped or self._probe_of(it) is not None:
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
                known[id(node)] = self._new_probe(node, _category(node), [probe_of(x) for x in _inputs(node)])
            return known[id(node)]

        return probe_of(stage)

    def _assign_tree(self, it: DatasetIterator[Any], probe: Probe) -> None:
        self._assign(it, probe)
        for parent, parent_probe in zip(it._parents, probe.inputs, strict=False):
            self._assign_tree(parent, parent_probe)

    # Beginning.

    def prepare(self) -> None:
        """Changes what has joined since the last call."""
        with self._lock:
            refs, self._waiting = self._waiting, []
            waiting = [it for it in [ref() for ref in refs] if it is not None]
            if self.root is None or not self._is_input(self.root):
                outputs = [probe for probe in map(self._probe_of, self._alive()) if probe and not self._is_input(probe)]
                before, self.root = self.root, outputs[-1] if outputs else self.root
                if before is None and self.root is not None:
                    for callback in self.on_use:
                        _try(callback, self)
                if before is not None and before is not self.root:  # there is another stage behind it now
                    waiting += [it for it in self._alive() if self._probe_of(it) is before]
            for it in waiting:
                probe = self._probe_of(it)
                if probe is not None and not self._is_stopped:
                    self._change(it, probe)

    def _is_input(self, probe: Probe) -> bool:
        return any(probe in other.inputs or probe in other.components for other in self.probes)

    def _change(self, it: DatasetIterator[Any], probe: Probe) -> None:
        probe.name = name_of(it)
        if probe.category == "prefetch":
            probe.depth = partial(_num_ready, weakref.ref(it))
            probe.waits = _waits(it)
            probe.num_threads = _num_threads(it)
        original: Method = type(it)._take if isinstance(it, BlockIterator) else _next_of_user
        if self.output.annotates:
            original = annotated(original, probe, "__next__")
        timed = measured(original, it, probe, self._local) if self.measures else original
        output = self.output if probe is self.root else None
        if output is not None and self.on_end:
            weakref.finalize(it, self._end)
        _shadow(it, counting(original, weakref.ref(it), probe, self._local, timed_original=timed, output=output))
        if isinstance(it, PrefetchDatasetIterator):
            self._change_reads(it, probe)
        if isinstance(it, InterleaveDatasetIterator):
            it._opener.ctx.joined = partial(self._adopt_component, probe)
        elif isinstance(it, MultithreadPrefetchIterator):
            vars(it)["_share_iterators"] = partial(self._shares, weakref.ref(it), probe)
        elif isinstance(it, MultiprocessPrefetchIterator):
            group = self.groups.setdefault(probe.number, WorkerGroup(self))
            if config.enable_multiprocess_worker_profiling:
                self.on_attend.append(lambda now: group.update_profiler())
            vars(it)["_open"] = partial(_open_workers, weakref.ref(it), group)
            if it._pool is not None:
                group.attach(it._pool)
        for inner in it._inner_iterators():
            self._adopt_component(probe, inner)
        if self._waiting:
            self.prepare()

    def _change_reads(self, it: PrefetchDatasetIterator[Any], probe: Probe) -> None:
        ds = _inputs(it)[0]
        setattr(it, "_unobserved", ds)  # noqa: B010
        if not probe.inputs:
            probe.inputs.append(self._new_tree(ds))
        try:
            it._ds = _MapObserver(self, ds, probe.inputs[0]).replaced(ds)
        except Exception:  # of a user's class that cannot be copied
            _log.warning("what comes before %s cannot be observed, and runs as it is", probe.name, exc_info=True)
            return
        if it._read_ahead is not None:
            it._read_ahead.compute, it._read_ahead.stream = it._ds._block, it._streamed

    def _shares(self, owner: Callable[[], Any], probe: Probe) -> list[DatasetIterator[Any]]:
        it = owner()
        shares: list[DatasetIterator[Any]] = type(it)._share_iterators(it)
        for share in shares:
            share._ctx.joined = None  # it is no pipeline of its own, although it was made like one
            self._adopt_component(probe, share)
        return shares

    # Reading.

    def _attend(self, now: int) -> None:
        for callback in [*self.on_attend]:
            _try(callback, now)

    def _end(self) -> None:
        for callback in [*self.on_end]:
            _try(callback)

    def cell(self, probe: Probe) -> Cell:
        """What all threads have counted of a stage."""
        while True:
            total, lanes = Cell(), [*self.lanes]
            for lane in lanes:
                if probe.number < len(lane.cells):
                    total.add(lane.cells[probe.number])
            if lanes == self.lanes:  # none was made part of another one meanwhile
                if probe is self.root:
                    total.elements = self.output.elements
                    total.own += self.output.waited_itself
                return total


def _try(callback: Callable[..., None], *args: Any) -> None:
    try:
        callback(*args)
    except Exception:  # nobody's training ends because of a report
        _log.warning("an observer of a pipeline failed", exc_info=True)


class _MapObserver(PipelineEditor):
    """Map datasets whose copies count."""

    def __init__(self, observer: Observer, ds: Any, probe: Probe) -> None:
        super().__init__()
        self._observer = observer
        self._read = ds
        self._probes = {id(ds): probe}
        self._gather(ds, probe)
        self._sparse = {id(node) for node in ancestors(ds) if any(x._drops for x in ancestors(node))}

    def _gather(self, ds: Any, probe: Probe) -> None:
        for parent, parent_probe in zip(ds._parents, probe.inputs, strict=False):
            self._probes.setdefault(id(parent), parent_probe)
            self._gather(parent, parent_probe)

    def _copied(self, ds: Any, replaced: Callable[[Any], Any]) -> Any:
        return DatasetNode._over(ds, replaced)  # over parents of the same lengths, so a copy will do for all

    def _replace(self, ds: Any) -> Any:
        if id(ds) not in self._probes:
            return ds
        new = self._over_replaced(ds) if ds._parents else copy.copy(ds)
        vars(new).setdefault("_default_seed", ds._default_seed)
        probe = self._probes[id(ds)]
        probe.name = name_of(ds)
        original: Method = type(ds)._block if isinstance(ds, BlockMapDataset) else _items_of_user
        lanes = self._observer._local
        if self._observer.output.annotates:
            original = annotated(original, probe, "__getitem__", is_read_ahead=ds is self._read)
        timed = measured(original, ds, probe, lanes) if self._observer.measures else original
        owner = itertools.repeat(new).__next__  # threads that read ahead know nothing else of it
        unobserved = ds._block if ds is self._read else None
        is_sparse = id(ds) in self._sparse
        count = counting(original, owner, probe, lanes, timed_original=timed, is_sparse=is_sparse, unobserved=unobserved)
        _shadow(new, count)
        return new


def _category(stage: Any) -> str:
    if isinstance(stage, _PREFETCH):
        return "prefetch"
    return "preprocessing" if _inputs(stage) or isinstance(stage, InterleaveDatasetIterator) else "read"


def _inputs(stage: Any) -> tuple[Any, ...]:
    if isinstance(stage, PrefetchDatasetIterator):
        return (getattr(stage, "_unobserved", stage._ds),)
    parents: tuple[Any, ...] = stage._parents
    return parents


def _fits(probe: Probe, stage: Any) -> bool:
    """Whether a stage and everything upstream have the same form as those of a probe."""
    inputs = _inputs(stage)
    return (
        probe.has_shape_of(stage, _category(stage)) and len(inputs) == len(probe.inputs) and all(map(_fits, probe.inputs, inputs))
    )


def _waits(it: Any) -> bool:
    """Whether the elements of a prefetching stage are computed by others."""
    if isinstance(it, PrefetchDatasetIterator):
        return bool(it._num_threads and it._buffer_size)
    if isinstance(it, ThreadPrefetchDatasetIterator | MultithreadPrefetchIterator):
        return it._buffer_size > 0
    return True


def _num_threads(it: Any) -> int | None:
    """How many threads may compute the elements of a prefetching stage ahead."""
    if isinstance(it, PrefetchDatasetIterator):
        return min(it._num_threads, it._buffer_size)
    if isinstance(it, ThreadPrefetchDatasetIterator):
        return min(1, it._buffer_size)
    return it._count if isinstance(it, MultithreadPrefetchIterator) else None


def _num_ready(owner: Callable[[], Any]) -> int | None:
    """How many elements a prefetching stage could deliver at once."""
    it = owner()
    if isinstance(it, PrefetchDatasetIterator):
        return 0 if it._read_ahead is None else it._read_ahead.num_ready
    if isinstance(it, ThreadPrefetchDatasetIterator):
        return 0 if it._ahead is None else it._ahead.num_ready
    if isinstance(it, RoundRobinIterator):
        return sum(map(len, it._ready))
    return None


def _shadow(stage: Any, method: Callable[[Any], list[Any]]) -> None:
    """Lets ``method`` be called in place of the one that a class of ours, or of a user, defines."""
    place = place_of(stage)
    setattr(stage, place, method)
    if _needs_class(stage):
        stage.__class__ = _observed_class(type(stage))


def _needs_class(stage: Any) -> bool:
    """Whether its methods are looked up in its class alone, as Python does it, and not by stages of ours."""
    cls = type(stage)
    if hasattr(cls, "_observed_class") or isinstance(stage, BlockMapDataset):
        return False
    return not isinstance(stage, BlockIterator) or cls.__next__ is not BlockIterator.__next__


def _restore(it: DatasetIterator[Any]) -> None:
    attributes = vars(it)
    for name in ("_take", "_counted", "_observed", "_share_iterators"):
        attributes.pop(name, None)
    if isinstance(it, MultiprocessPrefetchIterator):
        attributes.pop("_open", None)  # of other classes, it is something else
    if isinstance(it, PrefetchDatasetIterator) and "_unobserved" in attributes:
        it._ds = attributes.pop("_unobserved")
        if it._read_ahead is not None:
            it._read_ahead.compute, it._read_ahead.stream = it._ds._block, it._streamed
    if hasattr(type(it), "_observed_class"):
        it.__class__ = getattr(type(it), "_observed_class")  # noqa: B009


def _observed_class(cls: Any) -> type:
    """A class with counting methods in place of those that Python looks up in the class alone."""

    def next_element(self: Any) -> Any:
        return vars(self)["_counted"](1)[0]

    def item(self: Any, index: Any) -> Any:
        if isinstance(index, slice):
            return cls.__getitem__(self, index)
        return vars(self)["_counted"]([index])[0]

    methods: dict[str, Any] = {"__next__": next_element} if issubclass(cls, DatasetIterator) else {"__getitem__": item}
    if issubclass(cls, BlockIterator):
        methods = {"__next__": BlockIterator.__next__}  # without a short way past ``_take``
    names = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    observed: type = type(cls)(cls.__name__, (cls,), {**methods, **names, "_observed_class": cls})
    return observed


def _next_of_user(it: Any, n: int) -> list[Any]:
    return [type(it)._observed_class.__next__(it)]


def _items_of_user(ds: Any, indices: Any) -> list[Any]:
    cls = type(ds)._observed_class
    return [cls.__getitem__(ds, i) for i in indices]


def _open_workers(owner: Callable[[], Any], group: WorkerGroup) -> Any:
    it = owner()
    shards = type(it)._open(it)
    group.attach(it._pool)
    return shards
