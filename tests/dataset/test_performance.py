"""Workers and buffers that fit into a budget: what is measured, and what is not touched by measuring."""

import itertools
import logging
import threading

import numpy as np
import pytest

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.core.cgroup import available_memory, usable_cpus
from gristmill.dataset import performance
from gristmill.experimental import (
    DatasetOptions,
    ElasticIterator,
    InterleaveIterDataset,
    PerformanceConfig,
    ThreadPrefetchIterDataset,
    WithOptionsIterDataset,
    multithread_prefetch,
    pick_performance_config,
)
from gristmill.sharding import ShardOptions

MIB = 2**20


def ten_mib(i):
    return np.zeros(10 * MIB, np.uint8)


def big():
    return MapDataset.range(100).map(ten_mib)


def pick(ds, **arguments):
    arguments = {"ram_budget_mb": 1024, "max_workers": None, "max_buffer_size": None, **arguments}
    config = pick_performance_config(ds, **arguments)
    assert config.read_options.num_threads == 16
    return config.multiprocessing_options.num_workers, config.read_options.prefetch_buffer_size


@pytest.fixture(autouse=True)
def memory_of_a_machine_of_our_own(monkeypatch, tmp_path):
    """Budgets here are not to depend on the limits of the container that the tests run in."""
    monkeypatch.setattr(performance, "available_memory", lambda: available_memory(tmp_path))


def limit_memory(root, megabytes):
    (root / "proc/self").mkdir(parents=True)
    (root / "sys/fs/cgroup").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text("0::/\n")
    (root / "sys/fs/cgroup/memory.max").write_text(f"{megabytes * MIB}\n")
    (root / "sys/fs/cgroup/memory.current").write_text("0\n")


@pytest.mark.parametrize(
    ("ds", "budget", "max_workers", "max_buffer_size", "expected"),
    [
        (lambda: big().to_iter_dataset(), 1024, 300, None, (102, 102)),
        (lambda: big().to_iter_dataset(), 1024, 30, 50, (30, 50)),
        (lambda: big().to_iter_dataset().batch(2), 45, 30, None, (2, 4)),
        (lambda: big().to_iter_dataset().batch(2), 1, 30, None, (0, 0)),
        (lambda: big().to_iter_dataset(), 45, 0, 0, (0, 0)),
        (lambda: big().to_iter_dataset(), 45.5, 30, None, (4, 4)),
        (lambda: MapDataset.range(100).to_iter_dataset(), 0.01, 3000, 5000, (374, 374)),
        (lambda: IterDataset.mix([big().to_iter_dataset(), big().to_iter_dataset().batch(2)]), 100, 3000, 5000, (7, 5)),
    ],
)
def test_what_fits_as_in_grain(ds, budget, max_workers, max_buffer_size, expected):
    assert pick(ds(), ram_budget_mb=budget, max_workers=max_workers, max_buffer_size=max_buffer_size) == expected


def test_a_map_dataset_is_measured_too():
    """Grain takes 1000 elements for the buffer, whatever their size."""
    assert pick(big(), ram_budget_mb=45, max_workers=30) == (4, 4)
    assert pick(big().batch(2), ram_budget_mb=45, max_workers=30) == (2, 2)


def test_default_maxima():
    assert pick(MapDataset.range(100), ram_budget_mb=10**6) == (usable_cpus(), 1000)


def test_without_a_budget_the_maxima_decide():
    assert pick(big(), ram_budget_mb=None, max_workers=7, max_buffer_size=9) == (7, 9)
    assert pick(big(), ram_budget_mb=None, max_workers=7) == (7, 1000)


def test_no_more_than_the_control_group_has_left(tmp_path):
    limit_memory(tmp_path, 55)
    assert pick(big(), ram_budget_mb=1000, max_workers=30) == (5, 5)
    assert pick(big(), ram_budget_mb=None, max_workers=30) == (5, 5)
    assert pick(big(), ram_budget_mb=20, max_workers=30) == (2, 2)


def test_too_few_elements_to_tell(caplog):
    for ds in (big()[:4], big()[:0], MapDataset.range(100).filter(lambda x: x < 3)):
        with caplog.at_level(logging.WARNING, "gristmill"):
            assert pick(ds.to_iter_dataset(), ram_budget_mb=20, max_workers=8, max_buffer_size=77) == (8, 77)
        assert "too few to tell their size: num_workers is its maximum, 8" in caplog.text
        assert "prefetch_buffer_size is its maximum, 77" in caplog.text
        caplog.clear()
    assert pick(big()[:4].to_iter_dataset(), ram_budget_mb=20, max_workers=8, samples_to_check=4) == (2, 2)


def test_a_stream_without_conversion_has_the_maximal_buffer(caplog):
    class Stream(IterDataset):
        def __iter__(self):
            return iter([ten_mib(0)] * 10)

    with caplog.at_level(logging.WARNING, "gristmill"):
        assert pick(Stream(), ram_budget_mb=45, max_workers=8) == (4, 1000)
    assert "prefetch_buffer_size" in caplog.text and "num_workers" not in caplog.text


