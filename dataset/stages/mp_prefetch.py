"""``mp_prefetch``: the pipeline so far, run by worker processes."""

from __future__ import annotations

import pickle
import threading
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar

from gristmill.core.errors import add_note
from gristmill.core.naming import transform_name
from gristmill.core.options import MultiprocessingOptions
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Length
from gristmill.dataset.bases.node import ancestors, spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, aside, parameters_of
from gristmill.dataset.bases.round_robin import RoundRobinIterator, Shard
from gristmill.dataset.slicing import num_elements_of_shares, slice_pipeline, worker_slice
from gristmill.dataset.states.values import Fetched
from gristmill.dataset.worker_task import PipelineTask, place
from gristmill.workers.logbook import OUTPUTS as OUTPUTS_MADE
from gristmill.workers.logbook import Entry
from gristmill.workers.messages import END, ERROR, PASSED, SKIPPED, Care
from gristmill.workers.pickling import dumps
from gristmill.workers.pool import Luggage, WorkerPool, hire, is_exiting, park, unpark
from gristmill.workers.process import WorkerBusy, WorkerDied, WorkerSilent
from gristmill.workers.remote_errors import decode_error, encode_error

T = TypeVar("T")

_PATIENCE_SECONDS = 0.5  # for the next element, where a death is still to be reported
_CAREFUL_OUTPUTS = 1000  # after a death: read-ahead may have been that far


class MultiprocessPrefetchParameters(Parameters):
    multiprocessing_options: MultiprocessingOptions = aside(in_text=True)
    worker_init_fn: Any = aside()
    sequential_slice: bool = aside()


class MultiprocessPrefetchIterDataset(IterDataset[T]):
    """The parent's elements, computed by ``num_workers`` processes, each of which has every ``num_workers``-th one.

    Order: one output of each worker in turn. State: that of every worker after its last delivered output. Cost: processes
    start with the first element, in about 0.1 s; then a message for each large output, or for many small ones.
    """

    _adds_step = False  # seeds are those of the same pipeline without workers
    _element_spec = spec_of_first_parent

    def __init__(
        self,
        parent: Any,
        options: MultiprocessingOptions,
        worker_init_fn: Callable[[int, int], Any] | None = None,
        sequential_slice: bool = False,
    ) -> None:
        super().__init__(parent)
        if worker_init_fn is not None and not callable(worker_init_fn):
            raise TypeError(f"worker_init_fn must be a callable of worker index and worker count, got {worker_init_fn!r:.200}")
        self._options = options
        self._worker_init_fn = worker_init_fn
        self._sequential_slice = bool(sequential_slice)
        for node in ancestors(parent):
            if isinstance(node, MultiprocessPrefetchIterDataset):
                raise ValueError(
                    f"{self} cannot be applied to a pipeline that already has {node}: workers do not start workers. "
                    "Keep one of them, the last one, and add up their numbers of workers"
                )
        self._parameters = MultiprocessPrefetchParameters(options, worker_init_fn, self._sequential_slice)
        slice_pipeline(parent, 0, options.num_workers, sequential=self._sequential_slice)  # raises if that is impossible

    def _num_elements(self) -> Length:
        return num_elements_of_shares(self._parent, self._options.num_workers, self._sequential_slice)

    def __iter__(self) -> DatasetIterator[T]:
        return MultiprocessPrefetchIterator(
            self._parent, self._options, self._worker_init_fn, sequential_slice=self._sequential_slice
        )


