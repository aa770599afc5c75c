"""``apply``: transformation objects to steps."""

import pytest

from gristmill.dataset import MapDataset
from gristmill.dataset.apply import apply_transformations
from gristmill.transforms import Batch, Filter, Map, MapWithIndex, RandomMap, TfRandomMap


class AddOne(Map):
    def map(self, x):
        return x + 1


class Odd(Filter):
    def filter(self, x):
        return x % 2 == 1


class Numbered(MapWithIndex):
    def map_with_index(self, i, x):
        return (i, x)


class Draw(RandomMap):
    def random_map(self, x, rng):
        return (x, int(rng.integers(100)))


class Tf(TfRandomMap):
    def np_random_map(self, x, rng):
        return x


class MapAndFilter(Odd, AddOne):
    """Of two classes: the one that comes first in the order of dispatch counts, not in the list of bases."""


class IndexAndRandom(Numbered, Draw):
    pass


class BatchAndMap(Batch, AddOne):
    pass


DRAWN = list(MapDataset.range(6).seed(7).random_map(Draw()))


@pytest.mark.parametrize(
    ("transforms", "expected"),
    [
        (AddOne(), [1, 2, 3, 4, 5, 6]),
        ([AddOne(), Numbered()], [(i, i + 1) for i in range(6)]),
        ((AddOne(), Numbered()), [(i, i + 1) for i in range(6)]),
        ([Odd()], [1, 3, 5]),
        (Batch(4, batch_fn=list), [[0, 1, 2, 3], [4, 5]]),
        (Batch(4, True, list), [[0, 1, 2, 3]]),
        (MapAndFilter(), [1, 2, 3, 4, 5, 6]),
        (BatchAndMap(4, batch_fn=list), [[0, 1, 2, 3], [4, 5]]),
        (Draw(), DRAWN),
        (IndexAndRandom(), DRAWN),
    ],
)
def test_what_becomes_of_them(transforms, expected):
    ds = MapDataset.range(6).seed(7)
    assert list(ds.apply(transforms)) == list(apply_transformations(ds, transforms)) == expected
    stream = MapDataset.range(6).to_iter_dataset()
    found = list(stream.seed(7).apply(transforms))
    assert found == (expected if expected is not DRAWN else list(stream.seed(7).random_map(Draw())))
    assert ds.apply([]) is ds and stream.apply([]) is stream


def test_errors():
    for wrong, match in ((Draw(), "seed"), (Batch(0), "batch_size")):
        with pytest.raises(ValueError, match=match):
            MapDataset.range(3).apply(wrong)
    for wrong in (lambda x: x, 3, None, "map", Tf(), AddOne, (x for x in [AddOne()]), {AddOne()}):
        for ds in (MapDataset.range(3), MapDataset.range(3).to_iter_dataset()):
            for argument in (wrong, [AddOne(), wrong]):
                with pytest.raises(NotImplementedError, match=type(wrong).__name__):
                    ds.apply(argument)
