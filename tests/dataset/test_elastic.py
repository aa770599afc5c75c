"""One of several shards, whose number may change from one state to the next: batches, filters,
files, checkpoints.
"""

import asyncio
import itertools
import json
import re
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pytest
from computing_ahead import DIRECT, Gate
from hypothesis import given, settings
from hypothesis import strategies as st
from local_workers import through_json
from operations import plain
from refusing import assert_raises, assert_refused, assert_stays
from users_datasets import BareStream
from waiting import wait_until

from gristmill import (
    DatasetIterator,
    IterDataset,
    MapDataset,
    MultiprocessingOptions,
    ReadOptions,
    ShardOptions,
)
from gristmill import experimental as gx
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError
from gristmill.dataset.stages.elastic_batches import StepsIterDataset

WORKERS = MultiprocessingOptions(2)
OPTIONS = {
    "direct": {"read_options": DIRECT},
    "threads": {"read_options": ReadOptions(4, 3)},
    "workers": {"read_options": DIRECT, "multiprocessing_options": WORKERS},
}
HANDLER = CheckpointHandler()


def elastic(ds, size, index=0, count=1, mode="direct"):
    return gx.ElasticIterator(ds, size, ShardOptions(index, count), **OPTIONS[mode])


def make(length=16, size=4, index=0, count=2, mode="direct"):
    return elastic(MapDataset.range(length), size, index, count, mode)


def shards(ds, size, count, mode="direct"):
    return [elastic(ds, size, i, count, mode) for i in range(count)]


def at(position):
    return {"global_next_index": position}


def failing(bad):
    return lambda x: x if x != bad else 1 // 0


def numbers(sizes):
    """Files with different numbers in each."""
    return [range(100 * k, 100 * k + n) for k, n in enumerate(sizes)]


def interleave(files, cycle_length):
    datasets = [
        MapDataset.source(file).to_iter_dataset(DIRECT) if isinstance(file, range) else file
        for file in files
    ]
    return gx.InterleaveIterDataset(
        datasets, cycle_length=cycle_length, num_make_iter_threads=0, iter_buffer_size=0
    )


def joined(its):
    """The states of all datasets, as JSON has them."""
    return through_json(
        {number: state for it in its for number, state in it.get_shard_states().items()}
    )


def test_wrong_states_change_nothing():
    it = make()
    next(it)
    for position in (-1, -4, 20, 10**9, 1.5, "4", None, [4]):
        with pytest.raises(
            ValueError, match=r"global_next_index in the state of .* must be in \[0, 20\)"
        ):
            it.set_state(at(position))
    with pytest.raises(KeyError, match="must have the key 'global_next_index'"):
        it.set_state({"next_index": 3})
    assert_refused(it, ValueError, "must be a mapping", 3, at(4))
    assert plain(it) == [[4, 6], [8, 10], [12, 14]]
    it = make(10, 4, 0, 4)
    # one of Grain, of a shard that got one batch more than others: past the end is the end
    it.set_state(at(12))
    assert list(it) == [] and it.get_state() == at(12)
    it.set_state(at(4))
    assert plain(it) == [[4]]


RANGE, FILES, HALF = MapDataset.range(16), interleave(numbers([3, 3]), 2), ShardOptions(0, 2)
NO_MAP = "multiprocessing_options needs a MapDataset"
WITH_STATES = [
    RANGE.to_iter_dataset(),
    gx.ZipIterDataset([FILES, FILES]),
    IterDataset.mix([FILES, FILES]),
    FILES.repeat(2),
]
WITH_STATES += [
    FILES.random_map(lambda x, rng: x, seed=1),
    FILES.window_shuffle(window_size=2, seed=1),
]
WITH_STATES += [gx.multithread_prefetch(FILES, 2, 1), FILES.mp_prefetch(WORKERS)]


