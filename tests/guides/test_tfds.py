"""A data set of TFDS as a source of loaders, with workers too, and datasets; the guide to sources
and an example show more.
"""

import numpy as np
import pytest
import tensorflow_datasets as tfds

import gristmill.python as grain

# The order that Grain's sampler gives to 15 records with seed 0, in two epochs.
ORDER = [
    0,
    4,
    10,
    11,
    8,
    3,
    14,
    9,
    5,
    12,
    6,
    7,
    2,
    13,
    1,
    13,
    7,
    6,
    12,
    4,
    8,
    9,
    2,
    10,
    3,
    1,
    5,
    14,
    11,
    0,
]


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    tfds.disable_progress_bar()
    with tfds.core.registered.skip_registration():

        class Numbered(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.0.0")

            def _info(self):
                features = tfds.features.FeaturesDict(
                    {"number": np.uint8, "name": tfds.features.Text()}
                )
                return tfds.core.DatasetInfo(
                    builder=self, features=features, disable_shuffling=True
                )

            def _split_generators(self, dl_manager):
                return {
                    "test": [
                        (number, {"number": number, "name": f"no. {number}"})
                        for number in range(15)
                    ]
                }

            _generate_examples = None  # an abstract method

    builder = Numbered(data_dir=tmp_path_factory.mktemp("tfds"), file_format="array_record")
    builder.download_and_prepare()
    return builder.as_data_source("test")


def numbers(batches):
    return [number for batch in batches for number in batch["number"].tolist()]


def test_loaders_and_datasets_read_tfds_and_continue(numbered, tmp_path):
    assert isinstance(numbered, grain.RandomAccessDataSource)
    loader = grain.load(numbered, num_epochs=2, shuffle=True, seed=0, batch_size=4)
    batches = list(loader)
    assert [len(batch["number"]) for batch in batches] == [4] * 7 + [2] and numbers(
        batches
    ) == ORDER
    assert [name for batch in batches for name in batch["name"]] == [
        f"no. {number}".encode() for number in ORDER
    ]
    assert (
        numbers(
            grain.load(numbered, num_epochs=2, shuffle=True, seed=0, worker_count=2, batch_size=1)
        )
        == ORDER
    )
    it, handler = iter(loader), grain.PyGrainCheckpointHandler()
    assert numbers([next(it), next(it)]) == ORDER[:8] and b"name=numbered" in it.get_state()
    handler.save(tmp_path, it)
    for restored in (it, iter(loader)):
        assert numbers(handler.restore(tmp_path, restored)) == ORDER[8:]
    ds = grain.MapDataset.source(numbered).shuffle(seed=3).to_iter_dataset(grain.ReadOptions(8, 20))
    assert numbers(ds.batch(4)) == list(grain.MapDataset.range(15).shuffle(seed=3))
