"""Cost of a batch of 19 MB from worker processes: time, and the consumer's CPU time.

Batches are 32 images of 224 × 224 × 3 float32, which workers have at hand, so that little is
measured but stacking and transport. The consumer reads one number of every page, without which
memory that is not mapped yet would count as delivered, and drops a batch before it asks for the
next. All loaders have the defaults of their read-ahead.
"""

import functools
import itertools
import time

import numpy as np
from workload import Measured, Workload

ENDLESS = 1_000_000_000  # records
SHAPE = (224, 224, 3)
BATCH = 32
IMAGES = 9
WARM_UP = 8  # batches that may have been made while another candidate ran
BATCHES = 100
PAGE = 1024  # numbers


@functools.cache
def image(i):
    """Whole numbers, so that sums are exact in any order."""
    return (np.arange(np.prod(SHAPE)) * (i + 1) % 251).astype(np.float32).reshape(SHAPE)


class Images:
    """Nine images, again and again, so that no batch equals the one before; made by the worker that
    needs them.
    """

    def __init__(self, length):
        self._length = length

    def __len__(self):
        return self._length

    def __getitem__(self, i):
        return image(i % IMAGES)


def parse_flags(module):
    """Without which Grain starts no worker where jaxlib is a recent one."""
    if module.__name__ == "grain":
        from absl import flags

        flags.FLAGS.mark_as_parsed()


def data_loader(module, source, *, workers, batch_size=None, **torch_options):
    """A DataLoader of gristmill, Grain or PyTorch over one epoch, unshuffled; ``Batch`` is the last
    operation.
    """
    if module.__name__ == "torch":
        from torch.utils.data import DataLoader

        return DataLoader(source, batch_size=batch_size, num_workers=workers, **torch_options)
    parse_flags(module)
    sampler = module.samplers.IndexSampler(
        len(source), shard_options=module.sharding.NoSharding(), num_epochs=1
    )
    operations = [] if batch_size is None else [module.transforms.Batch(batch_size)]
    return module.DataLoader(
        data_source=source, sampler=sampler, operations=operations, worker_count=workers
    )


def touched(batch):
    """One number of every page."""
    return np.asarray(batch).reshape(-1)[::PAGE].copy()


def steady(iterator, *, whole, kept, warm_up, count, clock=time.perf_counter):
    """A run that measures ``count`` elements in the middle of a stream: ``kept`` of each is what is
    looked at.

    Buffers are emptied before it begins, and their contents are checked as a whole.
    """

    def run():
        results = [whole(next(iterator)) for _ in range(warm_up)]
        start = clock()
        for _ in range(count):
            results.append(kept(next(iterator)))
        return Measured(clock() - start, results)

    return run


def batches(workers, clock=time.perf_counter):
    def candidate(module):
        iterator = iter(data_loader(module, Images(ENDLESS), workers=workers, batch_size=BATCH))
        return steady(
            iterator, whole=np.array, kept=touched, warm_up=WARM_UP, count=BATCHES, clock=clock
        )

    return candidate


def copies(np):
    """The bound: copying the images of a batch to the same place again, with no process and no
    pipeline.
    """

    def stream():
        batch = np.empty((BATCH, *SHAPE), np.float32)
        for start in itertools.count(0, BATCH):
            for i in range(BATCH):
                np.copyto(batch[i], image((start + i) % IMAGES))
            yield batch

    return steady(stream(), whole=np.array, kept=touched, warm_up=WARM_UP, count=BATCHES)


def touches(np):
    """The bound: what the consumer does with batches that are there."""
    batch = np.stack([image(i % IMAGES) for i in range(BATCH)])

    def run():
        start = time.process_time()
        for _ in range(BATCHES):
            touched(batch)
        return Measured(time.process_time() - start, [])

    return run


def question(name, workers, bound, goals, clock=time.perf_counter):
    return Workload(
        name=f"19 MB image batches, DataLoader, {workers}: {name}",
        unit="ms/batch",
        scale=1e3,
        count=BATCHES,
        candidates={
            **dict.fromkeys(("gristmill", "grain", "torch"), batches(int(workers[0]), clock)),
            **bound,
        },
        goals=goals,
    )


WORKLOADS = [
    question(
        "time",
        "1 worker",
        {"memcpy": copies},
        {
            "≤ 6.5 ms": lambda m: m["gristmill"] <= 6.5,
            "≥ 2 × Grain": lambda m: m["grain"] >= 2 * m["gristmill"],
            "≥ 2.5 × torch": lambda m: m["torch"] >= 2.5 * m["gristmill"],
        },
    ),
    question(
        "time",
        "2 workers",
        {"memcpy": copies},
        {
            "≥ 2 × Grain": lambda m: m["grain"] >= 2 * m["gristmill"],
            "≥ 2 × torch": lambda m: m["torch"] >= 2 * m["gristmill"],
        },
    ),
    question(
        "consumer's CPU time",
        "1 worker",
        {"touching alone": touches},
        {"< 1 ms": lambda m: m["gristmill"] < 1},
        time.process_time,
    ),
]
