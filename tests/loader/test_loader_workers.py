"""``DataLoader`` with worker processes: who gets what, what it is made of, errors, states and checkpoints.

Operations are local to functions: they travel by value, so that workers need not import pytest.
"""

import copy
import json
import mmap
import os
import pickle
import select
import threading
from itertools import islice

import numpy as np
import orbax.checkpoint as ocp
import pytest

from gristmill import DataLoader, ReadOptions, RecordMetadata, checkpoint
from gristmill.dataset.worker_task import PipelineTask
from gristmill.experimental import DatasetOptions
from gristmill.python import BatchOperation, MapOperation, Record
from gristmill.samplers import IndexSampler, SequentialSampler
from gristmill.sharding import ShardOptions
from gristmill.sources import RangeDataSource
from gristmill.transforms import Batch, Filter, Map, MapWithIndex, RandomMap
from gristmill.workers import pool as pool_module
from gristmill.workers.pool import unpark

DIRECT = ReadOptions(0, 0)


def loader(n, operations=(), *, worker_count=2, read_options=DIRECT, sampler=None, source=None, **options):
    return DataLoader(
        data_source=RangeDataSource(0, n, 1) if source is None else source,
        sampler=SequentialSampler(n, seed=4) if sampler is None else sampler,
        operations=operations,
        worker_count=worker_count,
        read_options=read_options,
        **options,
    )


def plain(elements):
    return [x.tolist() if hasattr(x, "tolist") else x for x in elements]


def not_multiples(k):
    class NotMultiples(Filter):
        def filter(self, x):
            return x % k != 0

    return NotMultiples()


def mapped(fn):
    class Mapped(Map):
        def map(self, x):
            return fn(x)

    return Mapped()


def drawn():
    class Drawn(RandomMap):
        def random_map(self, x, rng):
            return x * 1000 + rng.integers(1000)

    return Drawn()


def base(array):
    while isinstance(array.base, np.ndarray):
        array = array.base
    if isinstance(array.base, memoryview):
        return array.base.obj
    return array.base


@pytest.fixture
def patient(monkeypatch):
    """Processes wait for the next who needs them for as long as a busy machine may take."""
    monkeypatch.setattr(pool_module, "_PARKED_SECONDS", 60.0)
    yield
    for pool in [*pool_module._parked]:
        if unpark(pool):
            pool.close()


class TestOutputs:
    @pytest.mark.parametrize(
        ("n", "operations", "count", "expected"),
        [
            (10, [Batch(2)], 3, [[0, 3], [1, 4], [2, 5], [6, 9], [7], [8]]),
            (10, [not_multiples(3), Batch(2)], 3, [[1, 4], [2, 5], [7], [8]]),
            (11, [Batch(2, drop_remainder=True)], 2, [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10]]),
            (3, [], 5, [0, 1, 2]),
        ],
    )
    def test_order(self, n, operations, count, expected):
        assert plain(loader(n, operations, worker_count=count)) == expected

    def test_one_to_one_operations_do_not_depend_on_the_number_of_workers(self):
        class Numbered(MapWithIndex):
            def map_with_index(self, i, x):
                return i * 10**6 + x

        def outputs(count, read_options):
            sampler = IndexSampler(20, shuffle=True, num_epochs=2, seed=3)
            operations = [drawn(), mapped(lambda x: x + 1), Numbered()]
            return plain(loader(20, operations, worker_count=count, sampler=sampler, read_options=read_options))

        expected = outputs(0, DIRECT)
        assert not any(isinstance(x, Record) for x in expected)
        assert [outputs(count, read) for count, read in ((1, DIRECT), (2, ReadOptions(3, 9)), (3, DIRECT))] == [expected] * 3

    def test_shards_and_elements_that_are_none(self):
        sampler = SequentialSampler(11, ShardOptions(1, 2))
        assert list(loader(11, [mapped(lambda x: None if x == 3 else x)], sampler=sampler)) == [1, None, 5, 7, 9]

    def test_legacy_operations(self):
        operations = [MapOperation(lambda x: x * 10), BatchOperation(2)]
        assert plain(loader(8, operations)) == [[0, 20], [10, 30], [40, 60], [50, 70]]

    def test_samplers_and_sources_of_users(self):
        class Backwards:
            def __len__(self):
                return 6

            def __getitem__(self, i):
                if i >= 6:
                    raise IndexError
                return RecordMetadata(i, 5 - i, np.random.default_rng(i))

        class Squares:
            def __getitem__(self, i):
                return i * i

            def __repr__(self):
                return "Squares()"

        options = ShardOptions(0, 1)
        it = iter(loader(6, sampler=Backwards(), source=Squares(), shard_options=options, worker_buffer_size=3))
        for _ in range(2):  # starts the workers of a fresh iterator, and changes nothing else
            it.start_prefetch()
            assert len(it._iterator._pool.workers) == 2
        assert list(it) == [25, 16, 9, 4, 1, 0]


