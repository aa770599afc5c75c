"""The pipelines of the golden states, made with Grain or with a module that has its names, and
elements as JSON.
"""

import functools
import os
import time

import numpy as np


def step(name, base, method, function, **attributes):
    return type(name, (base,), {method: staticmethod(function), **attributes})()


def describe(element):
    return {
        "number": np.float32(element) / 4,
        "row": np.arange(element, element + 3, dtype=np.int16),
    }


def copies(element):
    return [(int(element), i) for i in range(int(element) % 4)]


def with_index(index, element):
    return index, int(element)


def sequence(element):
    return {"x": np.full(1 + int(element) % 3, int(element))}


def text(element):
    return np.full(1 + int(element) % 5, int(element))


def num_tokens(element):
    return len(element["x"])


def fourth_fails(element):
    if element % 4 == 3:
        raise ValueError("damaged")
    return int(element)


def pipelines(m):
    """Functions that make the pipelines, by name. Files are looked for in ``data``, beside this
    file.
    """
    x = m.experimental
    t = m.transforms
    Plus = functools.partial(step, "Plus", t.Map, "map", lambda v: v + 1)
    Draw = functools.partial(
        step,
        "Draw",
        t.RandomMap,
        "random_map",
        lambda v, rng: int(v) * 1000 + int(rng.integers(1000)),
    )
    Describe = functools.partial(step, "Describe", t.Map, "map", describe)
    KeepMost = functools.partial(step, "KeepMost", t.Filter, "filter", lambda v: v % 3 != 0)
    Copies = functools.partial(
        step, "Copies", x.FlatMapTransform, "flat_map", copies, max_fan_out=3
    )

    def loader(source, sampler, *operations, workers=0):
        return m.DataLoader(
            data_source=source, sampler=sampler, operations=list(operations), worker_count=workers
        )

    def sampler(n, shard, num_epochs):
        return m.samplers.IndexSampler(n, shard, True, num_epochs, 5)

    def shuffled_loader(workers, *operations, num_epochs=2):
        source = m.sources.RangeDataSource(0, 17, 1)
        return loader(source, sampler(17, everything, num_epochs), *operations, workers=workers)

    def processes(ds, count, **options):
        return ds.mp_prefetch(m.MultiprocessingOptions(count), **options)

    def tokens(i):
        return {
            "a": np.arange(10 * i, 10 * i + 1 + i * 7 % 9),
            "b": np.full((1 + i * 3 % 5, 2), i, np.float32),
            "m": i,
        }

    def slowly(element):
        # so that a release that notes states now and then does it
        time.sleep(float(os.environ.get("GOLDEN_SECONDS", "0")))
        return element

    def row(i):
        return {"x": np.arange(i, i + i % 4 + 1), "y": np.full((i % 4 + 1, 2), i, np.float32)}

    def group(i):
        return m.MapDataset.range(10 * i, 10 * i + (0, 1, 4, 3, 2)[i % 5])

    def odd_group(i):
        return group(i).to_iter_dataset().map(lambda v: v * 2).batch(2)

    everything = m.sharding.NoSharding()
    shard = m.sharding.ShardOptions(1, 3, drop_remainder=True)
    numbers = m.sources.RangeDataSource(0, 12, 1)
    records = m.MapDataset.source(list(range(100, 120)))
    shuffled = m.MapDataset.range(12).seed(7).shuffle()
    dense = shuffled.random_map(Draw()).to_iter_dataset()
    numbered = dense.filter(KeepMost()).map_with_index(lambda i, v: (i, v))
    kept = m.MapDataset.range(14).to_iter_dataset().filter(lambda v: v % 3 != 1 or v > 8)
    first, second = shuffled.to_iter_dataset(), m.MapDataset.range(50, 54).to_iter_dataset()
    interleave = x.InterleaveIterDataset
    read_first = m.ReadOptions(0, 0)
    rows = m.MapDataset.range(12).map(tokens).to_iter_dataset()
    texts = m.MapDataset.range(12).map(tokens).map(lambda v: {"a": v["a"]}).to_iter_dataset()
    bins = {"length_struct": {"a": 9, "b": 6}, "num_packing_bins": 2, "meta_features": ("m",)}
    in_order = {"length_struct": {"a": 12}, "num_packing_bins": 3, "shuffle_bins": False}
    bos = {
        "bos_handling": x.BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS,
        "bos_token_id": 99,
        "split_full_length_features": False,
    }
    map_and_batch = Plus(), Draw(), KeepMost(), t.Batch(3), Plus()
    first_to_last = m.samplers.SequentialSampler(12, everything)
    in_memory, six = m.sources.SharedMemoryDataSource, m.samplers.SequentialSampler(6)
    groups = m.MapDataset.range(6).shuffle(seed=2).repeat(2).map(group)
    return {
        "loader": lambda: loader(numbers, sampler(12, everything, 2)),
        "loader_operations": lambda: loader(
            numbers, sampler(12, shard, 3), Plus(), Draw(), KeepMost(), t.Batch(2), Plus()
        ),
        "loader_list": lambda: loader(
            [f"é{i}" for i in range(9)], m.samplers.SequentialSampler(9, shard), t.Batch(2)
        ),
        "loader_shared_memory": lambda: loader(
            in_memory([3, "four", b"five", None, 2.5, True]), six
        ),
        "loader_endless": lambda: shuffled_loader(0, Plus(), num_epochs=None),
        "loader_flat_map": lambda: shuffled_loader(0, Plus(), Copies()),
        "loader_arrays": lambda: shuffled_loader(0, Describe(), t.Batch(3)),
        "map_dataset": lambda: records.shuffle(seed=3).map(lambda v: v + 1)[2:].repeat(2),
        "repeated": lambda: (
            m.MapDataset.range(4)
            .seed(1)
            .shuffle()
            .repeat(3, reseed_each_epoch=False)
            .to_iter_dataset()
        ),
        "endless": lambda: shuffled.map_with_index(lambda i, v: (i, v)).repeat().to_iter_dataset(),
        "filtered": lambda: records.filter(lambda v: v % 3).to_iter_dataset(),
        "sparse": (
            lambda: records.filter(lambda v: v % 3).to_iter_dataset(
                m.ReadOptions(2, 3), allow_nones=True
            )
        ),
        "map_batches": lambda: shuffled.batch(5).to_iter_dataset(),
        "map_mix": lambda: m.MapDataset.mix([shuffled, records], [1, 2]).to_iter_dataset(),
        "select": lambda: m.MapDataset.select_from_datasets(
            [shuffled, records], [(0, 3), (1, 5), (1, 2), (0, 0)]
        ),
        "concatenated": lambda: m.MapDataset.concatenate([shuffled, records]).shuffle(seed=4),
        "map_zip": lambda: x.ZipMapDataset([shuffled, records.slice(slice(0, 12))]),
        "map_flat_map": lambda: x.FlatMapMapDataset(shuffled, Copies()),
        "map_window_shuffle": lambda: x.WindowShuffleMapDataset(shuffled, window_size=4, seed=3),
        "iter_batches": lambda: shuffled.to_iter_dataset().batch(5, drop_remainder=True),
        "padded": lambda: dense.batch(5, batch_fn=functools.partial(x.batch_and_pad, batch_size=5)),
        "nested": lambda: (
            numbered.seed(9).random_map(lambda v, rng: (*v, int(rng.integers(1000)))).batch(2)
        ),
        "options": (
            lambda: x.WithOptionsIterDataset(
                dense, x.DatasetOptions(filter_raise_threshold_ratio=0.9)
            ).map(Describe())
        ),
        "mix": lambda: m.IterDataset.mix([first, second.map(Plus())], [1, 2]),
        "mix_by_name": lambda: m.IterDataset.mix(
            {"b": first, "a": second.map(Plus())}, {"a": 1, "b": 3}
        ),
        "zip": lambda: x.ZipIterDataset([first, second], strict=False),
        "flat_map": lambda: x.FlatMapIterDataset(first, Copies()),
        "window_shuffle": lambda: x.WindowShuffleIterDataset(dense, window_size=5, seed=3),
        "repeat": lambda: x.RepeatIterDataset(dense.filter(KeepMost()), 2),
        "limit": lambda: x.LimitIterDataset(dense, 7),
        "rebatch": lambda: x.RebatchIterDataset(
            m.MapDataset.range(9).map(row).to_iter_dataset(), 4
        ),
        "rebatch_evenly": lambda: x.RebatchIterDataset(first.batch(4), 2),
        "cache": lambda: x.RepeatIterDataset(x.CacheIterDataset(dense.filter(KeepMost())), 2),
        "thread_prefetch": lambda: x.ThreadPrefetchIterDataset(
            dense.filter(KeepMost()), prefetch_buffer_size=3
        ),
        "interleave": lambda: interleave([group(i) for i in range(7)], cycle_length=3),
        "interleave_by_name": lambda: interleave(groups, cycle_length=2, make_iter_buffer_size=2),
        "interleave_batches": lambda: interleave(
            [odd_group(i) for i in range(6)], cycle_length=2, iter_buffer_size=0
        ),
        "interleave_all": lambda: interleave([odd_group(i) for i in range(4)], cycle_length=9),
        "interleave_repeated": lambda: x.RepeatIterDataset(
            interleave([group(i) for i in range(4)], cycle_length=2), 2
        ),
        "first_fit": lambda: x.FirstFitPackIterDataset(rows, **bins),
        "best_fit": lambda: x.BestFitPackIterDataset(rows, seed=4, **bins),
        "packed_in_order": lambda: x.FirstFitPackIterDataset(rows, **in_order).batch(2),
        "concat_then_split": lambda: x.ConcatThenSplitIterDataset(texts, length_struct={"a": 5}),
        "concat_then_split_with_bos": lambda: x.ConcatThenSplitIterDataset(
            texts, length_struct={"a": 7}, **bos
        ),
        "parquet": lambda: x.ParquetIterDataset("data/one.parquet"),
        "parquet_files": lambda: x.ParquetIterDataset(["data/one.parquet", "data/two.parquet"]),
        "tfrecord": lambda: x.TFRecordIterDataset("data/records.tfrecord"),
        "tfrecord_batches": lambda: (
            x.TFRecordIterDataset("data/records.tfrecord").map(len).batch(2)
        ),
        "elastic": lambda: iter(
            x.ElasticIterator(shuffled, 4, m.sharding.ShardOptions(1, 2), read_options=read_first)
        ),
        "threads_1": lambda: x.multithread_prefetch(kept, 1, 2),
        "threads_2": lambda: x.multithread_prefetch(kept, 2, 1),
        "threads_3": lambda: x.multithread_prefetch(dense.filter(KeepMost()), 3, 0).batch(2),
        "threads_repeated": lambda: x.RepeatIterDataset(x.multithread_prefetch(kept, 2, 1), 2),
        "threads_of_files": lambda: x.multithread_prefetch(
            interleave([group(i) for i in range(8)], cycle_length=2), 2, 1
        ),
        "threads_of_parts": lambda: x.multithread_prefetch(
            m.MapDataset.range(7).to_iter_dataset(), 3, 1, sequential_slice=True
        ),
        "workers_1": lambda: processes(kept, 1),
        "workers_2": lambda: processes(
            dense.random_map(lambda v, rng: (v, int(rng.integers(100))), seed=2), 2
        ),
        "workers_3": lambda: processes(kept, 3).map_with_index(lambda i, v: (i, v)),
        "workers_batches": lambda: processes(dense.map(Describe()).batch(2), 2),
        "workers_mix": lambda: processes(m.IterDataset.mix([first, second.map(Plus())], [1, 2]), 2),
        "workers_packing": lambda: processes(x.FirstFitPackIterDataset(rows, **bins), 2),
        "workers_files": lambda: processes(
            interleave([group(i) for i in range(8)], cycle_length=2), 2
        ),
        "workers_repeated": lambda: x.RepeatIterDataset(processes(kept, 2), 2),
        "workers_noted": lambda: processes(kept.map(slowly), 2),
        "workers_parts": lambda: processes(
            m.MapDataset.range(10).to_iter_dataset(), 3, sequential_slice=True
        ),
        **{
            f"loader_workers_{n}": functools.partial(shuffled_loader, n, *map_and_batch)
            for n in (1, 2, 3)
        },
        "loader_dry_worker": lambda: loader(
            numbers, first_to_last, KeepMost(), t.Batch(2), workers=3
        ),
        "loader_shard_workers": lambda: loader(
            numbers, sampler(12, shard, 4), Describe(), t.Batch(2, True), workers=2
        ),
        "loader_endless_workers": lambda: shuffled_loader(2, Describe(), num_epochs=None),
        "loader_flat_map_workers": lambda: shuffled_loader(2, Copies(), num_epochs=1),
    }


