"""Iterating over shards of a pipeline that are computed elsewhere, one element of each in turn.

Guarantees:

1. The order is decided by the shards alone: shard ``c`` gives an element, then shard ``c + 1``; one that has ended is passed
   over. How fast they are does not matter.
2. The state counts what was delivered: a position in the cycle, and the state of every shard after its last delivered element.
3. An error of a shard comes in its turn, after the elements before it, and again at every ``next`` until the state is set.
   Going back to where this is already is not that.
4. An interrupt at any point leaves the iterator after its last delivered element; what had been fetched and not delivered is
   computed again. So does a fork, in the new process.
5. A state of ``mp_prefetch`` in Grain before 0.2.16 counts elements that were delivered since its shards' states. They are
   computed again and passed over when this is first asked for an element or its state, which then has the form of today.
"""

from __future__ import annotations

import abc
import os
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import state_count
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, is_of_blocks, iterate, snapshot
from gristmill.dataset.slicing import share_iterator, slice_pipeline
from gristmill.dataset.stages.options import collected_options
from gristmill.dataset.states.old import (
    is_old_workers_state,
    old_workers_state,
    parse_old_workers_state,
    refuse_old_interleave,
)
from gristmill.dataset.states.values import CycleState, Fetched, copied, given
from gristmill.dataset.watching import watch_if_tracked

T = TypeVar("T")

_NOTHING = ((None,), 0)  # the state of a shard that has nothing to run


class Shard(abc.ABC):
    """Computes one share of the elements, ahead of whoever fetches them."""

    @abc.abstractmethod
    def start(self, state: Any) -> None:
        """Begins to compute from ``state`` on (``None``: the beginning), without waiting."""

    @abc.abstractmethod
    def fetch(self) -> list[Fetched] | Callable[[], BaseException] | None:
        """Waits for the next elements, or what makes the error that the next one raises; ``None`` at the end."""

    @abc.abstractmethod
    def skip(self, state: Any) -> Any:
        """Continues from ``state``, but past the next element, whether or not it fails; returns the state then.

        ``None`` if what failed was no element, so that there is none to leave out: it goes on with the next one.
        """


