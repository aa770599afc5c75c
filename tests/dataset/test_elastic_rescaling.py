"""Elastic iterators whose number of shards changes: filters, batches, files, and the checkpoints of all shards."""

import asyncio
import itertools
import json
import random
import re
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError
from gristmill.dataset.stages.elastic_batches import _Steps
from gristmill.experimental import (
    DatasetOptions,
    ElasticIterator,
    FirstFitPackIterDataset,
    InterleaveIterDataset,
    LimitIterDataset,
    RepeatIterDataset,
    ThreadPrefetchIterDataset,
    WithOptionsIterDataset,
    ZipIterDataset,
    multithread_prefetch,
)
from gristmill.sharding import ShardOptions

DIRECT = ReadOptions(num_threads=0)
OPTIONS = {
    "direct": {"read_options": DIRECT},
    "threads": {"read_options": ReadOptions(4, 3)},
    "workers": {"read_options": DIRECT, "multiprocessing_options": MultiprocessingOptions(2)},
}
HANDLER = CheckpointHandler()


def shards(ds, size, count, **options):
    return [ElasticIterator(ds, size, ShardOptions(i, count), **options) for i in range(count)]


def plain(batches):
    return [x.tolist() if isinstance(x, np.ndarray) else x for x in batches]


def through_json(state):
    return json.loads(json.dumps(state))


def checkpoint(directory, its):
    """What as many processes write."""
    directory.mkdir()
    for i, it in enumerate(its):
        HANDLER.save(directory, it)
        for kind in ("process", "pipeline"):
            (directory / f"{kind}_0-of-1.json").rename(directory / f"{kind}_{i}-of-{len(its)}.json.new")
    for file in directory.iterdir():
        file.rename(file.with_suffix(""))


def restore(directory, its):
    """In as many processes, each of which finds no file of its own if their number has changed."""
    for i, it in enumerate(its):
        names = [f"{kind}_{i}-of-{len(its)}.json" for kind in ("process", "pipeline")]
        own = [directory / name for name in names if (directory / name).exists()]
        for file in own:
            file.rename(directory / file.name.replace(f"_{i}-of-{len(its)}", "_0-of-1"))
        HANDLER.restore(directory, it)
        for file in own:
            (directory / file.name.replace(f"_{i}-of-{len(its)}", "_0-of-1")).rename(file)


