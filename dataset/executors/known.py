"""The states of shards as this process knows them, for all executors."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import Any

from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.iterator import DatasetIterator, iterate, snapshot
from gristmill.dataset.bases.length import Exact, num_elements
from gristmill.dataset.bases.node import ancestors, changes_in_lanes
from gristmill.dataset.bases.observing import opens_pipelines
from gristmill.dataset.engine.choices import Records
from gristmill.dataset.engine.iterators import is_of_streams, stream_of
from gristmill.dataset.engine.recording import state_in
from gristmill.dataset.executors.protocol import open_shards
from gristmill.dataset.states.shards import indices_of_shards, uneven
from gristmill.dataset.states.values import copied, is_same
from gristmill.dataset.workers.task import PipelineTask


class KnownShards:
    """Looks at states with iterators of the shards, which compute nothing. They are made when they
    are needed first.

    Args:
        task: the pipeline and how it is divided.
        owner: the name of the stage, for errors.
        begins_as_a_whole: the state of a shard before its first element is that of the pipeline, as
            in Grain. That of the shard may differ: an interleave opens fewer datasets where it has
            fewer.
    """

    ctx: IteratorContext
    counts_faults = False  # states have counts of faults, or may have them
    begins_with_counts = False  # the first states of shards have counts, too
    key = ""  # of the stage of the shards, if their choices are recorded
    _opened: tuple[list[DatasetIterator[Any]], list[Any]] | None = None
    _beginnings: list[Any] | None = None

    def __init__(self, task: PipelineTask, owner: str, *, begins_as_a_whole: bool) -> None:
        self._task = task
        self._owner = owner
        self._begins_as_a_whole = begins_as_a_whole

    def use_key(self, key: str) -> None:
        if key != self.key:
            self.key, self._opened, self._beginnings = key, None, None  # their states contain keys

    @property
    def task(self) -> PipelineTask:
        """The task, with the options of the pipeline that it is part of."""
        return replace(self._task, options=self.ctx.options, key=self.key)

    def new(self) -> list[DatasetIterator[Any]]:
        """Return new iterators of all shards, without an observer."""
        iterators = open_shards(self.task, self.ctx)
        for it in iterators:
            it._gm_ctx.joined = None
        return iterators

    def opened(self) -> tuple[list[DatasetIterator[Any]], list[Any]]:
        """Return iterators of all shards, which may be anywhere, and their states at the
        beginning.
        """
        if self._opened is not None:
            return self._opened
        iterators = self.new()
        found = iterators, [copied(snapshot(it)) for it in iterators]
        # The first state of an interleave depends on which datasets can be opened at the time.
        if not any([opens_pipelines(stage) for it in iterators for stage in ancestors(it)]):
            self._opened = found
        return found

    def beginnings(self) -> list[Any]:
        """Return the states of the shards before their first elements."""
        if self._beginnings is None:
            task = self._task
            is_as_whole = self._begins_as_a_whole and not self.begins_with_counts
            if is_as_whole and not (task.by_lanes and changes_in_lanes(task.dataset)):
                self._beginnings = [snapshot(iterate(task.dataset))] * task.num_lanes
            else:
                self._beginnings = self.opened()[1]
        return self._beginnings

    def states(self, now: Sequence[Any]) -> list[Any]:
        """Return the states of parts of a position (see ``RoundRobin``)."""
        states = [
            None if not part else part[0] if len(part) == 1 else state_in(part[0][part[1]])
            for part in now
        ]
        if () in now:
            states = [
                x if part != () else self.beginnings()[i]
                for i, (x, part) in enumerate(zip(states, now, strict=True))
            ]
        return states

    def unused(self, states: Sequence[Any]) -> set[int]:
        """Return the shards whose state is that of a new iterator of the shard, or of the whole
        pipeline.
        """
        it = iterate(self._task.dataset)
        whole = snapshot(it)
        if any([getattr(x, "could_not_open", False) for x in ancestors(it)]):
            # the state lacks a dataset, which may open now
            whole = snapshot(iterate(self._task.dataset))
        pairs = enumerate(zip(states, self.opened()[1], strict=True))
        return {
            i
            for i, (x, first) in pairs
            if x is not None and (is_same(x, whole) or is_same(x, first))
        }

    def checked(self, states: list[Any], unused: Collection[int]) -> list[Any]:
        """Return states, with the counts of faults that are theirs.

        A user's ``set_state`` may take long or have effects, so it is not called.

        Args:
            states: by shard; ``None`` if there is no such shard.
            unused: shards that are at the beginning.

        Raises:
            StateMismatchError: one is not the state of its shard.
        """
        found = [*states]
        for i, (it, state) in enumerate(zip(self.opened()[0], states, strict=True)):
            if state is not None and i not in unused and is_of_streams(it):
                it.set_state(state)
                if self.counts_faults:
                    found[i] = snapshot(it)
        return found

    def next_epoch(self, now: Sequence[Any], records: Records) -> list[Any]:
        """Return the parts before the first elements, with the totals of faults in ``now``; see
        ``Stream.next_epoch``.
        """
        found: list[Any] = []
        for it, part, state in zip(self.opened()[0], now, self.states(now), strict=True):
            if state is None or part == () or not is_of_streams(it):
                found.append(())
                continue
            stream = stream_of(it)
            found.append(([stream.save(stream.next_epoch(stream.load(state), records))], 0))
        return found

    def index_of(self, now: Sequence[Any]) -> int:
        """Return how many elements come before a position, if that follows from it."""
        iterators, count = self.new(), self._task.num_lanes
        for it, part, state in zip(iterators, now, self.states(now), strict=True):
            if state is not None and len(part) > 1:
                it.set_state(state)
        indices = [it._get_next_index() for it in iterators]
        index = sum(indices)
        if count > 1 and (
            indices != indices_of_shards(index, count)
            or any([it._gm_has_gaps() for it in iterators])
        ):
            raise uneven(self._owner, count)
        return index

    def states_at(self, index: int) -> list[Any]:
        """Return the states after the first ``index`` elements, if they follow from that."""
        iterators, count = self.new(), self._task.num_lanes
        if count > 1 and any([it._gm_has_gaps() for it in iterators]):
            raise uneven(self._owner, count)
        try:
            for it, own_index in zip(iterators, indices_of_shards(index, count), strict=True):
                it._set_next_index(own_index)
        except IndexError:
            lengths = [num_elements(self._task.share(i)) for i in range(count)]
            nums = [length.num for length in lengths if isinstance(length, Exact)]
            if len(nums) == count and nums != indices_of_shards(sum(nums), count):
                raise uneven(self._owner, count) from None
            raise
        return [it.get_state() for it in iterators]

    def have_gaps(self) -> bool:
        """Return true if there may be no element at some index."""
        return any([it._gm_has_gaps() for it in self.new()])
