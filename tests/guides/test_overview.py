"""What an overview of the library promises: by experiment."""

import json

import numpy as np
import pytest

import gristmill.python as grain

READ = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


class Counting:
    """A source that remembers which records were read."""

    def __init__(self, size):
        self.size = size
        self.read = []

    def __len__(self):
        return self.size

    def __getitem__(self, key):
        self.read.append(key)
        return key

    def __repr__(self):
        return f"Counting({self.size})"


def test_what_a_training_loop_needs():
    it = iter(grain.MapDataset.range(12).shuffle(seed=5).map(lambda x: np.float32(x)).batch(4))
    batch = next(it)
    assert isinstance(batch, np.ndarray) and batch.dtype == np.float32
    state = it.get_state()
    rest = [x.tolist() for x in it]
    it.set_state(state)
    assert [x.tolist() for x in it] == rest
    assert len(json.dumps(state)) < 100

    def run():
        ds = grain.MapDataset.range(40).seed(9).shuffle().repeat(2).random_map(lambda x, rng: x + rng.normal())
        return list(ds.filter(lambda x: x > 3).to_iter_dataset())

    assert run() == run()


def test_a_pipeline_starts_anywhere_without_what_came_before():
    source = Counting(1000)
    ds = grain.MapDataset.source(source)
    mixed = grain.MapDataset.mix([ds.shuffle(seed=1).repeat(), ds.seed(2).shuffle().repeat()], weights=[1, 3])[3::8]
    mixed = mixed.map(lambda x: x + 1)
    assert source.read == []  # sharding, repeating, mixing and shuffling know only indices
    assert isinstance(mixed[10**9], int)
    assert len(source.read) == 1  # any place of the stream is one read away
    ds = ds.shuffle(seed=8).random_map(lambda x, rng: (x, int(rng.integers(10**6))), seed=3)
    for position in (0, 1, 57, 999):
        expected = [ds[i] for i in range(position, min(position + 3, 1000))]
        source.read.clear()
        it = iter(ds.to_iter_dataset(READ))
        it.set_state({"next_index": position})
        assert [x for x, _ in zip(it, range(3), strict=False)] == expected
        assert len(source.read) <= 4


def test_a_loader_resumes_without_reading_what_came_before():
    source = Counting(1000)
    sampler = grain.IndexSampler(1000, shuffle=True, seed=4, num_epochs=1, shard_options=grain.NoSharding())
    loader = grain.DataLoader(data_source=source, sampler=sampler, operations=[grain.Batch(10)], read_options=READ)
    it = iter(loader)
    batches = [next(it).tolist() for _ in range(50)]
    state = it.get_state()
    source.read.clear()
    resumed = iter(loader)
    resumed.set_state(state)
    after = next(resumed).tolist()
    assert sorted(source.read) == sorted(after)
    assert len(set(np.ravel([*batches, after]).tolist())) == 510


def test_indices_grow_and_keys_lie_in_the_data_set_and_in_one_shard():
    records = list(grain.IndexSampler(7, shuffle=True, seed=1, num_epochs=3, shard_options=grain.NoSharding()))
    assert [record.index for record in records] == list(range(21))
    for epoch in range(3):
        assert sorted(record.record_key for record in records[7 * epoch : 7 * epoch + 7]) == list(range(7))
    assert len({int(record.rng.integers(2**63)) for record in records}) == 21

    def read_shard(i):
        options = grain.ShardOptions(shard_index=i, shard_count=3, drop_remainder=False)
        sampler = grain.IndexSampler(20, shard_options=options, shuffle=True, seed=2, num_epochs=1)
        return list(grain.DataLoader(data_source=range(20), sampler=sampler))

    shards = [read_shard(i) for i in range(3)]
    assert sorted(x for shard in shards for x in shard) == list(range(20))
    assert sorted(map(len, shards)) == [6, 7, 7]


@pytest.mark.parametrize(
    "element", ["text", b"bytes", 3, None, {"a": [1, (2, "x")]}, object, np.zeros((0, 3)), [np.float16(1)], lambda: 0]
)
def test_elements_may_be_anything(element):
    ds = grain.MapDataset.source([element]).map(lambda x: [x])
    elements = [x[0] for x in ds]
    assert len(elements) == (element is not None)  # ``None`` stands for no element
    assert all(x is element for x in elements)


def test_every_step_is_an_ordinary_function_of_the_step_before():
    class Parse(grain.MapTransform):
        def map(self, element):
            return element.decode().split(",")

    class Long(grain.FilterTransform):
        def filter(self, element):
            return len(element) > 1

    sampler = grain.SequentialSampler(3, shard_options=grain.NoSharding())
    operations = [Parse(), Long(), grain.Batch(2, batch_fn=list)]
    loader = grain.DataLoader(data_source=[b"a,b", b"c", b"d,e,f"], sampler=sampler, operations=operations)
    assert list(loader) == [[["a", "b"], ["d", "e", "f"]]]
