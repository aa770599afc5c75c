"""Metrics for Prometheus, scraped over HTTP from pipelines at work."""

import itertools
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
import urllib.request

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

import gristmill as grain
from gristmill.dataset import watching
from gristmill.dataset.watching import observed_by
from gristmill.diagnostics.metrics import prometheus, totals
from gristmill.diagnostics.metrics.histogram import Histogram
from gristmill.diagnostics.metrics.prometheus import start_telemetry, stop_telemetry

NEXT = "grain_python_dataset_next_duration_ns"
READY = "grain_python_dataset_prefetch_buffer_ready_count"
READ = "grain_python_dataset_source_read_time_ns"
BYTES = "grain_python_data_sources_bytes_read_total"
LOADER = "grain_python_data_loader_iterator_get_next"
ELEMENTS = "gristmill_stage_elements_total"
SECONDS = 0.001  # so long that every read is timed


class SlowSource:
    """Reads take a while; every element has 80 bytes."""

    def __init__(self, length):
        self._length = length

    def __len__(self):
        return self._length

    def __getitem__(self, index):
        time.sleep(SECONDS)
        return np.full(10, index)

    def __repr__(self):
        return f"SlowSource({self._length})"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def text_at(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def scraped(place: int | CollectorRegistry) -> dict:
    """Values by the names of samples and their labels, from a port or what it would show."""
    text = text_at(place) if isinstance(place, int) else generate_latest(place).decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    keys = [(sample.name, *sample.labels.values()) for sample in samples]
    assert len(set(keys)) == len(keys)
    return {key: sample.value for key, sample in zip(keys, samples, strict=True)}


def buckets(values: dict, name: str, *labels: str) -> list[tuple[float, float]]:
    found = [(key, value) for key, value in values.items() if key[0] == f"{name}_bucket" and set(labels) <= set(key[1:])]
    return [(float(next(x for x in key[1:] if x not in labels)), value) for key, value in found]


@pytest.fixture
def port():
    number = free_port()
    start_telemetry(number)
    yield number
    stop_telemetry()


@pytest.fixture
def registry():
    yield start_telemetry(port=0)
    stop_telemetry()


def test_what_is_shown_is_what_has_happened(port):
    assert scraped(port)[f"{NEXT}_count",] == 0  # a metric is there before anything is counted
    it = iter(grain.MapDataset.source(SlowSource(30)).map(lambda x: x).to_iter_dataset().batch(5))
    assert len(list(it)) == 6
    values = scraped(port)
    output = observed_by(it).output
    assert (values[f"{NEXT}_count",], values[f"{NEXT}_sum",]) == (6, output.waited - output.waited_in_vain)
    assert values[f"{READ}_count", "SlowSource"] == 30
    assert values[BYTES, "SlowSource"] == 30 * 80
    assert values[f"{READ}_sum", "SlowSource"] >= 30 * SECONDS * 1e9
    assert dict(buckets(values, READ, "SlowSource"))[4.0**9] == 0  # less than SECONDS
    assert values[f"{READY}_count",] >= 6
    assert values[f"{LOADER}_count",] == 0
    stages = {key[-1].partition("(")[0]: value for key, value in values.items() if key[0] == ELEMENTS}
    assert stages == {"BatchDatasetIterator": 6, "PrefetchDatasetIterator": 30, "MapMapDataset": 30, "SourceMapDataset": 30}
    for name, labels, count in ((NEXT, (), 6), (READ, ("SlowSource",), 30), (READY, (), values[f"{READY}_count",])):
        counts = [value for _, value in buckets(values, name, *labels)]
        assert counts == sorted(counts)
        assert counts[-1] == count


def test_names_labels_and_buckets(port):
    list(grain.DataLoader(data_source=[b"abc"] * 3, sampler=grain.samplers.SequentialSampler(3), operations=[]))
    values = scraped(port)
    powers = [2.0**k for k in range(42)]
    limits = {
        (NEXT,): powers,
        (LOADER,): powers,
        (READ, "list"): [4.0**k for k in range(21)],
        (READY,): [0.0, *[2.0**k for k in range(17)]],
        ("gristmill_next_duration_ns", "pipeline-0"): powers,
    }
    for (name, *labels), expected in limits.items():
        assert [limit for limit, _ in buckets(values, name, *labels)] == [*expected, float("inf")]
    text = text_at(port)
    kinds = dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE"))
    assert kinds == {
        NEXT: "histogram",
        READY: "histogram",
        READ: "histogram",
        BYTES: "counter",
        LOADER: "histogram",
        "gristmill_next_duration_ns": "histogram",
        ELEMENTS: "counter",
        "gristmill_stage_time_ns_total": "counter",
        "gristmill_worker_restarts_total": "counter",
        "gristmill_stage_wait_ratio": "gauge",
        "gristmill_queue_depth": "gauge",
    }
    assert f'{BYTES}{{source="list"}} ' in text
    assert f'{READ}_bucket{{le="+Inf",source="list"}} ' in text


def test_each_power_of_two_is_the_upper_limit_of_its_bucket():
    values = [*[0] * 5, 1, 2, 3, 4, 5, 8, 9, 2**41, 2**41 + 1]
    counted = Histogram()
    for value in values:
        counted.add(value)
    shown, total = prometheus._buckets(totals.READY, [*counted.counts, counted.total])
    assert total == sum(values)
    assert shown[:6] == [("0.0", 5), ("1.0", 6), ("2.0", 7), ("4.0", 9), ("8.0", 11), ("16.0", 12)]
    assert shown[-1] == ("+Inf", len(values))
    shown, _ = prometheus._buckets(totals.NEXT, [*counted.counts, counted.total])
    assert shown[-2:] == [("2.199023255552e+12", len(values) - 1), ("+Inf", len(values))]


def test_workers_count_too_and_once_when_they_are_used_again(port):
    loader = grain.DataLoader(
        data_source=SlowSource(24),
        sampler=grain.samplers.SequentialSampler(24),
        operations=[grain.transforms.Batch(2)],
        worker_count=2,
    )
    for epoch in (1, 2):  # the second one has the processes of the first
        assert len(list(loader)) == 12
        values = scraped(port)
        assert values[f"{LOADER}_count",] == values[f"{NEXT}_count",] == 12 * epoch
        assert values[f"{READ}_count", "SlowSource"] == 24 * epoch
        assert values[BYTES, "SlowSource"] == 24 * 80 * epoch
        assert values[f"{READY}_count",] >= 12 * epoch
    stages = {key[-1].partition("(")[0]: value for key, value in values.items() if key[0] == ELEMENTS}
    assert stages["SampledMapDataset"] == 48
    assert stages["MultiprocessPrefetchIterator"] == 24
    assert {key[1] for key in values if key[0] == ELEMENTS} == {"pipeline-0"}  # equal pipelines, one after the other


def test_a_worker_that_is_replaced_is_counted(registry):
    it = iter(grain.MapDataset.source(SlowSource(40)).map(lambda x: (os.getpid(), x)).to_iter_dataset().mp_prefetch(workers(1)))
    process_id, _ = next(it)
    state = it.get_state()
    os.kill(process_id, signal.SIGKILL)
    with pytest.raises(RuntimeError, match="SIGKILL"):
        list(it)
    before = scraped(registry)
    it.set_state(state)
    assert len(list(it)) == 39
    after = scraped(registry)
    restarts = [value for key, value in after.items() if key[0] == "gristmill_worker_restarts_total"]
    assert restarts == [1]
    assert after[f"{READ}_count", "SlowSource"] >= before.get((f"{READ}_count", "SlowSource"), 0) + 39
    it.close()


def workers(num):
    return grain.MultiprocessingOptions(num_workers=num)


def test_gauges_are_those_of_pipelines_in_use(registry):
    it = iter(grain.MapDataset.source(SlowSource(50)).to_iter_dataset().batch(2))
    next(it)
    values = scraped(registry)
    ratios = [value for key, value in values.items() if key[0] == "gristmill_stage_wait_ratio"]
    assert sum(ratios) == pytest.approx(1, abs=0.001)
    (depth,) = [value for key, value in values.items() if key[0] == "gristmill_queue_depth"]
    assert 0 <= depth <= 50
    it.close()
    del it
    values = scraped(registry)
    assert not any(key[0] in ("gristmill_stage_wait_ratio", "gristmill_queue_depth") for key in values)
    assert values[f"{NEXT}_count",] == 1


def test_a_pipeline_that_is_left_early_is_counted_to_its_last_element(registry):
    it = iter(grain.MapDataset.range(1000).to_iter_dataset())
    for _ in range(333):
        next(it)
    del it
    assert scraped(registry)[f"{NEXT}_count",] == 333


def test_a_pipeline_may_have_a_name(registry):
    it = iter(grain.MapDataset.range(5).to_iter_dataset())
    observed_by(it).name = "train"
    list(it)
    assert scraped(registry)["gristmill_next_duration_ns_count", "train"] == 5


def test_no_counter_goes_back_while_pipelines_come_and_go(port):
    ds = grain.MapDataset.source([b"x"] * 40).map(lambda x: x).to_iter_dataset().batch(4)
    seen, done = [], threading.Event()

    def scrape():
        while not done.is_set():
            seen.append(scraped(port))

    thread = threading.Thread(target=scrape)
    thread.start()
    num_epochs = 0
    while num_epochs < 40 or (len(seen) < 5 and thread.is_alive()):
        list(ds)
        num_epochs += 1
    done.set()
    thread.join()
    seen.append(scraped(port))
    counted = ("_total", "_count", "_sum", "_bucket")
    for before, after in itertools.pairwise(seen):
        for key, value in before.items():
            if key[0].endswith(counted):
                assert after[key] >= value, key
    assert len(seen) > 5
    assert seen[-1][f"{NEXT}_count",] == 10 * num_epochs


def test_memory_does_not_grow_with_the_number_of_pipelines(registry):
    known = prometheus._active.metrics
    most = 0
    for i in range(160):
        list(grain.MapDataset.range(3 + i // 2).map(lambda x: x).to_iter_dataset())
        most = max(most, len(known._new) + len(known._live))
    assert most < 40
    assert registry.get_sample_value(f"{NEXT}_count") == 2 * sum(range(3, 83))
    names = {labels[0] for family, labels in known._totals if "pipeline" in family.labels}
    assert len(names) == len(known._forms) == totals._MAX_NAMES  # of 80 that differ


def test_a_source_in_the_place_of_a_source_counts_once(registry):
    inner = grain.MapDataset.source(SlowSource(5))
    list(grain.MapDataset.source(inner.map(lambda x: x)).to_iter_dataset())
    values = scraped(registry)
    assert [key for key in values if key[0] == f"{READ}_count"] == [(f"{READ}_count", "SlowSource")]
    assert values[f"{READ}_count", "SlowSource"] == 5


def test_pipelines_of_several_sources_are_one(registry):
    ds = grain.MapDataset.mix([grain.MapDataset.source(SlowSource(4)), grain.MapDataset.source(SlowSource(4))])
    list(ds.to_iter_dataset())
    it = grain.experimental.ZipIterDataset([grain.MapDataset.range(3).to_iter_dataset() for _ in range(2)])
    list(it)
    values = scraped(registry)
    assert values[f"{NEXT}_count",] == 8 + 3
    assert values[f"{READ}_count", "SlowSource"] == 8


def test_stopping_leaves_nothing():
    threads = threading.active_count()
    number = free_port()
    start_telemetry(number)
    scraped(number)
    stop_telemetry()
    stop_telemetry()  # nothing to stop
    assert not watching.exporters
    with pytest.raises(OSError):
        scraped(number)
    it = iter(grain.MapDataset.range(3).to_iter_dataset())
    assert next(it) == 0
    assert observed_by(it) is None
    assert threading.active_count() <= threads


def test_starting_again_moves_it_and_keeps_what_was_counted(port):
    registry = start_telemetry(port)
    assert start_telemetry(port) is registry
    list(grain.MapDataset.range(3).to_iter_dataset())
    other = free_port()
    start_telemetry(other)
    assert scraped(other)[f"{NEXT}_count",] == 3
    with pytest.raises(OSError):
        scraped(port)
    assert len(watching.exporters) == 1


def test_a_registry_of_the_user():
    mine = CollectorRegistry(auto_describe=True)
    assert start_telemetry(0, registry=mine) is mine
    try:
        list(grain.MapDataset.range(4).to_iter_dataset())
        assert mine.get_sample_value(f"{NEXT}_count") == 4
    finally:
        stop_telemetry()
    assert mine.get_sample_value(f"{NEXT}_count") is None


def test_a_port_that_is_taken_is_said_once(caplog):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        registry = start_telemetry(number)
        try:
            list(grain.MapDataset.range(4).to_iter_dataset())
            assert registry.get_sample_value(f"{NEXT}_count") == 4
        finally:
            stop_telemetry()
    (record,) = caplog.records
    assert f"port {number} is in use" in record.getMessage()


def test_mistakes():
    with pytest.raises(ValueError, match=r"port must be an integer in \[0, 65535\], got 65536"):
        start_telemetry(65536)
    with pytest.raises(TypeError, match="port must be an integer, got '9431'"):
        start_telemetry("9431")
    with pytest.raises(OSError):
        start_telemetry(free_port(), "203.0.113.1")  # of no machine
    assert not watching.exporters
    assert prometheus._active is None


def test_metrics_of_other_processes_are_served_and_cannot_break_ours(tmp_path, monkeypatch, caplog):
    script = (
        "from prometheus_client import Counter; Counter('other_things', 'x').inc(3); Counter('gristmill_stage_elements', 'x')"
    )
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}, check=True)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    number = free_port()
    start_telemetry(number)
    try:
        list(grain.MapDataset.range(4).to_iter_dataset())
        values = scraped(number)
        assert (values["other_things_total",], values[f"{NEXT}_count",]) == (3, 4)
        (tmp_path / "counter_1.db").write_bytes(b"d\0\0\0\0\0\0\0\xff\0\0\0" + b"x" * 88)
        values = scraped(number)
        assert ("other_things_total",) not in values
        assert values[f"{NEXT}_count",] == 4
        assert "PROMETHEUS_MULTIPROC_DIR" in caplog.text
    finally:
        stop_telemetry()


class Spiteful:
    @property
    def nbytes(self):
        raise RuntimeError("do not look at me")

    def __str__(self):
        raise RuntimeError("do not print me")


def test_elements_that_cannot_be_looked_at_pass(registry):
    elements = [Spiteful() for _ in range(20)]
    assert list(grain.MapDataset.source(elements).to_iter_dataset()) == elements
    values = scraped(registry)
    assert values[f"{NEXT}_count",] == 20
    assert values[BYTES, "list"] == 0


# What the environment asks for.

PROGRAM = """
    import logging, sys, threading
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    import gristmill as grain
"""


def run(script: str, **variables: str) -> subprocess.CompletedProcess:
    clean = {k: v for k, v in os.environ.items() if "PROMETHEUS" not in k}
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM) + textwrap.dedent(script)],
        env={**clean, **variables},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


