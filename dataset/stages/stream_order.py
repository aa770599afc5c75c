"""``mp_prefetch(order="stream")``: the stream of no workers at all, of which workers compute what can be divided.

Of a chain of steps, those from ``to_iter_dataset`` on are divided as long as an element follows from its index alone: the
*divided part*. Workers compute it, and steps that come after it are run by the consumer, over an iterator that has the divided
part's elements and states.

Guarantees:

1. Elements and states are those of the chain without workers, and so are errors: each comes in its turn, and can be skipped.
2. Workers have runs of consecutive indices in turn: single ones, or as many as a batch of the divided part has.
3. A worker gives one output for every run. What a filter has left out is a ``LeftOut``, which the consumer drops. So the
   position follows from the number of outputs that were taken, and with it all counts in the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar, Generic, TypeVar

from gristmill.core.errors import StateMismatchError
from gristmill.core.options import ReadOptions
from gristmill.core.state import shown
from gristmill.core.value import Value
from gristmill.dataset.bases.context import Numbers, collected_options
from gristmill.dataset.bases.division import Division
from gristmill.dataset.bases.feed import failed_at_last
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, iterate, share_context, stream_of
from gristmill.dataset.bases.length import same_number
from gristmill.dataset.bases.next_index import may_have_gaps, move_to_index, next_index_of
from gristmill.dataset.bases.node import dropping_steps, parents_of, spec_of_first_parent, tolerances
from gristmill.dataset.bases.origins import Place, place_of
from gristmill.dataset.bases.parameters import Parameters, aside, parameters_of
from gristmill.dataset.bases.passing import PassingIterator
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.round_robin import RoundRobinIterator
from gristmill.dataset.slicing import replaced_in
from gristmill.dataset.stages.filter_guard import FilterGuard
from gristmill.dataset.stages.map import MapIterDataset
from gristmill.dataset.stages.mp_prefetch import check_no_workers
from gristmill.dataset.stages.multithread_prefetch import MultithreadPrefetchIterDataset
from gristmill.dataset.stages.prefetch import PrefetchIterDataset
from gristmill.dataset.stages.runs import RunsMapDataset
from gristmill.dataset.stages.stream_interleave import StreamInterleaveIterDataset, Workers, interleaved_part, needs_of
from gristmill.dataset.states.values import advanced
from gristmill.dataset.telling.failures import tell_at_last
from gristmill.dataset.worker_task import roots

T = TypeVar("T")


class LeftOut(Value):
    """Stands for an element that step ``by``, of those that leave out elements, has left out."""

    by: int


def in_stream_order(ds: IterDataset[Any], workers: Workers) -> IterDataset[Any]:
    """``ds``, of which the divided part is computed by ``workers``.

    Args:
        ds: the chain.
        workers: makes of a dataset the same one computed by workers; in so many lanes, if their number is given.

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
    """The streams that lead to ``ds``, from ``to_iter_dataset`` on."""
    chain = [ds]
    while type(chain[0]) is not PrefetchIterDataset:
        stage = chain[0]
        if isinstance(stage, MultithreadPrefetchIterDataset):
            reason = (
                f"{stage} divides it among threads. Leave that out: threads of to_iter_dataset(ReadOptions(...)) keep the order"
            )
        elif len(stage.parents) > 1:
            reason = f"{stage} draws from {len(stage.parents)} datasets. Apply mp_prefetch(..., order='stream') to each of them"
        elif not stage.parents or not isinstance(stage.parents[0], IterDataset):
            reason = f"{stage} does not find its elements by index. Begin with a MapDataset (to_iter_dataset())"
        else:
            chain.insert(0, stage.parents[0])
            continue
        raise ValueError(
            f"order='stream' cannot divide this pipeline among workers: {reason}, or use order='workers', where each worker "
            "has a stream of its own"
        )
    return chain


def _divided_part(ds: IterDataset[Any]) -> IterDataset[Any]:
    """The part of ``ds``, up to one of its steps, in which every element follows from its index."""
    root, *steps = _chain(ds)
    if tolerances(root.parents[0]):
        raise ValueError(
            "order='stream' finds elements by their index, and cannot count what tolerate of a MapDataset passes over: call "
            "tolerate behind to_iter_dataset(), or use order='workers', with num_lanes"
        )
    part, leaves_out, in_batches = root, not parameters_of(root).allow_nones and bool(dropping_steps(root.parents[0])), False
    for step in steps:
        needs = needs_of(step)
        if needs is None or (needs in ("numbered elements", "batches") and (leaves_out or in_batches)):
            break
        part = step
        leaves_out |= needs_of(step) == "choice"
        in_batches |= needs == "batches"
    return part


