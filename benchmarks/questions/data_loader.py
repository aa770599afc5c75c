"""Cost of an element of a DataLoader with its defaults, in one process."""

import numpy as np
from questions.map_dataset import BATCH, python_doubles, torch_doubles
from workload import Workload, double

ELEMENTS = 20_000
IMAGES = 60_000
IMAGE_BATCH = 32


def one_epoch(grain, source, *operations):
    """A DataLoader over a global shuffle of the source."""
    sampler = grain.samplers.IndexSampler(
        len(source), shard_options=grain.sharding.NoSharding(), shuffle=True, seed=42, num_epochs=1
    )
    return grain.DataLoader(data_source=source, sampler=sampler, operations=operations)


def doubles(grain):
    class Double(grain.transforms.Map):
        def map(self, element):
            return double(element)

    source = grain.sources.RangeDataSource(0, ELEMENTS, 1)
    loader = one_epoch(grain, source, Double(), grain.transforms.Batch(BATCH))
    return lambda: iter(loader)


def images():
    """As MNIST, but random: 188 MB. Whole numbers, so that sums are exact in any order."""
    return (
        np.random.default_rng(0)
        .integers(0, 256, size=(IMAGES, 784), dtype=np.uint8)
        .astype(np.float32)
    )


def in_memory(grain):
    loader = one_epoch(grain, images(), grain.transforms.Batch(IMAGE_BATCH))
    return lambda: iter(loader)


def in_memory_torch(torch):
    from torch.utils.data import DataLoader, TensorDataset

    dataset = TensorDataset(torch.from_numpy(images()))
    loader = DataLoader(dataset, batch_size=IMAGE_BATCH, shuffle=True)

    def run():
        for (batch,) in loader:
            yield batch

    return run


def in_memory_numpy(np):
    data = images()

    def run():
        permutation = np.random.permutation(IMAGES)
        for start in range(0, IMAGES, IMAGE_BATCH):
            yield data.take(permutation[start : start + IMAGE_BATCH], axis=0)

    return run


WORKLOADS = [
    Workload(
        name="DataLoader, defaults, 0 workers, batch 128",
        unit="µs/element",
        scale=1e6,
        count=ELEMENTS,
        candidates={
            "gristmill": doubles,
            "grain": doubles,
            "torch": torch_doubles(ELEMENTS),
            "plain Python": python_doubles(ELEMENTS),
        },
        goals={"≤ 1 µs": lambda m: m["gristmill"] <= 1},
    ),
    Workload(
        name="60 000 × 784 float32 in memory, DataLoader, batch 32",
        unit="s/epoch",
        scale=1,
        count=1,
        candidates={
            "gristmill": in_memory,
            "grain": in_memory,
            "torch": in_memory_torch,
            "NumPy take": in_memory_numpy,
        },
        goals={"ahead of torch": lambda m: m["gristmill"] < m["torch"]},
    ),
]
