"""The stream that reads a map dataset, in the order of its indices."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator
from functools import partial
from itertools import compress, repeat
from operator import length_hint
from typing import Any

from gristmill.core.cached import cached
from gristmill.core.errors import SourceEnded, StateIndexError
from gristmill.core.state import plain_int, shown, state_field
from gristmill.dataset.ahead.reader import Reader
from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import dropping_steps
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.engine.stream import Cell, Pos, Stream
from gristmill.dataset.stages.filter_guard import WINDOW, FilterGuard
from gristmill.dataset.stages.runs import RunsMapDataset

_is_there = partial(operator.is_not, None)
_MOST = 64  # elements that are begun as one block where each is computed when it is requested


class Read(Stream):
    """The elements of ``ds``. The position is the next index.

    Opening it is quick, since a mixture has hundreds of components that are not needed soon: the
    reader is made when it is used first.
    """

    flow = "dropping"
    work_category = "prefetch"
    closes_anytime = True

    def __init__(self, stage: Any, ds: MapDataset[Any]) -> None:
        super().__init__(stage)
        self.ds = ds
        self.draws_from = (ds,)
        self.length = len(ds)
        self.numbers = ds.numbers if type(ds) is RunsMapDataset else None
        self.with_nones: bool = stage._parameters.allow_nones
        self._decisions: list[bool] = []  # which of the last elements there were

    @cached
    def reader(self) -> Reader:  # type: ignore[override]
        options = self.stage._parameters.read_options
        return Reader(self.ds, options.num_threads, options.prefetch_buffer_size, self.ctx)

    @cached
    def budget_waits(self) -> BudgetWaits:  # type: ignore[override]
        return self.reader.waits

    @cached
    def guard(self) -> FilterGuard:
        return FilterGuard([*dropping_steps(self.ds), self][0])

    def _run(self, cell: Cell) -> Iterator[Any]:
        size = 1
        try:
            while cell.pos < self.length:
                wanted = cell.take_wanted()
                if wanted > 1:
                    yield from self._block(cell, wanted)
                    cell.settle()
                else:
                    # Where each element is computed when it is requested, the size of a part is free.
                    size = 1 if self.reader.num_threads else min(2 * size, _MOST)
                    yield from self._part(cell, size)
        except SourceEnded:
            cell.settle()
        except GeneratorExit:
            raise
        except Exception:
            cell.settle()
            cell.pos += 1
            raise
        except BaseException:
            self.reader.stop()  # what was read and not delivered is read again
            raise

    def _part(self, cell: Cell, size: int) -> Iterator[Any]:
        """Return up to ``size`` elements, with the position after each."""
        index, skips, decisions = cell.pos, not self.with_nones, self._decisions
        elements, _ = self.reader.part(index, min(size, self.length - index))
        for x in elements:
            if skips:
                decisions.append(x is not None)
                if len(decisions) >= WINDOW:
                    self.guard.judge(decisions, self.ctx.options)
            index += 1
            cell.pos = index
            if x is not None or not skips:
                yield (x, x := None)[0]

    def _block(self, cell: Cell, wanted: int) -> Iterator[Any]:
        """Return up to ``wanted`` elements; the position after one is known when the cell is settled."""
        index, size = cell.pos, min(wanted, self.length - cell.pos)
        if self.with_nones:
            elements, size = self.reader.part(index, size)
            read = cell.count_from(index, size)
            yield from compress(elements, read)
            return
        # The last element of a window is not in a block: the guard is asked before it is returned.
        elements, size = self.reader.part(index, min(size, max(1, WINDOW - len(self._decisions) - 1)))
        read, kept = cell.count_from(index, size), repeat(True, size)
        try:
            yield from compress(filter(_is_there, compress(elements, read)), kept)
        except Exception:
            self._note(size - length_hint(read), size - length_hint(kept))
            raise
        self._note(size, size - length_hint(kept))

    def _note(self, num: int, num_kept: int) -> None:
        """Take note for the guard that of ``num`` elements ``num_kept`` were there."""
        self._decisions += [True] * num_kept + [False] * (num - num_kept)

    def start(self) -> int:
        return 0

    def save(self, pos: Pos) -> Any:
        return {"next_index": pos}

    def load(self, state: Any) -> int:
        index = state_field(state, "next_index", self)
        position = plain_int(index)
        if position is None or not 0 <= position <= self.length:
            raise StateIndexError(
                f"next_index in the state of {self} must be in [0, {self.length}], the length of the dataset, got {shown(index)}"
            )
        return position

    def place(self, pos: Pos) -> Place:
        return Place(self.ds, pos - 1, is_exact=not self.has_gaps())

    def index_of(self, pos: Pos) -> int:
        return int(pos)

    def at_index(self, index: int) -> int:
        return self.load({"next_index": index})

    @cached
    def _is_sparse(self) -> bool:
        return bool(dropping_steps(self.ds))

    def has_gaps(self) -> bool:
        return self._is_sparse and not self.with_nones

    def reads_once(self) -> bool:
        return self.ds._draws_once

    def start_prefetch(self) -> None:
        self.reader.start()

    def expect(self, rate: float, due: float | None) -> None:
        self.reader.expect(rate, due)

    def close(self) -> None:
        if "reader" in vars(self):
            self.reader.close()

    def work_ahead(self) -> WorkAhead:
        num_threads = self.reader.num_threads
        return WorkAhead(num_threads > 0, num_threads, self.reader.num_ready, reads=True)

    def observe_reads(self, replace: Callable[[Any], Any] | None) -> None:
        self.reader.observe(None if replace is None else replace(self.ds))

    def counts_at(self, num: int) -> dict[str, dict[str, int]] | None:
        return self.ds._counts_before(num)
