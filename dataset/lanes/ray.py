"""The lanes of Ray actors, seen from the consumer.

Guarantees:

1. An actor that is lost takes nothing along: what had arrived of its lanes stays, and others
   continue with them from there. So every element comes once, in order, however often that happens.
2. Lanes are computed by the actors that are there, as many by each; one that comes later takes some
   over, and so does one that is requested by ``resize``. No lane changes its actor otherwise.
3. A lane whose actors die again and again, without any of its elements coming in between, gets an
   error.
"""

from __future__ import annotations

import logging
import time
from collections import Counter
from collections.abc import Callable, Collection
from functools import partial
from typing import Any

from gristmill.core.ray_options import RayOptions
from gristmill.dataset.bases.context import Numbers
from gristmill.dataset.errors.context import pipeline_error
from gristmill.dataset.lanes.processes import (
    CAREFUL_OUTPUTS,
    AllLanes,
    LanesOfWorker,
    WorkerLane,
    divided,
)
from gristmill.workers.handle import WorkerBusy, WorkerDied, WorkerSilent
from gristmill.workers.protocol import Quarantine

_log = logging.getLogger("gristmill")

_LOOK_SECONDS = 0.5  # between two looks at which actors are there
_ROOM_SECONDS = 10.0  # wait for requested actors before they count
_MAX_DEATHS = 5  # in a row, of actors that were at the lane that was waited for
_CAREFUL_DEATHS = 2  # from then on that lane is computed first, and nothing ahead


class _Lost(Exception):
    """The actor is lost."""


class _Silent(Exception):
    """Nothing has come of it for a while."""


class LanesOfActor(LanesOfWorker):
    """The lanes that one actor computes."""

    def __init__(
        self,
        pool: Any,
        index: int,
        count: int,
        num_lanes: int,
        numbers: Numbers | None,
        budget: int,
    ) -> None:
        super().__init__(pool, index, count, num_lanes, numbers)
        self._budget = budget  # bytes that all actors may be ahead

    def take_over(
        self, lanes: dict[int, WorkerLane], states: dict[int, Any], first: int | None
    ) -> None:
        """Computes these lanes alone; carefully if one of them is dangerous."""
        self.lanes = lanes
        if lanes:
            self._states, self._skipping = states, None
            self._quarantine, self._num_careful = (
                (None, 0) if first is None else (Quarantine(), CAREFUL_OUTPUTS * len(lanes))
            )
            self._restart(first)
        else:
            self._pool.close_worker(self._index)

    def state_of(self, number: int) -> Any:
        """Return the state of a lane after the last element that has arrived."""
        return self._states[number]

    def text(self, lane: WorkerLane) -> str:
        own = [worker for worker in self._pool.workers if worker.index == self._index]
        place = own[0].transport.place if own else "that is lost"
        return f"worker {self._index} {place}, lane {lane.number}, {self._place(lane.number)}"

    def _restart(self, first: int | None = None) -> None:
        transport = self._pool.worker(self._index).transport
        transport.budget = self._budget * len(self.lanes) // self._num_lanes
        super()._restart(first)

    def _receive(self) -> tuple[int, int, Any]:
        while True:
            worker = self._pool.worker(self._index)
            try:
                # a skip is not restarted
                return worker.receive(_LOOK_SECONDS if self._skipping is None else None)
            except WorkerBusy:
                self._restart(self._skipping)
            except WorkerSilent:
                raise _Silent from None
            except WorkerDied as death:
                raise _Lost(str(death)) from None

    def death_text(self, death: str, number: int) -> str:
        """Return the error message for a lane at which actors die."""
        return (
            f"Ray actors were lost, one after the other, while lane {number} of {self._num_lanes}"
            f" was computed, {self._place(number)}: the last one {death}. Nothing is lost:"
            " it.set_state(it.get_state()) tries again"
        )


