"""Data sets of TFDS as sources of loaders and datasets; the guide to sources and an example show more."""

import io
import json

import numpy as np
import orbax.checkpoint as ocp
import pytest
import tensorflow_datasets as tfds
from PIL import Image

import gristmill.python as grain

# The order that Grain's sampler gives to 15 records with seed 0, in two epochs.
ORDER = [0, 4, 10, 11, 8, 3, 14, 9, 5, 12, 6, 7, 2, 13, 1, 13, 7, 6, 12, 4, 8, 9, 2, 10, 3, 1, 5, 14, 11, 0]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Fifteen images, whose first pixels are their number."""
    tfds.disable_progress_bar()
    with tfds.core.registered.skip_registration():

        class Numbered(tfds.core.GeneratorBasedBuilder):
            VERSION = tfds.core.Version("1.0.0")

            def _info(self):
                image = tfds.features.Image(shape=(40, 50, 3), encoding_format="png")
                features = tfds.features.FeaturesDict({"image": image, "name": tfds.features.Text()})
                return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

            def _split_generators(self, dl_manager):
                return {"test": self._generate_examples()}

            def _generate_examples(self):
                for number in range(15):
                    png = io.BytesIO()  # as a file: TFDS would call TensorFlow to encode an array
                    Image.fromarray(np.full((40, 50, 3), number, np.uint8)).save(png, "png")
                    png.seek(0)
                    yield number, {"image": png, "name": f"{number}.png"}

    builder = Numbered(data_dir=tmp_path_factory.mktemp("tfds"), file_format="array_record")
    builder.download_and_prepare()
    return builder.as_data_source("test")


def numbers(batches):
    return [int(image[0, 0, 0]) for batch in batches for image in batch["image"]]


def test_loaders_and_datasets_read_tfds_and_go_on_from_a_checkpoint_of_orbax(images, tmp_path):
    assert isinstance(images, grain.RandomAccessDataSource)
    sampler = grain.IndexSampler(15, num_epochs=2, shard_options=grain.NoSharding(), shuffle=True, seed=0)
    loader = grain.DataLoader(data_source=images, sampler=sampler, operations=[grain.Batch(4)])
    batches = list(loader)
    assert [batch["image"].shape for batch in batches] == [(4, 40, 50, 3)] * 7 + [(2, 40, 50, 3)]
    assert numbers(batches) == ORDER
    assert [name for batch in batches for name in batch["name"]] == [f"{number}.png".encode() for number in ORDER]
    in_workers = grain.load(images, num_epochs=2, shuffle=True, seed=0, worker_count=2, batch_size=1)
    assert numbers(in_workers) == ORDER
    it = iter(loader)
    assert numbers([next(it), next(it)]) == ORDER[:8]
    with ocp.CheckpointManager(tmp_path / "orbax") as manager:
        assert manager.save(step=2, args=grain.PyGrainCheckpointSave(it), force=True)
        manager.wait_until_finished()
        (state,) = [json.loads(path.read_text()) for path in (tmp_path / "orbax").glob("*/*/process_*.json")]
        assert "name=numbered" in state["data_source"]
        for restored in (it, iter(loader)):
            manager.restore(2, args=grain.PyGrainCheckpointRestore(restored))
            assert numbers(restored) == ORDER[8:]
    ds = grain.MapDataset.source(images).shuffle(seed=3)
    expected = [int(images[i]["image"][0, 0, 0]) for i in grain.MapDataset.range(15).shuffle(seed=3)]
    assert numbers(ds.to_iter_dataset(grain.ReadOptions(8, 20)).batch(4)) == expected
