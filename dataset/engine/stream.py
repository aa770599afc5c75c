"""Streams: opened stages, which map a position to the elements that follow it.

A *position* is an immutable, picklable value, valid for every stream of an equal pipeline. Most
stages have none of their own: theirs is their parent's. ``stream.run(cell)`` is an iterator over
the elements from ``cell.pos`` on. Invariants:

1. When a run yields an element, ``cell.pos`` is the position after it; when it is exhausted, that
   of the end.
2. Elements depend on the position, and on recorded choices (see ``engine.choices``), alone. Each is
   computed when it is requested, through all upstream stages, before the next one.
3. A run raises only what computing its next element raises. ``cell.pass_failed()`` then moves
   past that element. Streams upstream of the failing stage stay live.
4. Only a stage's own run moves its cell. A stage with a position of its own keeps one cell for
   each parent.
5. A run keeps no reference to an element that it has yielded, hence ``yield (x, x := None)[0]``
   or ``yield made.pop()``, and no ``finally``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import islice, repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any, ClassVar

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import state_count, state_field
from gristmill.dataset.bases.context import IteratorContext, Numbers
from gristmill.dataset.bases.observing import Observable, Wrap
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.bases.parameters import Parameters
from gristmill.dataset.errors.context import add_error_place, instead_of_stop
from gristmill.transforms.batching import Allocate

if TYPE_CHECKING:
    from gristmill.dataset.engine.choices import Choices, Records

Pos = Any  # of a stream: immutable and picklable


class Cell:
    """The position of a run. Stages without a position of their own share the cell of their
    consumer.

    Attributes:
        pos: the position after the element that was yielded last.
        wanted: how many elements the consumer will surely take, so that they may be read at once.
            Then ``pos`` is right after ``settle`` alone.
        past_failed: what moves the cell past the element that failed; ``None`` if ``pos`` is past
            it already.
        moves: how often the cell was moved by its consumer. A live run continues as long as this
            is the same.
        outer: the consumer's cell, of a stage that takes one element for each of its outputs.
        choices: what stages upstream ask before they choose; ``None`` if no stage downstream
            replays their elements.
    """

    __slots__ = (
        "_compute",
        "choices",
        "is_counting",
        "moves",
        "outer",
        "past_failed",
        "pos",
        "wanted",
    )

    def __init__(self, pos: Pos = None) -> None:
        self.pos = pos
        self.wanted = 1
        self.past_failed: Callable[[], None] | None = None
        self.moves = 0
        self.outer: Cell | None = None
        self.choices: Choices | None = None
        self.is_counting = False  # ``settle`` computes the position
        self._compute: Callable[[], Pos] | None = None

    def go_to(self, pos: Pos) -> None:
        """Move to ``pos``. The next run starts there."""
        self.is_counting, self._compute = False, None
        self.moves += 1  # first, so that an interrupt leaves no live run at another position
        self.pos = pos
        self.wanted, self.past_failed = 1, None

    def at(self, pos: Pos, outer: Cell | None = None, choices: Choices | None = None) -> Cell:
        """Move to ``pos`` unless the cell is there, so that a live run continues; return the cell.

        Args:
            pos: the position.
            outer: the consumer's cell, of a stage that takes one element for each of its outputs.
            choices: by default those of ``outer``.
        """
        self.outer = outer
        self.choices = outer.choices if choices is None and outer is not None else choices
        if self.past_failed is not None or not are_equal(self.settle(), pos):
            self.go_to(pos)
        return self

    @property
    def wants_many(self) -> bool:
        """True if several elements may be read at once."""
        return self.wanted > 1 or (self.outer is not None and self.outer.wants_many)

    def take_wanted(self) -> int:
        """Return how many elements may be read at once, which is said once; at least 1, as one has
        been requested.
        """
        if self.outer is not None:
            return self.outer.take_wanted()
        wanted, self.wanted = self.wanted, 1
        return wanted if wanted > 1 else 1

    def count_from(self, index: int, num: int) -> Iterator[bool]:
        """Return an iterator of ``num`` flags, one for each element from ``index`` on, to be
        consumed with them.
        """
        end, steps = index + num, repeat(True, num)
        self.compute_by(lambda: end - length_hint(steps))
        return steps

    def compute_by(self, compute: Callable[[], Pos]) -> None:
        """Let ``settle`` ask ``compute`` for the position within a block, until ``end_block``."""
        self._compute, self.is_counting = compute, True

    def end_block(self) -> None:
        """Settle: all elements of a block were yielded."""
        self.settle()
        self.is_counting, self._compute = False, None

    def settle(self) -> Pos:
        """Return ``pos``, computed first within a block of elements."""
        if self.is_counting and self._compute is not None:
            pos = self._compute()
            if not are_equal(pos, self.pos):  # else the same object
                self.pos = pos
        return self.pos

    def pass_failed(self) -> None:
        """Move past the element whose computation has just failed.

        The next run is a new one: a live run may refer to one upstream that the error has ended.
        """
        self.end_block()
        self.moves += 1
        move, self.past_failed = self.past_failed, None
        if move is not None:
            move()
            self.settle()


def are_equal(one: Pos, other: Pos) -> bool:
    if one is other:
        return True
    try:
        return bool(one == other)
    except Exception:  # of values in the state of a user's iterator, such as arrays
        return False


class Stream(Observable):
    """An opened stage. By default its position is its only parent's.

    Args:
        stage: the definition, whose text errors show.
        parents: the streams that it draws from.
    """

    makes_choices: bool = False  # see ``engine.choices``
    # its position counts faults that ``tolerate`` has skipped
    counts_faults: bool = False
    opens_members: ClassVar[bool] = False  # an interleave
    key = ""  # of a stage that chooses
    component_names: Sequence[str] | None = None  # of the parents, if these may come and go
    chooses: bool  # a stage upstream makes choices, or this one does
    ctx: IteratorContext
    _live: Any = None  # the current run, its cell, and the moves of that when it started
    wrap: Wrap | None = None  # makes the instrument of its observer

    def __init__(self, stage: Any, *parents: Stream) -> None:
        self.stage = stage
        self.parents = parents
        self.inner = Cell()  # where the parent of a stage with a position of its own is
        self._logged: dict[str, int] = {}
        self.chooses = self.makes_choices or any([parent.chooses for parent in parents])

    @property
    def name(self) -> str:
        """The name of its iterator in errors and descriptions."""
        return iterator_name(self.stage)

    @property
    def parameters(self) -> Parameters:
        """The parameters of its iterator in errors and descriptions."""
        return self.stage._gm_parameters

    @property
    def parent(self) -> Stream:
        """The only parent."""
        (parent,) = self.parents
        return parent

    def run(self, cell: Cell) -> Iterator[Any]:
        """Return the elements from ``cell.pos`` on: the live run, or a new one."""
        live = self._live
        if (
            live is not None
            and live[1] is cell
            and live[2] == cell.moves
            and live[0].gi_frame is not None
        ):
            return live[0]
        run = self._run(cell) if self.wrap is None else observed(self._run(cell), self)
        self._live = run, cell, cell.moves
        return run

    def _run(self, cell: Cell) -> Iterator[Any]:
        """Return a new run, as a generator."""
        raise NotImplementedError

    def forget_run(self) -> None:
        """Drop the live run, which refers to this stream."""
        self._live = None

    def pos_of_parent(self, pos: Pos, i: int) -> Pos:
        """Return the position of parent ``i`` in ``pos``."""
        return pos

    def start(self) -> Pos:
        """Return the position before the first element."""
        return self.parent.start()

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        """Return the position before the first element, with what remains of an epoch, such as
        totals of faults.

        Args:
            end: where the epoch has ended.
            records: the choices from ``end`` on that were made in it, if elements after that are
                replayed.
        """
        return (
            self.parent.next_epoch(end, records)
            if type(self).start is Stream.start
            else self.start()
        )

    def save(self, pos: Pos) -> Any:
        """Return the JSON-able state of a position."""
        return self.parent.save(pos)

    def saves_anywhere(self) -> bool:
        """Return true if ``save`` may be called by any thread at any time."""
        return all([parent.saves_anywhere() for parent in self.parents])

    def kind(self, index: int) -> tuple[Any, ...]:
        """Return a value that is equal for two members of an interleave only if ``next_epoch`` of
        one understands the counts of faults in positions of the other.

        Args:
            index: of the member, for streams that understand none but their own.
        """
        return type(self), *[parent.kind(index) for parent in self.parents]

    def faults_in(self, pos: Pos) -> Any:
        """Return a value that is equal for two positions only if the states of both have as many
        faults.
        """
        return self.parent.faults_in(self.pos_of_parent(pos, 0)) if len(self.parents) == 1 else pos

    def load(self, state: object) -> Pos:
        """Return the position of a state. Nothing is moved.

        Raises:
            StateMismatchError: it is not the state of such a stream.
        """
        return self.parent.load(state)

    def check_choice(self, choice: object) -> None:
        """Raise ``StateMismatchError`` unless ``choice``, of a state, may be one of this stage."""

    def place(self, pos: Pos) -> Place | None:
        """Return where in a map dataset the element before ``pos`` comes from, if that is known.

        By default where the parent's comes from, unless an element may be made of others.
        """
        return None if self.flow == "stateful" else self.parent.place(self.pos_of_parent(pos, 0))

    def index_of(self, pos: Pos) -> int:
        """Return how many elements come before ``pos``, if that follows from it."""
        raise NotImplementedError(
            f"{self} does not know the index of its next element: it does not follow from its"
            " position"
        )

    def at_index(self, index: int) -> Pos:
        """Return the position before the element at ``index``, if that follows from it."""
        raise NotImplementedError(
            f"{self} cannot jump to an index: it would have to compute all elements before it"
        )

    def has_gaps(self) -> bool:
        """Return true if there may be no element at some of the indices of ``index_of``."""
        return any([parent.has_gaps() for parent in self.parents])

    def merge(self, states: object) -> Any:
        """Return the state that continues where all of several shards stopped, whose number was
        another one.

        Args:
            states: those of all shards; or, by their number, those of all datasets that the shards
                share out.

        Raises:
            StateMismatchError: the state is not the parent's, and depends on the number of shards.
        """
        if type(self).save is not Stream.save:
            raise StateMismatchError(
                f"{self} cannot continue with another number of shards or processes: only"
                " ElasticIterator and global_batch can, and steps after them that keep nothing for"
                " later"
            )
        return self.parent.merge(states)

    def may_have_chosen(self) -> bool:
        """Return true if stages upstream, or this one, may have made choices; all members of an
        interleave are known then.
        """
        return self.makes_choices or any([parent.may_have_chosen() for parent in self.parents])

    def take_singly(self) -> None:
        """Compute no element of an iterator before it is requested: more may be requested than is
        wanted.
        """
        for parent in self.parents:
            parent.take_singly()

    def observe(self, wrap: Wrap | None) -> None:
        """Let elements be computed through what ``wrap`` makes of the run; ``None``: no more."""
        self.wrap = wrap
        self._live = None

    def is_logged(self, place: int) -> bool:
        """Return true if the faults of the element at ``place`` were logged before; note that they
        are now.
        """
        logged = self._logged if self.ctx.logged is None else self.ctx.logged
        was_logged = place < logged.get(self.key, 0)
        logged[self.key] = max(place + 1, logged.get(self.key, 0))
        return was_logged

    def fail(self, error: Exception, cell: Cell) -> None:
        """Note at ``error``, of a user's function, where it was raised. ``cell`` is the
        parent's.
        """
        add_error_place(error, self, lambda: self.parent.place(cell.settle()))
        if isinstance(error, StopIteration):
            raise instead_of_stop(error, str(self)) from error

    # Resources, and what observers ask.

    draws_from: Sequence[Any] = ()  # a map dataset, of a stream that reads one
    # ``close`` may be called while another thread is in a run
    closes_anytime: ClassVar[bool] = False
    reader: Any = None
    numbers: Numbers | None = None  # which of the elements of a whole stream it reads
    # Of a stream that reads a map dataset: what its first elements were drawn from, by component.
    counts_at: Callable[[int], dict[str, dict[str, int]] | None] | None = None
    # of an element alone: what ``order="stream"`` lets workers do with each
    function: Callable[[Any], Any] | None = None
    # an observer, of skipped elements
    report_faults: Callable[[str, int], None] = staticmethod(lambda stage, num: None)

    def start_prefetch(self) -> None:
        """Start to compute ahead, here and upstream."""
        for parent in self.parents:
            parent.start_prefetch()

    def expect(self, rate: float, due: float | None) -> None:
        """Take note of the share of all draws, and compute ahead unless ``due`` is ``None``;
        upstream too.
        """
        for parent in self.parents:
            parent.expect(rate, due)

    def close(self) -> None:
        """Release threads and files of this stream alone."""

    def drop(self) -> None:
        """Close without waiting: there is no reference to the iterator of this stream any more."""
        for stream in (self, *self.parents):
            stream.forget_run()
        # they refer to the consumer's cell, which may refer to this
        self.inner.past_failed = self.inner.outer = None
        self.close()

    def forget(self) -> None:
        """Drop live runs, here and upstream: after a fork, a thread of the other process may be in
        them.
        """
        self._live = None
        for parent in self.parents:
            parent.forget()

    def reads_once(self) -> bool:
        """Return true if a source may not give the same record again."""
        return any([parent.reads_once() for parent in self.parents])

    def allocate_with(self, allocate: Allocate) -> None:
        """Let new arrays in the outputs be made by ``allocate``, which knows where they are
        wanted.
        """

    def __str__(self) -> str:
        text = self.parameters.text()
        return f"{self.name}({text})" if text else self.name


class Layer(Stream):
    """A stage whose position is ``(its parent's, *own)``.

    ``keys`` are the names of the parent's state and of the own counts in its state.
    """

    keys: tuple[str, ...] = ("parent", "count")
    own: ClassVar[tuple[Any, ...]] = (0,)  # at the start

    def pos_of_parent(self, pos: Pos, i: int) -> Pos:
        return pos[0]

    def start(self) -> Pos:
        return self.parent.start(), *self.own

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        return self.parent.next_epoch(end[0], records), *self.own

    def save(self, pos: Pos) -> Any:
        return {
            self.keys[0]: self.parent.save(pos[0]),
            **dict(zip(self.keys[1:], pos[1:], strict=True)),
        }

    def load(self, state: object) -> Pos:
        own = [state_count(state, key, self) for key in self.keys[1:]]
        return self.parent.load(state_field(state, self.keys[0], self)), *own


def iterator_name(stage: object) -> str:
    """Return the name of an iterator of the definition ``stage``."""
    return type(stage).__name__.replace("IterDataset", "DatasetIterator")


def pass_outputs(stream: Stream, cell: Cell, num: int) -> None:
    """Move past the next ``num`` outputs, whether computing them fails or not."""
    while num > 0:
        try:
            for _ in islice(stream.run(cell), num):
                num -= 1
            return
        except Exception:
            cell.pass_failed()
            num -= 1


def observed(run: Iterator[Any], stream: Stream) -> Iterator[Any]:
    """Return the elements of ``run``, computed through the instrument that ``stream`` has at the
    time.
    """

    def original(_: object, num: int) -> list[Any]:
        return list(islice(run, num))

    wrap: Wrap | None = None
    take: Callable[[int], list[Any]] = partial(original, stream)
    while True:
        if stream.wrap is not wrap:
            wrap = stream.wrap
            take = partial(original, stream) if wrap is None else wrap(original)
        if not (elements := take(1)):
            return
        yield elements.pop()
