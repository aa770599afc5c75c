"""The share of one shard in an interleave of datasets, whose states can be shared out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.sharding import ShardOptions
from gristmill.core.state import shown, state_count, state_field
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.node import ancestors, only_parent
from gristmill.dataset.bases.parameters import parameters_of
from gristmill.dataset.engine.iterators import adds_no_state, stream_of
from gristmill.dataset.engine.stream import Cell, Pos, Stream, observed
from gristmill.dataset.slicing import slice_pipeline
from gristmill.dataset.stages.batch import BatchFn
from gristmill.dataset.stages.interleave import InterleaveDatasetIterator, InterleaveIterDataset
from gristmill.dataset.stages.thread_prefetch import ThreadPrefetchDatasetIterator
from gristmill.dataset.states.values import CycleState, states_by_index

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode


class ElasticFiles(Stream):
    """The share of one shard in an interleave of datasets. The position is that of its batches.

    Args:
        running: gives the elements, or batches, of the share.
        num_datasets: of all shards.
        cycle_length: of the interleave of all.
        shard: the shard.
    """

    name = "ElasticIterator"
    running: DatasetIterator[Any] | None

    def __init__(
        self,
        stage: DatasetNode,
        running: DatasetIterator[Any],
        num_datasets: int,
        cycle_length: int,
        shard: ShardOptions,
    ) -> None:
        super().__init__(stage, stream_of(running))
        self.running = running
        self._num_datasets, self._wanted_cycle_length = num_datasets, cycle_length
        self._shard = shard

    def run(self, cell: Cell) -> Iterator[Any]:
        run = self.parent.run(cell)
        return run if self.wrap is None else observed(run, self)

    def save(self, pos: Pos) -> Any:
        return self._state(self.parent.save(pos))

    def _state(self, parent: object) -> Any:
        return {
            "shard_index": self._shard.shard_index,
            "shard_count": self._shard.shard_count,
            "parent": parent,
        }

    def load(self, state: object) -> Pos:
        shard = state_count(state, "shard_index", self), state_count(state, "shard_count", self)
        if shard != (self._shard.shard_index, self._shard.shard_count):
            if shard != (0, 1):
                raise StateMismatchError(
                    f"the state of {self} must be of the same shard, got one of shard {shard[0]} of"
                    f" {shard[1]}. A checkpoint with the files of all shards restores in another"
                    " number of them; otherwise see get_shard_states()"
                )
            state = self.merge([state])  # of all shards there were
        return self.parent.load(state_field(state, "parent", self))

    def _members(self, shard_index: int, shard_count: int) -> range:
        """Return the numbers of a shard's datasets."""
        return range(shard_index, self._num_datasets, shard_count)

    def _cycle_length(self, members: range) -> int:
        return min(self._wanted_cycle_length, len(members))

    def states_in(self, state: object) -> dict[int, Any]:
        """Return the states of datasets in the state of any shard."""
        count = state_count(state, "shard_count", self)
        members = self._members(state_count(state, "shard_index", self), max(1, count))
        cycle = CycleState.parse(
            state_field(state, "parent", self),
            self,
            self._cycle_length(members),
            "the cycle length",
        )
        if cycle.num_opened > len(members):
            raise StateMismatchError(
                f"next_index_in_datasets must be at most {len(members)}, the number of datasets of"
                f" the shard, got {cycle.num_opened}"
            )
        return dict(zip(members, cycle.of_datasets(len(members)), strict=True))

    def state_from(self, states: Mapping[Any, Any]) -> Any:
        """Return the state of this shard, made of those of all datasets."""
        by_number = states_by_index(states, f"the states of datasets for {self}")
        members = self._members(self._shard.shard_index, self._shard.shard_count)
        missing = [number for number in members if number not in by_number]
        if missing:
            raise StateMismatchError(
                f"the states of the datasets {shown(missing)} of {self} are missing: join those of"
                f" all shards. Got those of {shown(sorted(by_number))}"
            )
        future_states = {}
        for i, number in enumerate(members):
            ended = state_count(by_number[number], "exhausted", f"dataset {number}")
            state = state_field(by_number[number], "state", f"dataset {number}")
            if ended or state is not None:
                future_states[i] = state
        num_slots = self._cycle_length(members)
        return self._state(
            CycleState(
                0, 0, [0] * num_slots, [None] * num_slots, [0] * num_slots, future_states
            ).as_state()
        )

    def merge(self, states: Any) -> Any:
        if isinstance(states, Mapping):
            return self.state_from(states)
        shards = [
            (state_count(state, "shard_index", self), state_count(state, "shard_count", self))
            for state in states
        ]
        if sorted(shards) != [(i, len(states)) for i in range(len(states))]:
            raise StateMismatchError(
                f"all shards must be there once when their number changes, for {self}; got"
                f" (shard_index, shard_count) {shown(shards)}"
            )
        return self.state_from(
            {number: x for state in states for number, x in self.states_in(state).items()}
        )

    def open_iterators(self) -> Sequence[DatasetIterator[Any]]:
        return () if self.running is None else (self.running,)

    def close(self) -> None:
        if self.running is not None:
            self.running.close()

    def drop(self) -> None:
        self.forget_run()
        self.running = None


def open_files(
    ds: IterDataset[Any], batch_size: int, shard: ShardOptions, batch_fn: BatchFn
) -> Callable[[Any], ElasticFiles]:
    """Return what makes the stream of the share of one shard."""
    interleave = _interleave_of(ds)
    share = slice_pipeline(ds, shard.shard_index, shard.shard_count)
    it = iterate(IterDataset.batch(share, batch_size, batch_fn=batch_fn) if batch_size else share)
    length = parameters_of(interleave).cycle_length
    return partial(
        ElasticFiles,
        running=it,
        num_datasets=len(interleave.datasets),
        cycle_length=length,
        shard=shard,
    )


def _interleave_of(ds: IterDataset[Any]) -> InterleaveIterDataset[Any]:
    """Return the interleave at the beginning of ``ds``, which has no other state downstream."""
    it = iterate(ds)
    while not isinstance(it, InterleaveDatasetIterator):
        if not (isinstance(it, ThreadPrefetchDatasetIterator) or adds_no_state(it)):
            raise ValueError(
                "ds must be a MapDataset, or an InterleaveIterDataset and what has no state of its"
                f" own after it (map, filter, batch): the state of {it} cannot be divided among"
                " another number of shards. Put that step into the datasets that are interleaved,"
                " or after the ElasticIterator"
            )
        it = only_parent(it)
    return next(node for node in ancestors(ds) if isinstance(node, InterleaveIterDataset))
