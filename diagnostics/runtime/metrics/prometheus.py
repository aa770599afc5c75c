"""The metrics of this process's pipelines for Prometheus (the extra ``prometheus``)."""

from __future__ import annotations

import errno
import logging
import os
import sys
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.core.errors import as_int, missing_package
from gristmill.core.locks import Lock
from gristmill.dataset import watching
from gristmill.diagnostics.runtime.metrics.totals import FAMILIES, Family, Key, Metrics
from gristmill.workers.setup import is_worker

if TYPE_CHECKING:
    from prometheus_client import Metric

_log = logging.getLogger("gristmill")

_PORT = 9431
_ADDRESS = "127.0.0.1"
_TRUE = ("1", "true", "yes", "on")


class _Telemetry(NamedTuple):
    settings: tuple[int, str, Any]
    metrics: Metrics
    registry: Any
    collector: _Collector
    server: Any  # the server and its thread, or None


_active: _Telemetry | None = None
_lock = Lock()


def start_telemetry(
    port: int = _PORT,
    address: str = _ADDRESS,
    *,
    registry: Any = None,  # a CollectorRegistry, of a package that may be missing
) -> Any:
    """Returns a registry with the metrics of all pipelines whose iterators are made from now on,
    and serves it.

    Prometheus finds them at ``http://<address>:<port>/metrics``: Grain's under the names they have
    there (``grain_python_…``), and others, which begin with ``gristmill_``, for each pipeline and
    its stages. Worker processes are counted with the process that they work for. Observing a
    pipeline takes about a microsecond for each ``next``; therefore only some of the reads of a
    source are looked at, and stand for the others, where they take less than about 0.1 ms.

    If the port is taken, the metrics are not served, and a line in the log says so. Called again
    with other arguments, it serves them there instead. In worker processes it does nothing.

    The environment can ask for it: with ``ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY=true`` it is called
    by ``import gristmill``, with the port ``PYGRAIN_PROMETHEUS_PORT`` (0: not at all) and the
    address ``GRISTMILL_PROMETHEUS_ADDRESS``. The variables
    ``GRISTMILL_ENABLE_PROMETHEUS_TELEMETRY`` and ``GRISTMILL_PROMETHEUS_PORT`` mean the same and
    come first.

    If ``PROMETHEUS_MULTIPROC_DIR`` is set, the metrics that other processes have written there are
    served, too.

    Args:
        port: where to serve; 0 serves nothing.
        address: of the network interface to listen at; ``"0.0.0.0"`` is all of them.
        registry: where to register the metrics, such as ``prometheus_client.REGISTRY``; by default
            a new one.

    Raises:
        TypeError: ``port`` is not an integer.
        ValueError: it is not in [0, 65535], or ``registry`` has metrics of these names.
        OSError: the address is not one of this machine, or this user may not use the port.
        ImportError: the package ``prometheus-client`` is missing.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> registry = start_telemetry(port=0)
        >>> elements = list(MapDataset.source([5, 6, 7]).to_iter_dataset())
        >>> registry.get_sample_value("grain_python_dataset_next_duration_ns_count")
        3
        >>> stop_telemetry()
    """
    global _active
    port = as_int("port", port, minimum=0, maximum=65535)
    try:
        from prometheus_client import CollectorRegistry
    except ImportError:
        raise missing_package("prometheus-client", "prometheus", "start_telemetry") from None
    settings = port, address, registry
    if is_worker():
        return registry or CollectorRegistry()
    with _lock:
        if _active is not None and _active.settings == settings:
            return _active.registry
        metrics = Metrics() if _active is None else _active.metrics
        stop_telemetry()
        _active = _started(settings, metrics)
        watching.exporters.append(metrics.add)
        return _active.registry


def _started(settings: tuple[int, str, Any], metrics: Metrics) -> _Telemetry:
    from prometheus_client import CollectorRegistry

    port, address, registry = settings
    if registry is None:
        registry = CollectorRegistry()
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry.register(_OtherProcesses(os.environ["PROMETHEUS_MULTIPROC_DIR"]))
    collector = _Collector(metrics)
    registry.register(collector)
    try:
        server = _serve(port, address, registry) if port else None
    except BaseException:
        registry.unregister(collector)
        raise
    return _Telemetry(settings, metrics, registry, collector, server)


