"""Process options: the watchdog of a ``next`` that does not return, debug and visualisation
mode.
"""

import json
import logging
import os
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from programs import outcome
from refusing import assert_raises
from waiting import wait_until

import gristmill
from gristmill import MapDataset, MultiprocessingOptions
from gristmill.diagnostics import get_execution_summary, observe
from gristmill.diagnostics.runtime import probe, stalls
from gristmill.experimental import InterleaveIterDataset, ThreadPrefetchIterDataset

NUMBERS = MapDataset.range(10)


class Messages(logging.Handler):  # keeps what is logged, and lets a test wait for it
    def __init__(self):
        super().__init__()
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())

    def wait_for_it(self, x):
        wait_until(lambda: x != 5 or self.texts)
        return x

    def text_of(self, ds):
        self.texts.clear()
        with iter(ds) as it, observe(it, stall_seconds=0.2):
            assert list(it) == list(range(10))
        return self.texts[0]


@pytest.fixture
def messages():
    handler, log = Messages(), logging.getLogger("gristmill")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def test_a_step_that_does_not_come_back(messages):
    in_own_thread = NUMBERS.to_iter_dataset().map(messages.wait_for_it)
    for ds, *parts in (
        (
            *(
                NUMBERS.map(messages.wait_for_it).to_iter_dataset(),
                "has waited ",
                "PrefetchDatasetIterator",
                "element",
            ),
            *("Thread gristmill-read_0, in MapMapDataset(transform=", "wait_for_it @ "),
        ),
        (in_own_thread, "for output 5", "Thread MainThread, in MapDatasetIterator"),
        (
            ThreadPrefetchIterDataset(in_own_thread, prefetch_buffer_size=2),
            "ThreadPrefetchDatasetIterator",
        ),
    ):
        text = messages.text_of(ds)
        assert (
            all([part in text for part in ("in wait_for_it", *parts)])
            and "dataset/ahead/readahead.py" not in text
        ), text


def test_where_a_worker_is_stuck(messages, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def wait(x):
        if x == 7:
            pipe.read_bytes()  # blocks until a thread has written
        return x

    # worker 0 may begin later, and be waited for before
    tells = re.compile("(?s)It waits for worker 1.*in wait").search

    def release():
        wait_until(lambda: any(map(tells, messages.texts)))
        pipe.write_bytes(b"continue")

    it = iter(
        NUMBERS.to_iter_dataset()
        .map(wait)
        .mp_prefetch(MultiprocessingOptions(num_workers=2, executor="processes"))
    )
    with it, observe(it, stall_seconds=0.3), ThreadPoolExecutor(1) as pool:
        pool.submit(release)
        assert list(it) == list(range(10))
    text = next(filter(tells, messages.texts))
    # 5 and 7 together
    assert re.search(r"worker 1, (at element [1357] or soon after it|at the beginning)\.", text), (
        text
    )
    assert "Worker 1 (process " in text and "test_stalls.py" in text


def test_silence_off_by_default_and_on_by_option(messages):
    threads = {thread.name for thread in threading.enumerate()}
    list(NUMBERS.to_iter_dataset())
    assert {thread.name for thread in threading.enumerate()} <= threads
    with observe(iter(MapDataset.range(1000).to_iter_dataset()), stall_seconds=30) as view:
        assert len(list(view.iterator)) == 1000
    assert not messages.texts and not stalls._watches
    with gristmill.config.override(stall_seconds=1):
        it = iter(NUMBERS.map(messages.wait_for_it).to_iter_dataset())
    assert list(it) == list(range(10)) and "in wait_for_it" in messages.texts[0]
    for value, error in (
        (-1, ValueError),
        ("1", TypeError),
        (float("nan"), ValueError),
        (True, TypeError),
    ):
        assert_raises(error, "stall_seconds must", observe, iter(NUMBERS), stall_seconds=value)


SUMMARY, GRAPH = "Grain Dataset Execution Summary:", "Grain Dataset graph:"
CHAIN = MapDataset.range(20).shuffle(seed=1).map(str).to_iter_dataset().batch(2)


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, logger="gristmill")
    return lambda title: [
        record.getMessage() for record in caplog.records if record.getMessage().startswith(title)
    ]


def test_one_summary_at_the_end_and_one_graph(logged, caplog, tmp_path):
    """``override`` takes effect without parsed flags; only the real output reports, once."""
    for ds in (
        CHAIN.mp_prefetch(MultiprocessingOptions(num_workers=2, executor="processes")),
        InterleaveIterDataset([CHAIN, CHAIN, CHAIN], cycle_length=2),
        MapDataset.range(20).zip(MapDataset.range(20).map(str)).to_iter_dataset(),
    ):
        caplog.clear()
        with gristmill.config.override(py_dataset_visualization_output_dir="", py_debug_mode=True):
            num = len(list(ds))
        (text,), (graph,) = logged(SUMMARY), logged(GRAPH)
        assert "percent" in text and f" {num} " in text.replace("|", " ")
        assert (
            "RangeMapDataset(start=0, stop=20, step=1)" in graph
            and "MapMapDataset(transform=str)" in graph
        )
    with gristmill.config.override(py_dataset_visualization_output_dir=str(tmp_path)):
        assert len(list(CHAIN)) == len(list(CHAIN)) == 10
    assert len(list(tmp_path.glob("*.svg"))) == len(list(tmp_path.glob("*.html"))) == 2
    assert "<U2[2]" in json.dumps(json.loads(sorted(tmp_path.glob("*.json"))[0].read_text()))


def test_debug_mode_reports_of_dropped_iterators_and_at_times(logged, monkeypatch):
    with gristmill.config.override(py_debug_mode=True):
        it = iter(CHAIN)
    next(it)
    assert not logged(SUMMARY) and get_execution_summary(it)[0].num_produced_elements == 1
    del it
    assert len(logged(SUMMARY)) == 1 and not logged(GRAPH)
    now = [1]
    monkeypatch.setattr(probe, "clock", lambda: now[0])
    monkeypatch.setattr("gristmill.diagnostics.runtime.automatic.clock", lambda: now[0])
    with gristmill.config.override(py_debug_mode=True, debug_report_seconds=60):
        it = iter(MapDataset.range(200).to_iter_dataset())
    for _ in range(130):
        next(it)
        now[0] += 10**9
    assert len(logged(SUMMARY)) == 1 + 2


def test_workers_report_nothing_by_themselves(tmp_path):
    script = """
        import logging, gristmill
        logging.basicConfig(level=logging.INFO)
        gristmill.config.update('py_debug_mode', True)
        gristmill.config.update('py_dataset_visualization_output_dir', '')
        options = gristmill.MultiprocessingOptions(2, executor="processes")
        ds = gristmill.MapDataset.range(9).map(str).to_iter_dataset().mp_prefetch(options)
        assert len(list(ds)) == 9
    """
    process = outcome(tmp_path, script)
    assert (
        process.returncode == 0
        and process.stderr.count(SUMMARY) == process.stderr.count(GRAPH) == 1
    )
