"""``cache(path)`` of a stream: blocks of elements that are kept on disk when they are first
computed.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from operator import length_hint
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.core.errors import StateIndexError
from gristmill.core.state import (
    state_count,
    state_field,
    state_flag,
    state_from_text,
    state_to_text,
)
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.choices import ChoiceRecord, Records, Replaying
from gristmill.dataset.engine.disk_store import MISSING, ArrayOnDisk, pickled
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.engine.stream import Cell, Pos, Stream, are_equal
from gristmill.dataset.faults.known import with_counts_since
from gristmill.dataset.stages.disk_cache import DiskCache, DiskCacheParameters, check_no_draws

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

T = TypeVar("T")

_MAX_ELEMENTS = 256  # of a block
_MAX_BYTES = 1 << 20
_NUM_PARTS = 3  # of a block on disk, without choices


class DiskCacheIterDataset(IterDataset[T]):
    """The elements of the parent, kept on disk when they are first computed, and read from there
    afterwards, in blocks of up to 256 elements or 1 MB.

    Order: the parent's. State: the parent's before the current block, and the place in the block.
    Cost: to store an element, its pickle; then to unpickle it.
    """

    _element_spec = spec_of_first_parent
    _gm_num_elements = same_number

    def __init__(
        self, parent: object, path: Any, max_bytes: int | None = None, freeze: bool = False
    ) -> None:
        super().__init__(parent)
        self._gm_parameters: DiskCacheParameters = DiskCacheParameters(path, max_bytes, freeze)
        check_no_draws(self._gm_parent, self._gm_parameters, is_stream=True)
        self._cache: DiskCache | None = DiskCache(self._gm_parent, self._gm_parameters)

    def _gm_over(self, replaced: Callable[[Any], Any]) -> Any:
        new = super()._gm_over(replaced)
        if self._cache is not None:  # else elements know their records, and are not to be kept
            new._cache = DiskCache(new._gm_parent, self._gm_parameters)
        return new

    def _gm_traced(self, tracing: Tracing) -> Any:
        return tracing.over(self, _cache=None)

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(self, partial(DiskBlocks, cache=self._cache))


@dataclass
class _CachedBlock:
    """Consecutive elements.

    Args:
        before: the parent's position before them.
        start: the number of elements before them.
        has_skipped: an element was skipped before them.
        elements: pickled, unless they are not kept on disk; with large arrays, a pickle followed by
            the contents of these.
        ends: the parent's position after each, of those that were computed here.
        counts: how many choices were made until each, if the parent makes choices.
        records: these choices, of a complete block.
        after: the parent's position after a complete block.
        is_last: the parent has no more elements.
    """

    before: Pos
    start: int
    has_skipped: bool
    elements: list[Any] = field(default_factory=list)
    ends: list[Pos] = field(default_factory=list)
    counts: list[dict[str, int]] = field(default_factory=list)
    records: Records = ()
    after: Pos = None
    is_complete: bool = False
    is_last: bool = False
    num_bytes: int = 0

    @property
    def last_end(self) -> Pos:
        """The parent's position after the elements that were computed here."""
        return self.ends[-1] if self.ends else self.before


