"""States of ``DataLoader`` iterators: their text, restoring, and what is refused."""

import itertools
import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from gristmill import DataLoader, DataLoaderIterator, MapDataset, ReadOptions, RecordMetadata
from gristmill.core.errors import StateMismatchError
from gristmill.samplers import IndexSampler, SequentialSampler
from gristmill.sharding import NoSharding, ShardOptions
from gristmill.sources import RangeDataSource, SharedMemoryDataSource
from gristmill.transforms import Batch, Filter, RandomMap


class Named:
    """A source or sampler with any ``repr``."""

    def __init__(self, text, n=6):
        self.text = text
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        return index

    def __repr__(self):
        return self.text


class NamedSampler(Named):
    def __getitem__(self, index):
        return RecordMetadata(range(self.n)[index], index)


class Draw(RandomMap):
    def random_map(self, element, rng):
        return (element, int(rng.integers(1000)))


class Odd(Filter):
    def filter(self, element):
        return element % 2


def make(n=10, **changes):
    arguments = {"data_source": RangeDataSource(0, n, 1), "sampler": IndexSampler(n, NoSharding(), True, 2, 5)}
    return DataLoader(**{**arguments, **changes})


def parsed(it):
    return json.loads(it.get_state())


TRICKY = [
    'a "quoted" name',
    "back\\slash \\n \\u0041 \\",
    "new\nline\ttab\x00nul",
    "é ß 日本 \U0001f600 \ud800",
    '"0": 0',
    '{"last_seen_indices": {"0": 0}}',
    '"0": -1, "1": 2}',
    "",
    "% %s {0} {}",
    "</script>",
]


class TestText:
    @pytest.mark.parametrize("text", TRICKY, ids=ascii)
    def test_is_what_json_writes(self, text):
        named, other = Named(text), NamedSampler(text)
        for source, sampler in ((named, SequentialSampler(6)), (Named("s"), other), (named, other)):
            it = iter(DataLoader(data_source=source, sampler=sampler, shard_options=NoSharding()))
            for position in range(7):
                state = {
                    "version": 2,
                    "last_seen_indices": {"0": position - 1},
                    "last_worker_index": -1,
                    "worker_count": 0,
                    "sampler": repr(sampler),
                    "data_source": repr(source),
                }
                assert it.get_state() == json.dumps(state, indent=4).encode()
                next(it, None)
            it.set_state(it.get_state())
            assert list(it) == []

    def test_str_of_the_iterator(self):
        it = iter(make())
        assert str(it) == f"PyGrainDatasetIterator(state={it.get_state().decode()})"

    @pytest.mark.parametrize("source", [[0, 1], (0, 1), np.arange(2)], ids=["list", "tuple", "array"])
    def test_plain_containers_stand_by_their_type(self, source):
        it = iter(DataLoader(data_source=source, sampler=SequentialSampler(2)))
        assert parsed(it)["data_source"] == str(type(source))

        class Mine(type(source)):
            pass

        source = source.view(Mine) if isinstance(source, np.ndarray) else Mine(source)
        it = iter(DataLoader(data_source=source, sampler=SequentialSampler(2)))
        assert parsed(it)["data_source"] == str(Mine)

    @pytest.mark.parametrize("index", [0, 1, 2])
    def test_positions_of_shards(self, index):
        loader = make(sampler=IndexSampler(10, ShardOptions(index, 3, True), num_epochs=1))
        it = iter(loader)
        seen = [parsed(it)["last_seen_indices"]["0"]]
        for _ in it:
            seen.append(parsed(it)["last_seen_indices"]["0"])
        assert seen == [index - 3, index, index + 3, index + 6]

    def test_batches_and_filters_count_what_they_read(self):
        loader = DataLoader(data_source=range(10), sampler=SequentialSampler(10), operations=[Odd(), Batch(2)])
        it = iter(loader)
        seen = []
        for _ in range(4):
            seen.append(parsed(it)["last_seen_indices"]["0"])
            next(it, None)
        assert seen == [-1, 3, 7, 9]

    def test_what_is_read_ahead_does_not_count(self):
        it = iter(make(read_options=ReadOptions(4, 100)))
        it.start_prefetch()
        next(it)
        assert parsed(it)["last_seen_indices"] == {"0": 0}

    def test_size_does_not_depend_on_the_source(self):
        source = SharedMemoryDataSource(["x" * 1000] * 100)
        try:
            it = iter(DataLoader(data_source=source, sampler=SequentialSampler(100)))
            assert len(it.get_state()) < 500
        finally:
            source.unlink()
            source.close()


