"""The stream of a mixture of streams."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from operator import length_hint
from typing import Any

from gristmill.dataset.bases.iterator import (
    DatasetIterator,
    iterate,
    share_context,
)
from gristmill.dataset.bases.next_index import check_no_gaps
from gristmill.dataset.engine.choices import Records, choosers
from gristmill.dataset.engine.draws import Draw
from gristmill.dataset.engine.iterators import StreamIterator, stream_of
from gristmill.dataset.engine.stream import Cell, Pos, Stream
from gristmill.dataset.epochs import in_epoch
from gristmill.dataset.errors.context import add_before
from gristmill.dataset.mixtures.draw_counts import DrawCounts
from gristmill.dataset.mixtures.drawing import Drawing
from gristmill.dataset.mixtures.expecting import expect, weigh
from gristmill.dataset.mixtures.plans import PatternPlan, Plan
from gristmill.dataset.mixtures.position import DRAWN, MixturePos
from gristmill.dataset.mixtures.states import check_draw, counts_by_name, counts_in, loaded, saved
from gristmill.dataset.states.values import is_same

_END: Any = object()
_BLOCK = 64  # draws that are looked up at once
_FINE = 1 << 32  # parts of a weight, where what has ended leaves its share to others


class Mix(Stream):
    """Elements of the parents in turn, as a plan says.

    The position is ``(standing, log, num)``: the first ``num`` entries of a growing list, which the
    positions of one run share, after a standing. Which plan holds is a choice if components have
    names: weights and components may be others after a restore.

    Args:
        stage: the definition.
        parents: the streams of the components.
    """

    def __init__(self, stage: Any, *parents: Stream) -> None:
        self.names = self.component_names = stage._names
        self.makes_choices = self.names is not None
        super().__init__(stage, *parents)
        self.plan: Plan = stage._plan
        self.by: Callable[[Any], Any] | None = stage._by
        self.stop: str = stage._stop
        self.follows = self.by is None and self.stop == "first"  # what is drawn, from the position
        self.is_plain = self.follows and isinstance(self.plan, PatternPlan)
        self.own = self.plan.described()
        # of each component, as they are recorded
        self.draws = [Draw(self.own, name) for name in self.plan.names]
        self.places = {name: i for i, name in enumerate(self.plan.names)}
        self.cells = [Cell() for _ in parents]
        self.nothing = DrawCounts.nothing(
            len(parents), self.plan.whole * _FINE if self.by is not None else 0
        )
        self.owner: weakref.ref[MixIterator] | None = None
        self.epochs = [0] * len(parents)  # of the streams in ``parents``
        # epochs of components before that, with their streams
        self.former: dict[int, tuple[int, Stream]] = {}
        self.rate = 1.0  # the share of this mixture in all draws
        # the parents read ahead; an element was requested
        self.is_expected = self.was_asked = False
        self.unweighed = {*range(len(parents))}  # components that do not know their share

    # Positions.

    def settled(self, pos: Pos) -> MixturePos:
        """Return a position without a log."""
        base, log, num = pos
        return base.after(log[:num]) if num else base

    def pos_of_parent(self, pos: Pos, i: int) -> Pos:
        return self.settled(pos).parts[i]

    def start(self) -> Pos:
        return self._beginning([parent.start() for parent in self.parents])

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        ends = zip(self.parents, self.settled(end).parts, strict=True)
        return self._beginning([parent.next_epoch(part, records) for parent, part in ends])

    def _beginning(self, parts: Sequence[Pos]) -> Pos:
        return MixturePos(tuple(parts), counts=None if self.is_plain else self.nothing), [], 0

    def index(self, pos: Pos) -> int:
        """Return how often a component was asked for an element."""
        base, log, num = pos
        index: int = log[num - 1][2] if num else base.num_asked
        return index

    def saves_anywhere(self) -> bool:
        return self.stop != "never" and super().saves_anywhere()

    def save(self, pos: Pos) -> Any:
        return saved(self, self.settled(pos))

    def load(self, state: object) -> Pos:
        pos: Pos = loaded(self, state), [], 0
        self.is_expected = self.was_asked = False
        return pos

    def check_choice(self, choice: object) -> None:
        check_draw(choice, self)

    def index_of(self, pos: Pos) -> int:
        at = self.settled(pos)
        self._check_index()
        return at.num_asked - at.has_ended  # the last request found no element

    def at_index(self, index: int) -> Pos:
        self._check_index()
        nums = self.plan.counts(index)
        parts = tuple(
            [parent.at_index(num) for parent, num in zip(self.parents, nums, strict=True)]
        )
        self.is_expected = self.was_asked = False
        counts = None if self.is_plain else self.nothing.added(dict(enumerate(nums)))
        return MixturePos(parts, index, counts=counts), [], 0

    def _check_index(self) -> None:
        check_no_gaps(self)
        if not self.follows:
            raise NotImplementedError(
                f"{self} has no index for its elements: what it draws does not follow from their"
                " number"
            )

    # Components.

    def parent_in(self, i: int, counts: DrawCounts | None) -> Stream:
        """Return the stream of a component in the epoch in which it is."""
        epoch = 0 if counts is None else counts.epochs[i]
        if epoch != self.epochs[i]:
            self.open(i, epoch)
        return self.parents[i]

    def stream_in(self, i: int, counts: DrawCounts | None) -> Stream:
        """Return a stream of a component in its epoch, without moving the component."""
        epoch = 0 if counts is None else counts.epochs[i]
        if epoch == self.epochs[i]:
            return self.parents[i]
        former = self.former.get(i)
        if former is not None and former[0] == epoch:
            return former[1]
        return stream_of(self._iterate(i, epoch))

    def _iterate(self, i: int, epoch: int) -> DatasetIterator[Any]:
        it = iterate(in_epoch(self.stage._gm_parents[i], epoch))
        for stream, former in zip(choosers(stream_of(it)), choosers(self.parents[i]), strict=True):
            stream.key = former.key
        return it

    def open(self, i: int, epoch: int) -> None:
        """Open a component in another epoch."""
        owner = None if self.owner is None else self.owner()
        it = self._iterate(i, epoch)
        share_context([it], self.ctx)
        if owner is not None:
            owner.replace_parent(i, it)
        self.former[i] = self.epochs[i], self.parents[i]
        self.parents = (*self.parents[:i], stream_of(it), *self.parents[i + 1 :])
        self.cells[i] = Cell()
        self.epochs[i] = epoch
        self.unweighed.add(i)

    # The run.

    def _run(self, cell: Cell) -> Iterator[Any]:
        at = Drawing(self, cell)
        runs: dict[int | None, Iterator[Any]] = {}
        cells, log, in_blocks = self.cells, at.log, at.in_blocks
        while True:
            wanted = cell.take_wanted()
            if wanted > 1 and in_blocks:
                yield from self._in_block(at, runs, wanted)
                log = at.log
                if at.has_ended:
                    return
                continue
            if not (turns := at.turns(_BLOCK)):
                break
            is_simple = at.is_simple
            for i in turns:
                try:
                    x = next(runs[i] if i in runs else self._opened(at, runs, i), _END)
                except Exception as error:
                    self._fail(error, at, i)
                    raise
                if x is _END:
                    at.end(i)
                    runs.pop(i, None)
                    if at.has_ended:
                        return
                    break
                c = cells[i]
                if is_simple:
                    at.index = index = at.index + 1
                    at.num = num = at.num + 1
                    log.append((i, c.settle() if c.is_counting else c.pos, index, 1, DRAWN, None))
                    cell.pos = at.base, log, num
                elif at.draw(i, x, c.settle()):
                    continue
                yield (x, x := None)[0]
            log = at.begin_log()
        at.finish()

    def _in_block(
        self, at: Drawing, runs: dict[int | None, Iterator[Any]], num: int
    ) -> Iterator[Any]:
        """Yield up to ``num`` elements, which will surely be taken."""
        turns = [*at.turns(num)]
        start = at.begin_block()
        cells = self.cells
        for i, of_component in _num_of_each(tuple(turns)):
            if i not in runs:
                self._opened(at, runs, i)
            cells[i].wanted = of_component
        runs[None] = iter(())
        left = iter((*turns, None))
        cell = at.cell
        known = [(0, (start, at.log, 0))]

        def pos() -> Pos:
            num = len(turns) + 1 - length_hint(left)
            if known[0][0] != num:
                known[0] = num, (_after(self.cells, start, turns, num), [], 0)
            return known[0][1]

        cell.compute_by(pos)
        try:
            yield from map(next, map(runs.__getitem__, left))
        except Exception as error:
            taken = len(turns) - length_hint(left)
            at.end_block(_after(self.cells, start, turns, taken))
            self._fail(error, at, turns[taken])
            raise
        taken = len(turns) - length_hint(left)
        num, after = known[0]
        at.end_block(after[0] if num == taken else _after(self.cells, start, turns, taken))
        if taken < len(turns):
            at.end(turns[taken])
        elif not turns:
            at.finish()

    def _opened(self, at: Drawing, runs: dict[int | None, Iterator[Any]], i: int) -> Iterator[Any]:
        run = runs[i] = self.parents[i].run(self.cells[i].at(at.parts[i], choices=at.cell.choices))
        weigh(self, i, at.index)
        return run

    def _fail(self, error: Exception, at: Drawing, i: int) -> None:
        add_before(error, f"It happened in the component with input_index={i} of {self}.")
        at.cell.past_failed = partial(self._pass, at, i)

    def _pass(self, at: Drawing, i: int) -> None:
        """Move past the element of component ``i`` that failed."""
        cell = self.cells[i]
        before = cell.settle()
        cell.pass_failed()
        part = cell.settle()
        if part is before or not is_same(part, before):  # else there was no element
            at.pass_one(i, part)

    def drawn(self, pos: Pos) -> dict[str, dict[str, int]]:
        at = self.settled(pos)
        return counts_by_name(self, at.counts, at.num_asked - at.has_ended)

    def start_prefetch(self) -> None:
        if not self.is_expected:
            self.expect(self.rate, 0.0)
        super().start_prefetch()

    def expect(self, rate: float, due: float | None) -> None:
        owner = None if self.owner is None else self.owner()
        expect(self, rate, due, 0 if owner is None else self.index(owner.pos))

    def __str__(self) -> str:
        return f"MixedDatasetIterator({self.stage.text_of_parameters(tuple)})"


def _after(cells: Sequence[Cell], start: MixturePos, turns: Sequence[int], num: int) -> MixturePos:
    """Return where a mixture is after the first ``num`` of ``turns``."""
    parts = [*start.parts]
    for i, _ in _num_of_each(tuple(turns[:num])):
        c = cells[i]
        parts[i] = c.settle() if c.is_counting else c.pos
    return MixturePos(tuple(parts), start.num_asked + num)


class MixIterator(StreamIterator[Any]):
    """The iterator of a mixture, which knows what was drawn of each component."""

    def __init__(
        self, stage: Any, parents: Sequence[DatasetIterator[Any]], make: Callable[..., Stream]
    ) -> None:
        super().__init__(stage, parents, make)
        self._mix.owner = weakref.ref(self)

    @property
    def _mix(self) -> Mix:
        mix: Any = self._gm_engine
        return mix

    def replace_parent(self, i: int, it: DatasetIterator[Any]) -> None:
        """Take note of the iterator of another epoch of a component."""
        self._gm_parents[i].close()
        self._gm_parents = (*self._gm_parents[:i], it, *self._gm_parents[i + 1 :])

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        described: dict[str, Any] = self._stage._described_in_checkpoints
        return described

    @property
    def _gm_component_names(self) -> Sequence[str] | None:
        return self._mix.names

    @property
    def _gm_components(self) -> dict[str, DatasetIterator[Any]] | None:
        names = self._mix.names
        return None if names is None else dict(zip(names, self._gm_parents, strict=True))

    def _gm_counts_in(self, state: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """Return what was drawn of each component up to a state."""
        counts = counts_in(self._mix, state, state["index"])
        return counts_by_name(self._mix, counts, state["index"] - bool(state["stop"]))


@lru_cache(maxsize=256)
def _num_of_each(turns: tuple[int, ...]) -> tuple[tuple[int, int], ...]:
    """Return the components in a block, with the number of elements of each."""
    return tuple(Counter(turns).items())
