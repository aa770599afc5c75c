"""The stream of a mixture of streams."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from operator import length_hint
from typing import Any, NamedTuple

from gristmill.core.errors import StateMismatchError, as_int
from gristmill.core.state import shown, state_count, state_field, state_flag, state_list
from gristmill.dataset.bases.iterator import DatasetIterator, are_taken_again, iterate, share_context
from gristmill.dataset.bases.next_index import check_no_gaps
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.drawn import Draws
from gristmill.dataset.engine.choices import NEW, USUAL, Choices
from gristmill.dataset.engine.iterators import StreamIterator, stream_of_iterator
from gristmill.dataset.engine.stream import Cell, Pos, Stream, cannot_merge
from gristmill.dataset.epochs import in_epoch
from gristmill.dataset.mixtures.draw_counts import Aims, DrawCounts
from gristmill.dataset.pieces import Piece, needed, pieces_of, turns_in
from gristmill.dataset.plans import PatternPlan, Plan, plan_of
from gristmill.dataset.states.mixtures import DRAWN, FORGOTTEN, OWN
from gristmill.dataset.states.turns import TURNS, Turns
from gristmill.dataset.states.values import copied, is_same
from gristmill.dataset.tally import Tally
from gristmill.dataset.telling.failures import add_before, tell, told

_END: Any = object()
_BLOCK = 64  # draws that are looked up at once
_NEVER = 1e-6  # the share of draws that is assumed for a component of weight 0
_FINE = 1 << 32  # parts of a weight, where what has ended leaves its share to others

# What happened at an entry of the log.
_DRAWN, _ENDED, _ANEW, _LAST = range(4)

Places = Sequence[int | None]  # which component each one of a plan is; ``None``: it is no longer there


class Standing(NamedTuple):
    """Where a mixture is. Never changed.

    Attributes:
        parts: the positions of the components.
        num_asked: how often a component was asked for an element.
        has_ended: no more elements follow.
        counts: what was drawn of each component; ``None``: it follows from the index.
        pieces: positions that are drawn under earlier plans, of states from before there were records of choices.
        again: draws that are repeated one by one, of such states, and the same as it was saved.
    """

    parts: tuple[Pos, ...]
    num_asked: int = 0
    has_ended: bool = False
    counts: Tally | None = None
    pieces: tuple[Piece, ...] = ()
    again: tuple[Turns, Any] | None = None


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
        self.names: list[str] | None = stage._names
        self.makes_choices = self.names is not None  # type: ignore[misc]
        super().__init__(stage, *parents)
        self.plan: Plan = stage._plan
        self.by: Callable[[Any], Any] | None = stage._by
        self.stop: str = stage._stop
        self.follows = self.by is None and self.stop == "first"  # what is drawn, from the position
        self.is_plain = self.follows and isinstance(self.plan, PatternPlan)
        self.own = self.plan.described()
        self.cells = [Cell() for _ in parents]
        self.nothing = Tally.nothing(len(parents), self.plan.whole * _FINE if self.by is not None else 0)
        self.draws: Draws | None = None  # of the last elements, where a stage with an iterator of its own replays them
        self.is_replayed = False  # by such a stage
        self.then: tuple[Plan, Places] | None = None  # under which plan elements are replayed; ``None``: the own one
        self.noted: tuple[Choices, int] | None = None  # where the own plan was recorded last
        self.owner: weakref.ref[MixIterator] | None = None
        self.epochs = [0] * len(parents)  # of the streams in ``parents``
        self.rate = 1.0  # the share of this mixture in all draws
        self.is_expected = False  # the parents read ahead
        self.was_asked = False
        self.unweighed = {*range(len(parents))}  # components that were not told their share

    # Positions.

    def standing(self, pos: Pos) -> Standing:
        """Return a position without a log."""
        base, log, num = pos
        if not num:
            return base
        parts, has_ended, index = [*base.parts], base.has_ended, base.num_asked
        counts = None if base.counts is None else DrawCounts(base.counts)
        for i, part, index, length, kind, aims in log[:num]:
            if i is not None:
                parts[i] = part
            has_ended = kind == _LAST
            if counts is not None:
                _count(counts, i, length, kind, aims)
        frozen = None if counts is None else counts.frozen()
        return Standing(tuple(parts), index, has_ended, frozen, base.pieces, base.again)

    def pos_of_parent(self, pos: Pos, i: int) -> Pos:
        return self.standing(pos).parts[i]

    def start(self) -> Pos:
        parts = tuple([parent.start() for parent in self.parents])
        return Standing(parts, counts=None if self.is_plain else self.nothing), [], 0

    def index(self, pos: Pos) -> int:
        """Return how often a component was asked for an element."""
        base, log, num = pos
        index: int = log[num - 1][2] if num else base.num_asked
        return index

    def place(self, pos: Pos) -> Place | None:
        return None

    def merge(self, states: Any) -> Any:
        raise cannot_merge(self)

    def saves_anywhere(self) -> bool:
        return self.stop != "never" and super().saves_anywhere()

    def save(self, pos: Pos) -> Any:
        at = self.standing(pos)
        states: Any = [self._parent_in(i, at.counts).save(part) for i, part in enumerate(at.parts)]
        if self.names is not None:
            states = dict(zip(self.names, states, strict=True))
        state = {"parents": states, "index": at.num_asked, "stop": at.has_ended}
        if self.names is not None and (self.key or self.is_replayed or at.counts is not None):
            state[OWN] = self.own.copy()  # Grain ignores the entry
        pieces = [piece for piece in at.pieces if piece.stop > at.num_asked]
        if pieces:
            state[DRAWN] = [[piece.stop, piece.plan.described()] for piece in pieces]
            names = [zip(piece.plan.names, piece.places, strict=True) for piece in pieces]
            if forgotten := sorted({name for pairs in names for name, place in pairs if place is None}):
                state[FORGOTTEN] = forgotten
        if at.again is not None and at.num_asked < at.again[0].stop:
            state[TURNS] = copied(at.again[1])
        if at.counts is not None:
            state.update(at.counts.saved(self.plan.names))
        return state

    def load(self, state: Any) -> Pos:
        states = state_field(state, "parents", self)
        index = state_count(state, "index", self)
        has_ended = state_flag(state, "stop", self)
        pieces: tuple[Piece, ...] = ()
        again = None
        if self.names is None:
            states = state_list(state, "parents", self, len(self.parents), "the number of datasets")
        else:
            states = _states_by_name(states, self.names, self)
            pieces = pieces_of(state, self.plan, self, follows=self.follows)
            turns = turns_in(state, self.names, self)
            again = None if turns is None else (turns, copied(state[TURNS]))
            if self.stop == "all" and _END in states:  # new components follow those that have ended
                has_ended = False
        counts = self.counts_in(state, index)
        parents = [self._parent_in(i, counts) for i in range(len(self.parents))]
        parts = [parent.start() if s is _END else parent.load(s) for parent, s in zip(parents, states, strict=True)]
        self.is_expected = self.was_asked = False
        return Standing(tuple(parts), index, has_ended, counts, pieces, again), [], 0

    def counts_in(self, state: Mapping[str, Any], index: int) -> Tally | None:
        """Return what was drawn up to a state; ``None``: it follows from the index."""
        if "counts" in state or not (self.is_plain or self.names):
            return Tally.read(state, self.plan.names, self.nothing.whole, self)
        weights = state.get(OWN, self.own if self.is_plain else None)
        if self.is_plain and weights == self.own:
            return None
        # Nothing is known of states that do not have their weights.
        elements = {} if weights is None else plan_of(weights).counts_by_name(index - state_flag(state, "stop", self))
        counts = {i: elements.get(name, 0) for i, name in enumerate(self.plan.names)}
        return self.nothing.added(counts)

    def counts_by_name(self, counts: Tally | None, index: int) -> dict[str, dict[str, int]]:
        """Return what was drawn of each component, for users; ``counts`` and ``index`` as in a standing."""
        return (counts or Tally.of_elements(self.plan.counts(index))).by_name(self.plan.names)

    def index_of(self, pos: Pos) -> int:
        at = self.standing(pos)
        self._check_index(at.pieces)
        return at.num_asked - at.has_ended  # the last one was asked for in vain

    def at_index(self, index: int) -> Pos:
        self._check_index(())
        nums = self.plan.counts(index)
        parts = tuple([parent.at_index(num) for parent, num in zip(self.parents, nums, strict=True)])
        counts = None if self.is_plain else self.nothing.added(dict(enumerate(nums)))
        self.is_expected = self.was_asked = False
        return Standing(parts, index, counts=counts), [], 0

    def _check_index(self, pieces: Sequence[Piece]) -> None:
        check_no_gaps(self)
        if not self.follows or pieces:
            raise NotImplementedError(f"{self} has no index for its elements: what it draws does not follow from their number")

    # Components.

    def replay_by_iterators(self) -> None:
        """A stage with an iterator of its own may replay elements."""
        self.is_replayed = True
        if self.draws is None and self.names is not None:
            self.draws = Draws(self.names)

    def recorded(self, description: Any) -> tuple[Plan, Places]:
        """Return a plan of a record of choices, and which component each one of it is."""
        assert self.names is not None
        plan = plan_of(description)
        places = {name: i for i, name in enumerate(self.names)}
        return plan, [places.get(name) for name in plan.names]

    def _parent_in(self, i: int, counts: Tally | None) -> Stream:
        """Return the stream of a component in the epoch in which it is."""
        epoch = 0 if counts is None else counts.epochs[i]
        if epoch != self.epochs[i]:
            self.open(i, epoch)
        return self.parents[i]

    def open(self, i: int, epoch: int) -> None:
        """Open a component in another epoch."""
        owner = None if self.owner is None else self.owner()
        it = iterate(in_epoch(self.stage._parents[i], epoch))
        share_context([it], self.ctx)
        if self.is_replayed:
            are_taken_again([it])
        if owner is not None:
            owner.replace_parent(i, it)
        self.parents = (*self.parents[:i], stream_of_iterator(it), *self.parents[i + 1 :])
        self.cells[i] = Cell()
        self.epochs[i] = epoch
        self.unweighed.add(i)

    def run_of(self, i: int, part: Pos, cell: Cell) -> Iterator[Any]:
        """Return the elements of a component from ``part`` on."""
        return self.parents[i].run(self.cells[i].at(part, choices=cell.choices))

    # The run.

    def _run(self, cell: Cell) -> Iterator[Any]:
        at = Drawing(self, cell)
        runs: dict[int | None, Iterator[Any]] = {}
        cells, log, counts_nothing = self.cells, at.log, at.counts_nothing
        while True:
            wanted = cell.take_wanted()
            if wanted > 1 and counts_nothing:
                yield from self._in_block(at, runs, wanted)
                log = at.log
                if at.has_ended:
                    return
                continue
            if not (turns := at.turns(_BLOCK)):
                break
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
                if counts_nothing:
                    at.index = index = at.index + 1
                    at.num = num = at.num + 1
                    log.append((i, c.settle() if c.is_counting else c.pos, index, 1, _DRAWN, None))
                    cell.pos = at.base, log, num
                elif at.draw(i, x, c.settle()):
                    continue
                yield (x, x := None)[0]
            log = at.begin_log()
        at.finish()

    def _in_block(self, at: Drawing, runs: dict[int | None, Iterator[Any]], num: int) -> Iterator[Any]:
        """Yield up to ``num`` elements, which will surely be taken."""
        turns = at.turns(num)
        start = at.begin_block()
        counts = Counter(turns)
        cells = self.cells
        for i, of_component in counts.items():
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
                known[0] = num, (self._after(start, turns, num), [], 0)
            return known[0][1]

        cell.compute_by(pos)
        try:
            yield from map(next, map(runs.__getitem__, left))
        except Exception as error:
            taken = len(turns) - length_hint(left)
            at.end_block(self._after(start, turns, taken))
            self._fail(error, at, turns[taken])
            raise
        taken = len(turns) - length_hint(left)
        num, after = known[0]
        at.end_block(after[0] if num == taken else self._after(start, turns, taken))
        if taken < len(turns):
            at.end(turns[taken])
        elif not turns:
            at.finish()

    def _after(self, start: Standing, turns: Sequence[int], num: int) -> Standing:
        """Return where the mixture is after the first ``num`` of ``turns``."""
        parts = [*start.parts]
        for i in {*turns[:num]}:
            parts[i] = self.cells[i].settle()
        return Standing(tuple(parts), start.num_asked + num)

    def _opened(self, at: Drawing, runs: dict[int | None, Iterator[Any]], i: int) -> Iterator[Any]:
        run = runs[i] = self.run_of(i, at.parts[i], at.cell)
        self._weigh(i, at.index)
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

    def _weigh(self, i: int, index: int) -> None:
        if not self.is_expected:
            if self.was_asked:  # the first element does not wait for all parents
                self._expect(self.rate, 0.0, index)
            self.was_asked = True
        if i in self.unweighed:
            self.unweighed.remove(i)
            weights = self.plan.weights(index)
            if weights[i]:
                self.parents[i].expect(self.rate * weights[i] / sum(weights), None)

    def start_prefetch(self) -> None:
        if not self.is_expected:
            self.expect(self.rate, 0.0)
        super().start_prefetch()

    def expect(self, rate: float, due: float | None) -> None:
        owner = None if self.owner is None else self.owner()
        self._expect(rate, due, 0 if owner is None else self.index(owner.pos))

    def _expect(self, rate: float, due: float | None, index: int) -> None:
        self.rate = rate
        if due is None:
            return
        self.is_expected = True
        weights = self.plan.weights(index)
        total = sum(weights)
        first = {} if self.plan.end is not None else _first_turns(self.plan, index)
        for i, (parent, weight) in enumerate(zip(self.parents, weights, strict=True)):
            if weight:
                self.unweighed.discard(i)
                parent.expect(rate * weight / total, due + first.get(i, total / weight) / rate)
            else:
                parent.expect(rate * _NEVER, None)

    def __str__(self) -> str:
        return f"MixedDatasetIterator({self.stage.text_of_parameters(tuple)})"


class _Held(NamedTuple):
    """The shares of components at positions from ``start`` to ``stop``."""

    plan: Plan
    start: int
    stop: int
    num_ended: int  # components, by then
    aims: Aims


class MixIterator(StreamIterator[Any]):
    """The iterator of a mixture, which knows what was drawn of each component."""

    def __init__(self, stage: Any, parents: Sequence[DatasetIterator[Any]], make: Callable[..., Stream]) -> None:
        super().__init__(stage, parents, make)
        self._mix.owner = weakref.ref(self)

    @property
    def _mix(self) -> Mix:
        mix: Any = self._engine
        return mix

    @property
    def _is_taken_again(self) -> bool:
        return self._mix.is_replayed

    @_is_taken_again.setter
    def _is_taken_again(self, is_taken_again: bool) -> None:
        self._mix.replay_by_iterators()

    def replace_parent(self, i: int, it: DatasetIterator[Any]) -> None:
        """Take note of the iterator of another epoch of a component."""
        self._parents[i].close()
        self._parents = (*self._parents[:i], it, *self._parents[i + 1 :])

    @property
    def _described_parameters(self) -> dict[str, Any]:
        described: dict[str, Any] = self._stage._described_in_checkpoints
        return described

    @property
    def _components(self) -> dict[str, DatasetIterator[Any]] | None:
        names = self._mix.names
        return None if names is None else dict(zip(names, self._parents, strict=True))

    def _counts_in(self, state: Mapping[str, Any]) -> dict[str, dict[str, int]]:
        """Return what was drawn of each component up to a state of this iterator, or of one like it."""
        counts = self._mix.counts_in(state, state["index"])
        return self._mix.counts_by_name(counts, state["index"] - bool(state["stop"]))

    def _drawn(self) -> dict[str, dict[str, int]]:
        at = self._mix.standing(self.pos)
        return self._mix.counts_by_name(at.counts, at.num_asked - at.has_ended)

    # For stages with iterators of their own, which say in their states what they replay.

    @property
    def _draws(self) -> Draws | None:
        return self._mix.draws

    @property
    def _index(self) -> int:
        return self._mix.index(self._own_cell.settle())


class Drawing:
    """What changes in a run of a mixture: where it is, and which component is next."""

    def __init__(self, mix: Mix, cell: Cell) -> None:
        self.mix, self.cell = mix, cell
        self.base = base = mix.standing(cell.pos)
        self.log: list[Any] = []
        self.num = 0
        self.parts = [*base.parts]  # at the beginning of the run, or of the epoch of a component
        self.index, self.has_ended, self.pieces, self.again = base.num_asked, base.has_ended, base.pieces, base.again
        self.counts = None if base.counts is None else DrawCounts(base.counts)
        self.choices = cell.choices if mix.makes_choices else None
        self._left: tuple[Any, tuple[Plan, Places]] | None = None  # what is left of a plan when some have ended
        self._held: _Held | None = None
        for i in range(len(self.parts)):
            mix._parent_in(i, base.counts)
        if mix.draws is not None:
            mix.draws.go_to(self.index)

    def begin_log(self) -> list[Any]:
        """Return the log, a new one if it has become long."""
        if self.num > _BLOCK + len(self.parts):
            self.base, self.log, self.num = self.mix.standing((self.base, self.log, self.num)), [], 0
            self.base = self.base._replace(pieces=self.pieces)
        return self.log

    def begin_block(self) -> Standing:
        """Return where the mixture is, before a block of elements whose position is computed on demand."""
        if self.num or self.base.pieces:
            self.base = self.mix.standing((self.base, self.log, self.num))._replace(pieces=self.pieces)
            self.log, self.num = [], 0
        return self.base

    def end_block(self, base: Standing) -> None:
        """Continue after such a block."""
        cell = self.cell
        cell.is_counting = False
        self.base, self.index = base, base.num_asked
        cell.pos = base, self.log, 0

    # Which component is next.

    @property
    def counts_nothing(self) -> bool:
        """True if the elements that follow are determined by the index and the own plan."""
        mix = self.mix
        return self.counts is None and not (mix.by or self.again or self.pieces or mix.draws or self.choices)

    def turns(self, num: int) -> Sequence[Any]:
        """Return up to ``num`` components that are next; none if the mixture has ended."""
        if self.has_ended:
            return []
        mix = self.mix
        while True:
            if self.again is not None and self.index < self.again[0].stop:
                turn = self._turn_again()
                if turn is not None:
                    return [max(turn, ~turn)]
                self.index += 1
                continue
            asked = self.choices is not None and not self._is_in_piece()
            plan, places = self._without_ended(self._chosen() if asked else self._planned())
            found = self._due(plan, places, 1 if asked else num)
            if found and found[0] is None:
                raise needed([name for name in plan.names if name not in mix.plan.names], mix)
            if found or not self._is_in_piece():
                if asked and not found:
                    assert self.choices is not None
                    self.choices.retract(mix.key)
                return found
            self.index = self.index + 1 if mix.by is None else self.pieces[0].stop

    def _due(self, plan: Plan, places: Places, num: int) -> Sequence[Any]:
        """Return the next components under a plan, at most ``num``."""
        if not places or (plan.end is not None and self.index >= plan.end):
            return []
        if self.mix.by is None:
            stops = [self.index + num, *[piece.stop for piece in self.pieces[:1]]]
            positions = range(self.index, min(stops if plan.end is None else [*stops, plan.end]))
            components = plan.components(positions)
            if type(places) is range:  # all are there
                return components
            found = [places[component] for component in components]
            if None in found and (self.mix.then is None or self._is_in_piece()):
                del found[found.index(None) :]
            return found
        aims = self._aims(plan, places)
        assert self.counts is not None
        return [self.counts.furthest_behind(aims)] if aims else []

    def _aims(self, plan: Plan, places: Places) -> Aims:
        """Return the components that are drawn from at the index, with their shares."""
        counts = self.counts
        assert counts is not None
        held = self._held
        if held is None or held.plan is not plan or held.num_ended != len(counts.ended) or not held.start <= self.index < held.stop:
            weights = zip(places, plan.weights(self.index), strict=True)
            pairs = [(i, weight) for i, weight in weights if weight and i is not None]
            total = sum([weight for _, weight in pairs])
            aims = [(i, weight * counts.whole // total) for i, weight in pairs]
            self._held = held = _Held(plan, self.index, plan.weights_until(self.index), len(counts.ended), aims)
        return held.aims

    def _planned(self) -> tuple[Plan, Places]:
        """Return the plan at the index, and which component each of its own is."""
        if self._is_in_piece():
            return self.pieces[0].plan, self.pieces[0].places
        return self.mix.plan, range(len(self.parts))

    def _is_in_piece(self) -> bool:
        """Return true if elements are drawn under an earlier plan."""
        if self.pieces and self.pieces[0].stop <= self.index:
            self.pieces = tuple([piece for piece in self.pieces if piece.stop > self.index])
        return bool(self.pieces)

    def _chosen(self) -> tuple[Plan, Places]:
        """Return the plan of the next draw: that of the record, or the own one, which is recorded."""
        mix, choices = self.mix, self.choices
        assert choices is not None
        known = choices.ask(mix.key)
        if known is NEW:
            mix.then = None
            mark = choices, choices.num_restarts
            if mix.noted != mark:  # later draws are under the same plan
                choices.note(mix.key, mix.own)
                mix.noted = mark
        elif known is not USUAL:
            choices.note(mix.key, known)
            mix.then = None if known == mix.own else mix.recorded(known)
        return self._planned() if mix.then is None else mix.then

    def _without_ended(self, planned: tuple[Plan, Places]) -> tuple[Plan, Places]:
        ended = None if self.counts is None or self.mix.stop != "all" else self.counts.ended
        if not ended:
            return planned
        plan, places = planned
        key = id(plan), frozenset(ended)
        if self._left is None or self._left[0] != key:
            kept = [i for i, place in enumerate(places) if place not in ended]
            self._left = key, (plan.only([plan.names[i] for i in kept]), [places[i] for i in kept])
        return self._left[1]

    def _turn_again(self) -> int | None:
        """Return whose element is drawn again, the complement if it is left out; ``None``: of none that is there."""
        assert self.again is not None
        turn = self.again[0].at(self.index)
        if turn is None or self.mix.stop != "all" or self.counts is None:
            return turn
        return None if max(turn, ~turn) in self.counts.ended else turn

    # What has happened.

    def draw(self, i: int, x: Any, part: Pos) -> bool:
        """Count an element; return true if it is left out."""
        mix, length, aims = self.mix, 1, None
        if mix.by is not None:
            try:
                length = as_int("the length of an element", mix.by(x), minimum=0)
            except Exception as error:
                tell(error, mix)
                self.cell.past_failed = partial(self.pass_one, i, part)
                raise
            if length:
                aims = self._aims(*self._without_ended(self._planned() if mix.then is None else mix.then))
        is_again = self.again is not None and self.index < self.again[0].stop
        is_left_out = is_again and self._turn_again() == ~i
        if mix.draws is not None:
            mix.draws.note(self.index, [~i if is_left_out else i])
        self.index += 1
        self._enter(i, part, length, _DRAWN, aims)
        return is_left_out

    def pass_one(self, i: int, part: Pos) -> None:
        """Move past an element that failed."""
        if self.mix.draws is not None:
            self.mix.draws.note(self.index, [~i])
        self.index += 1
        self._enter(i, part, 1 if self.mix.by is None else 0, _DRAWN, None)

    def end(self, i: int) -> None:
        """Component ``i`` has no more elements when its turn comes."""
        mix, part = self.mix, self.mix.cells[i].settle()
        if self.choices is not None and not self._is_in_piece():
            self.choices.retract(mix.key)
        if mix.stop == "first":
            self.index += 1
            self._enter(i, part, 0, _LAST, None)
            self.has_ended = True
            return
        counts = self.counts
        assert counts is not None
        if mix.stop == "all":
            self._enter(i, part, 0, _ENDED, None)
            return
        if i in counts.ended:
            self.cell.past_failed = partial(self._refuse, i)
            self._refuse(i)
        mix.open(i, counts.epochs[i] + 1)
        self.parts[i] = mix.parents[i].start()
        self._enter(i, self.parts[i], 0, _ANEW, None)

    def _refuse(self, i: int) -> None:
        reason = f"an epoch of {self.mix.parents[i]} has no elements, so restarting it would never end"
        raise told(ValueError(f"{self.mix} cannot continue: {reason}"), self.mix)

    def finish(self) -> None:
        """No component is next."""
        if not self.has_ended:
            self.has_ended = True
            self._enter(None, None, 0, _LAST, None)

    def _enter(self, i: int | None, part: Pos, length: int, kind: int, aims: Any) -> None:
        if self.counts is not None:
            _count(self.counts, i, length, kind, aims)
        self.log.append((i, part, self.index, length, kind, aims))
        self.num += 1
        self.cell.pos = self.base, self.log, self.num


def _count(counts: DrawCounts, i: int | None, length: int, kind: int, aims: Any) -> None:
    """Count what an entry of a log says."""
    if i is None or kind == _LAST:
        return
    if kind == _DRAWN:
        counts.draw(i, length, aims)
    elif kind == _ENDED:
        counts.end(i)
    else:
        counts.restart(i)


def _first_turns(plan: Plan, start: int) -> dict[int, float]:
    """How many draws come before the first one of each component, as far as it comes soon."""
    shares, places = plan.select(range(start, start + 2 * len(plan.names)))
    found = [component for component, inner in shares for _ in inner]
    first: dict[int, float] = {}
    for i, place in enumerate(places):
        first.setdefault(found[place], i)
    return first


def _states_by_name(states: Any, names: Sequence[str], owner: object) -> list[Any]:
    """The states of the components, ``_END`` for those that are new."""
    if not isinstance(states, Mapping):
        raise StateMismatchError(f"parents in the state of {owner} must be a mapping of names to states, got {shown(states)}")
    by_name = {str(name): state for name, state in states.items()}
    gone = sorted(by_name.keys() - set(names))
    if gone:
        raise StateMismatchError(
            f"the state of {owner} has the positions of components that the mixture does not have, {gone!r:.200}. If these are "
            f"to be forgotten, say so: it.set_state(state, drop={set(gone)!r:.200}), or CheckpointRestore(it, drop=...); or keep "
            "them in the mixture, with the weight 0 in a Schedule"
        )
    return [by_name.get(name, _END) for name in names]
