"""Iterating over shards of a pipeline that are computed elsewhere, one element of each in turn.

Guarantees, besides those of ``cycle``:

1. A shard that has ended is passed over.
2. The state has the state of every shard after its last delivered element.
3. An error of a shard comes again at every ``next`` until the state is set. Going back to where this is already is not that.
4. After a fork, what had been fetched and not delivered is computed again in the new process.
5. A state of ``mp_prefetch`` in Grain before 0.2.16 counts elements that were delivered since its shards' states. They are
   computed again and passed over when this is first asked for an element or its state, which then has the form of today.
"""

from __future__ import annotations

import abc
import os
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import state_count
from gristmill.dataset.bases.context import collected_options
from gristmill.dataset.bases.cycle import After, CycleIterator, Failure, Member
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, are_taken_again, is_of_blocks, iterate, snapshot
from gristmill.dataset.bases.length import Exact, num_elements
from gristmill.dataset.bases.next_index import may_have_gaps, move_to_index, next_index_of
from gristmill.dataset.bases.node import ancestors, changes_in_lanes, mixes_in_lanes, tolerances
from gristmill.dataset.bases.observing import WorkAhead
from gristmill.dataset.states.lanes import check_mixed_in_lanes, mixed_in_lanes
from gristmill.dataset.states.old import (
    is_old_workers_state,
    old_workers_state,
    parse_old_workers_state,
    refuse_old_interleave,
)
from gristmill.dataset.states.values import CycleState, copied, given, is_same
from gristmill.dataset.watching import watch_if_tracked

T = TypeVar("T")

_BEGINNING: After = ((None,), 0)  # where a shard is that has not delivered anything


class Shard(Member, abc.ABC):
    """Computes one share of the elements, ahead of whoever fetches them.

    A failure is made for each ``raise``: an error that was raised refers to the frames it came through, the iterator's and the
    user's, and would keep alive all that is in them.
    """

    @abc.abstractmethod
    def start(self, state: Any) -> None:
        """Begins to compute from ``state`` on (``None``: the beginning), without waiting."""

    @abc.abstractmethod
    def fetch(self, num: int) -> None:
        """Waits until the next element is ready, or its failure, or the end is there, where ``num`` are wanted of all shards."""

    @abc.abstractmethod
    def skip(self, state: Any) -> Any:
        """Continues from ``state``, but past the next element, whether or not it fails; returns the state then.

        ``None`` if what failed was no element, so that there is none to leave out: it goes on with the next one.
        """


