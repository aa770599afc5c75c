"""What an advanced guide to datasets shows: checkpoints, mixtures, shuffling by windows, and all kinds of prefetching.

The expected orders are those that Grain gives.
"""

import json
import sys

import jax
import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorflow_datasets as tfds
from standins import number_of, write_parquet, write_tfrecords

import gristmill as grain


@pytest.fixture
def mnist(data_sets):
    return grain.MapDataset.source(tfds.data_source("mnist:3.0.1", split="train"))


@pytest.fixture
def pneumonia(data_sets):
    return grain.MapDataset.source(tfds.data_source("pneumonia_mnist:1.0.0", split="train"))


def numbered(prefix):
    """A transformation that keeps of a record only who it is."""
    return lambda features: f"{prefix}{number_of(features['image'])}"


def numbers(elements):
    return [number_of(x["image"]) for x in elements]


def test_an_iterator_is_saved_and_restored_by_orbax(tmp_path, mnist):
    ds = mnist.seed(seed=45).shuffle().to_iter_dataset()
    it = iter(ds)
    assert numbers(next(it) for _ in range(4)) == [39, 8, 33, 26]
    with ocp.CheckpointManager(tmp_path / "orbax") as manager:
        assert manager.save(step=4, args=grain.checkpoint.CheckpointSave(it), force=True)
        manager.wait_until_finished()
        states = [json.loads(path.read_text()) for path in (tmp_path / "orbax").glob("*/*/process_*.json")]
        assert states == [{"next_index": 4}]
        assert numbers(next(it) for _ in range(4)) == [36, 40, 24, 49]
        for restored in (it, iter(ds)):
            manager.restore(4, args=grain.checkpoint.CheckpointRestore(restored))
            assert numbers(next(restored) for _ in range(4)) == [36, 40, 24, 49]


# Mixtures


def test_mixtures(mnist, pneumonia):
    ds = grain.MapDataset.mix([pneumonia.map(numbered("p")), mnist.map(numbered("m"))], weights=[0.7, 0.3])
    assert len(ds) == 67
    assert [ds[i] for i in range(12)] == ["p0", "p1", "p2", "m0", "p3", "p4", "m1", "p5", "p6", "m2", "p7", "p8"]
    assert len(set(ds)) == 67
    assert sum(x.startswith("p") for x in ds) == 47
    # Of filtered streams it ends when the one whose turn it is has no more.
    ds1 = pneumonia.filter(lambda features: int(features["label"]) == 1).map(numbered("p"))
    ds2 = mnist.filter(lambda features: number_of(features["image"]) > 50).map(numbered("m"))
    ds = grain.IterDataset.mix([ds1.to_iter_dataset(), ds2.to_iter_dataset()], weights=[0.7, 0.3])
    elements = list(ds.map(str.upper))
    assert elements[:9] == ["P1", "P3", "P5", "M51", "P7", "P9", "M52", "P11", "P13"]
    assert elements[-3:] == ["M59", "P43", "P45"]
    assert len(elements) == 32


def test_repeated_components_are_never_exhausted_and_shuffled_before_they_are_mixed(mnist, pneumonia):
    ds1, ds2 = pneumonia.map(numbered("p")).repeat(), mnist.map(numbered("m")).repeat()
    ds = grain.MapDataset.mix([ds1, ds2], weights=[1, 2])
    assert len(ds1) == len(ds2) == len(ds) == sys.maxsize
    assert [ds[i] for i in range(9)] == ["p0", "m0", "m1", "p1", "m2", "m3", "p2", "m4", "m5"]
    assert [ds[i] for i in range(1000, 1003)] == ["m6", "m7", "p5"]
    ds1 = pneumonia.seed(42).shuffle().repeat().map(numbered("p"))
    ds2 = mnist.seed(43).shuffle().repeat().map(numbered("m"))
    ds = grain.MapDataset.mix([ds1, ds2], weights=[1, 2])
    expected = ["p32", "m38", "m47", "p7", "m19", "m57", "p28", "m42", "m3", "p24", "m59", "m5"]
    assert [ds[i] for i in range(12)] == expected
    epoch = {ds[i] for i in range(3 * 47)}
    assert {f"p{i}" for i in range(47)} <= epoch and {f"m{i}" for i in range(60)} <= epoch


# Files without random access

# Three files of 7, 3 and 12 rows, all read at a time, shuffled in windows of 10 with seed 42.
HIERARCHICAL = [1, 101, 200, 100, 201, 0, 3, 102, 2, 202, 5, 205, 208, 206, 207, 6, 4, 209, 203, 204, 211, 210]
# The names of the files shuffled too (seed 1), two at a time, windows of 5, seed 6.
TWO_AT_A_TIME = [200, 201, 100, 102, 101, 0, 203, 204, 202, 1, 207, 206, 205, 3, 2, 5, 209, 6, 4, 208, 210, 211]
FILES = {
    "parquet": (write_parquet, grain.experimental.ParquetIterDataset, lambda row: int(row["number"])),
    "tfrecord": (write_tfrecords, grain.experimental.TFRecordIterDataset, int),
}


