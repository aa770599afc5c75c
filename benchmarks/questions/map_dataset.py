"""Cost of an element of a chain of map datasets, in one process."""

from workload import Workload, double

ELEMENTS = 200_000
SINGLY = 20_000
BATCH = 128


def no_threads(grain):
    return grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)


def shuffle_map_batch(grain):
    ds = grain.MapDataset.range(ELEMENTS).shuffle(seed=42).map(double).batch(BATCH)
    return lambda: iter(ds.to_iter_dataset(no_threads(grain)))


def torch_doubles(elements):
    """The candidate torch: the same work with its DataLoader."""

    def candidate(torch):
        from torch.utils.data import DataLoader, Dataset

        class Doubles(Dataset):
            def __len__(self):
                return elements

            def __getitem__(self, index):
                return double(index)

        loader = DataLoader(Doubles(), batch_size=BATCH, shuffle=True)
        return lambda: iter(loader)

    return candidate


def python_doubles(elements):
    """The candidate plain Python: the same work with no pipeline at all."""

    def candidate(np):
        def run():
            permutation = np.random.permutation(elements).tolist()
            for start in range(0, elements, BATCH):
                yield np.array([double(x) for x in permutation[start : start + BATCH]])

        return run

    return candidate


def iterate_singly(grain):
    ds = (
        grain.MapDataset.range(SINGLY)
        .shuffle(seed=42)
        .map(double)
        .map(double)
        .map(double)
        .to_iter_dataset()
    )
    return lambda: iter(ds)


def random_access(grain):
    ds = grain.MapDataset.range(SINGLY).shuffle(seed=42).map(double)
    return lambda: [ds[i] for i in range(SINGLY)]


def add_noise(x, rng):
    return x + rng.random()


def random_map(grain):
    ds = grain.MapDataset.range(SINGLY).seed(42).random_map(add_noise).batch(BATCH)
    return lambda: iter(ds.to_iter_dataset(no_threads(grain)))


WORKLOADS = [
    Workload(
        name="range, shuffle, map, batch(128), no threads",
        unit="µs/element",
        scale=1e6,
        count=ELEMENTS,
        candidates={
            "gristmill": shuffle_map_batch,
            "grain": shuffle_map_batch,
            "torch": torch_doubles(ELEMENTS),
            "plain Python": python_doubles(ELEMENTS),
        },
        goals={
            "≤ 0.20 µs": lambda m: m["gristmill"] <= 0.20,
            "≥ 30 × Grain": lambda m: m["grain"] >= 30 * m["gristmill"],
            "ahead of torch": lambda m: m["gristmill"] < m["torch"],
        },
    ),
    Workload(
        name="shuffle, map × 3, one by one, default ReadOptions",
        unit="µs/element",
        scale=1e6,
        count=SINGLY,
        candidates={"gristmill": iterate_singly, "grain": iterate_singly},
        goals={"≤ 2 µs": lambda m: m["gristmill"] <= 2},
    ),
    Workload(
        name="ds[i] through shuffle, map",
        unit="µs/element",
        scale=1e6,
        count=SINGLY,
        candidates={"gristmill": random_access, "grain": random_access},
        goals={"≤ 2.5 µs": lambda m: m["gristmill"] <= 2.5},
    ),
    Workload(
        name="random_map, batch(128), no threads",
        unit="µs/element",
        scale=1e6,
        count=SINGLY,
        candidates={"gristmill": random_map, "grain": random_map},
        goals={"≥ 2 × Grain": lambda m: m["grain"] >= 2 * m["gristmill"]},
    ),
]