class DividedPart:
    """What workers compute of a divided part, and what its elements are made of."""

    def __init__(self, part: IterDataset[Any]) -> None:
        self._root, *self._steps = _chain(part)
        self._source = self._root.parents[0]
        needs = [needs_of(step) for step in self._steps]
        self.run: int = parameters_of(self._steps[needs.index("batches")]).batch_size if "batches" in needs else 1
        self.length = len(self._source)
        must_be_whole = "numbered elements" in needs or "batches" in needs
        self._checks_root = must_be_whole and not parameters_of(self._root).allow_nones
        self._marks_root = not must_be_whole and not parameters_of(self._root).allow_nones
        # From the first of these steps on there may be a ``LeftOut`` in place of an element.
        drops = [self._marks_root, *[need == "choice" for need in needs]]
        self.leaves_out = any(drops)
        self._first_marked = max(0, drops.index(True) - 1) if self.leaves_out else len(self._steps)

    def by_workers(self, origin: int) -> IterDataset[Any]:
        """A dataset that workers can share out, with one output for every run from index ``origin`` on."""
        source, options = self._source, parameters_of(self._root).read_options
        if self.run > 1:
            source = RunsMapDataset(source, Numbers(0, 1, self.run, origin))
        ds: IterDataset[Any] = PrefetchIterDataset(source, options, allow_nones=True)
        if self._checks_root:
            ds = MapIterDataset(ds, must_be_there, with_nones=True)
        for step in self._steps[: self._first_marked]:
            ds = replaced_in(step, step.parents[0], ds)
        return MarkingIterDataset(ds, self._marking_steps()) if self.leaves_out else ds

    def _marking_steps(self) -> list[_Step]:
        steps = [_Step(_is_there, True, str(iterate(self._root)))] if self._marks_root else []
        for step in self._steps[self._first_marked :]:
            if needs_of(step) != "nothing":
                it: Any = iterate(step)
                steps.append(_Step(it._function, needs_of(step) == "choice", str(it)))
        return steps

    def guards(self, whole: DatasetIterator[Any]) -> list[tuple[Any, FilterGuard]]:
        """Of ``whole``, an iterator of the divided part, those that leave out elements, in the order that ``LeftOut`` means."""
        chain: list[Any] = [whole]
        while parents := parents_of(chain[0]):
            chain.insert(0, parents[0])
        found = [(it, guard) for it in chain if (guard := it._guard) is not None]
        return (found if self._marks_root else found[1:]) if self.leaves_out else []


def must_be_there(x: Any) -> Any:
    if x is None:
        raise ValueError(
            "an element is None, which means that there is none, so that the positions of all that follow depend on it: "
            "order='stream' divides steps that number or batch elements by their index. Leave out elements with filter, whose "
            "steps after it are not divided, or use order='workers'"
        )
    return x


def _is_there(x: Any) -> bool:
    return x is not None


class _Step(Value):
    """A step that looks at every element alone."""

    function: Callable[[Any], Any]
    leaves_out: bool
    name: str

    def __str__(self) -> str:
        return self.name


class MarkingParameters(Parameters):
    steps: Sequence[_Step] = aside(in_text=True, show=lambda steps: f"[{', '.join(map(str, steps))}]")


class MarkingIterDataset(IterDataset[Any]):
    """What ``steps`` make of every element of the parent, in a worker; a ``LeftOut`` where one of them leaves it out.

    State: the parent's. Cost: that of the steps.
    """

    _num_elements = same_number
    _parameters: MarkingParameters

    def __init__(self, parent: Any, steps: Sequence[_Step]) -> None:
        super().__init__(parent)
        self._parameters = MarkingParameters(steps)

    def _traced(self, tracing: Tracing) -> Any:
        steps = self._parameters.steps
        return tracing.of(self._parent).map(lambda x: x.then(partial(_marked, steps), self))

    def __iter__(self) -> DatasetIterator[Any]:
        return MarkingDatasetIterator(iterate(self._parent), self._parameters)


def _marked(steps: Sequence[_Step], x: Any) -> Any:
    num_leaving_out = 0
    for step in steps:
        if not step.leaves_out:
            x = step.function(x)
        elif step.function(x):
            num_leaving_out += 1
        else:
            return LeftOut(num_leaving_out)
    return x


