"""``mp_prefetch(order="stream")``: the stream of no workers at all, of which workers compute what
can be divided.

Of a chain of stages, those from ``to_iter_dataset`` on are divided as long as an element follows
from its index alone: the *divided part*. Workers compute it, and downstream stages are run by the
consumer, over an iterator that has the divided part's elements and states.

Guarantees:

1. Elements and states are those of the chain without workers, and so are errors: each comes in its
   turn, and can be skipped.
2. Workers have runs of consecutive indices in turn: single ones, or as many as a batch of the
   divided part has.
3. A worker gives one output for every run. In place of a filtered element it gives a ``Dropped``,
   which the consumer drops. So the position follows from the number of outputs that were taken, and
   with it all counts in the state.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from gristmill.core.errors import StateMismatchError
from gristmill.core.options import ReadOptions
from gristmill.core.state import shown
from gristmill.core.value import Value
from gristmill.dataset.bases.context import Numbers, collected_options
from gristmill.dataset.bases.division import Division
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import (
    DatasetIterator,
    iterate,
    share_context,
)
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.node import dropping_steps, spec_of_first_parent, tolerances
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.bases.parameters import Parameters, field, parameters_of
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.elements import Keep
from gristmill.dataset.engine.iterators import StreamIterator, open_stage, stream_of
from gristmill.dataset.engine.read import Read
from gristmill.dataset.engine.round_robin import RoundRobinIterator
from gristmill.dataset.engine.stream import Cell, Pos, Stream
from gristmill.dataset.errors.context import add_error_place, instead_of_stop
from gristmill.dataset.slicing import replaced_in
from gristmill.dataset.stages.filter_guard import WINDOW, FilterGuard
from gristmill.dataset.stages.map import MapIterDataset
from gristmill.dataset.stages.mp_prefetch import check_no_workers
from gristmill.dataset.stages.multithread_prefetch import MultithreadPrefetchIterDataset
from gristmill.dataset.stages.prefetch import PrefetchIterDataset
from gristmill.dataset.stages.runs import RunsMapDataset
from gristmill.dataset.stages.stream_interleave import (
    StreamInterleaveIterDataset,
    Workers,
    interleaved_part,
    needs_of,
)
from gristmill.dataset.states.values import advanced

T = TypeVar("T")

_END: Any = object()


class Dropped(Value):
    """Stands for an element that stage ``by``, of those that drop elements, has dropped."""

    by: int


def in_stream_order(ds: IterDataset[Any], workers: Workers) -> IterDataset[Any]:
    """Return ``ds``, of which the divided part is computed by ``workers``.

    Args:
        ds: the chain.
        workers: returns the same dataset computed by workers, in ``num_lanes`` lanes if that is
            given.

    Raises:
        ValueError: nothing of ``ds`` can be divided.
    """
    check_no_workers("mp_prefetch(..., order='stream')", ds)
    part = interleaved_part(ds)
    if part is not None:
        return replaced_in(ds, part, StreamInterleaveIterDataset(part, workers))
    part = _divided_part(ds)
    return replaced_in(ds, part, StreamOrderIterDataset(part, workers))


def _chain(ds: IterDataset[Any]) -> list[IterDataset[Any]]:
    """Return the streams that lead to ``ds``, from ``to_iter_dataset`` on."""
    chain = [ds]
    while type(chain[0]) is not PrefetchIterDataset:
        stage = chain[0]
        if isinstance(stage, MultithreadPrefetchIterDataset):
            reason = (
                f"{stage} divides it among threads. Leave that out: threads of"
                " to_iter_dataset(ReadOptions(...)) keep the order"
            )
        elif len(stage._gm_parents) > 1:
            reason = (
                f"{stage} draws from {len(stage._gm_parents)} datasets. Apply mp_prefetch(...,"
                " order='stream') to each of them"
            )
        elif not stage._gm_parents or not isinstance(stage._gm_parents[0], IterDataset):
            reason = (
                f"{stage} does not find its elements by index. Begin with a MapDataset"
                " (to_iter_dataset())"
            )
        else:
            chain.insert(0, stage._gm_parents[0])
            continue
        raise ValueError(
            f"order='stream' cannot divide this pipeline among workers: {reason}, or use"
            " order='workers', where each worker has a stream of its own"
        )
    return chain


def _divided_part(ds: IterDataset[Any]) -> IterDataset[Any]:
    """Return the part of ``ds`` in which every element follows from its index."""
    root, *steps = _chain(ds)
    if tolerances(root._gm_parents[0]):
        raise ValueError(
            "order='stream' finds elements by their index, and cannot count what tolerate of a"
            " MapDataset skips: call tolerate after to_iter_dataset(), or use"
            " order='workers', with num_lanes"
        )
    part = root
    drops = not parameters_of(root).allow_nones and bool(dropping_steps(root._gm_parents[0]))
    in_batches = False
    for step in steps:
        needs = needs_of(step)
        if needs is None or (needs in ("numbered elements", "batches") and (drops or in_batches)):
            break
        part = step
        drops |= needs_of(step) == "choice"
        in_batches |= needs == "batches"
    return part


class DividedPart:
    """The part of a divided pipeline that workers compute, and the lineage of its elements."""

    def __init__(self, part: IterDataset[Any]) -> None:
        self._root, *self._steps = _chain(part)
        self._source = self._root._gm_parents[0]
        needs = [needs_of(step) for step in self._steps]
        self.run: int = (
            parameters_of(self._steps[needs.index("batches")]).batch_size
            if "batches" in needs
            else 1
        )
        self.length = len(self._source)
        must_be_whole = "numbered elements" in needs or "batches" in needs
        self._checks_root = must_be_whole and not parameters_of(self._root).allow_nones
        self._marks_root = not must_be_whole and not parameters_of(self._root).allow_nones
        # From the first of these stages on there may be a ``Dropped`` in place of an element.
        drops = [self._marks_root, *[need == "choice" for need in needs]]
        self.drops = any(drops)
        self._first_marked = max(0, drops.index(True) - 1) if self.drops else len(self._steps)

    def by_workers(self, origin: int) -> IterDataset[Any]:
        """Return a dataset with one output for every run from index ``origin`` on."""
        source, options = self._source, parameters_of(self._root).read_options
        if self.run > 1:
            source = RunsMapDataset(source, Numbers(0, 1, self.run, origin))
        ds: IterDataset[Any] = PrefetchIterDataset(source, options, allow_nones=True)
        if self._checks_root:
            ds = MapIterDataset(ds, must_be_there, with_nones=True)
        for step in self._steps[: self._first_marked]:
            ds = replaced_in(step, step._gm_parents[0], ds)
        return MarkingIterDataset(ds, self._marking_steps()) if self.drops else ds

    def _marking_steps(self) -> list[_Step]:
        steps = [_Step(_is_there, True, str(iterate(self._root)))] if self._marks_root else []
        for step in self._steps[self._first_marked :]:
            if needs_of(step) != "nothing":
                it: Any = iterate(step)
                steps.append(_Step(it._gm_engine.function, needs_of(step) == "choice", str(it)))
        return steps

    def guards(self, whole: Stream) -> list[tuple[Stream, FilterGuard]]:
        """Return the filters of the divided part with guards, as ``Dropped.by`` counts."""
        chain = [whole]
        while chain[0].parents:
            chain.insert(0, chain[0].parent)
        found: list[tuple[Stream, FilterGuard]] = [
            (stream, stream.guard) for stream in chain if isinstance(stream, Read | Keep)
        ]
        return (found if self._marks_root else found[1:]) if self.drops else []


def must_be_there(x: object) -> Any:
    if x is None:
        raise ValueError(
            "an element is None, which means a missing one, so that the positions of all that"
            " follow depend on it: order='stream' divides steps that number or batch elements by"
            " their index. Leave out elements with filter, whose steps after it are not divided, or"
            " use order='workers'"
        )
    return x


def _is_there(x: object) -> bool:
    return x is not None


class _Step(Value):
    """A stage that processes every element alone."""

    function: Callable[[Any], Any]
    drops: bool
    name: str

    def __str__(self) -> str:
        return self.name


class MarkingParameters(Parameters):
    steps: Sequence[_Step] = field(
        in_checkpoint=False, show=lambda steps: f"[{', '.join(map(str, steps))}]"
    )


class MarkingIterDataset(IterDataset[Any]):
    """Applies ``steps`` to every element of the parent in a worker; yields a ``Dropped`` where one
    of them drops it.

    State: the parent's. Cost: that of ``steps``.
    """

    _gm_num_elements = same_number
    _gm_parameters: MarkingParameters

    def __init__(self, parent: object, steps: Sequence[_Step]) -> None:
        super().__init__(parent)
        self._gm_parameters = MarkingParameters(steps)

    def _gm_traced(self, tracing: Tracing) -> Any:
        steps = self._gm_parameters.steps
        return tracing.of(self._gm_parent).map(lambda x: x.then(partial(_marked, steps), self))

    def __iter__(self) -> DatasetIterator[Any]:
        return open_stage(self, Marking)


def _marked(steps: Sequence[_Step], x: object) -> Any:
    num_dropping = 0
    for step in steps:
        if not step.drops:
            x = step.function(x)
        elif step.function(x):
            num_dropping += 1
        else:
            return Dropped(num_dropping)
    return x


class Marking(Stream):
    """One output for every element of the parent. The position is the parent's."""

    flow = "one_to_one"

    def __init__(self, stage: MarkingIterDataset, parent: Stream) -> None:
        super().__init__(stage, parent)
        self._steps: list[tuple[_Step, Callable[[Any], Any], Dropped | None]] = []
        num_dropping = 0
        for step in stage._gm_parameters.steps:
            self._steps.append((step, step.function, Dropped(num_dropping) if step.drops else None))
            num_dropping += step.drops

    def _run(self, cell: Cell) -> Iterator[Any]:
        steps = self._steps
        for x in self.parent.run(cell):
            for step, function, dropped in steps:
                try:
                    if dropped is None:
                        x = function(x)
                    elif not function(x):
                        x = dropped
                        break
                except Exception as error:
                    self._fail_at(error, step, cell)
                    raise
            yield (x, x := None)[0]

    def _fail_at(self, error: Exception, step: _Step, cell: Cell) -> None:
        add_error_place(error, step, lambda: self.parent.place(cell.settle()))
        if isinstance(error, StopIteration):
            raise instead_of_stop(error, str(step)) from error


