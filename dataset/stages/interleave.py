"""``InterleaveIterDataset``: the elements of several datasets in turn, some of them open at a time.

Guarantees:

1. The order depends on the elements of the datasets alone, not on what is computed ahead.
2. After an error the same dataset is asked again.
3. At most ``cycle_length + make_iter_buffer_size`` datasets are open. None is before the first
   ``next``, ``start_prefetch`` or ``get_state``; none is read from before the first two.
4. A dataset that has ended is closed at once. To save or replay a position before its end, it is
   opened again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.dataset.bases.context import ComponentContext, IteratorContext
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.length import Length, Unknown, added, num_elements
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import spec_of, tolerates
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.choices import number_choosers
from gristmill.dataset.engine.cycle import Interleave
from gristmill.dataset.engine.iterators import StreamIterator, stream_of
from gristmill.dataset.engine.members import Members
from gristmill.dataset.faults.budget import Tolerance, numbered_by
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchDatasetIterator

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

T = TypeVar("T")

_NUM_DESCRIBED = 16  # datasets of a list that a checkpoint's description shows


class InterleaveParameters(Parameters):
    cycle_length: int = field(in_repr=False)
    num_make_iter_threads: int = field(in_checkpoint=False, in_repr=False)
    make_iter_buffer_size: int = field(in_checkpoint=False, in_repr=False)
    iter_buffer_size: int = field(in_checkpoint=False, in_repr=False)

    def __post_init__(self) -> None:
        self._replace(cycle_length=as_int("cycle_length", self.cycle_length, minimum=1))
        for name in ("num_make_iter_threads", "make_iter_buffer_size", "iter_buffer_size"):
            self._replace(**{name: as_int(name, getattr(self, name), minimum=0)})


class InterleaveIterDataset(IterDataset[T]):
    """Returns the elements of ``datasets`` in turn: one of each of those that are open, of which
    there are ``cycle_length``.

    When a dataset has ended, the next one that is not open yet takes its place. Anything that is
    not a number of elements, like threads, has no effect on the order.

    Order: as above. State: which datasets are open, and their states. Cost: about 0.3 µs per
    element in blocks; datasets are opened ahead by threads.

    Args:
        datasets: a sequence of datasets, or a ``MapDataset`` whose elements are datasets, which are
            made when their turn comes (an endless one, too). Where it has no element, that counts
            as an empty dataset.
        cycle_length: the most datasets that are open and read in turn, at least 1.
        num_make_iter_threads: threads that open datasets ahead; 0 for none.
        make_iter_buffer_size: the most datasets to be open ahead of their turn; 0 for none.
        iter_buffer_size: the most elements of an ``IterDataset`` to be ready ahead, by a thread for
            each; 0 for no threads. A ``MapDataset`` is read as by ``to_iter_dataset()``.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: ``cycle_length`` is not positive, or another number is negative.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> datasets = [MapDataset.source(list(letters)) for letters in ("abc", "x", "12")]
        >>> list(InterleaveIterDataset(datasets, cycle_length=2))
        ['a', 'x', 'b', 'c', '1', '2']
    """

    _gm_parameters: InterleaveParameters

    def __init__(
        self,
        datasets: (
            Sequence[IterDataset[T] | MapDataset[T]] | MapDataset[IterDataset[T] | MapDataset[T]]
        ),
        *,
        cycle_length: int,
        num_make_iter_threads: int = 1,
        make_iter_buffer_size: int = 1,
        iter_buffer_size: int = 1,
    ) -> None:
        super().__init__()
        if not isinstance(datasets, MapDataset):
            if not isinstance(datasets, Sequence):
                raise TypeError(
                    "datasets must be a sequence of datasets, or a MapDataset whose elements are"
                    f" datasets, got {shown(datasets)} of type {type(datasets).__name__}"
                )
            datasets = [_check_dataset(ds, i) for i, ds in enumerate(datasets)]
        self._gm_datasets = datasets
        self._gm_number = Tolerance.new_number()  # begins those of stages that a function makes
        self._gm_parameters = InterleaveParameters(
            cycle_length, num_make_iter_threads, make_iter_buffer_size, iter_buffer_size
        )

    @property
    def datasets(self) -> Sequence[Any] | MapDataset[Any]:
        """The datasets of the interleave."""
        return self._gm_datasets

    @property
    def _gm_makes_choices(self) -> bool:
        return True  # its members may

    @property
    def _gm_opens_unknown(self) -> bool:
        return isinstance(untraced(self._gm_datasets), MapDataset)

    @property
    def _gm_draws_from(self) -> Sequence[Any]:
        datasets = untraced(self._gm_datasets)
        return [datasets] if self._gm_opens_unknown else datasets

    def _gm_num_elements(self) -> Length:
        if self._gm_opens_unknown:
            return Unknown()  # its elements would have to be computed
        return added([num_elements(ds) for ds in self._gm_datasets])

    @property
    def _cycle_length(self) -> int:
        return min(self._gm_parameters.cycle_length, len(self._gm_datasets))

    @property
    def _element_spec(self) -> Any:
        if not len(self._gm_datasets):
            raise NotImplementedError(f"{self} has no elements to describe")
        return spec_of(_check_dataset(self._gm_datasets[0], 0))

    def __str__(self) -> str:
        return (
            f"InterleaveIterDataset([{len(self._gm_datasets)} datasets],"
            f" cycle_length={self._cycle_length})"
        )

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps some of the datasets: those of one of several workers, each of which has a cycle of
        its own.
        """
        del sequential_slice  # every dataset is whole in any case
        self._gm_number += f"[{sl.start}::{sl.step}]"
        self._gm_datasets = (
            MapDataset.slice(self._gm_datasets, sl)
            if isinstance(self._gm_datasets, MapDataset)
            else self._gm_datasets[sl]
        )

    def _gm_traced(self, tracing: Tracing) -> Any:
        here = self._gm_parameters.replaced(
            num_make_iter_threads=0, make_iter_buffer_size=0, iter_buffer_size=0
        )
        return tracing.over(
            self, _gm_datasets=_TracedDatasets(self._gm_datasets, tracing), _gm_parameters=here
        )

    def __iter__(self) -> DatasetIterator[T]:
        given = self._gm_parameters
        opener = IteratorOpener(self._gm_datasets, self._gm_number, given.iter_buffer_size)
        num_threads, num_ahead = given.num_make_iter_threads, given.make_iter_buffer_size
        return InterleaveDatasetIterator(self, opener, self._cycle_length, num_threads, num_ahead)


