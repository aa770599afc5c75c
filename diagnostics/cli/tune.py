"""The command ``tune``: the speed of a pipeline with several fixed settings."""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
from argparse import Namespace
from array import array
from collections.abc import Iterator
from functools import partial
from operator import attrgetter
from typing import Any

from gristmill.core.options import AUTO_LANES, MAX_LANES, MultiprocessingOptions, ReadOptions
from gristmill.core.ray_options import WorkerOptions, in_lanes
from gristmill.core.value import Value
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import ancestors, computed_by
from gristmill.dataset.bases.parameters import parameters_of
from gristmill.dataset.executors.auto import most_workers
from gristmill.dataset.lanes.rows import LaneRowsIterDataset
from gristmill.dataset.stages.global_batch import (
    GlobalBatchIterDataset,
    GlobalBatchParameters,
)
from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterDataset
from gristmill.dataset.stages.prefetch import PrefetchIterDataset
from gristmill.dataset.stages.stream_interleave import StreamInterleaveIterDataset
from gristmill.dataset.stages.stream_order import StreamOrderIterDataset
from gristmill.diagnostics.cli.printing import say
from gristmill.diagnostics.cli.reader import attended
from gristmill.diagnostics.cli.run import Endless
from gristmill.diagnostics.cli.target import CommandError, load_pipeline
from gristmill.diagnostics.runtime.processes import cpu_seconds, memory_bytes
from gristmill.diagnostics.table import Column, DataTable
from gristmill.diagnostics.units import digits_text, size_text, time_text
from gristmill.diagnostics.verification.subject import Subject, VariedStreams
from gristmill.loader import DataLoader
from gristmill.workers.process import missing_calls

_NUM_THREADS = (0, 1, 4, 16, 64)
_SAME = 0.03  # of two speeds that differ by less, the one that takes less CPU time is better
_PAUSE_SECONDS = 1.2  # idle workers end in this time, so the next setting starts its own
_ONE = {"processes": "process", "threads": "thread"}


class Setting(Value):
    """Numbers of workers and threads.

    Args:
        num_workers: 0 computes in the process of the consumer.
        executor: ``"processes"`` or ``"threads"``.
        num_threads: threads that read, in each process.
    """

    num_workers: int
    executor: str
    num_threads: int

    @property
    def has_processes(self) -> bool:
        return self.num_workers > 0 and self.executor == "processes"

    def __str__(self) -> str:
        if not self.num_workers:
            return "0"
        kind = _ONE[self.executor] if self.num_workers == 1 else self.executor
        return f"{self.num_workers} {kind}"


class Speed(Value):
    """The measurement of one setting.

    Args:
        setting: which.
        elements_per_second: the throughput after the first output and a warm-up.
        cpus: CPU seconds per second of this process and its workers; ``None`` if unknown.
        first_output_seconds: time from the start of the iterator to the first output.
        memory_bytes: memory of this process and its workers at the end; ``None`` if unknown.
    """

    setting: Setting
    elements_per_second: float
    cpus: float | None
    first_output_seconds: float
    memory_bytes: int | None


def tune(args: Namespace) -> int:
    """Prints a table of settings, and the best one as code."""
    pipeline = load_pipeline(args.pipeline)
    sweep = Sweep(pipeline, args.max_workers)
    speeds: list[Speed] = []
    failures: dict[str, str] = {}
    if not args.json:
        say(DataTable(_COLUMNS).lines()[0])
    for setting in sweep.settings():
        if speeds and speeds[-1].setting.has_processes:
            time.sleep(_PAUSE_SECONDS)
        try:
            speed = _measured(sweep.applied(setting), setting, args.seconds, args.stall_seconds)
        except CommandError:
            raise
        except Exception as error:
            if not setting.num_workers:  # it fails without workers, too
                raise
            failures[str(setting)] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            continue
        speeds.append(speed)
        if not args.json:
            say(DataTable(_COLUMNS, [speed]).lines()[1])
    best = _best(speeds)
    code = sweep.code(best.setting)
    if args.json:
        records = DataTable([*_OF_WORKERS, *_COLUMNS[1:]], speeds).records()
        found = {"settings": records, "best": records[speeds.index(best)], "code": [*code]}
        say(json.dumps(found | {"not_measured": failures}, indent=2))
        return 0
    for reason in dict.fromkeys(failures.values()):
        texts = [text for text, other in failures.items() if other == reason]
        say(f"not measured: {', '.join(texts)}: {reason}")
    workers = best.setting if best.setting.num_workers else "no workers"
    num_threads = best.setting.num_threads
    threads = "1 thread that reads" if num_threads == 1 else f"{num_threads} threads that read"
    say(f"\nBest: {workers}, {threads}")
    say(*code)
    return 0


