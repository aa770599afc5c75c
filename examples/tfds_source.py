"""Read a TensorFlow Datasets data set without TensorFlow.

    python examples/tfds_source.py

TFDS stores a data set as ArrayRecord files beside a description of its features, and
`tfds.data_source` reads them at random without TensorFlow. Such an object is a source like any
other: here it feeds a `MapDataset` chain and a `DataLoader`. The data set is made on the spot, in
TFDS's own format, from the digit scans that ship with scikit-learn; one that TFDS has downloaded
and prepared with `file_format="array_record"` is read in the same way.
"""

import argparse
import io
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow_datasets as tfds
from absl import logging
from PIL import Image
from sklearn.datasets import load_digits

import gristmill


class DigitScans(tfds.core.GeneratorBasedBuilder):
    """Digit scans as PNG images with their labels: an ordinary TFDS builder."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self) -> tfds.core.DatasetInfo:
        features = {
            "image": tfds.features.Image(shape=(8, 8, 1), encoding_format="png"),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
        return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features))

    def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
        return {
            "train": self._generate_examples(0, 1437),
            "test": self._generate_examples(1437, 1797),
        }

    def _generate_examples(self, start: int, stop: int) -> Iterator[tuple[int, dict[str, Any]]]:
        digits = load_digits()
        for key in range(start, stop):
            png = io.BytesIO()  # as a file: TFDS would call TensorFlow to encode an array
            Image.fromarray((digits.images[key] * 15).astype(np.uint8)).save(png, "png")
            png.seek(0)
            yield key, {"image": png, "label": digits.target[key]}


class ToVector(gristmill.transforms.Map):
    """Flattens the image to 64 floats in 0..1."""

    def map(self, element: dict[str, Any]) -> dict[str, Any]:
        return {
            "label": element["label"],
            "vector": element["image"].reshape(64).astype(np.float32) / 255,
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--out", type=Path, default=Path("out/tfds"), help="TFDS data directory to create and read"
    )
    args = parser.parse_args()
    logging.set_verbosity(logging.ERROR)
    tfds.disable_progress_bar()

    data_dir = args.out.resolve()
    DigitScans(data_dir=data_dir, file_format="array_record").download_and_prepare()
    train = tfds.data_source("digit_scans", split="train", data_dir=data_dir)
    test = tfds.data_source("digit_scans", split="test", data_dir=data_dir)

    # A MapDataset chain: the mean image of each digit, from one shuffled epoch.
    sums, counts = np.zeros((10, 64)), np.zeros(10, int)
    for batch in (
        gristmill.MapDataset.source(train).shuffle(seed=42).map(ToVector()).batch(batch_size=100)
    ):
        np.add.at(sums, batch["label"], batch["vector"])
        np.add.at(counts, batch["label"], 1)
    means = sums / counts[:, None]

    # A DataLoader: each test image is taken for the digit whose mean image is nearest.
    sampler = gristmill.samplers.SequentialSampler(
        len(test), shard_options=gristmill.sharding.NoSharding()
    )
    operations = [ToVector(), gristmill.transforms.Batch(batch_size=100)]
    loader = gristmill.DataLoader(data_source=test, sampler=sampler, operations=operations)
    num_read = num_right = 0
    for batch in loader:
        distances = np.linalg.norm(batch["vector"][:, None] - means, axis=-1)  # (batch, 10)
        num_right += np.sum(distances.argmin(axis=1) == batch["label"])
        num_read += len(batch["label"])

    accuracy = num_right / num_read
    print(f"source:              {train}")
    print(
        f"MapDataset chain:    {counts.sum()} of {len(train)} training images, of each digit"
        f" {counts.tolist()}"
    )
    print(
        f"DataLoader:          {num_read} of {len(test)} test images, the nearest mean is right for"
        f" {accuracy:.1%}"
    )
    print(f"TensorFlow imported: {'tensorflow' in sys.modules}")


if __name__ == "__main__":
    main()
