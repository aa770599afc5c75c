"""The lanes of a pool of processes or threads, whose number may change.

Guarantees:

1. A lane is handed over between two of its outputs. The worker that leaves it computes nothing more
   ahead for it, and sends what it has computed. So nothing is computed twice, but for what a
   restored state computes again (such as the window of a shuffle), and what is lost with a worker
   that dies.
2. A new worker gets lanes when it is up: until then the others continue with them, or the consumer
   does.
3. Lanes move only after ``resize``. As long as a worker that has died is accounted for, its lanes
   stay.
4. Elements, their order, errors and states do not depend on which worker computes a lane.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

from gristmill.core.cpu_time import cpu_seconds
from gristmill.dataset.bases.context import Numbers
from gristmill.dataset.lanes.consumer import LanesHere
from gristmill.dataset.lanes.processes import AllLanes, LanesOfWorker, WorkerLane, divided
from gristmill.dataset.slicing import lanes_of_worker


class LocalLanes(AllLanes):
    """The lanes of workers of this machine.

    Args:
        pool: the workers.
        num_lanes: how many lanes there are.
        numbers: which elements are those of all lanes; ``None`` if that is not known.
        here: lets the consumer compute all lanes until workers are up, and where no workers are
            wanted.
        num_workers: how many workers are wanted, after the first output if the pool has none.
    """

    def __init__(
        self,
        pool: Any,
        num_lanes: int,
        numbers: Numbers | None,
        here: LanesHere | None = None,
        num_workers: int = 0,
    ) -> None:
        super().__init__(pool, num_lanes)
        count = len(pool.workers)
        self._args = num_lanes, numbers
        self._num_asked = num_workers if here is not None else count  # by any thread
        self._num_wanted = count  # since the last look at that
        self._here = here
        self._is_first = here is not None and not count  # the next output is the first one
        self.is_settled = here is None  # no lane has to move
        self._was_resized = here is not None
        self._groups: list[LanesOfWorker] = []  # by worker
        self._former: list[LanesOfWorker] = []  # of workers of another kind, which leave
        self._release_former: Callable[[], None] = _nothing
        self._add_groups(count)
        if here is not None:
            here.add(self.lanes, {})
            return
        for group, index in zip(self._groups, range(count), strict=True):
            group.add(
                [self.lanes[number] for number in lanes_of_worker(index, count, num_lanes)], {}
            )

    @property
    def _owners(self) -> list[LanesOfWorker | LanesHere]:
        return [*self._groups, *self._former, *([] if self._here is None else [self._here])]

    @property
    def num_received(self) -> int:
        return self._num_before + sum([owner.num_received for owner in self._owners])

    @property
    def are_here(self) -> bool:
        return self._here is not None and len(self._here.lanes) == len(self.lanes)

    @property
    def are_beginning(self) -> bool:
        return self._here is not None and self._here.are_beginning

    @property
    def waited_seconds(self) -> float:
        """For how long the consumer has waited for the workers, or has computed itself."""
        here = 0.0 if self._here is None else self._here.waited_seconds
        return here + super().waited_seconds

    def cpu_seconds(self) -> float | None:
        """Return the CPU time so far of this process and the workers; ``None`` if unknown."""
        workers = self._pool.workers
        return cpu_seconds({os.getpid(), *[worker.transport.process_id for worker in workers]})

    def _add_groups(self, count: int) -> None:
        for index in range(len(self._groups), count):
            self._groups.append(LanesOfWorker(self._pool, index, count, *self._args))

    def text(self, lane: WorkerLane) -> str:
        """Return which worker computes a lane, and where that is."""
        text: str = lane.owner.text(lane)
        return text

    def start(self, states: dict[int, Any]) -> None:
        """Begin to compute these lanes from these states on. They are needed in this order."""
        for group in self._owners:
            own = {number: state for number, state in states.items() if number in group.lanes}
            if own:
                group.start(own)

    def go_on_with(self, states: dict[int, Any]) -> None:
        """Compute these lanes, too, from these states on."""
        if self._was_resized:
            self._spread([*states])
        for group in self._owners:
            own = {number: state for number, state in states.items() if number in group.lanes}
            if own:
                group.go_on_with(own)

    def fetch(self, lane: WorkerLane) -> None:
        """Wait until ``lane`` has something."""
        while lane.is_running and not lane.ready:
            if not self.is_settled:
                self._balance()
            owner = lane.owner
            owner.fetch(lane)
            if owner.left:
                self._hand_over()
        if self._is_first:
            self._is_first = self.is_settled = False

    def skip(self, lane: WorkerLane, state: object) -> Any:
        """See ``Shard``."""
        self.is_settled = not self._was_resized
        return lane.owner.skip(lane, state)

    def drawn_from(self) -> Sequence[Any]:
        return () if self._here is None else self._here.iterators

    def close(self) -> None:
        if self._here is not None:
            self._here.close()

    def resize(self, num: int) -> None:
        """Let ``num`` workers compute the lanes from now on. Another thread may call this."""
        self._num_asked, self._was_resized, self.is_settled = num, True, False

    def move_to(self, pool: Any, park_former: Callable[[], None]) -> None:
        """Let the workers of another pool compute the lanes from now on.

        Args:
            pool: the other one.
            park_former: is called when no lane is left with the former workers.
        """
        self._pool, self._release_former = pool, park_former
        self._former, self._groups = [*self._former, *self._groups], []
        self.resize(len(pool.workers))

    # Moving lanes.

    def _balance(self) -> None:
        """Let workers leave the lanes that are moving to others, if these are up."""
        wanted = self._num_wanted = 0 if self._is_first else self._num_asked
        if self._here is not None:
            self._here.read_ahead(not wanted)
        self._recruit(wanted)
        for group in self._owners:
            group.receive_sent()
        self._hand_over()
        targets = self._targets()
        if targets is None:
            return
        is_settled = not any([group.is_starting for group in self._groups[:wanted]])
        for group in self._owners:
            moving = [number for number in group.lanes if targets.get(number, group) is not group]
            is_settled = is_settled and not moving and group.is_calm
            asked = [number for number in moving if number not in group.leaving]
            if asked and group.is_calm:
                group.leave(asked)
        self._hand_over()
        if is_settled:
            self._dismiss(wanted)
            self.is_settled = True
            if wanted != self._num_asked:  # another thread may have asked for another number
                self.is_settled = False

    def _recruit(self, wanted: int) -> None:
        """Start workers, so that there are ``wanted``. If the system does not give them, those that
        there are continue.
        """
        try:
            if len(self._groups) < wanted:
                self._pool.resize(wanted)
                self._add_groups(wanted)
                self._recount(wanted)
            for group in self._groups:
                group.begin()
        except Exception as error:
            num = max([i + 1 for i, group in enumerate(self._groups) if group.has_begun], default=0)
            self.refusal, self._num_asked = error, num
            del self._groups[num:]
            self._pool.resize(num)
            raise

    def _dismiss(self, wanted: int) -> None:
        """End the workers beyond ``wanted``, which have no lanes that run."""
        for group in [*self._groups[wanted:], *self._former]:
            self._num_before += group.num_received
            for number in [*group.lanes]:
                lane = group.lanes[number]
                self._least_busy().add([lane], group.pop(number))
        if self._former:
            self._former = []
            self._release_former()
        if len(self._groups) > wanted:
            del self._groups[wanted:]
            self._pool.resize(wanted)
            self._recount(wanted)

    def _recount(self, count: int) -> None:
        for group in self._groups:
            group.recount(count)

    def _targets(self) -> dict[int, Any] | None:
        """Return the worker that should compute each lane; ``None`` if no worker is up yet."""
        up = [i for i, group in enumerate(self._groups[: self._num_wanted]) if group.is_up]
        if not up and (self._num_wanted or self._here is None):
            return None
        running = [lane.number for lane in self.lanes if lane.owner.computes(lane.number)]
        if not up:
            return dict.fromkeys(running, self._here)
        before = {i: group.lanes.keys() & {*running} for i, group in enumerate(self._groups)}
        shares = divided(running, before, up)
        return {number: self._groups[i] for i, share in shares.items() for number in share}

    def _hand_over(self) -> None:
        """Let others compute the lanes that workers have left."""
        for group in self._owners:
            while group.left:
                lane, state = group.left.pop()
                self._least_busy().add([lane], {lane.number: state})

    def _least_busy(self) -> Any:
        up: list[Any] = [group for group in self._groups[: self._num_wanted] if group.is_up]
        up = up or ([] if self._here is None else [self._here]) or self._groups or self._former
        return min(
            up, key=lambda group: len([lane for lane in group.lanes.values() if lane.is_running])
        )

    def _spread(self, numbers: Sequence[int]) -> None:
        """Let the least busy workers compute these lanes, which have no owner."""
        for number in numbers:
            lane = self.lanes[number]
            owner = lane.owner
            if owner.is_calm and (target := self._least_busy()) is not owner:
                owner.leave([number])
                owner.pop(number)
                target.add([lane], {})


def _nothing() -> None:
    pass