@pytest.mark.parametrize(
    ("arguments", "options", "error", "match"),
    [
        ((RANGE, 5, HALF), {}, ValueError, "divisible by the number of shards, 2, got 5"),
        ((RANGE, 0, HALF), {}, ValueError, "global_batch_size must be a positive integer, got 0"),
        ((RANGE, 4.0, HALF), {}, TypeError, "global_batch_size must be an integer"),
        ((3, 4, HALF), {}, TypeError, "ds must be a MapDataset or IterDataset, got 3"),
        ((RANGE, 4, 2), {}, TypeError, "shard_options must be a ShardOptions, got 2"),
        ((RANGE, 4, HALF), {"read_options": 16}, TypeError, "read_options must be a ReadOptions"),
        (
            (RANGE, 4, HALF),
            {"multiprocessing_options": 2},
            TypeError,
            "multiprocessing_options must be a Multiprocessing",
        ),
        ((FILES, 2, HALF), {"multiprocessing_options": WORKERS}, NotImplementedError, NO_MAP),
        *[
            ((ds, 2, HALF), {}, ValueError, "cannot be divided among another number of shards")
            for ds in WITH_STATES
        ],
    ],
)
def test_wrong_arguments(arguments, options, error, match):
    assert_raises(error, match, gx.ElasticIterator, *arguments, **options)


def test_it_is_an_iterator_and_a_dataset():
    it = make()
    assert isinstance(it, DatasetIterator) and isinstance(it, IterDataset)
    assert iter(it) is it and next(it).tolist() == [0, 2]
    assert next(iter(it)).tolist() == [4, 6]  # it does not restart
    assert (
        str(it) == "ElasticIterator(global_batch_size=4, shard_options=ShardOptions(shard_index=0,"
        " shard_count=2, drop_remainder=False))"
    )
    assert gx.get_element_spec(it) == gx.ShapeDtypeStruct((2,), np.int64)
    assert gx.get_element_spec(it.batch(2)) == gx.ShapeDtypeStruct((None, 2), np.int64)
    # It cannot be shared out.
    for share in (lambda ds: ds.mp_prefetch(WORKERS), lambda ds: gx.multithread_prefetch(ds, 2, 1)):
        with pytest.raises(ValueError, match="ElasticIterator cannot be sliced among 2 workers"):
            share(make().map(str))
    # As in Grain, it is an input of its own: its default seed is not that of the dataset.
    with pytest.raises(ValueError, match="random_map needs a seed"):
        elastic(MapDataset.range(4).seed(1), 2).random_map(lambda x, rng: x)


BATCHES = [[0, 2], [4, 6], [8, 10], [12, 14]]


CHAINS = [
    *[(chain, BATCHES) for chain in (lambda e: e, lambda e: iter(e.map(lambda x: x)))],
    (lambda e: e.batch(3).map(lambda x: x[:, 0]), [[0, 4, 8], [12]]),
    (lambda e: e.limit(2).repeat(2), BATCHES[:2] * 2),
    (lambda e: e.thread_prefetch(2).multithread_prefetch(1, 1), BATCHES),
    (
        lambda e: gx.WithOptionsIterDataset(
            e.random_map(lambda x, rng: x, seed=1), gx.DatasetOptions(min_shm_size=9)
        ),
        BATCHES,
    ),
]


@pytest.mark.parametrize(("chain", "expected"), CHAINS)
def test_chaining_and_checkpoints(chain, expected, tmp_path):
    it = iter(chain(make()))
    assert plain([next(it)]) == expected[:1]
    state = through_json(it.get_state())
    HANDLER.save(tmp_path, it)
    assert plain(it) == expected[1:]
    for again in (it, iter(chain(make()))):
        for restore in (lambda it: it.set_state(state), lambda it: HANDLER.restore(tmp_path, it)):
            restore(again)
            assert plain(again) == expected[1:]
    assert_raises(ValueError, "another pipeline", HANDLER.restore, tmp_path, iter(chain(make(17))))


def test_closing_ends_the_wait_of_another_thread():
    gate = Gate()
    e = elastic(MapDataset.range(8).map(gate), 4, mode="threads")
    with ThreadPoolExecutor(1) as pool:
        pool.submit(lambda: (wait_until(lambda: gate.seen), e.close(), gate.open.set()))
        assert_raises(ValueError, "closed", next, e)


TOPOLOGIES = ((1, 1), (3, 1), (2, 2), (4, 2), (3, 3))  # global batch size, shards


