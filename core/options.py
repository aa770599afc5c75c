"""Settings of pipelines."""

from __future__ import annotations

import enum
import logging
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeAlias

from gristmill.core.errors import as_int, check_word

_log = logging.getLogger("gristmill")

MAX_LANES = 1 << 16  # the largest number that a message between processes can carry
AUTO_LANES = 16  # with ``"auto"``, where no number is given: the same on every machine
AUTO_THREADS = 64  # the most that read with ``"auto"``

NumberOrAuto: TypeAlias = Any  # int | Literal["auto"], as a field whose number is used as an int


@dataclass(slots=True, repr=False)
class ReadOptions:
    """Options of threads that read records ahead.

    Args:
        num_threads: threads that read and transform; 0 reads in the calling thread. ``"auto"``: the
            number is found while they run, from one for each CPU to 64, or 1 where threads keep
            each other waiting. It changes nothing else.
        prefetch_buffer_size: elements that may be in flight or ready ahead of the consumer; 0 reads
            on demand.
        max_workers: the largest number for ``"auto"``; 0 reads in the calling thread.

    Raises:
        TypeError: a value is not an integer.
        ValueError: a value is negative, or ``max_workers`` is given beside a number.

    Example:
        >>> ReadOptions(num_threads=4)
        ReadOptions(num_threads=4, prefetch_buffer_size=500)
    """

    num_threads: NumberOrAuto = 16
    prefetch_buffer_size: int = 500
    max_workers: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.prefetch_buffer_size = as_int(
            "prefetch_buffer_size", self.prefetch_buffer_size, minimum=0
        )
        self.num_threads = number_or_auto("num_threads", self.num_threads, 0)
        self.max_workers = check_max_workers(self.max_workers, self.num_threads, 0, "num_threads")
        if self.num_threads != "auto" and 0 < self.prefetch_buffer_size < self.num_threads:
            _log.warning(
                "prefetch_buffer_size=%d is smaller than num_threads=%d: only %d threads can be"
                " busy",
                self.prefetch_buffer_size,
                self.num_threads,
                self.prefetch_buffer_size,
            )

    def __repr__(self) -> str:
        return _shown(self, [f.name for f in fields(self) if f.name != "max_workers"])

    @property
    def most_threads(self) -> int:
        """Returns the largest number of threads that may read at once."""
        most: int = self.num_threads
        if self.num_threads == "auto":
            most = AUTO_THREADS if self.max_workers is None else min(AUTO_THREADS, self.max_workers)
        return min(most, self.prefetch_buffer_size)


@dataclass(slots=True, repr=False)
class MultiprocessingOptions:
    """Number and kind of the workers that run a pipeline, and how far they may run ahead.

    Args:
        num_workers: number of workers; 0 runs in the calling thread. ``"auto"``: the number is
            found while they run, and may be 0. The stream is that of ``num_lanes``, by default 16,
            on every machine, or that of ``order="stream"``. Unless there are a ``worker_init_fn``
            or ``worker_env``, this process computes the first output, then starts workers, and
            continues until they are up. Unless ``executor`` is given, threads take the place of
            processes where they are quicker.
        per_worker_buffer_size: outputs that each worker may keep ready, at least 1 with workers; of
            small outputs, as many as fit in 1 MB.
        enable_profiling: accepted for compatibility, without effect.
        worker_env: environment variables of worker processes that differ from this process's;
            ``None`` as a value removes one. By default ``JAX_PLATFORMS`` is ``cpu`` and no GPU is
            visible there.
        num_lanes: into how many lanes the stream is divided, at least as many as workers and at
            most 65 536. Elements, their order and states depend on this number alone, not on
            ``num_workers``: with 8 lanes, 0, 1, 3 or 8 workers give what 8 workers give without it,
            and read each other's states. A worker computes whole lanes. ``None``: one for each
            worker. Every lane has its own copy of what stateful stages keep: a window shuffle of 10
            000 elements of 1 kB takes 10 MB in each, 80 MB in 8 lanes, wherever these are computed.
            Sources are shared by the lanes of a process, and so are the threads and the read-ahead
            of ``ReadOptions``, of which each lane uses its part.
        executor: ``"processes"``, ``"threads"`` of this process, or ``None``: threads if Python
            runs without the GIL when iteration begins (``sys._is_gil_enabled()`` returns
            ``False``), otherwise processes. Elements, order, errors and states are the same.
            Threads start at once and hand outputs over without pickling. Each has its own copy of
            the functions, as a process has; threads share sources, modules, classes, and functions
            that cannot be pickled, which must be safe to use from several threads.
            ``worker_init_fn`` runs in each thread with the same arguments, and ``worker_env`` is
            refused. A crash in C code ends the program, and a function that never returns keeps its
            thread. With the GIL, threads help if functions release it or wait.
        max_workers: the largest number for ``"auto"``. ``None``: twice the CPUs that this process
            may use, by affinity and control group, divided by the number of training processes on
            the machine (``LOCAL_WORLD_SIZE``), and no more than there is memory for.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a value is out of range, or ``worker_env`` is given for threads.

    Example:
        >>> MultiprocessingOptions(num_workers=2).num_workers
        2
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(9).to_iter_dataset().batch(2)
        >>> list(ds.mp_prefetch(MultiprocessingOptions(num_workers=0, num_lanes=3)))
        [array([0, 3]), array([1, 4]), array([2, 5]), array([6]), array([7]), array([8])]
    """

    num_workers: NumberOrAuto = 0
    per_worker_buffer_size: int = 1
    enable_profiling: bool = False
    worker_env: Mapping[str, str | None] | None = field(default=None, repr=False, kw_only=True)
    num_lanes: int | None = field(default=None, repr=False, kw_only=True)
    executor: Literal["processes", "threads"] | None = field(default=None, repr=False, kw_only=True)
    max_workers: int | None = field(default=None, repr=False, kw_only=True)

    def __post_init__(self) -> None:
        self.num_workers = number_or_auto("num_workers", self.num_workers, 0)
        self.max_workers = check_max_workers(self.max_workers, self.num_workers, 0)
        self.per_worker_buffer_size = as_int(
            "per_worker_buffer_size",
            self.per_worker_buffer_size,
            minimum=1 if self.num_workers else 0,
        )
        _check_environment(self.worker_env)
        self._check_lanes()
        check_word("executor", self.executor, "processes", "threads", None)
        if self.executor == "threads":
            _check_no_environment(self)

    def __repr__(self) -> str:
        return _shown(self, [f.name for f in fields(self) if f.repr])

    def _check_lanes(self) -> None:
        if self.num_lanes is not None:
            self.num_lanes = as_int("num_lanes", self.num_lanes, minimum=1)
            if self.num_workers == "auto":
                as_int("num_lanes", self.num_lanes, minimum=1, maximum=MAX_LANES)
            elif not self.num_workers <= self.num_lanes <= MAX_LANES:
                raise ValueError(
                    f"num_lanes must be at least num_workers, {self.num_workers}, and at most"
                    f" {MAX_LANES}, got {self.num_lanes}: a worker computes whole lanes. Use fewer"
                    " workers or more lanes"
                )


