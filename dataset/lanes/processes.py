"""The lanes of worker processes, seen from the consumer."""

from __future__ import annotations

import abc
import pickle
from collections.abc import Mapping, Sequence, Set
from functools import partial
from itertools import repeat
from typing import Any

from gristmill.core.errors import add_note
from gristmill.dataset.bases.context import Numbers
from gristmill.dataset.errors.context import pipeline_error
from gristmill.dataset.executors.protocol import Failure, Shard
from gristmill.dataset.workers.task import divide_worker, place, worker_name
from gristmill.workers.crash_journal import OUTPUTS as OUTPUTS_MADE
from gristmill.workers.crash_journal import Entry, lane_and_root
from gristmill.workers.handle import WorkerBusy, WorkerDied, WorkerSilent
from gristmill.workers.protocol import END, ERROR, LEFT, PASSED, SKIPPED, Quarantine
from gristmill.workers.remote_errors import decode_error, encode_error

_PATIENCE_SECONDS = 0.5  # for the next element, where a death is still to be reported
CAREFUL_OUTPUTS = 1000  # of each lane after a death: read-ahead may have been that far


def divided(
    lanes: Sequence[int], before: Mapping[int, Set[int]], workers: Sequence[int]
) -> dict[int, list[int]]:
    """Return which lanes each worker computes: as many as others, up to one, and as many as may be
    of those that it had before.

    Example:
        >>> divided([0, 1, 2, 3, 4], {}, [0, 1])
        {0: [0, 2, 4], 1: [1, 3]}
        >>> divided([0, 1, 2, 3, 4], {0: {0, 2, 4}, 1: {1, 3}}, [0, 1, 2])
        {0: [0, 2], 1: [1, 3], 2: [4]}
    """
    least, rest = divmod(len(lanes), len(workers))
    shares: dict[int, list[int]] = {index: [] for index in workers}
    homeless = []
    owner = {number: index for index, numbers in before.items() for number in numbers}
    for number in lanes:
        share = shares.get(owner.get(number, -1))
        if share is None or len(share) > least or (len(share) == least and not rest):
            homeless.append(number)
            continue
        rest -= len(share) == least
        share.append(number)
    for number in homeless:
        min(shares.values(), key=len).append(number)
    return shares


class WorkerLane(Shard):
    """A lane that a worker process computes, perhaps with others."""

    def __init__(self, worker: Any, number: int) -> None:
        super().__init__()
        self.worker = worker  # its state and owner
        self.owner: Any = None  # what computes it, in a pool of this machine
        self.number = number

    def __str__(self) -> str:
        return self.worker.text(self)

    @property
    def is_running(self) -> bool:
        return self.failure is None and not self.has_ended

    def receive(self, num: int) -> None:
        self.worker.fetch(self)

    def skip(self, state: object) -> Any:
        return self.worker.skip(self, state)


class AllLanes(abc.ABC):
    """All lanes of a pipeline, divided among the workers of a pool.

    Args:
        pool: the workers.
        num_lanes: how many lanes there are.
    """

    def __init__(self, pool: Any, num_lanes: int) -> None:
        self.lanes = [WorkerLane(self, number) for number in range(num_lanes)]
        self._pool = pool
        self._num_before = 0  # elements received from workers that are gone
        self.refusal: Exception | None = None  # of the system, to start a worker

    def drawn_from(self) -> Sequence[Any]:
        """Return the open iterators of lanes that the consumer computes itself."""
        return ()

    def close(self) -> None:  # noqa: B027  (of actors there is nothing to end)
        """End what the consumer computes itself. Any thread may call this."""

    @property
    def are_here(self) -> bool:
        """True if the consumer computes all lanes."""
        return False

    @property
    def are_beginning(self) -> bool:
        """True if there are lanes of which the consumer is to compute the first output."""
        return False

    @property
    @abc.abstractmethod
    def num_received(self) -> int:
        """The number of elements that were received."""

    @property
    def num_delivered(self) -> int:
        """The number of elements that the consumer has taken."""
        return self.num_received - sum([len(lane.ready) for lane in self.lanes])

    @property
    def waited_seconds(self) -> float:
        """For how long the consumer has waited for the workers that there are."""
        return sum([worker.waited_seconds for worker in self._pool.workers])

    def busy(self) -> float:
        """Return the share of the workers that have sent nothing that was not received."""
        workers = self._pool.workers
        return sum([not worker.transport.has_sent() for worker in workers]) / (len(workers) or 1)


