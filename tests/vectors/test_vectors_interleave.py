import json

import pytest
from vector_data import load

from gristmill import MapDataset
from gristmill.experimental import InterleaveIterDataset

CASES = load("exp_interleave")["cases"]


def make(case, kind, **options):
    datasets = [MapDataset.range(100 * i, 100 * i + n) for i, n in enumerate(case["lengths"])]
    if "iter" in kind:
        datasets = [ds.to_iter_dataset() for ds in datasets]
    if "lazy" in kind:
        datasets = MapDataset.source(datasets)
    return InterleaveIterDataset(datasets, cycle_length=case["cycle_length"], **options)


@pytest.mark.parametrize("kind", ["map", "iter", "lazy_map", "lazy_iter"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['lengths']}-{case['cycle_length']}")
def test_interleave(case, kind):
    assert list(make(case, kind, num_make_iter_threads=0, iter_buffer_size=0)) == case["output"]
    it = iter(make(case, kind, iter_buffer_size=3, make_iter_buffer_size=2, num_make_iter_threads=2))
    states = [it.get_state()]
    for x in case["output"]:
        assert next(it) == x
        states.append(it.get_state())
    expected = case.get("states")
    assert expected is None or states == expected
    for i, state in enumerate(states):
        it.set_state(json.loads(json.dumps(state)))
        assert list(it) == case["output"][i:]


def test_some_cases_have_states():
    assert len(CASES) == 23 and sum("states" in case for case in CASES) == 6
