"""The iterator of a stream, and streams over iterators.

A pipeline may have stages of both kinds: those that open a ``Stream``, and those with an iterator
of their own. ``StreamIterator`` gives a stream the methods of an iterator, ``IteratorStream`` an
iterator those of a stream.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeVar

from gristmill.core.exiting import end_thread_at_exit
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, iterate, marked, pull, return_to, skip_one, state_at
from gristmill.dataset.bases.next_index import may_have_gaps, move_to_index, next_index_of
from gristmill.dataset.bases.observing import WorkAhead, Wrap
from gristmill.dataset.bases.origins import Place, place_of
from gristmill.dataset.engine.stream import Cell, Pos, Stream, pass_outputs
from gristmill.dataset.states.values import copied
from gristmill.dataset.telling.failures import deliver, instead_of_stop
from gristmill.dataset.telling.tracebacks import filter_traceback
from gristmill.dataset.watching import tell_of_faults
from gristmill.transforms.batching import Allocate

T_co = TypeVar("T_co", covariant=True)


def open_stage(stage: Any, make: Callable[..., Stream], kind: type[StreamIterator[Any]] | None = None) -> StreamIterator[Any]:
    """Return an iterator of the stream that ``make`` makes over those of the parents of ``stage``.

    Args:
        stage: the definition.
        make: called with ``stage`` and the streams.
        kind: the class of the iterator, if it has methods of its own.
    """
    return (kind or StreamIterator)(stage, [iterate(parent) for parent in stage._parents], make)


class StreamIterator(BlockIterator[T_co]):
    """A stream and its position.

    After a failure or an interrupt the cell returns to the position that was last committed, so
    that the same element comes again.
    """

    _part_of: tuple[weakref.ref[StreamIterator[Any]], int] | None = None  # its consumer, as which parent

    def __init__(self, stage: Any, parents: Sequence[DatasetIterator[Any]], make: Callable[..., Stream]) -> None:
        # First, since observers that run look at it from the base class on.
        self._stage = stage
        self._engine = engine = make(stage, *[stream_of(parent) for parent in parents])
        self._parameters = engine.parameters
        self._flow = engine.flow  # type: ignore[assignment,misc]
        self._work_category = engine.work_category  # type: ignore[assignment,misc]
        self._closes_anytime = engine.closes_anytime
        self._own_cell = Cell(engine.start())
        self._base = self._own_cell.pos  # the position after the output that was delivered last
        super().__init__(parents)
        engine.ctx = self._ctx
        if engine.numbers is not None:
            self._ctx.numbers = engine.numbers
        self._counts_faults = self._counts_faults or engine.counts_faults
        owner = weakref.ref(self)
        for i, parent in enumerate(parents):
            if isinstance(parent, StreamIterator):
                parent._part_of = owner, i
        if engine.counts_faults:
            engine.tell_faults = tell_faults_of(self)
        self._has_failed = False  # ``next`` has, with an error: its output can be skipped
        self._advance: Callable[[], Any] | None = None  # of a run that is at ``_base``

    def _share_context(self, ctx: IteratorContext) -> None:
        self._engine.ctx = ctx
        super()._share_context(ctx)

    # Delivering.

    def __next__(self) -> T_co:
        claim = self._claim
        try:
            del claim.is_free
        except AttributeError:
            end_thread_at_exit()
            raise self._unusable() from None
        try:
            before, advance = self._base, self._advance
            try:
                element: T_co = self._begin() if advance is None else advance()
                cell = self._own_cell
                self._last, self._base = before, cell.settle() if cell.is_counting else cell.pos
                return element
            except BaseException as error:
                self._base = before  # wherever it was interrupted
                self._stop(error)
                raise
        finally:
            claim.is_free = True

    def _begin(self) -> Any:
        """Return the next element after a move, or the first one."""
        if self._closed:
            raise self._unusable()
        self._advance = self.run().__next__
        return self._advance()

    def _stop(self, error: BaseException) -> None:
        """Take note of an error, an interrupt or the end."""
        end_thread_at_exit()
        if isinstance(error, StopIteration):
            self._base = self._own_cell.settle()
            return
        self._advance, self._has_failed = None, isinstance(error, Exception)
        deliver(error)
        filter_traceback(error)

    def _go_to(self, pos: Pos) -> None:
        cell = self._own_cell
        self._advance, self._has_failed, self._base = None, False, pos
        if cell.past_failed is not None or cell.settle() is not pos:
            cell.go_to(pos)

    def skip_failed(self) -> None:
        self._alone(self._skip_failed)

    def _skip_failed(self) -> None:
        if not self._has_failed:
            raise ValueError(f"there is nothing to skip: the last next() of {self} did not fail")
        before = self._base
        try:
            self._own_cell.pass_failed()
        except BaseException:
            self._go_to(before)
            raise
        self._base, self._has_failed = self._own_cell.pos, False

    def get_state(self) -> Any:
        return self._engine.save(self.pos)

    def _move_to(self, state: Any) -> None:
        self._go_to(self._engine.load(state))
        self._last = None

    def close(self) -> None:
        super().close()
        self._advance = None
        self._engine.close()

    # Parents are not closed: they may have other users.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and "_engine" in vars(self):
            self._own_cell.past_failed = None  # it refers to the cell, and to the stream
            self._engine.drop()

    def start_prefetch(self) -> None:
        if not self._closed:
            self._engine.start_prefetch()

    def _expect(self, rate: float, due: float | None) -> None:
        if not self._closed:
            self._engine.expect(rate, due)

    # For stages with iterators of their own.

    @property
    def stream_and_cell(self) -> tuple[Stream, Cell]:
        return self._engine, self._own_cell

    def run(self) -> Iterator[Any]:
        """Return the elements after the last one that was committed."""
        self._go_to(self._base)
        return self._engine.run(self._own_cell)

    def commit(self) -> Pos:
        """Take the element that a run has just yielded for delivered; return the position after it."""
        cell = self._own_cell
        self._base = pos = cell.settle() if cell.is_counting else cell.pos
        return pos

    def _take(self, n: int) -> list[Any]:
        if self._closed:
            raise self._unusable()
        before = self._base
        try:
            run = self.run()
            self._own_cell.wanted = n
            elements = list(islice(run, n))
            self.commit()
            return elements
        except BaseException:
            self._base = before  # wherever it was interrupted
            raise

    def _restore(self, state: Any) -> None:
        self._go_to(self._engine.load(state))

    @property
    def pos(self) -> Pos:
        """The position after the element that was delivered last, here or to the consumer."""
        if self._part_of is not None:
            consumer, i = self._part_of[0](), self._part_of[1]
            if consumer is not None:
                return consumer._engine.pos_of_parent(consumer.pos, i)
        return self._base

    def _mark(self) -> Any:
        return self.pos

    _return_to = _go_to  # type: ignore[assignment]

    def _state_at(self, mark: Any) -> Any:
        return self._engine.save(mark)

    def _skip(self) -> None:
        self._go_to(self._base)
        pass_outputs(self._engine, self._own_cell, 1)
        self._base = self._own_cell.settle()

    def _pass_failed(self) -> bool:
        self._own_cell.pass_failed()
        self._base = self._own_cell.pos
        return True

    def _place(self) -> Place | None:
        return self._engine.place(self.pos)

    def _has_gaps(self) -> bool:
        return self._engine.has_gaps()

    def _merged_state(self, states: Any) -> Any:
        return self._engine.merge(states)

    def _get_next_index(self) -> int:
        return self._engine.index_of(self.pos)

    def _set_next_index(self, index: int) -> None:
        self._go_to(self._engine.at_index(index))

    # What the engine says of itself.

    @property
    def _draws_from(self) -> Sequence[Any]:
        return self._engine.draws_from or self._parents

    _observed_upstream = _draws_from

    @property
    def _work_options(self) -> Sequence[Any]:
        return [*self._stage._work_options]

    def _work_ahead(self) -> WorkAhead | None:
        return self._engine.work_ahead()

    @property
    def _budget_waits(self) -> Any:  # type: ignore[override]
        return self._engine.budget_waits

    def _observe_reads(self, replace: Callable[[Any], Any] | None) -> None:
        self._engine.observe_reads(replace)

    @property
    def _counts_at(self) -> Any:
        return self._engine.counts_at

    @property
    def _reads_once(self) -> bool:
        return self._engine.reads_once()

    @property
    def _function(self) -> Any:
        return self._engine.function

    def _set_instrument(self, wrap: Wrap | None) -> None:
        self._engine.observe(wrap)
        self._advance = None

    def _allocate_with(self, allocate: Allocate) -> None:
        self._engine.allocate_with(allocate)

    @property
    def _stage_name(self) -> str:
        return self._engine.name

    _class_name = _stage_name

    def _stage_text(self) -> str:
        return str(self._engine)


def tell_faults_of(it: StreamIterator[Any]) -> Callable[[str, int], None]:
    """Return what tells the observer of ``it`` of skipped elements."""
    return partial(_tell_faults, weakref.ref(it))


def _tell_faults(it: weakref.ref[StreamIterator[Any]], stage: str, num: int) -> None:
    """Tell the observer of an iterator that a stage has skipped ``num`` more elements."""
    tell_of_faults(it(), stage, num)


def adds_no_state(it: Any) -> bool:
    """Return true if the position of ``it`` is its only parent's."""
    return isinstance(it, StreamIterator) and type(it._engine).save is Stream.save