class StreamOrderParameters(Parameters):
    workers: Workers = field(in_checkpoint=False, in_repr=False)


class StreamOrderIterDataset(IterDataset[T]):
    """The parent's elements, which ``workers`` compute, each by its index.

    Order: the parent's. State: the parent's. Cost: that of handing over outputs from process to
    process.
    """

    _gm_adds_step = False  # seeds are those of the same pipeline without workers
    _gm_starts_workers = True
    _gm_states_have_place = True
    _element_spec = spec_of_first_parent
    _gm_num_elements = same_number

    def __init__(self, parent: object, workers: Workers) -> None:
        super().__init__(parent)
        self._gm_parameters = StreamOrderParameters(workers)
        self._workers = workers
        self._divided_part = DividedPart(self._gm_parent)
        self._by_workers = workers(self._divided_part.by_workers(0))

    @property
    def _gm_draws_from(self) -> Sequence[Any]:
        return (self._by_workers,)

    def __str__(self) -> str:
        return f"StreamOrderIterDataset(run={self._divided_part.run})"

    def _gm_over(self, replaced: Callable[[Any], Any]) -> StreamOrderIterDataset[T]:
        return StreamOrderIterDataset(replaced(self._gm_parent), self._workers)

    def _gm_computed_by(self, threads: ReadOptions | None, num_workers: int | None) -> Any:
        return self._gm_parent if num_workers == 0 else self

    def _gm_divided(self, division: Division) -> Any:
        raise ValueError(
            f"{self} cannot be shared out among {division.num_workers} workers: its elements are"
            " those of one stream. Apply mp_prefetch once, as the last step"
        )

    def _gm_traced(self, tracing: Tracing) -> Any:
        return tracing.of(self._gm_parent)  # which has the same states

    def __iter__(self) -> DatasetIterator[T]:
        return StreamOrderIterator(self, self._divided_part, self._opened)

    def _opened(self, origin: int) -> _Opened:
        """Return what gives the outputs for the runs from index ``origin`` on."""
        ds = self._workers(self._divided_part.by_workers(origin)) if origin else self._by_workers
        it = iterate(ds)
        assert isinstance(it, RoundRobinIterator)
        it.is_one_stream = True
        return _Opened(it, origin, self._divided_part.run)


