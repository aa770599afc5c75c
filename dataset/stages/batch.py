"""``batch``: several elements into one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from gristmill.core.element_spec import ShapeDtypeStruct, map_spec
from gristmill.core.indices import Indices, as_ints
from gristmill.dataset.bases.element_spec import batched_spec
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Length, num_elements, scaled
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.node import dropping_steps, spec_of
from gristmill.dataset.bases.origins import UpstreamElement
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Tracing, grouped
from gristmill.dataset.engine.elements import BatchStream
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.errors.context import add_before, failed_at
from gristmill.transforms.base import check_batch_size
from gristmill.transforms.batching import Allocate, BufferPool, stack

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

T = TypeVar("T")
BatchFn: TypeAlias = Callable[[Sequence[Any]], Any] | None  # ``None``: stacks leaves

_SPARSE_NOTE = (
    "An element of this batch is None: a step before batch() leaves elements out. "
    "Call to_iter_dataset() before batch(), which drops them."
)


class BatchParameters(Parameters):
    batch_size: int
    drop_remainder: bool
    batch_fn: Callable[[list[Any]], Any] | None = field(in_checkpoint=False, in_repr=False)

    def __post_init__(self) -> None:
        self._replace(
            batch_size=check_batch_size(self.batch_size), drop_remainder=bool(self.drop_remainder)
        )
        _check_batch_fn(self.batch_fn)


class BatchMapDataset(BlockMapDataset[T]):
    """Batches of consecutive elements of each epoch of the parent.

    Order: the parent's. Cost: one allocation and one copy per leaf.
    """

    _gm_is_rebuilt = True
    _gm_makes_batches = True
    _gm_parameters: BatchParameters

    def __init__(
        self,
        parent: object,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__(parent)
        self._gm_parameters = BatchParameters(batch_size, drop_remainder, batch_fn)
        sparse = dropping_steps(self._gm_parent)
        if sparse:
            raise ValueError(
                f"cannot batch after {sparse[0]}: it may drop elements, and batches by index"
                " would have holes. Call to_iter_dataset() before batch()."
            )
        self._parent_length = len(self._gm_parent)
        whole, rest = divmod(self._parent_length, self._gm_parameters.batch_size)
        self._length = whole if self._gm_parameters.drop_remainder or not rest else whole + 1
        self._batch_size = self._gm_parameters.batch_size
        self._batch_fn = batch_function(batch_fn)

    def __len__(self) -> int:
        return self._length

    @property
    def _element_spec(self) -> Any:
        return _spec_of(self._gm_parent, self._gm_parameters, self._batch_fn)

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        self._check_not_empty(self._length, indices[:1])
        return map(self._batch, as_ints(indices))

    def _batch(self, index: int) -> Any:
        epoch, position = divmod(index, self._length)
        start = position * self._batch_size
        stop = min(start + self._batch_size, self._parent_length)
        offset = epoch * self._parent_length
        elements = list(self._gm_parents[0]._gm_items(range(offset + start, offset + stop)))
        try:
            return self._batch_fn(elements)
        except Exception as error:
            failed_at(error, self, index)
            if isinstance(error, ValueError) and any([x is None for x in elements]):
                add_before(error, _SPARSE_NOTE)
            raise

    def _gm_num_drawn(self, num: int, parent: int) -> int:
        epochs, position = divmod(num, self._length)
        if self._gm_parameters.drop_remainder:
            of_epoch = self._length * self._batch_size
        else:
            of_epoch = self._parent_length
        return epochs * of_epoch + min(position * self._batch_size, self._parent_length)

    def _gm_counts_before(self, num: int) -> dict[str, dict[str, int]] | None:
        return self._gm_parents[0]._gm_counts_before(self._gm_num_drawn(num, 0))

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement]:
        epoch, position = divmod(index, len(self))
        first, offset = position * self._batch_size, epoch * self._parent_length
        stop = min(first + self._batch_size, self._parent_length)
        return (UpstreamElement(self._gm_parent, offset + i) for i in range(first, stop))


class BatchIterDataset(IterDataset[T]):
    """Batches of consecutive elements of the parent.

    Order: the parent's. State: the parent's. Cost: one allocation and one copy per leaf.
    """

    _gm_works_on = "batches"
    _gm_parameters: BatchParameters

    def __init__(
        self,
        parent: object,
        batch_size: int,
        *,
        drop_remainder: bool = False,
        batch_fn: Callable[[list[Any]], Any] | None = None,
    ) -> None:
        super().__init__(parent)
        self._gm_parameters = BatchParameters(batch_size, drop_remainder, batch_fn)

    @property
    def _element_spec(self) -> Any:
        return _spec_of(
            self._gm_parent, self._gm_parameters, batch_function(self._gm_parameters.batch_fn)
        )

    def _gm_num_elements(self) -> Length:
        size = self._gm_parameters.batch_size
        rest = 0 if self._gm_parameters.drop_remainder else size - 1
        return scaled(num_elements(self._gm_parent), lambda num: (num + rest) // size)

    def _gm_traced(self, tracing: Tracing) -> Any:
        batch_fn = partial(grouped, batch_function(self._gm_parameters.batch_fn))
        return tracing.over(self, _gm_parameters=self._gm_parameters.replaced(batch_fn=batch_fn))

    def __iter__(self) -> DatasetIterator[T]:
        given = self._gm_parameters
        make = batch_function(given.batch_fn)
        drops = given.drop_remainder
        return open_stage(
            self, partial(BatchStream, size=given.batch_size, make=make, drop_remainder=drops)
        )


def _spec_of(parent: DatasetNode, given: BatchParameters, batch_fn: object) -> Any:
    return batched_spec(batch_fn, spec_of(parent), given.batch_size, given.drop_remainder)


def _check_batch_fn(batch_fn: object) -> Any:
    if batch_fn is not None and not callable(batch_fn):
        raise TypeError(f"batch_fn must be a callable of a list of elements, got {batch_fn!r:.200}")
    return batch_fn


class _DefaultBatch:
    """Stacks leaves; every stage or iterator has its own buffers, which go when it goes."""

    def __init__(self) -> None:
        self._allocate: Allocate = BufferPool()

    def __call__(self, elements: list[Any]) -> Any:
        return stack(elements, self._allocate)

    def allocate_with(self, allocate: Allocate) -> None:
        self._allocate = allocate

    def output_spec(self, input_spec: object, batch_size: int, drop_remainder: bool) -> Any:
        size = batch_size if drop_remainder else None
        return map_spec(lambda leaf: ShapeDtypeStruct((size, *leaf.shape), leaf.dtype), input_spec)


def batch_function(batch_fn: object) -> Callable[[list[Any]], Any]:
    """Returns ``batch_fn``, or the default one with buffers of its own."""
    return _DefaultBatch() if batch_fn is None else _check_batch_fn(batch_fn)
