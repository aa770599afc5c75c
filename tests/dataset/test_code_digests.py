"""Digests of functions: another function, constant or table is another pipeline; a log of calls is
not.
"""

import functools

import numpy as np
import pytest

import gristmill as grain
from gristmill.dataset.descriptions.code import described_pipeline, pipeline_difference

SCALE = 2


def scaled(x):
    return x * SCALE


def times(factor):
    return lambda x: x * factor


def helped(x):
    return scaled(x) + 1


class Times(grain.transforms.Map):
    def __init__(self, factor):
        self.factor, self.calls = factor, 0

    def map(self, x):
        self.calls += 1
        return x * self.factor


def add(x, y):
    return x + y


def described(fn, data=range(5)):
    return described_pipeline(grain.MapDataset.source(data).map(fn))


def logging_calls():
    calls = []

    def fn(x):
        calls.append(x)
        return x

    return fn


OTHERS = {
    "closure": lambda: (times(2), times(3)),
    "partial": lambda: (functools.partial(add, 1), functools.partial(add, 2)),
    "attribute": lambda: (Times(2), Times(3)),
    "default": lambda: (lambda x, y=1: x + y, lambda x, y=2: x + y),
    "table": lambda: (times(np.arange(3)), times(np.arange(1, 4))),
    "builtin": lambda: (np.sin, np.cos),
}


@pytest.mark.parametrize("make", OTHERS.values(), ids=list(OTHERS))
def test_other_functions_differ_and_equal_ones_do_not(make):
    one, other = make()
    assert "code or the data of MapMapDataset differ" in pipeline_difference(
        described(one), described(other)
    )
    assert pipeline_difference(described(one), described(make()[0])) is None


def test_constants_and_helpers_of_the_module_count(monkeypatch):
    before = [described(scaled), described(helped)]
    monkeypatch.setitem(globals(), "SCALE", 3)
    assert all(
        pipeline_difference(then, described(fn))
        for then, fn in zip(before, (scaled, helped), strict=True)
    )


def test_what_a_function_changes_itself_does_not_count():
    for fn in (logging_calls(), Times(2)):
        before = described(fn)
        list(grain.MapDataset.range(3).map(fn))
        assert pipeline_difference(before, described(fn)) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ([1, 2], [1, 3]),
        (np.arange(4), np.arange(4)[::-1]),
        ([b"a" * 99_999], [b"b" * 99_999]),
        ({"a": [1]}, {"a": [2]}),
    ],
)
def test_data_in_memory_count(one, other):
    assert "the data of SourceMapDataset differ" in pipeline_difference(
        described(abs, one), described(abs, other)
    )
    assert pipeline_difference(described(abs, one), described(abs, one)) is None
