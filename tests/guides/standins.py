"""Small data for the guides: data sets in TFDS's own format under well-known names, Parquet files and TFRecord files.

Records tell who they are, so that a test can say which ones arrived: the first two pixels of an image are the record's
number (high byte, low byte), its label is the number modulo the number of classes.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import tensorflow_datasets as tfds
from absl import logging
from PIL import Image

from gristmill.sources.crc32c import masked_crc32c

# name: (version, number of records of each split, shape of an image, number of classes, whether records have a file name)
DATA_SETS: dict[str, tuple[str, dict[str, int], tuple[int, int, int], int, bool]] = {
    "mnist": ("3.0.1", {"train": 60, "test": 12}, (28, 28, 1), 10, False),
    "pneumonia_mnist": ("1.0.0", {"train": 47, "val": 5, "test": 6}, (28, 28, 1), 2, False),
    "imagenet_a": ("0.1.0", {"test": 15}, (40, 50, 3), 1000, True),
}


def image_of(number: int, shape: tuple[int, int, int]) -> np.ndarray:
    image = np.full(shape, 100, np.uint8)
    image[0, :2] = np.reshape(divmod(number, 256), (2, 1))
    return image


def number_of(image: Any) -> int:
    """The number of the record that an image belongs to."""
    return int(image[0, 0, 0]) * 256 + int(image[0, 1, 0])


def write_tfds(folder: Path) -> None:
    """Writes ``DATA_SETS`` as TFDS would after downloading them; ``tfds.data_source("mnist:3.0.1", ...)`` reads them."""
    logging.set_verbosity(logging.ERROR)
    tfds.disable_progress_bar()
    for name in DATA_SETS:
        make_builder(name)(data_dir=folder, file_format="array_record").download_and_prepare()


def make_builder(name: str) -> type[tfds.core.GeneratorBasedBuilder]:
    version, splits, shape, num_classes, has_file_names = DATA_SETS[name]
    with tfds.core.registered.skip_registration():  # TFDS knows these names already

        class StandIn(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version(version)

            def _info(self) -> tfds.core.DatasetInfo:
                features = {
                    "image": tfds.features.Image(shape=shape, encoding_format="png"),
                    "label": tfds.features.ClassLabel(num_classes=num_classes),
                }
                if has_file_names:
                    features["file_name"] = tfds.features.Text()
                return tfds.core.DatasetInfo(builder=self, features=tfds.features.FeaturesDict(features), disable_shuffling=True)

            def _split_generators(self, dl_manager: Any) -> dict[str, Any]:
                return {split: self._generate_examples(size) for split, size in splits.items()}

            def _generate_examples(self, size: int) -> Iterator[tuple[int, dict[str, Any]]]:
                for number in range(size):
                    png = io.BytesIO()  # as a file: TFDS would call TensorFlow to encode an array
                    Image.fromarray(image_of(number, shape).squeeze()).save(png, "png")
                    png.seek(0)
                    example = {"image": png, "label": number % num_classes}
                    yield number, example | ({"file_name": f"{number}.png"} if has_file_names else {})

        StandIn.name = name
        return StandIn


def write_parquet(folder: Path, num_rows: Sequence[int]) -> list[str]:
    """Writes a file for every number of rows, with row groups of 4; row ``r`` of file ``f`` has the number 100 f + r."""
    paths = []
    for f, n in enumerate(num_rows):
        numbers = range(100 * f, 100 * f + n)
        table = pa.table({"number": pa.array(numbers, pa.int64()), "text": [f"row {number}" for number in numbers]})
        paths.append(str(folder / f"part-{f}.parquet"))
        pq.write_table(table, paths[-1], row_group_size=4)
    return paths


def write_tfrecords(folder: Path, num_records: Sequence[int]) -> list[str]:
    """Writes a file for every number of records; record ``r`` of file ``f`` is 100 f + r, as text."""
    paths = []
    for f, n in enumerate(num_records):
        path = folder / f"part-{f}.tfrecord"
        with path.open("wb") as file:
            for r in range(n):
                data = str(100 * f + r).encode()
                length = struct.pack("<Q", len(data))
                length_crc, data_crc = [struct.pack("<I", int(crc)) for crc in masked_crc32c([length, data])]
                file.write(length + length_crc + data + data_crc)
        paths.append(str(path))
    return paths
