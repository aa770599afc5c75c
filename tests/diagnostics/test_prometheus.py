"""Metrics for Prometheus, scraped over HTTP from pipelines at work."""

import contextlib
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
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from refusing import assert_raises

import gristmill as grain
from gristmill.dataset import watching
from gristmill.dataset.watching import observed_by
from gristmill.diagnostics.runtime.metrics import prometheus, totals
from gristmill.diagnostics.runtime.metrics.histogram import Histogram
from gristmill.diagnostics.runtime.metrics.prometheus import start_telemetry, stop_telemetry

NEXT = "grain_python_dataset_next_duration_ns"
READY = "grain_python_dataset_prefetch_buffer_ready_count"
READ = "grain_python_dataset_source_read_time_ns"
BYTES = "grain_python_data_sources_bytes_read_total"
LOADER = "grain_python_data_loader_iterator_get_next"
ELEMENTS = "gristmill_stage_elements_total"
OWN_NEXT = "gristmill_next_duration_ns"
FAULTS = "gristmill_faults_total"
RESTARTS = "gristmill_worker_restarts_total"
DECISIONS = "gristmill_worker_decisions_total"
GAUGES = (
    "gristmill_stage_wait_ratio",
    "gristmill_queue_depth",
    "gristmill_budget",
    "gristmill_budget_used",
)
GAUGES += tuple([f"gristmill_component_{what}" for what in ("elements", "lengths", "epochs")])
GAUGES += ("gristmill_long_elements", "gristmill_workers")
BUDGET_WAIT = "gristmill_budget_wait_ns_total"
SLOW = "SlowSource"
SECONDS = 0.001  # so long that every read is timed


class SlowSource(grain.sources.RangeDataSource):  # reads take a while; every element has 80 bytes
    def __getitem__(self, index):
        time.sleep(SECONDS)
        return np.full(10, super().__getitem__(index))


def slow(length):
    return grain.MapDataset.source(SlowSource(0, length, 1))


def numbers(length):
    return grain.MapDataset.range(length).to_iter_dataset()


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


def text_at(port):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        return answer.read().decode()


def scraped(place):
    """Values by the names of samples and their labels, from a port or what a registry would show
    there.
    """
    text = text_at(place) if isinstance(place, int) else generate_latest(place).decode()
    samples = [
        sample for family in text_string_to_metric_families(text) for sample in family.samples
    ]
    keys = [(sample.name, *sample.labels.values()) for sample in samples]
    assert len(set(keys)) == len(keys)
    return {key: sample.value for key, sample in zip(keys, samples, strict=True)}


def buckets(values, name, *labels):
    found = [
        (key, value)
        for key, value in values.items()
        if key[0] == f"{name}_bucket" and set(labels) <= set(key[1:])
    ]
    return [(float(next(x for x in key[1:] if x not in labels)), value) for key, value in found]


def elements_of_stages(values):
    return {key[-1].partition("(")[0]: value for key, value in values.items() if key[0] == ELEMENTS}


