"""Pipelines that only this library has, for golden states of its own."""

import golden_pipelines as common


def pipelines(m):
    """Functions that make the pipelines, by name: those that Grain has, too, and others."""
    numbers = m.MapDataset.range(11).seed(7).shuffle()
    letters = m.MapDataset.source(list("abcdefghijk"))
    rows = numbers.to_iter_dataset().batch(4)
    shard = m.sharding.ShardOptions(1, 3)

    def copies(element):
        return [(int(element), i) for i in range(int(element) % 4)]

    def with_index(index, element):
        return index, int(element)

    def group(i):
        return m.MapDataset.range(10 * i, 10 * i + (0, 1, 4, 3, 2)[i % 5])

    def tokens(i):
        return {"a": list(range(10 * i, 10 * i + 1 + i * 7 % 9)), "b": list(range(1 + i * 3 % 5))}

    def loader(*operations, workers=0):
        sampler = m.samplers.IndexSampler(11, shard, True, 3, 5)
        source = m.sources.RangeDataSource(0, 11, 1)
        return m.DataLoader(data_source=source, sampler=sampler, operations=operations, worker_count=workers)

    def elastic(ds, batch_size, index):
        return m.experimental.ElasticIterator(ds, batch_size, m.sharding.ShardOptions(index, 2))

    # Of those with worker processes, which take long to start, not all.
    left_out = {"loader_workers_1", "loader_endless_workers", "workers_1", "workers_mix", "workers_noted", "workers_repeated"}
    return {name: make for name, make in common.pipelines(m).items() if name not in left_out} | {
        "loader_uneven_shard": lambda: loader(m.transforms.Batch(2)),
        "loader_uneven_shard_workers": lambda: loader(workers=2),
        "map_methods": lambda: numbers.window_shuffle(4, seed=3).zip(letters.slice([3, 2, 5, 0, 1, 7, 4, 6, 8, 9, 10])).repeat(2),
        "map_zip_without_missing": lambda: numbers.filter(lambda v: v % 3).zip(letters, drop_missing=True),
        "map_flat_map_method": lambda: numbers.flat_map(copies, max_fan_out=3),
        "interleave_method": lambda: m.MapDataset.range(6).shuffle(seed=2).interleave(group, cycle_length=2),
        "window_shuffle_by_seed": lambda: numbers.to_iter_dataset().window_shuffle(4).limit(9),
        "zip_method": lambda: numbers.to_iter_dataset().zip(letters.to_iter_dataset()).batch(3),
        "cache_method": lambda: rows.cache(copy_elements=True).repeat(2),
        "rebatch_method": lambda: rows.rebatch(3, drop_remainder=True).thread_prefetch(2),
        "flat_map_method": lambda: numbers.to_iter_dataset().flat_map(copies),
        "split_features": lambda: m.experimental.ConcatThenSplitIterDataset(
            m.MapDataset.range(9).map(tokens).to_iter_dataset(), length_struct={"a": 6, "b": 4}
        ),
        "threads_numbered": lambda: numbers.to_iter_dataset().map_with_index(with_index).multithread_prefetch(3, 1),
        "workers_numbered": lambda: numbers.to_iter_dataset().map_with_index(with_index).mp_prefetch(m.MultiprocessingOptions(3)),
        "elastic_filter": lambda: elastic(numbers.filter(lambda v: v % 5), 4, 1),
        "elastic_files": lambda: elastic(
            m.experimental.InterleaveIterDataset([group(i) for i in range(7)], cycle_length=2), 4, 1
        ),
        "elastic_single": lambda: elastic(
            m.experimental.InterleaveIterDataset([group(i) for i in range(7)], cycle_length=9), 0, 0
        ),
    }
