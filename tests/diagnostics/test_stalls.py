"""The watchdog: what it says of a ``next`` that does not come back, and when it is silent."""

import logging
import os
import re
import threading

import pytest

import gristmill
from gristmill import MapDataset, MultiprocessingOptions
from gristmill.diagnostics import observe, stalls
from gristmill.experimental import ThreadPrefetchIterDataset


class Messages(logging.Handler):
    """Keeps what is logged, and lets a test wait for it."""

    def __init__(self):
        super().__init__()
        self.texts = []
        self.came = threading.Event()

    def emit(self, record):
        self.texts.append(record.getMessage())
        self.came.set()

    def wait_for_it(self, x):
        if x == 5:
            assert self.came.wait(30)
        return x

    def text_of(self, it):
        with observe(it, stall_seconds=0.2):
            assert list(it) == list(range(10))
        return self.texts[0]


@pytest.fixture
def messages():
    handler = Messages()
    log = logging.getLogger("gristmill")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def test_a_read_that_does_not_come_back(messages):
    text = messages.text_of(iter(MapDataset.range(10).map(messages.wait_for_it).to_iter_dataset()))
    assert "has waited 0." in text and "PrefetchDatasetIterator" in text
    assert "Thread gristmill-read, in MapMapDataset(transform=" in text and "wait_for_it @ " in text
    assert "element 5" in text or "elements" in text
    assert "in wait_for_it" in text and "dataset/ahead/readahead.py" not in text


def test_a_step_in_the_consumers_own_thread(messages):
    text = messages.text_of(iter(MapDataset.range(10).to_iter_dataset().map(messages.wait_for_it)))
    assert "for output 5" in text and "in wait_for_it" in text
    assert "Thread MainThread, in MapDatasetIterator" in text


def test_where_a_worker_is_stuck(messages, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)

    def wait(x):
        if x == 7:
            pipe.read_bytes()  # until somebody has written
        return x

    it = iter(MapDataset.range(10).to_iter_dataset().map(wait).mp_prefetch(MultiprocessingOptions(num_workers=2)))

    def release():
        while not any("in wait" in text for text in messages.texts):
            assert messages.came.wait(60)
            messages.came.clear()
        pipe.write_bytes(b"go on")

    with observe(it, stall_seconds=0.3):
        releaser = threading.Thread(target=release)
        releaser.start()
        assert list(it) == list(range(10))
        releaser.join()
    it.close()
    text = next(text for text in messages.texts if "in wait" in text)
    # It may have been given 5 and 7 together.
    assert re.search(r"It waits for worker 1, (at element [1357] or soon after it|at the beginning)\.", text), text
    assert "Worker 1 (process " in text and "test_stalls.py" in text


def test_silence(messages):
    with observe(iter(MapDataset.range(1000).to_iter_dataset()), stall_seconds=30) as view:
        assert len(list(view.iterator)) == 1000
    assert not messages.texts
    assert not stalls._watches


def test_off_by_default_and_on_by_option(messages):
    threads = {thread.name for thread in threading.enumerate()}
    list(MapDataset.range(3).to_iter_dataset())
    assert {thread.name for thread in threading.enumerate()} <= threads
    with gristmill.config.override(stall_seconds=1):
        it = iter(MapDataset.range(10).map(messages.wait_for_it).to_iter_dataset())
    assert list(it) == list(range(10))
    assert "in wait_for_it" in messages.texts[0]


def test_a_stage_in_a_thread_of_its_own(messages):
    ds = MapDataset.range(10).to_iter_dataset().map(messages.wait_for_it)
    it = iter(ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2))
    text = messages.text_of(it)
    assert "in wait_for_it" in text and "ThreadPrefetchDatasetIterator" in text
    it.close()


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), ("1", TypeError), (float("nan"), ValueError), (True, TypeError)])
def test_wrong_seconds(value, error):
    with pytest.raises(error, match="stall_seconds must"):
        observe(iter(MapDataset.range(3)), stall_seconds=value)
