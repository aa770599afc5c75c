"""The Ray cluster that this program uses."""

from __future__ import annotations

import logging
import os
import sys
from typing import Any

from gristmill.core.errors import missing_package

_log = logging.getLogger("gristmill")

_LOOPBACK = "127.0.0.1"
_MAY_BE_REACHED = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"  # on Linux, too: with 0, Ray takes the loopback address for its own


def connected() -> Any:
    """Ray, connected to a cluster: the one that this program uses already, that of ``RAY_ADDRESS``, or a new one of its own.

    Raises:
        ImportError: it is not installed.
        RuntimeError: a new one could be reached from other machines.
    """
    if "ray" not in sys.modules and not os.environ.get("RAY_ADDRESS"):
        os.environ.setdefault(_MAY_BE_REACHED, "0")  # read when it is imported
    try:
        import ray
    except ImportError:
        raise missing_package("ray", "ray", "RayOptions") from None
    if ray.is_initialized():
        return ray
    if os.environ.get("RAY_ADDRESS"):
        ray.init(log_to_driver=False)
        return ray
    _start(ray)
    return ray


def _start(ray: Any) -> None:
    constants = sys.modules.get("ray._private.ray_constants")
    before = getattr(constants, "ENABLE_RAY_CLUSTER", False)
    try:
        if constants is not None:
            constants.ENABLE_RAY_CLUSTER = False  # type: ignore[attr-defined]
        ray.init(address="local", include_dashboard=False, log_to_driver=False)
    finally:
        if constants is not None:
            constants.ENABLE_RAY_CLUSTER = before  # type: ignore[attr-defined]
    address = ray.util.get_node_ip_address()
    if address != _LOOPBACK:
        ray.shutdown()
        raise RuntimeError(
            f"a local Ray cluster would listen at {address}, where other machines can reach it, and was ended. Start Python with "
            f"{_MAY_BE_REACHED}=0 in its environment, or connect to a cluster of yours with ray.init(address=...) before"
        )
    cpus = ray.cluster_resources().get("CPU", 0)
    _log.warning(
        "Ray: this program is connected to no cluster, so a local one has been started, at %s, with %g CPUs. It ends with the "
        "program. To use a cluster, call ray.init(address=...) before, or set RAY_ADDRESS",
        address,
        cpus,
    )
