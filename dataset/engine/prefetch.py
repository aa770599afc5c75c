"""The stream of a thread that computes elements ahead."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, NamedTuple

from gristmill.dataset.ahead.pullahead import End, Failure, Fetched, PullAhead, end_waits
from gristmill.dataset.ahead.waits import BudgetWaits
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.engine.choices import Choices, Records
from gristmill.dataset.engine.stream import Cell, Pos, Stream
from gristmill.dataset.errors.context import end_error_context
from gristmill.dataset.states.values import copied

_BLOCK_SECONDS = 0.001  # a thread looks after this time whether it is still wanted


class Saved(NamedTuple):
    """A position of a stream that only its own thread can save, with its state; ``None`` if it has
    none.
    """

    pos: Pos
    state: Any


class Pulled:
    """A stream that a thread runs: the source of a ``PullAhead``.

    Args:
        stream: the stream.
        cell: where it is.
        choices: those that are known, for stages upstream; ``None`` if nothing is recorded.
        it: the iterator of the stream, which is closed when it is no longer needed.
    """

    def __init__(
        self, stream: Stream, cell: Cell, choices: Choices | None, it: DatasetIterator[Any]
    ) -> None:
        self._stream = stream
        self._cell = cell
        self._choices = choices
        self._counts: dict[str, int] = {}  # choices that were handed over
        self._saves_anywhere = stream.saves_anywhere()
        self._it = it

    def fill(self, put: Callable[[Fetched], None], num: int) -> tuple[int, BaseException | None]:
        cell, num_put, deadline = self._cell, 0, time.perf_counter() + _BLOCK_SECONDS
        if self._saves_anywhere:
            cell.wanted = num
        is_simple = self._saves_anywhere and self._choices is None
        try:
            for x in islice(self._stream.run(cell), num):
                if is_simple:
                    put(((x, x := None)[0], cell.settle() if cell.is_counting else cell.pos, ()))
                else:
                    put(((x, x := None)[0], *self._here()))
                num_put += 1
                if time.perf_counter() > deadline:
                    return num_put, None
            return num_put, None if num_put == num else End(*self._here())
        except Exception as error:
            end_error_context(error)
            return num_put, error
        except BaseException as error:
            return num_put, error

    def _here(self) -> tuple[Pos, Records]:
        """Return the position, and the choices since the last one."""
        pos = self._cell.settle()
        records: Records = ()
        if self._choices is not None:
            records = self._choices.hand_over(self._counts)
            self._counts = {**self._choices.counts}
        return pos if self._saves_anywhere else saved(self._stream, pos), records

    @property
    def met_end(self) -> bool:
        """True if a stage upstream that replays elements has met a known end."""
        return self._choices is not None and self._choices.met_end

    def close(self) -> None:
        self._it.close()

    def forget(self) -> None:
        self._stream.forget()

    def end_waits(self) -> None:
        end_waits(self._it)


class Prefetch(Stream):
    """The parent's elements, computed ahead by one thread. The position is the parent's, or a
    ``Saved`` one.

    At the end it is that after the last element, although the parent may have looked for more.

    Args:
        size: the most elements to be ahead; with 0 there is no thread.
        it: the iterator of the parent.
    """

    flow = "one_to_one"
    work_category = "prefetch"
    ahead: PullAhead | None = None
    is_closed = False
    _at: Pos = None  # the position after which the elements that are ready come, if that is known
    _is_known = False
    _first: Saved | None = None  # where the thread began, if only that can save it
    # The position after the first element that is ready, if that was delivered: of a plain
    # iterator, which cannot go back to it after an interrupt.
    _lent: Pos = None
    raised = 0  # the id of the error of the thread that was raised last
    _finalizer: Any = None

    _pulled: Pulled | None = None  # the source of the last thread

    def __init__(self, stage: Any, parent: Stream, size: int, it: DatasetIterator[Any]) -> None:
        super().__init__(stage, parent)
        self.size = size
        self._it = it
        self.closes_anytime = size > 0  # type: ignore[misc]
        self.budget_waits = BudgetWaits()

    def _run(self, cell: Cell) -> Iterator[Any]:
        return self._threaded(cell) if self.size else self._direct(cell)

    def _direct(self, cell: Cell) -> Iterator[Any]:
        pos = cell.pos
        for x in self.parent.run(cell):
            pos = cell.settle()
            yield (x, x := None)[0]
        if not self.parent.may_have_chosen():
            cell.pos = pos

    def _threaded(self, cell: Cell) -> Iterator[Any]:
        choices = cell.choices if self.parent.chooses else None
        ahead = self._running(cell.pos, choices)
        while True:
            num, ready = cell.take_wanted(), ahead.ready
            if num > 1 or not ready or (self._first is not None and not ahead.is_here):
                if ahead.is_stopped:  # this is another process
                    ahead = self._running(cell.pos, choices)
                ready, failure = ahead.wait(num)
                if not ready:
                    assert failure is not None
                    # it has ended, and must not refer to an error that refers to this
                    self.ahead = None
                    self._finalizer.detach()
                    ahead.forget_failure()
                    if isinstance(end := failure[0], End):
                        if self.parent.may_have_chosen():
                            self._end(cell, end)
                        return
                    cell.past_failed = lambda: self._pass(cell)
                    self.raised = id(end)
                    failures = [failure]
                    del ready, failure, end, ahead
                    reraise(failures)
                num = min(num, len(ready))
            for left in range(num - 1, -1, -1):
                x, pos, records = ready[0]
                if is_plain := type(pos) is Saved and pos.state is None:
                    self._lent = pos
                else:
                    # first: after an interrupt the elements that are ready belong elsewhere
                    self._at = pos
                    ahead.wanted = left
                    del ready[0]
                    if not left:
                        ahead.has_taken()
                if choices is not None:
                    choices.add(records)
                cell.pos = pos
                yield (x, x := None)[0]
                if is_plain:
                    self._return_lent(ahead)

    def _end(self, cell: Cell, end: End) -> None:
        """Move to the end, which says more than the position after the last element where there
        were choices.
        """
        if cell.choices is not None:
            cell.choices.add(end.records)
            cell.choices.met_end |= self._pulled is not None and self._pulled.met_end
        self._at = cell.pos = end.pos

    def _return_lent(self, ahead: PullAhead) -> None:
        """Take what was delivered out of what is ready, if that has not happened."""
        self._at = self._lent
        if ahead.ready and ahead.ready[0][1] is self._lent:
            del ahead.ready[0]
        self._lent = None
        ahead.wanted = 0
        ahead.has_taken()

    def _running(self, pos: Pos, choices: Choices | None) -> PullAhead:
        """Return the thread whose next element is that after ``pos``."""
        if self.is_closed:
            raise ValueError(f"{self} is closed")
        ahead = self.ahead
        if self._lent is not None:
            if ahead is not None and pos is self._lent:
                self._return_lent(ahead)
            self._lent = None  # else the element comes again
        is_there = self._is_known and (self._at is pos or self._at == pos)
        begins_anew = choices is not None and self.parent.chooses  # by what is recorded
        if ahead is None or ahead.is_stopped or begins_anew or not is_there:
            ahead = self._begin(pos, choices)
        return ahead

    def _begin(self, pos: Pos, choices: Choices | None) -> PullAhead:
        before = self.ahead
        self._stop()
        start = pos.pos if type(pos) is Saved else pos
        self._first = None
        if not self.parent.saves_anywhere():
            self._first = pos if type(pos) is Saved else saved(self.parent, pos)
            if (
                before is not None
                and before.has_begun
                and not before.is_here
                and self._first.state is None
            ):
                raise ValueError(
                    f"{self} cannot continue in a forked process: the iterator upstream,"
                    f" {self._it}, has no state to return to"
                )
        if before is not None and not before.is_here:
            self.parent.forget()
        own = None
        if choices is not None:
            own = Choices()
            own.restart(choices.to_come())
        self._pulled = source = Pulled(
            self.parent, self.inner.at(start, choices=own), own, self._it
        )
        ahead = PullAhead(source, self.size, self.ctx.budget, self.budget_waits)
        self._finalizer = weakref.finalize(self, ahead.stop)
        self._at, self._is_known, self.ahead = pos, True, ahead
        ahead.start()
        return ahead

    def _stop(self) -> None:
        """Drop what is ready; then no thread is in the parent."""
        if self.ahead is not None:
            self.ahead.stop()
            self.ahead.wait_until_outside()
            self._finalizer.detach()

    def discard(self) -> None:
        self._stop()
        self.ahead = self._live = None

    def _pass(self, cell: Cell) -> None:
        self.inner.pass_failed()
        cell.pos = self.inner.pos

    # Positions.

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        return self.parent.next_epoch(self.pos_of_parent(end, 0), records)

    def save(self, pos: Pos) -> Any:
        first = self._first
        if (
            type(pos) is not Saved
            and first is not None
            and self.ahead is not None
            and first.pos is pos
        ):
            pos = first
        if type(pos) is not Saved:
            return self.parent.save(pos)
        return self.parent.save(pos.pos) if pos.state is None else copied(pos.state)

    def load(self, state: object) -> Pos:
        if self.ahead is not None:
            self.save(self._at)  # raises if nothing could come back to where this is
            self.discard()
        return self._moved_to(self.parent.load(state))

    def _moved_to(self, pos: Pos) -> Pos:
        self._at, self._is_known = pos, True
        return pos

    def place(self, pos: Pos) -> Place | None:
        return None if type(pos) is Saved else self.parent.place(pos)

    def merge(self, states: object) -> Any:
        return self.parent.merge(states)

    def pos_of_parent(self, pos: Pos, i: int) -> Pos:
        return pos.pos if type(pos) is Saved else pos

    def index_of(self, pos: Pos) -> int:
        if self.ahead is not None and not self.parent.saves_anywhere():  # the parent is elsewhere
            try:
                state = self.save(pos)
            except NotImplementedError:
                return super().index_of(pos)
            self.discard()
            return self.parent.index_of(self.parent.load(state))
        return self.parent.index_of(pos.pos if type(pos) is Saved else pos)

    def at_index(self, index: int) -> Pos:
        if self.ahead is not None:
            try:
                self.save(self._at)
            except NotImplementedError:  # what is ready cannot be read again
                return super().at_index(index)
            self.discard()
        return self._moved_to(self.parent.at_index(index))

    # Resources, and what observers ask.

    def start_prefetch(self) -> None:
        if not self.size:
            super().start_prefetch()
        else:
            self._running(self._at if self._is_known else self.parent.start(), None)

    def expect(self, rate: float, due: float | None) -> None:
        if not self.size:
            super().expect(rate, due)
            return
        if self.ahead is None:  # else the parent belongs to the thread
            super().expect(rate, None)
        if due is not None and not self.is_closed:
            self.start_prefetch()

    def close_within(self, seconds: float) -> None:
        """Close this and the iterator of the parent, as soon as the thread is out of it; wait for
        so long at most.
        """
        self.is_closed = True
        if self.ahead is None:
            self._it.close()
        else:
            self.ahead.close(seconds)

    def drop(self) -> None:
        if self.ahead is not None:
            self.ahead.stop()
        super().drop()

    def work_ahead(self) -> WorkAhead:
        ahead, num_threads = self.ahead, min(1, self.size)
        return WorkAhead(num_threads > 0, num_threads, 0 if ahead is None else ahead.num_ready)

    def __str__(self) -> str:
        return f"ThreadPrefetchDatasetIterator({self.stage._gm_parameters.text()})"


def saved(stream: Stream, pos: Pos) -> Saved:
    """Return a position with its state."""
    try:
        return Saved(pos, stream.save(pos))
    except NotImplementedError:
        return Saved(pos, None)


def reraise(failures: list[Failure]) -> None:
    """Raise the last one, to which no frame but that of the caller refers."""
    error, traceback = failures.pop()
    try:
        raise error.with_traceback(traceback)
    finally:
        del error, traceback
