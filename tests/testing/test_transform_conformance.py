"""``assert_transform_conforms`` accepts whatever is a transformation, and names the law that a wrong one breaks."""

import os
import random
import threading

import numpy as np
import pytest

from gristmill.testing import assert_transform_conforms
from gristmill.transforms import Batch, Filter, FlatMap, Map, MapWithIndex, RandomMap, TfRandomMap

NUMBERS = [np.arange(i, i + 3.0) for i in range(10)]


class Double(Map):
    def map(self, element):
        return element * 2


class Jitter(RandomMap):
    def random_map(self, element, rng):
        return element + rng.normal()


class TfJitter(TfRandomMap):
    def np_random_map(self, element, rng):
        return element + rng.normal()


class Number(MapWithIndex):
    def map_with_index(self, index, element):
        return {"index": index, "element": element}


class Big(Filter):
    def filter(self, element):
        return element.sum() > 10


class Rows(FlatMap):
    max_fan_out = 3

    def flat_map(self, element):
        yield from element


RIGHT = {
    "map": (Double(), None),
    "random_map": (Jitter(), None),
    "tf_random_map": (TfJitter(), None),
    "map_with_index": (Number(), None),
    "filter": (Big(), None),
    "flat_map": (Rows(), None),
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
    transform, kind = RIGHT[name]
    assert_transform_conforms(transform, NUMBERS, kind=kind)


def test_a_worker_process_transforms_the_same():
    assert_transform_conforms(Jitter(), NUMBERS, in_worker=True)
    main = os.getpid()
    with pytest.raises(
        AssertionError, match=r"in a worker process everything is the same.*element 0 in a worker process must be"
    ):
        assert_transform_conforms(lambda x: x + (os.getpid() == main), NUMBERS, in_worker=True)


def test_an_input_may_be_changed_if_one_says_so():
    def scale(element):
        element *= 2
        return element

    assert_transform_conforms(scale, NUMBERS, may_change_input=True)
    with pytest.raises(AssertionError, match=r"leaves its input as it is.*element 0 was array.* before and .*may_change_input"):
        assert_transform_conforms(scale, NUMBERS)
    assert NUMBERS[1].tolist() == [1, 2, 3]  # only copies were


class Counts(Map):
    count = 0

    def map(self, element):
        self.count += 1
        return element + self.count


class GlobalRandom(Map):
    def map(self, element):
        return element + random.random()


class OwnGenerator(RandomMap):
    def random_map(self, element, rng):
        return element + np.random.default_rng().normal()


class KeepsTheGenerator(RandomMap):
    rng = None

    def random_map(self, element, rng):
        self.rng = self.rng or rng
        return element + self.rng.normal()


class ReusesABuffer(Map):
    def __init__(self):
        self.buffer = np.zeros(3)

    def map(self, element):
        self.buffer[:] = element
        return self.buffer


class OfOneThread(Map):
    main = threading.get_ident()

    def map(self, element):
        return element if threading.get_ident() == self.main else None


class HoldsALock(Double):
    def __init__(self):
        self.lock = threading.Lock()


class ForgetsWhenCopied(Double):
    factor = 2

    def map(self, element):
        return element * self.factor

    def __getstate__(self):
        return {"factor": 1}


class AddsAKey(Map):
    def map(self, element):
        element["sum"] = element["x"].sum()
        return element


class NoTruth(Filter):
    def filter(self, element):
        return element > 3


class TooMany(Rows):
    max_fan_out = 2


class NoLimit(FlatMap):
    def flat_map(self, element):
        return element


class NotIterable(Rows):
    def flat_map(self, element):
        return 3


WRONG = {
    Counts: r"depends on what is asked for alone.*the result of Counts for element 9 must be",
    GlobalRandom: r"depends on what is asked for alone.*the result of GlobalRandom for element 9 must be",
    OwnGenerator: r"depends on what is asked for alone.*Draw no random numbers but from a generator that is handed in",
    KeepsTheGenerator: r"depends on what is asked for alone.*the result of KeepsTheGenerator for element 9 must be",
    ReusesABuffer: r"depends on what is asked for alone.*the result of ReusesABuffer for element 9 must be",
    OfOneThread: r"several threads.*for element \d in one of 8 threads must be .* got None",
    HoldsALock: r"copy made by cloudpickle.*copying HoldsALock raised TypeError",
    ForgetsWhenCopied: r"copy made by cloudpickle.*for element 0 of a copy made before the first read must be",
    NoTruth: r"is there. Found: the result of NoTruth for element 0 raised ValueError: The truth value",
    TooMany: r"is there. Found: .* raised ValueError: TooMany made more items of one element than its max_fan_out = 2",
    NoLimit: r"is there. Found: .* raised TypeError: NoLimit must have an attribute max_fan_out",
    NotIterable: r"is there. Found: .* raised TypeError: NotIterable must return",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_mistakes_are_found_and_named(kind):
    with pytest.raises(AssertionError, match=f"(?s)^broken law: .*{WRONG[kind]}"):
        assert_transform_conforms(kind(), NUMBERS)


def test_a_new_key_is_a_change_of_the_input():
    with pytest.raises(AssertionError, match=r"leaves its input as it is.*element 0 was {'x': .*} before and {.*'sum'.*} after"):
        assert_transform_conforms(AddsAKey(), [{"x": x} for x in NUMBERS])


def test_wrong_arguments():
    with pytest.raises(TypeError, match="transform must be callable or an instance of Map, got 5"):
        assert_transform_conforms(5, [1])
    with pytest.raises(TypeError, match=r"kind must be one of Map, RandomMap, .*, got <class 'gristmill.transforms.base.Batch'>"):
        assert_transform_conforms(len, [1], kind=Batch)
    with pytest.raises(ValueError, match="elements must be some elements to transform, got none"):
        assert_transform_conforms(len, [])
