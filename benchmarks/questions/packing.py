"""Cost of a token that is packed into rows with others."""

import importlib
import math
import time

from workload import Measured, Workload

SEQUENCES = 20_000
LENGTHS = (10, 600)  # tokens in a sequence
ROW = 2048  # tokens in a row


def elements(np, num_features=1):
    """Sequences of random lengths; the second feature is half as long."""
    lengths = np.random.default_rng(0).integers(LENGTHS[0], LENGTHS[1] + 1, SEQUENCES).tolist()
    names = ["x", "y"][:num_features]
    return [{name: np.arange(n // (i + 1)) for i, name in enumerate(names)} for n in lengths]


def packing(cls, num_features=1, **arguments):
    """A candidate: packs the elements with a class of ``experimental``."""

    def candidate(grain):
        np = importlib.import_module("numpy")
        experimental = importlib.import_module(f"{grain.__name__}.experimental")
        sequences = elements(np, num_features)
        no_threads = grain.ReadOptions(num_threads=0, prefetch_buffer_size=0)
        parent = grain.MapDataset.source(sequences).to_iter_dataset(no_threads)
        ds = getattr(experimental, cls)(
            parent, length_struct=dict.fromkeys(sequences[0], ROW), **arguments
        )

        def run():
            start = time.perf_counter()
            for _ in ds:
                pass
            seconds = time.perf_counter() - start
            return Measured(
                seconds, (np.concatenate([row[key] for key in sorted(row)]) for row in ds)
            )

        return run

    return candidate


def ours(cls, **arguments):
    """The same as a bound: with other arguments."""
    return lambda np: packing(cls, **arguments)(importlib.import_module("gristmill"))


def tokens(num_features=1):
    np = importlib.import_module("numpy")
    return sum(len(value) for element in elements(np, num_features) for value in element.values())


def workload(name, candidate, goals, num_features=1):
    return Workload(
        name=name,
        unit="ns/token",
        scale=1e9,
        count=tokens(num_features),
        candidates={"gristmill": candidate, "grain": candidate},
        goals=goals,
    )


AT_LEAST_5 = {"≥ 5 × Grain": lambda m: m["grain"] >= 5 * m["gristmill"]}
NO_SLOWER = {"no slower than Grain": lambda m: m["gristmill"] <= m["grain"]}
MANY = 16_384

WORKLOADS = [
    workload(
        "first fit, 32 bins", packing("FirstFitPackIterDataset", num_packing_bins=32), AT_LEAST_5
    ),
    workload(
        "first fit, 32 bins, at most 5 in a bin",
        packing("FirstFitPackIterDataset", num_packing_bins=32, max_sequences_per_bin=5),
        AT_LEAST_5,
    ),
    *[
        workload(
            f"{name} fit, {num_bins} bins",
            packing(f"{name.capitalize()}FitPackIterDataset", num_packing_bins=num_bins),
            AT_LEAST_5,
        )
        for name, num_bins in [
            ("first", 256),
            ("first", 2048),
            ("first", MANY),
            ("best", 32),
            ("best", MANY),
        ]
    ],
    *[
        Workload(
            name=f"{name} fit, {MANY} bins against 32",
            unit="ns/token",
            scale=1e9,
            count=tokens(),
            candidates={
                "gristmill": packing(
                    f"{name.capitalize()}FitPackIterDataset", num_packing_bins=MANY
                ),
                "32 bins": ours(f"{name.capitalize()}FitPackIterDataset", num_packing_bins=32),
            },
            goals={
                "grows as log(bins) at most": lambda m: (
                    m["gristmill"] <= math.log(MANY) / math.log(32) * m["32 bins"]
                )
            },
            compare=False,
        )
        for name in ("first", "best")
    ],
    *[
        workload(
            f"{name} fit, {num_bins} bins, two features",
            packing(f"{name.capitalize()}FitPackIterDataset", 2, num_packing_bins=num_bins),
            NO_SLOWER,
            2,
        )
        for name in ("first", "best")
        for num_bins in (32, MANY)
    ],
    workload("concat then split", packing("ConcatThenSplitIterDataset"), NO_SLOWER),
]