class MultiprocessPrefetchIterator(RoundRobinIterator[T]):
    _resting: WorkerPool | None = None  # the pool that was used last, if nobody else has taken it over
    _finalizer: Any = None
    _tell: Callable[[Any], None] | None = None  # is told of the pool that is used

    def __init__(self, ds: IterDataset[T], options: MultiprocessingOptions, init_fn: Any, *, sequential_slice: bool) -> None:
        super().__init__(ds, options.num_workers, sequential_slice=sequential_slice)
        self._options = options
        self._init_fn = init_fn
        self._held: list[WorkerPool] = []  # the pool that is in use; the finalizer has the list, too

    def __str__(self) -> str:
        return f"MultiprocessPrefetchIterator(multiprocessing_options={self._options})"

    @property
    def _pool(self) -> WorkerPool | None:
        return next(iter(self._held), None)

    @property
    def _work_options(self) -> Sequence[Any]:
        return [self._options, *super()._work_options]

    def _worker_processes(self) -> Sequence[Any]:
        return () if self._pool is None else self._pool.workers

    def _awaited_worker(self) -> str | None:
        shard = self._members.get(self._slot)
        return None if shard is None else f"worker {self._slot}, {shard}"

    def _tell_hired(self, tell: Callable[[Any], None] | None) -> None:
        self._tell = tell
        if tell is not None and self._pool is not None:
            tell(self._pool)

    def _share(self, index: int) -> IterDataset[T]:
        return slice_pipeline(self._ds, index, self._count, sequential=self._sequential_slice)

    def _open(self) -> Sequence[Shard]:
        if self._finalizer is None:
            finalizer = weakref.finalize(self, _park_all, self._held)
            finalizer.atexit = False
            self._finalizer = finalizer
        pool = self._pool
        while pool is None or pool.is_closed:
            self._held.clear()
            pool, self._resting = self._resting, None
            if pool is None:
                pool = self._hire()
            try:
                if unpark(pool):
                    self._held.append(pool)
                else:
                    pool = None
            except BaseException:
                self._park_unless_held(pool)
                raise
        if self._tell is not None:
            self._tell(pool)
        numbers = [None if self._sequential_slice else worker_slice(i, self._count) for i in range(self._count)]
        return [ProcessShard(pool, i, self._count, numbers[i]) for i in range(self._count)]

    def _park_unless_held(self, pool: WorkerPool | None) -> None:
        """After an interrupt: nobody else would end it."""
        if pool is not None and pool not in self._held:
            park(pool)

    def _hire(self) -> WorkerPool:
        options = self._ctx.options
        task = PipelineTask(self._ds, options, self._init_fn, self._sequential_slice)
        try:
            luggage = Luggage(
                task,
                {"buffer_size": self._options.per_worker_buffer_size, "min_shared_bytes": options.min_shm_size},
                self._options.worker_env or {},
            )
        except Exception as error:
            _explain_unpicklable(error, self._ds, self._init_fn)
            raise
        # What an init function has done to a process cannot be undone: the next iterator has others.
        return hire(luggage, self._count, self._ds if self._init_fn is None else None)

    def _rest(self) -> None:
        pool = self._pool
        if pool is not None:
            try:
                self._held.remove(pool)
                self._resting = pool
                park(pool)
            except BaseException:
                self._park_unless_held(pool)
                raise

    def __del__(self) -> None:
        pass  # the finalizer parks the processes, where close would end them and wait for that

    def close(self) -> None:
        super().close()
        pool = self._pool
        if pool is None and self._resting is not None and unpark(self._resting):
            pool = self._resting
        if pool is not None:
            pool.close()
        self._held.clear()
        for shard in self._members.values():
            shard.clear()


def _park_all(held: list[WorkerPool]) -> None:
    while held:
        park(held.pop())


