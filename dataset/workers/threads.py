"""Workers in threads of this process, and pools of them.

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
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeAlias

from gristmill.dataset.ahead.pullahead import end_waits
from gristmill.dataset.ahead.sizes import Sampling, spread
from gristmill.dataset.ahead.threads import start_thread
from gristmill.dataset.engine.blocks import SavedPositions
from gristmill.dataset.executors.inline import raised_again
from gristmill.dataset.workers.task import PipelineTask
from gristmill.workers.child import Worker
from gristmill.workers.codec import MIN_SHARED_BYTES, Encoded
from gristmill.workers.connections import BoundedConnection, Disconnected, Size
from gristmill.workers.crash_journal import Entry
from gristmill.workers.handle import Incident, WorkerDied, WorkerHandle
from gristmill.workers.producers import Failed, Producer, is_closing, is_frugal
from gristmill.workers.protocol import (
    CLOSE,
    ERROR,
    LARGE,
    OUTPUTS,
    START,
    TAKEN,
    Header,
    counted_bytes,
)
from gristmill.workers.registry import registry

_DIED = 0  # a message besides those of ``protocol``: how the worker has ended
_LOOK_SECONDS = 0.25  # between two looks at what else may end a wait
_ANSWER_SECONDS = 0.5  # to a new start of a worker that runs

# Kind, lane, generation and content of a message.
_Message: TypeAlias = tuple[int, int, int, object]


class _Outputs:
    """Elements and the states after them, and the number of bytes of the elements, estimated."""

    def __init__(self, elements: Sequence[object], states: object, num_bytes: int) -> None:
        self.content = elements, states, None
        self.num_bytes = num_bytes


class _HandsOver:
    """Encoder whose payloads are the objects themselves."""

    def __init__(self) -> None:
        self._sampling = Sampling()
        self._element_bytes = 0.0
        self._before = time.perf_counter()

    def encode(self, elements: Sequence[object], states: object) -> Encoded[object]:
        now = time.perf_counter()
        if num := self._sampling.num_of(now - self._before):
            self._element_bytes = self._sampling.mean_bytes(spread(elements, num))
        self._before = now
        if isinstance(states, SavedPositions):
            states = states.without_stream()  # which has objects that are to end with the thread
        num_bytes = int(self._element_bytes * len(elements))
        return Encoded(_Outputs(elements, states, num_bytes), [], len(elements), None, num_bytes)

    def encode_state(self, state: object) -> object:
        return state

    def encode_error(self, error: BaseException) -> object:
        return error

    def forget_allocated(self) -> None:
        pass


class _Channel(BoundedConnection[object]):
    """Connection between a worker and its consumer, for use at any time."""

    def __init__(self, buffer_size: int) -> None:
        super().__init__(buffer_size)
        self.messages: queue.SimpleQueue[_Message] = queue.SimpleQueue()
        self.producer: Producer | None = None
        # kind, generation, content
        self._commands: queue.SimpleQueue[tuple[int, int, object]] = queue.SimpleQueue()
        self._unclaimed = [True]  # empty once a thread has claimed it
        self.is_closed = False

    def claim(self) -> bool:
        """Return True for the first thread that calls it."""
        try:
            return self._unclaimed.pop()
        except IndexError:
            return False

    def post(self, kind: int, generation: int = 0, content: object = None) -> None:
        """Send a command to the worker."""
        self._commands.put((kind, generation, content))

    def close(self, how: str = "was closed") -> None:
        """End the worker at its next command, the consumer after what was sent before."""
        self.is_closed = True
        self.post(CLOSE)
        self.messages.put((_DIED, 0, 0, how))

    def receive(self, *, wait: bool) -> None:
        """See ``Connection``."""
        try:
            self._obey(*self._commands.get(wait))
            while True:
                self._obey(*self._commands.get_nowait())
        except queue.Empty:
            pass

    def _obey(self, kind: int, generation: int, content: object) -> None:
        if kind == CLOSE:
            self.post(CLOSE)  # for the worker's other thread
            raise Disconnected
        super()._obey(kind, generation, content)

    def send(
        self, kind: int, payload: object, slots: list[object], num_elements: int = 0, lane: int = 0
    ) -> None:
        """See ``Connection``."""
        if kind == OUTPUTS:
            assert isinstance(payload, _Outputs)
            num_bytes = payload.num_bytes
            is_large = num_bytes >= num_elements * MIN_SHARED_BYTES
            counted = LARGE if is_large else counted_bytes(num_elements, num_bytes)
            size = Size(num_elements, counted, num_bytes)
            if not self._wait_for_room(size):
                return
            self._put_on(size)
        if self.start is None:
            self.messages.put((kind, lane, self._generation, payload))


def _work(channel: _Channel, load_task: Callable[[], PipelineTask], index: int, count: int) -> None:
    """Run a worker until its consumer closes the channel, or no ``Exception`` is raised."""
    if not channel.claim():  # the start of another thread was interrupted after that had begun
        return
    how, worker = "was closed", None
    try:
        try:
            producer: Producer = load_task()(index, count, None)
            channel.frugal = producer if is_frugal(producer) else None
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
    if channel.producer is not None and is_closing(channel.producer):
        channel.producer.close()
    channel.producer = channel.frugal = None  # the thread's own copies end with it


class ThreadTransport:
    """Carries commands to a thread and messages from it, in queues.

    Args:
        index: which worker it is.
        count: of how many.
        load_task: returns the thread's own copy of what it runs.
        buffer_size: the most elements that may wait to be taken.
    """

    answer_seconds = _ANSWER_SECONDS
    starts_at_once = True
    node = ""

    def __init__(
        self, index: int, count: int, load_task: Callable[[], PipelineTask], buffer_size: int
    ) -> None:
        self.usable = True
        self._name = f"gristmill-worker-{index}"
        self._channel = _Channel(buffer_size)
        self._work = partial(_work, self._channel, load_task, index, count)
        self._thread: threading.Thread | None = None
        self._death: str | None = None
        self._message: _Message | None = None  # that has come

    @property
    def process_id(self) -> int:
        return os.getpid()

    @property
    def place(self) -> str:
        """The name and the identity of its thread, in words."""
        if self._thread is None:
            return "not started"
        return f"thread {self._thread.name}, {self._thread.ident}"

    def stacks(self) -> str | None:
        """Return the stack of its thread; empty if it does not run."""
        frame = None if self._thread is None else sys._current_frames().get(self._thread.ident or 0)
        return "" if frame is None else "".join(traceback.format_stack(frame))

    def is_alive(self) -> bool:
        return self.usable and self._death is None and not self._channel.is_closed

    def has_sent(self) -> bool:
        """See ``Transport``."""
        return not self._channel.messages.empty()

    def send(self, kind: int, generation: int, content: object) -> None:
        """See ``Transport``."""
        self._channel.post(kind, generation, content)
        if kind == START and self._thread is None:
            self._thread = start_thread(self._work, self._name, self._channel.close)

    def wait(self, check: Callable[[], None]) -> None:
        """See ``Transport``."""
        while True:
            message = None
            with contextlib.suppress(queue.Empty):
                message = self._channel.messages.get(timeout=_LOOK_SECONDS)
            # An interrupt from here on has no queue.Empty as its context.
            if message is None:
                if self._death is not None:
                    raise WorkerDied(self._death)
                check()
            elif message[0] == _DIED:
                self._death = self._death or str(message[3])
                raise WorkerDied(self._death)
            else:
                self._message = message
                return

    def next(self) -> Header:
        """See ``Transport``."""
        assert self._message is not None
        return Header(*self._message[:3])

    def content(self, kind: int) -> object:
        """See ``Transport``."""
        assert self._message is not None
        content = self._message[3]
        if isinstance(content, _Outputs):
            return content.content
        if kind == ERROR:
            assert isinstance(content, BaseException)
            return partial(raised_again, content, content.__traceback__)
        return content

    def report(self) -> bytes:
        """See ``Transport``."""
        assert self._message is not None
        report = self._message[3]
        assert isinstance(report, bytes)
        return report

    def finish(self, header: Header, is_current: bool) -> None:
        """See ``Transport``."""
        self._message = None
        if is_current and header.kind == OUTPUTS:
            self._channel.post(TAKEN, header.generation)

    def unfinished(self) -> list[Entry]:
        """Return nothing: a crash also ends this process, which would ask for them."""
        return []

    def incident(self) -> Incident | None:
        """See ``Transport``."""
        return None

    def share_memory(self) -> None:
        """See ``Transport``."""

    def begin_close(self) -> None:
        """See ``Transport``."""
        self._death = self._death or "was closed"
        self._channel.close()

    def close(self, deadline: float) -> None:
        """See ``Transport``. There is no force."""
        self.begin_close()
        for it in getattr(self._channel.producer, "iterators", ()):
            end_waits(it)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(max(0.0, deadline - time.monotonic()))

    def forget(self) -> None:
        """See ``Transport``. The forked process does not have the thread."""
        self._death = "belongs to another process"


class ThreadPool:
    """``count`` threads that run one task, each for its own share."""

    kind_of_worker = "thread"  # in words
    num_descriptors = 0
    idle_seconds = 0.1  # too short to be taken over: a new thread starts at once

    def __init__(self, load_task: Callable[[], PipelineTask], count: int, buffer_size: int) -> None:
        self.idle_until = 0.0
        self.owner: Callable[[], object] = lambda: None
        self.on_start: Callable[[WorkerHandle[ThreadTransport]], None] | None = None
        self._load_task, self._buffer_size = load_task, buffer_size
        self.workers: list[WorkerHandle[ThreadTransport]] = []
        self._is_closed = False
        self.resize(count)

    @property
    def is_closed(self) -> bool:
        return self._is_closed

    def _make(self, index: int) -> WorkerHandle[ThreadTransport]:
        count = max(self._count, index + 1)
        transport = ThreadTransport(index, count, self._load_task, self._buffer_size)
        worker = WorkerHandle(index, transport)
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

    def worker(self, index: int) -> WorkerHandle[ThreadTransport]:
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
