import json
import sys

import pytest
from vector_data import build, load

from gristmill import IterDataset, MapDataset
from gristmill.dataset.selection import integer_weights

DATA = load("ds_mix")


def components(lengths):
    """Data sets whose elements say where they come from."""
    return [MapDataset.range(n).map_with_index(lambda i, _, j=j: (j, i)) for j, n in enumerate(lengths)]


@pytest.mark.parametrize("row", DATA["map_mix"], ids=lambda row: f"{row['lengths']}-{row['weights']}")
def test_map_mix(row):
    ds = MapDataset.mix(components(row["lengths"]), row["weights"])
    expected = [tuple(entry) for entry in row["selection"]]
    assert list(integer_weights(row["weights"], len(row["lengths"]))) == row["int_weights"]
    assert len(ds) == row["len"]
    assert [ds[i] for i in range(60)] == expected
    for size in (60, 7):
        assert [x for start in range(0, 60, size) for x in ds._block(range(start, min(60, start + size)))] == expected
    assert ds._block(list(range(59, -1, -1))) == expected[::-1]


@pytest.mark.parametrize("row", DATA["map_mix_infinite"], ids=lambda row: str(row["weights"]))
def test_endless_map_mix(row):
    ds = MapDataset.mix([MapDataset.range(n).repeat() for n in row["repeated"]], row["weights"])
    assert len(ds) == row["len"] == sys.maxsize
    assert [ds[i] for i in range(20)] == row["first20"]


@pytest.mark.parametrize("row", DATA["iter_mix"], ids=lambda row: f"{row['components']}-{row['weights']}")
def test_iter_mix(row):
    ds = IterDataset.mix([build(component) for component in row["components"]], row["weights"])
    it = iter(ds)
    assert it.get_state() == row["state_before"]
    assert [next(it) for _ in row["elements"][:2]] == row["elements"][:2]
    assert it.get_state() == row["state_after_2"]
    assert list(it) == row["elements"][2:]
    assert it.get_state() == row["state_after_stop"]
    it.set_state(json.loads(json.dumps(row["state_after_2"])))
    assert list(it) == row["elements"][2:]
    it.set_state(row["state_after_stop"])
    assert list(it) == []


def test_iter_mix_of_mappings():
    row = DATA["iter_mix_mapping"]
    ranges = {"b": MapDataset.range(5).to_iter_dataset(), "a": MapDataset.range(100, 105).to_iter_dataset()}
    it = iter(IterDataset.mix(ranges, {"b": 1, "a": 2}))
    assert [next(it) for _ in range(4)] == row["elements"]
    assert it.get_state() == row["state"]
    assert list(it) == row["rest"]
    it.set_state(row["state"])
    assert list(it) == row["rest"]


class Alternating:
    def __len__(self):
        return 10

    def __getitem__(self, i):
        return (i + 1) % 2, i // 2


def test_others():
    concatenation, selection, mixture = DATA["others"]
    ds = build(concatenation["pipeline"])
    assert len(ds) == concatenation["len"]
    assert [ds[i] for i in range(-8, 16)] == ds._block(range(-8, 16)) == concatenation["index_minus_8_to_15"]
    ds = MapDataset.select_from_datasets([MapDataset.range(15), MapDataset.range(100, 115)], Alternating())
    assert len(ds) == selection["len"]
    assert [ds[i] for i in range(15)] == ds._block(range(15)) == selection["index_0_to_14"]
    ds = build(mixture["pipeline"])
    assert len(ds) == mixture["len"]
    assert [ds[i] for i in range(-6, 14)] == ds._block(range(-6, 14)) == mixture["index_minus_6_to_13"]
