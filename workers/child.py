"""The main loop of a worker process.

Guarantees:

1. It ends when its connection does: at once if it is idle, otherwise when it next looks. If the
   consumer's process ends, for any reason, the kernel kills it in that moment, even in the
   middle of C code (where the system can do that; elsewhere a thread does it).
2. Every element arrives, or an error in its place: elements are pickled here, in the loop that
   makes them.
3. It is never more than ``buffer_size`` elements ahead, or ``MAX_BYTES_AHEAD`` bytes of small
   ones, and one message; nor, if the producer is ``Frugal``, by more than one message that it does
   not afford.
4. An interrupt from the keyboard is not for it, and it writes nothing to the standard streams.
5. No element waits for one that comes after it: what is finished of a block that takes long is sent
   within twice ``_LATE_SECONDS``, by another thread.
6. It computes for several lanes, of whose elements the consumer needs one each in turn: always for
   the one of which the fewest were sent. So none waits for more than a block of each of the others.
   What follows the elements of a lane, an error or the end, leaves the others alone.
7. Where an element takes longer than ``_STUCK_SECONDS``, or forever, the other thread computes what
   the consumer needs of the other lanes before it, one element at a time, and nothing that comes
   after it.
8. It leaves a lane between two outputs, when nothing is left that was computed ahead for it (see
   ``Divided.is_drained``).
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import mmap
import os
import pickle
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from os import _exit as end_process  # at once, without waiting for other threads
from typing import Any, Generic, Protocol

from gristmill.core.instruments import Wrap, shadow_for_good
from gristmill.core.locks import Lock, Signal
from gristmill.core.pacing import BlockSize
from gristmill.workers.arena import Arena, Slot
from gristmill.workers.codec import Chunk, Encoded, Encoder
from gristmill.workers.connections import Connection, Disconnected, SocketConnection
from gristmill.workers.crash_journal import LOG_BYTES, CrashJournal
from gristmill.workers.flags import set_flags
from gristmill.workers.imports import timed_imports
from gristmill.workers.logs import log_like
from gristmill.workers.pickling import remember_received_classes
from gristmill.workers.producers import (
    Failed,
    Producer,
    Taken,
    Task,
    WatchedProducer,
    is_divided,
    is_frugal,
    is_renewed,
    is_sharing,
    is_watched,
)
from gristmill.workers.protocol import (
    END,
    ERROR,
    LEFT,
    OUTPUTS,
    PASSED,
    REPORT,
    SKIPPED,
    STARTED,
    Passed,
    States,
)
from gristmill.workers.setup import Part, Preamble
from gristmill.workers.turns import Turns

_log = logging.getLogger("gristmill")

_MAX_BLOCK = 2048  # elements
_MAX_BLOCK_BYTES = 1 << 17
_LATE_SECONDS = 0.01  # see guarantee 5
_STUCK_SECONDS = 0.5  # see guarantee 7


class Encodes(Protocol[Chunk]):
    """Interface of what makes the payloads of messages. An ``Encoder`` pickles; threads hand the
    objects over.
    """

    def encode(self, elements: Sequence[object], states: object) -> Encoded[Chunk]:
        """See ``Encoder``."""

    def encode_state(self, state: object) -> object:
        """See ``Encoder``."""

    def encode_error(self, error: BaseException) -> object:
        """See ``Encoder``."""

    def forget_allocated(self) -> None:
        """See ``Encoder``."""


class _SentLane:
    """A lane that has not ended.

    Args:
        number: which one.
        state: after its last element that was sent.
    """

    def __init__(self, number: int, state: object) -> None:
        self.number = number
        self.state = state
        self.num_sent = 0
        self.block_size = BlockSize()
        self.is_leaving = False


class Outbox(Generic[Chunk]):
    """Sends the outputs of lanes. The caller has the worker's lock."""

    def __init__(
        self, connection: Connection[Chunk], encoder: Encodes[Chunk], producer: Producer
    ) -> None:
        # asked what to send along; true: there is nothing after it
        self.report: Callable[[bool], bytes | None] | None = None
        self.lanes: list[_SentLane] = []  # that have not ended, in their turns
        self._connection = connection
        self._encoder = encoder
        self._producer = producer

    def encode(self, elements: Sequence[object], states: Sequence[object]) -> Encoded[Chunk]:
        try:
            return self._encoder.encode(elements, states)
        except BaseException as unpicklable:  # the states
            return Encoded(b"", [], 0, unpicklable, 0)

    def send_outputs(
        self, lane: _SentLane, message: Encoded[Chunk], states: Sequence[object]
    ) -> None:
        self._send_report(False)
        num = message.num_elements
        self._connection.send(OUTPUTS, message.payload, message.slots, num, lane.number)
        lane.num_sent += num
        lane.state = states[num - 1]

    def end_lane(self, lane: _SentLane, stop: BaseException) -> None:
        """Sends the outcome after the elements of ``lane``."""
        self.lanes = [] if isinstance(stop, Passed) else [x for x in self.lanes if x is not lane]
        if isinstance(stop, StopIteration | Passed):
            self._send_report(not self.lanes)
            final = self._encoder.encode_state(None if isinstance(stop, Passed) else stop.value)
            self._connection.send(
                END if isinstance(stop, StopIteration) else PASSED, final, [], lane=lane.number
            )
        else:
            self.send_error(stop, lane, is_last=not self.lanes)

    def change(self, added: States, leaving: Sequence[int]) -> None:
        """Compute more lanes from these states on, and get ready to leave others."""
        for number, state in added.items():
            lane = _SentLane(number, state)
            lane.num_sent = min([x.num_sent for x in self.lanes], default=0)
            try:
                self._producer.add(number, state)
            except BaseException as error:
                self.send_error(error, lane, is_last=not self.lanes)
            else:
                self.lanes = [lane, *self.lanes]
        for lane in self.lanes:
            lane.is_leaving |= lane.number in leaving

    def leave_drained(self) -> None:
        """Leave the lanes marked as leaving if their buffers are empty."""
        for lane in [x for x in self.lanes if x.is_leaving]:
            producer = self._producer
            assert is_divided(producer)
            producer.drain(lane.number)
            if producer.is_drained(lane.number):
                producer.remove(lane.number)
                self.lanes = [x for x in self.lanes if x is not lane]
                self._send_report(not self.lanes)
                self._connection.send(LEFT, self._encoder.encode_state(None), [], lane=lane.number)

    def send_error(self, error: BaseException, lane: _SentLane, *, is_last: bool) -> None:
        if isinstance(error, SystemExit):  # as if in the main program: the process ends
            raise error
        with contextlib.suppress(Exception):  # it shows objects of users
            self._producer.annotate(error, lane.number, lane.state)
        self._send_report(is_last)
        self._connection.send(ERROR, self._encoder.encode_error(error), [], lane=lane.number)

    def _send_report(self, is_last: bool) -> None:
        if self.report is not None:
            content = self.report(is_last)
            if content is not None:
                self._connection.send(REPORT, content, [])


