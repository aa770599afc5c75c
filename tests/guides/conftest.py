"""What the tests of the guides share: data sets in TFDS's format."""

import sys
from pathlib import Path

import pytest
import tensorflow_datasets as tfds
from standins import write_tfds

sys.path.append(str(Path(__file__).parents[2] / "docs"))  # its notebooks.py


@pytest.fixture(scope="session")
def data_sets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where TFDS finds ``mnist``, ``pneumonia_mnist`` and ``imagenet_a`` without a ``data_dir``."""
    folder = tmp_path_factory.mktemp("tensorflow_datasets")
    write_tfds(folder)
    assert "tensorflow" not in sys.modules
    tfds.core.add_data_dir(folder)
    return folder
