import functools
from pathlib import Path

import numpy as np

from gristmill.core.naming import transform_name
from gristmill.transforms import Batch, Filter, Map, MapWithIndex, RandomMap, TfRandomMap

PLACE = ".../" + "/".join(Path(__file__).parts[-3:])


def a_function(x):
    return x


class AMap(Map):
    def map(self, element):
        return element


AMapWithStr = type("AMapWithStr", (AMap,), {"__str__": lambda self: "a map that shows itself"})
AMapWithRepr = type("AMapWithRepr", (AMap,), {"__repr__": lambda self: "AMapWithRepr(1)"})
ACallable = type("ACallable", (), {"__call__": lambda self, x: x})


def test_instances_and_callables():
    others = [(RandomMap, "random_map"), (TfRandomMap, "np_random_map"), (MapWithIndex, "map_with_index"), (Filter, "filter")]
    for base, method in others:
        assert transform_name(type("AnInstance", (base,), {method: a_function})()) == "AnInstance"
    assert transform_name(AMap()) == "AMap"
    assert transform_name(AMapWithStr()) == "a map that shows itself"
    assert transform_name(AMapWithRepr()) == "AMapWithRepr(1)"
    assert transform_name(Batch(2)) == "Batch(batch_size=2, drop_remainder=False, batch_fn=None)"
    for function, name in [(a_function, "a_function"), (lambda x: x, "<lambda>"), (AMap().map, "map")]:
        assert transform_name(function) == f"{name} @ {PLACE}:{function.__code__.co_firstlineno}"
    assert transform_name(len) == "len"
    assert transform_name(str.upper) == "upper"
    assert transform_name(functools.partial(len)) == "functools.partial(<built-in function len>)"
    assert transform_name(np.add) in ("add", "<ufunc 'add'>")
    assert transform_name(eval("lambda x: x")) == "<lambda>"
    assert transform_name(ACallable()).startswith("ACallable")
    assert transform_name(int) == "int"
