"""Cost of taking the state of a pipeline, now and then or at every step."""

import time

import numpy as np
from questions.data_loader import one_epoch
from workload import Measured, Workload, double

STATES = 2_000
ELEMENTS = 4_000


def numbers(grain):
    return grain.MapDataset.range(10**7)


def shuffle_map_batch(grain):
    return numbers(grain).shuffle(seed=42).map(double).to_iter_dataset().batch(8)


def random_map(grain):
    return numbers(grain).to_iter_dataset().random_map(lambda x, rng: x, seed=1).map(double)


def mix_of_5(grain):
    return grain.IterDataset.mix(
        [numbers(grain).to_iter_dataset() for _ in range(5)], weights=[1, 2, 3, 4, 5]
    )


def interleave(cycle_length):
    def pipeline(grain):
        datasets = [numbers(grain) for _ in range(cycle_length)]
        return grain.experimental.InterleaveIterDataset(datasets, cycle_length=cycle_length)

    return pipeline


def window_shuffle(grain):
    return grain.experimental.WindowShuffleIterDataset(
        numbers(grain).to_iter_dataset(), window_size=256, seed=1
    )


def packing(grain):
    ds = numbers(grain).map(lambda i: {"tokens": np.full(i % 16 + 1, i)}).to_iter_dataset()
    return grain.experimental.FirstFitPackIterDataset(
        ds, length_struct={"tokens": 32}, num_packing_bins=4
    )


def thread(grain):
    return grain.experimental.ThreadPrefetchIterDataset(
        numbers(grain).to_iter_dataset().batch(8), prefetch_buffer_size=8
    )


def data_loader(grain):
    return one_epoch(grain, grain.sources.RangeDataSource(0, 10**7, 1))


PIPELINES = {
    "shuffle, map, batch(8)": shuffle_map_batch,
    "random_map, map": random_map,
    "mix of 5": mix_of_5,
    "interleave of 4": interleave(4),
    "interleave of 16": interleave(16),
    "interleave of 64": interleave(64),
    "window shuffle": window_shuffle,
    "packing": packing,
    "thread prefetch": thread,
    "DataLoader": data_loader,
}


def close(it):
    if hasattr(it, "close"):
        it.close()


def get_state(pipeline):
    """The seconds of many calls, in the middle of an epoch."""

    def candidate(grain):
        def run():
            it = iter(pipeline(grain))
            for _ in range(100):
                next(it)
            start = time.perf_counter()
            for _ in range(STATES):
                it.get_state()
            seconds = time.perf_counter() - start
            close(it)
            return Measured(seconds, [])

        return run

    return candidate


def iteration(pipeline, *, with_states):
    """The seconds of many elements, with the state after each."""

    def candidate(grain):
        def run():
            it = iter(pipeline(grain))
            next(it)
            start = time.perf_counter()
            for _ in range(ELEMENTS):
                next(it)
                if with_states:
                    it.get_state()
            seconds = time.perf_counter() - start
            close(it)
            return Measured(seconds, [])

        return run

    return candidate


def both(candidate):
    return {"gristmill": candidate, "grain": candidate}


def workloads(name, pipeline):
    yield Workload(
        name=f"one get_state: {name}",
        unit="µs",
        scale=1e6,
        count=STATES,
        candidates=both(get_state(pipeline)),
        goals={"≤ 10 µs": lambda m: m["gristmill"] <= 10},
        compare=False,
    )
    for with_states in (False, True):
        yield Workload(
            name=f"{'element and state' if with_states else 'element'}: {name}",
            unit="µs",
            scale=1e6,
            count=ELEMENTS,
            candidates=both(iteration(pipeline, with_states=with_states)),
            goals={"not slower than Grain": lambda m: m["gristmill"] <= m["grain"]},
            compare=False,
        )


WORKLOADS = [
    workload for name, pipeline in PIPELINES.items() for workload in workloads(name, pipeline)
]
