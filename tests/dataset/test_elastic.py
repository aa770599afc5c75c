"""One of several shards, which may change in number from one state to the next."""

import asyncio
import itertools
import json
import random
import threading

import numpy as np
import orbax.checkpoint as ocp
import pytest

from gristmill import DatasetIterator, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.checkpoint import CheckpointRestore, CheckpointSave
from gristmill.experimental import (
    DatasetOptions,
    ElasticIterator,
    LimitIterDataset,
    RepeatIterDataset,
    ShapeDtypeStruct,
    ThreadPrefetchIterDataset,
    WithOptionsIterDataset,
    get_element_spec,
    multithread_prefetch,
)
from gristmill.sharding import ShardOptions

DIRECT = ReadOptions(num_threads=0)
OPTIONS = {
    "direct": {"read_options": DIRECT},
    "threads": {},
    "workers": {"multiprocessing_options": MultiprocessingOptions(2)},
}


def make(length=16, size=4, index=0, count=2, **options):
    return ElasticIterator(MapDataset.range(length), size, ShardOptions(index, count), **(options or OPTIONS["direct"]))


def shards(length, size, count):
    return [make(length, size, index, count) for index in range(count)]


def plain(batches):
    return [x.tolist() for x in batches]


def flat(lists):
    return [*itertools.chain.from_iterable(lists)]


@pytest.mark.parametrize("mode", OPTIONS)
def test_elements_and_states(mode):
    it = make(index=1, **OPTIONS[mode])
    assert it.get_state() == {"global_next_index": 0}
    assert plain([next(it), next(it)]) == [[1, 3], [5, 7]]
    assert it.get_state() == {"global_next_index": 8}
    assert plain(it) == [[9, 11], [13, 15]]
    for _ in range(2):
        with pytest.raises(StopIteration):
            next(it)
    assert it.get_state() == {"global_next_index": 16}
    it.set_state({"global_next_index": 4})
    assert plain(it) == [[5, 7], [9, 11], [13, 15]]
    it.close()


def test_a_state_restores_in_another_topology():
    it = make(index=0)
    next(it), next(it)
    state = json.loads(json.dumps(it.get_state()))
    of = make(size=8, index=3, count=4)
    assert plain(of) == [[3, 7], [11, 15]]
    of.set_state(state)
    assert plain([next(of)]) == [[11, 15]]
    one = make(size=3, count=1)
    one.set_state({"global_next_index": 5})
    assert plain(one) == [[5, 6, 7], [8, 9, 10], [11, 12, 13]]