def test_all_filters_of_few_elements_in_all_topologies():
    cases = [(length, bits) for length in range(6) for bits in range(2**length)]
    for (length, bits), (size, count) in itertools.product(cases, TOPOLOGIES):
        ds = MapDataset.range(length)
        # or all of them without a filter
        ds = ds.filter(lambda x, bits=bits: bits >> x & 1) if bits + 1 < 2**length else ds
        kept = [x for x in range(length) if bits >> x & 1]
        its = shards(ds, size, count)
        states = [its[0].get_state()]
        for step in [kept[i : i + size] for i in range(0, len(kept) - size + 1, size)]:
            assert plain(map(next, its)) == [step[s::count] for s in range(count)]
            assert all([it.get_state() == its[0].get_state() for it in its])
            states.append(its[0].get_state())
        assert [*map(list, its)] == [[]] * count
        assert its[0].get_state() == states[-1]
        new_size, new_count = TOPOLOGIES[(bits + size + count) % len(TOPOLOGIES)]
        its = shards(ds, new_size, new_count)
        for t, state in enumerate(states):
            rest = kept[t * size :]
            steps = [rest[i : i + new_size] for i in range(0, len(rest) - new_size + 1, new_size)]
            for s, it in enumerate(its):
                it.set_state(through_json(state))
                assert plain(it) == [step[s::new_count] for step in steps]


@pytest.mark.parametrize("mode", OPTIONS)
def test_filters_and_what_follows_them(mode, tmp_path):
    """That is computed for own elements only."""
    calls = tmp_path / "calls"

    def counted(i, x):
        with calls.open("a") as file:
            file.write(f"{i}\n")
        return x + 1000

    shuffled = list(MapDataset.range(40).shuffle(seed=3))
    kept = [x + 1000 for x in shuffled if x % 3]
    its = shards(
        MapDataset.range(40).shuffle(seed=3).filter(lambda x: x % 3).map_with_index(counted),
        4,
        2,
        mode,
    )
    for s, it in enumerate(its):
        assert plain(it) == [kept[i : i + 4][s::2] for i in range(0, 24, 4)]
    found = sorted(map(int, calls.read_text().split()))
    assert found == [i for i, x in enumerate(shuffled) if x % 3][:24]
    for start in (7, 1, 39, 40, 43) if mode != "workers" else (7, 43):  # processes take their time
        its[1].set_state(at(start))
        its[1].start_prefetch()
        assert its[1].get_state() == at(start)
        left = [x + 1000 for x in shuffled[start:] if x % 3]
        found = plain(itertools.islice(its[1], 2))
        assert found == [left[i + 1 : i + 4 : 2] for i in range(0, len(left) - 3, 4)][:2]
    for it in its:
        it.close()
        it.close()
        assert_raises(ValueError, "closed", next, it)


@pytest.mark.parametrize("mode", OPTIONS)
def test_errors_do_not_move_it_and_options_reach_it(mode):
    e = elastic(MapDataset.range(16).map(failing(6)), 4, 0, 2, mode)
    for it in (e, iter(e.map(lambda x: x))):
        it.set_state(at(0))
        assert plain([next(it)]) == [[0, 2]]
        assert_stays(it, ZeroDivisionError, None, at(4))
        it.skip_failed()
        assert it.get_state() == at(8)
        assert plain(it) == [[8, 10], [12, 14]]
    e.close()
    e = make(mode=mode)
    it = iter(gx.WithOptionsIterDataset(e, gx.DatasetOptions(min_shm_size=9)).map(lambda x: x))
    assert plain([next(it)]) == [[0, 2]]
    assert mode != "workers" or e._gm_engine.running._ctx.options.min_shm_size == 9
    it.close()
    # Skipping keeps shards together, no matter which of them met the error.
    before = MapDataset.range(24).map(failing(7)).filter(lambda x: x % 2)
    after = MapDataset.range(24).filter(lambda x: x % 2).map(failing(7))
    for ds, first_fails in ((before, True), (after, False))[: 1 if mode == "workers" else 2]:
        its = shards(ds, 4, 2, mode)
        for it, fails in zip(its, (first_fails, True), strict=True):
            if not fails:
                assert plain([next(it)]) == [[1, 5]]
                continue
            assert_raises(ZeroDivisionError, None, next, it)
            assert it.get_state() == at(0)
            it.skip_failed()
            assert it.get_state() == at(8)
        assert [plain(it) for it in its] == [[[9, 13], [17, 21]], [[11, 15], [19, 23]]]
        for it in its:
            it.close()


