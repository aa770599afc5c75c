"""``cache(path)``: computed once for all; never another pipeline's; bounded; safe when processes
are killed.
"""

import contextlib
import itertools
import os
import signal
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from refusing import assert_raises

import gristmill as grain
from gristmill.dataset.descriptions.equality import are_equal
from gristmill.dataset.engine.disk_store import _SEGMENT, _STORES, DiskStore
from gristmill.dataset.stages import disk_cache_stream


def counted(factor=1):
    """A pipeline, and the list of what it has computed."""
    calls = []

    def decoded(x):
        calls.append(x)
        image = np.full((300, 250), x * factor, np.uint8)
        objects = np.array([f"{x}", None], object)
        return {"image": image, "name": f"{x}", "deep": [x, None], "objects": objects}

    return grain.MapDataset.range(60).map(decoded), calls


def forget():
    """Makes the next call open stores, as another process does."""
    for store in _STORES.values():
        store.sync()
    _STORES.clear()


def test_elements_are_computed_once_for_all_orders_and_programs(tmp_path):
    expected = list(counted()[0])
    for expected_calls in (60, 0):
        ds, calls = counted()
        cached = ds.cache(tmp_path)
        assert are_equal(list(cached), expected)
        shuffled = cached.seed(1).shuffle().repeat(2)
        assert len(list(shuffled)) == 120 and are_equal(cached[-1], expected[-1])
        assert len(calls) == expected_calls
        element = cached[3]
        element["image"][:] = 255  # a copy
        assert are_equal(cached[3], expected[3])
        forget()


def test_streams_are_computed_once_and_continue_anywhere(tmp_path):
    def stream():
        ds, calls = counted()
        return ds.repeat(9).to_iter_dataset().filter(lambda x: x["deep"][0] % 3 > 0), calls

    ds, calls = stream()
    expected = list(ds)
    for expected_calls in (540, 0):
        ds, calls = stream()
        cached = ds.cache(tmp_path)
        assert are_equal(list(cached), expected) and len(calls) == expected_calls
        it = iter(cached)
        for place in range(0, 300, 60):
            state = it.get_state()
            for each in (it, iter(cached), it):
                each.set_state(state)
                elements = [next(each) for _ in range(60)]
                assert are_equal(elements, expected[place : place + 60])
                for element in elements:
                    element["image"][:] = 255  # a copy
        forget()
    assert_raises(ValueError, "max_bytes is for a cache on disk", ds.cache, max_bytes=3)


@pytest.mark.parametrize("size", [4, 256])
def test_skipped_elements_stay_so_with_the_cache_and_without(tmp_path, monkeypatch, size):
    monkeypatch.setattr(disk_cache_stream, "_MAX_ELEMENTS", size)
    healed = tmp_path / "healed"  # not in a closure, since the cache would be another one

    def stream(folder):
        def fail(x):
            return 1 // (x not in (3, 4, 17) or healed.exists()) and x

        ds = grain.MapDataset.range(20).to_iter_dataset().map(fail).tolerate(max_rate=None)
        return iter(ds.cache(tmp_path / folder).window_shuffle(7, seed=1))

    it = stream("kept")
    states, expected = [it.get_state()], []
    for x in it:
        expected.append(x)
        states.append(it.get_state())
    healed.touch()
    forget()
    for i, state in enumerate(states):
        it = stream("kept")
        it.set_state(state)
        assert list(it) == expected[i:]
        it = stream(f"{i}")
        it.set_state(state)
        window = expected[i : i + 7 - i % 7] if i % 7 else []  # of which is known what was skipped
        assert list(it)[: len(window)] == window


def fails_for_some(x):
    return 1 // (x not in (3, 4, 17, 19)) and x


def replaced():
    return grain.MapDataset.range(20).map(fails_for_some).tolerate(max_rate=None, then="replace")


FAULTY = {
    "stream": lambda: (
        grain.MapDataset.range(20).to_iter_dataset().map(fails_for_some).tolerate(max_rate=None)
    ),
    "map": lambda: (
        grain.MapDataset.range(20).map(fails_for_some).tolerate(max_rate=None).to_iter_dataset()
    ),
    "batches": lambda: replaced().batch(3).to_iter_dataset(),
    "components": lambda: grain.IterDataset.mix(
        {"a": FAULTY["stream"](), "b": FAULTY["batches"]()}
    ),
    "part": lambda: FAULTY["batches"]().limit(5),
    "windows": lambda: FAULTY["map"]().window_shuffle(3, seed=1).window_shuffle(5, seed=2),
    "items": lambda: FAULTY["stream"]().batch(3).rebatch(5).flat_map(list),
}


