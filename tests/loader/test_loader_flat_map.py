import asyncio
import json

import numpy as np
import pytest

import gristmill as grain
from gristmill.core.errors import StateKeyError, StateMismatchError
from gristmill.core.record import Record, RecordMetadata
from gristmill.experimental import FlatMapTransform


class Fan(FlatMapTransform):
    """``x % 4`` items of ``x``."""

    max_fan_out = 3

    def flat_map(self, element):
        for j in range(element % 4):
            yield element * 10 + j


class Twice(FlatMapTransform):
    max_fan_out = 5

    def flat_map(self, element):
        return [element, element]


class Numbered(grain.transforms.MapWithIndex):
    def map_with_index(self, index, element):
        return (index, element)


class Draw(grain.transforms.RandomMap):
    def random_map(self, element, rng):
        return (element, int(rng.integers(10**6)))


class PlusOne(grain.transforms.Map):
    def map(self, element):
        return element + 1


def make_loader(operations, n=9, source=None, **kwargs):
    sampler_args = {"num_epochs": 1, "seed": 7, **kwargs.pop("sampler_args", {})}
    return grain.DataLoader(
        data_source=range(n) if source is None else source,
        sampler=kwargs.pop("sampler", None) or grain.samplers.IndexSampler(n, **sampler_args),
        operations=operations,
        read_options=grain.ReadOptions(0, 0),
        **kwargs,
    )


ITEMS = [x * 10 + j for x in range(9) for j in range(x % 4)]


def test_items_in_order_through_batches():
    assert list(make_loader([Fan()])) == ITEMS
    assert [x.tolist() for x in make_loader([Fan(), grain.transforms.Batch(4)])] == [ITEMS[i : i + 4] for i in range(0, 12, 4)]
    assert list(make_loader([PlusOne(), Fan(), PlusOne()], n=3)) == [11, 21, 22, 31, 32, 33]
    assert list(make_loader([Fan(), Twice()], n=3)) == [10, 10, 20, 20, 21, 21]
    sums = make_loader([grain.transforms.Batch(2), Twice()], n=5)
    assert [x.tolist() for x in sums] == [[0, 1], [0, 1], [2, 3], [2, 3], [4], [4]]


def test_items_continue_the_index_and_have_no_key():
    seen = []

    def operation(records):
        for record in records:
            seen.append((record.metadata.index, record.metadata.record_key, record.data))
            yield record

    loader = make_loader([Fan(), operation], n=4, sampler_args={"shuffle": True, "num_epochs": 2})
    assert len(list(loader)) == 12
    keys = [loader._sampler[i].record_key for i in range(8)]
    assert seen == [(i * 3 + j, None, key * 10 + j) for i, key in enumerate(keys) for j in range(key % 4)]
    assert list(make_loader([Fan(), Numbered()], n=3)) == [(3, 10), (6, 20), (7, 21)]
    assert list(make_loader([Fan(), Twice(), Numbered()], n=2)) == [(15, 10), (16, 10)]


def item_rng(seed, index, position):
    return np.random.Generator(np.random.Philox(key=seed + index, counter=[0, 0, 0, position + 1]))


@pytest.mark.parametrize("workers", [0, 2])
def test_every_item_has_a_random_stream_of_its_own(workers):
    drawn = list(make_loader([Fan(), Draw()], n=4, worker_count=workers))
    expected = [(x * 10 + j, int(item_rng(7, x, j).integers(10**6))) for x in range(4) for j in range(x)]
    assert sorted(drawn) == expected
    assert len({draw for _, draw in drawn}) == len(drawn)

    # Of items of items, the "record" is the item.
    twice = list(make_loader([Fan(), Twice(), Draw()], n=3))
    assert twice == [
        (x * 10 + j, int(item_rng(7, x * 3 + j, k).integers(10**6))) for x in range(3) for j in range(x) for k in range(2)
    ]


def test_streams_of_records_are_not_touched_by_items():
    class Split(FlatMapTransform):
        max_fan_out = 1

        def flat_map(self, element):
            return [element]

    before = list(make_loader([Draw()], n=4))
    assert [x for x, _ in make_loader([Draw(), Split(), Draw()], n=4)] == before


def test_random_children_of_items_are_reproducible_and_differ():
    class Spawn(grain.transforms.RandomMap):
        def random_map(self, element, rng):
            return int(rng.spawn(1)[0].integers(10**9))

    first, second = list(make_loader([Twice(), Spawn()], n=4)), list(make_loader([Twice(), Spawn()], n=4))
    assert first == second
    assert len(set(first)) == 8


