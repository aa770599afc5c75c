"""``mp_prefetch`` on real processes: what it takes, what comes out, states, errors, and which processes do the work.

Functions and classes that workers use are local to the tests: they travel by value, so that workers need not import pytest.
"""

import copy
import dataclasses
import gc
import json
import os
import select
import sys
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from local_workers import LocalWorkersIterDataset

from gristmill import DatasetIterator, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.dataset.ahead.blocks import StatedBlocks
from gristmill.experimental import DatasetOptions, WithOptionsIterDataset
from gristmill.workers import pool as pool_module
from gristmill.workers.pool import unpark

SOON = 6  # seconds, for what takes less than two unless the machine is busy
DIRECT = ReadOptions(0, 0)  # no threads that read ahead: what a worker is at is certain


def numbers(n, read_options=DIRECT):
    return MapDataset.range(n).to_iter_dataset(read_options)


def workers(n, **options):
    return MultiprocessingOptions(n, **options)


def failing(*bad, error=lambda x: OSError(5, f"bad record {x}", "file")):
    def fail(x):
        if x in bad:
            raise error(x)
        return x

    return fail


def stream(values, get_state=None):
    """A user's dataset, with states unless ``get_state`` is False; local, so that it travels by value."""

    class Positions(DatasetIterator):
        def __init__(self, values):
            super().__init__()
            self.values, self.position = values, "start"

        def __next__(self):
            position = 0 if self.position == "start" else self.position[0]
            if position >= len(self.values):
                raise StopIteration
            self.position = [position + 1]
            return self.values[position]

        def get_state(self):
            return get_state() if get_state else self.position

        def set_state(self, state):
            self.position = state

    class Stream(IterDataset):
        def __init__(self, values):
            super().__init__()
            self.values = values

        def set_slice(self, sl, sequential_slice=False):
            self.values = self.values[sl]

        def __iter__(self):
            return iter(self.values) if get_state is False else Positions(self.values)

    return Stream(values)


def children():
    """The worker processes of this process."""
    found = set()
    for path in Path("/proc").glob("[0-9]*"):
        try:
            stat, command = (path / "stat").read_text(), (path / "cmdline").read_text()
        except OSError:
            continue
        if int(stat.rpartition(")")[2].split()[1]) == os.getpid() and "boot.py" in command:
            found.add(int(path.name))
    return found


def ends(pid, seconds):
    """Whether a process ends within that time."""
    try:
        fd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([fd], [], [], seconds)[0])
    finally:
        os.close(fd)


def memory(it):
    """Bytes in use in the shared memory of the workers of an iterator."""
    return max([os.fstat(worker._reader._mapping._fd).st_blocks * 512 for worker in it._pool.workers])


@pytest.fixture
def patient(monkeypatch):
    """Processes wait for the next who needs them for as long as a busy machine may take."""
    monkeypatch.setattr(pool_module, "_PARKED_SECONDS", 60.0)
    yield
    for pool in [*pool_module._parked]:
        if unpark(pool):
            pool.close()


@pytest.fixture
def started():
    """The worker processes that were started since the test began; others may still wait for a moment."""
    before = children()
    return lambda: children() - before


