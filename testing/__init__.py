"""Assertions for tests of pipelines, and of what users add to them: sources, samplers, datasets,
iterators, transformations.
"""

from gristmill.testing.checkpoints import assert_equal_output_after_checkpoint
from gristmill.testing.determinism import assert_deterministic
from gristmill.testing.iter_datasets import assert_iter_dataset_conforms, assert_iterator_conforms
from gristmill.testing.map_datasets import assert_map_dataset_conforms
from gristmill.testing.samplers import assert_sampler_conforms
from gristmill.testing.sources import assert_source_conforms
from gristmill.testing.transforms import assert_transform_conforms

__all__ = [
    "assert_deterministic",
    "assert_equal_output_after_checkpoint",
    "assert_iter_dataset_conforms",
    "assert_iterator_conforms",
    "assert_map_dataset_conforms",
    "assert_sampler_conforms",
    "assert_source_conforms",
    "assert_transform_conforms",
]