class MarkingDatasetIterator(PassingIterator[Any]):
    _flow = "one_to_one"

    def __init__(self, parent: DatasetIterator[Any], parameters: MarkingParameters) -> None:
        super().__init__(parent)
        self._parameters = parameters
        self._steps: list[tuple[_Step, Callable[[Any], Any], LeftOut | None]] = []
        num_leaving_out = 0
        for step in parameters.steps:
            self._steps.append((step, step.function, LeftOut(num_leaving_out) if step.leaves_out else None))
            num_leaving_out += step.leaves_out

    def _take(self, n: int) -> list[Any]:
        elements = self._source._take(n)
        for step, function, left_out in self._steps:
            try:
                if left_out is None:
                    elements = [x if type(x) is LeftOut else function(x) for x in elements]
                else:
                    elements = [x if type(x) is LeftOut or function(x) else left_out for x in elements]
            except Exception as error:
                tell_at_last(error, step, self._source)
                raise
        return elements

    def _stream(self, n: int) -> Iterator[Any]:
        for x in stream_of(self._source, n):
            for step, function, left_out in self._steps:
                try:
                    if left_out is None:
                        x = function(x)
                    elif not function(x):
                        x = left_out
                        break
                except Exception as error:
                    failed_at_last(error, step, self._source)
                    raise
            yield x


class StreamOrderParameters(Parameters):
    workers: Workers = aside()


class StreamOrderIterDataset(IterDataset[T]):
    """The parent's elements, which ``workers`` compute, each by its index.

    Order: the parent's. State: the parent's. Cost: that of handing over outputs from process to process.
    """

    _adds_step = False  # seeds are those of the same pipeline without workers
    _starts_workers = True
    _tells_place = True
    _element_spec = spec_of_first_parent
    _num_elements = same_number

    def __init__(self, parent: Any, workers: Workers) -> None:
        super().__init__(parent)
        self._parameters = StreamOrderParameters(workers)
        self._workers = workers
        self._divided_part = DividedPart(parent)
        self._by_workers = workers(self._divided_part.by_workers(0))

    @property
    def _draws_from(self) -> Sequence[Any]:
        return (self._by_workers,)

    def __str__(self) -> str:
        return f"StreamOrderIterDataset(run={self._divided_part.run})"

    def _over(self, replaced: Callable[[Any], Any]) -> StreamOrderIterDataset[T]:
        return StreamOrderIterDataset(replaced(self._parent), self._workers)

    def _computed_by(self, threads: ReadOptions | None, num_workers: int | None) -> Any:
        return self._parent if num_workers == 0 else self

    def _divided(self, division: Division) -> Any:
        raise ValueError(
            f"{self} cannot be shared out among {division.num_workers} workers: its elements are those of one stream. Apply "
            "mp_prefetch once, as the last step"
        )

    def _traced(self, tracing: Tracing) -> Any:
        return tracing.of(self._parent)  # which has the same states

    def __iter__(self) -> DatasetIterator[T]:
        return StreamOrderIterator(self._parent, self._divided_part, self._opened)

    def _opened(self, origin: int) -> _Opened[T]:
        """What gives the outputs for the runs from index ``origin`` on."""
        ds = self._workers(self._divided_part.by_workers(origin)) if origin else self._by_workers
        it = iterate(ds)
        assert isinstance(it, RoundRobinIterator)
        it.is_one_stream = True
        return _Opened(it, origin, self._divided_part.run)


