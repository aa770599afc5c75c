"""``apply``: transformation objects to steps."""

from refusing import assert_raises

from gristmill.dataset import MapDataset
from gristmill.dataset.apply import apply_transformations
from gristmill.transforms import Batch, Filter, Map, MapWithIndex, RandomMap, TfRandomMap

AddOne = type("AddOne", (Map,), {"map": lambda self, x: x + 1})
Odd = type("Odd", (Filter,), {"filter": lambda self, x: x % 2 == 1})
Numbered = type("Numbered", (MapWithIndex,), {"map_with_index": lambda self, i, x: (i, x)})
Draw = type("Draw", (RandomMap,), {"random_map": lambda self, x, rng: (x, int(rng.integers(100)))})
Tf = type("Tf", (TfRandomMap,), {"np_random_map": lambda self, x, rng: x})
# Of two classes, the one that comes first in the order of dispatch counts, not in the list of bases.
MapAndFilter = type("MapAndFilter", (Odd, AddOne), {})
IndexAndRandom = type("IndexAndRandom", (Numbered, Draw), {})
BatchAndMap = type("BatchAndMap", (Batch, AddOne), {})


def test_what_becomes_of_them():
    ds, stream = MapDataset.range(6).seed(7), MapDataset.range(6).to_iter_dataset().seed(7)
    drawn = list(ds.random_map(Draw()))
    for transforms, expected in [
        (AddOne(), [1, 2, 3, 4, 5, 6]),
        ([AddOne(), Numbered()], [(i, i + 1) for i in range(6)]),
        ((AddOne(), Numbered()), [(i, i + 1) for i in range(6)]),
        ([Odd()], [1, 3, 5]),
        (Batch(4, batch_fn=list), [[0, 1, 2, 3], [4, 5]]),
        (Batch(4, True, list), [[0, 1, 2, 3]]),
        (MapAndFilter(), [1, 2, 3, 4, 5, 6]),
        (BatchAndMap(4, batch_fn=list), [[0, 1, 2, 3], [4, 5]]),
        (Draw(), drawn),
        (IndexAndRandom(), drawn),
    ]:
        assert list(ds.apply(transforms)) == list(apply_transformations(ds, transforms)) == expected
        assert list(stream.apply(transforms)) == (expected if expected is not drawn else list(stream.random_map(Draw())))
    assert ds.apply([]) is ds and stream.apply([]) is stream
    for wrong, match in ((Draw(), "seed"), (Batch(0), "batch_size")):
        assert_raises(ValueError, match, MapDataset.range(3).apply, wrong)
    for wrong in (lambda x: x, 3, None, "map", Tf(), AddOne, (x for x in [AddOne()]), {AddOne()}):
        for ds in (MapDataset.range(3), MapDataset.range(3).to_iter_dataset()):
            for argument in (wrong, [AddOne(), wrong]):
                assert_raises(NotImplementedError, type(wrong).__name__, ds.apply, argument)