SHOW = """
    import urllib.request
    list(grain.MapDataset.range(7).to_iter_dataset())
    text = urllib.request.urlopen("http://127.0.0.1:%d/metrics").read().decode()
    print(*[line for line in text.splitlines() if line.startswith("grain_python_dataset_next_duration_ns_count")])
    with open("/proc/net/tcp") as table:
        sockets = [line.split()[1:4] for line in table]
    print(*[local for local, _, state in sockets if local.endswith(":%04X") and state == "0A"])
"""


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
@pytest.mark.parametrize("own", [False, True])
def test_the_environment_starts_it(own):
    number = free_port()
    names = ("GRISTMILL_ENABLE_PROMETHEUS_TELEMETRY", "GRISTMILL_PROMETHEUS_PORT", "GRISTMILL_PROMETHEUS_ADDRESS")
    theirs = {"ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY": "True", "PYGRAIN_PROMETHEUS_PORT": str(number)}
    ours = dict(zip(names, ("TRUE", str(number), "127.0.0.1"), strict=True)) | {"PYGRAIN_PROMETHEUS_PORT": "1"}
    process = run(SHOW % (number, number), **(ours if own else theirs))
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == [
        "grain_python_dataset_next_duration_ns_count 7.0",
        f"0100007F:{number:04X}",  # of this machine alone
    ]
    assert process.stderr == f"INFO metrics are at http://127.0.0.1:{number}/metrics\n"


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_the_switch_alone_is_enough():
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", 9431))
        except OSError:
            pytest.skip("the default port is in use on this machine")
    process = run(SHOW % (9431, 9431), ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY="true")
    assert process.stdout.startswith("grain_python_dataset_next_duration_ns_count 7.0\n"), process.stderr