def stream_of(it: DatasetIterator[Any]) -> Stream:
    """Return the stream of an iterator, or one over it."""
    return it._engine if isinstance(it, StreamIterator) else IteratorStream(it)


class Within(NamedTuple):
    """A position of an ``IteratorStream`` inside of a block of elements that were taken at once."""

    mark: Any  # before the block
    num: int  # elements of it before the position
    rest: int  # elements of it after the position


class IteratorStream(Stream):
    """An iterator as a stream. Its position is the iterator's mark."""

    def __init__(self, it: DatasetIterator[Any]) -> None:
        super().__init__(it)
        self.it = it
        self.flow = getattr(it, "_flow", "stateful")  # type: ignore[misc]
        self._at: Any = _UNKNOWN  # where the iterator is
        self._start: Any = _UNKNOWN
        self._is_users = self._takes_singly = not isinstance(it, BlockIterator)

    def start(self) -> Pos:
        if self._start is _UNKNOWN:
            self._at = self._start = self._mark()
        return self._start

    def save(self, pos: Pos) -> Any:
        if pos is None or pos is _GONE:
            return self.it.get_state()  # raises, as it has no state
        if self._is_users:
            return copied(pos)
        if self._at is pos:
            return self.it.get_state()
        if type(pos) is not Within:
            return state_at(self.it, pos)
        at, mark = self._at, self._mark()
        self._return_to(pos)
        state = copied(self.it.get_state())
        return_to(self.it, mark)
        self._at = at
        return state

    def saves_anywhere(self) -> bool:
        return False

    def take_singly(self) -> None:
        self._takes_singly = True

    def load(self, state: Any) -> Pos:
        # The next run finds the iterator there, or takes it back.
        at, self._at = self._at, _UNKNOWN
        try:
            self.it.set_state(state)
        except Exception:
            if at is not _UNKNOWN and (not self._is_users or self._mark() == at):  # it is where it was
                self._at = at
            raise
        self._at = self._mark()
        return self._at

    def place(self, pos: Pos) -> Place | None:
        place = place_of(self.it)
        if place is None or type(pos) is not Within:
            return place
        return place.replaced(last=place.last - pos.rest * place.size) if self.flow == "one_to_one" else None

    def _mark(self) -> Any:
        mark = marked(self.it)
        if mark is None and self._start is not _UNKNOWN:
            return _GONE
        return copied(mark) if self._is_users else mark

    def _return_to(self, pos: Pos) -> None:
        at, self._at = self._at, _UNKNOWN  # until the iterator is there, in case of an interrupt
        if type(pos) is Within:
            return_to(self.it, pos.mark)
            pull(self.it, pos.num)
        elif pos is None:
            if at is _GONE:
                self.it.get_state()  # raises
        elif pos is not _GONE:
            return_to(self.it, copied(pos) if self._is_users else pos)

    def _run(self, cell: Cell) -> Iterator[Any]:
        it = self.it
        while True:
            if self._at is not cell.pos:  # also after ``load``
                self._return_to(cell.pos)
                self._at = cell.pos
            start, num = cell.pos, cell.take_wanted()
            if self._takes_singly or it._reads_once:
                num = 1
            self._at = _UNKNOWN  # until all is done, in case of an interrupt
            try:
                elements = it._take(num)
            except Exception as error:
                if num > 1:  # those before the one that fails come first
                    continue
                cell.past_failed = partial(self._pass, cell, start)
                if isinstance(error, StopIteration):
                    raise instead_of_stop(error, str(it)) from error
                raise
            num = len(elements)
            elements.reverse()
            self._at = self._mark()
            for i in range(1, num):
                cell.pos = Within(start, i, num - i)
                yield elements.pop()
            cell.pos = self._at
            if not elements:
                return
            yield elements.pop()

    def _pass(self, cell: Cell, start: Pos) -> None:
        if not self.it._pass_failed():
            self._return_to(start)
            skip_one(self.it)
        cell.pos = self._at = self._mark()

    def start_prefetch(self) -> None:
        self.it.start_prefetch()

    def expect(self, rate: float, due: float | None) -> None:
        self.it._expect(rate, due)

    def forget(self) -> None:
        super().forget()
        self._at = _UNKNOWN

    def reads_once(self) -> bool:
        return self.it._reads_once

    def has_gaps(self) -> bool:
        return may_have_gaps(self.it)

    def merge(self, states: Any) -> Any:
        return self.it._merged_state(states)

    def index_of(self, pos: Pos) -> int:
        return next_index_of(self.it)

    def at_index(self, index: int) -> Pos:
        move_to_index(self.it, index)
        self._at = self._mark()
        return self._at

    def __str__(self) -> str:
        return str(self.it)


_UNKNOWN: Any = object()
_GONE: Any = object()  # where an iterator without a state is that has moved: it cannot go back