def own_pipelines(m):
    """Those that Grain has, too, and others that only this library has."""
    numbers = m.MapDataset.range(11).seed(7).shuffle()
    letters = m.MapDataset.source(list("abcdefghijk"))
    rows = numbers.to_iter_dataset().batch(4)
    shard, half = m.ShardOptions(1, 3), m.ShardOptions(1, 2)
    elastic, interleave = m.experimental.ElasticIterator, m.experimental.InterleaveIterDataset

    def group(i):
        return m.MapDataset.range(10 * i, 10 * i + (0, 1, 4, 3, 2)[i % 5])

    def tokens(i):
        return {"a": list(range(10 * i, 10 * i + 1 + i * 7 % 9)), "b": list(range(1 + i * 3 % 5))}

    parts = {
        name: m.MapDataset.range(10 * i, 10 * i + 3 + 2 * i).to_iter_dataset()
        for i, name in enumerate("abc", 1)
    }
    schedule = m.Schedule({0: {"a": 1, "b": 1}, 4: {"a": 1, "b": 2, "c": 2}})
    sequences = {name: part.map(sequence) for name, part in parts.items() if name != "c"}
    texts = m.MapDataset.range(11).map(text).seed(7).shuffle()

    def loader(*operations, workers=0):
        sampler = m.samplers.IndexSampler(11, shard, True, 3, 5)
        source = m.sources.RangeDataSource(0, 11, 1)
        return m.DataLoader(
            data_source=source, sampler=sampler, operations=operations, worker_count=workers
        )

    # Of those with worker processes, which take long to start, not all.
    left_out = {
        "loader_workers_1",
        "loader_endless_workers",
        "workers_1",
        "workers_mix",
        "workers_noted",
        "workers_repeated",
    }
    return {name: make for name, make in pipelines(m).items() if name not in left_out} | {
        "loader_uneven_shard": lambda: loader(m.transforms.Batch(2)),
        "loader_uneven_shard_workers": lambda: loader(workers=2),
        "map_methods": lambda: (
            numbers.window_shuffle(4, seed=3)
            .zip(letters.slice([3, 2, 5, 0, 1, 7, 4, 6, 8, 9, 10]))
            .repeat(2)
        ),
        "map_zip_without_missing": (
            lambda: numbers.filter(lambda v: v % 3).zip(letters, drop_missing=True)
        ),
        "map_flat_map_method": lambda: numbers.flat_map(copies, max_fan_out=3),
        "interleave_method": lambda: (
            m.MapDataset.range(6).shuffle(seed=2).interleave(group, cycle_length=2)
        ),
        "window_shuffle_by_seed": lambda: numbers.to_iter_dataset().window_shuffle(4).limit(9),
        "zip_method": lambda: numbers.to_iter_dataset().zip(letters.to_iter_dataset()).batch(3),
        "cache_method": lambda: rows.cache(copy_elements=True).repeat(2),
        "rebatch_method": lambda: rows.rebatch(3, drop_remainder=True).thread_prefetch(2),
        "flat_map_method": lambda: numbers.to_iter_dataset().flat_map(copies),
        "split_features": lambda: m.experimental.ConcatThenSplitIterDataset(
            m.MapDataset.range(9).map(tokens).to_iter_dataset(), length_struct={"a": 6, "b": 4}
        ),
        "threads_numbered": lambda: (
            numbers.to_iter_dataset().map_with_index(with_index).multithread_prefetch(3, 1)
        ),
        "workers_numbered": lambda: (
            numbers.to_iter_dataset()
            .map_with_index(with_index)
            .mp_prefetch(m.MultiprocessingOptions(3))
        ),
        "mix_schedule": lambda: m.IterDataset.mix(parts, schedule, stop="all"),
        "mix_never_endless": (
            lambda: m.IterDataset.mix(parts, {"a": 2, "b": 1, "c": 1}, stop="never").batch(3)
        ),
        "mix_by_length": lambda: m.IterDataset.mix(
            sequences, {"a": 2, "b": 1}, by=num_tokens, stop="all"
        ),
        "mix_in_bins": lambda: m.experimental.FirstFitPackIterDataset(
            m.IterDataset.mix(sequences, {"a": 2, "b": 1}, by=num_tokens, stop="all"),
            length_struct={"x": 6},
            num_packing_bins=3,
        ),
        "mix_in_windows": (
            lambda: m.IterDataset.mix(parts, schedule, stop="all").window_shuffle(4, seed=2)
        ),
        "bucket_batch": lambda: texts.bucket_batch(
            [1 + i % 5 for i in range(11)], [2, 5], max_tokens=10, window=6, seed=3
        ),
        "bucket_batch_stream": (
            lambda: texts.to_iter_dataset().bucket_batch(
                len, [2, 4], batch_sizes=3, on_long="truncate"
            )
        ),
        "block_shuffle": lambda: (
            m.MapDataset.range(11).block_shuffle(2, group_size=2, seed=4).repeat(2).batch(3)
        ),
        "tolerate": lambda: (
            numbers.map(fourth_fails)
            .to_iter_dataset()
            .tolerate(ValueError, max_rate=None, max_total=4)
            .batch(2)
        ),
        "elastic_filter": lambda: elastic(numbers.filter(lambda v: v % 5), 4, half),
        "elastic_files": lambda: elastic(
            interleave([group(i) for i in range(7)], cycle_length=2), 4, half
        ),
        "elastic_single": lambda: elastic(
            interleave([group(i) for i in range(7)], cycle_length=9), 0, m.ShardOptions(0, 2)
        ),
    }


def plain(value):
    """``value`` as JSON that shows types and dtypes; what JSON has itself stands for itself."""
    if isinstance(value, np.ndarray):
        return {
            "dtype": value.dtype.str,
            "shape": list(value.shape),
            "values": plain(value.ravel().tolist()),
        }
    if isinstance(value, np.generic):
        return {"scalar": value.dtype.str, "value": plain(value.item())}
    if isinstance(value, dict):
        return {"dict": [[key, plain(v)] for key, v in sorted(value.items())]}
    if isinstance(value, tuple):
        return {"tuple": [plain(v) for v in value]}
    if isinstance(value, list):
        return [plain(v) for v in value]
    if isinstance(value, bytes):
        return {"bytes": value.decode("latin1")}
    assert value is None or type(value) in (bool, int, float, str), value
    return value
