"""The iterator of a stream, and the stream of an iterator that a user has written."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from gristmill.core.exiting import end_thread_at_exit
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.iterator import DatasetIterator, iterate, snapshot
from gristmill.dataset.bases.observing import Wrap
from gristmill.dataset.bases.parameters import Parameters
from gristmill.dataset.engine.stream import Cell, Pos, Stream, pass_outputs
from gristmill.dataset.errors.context import add_error_context, deliver
from gristmill.dataset.errors.tracebacks import filter_traceback
from gristmill.dataset.states.mixtures import as_names, without_components
from gristmill.dataset.states.values import copied
from gristmill.dataset.watching import report_faults_of

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

R = TypeVar("R")
T_co = TypeVar("T_co", covariant=True)


def open_stage(
    stage: DatasetNode, make: Callable[..., Stream], kind: type[StreamIterator[Any]] | None = None
) -> StreamIterator[Any]:
    """Return an iterator of the stream that ``make`` makes over those of the parents of ``stage``.

    Args:
        stage: the definition.
        make: called with ``stage`` and the streams.
        kind: the class of the iterator, if it has methods of its own.
    """
    return (kind or StreamIterator)(stage, [iterate(parent) for parent in stage._gm_parents], make)


class Given:
    """The definition of an iterator that is of no dataset."""

    _gm_work_options: Sequence[Any] = ()

    def __init__(self, parameters: Parameters) -> None:
        self._gm_parameters = parameters


class StreamIterator(DatasetIterator[T_co]):
    """A stream and its position.

    After a failure or an interrupt the cell returns to the position that was last committed, so
    that the same element comes again.
    """

    _gm_engine: Stream
    _last: Pos = None  # the position before the output that was delivered last
    _is_shared: ClassVar = False  # several may draw from it, and each of them continues where it is
    # its consumer, as which parent
    _part_of: tuple[weakref.ref[StreamIterator[Any]], int] | None = None

    def __init__(
        self, stage: Any, parents: Sequence[DatasetIterator[Any]], make: Callable[..., Stream]
    ) -> None:
        # First, since observers that run look at it from the base class on.
        self._stage = stage
        self._gm_engine = engine = make(stage, *[stream_of(parent) for parent in parents])
        self._gm_parameters = engine.parameters
        self._gm_closes_anytime = engine.closes_anytime
        self._own_cell = Cell(engine.start())
        self._base = self._own_cell.pos  # the position after the output that was delivered last
        super().__init__(parents)
        engine.ctx = self._gm_ctx
        if engine.numbers is not None:
            self._gm_ctx.numbers = engine.numbers
        self._gm_counts_faults = self._gm_counts_faults or engine.counts_faults
        adopt(self, parents)
        if engine.counts_faults:
            engine.report_faults = fault_reporter_of(self)
        self._has_failed = False  # ``next`` has, with an error: its output can be skipped
        self._advance: Callable[[], Any] | None = None  # of a run that is at ``_base``

    def _gm_share_context(self, ctx: IteratorContext) -> None:
        self._gm_engine.ctx = ctx
        super()._gm_share_context(ctx)

    # Delivering.

    def __next__(self) -> T_co:
        claim = self._gm_claim
        try:
            del claim.is_free
        except AttributeError:
            end_thread_at_exit()
            raise unusable(self) from None
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
        if self._gm_closed:
            raise unusable(self)
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

    def _gm_alone(self, use: Callable[[], R]) -> R:
        """Return ``use()``, during which other threads get an error."""
        claim = self._gm_claim
        try:
            del claim.is_free
        except AttributeError:
            raise unusable(self) from None
        try:
            return use()
        finally:
            claim.is_free = True

    def skip_failed(self) -> None:
        self._gm_alone(self._skip_failed)

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
        return self._gm_engine.save(self.pos)

    def set_state(self, state: object, *, drop: Collection[str] = ()) -> None:
        """Continues from ``state``, backwards or forwards, also after the end or an error.

        Args:
            state: from ``get_state`` of an iterator of an equal pipeline; of mixtures with names,
                weights and components may be other.
            drop: names of components of mixtures whose positions are discarded, as the mixture does
                not have them any more.
        """
        if drop:
            state = without_components(state, as_names(drop))
        self._gm_alone(lambda: self.jump(self._gm_engine.load(state)))

    def jump(self, pos: Pos) -> None:
        """Continue from ``pos``, with no last output."""
        self._go_to(pos)
        self._last = None

    def close(self) -> None:
        super().close()
        self._advance = None
        self._gm_engine.close()

    # Parents are not closed: they may have other users.
    def __del__(self, is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        if not is_finalizing() and "_gm_engine" in vars(self):
            self._own_cell.past_failed = None  # it refers to the cell, and to the stream
            self._gm_engine.drop()

    def start_prefetch(self) -> None:
        if not self._gm_closed:
            self._gm_engine.start_prefetch()

    def _gm_expect(self, rate: float, due: float | None) -> None:
        if not self._gm_closed:
            self._gm_engine.expect(rate, due)

    # For what runs the stream in this place.

    def run(self) -> Iterator[Any]:
        """Return the elements after the last one that was committed."""
        self._go_to(self._base)
        return self._gm_engine.run(self._own_cell)

    def commit(self) -> Pos:
        """Take the element that a run has just yielded for delivered; return the position after
        it.
        """
        cell = self._own_cell
        self._base = pos = cell.settle() if cell.is_counting else cell.pos
        return pos

    def _gm_take(self, n: int) -> list[Any]:
        if self._gm_closed:
            raise unusable(self)
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

    @property
    def pos(self) -> Pos:
        """The position after the element that was delivered last, here or to the consumer."""
        if self._part_of is not None:
            consumer, i = self._part_of[0](), self._part_of[1]
            if consumer is not None:
                return consumer._gm_engine.pos_of_parent(consumer.pos, i)
        return self._base

    def _gm_skip(self) -> None:
        self._go_to(self._base)
        pass_outputs(self._gm_engine, self._own_cell, 1)
        self._base = self._own_cell.settle()

    def _gm_before_last(self) -> Any:
        return None if self._last is None else copied(self._gm_engine.save(self._last))

    def _gm_has_gaps(self) -> bool:
        return self._gm_engine.has_gaps()

    def _gm_merged_state(self, states: object) -> Any:
        return self._gm_engine.merge(states)

    def _get_next_index(self) -> int:
        return self._gm_alone(lambda: self._gm_engine.index_of(self.pos))

    def _set_next_index(self, index: int) -> None:
        self._gm_alone(lambda: self.jump(self._gm_engine.at_index(index)))

    # What the engine says of itself.

    @property
    def _gm_draws_from(self) -> Sequence[Any]:
        return self._gm_engine.draws_from or self._gm_parents

    _gm_observed_upstream = _gm_draws_from

    @property
    def _gm_work_options(self) -> Sequence[Any]:
        return [*self._stage._gm_work_options]

    @property
    def _gm_reads_once(self) -> bool:
        return self._gm_engine.reads_once()

    def _gm_set_instrument(self, wrap: Wrap | None) -> None:
        self._gm_engine.observe(wrap)
        self._advance = None

    @property
    def _gm_stage_name(self) -> str:
        return self._gm_engine.name

    _gm_class_name = _gm_stage_name

    def __str__(self) -> str:
        return str(self._gm_engine)

    _gm_stage_text = __str__


def unusable(it: StreamIterator[Any]) -> Exception:
    """Return the error of ``next`` of an iterator that is closed or in use."""
    if it._gm_closed:
        return ValueError(f"{it} is closed")
    return RuntimeError(
        f"{it} is in next() already, called by another thread or by a function of its own pipeline:"
        " an iterator is used by one thread at a time. Give each thread an iterator of its own"
        " (over a shard of the dataset, for other elements), hold a lock around next(), or let the"
        " pipeline use threads: to_iter_dataset(ReadOptions(...)), multithread_prefetch"
    )


def adopt(it: StreamIterator[Any], parents: Sequence[DatasetIterator[Any]]) -> None:
    """Let the iterators of the parents of a stream be where the position of its iterator says."""
    owner = weakref.ref(it)
    for i, parent in enumerate(parents):
        if isinstance(parent, StreamIterator) and not parent._is_shared:
            parent._part_of = owner, i


def fault_reporter_of(it: StreamIterator[Any]) -> Callable[[str, int], None]:
    """Return a function that reports skipped elements to the observer of ``it``."""
    return partial(_report_faults, weakref.ref(it))


def _report_faults(it: weakref.ref[StreamIterator[Any]], stage: str, num: int) -> None:
    """Report to the observer of an iterator that a stage has skipped ``num`` more elements."""
    report_faults_of(it(), stage, num)


def adds_no_state(it: DatasetIterator[Any]) -> bool:
    """Return true if the position of ``it`` is its only parent's."""
    return isinstance(it, StreamIterator) and type(it._gm_engine).save is Stream.save


