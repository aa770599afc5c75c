"""Digests of functions: another function, constant or table is another pipeline; a log of calls is
not.
"""

import argparse
import collections
import enum
import functools
import re
import subprocess
import sys
import threading
import types
from pathlib import Path

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


class Private:
    """Of attributes that others must not use, set by a method."""

    def __init__(self, value):
        self.set(value)

    def set(self, value):
        self._value = value

    def __call__(self, x):
        return self._value


class Normalised:
    """A method changes a dict that is not its own; attributes of the same kind count."""

    def __init__(self, mean):
        self.mean, self.names = np.array(mean), {"image": mean}

    def __call__(self, x):
        names = self.names
        x["image"] = x[names["image"]] - self.mean
        return x


class UsersDataset(grain.MapDataset):
    def __init__(self, value):
        self._value = value

    def __len__(self):
        return 1

    def __getitem__(self, index):
        return self._value


class Colour(enum.Enum):
    RED = 1
    BLUE = 2


class Point(collections.namedtuple("Point", "x")):
    pass


class Slotted:
    __slots__ = ("_x",)

    def __init__(self, x):
        self._x = x


class Lazy:
    """Opens and fills what it needs when it is first called."""

    def __init__(self, table):
        self._lock, self._file, self._cache, self.calls = threading.Lock(), None, {}, 0
        self.table = table

    def _opened(self):
        if self._file is None:
            self._file = open(__file__)  # noqa: SIM115, PTH123 - as users do
        return self._file

    @functools.cached_property
    def large(self):
        return [0] * 10

    def __call__(self, x):
        self._opened().close()
        self.calls += 1
        self._cache[x] = self.large
        cache = self._cache
        cache[x + 1] = self.table
        return x


class Pickled(Lazy):
    """Says itself what its copies in workers have."""

    def __getstate__(self):
        return {"table": self.table}

    def __call__(self, x):
        self.extra = x
        return x


def with_constant(value):
    class Shifted:
        _by = value

        def __call__(self, x):
            return x + self._by

    return Shifted()


def looked_up(table):
    def fn(x):
        x["y"] = table[x["id"]]
        return x

    return fn


def configured(size, workers=1):
    options = argparse.Namespace(size=size, workers=workers)
    return lambda x: x * options.size


def helper_of_another_module(code):
    module = types.ModuleType("users_module")
    exec(code, vars(module))
    names = {"__name__": "users_program", "module": module}
    exec("def fn(x): return module.helper(x)", names)
    return names["fn"]


@functools.lru_cache
def cached_one(x):
    return x + 1


@functools.lru_cache
def cached_other(x):
    return x + 2


def privates(one, other):
    return lambda: (Private(one), Private(other))


