"""The watchdog: what it says of a ``next`` that does not come back, and when it is silent."""

import logging
import os
import re
import threading
from pathlib import Path

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


@pytest.fixture
def messages():
    handler = Messages()
    log = logging.getLogger("gristmill")
    log.addHandler(handler)
    yield handler
    log.removeHandler(handler)


def wait_for_it(messages, x):
    if x == 5:
        assert messages.came.wait(30)
    return x


def test_a_read_that_does_not_come_back(messages):
    it = iter(MapDataset.range(10).map(lambda x: wait_for_it(messages, x)).to_iter_dataset())
    with observe(it, stall_seconds=0.2):
        assert list(it) == list(range(10))
    (text, *_) = messages.texts
    assert "has waited 0." in text and "PrefetchDatasetIterator" in text
    assert "Thread gristmill-read, in MapMapDataset(transform=<lambda>" in text
    assert "element 5" in text or "elements" in text
    assert "in wait_for_it" in text and "dataset/ahead/readahead.py" not in text


def test_a_step_in_the_consumers_own_thread(messages):
    it = iter(MapDataset.range(10).to_iter_dataset().map(lambda x: wait_for_it(messages, x)))
    with observe(it, stall_seconds=0.2):
        assert list(it) == list(range(10))
    assert "for output 5" in messages.texts[0] and "in wait_for_it" in messages.texts[0]
    assert "Thread MainThread, in MapDatasetIterator" in messages.texts[0]


def stop_at_seven(path):
    """Waits until somebody has written to a pipe."""

    def wait(x):
        if x == 7:
            Path(path).read_bytes()
        return x

    return wait


def test_a_worker_that_does_not_come_back(messages, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ds = MapDataset.range(10).to_iter_dataset().map(stop_at_seven(str(pipe)))
    it = iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))

    def release():
        assert messages.came.wait(60)
        pipe.write_bytes(b"go on")

    helper = threading.Thread(target=release)
    helper.start()
    with observe(it, stall_seconds=0.5):
        # Starting the processes may take that long, too: all messages together say it.
        assert list(it) == list(range(10))
    helper.join()
    it.close()


def test_where_a_worker_is_stuck(messages, tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    ds = MapDataset.range(10).to_iter_dataset().map(stop_at_seven(str(pipe)))
    it = iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))

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
        it = iter(MapDataset.range(10).map(lambda x: wait_for_it(messages, x)).to_iter_dataset())
    assert list(it) == list(range(10))
    assert "in wait_for_it" in messages.texts[0]


def test_a_stage_in_a_thread_of_its_own(messages):
    ds = ThreadPrefetchIterDataset(
        MapDataset.range(10).to_iter_dataset().map(lambda x: wait_for_it(messages, x)), prefetch_buffer_size=2
    )
    it = iter(ds)
    with observe(it, stall_seconds=0.2):
        assert list(it) == list(range(10))
    assert "in wait_for_it" in messages.texts[0] and "ThreadPrefetchDatasetIterator" in messages.texts[0]
    it.close()


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), ("1", TypeError), (float("nan"), ValueError), (True, TypeError)])
def test_wrong_seconds(value, error):
    with pytest.raises(error, match="stall_seconds must"):
        observe(iter(MapDataset.range(3)), stall_seconds=value)