@pytest.mark.parametrize("faulty", FAULTY.values(), ids=FAULTY)
def test_faults_are_counted_in_each_epoch_as_without_the_cache(tmp_path, monkeypatch, faulty):
    monkeypatch.setattr(disk_cache_stream, "_MAX_ELEMENTS", 4)

    def counts_after_each(it):
        totals = [it.faults().total]
        for _ in it:
            totals.append(it.faults().total)
        return [*totals, it.faults().total]

    expected = counts_after_each(iter(faulty().repeat(3)))
    cached = faulty().cache(tmp_path).repeat(3)
    for _ in range(2):  # computes the blocks, and finds them
        assert counts_after_each(iter(cached)) == expected
        forget()
    it = iter(cached)
    for i in range(len(expected) - 2):
        other = iter(cached)
        other.set_state(it.get_state())
        assert counts_after_each(other) == expected[i:]
        next(it)


def test_threads_compute_an_element_once(tmp_path):
    ds, calls = counted()
    cached = ds.cache(tmp_path)
    indices = [*range(60), *range(60)[::-1]] * 3
    with ThreadPoolExecutor(8) as pool:
        read = list(pool.map(cached.__getitem__, indices))
    assert sorted(calls) == [*range(60)] and are_equal(read, [cached[i] for i in indices])
    twice = cached.slice([5, 5])
    one, other = twice.to_iter_dataset()
    one["image"][:] = 255
    assert are_equal(other, counted()[0][5])


def test_workers_fill_it_for_all(tmp_path):
    ds, calls = counted()
    cached = ds.cache(tmp_path)
    options = grain.MultiprocessingOptions(num_workers=2)
    assert len(list(cached.to_iter_dataset().mp_prefetch(options))) == 60
    num_here = len(calls)  # none, unless workers are threads
    assert len(list(cached)) == 60 and len(calls) == num_here


def test_another_function_or_source_is_another_cache(tmp_path, caplog):
    assert counted(1)[0].cache(tmp_path)[2]["image"][0, 0] == 2
    assert counted(3)[0].cache(tmp_path)[2]["image"][0, 0] == 6
    assert "begins another cache" in caplog.text
    assert "code or the data of MapMapDataset differ" in caplog.text
    other = grain.MapDataset.source(np.arange(60) + 1)
    assert grain.MapDataset.source(np.arange(60)).cache(tmp_path)[0] == 0
    assert other.cache(tmp_path)[0] == 1


def test_other_files_are_another_cache(tmp_path):
    for i in range(2):
        records = grain.MapDataset.source([{"x": i, "y": k} for k in range(3)])
        for format in ("parquet", "tfrecord"):
            grain.write(records, tmp_path / f"{format}{i}", format=format)
    paths = sorted(tmp_path.glob("*/*.parquet"))
    files = sorted(tmp_path.glob("*/*.tfrecord"))
    streams = [grain.MapDataset.range(i, i + 4).to_iter_dataset() for i in range(2)]
    pipelines = [
        *[grain.experimental.ParquetIterDataset(path) for path in (*paths, paths)],
        grain.experimental.ParquetIterDataset(paths[1], columns=["y"]),
        *[grain.experimental.TFRecordIterDataset(path) for path in (*files, files)],
        *[grain.experimental.InterleaveIterDataset([stream], cycle_length=1) for stream in streams],
        grain.experimental.InterleaveIterDataset(streams, cycle_length=2),
    ]
    for _ in range(2):
        for ds in pipelines:
            assert are_equal(list(ds.cache(tmp_path / "cache")), list(ds))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        pytest.param(
            lambda ds: ds.random_map(lambda x, rng: x, seed=1),
            "freeze the draws of RandomMap",
            id="draws",
        ),
        pytest.param(
            lambda ds: ds.shuffle(seed=1), "same element at a position in all epochs", id="shuffle"
        ),
        pytest.param(
            lambda ds: ds.map_with_index(lambda i, x: i), "freeze the indices", id="indices"
        ),
    ],
)
def test_random_stages_upstream_are_refused_by_default(tmp_path, make, text):
    ds = make(grain.MapDataset.range(20))
    assert_raises(ValueError, f"{text}.*freeze=True", ds.cache, tmp_path)
    frozen = ds.cache(tmp_path, freeze=True)
    assert (
        [frozen[i] for i in range(20, 40)]
        == [frozen[i] for i in range(20)]
        == [ds[i] for i in range(20)]
    )


def test_caches_of_other_pipelines_are_removed_first(tmp_path):
    def pictures(value, max_bytes=300_000):
        ds = grain.MapDataset.range(40).map(lambda i: np.full(10_000, value, np.uint8))
        return ds.cache(tmp_path, max_bytes=max_bytes)

    def used():
        return sum(path.stat().st_size for path in tmp_path.rglob("*.data"))

    assert pictures(1, None)[0][0] == 1  # a store without a limit in the same process
    for value in (1, 2):
        assert [x[0] for x in pictures(value)] == [value] * 40
        assert 250_000 < used() <= 300_000
        for store in _STORES.values():
            os.close(store._in_use)  # as the end of its process does
        _STORES.clear()
        assert len([*tmp_path.iterdir()]) == 1