class Worker(Generic[Chunk]):
    """Runs a producer. Others may watch it from outside: see ``WorkerHandle.call``,
    ``Outbox.report`` and ``set_instruments``.

    With ``turns``, it is one of several in this process.
    """

    def __init__(
        self,
        connection: Connection[Chunk],
        encoder: Encodes[Chunk],
        producer: Producer,
        load_task: Callable[[], Task],
        turns: Turns | None = None,
    ) -> None:
        self.outbox = Outbox(connection, encoder, producer)
        self._connection = connection
        self._encoder = encoder
        self._load_task = load_task
        self._turns = turns
        self.waited_ns = 0  # for its turns
        self.producer = producer
        self._watched = producer if is_watched(producer) else None
        # its holder may send: the thread that computes elements, but while it does
        self._lock = Lock()
        self._lane = _SentLane(0, None)  # of the block that is being computed
        self._num_taken = 0  # blocks
        self._num_sent = 0  # elements of that block
        self._has_several = False  # this block may have some that are finished before the last one
        self._changed = Signal()  # for the thread that watches them
        self._watcher: threading.Thread | None = None
        self._began = 0.0  # this block
        self._is_unlocked = False  # the other thread may send
        self._is_computing = False  # it still is
        self._is_over = False

    def set_instruments(
        self,
        starting: Wrap | None,
        encoding: Wrap | None,
        receiving: Wrap | None,
        storing: Wrap | None,
    ) -> None:
        """Lets an observer see when the producer is started and gets lanes, and time how long
        outputs are encoded, messages waited for, and stored where the connection has a store.
        """
        shadow_for_good(self.producer, "start", starting)
        if hasattr(self.producer, "add"):
            shadow_for_good(self.producer, "add", starting)
        shadow_for_good(self._encoder, "encode", encoding)
        shadow_for_good(self._connection, "receive", receiving)
        if hasattr(self._connection, "hand_over"):
            shadow_for_good(self._connection, "hand_over", storing)

    def run(self) -> None:
        with self._lock:
            while True:
                while self._connection.start is None:
                    self._connection.receive(wait=not self._connection.changes)
                    self._obey()
                    self._produce([], is_careful=False)  # unless it gets lanes, this does nothing
                start, self._connection.start = self._connection.start, None
                states, skip = start.states, start.skip
                self._connection.send(STARTED, b"", [])
                first = next(iter(states), 0)  # without any, it will get lanes when it runs
                if self._watched is not None:
                    self._watched.quarantine = start.quarantine
                if not self._gets_turn():
                    continue
                try:
                    started = self._start(states, skip=skip)
                except BaseException as error:
                    if states:
                        self.outbox.send_error(error, _SentLane(first, states[first]), is_last=True)
                    continue
                if skip:
                    state = self._encoder.encode_state(started[first])
                    self._connection.send(SKIPPED, state, [], lane=first)
                lanes = [_SentLane(*item) for item in started.items()]
                self._produce(lanes, is_careful=start.quarantine is not None)

    @property
    def num_workers(self) -> int:
        """The number of workers in this process."""
        return 1 if self._turns is None else len(self._turns.threads)

    def end(self) -> None:
        """Called when ``run`` has ended, and its connection, where the process continues."""
        self._is_over = self._has_several = True
        self._changed.set()
        if self._watcher is not None:
            self._watcher.join()

    def _gets_turn(self) -> bool:
        """Wait for a turn, which ends with ``_end_turn``; false if there is a new start before."""
        if self._turns is None:
            return True
        connection = self._connection
        since = time.monotonic()
        while not self._turns.take(connection.num_ahead, since):
            connection.receive(wait=False)
            self._obey()
            if connection.start is not None:
                return False
        self.waited_ns += int((time.monotonic() - since) * 1e9)
        return True

    def _end_turn(self) -> None:
        if self._turns is not None:
            self._turns.give_back()

    def _start(self, states: States, *, skip: bool) -> dict[int, object]:
        """Starts the producer, and ends the turn."""
        log = None if self._watched is None else self._watched.log
        try:
            if log is not None:
                log.begin(1)
            if self._connection.is_for_another and is_renewed(self.producer):
                self.producer.renew(self._load_task())
            self._connection.is_for_another = False
            return self.producer.start(states, skip=skip)
        finally:
            if log is not None:
                log.begin(0)
            self._end_turn()

    def _produce(self, lanes: list[_SentLane], *, is_careful: bool) -> None:
        """Sends elements until all lanes are at their ends or errors, or there is a new start.

        The consumer needs elements of the lanes in turn: next comes a block of the one of which the
        fewest were sent.
        """
        connection, self.outbox.lanes = self._connection, lanes
        while connection.start is None:
            if connection.changes:
                if not self._gets_turn():
                    break
                self._change_lanes()
            self.outbox.leave_drained()
            if not self.outbox.lanes or connection.start is not None:
                break
            lane = min(self.outbox.lanes, key=_num_sent)
            stop = self._send_block(lane, is_careful)
            if stop is not None:
                self.outbox.end_lane(lane, stop)
            else:
                connection.receive(wait=False)
                self._obey()
        if self._watched is not None:
            self._watched.end()

    def _change_lanes(self) -> None:
        """Obeys ``LANES``, and ends the turn."""
        try:
            while self._connection.changes:
                self.outbox.change(*self._connection.changes.pop(0))
        finally:
            self._end_turn()

    def _send_block(self, lane: _SentLane, is_careful: bool) -> BaseException | None:
        """Sends the next elements of ``lane``; returns the outcome after them, if that is no
        element.
        """
        self._encoder.forget_allocated()
        size = lane.block_size.now
        if not self._gets_turn():
            return None
        elements, states, stop = self._take(lane, size)
        num_taken, num_sent = len(elements), self._num_sent
        if num_sent:
            elements, states = elements[num_sent:], states[num_sent:]
        seconds, num_bytes, has_slots = 0.0, 0, False
        if elements:
            message = self.outbox.encode(elements, states)
            del elements  # their memory is used again
            seconds = time.perf_counter() - self._began
            num_bytes, has_slots = message.num_bytes, bool(message.slots)
            if self._watched is not None:
                self._watched.end()
            if message.num_elements:
                self.outbox.send_outputs(lane, message, states)
            stop = message.failure or stop
        is_heavy = bool(num_sent) or has_slots or num_bytes > _MAX_BLOCK_BYTES
        may_grow = 2 * num_bytes <= _MAX_BLOCK_BYTES and not is_careful
        lane.block_size.adapt(
            seconds, size, _MAX_BLOCK, num=num_taken, is_heavy=is_heavy, may_grow=may_grow
        )
        return stop

    def _take(self, lane: _SentLane, n: int) -> Taken:
        """The next output of the producer, and the end of the turn; the other thread may send a
        part of it meanwhile.
        """
        try:
            self._began = time.perf_counter()
            self._lane = lane
            self._num_taken += 1
            self._num_sent = 0
            if self._watched is not None:
                self._watched.begin(n)
                has_several = n > 1 or len(self.outbox.lanes) > 1
                if has_several != self._has_several:
                    self._watch_several(has_several)
            self._is_unlocked = self._is_computing = True
            self._lock.release()
            return self.producer.take(lane.number, n)
        finally:
            self._is_computing = False
            self._end_turn()
            if self._is_unlocked:
                self._lock.acquire()
                self._is_unlocked = False

    def _watch_several(self, has_several: bool) -> None:
        self._has_several = has_several
        self._changed.set()
        if has_several and self._watcher is None:
            self._watcher = threading.Thread(target=self._watch, name="gristmill-late", daemon=True)
            self._watcher.start()

    def _watch(self) -> None:
        """Sends what is finished of blocks whose next element takes long."""
        watched = self._watched
        assert watched is not None
        num_taken = 0
        with contextlib.suppress(Disconnected):  # the other thread will notice, or be killed
            while True:
                while not self._has_several:
                    self._changed.wait()
                if self._is_over:
                    return
                time.sleep(_LATE_SECONDS)
                if num_taken != self._num_taken:
                    num_taken = self._num_taken
                    continue
                with self._lock:
                    elements, states = watched.finished()
                    num = min(len(elements), len(states))
                    if num_taken == self._num_taken and num > self._num_sent:
                        states = states[self._num_sent : num]
                        message = self.outbox.encode(elements[self._num_sent : num], states)
                        if message.num_elements:
                            self._num_sent += message.num_elements
                            self.outbox.send_outputs(self._lane, message, states)
                    del elements
                    is_same = num_taken == self._num_taken
                    if is_same and len(self.outbox.lanes) > 1 and watched.quarantine is None:
                        self._go_on_beside(watched)

    def _go_on_beside(self, watched: WatchedProducer) -> None:
        """Sends the outputs of other lanes before an element that takes long."""
        stuck, connection = self._lane, self._connection
        while self._is_computing and connection.start is None:
            if time.perf_counter() <= self._began + _STUCK_SECONDS:
                return
            lane = _needed_before(stuck, self.outbox.lanes)
            if lane is None:
                return
            elements, states, stop = watched.take_beside(lane.number)
            if elements:
                message = self.outbox.encode(elements, states)
                del elements
                if message.num_elements:
                    self.outbox.send_outputs(lane, message, states)
                stop = message.failure or stop
            if isinstance(stop, SystemExit):  # it comes again, to the other thread
                return
            if stop is not None:
                self.outbox.end_lane(lane, stop)

    def _obey(self) -> None:
        while self._connection.calls:
            _call(self._connection.calls.pop(0), self)


