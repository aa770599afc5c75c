"""``observe`` and ``diagnose``: look at a pipeline while it is in use, or try it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from os import PathLike
from typing import Any, Self

from gristmill.core.config import config
from gristmill.core.errors import as_seconds
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.errors.tracebacks import filter_traceback
from gristmill.dataset.watching import observed_by
from gristmill.diagnostics.diagnosis.alone import OneThread, alone, run_alone
from gristmill.diagnostics.diagnosis.verdict import (
    COMPETING,
    IN_TIME,
    Diagnosis,
    diagnosis_of,
    settings_of,
)
from gristmill.diagnostics.files import write_text
from gristmill.diagnostics.runtime.attended import NEXT_SECONDS, START_SECONDS, Attended
from gristmill.diagnostics.runtime.jax_profiles import annotate_while_profiling
from gristmill.diagnostics.runtime.observer import Observer
from gristmill.diagnostics.runtime.probe import clock
from gristmill.diagnostics.runtime.processes import cpu_demand_ns
from gristmill.diagnostics.runtime.stalls import watching
from gristmill.diagnostics.runtime.summary import ExecutionSummary, Snapshot, take_snapshot
from gristmill.diagnostics.runtime.trace import trace_json
from gristmill.diagnostics.units import time_text
from gristmill.loader import DataLoader, DataLoaderIterator

_MAX_EVENTS = 200_000


def observe(it: Any, *, trace: bool = False, stall_seconds: float | None = None) -> View:
    """Returns a view of an iterator that is in use: a context manager, which counts what its stages
    do as long as it is entered.

    Outputs, their order and states stay the same. It costs about 0.5 µs for each output and 0.1 µs
    or more for a call of a stage, which takes a block of elements wherever it can; afterwards
    nothing of it is left. An iterator that is observed already (such as by an option) stays so.

    Args:
        it: an iterator of a dataset or of a ``DataLoader``.
        trace: remember single calls of stages, for ``save_trace``: the last 200 000 of each thread.
        stall_seconds: log what ``next`` waits for when it takes longer than this; by default
            ``config.stall_seconds``, where 0 is never.

    Raises:
        TypeError: ``it`` is no such iterator, or ``stall_seconds`` no number.
        ValueError: ``stall_seconds`` is negative.

    Example:
        >>> it = iter(MapDataset.range(100).map(lambda x: x + 1).to_iter_dataset().batch(10))
        >>> with observe(it) as view:
        ...     for batch in it:
        ...         pass
        >>> view.summary()[0].num_produced_elements
        10
    """
    return View(it, trace=trace, stall_seconds=stall_seconds)


def diagnose(
    pipeline: Any,
    seconds: float = 5.0,
    *,
    consumer: Callable[[Any], Any] | None = None,
    stall_seconds: float | None = None,
) -> Diagnosis:
    """Runs a pipeline for a while and returns what binds it: source, a transform, transport between
    processes, or the consumer.

    A short dataset is read several times. The pipeline and ``consumer`` run in a thread of their
    own, with the context variables of the caller, so that a pipeline that is stuck, or an interrupt
    from the keyboard, ends the diagnosis.

    Args:
        pipeline: a dataset or a ``DataLoader``; or an iterator, which is set back afterwards.
        seconds: how long to run it.
        consumer: called with every element, in place of the training step; by default elements are
            dropped, so that the pipeline is as fast as it can be.
        stall_seconds: how long one element may take before the pipeline is taken to be stuck; by
            default 5 seconds, the first one 20, but not less than ``seconds``. 0 is forever.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: ``seconds`` is less than a millisecond, ``stall_seconds`` negative, or the
            pipeline has no elements.
        TimeoutError: the pipeline is stuck: it says at which stage and element, and in which line
            of which thread or worker. An iterator that was given is closed then.

    Example:
        >>> ds = MapDataset.range(1000).map(lambda x: sum(range(5000))).to_iter_dataset()
        >>> diagnose(ds, seconds=0.2).bound_by
        'transform'
    """
    seconds = as_seconds("seconds", seconds, minimum=0.001)
    limit = None if stall_seconds is None else as_seconds("stall_seconds", stall_seconds)
    if consumer is not None and not callable(consumer):
        raise TypeError(f"consumer must be a callable of an element, got {consumer!r:.200}")
    is_new = isinstance(pipeline, MapDataset | IterDataset | DataLoader)
    it: Any = iter(pipeline) if is_new else pipeline
    inner, close = dataset_iterator(it), it.close if is_new else None
    attended = Attended(
        lambda: inner, max(NEXT_SECONDS, seconds) if limit is None else limit, _HINT, close=close
    )
    try:
        with attended:
            start = it.get_state()
            try:
                start_seconds = max(START_SECONDS, seconds) if limit is None else limit
                share = 1.0 - _ALONE_SHARE * is_new
                view = _observed(it, share * seconds, consumer, attended, start_seconds)
            finally:
                if not is_new and not attended.is_stuck:
                    it.set_state(start)
        one_thread = _run_alone(pipeline, view, seconds * _ALONE_SHARE) if is_new else None
        return view._diagnosis(one_thread, is_step_alike=consumer is None)
    except BaseException as error:
        filter_traceback(error)
        raise


_ALONE_SHARE = 0.25  # the share of the time for a run in one thread
_MIN_COMPUTING = 0.3  # wanted CPUs below which that run is skipped
_MAX_ALONE = 4  # the largest time of an output, as a multiple of the time of that run
_HINT = "If it is only slow, allow more time for an element: diagnose(..., stall_seconds=60)."
_END = object()


def _observed(
    it: Any,
    seconds: float,
    consumer: Callable[[Any], Any] | None,
    attended: Attended,
    start_seconds: float,
) -> View:
    start = it.get_state()
    with observe(it):  # for what there is to say if it is stuck
        # the time of starting is not wanted
        if attended.call(lambda: next(it, _END), seconds=start_seconds) is _END:
            raise ValueError(f"the pipeline has no elements to diagnose: {it!s:.200}")
    with observe(it) as view:
        if not attended.call(
            lambda: run(it, seconds, consumer, attended), progress=lambda: progress_of(view)
        ):
            it.set_state(start)
            attended.call(
                lambda: run(it, seconds, consumer, attended), progress=lambda: progress_of(view)
            )
    return view


def _run_alone(pipeline: Any, view: View, seconds: float) -> OneThread | None:
    """Returns the times in one thread if threads or workers compute and outputs are quick enough.

    Workers may not yet have reported what they compute.
    """
    snapshot, wanted = view.snapshot(), view._cpu_demand_ns
    wanted += sum([x.cpu_ns for x in snapshot.workers])
    elapsed, num = snapshot.summary.elapsed_ns, snapshot.num_elements
    if not num or snapshot.starved_ratio < IN_TIME:
        return None
    if all([x.place == "consumer" for x in snapshot.summary.values()]):
        return None
    if wanted < _MIN_COMPUTING * elapsed and not snapshot.workers:
        return None
    # Where threads do not compete, they take as long alone as in the run.
    work = sum([x.total_processing_time_ns for x in snapshot.summary.values() if not x.is_prefetch])
    if (wanted if wanted > COMPETING * elapsed else work) / num > _MAX_ALONE * seconds * 1e9:
        return None
    return run_alone(pipeline, seconds)


def run(it: Any, seconds: float, consumer: Callable[[Any], Any] | None, attended: Any) -> int:
    """Takes elements for a time, starting again at the end, unless ``attended`` is ending; returns
    how many there were.
    """
    num, start, deadline = 0, it.get_state(), time.perf_counter() + seconds
    while time.perf_counter() < deadline and not attended.is_ending:
        try:
            element = next(it)
        except StopIteration:
            if not num:
                break
            it.set_state(start)
            continue
        num += 1
        if consumer is not None:
            consumer(element)
    return num


def get_execution_summary(iterator: Any) -> ExecutionSummary:
    """Returns where the time of an observed pipeline went so far, stage by stage.

    Args:
        iterator: of a pipeline whose options ask for it, of any pipeline in debug mode, or one that
            is given to ``observe``.

    Raises:
        TypeError: ``iterator`` is no iterator of a dataset or of a ``DataLoader``.
        ValueError: it is not observed.

    Example:
        >>> from gristmill.core.options import DatasetOptions, ExecutionTrackingMode
        >>> from gristmill.dataset.stages.options import WithOptionsIterDataset
        >>> options = DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.STAGE_TIMING)
        >>> it = iter(
        ...     WithOptionsIterDataset(MapDataset.range(10).batch(2).to_iter_dataset(), options)
        ... )
        >>> next(it)
        array([0, 1])
        >>> get_execution_summary(it)[0].num_produced_elements
        1
    """
    observer = observed_by(dataset_iterator(iterator))
    if observer is None:
        raise ValueError(
            "the iterator is not observed: apply WithOptionsIterDataset(ds,"
            " DatasetOptions(execution_tracking_mode=ExecutionTrackingMode.STAGE_TIMING)) to its"
            ' dataset, say config.update("py_debug_mode", True) before it is made, or use it in a'
            " block of gristmill.observe(it)"
        )
    return take_snapshot(observer).summary


def dataset_iterator(it: Any) -> DatasetIterator[Any]:
    """Returns the iterator that does the work in ``it``."""
    if isinstance(it, DataLoaderIterator):
        return it._iterator
    if not isinstance(it, DatasetIterator):
        raise TypeError(
            f"it must be an iterator of a dataset or of a DataLoader, got {type(it).__name__}: make"
            " one with it = iter(...), and take the elements from it"
        )
    return it


def progress_of(view: View) -> int:
    """Returns a number that stays the same as long as a ``next`` is in progress, and changes
    otherwise.
    """
    return view._observer.output.began or clock()


class View:
    """The result of ``observe``. May be read at any time, by other threads too, and after the
    ``with`` block.
    """

    def __init__(self, it: Any, *, trace: bool = False, stall_seconds: float | None = None) -> None:
        self._it = dataset_iterator(it)
        before: Any = observed_by(self._it)
        self._is_ours = before is None
        self._observer: Observer = Observer() if before is None else before
        self._settings = settings_of(self._it)
        self._trace = trace
        self._stall_seconds = as_seconds(
            "stall_seconds", config.stall_seconds if stall_seconds is None else stall_seconds
        )
        self._stack = contextlib.ExitStack()
        self._cpu_began = cpu_demand_ns()
        self._cpu_ns: int | None = None

    def __enter__(self) -> Self:
        observer = self._observer
        if self._trace:
            observer.record(_MAX_EVENTS)
        if self._is_ours:
            annotate_while_profiling(observer)
            observer.join(self._it)
            self._stack.callback(observer.stop)
        if self._stall_seconds:
            self._stack.enter_context(watching(observer, self._stall_seconds))
        self._cpu_began = cpu_demand_ns()
        return self

    def __exit__(self, *exception: object) -> None:
        self._cpu_ns = cpu_demand_ns() - self._cpu_began
        self._stack.close()

    @property
    def iterator(self) -> DatasetIterator[Any]:
        """The iterator that is observed; of a ``DataLoader``, the one that does its work."""
        return self._it

    def __repr__(self) -> str:
        elements = self._observer.output.elements
        return (
            f"View({self._it._gm_class_name}, {elements} elements,"
            f" {', '.join([f'{k} {v}' for k, v in self.postfix.items()])})"
        )

    def _repr_html_(self) -> str:
        from gristmill.diagnostics.notebook import diagnosis_html

        return diagnosis_html(self.diagnosis())

    def snapshot(self) -> Snapshot:
        """Returns all numbers of this moment."""
        return take_snapshot(self._observer)

    def summary(self) -> ExecutionSummary:
        """Returns the time of each stage."""
        return self.snapshot().summary

    def diagnosis(self) -> Diagnosis:
        """Returns the bottleneck of the pipeline, and suggested changes."""
        return self._diagnosis()

    def _diagnosis(self, run: OneThread | None = None, *, is_step_alike: bool = False) -> Diagnosis:
        snapshot = self.snapshot()
        measured = alone(snapshot, run, is_step_alike)
        return diagnosis_of(snapshot, self._settings, self._cpu_demand_ns, measured)

    @property
    def _cpu_demand_ns(self) -> int:
        return cpu_demand_ns() - self._cpu_began if self._cpu_ns is None else self._cpu_ns

    def report(self) -> str:
        """Returns the diagnosis and the summary as text."""
        diagnosis = self.diagnosis()
        return f"{diagnosis}\n\n{diagnosis.snapshot.summary}"

    @property
    def postfix(self) -> dict[str, str]:
        """A few numbers for a progress bar: ``bar.set_postfix(view.postfix, refresh=False)``. Costs
        some µs.

        Example:
            >>> with observe(iter(MapDataset.range(3))) as view:
            ...     view.postfix
            {'starved': '0%', 'p99': '0 ns'}
        """
        output = self._observer.output
        elapsed = output.last - output.first if output.first is not None else 0
        starved = output.waited / elapsed if elapsed else 0.0
        return {"starved": f"{starved:.0%}", "p99": time_text(output.delays.percentile(0.99))}

    def save_html(self, path: str | PathLike[str]) -> None:
        """Writes a report with drawings, one file that needs nothing else, to look at in a
        browser.

        Raises:
            ImportError: Jinja2 is not installed, which the extra ``view`` installs.
        """
        from gristmill.diagnostics.report import report_html

        write_text(path, report_html(self.diagnosis()))

    def save_trace(self, path: str | PathLike[str]) -> None:
        """Writes the calls of all stages, in all threads and workers, for https://ui.perfetto.dev
        or ``chrome://tracing``.

        Raises:
            ValueError: no calls were recorded: say ``observe(it, trace=True)``.
        """
        if not self._trace:
            raise ValueError(
                "there are no calls to save: observe the iterator with observe(it, trace=True)"
            )
        write_text(path, trace_json(self.snapshot()))