class LaneOwner:
    """The lanes that a worker, or the consumer itself, computes."""

    def __init__(self) -> None:
        self.lanes: dict[int, WorkerLane] = {}
        self.leaving: set[int] = set()  # lanes that it was asked to leave
        # lanes that it has left since, and where they continue
        self.left: list[tuple[WorkerLane, Any]] = []
        self.num_received = 0  # elements
        # of lanes that were started: after the last element that was fetched
        self._states: dict[int, Any] = {}

    def computes(self, number: int) -> bool:
        """Return true if this computes a lane."""
        return number in self._states and self.lanes[number].is_running

    def pop(self, number: int) -> dict[int, Any]:
        """Forget a lane that this does not compute; return its state, if there is one."""
        del self.lanes[number]
        return {number: self._states.pop(number)} if number in self._states else {}

    def add(self, lanes: Sequence[WorkerLane], states: Mapping[int, Any]) -> None:
        """Compute these lanes, too, from these states on."""
        for lane in lanes:
            self.lanes[lane.number], lane.owner = lane, self
        self._states.update(states)


class NamedWorker(LaneOwner):
    """A worker as its pool and errors know it, and where its lanes are.

    Args:
        pool: has the worker.
        index: which one.
        count: of how many.
        num_lanes: how many lanes there are.
        numbers: which elements are those of all lanes; ``None`` if unknown.
    """

    def __init__(
        self, pool: Any, index: int, count: int, num_lanes: int, numbers: Numbers | None
    ) -> None:
        super().__init__()
        self._pool = pool
        self._index = index
        self._count = count
        self._num_lanes = num_lanes
        self._numbers_of_all = numbers

    @property
    def is_up(self) -> bool:
        """True if the worker runs."""
        return bool(self._pool.workers[self._index].is_up)

    @property
    def is_starting(self) -> bool:
        """True if the worker does not run yet, and may do so."""
        worker = self._pool.workers[self._index]
        return not worker.is_up and worker.is_alive()

    def has_sent(self) -> bool:
        """Return true if the worker has sent something."""
        return bool(self._pool.workers[self._index].transport.has_sent())

    def recount(self, count: int) -> None:
        """Take note that there are ``count`` workers."""
        self._count = max(count, self._index + 1)
        worker = self._pool.workers[self._index]
        if worker.is_alive():
            worker.call(pickle.dumps(partial(divide_worker, self._count)))

    def text(self, lane: WorkerLane) -> str:
        """Return which worker, which lane, and where that is."""
        is_same = self._count == self._num_lanes and self._index == lane.number
        name = f"worker {self._index}" if is_same else f"worker {self._index}, lane {lane.number}"
        return f"{name}, {self._place(lane.number)}"

    def _place(self, number: int) -> str:
        return place(self._states.get(number), self._numbers(number))

    def _numbers(self, number: int) -> Numbers | None:
        """Return which elements of the whole pipeline are those of a lane, if that is known."""
        numbers = self._numbers_of_all
        return None if numbers is None else numbers.replaced(index=number, count=self._num_lanes)

    def _not_unpickled(self, error: Exception, number: int) -> Failure:
        name = worker_name(self._index, self._count, number, self._num_lanes)
        add_note(
            error,
            f"An output of {name}, {self._place(number)}, was received and could not be unpickled.",
        )
        return partial(decode_error, encode_error(error))

    def _lane_of(self, entry: tuple[int, ...]) -> int:
        return lane_and_root(entry[0])[0]

    def _death_text(self, death: WorkerDied, number: int) -> str:
        return (
            f"{self._death(death, number)}, {self._place(number)}. Nothing is lost: "
            "it.set_state(it.get_state()) continues after the last delivered element with a new "
            f"{self._pool.kind_of_worker}"
        )

    def _accusation(self, death: WorkerDied, who: int, index: int) -> str:
        number, root = lane_and_root(who)
        if root:
            where = f"at element {index} of its input {root}"
        else:
            where = place({"next_index": index}, self._numbers(number), exact=True)
        return (
            f"{self._death(death, number)}, {where}. Nothing is lost: it.skip_failed() continues "
            "without that element, it.set_state(it.get_state()) tries it again"
        )

    def _death(self, death: WorkerDied, number: int) -> str:
        is_same = self._count == self._num_lanes and self._index == number
        lane = "" if is_same else f", at work for lane {number} of {self._num_lanes}"
        return (
            f"Worker {self._pool.kind_of_worker} {self._index} of {self._count} was terminated"
            f" unexpectedly{lane}: it {death}"
        )