def test_many_writers_stay_within_max_bytes(tmp_path):
    stores = [DiskStore(str(tmp_path / "one"), 100_000) for _ in range(16)]
    for key in range(640):
        stores[key % 16].put(key, bytes(1000))
    assert 90_000 < sum(path.stat().st_size for path in tmp_path.rglob("*.data")) <= 100_000
    found = [value == bytes(1000) for value in stores[0].get(range(640))]
    assert 80 < sum(found) < 100


def test_what_a_stopped_machine_may_have_lost_is_checked(tmp_path):
    ds, calls = counted()
    list(ds.cache(tmp_path))
    _STORES.clear()
    [path] = tmp_path.rglob("*.data")
    content = bytearray(path.read_bytes())
    content[: _SEGMENT.size] = _SEGMENT.pack(b"gristmill cache1", b"another boot".ljust(36), 0)
    place = content.index(bytes([7] * 35))
    content[place] = 8
    path.write_bytes(content)
    ds, calls = counted()
    assert are_equal(list(ds.cache(tmp_path)), list(counted()[0])) and calls == [7]


@contextlib.contextmanager
def read_only(top):
    """Takes away the right to write in a folder, from root by being another user."""
    paths, is_root = [top, *top.rglob("*")], os.geteuid() == 0
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    if is_root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if is_root:
            os.seteuid(0)
        for path in paths:
            path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.parametrize(
    ("is_stream", "num_taken", "num_kept"),
    [
        pytest.param(False, 30, 30, id="half of a map dataset"),
        pytest.param(False, None, 60, id="all of a map dataset"),
        pytest.param(True, 30, 28, id="half of a stream"),  # in whole blocks
        pytest.param(True, None, 60, id="all of a stream"),
    ],
)
def test_a_cache_that_cannot_be_written_to_is_read(
    caplog, monkeypatch, is_stream, num_taken, num_kept
):
    monkeypatch.setattr(disk_cache_stream, "_MAX_ELEMENTS", 4)
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)

    def cached(factor=1):
        ds, calls = counted(factor)
        ds = ds.to_iter_dataset(options).cache(path) if is_stream else ds.cache(path)
        return (ds if is_stream else ds.to_iter_dataset(options)), calls

    with tempfile.TemporaryDirectory() as top:
        path = Path(top, "kept")
        list(itertools.islice(cached()[0], num_taken))
        forget()
        before = {file: file.stat().st_size for file in path.rglob("*")}
        caplog.clear()
        with read_only(Path(top)):
            ds, calls = cached()
            for num_epochs in (1, 2):
                assert are_equal(list(ds), list(counted()[0]))
                assert len(calls) == num_epochs * (60 - num_kept)
            assert caplog.text.count("cannot be written to") == 1
            text = f"path must be a folder that can be written to, got {path}"
            assert_raises(PermissionError, text, list, cached(2)[0])  # which is not there
        assert {file: file.stat().st_size for file in path.rglob("*")} == before


PROGRAM = """
import sys
import numpy as np
import gristmill as grain

def slow(x):
    return np.full(3000, x % 256, np.uint8)

ds = grain.MapDataset.range(100_000).map(slow).cache(sys.argv[1])
if len(sys.argv) > 2:
    found = [x for x in ds._cache.store().get(range(100_000)) if isinstance(x, np.ndarray)]
    assert all([x.tolist() == [i % 256] * 3000 for i, x in enumerate(found)])
    print(len(found))
else:
    for i in range(100_000):
        ds[i]
        if i == 50:
            print("ready", flush=True)
"""


def test_what_a_killed_process_kept_is_found_and_right(tmp_path):
    (tmp_path / "program.py").write_text(PROGRAM)
    command = [sys.executable, tmp_path / "program.py", tmp_path / "cache"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as program:
        assert program.stdout.readline() == b"ready\n"
        program.send_signal(signal.SIGKILL)
    assert int(subprocess.check_output([*command, "check"])) > 50


def test_what_cannot_be_kept_and_wrong_arguments(tmp_path):
    ds = grain.MapDataset.range(3)
    assert_raises(TypeError, "path must be a folder", ds.cache, 3)
    assert_raises(TypeError, r"in memory .* ds.to_iter_dataset\(\).cache\(\)", ds.cache)
    assert_raises(ValueError, "path must be a folder of this machine", ds.cache, "s3://bucket/x")
    assert_raises(ValueError, "path must be a folder of this machine", ds.cache, "")
    assert_raises(ValueError, "max_bytes", ds.cache, tmp_path, max_bytes=0)
    assert_raises(TypeError, "freeze must be True or False", ds.cache, tmp_path, freeze="no")
    assert_raises(
        OSError, "path must be a folder that can be written to", ds.cache(__file__).__getitem__, 0
    )
    unpicklable = ds.map(lambda i: lambda: i).cache(tmp_path)
    with pytest.raises(Exception, match=r"pickle|local object") as caught:
        unpicklable[1]
    assert any("element 1" in note for note in caught.value.__notes__)
