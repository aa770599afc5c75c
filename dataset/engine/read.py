"""The stream that reads a map dataset, in the order of its indices."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import compress, islice
from typing import Any

from gristmill.core.cached import cached
from gristmill.core.errors import SourceEnded, StateIndexError
from gristmill.core.state import plain_int, shown, state_field
from gristmill.dataset.ahead.reader import Reader
from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.items import given_out
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import dropping_steps
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.engine.stream import Cell, Pos, Stream
from gristmill.dataset.stages.filter_guard import WINDOW, FilterGuard
from gristmill.dataset.stages.runs import RunsMapDataset

_MOST = 64  # elements that are begun as one block where each is computed when it is requested


class Read(Stream):
    """The elements of ``ds``. The position is the next index.

    Opening it is quick, since a mixture has hundreds of components that are not needed soon: the
    reader is made when it is used first.
    """

    flow = "dropping"
    work_category = "prefetch"
    closes_anytime = True
    # the consumer needs the last element of a block when it has delivered the others
    _is_in_step = True

    def __init__(self, stage: Any, ds: MapDataset[Any]) -> None:
        super().__init__(stage)
        self.ds = ds
        self.draws_from = (ds,)
        self.length = self._end = len(ds)  # the end, or where the source has ended
        self.numbers = ds.numbers if type(ds) is RunsMapDataset else None
        self.with_nones: bool = stage._gm_parameters.allow_nones
        self._decisions: list[bool] = []  # which of the last elements there were

    @cached
    def reader(self) -> Reader:
        options = self.stage._gm_parameters.read_options
        limits = options.most_threads, options.prefetch_buffer_size
        return Reader(self.ds, *limits, self.ctx, is_auto=options.num_threads == "auto")

    @cached
    def budget_waits(self) -> BudgetWaits:
        return self.reader.waits

    @cached
    def guard(self) -> FilterGuard:
        return FilterGuard([*dropping_steps(self.ds), self][0])

    def _run(self, cell: Cell) -> Iterator[Any]:
        cell.end_block()  # of a run that is gone
        reader, decisions, skips = self.reader, self._decisions, not self.with_nones
        # ``left`` is how many of those that are wanted are not in a block
        left, size, num_dropped = 0, 1, 0
        is_in_step = self._is_in_step
        try:
            while (index := cell.pos) < self._end:
                wanted = max(left, cell.take_wanted())
                # The last element of a window is not in a block: the guard is asked before it is
                # returned.
                num = min(wanted, WINDOW - 1 - len(decisions), self._end - index)
                if wanted > 1 and num > 1 and not reader.is_careful:
                    elements, num = reader.part(index, num)
                    if reader.log is not None:
                        reader.log.block = cell, index + num
                    # All but the last one, so that this keeps no element when the block has been
                    # delivered.
                    for x in compress(islice(elements, num - 1), cell.count_from(index, num - 1)):
                        if x is None and skips:
                            num_dropped += 1
                            is_in_step = False
                        else:
                            yield x if is_in_step else (x, x := None)[0]
                    x = next(elements)
                    self._end_block(cell, index, num_dropped)
                    if skips:
                        decisions.append(x is not None)
                    del elements
                    cell.pos = index + num
                    left, num_dropped = wanted - num, 0
                    if x is not None or not skips:
                        yield (x, x := None)[0]
                elif wanted == 1 and not left and self._hands_over(reader):
                    yield from self._part(cell, _MOST)
                    is_in_step = False
                elif left or wanted > 1 or self._reads_one_by_one(reader):
                    yield from self._part(cell, 1)
                    left = wanted - 1
                else:
                    # Each element is computed when it is requested, so the size of a part is free.
                    yield from self._part(cell, size)
                    is_in_step, size = False, min(2 * size, _MOST)
        except SourceEnded:
            self._end_block(cell, index, num_dropped)
            self._end = cell.pos
        except GeneratorExit:
            raise
        except Exception:
            self._end_block(cell, index, num_dropped)
            cell.pos += 1
            raise
        except BaseException:
            reader.stop()  # what was read and not delivered is read again
            raise

    def _hands_over(self, reader: Reader) -> bool:
        """Return true if elements are handed over that threads have ready."""
        return reader.num_threads > 0 and reader.log is None

    def _reads_one_by_one(self, reader: Reader) -> bool:
        """Return true if the reader is asked for each element alone, unless several are wanted."""
        return (
            self._reads_many
            or reader.num_threads > 0
            or reader.log is not None
            or reader.is_observed
        )

    def _end_block(self, cell: Cell, start: int, num_dropped: int) -> None:
        """Take note of the elements of a block that were read, of which ``num_dropped`` were not
        there.
        """
        if cell.is_counting:
            num = cell.settle() - start
            cell.is_counting = False
            if not self.with_nones:
                self._decisions += [True] * (num - num_dropped) + [False] * num_dropped

    def _part(self, cell: Cell, size: int) -> Iterator[Any]:
        """Return up to ``size`` elements, with the position after each."""
        index, skips, decisions = cell.pos, not self.with_nones, self._decisions
        hands_over = size > 1 and self._hands_over(self.reader)
        size = min(size, self._end - index)  # the source may have grown
        if size == 1:  # a list would keep the element
            elements = given_out(self.reader.take(index, 1))
        elif hands_over:
            elements = self.reader.each(index, size)
        else:
            elements, _ = self.reader.part(index, size)
        for x in elements:
            if skips:
                decisions.append(x is not None)
                if len(decisions) >= WINDOW:
                    self.guard.check(decisions, self.ctx.options)
            index += 1
            cell.pos = index
            if x is not None or not skips:
                yield (x, x := None)[0]
            if hands_over and cell.wants_many:
                return  # which are read at once, as many as there are

    def take_singly(self) -> None:
        self._is_in_step = False

    def start(self) -> int:
        return 0

    def save(self, pos: Pos) -> Any:
        return {"next_index": pos}

    def faults_in(self, pos: Pos) -> Any:
        return None

    def load(self, state: object) -> int:
        index = state_field(state, "next_index", self)
        position = plain_int(index)
        if position is None or not 0 <= position <= self.length:
            raise StateIndexError(
                f"next_index in the state of {self} must be in [0, {self.length}], the length of"
                f" the dataset, got {shown(index)}"
            )
        self._end = self.length  # a source that has ended is asked again
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

    @cached
    def _reads_many(self) -> bool:
        """True if elements of one request are read before they are requested one by one."""
        return self.ds._gm_draws_blocks or self.ds._gm_draws_many

    def has_gaps(self) -> bool:
        return self._is_sparse and not self.with_nones

    def reads_once(self) -> bool:
        return self.ds._gm_draws_once

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
        return self.ds._gm_counts_before(num)
