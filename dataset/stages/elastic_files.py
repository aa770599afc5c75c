"""The share of one shard in an interleave of datasets, whose states can be shared out anew."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.sharding import ShardOptions
from gristmill.core.state import shown, state_count, state_field
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.bases.node import ancestors, only_parent
from gristmill.dataset.bases.parameters import parameters_of
from gristmill.dataset.bases.passing import PassingIterator
from gristmill.dataset.engine.iterators import adds_no_state
from gristmill.dataset.slicing import slice_pipeline
from gristmill.dataset.stages.interleave import InterleaveDatasetIterator, InterleaveIterDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchDatasetIterator
from gristmill.dataset.states.values import CycleState, states_by_index


class FilesIterator(PassingIterator[Any]):
    """The share of one shard in an interleave of datasets."""

    _flow = "stateful"

    def __init__(self, ds: IterDataset[Any], batch_size: int, shard: ShardOptions) -> None:
        interleave = _interleave_of(ds)
        share = slice_pipeline(ds, shard.shard_index, shard.shard_count)
        super().__init__(iterate(share.batch(batch_size) if batch_size else share))
        self._share, self._batch_size = share, batch_size
        self._num_datasets = len(interleave._datasets)
        self._wanted_cycle_length = parameters_of(interleave).cycle_length
        self._shard = shard

    def make_batches_with(self, batch_fn: Any) -> None:
        """Lets ``batch_fn`` make the batches, from the first one on."""
        if self._batch_size:
            super().__init__(iterate(self._share.batch(self._batch_size, batch_fn=batch_fn)))

    def __str__(self) -> str:
        return f"ElasticIterator(shard_options={self._shard})"

    def _take(self, n: int) -> list[Any]:
        return self._source._take(n)

    def get_state(self) -> Any:
        return self._state(self._source.get_state())

    def _state(self, parent: Any) -> Any:
        return {"shard_index": self._shard.shard_index, "shard_count": self._shard.shard_count, "parent": parent}

    def _restore(self, state: Any) -> None:
        shard = state_count(state, "shard_index", self), state_count(state, "shard_count", self)
        if shard != (self._shard.shard_index, self._shard.shard_count):
            if shard != (0, 1):
                raise StateMismatchError(
                    f"the state of {self} must be of the same shard, got one of shard {shard[0]} of {shard[1]}. A checkpoint "
                    "with the files of all shards restores in another number of them; otherwise see get_shard_states()"
                )
            state = self._merged_state([state])  # of all shards there were
        self._source.set_state(state_field(state, "parent", self))

    def _members(self, shard_index: int, shard_count: int) -> range:
        """The numbers of a shard's datasets."""
        return range(shard_index, self._num_datasets, shard_count)

    def _cycle_length(self, members: range) -> int:
        return min(self._wanted_cycle_length, len(members))

    def get_shard_states(self) -> dict[int, Any]:
        return self._states_in(self.get_state())

    def _states_in(self, state: Any) -> dict[int, Any]:
        """The states of datasets in the state of any shard."""
        count = state_count(state, "shard_count", self)
        members = self._members(state_count(state, "shard_index", self), max(1, count))
        cycle = CycleState.parse(state_field(state, "parent", self), self, self._cycle_length(members), "the cycle length")
        if cycle.num_opened > len(members):
            raise StateMismatchError(
                f"next_index_in_datasets must be at most {len(members)}, the number of datasets of the shard, "
                f"got {cycle.num_opened}"
            )
        return dict(zip(members, cycle.of_datasets(len(members)), strict=True))

    def state_from(self, states: Mapping[Any, Any]) -> Any:
        """The state of this shard made of those of all datasets."""
        by_number = states_by_index(states, f"the states of datasets for {self}")
        members = self._members(self._shard.shard_index, self._shard.shard_count)
        missing = [number for number in members if number not in by_number]
        if missing:
            raise StateMismatchError(
                f"the states of the datasets {shown(missing)} of {self} are missing: join those of all shards. Got those of "
                f"{shown(sorted(by_number))}"
            )
        future_states = {}
        for i, number in enumerate(members):
            ended = state_count(by_number[number], "exhausted", f"dataset {number}")
            state = state_field(by_number[number], "state", f"dataset {number}")
            if ended or state is not None:
                future_states[i] = state
        num_slots = self._cycle_length(members)
        return self._state(CycleState(0, 0, [0] * num_slots, [None] * num_slots, [0] * num_slots, future_states).as_state())

    def _merged_state(self, states: Any) -> Any:
        if isinstance(states, Mapping):
            return self.state_from(states)
        shards = [(state_count(state, "shard_index", self), state_count(state, "shard_count", self)) for state in states]
        if sorted(shards) != [(i, len(states)) for i in range(len(states))]:
            raise StateMismatchError(
                f"all shards must be there once when their number changes, for {self}; got (shard_index, shard_count) "
                f"{shown(shards)}"
            )
        return self.state_from({number: x for state in states for number, x in self._states_in(state).items()})


def _interleave_of(ds: IterDataset[Any]) -> InterleaveIterDataset[Any]:
    """The interleave at the beginning of ``ds``, behind which there must be no other state."""
    it = iterate(ds)
    while not isinstance(it, InterleaveDatasetIterator):
        if not (isinstance(it, PassingIterator | ThreadPrefetchDatasetIterator) or adds_no_state(it)):
            raise ValueError(
                "ds must be a MapDataset, or an InterleaveIterDataset and what has no state of its own after it (map, filter, "
                f"batch): the state of {it} cannot be divided among another number of shards. Put that step into the datasets "
                "that are interleaved, or after the ElasticIterator"
            )
        it = only_parent(it)
    return next(node for node in ancestors(ds) if isinstance(node, InterleaveIterDataset))
