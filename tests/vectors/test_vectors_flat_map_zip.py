import pytest
from vector_data import load, plain

from gristmill import MapDataset
from gristmill.experimental import FlatMapIterDataset, FlatMapMapDataset, FlatMapTransform, ZipIterDataset

VECTORS = load("exp_misc")


class Fan(FlatMapTransform):
    max_fan_out = 3

    def flat_map(self, element):
        return [[element, j] for j in range(element % 3)]


def numbers(*args):
    return MapDataset.range(*args).to_iter_dataset()


def test_flat_map_of_a_map_dataset():
    ds = FlatMapMapDataset(MapDataset.range(5), Fan())
    recorded = VECTORS["flat_map_map"]["value"]
    assert len(recorded) == 18
    assert [ds[i] for i in range(18)] == ds._block(range(18)) == recorded
    assert list(ds) == [x for x in recorded[:15] if x is not None]


@pytest.mark.parametrize(
    ("name", "ds"),
    [
        ("flat_map_iter", FlatMapIterDataset(numbers(5), Fan())),
        ("zip", ZipIterDataset([numbers(3), numbers(10, 13)])),
    ],
)
def test_outputs_and_states(name, ds):
    recorded = VECTORS[name]
    it = iter(ds)
    states = [it.get_state()]
    for output in recorded["output"]:
        assert plain(next(it)) == output
        states.append(it.get_state())
    assert states == recorded["states"]
    with pytest.raises(StopIteration):
        next(it)
    assert it.get_state() == recorded["state_after_end"]
    for position, state in enumerate([*recorded["states"], recorded["state_after_end"]]):
        for used in (iter(ds), it):
            used.set_state(state)
            assert plain(list(used)) == recorded["output"][position:]