class _Opened:
    """Workers for the runs of ``run`` indices from ``origin`` on."""

    def __init__(self, iterator: RoundRobinIterator[Any], origin: int, run: int) -> None:
        self.iterator = iterator
        self.stream = stream_of(iterator)
        self._beginning = iterator.get_state()
        self._origin = origin
        self._run = run

    def has(self, index: int) -> bool:
        """Return true if a run begins at ``index``."""
        return (index - self._origin) % self._run == 0

    def pos_at(self, index: int) -> Pos:
        """Return the position of the workers before the run at ``index``, or at the end."""
        states = self._beginning["iterators_in_use_states"]
        count = len(states)
        nums = [Numbers(i, count, self._run, self._origin).num_before(index) for i in range(count)]
        return self.stream.load(
            {
                **self._beginning,
                "next_index_in_cycle": -((self._origin - index) // self._run) % count,
                "iterators_in_use_states": [
                    advanced(s, num) for s, num in zip(states, nums, strict=True)
                ],
            }
        )


class StreamOrder(Stream):
    """The elements of the divided part, made of the outputs of workers. The position is an index of
    its map dataset.

    Args:
        parent: the workers' stream.
        workers: these workers.
        whole: the divided part, which computes no elements.
        divided: says what workers compute.
        opened: makes workers for runs from another index on.
    """

    _at: int | None = 0  # where the workers are, if that is known,
    _inner_pos: Pos = None  # and their position there
    _cell: Cell | None = None  # of the last run
    _pos = 0  # of the next one, without a cell

    def __init__(
        self,
        stage: Any,
        parent: Stream,
        workers: _Opened,
        whole: Stream,
        divided: DividedPart,
        opened: Callable[[int], _Opened],
    ) -> None:
        super().__init__(stage, parent)
        self.closes_anytime = True  # type: ignore[misc]
        self.use: Callable[[DatasetIterator[Any]], None]  # lets an iterator be the parent
        self._workers, self._inner_pos = workers, parent.start()
        self._whole, self._beginning = whole, whole.save(whole.start())
        self._run_size, self._length = divided.run, divided.length
        self._opened = opened
        guards = divided.guards(whole)
        self._guards: list[tuple[Stream, FilterGuard, list[bool]]] = [
            (*found, []) for found in guards
        ]

    def _run(self, cell: Cell) -> Iterator[Any]:
        self._cell = cell
        index, length, size = cell.pos, self._length, self._run_size
        try:
            run = self._begin(index)
            inner = self.inner
            while True:
                inner.wanted = max(1, cell.take_wanted())
                x = next(run, _END)
                if x is _END:
                    break
                index = min(index + size, length)
                self._inner_pos = inner.settle()
                self._at = cell.pos = index
                if self._guards:
                    self._check_budgets(x, cell)
                if type(x) is not Dropped:
                    yield (x, x := None)[0]
        except GeneratorExit:
            raise
        except Exception:
            if self._at != cell.pos or self.inner.past_failed is not None:
                cell.past_failed = partial(self._pass, cell)
            raise
        except BaseException:  # after an interrupt the position of the workers is not known
            self._at = None
            raise
        if length - index < size:  # of a batch that is too small nothing is left for later
            self._at = cell.pos = length

    def _begin(self, index: int) -> Iterator[Any]:
        """Return the outputs of the workers from ``index`` on."""
        if self._at != index:
            self._at = None
            if not self._workers.has(index) and index < self._length:
                workers = self._opened(index % self._run_size)
                self.use(workers.iterator)
                self._workers, self.parents = workers, (workers.stream,)
                self.inner = Cell()
            self._inner_pos = self._workers.pos_at(index)
            self._at = index
        return self.parent.run(self.inner.at(self._inner_pos))

    def _check_budgets(self, x: object, cell: Cell) -> None:
        """Report an output to the guards of the stages that drop elements."""
        by = x.by if type(x) is Dropped else len(self._guards)
        for number, (stream, guard, decisions) in enumerate(self._guards[: by + 1]):
            decisions.append(number != by)
            if len(decisions) >= WINDOW:
                try:
                    guard.check(decisions, self.ctx.options)
                except Exception as error:
                    add_error_place(error, stream, lambda: self.place(cell.pos))
                    raise

    def _pass(self, cell: Cell) -> None:
        before = self.parent.save(self.inner.settle())
        self.inner.pass_failed()
        self._inner_pos = self.inner.settle()
        if self.parent.save(self._inner_pos) != before:  # else what failed was no element
            self._at = cell.pos = min(cell.pos + self._run_size, self._length)

    # Positions and states.

    def pos_of_parent(self, pos: Pos, i: int) -> Pos:
        return self._inner_pos

    def start(self) -> int:
        return 0

    def save(self, pos: Pos) -> Any:
        return advanced(self._beginning, pos)

    def saves_anywhere(self) -> bool:
        return True

    def load(self, state: object) -> int:
        pos = self._whole.load(state)
        index = self._index_in(pos)
        if self._whole.save(pos) != advanced(self._beginning, index):
            raise StateMismatchError(
                f"all counts in a state of {self} must be equal, since order='stream' finds"
                f" elements by their index, got {shown(state)}. Continue from it without workers,"
                " or with order='workers'"
            )
        self._cell, self._pos = None, index
        return index

    def _index_in(self, pos: Pos) -> int:
        """Return the index in the map dataset, in a position of the divided part."""
        stream = self._whole
        while stream.parents:
            pos, stream = stream.pos_of_parent(pos, 0), stream.parent
        return int(pos)

    def _in_whole(self, pos: Pos) -> Pos:
        """Return a position as one of the divided part."""
        return self._whole.load(self.save(pos))

    def place(self, pos: Pos) -> Place | None:
        return self._whole.place(self._in_whole(pos))

    def has_gaps(self) -> bool:
        return self._whole.has_gaps()

    def index_of(self, pos: Pos) -> int:
        return self._whole.index_of(self._in_whole(pos))

    def at_index(self, index: int) -> int:
        return self.load(self._whole.save(self._whole.at_index(index)))

    def start_prefetch(self) -> None:
        self._begin(self._pos if self._cell is None else self._cell.pos)
        super().start_prefetch()

    def drop(self) -> None:
        self.forget_run()

    def __str__(self) -> str:
        return f"StreamOrderIterator(run={self._run_size})"


class StreamOrderIterator(StreamIterator[T]):
    """The iterator of outputs of workers, which is described as that of the divided part."""

    # The same elements and states as without workers.
    _gm_stage_name: ClassVar = None  # type: ignore[assignment]
    _gm_engine: StreamOrder

    def __init__(
        self,
        stage: StreamOrderIterDataset[T],
        divided: DividedPart,
        opened: Callable[[int], _Opened],
    ) -> None:
        self._whole = whole = iterate(stage._gm_parent)
        whole._gm_ctx.joined = None  # it is no pipeline of its own
        workers = opened(0)
        make = partial(
            StreamOrder, workers=workers, whole=stream_of(whole), divided=divided, opened=opened
        )
        super().__init__(stage, [workers.iterator], make)
        self._gm_engine.use = partial(_use, weakref.ref(self))
        self._gm_ctx.options = collected_options(stage._gm_parent).merge(self._gm_ctx.options)

    @property
    def _gm_described_upstream(self) -> Sequence[Any]:
        return (self._whole,)


def _use(owner: weakref.ref[StreamOrderIterator[Any]], parent: DatasetIterator[Any]) -> None:
    """Let ``parent`` be the only parent of an iterator."""
    it = owner()
    if it is not None:
        it._gm_parents = (parent,)
        share_context([parent], it._gm_ctx)
