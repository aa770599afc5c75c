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


class AMapWithStr(AMap):
    def __str__(self):
        return "a map that shows itself"


class AMapWithRepr(AMap):
    def __repr__(self):
        return "AMapWithRepr(1)"


class ACallable:
    def __call__(self, x):
        return x


def test_an_instance_is_named_by_its_class_or_as_it_shows_itself():
    others = [(RandomMap, "random_map"), (TfRandomMap, "np_random_map"), (MapWithIndex, "map_with_index"), (Filter, "filter")]
    for base, method in others:
        assert transform_name(type("AnInstance", (base,), {method: a_function})()) == "AnInstance"
    assert transform_name(AMap()) == "AMap"
    assert transform_name(AMapWithStr()) == "a map that shows itself"
    assert transform_name(AMapWithRepr()) == "AMapWithRepr(1)"
    assert transform_name(Batch(2)) == "Batch(batch_size=2, drop_remainder=False, batch_fn=None)"


def test_callables_are_named_with_their_place_if_they_have_one():
    for function, name in [(a_function, "a_function"), (lambda x: x, "<lambda>"), (AMap().map, "map")]:
        assert transform_name(function) == f"{name} @ {PLACE}:{function.__code__.co_firstlineno}"
    assert transform_name(len) == "len"
    assert transform_name(str.upper) == "upper"
    assert transform_name(functools.partial(len)) == "functools.partial(<built-in function len>)"
    assert transform_name(np.add) in ("add", "<ufunc 'add'>")
    assert transform_name(eval("lambda x: x")) == "<lambda>"
    assert transform_name(ACallable()).startswith("ACallable")
    assert transform_name(int) == "int"