class TestSharedMemory:
    """Batches are stacked where the consumer sees them, whatever operations there are before."""

    LOWERINGS = {  # noqa: RUF012
        "bare": lambda: [mapped(lambda x: np.full(50000, x))],
        "records": lambda: [mapped(lambda x: np.full(50000, x)), drawn()],
        "legacy": lambda: [lambda records: (Record(r.metadata, np.full(50000, r.data)) for r in records)],
    }

    @pytest.mark.parametrize("lowering", LOWERINGS)
    def test_batches_are_stacked_there(self, lowering):
        made = loader(6, [*self.LOWERINGS[lowering](), Batch(3)], worker_count=1)
        granted = []

        def allocate(shape, dtype):
            granted.append(np.empty(shape, dtype))
            return granted[-1]

        task = PipelineTask(made._dataset._parents[0], DatasetOptions(), None, False)
        producer = task(0, 1, allocate)
        producer.start(None, skip=False)
        elements, _, _ = producer.take(1)
        assert elements[0] is granted[0] and len(granted) == 1

    def test_and_arrive_as_plain_arrays(self):
        operations = [*self.LOWERINGS["records"](), Batch(3)]
        batches = list(loader(6, operations, worker_count=1))
        for ours, theirs in zip(batches, loader(6, operations, worker_count=0), strict=True):
            assert type(ours) is np.ndarray and ours.flags.writeable and ours.dtype == theirs.dtype
            assert isinstance(base(ours), mmap.mmap)
            np.testing.assert_array_equal(ours, theirs)
        assert not np.shares_memory(*batches)

    def test_a_batch_of_dictionaries(self):
        operation = mapped(lambda x: {"image": np.full((100, 100), x), "label": x, "small": np.full(3, x), "none": None})
        for batch in loader(8, [operation, Batch(2)], worker_count=1):
            assert isinstance(base(batch["image"]), mmap.mmap)
            assert isinstance(base(batch["small"]), bytearray)
            assert batch["none"] is None
            assert batch["label"].tolist() == batch["image"][:, 5, 5].tolist() == batch["small"][:, 0].tolist()

    def test_memory_is_used_again(self):
        it = iter(loader(400, [mapped(lambda x: np.full(2**16, x)), Batch(2)], worker_count=1))
        for k, batch in enumerate(it):
            assert batch[1, -1] == 2 * k + 1
            if k == 150:
                (worker,) = it._iterator._pool.workers
                assert os.fstat(worker._reader._mapping._fd).st_blocks * 512 < 12 * 2**20  # of 150 MB that were sent
        kept = list(loader(60, [mapped(lambda x: np.full(2**16, x)), Batch(2)], worker_count=1))
        assert [int(batch[1, -1]) for batch in kept] == [*range(1, 60, 2)]