@pytest.mark.parametrize("kind", FILES)
def test_hierarchical_shuffle(tmp_path, kind):
    write, reader, number = FILES[kind]
    paths = grain.MapDataset.source(write(tmp_path, [7, 3, 12]))

    def shuffled(paths, cycle_length, window_size, seed):
        ds = grain.experimental.InterleaveIterDataset(paths.map(reader), cycle_length=cycle_length)
        return list(grain.experimental.WindowShuffleIterDataset(ds, window_size=window_size, seed=seed).map(number))

    assert shuffled(paths, 3, 10, 42) == HIERARCHICAL
    assert shuffled(paths.shuffle(seed=1), 2, 5, 6) == TWO_AT_A_TIME
    chain = paths.shuffle(seed=1).interleave(reader, cycle_length=2).window_shuffle(5, seed=6)
    assert list(chain.map(number)) == TWO_AT_A_TIME
    ds = paths.interleave(reader, cycle_length=3).window_shuffle(10, seed=42).map(number)
    it = iter(ds)
    for i in range(len(HIERARCHICAL) + 1):
        resumed = iter(ds)
        resumed.set_state(json.loads(json.dumps(it.get_state())))
        assert list(resumed) == HIERARCHICAL[i:]
        assert next(it, None) == (HIERARCHICAL[i] if i < len(HIERARCHICAL) else None)


# Prefetching


def test_elements_are_sent_to_devices_ahead_of_their_use(mnist):
    images = mnist.to_iter_dataset().map(lambda features: features["image"])
    ds = grain.experimental.ThreadPrefetchIterDataset(images, prefetch_buffer_size=3)
    arrays = list(ds.map(jax.device_put))
    assert all(isinstance(x, jax.Array) for x in arrays)
    assert [number_of(x) for x in arrays] == list(range(60))
    mesh = jax.sharding.Mesh(np.array(jax.devices()), axis_names=("data",))
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
    ds = grain.experimental.device_put(ds=images.batch(20), device=sharding, cpu_buffer_size=3, device_buffer_size=2)
    it = iter(ds)
    first = next(it)
    state = json.loads(json.dumps(it.get_state()))
    batches = [first, *it]
    assert all(isinstance(x, jax.Array) and x.sharding == sharding for x in batches)
    assert [number_of(image) for batch in batches for image in batch] == list(range(60))
    it.set_state(state)
    assert number_of(next(it)[0]) == 20
    device = jax.devices()[0]
    batches = list(grain.experimental.device_put(mnist.to_iter_dataset().batch(30), device))
    assert [x["label"].devices() for x in batches] == [{device}] * 2
    assert np.concatenate([x["label"] for x in batches]).tolist() == [i % 10 for i in range(60)]


def test_threads_read_in_order_and_buffers_are_sized_by_measuring(mnist):
    read_options = grain.ReadOptions(num_threads=32, prefetch_buffer_size=400)
    ds = mnist.shuffle(seed=3)
    assert numbers(ds.to_iter_dataset(read_options=read_options)) == numbers(ds[i] for i in range(60))
    config = grain.experimental.pick_performance_config(ds=mnist, ram_budget_mb=1024, max_workers=None, max_buffer_size=None)
    assert isinstance(config, grain.experimental.PerformanceConfig)
    assert isinstance(config.read_options, grain.ReadOptions)
    assert 1 <= config.read_options.prefetch_buffer_size <= 1000
    assert numbers(mnist.to_iter_dataset(read_options=config.read_options)) == list(range(60))


def test_worker_processes_keep_the_order_and_are_numbered_by_measuring(mnist):
    ds = mnist.seed(1).shuffle().to_iter_dataset()
    config = grain.experimental.pick_performance_config(ds=ds, ram_budget_mb=1024, max_workers=2, max_buffer_size=None)
    assert isinstance(config.multiprocessing_options, grain.MultiprocessingOptions)
    assert 1 <= config.multiprocessing_options.num_workers <= 2
    with iter(ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=10))) as it:
        expected = numbers(ds)
        assert numbers(next(it) for _ in range(25)) == expected[:25]
        state = it.get_state()
        assert numbers(it) == expected[25:]
        it.set_state(state)
        assert numbers(it) == expected[25:]


def test_ragged_sequences_are_packed_into_rows(mnist):
    def tokens_of(features):
        number = number_of(features["image"])
        return {"tokens": np.full(number % 5 + 1, number)}

    ds = mnist.map(tokens_of).to_iter_dataset()
    rows = list(grain.experimental.FirstFitPackIterDataset(ds, length_struct={"tokens": 8}, num_packing_bins=4))
    assert {row["tokens"].shape for row in rows} == {(8,)}
    kept = np.concatenate([row["tokens"][row["tokens_segment_ids"] > 0] for row in rows])
    counts = dict(zip(*np.unique(kept, return_counts=True), strict=True))
    assert counts == {number: number % 5 + 1 for number in range(60)}
    for row in rows:  # every sequence stands together, with positions from 0
        for segment in range(1, row["tokens_segment_ids"].max() + 1):
            inside = row["tokens_segment_ids"] == segment
            assert len(set(row["tokens"][inside])) == 1
            assert row["tokens_positions"][inside].tolist() == list(range(inside.sum()))
