"""Workers in threads of this process, with the interfaces of ``WorkerProcess`` and ``WorkerPool``.

Guarantees:

1. A worker runs the same loop as a worker process (see ``workers.child``): order, states, errors,
   lanes and the limit of memory are the same. It loads a payload, too (see ``thread_payload``), so
   that functions are its own. Elements and errors are handed over as they are; they are neither
   pickled nor copied.
2. It is as far ahead as a process, where sizes of elements are estimated: see guarantee 3 there.
3. Threads start with the first ``start`` of a worker and end soon after the pool was closed. One
   that is in a user's function then ends when that returns. A worker that does not answer a new
   start within ``_ANSWER_SECONDS`` is replaced.
4. The consumer waits in ``receive`` alone, which a signal handler may leave at any point: what was
   lost then is computed again after the next ``start``. Neither side holds a lock while it waits
   for the other one.
5. ``SystemExit`` of a function ends the worker, and is reported as its death. All other exceptions
   are raised by the consumer.
6. In a forked process the pool is closed.
"""

from __future__ import annotations

import contextlib
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from gristmill.core.instruments import Wrap, shadow
from gristmill.dataset.ahead.pullahead import end_waits
from gristmill.dataset.ahead.sizes import Sampling, spread
from gristmill.dataset.ahead.threads import start_thread
from gristmill.dataset.engine.blocks import SavedPositions
from gristmill.dataset.executors.inline import raised_again
from gristmill.dataset.workers.task import PipelineTask
from gristmill.workers.child import (
    LARGE,
    MIN_BYTES,
    BoundedConnection,
    Disconnected,
    Failed,
    Worker,
)
from gristmill.workers.codec import MIN_SHARED_BYTES, Encoded
from gristmill.workers.crash_journal import Entry
from gristmill.workers.messages import (
    CALL,
    ERROR,
    LANES,
    OUTPUTS,
    REPORT,
    START,
    STARTED,
    TAKEN,
    Quarantine,
)
from gristmill.workers.process import WorkerBusy, WorkerDied, WorkerSilent
from gristmill.workers.registry import registry

_CLOSE = 0  # a command besides those of ``messages``: the worker is not needed any more
_DIED = 0  # a message besides those of ``messages``: how the worker has ended
_LOOK_SECONDS = 0.25  # between two looks at what else may end a wait
_ANSWER_SECONDS = 0.5  # to a new start of a worker that runs


class _Outputs:
    """Elements and the states after them. Its length is the number of bytes of the elements,
    estimated.
    """

    def __init__(self, elements: Sequence[Any], states: Sequence[Any], num_bytes: int) -> None:
        self.content = elements, states, None
        self._num_bytes = num_bytes

    def __len__(self) -> int:
        return self._num_bytes


class _HandsOver:
    """Encoder whose payloads are the objects themselves."""

    def __init__(self) -> None:
        self._sampling = Sampling()
        self._element_bytes = 0.0
        self._before = time.perf_counter()

    def encode(self, elements: Sequence[Any], states: Any) -> Encoded:
        now = time.perf_counter()
        if num := self._sampling.num_of(now - self._before):
            self._element_bytes = self._sampling.mean_bytes(spread(elements, num))
        self._before = now
        if isinstance(states, SavedPositions):
            states = states.without_stream()  # which has objects that are to end with the thread
        outputs: Any = _Outputs(elements, states, int(self._element_bytes * len(elements)))
        return Encoded(outputs, [], len(elements), None)

    def encode_state(self, state: Any) -> Any:
        return state

    def encode_error(self, error: BaseException) -> Any:
        return error

    def forget_allocated(self) -> None:
        pass