class TestArguments:
    def test_no_workers_is_the_dataset_itself(self):
        ds = numbers(5)
        assert ds.mp_prefetch(workers(0)) is ds
        assert ds.mp_prefetch(workers(0, per_worker_buffer_size=0), worker_init_fn=3, sequential_slice=True) is ds

    def test_ten_workers_by_default(self, started):
        ds = numbers(5).mp_prefetch()
        assert str(ds) == (
            "MultiprocessPrefetchIterDataset(multiprocessing_options="
            "MultiprocessingOptions(num_workers=10, per_worker_buffer_size=1, enable_profiling=False))"
        )
        assert len(iter(ds).get_state()["exhausted"]) == 10
        assert started() == set()

    def test_str(self):
        ds = numbers(5).mp_prefetch(workers(2, per_worker_buffer_size=3))
        options = (
            "(multiprocessing_options=MultiprocessingOptions(num_workers=2, per_worker_buffer_size=3, enable_profiling=False))"
        )
        assert str(ds) == f"MultiprocessPrefetchIterDataset{options}"
        assert str(iter(ds)) == f"MultiprocessPrefetchIterator{options}"

    def test_wrong_types(self):
        with pytest.raises(TypeError, match="options must be a MultiprocessingOptions, got 2"):
            numbers(5).mp_prefetch(2)
        with pytest.raises(TypeError, match="worker_init_fn must be a callable of worker index and worker count, got 'init'"):
            numbers(5).mp_prefetch(workers(1), "init")

    def test_buffer_size(self):
        options = workers(1)
        options.per_worker_buffer_size = 0
        with pytest.raises(ValueError, match=r"per_worker_buffer_size must be .*, got 0"):
            numbers(5).mp_prefetch(options)

    def test_workers_of_workers_are_refused_at_construction(self):
        first = numbers(5).mp_prefetch(workers(2))
        with pytest.raises(ValueError, match=r"cannot be applied to a pipeline that already has .*num_workers=2"):
            first.map(lambda x: x).batch(2).mp_prefetch(workers(1))
        assert first.mp_prefetch(workers(0)) is first

    def test_a_source_without_slices(self):
        class Stream(IterDataset):
            def __iter__(self):
                return iter(range(3))

        assert list(Stream().mp_prefetch(workers(1))) == [0, 1, 2]
        with pytest.raises(ValueError, match="an IterDataset source of class Stream cannot be sliced among 2 workers"):
            Stream().map(lambda x: x).mp_prefetch(workers(2))

    def test_a_source_that_cannot_be_cut(self):
        class Root(MapDataset):
            def __len__(self):
                return 4

            def __getitem__(self, i):
                return i

        with pytest.raises(ValueError, match="sequential_slice=True can cut only"):
            Root().to_iter_dataset().mp_prefetch(workers(2), sequential_slice=True)

    def test_nothing_starts_or_is_computed_before_the_first_element(self, started, tmp_path):
        trace = tmp_path / "trace"
        it = iter(numbers(5).map(lambda x: trace.touch() or x).mp_prefetch(workers(2)))
        state = it.get_state()
        it.set_state(state)
        assert it.get_state() == state
        assert started() == set() and not trace.exists()
        assert next(it) == 0
        assert len(started()) == 2
        it.close()
        assert started() == set()