class LanesOnRay(AllLanes):
    """The lanes of Ray actors.

    Args:
        pool: the actors.
        options: the options of the workers.
        num_workers: the number of actors to have.
        num_lanes: how many lanes there are.
        numbers: which elements are those of all lanes; ``None`` if that is not known.
    """

    def __init__(
        self,
        pool: Any,
        options: RayOptions,
        num_workers: int,
        num_lanes: int,
        numbers: Numbers | None,
    ) -> None:
        super().__init__(pool, num_lanes)
        self._make = partial(
            LanesOfActor,
            pool,
            count=options.num_workers,
            num_lanes=num_lanes,
            numbers=numbers,
            budget=pool.max_bytes_ahead,
        )
        self._groups: dict[int, LanesOfActor] = {}  # by the number of the actor
        self._actor_of: dict[int, int] = {}  # by lane
        self._deaths: Counter[int] = Counter()  # since the last element of a lane
        self._num_wanted = num_workers
        self._look_at = 0.0
        self.is_settled = False  # the requested actors are there, or have no room
        self._settled_by = time.monotonic() + _ROOM_SECONDS

    @property
    def num_received(self) -> int:
        return self._num_before + sum([group.num_received for group in self._groups.values()])

    def cpu_seconds(self) -> None:
        """Return nothing: actors may run on other machines."""

    def text(self, lane: WorkerLane) -> str:
        """Return which worker computes a lane, and where that is."""
        group = self._groups.get(self._actor_of.get(lane.number, -1))
        if group is None:
            return f"lane {lane.number}, which no actor computes now"
        return group.text(lane)

    def start(self, states: dict[int, Any]) -> None:
        """Begins to compute these lanes from these states on. They are needed in this order."""
        self._groups, self._actor_of = {}, {}
        self._divide(states)

    def go_on_with(self, states: dict[int, Any]) -> None:
        """Compute these lanes, too, from these states on."""
        for number in states:
            self.lanes[number].clear()
        self._divide({**self._states(), **states}, moved=states)

    def resize(self, num: int) -> None:
        """Makes this many actors, or all that exist, compute the lanes. For any thread."""
        self._settled_by = time.monotonic() + _ROOM_SECONDS
        self._num_wanted, self.is_settled, self._look_at = num, False, 0.0

    def fetch(self, lane: WorkerLane) -> None:
        """Waits until ``lane`` has something."""
        while lane.is_running and not lane.ready:
            self._ask(lane, lambda group: group.fetch(lane))
        del self._deaths[lane.number]

    def skip(self, lane: WorkerLane, state: object) -> Any:
        """See ``Shard``."""
        found: list[Any] = []
        while not found:
            self._ask(lane, lambda group: found.append(group.skip(lane, state)))
            if not found and lane.failure is not None:
                raise lane.failure()
        return found[0]

    def _ask(self, lane: WorkerLane, question: Callable[[LanesOfActor], None]) -> None:
        """Asks the actor that computes a lane; it may be unable to answer."""
        if time.monotonic() >= self._look_at:
            self._look()
        actor = self._actor_of[lane.number]
        try:
            question(self._groups[actor])
        except _Silent:
            pass
        except _Lost as loss:
            self._lose(actor, lane, str(loss))

    def _states(self) -> dict[int, Any]:
        """Return the states of the lanes that run, in the order in which they are needed."""
        lanes = [
            lane for lane in self.lanes if lane.number in self._actor_of and not lane.has_ended
        ]
        numbers = [lane.number for lane in sorted(lanes, key=lambda lane: len(lane.ready))]
        return {number: self._groups[self._actor_of[number]].state_of(number) for number in numbers}

    def _look(self) -> None:
        """Divides the lanes again if there are other actors."""
        self._look_at = time.monotonic() + _LOOK_SECONDS
        self._pool.resize(self._num_wanted)
        wanted, available = self._num_wanted, self._pool.available()
        if available != sorted(self._groups):
            self._divide(self._states())
        if len(available) == wanted or self._look_at > self._settled_by:
            self.is_settled = wanted == self._num_wanted

    def _lose(self, actor: int, lane: WorkerLane, how: str) -> None:
        """Handle the death of an actor during a wait for ``lane``."""
        number = lane.number
        self._deaths[number] += 1
        if self._pool.is_closed or self._deaths[number] >= _MAX_DEATHS:
            lane.failure = partial(pipeline_error, self._groups[actor].death_text(how, number))
            del self._deaths[number]
        if not self._pool.is_closed:
            lanes = sorted(self._groups[actor].lanes)
            _log.warning(
                "Ray actor %d %s. Others compute its lanes, %s, and nothing is lost",
                actor,
                how,
                lanes,
            )
            self._pool.lose(actor)
            self._divide(self._states(), lost=actor)

    def _divide(
        self, states: dict[int, Any], *, lost: int | None = None, moved: Collection[int] = ()
    ) -> None:
        """Has the actors that are there compute lanes from these states on; those whose lanes are
        the same continue, unless some of them were moved.
        """
        actors = self._pool.available() or self._pool.wait()
        before = {
            index: group.lanes.keys() & states
            for index, group in self._groups.items()
            if index != lost
        }
        shares = divided([*states], before, actors)
        self._num_before += sum(
            [group.num_received for index, group in self._groups.items() if index not in actors]
        )
        self._groups = {
            index: self._groups.get(index) or self._make(index=index) for index in actors
        }
        self._actor_of = {number: index for index, share in shares.items() for number in share}
        for index, share in shares.items():
            if before.get(index, set()) != {*share} or {*share} & {*moved}:
                dangerous = next(
                    (number for number in share if self._deaths[number] >= _CAREFUL_DEATHS), None
                )
                of_share = {number: state for number, state in states.items() if number in share}
                self._groups[index].take_over(
                    {number: self.lanes[number] for number in share}, of_share, dangerous
                )