class LanesOfWorker(NamedWorker):
    """The lanes that one worker process computes.

    A worker that dies is replaced. The new one continues from the last elements that arrived, and
    carefully, as long as it is where the dead one was at work: it computes one output at a time and
    nothing ahead, so that all before a record that kills is delivered, and notes which it reads. If
    the record is known at which a worker died, an error that names it takes its place; to skip that
    means to try the record once more, which skips it if it kills again. If it is not, and
    nothing kills the new worker, the death is reported after the outputs that the dead one was at,
    or as soon as the next element is slow.
    """

    def __init__(
        self, pool: Any, index: int, count: int, num_lanes: int, numbers: Numbers | None
    ) -> None:
        super().__init__(pool, index, count, num_lanes, numbers)
        self._skipping: int | None = None  # the lane whose next element is skipped
        self._quarantine: Quarantine | None = None
        self._num_careful = 0  # outputs to go carefully
        self._unexplained = ""  # a death that may be no element's fault
        # the worker that died so, if it was in a process with those of others
        self._died: Any = None
        self._is_suspected = False  # so were others, and it has died again since, with them
        self._suspect: tuple[int, int] | None = None  # what the last worker that died was reading
        self._held: tuple[int, int, Any] | None = None  # a message that has been received ahead
        self.has_begun = False  # the worker computes nothing that was requested before

    def begin(self) -> None:
        """Let the worker start, and wait for lanes."""
        if not self.has_begun:
            self._pool.worker(self._index).start({})
            self.has_begun = True

    def start(self, states: dict[int, Any]) -> None:
        """Begins to compute these lanes from these states on. They are needed in this order."""
        self._states, self._skipping = states, None
        self._restart()

    def go_on_with(self, states: dict[int, Any]) -> None:
        """Computes these lanes, too, from these states on."""
        for number in states:
            self.lanes[number].clear()
        self._states = {
            **{n: state for n, state in self._states.items() if self.lanes[n].is_running},
            **states,
        }
        self._skipping = None
        self._restart()

    @property
    def is_calm(self) -> bool:
        """True if no worker has died that is still to be accounted for."""
        return (
            self._quarantine is None
            and self._skipping is None
            and self._suspect is None
            and not self._unexplained
        )

    def leave(self, numbers: Sequence[int]) -> None:
        """Ask the worker to leave these lanes. What it has computed of them still comes."""
        self.leaving.update(numbers)
        self._pool.workers[self._index].change_lanes({}, numbers)

    def add(self, lanes: Sequence[WorkerLane], states: Mapping[int, Any]) -> None:
        super().add(lanes, states)
        new = {number: state for number, state in states.items() if self.lanes[number].is_running}
        if new:
            worker = self._pool.workers[self._index]
            is_running = self.has_begun and worker.generation and worker.is_alive()
            if is_running and self.is_calm and not self.leaving & new.keys():
                worker.change_lanes(new, [])
            else:
                self._restart(self._skipping)

    def receive_sent(self) -> None:
        """Receive what the worker has sent, without waiting for more."""
        while self.leaving and self.is_calm and self._held is None and self.has_sent():
            try:
                kind, number, content = self._receive()
            except WorkerDied:  # the next wait for this worker raises it
                self.leaving.clear()
            else:
                self._give(next(iter(self.lanes.values())), kind, number, content)

    def _restart(self, first: int | None = None) -> None:
        """Has the worker continue with all running lanes after what was fetched."""
        self._held = None
        self.leaving.clear()
        running = sorted(
            [n for n in self._states if self.lanes[n].is_running],
            key=lambda n: (n != first, len(self.lanes[n].ready)),
        )
        if running:
            states, skip = {n: self._states[n] for n in running}, self._skipping is not None
            self.has_begun = True
            self._pool.worker(self._index).start(states, skip=skip, quarantine=self._quarantine)

    def fetch(self, lane: WorkerLane) -> None:
        """Waits until ``lane`` has something; what comes for the others is theirs."""
        while lane.is_running and not lane.ready and lane.number in self.lanes:
            if self._quarantine is not None and self._num_careful <= 0:
                if self._must_report():
                    lane.failure = partial(pipeline_error, self._unexplained)
                    return
                self._quarantine = None
                self._restart()
            try:
                (kind, number, content), self._held = self._held or self._receive(), None
            except WorkerDied as death:
                lane.failure = partial(pipeline_error, self._death_text(death, lane.number))
                return
            self._give(lane, kind, number, content)

    def _give(self, awaited: WorkerLane, kind: int, number: int, content: Any) -> None:
        """Gives a lane what has come for it, or the one that is awaited what is for none."""
        lane = awaited if kind == PASSED else self.lanes.get(number)
        if lane is None:
            return  # it was in use for something else when the worker computed this
        if kind in (LEFT, END, ERROR):
            self.leaving.discard(number)
        if kind == LEFT:
            self.left.append((lane, self._states.pop(number)))
            del self.lanes[number]
            return
        if not lane.is_running:
            return  # it follows something that could not be unpickled
        if kind in (END, PASSED):
            lane.failure = (
                partial(pipeline_error, self._unexplained) if self._must_report() else None
            )
            lane.has_ended = lane.failure is None and kind == END
            lane.final = content if lane.has_ended else None
            if kind == PASSED and lane.failure is None:  # it is reported elsewhere
                self._quarantine = None
                self._restart()
        elif kind == ERROR:
            lane.failure = content
        else:
            elements, states, error = content
            num = len(elements)
            self.num_received += num
            if num:
                self._states[lane.number], self._is_suspected = states[num - 1], False
                if self._suspect is not None and self._lane_of(self._suspect) == lane.number:
                    self._suspect = None
            self._num_careful -= num
            lane.ready.extend(zip(elements, repeat(states), range(num)))
            if error is not None:
                lane.failure = self._not_unpickled(error, lane.number)

    def _receive(self) -> tuple[int, int, Any]:
        """Return the worker's next message, or that of one that takes its place.

        Raises:
            WorkerDied: it died, and there is no use in trying again.
        """
        while True:
            worker = self._pool.workers[self._index]
            try:
                return worker.receive(_PATIENCE_SECONDS if self._unexplained else None)
            except WorkerBusy:
                self._restart(self._skipping)
            except WorkerSilent:
                if self._must_report():
                    return PASSED, 0, None
            except WorkerDied as death:
                if not self._goes_on(death, worker):
                    raise
                self._restart(self._skipping)

    def _goes_on(self, death: WorkerDied, worker: Any) -> bool:
        """True if another worker continues where one has died; false if it would do the same."""
        incident = worker.transport.incident()
        if incident is None:
            return self._takes_care(death, worker.transport.unfinished())
        if not incident.concerns(worker):
            return True
        # Where others were at work as well, it is only known after two deaths at the same.
        is_sure = incident.num_suspects <= 1 or self._is_suspected
        self._died, self._is_suspected = worker, True
        is_careful = self._takes_care(death, worker.transport.unfinished(), is_sure=is_sure)
        incident.is_reported |= not (is_careful and self._unexplained)
        return is_careful

    def _must_report(self) -> bool:
        """True if there was a death that nothing else reports."""
        died, self._died = self._died, None
        if self._unexplained and died is not None and not died.transport.incident().is_for(died):
            self._unexplained = ""
        return bool(self._unexplained)

    def _takes_care(self, death: WorkerDied, entries: list[Entry], *, is_sure: bool = True) -> bool:
        """Decides how another worker continues; false if it would do the same."""
        num = max([entry.stop for entry in entries if entry.who == OUTPUTS_MADE], default=0)
        reading = [entry for entry in entries if entry.who != OUTPUTS_MADE]
        is_known = is_sure and len(reading) == 1 and reading[0].stop - reading[0].start == 1
        refused = {} if self._quarantine is None else self._quarantine.refused
        if is_known and reading[0][:2] not in refused:
            who, index, _ = reading[0]
            self._unexplained, self._suspect = "", (who, index)
            self._quarantine = Quarantine(
                {**refused, (who, index): self._accusation(death, who, index)}
            )
        elif not is_sure or (self._quarantine is None and (reading or num > 1)):
            if reading:
                lane = self._lane_of(reading[0])
            else:
                lane = next(n for n in self._states if self.lanes[n].is_running)
            self._unexplained = self._death_text(death, lane)
            self._quarantine = Quarantine(
                {}, {who: max([e.stop for e in reading if e.who == who]) for who, _, _ in reading}
            )
        else:
            return False
        self._num_careful = (num if self._unexplained and not reading else CAREFUL_OUTPUTS) * len(
            self.lanes
        )
        return True

    def skip(self, lane: WorkerLane, state: object) -> Any:
        """See ``Shard``."""
        lane.failure = None
        self._states[lane.number] = state
        if self._unexplained:
            self._unexplained, self._quarantine = "", None
            self._restart()
            return None
        try:
            if (
                self._suspect is not None
                and self._lane_of(self._suspect) == lane.number
                and self._has_passed(lane, self._suspect)
            ):
                return None
            self._skipping = lane.number
            self._restart(lane.number)
            kind, _, content = self._receive()
        except WorkerDied as death:
            raise pipeline_error(self._death_text(death, lane.number)) from None
        if kind != SKIPPED:
            raise content()
        self._skipping = None
        self._states[lane.number] = content
        return self._states[lane.number]

    def _has_passed(self, lane: WorkerLane, suspect: tuple[int, int]) -> bool:
        """True if the next output comes when the record that killed is read again."""
        self._suspect = None
        assert self._quarantine is not None
        self._quarantine = Quarantine(
            {key: text for key, text in self._quarantine.refused.items() if key != suspect}
        )
        self._restart(lane.number)
        message = self._receive()
        self._suspect = None
        if message[0] == ERROR:
            return False
        self._held = message
        return True
