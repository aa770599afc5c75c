"""Traces of single calls, in files and in profiles of JAX."""

import gzip
import json
import time

import numpy as np
import pytest
from refusing import assert_raises

import gristmill
from gristmill import MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.diagnostics import observe

WORKERS = MultiprocessingOptions(num_workers=2)


def add_one(x):
    return x + 1


def events_of(ds, tmp_path, expected):
    path = tmp_path / "trace.json"
    with iter(ds) as it, observe(it, trace=True) as view:
        assert len(list(it)) == expected
    view.save_trace(path)
    assert [file.name for file in tmp_path.iterdir()] == ["trace.json"]
    data = json.loads(path.read_text())
    names = {event["pid"]: event["args"]["name"] for event in data["traceEvents"] if event["name"] == "process_name"}
    return [{**event, "process": names[event["pid"]]} for event in data["traceEvents"] if event["ph"] == "X"]


def test_calls_are_nested_every_process_and_thread_has_a_row_and_no_trace_leaves_nothing(tmp_path):
    ds = MapDataset.range(50).to_iter_dataset(ReadOptions(num_threads=0)).map(add_one).batch(5)
    events = events_of(ds, tmp_path, 10)
    stages = ("BatchDatasetIterator", "MapDatasetIterator")
    batches, maps = [[event for event in events if event["name"] == name and event["args"]["elements"]] for name in stages]
    assert len(batches) == 10
    for outer, inner in zip(batches, maps, strict=True):
        assert outer["ts"] <= inner["ts"] and inner["ts"] + inner["dur"] <= outer["ts"] + outer["dur"] + 1e-3
        assert outer["tid"] == inner["tid"] and inner["args"]["elements"] == 5
    assert {event["cat"] for event in events} == {"read", "prefetch", "preprocessing"}
    events = events_of(MapDataset.range(50).map(add_one).to_iter_dataset().mp_prefetch(WORKERS), tmp_path, 50)
    assert {event["process"] for event in events} == {"main", "worker 0", "worker 1"}
    assert sum([event["args"]["elements"] for event in events if event["name"] == "MapMapDataset"]) == 50
    assert min([event["ts"] for event in events]) == 0
    plain, traced = [observe(iter(MapDataset.range(3)), trace=trace) for trace in (False, True)]
    with plain, traced:
        assert_raises(ValueError, "trace=True", plain.save_trace, tmp_path / "other.json")
        for save in (traced.save_trace, traced.save_html):
            assert_raises(OSError, "nowhere", save, tmp_path / "nowhere" / "file")
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.slow
def test_stages_in_a_profile_of_jax(tmp_path):
    jax = pytest.importorskip("jax")
    it = iter(MapDataset.range(2000).map(add_one).to_iter_dataset().map(add_one))
    with observe(it) as view:
        elements = [next(it) for _ in range(10)]
        with jax.profiler.trace(tmp_path):
            elements += [next(it) for _ in range(1000)]
            assert view._observer.output.annotates
        elements += list(it)
        assert not view._observer.output.annotates
    assert elements == list(range(2, 2002))
    (path,) = tmp_path.rglob("*.trace.json.gz")
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    named = [event for event in events if event.get("name") == "MapDatasetIterator.__next__"]
    assert len(named) == 1000 and named[0]["args"]["_ipl_stage_cat"] == "preprocessing"
    assert named[0]["args"]["_ipl_stage_name"].startswith("MapDatasetIterator(transform=add_one @ ")
    stages = {"PrefetchDatasetIterator.__next__", "MapMapDataset.__getitem__", "RangeMapDataset.__getitem__"}
    assert stages | {"Prefetch._getitem"} <= {event.get("name") for event in events}


@pytest.mark.slow
def test_workers_in_a_profile_of_jax(tmp_path):
    jax = pytest.importorskip("jax")
    ds = MapDataset.range(10**6).map(add_one).to_iter_dataset().map(lambda x: np.full(100_000, x % 1000, np.uint16))
    options = jax.profiler.ProfileOptions()
    options.advanced_configuration = {"profile_subprocesses": True}
    wanted = [b"MapDatasetIterator.__next__", b"Prefetch._getitem"]  # in workers alone
    with gristmill.config.override(enable_multiprocess_worker_profiling=True), iter(ds.mp_prefetch(WORKERS)) as it:
        deadline = time.monotonic() + 60
        while not (it._observed[0].groups and len(it._observed[0].groups[0]._profiled) == 2):
            next(it)
            assert time.monotonic() < deadline
        for attempt in range(4):  # it takes a moment until their threads read ahead again
            with jax.profiler.trace(tmp_path / str(attempt), profiler_options=options):
                for _ in range(200 * 4**attempt):
                    next(it)
            (path,) = (tmp_path / str(attempt)).rglob("*.xplane.pb")
            profile = path.read_bytes()
            if all([name in profile for name in wanted]):
                break
    missing = [name for name in (*wanted, b"MultiprocessPrefetchIterator.__next__") if name not in profile]
    assert missing == []
