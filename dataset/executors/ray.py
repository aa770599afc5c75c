"""The executor of lanes that Ray actors compute."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

from gristmill.dataset.executors.pools import PoolExecutor
from gristmill.dataset.lanes.ray import LanesOnRay
from gristmill.workers.ray_cluster import connected
from gristmill.workers.registry import registry


class RayExecutor(PoolExecutor):
    """Computes lanes with actors, whose number may change.

    While ``receive`` waits, it looks twice a second for actors that were lost or have come, so that
    no lane waits for an actor that is lost. Where the cluster has no room for any actor, it waits
    until there is.
    """

    def __init__(self, options: Any, init_fn: Any) -> None:
        super().__init__(options, init_fn)
        self._may_share = False

    def _acquire(self) -> Any:
        connected()
        from gristmill.workers.ray_pool import RayPool

        payload, options = self._pack({}, {}), self._options
        make = partial(RayPool, payload, options)
        return registry.acquire(
            make, lambda pool: pool.runs(payload, options), RayPool, self._owner
        )

    def _start_in(self, pool: Any, states: Mapping[int, Any]) -> None:
        lanes = LanesOnRay(
            pool, self._options, self._num_workers, self._task.num_lanes, self._numbers()
        )
        self._use_lanes(lanes, states)