class OwnSampler:
    """A user's sampler, with generators of its own or without."""

    def __init__(self, rng):
        self.rng = rng

    def __len__(self):
        return 3

    def __getitem__(self, index):
        if index >= 3:
            raise IndexError(index)
        return RecordMetadata(index, index, np.random.default_rng(index) if self.rng else None)

    def __repr__(self):
        return "OwnSampler"


@pytest.mark.parametrize("rng", [False, True])
def test_other_samplers_give_items_no_generator(rng):
    args = {"sampler": OwnSampler(rng), "shard_options": grain.sharding.NoSharding(), "n": 3}
    assert list(make_loader([Fan(), Numbered()], **args)) == [(3, 10), (6, 20), (7, 21)]
    with pytest.raises(ValueError, match="what a FlatMap makes has one only if the sampler is an IndexSampler"):
        next(iter(make_loader([Fan(), Draw()], **args)))


def test_a_seed_is_asked_for_at_construction():
    with pytest.raises(ValueError, match="seed"):
        make_loader([Fan(), Draw()], sampler_args={"seed": None})
    assert list(make_loader([Fan(), Numbered()], n=2, sampler_args={"seed": None})) == [(3, 10)]


def test_none_is_an_element_like_any_other():
    class Letters(FlatMapTransform):
        max_fan_out = 2

        def flat_map(self, element):
            return ["none", None] if element is None else [element]

    for operations in ([Letters()], [Letters(), Numbered(), Last()]):
        assert list(make_loader(operations, n=3, source=["a", None, "b"])) == ["a", "none", None, "b"]


class Last(grain.transforms.Map):
    def map(self, element):
        return element[-1]


def test_max_fan_out_is_enforced():
    class TooMany(FlatMapTransform):
        max_fan_out = 2

        def flat_map(self, element):
            return [element] * (element + 1)

    for operations in ([TooMany()], [TooMany(), Numbered()]):
        it = iter(make_loader(operations))
        assert len([next(it) for _ in range(3)]) == 3
        for _ in range(2):
            with pytest.raises(ValueError, match="TooMany made more items of one element than its max_fan_out = 2"):
                next(it)
        it.skip_failed()
        with pytest.raises(ValueError, match="max_fan_out"):
            next(it)


def test_a_flat_map_without_max_fan_out_is_refused_at_construction():
    class NoMaximum(FlatMapTransform):
        def flat_map(self, element):
            return []

    with pytest.raises(TypeError, match="NoMaximum must have an attribute max_fan_out"):
        make_loader([NoMaximum()])
    NoMaximum.max_fan_out = 0
    with pytest.raises(ValueError, match="max_fan_out must be a positive integer, got 0"):
        make_loader([NoMaximum()])
    with pytest.raises(TypeError, match=r"operations\[0\] must be a transformation"):
        make_loader([Fan])


def test_the_order_of_classes():
    class MapAndFlatMap(grain.transforms.Map, FlatMapTransform):
        def map(self, element):
            return "map"

        def flat_map(self, element):
            raise AssertionError

    class FlatMapAndFilter(grain.transforms.Filter, FlatMapTransform):
        max_fan_out = 1

        def filter(self, element):
            raise AssertionError

        def flat_map(self, element):
            return ["flat map"]

    assert list(make_loader([MapAndFlatMap()], n=1)) == ["map"]
    assert list(make_loader([FlatMapAndFilter()], n=1)) == ["flat map"]


# States


ORIGIN = {
    "worker_count": 0,
    "sampler": repr(grain.samplers.IndexSampler(9, num_epochs=1, seed=7)),
    "data_source": "range(0, 9)",
}


def native(next_index, position):
    return {"parent": {"next_index": next_index}, "next_index_in_buffer": position}


def test_states_are_grains_with_the_origin_beside_it():
    it = iter(make_loader([Fan(), grain.transforms.Batch(2)]))
    found = [json.loads(it.get_state())]
    for _ in it:
        found.append(json.loads(it.get_state()))
    positions = [(0, 0), (2, 1), (3, 1), (3, 3), (6, 1), (7, 1), (7, 3)]
    assert found == [{**native(*position), **ORIGIN} for position in positions]
    assert list(json.loads(it.get_state())) == ["parent", "next_index_in_buffer", "worker_count", "sampler", "data_source"]
    assert str(it) == f"PyGrainDatasetIterator(state={it.get_state().decode()})"