class _Channel(BoundedConnection):
    """Connection between a worker and its consumer. Queues may be used at any time, in finalizers,
    too.
    """

    def __init__(self, buffer_size: int) -> None:
        super().__init__(buffer_size)
        # kind, lane, generation, payload
        self.messages: queue.SimpleQueue[tuple[int, int, int, Any]] = queue.SimpleQueue()
        self.producer: Any = None
        # kind, generation, content
        self._commands: queue.SimpleQueue[tuple[int, int, Any]] = queue.SimpleQueue()
        self._unclaimed = [True]  # empty once a thread has claimed it
        self.is_closed = False

    def claim(self) -> bool:
        """Return True for the first thread that calls it."""
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False

    def post(self, kind: int, generation: int = 0, content: Any = None) -> None:
        """Send a command to the worker."""
        self._commands.put((kind, generation, content))

    def close(self, how: str = "was closed") -> None:
        """End both sides: the worker at its next command, the consumer when it has received what
        was sent before.
        """
        self.is_closed = True
        self.post(_CLOSE)
        self.messages.put((_DIED, 0, 0, how))

    def receive(self, *, wait: bool) -> None:
        """See ``Connection``."""
        try:
            self._obey(*self._commands.get(wait))
            while True:
                self._obey(*self._commands.get_nowait())
        except queue.Empty:
            pass

    def _obey(self, kind: int, generation: int, content: Any) -> None:
        if kind == _CLOSE:
            self.post(_CLOSE)  # for the worker's other thread
            raise Disconnected
        if kind == START:
            self._begin(generation, content)
        elif kind == CALL:
            self.calls.append(content)
        elif kind == LANES:
            self.changes.append(content)
        elif generation == self._generation:
            self._take_off()

    def send(
        self, kind: int, payload: Any, slots: Sequence[Any], num_elements: int = 0, lane: int = 0
    ) -> None:
        """See ``Connection``."""
        if kind == OUTPUTS:
            num_bytes = len(payload)
            is_large = num_bytes >= num_elements * MIN_SHARED_BYTES
            size = (
                num_elements,
                LARGE if is_large else max(num_bytes, num_elements * MIN_BYTES),
                num_bytes,
            )
            if not self._wait_for_room(*size):
                return
            self._put_on(*size)
        if self.start is None:
            self.messages.put((kind, lane, self._generation, payload))


def _work(channel: _Channel, load_task: Callable[[], PipelineTask], index: int, count: int) -> None:
    """Run a worker until its consumer closes the channel, or a function raises what is no
    ``Exception``.
    """
    if not channel.claim():  # the start of another thread was interrupted after that had begun
        return
    how, worker = "was closed", None
    try:
        try:
            producer: Any = load_task()(index, count, None)
            channel.frugal = producer
        except Exception as error:
            producer = Failed.to_start(error, index, count)
        channel.producer = producer
        worker = Worker(channel, _HandsOver(), producer, load_task)
        worker.run()
    except Disconnected:
        pass
    except BaseException as error:
        how = f"has raised {type(error).__name__}({', '.join(map(repr, error.args))})"
    channel.close(how)
    if worker is not None:
        worker.end()
    channel.take_all_off()
    if hasattr(channel.producer, "close"):
        channel.producer.close()
    channel.producer = channel.frugal = None  # the thread's own copies end with it


class ThreadWorker:
    """A worker, seen from the consumer. The methods are those of ``WorkerProcess``.

    Args:
        index: which worker it is.
        count: of how many.
        load_task: returns the thread's own copy of what it runs.
        buffer_size: the most elements that may wait to be taken.
    """

    def __init__(
        self, index: int, count: int, load_task: Callable[[], PipelineTask], buffer_size: int
    ) -> None:
        self.index = index
        self.usable = True
        self.generation = 0
        self.is_for_another = False
        self.last_report = b""
        self._channel = _Channel(buffer_size)
        self._work = partial(_work, self._channel, load_task, index, count)
        self._thread: threading.Thread | None = None
        self._death: str | None = None
        self._has_answered = False
        self._answer_by: float | None = None

    @property
    def process_id(self) -> int:
        return os.getpid()

    @property
    def place(self) -> str:
        """The name and the identity of its thread, in words."""
        return (
            "not started"
            if self._thread is None
            else f"thread {self._thread.name}, {self._thread.ident}"
        )

    def stacks(self) -> str:
        """Return the stack of its thread; empty if it does not run."""
        frame = None if self._thread is None else sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def is_alive(self) -> bool:
        return self.usable and self._death is None and not self._channel.is_closed

    def start(
        self, states: Mapping[int, Any], *, skip: bool = False, quarantine: Quarantine | None = None
    ) -> None:
        """See ``WorkerProcess.start``."""
        self.generation += 1
        self._answer_by = time.monotonic() + _ANSWER_SECONDS if self._has_answered else None
        self._channel.post(START, self.generation, (states, skip, quarantine))
        if self._thread is None:
            self._thread = start_thread(
                self._work, f"gristmill-worker-{self.index}", self._channel.close
            )

    def change_lanes(self, states: Mapping[int, Any], leaving: Sequence[int]) -> None:
        """See ``WorkerProcess.change_lanes``."""
        self._channel.post(LANES, content=({**states}, [*leaving]))

    def has_sent(self) -> bool:
        """See ``WorkerProcess.has_sent``."""
        return not self._channel.messages.empty()

    is_up = True  # a thread starts at once

    def call(self, function: bytes) -> None:
        """See ``WorkerProcess.call``."""
        self._channel.post(CALL, content=function)

    def unfinished(self) -> list[Entry]:
        """Return nothing: a crash also ends this process, which would ask for them."""
        return []

    def incident(self) -> Any:
        """See ``WorkerProcess.incident``."""
        return None

    def set_instruments(self, waiting: Wrap | None, receiving: Wrap | None) -> None:
        """See ``WorkerProcess.set_instruments``."""
        shadow(self, "_next_message", waiting)
        shadow(self, "receive", receiving)

    def receive(self, patience: float | None = None) -> tuple[int, int, Any]:
        """See ``WorkerProcess.receive``."""
        while True:
            kind, lane, generation, payload = self._next_message(patience)
            if kind == REPORT:
                self.last_report = payload
            if generation == self.generation:
                self._has_answered, self._answer_by = True, None
                if kind == OUTPUTS:
                    self._channel.post(TAKEN, generation)
                    return kind, lane, payload.content
                if kind == ERROR:
                    return kind, lane, partial(raised_again, payload, payload.__traceback__)
                if kind not in (STARTED, REPORT):
                    return kind, lane, payload

    def _next_message(self, patience: float | None) -> tuple[int, int, int, Any]:
        began = time.monotonic()
        while True:
            message = None
            with contextlib.suppress(queue.Empty):
                message = self._channel.messages.get(timeout=_LOOK_SECONDS)
            # An interrupt from here on has no queue.Empty as its context.
            if message is None:
                now = time.monotonic()
                if self._death is not None:
                    raise WorkerDied(self._death)
                if self._answer_by is not None and now > self._answer_by:
                    raise WorkerBusy
                if patience is not None and now > began + patience:
                    raise WorkerSilent
            elif message[0] == _DIED:
                self._death = self._death or message[3]
                raise WorkerDied(self._death)
            else:
                return message

    def share_memory(self) -> None:
        """Called when this process is forked."""

    def begin_close(self) -> None:
        """Asks the worker to stop, without waiting."""
        self._death = self._death or "was closed"
        self._channel.close()

    def close(self, deadline: float) -> None:
        """Waits until the worker has ended, or until ``deadline`` (``time.monotonic()``)."""
        self.begin_close()
        for it in getattr(self._channel.producer, "iterators", ()):
            end_waits(it)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def forget(self) -> None:
        """Called in a forked process, which does not have the thread."""
        self._death = "belongs to another process"


