import functools
from pathlib import Path

import numpy as np
import pytest

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


class ARandomMap(RandomMap):
    def random_map(self, element, rng):
        return element


class ATfRandomMap(TfRandomMap):
    def np_random_map(self, element, rng):
        return element


class AMapWithIndex(MapWithIndex):
    def map_with_index(self, index, element):
        return element


class AFilter(Filter):
    def filter(self, element):
        return True


class ACallable:
    def __call__(self, x):
        return x


@pytest.mark.parametrize("kind", [AMap, ARandomMap, ATfRandomMap, AMapWithIndex, AFilter])
def test_an_instance_is_named_by_its_class(kind):
    assert transform_name(kind()) == kind.__name__


def test_an_instance_that_shows_itself_is_named_by_that():
    assert transform_name(AMapWithStr()) == "a map that shows itself"
    assert transform_name(AMapWithRepr()) == "AMapWithRepr(1)"
    assert transform_name(Batch(2)) == "Batch(batch_size=2, drop_remainder=False, batch_fn=None)"


def test_functions_are_named_with_their_place():
    line = a_function.__code__.co_firstlineno
    assert transform_name(a_function) == f"a_function @ {PLACE}:{line}"
    fn = lambda x: x  # noqa: E731
    assert transform_name(fn) == f"<lambda> @ {PLACE}:{fn.__code__.co_firstlineno}"
    method = AMap().map
    assert transform_name(method) == f"map @ {PLACE}:{method.__code__.co_firstlineno}"


def test_what_has_no_source_is_named_alone():
    assert transform_name(len) == "len"
    assert transform_name(str.upper) == "upper"
    assert transform_name(functools.partial(len)) == "functools.partial(<built-in function len>)"
    assert transform_name(np.add) in ("add", "<ufunc 'add'>")
    assert transform_name(eval("lambda x: x")) == "<lambda>"


def test_other_callables_have_a_name():
    assert transform_name(ACallable()).startswith("ACallable")
    assert transform_name(int) == "int"
