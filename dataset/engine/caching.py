"""The stream that keeps the elements of its parent in memory."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from operator import length_hint
from typing import Any, NamedTuple

from gristmill.core.errors import StateIndexError, StateMismatchError
from gristmill.core.state import plain_counts, shown, state_count, state_field, state_flag
from gristmill.dataset.engine.choices import Records, Replaying
from gristmill.dataset.engine.stream import Cell, Pos, Stream

_END: Any = object()


class Cache(Replaying):
    """The parent's elements, kept in memory.

    The position: a position of the parent; the number of elements so far; true if the parent has
    ended; and how many elements are before each one that was skipped. A stream that is not there
    computes all elements again from the parent's start on; the records are of the choices since.
    """

    keys = ("parent", "position")

    def __init__(self, stage: Any, parent: Stream, *, copy_elements: bool) -> None:
        super().__init__(stage, parent)
        self.copies = copy_elements
        self._memory: _Memory | None = None

    def start(self) -> Pos:
        return self.parent.start(), 0, False, (), ()

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        return self.parent.start(), 0, *end[2:]

    def save_layer(self, pos: Pos) -> Any:
        parent, num, is_filled, skipped = pos
        state = {"parent": self.parent.save(parent), "position": num, "cache_filled": is_filled}
        return {**state, "skipped": [*skipped]} if skipped else state

    def faults_in(self, pos: Pos) -> Any:
        return pos  # the parent's position may be after the choices

    def load_layer(self, state: Any) -> Pos:
        num = state_count(state, "position", self)
        is_filled = state_flag(state, "cache_filled", self)
        skipped = plain_counts(state.get("skipped", []))
        most = None if is_filled else num
        if (
            skipped is None
            or skipped != sorted(skipped)
            or (most is not None and max(skipped, default=0) > most)
        ):
            allowed = "" if most is None else f" up to position, {most}"
            raise StateMismatchError(
                f"skipped in the state of {self} must be ascending non-negative integers{allowed},"
                f" got {shown(state['skipped'])}"
            )
        parent = self.parent.load(state_field(state, "parent", self))
        self.parent.forget()  # which may have closed members that live runs have
        return parent, num, is_filled, tuple(skipped)

    def held(self, state: object) -> str | None:
        num = state_count(state, "position", self)
        return f"{num} elements" if num else None

    def _run(self, cell: Cell) -> Iterator[Any]:
        parent, num, is_filled, skipped, _ = cell.pos
        memory = self._memory_at(cell)
        elements, copies = memory.elements, self.copies
        skipped = max(memory.last.skipped, skipped, key=len)
        # to be complete, which the parent's position does not say
        is_known = is_filled or memory.is_all
        records = self._records()
        while True:
            wanted = cell.take_wanted()
            if num >= len(elements):
                if not memory.is_all:
                    # No choice is made before its element is requested: it belongs to that one's
                    # group.
                    stop = num + (max(wanted, 1) if self.choices is None else 1)
                    self._read(cell, memory, stop, (parent, num, is_filled, skipped))
                    records = self._records()
                if num >= len(elements):
                    break
            if wanted > 1 and not copies:
                items = iter(elements[num : num + wanted])
                num = min(num + wanted, len(elements))
                known = None if is_known else memory
                cell.compute_by(partial(_in_memory, known, parent, num, items, skipped, records))
                yield from items
                cell.end_block()
                continue
            num += 1
            after = (parent, True) if is_known else (memory.pos_at(num), False)
            cell.pos = after[0], num, after[1], skipped, records
            yield copy.deepcopy(elements[num - 1]) if copies else elements[num - 1]
        if num > len(elements):
            raise StateIndexError(
                f"position in the state of {self} must be in [0, {len(elements)}], the number of"
                f" elements, got {num}"
            )
        cell.pos = parent if is_known else memory.end, num, True, skipped, records

    def _memory_at(self, cell: Cell) -> _Memory:
        """Return what is in memory, of elements before the position of ``cell``."""
        _, num, _, skipped, records = cell.pos
        memory, choices = self._memory, self.choices
        if memory is not None:
            del memory.elements[len(memory.marks) :]  # after an interrupt
            if memory.begins(num, skipped) and self._knows(memory, records):
                if choices is not None:
                    choices.outer = cell.choices
                    choices.resume(records)
                self.inner.at(memory.last.pos, choices=choices)
                return memory
        self._memory = memory = _Memory(_Mark(self.parent.start()))
        self.begin(cell, memory.start.pos, records)
        return memory

    def _knows(self, memory: _Memory, records: Records) -> bool:
        """Return true if ``memory`` was read with just the choices in ``records``, after forgetting
        what came later.
        """
        if self.choices is None:
            return True
        num_known = {record.key: record.num for record in records}
        return self.choices.begin_with(records) and (
            num_known == self._counts() or memory.cut(num_known)
        )

    def _read(self, cell: Cell, memory: _Memory, stop: int, pos: Pos) -> None:
        """Read the next element, and up to ``stop`` if none of these fails; or note that there is
        none.
        """
        inner, skipped, next_num = self.inner, pos[-1], pos[1]
        if self.choices is None and len(skipped) <= len(memory.last.skipped):
            self._read_block(memory, stop - len(memory.elements))
        run: Iterator[Any] | None = None
        while len(memory.elements) <= next_num and not memory.is_all:
            num, dropped = len(memory.elements), memory.last.skipped
            try:
                if run is None:
                    inner.wanted = next_num + 1 - num
                    run = self.parent.run(inner)
                x = next(run, _END)
            except Exception:
                if skipped[len(dropped) :][:1] != (num,):
                    cell.past_failed = partial(self._pass, cell, memory, pos)
                    raise
                inner.pass_failed()
                run = None
            else:
                if x is _END:
                    memory.is_all, memory.end = True, inner.settle()
                    return
                if skipped[len(dropped) :][:1] != (num,):
                    memory.elements.append(x)
                    memory.marks.append(self._mark(dropped))
                    continue
            memory.gap = num, self._mark((*dropped, num))

    def _read_block(self, memory: _Memory, num: int) -> None:
        """Read up to ``num`` elements, or none if one of them fails."""
        start = len(memory.elements)
        if num < 2 or self.reads_once():
            return
        self.inner.wanted = num
        try:
            memory.elements.extend(islice(self.parent.run(self.inner), num))
        except Exception:
            del memory.elements[start:]
            self.inner.at(memory.last.pos)  # they come one by one
            return
        num_read = len(memory.elements) - start
        if num_read:
            memory.marks.extend([*[None] * (num_read - 1), self._mark(memory.last.skipped)])
        if num_read < num:
            memory.is_all, memory.end = True, self.inner.settle()

    def _records(self) -> Records:
        return () if self.choices is None else self.choices.known()

    def _mark(self, skipped: tuple[int, ...]) -> _Mark:
        return _Mark(self.inner.settle(), skipped, self._counts())

    def _counts(self) -> dict[str, int]:
        return (
            {}
            if self.choices is None
            else {key: num for key, num in self.choices.counts.items() if num}
        )

    def _pass(self, cell: Cell, memory: _Memory, pos: Pos) -> None:
        """Skip the element that failed, which the memory is before."""
        parent, num, is_filled, skipped = pos
        known, new = memory.last.skipped, len(memory.elements)
        later = skipped[len(known) :]
        self.inner.pass_failed()
        memory.gap = new, self._mark((*known, new))
        # it was delivered once, and cannot be computed again: it does not count any more
        if num > new:
            cell.pos = (
                parent,
                num - 1,
                is_filled,
                (*known, new, *[gap - 1 for gap in later]),
                self._records(),
            )
        else:
            cell.pos = memory.last.pos, num, False, (*known, new, *later), self._records()


def _in_memory(
    memory: _Memory | None,
    parent: Pos,
    stop: int,
    items: Iterator[Any],
    skipped: tuple[int, ...],
    records: Records,
) -> Pos:
    """Return the position before the ``items`` that are left before ``stop``; without ``memory``
    all is in it.
    """
    num = stop - length_hint(items)
    return (
        (parent, num, True, skipped, records)
        if memory is None
        else (memory.pos_at(num), num, False, skipped, records)
    )


class _Mark(NamedTuple):
    """The parent's position after an element, the elements skipped until then, and the number of
    choices.
    """

    pos: Pos
    skipped: tuple[int, ...] = ()
    counts: dict[str, int] = {}  # noqa: RUF012  (never changed)


@dataclass
class _Memory:
    """The first elements of a stream, and where it is after each.

    Args:
        start: where it is at the beginning.
    """

    start: _Mark
    elements: list[Any] = field(default_factory=list)
    # appended after its element; none within a block
    marks: list[_Mark | None] = field(default_factory=list)
    # how many elements are before the one that was skipped last, and the mark after it
    gap: tuple[int, _Mark] | None = None
    is_all: bool = False
    end: Pos = None  # of the parent, if that is all

    def pos_at(self, num: int) -> Pos:
        """Return the parent's position after ``num`` elements, or before the block in which that
        is.
        """
        while num and self.marks[num - 1] is None:
            num -= 1
        mark = self.marks[num - 1] if num else None
        return self.start.pos if mark is None else mark.pos

    @property
    def last(self) -> _Mark:
        """The mark after all elements, and what was skipped."""
        if self.gap is not None and self.gap[0] == len(self.marks):
            return self.gap[1]
        return self.marks[-1] or self.start if self.marks else self.start

    def cut(self, counts: Mapping[str, int]) -> bool:
        """Forget elements until as many choices as ``counts`` were made; return false if none is
        left.
        """
        self.is_all = False
        while self.marks and self.last.counts != counts:
            self.gap = None
            del self.marks[-1], self.elements[-1]
        return self.last.counts == counts

    def begins(self, num: int, skipped: tuple[int, ...]) -> bool:
        """Return true if what is in memory comes, or up to ``num`` would come, with just these
        elements skipped.
        """
        gaps = self.last.skipped
        num_both = min(len(gaps), len(skipped))
        if gaps[:num_both] != skipped[:num_both] or num > min(gaps[num_both:], default=num):
            return False
        return num_both == len(skipped) or not (
            self.is_all or skipped[num_both] < len(self.elements)
        )
