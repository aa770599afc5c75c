"""Groups of workers in Ray actors.

Guarantees:

1. Actors and what they have sent belong to this process: they end with it, for any reason, since
   Ray ends what belongs to a process that is gone. Those of a pool without a name end with the
   pool, which ends as one of processes does (see ``pool``): within 5 s after the iterator was
   dropped or has ended, unless another iterator of the dataset takes them over.
2. For an actor that is lost Ray is asked for another one, on whichever node has room. Until it is
   there it is not among ``available``.
3. Only ``wait`` waits for an actor, as long as there is none at all, and it says what it waits for.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable

import numpy as np
import ray

from gristmill.core.ray_options import RayOptions
from gristmill.workers.handle import WorkerHandle
from gristmill.workers.payload import Payload, accelerator_free
from gristmill.workers.ray_actor import ActorHandle, ActorSettings, ObjectRef, actor_class
from gristmill.workers.ray_transport import RayTransport
from gristmill.workers.registry import registry
from gristmill.workers.setup import Part

_log = logging.getLogger("gristmill")

_LOOK_SECONDS = 0.25
_FIRST_WARNING_SECONDS = 5.0
_STORE_SHARE = 0.5  # of the smallest object store that there is
_NAMESPACE = "gristmill"

# actors of pools with a name that this process has asked for: they last as long as it does
_named: dict[str, ActorHandle] = {}


class _ActorSlot:
    """An actor that is requested, again if it is lost.

    Args:
        index: its number.
        make: asks Ray for an actor.
    """

    def __init__(self, index: int, make: Callable[[int], ActorHandle]) -> None:
        self.index = index
        self._make = make
        self.ask()

    def ask(self) -> None:
        """Asks for an actor."""
        self.place: tuple[str, int] | None = None  # where it is, if it is there
        self.actor = self._make(self.index)
        self.answer = self.actor.place.remote()

    def is_up(self) -> bool:
        """True if the actor exists.

        Raises:
            RuntimeError: it cannot be started.
        """
        if self.place is None and ray.wait([self.answer], timeout=0)[0]:
            try:
                self.place = ray.get(self.answer)
            except ray.exceptions.RayError as error:
                if isinstance(error, ray.exceptions.RuntimeEnvSetupError) or "creation task" in str(
                    error
                ):
                    raise RuntimeError(
                        f"Ray actor {self.index} could not be started. gristmill and what the"
                        " pipeline needs must be installed on every node, or named in runtime_env."
                        f" Ray says: {error}"
                    ) from error
                self.ask()
        return self.place is not None


class RayPool:
    """``WorkerPool`` with actors in place of processes.

    Args:
        payload: the payload of the workers.
        options: which actors.
    """

    # Starting actors takes long. With the time that Ray takes to end them, this is below 5 s (1).
    idle_seconds = 3.0
    num_descriptors = 0

    def __init__(self, payload: Payload, options: RayOptions) -> None:
        self.idle_until = 0.0
        self.owner: Callable[[], object] = lambda: None
        self.on_start: Callable[[WorkerHandle[RayTransport]], None] | None = None
        self._workers: dict[int, WorkerHandle[RayTransport]] = {}
        self._options = options
        preamble = payload.preamble
        settings: ActorSettings = {
            "path": preamble["path"],
            "min_shared_bytes": preamble["min_shared_bytes"],
            "logs": preamble["logs"],
            "writable": options.writable,
        }
        self._environment = accelerator_free()
        stores = [
            node["Resources"].get("object_store_memory", 0) for node in ray.nodes() if node["Alive"]
        ]
        # or it would spill
        self.max_bytes_ahead = min(options.max_bytes_ahead, int(min(stores) * _STORE_SHARE))
        self._is_closed = False
        self._slots: list[_ActorSlot] = []
        self._class = actor_class()
        arrays = [np.frombuffer(part, np.uint8) for part in payload.parts[2:]]
        self._payload: ObjectRef | None = ray.put((settings, *payload.parts[:2], *arrays))
        try:
            self.resize(options.num_workers)
        except BaseException:
            self.close()
            raise

    @property
    def is_closed(self) -> bool:
        return self._is_closed or not ray.is_initialized()

    @property
    def workers(self) -> list[WorkerHandle[RayTransport]]:
        return [*self._workers.values()]

    def resize(self, num: int) -> None:
        """Requests ``num`` actors, and releases others."""
        while len(self._slots) > num:
            slot = self._slots.pop()
            self.close_worker(slot.index)
            self._end(slot)
        while len(self._slots) < num:
            self._slots.append(_ActorSlot(len(self._slots), self._make))

    def _make(self, index: int) -> ActorHandle:
        options = self._options
        env = dict(options.runtime_env or {})
        name = f"{options.pool}-{index}"
        named = (
            {}
            if options.pool is None
            else {"name": name, "namespace": _NAMESPACE, "get_if_exists": True}
        )
        actor = self._class.options(
            num_cpus=options.num_cpus,
            resources=dict(options.resources or {}),
            runtime_env=env or None,
            scheduling_strategy="SPREAD",
            **named,
        ).remote(
            {
                name: value
                for name, value in self._environment.items()
                if name not in env.get("env_vars", {})
            }
        )
        if options.pool is not None:
            _named[name] = actor
        return actor

    def _end(self, slot: _ActorSlot) -> None:
        if self._options.pool is None and ray.is_initialized():
            with contextlib.suppress(Exception):  # its cluster may be gone, and this one another
                ray.kill(slot.actor)

    def available(self) -> list[int]:
        """Returns the actors that are there.

        Raises:
            RuntimeError: none can be started, or Ray was shut down.
        """
        if self.is_closed:
            raise RuntimeError(
                "Ray was shut down, or the iterator closed, while it had or waited for actors"
            )
        return [slot.index for slot in self._slots if slot.is_up()]

    def wait(self) -> list[int]:
        """Waits until there is an actor.

        Raises:
            RuntimeError: none can be started, or Ray was shut down.
        """
        began = warned = time.monotonic()
        while not (found := self.available()):
            # Idle pools may have what this one waits for.
            registry.close_idle(lambda pool: isinstance(pool, RayPool))
            now = time.monotonic()
            if now - warned > _FIRST_WARNING_SECONDS:
                warned = now
                _log.warning("%s", self._what_it_waits_for(now - began))
            ray.wait([slot.answer for slot in self._slots], timeout=_LOOK_SECONDS)
        return found

    def _what_it_waits_for(self, seconds: float) -> str:
        options = self._options
        needed = {"CPU": options.num_cpus, **(options.resources or {})}
        total, free = ({name: found.get(name, 0) for name in needed} for found in _resources())
        return (
            f"Ray has started none of {len(self._slots)} actors for {seconds:.0f} s. Each needs"
            f" {needed}; the cluster has {total}, of which {free} are free. Other iterators of this"
            " program have actors of their own, too: share them by RayOptions(pool=...), close"
            " iterators that are not needed, or ask for less by num_cpus"
        )

    def worker(self, index: int) -> WorkerHandle[RayTransport]:
        """The worker in an actor that is there, or a new one in the place of one that has died."""
        worker = self._workers.get(index)
        if worker is None or not worker.is_alive():
            if worker is not None:
                worker.begin_close()
            slot = self._slots[index]
            assert slot.place is not None and self._payload is not None
            count, writable = self._options.num_workers, self._options.writable
            worker = WorkerHandle(
                index,
                RayTransport(slot.actor, index, count, slot.place, self._payload, writable),
            )
            self._workers[index] = worker
            if self.on_start is not None:
                self.on_start(worker)
        return worker

    def lose(self, index: int) -> None:
        """The actor has died."""
        self.close_worker(index)
        if index < len(self._slots):
            self._slots[index].ask()

    def close_worker(self, index: int) -> None:
        """Ends what an actor does for this pool."""
        worker = self._workers.pop(index, None)
        if worker is not None:
            worker.begin_close()

    def runs(self, payload: Payload, options: RayOptions) -> bool:
        """True if the pool runs exactly this task."""
        if self.is_closed or options != self._options or accelerator_free() != self._environment:
            return False
        _, *parts = ray.get(self._payload)
        return len(parts) == len(payload.parts) and all(map(_is_equal, parts, payload.parts))

    def close(self) -> None:
        """Ends it; may be called again, by several threads."""
        registry.close([self])

    def begin_close(self) -> None:
        """Refuses further use."""
        self._is_closed = True

    def finish_close(self, deadline: float) -> None:
        """Lets go of the actors."""
        while self._slots:
            self._end(self._slots.pop())
        self._workers.clear()
        self._payload = None

    def forget(self) -> None:
        """Drops what belongs to the parent, in a forked process."""
        self._is_closed = True
        for worker in self.workers:
            worker.forget()


def _is_equal(part: Part, other: Part) -> bool:
    a, b = np.frombuffer(part, np.uint8), np.frombuffer(other, np.uint8)
    return len(a) == len(b) and bool((a == b).all())


def _resources() -> tuple[dict[str, float], dict[str, float]]:
    """Returns all resources of the cluster, and the free ones."""
    return ray.cluster_resources(), ray.available_resources()