def of(values, name):
    return [value for key, value in values.items() if key[0] == name]


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
    it = iter(slow(30).map(lambda x: x).to_iter_dataset().batch(5))
    assert len(list(it)) == 6
    values, output, text = scraped(port), observed_by(it).output, text_at(port)
    assert (values[f"{NEXT}_count",], values[f"{NEXT}_sum",]) == (
        6,
        output.waited - output.waited_in_vain,
    )
    assert (values[f"{READ}_count", SLOW], values[BYTES, SLOW]) == (30, 30 * 80)
    assert values[f"{READ}_sum", SLOW] >= 30 * SECONDS * 1e9
    assert dict(buckets(values, READ, SLOW))[4.0**9] == 0  # less than SECONDS
    assert values[f"{READY}_count",] >= 6 and values[f"{LOADER}_count",] == 0
    expected = {
        "BatchDatasetIterator": 6,
        "PrefetchDatasetIterator": 30,
        "MapMapDataset": 30,
        "SourceMapDataset": 30,
    }
    assert elements_of_stages(values) == expected
    powers, ready = (
        [2.0**k for k in range(42)],
        ([0.0, *[2.0**k for k in range(17)]], values[f"{READY}_count",], READY),
    )
    every = (powers, 6, NEXT), (powers, 0, LOADER), (powers, 6, OWN_NEXT, "pipeline-0"), ready
    for limits, count, name, *labels in (*every, ([4.0**k for k in range(21)], 30, READ, SLOW)):
        shown, counts = zip(*buckets(values, name, *labels), strict=True)
        assert (
            [*shown] == [*limits, float("inf")]
            and [*counts] == sorted(counts)
            and counts[-1] == count
        )
    assert dict(line.split()[2:] for line in text.splitlines() if line.startswith("# TYPE")) == {
        **dict.fromkeys([NEXT, READY, READ, LOADER, OWN_NEXT], "histogram"),
        **dict.fromkeys(
            [
                BYTES,
                ELEMENTS,
                "gristmill_stage_time_ns_total",
                FAULTS,
                RESTARTS,
                DECISIONS,
                BUDGET_WAIT,
            ],
            "counter",
        ),
        **dict.fromkeys(GAUGES, "gauge"),
    }
    assert (
        f'{BYTES}{{source="{SLOW}"}} ' in text
        and f'{READ}_bucket{{le="+Inf",source="{SLOW}"}} ' in text
    )


def test_each_power_of_two_is_the_upper_limit_of_its_bucket():
    values = [*[0] * 5, 1, 2, 3, 4, 5, 8, 9, 2**41, 2**41 + 1]
    counted = Histogram()
    for value in values:
        counted.add(value)
    shown, total = prometheus._buckets(totals.READY, [*counted.powers, counted.total])
    first = [("0.0", 5), ("1.0", 6), ("2.0", 7), ("4.0", 9), ("8.0", 11), ("16.0", 12)]
    assert (shown[:6], shown[-1], total) == (first, ("+Inf", len(values)), sum(values))
    shown, _ = prometheus._buckets(totals.NEXT, [*counted.powers, counted.total])
    assert shown[-2:] == [("2.199023255552e+12", len(values) - 1), ("+Inf", len(values))]


def test_workers_count_too_and_once_when_they_are_used_again(port):
    sampler, batch = grain.samplers.SequentialSampler(24), grain.transforms.Batch(2)
    loader = grain.DataLoader(
        data_source=SlowSource(0, 24, 1), sampler=sampler, operations=[batch], worker_count=2
    )
    for epoch in (1, 2):  # the second one has the processes of the first
        assert len(list(loader)) == 12
        values = scraped(port)
        assert (
            values[f"{LOADER}_count",]
            == values[f"{NEXT}_count",]
            == 12 * epoch
            <= values[f"{READY}_count",]
        )
        assert (values[f"{READ}_count", SLOW], values[BYTES, SLOW]) == (24 * epoch, 24 * 80 * epoch)
    stages = elements_of_stages(values)
    assert (stages["SampledMapDataset"], stages["MultiprocessPrefetchIterator"]) == (48, 24)
    # equal pipelines, one after the other
    assert {key[1] for key in values if key[0] == ELEMENTS} == {"pipeline-0"}


def test_a_worker_that_is_replaced_is_counted(registry):
    options = grain.MultiprocessingOptions(num_workers=1, executor="processes")
    with iter(
        slow(40).map(lambda x: (os.getpid(), x)).to_iter_dataset().mp_prefetch(options)
    ) as it:
        process_id, _ = next(it)
        state = it.get_state()
        os.kill(process_id, signal.SIGKILL)
        assert_raises(RuntimeError, "SIGKILL", list, it)
        before = sum(of(scraped(registry), f"{READ}_count"))
        it.set_state(state)
        assert len(list(it)) == 39
        values = scraped(registry)
    assert of(values, RESTARTS) == [1] and values[f"{READ}_count", SLOW] >= before + 39