class Sweep:
    """The settings of a pipeline.

    Args:
        pipeline: a dataset or a ``DataLoader``.
        max_workers: the largest number of workers; ``None``: that of ``"auto"``.

    Raises:
        CommandError: the pipeline has workers on Ray.
    """

    def __init__(self, pipeline: Any, max_workers: int | None) -> None:
        self._pipeline = pipeline
        self._stream = Subject(pipeline).stream
        if isinstance(pipeline, MapDataset):
            self._stream = pipeline.to_iter_dataset()
        nodes = list(ancestors(self._stream))
        given: list[Any] = [options for node in nodes for options in _workers_of(node)]
        if not all([isinstance(options, MultiprocessingOptions) for options in given]):
            raise CommandError(
                "tune measures workers of this machine, and the pipeline has workers on Ray: give"
                " it MultiprocessingOptions in place of RayOptions"
            )
        self._options: MultiprocessingOptions | None = given[0] if given else None
        self._reads = [
            parameters_of(node).read_options
            for node in nodes
            if isinstance(node, PrefetchIterDataset)
        ]
        # Workers are given to one of these stages, or to ``mp_prefetch`` after all.
        self._has_place = any([node._gm_starts_workers or _is_global(node) for node in nodes])
        self._is_global = any(map(_is_global, nodes))
        self._order = "stream" if any(map(_is_in_stream_order, nodes)) else "workers"
        options = self._options or MultiprocessingOptions()
        own = options.num_lanes if self._order == "stream" else in_lanes(options).num_lanes
        # Without workers, too, the stream is that of the lanes that the pipeline has.
        self._has_lanes = self._order == "workers" and own is not None
        self._num_lanes = own if self._order == "stream" else own or AUTO_LANES
        self._most = most_workers(max_workers, self._num_lanes or MAX_LANES)

    def settings(self) -> Iterator[Setting]:
        """Yield the settings to measure."""
        own = _fixed(self._reads[0].num_threads) if self._reads else 0
        for num_threads in sorted({own, *_NUM_THREADS}) if self._reads else (0,):
            yield Setting(0, "processes", num_threads)
        executors = ("threads",) if missing_calls() else ("threads", "processes")
        numbers = [n for n in _numbers_up_to(self._most) if n]
        threads = sorted({own, 1}) if self._reads else [0]
        for executor, num_workers, num_threads in itertools.product(executors, numbers, threads):
            yield Setting(num_workers, executor, num_threads)

    def applied(self, setting: Setting) -> IterDataset[Any]:
        """Return the pipeline with a setting."""
        options = self._with_number(setting)
        tuned = VariedStreams(partial(_tuned, options, setting.num_threads))
        stream: IterDataset[Any] = tuned.replaced(self._stream)
        if self._has_place or not _computes_lanes(options):
            return stream
        return stream.mp_prefetch(options)

    def _with_number(self, setting: Setting) -> MultiprocessingOptions:
        given = self._options or MultiprocessingOptions()
        executor: Any = setting.executor
        has_lanes = setting.num_workers > 0 or self._has_lanes
        return dataclasses.replace(
            given,
            num_workers=setting.num_workers,
            per_worker_buffer_size=max(1, given.per_worker_buffer_size),
            num_lanes=self._num_lanes if has_lanes and not self._is_global else None,
            executor=executor,
            worker_env=given.worker_env if executor == "processes" else None,
            max_workers=None,
        )

    def code(self, setting: Setting) -> Iterator[str]:
        """Yield lines of Python that make the pipeline with a setting."""
        if self._reads:
            yield f"read_options = grain.{_with_threads(self._reads[0], setting.num_threads)}"
        options = self._with_number(setting)
        if _computes_lanes(options):
            yield f"workers = grain.{options}"
        if isinstance(self._pipeline, DataLoader):
            names = ["read_options=read_options"]
            names += ["workers=workers"] if _computes_lanes(options) else ["worker_count=0"]
            yield f"loader = grain.DataLoader(..., {', '.join(names)})"
            return
        if self._reads:
            yield "ds = ds.to_iter_dataset(read_options)"
        if _computes_lanes(options):
            order = ', order="stream"' if self._order == "stream" else ""
            call = "global_batch(..., workers=workers)"
            yield "# then the other stages, and last"
            yield f"ds = ds.{call if self._is_global else f'mp_prefetch(workers{order})'}"