class DiskBlocks(Replaying):
    """The parent's elements, in blocks that are kept in ``cache``, if there is one.

    The position: the parent's before the block, the number of elements before it, how many of its
    elements were delivered, and true if an element was skipped, so that the blocks on disk have
    other positions.
    """

    keys = ("parent", "start", "offset", "has_skipped")
    own = (0, 0, False)
    _block: _CachedBlock | None = None

    def __init__(self, stage: DatasetNode, parent: Stream, cache: DiskCache | None) -> None:
        super().__init__(stage, parent)
        self._cache = cache

    def load_layer(self, state: object) -> Pos:
        start, offset = state_count(state, "start", self), state_count(state, "offset", self)
        has_skipped = state_flag(state, "has_skipped", self)
        return self.parent.load(state_field(state, "parent", self)), start, offset, has_skipped

    def held(self, state: object) -> str | None:
        offset = state_count(state, "offset", self)
        return f"{offset} elements" if offset else None

    def next_of_parent(self, end: Pos, records: Records) -> Pos:
        # its cell does not move where blocks are on disk
        return self.parent.next_epoch(end[0], (*end[-1], *records))

    def _run(self, cell: Cell) -> Iterator[Any]:
        block, offset = self._begin(cell)
        while True:
            if block.is_complete and self.choices is None:
                left = iter(block.elements[offset:])
                cell.compute_by(partial(self._pos_before, left, block))
                yield from map(self._loaded, left)
                cell.end_block()
                offset = len(block.elements)
            for i in range(offset, len(block.elements)):
                self._repeat_choices(block, i)
                cell.pos = self._pos(block, i + 1)
                yield self._loaded(block.elements[i])
            if not block.is_complete:
                for x in self._computed(cell, block):
                    cell.pos = self._pos(block, len(block.elements))
                    yield (x, x := None)[0]
            elif block.is_last:
                self._repeat_choices(block, len(block.elements))  # those after the last element
            if block.is_last:
                cell.pos = self._pos(block, len(block.elements))
                return
            offset = 0
            self.next_group()
            block = self._look_up(block.after, block.start + len(block.elements), block.has_skipped)

    def _pos(self, block: _CachedBlock, offset: int) -> Pos:
        return block.before, block.start, offset, block.has_skipped, self.records()

    def _pos_before(self, left: Iterator[Any], block: _CachedBlock) -> Pos:
        """Return the position before the elements that are ``left`` of a block."""
        return self._pos(block, len(block.elements) - length_hint(left))

    def _begin(self, cell: Cell) -> tuple[_CachedBlock, int]:
        """Return the block of the position, and how many of its elements were delivered."""
        before, start, offset, has_skipped, records = cell.settle()
        if self.choices is not None:
            self.choices.outer = cell.choices
            self.choices.restart(records)
        block = self._block
        is_there = block is not None and (block.start, block.has_skipped) == (start, has_skipped)
        is_usable = (
            is_there
            and block is not None
            and are_equal(block.before, before)
            and self._agrees(block)
        )
        if block is None or not is_usable or (len(block.elements) < offset and block.is_complete):
            block = self._look_up(before, start, has_skipped)
            if len(block.elements) < offset:  # of another division into blocks, or not there
                block = self._block = _CachedBlock(before, start, has_skipped)
        for i in range(min(offset, len(block.elements))):
            self._repeat_choices(block, i)
        if len(block.elements) < offset:
            for _ in self._computed(cell, block):
                if self.is_missing():  # the last one is of a component that was dropped
                    return block, len(block.elements) - 1
                if len(block.elements) == offset:
                    break
        if len(block.elements) < offset:
            raise StateIndexError(
                f"offset in the state of {self} must be in [0, {len(block.elements)}], the elements"
                f" of the block, got {offset}"
            )
        return block, offset

    def _agrees(self, block: _CachedBlock) -> bool:
        """Return true if ``block`` was made by the choices that are known."""
        if self.choices is None:
            return True
        if not block.is_complete:
            return False
        made = {record.key: (record.num, record.unusual) for record in block.records}
        for record in self.choices.to_come():
            num_made, unusual_made = made.get(record.key, (0, ()))
            num_both = min(record.num, num_made)
            if not are_equal(_until(num_both, record.unusual), _until(num_both, unusual_made)):
                return False
        return True

    def _repeat_choices(self, block: _CachedBlock, i: int) -> None:
        """Record the choices that were made for element ``i``, or after the last one."""
        if self.choices is not None and block.is_complete:
            counts = [{}, *block.counts, {record.key: record.num for record in block.records}]
            self.choices.add(_part(block.records, counts[i], counts[i + 1]))

    def _look_up(self, before: Pos, start: int, has_skipped: bool) -> _CachedBlock:
        """Return the block on disk, or an empty one."""
        block = self._block = _CachedBlock(before, start, has_skipped)
        if self._cache is None or has_skipped:
            return block
        found = self._cache.store().value(start, leaves_arrays=True)
        if found is not MISSING and (self.choices is None or len(found) > _NUM_PARTS):
            elements, text, is_last, *choices = found
            state = state_from_text(text, self.parent)
            counts, records, text = choices if choices else ([], (), None)
            # the block may be of another epoch, or run
            if self.choices is not None and text is not None:
                with_counts_since(
                    state, state_from_text(text, self.parent), self.parent.save(before)
                )
            after = self.parent.load(state)
            there = _CachedBlock(
                before, start, False, elements, [], counts, records, after, True, is_last
            )
            if self._agrees(there):
                self._block = block = there
        return block

    def _computed(self, cell: Cell, block: _CachedBlock) -> Iterator[Any]:
        """Return the elements that follow in a block, each when it is in it; complete it."""
        choices = self.choices
        inner = self.inner.at(block.last_end, choices=choices)
        run = self.parent.run(inner)
        while len(block.elements) < _MAX_ELEMENTS and block.num_bytes < _MAX_BYTES:
            wanted = cell.take_wanted()
            if wanted > 1 and choices is None:
                inner.wanted = min(wanted, _MAX_ELEMENTS - len(block.elements))
            try:
                x = next(run, MISSING)
                if x is MISSING:
                    block.is_last = True
                    break
                self._keep(block, x)
            except Exception:
                cell.past_failed = partial(self._pass, cell, block)
                raise
            yield (x, x := None)[0]
        self._complete(block)

    def _keep(self, block: _CachedBlock, x: object) -> None:
        """Add an element that was computed to ``block``."""
        record = x
        del block.elements[len(block.ends) :]  # after an interrupt
        if self._cache is not None:
            record, buffers = pickled(x)
            block.num_bytes += len(record) + sum(map(len, buffers))
            if buffers:  # copied, since the consumer may change the arrays
                record = record, *[pickle.PickleBuffer(bytearray(buffer)) for buffer in buffers]
        if self.choices is not None:
            block.counts.append({**self.choices.counts})
        block.elements.append(record)
        block.ends.append(self.inner.settle())

    def _complete(self, block: _CachedBlock) -> None:
        block.after = self.inner.settle()
        block.records = () if self.choices is None else self.choices.since()
        if self._cache is not None and not block.has_skipped:
            parts: tuple[Any, ...] = (
                block.elements,
                state_to_text(self.parent.save(block.after)),
                block.is_last,
            )
            if self.choices is not None:
                parts = (
                    *parts,
                    block.counts,
                    block.records,
                    state_to_text(self.parent.save(block.before)),
                )
            self._cache.store().put(block.start, parts)
        block.is_complete = True

    def _loaded(self, record: Any) -> Any:
        if self._cache is None:
            return record
        if isinstance(record, bytes):
            return pickle.loads(record)
        text, *buffers = record
        memories = [
            buffer.read() if isinstance(buffer, ArrayOnDisk) else bytearray(buffer)
            for buffer in buffers
        ]
        return pickle.loads(text, buffers=memories)

    def _pass(self, cell: Cell, block: _CachedBlock) -> None:
        self.inner.pass_failed()
        cell.pos = self.inner.settle(), block.start + len(block.elements), 0, True, ()


def _until(num: int, unusual: Iterable[tuple[int, Any]]) -> list[tuple[int, Any]]:
    return [(i, choice) for i, choice in unusual if i < num]


def _part(records: Records, before: Mapping[str, int], until: Mapping[str, int]) -> Records:
    """Return the choices after there were ``before``, and before there were ``until``."""
    found = []
    for record in records:
        start, stop = before.get(record.key, 0), until.get(record.key, 0)
        unusual = tuple([(i - start, x) for i, x in record.unusual if start <= i < stop])
        found.append(ChoiceRecord(record.key, stop - start, unusual))
    return tuple(found)
