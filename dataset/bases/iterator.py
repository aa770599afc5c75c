"""``DatasetIterator``, the base of users' iterators and of ours. Ours are
``engine.iterators.StreamIterator``, but for those of plain Python iterators.
"""

from __future__ import annotations

import abc
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from typing import Any, Self, TypeVar

from gristmill.core.cached import cached, replaceable
from gristmill.core.claim import Claim
from gristmill.core.errors import StateMismatchError, as_int
from gristmill.core.exiting import closing_when_dropped
from gristmill.core.state import state_from_text, state_to_text
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.length import elements_left
from gristmill.dataset.bases.node import Node, as_parents
from gristmill.dataset.bases.observing import (
    Instrument,
    Observable,
    Wrap,
    divert_next,
    running_upstream,
)
from gristmill.dataset.faults.budget import FaultCounts
from gristmill.dataset.watching import watcher

R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)

_UNUSED = IteratorContext(joined=None)  # that of an iterator which has none yet


class DatasetIterator(Node, Iterator[T_co], abc.ABC):
    """An iterator that knows its position: ``get_state`` is small, ``set_state`` continues exactly
    from there.

    Law: after ``it.set_state(s)`` with ``s`` from ``get_state`` of an iterator of an equal
    pipeline, ``it`` delivers the elements that followed when ``s`` was taken, regardless of earlier
    and later calls of either iterator. States are JSON-able.

    An iterator is used by one thread at a time. When ``next`` raises, nothing is lost: the
    following ``next`` tries the same element again. A context manager: leaving it closes the
    iterator.

    Subclasses define ``__next__``, ``get_state`` and ``set_state``.

    Args:
        parents: the iterator or iterators that this one draws from.
    """

    _gm_node_family = "DatasetIterator"
    _gm_parents: tuple[DatasetIterator[Any], ...] = ()
    # A stage here or upstream tolerates faults, so that its counts are in the state.
    _gm_counts_faults = False
    _gm_closed = False
    # ``close`` may be called while another thread is in ``next``, which it ends if that waits
    _gm_closes_anytime = False
    _gm_own_ctx: IteratorContext | None = None
    _gm_definition: Any = None  # the dataset that it is of
    _gm_engine: Observable = Observable()  # its stream, if it is of one
    _gm_observed: Any = None  # its observer, and its part of the pipeline (``dataset.watching``)
    _gm_current_instrument: Instrument | None = None  # of an object of a user's class

    def __init__(self, parents: DatasetIterator[Any] | Iterable[DatasetIterator[Any]] = ()) -> None:
        self._gm_claim = Claim()
        if parents != ():  # fast for the components of mixtures
            self._gm_parents = as_parents(parents, DatasetIterator)
            if any([parent._gm_counts_faults for parent in self._gm_parents]):
                self._gm_counts_faults = True
        if self._gm_parents:
            self._gm_share_context(merged_contexts(self._gm_parents))
        elif (joined := watcher()) is not None:
            self._gm_share_context(IteratorContext(joined=joined))

    @cached
    def _gm_reads_once(self) -> bool:
        """True if a source may not give the same record again."""
        return any([parent._gm_reads_once for parent in self._gm_parents])

    @replaceable
    def _ctx(self) -> IteratorContext:
        return self._gm_ctx

    @property
    def _gm_ctx(self) -> IteratorContext:
        if self._gm_own_ctx is None:
            self._gm_share_context(IteratorContext())
        assert self._gm_own_ctx is not None
        return self._gm_own_ctx

    def _gm_share_context(self, ctx: IteratorContext) -> None:
        if self._gm_own_ctx is not ctx:
            self._gm_own_ctx = ctx
            if ctx.joined is not None:
                ctx.joined(self)
            share_context(self._gm_parents, ctx)

    def _gm_set_instrument(self, wrap: Wrap | None) -> None:
        """Let elements be taken through what ``wrap`` makes; ``None``: as without it."""
        divert_next(self, wrap)

    def __iter__(self) -> DatasetIterator[T_co]:
        return self

    @abc.abstractmethod
    def __next__(self) -> T_co:
        """Returns the next element; raises ``StopIteration`` at the end."""

    def __len__(self) -> int:
        """Returns the number of elements that it has not delivered yet, for progress bars.

        Raises:
            TypeError: the number does not follow from the stages and the position.
        """
        return elements_left(self, self._gm_definition, self._get_next_index)

    def __bool__(self) -> bool:
        return True  # also at the end

    @abc.abstractmethod
    def get_state(self) -> Any:
        """Returns the position after the last delivered element, as JSON-able data.

        Not to be called by another thread, or by a signal handler, while ``next`` runs: positions
        of several stages may not belong together then. Hold a lock, or set a flag in the handler.
        """

    @abc.abstractmethod
    def set_state(self, state: object) -> None:
        """Continues from ``state``, backwards or forwards, also after the end or an error."""

    def start_prefetch(self) -> None:
        """Begins work in the background, where the pipeline has any, without waiting for it. May be
        called again.
        """
        for parent in self._gm_parents:
            parent.start_prefetch()

    def faults(self) -> FaultCounts:
        """Return what ``tolerate`` has skipped or replaced so far, in this run and those that it
        continues.

        Returns:
            ``total``, the number of elements; ``tried``, of how many; ``rate``, their share of
            these, at least of 1000; and ``last``, the last 20 of this run, each with
            ``record_key``, ``stage`` and ``error``.

        Example:
            >>> from gristmill.dataset import MapDataset
            >>> it = iter(
            ...     MapDataset.source([1, 0, 2])
            ...     .map(lambda x: 2 // x)
            ...     .tolerate(max_total=1, max_rate=None)
            ... )
            >>> list(it), it.faults().total, it.faults().last[0].record_key
            ([2, 1], 1, 1)
        """
        from gristmill.dataset.faults.counts import counted

        # An iterator without a state can skip nothing, unless it has other parents that can.
        return counted(self.get_state() if self._gm_counts_faults else snapshot(self))

    def counts(self) -> dict[str, dict[str, int]]:
        """Returns what the state says of components of the mixture upstream, the nearest one, by
        name: how many ``"elements"`` were drawn, their ``"lengths"`` together, the ``"epochs"``
        before this one. Elements that a stage holds count when they have come. Of a mixture of map
        datasets, where they are read in its order and in this process.
        """
        from gristmill.dataset.descriptions.draw_counts import counts_of

        return counts_of(self)

    def _gm_expect(self, rate: float, due: float | None) -> None:
        """Notes the share ``rate`` of all draws; starts reading ahead unless ``due`` is ``None``.

        The first draw is expected after ``due`` draws.
        """
        for parent in self._gm_parents:
            parent._gm_expect(rate, due)

    def resize(self, num_workers: int) -> None:
        """Let another number of workers compute the elements from now on: processes, threads or Ray
        actors.

        May be called at any time, by any thread, and does not wait. Elements, their order and
        states stay the same. A lane goes over to another worker between two outputs, when the other
        one runs and what was computed ahead for the lane has been delivered.

        Args:
            num_workers: the number of workers, at most the number of lanes (``num_lanes``), and at
                least 1. With ``"auto"``, 0 computes in this process.

        Raises:
            ValueError: there are fewer lanes, or no workers, or there have to be some.
            TypeError: ``num_workers`` is no integer.
        """
        if not self._gm_resize(as_int("num_workers", num_workers, minimum=0)):
            raise ValueError(
                f"{self} has no workers that can be resized. Make the pipeline with mp_prefetch and"
                " options of at least one worker, and with num_lanes if you need more workers"
                " later"
            )

    def _gm_resize(self, num_workers: int) -> bool:
        """Resizes what upstream can be resized; false if there is nothing."""
        return any([it._gm_resize(num_workers) for it in running_upstream(self)])

    def close(self) -> None:
        """Releases threads and other resources, of the parents too. May be called again; ``next``
        raises from then on.
        """
        self._gm_closed = True
        for parent in self._gm_parents:
            parent.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise TypeError(
            f"{self} cannot be copied or pickled: save get_state(), and pickle or copy the dataset"
        )

    # Iterators of the library release their resources without it; a user's ``close`` may do more.
    # Parents are not closed, because they may have other users.
    __del__ = closing_when_dropped(close)

    def skip_failed(self) -> None:
        """Moves past the output whose ``next`` failed: the element, or the whole batch.

        Raises:
            ValueError: the last ``next`` did not fail.
        """
        raise ValueError(f"there is nothing to skip: the last next() of {self} did not fail")

    async def save(self, directory: Any) -> Awaitable[None]:
        """Takes the state now; awaiting the result writes it to this process's file in
        ``directory``.

        The protocol of Orbax's ``StatefulCheckpointable``.

        Args:
            directory: an object whose ``await_creation()`` gives the path to write to.
        """
        from gristmill.dataset.descriptions.pipeline import describe

        state = self._gm_alone(self.get_state)
        return write_when_created(directory, state_to_text(state), describe(self))

    async def load(self, directory: Any) -> Awaitable[None]:
        """Awaiting the result reads this process's file in ``directory`` and continues from the
        state in it.

        Raises:
            ValueError: there is no such file (also when the number of processes changed), or it
                belongs to another pipeline.
        """
        import asyncio

        from gristmill.dataset.descriptions.pipeline import describe
        from gristmill.dataset.states.files import read_checkpoint

        async def restore() -> None:
            text = await asyncio.to_thread(
                read_checkpoint, directory, describe(self), self._gm_merged_state
            )
            self.set_state(state_from_text(text, self))

        return restore()

    def _gm_alone(self, use: Callable[[], R]) -> R:
        """Return ``use()``, during which other threads may not use this."""
        return use()

    def _gm_before_last(self) -> Any:
        """Returns a state from which the last output comes again; ``None`` without one."""
        raise NotImplementedError(
            f"{self} does not know where it was before its last output: save the state before it"
        )

    def _gm_merged_state(self, states: object) -> Any:
        """Returns the state that continues where all shards stopped, whose number was another one.
        Optional.

        Args:
            states: those of all shards; or, by their number, of all the datasets that they share
                out.
        """
        raise StateMismatchError(
            f"{self} cannot continue with another number of shards or processes: only"
            " ElasticIterator and global_batch can, and steps after them that keep nothing for"
            " later"
        )

    def _get_next_index(self) -> int:
        """Returns the index of the next element (see ``get_next_index``). Optional."""
        raise NotImplementedError(
            f"{self} does not know the index of its next element: it does not follow from its"
            " position"
        )

    def _set_next_index(self, index: int) -> None:
        """Continues with the element at ``index``, without computing those before it. Optional."""
        raise NotImplementedError(
            f"{self} cannot jump to an index: it would have to compute all elements before it"
        )

    def _gm_has_gaps(self) -> bool:
        """True if there may be no element at some of the indices of ``_get_next_index``."""
        return any([parent._gm_has_gaps() for parent in self._gm_parents])

    def _gm_skip(self) -> None:
        """Advances past the next output, although computing it fails."""
        raise NotImplementedError(
            f"{self} cannot move past a failed element: its next() fails there again. Let it move"
            " past the element before it raises the error"
        )


