"""The worker processes below one iterator: one set, however many ``mp_prefetch`` there are.

Guarantees:

1. Several components (iterators of ``mp_prefetch``) of one pipeline run in processes that they
   share, at most as many as their ``num_workers`` add up to, and no more than there are CPUs for,
   or than the largest ``num_workers`` (see ``workers.shared_processes``). One component alone has
   processes of its own.
2. Nothing of it is observable but the number of processes: lanes, seeds, ``worker_index`` and
   ``worker_count``, elements, errors and states are a component's own, and so are memory and
   ``per_worker_buffer_size``. Only that component is set, closed, idle or restarted.
3. A component starts when it is first drawn from, or with ``start_prefetch``: one that never is has
   no process and no lanes.
4. In a process one component computes at a time, and another one while that waits for what it reads
   ahead, or takes longer than half a second: next the one whose consumer has the least to take. So
   no worker waits for the outputs of another that are not taken, or for what is stuck. Functions
   are called in threads, none of which is the main one.
5. When a process dies, all components with lanes in it continue after what had arrived. One of them
   says so: the one whose record was the reason; if that is not known, and nothing happens again
   where they were at work, the last that is past that.
6. Processes with an init function are a component's own, since what it does to them cannot be
   undone; so are those with another environment than the others have.
"""

from __future__ import annotations

from typing import Any

from gristmill.core.live import LiveObjects
from gristmill.dataset.bases.context import ComponentContext, IteratorContext
from gristmill.workers.shared_processes import SharedProcesses


class WorkerSet:
    """Of one pipeline."""

    def __init__(self) -> None:
        self.components: LiveObjects[Any] = LiveObjects()
        self.processes = SharedProcesses()


def join_workers(it: object, ctx: IteratorContext) -> WorkerSet:
    """Makes an iterator that has worker processes one of those of its pipeline."""
    outermost = ctx.outermost
    made = outermost.workers
    workers: WorkerSet = made.get("set") or made.setdefault("set", WorkerSet())
    workers.components.add(it)
    return workers


def shared_processes_of(it: object, ctx: IteratorContext) -> SharedProcesses | None:
    """Returns the set whose processes it shares; ``None`` without one."""
    workers = join_workers(it, ctx)
    # There may be more components later where the context is that of one component.
    is_alone = len(workers.components.all()) == 1 and not isinstance(ctx, ComponentContext)
    return None if is_alone else workers.processes