def _shown(options: Any, always: Sequence[str]) -> str:
    """Return the text of options: the fields ``always``, and others that were given."""
    names = [
        f.name
        for f in fields(options)
        if f.name in always or (f.name != "worker_env" and getattr(options, f.name) is not None)
    ]
    values = ", ".join([f"{name}={getattr(options, name)!r}" for name in names])
    return f"{type(options).__qualname__}({values})"


def number_or_auto(name: str, value: Any, minimum: int) -> Any:
    """Return ``value``, which is ``"auto"`` or an integer of at least ``minimum``."""
    if isinstance(value, str) and value == "auto":
        return "auto"
    if not hasattr(value, "__index__"):
        kind = type(value).__name__
        raise TypeError(f"{name} must be an integer or 'auto', got {value!r:.200} of type {kind}")
    return as_int(name, value, minimum=minimum)


def check_max_workers(
    max_workers: Any, number: Any, minimum: int, name: str = "num_workers"
) -> int | None:
    """Return ``max_workers``, which bounds ``"auto"`` alone.

    Args:
        max_workers: the largest number, or ``None``.
        number: the number that was given, or ``"auto"``.
        minimum: the smallest number that may be the largest.
        name: of the parameter ``number``.
    """
    if max_workers is not None and number != "auto":
        raise ValueError(
            f"max_workers must be None unless {name} is 'auto', got {max_workers!r:.100}"
            f" beside {number!r}"
        )
    return None if max_workers is None else as_int("max_workers", max_workers, minimum=minimum)


def chosen_executor(options: MultiprocessingOptions) -> Literal["processes", "threads"]:
    """Return the executor of workers that are started now.

    Raises:
        ValueError: they are threads, and ``worker_env`` was given.
    """
    is_gil_enabled = getattr(sys, "_is_gil_enabled", lambda: True)
    executor = options.executor or ("processes" if is_gil_enabled() else "threads")
    if executor == "threads":
        _check_no_environment(options)
    return executor


def _check_no_environment(options: MultiprocessingOptions) -> None:
    if options.worker_env:
        chosen = (
            "by executor='threads'"
            if options.executor
            else "since this Python runs without the GIL"
        )
        raise ValueError(
            f"worker_env must be None where workers are threads ({chosen}), got"
            f" {options.worker_env!r:.200}: threads share the environment of this process. Set the"
            " variables in os.environ before, or ask for processes with"
            " MultiprocessingOptions(executor='processes')"
        )


