"""``ThreadPrefetchIterDataset``: a thread that computes elements ahead."""

from __future__ import annotations

from functools import partial
from typing import Any, ClassVar, Protocol, TypeVar

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.dataset.ahead.pullahead import PullAhead
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.iterators import Given, StreamIterator, unusable
from gristmill.dataset.engine.prefetch import Prefetch

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_CLOSE_SECONDS = 0.2  # how long ``close`` waits for the thread to come out of the parent


class CheckpointableIterator(Protocol[T_co]):
    """Interface of iterators from which a thread can prefetch; they may also have
    ``start_prefetch()`` and ``close()``.
    """

    def __next__(self) -> T_co: ...

    def get_state(self) -> Any: ...

    def set_state(self, state: object) -> None: ...


class ThreadPrefetchParameters(Parameters):
    prefetch_buffer_size: int = field(in_checkpoint=False)

    def __post_init__(self) -> None:
        self._replace(
            prefetch_buffer_size=as_int(
                "prefetch_buffer_size", self.prefetch_buffer_size, minimum=0
            )
        )


class ThreadPrefetchIterDataset(IterDataset[T]):
    """Returns the parent's elements, computed ahead by one thread.

    Order: the parent's. State: the parent's, after the last delivered element; so this stage can be
    put in and taken out without effect on checkpoints. Cost: handing over a block of small
    elements, or one large one, from thread to thread.

    The thread starts with the first element or with ``start_prefetch()``. Errors come in order,
    after the elements before them; the following ``next`` tries the same element again.

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

    _gm_states_have_place = True
    _element_spec = spec_of_first_parent
    _gm_num_elements = same_number
    _gm_parameters: ThreadPrefetchParameters

    def __init__(
        self, parent: IterDataset[T] | MapDataset[T], *, prefetch_buffer_size: int
    ) -> None:
        super().__init__(parent)
        self._gm_parameters = ThreadPrefetchParameters(prefetch_buffer_size)

    def _gm_traced(self, tracing: Tracing) -> Any:
        return tracing.of(self._gm_parent)  # which has the same states

    def __iter__(self) -> DatasetIterator[T]:
        return ThreadPrefetchDatasetIterator(
            iterate(self._gm_parent), self._gm_parameters.prefetch_buffer_size
        )


class ThreadPrefetchDatasetIterator(StreamIterator[T]):
    """The elements of an iterator, computed ahead by one thread.

    The caller must not use ``parent`` from then on. ``close`` waits for the thread for a moment; if
    it is stuck in the parent, the parent is closed as soon as it comes out.

    Args:
        parent: a ``DatasetIterator``, or any object with ``__next__``, ``get_state`` and
            ``set_state``.
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

    # It does nothing to elements or states.
    _gm_stage_name: ClassVar = None  # type: ignore[assignment]
    _gm_engine: Prefetch

    def __init__(self, parent: CheckpointableIterator[T], prefetch_buffer_size: int) -> None:
        it = parent if isinstance(parent, DatasetIterator) else ForeignIterator(parent)
        parameters = ThreadPrefetchParameters(prefetch_buffer_size)
        super().__init__(
            Given(parameters), [it], partial(Prefetch, size=parameters.prefetch_buffer_size, it=it)
        )

    @property
    def _ahead(self) -> PullAhead | None:
        return self._gm_engine.ahead

    def start_prefetch(self) -> None:
        if self._gm_closed and self._gm_engine.size:
            raise unusable(self)
        super().start_prefetch()

    def close(self) -> None:
        self.close_within(_CLOSE_SECONDS)

    def close_within(self, seconds: float) -> None:
        """Close, and wait for the thread for so long at most."""
        self._gm_closed, self._advance = True, None
        if "_gm_engine" in vars(self):
            self._gm_engine.close_within(seconds)


class ForeignIterator(DatasetIterator[T]):
    """An iterator of another library, as one of ours."""

    def __init__(self, iterator: CheckpointableIterator[T]) -> None:
        super().__init__()
        missing = [
            name for name in ("__next__", "get_state", "set_state") if not hasattr(iterator, name)
        ]
        if missing:
            raise TypeError(
                f"parent must be an iterator with get_state and set_state, got {shown(iterator)}"
                f" without {missing}"
            )
        self._iterator = iterator

    def __str__(self) -> str:
        return str(getattr(self._iterator, "__qualname__", type(self._iterator).__qualname__))

    def __next__(self) -> T:
        return self._iterator.__next__()

    def get_state(self) -> Any:
        return self._iterator.get_state()

    def set_state(self, state: object) -> None:
        self._iterator.set_state(state)

    def _get_next_index(self) -> int:
        raise ValueError(
            f"an iterator of class {type(self._iterator).__name__} knows no index: it is not a"
            " DatasetIterator"
        )

    def _set_next_index(self, index: int) -> None:
        self._get_next_index()

    def start_prefetch(self) -> None:
        getattr(self._iterator, "start_prefetch", _do_nothing)()

    def close(self) -> None:
        getattr(self._iterator, "close", _do_nothing)()

    def __del__(self) -> None:
        pass  # another object owns the iterator


def _do_nothing() -> None: ...