class TestWorkers:
    def test_init_function(self):
        def init(index, count):
            os.environ["WHO"] = f"{index} of {count}"

        assert list(loader(4, [mapped(lambda x: os.environ["WHO"])], worker_init_fn=init)) == ["0 of 2", "1 of 2"] * 2

        def fail(index, count):
            raise LookupError("no device")

        it = iter(loader(4, worker_init_fn=fail))
        for _ in range(2):
            with pytest.raises(LookupError, match="no device"):
                next(it)

    def test_environment(self):
        look = mapped(lambda x: (os.environ.get("GIVEN"), os.environ.get("JAX_PLATFORMS")))
        assert next(iter(loader(1, [look]))) == (None, "cpu")
        assert next(iter(loader(1, [look], worker_env={"GIVEN": "x", "JAX_PLATFORMS": None}))) == ("x", None)

    def test_the_next_epoch_has_the_same_processes(self, patient):
        made = loader(6, [mapped(lambda x: os.getpid())])
        first = set(made)
        assert set(made) == first and len(first) == 2
        it = iter(made)
        state = it.get_state()
        assert set(islice(it, 3)) == first
        it.set_state(state)
        assert set(it) == first

    def test_closing_the_loader_ends_them(self):
        made = loader(6, [mapped(lambda x: os.getpid())])
        iterators = [iter(made), iter(made)]
        pids = [next(it) for it in iterators]
        fds = [os.pidfd_open(pid) for pid in pids]
        made.close()
        assert sorted(select.select(fds, [], [], 0)[0]) == sorted(fds)
        for fd in fds:
            os.close(fd)
        for it in iterators:
            with pytest.raises(ValueError, match="is closed"):
                next(it)

    def test_a_loader_can_be_pickled_and_copied(self):
        made = loader(5)
        list(made)
        assert list(pickle.loads(pickle.dumps(made))) == list(copy.deepcopy(made)) == [0, 1, 2, 3, 4]