class PlainIterator(DatasetIterator[T_co]):
    """Wraps a plain Python iterator, which has no state to save, so that our stages can draw from
    it.

    Args:
        iterator: the plain one.
        ds: the dataset that it is of.
    """

    def __init__(self, iterator: Iterator[T_co], ds: object) -> None:
        super().__init__()
        self._iterator = iterator
        name = str(getattr(iterator, "__qualname__", type(iterator).__qualname__))
        self._name = (
            type(ds).__name__ if name.endswith(f"{type(ds).__qualname__}.__iter__") else name
        )

    def __str__(self) -> str:
        return self._name

    def __next__(self) -> T_co:
        return next(self._iterator)

    def get_state(self) -> Any:
        raise NotImplementedError(
            f"a plain {type(self._iterator).__name__} has no state: return a DatasetIterator from"
            " __iter__ to save its position"
        )

    def set_state(self, state: object) -> None:
        self.get_state()


def merged_contexts(iterators: Sequence[DatasetIterator[Any]]) -> IteratorContext:
    """Returns the context that several iterators share from now on."""
    shared = iterators[0]._gm_ctx
    contexts = {id(ctx): ctx for ctx in [it._gm_own_ctx or _UNUSED for it in iterators]}.values()
    if len({ctx.numbers for ctx in contexts}) > 1:
        raise ValueError("the parents of an iterator must belong to the same worker")
    for ctx in contexts:
        shared.options = shared.options.merge(ctx.options)
    return shared


