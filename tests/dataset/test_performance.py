"""Workers and buffers that fit into a budget: what is measured, and what is not touched by
measuring.
"""

import itertools
import logging
import sys
import threading

import numpy as np
import pytest
from refusing import assert_raises
from users_datasets import Given

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions, ShardOptions
from gristmill import experimental as gx
from gristmill.core.cgroup import available_memory, usable_cpus
from gristmill.dataset import performance
from gristmill.experimental import pick_performance_config

MIB = 2**20
BIG = MapDataset.range(100).map(lambda i: np.zeros(10 * MIB, np.uint8))
STREAM = BIG.to_iter_dataset()
RANGE = MapDataset.range(100)


def pick(ds, **arguments):
    arguments = {"ram_budget_mb": 1024, "max_workers": None, "max_buffer_size": None, **arguments}
    config = pick_performance_config(ds, **arguments)
    assert config.read_options.num_threads == 16
    return config.multiprocessing_options.num_workers, config.read_options.prefetch_buffer_size


@pytest.fixture(autouse=True)
def memory_of_a_machine_of_our_own(monkeypatch, tmp_path, caplog):
    """Budgets here are not to depend on the limits of the container that the tests run in."""
    monkeypatch.setattr(performance, "available_memory", lambda: available_memory(tmp_path))
    caplog.set_level(logging.WARNING, "gristmill")


@pytest.mark.parametrize(
    ("ds", "budget", "max_workers", "max_buffer_size", "expected"),
    [
        # as in Grain
        (STREAM, 1024, 300, None, (102, 102)),
        (STREAM, 1024, 30, 50, (30, 50)),
        (STREAM.batch(2), 45, 30, None, (2, 4)),
        (STREAM.batch(2), 1, 30, None, (0, 0)),
        (STREAM, 45, 0, 0, (0, 0)),
        (STREAM, 45.5, 30, None, (4, 4)),
        (RANGE.to_iter_dataset(), 374.5 * sys.getsizeof(1) / MIB, 3000, 5000, (374, 374)),
        (IterDataset.mix([BIG.to_iter_dataset(), STREAM.batch(2)]), 100, 3000, 5000, (7, 5)),
        # a map dataset is measured too: Grain takes 1000 elements for the buffer, of any size
        (BIG, 45, 30, None, (4, 4)),
        (BIG.batch(2), 45, 30, None, (2, 2)),
        (RANGE, 10**6, None, None, (usable_cpus(), 1000)),
        # without a budget the maxima decide
        (BIG, None, 7, 9, (7, 9)),
        (BIG, None, 7, None, (7, 1000)),
    ],
)
def test_what_fits(ds, budget, max_workers, max_buffer_size, expected):
    found = pick(ds, ram_budget_mb=budget, max_workers=max_workers, max_buffer_size=max_buffer_size)
    assert found == expected


def test_sizes_and_no_more_than_the_control_group_has_left(tmp_path):
    for element, size in [
        ({"a": np.zeros(1000), "b": [np.zeros((2, 500), np.float32), (np.zeros(500),)]}, 16000),
        (memoryview(bytes(10**6)), 10**6),
        (bytes(10**6), 10**6 + 33),
    ]:
        assert pick(
            MapDataset.source([element] * 5), ram_budget_mb=size * 7.5 / MIB, max_workers=100
        ) == (7, 7)
    for folder, text in {
        "proc/self/cgroup": "0::/\n",
        "memory.max": f"{55 * MIB}\n",
        "memory.current": "0\n",
    }.items():
        path = tmp_path / (folder if "/" in folder else f"sys/fs/cgroup/{folder}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    assert [pick(BIG, ram_budget_mb=budget, max_workers=30) for budget in (1000, None, 20)] == [
        (5, 5),
        (5, 5),
        (2, 2),
    ]


def test_warnings(caplog):
    for ds in (BIG[:4], BIG[:0], RANGE.filter(lambda x: x < 3)):  # too few elements to measure
        assert pick(ds.to_iter_dataset(), ram_budget_mb=20, max_workers=8, max_buffer_size=77) == (
            8,
            77,
        )
        assert "too few to tell their size: num_workers is its maximum, 8" in caplog.text
        assert "prefetch_buffer_size is its maximum, 77" in caplog.text
        caplog.clear()
    assert pick(BIG[:4].to_iter_dataset(), ram_budget_mb=20, max_workers=8, samples_to_check=4) == (
        2,
        2,
    )

    without_conversion = Given(lambda: iter([BIG[0]] * 10))
    assert pick(without_conversion, ram_budget_mb=45, max_workers=8) == (4, 1000)
    assert "prefetch_buffer_size" in caplog.text and "num_workers" not in caplog.text
    assert pick(BIG, ram_budget_mb=9) == pick(BIG, ram_budget_mb=0) == (0, 0)
    assert "num_workers is 0: 9.0 MiB are too few for an element of 10.0 MiB" in caplog.text
    assert "prefetch_buffer_size is 0" in caplog.text