@pytest.mark.parametrize("read_options", [ReadOptions(0, 0), ReadOptions(3, 5)], ids=str)
@pytest.mark.parametrize("operations", [[], [Odd()], [Draw()], [Draw(), Batch(3, batch_fn=list)], [Batch(7, True)]])
@pytest.mark.parametrize("shard", [NoSharding(), ShardOptions(1, 3)], ids=["whole", "shard"])
def test_restoring_everywhere_from_everywhere(operations, read_options, shard):
    loader = make(sampler=IndexSampler(10, shard, True, 2, 5), operations=operations, read_options=read_options)
    it = iter(loader)
    states, elements = [it.get_state()], []
    for element in it:
        elements.append(element)
        states.append(it.get_state())
    used = iter(loader)
    for position, state in enumerate(states):
        for other in (iter(loader), DataLoaderIterator(loader, json.loads(state)), used, it):
            other.set_state(state)
            assert other.get_state() == state
            other.start_prefetch()
            np.testing.assert_equal(list(itertools.islice(other, 2)), elements[position : position + 2])
    it.set_state(states[0])
    np.testing.assert_equal(list(it), elements)


class TestForms:
    def test_bytes_text_or_mapping(self):
        it = iter(make())
        first = [next(it) for _ in range(4)]
        state = it.get_state()
        following = next(it)
        forms = [state, bytearray(state), state.decode(), json.loads(state), json.dumps(json.loads(state)).encode()]
        for form in forms:
            it.set_state(form)
            assert next(it) == following
        assert following not in first

    def test_the_constructor_takes_one(self):
        loader = make()
        it = iter(loader)
        next(it)
        for state in (json.loads(it.get_state()), it.get_state()):
            assert next(DataLoaderIterator(loader, state)) == list(itertools.islice(loader, 2))[1]
        assert next(DataLoaderIterator(loader, None)) == next(iter(loader))
        assert next(DataLoaderIterator(data_loader=loader, state=None, validate_state=False)) == next(iter(loader))

    def test_the_constructor_checks_it(self):
        state = parsed(iter(make(n=11)))
        with pytest.raises(ValueError, match="sampler"):
            DataLoaderIterator(make(), state)
        it = DataLoaderIterator(make(), state, validate_state=False)
        assert len(list(it)) == 20

    def test_without_validation_positions_still_have_to_fit(self):
        it = DataLoaderIterator(make(), None, validate_state=False)
        state = {**parsed(iter(make(n=11))), "last_seen_indices": {"0": 20}}
        with pytest.raises(IndexError):
            it.set_state(json.dumps(state).encode())
        state["last_seen_indices"] = {"0": 18}
        it.set_state(json.dumps(state).encode())
        assert len(list(it)) == 1

    @pytest.mark.parametrize("last_worker_index", [-1, 0])
    def test_states_of_older_releases(self, last_worker_index):
        """They name the worker of the last element, where newer ones have -1 at the end of a round."""
        it = iter(make())
        state = {**parsed(it), "last_seen_indices": {"0": 3}, "last_worker_index": last_worker_index}
        it.set_state(json.dumps(state).encode())
        assert list(it) == list(make())[4:]

    def test_extra_keys_are_ignored(self):
        it = iter(make())
        it.set_state(json.dumps({**parsed(it), "future": [1]}).encode())
        assert len(list(it)) == 20