class TestErrors:
    def test_stay_until_the_state_is_set_and_can_be_skipped(self):
        def fail(x):
            if x == 5:
                raise OSError("bad record")
            return x

        it = iter(loader(10, [mapped(fail)]))
        assert [next(it) for _ in range(5)] == [0, 1, 2, 3, 4]
        state = it.get_state()
        for _ in range(2):
            with pytest.raises(OSError, match="bad record") as caught:
                next(it)
            assert it.get_state() == state
        assert any("worker 1 of 2" in note and "element 5" in note for note in caught.value.__notes__)
        it.set_state(state)
        with pytest.raises(OSError, match="bad record"):
            next(it)
        it.skip_failed()
        assert list(it) == [6, 7, 8, 9]

    def test_of_a_batch(self):
        def fail(x):
            if x == 4:
                raise OSError("bad record")
            return x

        it = iter(loader(12, [mapped(fail), drawn(), Batch(2)], sampler=SequentialSampler(12, seed=1)))
        assert [(next(it) // 1000).tolist() for _ in range(2)] == [[0, 2], [1, 3]]
        with pytest.raises(OSError, match="bad record"):
            next(it)
        it.skip_failed()
        assert [(x // 1000).tolist() for x in it] == [[5, 7], [8, 10], [9, 11]]

    def test_of_the_source_and_the_sampler(self):
        class Source:
            def __len__(self):
                return 4

            def __getitem__(self, i):
                if i == 1:
                    raise ConnectionError("gone")
                return i

        it = iter(loader(4, source=Source()))
        assert next(it) == 0
        with pytest.raises(ConnectionError, match="gone"):
            next(it)

    def test_an_operation_that_cannot_be_pickled(self):
        class Locked(Map):
            def __init__(self):
                self.lock = threading.Lock()

            def map(self, x):
                return x

        with pytest.raises(TypeError, match="cannot pickle") as caught:
            next(iter(loader(3, [Locked()])))
        assert "Locked" in caught.value.__notes__[0]


class TestStates:
    def test_texts_are_those_of_grain(self):
        """Section 6.1 of the peer's layout, byte by byte; also for shards."""
        it = iter(loader(10, [Batch(2)], worker_count=3))
        text = """{
    "version": 2,
    "last_seen_indices": {
        "0": %d,
        "1": %d,
        "2": %d
    },
    "last_worker_index": %d,
    "worker_count": 3,
    "sampler": "SequentialSampler(num_records=10, shard_options=NoSharding(shard_index=0, shard_count=1, drop_remainder=False))",
    "data_source": "RangeDataSource(start=0, stop=10, step=1)"
}"""
        expected = [(-3, -2, -1, -1), (3, -2, -1, 0), (3, 4, -1, 1), (3, 4, 5, -1), (9, 4, 5, 0), (9, 7, 5, 1), (9, 7, 8, -1)]
        for numbers in expected:
            assert it.get_state().decode() == text % numbers
            next(it, None)
        sampler = SequentialSampler(30, ShardOptions(1, 3))
        it = iter(loader(30, worker_count=5, sampler=sampler))
        assert [*json.loads(it.get_state())["last_seen_indices"].values()] == [-14, -11, -8, -5, -2]

    @pytest.mark.parametrize("operations", [lambda: [drawn()], lambda: [not_multiples(3), Batch(2)]])
    def test_every_one_restores(self, operations):
        made = loader(11, operations())
        it = iter(made)
        states, outputs = [], []
        while True:
            states.append(it.get_state())
            try:
                outputs.append(plain([next(it)])[0])
            except StopIteration:
                break
        for k in (len(outputs), 0, 2, 3):
            it.set_state(states[k])
            assert it.get_state() == states[k]
            assert plain(it) == outputs[k:]
        fresh = iter(loader(11, operations()))
        fresh.set_state(json.loads(states[2]))
        assert plain(fresh) == outputs[2:]

    def test_another_worker_count(self):
        state = iter(loader(8)).get_state()
        for count in (0, 1, 3):
            it = iter(loader(8, worker_count=count))
            before = it.get_state()
            with pytest.raises(ValueError, match=f"taken with worker_count=2, the DataLoader has worker_count={count}"):
                it.set_state(state)
            assert it.get_state() == before

    def test_a_position_outside_the_data(self):
        it = iter(loader(8))
        assert next(it) == 0
        state = json.loads(it.get_state())
        state["last_seen_indices"]["1"] = 9
        with pytest.raises(IndexError, match=r"worker 1 .* \[0, 4\]"):
            it.set_state(state)
        assert list(it) == [1, 2, 3, 4, 5, 6, 7]


class TestCheckpoints:
    def test_in_the_middle(self, tmp_path):
        """Saved by one loader, restored into another, whose workers are at work when ``restore`` returns."""
        made = [loader(30, [drawn(), Batch(3)]) for _ in range(2)]
        it = iter(made[0])
        before = [next(it) for _ in range(4)]
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(7, args=ocp.args.Composite(data=checkpoint.CheckpointSave(it)))
            rest = [*it]
            manager.wait_until_finished()
        assert len(before) + len(rest) == 10
        with ocp.CheckpointManager(tmp_path) as manager:
            restored = iter(made[1])
            result = manager.restore(7, args=ocp.args.Composite(data=checkpoint.CheckpointRestore(restored)))
        assert result["data"] is restored
        assert len(restored._iterator._pool.workers) == 2
        for ours, theirs in zip(restored, rest, strict=True):
            np.testing.assert_array_equal(ours, theirs)

    def test_another_number_of_workers_is_refused(self, tmp_path):
        it = iter(loader(8))
        next(it)
        with ocp.CheckpointManager(tmp_path) as manager:
            manager.save(1, args=ocp.args.Composite(data=checkpoint.CheckpointSave(it)))
            manager.wait_until_finished()
            other = iter(loader(8, worker_count=3))
            with pytest.raises(ValueError, match="worker_count"):
                manager.restore(1, args=ocp.args.Composite(data=checkpoint.CheckpointRestore(other)))
        assert other._iterator._pool is None
