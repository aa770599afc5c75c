"""Pipelines that tests write, and what a folder has afterwards."""

from pathlib import Path

import numpy as np

import gristmill as grain


def element(i):
    """Of all types that MessagePack and arrays have."""
    return {
        "id": i,
        "image": np.full((2, 3), i, np.float32),
        "tokens": np.arange(i % 5, dtype=np.uint16),
        "scalar": np.int8(i % 7),
        "flag": np.array(True),
        "nested": {"tuple": (i, [1.5, None, "é"]), 7: b"\0\xff"},
        "complex": complex(i, 1),
    }


def is_kept(element):
    return element["id"] % 3 != 0


def sparse(num=100):
    return grain.MapDataset.range(num).seed(3).shuffle().map(element).filter(is_kept)


def stream(num=100):
    return grain.MapDataset.range(num).map(element).to_iter_dataset().filter(is_kept)


def packed(num=100):
    ds = (
        grain.MapDataset.range(num)
        .map(lambda i: {"tokens": np.full(1 + i % 7, i)})
        .to_iter_dataset()
    )
    return grain.experimental.FirstFitPackIterDataset(
        ds, length_struct={"tokens": 16}, num_packing_bins=4, seed=1
    )


def contents(folder):
    """The bytes of all files in a folder, by name; of a complete one nothing else is there."""
    return {
        path.name: path.read_bytes() if path.is_file() else "a folder"
        for path in Path(folder).iterdir()
    }
