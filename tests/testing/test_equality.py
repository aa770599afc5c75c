"""What the assertions take for equal."""

import copy
import dataclasses
import itertools
from collections import namedtuple

import numpy as np

from gristmill.testing.equality import are_equal, shape_of

Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Example:
    image: np.ndarray
    label: int


class Opaque:
    def __init__(self, value):
        self.value = value


class Blank:
    __slots__ = ()


VALUES = [
    *(None, True, 1, 1.0, float("nan"), np.int64(7), np.float32(1), "text", b"text"),
    *({1, 2}, [1], (1,), Pair(1, 2), Pair(1, 3), {"a": 1}, {"a": 1, 2: None}),
    *(np.arange(3), np.arange(3.0), np.array([1, np.nan]), np.array(["2020-01-01", "NaT"], "datetime64[D]")),
    np.array([(1, np.nan)], [("a", int), ("b", float)]),
    *[np.array([*map(np.arange, lengths), None, "x"], object) for lengths in ((2,), (3,), (2, 3), (2, 2))],
    *(Example(np.arange(3), 1), Example(np.arange(3), 2), Opaque([np.arange(3)]), Opaque([np.arange(4)])),
    *(np.random.default_rng(1), np.random.default_rng(2)),
]


def test_a_value_equals_its_copy_and_no_other_and_shapes_of_states():
    for (i, value), (j, other) in itertools.product(enumerate(VALUES), repeat=2):
        assert are_equal(value, copy.deepcopy(other)) == (i == j)
        assert are_equal({"x": [value]}, {"x": [copy.deepcopy(other)]}) == (i == j)
    assert are_equal(Blank(), Blank())  # there is nothing to compare
    assert not are_equal(Blank(), object())
    circles = [Opaque(0), Opaque(0)]
    for circle in circles:
        circle.value = [circle]
    assert are_equal(*circles) and are_equal({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert shape_of({"a": 1, "b": [2, None]}) == shape_of({"a": 5, "b": [0, None]})
    for other in ({"a": 1.0, "b": [2, None]}, {"a": 1, "b": [2]}, {"a": 1, "b": (2, None)}, {"a": None, "b": [2, None]}, {}):
        assert shape_of({"a": 1, "b": [2, None]}) != shape_of(other)