def test_a_worker_skips_up_to_its_own_step():
    steps = StepsIterDataset(
        MapDataset.range(40).map(failing(7)).filter(lambda x: x % 2),
        4,
        ShardOptions(0, 1),
        DIRECT,
        0,
    )
    steps.set_slice(slice(1, None, 2))
    it = iter(steps)
    assert_raises(ZeroDivisionError, None, next, it)
    it.skip_failed()
    assert it.get_state()["parent"] == {"next_index": 16}
    assert list(it) == [(32, [25, 27, 29, 31])]
    assert it.get_state()["parent"] == {"next_index": 40}


def test_endless_filters_and_missing_elements():
    shuffled = MapDataset.range(5).shuffle(seed=1)
    for ds in (shuffled.repeat(), shuffled.filter(lambda x: x != 2).repeat()):
        kept = [x for i in range(40) if (x := ds[i]) is not None]
        its = shards(ds, 4, 2)
        for step in range(5):
            assert plain(map(next, its)) == [kept[4 * step : 4 * step + 4][s::2] for s in range(2)]
    it = elastic(MapDataset.range(5).filter(lambda x: False).repeat(), 4)
    it = iter(
        gx.WithOptionsIterDataset(it, gx.DatasetOptions(filter_raise_threshold_ratio=0.9)).map(
            lambda x: x
        )
    )
    assert_stays(it, ValueError, r"dropped 100\.00% of 1000")
    # A hole of a map is an error.
    for ds in (MapDataset.range(8), MapDataset.range(8).filter(lambda x: True)):
        for leave_out in (lambda x: None, lambda x: None if x == 2 else x):
            it = elastic(ds.map(leave_out), 4)
            assert_raises(ValueError, None, next, it)
            assert it.get_state() == at(0)
    with pytest.raises(ValueError, match="same structure") as caught:
        next(elastic(MapDataset.range(8).map(lambda x: None if x == 2 else x), 4, 0, 2))
    assert "element of this batch is None" in "".join(caught.value.__notes__)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_chains_of_rescalings(data):
    sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=7), "sizes")
    modulus = data.draw(st.integers(2, 4), "modulus")
    datasets = [
        (
            MapDataset.source(file)
            .shuffle(seed=7)
            .to_iter_dataset(DIRECT)
            .filter(lambda x: x % modulus)
            if k % 2
            else MapDataset.source(file).filter(lambda x: x % modulus)
        )
        for k, file in enumerate(numbers(sizes))
    ]
    cycle_length = data.draw(st.integers(1, 5), "cycle_length")
    buffer_size = data.draw(st.sampled_from((0, 2)), "buffer_size")
    ds = gx.InterleaveIterDataset(
        datasets, cycle_length=cycle_length, iter_buffer_size=buffer_size
    ).map(lambda x: x)
    batch_size = data.draw(st.integers(0, 3), "batch_size")
    seen, states = [], None
    for _ in range(data.draw(st.integers(1, 4), "rescalings")):
        count = data.draw(st.integers(1, 4), "count")
        its = shards(ds, batch_size * count, count)
        for it in its:
            if states is not None:
                it.set_shard_states(states)
            for x in itertools.islice(it, data.draw(st.integers(0, 4), "taken")):
                assert np.size(x) <= max(1, batch_size)
                seen += np.ravel(x).tolist()
        states = joined(its)
        for it in its:  # the same shard continues exactly
            same = gx.ElasticIterator(ds, batch_size * count, it.shard_options)
            same.set_state(through_json(it.get_state()))
            assert same.get_state() == it.get_state() and joined([same]) == joined([it])
            assert plain(same) == plain(it) and same.get_state() == it.get_state()
            same.close(), it.close()
    (last,) = shards(ds, 0, 1)
    last.set_shard_states(states)
    seen += list(last)
    last.close()
    assert Counter(seen) == Counter(x for file in numbers(sizes) for x in file if x % modulus)