def changed(**changes):
    return lambda state: {**state, **changes}


def without(*keys):
    return lambda state: {key: value for key, value in state.items() if key not in keys}


class Unnamed(RangeDataSource):
    """Of a user: its ``repr`` is for its author to change."""

    def __repr__(self):
        return f"Unnamed at {id(self)}"


def test_authors_of_sources_are_told_of_their_repr():
    sampler = IndexSampler(10, num_epochs=1, seed=5)
    one, other = [iter(DataLoader(data_source=Unnamed(0, 10, 1), sampler=sampler)) for _ in range(2)]
    with pytest.raises(StateMismatchError, match=r"data_source Unnamed at .*Implement __repr__ so that it says the same"):
        other.set_state(one.get_state())


REFUSED = {
    "worker_count": (changed(worker_count=2), ValueError, "worker_count=2, the DataLoader has worker_count=0"),
    "sampler": (changed(sampler="S(1)"), ValueError, r"sampler S\(1\), the DataLoader has IndexSampler\(.*seed=5\)$"),
    "data_source": (
        changed(data_source="D(1)"),
        ValueError,
        r"data_source D\(1\), the DataLoader has RangeDataSource\(start=0, stop=10, step=1\)$",
    ),
    "worker_count first": (changed(worker_count=2, sampler="S", data_source="D"), ValueError, "worker_count"),
    "sampler second": (changed(sampler="S", data_source="D"), ValueError, "taken with sampler S"),
    "worker_count is text": (changed(worker_count="0"), ValueError, "worker_count"),
    "other version": (changed(version=1), ValueError, "version of a DataLoader state must be 2, got 1"),
    "newer version": (changed(version=3), ValueError, "version of a DataLoader state must be 2, got 3"),
    "version is text": (changed(version="2"), ValueError, "version of a DataLoader state must be 2, got '2'"),
    "no version": (without("version"), ValueError, r"must have the keys \['version'\]"),
    "no sampler": (without("sampler"), ValueError, r"must have the keys \['sampler'\]"),
    "no positions": (without("last_seen_indices", "worker_count"), KeyError, r"\['last_seen_indices', 'worker_count'\]"),
    "empty": (lambda state: {}, ValueError, "must have the keys"),
    "a list": (lambda state: [1], ValueError, r"must be a JSON object, got \[1\]"),
    "source is null": (changed(data_source=None), ValueError, "data_source"),
    "source is a number": (changed(data_source=5), ValueError, "data_source"),
    "source in a list": (changed(data_source=["<class 'list'>"]), ValueError, "data_source"),
    "null": (lambda state: None, ValueError, "must be a JSON object, got None"),
    "a native state": (lambda state: {"next_index": 3}, ValueError, "must have the keys"),
    "positions in a list": (changed(last_seen_indices=[-1]), ValueError, "must be a mapping with the key '0'"),
    "no worker": (changed(last_seen_indices={}), ValueError, "must have the key '0'"),
    "other worker": (changed(last_seen_indices={"1": 3}), ValueError, "must have the key '0'"),
    "two workers": (changed(last_seen_indices={"0": 3, "1": 4}), ValueError, "last_seen_indices"),
    "position is text": (changed(last_seen_indices={"0": "3"}), ValueError, "last_seen_indices"),
    "position is null": (changed(last_seen_indices={"0": None}), ValueError, "last_seen_indices"),
    "position is a float": (changed(last_seen_indices={"0": 1.5}), ValueError, "last_seen_indices"),
    "position before the start": (changed(last_seen_indices={"0": -2}), IndexError, r"\[0, 20\].*got -1"),
    "position after the end": (changed(last_seen_indices={"0": 20}), IndexError, r"\[0, 20\].*got 21"),
    "huge position": (changed(last_seen_indices={"0": 10**30}), IndexError, r"\[0, 20\]"),
}


