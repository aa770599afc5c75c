"""The Ray cluster that this program uses."""

from __future__ import annotations

import logging
import os
import sys
import types
from functools import cache
from types import ModuleType

from gristmill.core.errors import missing_package

_log = logging.getLogger("gristmill")

_LOOPBACK = "127.0.0.1"
# on Linux, too: with 0, Ray takes the loopback address for its own
_MAY_BE_REACHED = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
_REACHABLE = "ENABLE_RAY_CLUSTER"  # the same where Ray has been imported


def connected() -> ModuleType:
    """Ray, connected to a cluster: the one that this program uses already, that of ``RAY_ADDRESS``,
    or a new one of its own.

    Raises:
        ImportError: it is not installed.
        RuntimeError: a new one could be reached from other machines.
    """
    try:
        import ray
    except ImportError:
        raise missing_package("ray", "ray", "RayOptions") from None
    if not ray.is_initialized():
        if os.environ.get("RAY_ADDRESS"):
            ray.init(log_to_driver=False)
        else:
            _start(ray)
    if os.getpid() != _user_of_ray():
        raise RuntimeError(
            "Ray cannot be used in a process that was forked from one that uses it: start it by"
            " spawn instead"
        )
    if ray.util.client.ray.is_connected():
        raise RuntimeError(
            "RayOptions needs a program that runs on a node of the cluster: Ray Client (ray://…)"
            " has no streams"
        )
    return ray


@cache
def _user_of_ray() -> int:
    """Returns the process that uses Ray, as one that is forked from it must not."""
    return os.getpid()


def cluster_cpus() -> int:
    """Returns the number of CPUs of the cluster to which this program is connected; 0 without
    one.
    """
    ray = sys.modules.get("ray")
    return (
        int(ray.cluster_resources().get("CPU", 0))
        if ray is not None and ray.is_initialized()
        else 0
    )


def _start(ray: ModuleType) -> None:
    constants: ModuleType | types.SimpleNamespace = sys.modules.get(
        "ray._private.ray_constants", types.SimpleNamespace()
    )
    before = os.environ.get(_MAY_BE_REACHED), getattr(constants, _REACHABLE, None)
    # for the processes that are started, and for this one
    os.environ[_MAY_BE_REACHED] = "0"
    setattr(constants, _REACHABLE, False)
    try:
        ray.init(address="local", include_dashboard=False, log_to_driver=False)
    finally:
        os.environ.pop(_MAY_BE_REACHED)
        if before[0] is not None:
            os.environ[_MAY_BE_REACHED] = before[0]
        setattr(constants, _REACHABLE, before[1])
    address = ray.util.get_node_ip_address()
    if address != _LOOPBACK:
        ray.shutdown()
        raise RuntimeError(
            f"a local Ray cluster would listen at {address}, where other machines can reach it, and"
            f" was ended. Start Python with {_MAY_BE_REACHED}=0 in its environment, or connect to a"
            " cluster of yours with ray.init(address=...) before"
        )
    cpus = ray.cluster_resources().get("CPU", 0)
    _log.warning(
        "Ray: this program is connected to no cluster, so a local one has been started, at %s, with"
        " %g CPUs. It ends with the program. To use a cluster, call ray.init(address=...) before,"
        " or set RAY_ADDRESS",
        address,
        cpus,
    )