class RoundRobinIterator(CycleIterator[T, Shard]):
    """The elements of the shares of ``ds`` in turn, each computed by a shard."""

    _stage_name: ClassVar = "RoundRobinIterator"  # threads and processes read each other's checkpoints
    _work_category = "prefetch"
    _closes_anytime = True
    # As in Grain, the state of a worker before its first element is that of the whole pipeline. That of
    # its share may differ: an interleave opens fewer datasets where the share has fewer.
    _begins_as_a_whole: ClassVar = False
    is_one_stream = False  # whether the shards' elements in turn are those of one stream, which the first end is the end of

    def __init__(self, ds: IterDataset[T], count: int, *, sequential_slice: bool, by_lanes: bool = False) -> None:
        super().__init__(count, count)
        self._ctx.options = collected_options(ds)  # they hold after this stage, too
        self._ds, self._count = ds, count
        self._sequential_slice, self._by_lanes = sequential_slice, by_lanes
        self._is_mixed = by_lanes and count > 1 and not sequential_slice and mixes_in_lanes(ds)
        self._num_opened, self._indices, self._after[:] = count, tuple(range(count)), [_BEGINNING] * count
        self._initial_states: list[Any] | None = None
        self._process_id = 0
        self.judge_by(tolerances(ds))
        watch_if_tracked(self, self._ctx.options)

    @abc.abstractmethod
    def _open(self) -> Sequence[Shard]:
        """The shards, new ones or those that were used before."""

    @abc.abstractmethod
    def _share(self, index: int) -> IterDataset[T]:
        """The part of the pipeline that shard ``index`` computes."""

    def _beginnings(self) -> list[Any]:
        """Return the states of the shards before their first elements."""
        if self._begins_as_a_whole and not self._counts_faults and not (self._by_lanes and changes_in_lanes(self._ds)):
            return [snapshot(iterate(self._ds))] * self._count
        return [snapshot(it) for it in self._share_iterators()]

    @property
    def _described_parameters(self) -> dict[str, Any]:
        return {"num_shards": self._count}

    @property
    def _draws_from(self) -> Sequence[Any]:
        return (self._ds,)

    @property
    def _described_upstream(self) -> Sequence[Any]:
        return (iterate(self._ds),)

    @property
    def _work_options(self) -> Sequence[Any]:
        return [options for node in ancestors(self._ds) for options in node._work_options]

    def _work_ahead(self) -> WorkAhead:
        return WorkAhead(True, None, self.num_ready)

    def _share_iterators(self) -> list[DatasetIterator[Any]]:
        """New iterators of all shards in this process. No element is computed."""
        ctx = self._ctx
        own = ctx.numbers  # this may itself be the share of a worker
        iterators = [iterate(share) for share in [self._share(i) for i in range(self._count)]]
        if self._is_taken_again:
            are_taken_again(iterators)
        for i, it in enumerate(iterators):
            it._ctx.belong_to(own.index + i * own.count, self._count * own.count, ctx)
        return iterators

    def _drop_delivered(self) -> None:
        try:
            failure = self._drop()
        except BaseException:
            self._forget()
            raise
        if failure is not None:
            raise failure()

    def _drop(self) -> Failure | None:
        while self._undropped:
            for i, (after, num) in self._undropped.items():  # of each in turn, so that all compute meanwhile
                shard = self._members.get(i)
                if not num:
                    self._after[i] = after
                    self._undropped = {j: left for j, left in self._undropped.items() if j != i}
                elif shard is None or not (shard.ready or shard.failure or shard.has_ended):
                    self._fetch(i, 1)
                elif shard.ready:
                    _, states, which = shard.ready.popleft()
                    self._undropped = {**self._undropped, i: ((states, which), num - 1)}
                elif shard.failure is not None:
                    return shard.failure
                else:
                    reason = f"iterations_to_skip of worker {i} is larger by {num} than the number of its elements that"
                    return partial(StateMismatchError, f"{reason} follow its state: the state was taken with other data")
        return None

    def _end(self, slot: int) -> None:
        super()._end(slot)
        if self.is_one_stream:
            self._ended = frozenset(self._indices)
            for member in self._members.values():
                member.ready.clear()

    def _leave_vacant(self, slot: int) -> None:
        self._say_exhausted(slot, 1)
        super()._leave_vacant(slot)

    def _fetch(self, slot: int, num: int) -> None:
        shard = self._members.get(slot)
        if shard is None or self._process_id != os.getpid():
            self._run()
            return
        shard.fetch(num)
        if self._closed:
            raise ValueError(f"{self} was closed while it waited for its next element")

    def _run(self) -> None:
        """Makes the shards compute from where this iterator is."""
        if self._closed:
            raise ValueError(f"{self} is closed")
        if any([after and after is not _BEGINNING and after[0][after[1]] is None for after in self._after]):
            raise _stateless(self)
        shards = self._open()
        turns = [(self._slot + i) % self._count for i in range(self._count)]
        self._start_all({shards[slot]: self._state_of(slot) for slot in turns if not self._is_vacant(slot)})
        self._members = dict(enumerate(shards))
        self._process_id = os.getpid()
        if self._closed:  # in the meantime
            raise ValueError(f"{self} is closed")

    def _start_all(self, states: dict[Shard, Any]) -> None:
        """Makes shards compute from these states on. Their turns come in this order."""
        for shard, state in states.items():
            shard.start(state)

    def start_prefetch(self) -> None:
        if not (self._members or self._closed or all(map(self._is_vacant, range(self._count)))):
            self._run()

    def _state_of(self, slot: int) -> Any:
        after = self._undropped[slot][0] if slot in self._undropped else self._after[slot]
        return None if after is None else after[0][after[1]]

    def get_state(self) -> Any:
        try:
            self._drop_delivered()
        except Exception:  # the following ``next`` raises it, too
            nums = [self._undropped[i][1] if i in self._undropped else 0 for i in range(self._count)]
            return copied(old_workers_state(self._slot, [self._state_of(i) for i in range(self._count)], nums))
        return mixed_in_lanes(self._cycle_state(self._states()).as_state(), self._is_mixed)

    def _states(self) -> list[Any]:
        """Where each shard is, ``None`` if that is at the end of what has no states.

        Raises:
            NotImplementedError: it is elsewhere.
        """
        if self._initial_states is None and any([after is _BEGINNING for after in self._after]):
            self._initial_states = self._beginnings()
            self._judge_anew()
        states = []
        for slot, after in enumerate(self._after):
            state = self._initial_states[slot] if after is _BEGINNING and self._initial_states else self._state_of(slot)
            if state is None and not self._is_vacant(slot):
                raise _stateless(self)
            states.append(state)
        return states

    def _mark(self) -> Any:
        self._states()  # raises if there is no way back
        return super()._mark()

    def _restore(self, state: Any) -> None:
        check_mixed_in_lanes(state, self._is_mixed, self._count, self)
        shares = self._share_iterators()
        if is_old_workers_state(state):
            cycle, nums = _parse_old(state, self, shares)
            if None in cycle.states:
                raise _stateless(self)
            unused = []
        else:
            cycle, nums = _parse(state, self, self._count), [0] * self._count
            unused = [] if self._counts_faults else _at_beginning(cycle.states, shares, self._ds)
        for i, (it, value) in enumerate(zip(shares, cycle.states, strict=True)):
            # A user's set_state may take long or have effects.
            if value is not None and i not in unused and is_of_blocks(it):
                it.set_state(value)
        if self._counts_faults:  # of which a text does not say whose they are
            cycle.states = [value if value is None else snapshot(it) for it, value in zip(shares, cycle.states, strict=True)]
        self._go_to(cycle)
        if unused:
            self._initial_states = cycle.states  # in the form in which they were given
        for i in unused:
            self._after[i] = _BEGINNING
        self._undropped = {i: (([cycle.states[i]], 0), num) for i, num in enumerate(nums) if num}
        self._judge_anew()

    def _has_gaps(self) -> bool:
        return any([may_have_gaps(it) for it in self._share_iterators()])

    def _get_next_index(self) -> int:
        self._drop_delivered()
        shares = self._share_iterators()
        for it, state, after in zip(shares, self._states(), self._after, strict=True):
            if state is not None and after is not _BEGINNING:
                it.set_state(state)
        indices = [next_index_of(it) for it in shares]
        if self._count == 1:
            return indices[0]
        index = sum(indices)
        if indices != self._indices_of_shares(index) or any([may_have_gaps(it) for it in shares]):
            raise _uneven(self, self._count)
        return index

    def _set_next_index(self, index: int) -> None:
        shares = self._share_iterators()
        if self._count > 1 and any([may_have_gaps(it) for it in shares]):
            raise _uneven(self, self._count)
        try:
            for it, own_index in zip(shares, self._indices_of_shares(index), strict=True):
                move_to_index(it, own_index)
        except IndexError:
            lengths = [num_elements(self._share(i)) for i in range(self._count)]
            nums = [length.num for length in lengths if isinstance(length, Exact)]
            if len(nums) == self._count and nums != self._indices_of_shares(sum(nums)):
                raise _uneven(self, self._count) from None
            raise
        states = [it.get_state() for it in shares]
        cycle = CycleState(index % self._count, self._count, list(range(self._count)), states, [0] * self._count)
        self._restore(mixed_in_lanes(cycle.as_state(), self._is_mixed))

    def _indices_of_shares(self, index: int) -> list[int]:
        """How many of the first ``index`` elements each share has, if all are of one length or the first ones longer by one."""
        return [-((i - index) // self._count) for i in range(self._count)]

    def _skip(self) -> None:
        try:
            self._drop_delivered()
            super()._skip()
        except BaseException:
            self._forget()
            raise

    def _skip_failed(self, slot: int) -> bool:
        shard = self._members[slot]
        state = shard.skip(self._state_of(slot))
        shard.failure = None
        if state is not None:
            self._after[slot] = [state], 0
        return state is not None


def _at_beginning(states: list[Any], shares: list[DatasetIterator[Any]], ds: IterDataset[Any]) -> list[int]:
    """Return the numbers of the shares that have not delivered an element.

    Their states are those of new iterators of the share, or of the whole pipeline ``ds``.
    """
    it = iterate(ds)
    whole = snapshot(it)
    if any([getattr(x, "could_not_open", False) for x in ancestors(it)]):
        whole = snapshot(iterate(ds))  # the state lacks a dataset, which may open now
    pairs = enumerate(zip(states, shares, strict=True))
    return [i for i, (x, it) in pairs if x is not None and (is_same(x, whole) or is_same(x, snapshot(it)))]


def _stateless(owner: object) -> NotImplementedError:
    return NotImplementedError(
        f"{owner} has no state to save or to continue from: the pipeline before it is iterated by plain Python iterators. "
        "Return a DatasetIterator from __iter__ to save its position"
    )


def _uneven(owner: object, num_shares: int) -> NotImplementedError:
    return NotImplementedError(
        f"{owner} has no index for its elements: its {num_shares} shares are not of one length, so that their positions do not "
        "follow from the number of elements that came before. Use get_state and set_state"
    )


def _parse_old(state: Any, owner: object, shares: Sequence[DatasetIterator[Any]]) -> tuple[CycleState, list[int]]:
    """Return the parts of a state of Grain before 0.2.16, and the later elements of each share.

    Raises:
        StateMismatchError: it cannot be one.
    """
    slot, values, nums = parse_old_workers_state(state, owner, len(shares))
    states = [snapshot(it) if value is None else given(value) for it, value in zip(shares, values, strict=True)]
    return CycleState(slot, len(shares), list(range(len(shares))), states, [0] * len(shares)), nums


def _parse(state: Any, owner: object, num_shards: int) -> CycleState:
    """The parts of a state of as many shards.

    Raises:
        StateMismatchError: it cannot be one.
    """
    refuse_old_interleave(state, owner)
    count = state_count(state, "next_index_in_datasets", owner)
    if count != num_shards:
        raise StateMismatchError(
            f"the state was taken with {count} workers (next_index_in_datasets), {owner} has {num_shards}: "
            "their number must be the same when a state is restored"
        )
    cycle = CycleState.parse(state, owner, count, "the number of workers")
    if cycle.indices != list(range(count)):
        raise StateMismatchError(
            f"iterators_in_use_indices in the state of {owner} must be {list(range(count))}, got {cycle.indices!r:.200}"
        )
    if cycle.future_states:
        raise StateMismatchError(f"future_states in the state of {owner} must be empty, got {state['future_states']!r:.200}")
    return cycle