class _TracedDatasets(Sequence[Any]):
    """The traced datasets, each made when it is requested."""

    def __init__(self, datasets: Any, tracing: Tracing) -> None:
        self.datasets = datasets
        self._tracing = tracing

    def __len__(self) -> int:
        return len(self.datasets)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return _TracedDatasets(self.datasets[index], self._tracing)
        return self._tracing.of(dataset_at(self.datasets, index, ""))


def untraced(datasets: object) -> Any:
    """Returns the datasets that traced ones stand for; ``datasets`` if they are not traced."""
    return datasets.datasets if isinstance(datasets, _TracedDatasets) else datasets


def _check_dataset(ds: DatasetNode, index: int) -> Any:
    if not isinstance(ds, MapDataset | IterDataset):
        raise TypeError(
            f"datasets[{index}] must be a MapDataset or IterDataset, got {shown(ds)} of type"
            f" {type(ds).__name__}"
        )
    return ds


def dataset_at(datasets: Any, index: int, number: str) -> Any:
    """Returns dataset ``index`` of the interleave with ``number``; an empty one where there is
    none.
    """
    with numbered_by(f"{number}.{index}"):
        ds = datasets[index]
    return MapDataset.range(0) if ds is None else _check_dataset(ds, index)  # a hole


def as_stream(ds: Any) -> IterDataset[Any]:
    return MapDataset.to_iter_dataset(ds) if isinstance(ds, MapDataset) else ds


