import abc
import dataclasses
import inspect
import pickle
import typing
from collections.abc import Sequence

from refusing import assert_raises

from gristmill import MapDataset, transforms
from gristmill.transforms.base import transform_function

METHODS = {transforms.Map: "map(self, element)", transforms.RandomMap: "random_map(self, element, rng)"}
METHODS |= {transforms.TfRandomMap: "np_random_map(self, element, rng)", transforms.Filter: "filter(self, element)"}
METHODS |= {transforms.MapWithIndex: "map_with_index(self, index, element)", transforms.FlatMap: "flat_map(self, element)"}


def test_abstract_classes():
    for kind, signature in METHODS.items():
        name = signature.partition("(")[0]
        assert isinstance(kind, abc.ABCMeta) and kind.__abstractmethods__ == {name}
        assert f"{name}({', '.join(inspect.signature(getattr(kind, name)).parameters)})" == signature
        assert kind.__init__ is object.__init__ and kind.__str__ is object.__str__ and kind.__repr__ is object.__repr__
        assert_raises(TypeError, name, kind)
        complete = type("Complete", (kind,), {name: lambda self, *args: args})
        assert getattr(complete(), name)(1, 2) == (1, 2)
    assert set(typing.get_args(transforms.Transformation)) == {transforms.Batch, *METHODS}
    assert transforms.Transformations == Sequence[transforms.Transformation]
    assert transforms.DatasetSelectionMap.__abstractmethods__ == {"__len__", "__getitem__"}


@dataclasses.dataclass(frozen=True)
class Scale(transforms.Map):
    factor: int

    def map(self, element):
        return element * self.factor


def test_transformations_are_values_whose_function_is_checked_where_it_is_applied():
    assert list(MapDataset.range(3).map(Scale(3))) == [0, 3, 6]
    batch = transforms.Batch(2)
    assert repr(batch) == "Batch(batch_size=2, drop_remainder=False, batch_fn=None)"
    assert hash(batch) == hash(transforms.Batch(2)) and batch != transforms.Batch(2, True)
    assert_raises(dataclasses.FrozenInstanceError, None, setattr, batch, "batch_size", 3)
    for value in (Scale(3), batch, transforms.Batch(2, True, len)):
        assert pickle.loads(pickle.dumps(value)) == value
    methods = {"map": lambda self, element: "the method", "__call__": lambda self, element: "the call"}
    both = type("Both", (transforms.Map,), methods)()
    assert transform_function(both, transforms.Map, "map")(1) == "the method"
    assert transform_function(both, transforms.Filter, "filter")(1) == "the call"
    assert transform_function(len, transforms.Map, "map") is len
    match = "transform must be callable or an instance of Filter, got"
    for wrong in (5, None, "map", Scale(2)):
        assert_raises(TypeError, match, transform_function, wrong, transforms.Filter, "filter")
    for method in ("map", "filter", "map_with_index", "random_map"):
        ds = MapDataset.range(3).seed(0).to_iter_dataset()
        assert_raises(TypeError, "transform must be callable", getattr(ds, method), 5)