OTHERS = {
    "closure": lambda: (times(2), times(3)),
    "partial": lambda: (functools.partial(add, 1), functools.partial(add, 2)),
    "attribute": lambda: (Times(2), Times(3)),
    "default": lambda: (lambda x, y=1: x + y, lambda x, y=2: x + y),
    "table": lambda: (times(np.arange(3)), times(np.arange(1, 4))),
    "builtin": lambda: (np.sin, np.cos),
    "private attribute": privates(1, 2),
    "array of a method that changes its argument": lambda: (Normalised(1), Normalised(2)),
    "table of a function that changes its argument": lambda: (looked_up([1]), looked_up([2])),
    "constant of a class": lambda: (with_constant(1), with_constant(2)),
    "method of a dict": lambda: ({1: 1}.get, {1: 2}.get),
    "attribute of a namespace": lambda: (configured(1), configured(2)),
    "another module": lambda: (
        helper_of_another_module("def helper(x): return x + 1"),
        helper_of_another_module("def helper(x): return x + 2"),
    ),
    "cached function": lambda: (cached_one, cached_other),
    "vectorized": lambda: (np.vectorize(lambda x: x + 1), np.vectorize(lambda x: x + 2)),
    "pattern": privates(re.compile("a"), re.compile("b")),
    "path": privates(Path("a"), Path("b")),
    "set": privates({"a", "b"}, {"a", "c"}),
    "ordered": privates(collections.OrderedDict(a=1), collections.OrderedDict(a=2)),
    "enum": privates(Colour.RED, Colour.BLUE),
    "named tuple": privates(Point(1), Point(2)),
    "slots": privates(Slotted(1), Slotted(2)),
    "dtype": privates(np.dtype("i4"), np.dtype("i8")),
    "dataset": privates(grain.MapDataset.range(3), grain.MapDataset.range(4)),
    "source": privates(
        grain.sources.RangeDataSource(0, 3, 1), grain.sources.RangeDataSource(0, 4, 1)
    ),
    "package": privates(grain.ReadOptions(num_threads=1), grain.ReadOptions(num_threads=2)),
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


def test_private_attributes_of_users_datasets_count():
    one, same, other = [described_pipeline(UsersDataset(value)) for value in (1, 1, 2)]
    assert one == same and "data of UsersDataset differ" in pipeline_difference(one, other)


def test_what_a_function_changes_itself_does_not_count():
    for fn in (logging_calls(), Times(2), Lazy([1]), Pickled([1])):
        before = described(fn)
        list(grain.MapDataset.range(3).map(fn))
        assert pipeline_difference(before, described(fn)) is None
    assert pipeline_difference(described(Lazy([1])), described(Lazy([2])))
    assert not pipeline_difference(described(configured(1, 1)), described(configured(1, 2)))


def folder_of(path, *names):
    for name in names:
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(b"{}")
    return path


def codec(path, decode):
    grain.write(grain.MapDataset.range(3).map(str), path, codec=(str.encode, bytes.decode))
    return grain.read(path, codec=(str.encode, decode))


MDS = Path(__file__).parents[1] / "sources" / "mds_golden" / "gz"
SOURCES = {
    "parse": lambda path: [
        grain.JsonlSource(folder_of(path, "a.jsonl") / "a.jsonl", parse=times(factor))
        for factor in (2, 3)
    ],
    "decode": lambda path: [
        grain.ImageFolderSource(folder_of(path, "a/1.png"), decode=times(factor))
        for factor in (2, 3)
    ],
    "names of pictures": lambda path: [
        grain.ImageFolderSource(folder_of(path / f"{i}" / "data", f"a/{i}.png")) for i in range(2)
    ],
    "encoded pictures": lambda path: [
        grain.MDSSource(MDS, decode_images=is_decoded) for is_decoded in (True, False)
    ],
    "functions of a codec": lambda path: [
        codec(path, lambda x: x.decode()),
        codec(path, lambda x: x.decode() * 2),
    ],
}


@pytest.mark.parametrize("make", SOURCES.values(), ids=list(SOURCES))
def test_other_functions_and_files_of_sources_differ(tmp_path, make):
    one, other = [
        described_pipeline(ds if isinstance(ds, grain.MapDataset) else grain.MapDataset.source(ds))
        for ds in make(tmp_path)
    ]
    assert pipeline_difference(one, other) is not None


PROGRAM = """
import logging, random, socket, sys, threading
import numpy as np
import gristmill as grain
from gristmill.dataset.descriptions.code import described_pipeline

class Holder:
    def __init__(self, *values):
        self._values = values
    def __call__(self, x):
        return x

holder = Holder(
    threading.Lock(), threading.local(), threading.Thread(target=print), open(__file__),
    iter([1]), (x for x in [1]), random.Random(), np.random.default_rng(), object(),
    socket.socket(), memoryview(b"a"), logging.getLogger("a"), {"a", "b", "c"}, Holder, print,
)
print(described_pipeline(grain.MapDataset.range(3).map(holder))["code"][1]["digest"])
"""


def test_digests_are_the_same_in_all_processes(tmp_path, monkeypatch):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    found = set()
    for seed in ("1", "2"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        found.add(subprocess.check_output([sys.executable, program]))
    assert len(found) == 1


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