OFF = """
    list(grain.MapDataset.range(3).to_iter_dataset())
    print([t.name for t in threading.enumerate()], "prometheus_client" in sys.modules)
    print([name for name in sys.modules if name.startswith("gristmill.diagnostics.")])
"""


@pytest.mark.parametrize(
    "variables",
    [
        {"PYGRAIN_PROMETHEUS_PORT": "9431"},
        {"ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY": "true", "GRISTMILL_ENABLE_PROMETHEUS_TELEMETRY": "false"},
        {"ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY": "true", "PYGRAIN_PROMETHEUS_PORT": "0"},
    ],
)
def test_off_is_off(variables):
    process = run(OFF, **variables)
    threads, modules = process.stdout.splitlines()
    assert threads == "['MainThread'] False"
    if not any("ENABLE" in name for name in variables):
        assert modules == "[]"
    assert process.stderr == ""


def test_a_taken_port_or_nonsense_does_not_stop_the_import():
    script = """
    from gristmill.dataset import watching
    print(len(watching.exporters), [t.name for t in threading.enumerate()])
    """
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        process = run(script, ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY="true", PYGRAIN_PROMETHEUS_PORT=str(number))
    assert process.stdout == "0 ['MainThread']\n"
    assert process.stderr.count("\n") == 1
    assert f"port {number} is in use" in process.stderr
    process = run(script, ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY="true", PYGRAIN_PROMETHEUS_PORT="http")
    assert process.stdout == "0 ['MainThread']\n"
    assert process.stderr.startswith("WARNING there are no metrics")
    assert "'http'" in process.stderr


