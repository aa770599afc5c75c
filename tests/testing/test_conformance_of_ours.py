"""All our own stages pass the checks that users can run on theirs; map datasets as such do among the laws."""

import sys
from pathlib import Path

import pytest

from gristmill.testing import assert_iter_dataset_conforms, assert_iterator_conforms

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from stage_table import ITER_ENTRIES, MAP_ENTRIES

STREAMS = {entry.name: entry for entry in ITER_ENTRIES if len(entry.expected)}  # of those without elements there is little to say
WITH_PROCESSES = ("mp_prefetch", "parquet_workers")  # each of their many iterators starts processes


@pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in MAP_ENTRIES])
def test_map_datasets_as_streams(entry):
    assert_iter_dataset_conforms(entry.make().to_iter_dataset(), max_elements=5)


@pytest.mark.parametrize("name", [name for name in STREAMS if name not in WITH_PROCESSES])
def test_iter_datasets(name):
    assert_iter_dataset_conforms(STREAMS[name].make(), max_elements=7, states_vary=STREAMS[name].states_vary)


@pytest.mark.slow
def test_iter_datasets_with_processes():
    ds = STREAMS["mp_prefetch"].make()  # the other one is made of the same
    assert_iterator_conforms(lambda: iter(ds), max_elements=1)
