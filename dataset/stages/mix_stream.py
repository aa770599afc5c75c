"""``IterDataset.mix``: a stream of the elements of several streams."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

from gristmill.core.errors import StateMismatchError
from gristmill.core.naming import transform_name
from gristmill.core.state import shown, state_count, state_field, state_flag, state_list
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import (
    DatasetIterator,
    are_taken_again,
    iterate,
    marked,
    pull,
    return_to,
    share_context,
    skip_one,
)
from gristmill.dataset.bases.length import Infinite, Length, Unknown, added, at_most, num_elements
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.next_index import check_no_gaps, move_to_index
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, function
from gristmill.dataset.bases.traced import Tracing, with_component
from gristmill.dataset.drawn import Draws
from gristmill.dataset.epochs import in_epoch
from gristmill.dataset.mix_turns import TurnsIterator, known
from gristmill.dataset.pieces import Piece, pieces_of, turns_in
from gristmill.dataset.plans import PatternPlan, Plan
from gristmill.dataset.stages.mix import as_datasets, check_stop, named, plan_for
from gristmill.dataset.states.mixtures import DRAWN, FORGOTTEN, OWN
from gristmill.dataset.states.turns import TURNS, Turns
from gristmill.dataset.states.values import copied
from gristmill.dataset.telling.failures import add_before, told
from gristmill.dataset.watching import looking_once

T = TypeVar("T")

_FIRST_BLOCK = 64  # elements
_NEW = object()
_NEVER = 1e-6  # the share of draws that is assumed for a component of weight 0
_FINE = 1 << 32  # parts of a weight, where what has ended leaves its share to others

Stop = Literal["first", "all", "never"]


class MixParameters(Parameters):
    by: Any = function()
    stop: Stop


class MixedIterDataset(IterDataset[T]):
    """Elements of the parents in turn, as often as their weights say; with ``by``, whichever is furthest behind its weight.

    Order: that of ``MapDataset.mix``, until the parent whose turn it is has ended (see ``stop``). State: the parents' and the
    number of elements asked for; by name if the parents have names. With ``by``, schedules, or another ``stop``, also how many
    elements and how much of each there were, and the weights. Cost: about 0.1 µs per element in blocks; with ``by`` or another
    ``stop``, 2 µs.
    """

    _element_spec = spec_of_first_parent

    def __init__(self, datasets: Any, weights: Any = None, by: Any = "elements", stop: Stop = "first") -> None:
        names, datasets, weights = named(datasets, weights)
        super().__init__(as_datasets(datasets, MapDataset, IterDataset))
        if not self._parents:
            raise ValueError("datasets must not be empty: there is nothing to mix")
        check_stop(stop)
        if not callable(by) and (not isinstance(by, str) or by != "elements"):
            raise TypeError(f"by must be 'elements' or a function that gives the length of an element, got {shown(by)}")
        self._parameters = MixParameters(by, stop)
        self._names, self._by, self._stop = names, None if by == "elements" else by, stop
        self._plan = plan_for(names, weights, len(self._parents), exactly=self._by is not None)

    @property
    def _described_parameters(self) -> dict[str, Any]:
        return {_weights_name(self._plan): _weights_of(self._plan)}

    def __str__(self) -> str:
        weights = [*self._plan.proportions] if isinstance(self._plan, PatternPlan) else _weights_of(self._plan)
        text = f"MixedIterDataset([{len(self._parents)} parents], {_weights_name(self._plan)}={weights}"
        return f"{text}{''.join([f', {part}' for part in _manner(self._by, self._stop)])})"

    def _num_elements(self) -> Length:
        lengths = [num_elements(parent) for parent in self._parents]
        if self._stop != "first":
            return Infinite() if self._stop == "never" and self._plan.end is None else at_most(added(lengths))
        # It ends with the first component whose turn comes in vain, which depends on the pattern.
        total = at_most(added(lengths))
        is_endless = lengths == [Infinite()] * len(lengths)
        return total if is_endless or not isinstance(total, Infinite) else Unknown()

    def _traced(self, tracing: Tracing) -> Any:
        names: Sequence[Any] = range(len(self._parents)) if self._names is None else self._names
        twins = zip(names, self._parents, strict=True)
        parents = tuple([tracing.of(parent).map(with_component(name)) for name, parent in twins])
        by = self._by
        return tracing.over(self, _parents=parents, _by=by and (lambda x: by(x.value)))

    def __iter__(self) -> DatasetIterator[T]:
        return MixedDatasetIterator(self._parents, self._names, self._plan, self._by, self._stop)


def _weights_name(plan: Plan) -> str:
    return "proportions" if isinstance(plan, PatternPlan) else "weights"


def _weights_of(plan: Plan) -> Any:
    return plan.proportions if isinstance(plan, PatternPlan) else plan.described()


def _manner(by: Any, stop: str) -> list[str]:
    return [f"by={transform_name(by)}"] * (by is not None) + [f"stop={stop!r}"] * (stop != "first")


class MixedDatasetIterator(TurnsIterator[T]):
    _flow = "stateful"
    _is_expected = False  # the parents read ahead
    _was_asked = False
    _rate = 1.0  # the share of this mixture in all draws

    def __init__(self, datasets: Sequence[Any], names: list[str] | None, plan: Plan, by: Any, stop: Stop) -> None:
        with looking_once():
            super().__init__([iterate(ds) for ds in datasets])
        self._datasets = datasets
        self._names = names
        self._plan = plan
        self._by: Callable[[Any], Any] | None = by
        self._stop = stop
        self._follows = by is None and stop == "first"  # what is drawn, from the position
        self._is_plain = self._follows and isinstance(plan, PatternPlan)
        self._unweighed = {*range(len(datasets))}  # components without their share
        self._own = plan.described()
        self._left: tuple[Any, Plan, Sequence[int | None]] | None = None  # what is left of a plan when some have ended
        self._marks = []
        self._index = 0  # how often a parent was asked for an element
        self._has_ended = False
        self._pieces: tuple[Piece, ...] = ()
        self._again: tuple[Turns, Any] | None = None
        self._own_draws: Draws | None = None
        self._whole = plan.whole * _FINE if by is not None else 0
        self._tally = None if self._is_plain else self._nothing()  # ``None``: it follows from the index

    _placed_by = ("_index", "_has_ended", "_pieces", "_again", "_tally")

    def __str__(self) -> str:
        manner = "".join([f", {part}" for part in _manner(self._by, self._stop)])
        return (
            f"MixedDatasetIterator([{len(self._parents)} parents], {_weights_name(self._plan)}={_weights_of(self._plan)}{manner})"
        )

    @property
    def _described_parameters(self) -> dict[str, Any]:
        # Named components may come and go, and be weighed anew, between saving and restoring.
        described = {"proportions": None} if self._names else {_weights_name(self._plan): _weights_of(self._plan)}
        by = {} if self._by is None else {"by": "a length"}
        return {**described, **by, **({} if self._stop == "first" else {"stop": self._stop})}

    @property
    def _components(self) -> dict[str, DatasetIterator[Any]] | None:
        return None if self._names is None else dict(zip(self._names, self._parents, strict=True))

    def _take(self, n: int) -> list[Any]:
        if not self._is_expected:
            if n > 1 or self._was_asked:  # the first element is not to wait for all parents
                self._expect(self._rate, 0.0)
            self._was_asked = True
        taken: list[Any] = []
        while len(taken) < n and not self._has_ended:
            # What is read in vain when a parent has ended is no more than what was delivered before.
            taken += self._take_block(min(n - len(taken), max(_FIRST_BLOCK, self._index))) if self._follows else self._take_one()
        return taken

    def start_prefetch(self) -> None:
        if not self._is_expected:
            self._expect(self._rate, 0.0)
        super().start_prefetch()

    def _expect(self, rate: float, due: float | None) -> None:
        self._rate = rate
        if due is None:
            return
        self._is_expected = True
        weights = self._plan.weights(self._index)
        total = sum(weights)
        first = {} if self._plan.end is not None else _first_turns(self._plan, self._index)
        for component, (parent, weight) in enumerate(zip(self._parents, weights, strict=True)):
            if weight:
                self._unweighed.discard(component)
                parent._expect(rate * weight / total, due + first.get(component, total / weight) / rate)
            else:
                parent._expect(rate * _NEVER, None)

    def _take_block(self, n: int) -> list[Any]:
        (plan, places_of), start = self._current(), self._index
        stop = min([start + n, *[piece.stop for piece in self._pieces[:1]]])
        stop = stop if plan.end is None else min(stop, plan.end)
        if stop - start <= 1 or self._is_again or None in places_of:
            return self._take_one()
        shares, places = plan.select(range(start, stop))
        asked = [known(places_of[component]) for component, _ in shares]
        before = {component: marked(self._parents[component]) for component in asked}
        if None in before.values():
            return [x for _ in range(start, stop) for x in self._take_one()]
        self._move_from(before)
        found: list[Any] = []
        for component, (_, inner) in zip(asked, shares, strict=True):
            elements = self._pull(component, len(inner))
            if len(elements) < len(inner):  # then the parents are asked again, for what comes before that
                for moved, mark in before.items():
                    return_to(self._parents[moved], mark)
                return [x for _ in range(start, stop) for x in self._take_one()]
            found += elements
        if (draws := self._draws) is not None:
            components = [known(places_of[component]) for component, inner in shares for _ in inner]
            draws.note(start, [components[place] for place in places])
        self._index = stop
        if self._tally is not None:
            self._tally = self._tally.added({known(places_of[component]): len(inner) for component, inner in shares})
        return [found[place] for place in places]

    def _take_one(self) -> list[Any]:
        while not self._has_ended:
            component = self._next_component()
            if component is None:
                self._has_ended = True
                break
            self._moves([component])
            taken = self._pull(component, 1)
            if not taken:
                self._end(component)
            elif not self._pass(component, taken[0]):
                return taken
        return []

    def _end(self, component: int) -> None:
        """A component has no element left, and it is its turn."""
        if self._stop == "first":
            self._index += 1
            self._has_ended = True
            return
        assert self._tally is not None
        if self._stop == "all":
            self._tally = self._tally.ending(component)
            return
        if component in self._tally.ended:
            reason = f"an epoch of {self._parents[component]} has no elements, so beginning it anew would never end"
            raise told(ValueError(f"{self} cannot go on: {reason}"), self)
        tally = self._tally.begun_anew(component)
        self._open(component, tally.epochs[component])
        self._tally = tally

    def _open(self, component: int, epoch: int) -> None:
        parents = [*self._parents]
        parents[component].close()
        parents[component] = iterate(in_epoch(self._datasets[component], epoch))
        share_context(parents, self._ctx)
        if self._is_taken_again:
            are_taken_again(parents)
        self._parents = tuple(parents)
        self._unweighed.add(component)

    def _pull(self, component: int, n: int) -> list[Any]:
        if component in self._unweighed:
            self._unweighed.remove(component)
            weights = self._plan.weights(self._index)
            if weights[component]:
                self._parents[component]._expect(self._rate * weights[component] / sum(weights), None)
        try:
            return pull(self._parents[component], n)
        except Exception as error:
            add_before(error, f"It happened in the component with input_index={component} of {self}.")
            raise

    def get_state(self) -> Any:
        states: Any = [parent.get_state() for parent in self._parents]
        if self._names is not None:
            states = dict(zip(self._names, states, strict=True))
        state = {"parents": states, "index": self._index, "stop": self._has_ended}
        if self._names is not None and (self._is_taken_again or self._tally is not None):
            state[OWN] = self._own.copy()  # for a step that holds elements; Grain ignores the entry
        pieces = [[piece.stop, piece.plan.described()] for piece in self._pieces if piece.stop > self._index]
        if pieces:
            state[DRAWN] = pieces
        if pieces and (forgotten := self._forgotten()):
            state[FORGOTTEN] = forgotten
        if self._again is not None and self._is_again:
            state[TURNS] = copied(self._again[1])
        if self._tally is not None:
            state.update(self._tally.saved(self._plan.names))
        return state

    def _restore(self, state: Any) -> None:
        states = state_field(state, "parents", self)
        index = state_count(state, "index", self)
        has_ended = state_flag(state, "stop", self)
        pieces: tuple[Piece, ...] = ()
        if self._names is None:
            states = state_list(state, "parents", self, len(self._parents), "the number of datasets")
        else:
            states = _states_by_name(states, self._names, self)
            pieces = pieces_of(state, self._plan, self, follows=self._follows)
        turns = None if self._names is None else turns_in(state, self._names, self)
        again = None if turns is None else (turns, copied(state[TURNS]))
        tally = self._tally_in(state, index)
        self._moves(range(len(self._parents)))
        for component, epoch in enumerate((tally or self._nothing()).epochs):
            if epoch or (self._tally is not None and (self._tally.epochs[component] or not self._is_consistent)):
                self._open(component, epoch)
        for i, (parent, parent_state) in enumerate(zip(self._parents, states, strict=True)):
            parent.set_state(iterate(self._datasets[i]).get_state() if parent_state is _NEW else parent_state)
        self._index, self._has_ended, self._pieces, self._again, self._tally = index, has_ended, pieces, again, tally
        self._is_expected = self._was_asked = False
        if (draws := self._draws) is not None:
            draws.go_to(index)

    def _get_next_index(self) -> int:
        self._check_index()
        return self._index - self._has_ended  # the last one was asked for in vain

    def _set_next_index(self, index: int) -> None:
        self._check_index()
        nums = self._plan.counts(index)
        self._moves(range(len(self._parents)))
        for parent, num in zip(self._parents, nums, strict=True):
            move_to_index(parent, num)
        self._index, self._has_ended, self._pieces, self._again = index, False, (), None
        self._tally = None if self._is_plain else self._nothing().added(dict(enumerate(nums)))
        self._is_expected = self._was_asked = False
        if (draws := self._draws) is not None:
            draws.go_to(index)

    def _check_index(self) -> None:
        check_no_gaps(self)
        if not self._follows or self._pieces:
            raise NotImplementedError(f"{self} has no index for its elements: what it draws does not follow from their number")

    def _skip(self) -> None:
        component = self._next_component()
        self._moves([] if component is None else [component])
        if component is None or not skip_one(self._parents[component]):
            self._has_ended = True
        else:
            if (draws := self._draws) is not None:
                draws.note(self._index, [~component])
            if self._tally is not None:
                self._tally = self._tally.added({component: 1}, None if self._by is None else 0)
        self._index += 1


def _first_turns(plan: Plan, start: int) -> dict[int, float]:
    """How many draws come before the first one of each component, as far as it comes soon."""
    shares, places = plan.select(range(start, start + 2 * len(plan.names)))
    found = [component for component, inner in shares for _ in inner]
    first: dict[int, float] = {}
    for i, place in enumerate(places):
        first.setdefault(found[place], i)
    return first


def _states_by_name(states: Any, names: Sequence[str], owner: object) -> list[Any]:
    """The states of the components, ``_NEW`` for those that are new."""
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
    return [by_name.get(name, _NEW) for name in names]