class ProcessShard(Shard):
    """The share of one worker process.

    A worker that dies is replaced. The new one goes on from the last element that arrived, and carefully, as long as it is
    where the dead one was at work: it computes one output at a time and nothing ahead, so that all before a record that kills
    is delivered, and notes which it reads. If the record is known at which a worker died, an error that names it takes its place;
    to skip that means to try the record once more, which leaves it out if it kills again. If it is not, and nothing kills the
    new worker, the death is reported behind what the dead one was at, or as soon as the next element is slow.
    """

    def __init__(self, pool: WorkerPool, index: int, count: int, numbers: slice | None) -> None:
        super().__init__()
        self._pool = pool
        self._index = index
        self._count = count
        self._numbers = numbers
        self._state: Any = None  # after the last element that was fetched
        self._failure: Exception | None = None  # what unpickling the next element raised
        self._skips = False
        self._care: Care | None = None
        self._num_careful = 0  # outputs to go carefully
        self._unexplained = ""  # a death that may be no element's fault
        self._accused: tuple[int, int] | None = None  # what the last worker that died was reading
        self._held: tuple[int, Any] | None = None  # a message that has been received ahead

    def __str__(self) -> str:
        return place(self._state, self._numbers)

    def start(self, state: Any) -> None:
        self._start(state)

    def _start(self, state: Any, *, skip: bool = False) -> None:
        self._state, self._failure, self._skips, self._held = state, None, skip, None
        self._pool.worker(self._index).start(state, skip=skip, care=self._care)

    def _receive(self) -> tuple[int, Any]:
        """The worker's next message, or that of one that takes its place.

        Raises:
            WorkerDied: it died, and there is no use in trying again.
        """
        while True:
            worker = self._pool.workers[self._index]
            try:
                return worker.receive(_PATIENCE_SECONDS if self._unexplained else None)
            except WorkerBusy:
                worker.usable = False
                self._start(self._state, skip=self._skips)
            except WorkerSilent:
                return PASSED, b""
            except WorkerDied as death:
                if not self._takes_care(death, worker.unfinished()):
                    raise
                self._start(self._state, skip=self._skips)

    def _takes_care(self, death: WorkerDied, entries: list[Entry]) -> bool:
        """Decides how another worker goes on where one has died; false if it would do the same."""
        num = max([entry.stop for entry in entries if entry.who == OUTPUTS_MADE], default=0)
        reading = [entry for entry in entries if entry.who != OUTPUTS_MADE]
        is_known = len(reading) == 1 and reading[0].stop - reading[0].start == 1
        refused = {} if self._care is None else self._care.refused
        if is_known and reading[0][:2] not in refused:
            who, index, _ = reading[0]
            self._unexplained, self._accused = "", (who, index)
            self._care = Care({**refused, (who, index): self._accusation(death, who, index)})
        elif self._care is None and (reading or num > 1):
            self._unexplained = self._obituary(death)
            self._care = Care({}, {who: max([e.stop for e in reading if e.who == who]) for who, _, _ in reading})
        else:
            return False
        self._num_careful = num if self._unexplained and not reading else _CAREFUL_OUTPUTS
        return True

    def fetch(self) -> list[Fetched] | Callable[[], BaseException] | None:
        if self._failure is None:
            if self._care is not None and self._num_careful <= 0:
                if self._unexplained:
                    return partial(RuntimeError, self._unexplained)
                self._care = None
                self._start(self._state)
            try:
                (kind, content), self._held = self._held or self._receive(), None
            except WorkerDied as death:
                if is_exiting() and threading.current_thread() is not threading.main_thread():
                    raise SystemExit from None  # which ends a thread in silence
                return partial(RuntimeError, self._obituary(death))
            if kind in (END, PASSED):
                return partial(RuntimeError, self._unexplained) if self._unexplained else None
            if kind == ERROR:
                return partial(decode_error, content)
            elements, states, self._failure = content
            self._num_careful -= len(elements)
            if elements:
                self._state, self._accused = states[len(elements) - 1], None
                return [(element, states, i) for i, element in enumerate(elements)]
        assert self._failure is not None
        add_note(
            self._failure,
            f"An output of worker {self._index} of {self._count}, {place(self._state, self._numbers)}, "
            "was received and could not be unpickled.",
        )
        return partial(decode_error, encode_error(self._failure))

    def skip(self, state: Any) -> Any:
        if self._unexplained:
            self._unexplained, self._care = "", None
            self._start(state)
            return None
        try:
            if self._accused is not None and self._is_innocent(state, self._accused):
                return None
            self._start(state, skip=True)
            kind, content = self._receive()
        except WorkerDied as death:
            raise RuntimeError(self._obituary(death)) from None
        if kind != SKIPPED:
            raise decode_error(content)
        self._skips = False
        self._state = pickle.loads(content)
        return self._state

    def _is_innocent(self, state: Any, accused: tuple[int, int]) -> bool:
        """Whether the next output comes when a record at which a worker died is read once more."""
        self._accused = None
        assert self._care is not None
        self._care = Care({key: text for key, text in self._care.refused.items() if key != accused})
        self._start(state)
        message = self._receive()
        self._accused = None
        if message[0] == ERROR:
            return False
        self._held = message
        return True

    def _obituary(self, death: WorkerDied) -> str:
        return (
            f"{self._death(death)}, {place(self._state, self._numbers)}. "
            "Nothing is lost: it.set_state(it.get_state()) goes on from the last delivered element with a new process"
        )

    def _accusation(self, death: WorkerDied, who: int, index: int) -> str:
        where = f"at element {index} of its input {who}" if who else place({"next_index": index}, self._numbers, exact=True)
        return (
            f"{self._death(death)}, {where}. Nothing is lost: it.skip_failed() goes on without that, "
            "it.set_state(it.get_state()) tries it once more"
        )

    def _death(self, death: WorkerDied) -> str:
        return f"Worker process {self._index} of {self._count} was terminated unexpectedly: it {death}"


def _explain_unpicklable(error: Exception, ds: IterDataset[Any], init_fn: Any) -> None:
    """Notes at ``error`` which of the user's objects cannot be pickled."""
    parts = []
    for node in [*ancestors(ds)][::-1]:
        held = {**parameters_of(node).as_dict(), **vars(node)}
        parts += [(node, name, value) for name, value in held.items() if name not in ("_parents", "_parameters")]
    for node, name, value in [*parts, (None, "worker_init_fn", init_fn)]:
        try:
            dumps(value)
        except Exception:
            owner = "" if node is None else f" of {node}"
            add_note(
                error,
                f"The pipeline cannot be sent to worker processes: {name.lstrip('_')}{owner}, {transform_name(value):.200}, "
                "cannot be pickled. Make it without what cannot be copied to another process (open files, locks, "
                "connections), or make that when it is first used",
            )
            return
