"""``assert_transform_conforms`` accepts whatever is a transformation, and names the law that a wrong one breaks."""

import itertools
import os

import numpy as np
import pytest
from mistakes import assert_found, variant
from refusing import assert_raises

from gristmill.testing import assert_transform_conforms
from gristmill.transforms import Batch, Filter, FlatMap, Map, MapWithIndex, RandomMap, TfRandomMap

NUMBERS = [np.arange(i, i + 3.0) for i in range(10)]
MAIN_PROCESS = os.getpid()


def transform(base, **overrides):
    return variant(base, **overrides)()


jitter = transform(RandomMap, random_map=lambda self, x, rng: x + rng.normal())
RIGHT = {
    "map": (transform(Map, map=lambda self, x: x * 2), None),
    "random_map": (jitter, None),
    "tf_random_map": (transform(TfRandomMap, np_random_map=lambda self, x, rng: x + rng.normal()), None),
    "map_with_index": (transform(MapWithIndex, map_with_index=lambda self, i, x: {"index": i, "element": x}), None),
    "filter": (transform(Filter, filter=lambda self, x: x.sum() > 10), None),
    "flat_map": (transform(FlatMap, max_fan_out=3, flat_map=lambda self, x: iter(x)), None),
    "function": (lambda x: x + 1, None),
    "same_object": (lambda x: x, None),
    "dropping": (lambda x: None if x[0] == 3 else x, Map),
    "random_function": (lambda x, rng: rng.permutation(x), RandomMap),
    "function_with_index": (lambda i, x: (i, x), MapWithIndex),
    "predicate": (lambda x: x[0] > 3, Filter),
    "flat_function": (lambda x: [*x, *x], FlatMap),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_accepted(name):
    right, kind = RIGHT[name]
    assert_transform_conforms(right, NUMBERS, kind=kind)


def test_a_worker_process_transforms_the_same():
    assert_transform_conforms(jitter, NUMBERS, in_worker=True)
    message = "in a worker process everything is the same...element 0 in a worker process must be"
    assert_found(message, assert_transform_conforms, lambda x: x + (os.getpid() == MAIN_PROCESS), NUMBERS, in_worker=True)


def test_inputs_that_are_changed():
    def scale(element):
        element *= 2
        return element

    def add_a_key(element):
        element["sum"] = element["x"].sum()
        return element

    law = "leaves its input as it is...element 0 was"
    assert_transform_conforms(scale, NUMBERS, may_change_input=True)
    assert_found(f"{law} array... before and ...may_change_input", assert_transform_conforms, scale, NUMBERS)
    assert NUMBERS[1].tolist() == [1, 2, 3]  # only copies were
    keyed = [{"x": x} for x in NUMBERS]
    assert_found(f"{law} {{'x': ...}} before and {{...'sum'...}} after", assert_transform_conforms, add_a_key, keyed)


def wrong(message, base=Map, **overrides):
    return message, transform(base, **overrides)


WRONG = [
    wrong(
        "depends on what is asked...for element 9 must be",
        map=lambda self, x: x + next(vars(self).setdefault("count", itertools.count())),
    ),
    wrong(
        "depends on what is asked...Draw no random numbers but from a generator that is handed in",
        RandomMap,
        random_map=lambda self, x, rng: x + np.random.default_rng().normal(),
    ),
    wrong(
        "depends on what is asked...for element 9 must be",
        RandomMap,
        random_map=lambda self, x, rng: x + vars(self).setdefault("rng", rng).normal(),
    ),
    wrong(
        "by cloudpickle...for element 0 of a copy made before the first read must be",
        map=lambda self, x: x + vars(self).get("number", 0),
        __getstate__=lambda self: {"number": 1},
    ),
    wrong("is there. Found: ... for element 0 raised ValueError: The truth value", Filter, filter=lambda self, x: x > 3),
    wrong(
        "is there. Found: ... raised ValueError: Variant made more items of one element than its max_fan_out = 2",
        FlatMap,
        max_fan_out=2,
        flat_map=lambda self, x: iter(x),
    ),
    wrong(
        "is there. Found: ... raised TypeError: Variant must have an attribute max_fan_out", FlatMap, flat_map=lambda self, x: x
    ),
    wrong("is there. Found: ... raised TypeError: Variant must return", FlatMap, max_fan_out=3, flat_map=lambda self, x: 3),
]


@pytest.mark.parametrize(("message", "wrong_transform"), WRONG)
def test_mistakes_are_found_and_named(message, wrong_transform):
    assert_found(message, assert_transform_conforms, wrong_transform, NUMBERS)


def test_wrong_arguments():
    check = assert_transform_conforms
    assert_raises(TypeError, "transform must be callable or an instance of Map, got 5", check, 5, [1])
    message = "kind must be one of Map, RandomMap, .*, got <class 'gristmill.transforms.base.Batch'>"
    assert_raises(TypeError, message, check, len, [1], kind=Batch)
    assert_raises(ValueError, "elements must be some elements to transform, got none", check, len, [])