class TestOrder:
    def test_buffer_sizes_and_threads_do_not_matter(self):
        expected = [0, 10, 2, 3, 5, 6, 8, 9, 11]
        for size, read in ((1, DIRECT), (7, ReadOptions(4, 8))):
            ds = numbers(12, read).filter(lambda x: x % 3 != 1 or x > 8)
            assert list(ds.mp_prefetch(workers(3, per_worker_buffer_size=size))) == expected

    def test_random_steps(self):
        ds = MapDataset.range(40).seed(7).shuffle().map(lambda x: x * 2).random_map(lambda x, rng: (x, int(rng.integers(99))))
        assert list(ds.to_iter_dataset(DIRECT).mp_prefetch(workers(2))) == list(ds.to_iter_dataset(DIRECT))

    def test_many_small_elements(self):
        """Far more than a message has, with filters and counts that states must follow."""
        ds = numbers(30000).filter(lambda x: x % 7 != 3).random_map(lambda x, rng: x, seed=1)
        expected = [[x for x in range(w, 30000, 2) if x % 7 != 3] for w in range(2)]
        it = iter(ds.mp_prefetch(workers(2)))
        taken = [[], []]
        for k, x in enumerate(it):
            taken[x % 2].append(x)
            if k % 1000 == 500:
                for w, state in enumerate(it.get_state()["iterators_in_use_states"]):
                    last = taken[w][-1]
                    assert state == {"parent": {"next_index": last // 2 + 1}, "index_for_rng": len(taken[w])}
        assert taken == expected

    def test_slow_elements_after_quick_ones_do_not_wait_for_each_other(self):
        """A worker computes many quick elements before it sends them; what turns out to be slow goes as it is."""

        def slow(x):
            import time

            if x >= 4000:
                time.sleep(0.002)
            return x

        blocks = StatedBlocks(iter(numbers(9000).map(slow)))
        position = 0
        while position < 4000:
            elements, states, stop = blocks.take(4000 - position)
            position += len(elements)
            assert states[len(elements) - 1] == {"next_index": position} and stop is None
        elements, states, stop = blocks.take(2048)
        assert elements == [*range(4000, 4032)] and states[31] == {"next_index": 4032} and stop is None

    def test_elements_share_nothing(self):
        """One array that many elements have: whoever changes an element changes no other, however they travelled."""
        large, small = np.zeros(10000), {"a": np.zeros(3)}
        ds = MapDataset.source([(large, small, small)]).repeat(300).to_iter_dataset(DIRECT).mp_prefetch(workers(1))
        for first, second, third in ds:
            assert first[0] == 0 and second["a"][0] == 0 and second is third  # within an element it is as it was
            first += 1
            second["a"] += 1

    def test_map_with_index_numbers_the_elements_of_a_worker_in_steps(self):
        """DECISIONS 7: the ``k``-th element that reaches the step in worker ``i`` of ``n`` is number ``i + k * n``."""
        ds = numbers(9).filter(lambda x: x not in (2, 3)).map_with_index(lambda i, x: (i, x))
        assert list(LocalWorkersIterDataset(ds, 2)) == [(0, 0), (1, 1), (2, 4), (3, 5), (4, 6), (5, 7), (6, 8)]
        it = iter(LocalWorkersIterDataset(ds, 2))
        next(it), next(it)
        assert [s["counter"] for s in it.get_state()["iterators_in_use_states"]] == [1, 1]

    def test_sequential_slice(self):
        assert list(numbers(10).mp_prefetch(workers(3), sequential_slice=True)) == [0, 4, 7, 1, 5, 8, 2, 6, 9, 3]

    def test_plain_iterators(self):
        it = iter(stream([*range(5000)], get_state=False).mp_prefetch(workers(2)))
        assert [next(it), next(it)] == [0, 1]
        with pytest.raises(NotImplementedError, match="plain Python iterators"):
            it.get_state()
        assert list(it) == [*range(2, 5000)]

    def test_a_plain_iterator_that_was_interrupted_is_not_at_its_end(self):
        """Nobody knows where to go on, so it must not look like the end of the data."""
        it = iter(stream([*range(9000)], get_state=False).mp_prefetch(workers(1)))
        next(it)
        fetch = it._members[0].fetch

        def interrupted():
            it._members[0].fetch = fetch
            raise KeyboardInterrupt

        it._members[0].fetch = interrupted
        with pytest.raises(KeyboardInterrupt):
            list(it)
        with pytest.raises(NotImplementedError, match="no state"):
            next(it)

    def test_an_interrupt_in_the_middle_of_a_batch_loses_nothing(self):
        def interrupted():
            raise KeyboardInterrupt

        it = iter(numbers(20_000).mp_prefetch(workers(2)).batch(500))
        batches = [next(it) for _ in range(4)]
        it._parent._members[1].fetch = interrupted  # of worker 0, some have been taken and more are ready
        while len(batches) < 40:
            try:
                batches.append(next(it))
            except KeyboardInterrupt:
                batches.append(next(it))
        assert np.concatenate(batches).tolist() == [*range(20_000)]

    def test_user_datasets(self):
        class Squares(MapDataset):
            def __len__(self):
                return 7

            def __getitem__(self, i):
                return i * i

        class Twice(IterDataset):
            def __init__(self, parent):
                super().__init__(parent)
                self.parent = parent

            def __iter__(self):
                for x in self.parent:
                    yield x
                    yield -x

        ds = Twice(Squares().to_iter_dataset(DIRECT))
        assert list(LocalWorkersIterDataset(ds, 2)) == [0, 1, 0, -1, 4, 9, -4, -9, 16, 25, -16, -25, 36, -36]


class TestWorkers:
    def test_init_function_is_called_once_in_each_process_before_the_pipeline(self, patient):
        def init(index, count):
            os.environ["CALLS"] = os.environ.get("CALLS", "") + f"{index} of {count}."

        class Source:
            def __len__(self):
                return 4

            def __getitem__(self, i):
                return os.environ["CALLS"]

            def __setstate__(self, state):
                self.__dict__ = state

        ds = MapDataset.source(Source()).to_iter_dataset(DIRECT).mp_prefetch(workers(2), init)
        for _ in range(2):  # the processes are those of the first epoch
            assert list(ds) == ["0 of 2.", "1 of 2."] * 2
        assert "CALLS" not in os.environ

    @pytest.mark.parametrize("bad", [0, 1])
    def test_init_function_that_raises(self, bad):
        def init(index, count):
            if index == bad:
                raise LookupError("no device", index)

        it = iter(numbers(4).mp_prefetch(workers(2), init))
        assert list(islice(it, bad)) == [*range(bad)]
        for _ in range(3):
            with pytest.raises(LookupError) as caught:
                next(it)
            assert caught.value.args == ("no device", bad)
            assert caught.value.__notes__[0] == f"Raised in worker {bad} of 2, when it was started."
            it.set_state(it.get_state())

    def test_environment(self, monkeypatch):
        monkeypatch.setenv("GIVEN", "parent")
        monkeypatch.setenv("REMOVED", "parent")
        names = ["JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "GIVEN", "REMOVED"]
        ds = numbers(1).map(lambda x: [os.environ.get(name) for name in names])
        assert list(ds.mp_prefetch(workers(1))) == [["cpu", "", "parent", "parent"]]
        changed = {"JAX_PLATFORMS": "tpu", "GIVEN": "worker", "REMOVED": None}
        assert list(ds.mp_prefetch(workers(1, worker_env=changed))) == [["tpu", "", "worker", None]]

    def test_options_given_after_it_reach_the_workers(self):
        ds = numbers(4000).filter(lambda x: x < 100).mp_prefetch(workers(2))
        ds = WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=0.9))
        it = iter(ds)
        assert [next(it) for _ in range(100)] == [*range(100)]
        with pytest.raises(ValueError, match="filter"):
            next(it)

    def test_min_shm_size_reaches_the_workers(self):
        def addresses(options):
            ds = numbers(3).map(lambda x: np.full(20000, x)).mp_prefetch(workers(1))
            return [is_mapped(x) for x in WithOptionsIterDataset(ds, options)]

        def is_mapped(array):
            while isinstance(array.base, np.ndarray):
                array = array.base
            return not isinstance(array.base, bytearray)

        assert addresses(DatasetOptions()) == [True] * 3
        assert addresses(DatasetOptions(min_shm_size=10**6)) == [False] * 3

    def test_default_seeds_are_those_of_the_pipeline_without_workers(self):
        def draws(count):
            ds = MapDataset.range(12).seed(5).map(lambda x: x).to_iter_dataset(DIRECT).map(lambda x: x)
            ds = ds.mp_prefetch(workers(count)).random_map(lambda x, rng: (x, int(rng.integers(10**9))))
            return list(ds)

        assert draws(0) == draws(2)

    def test_a_worker_imports_only_what_the_pipeline_needs(self):
        it = iter(numbers(1).map(lambda x: [*sys.modules]).mp_prefetch(workers(1)))
        assert not {"jax", "orbax", "absl", "pytest", "asyncio", "multiprocessing"} & set(next(it))


@pytest.fixture(scope="module")
def seven():
    return LocalWorkersIterDataset(numbers(7), 2)


@pytest.fixture(scope="module")
def state(seven):
    """After three elements."""
    it = iter(seven)
    assert list(islice(it, 3)) == [0, 1, 2]
    return it.get_state()


class TestStates:
    def test_forms_of_a_state(self, seven, state):
        def given(**fields):
            return {**copy.deepcopy(state), **fields}

        without = given()
        del without["future_states"]
        as_numpy = {
            **given(),
            "next_index_in_cycle": np.int64(1),
            "next_index_in_datasets": np.int32(2),
            "iterators_in_use_states": ({"next_index": np.int64(2)}, {"next_index": np.uint8(1)}),
            "exhausted": [np.int64(0), np.bool_(False)],
        }
        it = iter(seven)
        for form in (state, without, as_numpy, given(exhausted=[False, False]), json.loads(json.dumps(state))):
            it.set_state(form)
            assert list(it) == [3, 4, 5, 6]

    @pytest.mark.parametrize("flags", [[1, 0], [True, False], [True, True]])
    def test_exhausted_is_not_believed(self, seven, state, flags):
        """Grain may set it wrongly: the worker is asked all the same, and the flag stays until it delivers something."""
        it = iter(seven)
        it.set_state({**state, "exhausted": flags})
        assert it.get_state()["exhausted"] == [int(flag) for flag in flags]
        assert next(it) == 3
        assert it.get_state()["exhausted"] == [1, 0]
        assert list(it) == [4, 5, 6]
        assert it.get_state()["exhausted"] == [1, 1]

    def test_null_states_have_nothing_to_run(self, seven, state):
        it = iter(seven)
        it.set_state({**state, "iterators_in_use_states": [None, {"next_index": 1}], "exhausted": [1, 0]})
        assert it.get_state()["iterators_in_use_states"] == [None, {"next_index": 1}]
        assert list(it) == [3, 5]
        it.set_state({**state, "iterators_in_use_states": [None, None]})
        assert list(it) == []

    def test_set_state_throws_away_what_was_computed_ahead(self):
        """Also large elements, whose memory must be used again."""
        it = iter(numbers(1000).map(lambda x: np.full(30000, x)).mp_prefetch(workers(2, per_worker_buffer_size=5)))
        states = []
        for _ in range(6):
            states.append(it.get_state())
            next(it)
        for _ in range(10):
            for k in (4, 0, 5, 2):
                it.set_state(states[k])
                assert next(it)[-1] == k
        assert memory(it) < 12 * 2**20  # of which 0.24 MB are in use for each of at most 7 elements; 40 new starts would add 40

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda s: [], "must be a mapping"),
            (lambda s: {}, "must have the key"),
            (lambda s: {k: v for k, v in s.items() if k != "exhausted"}, "must have the key 'exhausted'"),
            (lambda s: {**s, "next_index_in_cycle": 2}, "next_index_in_cycle .*must be below 2"),
            (lambda s: {**s, "next_index_in_cycle": -1}, "next_index_in_cycle"),
            (lambda s: {**s, "next_index_in_cycle": 1.0}, "next_index_in_cycle"),
            (lambda s: {**s, "exhausted": [0]}, "exhausted .*must be a list of 2"),
            (lambda s: {**s, "exhausted": 3}, "exhausted .*must be a list of 2"),
            (lambda s: {**s, "exhausted": [0, 2]}, "exhausted .*must have only 0 and 1"),
            (lambda s: {**s, "iterators_in_use_indices": [1, 0]}, "iterators_in_use_indices .*must be"),
            (lambda s: {**s, "future_states": {"2": {}}}, "future_states .*must be empty"),
            (lambda s: {**s, "iterators_in_use_states": {}}, "iterators_in_use_states .*must be a list of 2"),
            (
                lambda s: {**s, "iterators_in_use_states": [{"next_index": 0}, {"next_index": 4}]},
                r"next_index .* \[0, 3\].* got 4",
            ),
            (lambda s: {**s, "iterators_in_use_states": [{"next_index": 0}, {"parent": {}}]}, "must have the key 'next_index'"),
            (lambda s: {**s, "iterators_in_use_states": [{"next_index": 0}, 3]}, "must be a mapping"),
        ],
    )
    def test_what_does_not_fit_is_refused_and_nothing_changes(self, seven, state, change, message):
        it = iter(seven)
        assert next(it) == 0
        before = it.get_state()
        with pytest.raises(ValueError, match=message):
            it.set_state(change(state))
        assert it.get_state() == before
        assert list(it) == [1, 2, 3, 4, 5, 6]

    def test_another_number_of_workers(self, seven, state):
        it = iter(LocalWorkersIterDataset(numbers(7), 3))
        before = it.get_state()
        with pytest.raises(ValueError, match=r"taken with 2 workers .* has 3"):
            it.set_state(state)
        with pytest.raises(ValueError, match=r"taken with 3 workers .* has 2"):
            iter(seven).set_state(before)
        assert it.get_state() == before

    def test_user_states(self):
        """Iterators of users save and restore themselves, whatever their states look like; in the worker only."""
        it = iter(stream([*range(10)]).mp_prefetch(workers(2)))
        seen = []
        for k in range(10):
            seen.append(it.get_state())
            assert next(it) == k
        assert seen[0]["iterators_in_use_states"] == ["start", "start"]
        assert seen[3]["iterators_in_use_states"] == [[2], [1]]
        for k in (9, 3, 0):
            it.set_state(seen[k])
            assert list(it) == [*range(k, 10)]

    def test_user_states_that_cannot_be_pickled(self):
        with pytest.raises(TypeError, match="cannot pickle"):
            next(iter(stream([1], get_state=threading.Lock).mp_prefetch(workers(1))))

    def test_start_prefetch(self, tmp_path, started):
        os.mkfifo(tmp_path / "fifo")
        fifo = str(tmp_path / "fifo")

        def init(index, count):
            with Path(fifo).open("w") as file:
                file.write(f"{index}")

        it = iter(numbers(4).mp_prefetch(workers(2), init))
        it.start_prefetch()
        assert len(started()) == 2
        it.start_prefetch()
        assert len(started()) == 2
        seen = ""
        while len(seen) < 2:  # both are at work although no element was asked for
            with Path(fifo).open() as file:
                seen += file.read()
        assert sorted(seen) == ["0", "1"]
        state = it.get_state()
        assert list(it) == [0, 1, 2, 3]
        it.set_state(state)
        it.start_prefetch()
        assert list(it) == [0, 1, 2, 3]
        it.close()
        it.start_prefetch()
        assert started() == set()