def share_context(iterators: Iterable[DatasetIterator[Any]], ctx: IteratorContext) -> None:
    """Lets ``iterators``, and those upstream, be of the pipeline that has ``ctx``."""
    for it in iterators:
        it._gm_share_context(ctx)


def iterate(ds: Any) -> DatasetIterator[Any]:
    """Returns an iterator of ``ds``, a plain one wrapped."""
    it = ds.__iter__()
    if isinstance(it, DatasetIterator):
        return it
    if isinstance(it, Iterator):
        return PlainIterator(it, ds)
    raise TypeError(
        f"{type(ds).__name__}.__iter__ must return an iterator, got {type(it).__name__}"
    )


def snapshot(it: DatasetIterator[Any]) -> Any:
    """Returns the state to return to if something fails; ``None`` for an iterator that has none."""
    try:
        return it.get_state()
    except NotImplementedError:
        # A user's iterator need not have a state: ``None`` says so, and restoring is refused.
        return None


async def write_when_created(
    directory: Any, state: str, description: dict[str, Any] | None
) -> None:
    """Writes a checkpoint as soon as Orbax has made the directory."""
    import asyncio  # 10 ms that only programs with an event loop should pay

    from gristmill.dataset.states.files import write_checkpoint

    path = await directory.await_creation()
    await asyncio.to_thread(write_checkpoint, path, state, description)