def test_gauges_are_those_of_pipelines_in_use_and_counts_of_all(registry):
    gate = threading.Event()  # until it is set, threads compute ahead
    ds = slow(50).map(lambda x: x if x[0] < 2 else gate.wait() and x)
    it = iter(ds.to_iter_dataset().batch(2))
    next(it)
    values = scraped(registry)
    gate.set()
    ratios, (depth,), (num_threads, _), (num_used, _) = [of(values, name) for name in GAUGES[:4]]
    assert num_threads >= num_used > 0
    assert sum(ratios) == pytest.approx(1, abs=0.001) and 0 <= depth <= 50
    it.close()
    it = iter(numbers(1000))
    assert [next(it) for _ in range(333)] == [*range(333)]
    del it  # it is left early
    values = scraped(registry)
    assert values[f"{NEXT}_count",] == 1 + 333 and not any([of(values, name) for name in GAUGES])
    it = iter(numbers(5))
    observed_by(it).name = "train"
    list(it)
    assert scraped(registry)[f"{OWN_NEXT}_count", "train"] == 5


def test_no_counter_goes_back_while_pipelines_come_and_go(port):
    ds = grain.MapDataset.source([b"x"] * 40).map(lambda x: x).to_iter_dataset().batch(4)
    done, num_epochs = threading.Event(), 0
    seen = []
    with ThreadPoolExecutor(1) as pool:
        scraping = pool.submit(
            lambda: [seen.append(scraped(port)) for _ in iter(done.is_set, True)]
        )
        while num_epochs < 40 or (len(seen) < 5 and not scraping.done()):
            num_epochs += len(list(ds)) // 10
        done.set()
        scraping.result()
    seen.append(scraped(port))
    for before, after in itertools.pairwise(seen):
        counted = [
            key for key in before if key[0].endswith(("_total", "_count", "_sum", "_bucket"))
        ]
        assert [key for key in counted if after[key] < before[key]] == []
    assert len(seen) > 5 and seen[-1][f"{NEXT}_count",] == 10 * num_epochs


