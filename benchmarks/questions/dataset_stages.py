"""Cost of the stages that take elements from several datasets, or in another order."""

import time

from workload import Measured, Workload

ELEMENTS = 100_000
FEW = 20_000
BATCH = 128


def no_threads(grain):
    return grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def shuffled_ranges(grain, num=5):
    return [grain.MapDataset.range(ELEMENTS // num).shuffle(seed=seed) for seed in range(num)]


def mix_batch(grain):
    ds = grain.MapDataset.mix(shuffled_ranges(grain)).batch(BATCH)
    return lambda: iter(ds.to_iter_dataset(no_threads(grain)))


def weighted_mix_batch(grain):
    ds = grain.MapDataset.mix(shuffled_ranges(grain), [1, 2, 3, 4, 0.7]).batch(BATCH)
    return lambda: iter(ds.to_iter_dataset(no_threads(grain)))


def mix_500_batch(grain):
    ds = grain.MapDataset.mix(shuffled_ranges(grain, 500)).batch(BATCH)
    return lambda: iter(ds.to_iter_dataset(no_threads(grain)))


def cost_of(stage):
    """The candidate: what a pipeline of batches takes longer with ``stage`` than without."""

    def candidate(grain):
        without = grain.MapDataset.range(2 * ELEMENTS)
        pipelines = [
            ds.batch(BATCH, batch_fn=sum).to_iter_dataset(no_threads(grain))
            for ds in (without, stage(grain, without))
        ]

        def run():
            seconds, results = [], []
            for ds in pipelines:
                it = iter(ds)
                began = time.perf_counter()
                results = [next(it) for _ in range(ELEMENTS // BATCH)]
                seconds.append(time.perf_counter() - began)
            return Measured(max(0.0, seconds[1] - seconds[0]), results)

        return run

    return candidate


def mixed(grain, ds):
    return grain.MapDataset.mix([ds, ds.seed(1)])


def concatenated(grain, ds):
    return grain.MapDataset.concatenate([ds[:1000], ds])


def iter_mix(grain):
    datasets = [grain.MapDataset.range(FEW // 5).to_iter_dataset() for _ in range(5)]
    ds = grain.IterDataset.mix(datasets).batch(BATCH)
    return lambda: iter(ds)


def iter_mix_500(grain):
    datasets = [
        grain.MapDataset.range(ELEMENTS // 500).to_iter_dataset(no_threads(grain))
        for _ in range(500)
    ]
    ds = grain.IterDataset.mix(datasets).batch(BATCH)
    return lambda: iter(ds)


def interleave(grain):
    datasets = [grain.MapDataset.range(FEW // 16).to_iter_dataset() for _ in range(16)]
    ds = grain.experimental.InterleaveIterDataset(datasets, cycle_length=8).batch(BATCH)
    return lambda: iter(ds)


def zipped(grain):
    ds = grain.MapDataset.range(FEW).to_iter_dataset()
    ds = grain.experimental.ZipIterDataset([ds, ds.seed(1)]).map(sum).batch(BATCH)
    return lambda: iter(ds)


def window_shuffle(grain):
    ds = grain.MapDataset.range(FEW).to_iter_dataset()
    ds = grain.experimental.WindowShuffleIterDataset(ds, window_size=2000, seed=1).batch(BATCH)
    return lambda: iter(ds)


def rebatch(grain):
    ds = grain.MapDataset.range(FEW).to_iter_dataset().batch(100)
    ds = grain.experimental.RebatchIterDataset(ds, batch_size=BATCH)
    return lambda: iter(ds)


def letters(x):
    return [x, x, x]


def flat_map(grain):
    class Three(grain.experimental.FlatMapTransform):
        max_fan_out = 3

        def flat_map(self, element):
            return [element, element, element]

    ds = grain.MapDataset.range(FEW // 3).to_iter_dataset()
    ds = grain.experimental.FlatMapIterDataset(ds, Three()).batch(BATCH)
    return lambda: iter(ds)


def against_grain(name, candidate, count, times):
    return Workload(
        name=name,
        unit="µs/element",
        scale=1e6,
        count=count,
        candidates={"gristmill": candidate, "grain": candidate},
        goals={f"≥ {times} × Grain": lambda m: m["grain"] >= times * m["gristmill"]},
    )


def stage_cost(name, stage):
    return Workload(
        name=f"{name} alone, blocks of 128",
        unit="µs/element",
        scale=1e6,
        count=ELEMENTS,
        candidates={"gristmill": cost_of(stage), "grain": cost_of(stage)},
        goals={"≤ 0.1 µs": lambda m: m["gristmill"] <= 0.1},
    )


WORKLOADS = [
    against_grain("mix of five shuffled ranges, batch(128)", mix_batch, ELEMENTS, 20),
    against_grain("mix of five, weights 1 2 3 4 0.7, batch(128)", weighted_mix_batch, 53_450, 20),
    against_grain("mix of 500 shuffled ranges, batch(128)", mix_500_batch, ELEMENTS, 20),
    stage_cost("mix", mixed),
    stage_cost("concatenate", concatenated),
    stage_cost("slice", lambda grain, ds: ds[1::2].repeat(2)),
    stage_cost("shuffle", lambda grain, ds: ds.shuffle(seed=3)),
    against_grain("IterDataset.mix of five, batch(128)", iter_mix, FEW, 10),
    against_grain("IterDataset.mix of 500, batch(128)", iter_mix_500, ELEMENTS, 10),
    against_grain("interleave of 16, 8 at a time, batch(128)", interleave, FEW, 5),
    against_grain("zip of two streams, batch(128)", zipped, FEW, 5),
    against_grain("window shuffle of 2000, batch(128)", window_shuffle, FEW, 5),
    against_grain("flat_map 1 to 3, batch(128)", flat_map, FEW, 5),
    against_grain("rebatch 100 to 128", rebatch, FEW, 2),
]