def test_shard_states():
    ds = interleave(numbers([1, 4, 1, 4, 4]), 1)
    its = shards(ds, 0, 2)
    assert [next(its[0]) for _ in range(3)] == [0, 200, 400]
    ended = {"exhausted": 1, "state": None}
    assert its[0].get_shard_states() == {
        0: ended,
        2: ended,
        4: {"exhausted": 0, "state": {"next_index": 1}},
    }
    assert its[1].get_shard_states()[3] == {"exhausted": 0, "state": None}
    for states, match in (
        (its[0].get_shard_states(), r"datasets \[1, 3\] of ElasticIterator.* are missing"),
        ([], "a mapping"),
    ):
        assert_raises(StateMismatchError, match, its[1].set_shard_states, states)
    assert next(its[1]) == 100
    for it, other in ((its[1], its[0]), (elastic(ds, 0), its[0])):
        assert_refused(
            it, StateMismatchError, "of the same shard, got one of shard 0 of 2", other.get_state()
        )
    for it in shards(MapDataset.range(4), 2, 2):
        assert_raises(
            NotImplementedError, "of a MapDataset have no states of their own", it.get_shard_states
        )
    # There may be fewer files than shards.
    its = shards(interleave(numbers([2]), 3), 0, 3)
    assert [list(it) for it in its] == [[0, 1], [], []]
    assert joined(its) == {"0": ended}
    # The state of an only shard is that of all.
    one = elastic(interleave(numbers([3, 3, 3]), 2), 0)
    seen = [next(one) for _ in range(4)]
    for it in shards(interleave(numbers([3, 3, 3]), 2), 0, 2):
        it.set_state(through_json(one.get_state()))
        seen += list(it)
    assert sorted(seen) == [0, 1, 2, 100, 101, 102, 200, 201, 202]


def test_a_dataset_that_has_ended_is_not_opened_again():
    opened = []

    class File(BareStream):
        def __iter__(self):
            opened.append(self)
            return super().__iter__()

    files = [File(2) for _ in range(6)]
    ds = interleave(files, 2)
    its = shards(ds, 0, 2)
    assert [[next(it) for _ in range(5)] for it in its] == [[0, 0, 1, 1, 0]] * 2
    states = joined(its)
    opened.clear()
    one = elastic(ds, 0)
    one.set_shard_states(states)
    assert list(one) == [1, 1] and opened == files[4:]
    # Options and threads may follow.
    ds = gx.ThreadPrefetchIterDataset(
        interleave(numbers([3, 3, 3]), 2).map(lambda x: -x), prefetch_buffer_size=2
    )
    its = shards(gx.WithOptionsIterDataset(ds, gx.DatasetOptions(min_shm_size=3)), 0, 2)
    assert [list(it) for it in its] == [[0, -200, -1, -201, -2, -202], [-100, -101, -102]]


# Directories as Orbax has them, with a file of every process.
def rename(directory, old, new):
    for file in directory.glob(f"*_{old}.json"):
        file.rename(directory / file.name.replace(old, new))


def checkpoint(directory, its):
    """Writes the checkpoint of as many processes as there are iterators."""
    directory.mkdir()
    for i, it in enumerate(its):
        HANDLER.save(directory, it)
        rename(directory, "0-of-1", f"{i}-of-{len(its)}")


def restore(directory, its):
    """In as many processes, each of which finds no file of its own if their number has changed."""
    for i, it in enumerate(its):
        own = f"{i}-of-{len(its)}"
        has_own = (directory / f"process_{own}.json").exists()
        rename(directory, own, "0-of-1")
        HANDLER.restore(directory, it)
        if has_own:
            rename(directory, "0-of-1", own)