def test_only_the_samples_are_computed_and_in_this_thread():
    computed, threads = [], set()

    def count(x):
        computed.append(x)
        threads.add(threading.current_thread())
        return np.zeros(MIB, np.uint8)

    source, before = MapDataset.range(1000).map(count), {*threading.enumerate()}
    stream = source.to_iter_dataset(ReadOptions(4, 100))
    for ds in [
        stream,
        gx.ThreadPrefetchIterDataset(stream, prefetch_buffer_size=50),
        stream.mp_prefetch(MultiprocessingOptions(2)),
        gx.multithread_prefetch(stream, 2, 10),
        gx.WithOptionsIterDataset(stream, gx.DatasetOptions()).map(lambda x: x),
    ]:
        assert pick(ds, ram_budget_mb=20.5, max_workers=50) == (20, 20)
        assert computed == [0, 1, 2, 3, 4] * 2
        computed.clear()
    lazy = MapDataset.range(1).map(
        lambda _: gx.ThreadPrefetchIterDataset(stream, prefetch_buffer_size=9)
    )
    for parts in ([source], [stream], lazy):
        assert pick(
            gx.InterleaveIterDataset(parts, cycle_length=2), ram_budget_mb=20.5, max_workers=50
        ) == (20, 1000)
        assert computed == [0, 1, 2, 3, 4]
        computed.clear()
    pick(source.map(lambda x: None).to_iter_dataset(allow_nones=True))
    assert computed == [0, 1, 2, 3, 4] * 2
    assert threads == {threading.current_thread()}
    assert {*threading.enumerate()} <= before
    # a set: a garbage collection closes once more, at any time
    numbers, closed = itertools.count(), set()

    def closing():
        it, number = MapDataset.range(10).to_iter_dataset().__iter__(), next(numbers)
        close, it.close = it.close, lambda: (closed.add(number), close())
        return it

    pick(Given(closing))
    assert closed == {0}  # iterators are closed
    assert_raises(ZeroDivisionError, None, pick, Given(closing).map(lambda x: 1 / 0))
    assert closed == {0, 1}


def test_wrong_arguments_and_the_result():
    for name in ("max_workers", "max_buffer_size"):
        with pytest.raises(ValueError, match=f"{name} must be a non-negative integer, got -1"):
            pick(RANGE, **{name: -1})
        assert_raises(TypeError, f"{name} must be an integer", pick, RANGE, **{name: 1.5})
    with pytest.raises(ValueError, match="samples_to_check must be a positive integer, got 0"):
        pick(RANGE, samples_to_check=0)
    for wrong in (-1, float("nan")):
        with pytest.raises(ValueError, match="ram_budget_mb must be a non-negative number or None"):
            pick(RANGE, ram_budget_mb=wrong)
    with pytest.raises(TypeError, match="ram_budget_mb must be a number or None"):
        pick(RANGE, ram_budget_mb="1024")
    assert_raises(TypeError, None, pick_performance_config, RANGE)
    e = gx.ElasticIterator(MapDataset.range(8), 2, ShardOptions(0, 1))
    for wrong in (e, e.map(lambda x: x), iter(RANGE), [1, 2]):  # an iterator is not moved
        assert_raises(
            TypeError, r"ds must (be a MapDataset or IterDataset|not be an iterator)", pick, wrong
        )
    assert e.get_state() == {"global_next_index": 0}
    assert next(e).tolist() == [0, 1]
    assert gx.PerformanceConfig() == gx.PerformanceConfig(
        multiprocessing_options=None, read_options=None
    )
    config = pick_performance_config(RANGE, ram_budget_mb=1, max_workers=2, max_buffer_size=20)
    assert config == gx.PerformanceConfig(MultiprocessingOptions(2), ReadOptions(16, 20))
    assert list(
        RANGE.to_iter_dataset(config.read_options).mp_prefetch(config.multiprocessing_options)
    ) == list(range(100))
