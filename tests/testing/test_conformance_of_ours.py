"""All our own stages pass the checks that users can run on theirs."""

import sys
from pathlib import Path

import pytest

from gristmill.testing import assert_iter_dataset_conforms, assert_map_dataset_conforms

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from stage_table import ITER_ENTRIES, MAP_ENTRIES


def each(entries):
    return pytest.mark.parametrize("entry", [pytest.param(entry, id=entry.name) for entry in entries])


STREAMS = [entry for entry in ITER_ENTRIES if len(entry.expected)]  # of those without elements there is little to say
WITH_PROCESSES = ("mp_prefetch", "parquet_workers")  # each of their many iterators starts processes


@each(MAP_ENTRIES)
def test_map_datasets(entry):
    assert_map_dataset_conforms(entry.make(), max_elements=10, endless=entry.endless)
    assert_iter_dataset_conforms(entry.make().to_iter_dataset(), max_elements=5)


@each(entry for entry in STREAMS if entry.name not in WITH_PROCESSES)
def test_iter_datasets(entry):
    assert_iter_dataset_conforms(entry.make(), max_elements=7, states_vary=entry.states_vary)


@pytest.mark.slow
def test_iter_datasets_with_processes():
    (entry,) = [entry for entry in STREAMS if entry.name == "mp_prefetch"]  # the other one is made of the same
    assert_iter_dataset_conforms(entry.make(), max_elements=1)
