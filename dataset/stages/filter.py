"""``filter``: leave out elements."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeVar

from gristmill.core.indices import Indices, as_ints
from gristmill.dataset.bases.feed import failed_at_last
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate, marked, return_to, skip_one, snapshot, state_at, stream_of
from gristmill.dataset.bases.length import some_of_them
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, function
from gristmill.dataset.bases.passing import PassingIterator
from gristmill.dataset.bases.traced import Tracing, noting_failed
from gristmill.dataset.stages.filter_guard import FilterGuard
from gristmill.dataset.telling.failures import failed_at, tell_at_last
from gristmill.transforms.base import Filter, transform_function

T = TypeVar("T")


class FilterParameters(Parameters):
    transform: Any = function()


class FilterMapDataset(BlockMapDataset[T]):
    """The parent's elements, ``None`` instead of those that ``transform`` rejects.

    Order: the parent's. Cost: one call per element.
    """

    _drops = True
    _element_spec = spec_of_first_parent
    _keeps_indices = True

    def __init__(self, parent: Any, transform: Any) -> None:
        super().__init__(parent)
        self._parameters = FilterParameters(transform)
        self._fn = transform_function(transform, Filter, "filter")

    def _items(self, indices: Indices) -> Iterator[Any]:
        return map(self._chosen, self._parents[0]._items(indices), as_ints(indices))

    def _chosen(self, x: Any, index: int) -> Any:
        try:
            return x if x is not None and self._fn(x) else None
        except Exception as error:
            failed_at(error, self, index)
            raise


class FilterIterDataset(IterDataset[T]):
    """The elements of the parent that ``transform`` accepts.

    Order: the parent's. State: the parent's. Cost: one call per element of the parent.
    """

    _drops = True
    _element_spec = spec_of_first_parent
    _num_elements = some_of_them
    _works_on = "choice"

    def __init__(self, parent: Any, transform: Any) -> None:
        super().__init__(parent)
        self._parameters = FilterParameters(transform)
        self._fn = transform_function(transform, Filter, "filter")

    def _traced(self, tracing: Tracing) -> Any:
        fn = self._fn
        return tracing.over(self, _fn=noting_failed(lambda x: fn(x.value)))

    def __iter__(self) -> DatasetIterator[T]:
        return FilterDatasetIterator(iterate(self._parent), self._fn, self._parameters)


class FilterDatasetIterator(PassingIterator[T]):
    _flow = "dropping"

    def __init__(self, parent: DatasetIterator[Any], fn: Any, parameters: Parameters) -> None:
        super().__init__(parent)
        self._fn = self._function = fn
        self._parameters = parameters
        self._guard = FilterGuard(self)
        self._failed: tuple[int, bool] | None = None  # what ``_take(1)`` failed with: rejected before, whether upstream
        self._failed_from: tuple[Any, int, bool] | None = None  # and the state from which it did

    def _take(self, n: int) -> list[Any]:
        kept: list[Any] = []
        num_rejected = 0  # if ``n`` is 1
        while len(kept) < n:
            try:
                elements = self._source._take(n - len(kept))
            except Exception:
                self._failed = (num_rejected, True) if n == 1 else None
                raise
            if not elements:
                break
            keep = self._decisions(elements, num_rejected if n == 1 else None)
            kept += [x for x, k in zip(elements, keep, strict=True) if k]
            num_rejected += 1
        return kept

    def _mark(self) -> Any:
        return self._source._mark(), self._guard.counts

    def _return_to(self, mark: Any) -> None:
        source, self._guard.counts = mark
        self._source._return_to(source)
        self._failed_from = None if self._failed is None else (snapshot(self._source), *self._failed)
        self._failed = None

    def _state_at(self, mark: Any) -> Any:
        return state_at(self._source, mark[0])

    def _decisions(self, elements: list[Any], num_rejected: int | None) -> list[bool]:
        """Which of ``elements`` are kept, counted."""
        fn, keep = self._fn, None
        try:
            keep = [bool(fn(x)) for x in elements]
            self._guard.observe(keep, self._ctx.options)
            return keep
        except Exception as error:
            self._failed = (num_rejected, False) if keep is None and num_rejected is not None else None
            tell_at_last(error, self, self._source)
            raise

    def _stream(self, n: int) -> Iterator[Any]:
        fn, num_kept = self._fn, 0
        for x in stream_of(self._source, n):
            try:
                if not fn(x):
                    break
            except Exception as error:
                failed_at_last(error, self, self._source)
                raise
            num_kept += 1
            yield x
        self._guard.observe([True] * num_kept, self._ctx.options)

    def _skip(self) -> None:
        # The output that failed lies behind elements that were rejected properly, which is not asked again where it is known:
        # what has failed by chance may be rejected now.
        if self._failed_from is not None and self._failed_from[0] == snapshot(self._source):
            _, num_rejected, is_upstream = self._failed_from
            for _ in range(num_rejected):
                skip_one(self._source)
            if is_upstream:
                self._source._skip()
            else:
                skip_one(self._source)
            return
        while True:
            before = marked(self._source)
            try:
                elements = self._source._take(1)
            except Exception:
                return_to(self._source, before)
                self._source._skip()
                return
            if not elements:
                return
            try:
                if self._fn(elements[0]):
                    return
            except Exception:
                return