def test_without_the_package():
    block = "import sys; sys.modules['prometheus_client'] = None\n"
    script = """
    from gristmill.diagnostics.metrics.prometheus import start_telemetry
    try:
        start_telemetry()
    except ImportError as error:
        print(error)
    """
    program = block + textwrap.dedent(PROGRAM) + textwrap.dedent(script)
    process = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY": "true"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    missing = (
        "start_telemetry needs the package prometheus-client, which is not installed; run: pip install 'gristmill[prometheus]'"
    )
    assert process.stdout == f"{missing}\n"
    assert process.stderr == f"INFO there are no metrics: {missing}\n"


def test_workers_and_other_children_serve_nothing():
    number = free_port()
    script = """
    import multiprocessing, os, warnings
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where there are threads
    def state(_):
        import gristmill
        from gristmill.dataset import watching
        from gristmill.diagnostics.metrics import prometheus
        prometheus.start_telemetry(1)  # does nothing in a worker
        return prometheus._active is None and not watching.exporters and not [
            t for t in threading.enumerate() if t is not threading.main_thread() and not t.name.startswith("gristmill")
        ]
    ds = grain.MapDataset.range(4).map(state).to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
    print(list(ds))
    if not (child := os.fork()):
        from gristmill.dataset import watching
        from gristmill.diagnostics.metrics import prometheus
        grain.MapDataset.range(4)[0]
        os._exit(watching.exporters != [] or prometheus._active is not None)
    print(os.waitpid(child, 0)[1])
    """
    process = run(script, ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY="true", PYGRAIN_PROMETHEUS_PORT=str(number))
    assert process.stdout == "[True, True, True, True]\n0\n", process.stderr
    assert process.stderr == f"INFO metrics are at http://127.0.0.1:{number}/metrics\n"