class ThreadPool:
    """``count`` threads that run one task, each for its own share."""

    kind_of_worker = "thread"  # in words
    num_descriptors = 0
    idle_seconds = 0.1  # too short to be taken over: a new thread starts at once

    def __init__(self, load_task: Callable[[], PipelineTask], count: int, buffer_size: int) -> None:
        self.idle_until = 0.0
        self.owner: Callable[[], object] = lambda: None
        self.on_start: Callable[[ThreadWorker], None] | None = None
        self._load_task, self._buffer_size = load_task, buffer_size
        self.workers: list[ThreadWorker] = []
        self._is_closed = False
        self.resize(count)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _make(self, index: int) -> ThreadWorker:
        worker = ThreadWorker(
            index, max(self._count, index + 1), self._load_task, self._buffer_size
        )
        if self.on_start is not None:
            self.on_start(worker)
        return worker

    def resize(self, count: int) -> None:
        """Have ``count`` workers. The last ones end without a wait."""
        self._count = count
        while len(self.workers) > count:
            registry.remove_worker(self.workers.pop())
        while len(self.workers) < count:
            self.workers.append(self._make(len(self.workers)))
            if self._is_closed:  # in the meantime
                self.workers[-1].begin_close()

    def worker(self, index: int) -> ThreadWorker:
        """Return the worker, or a new one in its place if it has ended or does not answer."""
        if not self.workers[index].is_alive():
            self.workers[index].begin_close()
            worker = self._make(index)
            self.workers[index] = worker
            if self._is_closed:  # in the meantime
                worker.begin_close()
        return self.workers[index]

    def close(self) -> None:
        """Ends the threads; may be called again, by several threads."""
        registry.close([self])

    def begin_close(self) -> None:
        """Refuse to be used again."""
        self._is_closed = True

    def finish_close(self, deadline: float) -> None:
        """Waits until the workers have ended, at the latest until ``deadline``."""
        for worker in self.workers:
            worker.close(deadline)

    def forget(self) -> None:
        """Called in a forked process, which does not have the threads."""
        self._is_closed = True
        for worker in self.workers:
            worker.forget()


def acquire_threads(
    load_task: Callable[[], PipelineTask], count: int, buffer_size: int
) -> ThreadPool:
    """Return a new pool, which is idle (see ``Registry.acquire``)."""
    return registry.acquire(
        partial(ThreadPool, load_task, count, buffer_size), lambda pool: False, ThreadPool, None
    )