class TestRefusing:
    @pytest.mark.parametrize("name", REFUSED)
    def test_nothing_is_half_applied(self, name):
        change, kind, message = REFUSED[name]
        loader = make()
        everything = list(loader)
        for position in (0, 3, 20):
            it = iter(loader)
            assert list(itertools.islice(it, position)) == everything[:position]
            if position == 20:
                assert list(it) == []
            before = it.get_state()
            with pytest.raises(kind, match=message) as caught:
                it.set_state(json.dumps(change(json.loads(before))).encode())
            assert isinstance(caught.value, ValueError)
            assert it.get_state() == before
            assert list(it) == everything[position:]

    def test_what_is_no_json_object(self):
        it = iter(make())
        next(it)
        state = it.get_state()
        bad = [(state[:cut], json.JSONDecodeError, None) for cut in (0, 1, 20, 60, -1)] + [(b"\xff\xfe\xfa", ValueError, None)]
        bad += [(x, (TypeError, ValueError), "state must be a JSON object") for x in (5, 1.5, object, ["x"], None)]
        for value, kind, message in bad:
            with pytest.raises(kind, match=message):
                it.set_state(value)
            assert it.get_state() == state

    def test_states_of_another_shard(self):
        shards = [iter(make(sampler=IndexSampler(10, ShardOptions(i, 2), num_epochs=1))) for i in (0, 1)]
        with pytest.raises(ValueError, match="shard_index=0"):
            shards[1].set_state(shards[0].get_state())

    def test_positions_between_those_of_a_shard(self):
        it = iter(make(sampler=IndexSampler(10, ShardOptions(1, 2), num_epochs=1)))
        state = {**parsed(it), "last_seen_indices": {"0": 2}}
        with pytest.raises(ValueError, match="must be an index of worker 0 of 1 in shard 1 of 2, got 2"):
            it.set_state(json.dumps(state))

    def test_long_reprs_are_cut_in_messages(self):
        it = iter(DataLoader(data_source=Named("x" * 10**6), sampler=SequentialSampler(6)))
        with pytest.raises(ValueError, match="data_source") as caught:
            it.set_state({**parsed(it), "data_source": "y" * 10**6})
        assert len(str(caught.value)) < 5000

    def test_the_caller_s_mapping_is_not_kept(self):
        it = iter(make())
        state = parsed(it)
        it.set_state(state)
        state["last_seen_indices"]["0"] = 5
        assert parsed(it)["last_seen_indices"] == {"0": -1}


def in_other_process(code, *arguments):
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(code), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


SHARED = """
    import sys, json
    from gristmill import DataLoader
    from gristmill.samplers import IndexSampler
    from gristmill.sources import SharedMemoryDataSource
    source = SharedMemoryDataSource(["a", "é", 3, None, b"x", 2.5, True])
    it = iter(DataLoader(data_source=source, sampler=IndexSampler(7, shuffle=True, num_epochs=1, seed=1)))
    if len(sys.argv) > 1:
        it.set_state(sys.argv[1])
        print(repr(list(it)))
    else:
        print(repr([next(it) for _ in range(3)]))
        print(json.dumps(it.get_state().decode()))
    it.close()
    source.unlink()
    source.close()
"""

DATASET = """
    import sys, json, functools
    from gristmill import DataLoader, MapDataset
    from gristmill.samplers import IndexSampler
    from gristmill.transforms import Map
    class Plus(Map):
        def map(self, element):
            return element + 1
    def add(number, x):
        return x + number
    ds = MapDataset.source(list(range(20))).seed(3).shuffle().map(Plus()).map(lambda x: x * 2)
    ds = ds.random_map(lambda x, rng: x + rng.integers(100)).map(functools.partial(add, 3))[1:].repeat(2)
    it = iter(DataLoader(data_source=ds, sampler=IndexSampler(len(ds), shuffle=True, num_epochs=1, seed=1)))
    if len(sys.argv) > 1:
        it.set_state(sys.argv[1])
        print(repr([int(x) for x in it]))
    else:
        print(repr([int(next(it)) for _ in range(9)]))
        print(json.dumps(it.get_state().decode()))
"""


