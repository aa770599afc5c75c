"""Cost of batches of records of similar lengths.

Planning: the batches of ``MANY`` shuffled records by their lengths alone, up to the last one of an
epoch; the bound is NumPy's shuffle of that many and a sort by buckets. Batches: ``RECORDS`` records
in memory, shuffled, by a chain and by a stream. tf.data's ``bucket_by_sequence_length`` has them in
one tensor, shuffled before; the bound puts them into lists, one for each bucket, as they come, and
pads each list when it is full.
"""

import time

import numpy as np
from workload import Measured, Workload

MANY = 10_000_000
RECORDS = 20_000
MAX_TOKENS = 65_536
BUCKETS = 8
# bucket_boundaries(lengths(RECORDS), BUCKETS), for libraries without it
LIMITS = (55, 99, 152, 223, 311, 444, 646, 1000)


def lengths(num):
    """Log-normal, as those of texts, with a median of 100 and at most 1000."""
    found = np.random.default_rng(0).lognormal(np.log(100), 1, num).astype(np.int64) + 1
    return np.minimum(found, 1000)


def records():
    return [np.full(n, n, np.int32) for n in lengths(RECORDS).tolist()]


def plan(grain):
    given = lengths(MANY)
    source = grain.MapDataset.range(MANY).shuffle(seed=0)

    def run():
        start = time.perf_counter()
        ds = source.bucket_batch(given, BUCKETS, max_tokens=MAX_TOKENS, drop_remainder=True)
        last = ds[len(ds) - 1]
        seconds = time.perf_counter() - start
        assert len(last)
        return Measured(seconds, [len(ds)])

    return run


def plan_at_once(_):
    import gristmill

    given = lengths(MANY)
    limits = np.array(gristmill.bucket_boundaries(given, BUCKETS))

    def run():
        start = time.perf_counter()
        order = np.random.default_rng(0).permutation(MANY)
        buckets = np.searchsorted(limits, given[order]).astype(np.uint8)
        by_bucket = np.argsort(buckets, kind="stable")
        counts = np.bincount(buckets[by_bucket])
        seconds = time.perf_counter() - start
        return Measured(seconds, [int((counts // (MAX_TOKENS // limits)).sum())])

    return run


def chain(grain):
    source = grain.MapDataset.source(records()).shuffle(seed=0)
    ds = source.bucket_batch(lengths(RECORDS), LIMITS, max_tokens=MAX_TOKENS)
    return lambda: (ds[i] for i in range(len(ds)))


def stream(grain):
    options = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
    source = grain.MapDataset.source(records()).shuffle(seed=0).to_iter_dataset(options)
    return lambda: iter(source.bucket_batch(len, LIMITS, max_tokens=MAX_TOKENS))


def lists(_):
    found, limits = records(), LIMITS
    order = np.random.default_rng(0).permutation(RECORDS).tolist()

    def padded(rows, limit):
        batch = np.zeros((len(rows), limit), np.int32)
        for row, values in zip(batch, rows, strict=True):
            row[: len(values)] = values
        return batch

    def run():
        held = [[] for _ in limits]
        for key in order:
            record = found[key]
            bucket = next(b for b, limit in enumerate(limits) if len(record) <= limit)
            rows = held[bucket]
            rows.append(record)
            if len(rows) == MAX_TOKENS // limits[bucket]:
                yield padded(rows, limits[bucket])
                held[bucket] = []
        for rows, limit in zip(held, limits, strict=True):
            if rows:
                yield padded(rows, limit)

    return run


def tf_data(tf):
    found = records()
    order = np.random.default_rng(0).permutation(RECORDS).tolist()
    values = tf.constant(np.concatenate([found[key] for key in order]))
    ends = tf.constant(np.cumsum([0, *[len(found[key]) for key in order]]))
    ds = (
        tf.data.Dataset.range(RECORDS)
        .map(lambda i: values[ends[i] : ends[i + 1]])
        .bucket_by_sequence_length(
            lambda record: tf.shape(record)[0],
            # the first lengths that do not go into a bucket
            bucket_boundaries=[limit + 1 for limit in LIMITS],
            bucket_batch_sizes=[*[MAX_TOKENS // limit for limit in LIMITS], 1],
            pad_to_bucket_boundary=True,
        )
    )
    return ds.as_numpy_iterator


def batches(name, candidate, times):
    goals = {f"≤ {times} × the lists": lambda m: m["gristmill"] <= times * m["lists"]}
    goals["as quick as tf.data"] = lambda m: m["gristmill"] <= m["tf.data"]
    candidates = {"gristmill": candidate, "tf.data": tf_data, "lists": lists}
    return Workload(f"bucket_batch: {name}", "µs/record", 1e6, RECORDS, candidates, goals)


WORKLOADS = [
    Workload(
        name="bucket_batch: planning 10 million lengths",
        unit="s",
        scale=1,
        count=1,
        candidates={"gristmill": plan, "NumPy, all at once": plan_at_once},
        goals={"≤ 2 s": lambda m: m["gristmill"] <= 2},
    ),
    batches("a chain", chain, 2),
    batches("a stream", stream, 3),
]