def test_a_budget_below_one_element_is_warned_of(caplog):
    with caplog.at_level(logging.WARNING, "gristmill"):
        assert pick(big(), ram_budget_mb=9) == (0, 0)
        assert pick(big(), ram_budget_mb=0) == (0, 0)
    assert "num_workers is 0: 9.0 MiB are too few for an element of 10.0 MiB" in caplog.text
    assert "prefetch_buffer_size is 0" in caplog.text


@pytest.mark.parametrize(
    ("element", "size"),
    [
        ({"a": np.zeros(1000), "b": [np.zeros((2, 500), np.float32), (np.zeros(500),)]}, 16000),
        (memoryview(bytes(10**6)), 10**6),
        (bytes(10**6), 10**6 + 33),
    ],
)
def test_sizes(element, size):
    budget = size * 7.5 / MIB
    assert pick(MapDataset.source([element] * 5), ram_budget_mb=budget, max_workers=100) == (7, 7)


def test_only_the_samples_are_computed_and_in_this_thread():
    computed, threads = [], set()

    def count(x):
        computed.append(x)
        threads.add(threading.current_thread())
        return np.zeros(MIB, np.uint8)

    source = MapDataset.range(1000).map(count)
    before = {*threading.enumerate()}
    stages = [
        lambda ds: ds,
        lambda ds: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=50),
        lambda ds: ds.mp_prefetch(MultiprocessingOptions(2)),
        lambda ds: multithread_prefetch(ds, 2, 10),
        lambda ds: WithOptionsIterDataset(ds, DatasetOptions()).map(lambda x: x),
    ]
    for stage in stages:
        ds = stage(source.to_iter_dataset(ReadOptions(4, 100)))
        assert pick(ds, ram_budget_mb=20.5, max_workers=50) == (20, 20)
        assert computed == [0, 1, 2, 3, 4] * 2
        computed.clear()
    for parts in (
        [source],
        [source.to_iter_dataset()],
        MapDataset.range(1).map(lambda _: ThreadPrefetchIterDataset(source.to_iter_dataset(), prefetch_buffer_size=9)),
    ):
        assert pick(InterleaveIterDataset(parts, cycle_length=2), ram_budget_mb=20.5, max_workers=50) == (20, 1000)
        assert computed == [0, 1, 2, 3, 4]
        computed.clear()
    pick(source.map(lambda x: None).to_iter_dataset(allow_nones=True))
    assert computed == [0, 1, 2, 3, 4] * 2
    assert threads == {threading.current_thread()}
    assert {*threading.enumerate()} == before


def test_iterators_are_closed():
    numbers, closed = itertools.count(), set()  # a set: a garbage collection closes once more, at any time

    class Closing(IterDataset):
        def __iter__(self):
            it, number = MapDataset.range(10).to_iter_dataset().__iter__(), next(numbers)
            close, it.close = it.close, lambda: (closed.add(number), close())
            return it

    pick(Closing())
    assert closed == {0}

    def fail(x):
        raise OSError(x)

    with pytest.raises(OSError):
        pick(Closing().map(fail))
    assert closed == {0, 1}


def test_an_iterator_is_not_moved():
    e = ElasticIterator(MapDataset.range(8), 2, ShardOptions(0, 1))
    for ds in (e, e.map(lambda x: x), iter(MapDataset.range(3))):
        with pytest.raises(TypeError, match="ds must"):
            pick(ds)
    assert e.get_state() == {"global_next_index": 0}
    assert next(e).tolist() == [0, 1]


def test_wrong_arguments():
    ds = MapDataset.range(10)
    for name in ("max_workers", "max_buffer_size"):
        with pytest.raises(ValueError, match=f"{name} must be a non-negative integer, got -1"):
            pick(ds, **{name: -1})
        with pytest.raises(TypeError, match=f"{name} must be an integer"):
            pick(ds, **{name: 1.5})
    with pytest.raises(ValueError, match="samples_to_check must be a positive integer, got 0"):
        pick(ds, samples_to_check=0)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="ram_budget_mb must be a non-negative number or None"):
            pick(ds, ram_budget_mb=wrong)
    with pytest.raises(TypeError, match="ram_budget_mb must be a number or None"):
        pick(ds, ram_budget_mb="1024")
    with pytest.raises(TypeError):
        pick_performance_config(ds)
    with pytest.raises(TypeError, match="ds must be a MapDataset or IterDataset"):
        pick([1, 2])


def test_the_result():
    assert PerformanceConfig() == PerformanceConfig(multiprocessing_options=None, read_options=None)
    config = pick_performance_config(MapDataset.range(10), ram_budget_mb=1, max_workers=2, max_buffer_size=20)
    assert config == PerformanceConfig(MultiprocessingOptions(2), ReadOptions(16, 20))
    ds = MapDataset.range(10).to_iter_dataset(config.read_options).mp_prefetch(config.multiprocessing_options)
    assert list(ds) == list(range(10))