class TestFilter:
    TOPOLOGIES = ((1, 1), (3, 1), (2, 2), (4, 2), (3, 3))  # global batch size, shards

    @pytest.mark.parametrize("length", range(7))
    def test_all_filters_of_few_elements_in_all_topologies(self, length):
        for bits in range(2**length):
            ds = MapDataset.range(length).filter(lambda x, bits=bits: bits >> x & 1)
            kept = [x for x in range(length) if bits >> x & 1]
            for size, count in self.TOPOLOGIES:
                its = shards(ds, size, count, **OPTIONS["direct"])
                states = [its[0].get_state()]
                steps = [kept[i : i + size] for i in range(0, len(kept) - size + 1, size)]
                for step in steps:
                    assert plain(map(next, its)) == [step[s::count] for s in range(count)]
                    assert all(it.get_state() == its[0].get_state() for it in its)
                    states.append(its[0].get_state())
                assert [*map(list, its)] == [[]] * count
                assert its[0].get_state() == states[-1]
                for t, state in enumerate(states):
                    rest = kept[t * size :]
                    for new_size, new_count in self.TOPOLOGIES:
                        new = shards(ds, new_size, new_count, **OPTIONS["direct"])
                        for s, it in enumerate(new):
                            it.set_state(through_json(state))
                            whole = len(rest) // new_size * new_size
                            assert plain(it) == [rest[i : i + new_size][s::new_count] for i in range(0, whole, new_size)]

    @pytest.mark.parametrize("mode", OPTIONS)
    def test_what_follows_the_filter_is_computed_for_own_elements_only(self, mode, tmp_path):
        calls = tmp_path / "calls"

        def counted(i, x):
            with calls.open("a") as file:
                file.write(f"{i}\n")
            return x + 1000

        ds = MapDataset.range(40).shuffle(seed=3).filter(lambda x: x % 3).map_with_index(counted)
        kept = [x + 1000 for x in MapDataset.range(40).shuffle(seed=3) if x % 3]
        its = shards(ds, 4, 2, **OPTIONS[mode])
        for s, it in enumerate(its):
            assert plain(it) == [kept[i : i + 4][s::2] for i in range(0, 24, 4)]
            it.close()
        indices = [i for i, x in enumerate(MapDataset.range(40).shuffle(seed=3)) if x % 3][:24]
        assert sorted(map(int, calls.read_text().split())) == sorted(indices)

    @pytest.mark.parametrize("mode", OPTIONS)
    def test_states_in_place(self, mode):
        ds = MapDataset.range(30).filter(lambda x: x % 3)
        kept = [x for x in range(30) if x % 3]
        it = ElasticIterator(ds, 4, ShardOptions(1, 2), **OPTIONS[mode])
        for start in (0, 0, 7, 1, 29, 30, 12, 6, 33):
            it.set_state({"global_next_index": start})
            it.start_prefetch()
            assert it.get_state() == {"global_next_index": start}
            left = [x for x in kept if x >= start]
            expected = [left[i + 1 : i + 4 : 2] for i in range(0, len(left) - 3, 4)]
            assert plain(itertools.islice(it, 2)) == expected[:2]
        it.close()
        it.close()
        with pytest.raises(ValueError, match="closed"):
            next(it)

    @pytest.mark.parametrize("mode", OPTIONS)
    @pytest.mark.parametrize("place", ["before", "after"])
    def test_errors_do_not_move_it_and_skipping_keeps_shards_together(self, mode, place):
        def fail(x):
            if x == 7:
                raise OSError(x)
            return x

        ds = MapDataset.range(24)
        if place == "before":
            ds = ds.map(fail).filter(lambda x: x % 2)
        else:
            ds = ds.filter(lambda x: x % 2).map(fail)
        first, second = shards(ds, 4, 2, **OPTIONS[mode])
        for it in (first, second):
            failed = it is second or place == "before"
            if failed:
                for _ in range(2):
                    with pytest.raises(OSError):
                        next(it)
                    assert it.get_state() == {"global_next_index": 0}
                it.skip_failed()
                assert it.get_state() == {"global_next_index": 8}
            else:
                assert plain([next(it)]) == [[1, 5]]
        assert plain(first) == [[9, 13], [17, 21]]
        assert plain(second) == [[11, 15], [19, 23]]
        first.close(), second.close()

    def test_a_worker_skips_up_to_its_own_step(self):
        def fail(x):
            if x == 7:
                raise OSError(x)
            return x

        steps = _Steps(MapDataset.range(40).map(fail).filter(lambda x: x % 2), 4, ShardOptions(0, 1), DIRECT, 0)
        steps.set_slice(slice(1, None, 2))
        it = iter(steps)
        with pytest.raises(OSError):
            next(it)
        it.skip_failed()
        assert it.position == 16
        assert list(it) == [(32, [25, 27, 29, 31])]
        assert it.position == 40

    def test_endless_and_repeated(self):
        ds = MapDataset.range(5).shuffle(seed=1).filter(lambda x: x != 2).repeat()
        kept = [x for i in range(40) if (x := ds[i]) is not None]
        its = shards(ds, 4, 2)
        for step in range(5):
            assert plain(map(next, its)) == [kept[4 * step : 4 * step + 4][s::2] for s in range(2)]

    def test_a_filter_that_passes_nothing_is_noticed(self):
        ds = MapDataset.range(5).filter(lambda x: False).repeat()
        (it,) = shards(ds, 4, 1)
        it = iter(WithOptionsIterDataset(it, DatasetOptions(filter_raise_threshold_ratio=0.9)).map(lambda x: x))
        for _ in range(2):
            with pytest.raises(ValueError, match=r"dropped 100\.00% of 1000"):
                next(it)

    @pytest.mark.parametrize("missing", [lambda x: None, lambda x: None if x == 2 else x])
    @pytest.mark.parametrize("filtered", [False, True])
    def test_elements_that_a_map_leaves_out_are_an_error(self, missing, filtered):
        ds = MapDataset.range(8)
        ds = (ds.filter(lambda x: True) if filtered else ds).map(missing)
        (it,) = shards(ds, 4, 1)
        with pytest.raises(ValueError):
            next(it)
        assert it.get_state() == {"global_next_index": 0}