def _call(function: bytes, worker: Worker[Chunk]) -> None:
    try:
        pickle.loads(function)(worker)
    except Exception:  # elements are what matters
        _log.warning("an observer of this worker failed", exc_info=True)


def _num_sent(lane: _SentLane) -> int:
    return lane.num_sent


def _needed_before(stuck: _SentLane, lanes: Sequence[_SentLane]) -> _SentLane | None:
    """Returns the first lane that the consumer needs an element of before one of ``stuck``."""
    place = lanes.index(stuck)
    needed = [
        x
        for i, x in enumerate(lanes)
        if x is not stuck and x.num_sent < stuck.num_sent + (i < place)
    ]
    return min(needed, key=_num_sent) if needed else None


def serve(
    connection: int,
    arena_fd: int,
    payload: int,
    lifeline: int,
    index: int,
    count: int,
    preamble: Preamble,
) -> None:
    """Runs a worker until its connection ends; then the process ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for fd in (connection, arena_fd, payload, lifeline):
        os.set_inheritable(fd, False)
    die_with(lifeline)
    end = SystemExit(0)
    try:
        if preamble.get("is_shared"):  # then the task is to let workers come
            _load(payload, preamble)(connection, preamble)
        else:
            channel = SocketConnection(
                connection, arena := Arena(arena_fd), preamble["buffer_size"]
            )
            made_worker(channel, arena, payload, index, count, preamble).run()
    except Disconnected:
        pass
    except SystemExit as error:
        end = error
    end_with(end)


def made_worker(
    channel: SocketConnection,
    arena: Arena,
    payload: int,
    index: int,
    count: int,
    preamble: Preamble,
    turns: Turns | None = None,
) -> Worker[Slot]:
    """A worker for the task in ``payload``, which is loaded.

    Raises:
        SystemExit: that is what the task wants.
    """
    page = arena.allocate(LOG_BYTES)
    assert page.offset == 0  # where the consumer looks for it
    log = CrashJournal(arena.view(page).data)
    encoder = Encoder(arena, preamble["min_shared_bytes"])
    load = partial(_load, payload, preamble)

    producer: Producer
    try:
        log.begin(1)
        producer = load()(index, count, encoder.allocate)
        log_like(preamble["logs"], index, count)
        log.begin(0)
    except SystemExit:
        raise
    except BaseException as error:
        producer = Failed.to_start(error, index, count)
    producer.log = log
    channel.frugal = producer if is_frugal(producer) else None
    if turns is not None and is_sharing(producer):
        producer.share(turns)
    return Worker(channel, encoder, producer, load, turns)


def _load(payload: int, preamble: Preamble) -> Any:
    """The task, from memory that all workers share; what they write to it stays their own."""
    memory = memoryview(
        mmap.mmap(payload, 0, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE)
    )
    return load_task(*[memory[start:stop] for start, stop in preamble["parts"]])


def load_task(setup: Part, task: Part, *buffers: Part) -> Any:
    """The task in the parts of a ``Payload``, in the surroundings that it is to have."""
    with timed_imports():
        calls, values, own = pickle.loads(setup)
        for function, args in calls:
            function(*args)
        loaded = pickle.loads(task, buffers=buffers)
    set_flags(values, own)
    remember_received_classes()
    return loaded


def die_with(lifeline: int) -> None:
    """Ends this process when the other end of a pipe is closed, which its owner's death does too.

    The kernel sends a signal then, which also ends a process whose GIL a function of C holds.
    """
    import fcntl

    if sys.platform == "linux":
        f_setsig = 10
        fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(lifeline, f_setsig, signal.SIGKILL)
        fcntl.fcntl(
            lifeline,
            fcntl.F_SETFL,
            fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC | os.O_NONBLOCK,
        )
        with contextlib.suppress(BlockingIOError):  # closed before the signal was ordered?
            os.read(lifeline, 1)
            end_process(1)
    else:
        # The only signal that pipes send on macOS is SIGIO, which is ignored there by default.
        with contextlib.suppress(ImportError, OSError):
            _exit_at(signal.SIGIO)
            fcntl.fcntl(lifeline, fcntl.F_SETOWN, os.getpid())
            fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)
        threading.Thread(target=_wait_for_end, args=(lifeline,), daemon=True).start()


def _exit_at(signal_number: int) -> None:
    """Has the C library end the process at a signal; a handler in Python would need the GIL."""
    import ctypes

    library = ctypes.CDLL(None)
    library.signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
    library.signal.restype = ctypes.c_void_p
    library.signal(signal_number, ctypes.cast(library._exit, ctypes.c_void_p))


def _wait_for_end(lifeline: int) -> None:
    os.read(lifeline, 1)
    end_process(1)


def end_with(error: SystemExit) -> None:
    """Ends the process: what users have registered is done, what the interpreter would take apart
    is left to the system.
    """
    with contextlib.suppress(BaseException):
        atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    end_process(error.code if isinstance(error.code, int) else int(error.code is not None))
