"""``DataLoader`` with worker processes: what it is made of and errors; the workers are in
``dataset/test_mp_prefetch.py``.
"""

import copy
import json
import mmap
import os
import pickle
import select
import sys

import numpy as np
import pytest
from loaders import AS_RECORDS, DRAW, TO_TUPLE, WITH_INDEX, Mapped, Source, make, plain
from refusing import assert_raises, assert_refused
from worker_pools import idle_for_long

from gristmill import (
    Batch,
    BatchOperation,
    IndexSampler,
    MapOperation,
    ReadOptions,
    Record,
    RecordMetadata,
    SequentialSampler,
)
from gristmill.dataset.workers.task import PipelineTask
from gristmill.experimental import DatasetOptions
from gristmill.sharding import ShardOptions


@pytest.fixture(autouse=True)
def by_processes(monkeypatch):
    """Makes processes the default without the GIL, too."""
    monkeypatch.setattr(sys, "_is_gil_enabled", lambda: True, raising=False)


def loader(n, *operations, **options):
    return make(n, *operations, **{"worker_count": 2, **options})


def base(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.base.obj if isinstance(array.base, memoryview) else array.base


@pytest.fixture
def patient(monkeypatch):
    yield from idle_for_long(monkeypatch)


def test_outputs_do_not_depend_on_workers():
    def outputs(count, **options):
        sampler = IndexSampler(20, shuffle=True, num_epochs=2, seed=3)
        return list(
            make(20, TO_TUPLE, DRAW, WITH_INDEX, worker_count=count, sampler=sampler, **options)
        )

    expected = outputs(0)
    assert type(expected[0]) is tuple
    assert [outputs(1), outputs(2, read_options=ReadOptions(3, 9))] == [expected] * 2
    sampler = SequentialSampler(11, ShardOptions(1, 2))
    assert list(loader(11, Mapped(lambda x: None if x == 3 else x), sampler=sampler)) == [
        1,
        None,
        5,
        7,
        9,
    ]
    assert list(loader(2, worker_count=3)) == [0, 1]
    backwards = Source(6, lambda i: RecordMetadata([*range(6)][i], 5 - i, np.random.default_rng(i)))
    squares = Source(None, lambda i: i * i)  # which has no length
    options = {"data_source": squares, "shard_options": ShardOptions(0, 1), "worker_buffer_size": 3}
    it = iter(
        loader(6, MapOperation(lambda x: x * 10), BatchOperation(2), sampler=backwards, **options)
    )
    for _ in range(2):  # starts the workers of a fresh iterator, and changes nothing else
        it.start_prefetch()
        assert len(it._iterator.pool.workers) == 2
    assert plain(it) == [[250, 90], [160, 40], [10], [0]]


LOWERINGS = {
    "bare": [Mapped(lambda x: np.full(50000, x))],
    "records": [Mapped(lambda x: np.full(50000, x)), *AS_RECORDS],
    "legacy": [lambda records: (Record(r.metadata, np.full(50000, r.data)) for r in records)],
}


# batches are stacked where the consumer sees them, after any operations
class TestSharedMemory:
    @pytest.mark.parametrize("lowering", LOWERINGS)
    def test_batches_are_stacked_there(self, lowering):
        made, granted = loader(6, *LOWERINGS[lowering], Batch(3), worker_count=1), []
        task = PipelineTask(made._dataset._parents[0], DatasetOptions(), None, False, 1)
        producer = task(
            0, 1, lambda shape, dtype: granted.append(np.empty(shape, dtype)) or granted[-1]
        )
        producer.start({0: None}, skip=False)
        elements, _, _ = producer.take(0, 1)
        assert elements[0] is granted[0] and len(granted) == 1

    def test_and_arrive_as_plain_arrays(self):
        def element(x):
            return {
                "image": np.full((100, 100), x),
                "label": x,
                "small": np.full(3, x),
                "none": None,
            }

        operations = [Mapped(element), *AS_RECORDS, Batch(2)]
        batches = list(loader(8, *operations, worker_count=1))
        for batch, expected in zip(batches, make(8, *operations), strict=True):
            assert isinstance(base(batch["image"]), mmap.mmap)
            assert isinstance(base(batch["small"]), bytearray)
            assert batch["none"] is None
            for name in ("image", "label", "small"):
                assert type(batch[name]) is np.ndarray and batch[name].flags.writeable
                np.testing.assert_array_equal(batch[name], expected[name], strict=True)
        assert not np.shares_memory(batches[0]["image"], batches[1]["image"])


class TestWorkers:
    def test_init_function_and_environment_are_passed_on(self):
        def init(index, count):
            os.environ["WHO"] = f"{index} of {count}"

        who = Mapped(lambda x: os.environ["WHO"] + os.environ["GIVEN"])
        loaded = list(loader(4, who, worker_init_fn=init, worker_env={"GIVEN": "x"}))
        assert loaded == ["0 of 2x", "1 of 2x"] * 2
        made = loader(5, worker_count=1)
        list(made)
        assert (
            list(pickle.loads(pickle.dumps(made))) == list(copy.deepcopy(made)) == [0, 1, 2, 3, 4]
        )

    def test_the_next_epoch_has_the_same_processes(self, patient):
        made = loader(6, Mapped(lambda x: os.getpid()))
        it, other = iter(made), iter(made)
        assert set(made) == set(made) and len(set(made)) == 2
        next(it), next(other)
        fds = [os.pidfd_open(pid) for pid in (next(it), next(other))]
        made.close()
        assert sorted(select.select(fds, [], [], 0)[0]) == sorted(fds)
        for fd in fds:
            os.close(fd)
        for each in (it, other):
            assert_raises(ValueError, "is closed", next, each)


def test_states_that_are_refused_change_nothing():
    state = iter(loader(8)).get_state()
    for count in (0, 1, 3):
        it = iter(loader(8, worker_count=count))
        assert_refused(
            it,
            ValueError,
            f"taken with worker_count=2, the DataLoader has worker_count={count}",
            state,
        )
        assert count == 0 or it._iterator.pool is None  # no process has been started
    next(it := iter(loader(8)))
    state = json.loads(it.get_state())
    state["last_seen_indices"]["1"] = 9
    assert_raises(IndexError, r"worker 1 .* \[0, 4\]", it.set_state, state)
    assert list(it) == [1, 2, 3, 4, 5, 6, 7]