@pytest.mark.parametrize(
    "chain", [lambda it: it, lambda it: iter(it.map(lambda x: x).filter(lambda x: True))]
)
@pytest.mark.parametrize("new_count", [1, 2, 3, 4])
def test_checkpoints_of_files(tmp_path, new_count, chain):
    files = numbers([2, 0, 6, 3, 1, 5, 4])
    ds = interleave(files, 2)
    its = [chain(it) for it in shards(ds, 4, 2)]
    seen = [
        x
        for it, n in zip(its, (4, 2), strict=True)
        for batch in itertools.islice(it, n)
        for x in batch
    ]
    checkpoint(tmp_path / "1", its)
    left = [plain(it) for it in its]
    new = [chain(it) for it in shards(ds, 2 * new_count, new_count)]
    restore(tmp_path / "1", new)
    if new_count == 2:
        assert [plain(it) for it in new] == left
        return
    seen += [x for it in itertools.islice(new, 2) for x in next(it, ())]
    checkpoint(tmp_path / "2", new)
    last = [chain(it) for it in shards(ds, 10, 5)]
    restore(tmp_path / "2", last)
    seen += [x for it in last for batch in it for x in batch]
    assert sorted(seen) == [*itertools.chain(*files)]


def test_checkpoints_of_map_datasets(tmp_path):
    def chained(size, count):
        its = shards(MapDataset.range(40).filter(lambda x: x % 3), size, count)
        return [
            iter(it.random_map(lambda x, rng: x, seed=3).map_with_index(lambda i, x: x))
            for it in its
        ]

    its = chained(6, 3)
    seen = [x for it in its for batch in itertools.islice(it, 2) for x in batch]
    checkpoint(tmp_path / "1", its)
    for new_count in (1, 2, 4):
        new = chained(4, new_count)
        restore(tmp_path / "1", new)
        assert new[0].get_state()["counter"] == 2
        found = sorted(seen + [x for it in new for batch in it for x in batch])
        assert found == [x for x in range(40) if x % 3][:24]


def test_incomplete_and_foreign_checkpoints_are_refused(tmp_path):
    def refuse(directory, it, match):
        assert_raises(StateMismatchError, match, HANDLER.restore, directory, it)

    its = shards(MapDataset.range(16), 4, 2)
    next(its[0])
    checkpoint(tmp_path / "1", its)
    refuse(
        tmp_path / "1",
        elastic(MapDataset.range(16), 4),
        r"at the same global_next_index .* got \[0, 4\]",
    )
    ds, step = interleave(numbers([2, 3, 4]), 2), tmp_path / "2"
    one = elastic(ds, 0)
    checkpoint(step, shards(ds, 0, 2))
    (step / "process_1-of-2.json").rename(tmp_path / "aside")
    refuse(step, one, re.escape("must have the files of all processes"))
    (step / "process_1-of-2.json").write_text((step / "process_0-of-2.json").read_text())
    (step / "pipeline_1-of-2.json").unlink()
    refuse(step, one, "all shards must be there once")
    refuse(step, elastic(interleave(numbers([2, 3]), 2), 0), "num_datasets")
    packed = partial(gx.FirstFitPackIterDataset, length_struct={"x": 3}, num_packing_bins=2)
    # Steps that keep something for later.
    chains = (
        lambda it: packed(it.map(lambda x: {"x": [x]})),
        lambda it: it.window_shuffle(2, seed=1),
        lambda it: it.limit(3),
    )
    for k, chain in enumerate(chains):
        checkpoint(tmp_path / f"chain {k}", [iter(chain(it)) for it in shards(ds, 0, 2)])
        refuse(
            tmp_path / f"chain {k}",
            iter(chain(one)),
            "cannot continue with another number of shards",
        )
    assert next(one) == 0


def test_files_of_single_datasets_as_grain_writes_them(tmp_path):
    async def load(it, directory):
        await (await it.load(directory))

    ds = interleave(numbers([2, 3, 4]), 2)
    its = shards(ds, 0, 2)
    next(its[0]), next(its[1])
    (tmp_path / "process_0-of-2.json").write_text("{}")
    for number, state in joined(its).items():
        (tmp_path / f"shard_state_{number}.json").write_text(json.dumps(state, indent=4))
    checkpoint(tmp_path / "1", its)
    one, other = elastic(ds, 0), elastic(ds, 0)
    HANDLER.restore(tmp_path, one)
    asyncio.run(load(other, tmp_path / "1"))
    assert sorted(one) == sorted(other) == [1, 101, 102, 200, 201, 202, 203]
    with pytest.raises(StateMismatchError, match="shard_state"):
        HANDLER.restore(tmp_path, elastic(MapDataset.range(4), 2))