class RoundRobinIterator(BlockIterator[T]):
    """The elements of the shares of ``ds`` in turn, each computed by a shard."""

    _parameters: ClassVar = {"num_shards": "_count"}
    _stage_name: ClassVar = "RoundRobinIterator"  # threads and processes read each other's checkpoints
    _flow = "stateful"
    _stays_on_error = True
    _closes_anytime = True

    def __init__(self, ds: IterDataset[T], count: int, *, sequential_slice: bool) -> None:
        super().__init__()
        self._ctx.options = collected_options(ds)  # they hold after this stage, too
        self._ds = ds
        self._count = count
        self._sequential_slice = sequential_slice
        self._next = 0  # the shard that gives the next element
        self._after: list[tuple[Sequence[Any], int] | None] = [None] * count  # where the state after its last element is
        self._exhausted = [0] * count  # as the state says it
        # Where a shard is, in place of ``_after``, and how many of its elements from there on an old state calls delivered.
        self._undropped: dict[int, tuple[tuple[Sequence[Any], int], int]] = {}
        self._initial_states: list[Any] | None = None
        # The rest describes running shards and is as it was computed, not as it was delivered.
        self._shards: Sequence[Shard] | None = None
        self._process_id = 0
        self._ready: list[deque[Fetched]] = [deque() for _ in range(count)]
        self._ended = [False] * count
        # Made for each ``raise``: an error that was raised refers to the frames it came through, this iterator's and the
        # user's, and would keep alive all that is in them.
        self._failed: list[Callable[[], BaseException] | None] = [None] * count
        watch_if_tracked(self, self._ctx.options)

    @abc.abstractmethod
    def _open(self) -> Sequence[Shard]:
        """The shards, new ones or those that were used before."""

    @abc.abstractmethod
    def _rest(self) -> None:
        """Called when all shards have ended: they may not be needed any more. May be called again."""

    @property
    def _upstream(self) -> Sequence[Any]:
        return (self._ds,)

    @property
    def _described_upstream(self) -> Sequence[Any]:
        return (iterate(self._ds),)

    def _share_iterators(self) -> list[DatasetIterator[Any]]:
        """New iterators of all shards in this process. No element is computed."""
        shares = [slice_pipeline(self._ds, i, self._count, sequential=self._sequential_slice) for i in range(self._count)]
        index, count = self._ctx.worker_index, self._ctx.worker_count  # this may itself be the share of a worker
        return [share_iterator(ds, self._ctx.options, index + i * count, self._count * count) for i, ds in enumerate(shares)]

    def _drop_delivered(self) -> None:
        """Passes over what an old state calls delivered."""
        if not self._undropped:
            return
        try:
            failure = self._drop()
        except BaseException:
            self._stop()
            raise
        if failure is not None:
            raise failure()

    def _drop(self) -> Callable[[], BaseException] | None:
        while self._undropped:
            for shard, (after, num) in [*self._undropped.items()]:  # of each in turn, so that all compute meanwhile
                if not num:
                    self._after[shard] = after
                    del self._undropped[shard]
                elif self._ready[shard]:
                    _, states, i = self._ready[shard].popleft()
                    self._undropped[shard] = (states, i), num - 1
                elif self._failed[shard] is not None:
                    return self._failed[shard]
                elif self._ended[shard]:
                    reason = f"iterations_to_skip of worker {shard} is larger by {num} than the number of its elements that"
                    return partial(StateMismatchError, f"{reason} follow its state: the state was taken with other data")
                else:
                    self._fetch(shard)
        return None

    def _take(self, n: int) -> list[Any]:
        self._drop_delivered()
        before = self._next, [*self._after], [*self._exhausted]
        taken: list[tuple[int, Fetched]] = []
        try:
            failure = self._collect(n, taken)
            if failure is not None:
                for shard, fetched in reversed(taken):
                    self._ready[shard].appendleft(fetched)
                self._next, self._after, self._exhausted = before
            elements = [fetched[0] for _, fetched in taken]
        except BaseException:
            self._next, self._after, self._exhausted = before
            self._stop()
            raise
        if failure is not None:
            raise failure()
        return elements

    def _collect(self, n: int, taken: list[tuple[int, Fetched]]) -> Any:
        """Takes elements until there are ``n``, or the end, or a failure, which is returned."""
        while len(taken) < n:
            shard = self._next
            if self._ready[shard]:
                fetched = self._ready[shard].popleft()
                taken.append((shard, fetched))
                self._after[shard] = fetched[1], fetched[2]
                self._exhausted[shard] = 0
                self._next = (shard + 1) % self._count
            elif self._failed[shard] is not None:
                return self._failed[shard]
            elif self._ended[shard]:
                if all(self._ended):
                    self._exhausted = [1] * self._count
                    self._rest()
                    break
                self._pass_over(shard)
            else:
                self._fetch(shard)
                if self._ended[shard]:
                    self._pass_over(shard)
        return None

    def _pass_over(self, shard: int) -> None:
        """Goes on to the next shard from one that has ended."""
        self._exhausted[shard] = 1
        self._next = (shard + 1) % self._count

    def _fetch(self, shard: int) -> None:
        """Gets something into one of the lists of ``shard``."""
        if self._shards is None or self._process_id != os.getpid():
            self._run()
            return
        fetched = self._shards[shard].fetch()
        if self._closed:
            raise ValueError(f"{self} was closed while it waited for its next element")
        if isinstance(fetched, list):
            self._ready[shard].extend(fetched)
        elif fetched is None:
            self._ended[shard] = True
        else:
            self._failed[shard] = fetched

    def _run(self) -> None:
        """Makes the shards compute from where this iterator is."""
        if self._closed:
            raise ValueError(f"{self} is closed")
        if any([after is not None and after is not _NOTHING and after[0][after[1]] is None for after in self._after]):
            raise self._stateless()
        self._reset()
        shards = self._open()
        for i, shard in enumerate(shards):
            if not self._ended[i]:
                shard.start(self._state_of(i))
        self._shards = shards
        self._process_id = os.getpid()
        if self._closed:  # in the meantime
            raise ValueError(f"{self} is closed")

    def _stop(self) -> None:
        """Forgets what was fetched, of which an interrupt may have lost a part: it is computed again."""
        self._shards = None
        self._reset()

    def _reset(self) -> None:
        for i in range(self._count):
            self._ready[i].clear()
            self._failed[i] = None
            self._ended[i] = self._after[i] is _NOTHING

    def start_prefetch(self) -> None:
        if self._shards is None and not self._closed and not all(self._ended):
            self._run()

    def _state_of(self, shard: int) -> Any:
        after = self._undropped[shard][0] if shard in self._undropped else self._after[shard]
        return None if after is None else after[0][after[1]]

    def get_state(self) -> Any:
        try:
            self._drop_delivered()
        except Exception:  # the following ``next`` raises it, too
            nums = [self._undropped[i][1] if i in self._undropped else 0 for i in range(self._count)]
            return copied(old_workers_state(self._next, [self._state_of(i) for i in range(self._count)], nums))
        if None in self._after and self._initial_states is None:
            self._initial_states = [snapshot(it) for it in self._share_iterators()]
        states = []
        for i, after in enumerate(self._after):
            state = self._initial_states[i] if after is None and self._initial_states else self._state_of(i)
            if state is None and not self._ended[i]:
                raise self._stateless()
            states.append(state)
        return CycleState(self._next, self._count, list(range(self._count)), states, self._exhausted).as_state()

    def _stateless(self) -> NotImplementedError:
        return NotImplementedError(
            f"{self} has no state to save or to continue from: the pipeline before it is iterated by plain Python iterators. "
            "Return a DatasetIterator from __iter__ to save its position"
        )

    def set_state(self, state: Any) -> None:
        if self._is_in_next:
            raise self._unusable()
        self._restore(state)
        self._failed_state = None

    def _restore(self, state: Any) -> None:
        shares, nums = self._share_iterators(), [0] * self._count
        if is_old_workers_state(state):
            slot, values, nums = parse_old_workers_state(state, self, self._count)
            values = [snapshot(it) if value is None else given(value) for it, value in zip(shares, values, strict=True)]
            if None in values:
                raise self._stateless()
            cycle = CycleState(slot, self._count, list(range(self._count)), values, [0] * self._count)
        else:
            cycle = self._parse(state)
        for it, value in zip(shares, cycle.states, strict=True):
            if value is not None and is_of_blocks(it):  # what users do with a state may take long or have effects
                it.set_state(value)
        self._next = cycle.slot
        self._after = [_NOTHING if value is None else ([value], 0) for value in cycle.states]
        self._undropped = {i: (([cycle.states[i]], 0), num) for i, num in enumerate(nums) if num}
        # Grain may say "exhausted" of a shard that is not: all are asked, and the flag stays until one gives an element.
        self._exhausted = cycle.exhausted
        self._stop()

    def _parse(self, state: Any) -> CycleState:
        refuse_old_interleave(state, self)
        count = state_count(state, "next_index_in_datasets", self)
        if count != self._count:
            raise StateMismatchError(
                f"the state was taken with {count} workers (next_index_in_datasets), {self} has {self._count}: "
                "their number must be the same when a state is restored"
            )
        cycle = CycleState.parse(state, self, count, "the number of workers")
        if cycle.indices != list(range(count)):
            raise StateMismatchError(
                f"iterators_in_use_indices in the state of {self} must be {list(range(count))}, got {cycle.indices!r:.200}"
            )
        if cycle.future_states:
            raise StateMismatchError(f"future_states in the state of {self} must be empty, got {state['future_states']!r:.200}")
        return cycle

    def _has_gaps(self) -> bool:
        return any([it._has_gaps() for it in self._share_iterators()])

    def _get_next_index(self) -> int:
        self._drop_delivered()
        shares = self._share_iterators()
        for it, state in zip(shares, self.get_state()["iterators_in_use_states"], strict=True):
            if state is not None:
                it.set_state(state)
        indices = [it._get_next_index() for it in shares]
        if self._count == 1:
            return indices[0]
        index = sum(indices)
        if indices != self._indices_of_shares(index) or any([it._has_gaps() for it in shares]):
            raise self._uneven()
        return index

    def _set_next_index(self, index: int) -> None:
        shares = self._share_iterators()
        if self._count > 1 and any([it._has_gaps() for it in shares]):
            raise self._uneven()
        for it, own_index in zip(shares, self._indices_of_shares(index), strict=True):
            it._set_next_index(own_index)
        states = [it.get_state() for it in shares]
        cycle = CycleState(index % self._count, self._count, list(range(self._count)), states, [0] * self._count)
        self._restore(cycle.as_state())

    def _indices_of_shares(self, index: int) -> list[int]:
        """How many of the first ``index`` elements each share has, if all are of one length or the first ones longer by one."""
        return [-((i - index) // self._count) for i in range(self._count)]

    def _uneven(self) -> NotImplementedError:
        return NotImplementedError(
            f"{self} has no index for its elements: its {self._count} shares are not of one length, so that where they are does "
            "not follow from how many elements came before. Use get_state and set_state"
        )

    def _skip(self) -> None:
        """Leaves out the next element, which may be one that fails."""
        try:
            self._skip_one()
        except BaseException:
            self._stop()
            raise

    def _skip_one(self) -> None:
        self._drop_delivered()
        while True:
            shard = self._next
            if self._failed[shard] is not None and self._shards is not None:
                state = self._shards[shard].skip(self._state_of(shard))
                self._failed[shard] = None
                if state is None:
                    return
                self._after[shard] = [state], 0
                self._next = (shard + 1) % self._count
                return
            if self._ready[shard]:
                self._take(1)
                return
            if self._ended[shard]:
                if all(self._ended):
                    return
                self._pass_over(shard)
            else:
                self._fetch(shard)
                if self._ended[shard]:
                    self._pass_over(shard)
