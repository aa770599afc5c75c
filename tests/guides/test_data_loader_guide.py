"""What a guide to the ``DataLoader`` shows."""

import json

import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorflow_datasets as tfds
from PIL import Image
from standins import number_of

import gristmill.python as grain

# The orders that Grain's sampler gives to 15 and to 5 records with seed 0, in two epochs.
ORDER = [0, 4, 10, 11, 8, 3, 14, 9, 5, 12, 6, 7, 2, 13, 1, 13, 7, 6, 12, 4, 8, 9, 2, 10, 3, 1, 5, 14, 11, 0]
ORDER_OF_5 = [0, 4, 1, 2, 3, 1, 2, 3, 0, 4]


@pytest.fixture
def images(data_sets):
    return tfds.data_source("imagenet_a:0.1.0", split="test")


def make_sampler(num_records, **changes):
    options = {"num_epochs": 2, "shard_options": grain.NoSharding(), "shuffle": True, "seed": 0}
    return grain.IndexSampler(num_records=num_records, **(options | changes))


def test_a_sampler_yields_metadata():
    shard_options = grain.ShardOptions(shard_index=0, shard_count=1, drop_remainder=True)
    records = list(make_sampler(5, shard_options=shard_options))
    assert all(isinstance(record, grain.RecordMetadata) for record in records)
    assert [record.index for record in records] == list(range(10))
    assert [record.record_key for record in records] == ORDER_OF_5
    assert str(records[1]) == "RecordMetadata(index=1, record_key=4, rng=Generator(Philox))"
    shard_options = grain.ShardOptions(shard_index=1, shard_count=2, drop_remainder=True)
    records = make_sampler(6, shard_options=shard_options, seed=11)
    draws = [int(record.rng.integers(1000)) for record in records]
    assert draws == [854, 159, 18, 984, 766, 997, 136, 659, 994, 152, 821, 543]


class ResizeAndCrop(grain.MapTransform):
    def map(self, element):
        resized = np.asarray(Image.fromarray(element["image"]).resize((32, 32)))
        return element | {"image": resized[:28, :28], "number": number_of(element["image"])}


def make_loader(images, operations=(), **options):
    options = {"worker_count": 0} | options
    return grain.DataLoader(
        data_source=images, operations=[ResizeAndCrop(), *operations], sampler=make_sampler(len(images)), **options
    )


def test_a_loader_reads_a_tfds_data_set_in_the_order_of_the_sampler(images):
    assert len(images) == 15
    assert isinstance(images, grain.RandomAccessDataSource)
    record = images[3]
    assert sorted(record) == ["file_name", "image", "label"]
    assert (record["file_name"], record["image"].shape, record["label"]) == (b"3.png", (40, 50, 3), 3)
    elements = list(make_loader(images))
    assert [x["number"] for x in elements] == [x["label"] for x in elements] == ORDER
    assert {x["image"].shape for x in elements} == {(28, 28, 3)}
    loader = grain.load(images, num_epochs=2, shuffle=True, seed=0, shard_options=grain.NoSharding())
    assert [x["label"] for x in loader] == ORDER
    for name in ("Batch", "BatchTransform"):
        batches = list(make_loader(images, [getattr(grain, name)(batch_size=4)]))
        assert [x["image"].shape for x in batches] == [(4, 28, 28, 3)] * 7 + [(2, 28, 28, 3)]
        assert np.concatenate([x["label"] for x in batches]).tolist() == ORDER


def test_all_kinds_of_transformations(images):
    class IsEven(grain.FilterTransform):
        def filter(self, element):
            return element["number"] % 2 == 0

    class Jitter(grain.RandomMapTransform):
        def random_map(self, element, rng):
            return element["number"] + rng.uniform(0, 0.5)

    draws = list(make_loader(images, [IsEven(), Jitter()]))
    assert [int(x) for x in draws] == [x for x in ORDER if x % 2 == 0]
    assert len({x % 1 for x in draws}) == len(draws)
    assert draws == list(make_loader(images, [IsEven(), Jitter()]))


def test_an_iterator_is_saved_and_restored_by_orbax(images, tmp_path):
    loader = make_loader(images)
    it = iter(loader)
    assert isinstance(it, grain.PyGrainDatasetIterator)
    assert [next(it)["number"] for _ in range(5)] == ORDER[:5]
    with ocp.CheckpointManager(tmp_path / "orbax") as manager:
        assert manager.save(step=5, args=grain.PyGrainCheckpointSave(it), force=True)
        manager.wait_until_finished()
        (state,) = [json.loads(path.read_text()) for path in (tmp_path / "orbax").glob("*/*/process_*.json")]
        assert "IndexSampler(num_records=15" in state["sampler"]
        assert "name=imagenet_a" in state["data_source"]
        assert [x["file_name"] for x in it] == [f"{number}.png".encode() for number in ORDER[5:]]
        for restored, restore in ((it, grain.PyGrainCheckpointRestore), (iter(loader), grain.GrainCheckpointRestore)):
            manager.restore(5, args=restore(restored))
            assert [x["number"] for x in restored] == ORDER[5:]

    other = grain.DataLoader(data_source=images, sampler=make_sampler(len(images), seed=1))
    with pytest.raises(ValueError, match="seed=0"):
        iter(other).set_state(it.get_state())


def test_workers_and_a_source_in_shared_memory(images):
    source = grain.InMemoryDataSource([0, 10, 20, 30, 40])
    assert (len(source), source[1]) == (5, 10)
    assert "len=5" in str(source)
    loader = grain.DataLoader(data_source=source, sampler=make_sampler(5), worker_count=2)
    with iter(loader) as it:
        assert [next(it) for _ in range(10)] == [10 * i for i in ORDER_OF_5]
        assert next(it, None) is None
    source.close()
    source.unlink()
    loader = make_loader(images, worker_count=2, read_options=grain.ReadOptions(num_threads=8, prefetch_buffer_size=500))
    assert [x["label"] for x in loader] == ORDER