def stream_of(it: DatasetIterator[Any]) -> Stream:
    """Return the stream of an iterator, or one over it."""
    if not isinstance(it, StreamIterator):
        return IteratorStream(it)
    return SharedStream(it) if it._is_shared else it._gm_engine


def is_of_streams(it: DatasetIterator[Any]) -> bool:
    """Return true if no user's iterator is among ``it`` and those upstream."""
    return isinstance(it, StreamIterator) and all(
        [is_of_streams(parent) for parent in it._gm_parents]
    )


def marked(it: DatasetIterator[Any]) -> Any:
    """Return where ``it`` is, for ``return_to``; ``None`` for an iterator that has no state."""
    return it.pos if isinstance(it, StreamIterator) else snapshot(it)


def return_to(it: DatasetIterator[Any], mark: object) -> None:
    """Move ``it`` to where it was ``marked``, if it can go back."""
    if isinstance(it, StreamIterator):
        it.jump(mark)
    elif mark is not None:
        it.set_state(mark)


class IteratorStream(Stream):
    """A user's iterator as a stream. Its position is the iterator's state, ``None`` at the start of
    one without states.
    """

    def __init__(self, it: DatasetIterator[Any]) -> None:
        super().__init__(it)
        self.it = it
        self._at: Any = _UNKNOWN  # where the iterator is
        self._start: Any = _UNKNOWN

    def start(self) -> Pos:
        if self._start is _UNKNOWN:
            self._at = self._start = self._here()
        return self._start

    def save(self, pos: Pos) -> Any:
        if pos is None or pos is _GONE:
            return self.it.get_state()  # raises, as it has no state
        return copied(pos)

    def saves_anywhere(self) -> bool:
        return False

    def load(self, state: object) -> Pos:
        # The next run finds the iterator there, or takes it back.
        at, self._at = self._at, _UNKNOWN
        try:
            self.it.set_state(state)
        except Exception:
            if at is not _UNKNOWN and self._here() == at:  # it is where it was
                self._at = at
            raise
        self._at = self._here()
        return self._at

    def _here(self) -> Pos:
        """Return the position of the iterator, which may change its state later."""
        state = snapshot(self.it)
        return _GONE if state is None and self._start is not _UNKNOWN else copied(state)

    def _move(self, pos: Pos) -> None:
        at, self._at = self._at, _UNKNOWN  # until the iterator is there, in case of an interrupt
        if pos is None:
            if at is _GONE:
                self.it.get_state()  # raises
        elif pos is not _GONE:
            self.it.set_state(copied(pos))

    def _run(self, cell: Cell) -> Iterator[Any]:
        it = self.it
        while True:
            if self._at is not cell.pos:  # also after ``load``
                self._move(cell.pos)
            start, self._at = cell.pos, _UNKNOWN  # until all is done, in case of an interrupt
            try:
                elements = [*islice(it, 1)]
            except Exception as error:
                add_error_context(error, it)
                cell.past_failed = partial(self._pass, cell, start)
                raise
            cell.pos = self._at = self._here()
            if not elements:
                return
            yield elements.pop()

    def _pass(self, cell: Cell, start: Pos) -> None:
        self._move(start)
        try:
            next(self.it, None)
        except Exception:
            self._move(start)
            self.it._gm_skip()
        cell.pos = self._at = self._here()

    def start_prefetch(self) -> None:
        self.it.start_prefetch()

    def expect(self, rate: float, due: float | None) -> None:
        self.it._gm_expect(rate, due)

    def forget(self) -> None:
        super().forget()
        self._at = _UNKNOWN

    def reads_once(self) -> bool:
        return self.it._gm_reads_once

    def has_gaps(self) -> bool:
        return self.it._gm_has_gaps()

    def merge(self, states: object) -> Any:
        return self.it._gm_merged_state(states)

    def index_of(self, pos: Pos) -> int:
        return self.it._get_next_index()

    def at_index(self, index: int) -> Pos:
        self.it._set_next_index(index)
        self._at = self._here()
        return self._at

    def __str__(self) -> str:
        return str(self.it)


_UNKNOWN: Any = object()
_GONE: Any = object()  # where an iterator without a state is that has moved: it cannot go back


class SharedStream(Stream):
    """The stream of an iterator that others may move, too: it begins where that is, and moves it.

    No choices are recorded.
    """

    def __init__(self, it: StreamIterator[Any]) -> None:
        super().__init__(it, it._gm_engine)
        self.it = it
        self.chooses = False
        self._first = it.pos

    def start(self) -> Pos:
        return self._first

    def _run(self, cell: Cell) -> Iterator[Any]:
        it = self.it
        if it.pos is not cell.pos:
            it.jump(cell.pos)
        while True:
            try:
                found = [*islice(it.run(), 1)]
            except Exception:
                cell.past_failed = partial(self._pass, cell)
                raise
            cell.pos = it.commit()
            if not found:
                return
            yield found.pop()

    def _pass(self, cell: Cell) -> None:
        self.it._own_cell.pass_failed()
        cell.pos = self.it.commit()

    def __str__(self) -> str:
        return str(self.it)