def _check_environment(variables: Any) -> None:
    if variables is None:
        return
    if not isinstance(variables, Mapping):
        raise TypeError(
            f"worker_env must be a mapping of names to strings or None, got {variables!r:.200}"
        )
    for name, value in variables.items():
        if not isinstance(name, str) or not isinstance(value, str | None):
            raise TypeError(
                f"worker_env must map names to strings or None, got {name!r}: {value!r:.200}"
            )
        if not name or "=" in name or "\0" in name + (value or ""):
            raise ValueError(
                f"worker_env must have names without '=' and no null characters, got {name!r}:"
                f" {value!r:.200}"
            )


class ExecutionTrackingMode(enum.Enum):
    """The kind of measurements recorded about a pipeline while it runs."""

    DISABLED = 1
    STAGE_TIMING = 2


class _Unset:
    __slots__ = ()


_UNSET: Any = _Unset()


@dataclass(frozen=True, init=False, repr=False)
class DatasetOptions:
    """Settings of a whole pipeline; remembers which were given, so that several can be merged.

    Args:
        filter_warn_threshold_ratio: warn when at least this share of 1000 consecutive elements was
            filtered out; ``None`` or 0 never warns.
        filter_raise_threshold_ratio: raise ``ValueError`` instead; ``None`` or 0 never raises.
        execution_tracking_mode: what to record about the run.
        min_shm_size: arrays of fewer bytes are copied between processes instead of going through
            shared memory.
        max_threads: the most threads that read or pull ahead below one iterator, at least 1. Worker
            processes share them, at least one for each. ``None``: in each process 16, twice the
            number of CPUs, or the ``num_threads`` of one of the stages, the largest of these.
        max_bytes_ahead: the most bytes that elements which threads have ready or compute ahead, and
            outputs of workers that wait to be taken, take below one iterator, in all of its
            processes, if their sizes are known beforehand; at least 1. ``None``: an eighth of the
            memory that the process may use. What the consumer waits for is computed in any case,
            and each worker may have an output waiting and one that it makes.

    Raises:
        TypeError, ValueError: a value is of the wrong type or out of range.

    Example:
        >>> DatasetOptions(min_shm_size=64).merge(DatasetOptions(filter_warn_threshold_ratio=0.5))
        DatasetOptions(filter_warn_threshold_ratio=0.5, min_shm_size=64)
    """

    filter_warn_threshold_ratio: float | None = 0.9
    filter_raise_threshold_ratio: float | None = None
    execution_tracking_mode: ExecutionTrackingMode = ExecutionTrackingMode.DISABLED
    min_shm_size: int = 0
    max_threads: int | None = None
    max_bytes_ahead: int | None = None
    _given: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        filter_warn_threshold_ratio: float | None = _UNSET,
        filter_raise_threshold_ratio: float | None = _UNSET,
        execution_tracking_mode: ExecutionTrackingMode = _UNSET,
        min_shm_size: int = _UNSET,
        max_threads: int | None = _UNSET,
        max_bytes_ahead: int | None = _UNSET,
    ) -> None:
        given: dict[str, Any] = {
            "filter_warn_threshold_ratio": filter_warn_threshold_ratio,
            "filter_raise_threshold_ratio": filter_raise_threshold_ratio,
            "execution_tracking_mode": execution_tracking_mode,
            "min_shm_size": min_shm_size,
            "max_threads": max_threads,
            "max_bytes_ahead": max_bytes_ahead,
        }
        given = {name: value for name, value in given.items() if value is not _UNSET}
        for name in ("filter_warn_threshold_ratio", "filter_raise_threshold_ratio"):
            ratio = given.get(name)
            if ratio is None:
                continue
            if isinstance(ratio, str) or not hasattr(ratio, "__float__"):
                raise TypeError(f"{name} must be a number in [0, 1] or None, got {ratio!r}")
            if not 0 <= ratio <= 1:
                raise ValueError(f"{name} must be in [0, 1] or None, got {ratio}")
        mode = given.get("execution_tracking_mode", ExecutionTrackingMode.DISABLED)
        if not isinstance(mode, ExecutionTrackingMode):
            raise TypeError(
                f"execution_tracking_mode must be an ExecutionTrackingMode, got {mode!r}"
            )
        if "min_shm_size" in given:
            given["min_shm_size"] = as_int("min_shm_size", given["min_shm_size"], minimum=0)
        for name in ("max_threads", "max_bytes_ahead"):
            if given.get(name) is not None:
                given[name] = as_int(name, given[name], minimum=1)
        for name, value in given.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "_given", frozenset(given))

    def __repr__(self) -> str:
        given = ", ".join(
            f"{f.name}={getattr(self, f.name)!r}" for f in fields(self) if f.name in self._given
        )
        return f"DatasetOptions({given})"

    def merge(self, other: DatasetOptions | None) -> DatasetOptions:
        """Returns these options, completed by those that only ``other`` gives."""
        if other is None or not other._given:
            return self
        if not self._given:
            return other
        names = self._given | other._given
        return DatasetOptions(
            **{name: getattr(self if name in self._given else other, name) for name in names}
        )