@pytest.mark.parametrize("code", [SHARED, DATASET], ids=["shared memory", "dataset"])
def test_restoring_in_another_process(code):
    first, state = in_other_process(code).splitlines()
    state = json.loads(state)
    assert " at 0x" not in state
    assert "psm_" not in state
    rest = in_other_process(code, state)
    start = json.dumps({**json.loads(state), "last_seen_indices": {"0": -1}})
    everything = in_other_process(code, start)
    assert eval(first) + eval(rest) == eval(everything)
    assert len(eval(rest)) >= 4


class TestDatasetsAsSources:
    def test_elements(self):
        ds = MapDataset.range(5).map(lambda x: x * 10)
        assert list(DataLoader(data_source=ds, sampler=SequentialSampler(5))) == [0, 10, 20, 30, 40]
        with pytest.warns(UserWarning, match="num_records=7"):
            assert list(DataLoader(data_source=ds, sampler=SequentialSampler(7))) == [0, 10, 20, 30, 40, 0, 10]

    def test_other_datasets_are_told_apart(self):
        ds = MapDataset.range(6)
        sources = [
            *[ds, ds[1:], ds[::2], ds.shuffle(seed=1), ds.shuffle(seed=2), ds.repeat(2), ds.repeat(2, reseed_each_epoch=False)],
            *[ds.random_map(lambda x, rng: x, seed=1), ds.random_map(lambda x, rng: x, seed=2), ds.batch(2), ds.batch(3)],
            *[ds.batch(4), ds.batch(4, drop_remainder=True), ds.slice([1, 2, 3]), ds.slice([1, 3, 2]), MapDataset.range(7)],
            *[MapDataset.source([1] * 6), MapDataset.source(RangeDataSource(0, 6, 1)), ds.filter(bool), ds.map(str)],
        ]
        assert len({repr(source) for source in sources}) == len(sources)
        its = [iter(DataLoader(data_source=source, sampler=SequentialSampler(1))) for source in sources]
        for a, b in itertools.permutations(its, 2):
            with pytest.raises(ValueError, match="data_source"):
                a.set_state(b.get_state())

    def test_datasets_of_users(self):
        class Mine(MapDataset):
            def __len__(self):
                return 3

            def __getitem__(self, index):
                return index

        it = iter(DataLoader(data_source=Mine(), sampler=SequentialSampler(3)))
        assert parsed(it)["data_source"] == "Mine(length=3)"
        assert list(it) == [0, 1, 2]


class TestSharedMemory:
    @pytest.fixture
    def source(self):
        source = SharedMemoryDataSource([0, 1, "two", b"3", None])
        yield source
        source.unlink()
        source.close()

    def test_states_that_hold_all_data(self, source):
        """Grain's ``repr`` shows the elements and a random name."""
        it = iter(DataLoader(data_source=source, sampler=SequentialSampler(5)))
        long = "SharedMemoryDataSource([0, 1, 'two', b'3', None], name='psm_4d41caad')"
        it.set_state({**parsed(it), "last_seen_indices": {"0": 2}, "data_source": long})
        assert list(it) == [b"3", None]
        for other in (long.replace("two", "too"), long.replace("[0, ", "["), "SharedMemoryDataSource(len=5)"):
            with pytest.raises(ValueError, match="data_source"):
                it.set_state({**parsed(it), "data_source": other})

    def test_the_same_data_under_another_name(self, source):
        copy = SharedMemoryDataSource(list(source))
        try:
            it, other = [iter(DataLoader(data_source=s, sampler=SequentialSampler(5))) for s in (source, copy)]
            next(it)
            other.set_state(it.get_state())
            assert list(other) == [1, "two", b"3", None]
        finally:
            copy.unlink()
            copy.close()