def _tuned(options: MultiprocessingOptions, num_threads: int, stage: Any) -> Any:
    """Return a stage with other workers, or other threads that read."""
    if isinstance(stage, PrefetchIterDataset):
        reads = _with_threads(parameters_of(stage).read_options, num_threads)
        return computed_by(stage, threads=reads)
    if isinstance(stage, GlobalBatchIterDataset):
        workers = options if options.num_workers else None
        parameters = parameters_of(stage).as_dict() | {"workers": workers}
        return GlobalBatchIterDataset(stage.parents[0], GlobalBatchParameters(**parameters))
    # The lanes of a global batch are made again with it.
    if not stage._gm_starts_workers or isinstance(stage.parents[0], LaneRowsIterDataset):
        return stage
    return _with_workers(stage, options) if _computes_lanes(options) else stage.parents[0]


def _computes_lanes(options: MultiprocessingOptions) -> bool:
    """Return true if options make lanes, which workers compute, or the consumer."""
    return options.num_workers > 0 or options.num_lanes is not None


def _workers_of(stage: Any) -> list[WorkerOptions]:
    """Return the options of the workers of a stage, if it has any."""
    if isinstance(stage, MultiprocessPrefetchIterDataset):
        return [parameters_of(stage).multiprocessing_options]
    if _is_global(stage):
        workers = parameters_of(stage).workers
        return [] if workers is None else [workers]
    return [parameters_of(stage).workers.keywords["options"]] if _is_in_stream_order(stage) else []


def _is_global(stage: Any) -> bool:
    return isinstance(stage, GlobalBatchIterDataset)


def _is_in_stream_order(stage: Any) -> bool:
    return isinstance(stage, StreamOrderIterDataset | StreamInterleaveIterDataset)


def _with_workers(stage: Any, options: MultiprocessingOptions) -> Any:
    """Return a stage with other workers."""
    if _is_in_stream_order(stage):
        return type(stage)(stage.parents[0], partial(parameters_of(stage).workers, options=options))
    given = parameters_of(stage)
    return stage.parents[0].mp_prefetch(
        options, worker_init_fn=given.worker_init_fn, sequential_slice=given.sequential_slice
    )


def _fixed(num_threads: Any) -> int:
    """Return the number of threads, where ``"auto"`` is the usual one."""
    number: int = ReadOptions().num_threads if num_threads == "auto" else num_threads
    return number


def _with_threads(reads: ReadOptions, num_threads: int) -> ReadOptions:
    """Return options with this many threads, and a buffer in which each has an element."""
    size = reads.prefetch_buffer_size
    size = max(size, num_threads) if size else 0
    return ReadOptions(num_threads, size)


def _numbers_up_to(most: int) -> list[int]:
    """Return the numbers of workers to measure: all up to 4, then about twice the one before.

    Example:
        >>> _numbers_up_to(12)
        [1, 2, 3, 4, 8, 12]
    """
    doubled = itertools.takewhile(lambda n: n < most, (1 << i for i in range(20)))
    return sorted({*range(1, min(most, 4) + 1), *doubled, most} - {0})


def _measured(
    stream: IterDataset[Any], setting: Setting, seconds: float, stall_seconds: float | None
) -> Speed:
    start = time.perf_counter()
    elements = Endless(stream)
    num = array("q")
    with attended(lambda: elements.it, elements.close, stall_seconds) as thread:

        def run(length: float) -> float:
            return thread.call(lambda: elements.time(length, num), progress=lambda: len(num))

        run(0.0)
        first = time.perf_counter() - start
        run(seconds / 2)
        before, busy = len(num), cpu_seconds()
        elapsed = run(seconds)
        spent = [total - busy.get(pid, 0.0) for pid, total in cpu_seconds().items()]
        return Speed(
            setting,
            (len(num) - before) / elapsed,
            sum(spent) / elapsed if spent else None,
            first,
            memory_bytes(),
        )


def _best(speeds: list[Speed]) -> Speed:
    """Return the fastest; of those that are as fast, the one with the least CPU time."""
    fastest = max([speed.elements_per_second for speed in speeds])
    return min(
        [speed for speed in speeds if speed.elements_per_second >= (1 - _SAME) * fastest],
        key=lambda speed: speed.cpus or 0.0,
    )


_COLUMNS = (
    Column("workers", lambda x: x.setting, width=12),
    Column(
        "read threads", lambda x: x.setting.num_threads, align=">", width=12, name="num_threads"
    ),
    *[
        Column(title, attrgetter(name), text, align=">", width=width, name=name)
        for title, name, text, width in (
            ("elements/s", "elements_per_second", digits_text, 10),
            ("CPUs", "cpus", digits_text, 5),
            ("first output", "first_output_seconds", lambda x: time_text(x * 1e9), 12),
            ("memory", "memory_bytes", size_text, 9),
        )
    ],
)
_OF_WORKERS = (
    Column("num_workers", lambda x: x.setting.num_workers),
    Column("executor", lambda x: x.setting.executor),
)