class _Opened(Generic[T]):
    """Workers for the runs of ``run`` indices from ``origin`` on."""

    def __init__(self, iterator: RoundRobinIterator[T], origin: int, run: int) -> None:
        self.iterator = iterator
        self._beginning = iterator.get_state()
        self._origin = origin
        self._run = run

    def goes_on_at(self, index: int) -> bool:
        """Whether a run begins there."""
        return (index - self._origin) % self._run == 0

    def go_to(self, index: int) -> None:
        """Continues with the run that begins at ``index``, or the end."""
        states = self._beginning["iterators_in_use_states"]
        count = len(states)
        nums = [Numbers(i, count, self._run, self._origin).num_before(index) for i in range(count)]
        self.iterator.set_state(
            {
                **self._beginning,
                "next_index_in_cycle": -((self._origin - index) // self._run) % count,
                "iterators_in_use_states": [advanced(s, num) for s, num in zip(states, nums, strict=True)],
            }
        )


class StreamOrderIterator(BlockIterator[T]):
    """Stands for the iterator of ``part``, which is only asked for states, and what follows from them."""

    _stage_name: ClassVar = None  # the same elements and states as without workers
    _flow = "stateful"
    _stays_on_error = True
    _closes_anytime = True
    _is_costly_to_restore = True

    def __init__(self, part: IterDataset[T], divided: DividedPart, opened: Callable[[int], _Opened[T]]) -> None:
        self._workers = opened(0)
        self._outputs = self._workers.iterator
        super().__init__(self._outputs)
        self._ctx.options = collected_options(part).merge(self._ctx.options)
        self._whole = iterate(part)
        self._whole._ctx.joined = None  # it is no pipeline of its own
        self._beginning = self._whole.get_state()
        self._run, self._length = divided.run, divided.length
        self._opened = opened
        self._next_index = 0
        self._guards = divided.guards(self._whole)

    def __str__(self) -> str:
        return f"StreamOrderIterator(run={self._run})"

    @property
    def _described_upstream(self) -> Sequence[Any]:
        return (self._whole,)

    def _take(self, n: int) -> list[T]:
        index = self._next_index
        if not self._guards:
            outputs = self._take_outputs(n)
            self._last = index if outputs else self._last
            return outputs
        before = self._mark()
        kept: list[T] = []
        try:
            while len(kept) < n:
                outputs = self._take_outputs(n - len(kept))
                if not outputs:
                    break
                kept += self._kept(outputs)
            self._last = index if kept else self._last
            return kept
        except BaseException:
            self._return_to(before)
            raise

    def _take_outputs(self, n: int) -> list[Any]:
        before = self._next_index
        try:
            outputs = self._outputs._take(n)
            index = before + len(outputs) * self._run
            if index > self._length or (len(outputs) < n and self._length - index < self._run):
                index = self._length  # of a batch that is too small nothing is left for later
            self._next_index = index
            return outputs
        except Exception:
            raise
        except BaseException:  # nobody knows what an interrupt lost
            self._next_index = before
            self._workers.go_to(before)
            raise

    def _kept(self, outputs: list[Any]) -> list[Any]:
        for number, (it, guard) in enumerate(self._guards):
            keep = [type(x) is not LeftOut or x.by != number for x in outputs]
            try:
                guard.observe(keep, self._ctx.options)
            except Exception as error:
                tell_at_last(error, it, self)
                raise
            if not all(keep):
                outputs = [x for x, is_kept in zip(outputs, keep, strict=True) if is_kept]
        return outputs

    def get_state(self) -> Any:
        return advanced(self._beginning, self._next_index)

    def _restore(self, state: Any) -> None:
        whole = self._whole
        whole.set_state(state)
        (root,) = roots(whole)
        index = root.get_state()["next_index"]
        if whole.get_state() != advanced(self._beginning, index):
            raise StateMismatchError(
                f"all counts in a state of {self} must be equal, since order='stream' finds elements by their index, got "
                f"{shown(state)}. Continue from it without workers, or with order='workers'"
            )
        workers = self._workers
        if not workers.goes_on_at(index) and index < self._length:
            workers = self._opened(index % self._run)
            share_context([workers.iterator], self._ctx)
        workers.go_to(index)
        self._use(workers, index)

    def _use(self, workers: _Opened[T], index: int) -> None:
        self._workers, self._outputs, self._parents = workers, workers.iterator, (workers.iterator,)
        self._next_index = index

    def _mark(self) -> Any:
        return self._workers, self._next_index, [guard.counts for _, guard in self._guards]

    def _state_at(self, mark: Any) -> Any:
        return advanced(self._beginning, mark[1])

    def _before_last(self) -> Any:
        return None if self._last is None else advanced(self._beginning, self._last)

    def _return_to(self, mark: Any) -> None:
        workers, index, counts = mark
        if workers is not self._workers or index != self._next_index:  # else what is ready stays so, and so does an error
            workers.go_to(index)
            self._use(workers, index)
        for (_, guard), count in zip(self._guards, counts, strict=True):
            guard.counts = count

    def _skip(self) -> None:
        it = self._outputs
        while True:
            try:
                outputs = self._take_outputs(1)
            except Exception:
                before = it.get_state()
                it._skip()
                if it.get_state() != before:  # else what failed was no element
                    self._next_index = min(self._next_index + self._run, self._length)
                return
            if not (outputs and type(outputs[0]) is LeftOut):
                return

    def _whole_here(self) -> DatasetIterator[T]:
        """An iterator of the divided part that is where this one is."""
        self._whole.set_state(self.get_state())
        return self._whole

    def _place(self) -> Place | None:
        return place_of(self._whole_here())

    def _has_gaps(self) -> bool:
        return may_have_gaps(self._whole)

    def _get_next_index(self) -> int:
        return next_index_of(self._whole_here())

    def _set_next_index(self, index: int) -> None:
        whole = self._whole_here()
        move_to_index(whole, index)
        self._restore(whole.get_state())