@pytest.mark.parametrize(
    ("operations", "workers"),
    [([Fan()], 0), ([Fan(), Draw()], 0), ([Fan(), Twice(), grain.transforms.Batch(3)], 0), ([Fan(), Draw()], 2)],
)
def test_every_state_restores(operations, workers):
    loader = make_loader(operations, worker_count=workers)
    it = iter(loader)
    elements, states = [], [it.get_state()]
    for element in it:
        elements.append(element)
        states.append(it.get_state())

    for position, state in enumerate(states):
        if workers and position not in (1, 4):  # to start workers takes its time; the vectors do it everywhere
            continue
        grains = {key: value for key, value in json.loads(state).items() if key not in ORIGIN}
        fresh = grain.DataLoaderIterator(loader, grains)
        assert fresh.get_state() == state
        for used in (fresh, it):
            used.set_state(state)
            assert used.get_state() == state
            np.testing.assert_equal(list(used), elements[position:])
            used.set_state(state)


def test_states_of_other_loaders_are_refused():
    it = iter(make_loader([Fan()]))
    next(it)
    before = it.get_state()
    good = native(2, 1)
    for key, value in (("worker_count", 2), ("sampler", "Other()"), ("data_source", "range(0, 10)")):
        with pytest.raises(StateMismatchError, match=f"{key}.*{value if key == 'worker_count' else ''}"):
            it.set_state({**good, **ORIGIN, key: value})
        with pytest.raises(StateMismatchError, match=key):
            it.set_state({**good, key: value})  # each is checked if it is there
        assert it.get_state() == before
    unchecked = grain.DataLoaderIterator(make_loader([Fan()]), {**good, **ORIGIN, "sampler": "Other()"}, validate_state=False)
    assert next(unchecked) == 21
    without = iter(make_loader([PlusOne()]))
    with pytest.raises(StateKeyError, match="last_seen_indices"):
        without.set_state(before)
    with pytest.raises(StateKeyError, match="next_index_in_buffer"):
        it.set_state(without.get_state())
    two_workers = iter(make_loader([Fan()], worker_count=2))
    with pytest.raises(StateMismatchError, match="worker_count=2, the DataLoader has worker_count=0"):
        it.set_state(two_workers.get_state())
    grains = {key: value for key, value in json.loads(two_workers.get_state()).items() if key not in ORIGIN}
    with pytest.raises(StateKeyError):
        it.set_state(grains)
    with pytest.raises(StateMismatchError, match=r"2 workers .* has 3"):
        iter(make_loader([Fan()], worker_count=3)).set_state(grains)
    assert it.get_state() == before


class Directory:
    def __init__(self, path):
        self.path = path

    async def await_creation(self):
        return self.path


def test_checkpoints_say_the_fan_out(tmp_path):
    async def save(it):
        await (await it.save(Directory(tmp_path)))

    async def load(it):
        await (await it.load(tmp_path))

    it = iter(make_loader([Fan()]))
    next(it)
    asyncio.run(save(it))
    again = iter(make_loader([Fan()]))
    asyncio.run(load(again))
    assert list(again) == ITEMS[1:]

    class Wider(Fan):
        max_fan_out = 4

    with pytest.raises(StateMismatchError, match=r"max_fan_out of FlatMap .* was 3 .* is 4"):
        asyncio.run(load(iter(make_loader([Wider()]))))


def test_errors_and_skipping():
    class Fails(FlatMapTransform):
        max_fan_out = 3

        def flat_map(self, element):
            if element == 2:
                raise OSError(element)
            return [element] * 2

    it = iter(make_loader([Fails()], n=4))
    assert [next(it) for _ in range(4)] == [0, 0, 1, 1]
    for _ in range(2):
        with pytest.raises(OSError, match="2"):
            next(it)
        assert json.loads(it.get_state())["next_index_in_buffer"] == 2
    it.skip_failed()
    assert list(it) == [3, 3]


def test_records_of_items_are_plain_records():
    class Keep(grain.transforms.Filter):
        def filter(self, element):
            assert not isinstance(element, Record)
            return element != 21

    assert list(make_loader([Fan(), Keep(), Numbered()], n=3)) == [(3, 10), (6, 20)]