def stop_telemetry() -> None:
    """Serves no metrics any more, and observes no new pipelines; those that are in use are observed
    until their end.
    """
    global _active
    with _lock:
        telemetry, _active = _active, None
        if telemetry is None:
            return
        watching.exporters.remove(telemetry.metrics.add)
        telemetry.registry.unregister(telemetry.collector)
        if telemetry.server is not None:
            server, thread = telemetry.server
            server.shutdown()
            server.server_close()
            thread.join()


def start_from_environment() -> None:
    """Starts what the environment asks for; called by ``import gristmill``, which never fails
    because of it.
    """
    is_asked_for = _variable(
        "ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY", "GRISTMILL_ENABLE_PROMETHEUS_TELEMETRY"
    )
    processes = sys.modules.get("multiprocessing.process")
    is_child = processes is not None and processes.parent_process() is not None
    if is_asked_for.lower() not in _TRUE or is_worker() or is_child:
        return
    text = _variable("PYGRAIN_PROMETHEUS_PORT", "GRISTMILL_PROMETHEUS_PORT")
    try:
        port = int(text) if text else _PORT
        if not port:
            return
        start_telemetry(port, os.environ.get("GRISTMILL_PROMETHEUS_ADDRESS", _ADDRESS))
        if _active is not None and _active.server is None:
            stop_telemetry()  # the counts would not be visible
    except ImportError as error:
        _log.info("there are no metrics: %s", error)
    except Exception as error:
        _log.warning("there are no metrics: %s", error)


def _variable(name: str, own_name: str) -> str:
    return os.environ.get(own_name) or os.environ.get(name, "")


def _serve(port: int, address: str, registry: Any) -> Any:
    from prometheus_client import start_http_server

    try:
        server = start_http_server(port, address, registry)
    except OSError as error:
        if error.errno != errno.EADDRINUSE:
            raise
        _log.warning(
            "the metrics are not served: port %d is in use, perhaps by another process that serves"
            " its own",
            port,
        )
        return None
    _log.info("metrics are at http://%s:%d/metrics", address, port)
    return server


def _forget() -> None:
    """Drops the server in a forked process: the port is the parent's, and no thread serves it."""
    global _active, _lock
    _lock = Lock()
    telemetry, _active = _active, None
    if telemetry is not None:
        watching.exporters.remove(telemetry.metrics.add)
        if telemetry.server is not None:
            telemetry.server[0].socket.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


class _Collector:
    """Makes metrics of what is known at the moment."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics

    def describe(self) -> Iterator[Metric]:
        return _exposed({})

    def collect(self) -> Iterator[Metric]:
        return _exposed(self._metrics.read())


class _OtherProcesses:
    """Metrics that processes of other programs have written to a directory, without those with
    names used here.
    """

    def __init__(self, directory: str) -> None:
        self._directory = directory

    def describe(self) -> Iterable[Metric]:
        return []

    def collect(self) -> Iterable[Metric]:
        from prometheus_client.multiprocess import MultiProcessCollector

        kind: Any = MultiProcessCollector  # it is not typed
        try:
            found = [*kind(None, self._directory).collect()]
        except Exception as error:
            # no such directory, or a file in it that is being removed or is broken
            _log.warning(
                "the metrics in PROMETHEUS_MULTIPROC_DIR=%s cannot be read: %s",
                self._directory,
                error,
            )
            return []
        ours = {family.name for family in FAMILIES}
        return [metric for metric in found if metric.name not in ours]


def _exposed(numbers: dict[Key, list[int] | float]) -> Iterator[Metric]:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

    kinds: dict[str, Any] = {
        "counter": CounterMetricFamily,
        "gauge": GaugeMetricFamily,
        "histogram": HistogramMetricFamily,
    }
    metrics = {x: kinds[x.kind](x.name, x.text, labels=x.labels) for x in FAMILIES}
    alone = [x for x in FAMILIES if x.kind == "histogram" and not x.labels]
    for (family, labels), values in ({(x, ()): [0] for x in alone} | numbers).items():
        if family.kind == "histogram":
            assert isinstance(values, list)
            metrics[family].add_metric(labels, *_buckets(family, values))
        else:
            metrics[family].add_metric(labels, values[0] if isinstance(values, list) else values)
    return iter(metrics.values())


def _buckets(family: Family, values: list[int]) -> tuple[list[tuple[str, int]], int]:
    """Returns the number of values at or below each limit, and the total."""
    from prometheus_client.utils import floatToGoString

    text: Any = floatToGoString  # as above
    *counts, total = values
    limits = [(text(limit), sum(counts[: limit.bit_length() + 1])) for limit in family.buckets]
    return [*limits, ("+Inf", sum(counts))], total
