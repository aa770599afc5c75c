"""``cache(path)`` of a stream: blocks of elements that are kept on disk when they are first computed."""

from __future__ import annotations

import pickle
from typing import Any, TypeVar

from gristmill.core.errors import StateIndexError
from gristmill.core.state import state_count, state_field, state_flag, state_from_text, state_to_text
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import (
    BlockIterator,
    DatasetIterator,
    iterate,
    marked,
    pull,
    return_to,
    skip_one,
)
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.disk_store import MISSING
from gristmill.dataset.stages.disk_cache import DiskCache, DiskCacheParameters, check_no_draws
from gristmill.dataset.states.refilling import refilling
from gristmill.dataset.states.values import copied

T = TypeVar("T")

_MAX_ELEMENTS = 256  # of a block
_MAX_BYTES = 1 << 20


class DiskCacheIterDataset(IterDataset[T]):
    """The elements of the parent, kept on disk when they are first computed, and read from there afterwards.

    Elements are kept in blocks of up to 256 elements or 1 MB, each with the parent's state after it.

    Order: the parent's. State: the parent's before the current block, and the place in the block. Cost: to store an element, its
    pickle; then to unpickle it.

    Args:
        parent: the stream.
        path: the folder.
        max_bytes: how much may be kept in ``path``; ``None``: no limit.
        freeze: allow ``random_map`` upstream.
    """

    _element_spec = spec_of_first_parent
    _num_elements = same_number

    def __init__(self, parent: Any, path: Any, max_bytes: int | None = None, freeze: bool = False) -> None:
        super().__init__(parent)
        self._parameters: DiskCacheParameters = DiskCacheParameters(path, max_bytes, freeze)
        check_no_draws(parent, self._parameters, is_stream=True)
        self._cache: DiskCache | None = DiskCache(parent, self._parameters)

    def _over(self, replaced: Any) -> Any:
        new = super()._over(replaced)
        new._cache = DiskCache(new._parent, self._parameters)
        return new

    def _traced(self, tracing: Tracing) -> Any:
        return tracing.over(self, _cache=None)

    def __iter__(self) -> DatasetIterator[T]:
        return DiskCacheDatasetIterator(iterate(self._parent), self._cache, self._parameters)


class DiskCacheDatasetIterator(BlockIterator[T]):
    _flow = "stateful"
    _is_costly_to_restore = True
    _refills = True

    def __init__(self, parent: DatasetIterator[Any], cache: DiskCache | None, parameters: DiskCacheParameters) -> None:
        super().__init__(parent)
        self._source = parent
        self._cache = cache
        self._parameters = parameters
        self._has_skipped = False  # an element: what follows has other positions than in the cache
        self._begin_block(0, None)

    def _begin_block(self, start: int, before: Any, *, is_source_here: bool = True) -> None:
        self._start, self._before = start, before  # of the block, and the parent's state there
        self._records: list[Any] = []  # its elements so far, pickled if they are kept on disk
        self._offset = self._num_bytes = 0
        self._after: Any = None  # of a complete block, the parent's state after it
        self._is_complete = self._is_last = self._is_looked_up = False
        self._is_source_here = is_source_here  # the parent is behind the elements so far

    def _note_beginning(self) -> None:
        if self._before is None:
            self._before = copied(self._source.get_state())

    def _take(self, n: int) -> list[Any]:
        self._note_beginning()
        elements: list[Any] = []
        while len(elements) < n:
            if self._offset < len(self._records):
                stop = self._offset + n - len(elements)
                elements += map(self._loaded, self._records[self._offset : stop])
                self._offset = min(stop, len(self._records))
            elif not self._is_looked_up:
                self._look_up()
            elif not self._is_complete:
                elements += self._computed(n - len(elements))
            elif self._is_last:
                break
            else:
                self._begin_next_block()
        return elements

    def _begin_next_block(self) -> None:
        is_here = self._is_source_here
        self._begin_block(self._start + len(self._records), self._after, is_source_here=is_here)

    def _look_up(self) -> None:
        """Takes the block from the disk, if it is there."""
        self._is_looked_up = True
        if self._cache is None or self._has_skipped:
            return
        [found] = self._cache.store().get([self._start])
        if found is not MISSING:
            self._records, after, self._is_last = found
            self._after = state_from_text(after, self._source)
            self._is_complete, self._is_source_here = True, False

    def _computed(self, n: int) -> list[Any]:
        """Up to ``n`` further elements of the block, from the parent."""
        self._bring_source()
        before = marked(self._source)
        n = min(n, _MAX_ELEMENTS - len(self._records))
        try:
            elements = pull(self._source, n)
        except BaseException:
            return_to(self._source, before)
            raise
        self._records += map(self._dumped, elements)
        self._offset += len(elements)
        self._is_last = len(elements) < n
        if self._is_last or len(self._records) >= _MAX_ELEMENTS or self._num_bytes >= _MAX_BYTES:
            self._end_block()
        return elements

    def _bring_source(self) -> None:
        """Moves the parent behind the elements so far, of which there are none if it is elsewhere."""
        if not self._is_source_here:
            self._source.set_state(copied(self._before))
            self._is_source_here = True

    def _end_block(self) -> None:
        self._after, self._is_complete = copied(self._source.get_state()), True
        if self._cache is not None and not self._has_skipped:
            block = (self._records, state_to_text(self._after), self._is_last)
            self._cache.store().put(self._start, block)

    def _dumped(self, element: Any) -> Any:
        if self._cache is None:
            return element
        record = pickle.dumps(element, 5)
        self._num_bytes += len(record)
        return record

    def _loaded(self, record: Any) -> Any:
        return record if self._cache is None else pickle.loads(record)

    def get_state(self) -> Any:
        self._note_beginning()
        return self._state_at(self._mark())

    def _restore(self, state: Any) -> None:
        start, offset = state_count(state, "start", self), state_count(state, "offset", self)
        has_skipped, before = state_flag(state, "has_skipped", self), state_field(state, "parent", self)
        with refilling(self, f"{offset} elements" if offset else None):
            self._source.set_state(copied(before))
            before = copied(self._source.get_state())  # with plain numbers, whatever was given
            self._has_skipped = has_skipped
            self._begin_block(start, before)
            self._look_up()
            if len(self._records) < offset:  # of another division into blocks, or not there
                self._begin_block(start, before, is_source_here=not self._is_complete)
                self._is_looked_up = True
                while len(self._records) < offset and not self._is_complete:
                    self._computed(offset - len(self._records))
            if len(self._records) < offset:
                raise StateIndexError(
                    f"offset in the state of {self} must be in [0, {len(self._records)}], the elements of the block, got {offset}"
                )
            self._offset = offset

    def _mark(self) -> Any:
        self._note_beginning()
        return self._start, self._before, self._offset, self._has_skipped

    def _return_to(self, mark: Any) -> None:
        start, _, offset, has_skipped = mark
        if (start, has_skipped) == (self._start, self._has_skipped) and offset <= len(self._records):
            self._offset = offset
        else:
            self._restore(self._state_at(mark))

    def _state_at(self, mark: Any) -> Any:
        start, before, offset, has_skipped = mark
        return {"parent": copied(before), "start": start, "offset": offset, "has_skipped": has_skipped}

    def _skip(self) -> None:
        if self._offset < len(self._records):
            self._offset += 1
            return
        if self._is_complete and self._is_last:
            return
        if self._is_complete:
            self._begin_next_block()
        self._bring_source()
        skip_one(self._source)
        self._has_skipped = True
        self._begin_block(self._start + len(self._records), copied(self._source.get_state()))