@pytest.mark.parametrize(("length", "size", "count"), [(10, 4, 4), (7, 2, 2), (10, 4, 2), (3, 4, 2), (0, 2, 2), (12, 12, 3)])
def test_all_shards_end_together(length, size, count):
    steps = [plain(it) for it in shards(length, size, count)]
    assert {len(batches) for batches in steps} == {length // size}
    assert sorted(flat(flat(steps))) == list(range(length // size * size))


def test_random_rescalings_give_every_element_once():
    rng = random.Random(3)
    for _ in range(60):
        length = rng.randint(0, 60)
        position, seen, state = 0, [], {"global_next_index": 0}
        while True:
            count = rng.randint(1, 4)
            size = count * rng.randint(1, 3)
            its = shards(length, size, count)
            for it in its:
                it.set_state(state)
            num = rng.randint(1, 5)
            batches = [plain(itertools.islice(it, num)) for it in its]
            assert {len(of_shard) for of_shard in batches} == {min(num, (length - position) // size)}
            for step in zip(*batches, strict=True):
                assert sorted(flat(step)) == list(range(position, position + size))
                position += size
                seen += flat(step)
            states = [json.loads(json.dumps(it.get_state())) for it in its]
            state = states[0]
            assert states == [{"global_next_index": position}] * count
            if len(batches[0]) < num:
                break
        assert sorted(seen) == list(range(position))


@pytest.mark.parametrize("mode", OPTIONS)
def test_states_in_place(mode):
    it = make(22, 4, 1, 2, **OPTIONS[mode])
    expected = {start: [[p + 1, p + 3] for p in range(start, 19, 4)] for start in range(23)}
    for start in [4, 4, 8, 0, 3, 7, 16, 20, 22, 1, 18]:
        it.set_state({"global_next_index": start})
        it.start_prefetch()
        assert it.get_state() == {"global_next_index": start}
        assert plain(itertools.islice(it, 2)) == expected[start][:2]
    assert plain(it) == []
    it.close()


def test_a_state_of_grain_past_the_end_is_the_end():
    it = make(10, 4, 0, 4)
    it.set_state({"global_next_index": 12})  # of a shard that got one batch more than others
    assert list(it) == []
    assert it.get_state() == {"global_next_index": 12}
    it.set_state({"global_next_index": 4})
    assert plain(it) == [[4]]


@pytest.mark.parametrize("position", [-1, -4, 20, 10**9, 1.5, "4", None, [4]])
def test_wrong_positions_change_nothing(position):
    it = make()
    next(it)
    with pytest.raises(ValueError, match=r"global_next_index in the state of .* must be in \[0, 20\)"):
        it.set_state({"global_next_index": position})
    assert it.get_state() == {"global_next_index": 4}
    assert plain(it) == [[4, 6], [8, 10], [12, 14]]


def test_wrong_states():
    it = make()
    with pytest.raises(KeyError, match="must have the key 'global_next_index'"):
        it.set_state({"next_index": 3})
    with pytest.raises(ValueError, match="must be a mapping"):
        it.set_state(3)


def test_wrong_arguments():
    ds = MapDataset.range(16)
    shard = ShardOptions(0, 2)
    with pytest.raises(ValueError, match="divisible by the number of shards, 2, got 5"):
        ElasticIterator(ds, 5, shard)
    with pytest.raises(ValueError, match="global_batch_size must be a positive integer, got 0"):
        ElasticIterator(ds, 0, shard)
    with pytest.raises(TypeError, match="global_batch_size must be an integer"):
        ElasticIterator(ds, 4.0, shard)
    with pytest.raises(TypeError, match="ds must be a MapDataset or IterDataset, got 3"):
        ElasticIterator(3, 4, shard)
    with pytest.raises(TypeError, match="shard_options must be a ShardOptions, got 2"):
        ElasticIterator(ds, 4, 2)
    with pytest.raises(TypeError, match="read_options must be a ReadOptions"):
        ElasticIterator(ds, 4, shard, read_options=16)
    with pytest.raises(TypeError, match="multiprocessing_options must be a MultiprocessingOptions"):
        ElasticIterator(ds, 4, shard, multiprocessing_options=2)


def test_it_is_an_iterator_and_a_dataset():
    it = make()
    assert isinstance(it, DatasetIterator) and isinstance(it, IterDataset)
    assert iter(it) is it and next(it).tolist() == [0, 2]
    assert next(iter(it)).tolist() == [4, 6]  # it does not begin again
    assert str(it) == (
        "ElasticIterator(global_batch_size=4, shard_options=ShardOptions(shard_index=0, shard_count=2, drop_remainder=False))"
    )
    assert get_element_spec(it) == ShapeDtypeStruct((2,), np.int64)
    assert get_element_spec(it.batch(2)) == ShapeDtypeStruct((None, 2), np.int64)


CHAINED = {
    "map": (lambda e: e.map(lambda x: x + 1), [[1, 3], [5, 7], [9, 11], [13, 15]]),
    "filter": (lambda e: e.filter(lambda x: x[0] % 8 == 0), [[0, 2], [8, 10]]),
    "batch": (lambda e: e.batch(3).map(lambda x: x[:, 0]), [[0, 4, 8], [12]]),
    "limit": (lambda e: LimitIterDataset(e, 2), [[0, 2], [4, 6]]),
    "repeat": (lambda e: RepeatIterDataset(LimitIterDataset(e, 2), 2), [[0, 2], [4, 6]] * 2),
    "thread_prefetch": (lambda e: ThreadPrefetchIterDataset(e, prefetch_buffer_size=2), [[0, 2], [4, 6], [8, 10], [12, 14]]),
    "one thread": (lambda e: multithread_prefetch(e, 1, 1), [[0, 2], [4, 6], [8, 10], [12, 14]]),
    "pipe": (lambda e: e.pipe(lambda ds: ds.map(lambda x: x)), [[0, 2], [4, 6], [8, 10], [12, 14]]),
    "options": (lambda e: WithOptionsIterDataset(e, DatasetOptions(min_shm_size=9)), [[0, 2], [4, 6], [8, 10], [12, 14]]),
    "random_map": (lambda e: e.random_map(lambda x, rng: x, seed=1), [[0, 2], [4, 6], [8, 10], [12, 14]]),
}


@pytest.mark.parametrize("name", CHAINED)
def test_chaining(name):
    chain, expected = CHAINED[name]
    it = iter(chain(make()))
    assert plain([next(it)]) == expected[:1]
    state = json.loads(json.dumps(it.get_state()))
    assert plain(it) == expected[1:]
    it.set_state(state)
    assert plain(it) == expected[1:]
    again = iter(chain(make()))
    again.set_state(state)
    assert plain(again) == expected[1:]


def test_options_reach_the_workers_of_the_batches():
    e = make(**OPTIONS["workers"])
    it = iter(WithOptionsIterDataset(e, DatasetOptions(min_shm_size=9)).map(lambda x: x))
    assert plain([next(it)]) == [[0, 2]]
    assert e._iterator._running._ctx.options.min_shm_size == 9
    it.close()


def test_it_cannot_be_shared_out():
    for share in (
        lambda: make().map(str).mp_prefetch(MultiprocessingOptions(2)),
        lambda: multithread_prefetch(make().map(str), 2, 1),
    ):
        with pytest.raises(ValueError, match="ElasticIterator cannot be sliced among 2 workers"):
            share()


def test_default_seeds_are_not_those_of_the_dataset():
    """As in Grain: it is an input of its own."""
    with pytest.raises(ValueError, match="random_map needs a seed"):
        ElasticIterator(MapDataset.range(4).seed(1), 2, ShardOptions(0, 1)).random_map(lambda x, rng: x)


def test_endless_and_shuffled():
    ds = MapDataset.range(5).shuffle(seed=1).repeat()
    its = [ElasticIterator(ds, 4, ShardOptions(index, 2)) for index in range(2)]
    got = [plain(itertools.islice(it, 5)) for it in its]
    flat = [x for step in zip(*got, strict=True) for x in np.array(step).T.ravel().tolist()]
    assert flat == [ds[i] for i in range(20)]


def test_closing():
    for mode in OPTIONS:
        for used in (False, True):
            it = make(**OPTIONS[mode])
            if used:
                next(it)
            it.close()
            it.close()
            it.start_prefetch()
            assert it.get_state() == {"global_next_index": 4 * used}
            with pytest.raises(ValueError, match="closed"):
                next(it)


def test_closing_ends_the_wait_of_another_thread():
    started, release = threading.Event(), threading.Event()

    def wait(x):
        started.set()
        release.wait(30)
        return x

    e = ElasticIterator(MapDataset.range(8).map(wait), 4, ShardOptions(0, 1))
    closer = threading.Thread(target=lambda: (started.wait(30), e.close(), release.set()))
    closer.start()
    with pytest.raises(ValueError, match="closed"):
        next(e)
    closer.join()


@pytest.mark.parametrize("mode", OPTIONS)
def test_errors_do_not_move_it(mode):
    def fail(x):
        if x == 6:
            raise OSError(x)
        return x

    e = ElasticIterator(MapDataset.range(16).map(fail), 4, ShardOptions(0, 2), **OPTIONS[mode])
    for it in (e, iter(e.map(lambda x: x))):
        it.set_state({"global_next_index": 0})
        assert plain([next(it)]) == [[0, 2]]
        for _ in range(2):
            with pytest.raises(OSError):
                next(it)
            assert it.get_state() == {"global_next_index": 4}
        it.skip_failed()
        assert it.get_state() == {"global_next_index": 8}
        assert plain(it) == [[8, 10], [12, 14]]
    e.close()


def test_a_missing_element_is_an_error():
    e = ElasticIterator(MapDataset.range(8).map(lambda x: None if x == 2 else x), 4, ShardOptions(0, 2))
    with pytest.raises(ValueError, match="same structure") as caught:
        next(e)
    assert "element of this batch is None" in "".join(caught.value.__notes__)


@pytest.mark.parametrize("wrap", [lambda e: e, iter, lambda e: iter(e.map(lambda x: x))], ids=["itself", "iter", "chained"])
def test_orbax(tmp_path, wrap):
    with ocp.CheckpointManager(tmp_path) as manager:
        it = wrap(make())
        next(it)
        manager.save(1, args=ocp.args.Composite(data=CheckpointSave(it)))
        rest = plain(it)
        manager.wait_until_finished()
        (file,) = (tmp_path / "1" / "data").glob("process_*")
        assert json.loads(file.read_text()) == {"global_next_index": 4}
        for again in (it, wrap(make())):
            manager.restore(1, args=ocp.args.Composite(data=CheckpointRestore(again)))
            assert plain(again) == rest == [[4, 6], [8, 10], [12, 14]]
        other = wrap(make(size=8, index=1, count=4))
        manager.restore(1, args=ocp.args.Composite(data=CheckpointRestore(other)))
        assert plain(other) == [[5, 9]]
        with pytest.raises(ValueError, match="another pipeline"):
            manager.restore(1, args=ocp.args.Composite(data=CheckpointRestore(wrap(make(17)))))


def test_stateful_checkpointable(tmp_path):
    class Directory:
        async def await_creation(self):
            return tmp_path

    async def run():
        it = make()
        next(it)
        await (await it.save(Directory()))
        again = make()
        await (await again.load(tmp_path))
        return plain(again)

    assert asyncio.run(run()) == [[4, 6], [8, 10], [12, 14]]