class TestErrors:
    def check(self, ds, before, error, match, after):
        """Elements up to an error, which stays; ``set_state`` tries again; ``skip_failed`` leaves out what failed."""
        it = iter(ds)
        for expected in before:
            np.testing.assert_equal(next(it), expected)
        with pytest.raises(ValueError, match="nothing to skip"):
            it.skip_failed()
        state = it.get_state()
        for trial in range(3):
            with pytest.raises(error, match=match) as caught:
                next(it)
            assert it.get_state() == state
            if trial == 1:
                it.set_state(state)
        it.skip_failed()
        np.testing.assert_equal(list(it), after)
        return caught.value

    def test_come_in_their_turn_and_stay(self):
        ds = numbers(10).map(failing(5)).mp_prefetch(workers(2, per_worker_buffer_size=9))
        error = self.check(ds, range(5), OSError, "bad", [6, 7, 8, 9])
        assert (error.errno, error.filename) == (5, "file")
        assert any(
            "worker 1 of 2" in note and "at element 5" in note and "MapDatasetIterator" in note for note in error.__notes__
        )

    def test_of_any_kind(self):
        @dataclasses.dataclass(frozen=True)
        class Frozen(Exception):
            """Refuses changes."""

            code: int

        class Odd(Exception):
            """Cannot be pickled."""

            def __init__(self, a, *, b):
                super().__init__(f"{a} and {b}")
                self.lock = threading.Lock()

        def deep(x):
            return deep(x)

        errors = [StopIteration, Frozen, lambda x: Odd(x, b=2), deep, MemoryError]
        ds = numbers(7).map(failing(*range(1, 6), error=lambda x: errors[x - 1](x)))
        it, caught = iter(ds.mp_prefetch(workers(2))), []
        assert next(it) == 0
        for name in ("RuntimeError", "Frozen", "Odd", "RecursionError", "MemoryError"):
            for _ in range(2):
                try:
                    next(it)
                except Exception as error:
                    caught.append(error)
                assert type(caught[-1]).__name__ == name
            it.skip_failed()
        assert list(it) == [6]
        stop, frozen, odd, _, memory = caught[::2]
        assert isinstance(stop.__cause__, StopIteration)
        assert frozen.code == 2 and "Raised in worker 0 of 2" in frozen.__notes__[0]
        assert str(odd) == "3 and 2" and memory.args == (5,)

    def test_in_a_batch(self):
        bad = numbers(12).map(failing(5))
        self.check(LocalWorkersIterDataset(bad.batch(2), 2), [[0, 2], [1, 3], [4, 6]], OSError, "bad", [[8, 10], [9, 11]])
        # A batch whose second element fails is taken back as a whole.
        after = [[6, 7], [8, 9], [10, 11]]
        self.check(LocalWorkersIterDataset(bad, 2).batch(2), [[0, 1], [2, 3]], OSError, "bad", after)

    def test_heal_when_the_state_is_set(self, tmp_path):
        broken = tmp_path / "broken"
        broken.touch()

        def read(x):
            if x == 3 and broken.exists():
                raise OSError("not now")
            return x

        it = iter(LocalWorkersIterDataset(numbers(8).map(read), 2))
        assert [next(it) for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(OSError, match="not now"):
                next(it)
            broken.unlink(missing_ok=True)
        it.set_state(it.get_state())
        assert list(it) == [3, 4, 5, 6, 7]

    def test_after_a_worker_has_ended(self):
        """What had ended is still known to have ended, and so the state says, also when the error is left out."""
        ds = numbers(10).filter(lambda x: x % 2 or x < 4).map(failing(5))
        it = iter(LocalWorkersIterDataset(ds, 2))
        assert [next(it) for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(OSError, match="bad"):
            next(it)
        assert it.get_state()["exhausted"] == [0, 0]  # after the last delivered element nobody had looked
        it.skip_failed()
        assert it.get_state()["exhausted"] == [1, 0]
        assert list(it) == [7, 9]
        assert it.get_state()["exhausted"] == [1, 1]

    def test_several_in_a_row(self):
        it, seen = iter(LocalWorkersIterDataset(numbers(7).map(failing(2, 3, 4)), 2)), []
        while len(seen) < 7:
            try:
                seen.append(next(it))
            except OSError as error:
                seen.append(error.args[1])
                it.skip_failed()
        assert seen == [0, 1, "bad record 2", "bad record 3", "bad record 4", 5, 6]
        assert next(it, "end") == "end"

    def test_exit_of_user_code(self):
        it = iter(numbers(6).map(failing(3, error=lambda x: sys.exit(0))).mp_prefetch(workers(2)))
        assert [next(it) for _ in range(3)] == [0, 1, 2]
        for _ in range(2):
            with pytest.raises(RuntimeError, match=r"Worker process 1 of 2 .* exited with code 0"):
                next(it)

    def test_elements_of_plain_iterators_that_cannot_be_unpickled(self):
        """There is no state to begin from again: what came before the element arrives, and only once."""

        class Picky:
            def __init__(self, x):
                self.x = x

            def __setstate__(self, state):
                raise ArithmeticError("not here")

        ds = stream([*range(1000)], get_state=False).map(lambda x: Picky(x) if x == 700 else x)
        it = iter(ds.mp_prefetch(workers(1)))
        assert [next(it) for _ in range(700)] == [*range(700)]
        for _ in range(2):
            with pytest.raises(ArithmeticError, match="not here"):
                next(it)

    def test_with_the_chain_and_the_lines_of_the_user(self):
        def fail(x):
            try:
                return {}["key"]
            except KeyError as error:
                raise ValueError("no such thing") from error

        with pytest.raises(ValueError, match="no such thing") as caught:
            next(iter(numbers(3).map(fail).mp_prefetch(workers(1))))
        assert isinstance(caught.value.__cause__, KeyError)
        names = [entry.name for entry in caught.traceback]
        assert names[-1] == "fail"

    def test_elements_that_cannot_be_pickled(self):
        def lock(x):
            return (x, threading.Lock()) if x == 401 else (x,)

        error = self.check(
            numbers(500).map(lock).mp_prefetch(workers(2)),
            [(x,) for x in range(401)], TypeError, "cannot pickle", [(x,) for x in range(402, 500)],
        )  # fmt: skip
        notes = "\n".join(error.__notes__)
        assert "An element of type tuple could not be sent from a worker process." in notes
        assert "worker 1 of 2" in notes and "at element 401" in notes

    def test_large_elements_that_cannot_be_pickled_leave_nothing_behind(self):
        """Neither do their arrays keep memory, nor does a batch that was stacked where it could not be sent from."""

        def lock(x):
            return {"array": np.full(100000, x), "other": [threading.Lock() if x % 2 else None]}

        it = iter(numbers(400).map(lock).mp_prefetch(workers(1)))
        for x in range(400):
            if x % 2:
                with pytest.raises(TypeError, match="cannot pickle"):
                    next(it)
                it.skip_failed()
            else:
                assert next(it)["array"][0] == x
        assert memory(it) < 8 * 2**20

    def test_elements_that_can_be_unpickled_only_in_the_worker(self):
        class Picky:
            def __init__(self, x):
                self.x = x

            def __setstate__(self, state):
                raise ArithmeticError("not here", state["x"])

        def picky(x):
            return Picky(x) if x == 300 else x

        ds = numbers(400).map(picky).mp_prefetch(workers(2))
        error = self.check(ds, range(300), ArithmeticError, "not here", [*range(301, 400)])
        assert any("worker 0 of 2" in note and "could not be unpickled" in note for note in error.__notes__)

    def test_pipelines_that_cannot_be_pickled(self, started):
        lock = threading.Lock()
        ds = MapDataset.range(3).map(lambda x: (lock, x)).to_iter_dataset(DIRECT).filter(lambda x: True).mp_prefetch(workers(2))
        it = iter(ds)
        for _ in range(2):
            with pytest.raises(TypeError, match="cannot pickle") as caught:
                next(it)
            note, _ = caught.value.__notes__  # the other one is about frames that are left out
            assert "MapMapDataset" in note and "lambda" in note and "FilterIterDataset" not in note
        assert started() == set()

    def test_init_functions_that_cannot_be_pickled(self):
        lock = threading.Lock()
        it = iter(numbers(3).mp_prefetch(workers(1), lambda index, count: lock.acquire()))
        with pytest.raises(TypeError, match="cannot pickle") as caught:
            next(it)
        assert "worker_init_fn" in caught.value.__notes__[0]

    def test_open_text_files_are_refused(self, tmp_path):
        """cloudpickle would turn them into copies in memory, where ``seek`` finds other places."""
        path = tmp_path / "lines.txt"
        path.write_text("\u00e4\u00f6\u00fc\n" * 9, encoding="utf-8")
        with path.open(encoding="utf-8") as file:
            it = iter(MapDataset.source([0]).map(lambda x: file.readline()).to_iter_dataset().mp_prefetch(workers(1)))
            with pytest.raises(TypeError, match=r"cannot pickle an open text file.*lines\.txt"):
                next(it)
        opened = numbers(9).map(lambda x: path.open(encoding="utf-8") if x == 3 else x).mp_prefetch(workers(1))
        self.check(opened, range(3), TypeError, "cannot pickle an open text file", [*range(4, 9)])
        output = numbers(1).map(lambda x: (sys.stdout is not None, x)).mp_prefetch(workers(1))
        assert list(output) == [(True, 0)]


class TestProcesses:
    @pytest.fixture
    def ds(self):
        return numbers(6).map(lambda x: (x, os.getpid())).mp_prefetch(workers(2))

    def pids(self, elements):
        elements = list(elements)
        assert {pid for x, pid in elements if x % 2 == 0}.isdisjoint(pid for x, pid in elements if x % 2)
        return {pid for _, pid in elements}

    def test_set_state_keeps_them(self, ds, patient):
        it = iter(ds)
        state = it.get_state()
        pids = self.pids(islice(it, 4))
        assert len(pids) == 2
        for _ in range(3):
            it.set_state(state)
            assert self.pids(islice(it, 4)) == pids
        for _ in range(3):  # after the end, too
            assert self.pids(it) <= pids
            it.set_state(state)
            assert self.pids(it) == pids
            it.set_state(state)

    def test_the_next_epoch_has_them(self, ds, patient):
        pids = self.pids(ds)
        for _ in range(3):
            assert self.pids(ds) == pids
        for _ in range(2):  # also when the last one was left in the middle
            assert self.pids(islice(ds, 3)) == pids
        it = iter(ds)
        assert self.pids(it) == pids
        assert self.pids(iter(ds)) == pids  # `it` lives and has ended
        it.set_state(iter(ds).get_state())
        assert self.pids(it) == pids

    def test_two_iterators_do_not_share_them(self, ds):
        first, second = iter(ds), iter(ds)
        pairs = list(zip(first, second, strict=True))
        assert [a[0] for a, _ in pairs] == [b[0] for _, b in pairs] == [*range(6)]
        assert not self.pids(a for a, _ in pairs) & self.pids(b for _, b in pairs)

    def test_an_equal_pipeline_has_its_own(self, tmp_path):
        """As in this process, where a new object has not opened yet what the old one has."""
        path = tmp_path / "file"

        class Source:
            text = None

            def __len__(self):
                return 2

            def __getitem__(self, i):
                self.text = self.text or path.read_text()
                return self.text

        def read():
            return list(MapDataset.source(Source()).to_iter_dataset(DIRECT).mp_prefetch(workers(1)))

        path.write_text("old")
        assert read() == ["old", "old"]
        path.write_text("new")
        assert read() == ["new", "new"]

    def test_an_epoch_sees_of_the_last_one_what_it_would_see_in_this_process(self, patient):
        """Objects of the pipeline are the same as long as the processes are; iterators begin anew."""

        class Count:
            calls = 0

            def __call__(self, x):
                self.calls += 1
                return x, self.calls

        ds = numbers(3).map(Count()).random_map(lambda x, rng: (*x, int(rng.integers(1000))), seed=2)
        ours = [list(ds.mp_prefetch(workers(1))) for _ in range(2)]
        assert ours == [list(ds), list(ds)]

    def test_none_is_left_of_what_has_ended_or_was_abandoned(self, ds):
        iterators = {how: iter(ds) for how in ("end", "del", "cycle", "exception", "close", "with")}
        pids = {how: self.pids(islice(it, 6 if how == "end" else 2)) for how, it in iterators.items()}
        state = iterators["close"].get_state()
        iterators["cycle"].me = iterators["cycle"]
        with pytest.raises(KeyError):
            fail_with(iterators.pop("exception"))
        with iterators.pop("with"):
            pass
        closed, ended = iterators.pop("close"), iterators.pop("end")
        assert next(ended, "end") == "end"
        closed.close()
        closed.close()
        assert not children() & (pids["close"] | pids["with"])
        assert closed.get_state() == state
        with pytest.raises(ValueError, match=r"MultiprocessPrefetchIterator.* is closed"):
            next(closed)
        iterators.clear()
        gc.collect()
        assert all(ends(pid, SOON) for pid in set.union(*pids.values()))
        ended.set_state(iter(ds).get_state())  # and others take their place
        assert not self.pids(ended) & pids["end"]


def fail_with(it):
    next(it)
    raise KeyError


def test_a_stuck_worker_is_replaced_when_nobody_wants_its_element_any_more(tmp_path):
    pid_file = tmp_path / "pid"

    def stuck_once(x):
        if x == 1 and not pid_file.exists():
            pid_file.write_text(str(os.getpid()))
            threading.Event().wait()
        return x

    def wait_for_the_element():
        while not pid_file.exists() or not pid_file.read_text():
            threading.Event().wait(0.01)
        return int(pid_file.read_text())

    ds = MapDataset.range(4).map(stuck_once).to_iter_dataset().mp_prefetch(workers(1))
    it = iter(ds)
    assert next(it) == 0
    stuck = wait_for_the_element()
    it.set_state(it.get_state())
    assert list(it) == [1, 2, 3]
    assert ends(stuck, 5)

    pid_file.unlink()
    it = iter(ds)
    assert next(it) == 0
    stuck = wait_for_the_element()
    del it  # parks the worker, and the next iterator does not wait for it
    assert list(ds) == [0, 1, 2, 3]
    assert ends(stuck, 5)
