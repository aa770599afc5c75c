"""Reading a map dataset in the order of its indices, each element once.

Guarantees:

1. Elements come in the order of their indices. An error comes after the elements before it, when
   the one that failed is requested; the next attempt computes that one again.
2. What was computed and not handed out is not computed again if the consumer continues there, also
   after an error.
3. With one thread, or none, a source that may not give the same record again (see
   ``may_be_read_again``) is asked for one record after another, in their order, and for none after
   one that failed.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from functools import partial
from itertools import chain, islice
from typing import Any

from gristmill.dataset.ahead.kept import Call, KeptBlocks
from gristmill.dataset.ahead.readahead import Items, ReadAhead
from gristmill.dataset.ahead.root_log import RootLog
from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.items import check_number, given_out
from gristmill.dataset.bases.map import MapDataset

_MOST_LIVE = 64  # indices that are looked up at once, of which elements are computed one by one
# this many elements that were handed out are computed again without losing those after them
_NEAR = 32


class _Items:
    """Computes elements of ``ds`` at a range of indices, from blocks that are kept if it has
    some.
    """

    _ahead: ReadAhead | None = None

    def __init__(self, ds: MapDataset[Any], ctx: IteratorContext) -> None:
        self.ctx = ctx
        self.reads_once = ds._gm_draws_once
        self._ds = ds
        self._read_from: Any = ds  # or what an observer has made of it
        self._keeps_blocks = ds._gm_draws_blocks and not self.reads_once
        self._reads_many = ds._gm_draws_many
        self._length = len(ds)
        # computes the elements from ``_live_index`` to ``_live_stop``
        self._live: Iterator[Any] | None = None
        self._live_index = self._live_stop = self._live_size = 0
        self._blocks: dict[str, KeptBlocks] = {}  # one: several threads may make it

    @property
    def is_observed(self) -> bool:
        """True if elements of one call are computed at once, so that an observer looks at the clock
        once.
        """
        return self._read_from is not self._ds

    @property
    def _is_at_once(self) -> bool:
        """True if elements of one call are computed before the first one is requested."""
        return self.is_observed or self._keeps_blocks or self._reads_many

    @property
    def _items(self) -> Items:
        """Computes the elements at a range of indices."""
        return self._items_from_kept if self._keeps_blocks else self._read_from._gm_items

    def _items_from_kept(self, indices: range) -> Iterator[Any]:
        return Call(self._kept_blocks(), indices[0]).elements(
            partial(self._read_from._gm_items, indices)
        )

    def _kept_blocks(self) -> KeptBlocks:
        made = self._blocks
        kept = made.get("kept")
        return kept or made.setdefault("kept", KeptBlocks(self.ctx.budget, self._lowest))

    def _lowest(self, call: int) -> int:
        ahead = self._ahead
        return call if ahead is None else ahead.lowest

    def _live_at(self, index: int, n: int) -> Iterator[Any]:
        """Returns an iterator of at least ``n`` elements: the one that has returned those before,
        if it is there.
        """
        if self._live is not None and self._live_index == index and index + n <= self._live_stop:
            return self._live
        self._live = None
        is_lazy = not self._is_at_once
        self._live_size = max(n, min(2 * self._live_size, _MOST_LIVE)) if is_lazy else n
        self._live_stop = max(index + n, min(index + self._live_size, self._length))
        return iter(self._items(range(index, self._live_stop)))


class Reader(_Items):
    """Computes the elements of ``ds`` at consecutive indices, ahead of its consumer if there are
    threads.

    Args:
        ds: the dataset.
        num_threads: the most threads to use; none if 0.
        buffer_size: the most elements to be ahead; none if 0.
        ctx: of the pipeline, whose threads it uses.
        is_auto: true if the number of threads is found while they run.
    """

    def __init__(
        self,
        ds: MapDataset[Any],
        num_threads: int,
        buffer_size: int,
        ctx: IteratorContext,
        is_auto: bool = False,
    ) -> None:
        super().__init__(ds, ctx)
        self.log: RootLog | None = None  # in a worker
        self.waits = BudgetWaits()
        self.num_threads = min(num_threads, buffer_size)
        self._given_limits = self.num_threads, buffer_size
        self._is_auto = is_auto
        self._buffer_size = buffer_size
        self._finalizer: Any = None
        self._rate = 1.0  # how often elements are needed, relative to others
        self._index = 0  # next come the buffered elements, then the error, then new reads
        self._keeps = False  # whether there may be something of the following
        self._kept: list[Any] = []
        self._error: BaseException | None = None
        # of elements before ``_index``, which are handed out when they are requested
        self._part: Iterator[Any] | None = None
        self._giving: ReadAhead | None = None  # has the rest of the last part of ``each``
        self._is_draining = False  # nothing more is computed ahead
        self._given_out: list[Any] = []  # what is left of the last part that was computed at once
        # elements of the last part that a source read at once, without threads
        self._num_at_once = 0
        self._is_closed = False

    @property
    def num_ready(self) -> int:
        """The number of elements that can be taken without waiting."""
        ahead = self._ahead  # which another thread may drop
        return len(self._kept) + (0 if ahead is None else ahead.num_ready)

    @property
    def is_careful(self) -> bool:
        return self.log is not None and self.log.is_careful

    def take(self, index: int, n: int) -> list[Any]:
        """Returns the elements at ``index`` and after it, at least one and at most ``n``. Not to be
        called at the end.
        """
        if index == self._index and not self._keeps:
            elements = self._read(index, n)
        else:
            self.go_to(index)
            if index < self._index:
                return self._read(index, 1)
            elements = self._kept[:n]
            if elements:
                del self._kept[:n]
            elif self._error is not None:
                error, self._error = self._error, None
                try:
                    raise error
                finally:
                    del error  # its traceback refers to this frame
            else:
                elements = self._read(index, n)
        self._index = index + len(elements)
        return elements

    def part(self, index: int, n: int) -> tuple[Iterator[Any], int]:
        """Returns the result of ``take`` as an iterator that gives elements one by one, and their
        number.
        """
        if index != self._index or self._keeps:
            self.go_to(index)
        if self.num_threads or self._keeps:
            elements = self._given_out = self.take(index, n)
            n = len(elements)
            part = given_out(elements)
            if index + n == self._index:  # else they come again
                self._part, self._keeps = part, True
            return part, n
        n = self._num_now(n)
        if self.log is not None:
            self.log.note(index, index + n)
        self._index = index + n
        return self._items(range(index, index + n)), n

    def each(self, index: int, n: int) -> Iterator[Any]:
        """Return an iterator over at most ``n`` elements that come without a wait after the first
        one. Those that threads have ready stay theirs until they are requested.
        """
        if index != self._index or self._keeps:
            self.go_to(index)
        if self._keeps or index < self._index or not self._has_ahead:
            return given_out(self.take(index, 1))
        try:
            ahead = self._started(index)
            first = ahead.take(1)
        except BaseException:
            self.stop()  # nothing comes after an error
            raise
        self._giving, self._keeps = ahead, True
        return chain(given_out(first), _ready(ahead, n - 1))

    def go_to(self, index: int) -> None:
        """Lets the element at ``index`` come next. What is kept remains if that is among it, or was
        handed out shortly before.
        """
        self._live = None
        try:
            self._collect()
            num_passed = index - self._index
            if (
                self.reads_once
                and -_NEAR <= num_passed < 0
                and (self._kept or self._ahead is not None)
            ):
                return  # later elements are kept
            if 0 <= num_passed <= len(self._kept):
                del self._kept[:num_passed]
            else:
                self.stop()
            self._index = index
            self._keeps = bool(self._kept) or self._error is not None
        except BaseException:  # an interrupt in the middle
            self.stop()
            raise

    def share(self, num: int) -> None:
        """Leaves room for ``num - 1`` others like this: uses its part of the threads, and of what
        may be ahead.
        """
        threads, size = self._given_limits
        self.num_threads, self._buffer_size = -(-threads // num), -(-size // num)
        if self._ahead is not None:
            self._ahead.num_threads = min(self.num_threads, self._buffer_size)

    def drain(self) -> None:
        """Compute nothing more ahead. What was computed ahead is handed out."""
        self._is_draining = True
        if (ahead := self._ahead) is not None and not ahead.is_draining:
            with ahead.budget.lock:  # no thread begins an element after this
                ahead.is_draining = True

    @property
    def is_drained(self) -> bool:
        """True if nothing was computed that has not been handed out. To be asked between two
        outputs of the pipeline.
        """
        ahead = self._ahead
        has_ahead = ahead is not None and ahead.num_ahead > 0
        return not (has_ahead or self._kept or self._given_out or self._num_at_once > 1)

    def start(self) -> None:
        """Begins to read ahead."""
        if self._may_read_ahead:
            self._started(self._index).budget.start()

    def expect(self, rate: float, due: float | None) -> None:
        """Notes its share of all draws, and starts reading for a first draw after ``due`` draws."""
        self._rate = rate
        if due is not None and self._may_read_ahead:
            self._started(self._index)
        ahead = self._ahead
        if ahead is not None and ahead.budget.is_here:
            ahead.budget.expect(ahead, rate, due or 0.0)

    @property
    def _has_ahead(self) -> bool:
        """True if threads compute the next element."""
        if self._is_draining and (self._ahead is None or not self._ahead.num_ahead):
            return False
        return bool(self.num_threads) and not self.is_careful

    @property
    def _may_read_ahead(self) -> bool:
        return bool(self.num_threads) and not (
            self._is_closed or self.is_careful or self._keeps or self._is_draining
        )

    def stop(self) -> None:
        """Ends the threads, and keeps nothing."""
        self._kept, self._error, self._part, self._ahead, self._keeps = [], None, None, None, False
        self._live, self._giving, self._given_out = None, None, []
        if self._finalizer is not None:
            self._finalizer()
        blocks, self._blocks = self._blocks, {}
        for kept in blocks.values():
            kept.close()

    def close(self) -> None:
        """Stops as ``stop`` does, for good."""
        self._is_closed = True
        self.stop()

    def observe(self, observed: object) -> None:
        """Reads from ``observed``, an observer's version of the dataset; ``None``: from the dataset
        itself.
        """
        self._read_from = self._ds if observed is None else observed
        self._live = None
        if self._ahead is not None:
            self._ahead.items = self._items

    def _collect(self) -> None:
        """Keeps what was not taken of the last part."""
        if self._giving is not None:
            self._index, self._giving = self._giving.taken, None
        if self._part is not None:
            rest = [*self._part]
            self._part = None
            self._kept[:0] = rest
            self._index -= len(rest)

    def _read(self, index: int, n: int) -> list[Any]:
        log = self.log
        if index >= self._index and self._has_ahead:
            try:
                elements = self._started(index).take(n)
            except BaseException:
                self.stop()  # nothing comes after an error
                raise
            if log is not None:
                log.note(index, index + len(elements))
            return elements
        n = 1 if self._is_draining else self._num_now(n)  # others do not wait for a slow source
        if log is not None:
            if log.is_careful:
                n = 1
                log.note_alone(index)
            else:
                log.note(index, index + n)
        read: list[Any] = []
        live = self._live_at(index, n)
        self._live = None  # unless nothing fails
        try:
            read.extend(islice(live, n))
            check_number(len(read), n)
            self._live, self._live_index = live, index + n
        except Exception as error:
            if not read:
                raise
            # without this frame, which would keep the elements alive
            traceback = error.__traceback__
            self._error, self._keeps = error.with_traceback(traceback and traceback.tb_next), True
        return read

    def _num_now(self, n: int) -> int:
        """Return how many of ``n`` elements to ask for without threads: one that comes at once with
        no others, while draining.
        """
        self._num_at_once = (1 if self._is_draining else n) if self._is_at_once else 0
        return self._num_at_once or n

    def _started(self, index: int) -> ReadAhead:
        ahead = self._ahead  # which ``close`` in another thread drops
        if ahead is None or not ahead.budget.is_here:
            self.stop()
            what = (
                self._items,
                index,
                self._length,
                self.num_threads,
                self._buffer_size,
                self.ctx.budget,
            )
            ahead = ReadAhead(*what, log=self.log, rate=self._rate, waits=self.waits)
            self._finalizer = weakref.finalize(self, ahead.close)
            ahead.most_threads, ahead.common_size = self._given_limits
            ahead.is_auto = self._is_auto
            ahead.budget.enroll(ahead)
            self._ahead = ahead
        if self._is_closed:
            self.stop()
            raise ValueError("the iterator was closed while it waited for its next element")
        return ahead


def _ready(ahead: ReadAhead, n: int) -> Iterator[Any]:
    """Return an iterator over at most ``n`` elements that come without a wait, each of which is
    taken when it is requested.
    """
    for _ in range(min(n, ahead.num_ready)):
        if len(ahead.block) > 1:
            ahead.taken += 1
            yield ahead.block.pop(0)
        elif ahead.budget.is_here:
            yield ahead.take(1).pop()
        else:  # a forked process continues with threads of its own
            return
