"""What an overview and a first guide to datasets promise, with the results that Grain gives."""

import numpy as np
import pytest

import gristmill.python as grain

READ = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


class Counting(list):
    """A source that remembers which records were read."""

    read = ()

    def __getitem__(self, key):
        self.read = [*self.read, key]
        return super().__getitem__(key)


def test_a_chain_and_its_epochs():
    ds = grain.MapDataset.source(range(20, 31)).shuffle(seed=7).map(lambda x: x * 2).batch(batch_size=3, batch_fn=list)
    assert [ds[len(ds) + i] for i in range(4)] == [[50, 46, 60], [54, 58, 42], [40, 44, 48], [56, 52]]
    assert list(ds) == [[48, 40, 46], [54, 44, 58], [52, 60, 42], [50, 56]]  # asking for later epochs changes nothing
    filtered = ds.filter(lambda batch: sum(batch) % 3 == 0)
    assert [filtered[i] for i in range(4)] == [None, [54, 44, 58], None, None]
    with pytest.raises(ValueError, match="to_iter_dataset"):
        filtered.batch(2)


def test_a_pipeline_starts_anywhere_without_what_came_before():
    source = Counting(range(1000))
    ds = grain.MapDataset.source(source)
    mixed = grain.MapDataset.mix([ds.shuffle(seed=1).repeat(), ds.seed(2).shuffle().repeat()], weights=[1, 3])[3::8]
    mixed = mixed.map(lambda x: x + 1)
    assert not source.read  # sharding, repeating, mixing and shuffling know only indices
    assert isinstance(mixed[10**9], int)
    assert len(source.read) == 1  # any place of the stream is one read away
    ds = ds.shuffle(seed=8).random_map(lambda x, rng: (x, int(rng.integers(10**6))), seed=3)
    for position in (0, 1, 57, 999):
        expected = [ds[i] for i in range(position, min(position + 3, 1000))]
        source.read = []
        it = iter(ds.to_iter_dataset(READ))
        it.set_state({"next_index": position})
        assert [x for x, _ in zip(it, range(3), strict=False)] == expected
        assert len(source.read) <= 4
    loader = grain.load(source, shuffle=True, seed=4, num_epochs=1, batch_size=10, read_options=READ)
    it = iter(loader)
    batches = [next(it).tolist() for _ in range(50)]
    source.read = []
    resumed = iter(loader)
    resumed.set_state(it.get_state())
    after = next(resumed).tolist()
    assert sorted(source.read) == sorted(after)
    assert len(set(np.ravel([*batches, after]).tolist())) == 510


def test_elements_are_any_objects():
    for element in ("text", b"bytes", 3, None, {"a": [1, (2, "x")]}, object, np.zeros((0, 3)), [np.float16(1)], lambda: 0):
        elements = [x[0] for x in grain.MapDataset.source([element]).map(lambda x: [x])]
        assert len(elements) == (element is not None)  # ``None`` stands for no element
        assert all(x is element for x in elements)
