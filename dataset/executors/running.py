"""Shards that an executor computes from a position on."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from gristmill.core.errors import StateMismatchError
from gristmill.dataset.engine.choices import Records
from gristmill.dataset.engine.cycle import ENDED, parts
from gristmill.dataset.engine.recording import state_in, with_known
from gristmill.dataset.engine.stream import Pos, are_equal
from gristmill.dataset.executors.known import KnownShards
from gristmill.dataset.executors.protocol import Executor, Shard
from gristmill.dataset.states.shards import stateless

UNKNOWN: Any = object()


class RunningShards:
    """Holds what was received of shards, and the position after which that comes.

    Positions are those of ``RoundRobin``. Code that takes something out of a shard sets ``at`` to
    ``UNKNOWN`` before, and to the new position afterwards, so that an interrupt in between lets
    everything be computed again. So does every error of a method.

    Args:
        executor: computes the shards.
        known: says what they are.
    """

    at: Pos = UNKNOWN
    is_closed = False
    _awaited: int | None = None  # the shard that ``receive`` waits for
    # a position of an old state, and the one that follows from it
    _passed: tuple[Pos, Pos] | None = None
    _process_id = 0

    def __init__(self, executor: Executor, known: KnownShards) -> None:
        self.executor = executor
        self._known = known

    @property
    def shards(self) -> Sequence[Shard]:
        return self.executor.shards

    def go_to(self, pos: Pos, known: Records | None = None) -> Pos:
        """Let the shards be computed from ``pos`` on, unless they are; return where they are then.

        Args:
            pos: the position.
            known: choices that an earlier run made after ``pos``; by default those in ``pos``.
        """
        pos = self.resolved(pos)
        if known or not are_equal(self.at, pos):
            *found, slot, ended = pos
            self.start(parts(*found), slot, ended, known)
            self.at = pos
        return pos

    def start(
        self, now: Sequence[Pos], slot: int, ended: Sequence[int], known: Records | None = None
    ) -> None:
        """Compute the shards from the parts of a position on; see ``go_to``."""
        self._check_open()
        turns = [(slot + i) % len(now) for i in range(len(now))]
        states = {i: state_of(now[i]) for i in turns if now[i] is not None and ended[i] != ENDED}
        if any([state_in(state) is None and len(now[i]) > 1 for i, state in states.items()]):
            raise stateless(self.executor)
        if known is not None:
            task = self._known.task
            states = {i: with_known(states[i], known, task.key_prefixes(i)) for i in states}
        self.at = UNKNOWN
        if states:
            self.executor.open(self._known.task)
            self.executor.start(states)
        self._process_id = os.getpid()
        if self.is_closed:  # by another thread, which may have closed the former shards
            self.executor.close()
        self._check_open()

    def _check_open(self) -> None:
        if self.is_closed:
            raise ValueError(f"{self.executor} is closed")

    def receive(self, now: Sequence[Pos], slot: int, ended: Sequence[int], num: int) -> None:
        """Wait until the shard in ``slot`` has something, where ``num`` elements of all will surely
        be taken.
        """
        try:
            if self._process_id != os.getpid():
                self.start(now, slot, ended)
            self._awaited = slot
            self.executor.receive(slot, num)
            if self.is_closed:
                raise ValueError(f"{self.executor} was closed while it waited for its next element")
        except BaseException:
            self.at = UNKNOWN
            raise
        finally:
            self._awaited = None

    def awaited_worker(self) -> str | None:
        """Return which worker ``receive`` waits for, and where that is in the pipeline. Any thread
        may ask.
        """
        awaited = self._awaited
        return None if awaited is None else self.executor.where(awaited)

    def pass_failed(self, now: Sequence[Pos], slot: int, ended: tuple[int, ...]) -> Pos:
        """Move past what failed in ``slot``: an element, or one or the end with too many faults
        before it.
        """
        shard, part, next_slot = self.shards[slot], now[slot], (slot + 1) % len(now)
        self.at = UNKNOWN
        if shard.ready:
            part = shard.ready.popleft()[1:]
        elif shard.failure is None:
            ended = (*ended[:slot], ENDED, *ended[slot + 1 :])
        else:
            state = self.executor.skip(slot, state_of(part))
            shard.failure = None
            part, next_slot = (part, slot) if state is None else (([state], 0), next_slot)
        self.at = (*now[:slot], part, *now[slot + 1 :]), (), 0, next_slot, ended
        return self.at

    def resolved(self, pos: Pos) -> Pos:
        """Return ``pos`` past what an old state calls delivered."""
        if not is_old(pos):
            return pos
        *_, slot, ended = pos
        if is_old(before := self.passed_so_far(pos)):
            now = [*before[0]]
            self.at = UNKNOWN
            try:
                self._pass_delivered(now, slot, ended)
            finally:
                self._passed = pos, (tuple(now), (), 0, slot, ended)
            self.at = self._passed[1]
        return self.passed_so_far(pos)

    def passed_so_far(self, pos: Pos) -> Pos:
        """Return ``pos`` past what ``resolved`` has passed, if it failed."""
        return pos if self._passed is None or self._passed[0] is not pos else self._passed[1]

    def _pass_delivered(self, now: list[Pos], slot: int, ended: tuple[int, ...]) -> None:
        self.start(now, slot, ended)
        while is_old((now,)):
            for i in range(len(now)):  # of each in turn, so that all compute meanwhile
                num = now[i][2] if now[i] and len(now[i]) > 2 else 0
                shard = self.shards[i]
                if num and shard.ready:
                    part = shard.ready.popleft()[1:]
                    now[i] = (*part, num - 1) if num > 1 else part
                elif num and shard.failure is not None:
                    raise shard.failure()
                elif num and shard.has_ended:
                    raise StateMismatchError(
                        f"iterations_to_skip of worker {i} is larger by {num} than the number of"
                        " its elements that follow its state: the state was taken with other data"
                    )
                elif num:
                    self.executor.receive(i, 1)

    def forget(self) -> None:
        """Forget what was received, as a state is set: the next run starts again."""
        self.at = UNKNOWN
        for shard in self.shards:
            shard.clear()

    def lanes(self) -> Sequence[Shard]:
        """Return the shards, for a stage that takes elements from them instead. None is computed
        yet.
        """
        self.executor.open(self._known.task)
        self.executor.start({})
        return self.shards

    def close(self) -> None:
        """Close the executor. May be called by any thread, and again."""
        self.is_closed = True
        self.executor.close()


def state_of(part: Pos) -> Any:
    """Return the state that a shard begins at; ``None`` if it begins at the beginning, or there is
    none.
    """
    return part[0][part[1]] if part is not None and len(part) > 1 else None


def is_old(pos: Pos) -> bool:
    """Return true if the position is that of a state of Grain before 0.2.16, with elements to be
    passed.
    """
    return any([part is not None and len(part) > 2 for part in pos[0]])
