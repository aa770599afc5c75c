"""``multithread_prefetch``: the pipeline so far, run by threads."""

from __future__ import annotations

from typing import TypeVar

from gristmill.core.errors import as_int
from gristmill.core.options import (
    AUTO_LANES,
    MultiprocessingOptions,
    NumberOrAuto,
    check_max_workers,
    number_or_auto,
)
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.executors.pools import SharingExecutor
from gristmill.dataset.executors.protocol import Executor
from gristmill.dataset.executors.threads import ThreadExecutor
from gristmill.dataset.mixtures.shares import warn_if_one_sided
from gristmill.dataset.stages.mp_prefetch import LanesIterDataset, tuned_executor

T = TypeVar("T")


def multithread_prefetch(
    ds: IterDataset[T],
    num_threads: NumberOrAuto,
    buffer_size: int,
    sequential_slice: bool = False,
    max_workers: int | None = None,
) -> IterDataset[T]:
    """Returns a dataset of the same elements, computed by threads.

    Each thread runs the whole pipeline before this point on its share, as a worker process of
    ``IterDataset.mp_prefetch`` does, with the same order, states and errors: outputs are taken from
    the threads in turn, an error stays until the state is set. The datasets are copied for each
    thread; sources, transformations and stages upstream of ``to_iter_dataset`` are shared, and are
    used by several threads at once. Threads start with the first element.

    Args:
        ds: the dataset.
        num_threads: number of threads; 0 returns ``ds`` itself. ``"auto"``: the stream is that of
            16, and the number of threads that compute it is found while they run, as that of
            ``MultiprocessingOptions("auto")``.
        buffer_size: the most outputs for each thread to be ahead; 0 computes in the calling thread.
        sequential_slice: give each thread a contiguous part of the source instead of every
            ``num_threads``-th element.
        max_workers: the largest number for ``"auto"``; 0 computes in the calling thread.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is negative, ``max_workers`` is given beside a number, or the pipeline
            cannot be shared out.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(7).to_iter_dataset().batch(2)
        >>> list(multithread_prefetch(ds, num_threads=3, buffer_size=1))
        [array([0, 3]), array([1, 4]), array([2, 5]), array([6])]
    """
    num_threads = number_or_auto("num_threads", num_threads, 0)
    max_workers = check_max_workers(max_workers, num_threads, 0, "num_threads")
    buffer_size = as_int("buffer_size", buffer_size, minimum=0)
    if not num_threads:
        return ds
    computed: IterDataset[T] = MultithreadPrefetchIterDataset(
        ds, num_threads, buffer_size, sequential_slice, max_workers
    )
    if not sequential_slice:
        warn_if_one_sided(ds, lanes_of_threads(num_threads), "multithread_prefetch", "thread")
    return computed


class MultithreadPrefetchParameters(Parameters):
    num_threads: NumberOrAuto = field(in_checkpoint=False)
    buffer_size: int = field(in_checkpoint=False)
    sequential_slice: bool = field(in_checkpoint=False, in_repr=False)
    max_workers: int | None = field(in_checkpoint=False, in_repr=False)


def lanes_of_threads(num_threads: NumberOrAuto) -> int:
    """Return the number of shares of the stream."""
    return AUTO_LANES if num_threads == "auto" else num_threads


class MultithreadPrefetchIterDataset(LanesIterDataset[T]):
    """The parent's elements, computed by ``num_threads`` threads, each of which has every
    ``num_threads``-th one.

    Order: one output of each thread in turn. State: that of every thread's pipeline after its last
    delivered output. Cost: handing over outputs from thread to thread.
    """

    _gm_parameters: MultithreadPrefetchParameters
    _gm_states_have_place = True

    def __init__(
        self,
        parent: object,
        num_threads: NumberOrAuto,
        buffer_size: int,
        sequential_slice: bool = False,
        max_workers: int | None = None,
    ) -> None:
        super().__init__(parent, lanes_of_threads(num_threads), sequential_slice)
        self._gm_parameters = MultithreadPrefetchParameters(
            num_threads, buffer_size, self._sequential_slice, max_workers
        )
        self._check_division()

    def _executor(self) -> Executor:
        given = self._gm_parameters
        if given.num_threads != "auto" or not given.buffer_size:
            return ThreadExecutor(self._num_lanes, given.buffer_size)
        options = MultiprocessingOptions(
            "auto",
            given.buffer_size,
            num_lanes=self._num_lanes,
            executor="threads",
            max_workers=given.max_workers,
        )
        return tuned_executor(options, None, SharingExecutor)