def numbers(sizes):
    """Files with different numbers in each."""
    return [range(100 * k, 100 * k + n) for k, n in enumerate(sizes)]


def interleave(files, cycle_length):
    return InterleaveIterDataset(
        [MapDataset.source(file).to_iter_dataset(DIRECT) for file in files],
        cycle_length=cycle_length,
        num_make_iter_threads=0,
        iter_buffer_size=0,
    )


def joined(its):
    """The states of all datasets, as JSON has them."""
    return through_json({number: state for it in its for number, state in it.get_shard_states().items()})


class TestFiles:
    @pytest.mark.parametrize("cycle_length", [1, 2, 5])
    def test_all_small_rescalings(self, cycle_length):
        """Of up to four files of up to two elements, with each shard at each position."""
        for num_files in range(5):
            for sizes in itertools.product((0, 1, 2) if num_files < 4 else (0, 2), repeat=num_files):
                files = numbers(sizes)
                ds = interleave(files, cycle_length)
                for count in (1, 2, 3):
                    positions = [range(1 + sum(map(len, files[s::count]))) for s in range(count)]
                    for taken in itertools.product(*positions):
                        its = shards(ds, 0, count)
                        seen = [x for it, n in zip(its, taken, strict=True) for x in itertools.islice(it, n)]
                        assert len(seen) == sum(taken)
                        states = joined(its)
                        new_count = (count + sum(taken)) % 3 + 1
                        new = shards(ds, 0, new_count)
                        for s, it in enumerate(new):
                            it.set_shard_states(states)
                            of_shard = list(it)
                            assert all(x in range(100 * k, 100 * k + 100) for x in of_shard for k in [x // 100]) and {
                                x // 100 % new_count for x in of_shard
                            } <= {s}
                            seen += of_shard
                        assert sorted(seen) == [x for file in files for x in file]

    def test_random_chains_of_rescalings(self):
        rng = random.Random(11)
        for _ in range(150):
            files = numbers([rng.choice((0, 1, 3, 7, 12)) for _ in range(rng.randint(1, 9))])
            ds = interleave(files, rng.randint(1, 5))
            seen, states, ended = [], None, False
            while not ended:
                its = shards(ds, 0, rng.randint(1, 4))
                if states is not None:
                    for it in its:
                        it.set_shard_states(states)
                ended = True
                for it in its:
                    n = rng.randint(0, 8)
                    of_shard = list(itertools.islice(it, n))
                    ended &= len(of_shard) < n
                    seen += of_shard
                    same = ElasticIterator(ds, 0, it._shard)
                    same.set_state(through_json(it.get_state()))
                    assert same.get_state() == it.get_state()
                    assert joined([same]) == joined([it])
                states = joined(its)
            assert Counter(seen) == Counter(x for file in files for x in file)

    @settings(max_examples=100, deadline=None)
    @given(data=st.data())
    def test_batches_filters_and_files_of_every_kind(self, data):
        sizes = data.draw(st.lists(st.integers(0, 9), min_size=1, max_size=6), "sizes")
        modulus = data.draw(st.integers(2, 4), "modulus")
        datasets = [
            MapDataset.source(file).shuffle(seed=7).to_iter_dataset(DIRECT).filter(lambda x: x % modulus)
            if k % 2
            else MapDataset.source(file).filter(lambda x: x % modulus)
            for k, file in enumerate(numbers(sizes))
        ]
        cycle_length = data.draw(st.integers(1, 4), "cycle_length")
        buffer_size = data.draw(st.sampled_from((0, 2)), "buffer_size")
        ds = InterleaveIterDataset(datasets, cycle_length=cycle_length, iter_buffer_size=buffer_size).map(lambda x: x)
        expected = sorted(x for file in numbers(sizes) for x in file if x % modulus)
        batch_size = data.draw(st.integers(0, 3), "batch_size")
        seen, states = [], None
        for _ in range(data.draw(st.integers(1, 3), "rescalings")):
            count = data.draw(st.integers(1, 3), "count")
            its = shards(ds, batch_size * count, count)
            for it in its:
                if states is not None:
                    it.set_shard_states(states)
                for x in itertools.islice(it, data.draw(st.integers(0, 4), "taken")):
                    assert np.size(x) <= max(1, batch_size)
                    seen += np.ravel(x).tolist()
            states = joined(its)
            for it in its:
                it.close()
        (last,) = shards(ds, 0, 1)
        last.set_shard_states(states)
        seen += list(last)
        last.close()
        assert sorted(seen) == expected

    def test_restoring_the_same_shard_is_exact(self):
        ds = interleave(numbers([5, 0, 2, 7, 3]), 2).map(lambda x: x + 1).filter(lambda x: x % 5)
        for count in (1, 2):
            for s in range(count):
                it = ElasticIterator(ds, 2 * count, ShardOptions(s, count))
                states, elements = [it.get_state()], []
                for x in it:
                    elements.append(x.tolist())
                    states.append(it.get_state())
                for step, state in enumerate(states):
                    it.set_state(through_json(state))
                    assert plain(it) == elements[step:]

    def test_fewer_files_than_shards(self):
        its = shards(interleave(numbers([2]), 3), 0, 3)
        assert [list(it) for it in its] == [[0, 1], [], []]
        assert joined(its) == {"0": {"exhausted": 1, "state": None}}
        for it in shards(interleave(numbers([2]), 3), 0, 2):
            it.set_shard_states(joined(its))
            assert list(it) == []

    def test_shard_states(self):
        ds = interleave(numbers([1, 4, 1, 4, 4]), 1)
        its = shards(ds, 0, 2)
        assert [next(its[0]) for _ in range(3)] == [0, 200, 400]
        assert its[0].get_shard_states() == {
            0: {"exhausted": 1, "state": None},
            2: {"exhausted": 1, "state": None},
            4: {"exhausted": 0, "state": {"next_index": 1}},
        }
        assert its[1].get_shard_states()[3] == {"exhausted": 0, "state": None}
        with pytest.raises(StateMismatchError, match=r"datasets \[1, 3\] of ElasticIterator.* are missing"):
            its[1].set_shard_states(its[0].get_shard_states())
        with pytest.raises(StateMismatchError, match="must be a mapping"):
            its[1].set_shard_states([])
        assert next(its[1]) == 100

    def test_a_dataset_that_has_ended_is_not_opened_again(self):
        opened = []

        class File(IterDataset):
            def __init__(self, number):
                super().__init__()
                self._number = number

            def __iter__(self):
                opened.append(self._number)
                return iter(MapDataset.range(100 * self._number, 100 * self._number + 2).to_iter_dataset(DIRECT))

        ds = InterleaveIterDataset([File(k) for k in range(6)], cycle_length=2, num_make_iter_threads=0, iter_buffer_size=0)
        its = shards(ds, 0, 2)
        assert [[next(it) for _ in range(5)] for it in its] == [[0, 200, 1, 201, 400], [100, 300, 101, 301, 500]]
        states = joined(its)
        opened.clear()
        (one,) = shards(ds, 0, 1)
        one.set_shard_states(states)
        assert list(one) == [401, 501]
        assert opened == [4, 5]

    def test_a_state_of_another_shard_is_refused(self):
        ds = interleave(numbers([3, 3, 3]), 2)
        (one,), (first, second) = shards(ds, 0, 1), shards(ds, 0, 2)
        next(second)
        for it, other in ((second, first), (one, first)):
            before = it.get_state()
            with pytest.raises(StateMismatchError, match=r"must be of the same shard, got one of shard 0 of 2"):
                it.set_state(other.get_state())
            assert it.get_state() == before

    def test_the_state_of_an_only_shard_is_that_of_all(self):
        ds = interleave(numbers([3, 3, 3]), 2)
        (one,) = shards(ds, 0, 1)
        seen = [next(one) for _ in range(4)]
        for it in shards(ds, 0, 2):
            it.set_state(through_json(one.get_state()))
            seen += list(it)
        assert sorted(seen) == [0, 1, 2, 100, 101, 102, 200, 201, 202]

    def test_what_has_a_state_of_its_own_is_refused(self):
        ds = interleave(numbers([3, 3]), 2)
        for wrong in (
            MapDataset.range(4).to_iter_dataset(),
            ZipIterDataset([ds, ds]),
            IterDataset.mix([ds, ds]),
            RepeatIterDataset(ds, 2),
            ds.random_map(lambda x, rng: x, seed=1),
            ds.window_shuffle(window_size=2, seed=1),
            multithread_prefetch(ds, 2, 1),
            ds.mp_prefetch(MultiprocessingOptions(2)),
        ):
            with pytest.raises(ValueError, match="cannot be divided among another number of shards"):
                ElasticIterator(wrong, 2, ShardOptions(0, 2))
        with pytest.raises(NotImplementedError, match="multiprocessing_options needs a MapDataset"):
            ElasticIterator(ds, 2, ShardOptions(0, 2), multiprocessing_options=MultiprocessingOptions(2))
        for it in shards(MapDataset.range(4), 2, 2):
            with pytest.raises(NotImplementedError, match="of a MapDataset have no states of their own"):
                it.get_shard_states()

    def test_options_and_threads_may_follow(self):
        ds = ThreadPrefetchIterDataset(interleave(numbers([3, 3, 3]), 2).map(lambda x: -x), prefetch_buffer_size=2)
        its = shards(WithOptionsIterDataset(ds, DatasetOptions(min_shm_size=3)), 0, 2)
        assert [list(it) for it in its] == [[0, -200, -1, -201, -2, -202], [-100, -101, -102]]


class TestCheckpoints:
    """Directories as Orbax has them, with a file of every process."""

    @pytest.mark.parametrize("chain", [lambda it: it, lambda it: iter(it.map(lambda x: x).filter(lambda x: True))])
    @pytest.mark.parametrize("new_count", [1, 2, 3, 4])
    def test_files(self, tmp_path, new_count, chain):
        files = numbers([2, 0, 6, 3, 1, 5, 4])
        ds = interleave(files, 2)
        its = [chain(it) for it in shards(ds, 4, 2)]
        seen = [x for it, n in zip(its, (4, 2), strict=True) for batch in itertools.islice(it, n) for x in batch]
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
        assert sorted(seen) == [x for file in files for x in file]

    @pytest.mark.parametrize("new_count", [1, 2, 4])
    def test_map_datasets(self, tmp_path, new_count):
        ds = MapDataset.range(40).filter(lambda x: x % 3)
        chain = [lambda it: iter(it.random_map(lambda x, rng: x + 0 * rng.integers(9), seed=3).map_with_index(lambda i, x: x))]
        its = [chain[0](it) for it in shards(ds, 6, 3)]
        seen = [x for it in its for batch in itertools.islice(it, 2) for x in batch]
        checkpoint(tmp_path / "1", its)
        new = [chain[0](it) for it in shards(ds, 4, new_count)]
        restore(tmp_path / "1", new)
        assert new[0].get_state()["counter"] == 2
        seen += [x for it in new for batch in it for x in batch]
        assert sorted(seen) == [x for x in range(40) if x % 3][:24]

    def test_the_asynchronous_protocol(self, tmp_path):
        ds = interleave(numbers([2, 3, 4]), 2)
        its = shards(ds, 0, 2)
        next(its[0])
        checkpoint(tmp_path / "1", its)
        (one,) = shards(ds, 0, 1)

        async def load():
            await (await one.load(tmp_path / "1"))

        asyncio.run(load())
        assert sorted(one) == [1, 100, 101, 102, 200, 201, 202, 203]

    def test_shards_that_differ_are_refused(self, tmp_path):
        its = shards(MapDataset.range(16), 4, 2)
        next(its[0])
        checkpoint(tmp_path / "1", its)
        (one,) = shards(MapDataset.range(16), 4, 1)
        with pytest.raises(StateMismatchError, match=r"at the same global_next_index .* got \[0, 4\]"):
            HANDLER.restore(tmp_path / "1", one)

    def test_incomplete_and_foreign_checkpoints_are_refused(self, tmp_path):
        ds = interleave(numbers([2, 3, 4]), 2)
        its = shards(ds, 0, 2)
        checkpoint(tmp_path / "1", its)
        (one,) = shards(ds, 0, 1)
        (tmp_path / "1" / "process_1-of-2.json").rename(tmp_path / "aside")
        with pytest.raises(StateMismatchError, match=re.escape("must have the files of all processes")):
            HANDLER.restore(tmp_path / "1", one)
        (tmp_path / "1" / "process_1-of-2.json").write_text((tmp_path / "1" / "process_0-of-2.json").read_text())
        (tmp_path / "1" / "pipeline_1-of-2.json").unlink()
        with pytest.raises(StateMismatchError, match="all shards must be there once"):
            HANDLER.restore(tmp_path / "1", one)
        (other,) = shards(interleave(numbers([2, 3]), 2), 0, 1)
        with pytest.raises(StateMismatchError, match="num_datasets"):
            HANDLER.restore(tmp_path / "1", other)
        assert next(one) == 0

    def test_steps_that_keep_something_for_later_are_refused(self, tmp_path):
        ds = interleave(numbers([2, 3, 4]), 2)
        for k, chain in enumerate(
            (
                lambda it: it.map(lambda x: {"x": np.full(1, x)}).pipe(
                    FirstFitPackIterDataset, length_struct={"x": 3}, num_packing_bins=2
                ),
                lambda it: it.window_shuffle(window_size=2, seed=1),
                lambda it: LimitIterDataset(it, 3),
            )
        ):
            its = [iter(chain(it)) for it in shards(ds, 0, 2)]
            checkpoint(tmp_path / str(k), its)
            (one,) = shards(ds, 0, 1)
            with pytest.raises(StateMismatchError, match="cannot go on with another number of shards"):
                HANDLER.restore(tmp_path / str(k), iter(chain(one)))
            assert next(one) == 0

    def test_files_of_single_datasets_as_grain_writes_them(self, tmp_path):
        ds = interleave(numbers([2, 3, 4]), 2)
        its = shards(ds, 0, 2)
        next(its[0]), next(its[1])
        (tmp_path / "process_0-of-2.json").write_text("{}")
        for number, state in joined(its).items():
            (tmp_path / f"shard_state_{number}.json").write_text(json.dumps(state, indent=4))
        (one,) = shards(ds, 0, 1)
        HANDLER.restore(tmp_path, one)
        assert sorted(one) == [1, 101, 102, 200, 201, 202, 203]
        (over_a_map,) = shards(MapDataset.range(4), 2, 1)
        with pytest.raises(StateMismatchError, match="shard_state"):
            HANDLER.restore(tmp_path, over_a_map)