class Elsewhere(Protocol):
    """Computes the elements of datasets."""

    def iterator(self, index: int, whole: DatasetIterator[Any], key: str) -> DatasetIterator[Any]:
        """Return the iterator that gives the elements of a dataset.

        Args:
            index: of the dataset.
            whole: an unused iterator of the dataset.
            key: of the interleave, if choices are recorded.
        """

    def close(self) -> None:
        """Releases what it holds. May be called again."""


class IteratorOpener:
    """Makes iterators of the datasets. Known to the threads that open ahead, so it does not know
    the iterator it serves.

    Args:
        datasets: the datasets.
        number: of the interleave (see ``numbered_by``).
        buffer_size: elements of a stream that are ready ahead.
        elsewhere: has the datasets computed by others.
    """

    key = ""

    def __init__(
        self, datasets: Any, number: str, buffer_size: int, elsewhere: Elsewhere | None = None
    ) -> None:
        self.datasets = datasets
        self._number = number
        self._elsewhere = elsewhere
        self.ctx = ComponentContext(IteratorContext(joined=None))
        self._buffer_size = buffer_size

    def open(self, index: int) -> DatasetIterator[Any]:
        ds = dataset_at(self.datasets, index, self._number)
        it = iterate(as_stream(ds))
        if self._elsewhere is not None:
            it = self._elsewhere.iterator(index, it, self.key)
        elif isinstance(ds, IterDataset):
            it = ThreadPrefetchDatasetIterator(it, self._buffer_size)
        it._gm_share_context(ComponentContext(self.ctx, it._gm_ctx.options))
        # before threads ask for choices by these keys
        number_choosers(stream_of(it), f"{self.key}.{index}/")
        return it

    def close(self) -> None:
        if self._elsewhere is not None:
            self._elsewhere.close()

    def open_ahead(self, indices: range) -> Iterator[DatasetIterator[Any]]:
        for i in indices:
            it: Any = self.open(i)
            it.start_prefetch()
            yield (it, it := None)[0]


class InterleaveDatasetIterator(StreamIterator[T]):
    """The iterator of an interleave, which reports its members to observers.

    Args:
        stage: the definition.
        opener: makes the iterators of the members.
        cycle_length: the number of slots.
        num_threads: threads that open datasets ahead.
        num_ahead: the most datasets that are open ahead of their turn.
    """

    _gm_engine: Interleave

    def __init__(
        self,
        stage: Any,
        opener: IteratorOpener,
        cycle_length: int,
        num_threads: int = 0,
        num_ahead: int = 0,
    ) -> None:
        members = Members(opener, len(opener.datasets), num_threads, num_ahead)
        self._opener = opener
        super().__init__(stage, [], partial(Interleave, members=members, length=cycle_length))
        self._gm_counts_faults = tolerates(stage)  # after the last element, too

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return {"num_datasets": self._gm_engine.members.num, "cycle_length": self._gm_engine.length}

    @property
    def _gm_draws_from(self) -> Sequence[Any]:
        found: Sequence[Any] = self._gm_engine.open_iterators()
        datasets = self._opener.datasets
        return found or ([datasets] if isinstance(datasets, MapDataset) else datasets)

    @property
    def _gm_observed_upstream(self) -> Sequence[Any]:
        return self._gm_engine.open_iterators()

    @property
    def _gm_described_upstream(self) -> Sequence[Any]:
        datasets = self._opener.datasets
        return (
            [datasets]
            if isinstance(datasets, MapDataset)
            else [iterate(ds) for ds in datasets[:_NUM_DESCRIBED]]
        )

    @property
    def could_not_open(self) -> bool:
        """True if a dataset of the cycle failed to open, so that states lack it."""
        return self._gm_engine.unopenable == self.pos[-1].num_opened
