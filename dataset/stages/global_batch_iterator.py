"""The iterator of ``global_batch``: it puts together what the lanes of a host give, and finds out where they end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from gristmill.core.errors import StateIndexError, StateMismatchError, as_int
from gristmill.dataset.bases.context import collected_options
from gristmill.dataset.bases.iterator import (
    BlockIterator,
    DatasetIterator,
    iterate,
    marked,
    return_to,
    skip_one,
    snapshot,
    state_at,
)
from gristmill.dataset.bases.length import Exact, Infinite
from gristmill.dataset.bases.next_index import move_to_index
from gristmill.dataset.bases.node import ancestors, tolerances
from gristmill.dataset.engine.round_robin import RoundRobinIterator
from gristmill.dataset.faults.lanes import LaneBudgets
from gristmill.dataset.lane_rows import Part, join_parts, part_of_lanes
from gristmill.dataset.stages.map import MapMapDataset
from gristmill.dataset.stages.map_with_index import MapWithIndexMapDataset
from gristmill.dataset.stages.random_map import RandomMapMapDataset
from gristmill.dataset.states.lanes import LanesState, Position, check_mixed_in_lanes, merge_states
from gristmill.dataset.states.values import CycleState
from gristmill.dataset.telling.failures import tell
from gristmill.dataset.watching import tell_of_faults, watch_if_tracked
from gristmill.transforms.batching import Allocate, BufferPool

if TYPE_CHECKING:
    from gristmill.dataset.stages.global_batch import GlobalBatchIterDataset, GlobalBatchParameters

T = TypeVar("T")

_ENDLESS = 2**63 - 1


class GlobalBatchDatasetIterator(BlockIterator[T]):
    """Steps of lanes, put together.

    The parent, which gives a part of every worker for each step, is after the last step that was delivered; or further, where
    hosts have to agree, and so many steps are in memory.
    """

    _flow = "stateful"
    _parameters: GlobalBatchParameters
    _is_restored = False

    def __init__(self, ds: GlobalBatchIterDataset[T], rows: DatasetIterator[Part], parameters: GlobalBatchParameters) -> None:
        super().__init__(rows)
        self._ds = ds
        self._source = rows
        self._parameters = parameters
        self._pads = parameters.end == "pad"
        self._is_agreed = parameters.agree is not None and not ds.is_computed
        self._num_parts = 1 if parameters.workers is None else max(1, parameters.workers.num_workers)
        self._allocate: Allocate = BufferPool()
        self._at = Position()
        self._ahead: tuple[tuple[list[Part], Any], ...] = ()  # steps that are not delivered, and the parent's states after them
        self._state: Any = None  # the parent's where this is; ``None``: it is there
        found = tolerances(ds)
        self._budgets = LaneBudgets(found, lambda: [self.get_state()], partial(tell_of_faults, self)) if found else None
        if isinstance(rows, RoundRobinIterator):
            rows.judge_by([])
        watch_if_tracked(self, collected_options(ds))

    @property
    def _described_upstream(self) -> Sequence[Any]:
        return [iterate(parent) for parent in self._ds.parents]

    def _take(self, n: int) -> list[Any]:
        batches: list[Any] = []
        while len(batches) < n and (parts := self._next_parts()) is not None:
            try:
                batches.append(self._batch(parts))
            except Exception as error:
                tell(error, self)
                raise
            self._pass_step()
            if self._budgets is not None and (excess := self._budgets.judge([(0, [], self.get_state)])) is not None:
                raise excess
        return batches

    def _next_parts(self) -> list[Part] | None:
        """What the parent gives for the next step; ``None`` at the end. It is delivered when ``_pass_step`` is called."""
        if self._at.step == self._at.horizon and not self._at.is_last:
            self._extend()
        if self._at.step == self._at.horizon:
            return None
        if self._ahead:
            return self._ahead[0][0]
        parts = self._taken()
        self._check(parts)
        return parts

    def _taken(self) -> list[Part]:
        """The next parts of all workers; if it raises, these are where they were."""
        return self._source._take(self._num_parts)

    def _pass_step(self) -> None:
        self._state, self._ahead = (self._ahead[0][1], self._ahead[1:]) if self._ahead else (None, ())
        self._at = self._at.replaced(step=self._at.step + 1, rows=self._at.rows + self._parameters.rows_per_lane)

    def _extend(self) -> None:
        """Finds out how many steps certainly follow."""
        at = self._at
        if self._ds.is_computed:
            length = self._ds.num_steps_after(at.rows)
            horizon = at.step + length.num if isinstance(length, Exact) else _ENDLESS
            self._at = at.replaced(horizon=horizon, is_last=True)
        elif self._is_agreed:
            self._agree()
        else:
            parts = self._step()
            self._ahead = () if parts is None else ((parts, None),)
            self._at = at.replaced(horizon=at.step + len(self._ahead), is_last=parts is None)

    def _step(self) -> list[Part] | None:
        """A step of the parent, taken ahead; ``None`` if its lanes cannot fill one: then the parent is where it was."""
        before = marked(self._source)
        parts = self._taken()
        if max(map(max, _counts(parts))) > 0 if self._pads else self._is_whole(parts):
            return parts
        return_to(self._source, before)
        return None

    def _is_whole(self, parts: list[Part]) -> bool:
        return min(map(min, _counts(parts))) == self._parameters.rows_per_lane

    def _agree(self) -> None:
        """Takes steps ahead and asks all hosts how many they have."""
        every, agree = self._parameters.agree_every, self._parameters.agree
        self._state = snapshot(self._source)
        ahead: list[tuple[list[Part], Any]] = []
        failed: Any = None  # where a step fails: it is counted, and tried again in its turn
        num = 0
        while num < every:
            before = marked(self._source)
            try:
                parts = self._step()
            except Exception:
                return_to(self._source, before)
                failed = snapshot(self._source) if failed is None else failed
                self._skip_parts()
            else:
                if parts is None:
                    break
                if failed is None:
                    ahead.append((parts, snapshot(self._source)))
            num += 1
        if failed is not None:
            self._source.set_state(failed)
        agreed = as_int("the number that agree returns", agree(num, largest=True) if self._pads else agree(num), minimum=0)
        if not (num <= agreed <= every if self._pads else agreed <= num):
            raise ValueError(
                f"agree must return the {'largest' if self._pads else 'smallest'} of the numbers of all hosts, got {agreed}: "
                f"this host has {num}, of {every} asked for"
            )
        self._ahead = tuple(ahead[:agreed])
        self._at = self._at.replaced(horizon=self._at.step + agreed, is_last=agreed < every)

    def _check(self, parts: list[Part]) -> None:
        """Raises if a lane has fewer elements than it was said to have."""
        size, at = self._parameters.rows_per_lane, self._at
        lanes = zip(self._parameters.lanes, [num for counts in _counts(parts) for num in counts], strict=True)
        if self._pads and not self._ds.is_computed:
            return  # hosts have agreed on the greatest number of steps
        for lane, num in lanes:
            length = self._ds.lane_lengths[lane]
            expected = min(size, max(0, length.num - at.rows)) if self._pads and isinstance(length, Exact) else size
            if max(0, num) < expected:
                kind = StateMismatchError if self._is_restored else ValueError
                raise kind(
                    f"lane {lane} of {self} ends after {at.rows + max(0, num)} elements, where its length, or what hosts have "
                    f"agreed on, says {at.rows + expected}: {_leaving_out(self._ds)} gives None for some elements, or ends "
                    f"before its length says{', or the state is of other data' if self._is_restored else ''}. Leave elements out "
                    "with filter, which lengths know of"
                )

    def _batch(self, parts: list[Part]) -> Any:
        size, batch_fn = self._parameters.rows_per_lane, self._parameters.batch_fn
        stacks = batch_fn is None
        rows = join_parts(parts, size, stacks=stacks, allocate=self._allocate, unknown_row=self._ds.zero_row)
        batch = rows if stacks else batch_fn(rows)
        if not self._pads:
            return batch
        counts = np.array([num for counts in _counts(parts) for num in counts])
        return batch, (np.arange(size) < counts[:, None]).ravel()

    def get_state(self) -> Any:
        return self._saved(self._source.get_state() if self._state is None else self._state, self._at)

    def _state_at(self, mark: Any) -> Any:
        place, at, _, state = mark
        return self._saved(state_at(self._source, place) if state is None else state, at)

    def _saved(self, state: Any, at: Position) -> Any:
        lanes = {int(number): x for part in self._states_of_parts(state) for number, x in part["lanes"].items()}
        parameters = self._parameters
        given = parameters.num_lanes, parameters.batch_size, at, self._is_agreed, self._ds.mixes_in_lanes
        return LanesState(*given, lanes).as_state()

    @property
    def _has_workers(self) -> bool:
        return isinstance(self._source, RoundRobinIterator)

    def _states_of_parts(self, state: Any) -> Any:
        return state["iterators_in_use_states"] if self._has_workers else [state]

    def _restore(self, state: Any) -> None:
        parameters, num = self._parameters, self._num_parts
        parsed = LanesState.parse(state, self)
        if parsed.num_lanes != parameters.num_lanes:
            raise StateMismatchError(
                f"the state was taken with num_lanes={parsed.num_lanes}, {self} has {parameters.num_lanes}: it must be the same "
                "when a state is restored, with any batch_size that it divides, and any number of hosts that divides it"
            )
        check_mixed_in_lanes(state, self._ds.mixes_in_lanes, parsed.num_lanes, self)
        found = parsed.of_lanes(parameters.lanes, self)
        of_parts = [{str(i): found[i] for i in part_of_lanes(parameters.lanes, index, num)} for index in range(num)]
        states = [{"lanes": lanes} for lanes in of_parts]
        cycle = CycleState(0, num, list(range(num)), states, [0] * num)
        self._source.set_state(cycle.as_state() if self._has_workers else states[0])
        is_as_agreed = self._is_agreed and parsed.is_agreed and parsed.batch_size == parameters.batch_size
        at = parsed.position
        self._at = at if is_as_agreed else at.replaced(horizon=at.step, is_last=False)
        self._ahead, self._state, self._is_restored = (), None, True
        self._judge_anew()

    def _judge_anew(self) -> None:
        if self._budgets is not None:
            self._budgets.restart()

    def _get_next_index(self) -> int:
        return self._at.step

    def _set_next_index(self, index: int) -> None:
        length = self._ds.num_steps_after(0)
        if not isinstance(length, Exact | Infinite):
            raise NotImplementedError(
                f"{self} has no index for its outputs: how many elements its lanes have is not known before"
            )
        if isinstance(length, Exact) and index > length.num:
            raise StateIndexError(f"the index of the next output of {self} must be in [0, {length.num}], got {index}")
        rows = index * self._parameters.rows_per_lane
        move_to_index(self._source, index * self._num_parts)
        self._at, self._ahead, self._state = Position(index, rows, index), (), None

    def _merged_state(self, states: Any) -> Any:
        if isinstance(states, Mapping):
            raise StateMismatchError(f"the files shard_state_*.json are not those of {self}")
        return merge_states(states)

    def _mark(self) -> Any:
        return marked(self._source), self._at, self._ahead, self._state

    def _return_to(self, mark: Any) -> None:
        place, self._at, self._ahead, self._state = mark
        return_to(self._source, place)
        self._judge_anew()

    def _skip(self) -> None:
        at = self._at
        if at.step == at.horizon and not at.is_last:
            before = marked(self)
            try:
                self._extend()
            except Exception:
                if self._is_agreed:
                    raise
                return_to(self, before)
                self._at = at.replaced(horizon=at.step + 1)
        if self._at.step == self._at.horizon:
            return
        if not self._ahead:
            self._skip_parts()
        self._pass_step()
        if self._budgets is not None:
            self._budgets.pass_skipped()

    def _skip_parts(self) -> None:
        for _ in range(self._num_parts):
            skip_one(self._source)

    def _allocate_with(self, allocate: Allocate) -> None:
        self._allocate = allocate
        self._source._allocate_with(allocate)


def _counts(parts: list[Part]) -> list[tuple[int, ...]]:
    return [counts for _, counts in parts]


def _leaving_out(ds: GlobalBatchIterDataset[Any]) -> str:
    """The stages that may leave out elements although lengths count them, in words."""
    functions = (MapMapDataset, RandomMapMapDataset, MapWithIndexMapDataset)
    found = [node for node in ancestors(ds) if isinstance(node, functions)] or [x for x in ancestors(ds) if not x.parents]
    return " or ".join(map(str, found[:3]))
