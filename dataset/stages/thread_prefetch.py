"""``ThreadPrefetchIterDataset``: a thread that computes elements ahead."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, TypeVar

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.dataset.ahead.pullahead import Failure, PullAhead
from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, go_to, iterate, skip_one, snapshot
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.next_index import move_to_index, next_index_of
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.bases.origins import Place, place_of
from gristmill.dataset.bases.parameters import Parameters, aside
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.states.values import LinearStates, copied
from gristmill.dataset.telling.failures import has_arrived

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_CLOSE_SECONDS = 0.2  # how long ``close`` waits for the thread to come out of the parent


class CheckpointableIterator(Protocol[T_co]):
    """What a thread can prefetch from; it may also have ``start_prefetch()`` and ``close()``."""

    def __next__(self) -> T_co: ...

    def get_state(self) -> Any: ...

    def set_state(self, state: Any) -> None: ...


class ThreadPrefetchParameters(Parameters):
    prefetch_buffer_size: int = aside(in_text=True)

    def __post_init__(self) -> None:
        self._replace(prefetch_buffer_size=as_int("prefetch_buffer_size", self.prefetch_buffer_size, minimum=0))


class ThreadPrefetchIterDataset(IterDataset[T]):
    """Returns the parent's elements, computed ahead by one thread.

    Order: the parent's. State: the parent's, after the last delivered element; so this stage can be put in and taken out without
    effect on checkpoints. Cost: handing over a block of small elements, or one large one, from thread to thread.

    The thread starts with the first element or with ``start_prefetch()``. Errors come in order, behind the elements before them;
    the following ``next`` tries the same element again.

    Args:
        parent: the dataset.
        prefetch_buffer_size: the most elements to be ahead; 0 computes in the calling thread.

    Raises:
        TypeError: ``prefetch_buffer_size`` is not an integer.
        ValueError: it is negative.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(5).to_iter_dataset().map(lambda x: x * x)
        >>> list(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2))
        [0, 1, 4, 9, 16]
    """

    _tells_place = True
    _element_spec = spec_of_first_parent
    _num_elements = same_number
    _parameters: ThreadPrefetchParameters

    def __init__(self, parent: IterDataset[T] | MapDataset[T], *, prefetch_buffer_size: int) -> None:
        super().__init__(parent)
        self._parameters = ThreadPrefetchParameters(prefetch_buffer_size)

    def _traced(self, tracing: Tracing) -> Any:
        return tracing.of(self._parent)  # which has the same states

    def __iter__(self) -> DatasetIterator[T]:
        return ThreadPrefetchDatasetIterator(iterate(self._parent), self._parameters.prefetch_buffer_size)


class ThreadPrefetchDatasetIterator(BlockIterator[T]):
    """The elements of an iterator, computed ahead by one thread.

    Nobody else may use ``parent`` from then on. ``close`` waits for the thread for a moment; if it is stuck in the parent, the
    parent is closed as soon as it comes out.

    Args:
        parent: a ``DatasetIterator``, or any object with ``__next__``, ``get_state`` and ``set_state``.
        prefetch_buffer_size: the most elements to be ahead; 0 computes in the calling thread.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: ``prefetch_buffer_size`` is negative.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> it = ThreadPrefetchDatasetIterator(iter(MapDataset.range(5)), 2)
        >>> next(it), next(it), it.get_state()
        (0, 1, {'next_index': 2})
    """

    _flow = "one_to_one"
    _is_costly_to_restore = True
    _work_category = "prefetch"
    _stays_on_error = True
    _before: Any = None  # the parent's state before the last output, where there is no thread
    _stage_name: ClassVar = None  # it does nothing to elements or states
    _ahead: PullAhead | None = None  # stopped, or at an error or the end, if it is not at work
    _after: tuple[Sequence[Any], int] | None = None  # states, and which of them is that of this iterator; else it is the parent's
    _index: int | None = None  # of the next element, from the first time on that it is asked for
    _finalizer: Any = None

    def __init__(self, parent: CheckpointableIterator[T], prefetch_buffer_size: int) -> None:
        super().__init__(parent if isinstance(parent, DatasetIterator) else ForeignIterator(parent))
        self._parameters = ThreadPrefetchParameters(prefetch_buffer_size)
        self._buffer_size = self._parameters.prefetch_buffer_size
        self._source = self._parent
        self._budget_waits = BudgetWaits()
        self._closes_anytime = self._buffer_size > 0

    def _take(self, n: int) -> list[Any]:
        elements, failure = self._try_take(n)
        if failure is not None:
            error, traceback = failure
            try:
                raise error.with_traceback(traceback)
            finally:
                del error, failure  # its traceback refers to this frame
        return elements

    def _try_take(self, n: int) -> tuple[list[Any], Failure | None]:
        """What ``_take(n)`` returns, or what it raises."""
        if not self._buffer_size:
            return self._try_take_directly(n)
        ahead = self._running()
        ready, failure = ahead.wait(n)
        fetched = ready[:n]
        if len(fetched) < n and failure is not None and not isinstance(failure[0], StopIteration):
            self._discard()  # it has ended, and must not refer to the error when that refers to this iterator
            return [], failure
        elements = [x for x, _, _ in fetched]
        num = len(elements)
        after = fetched[-1][1:] if fetched else self._after
        if num < n and failure is not None and (final := getattr(failure[0], "value", None)) is not None:
            after = [final], 0  # the end, which was found behind faults
        index = None if self._index is None else self._index + num
        # From here on nothing is called, so that an interrupt comes before all of it or after it.
        if num:
            self._last = self._after
        self._after = after
        self._index = index
        ahead.wanted = 0
        del ready[:num]
        return elements, None

    def _try_take_directly(self, n: int) -> tuple[list[Any], Failure | None]:
        before = snapshot(self._source)
        try:
            elements = self._source._take(n)
            if elements:
                self._before = before
            if len(elements) < n and before is not None and self._after is None and not self._counts_faults:
                # The end: the state stays that after the last element, although the parent may have gone on looking for more.
                if elements:
                    after = snapshot(self._source)
                    if LinearStates.between(before, after, len(elements)) is None:
                        go_to(self._source, before)
                        elements = self._source._take(len(elements))
                        after = snapshot(self._source)
                    before = after
                self._after = [copied(before)], 0
            return elements, None
        except BaseException as error:
            go_to(self._source, before)
            if isinstance(error, Exception):
                has_arrived(error)
                return [], (error, error.__traceback__)
            raise

    def _work_ahead(self) -> WorkAhead:
        ahead, num_threads = self._ahead, min(1, self._buffer_size)
        return WorkAhead(num_threads > 0, num_threads, 0 if ahead is None else ahead.num_ready)

    def _running(self) -> PullAhead:
        if self._closed:
            raise ValueError(f"{self} is closed")
        ahead = self._ahead
        if ahead is None or ahead.is_stopped:
            self._stop()
            state = copied(self._state())
            if ahead is not None and ahead.has_begun and state is None:
                raise ValueError(
                    f"{self} cannot go on in a forked process: the iterator before it, {self._source}, has no state to return to"
                )
            if self._after is None:
                self._after = [copied(snapshot(self._source))], 0
                self._before = self._after[0][0]
            ahead = PullAhead(self._source, state, self._buffer_size, self._ctx.budget, self._budget_waits)
            self._finalizer = weakref.finalize(self, ahead.stop)
            self._ahead = ahead
            ahead.start()
        return ahead

    def _stop(self) -> None:
        """Forgets what is ready; then no thread is in the parent, which may be anywhere if there is a state to return to."""
        if self._ahead is not None:
            self._ahead.stop()
            self._ahead.wait_until_outside()
            self._finalizer.detach()

    def _discard(self) -> None:
        self._stop()
        self._ahead = None

    def start_prefetch(self) -> None:
        if self._buffer_size:
            self._running()
        else:
            super().start_prefetch()

    def _expect(self, rate: float, due: float | None) -> None:
        if not self._buffer_size:
            super()._expect(rate, due)
            return
        if self._ahead is None:  # else the parent belongs to the thread
            super()._expect(rate, None)
        if due is not None and not self._closed:
            self._running()

    def close(self) -> None:
        self._close(_CLOSE_SECONDS)

    def _close(self, seconds: float) -> None:
        self._closed = True
        if self._ahead is None:
            self._source.close()
        else:
            self._ahead.close(seconds)

    def __del__(self) -> None:
        pass  # the finalizer stops the thread, where close would wait for it

    def _position(self) -> tuple[Sequence[Any], int]:
        """The state, at a place in a sequence of states."""
        return self._after or ([snapshot(self._source)], 0)

    def _state(self) -> Any:
        return None if self._after is None else self._after[0][self._after[1]]

    def get_state(self) -> Any:
        state = self._state()
        return copied(self._source.get_state() if state is None else state)

    def _before_last(self) -> Any:
        if not self._buffer_size or self._last is None:
            return copied(self._before)
        return copied(self._last[0][self._last[1]])

    def _forget_last(self) -> None:
        self._last = self._before = None

    def _restore(self, state: Any) -> None:
        self.get_state()  # of an iterator without states, which is not to lose what is ready: an error
        self._discard()
        self._source.set_state(state)
        self._after = self._index = None

    def _place(self) -> Place | None:
        place, state = place_of(self._source), self._state()
        while isinstance(state, dict) and "parent" in state:
            state = state["parent"]
        if place is None or not isinstance(state, dict) or "next_index" not in state:
            return place
        return place.replaced(last=state["next_index"] - 1)  # the parent is ahead of it

    def _merged_state(self, states: Any) -> Any:
        return self._source._merged_state(states)

    def _get_next_index(self) -> int:
        if self._index is not None:
            return self._index
        if self._after is not None:  # the parent may be anywhere
            state = self._state()
            if state is None:
                return super()._get_next_index()
            self._discard()
            go_to(self._source, copied(state))
        index = next_index_of(self._source)
        if self._buffer_size and not self._has_gaps():
            self._index = index
        return index

    def _set_next_index(self, index: int) -> None:
        if self._after is not None and self._state() is None:  # what is ready cannot be read again
            super()._set_next_index(index)
        self._discard()
        move_to_index(self._source, index)
        self._after = self._index = None

    def _skip(self) -> None:
        self._discard()
        state = self._state()
        go_to(self._source, copied(state))
        skip_one(self._source)
        self._after = self._index = None


class ForeignIterator(DatasetIterator[T]):
    """An iterator of another library, as one of ours."""

    def __init__(self, iterator: CheckpointableIterator[T]) -> None:
        super().__init__()
        missing = [name for name in ("__next__", "get_state", "set_state") if not hasattr(iterator, name)]
        if missing:
            raise TypeError(f"parent must be an iterator with get_state and set_state, got {shown(iterator)} without {missing}")
        self._iterator = iterator

    def __str__(self) -> str:
        return str(getattr(self._iterator, "__qualname__", type(self._iterator).__qualname__))

    def __next__(self) -> T:
        return self._iterator.__next__()

    def get_state(self) -> Any:
        return self._iterator.get_state()

    def set_state(self, state: Any) -> None:
        self._iterator.set_state(state)

    def _get_next_index(self) -> int:
        raise ValueError(f"an iterator of class {type(self._iterator).__name__} knows no index: it is not a DatasetIterator")

    def _set_next_index(self, index: int) -> None:
        self._get_next_index()

    def start_prefetch(self) -> None:
        getattr(self._iterator, "start_prefetch", _do_nothing)()

    def close(self) -> None:
        getattr(self._iterator, "close", _do_nothing)()

    def __del__(self) -> None:
        pass  # the iterator is somebody else's


def _do_nothing() -> None: ...
