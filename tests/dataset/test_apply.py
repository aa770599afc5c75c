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


class MapAndFilter(Filter, Map):
    """Of two classes: the one that comes first in the order of dispatch counts, not in the list of bases."""

    def map(self, x):
        return ("map", x)

    def filter(self, x):
        return False


class IndexAndRandom(MapWithIndex, RandomMap):
    def map_with_index(self, i, x):
        return "index"

    def random_map(self, x, rng):
        return "random"


class BatchAndMap(Batch, Map):
    def map(self, x):
        return "map"


def both(make):
    return [make(MapDataset.range(6)), make(MapDataset.range(6).to_iter_dataset())]


def test_one_or_several():
    for ds in both(lambda ds: ds.apply(AddOne())):
        assert list(ds) == [1, 2, 3, 4, 5, 6]
    for transforms in ([AddOne(), Numbered()], (AddOne(), Numbered())):
        for ds in both(lambda ds, t=transforms: ds.apply(t)):
            assert list(ds) == [(i, i + 1) for i in range(6)]
        for ds in both(lambda ds, t=transforms: apply_transformations(ds, t)):
            assert list(ds) == [(i, i + 1) for i in range(6)]
    for ds in (MapDataset.range(3), MapDataset.range(3).to_iter_dataset()):
        assert ds.apply([]) is ds


def test_each_class():
    assert list(MapDataset.range(6).apply([Odd()])) == [1, 3, 5]
    expected = list(MapDataset.range(3).seed(7).random_map(Draw()))
    assert list(MapDataset.range(3).seed(7).apply(Draw())) == expected
    for ds in both(lambda ds: ds.apply(Batch(4, batch_fn=list))):
        assert list(ds) == [[0, 1, 2, 3], [4, 5]]
    for ds in both(lambda ds: ds.apply(Batch(4, drop_remainder=True))):
        assert [b.tolist() for b in ds] == [[0, 1, 2, 3]]
    with pytest.raises(ValueError, match="seed"):
        MapDataset.range(3).apply(Draw())
    with pytest.raises(ValueError, match="batch_size"):
        MapDataset.range(3).apply(Batch(0))


def test_order_of_dispatch():
    for ds in both(lambda ds: ds.apply(MapAndFilter())):
        assert next(iter(ds)) == ("map", 0)
    for ds in both(lambda ds: ds.seed(1).apply(IndexAndRandom())):
        assert next(iter(ds)) == "random"
    for ds in both(lambda ds: ds.apply(BatchAndMap(2))):
        assert next(iter(ds)).tolist() == [0, 1]


@pytest.mark.parametrize("bad", [lambda x: x, 3, None, "map", Tf(), AddOne, (x for x in [AddOne()]), {AddOne()}])
def test_anything_else_is_refused_by_name(bad):
    for ds in (MapDataset.range(3), MapDataset.range(3).to_iter_dataset()):
        for argument in (bad, [AddOne(), bad]):
            with pytest.raises(NotImplementedError) as caught:
                ds.apply(argument)
            assert type(bad).__name__ in str(caught.value)
