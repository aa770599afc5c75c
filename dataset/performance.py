"""``pick_performance_config``: numbers of workers and buffered elements from the size of some
elements.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.core.cgroup import available_memory, usable_cpus
from gristmill.core.errors import as_int
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.core.state import shown
from gristmill.dataset.ahead.sizes import num_bytes_of
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.bases.parameters import parameters_of
from gristmill.dataset.slicing import PipelineEditor
from gristmill.dataset.stages.interleave import InterleaveIterDataset
from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterDataset
from gristmill.dataset.stages.multithread_prefetch import MultithreadPrefetchIterDataset
from gristmill.dataset.stages.prefetch import PrefetchIterDataset
from gristmill.dataset.stages.stream_order import StreamOrderIterDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchIterDataset
from gristmill.workers.process import missing_calls

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

_log = logging.getLogger("gristmill")

_MIB = 2**20
_DIRECT = ReadOptions(num_threads=0)


@dataclass
class PerformanceConfig:
    """Settings for a pipeline, as ``pick_performance_config`` returns them.

    Args:
        multiprocessing_options: for ``IterDataset.mp_prefetch``.
        read_options: for ``MapDataset.to_iter_dataset``.

    Example:
        >>> config = PerformanceConfig(read_options=ReadOptions(num_threads=4))
        >>> config.multiprocessing_options is None
        True
    """

    multiprocessing_options: MultiprocessingOptions | None = None
    read_options: ReadOptions | None = None


def pick_performance_config(
    ds: IterDataset[Any] | MapDataset[Any],
    *,
    ram_budget_mb: float | None,
    max_workers: int | None,
    max_buffer_size: int | None,
    samples_to_check: int = 5,
) -> PerformanceConfig:
    """Returns settings with which elements that are ready ahead of their use fit into a memory
    budget.

    There are as many workers as outputs of ``ds`` fit into the budget, and buffers have as many
    elements as fit there of those that ``to_iter_dataset`` reads (of all places where it is called
    together, but not within what is interleaved). The two budgets are not combined: ``W`` workers
    have ``W`` buffers. Sizes are those of the first elements, which are read and transformed in
    this process, one by one without anything ahead; side effects of that happen. If there are too
    few elements to measure, the maxima decide.

    Args:
        ds: the dataset; a ``MapDataset`` stands for its ``to_iter_dataset()``.
        ram_budget_mb: MiB that may be used. No more than what the process's control group (its
            container) has left counts, which alone is the budget for ``None``.
        max_workers: the most workers; by default the number of CPUs that this process may use (by
            affinity and control group).
        max_buffer_size: the most elements in a buffer; 1000 by default.
        samples_to_check: number of elements to look at, at least 1.

    Returns:
        A configuration of which 0 workers and buffers of 0 elements are possible, after a warning:
        one element is more than the budget.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is out of range.

    Example:
        >>> import numpy as np
        >>> ds = MapDataset.range(100).map(lambda i: np.zeros(2**17))  # 1 MiB each
        >>> config = pick_performance_config(
        ...     ds, ram_budget_mb=20, max_workers=8, max_buffer_size=None
        ... )
        >>> config.multiprocessing_options.num_workers, config.read_options.prefetch_buffer_size
        (8, 20)
    """
    if not isinstance(ds, MapDataset | IterDataset):
        raise TypeError(
            f"ds must be a MapDataset or IterDataset, got {shown(ds)} of type {type(ds).__name__}"
        )
    for node in ancestors(ds):
        if isinstance(node, DatasetIterator):
            raise TypeError(
                f"ds must not be an iterator, which would be moved, got {node}: pass the dataset"
                " that it reads"
            )
    if ram_budget_mb is None:
        budget = available_memory()
    else:
        budget = min(_check_budget(ram_budget_mb) * _MIB, available_memory())
    worker_cap = (
        usable_cpus() if max_workers is None else as_int("max_workers", max_workers, minimum=0)
    )
    if missing_calls():  # there can be no worker processes on this system
        worker_cap = 0
    buffer_cap = (
        1000 if max_buffer_size is None else as_int("max_buffer_size", max_buffer_size, minimum=0)
    )
    samples = as_int("samples_to_check", samples_to_check, minimum=1)
    if isinstance(ds, MapDataset):
        ds = PrefetchIterDataset(ds, _DIRECT)
    read = [node for node in ancestors(ds) if isinstance(node, PrefetchIterDataset)]
    return PerformanceConfig(
        multiprocessing_options=MultiprocessingOptions(
            _num_fitting("num_workers", [ds], budget, worker_cap, samples)
        ),
        read_options=ReadOptions(
            prefetch_buffer_size=_num_fitting(
                "prefetch_buffer_size", read, budget, buffer_cap, samples
            )
        ),
    )


def _check_budget(megabytes: Any) -> float:
    if isinstance(megabytes, str) or not hasattr(megabytes, "__float__"):
        raise TypeError(
            f"ram_budget_mb must be a number or None, got {megabytes!r:.200} of type"
            f" {type(megabytes).__name__}"
        )
    if not megabytes >= 0:  # NaN neither
        raise ValueError(f"ram_budget_mb must be a non-negative number or None, got {megabytes}")
    return float(megabytes)


def _num_fitting(name: str, datasets: Sequence[Any], budget: float, cap: int, samples: int) -> int:
    """Returns how many elements of each of ``datasets`` fit into ``budget`` bytes together."""
    sizes = [
        size for ds in datasets for size in _first_sizes(ds, math.ceil(samples / len(datasets)))
    ]
    if len(sizes) < samples or not sum(sizes):
        _log.warning(
            "%d elements of %d are too few to tell their size: %s is its maximum, %d",
            len(sizes),
            samples,
            name,
            cap,
        )
        return cap
    needed = sum(sizes) / len(sizes) * len(datasets)
    if budget < needed and cap:
        _log.warning(
            "%s is 0: %.1f MiB are too few for an element of %.1f MiB",
            name,
            budget / _MIB,
            needed / _MIB,
        )
    return int(min(budget / needed, cap))


def _first_sizes(ds: DatasetNode, num: int) -> Iterator[int]:
    with contextlib.closing(iterate(_Unbuffered().replaced(ds))) as it:
        yield from map(num_bytes_of, itertools.islice(it, num))


_COMPUTED_ELSEWHERE = (
    ThreadPrefetchIterDataset,
    MultithreadPrefetchIterDataset,
    MultiprocessPrefetchIterDataset,
    StreamOrderIterDataset,
)


class _Unbuffered(PipelineEditor):
    """Lets everything be computed in this thread, and not before it is requested."""

    def _replace(self, ds: DatasetNode) -> Any:
        if isinstance(ds, PrefetchIterDataset):
            return PrefetchIterDataset(
                ds._gm_parent, _DIRECT, allow_nones=parameters_of(ds).allow_nones
            )
        if isinstance(ds, InterleaveIterDataset):
            parts = ds._gm_datasets
            if isinstance(parts, MapDataset):
                parts = MapDataset.map(parts, _unbuffered_part)
            else:
                parts = [_unbuffered_part(part) for part in parts]
            cycle_length = parameters_of(ds).cycle_length
            return InterleaveIterDataset(
                parts, cycle_length=cycle_length, make_iter_buffer_size=0, iter_buffer_size=0
            )
        if isinstance(ds, _COMPUTED_ELSEWHERE):
            return self.replaced(ds._gm_parents[0])
        return self._over_replaced(ds) if isinstance(ds, IterDataset) and ds._gm_parents else ds


def _unbuffered_part(ds: DatasetNode) -> Any:
    # By an editor of its own: it may be made again whenever it is asked for, and an id then be that
    # of another one.
    return _Unbuffered().replaced(
        PrefetchIterDataset(ds, _DIRECT) if isinstance(ds, MapDataset) else ds
    )
