"""Traces of single calls, in files and in profiles of JAX."""

import gzip
import json
import time

import numpy as np
import pytest

import gristmill
from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.diagnostics import observe


def add_one(x):
    return x + 1


def large(x):
    return np.full(100_000, x % 1000, np.uint16)


def events_of(view, tmp_path):
    path = tmp_path / "trace.json"
    view.save_trace(path)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    data = json.loads(path.read_text())
    names = {event["pid"]: event["args"]["name"] for event in data["traceEvents"] if event["name"] == "process_name"}
    return [{**event, "process": names[event["pid"]]} for event in data["traceEvents"] if event["ph"] == "X"]


def test_calls_are_nested(tmp_path):
    it = iter(MapDataset.range(50).to_iter_dataset(ReadOptions(num_threads=0)).map(add_one).batch(5))
    with observe(it, trace=True) as view:
        assert len(list(it)) == 10
    events = events_of(view, tmp_path)
    batches = [event for event in events if event["name"] == "BatchDatasetIterator" and event["args"]["elements"]]
    maps = [event for event in events if event["name"] == "MapDatasetIterator" and event["args"]["elements"]]
    assert len(batches) == len(maps) == 10
    for outer, inner in zip(batches, maps, strict=True):
        assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-3
        assert outer["tid"] == inner["tid"] and inner["args"]["elements"] == 5
    assert {event["cat"] for event in events} == {"read", "prefetch", "preprocessing"}


def test_every_process_and_thread_has_a_row(tmp_path):
    ds = MapDataset.range(50).map(add_one).to_iter_dataset().mp_prefetch(MultiprocessingOptions(num_workers=2))
    it = iter(ds)
    with observe(it, trace=True) as view:
        assert len(list(it)) == 50
    it.close()
    events = events_of(view, tmp_path)
    assert {event["process"] for event in events} == {"main", "worker 0", "worker 1"}
    elements = sum([event["args"]["elements"] for event in events if event["name"] == "MapMapDataset"])
    assert elements == 50
    assert min([event["ts"] for event in events]) == 0


def test_without_recording_there_is_no_trace(tmp_path):
    with observe(iter(MapDataset.range(3))) as view, pytest.raises(ValueError, match="trace=True"):
        view.save_trace(tmp_path / "trace.json")


def test_a_trace_that_cannot_be_written_leaves_nothing(tmp_path):
    with observe(iter(MapDataset.range(3)), trace=True) as view:
        with pytest.raises(OSError):
            view.save_trace(tmp_path / "nowhere" / "trace.json")
        with pytest.raises(OSError):
            view.save_html(tmp_path / "nowhere" / "report.html")
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_stages_in_a_profile_of_jax(tmp_path):
    jax = pytest.importorskip("jax")
    ds = MapDataset.range(2000).map(add_one).to_iter_dataset().map(add_one)
    it = iter(ds)
    with observe(it) as view:
        before = [next(it) for _ in range(10)]
        with jax.profiler.trace(tmp_path):
            during = [next(it) for _ in range(1000)]
            assert view._observer.output.annotates
        after = list(it)
        assert not view._observer.output.annotates
    assert before + during + after == list(range(2, 2002))
    (path,) = tmp_path.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    named = [event for event in events if event.get("name") == "MapDatasetIterator.__next__"]
    assert len(named) == 1000
    assert named[0]["args"]["_ipl_stage_name"].startswith("MapDatasetIterator(transform=add_one @ ")
    assert named[0]["args"]["_ipl_stage_cat"] == "preprocessing"
    names = {event.get("name") for event in events}
    assert {"PrefetchDatasetIterator.__next__", "MapMapDataset.__getitem__", "RangeMapDataset.__getitem__"} <= names
    assert "Prefetch._getitem" in names


@pytest.mark.slow
def test_workers_in_a_profile_of_jax(tmp_path):
    jax = pytest.importorskip("jax")
    ds = MapDataset.range(10**6).map(add_one).to_iter_dataset().map(large).mp_prefetch(MultiprocessingOptions(num_workers=2))
    with gristmill.config.override(enable_multiprocess_worker_profiling=True):
        it = iter(ds)
        deadline = time.monotonic() + 60
        while not (it._observed[0].groups and len(it._observed[0].groups[0]._profiled) == 2):
            next(it)
            assert time.monotonic() < deadline
        options = jax.profiler.ProfileOptions()
        options.advanced_configuration = {"profile_subprocesses": True}
        profile = b""
        wanted = [b"MapDatasetIterator.__next__", b"Prefetch._getitem"]  # in workers alone
        for attempt in range(4):  # it takes a moment until their threads read ahead again
            with jax.profiler.trace(tmp_path / str(attempt), profiler_options=options):
                for _ in range(200 * 4**attempt):
                    next(it)
            (path,) = (tmp_path / str(attempt)).rglob("*.xplane.pb")
            profile = path.read_bytes()
            if all([name in profile for name in wanted]):
                break
        it.close()
    assert b"MultiprocessPrefetchIterator.__next__" in profile  # of this process
    assert [name for name in wanted if name not in profile] == []
