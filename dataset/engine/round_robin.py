"""The stream of shards that an executor computes, one element of each in turn."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from gristmill.dataset.bases.context import IteratorContext, collected_options
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.bases.node import (
    ancestors,
    makes_choices,
    mixes_in_lanes,
    tolerances,
    tolerates,
)
from gristmill.dataset.engine.choices import Records
from gristmill.dataset.engine.cycle import ENDED, RUNNING, SAID_TO_HAVE_ENDED, parts, replaced
from gristmill.dataset.engine.iterators import StreamIterator, fault_reporter_of
from gristmill.dataset.engine.recording import add_choices, state_in
from gristmill.dataset.engine.stream import Cell, Pos, Stream
from gristmill.dataset.executors.known import KnownShards
from gristmill.dataset.executors.protocol import Executor, Shard
from gristmill.dataset.executors.running import UNKNOWN, RunningShards, is_old, state_of
from gristmill.dataset.faults.lanes import LaneBudgets, lane_budgets
from gristmill.dataset.states.lanes import check_mixed_in_lanes, mixed_in_lanes
from gristmill.dataset.states.old import is_old_workers_state, old_workers_state
from gristmill.dataset.states.shards import parse_old_shards, parse_shards, shards_state, stateless
from gristmill.dataset.states.values import CycleState, copied
from gristmill.dataset.watching import watch_if_tracked
from gristmill.dataset.workers.task import PipelineTask

T = TypeVar("T")

_MOST_CHANGES = 64  # of a log, besides one for each shard


class RoundRobin(Stream):
    """One element of each shard in turn. Shards that have ended are skipped.

    The position is ``(parts, log, num, slot, ended)``: ``slot`` is the shard whose turn it is; of
    ``parts``, those of the shards, the first ``num`` entries ``(shard, part)`` of the log have
    changed some; the log is shared by the positions of a run, and grows. A part is

    * ``(states, i)``: the state, or a ``StateWithChoices``, is ``states[i]``, computed when needed;
    * ``(states, i, num)``: ``num`` elements after that were delivered, as a state of Grain before
      0.2.16 says. They are computed again when the position is used;
    * ``()`` or ``(state,)``: at the beginning, whose state was given in this form;
    * ``None``: there is no such shard.

    Guarantees:

    1. The order follows from the elements alone, not from how fast shards are.
    2. After an error, what was received stays, so that the error is raised again until a state is
       set. After an interrupt, it cannot be trusted and is computed again.
    3. A run waits in the ``receive`` of the executor alone (see there), and ``close`` ends that.

    Args:
        stage: the definition.
        task: what the executor computes.
        executor: which no other stream uses.
    """

    work_category = "prefetch"
    is_one_stream = False  # the first end of a shard is that of all
    _budgets: LaneBudgets | None = None  # of what stages upstream tolerate
    _checked: Pos = None  # the position that the budgets are at

    def __init__(self, stage: Any, task: PipelineTask, executor: Executor) -> None:
        self.makes_choices = makes_choices(task.dataset)  # in the shards
        super().__init__(stage)
        self.executor, self.count = executor, task.num_lanes
        self.known = KnownShards(task, str(executor), begins_as_a_whole=executor.begins_as_a_whole)
        self.running = RunningShards(executor, self.known)
        self.is_mixed = (
            task.by_lanes
            and self.count > 1
            and not task.sequential_slice
            and mixes_in_lanes(task.dataset)
        )
        self.closes_anytime = executor.closes_anytime  # type: ignore[misc]
        self.budget_waits = executor.budget_waits
        # Observers ask the executor directly: it alone knows which workers there are.
        self.report_opened, self.report_pool = executor.report_opened, executor.report_pool  # type: ignore[method-assign]
        self.work_ahead = executor.work_ahead  # type: ignore[method-assign]
        self._first: Pos = ((),) * self.count, (), 0, 0, (RUNNING,) * self.count
        # where the first run begins; ``None`` afterwards, until a state is loaded
        self._pos: Pos = self._first
        self._now: Sequence[Pos] = self._first[0]  # the parts, of the run

    @property
    def ctx(self) -> IteratorContext:
        """That of the pipeline which this is part of."""
        return self.known.ctx

    @ctx.setter
    def ctx(self, ctx: IteratorContext) -> None:
        self.known.ctx = ctx
        self.executor.join(ctx)

    @property
    def key(self) -> str:
        """Begins the keys of stages in shards; empty if no choices are recorded."""
        return self.known.key

    @key.setter
    def key(self, key: str) -> None:
        self.known.use_key(key)

    # A property in place of the class's constant: it follows from the pipeline of the shards.
    @property
    def counts_faults(self) -> bool:  # type: ignore[override]
        return self.known.counts_faults

    def start(self) -> Pos:
        return self._first

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        if not self.known.counts_faults:
            return self.start()
        now = self.known.next_epoch(parts(*end[:3]), records)
        return tuple(now), (), 0, 0, (RUNNING,) * self.count

    # Running.

    def _run(self, cell: Cell) -> Iterator[Any]:
        pos, now, slot, ended = self._begin(cell)
        running, count, shards, base = self.running, self.count, self.running.shards, tuple(now)
        choices = cell.choices if self.makes_choices else None
        log: list[tuple[int, Pos]] = []
        num = left = num_vacant = 0  # logged; surely wanted; slots in a row that remain vacant
        while num_vacant < count:
            if left > 1 and choices is None and self._budgets is None and not any(ended):
                block = _Received(running, now, slot)
                yield from block.elements(cell, left - 1)
                left, slot, shards, pos = left - block.num, block.slot, running.shards, cell.pos
                base, log, num = pos[0], [], 0
            if now[slot] is None or ended[slot] == ENDED:
                ended = replaced(ended, slot, ENDED)
                num_vacant, slot = num_vacant + 1, (slot + 1) % count
                continue
            left = left - 1 if left > 1 else cell.take_wanted()
            shard = shards[slot]
            if shard.computes_here and left == 1 and not shard.ready:
                running.at = UNKNOWN
                shard.make_ready()
                running.at = pos
            if not (shard.ready or shard.failure or shard.has_ended):
                shards = _receive(self, cell, now, slot, ended, left)
                shard = shards[slot]
            if num > count + _MOST_CHANGES:
                base, log, num = tuple(now), [], 0
            if not shard.ready:
                if shard.failure is not None:
                    cell.past_failed = partial(self._pass, cell, tuple(now), slot, ended)
                    raise_failure(shard)
                if shard.final is not None:
                    now[slot] = [shard.final], 0
                    base, log, num = tuple(now), [], 0
                    add_choices(choices, shard.final)
                    self._check_budgets(cell, slot, ended)
                was_said = ended[slot]
                ended = (ENDED,) * count if self.is_one_stream else replaced(ended, slot, ENDED)
                if not was_said:  # by a state, so that its turn was over then
                    num_vacant, slot = 0, (slot + 1) % count
                continue
            if self._budgets is not None and not self._budgets.has_checked(slot, shard.ready[0][1]):
                now[slot] = shard.ready[0][1:]
                self._check_budgets(cell, slot, ended)
            running.at = UNKNOWN
            x, states, i = shard.ready.popleft()
            if choices is not None:
                add_choices(choices, states[i])
            now[slot] = part = states, i
            log.append((slot, part))
            num, num_vacant = num + 1, 0
            ended = replaced(ended, slot, RUNNING) if ended[slot] else ended
            slot = slot + 1 if slot + 1 < count else 0
            cell.pos = running.at = self._checked = pos = base, log, num, slot, ended
            yield (x, x := None)[0]
            if running.at is not pos:  # a state was loaded, and then refused by a stage downstream
                running.start(now, slot, ended)
                shards = running.shards
        cell.pos = running.at = self._checked = base, log, num, slot, ended
        self.executor.rest()

    def _begin(self, cell: Cell) -> tuple[Pos, list[Pos], int, tuple[int, ...]]:
        """Let shards be computed from ``cell.pos`` on, unless they are; return that past old
        states, and its parts.
        """
        cell.end_block()  # of a run that is gone
        cell.past_failed = partial(_begin_again, self, cell)
        self._pos = None
        pos = self.running.go_to(
            cell.pos, cell.choices.to_come() if cell.choices and self.makes_choices else None
        )
        self._now = now = parts(*pos[:3])
        if self._budgets is not None and self._checked is not pos:
            self._budgets.restart()
            self._checked = pos
        cell.past_failed = None
        return pos, now, pos[3], pos[4]

    def _check_budgets(self, cell: Cell, slot: int, ended: tuple[int, ...]) -> None:
        """Raise an error if the last element, or the end, of a shard exceeds the budgets."""
        if self._budgets is not None:
            states, i = self._now[slot]
            exceeded = self._budgets.check(slot, states, lambda: state_in(states[i]))
            if exceeded is not None:
                cell.past_failed = partial(self._pass, cell, tuple(self._now), slot, ended)
                raise exceeded

    def _pass(self, cell: Cell, now: tuple[Pos, ...], slot: int, ended: tuple[int, ...]) -> None:
        """Move past what failed in ``slot``."""
        cell.pos = self._checked = self.running.pass_failed(now, slot, ended)
        if (part := cell.pos[0][slot]) is not now[slot]:  # an element, not the end
            add_choices(cell.choices, state_of(part))
        if self._budgets is not None:
            self._now = cell.pos[0]
            self._budgets.pass_skipped()

    # Positions and states.

    def save(self, pos: Pos) -> Any:
        try:
            pos = self.running.resolved(pos)
        except Exception:  # which the following ``next`` raises, too
            found = self.running.passed_so_far(pos)[0]
            nums = [part[2] if part and len(part) > 2 else 0 for part in found]
            return copied(
                old_workers_state(pos[3], [state_in(state_of(part)) for part in found], nums)
            )
        *found, slot, ended = pos
        now = parts(*found)
        states = self.known.states(now)
        if any(
            [
                state is None and now[i] is not None and ended[i] != ENDED
                for i, state in enumerate(states)
            ]
        ):
            raise stateless(self)
        cycle = CycleState(
            slot, self.count, range(self.count), states, [min(flag, 1) for flag in ended]
        )
        return mixed_in_lanes(cycle.as_state(), self.is_mixed)

    def saves_anywhere(self) -> bool:
        return False  # it opens shards

    def kind(self, index: int) -> tuple[Any, ...]:
        return RoundRobin, index

    def load(self, state: object) -> Pos:
        check_mixed_in_lanes(state, self.is_mixed, self.count, self)
        if is_old_workers_state(state):
            cycle, nums = parse_old_shards(state, self, self.known.opened()[1])
            unused: set[int] = set()
        else:
            cycle, nums = parse_shards(state, self, self.count), [0] * self.count
            unused = set() if self.known.begins_with_counts else self.known.unused(cycle.states)
        states = self.known.checked(cycle.states, unused)
        now: list[Pos] = [
            None if value is None else (value,) if i in unused else ([value], 0)
            for i, value in enumerate(states)
        ]
        now = [(*part, num) if num else part for part, num in zip(now, nums, strict=True)]
        ended = tuple([SAID_TO_HAVE_ENDED if flag else RUNNING for flag in cycle.exhausted])
        self.running.forget()
        self._pos = tuple(now), (), 0, cycle.slot, ended
        return self._pos

    def index_of(self, pos: Pos) -> int:
        return self.known.index_of(parts(*self.running.resolved(pos)[:3]))

    def at_index(self, index: int) -> Pos:
        cycle = shards_state(index % self.count, self.known.states_at(index))
        return self.load(mixed_in_lanes(cycle.as_state(), self.is_mixed))

    def has_gaps(self) -> bool:
        return self.known.have_gaps()

    # Resources, and what observers ask.

    def use_limits(self, found: Iterable[Any], *, is_common: bool = False) -> None:
        """Apply these limits to what is delivered; with none, another stage does so.

        Args:
            found: what stages upstream tolerate.
            is_common: true if each shard reads all elements, so that the faults of one are those of
                all.
        """
        self._budgets = lane_budgets(self, found, is_common=is_common)
        if self._budgets is not None:
            self.known.counts_faults = self.known.begins_with_counts = True

    def states_now(self) -> list[Any]:
        """Return the state of each shard after what was delivered."""
        return self.known.states(self._now)

    def start_prefetch(self) -> None:
        if self._pos is not None and not self.running.is_closed and not is_old(self._pos):
            self.running.go_to(self._pos)

    def close(self) -> None:
        self.running.close()

    def drop(self) -> None:
        self.forget_run()
        self.executor.rest()

    def worker_processes(self) -> Sequence[Any]:
        return self.executor.workers

    def __str__(self) -> str:
        return str(self.executor)


class RoundRobinIterator(StreamIterator[T]):
    """The iterator of shards.

    Args:
        stage: the definition.
        task: what the executor computes.
        executor: which no other iterator uses.
    """

    _gm_engine: RoundRobin
    _gm_stage_name = "RoundRobinIterator"  # all executors read each other's checkpoints

    def __init__(self, stage: Any, task: PipelineTask, executor: Executor) -> None:
        super().__init__(stage, [], partial(RoundRobin, task=task, executor=executor))
        self._ds = task.dataset
        self._gm_ctx.options = collected_options(self._ds)  # they hold after this stage, too
        self.use_limits(tolerances(self._ds))
        # those of datasets that shards open are judged there
        known = self._gm_engine.known
        self._gm_counts_faults = known.counts_faults = tolerates(self._ds)
        known.begins_with_counts |= tolerates(self._ds, may_open=False)
        watch_if_tracked(self, self._gm_ctx.options)

    @property
    def _gm_class_name(self) -> str:
        return str(self.executor).partition("(")[0]

    @property
    def executor(self) -> Executor:
        return self._gm_engine.executor

    @property
    def pool(self) -> Any:
        """The pool of workers that is in use; ``None`` if there is none."""
        return self.executor.pool

    @property
    def is_one_stream(self) -> bool:
        """True if the first end of a shard is that of all."""
        return self._gm_engine.is_one_stream

    @is_one_stream.setter
    def is_one_stream(self, is_one_stream: bool) -> None:
        self._gm_engine.is_one_stream = is_one_stream

    def use_limits(self, found: Sequence[Any], *, is_common: bool = False) -> None:
        """See ``RoundRobin.use_limits``."""
        self._gm_engine.use_limits(found, is_common=is_common)
        if found:
            self._gm_counts_faults = True
            self._gm_engine.report_faults = fault_reporter_of(self)

    def lanes(self) -> Sequence[Shard]:
        """See ``RunningShards.lanes``."""
        return self._gm_engine.running.lanes()

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return {"num_shards": self._gm_engine.count}

    @property
    def _gm_draws_from(self) -> Sequence[Any]:
        return (self._ds,)

    @property
    def _gm_described_upstream(self) -> Sequence[Any]:
        return (iterate(self._ds),)

    @property
    def _gm_observed_upstream(self) -> Sequence[Any]:
        return ()

    @property
    def _gm_work_options(self) -> Sequence[Any]:
        return [
            *self.executor.options,
            *[options for node in ancestors(self._ds) for options in node._gm_work_options],
        ]

    def _gm_resize(self, num_workers: int) -> bool:
        return self.executor.resize(num_workers)


def _begin_again(stream: RoundRobin, cell: Cell) -> None:
    """Try again what failed, which was no element: it cannot be passed.

    Stages downstream see that by a position that is equal, and not the same object.
    """
    stream._begin(cell)
    cell.pos = (*cell.pos,)


def _receive(
    stream: RoundRobin, cell: Cell, now: list[Pos], slot: int, ended: tuple[int, ...], num: int
) -> Sequence[Shard]:
    """Wait until the shard in ``slot`` has something; return all shards."""
    cell.past_failed = partial(_begin_again, stream, cell)
    stream.running.receive(now, slot, ended, num)
    cell.past_failed = None
    return stream.running.shards


class _Received:
    """Delivers what was received, in turn, until a shard has nothing.

    Args:
        running: the shards, none of which has ended.
        now: the parts of the position, which are moved.
        slot: whose turn it is.
    """

    def __init__(self, running: RunningShards, now: list[Pos], slot: int) -> None:
        self.running, self.now, self.slot = running, now, slot
        self.num = 0  # delivered elements

    def pos(self) -> Pos:
        return tuple(self.now), (), 0, self.slot, (RUNNING,) * len(self.now)

    def elements(self, cell: Cell, most: int) -> Iterator[Any]:
        """Return up to ``most`` elements, and move ``cell`` past them."""
        cell.compute_by(self.pos)
        running, now, slot = self.running, self.now, self.slot
        running.at = in_block = object()  # no position, in case of an interrupt
        queues = [shard.ready for shard in running.shards]
        while self.num < most and (ready := queues[slot]):
            x, states, i = ready.popleft()
            now[slot] = states, i
            self.num += 1
            self.slot = slot = slot + 1 if slot + 1 < len(now) else 0
            yield (x, x := None)[0]
            if running.at is not in_block:  # a state was loaded and refused, see ``RoundRobin``
                running.start(now, slot, (RUNNING,) * len(now))
                break
        cell.end_block()
        running.at = cell.pos


def raise_failure(shard: Shard) -> None:
    """Raise the failure of a shard, in a frame that does not refer to it."""
    assert shard.failure is not None
    failure = [shard.failure]
    del shard
    raise failure.pop()()