def test_memory_does_not_grow_with_the_number_of_pipelines(registry):
    known = prometheus._active.metrics
    for i in range(160):
        list(grain.MapDataset.range(3 + i // 2).map(lambda x: x).to_iter_dataset())
        assert len(known._new) + len(known._live) < 40
    assert registry.get_sample_value(f"{NEXT}_count") == 2 * sum(range(3, 83))
    names = {labels[0] for family, labels in known._totals if "pipeline" in family.labels}
    assert len(names) == len(known._forms) == totals._MAX_NAMES  # of 80 that differ


class Spiteful:
    nbytes = property(lambda self: 1 // 0)
    __str__ = nbytes.fget


def test_sources(registry):
    # one in the place of another counts once
    list(grain.MapDataset.source(slow(5).map(lambda x: x)).to_iter_dataset())
    assert of(scraped(registry), f"{READ}_count") == [5]
    list(grain.MapDataset.mix([slow(4), slow(4)]).to_iter_dataset())  # pipelines of several are one
    list(grain.experimental.ZipIterDataset([numbers(3), numbers(3)]))
    values = scraped(registry)
    assert (values[f"{NEXT}_count",], values[f"{READ}_count", SLOW]) == (5 + 8 + 3, 5 + 8)
    elements = [Spiteful() for _ in range(20)]  # that cannot be looked at
    assert list(grain.MapDataset.source(elements).to_iter_dataset()) == elements
    values = scraped(registry)
    assert (values[f"{NEXT}_count",], values[BYTES, "list"]) == (16 + 20, 0)


def fails_at(*numbers):
    def fail(x):
        if x in numbers:
            raise ValueError(x)
        return x

    return fail


@pytest.mark.parametrize("workers", [0, 2])
def test_faults_are_counted_and_outlive_the_pipeline(registry, workers):
    steps = grain.MapDataset.range(60).map(fails_at(3, 17)).tolerate(max_rate=0.1).to_iter_dataset()
    ds = (
        steps.map(fails_at(50))
        .tolerate(max_total=9, max_rate=None)
        .mp_prefetch(grain.MultiprocessingOptions(workers))
    )
    by_index, of_stream = (
        "TolerateMapDataset(max_rate=0.1, then=skip)",
        "TolerateIterDataset(max_rate=None, then=skip)",
    )
    it = iter(ds)
    with grain.diagnostics.observe(it) as view:
        start, first = it.get_state(), [next(it) for _ in range(10)]
        assert view.summary().faults == {by_index: 1} and 3 not in first
        it.set_state(start)
        assert len(list(it)) == 57 and it.faults().total == 3
    line = f"faults tolerated: 2 by {by_index}, 1 by {of_stream}"
    for text in (str(view.summary()), view.summary()._repr_html_(), view.report()):
        assert line in text
    assert view.summary().to_dict()["faults"] == {by_index: 2, of_stream: 1}
    del it, view
    values = scraped(registry)
    assert (sum(of(values, FAULTS)), sum(of(scraped(registry), FAULTS))) == (3, 3)


def test_starting_again_moves_it_and_stopping_leaves_nothing(caplog):
    threads, first, second = threading.active_count(), free_port(), free_port()
    assert start_telemetry(first) is start_telemetry(first)
    list(numbers(3))
    start_telemetry(second)
    assert scraped(second)[f"{NEXT}_count",] == 3 and len(watching.exporters) == 1
    assert_raises(OSError, "refused", scraped, first)
    stop_telemetry()
    stop_telemetry()  # nothing to stop
    assert not watching.exporters
    assert_raises(OSError, "refused", scraped, second)
    it = iter(numbers(3))
    assert next(it) == 0 and observed_by(it) is None and threading.active_count() <= threads
    mine = CollectorRegistry(auto_describe=True)  # one of the user, where the port is taken
    with socket.create_server(("127.0.0.1", second)):
        assert start_telemetry(second, registry=mine) is mine
    list(numbers(4))
    assert mine.get_sample_value(f"{NEXT}_count") == 4
    stop_telemetry()
    assert mine.get_sample_value(f"{NEXT}_count") is None
    (record,) = caplog.records  # it is said once
    assert f"port {second} is in use" in record.getMessage()
    assert_raises(
        ValueError, r"port must be an integer in \[0, 65535\], got 65536", start_telemetry, 65536
    )
    assert_raises(TypeError, "port must be an integer, got '9431'", start_telemetry, "9431")
    assert_raises(OSError, None, start_telemetry, first, "203.0.113.1")  # of no machine
    assert not watching.exporters and prometheus._active is None


def test_metrics_of_other_processes_cannot_break_ours(tmp_path, monkeypatch, caplog, request):
    script = (
        "from prometheus_client import Counter; Counter('others', 'x').inc(3);"
        " Counter('gristmill_stage_elements', 'x')"
    )
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    subprocess.run([sys.executable, "-c", script], check=True)
    port = request.getfixturevalue("port")
    list(numbers(4))
    values = scraped(port)
    assert (values["others_total",], values[f"{NEXT}_count",]) == (3, 4)
    (tmp_path / "counter_1.db").write_bytes(b"d\0\0\0\0\0\0\0\xff\0\0\0" + b"x" * 88)
    values = scraped(port)
    assert (
        ("others_total",) not in values
        and values[f"{NEXT}_count",] == 4
        and "PROMETHEUS_MULTIPROC_DIR" in caplog.text
    )


# What the environment asks for.

PROGRAM = """
    import logging, os, sys, threading, urllib.request, warnings
    logging.basicConfig(format="%(levelname)s %(message)s", level=logging.INFO)
    warnings.simplefilter("ignore", DeprecationWarning)  # of a fork where there are threads
    if "missing" in sys.argv:
        sys.modules["prometheus_client"] = None
    import gristmill as grain
    from gristmill.dataset import watching
    list(grain.MapDataset.range(7).to_iter_dataset())
    own = [
        thread
        for thread in threading.enumerate()
        if not thread.name.startswith(("MainThread", "gristmill-read"))
    ]
    print(bool(own), "prometheus_client" in sys.modules, len(watching.exporters))
    if sys.argv[1] == "off":
        repr(grain.MapDataset.range(3).map(len))
        it = iter(grain.load([1, 2], num_epochs=1))
        print(
            list(it),
            it._iterator._ctx.joined,
            [name for name in sys.modules if name.startswith("gristmill.diagnostics")],
        )
        sys.exit()
    from gristmill.diagnostics.runtime.metrics import prometheus
    if "missing" in sys.argv:
        try:
            prometheus.start_telemetry()
        except ImportError as error:
            sys.exit(str(error))
    port = int(sys.argv[1])
    text = urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    print(
        *[
            line
            for line in text.splitlines()
            if line.startswith("grain_python_dataset_next_duration_ns_count")
        ]
    )
    with open("/proc/net/tcp") as table:
        sockets = [line.split()[1:4] for line in table]
    print(
        *[local for local, _, state in sockets if local.endswith(f":{port:04X}") and state == "0A"]
    )
    if "children" not in sys.argv:
        sys.exit()
    def state(_):
        from gristmill.dataset import watching
        from gristmill.diagnostics.runtime.metrics import prometheus
        prometheus.start_telemetry(1)  # does nothing in a worker
        names = [t.name for t in threading.enumerate() if t is not threading.main_thread()]
        return (prometheus._active, watching.exporters) == (None, []) and all(
            x.startswith("gristmill") for x in names
        )
    ds = (
        grain.MapDataset.range(4)
        .map(state)
        .to_iter_dataset()
        .mp_prefetch(grain.MultiprocessingOptions(2, executor="processes"))
    )
    print(list(ds))
    if not (child := os.fork()):
        grain.MapDataset.range(4)[0]
        os._exit(watching.exporters != [] or prometheus._active is not None)
    print(os.waitpid(child, 0)[1])
"""
SWITCH, PORT = "ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY", "PYGRAIN_PROMETHEUS_PORT"
OURS = "GRISTMILL_ENABLE_PROMETHEUS_TELEMETRY"


def run(*args, **variables):
    environment = {**{k: v for k, v in os.environ.items() if "PROMETHEUS" not in k}, **variables}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), *map(str, args)]
    process = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert process.returncode == ("missing" in args), process.stderr
    return process.stdout.splitlines(), process.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc")
def test_the_environment_starts_it():
    first, second = free_port(), free_port()
    cases = [
        (
            first,
            {
                OURS: "TRUE",
                "GRISTMILL_PROMETHEUS_PORT": str(first),
                "GRISTMILL_PROMETHEUS_ADDRESS": "127.0.0.1",
                PORT: "1",
            },
        ),
        (second, {SWITCH: "True", PORT: str(second)}),
    ]
    # no program uses it on this machine
    with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", 9431)):
        cases.append((9431, {SWITCH: "true"}))
    for number, variables in cases:
        children = ["children"] * (number == second)  # and workers serve nothing
        lines, said = run(number, *children, **variables)
        # of this machine alone
        assert lines[:3] == ["True True 1", f"{NEXT}_count 7.0", f"0100007F:{number:04X}"]
        assert lines[3:] == ["[True, True, True, True]", "0"] * len(children)
        assert said == f"INFO metrics are at http://127.0.0.1:{number}/metrics\n"


def test_off_is_off_and_what_is_wrong_does_not_stop_the_import():
    for variables in ({PORT: "9431"}, {SWITCH: "true", OURS: "false"}, {SWITCH: "true", PORT: "0"}):
        (state, modules), said = run("off", **variables)
        assert (state, said) == ("False False 0", "") and (
            SWITCH in variables or modules == "[1, 2] None []"
        )
    with socket.create_server(("127.0.0.1", 0)) as taken:
        number = taken.getsockname()[1]
        lines, said = run("off", **{SWITCH: "true", PORT: str(number)})
    assert lines[0].endswith(" 0") and said.count("\n") == 1 and f"port {number} is in use" in said
    lines, said = run("off", **{SWITCH: "true", PORT: "http"})
    assert (
        lines[0].endswith(" 0")
        and said.startswith("WARNING there are no metrics")
        and "'http'" in said
    )
    need = (
        "start_telemetry needs the package prometheus-client, which is not installed; run: pip"
        " install 'gristmill[prometheus]'"
    )
    assert (
        run("on", "missing", **{SWITCH: "true"})[1]
        == f"INFO there are no metrics: {need}\n{need}\n"
    )
