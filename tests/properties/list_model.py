"""Pipelines as plain lists and formulas: the specification once more, without blocks, threads or iterators.

A pipeline is a list of steps, each a tuple of a name and its arguments. ``build`` makes the data set of it, ``MapModel``
and ``stream_model`` what it has to deliver. An element that user code fails at is ``FAILED``.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from hypothesis import strategies as st

from gristmill.core.options import DatasetOptions, ReadOptions
from gristmill.core.permutation import index_shuffle
from gristmill.dataset import MapDataset
from gristmill.dataset.stages.options import WithOptionsIterDataset

FAILED = "failed"
OPTIONS = DatasetOptions(filter_warn_threshold_ratio=None)


class Boom(Exception):
    """What failing user code raises."""


def weight(x: Any) -> int:
    """A number that depends on all of an element."""
    return sum(weight(v) * (i + 3) for i, v in enumerate(x)) if isinstance(x, tuple) else x if isinstance(x, int) else 1


class UserCode:
    """The functions of a pipeline, picked by a name and a number."""

    @staticmethod
    def map(x: Any) -> Any:
        return (x, 1)

    @staticmethod
    def with_index(i: int, x: Any) -> Any:
        assert type(i) is int
        return (x, i)

    @staticmethod
    def random(x: Any, rng: np.random.Generator) -> Any:
        return (x, int(rng.integers(1000)), int(rng.integers(2**40)))

    @staticmethod
    def removing(k: int) -> Any:
        return lambda x: None if weight(x) % 4 == k else x

    @staticmethod
    def keeping(k: int) -> Any:
        return lambda x: x is not None and weight(x) % 3 != k

    @staticmethod
    def failing(k: int) -> Any:
        def fail(x: Any) -> Any:
            if weight(x) % 5 == k:
                raise Boom(weight(x))
            return x

        return fail


def outcome(fn: Any, *args: Any) -> Any:
    try:
        return fn(*args)
    except Boom:
        return FAILED


def random_map(x: Any, seed: int, index: int) -> Any:
    key = np.random.SeedSequence(seed).generate_state(2, np.uint64)
    counter = np.array([0, 0, 0, index % 2**64], np.uint64)
    return UserCode.random(x, np.random.Generator(np.random.Philox(counter=counter, key=key)))


def default_seed(steps: list[Any], position: int) -> int | None:
    """The seed of the step at ``position``, from the nearest ``seed`` step before it."""
    for distance in range(1, position + 1):
        step = steps[position - distance]
        if step[0] == "seed":
            return int(np.random.SeedSequence([step[1], distance]).generate_state(1, np.uint32)[0])
    return None


class MapModel:
    """``model[i]`` and ``model.length`` of a list of map steps; steps that are not allowed there are left out of ``steps``."""

    def __init__(self, length: int, wanted: list[Any]) -> None:
        self.steps: list[Any] = [("range", length)]
        self.lengths = [length]
        for step in wanted:
            self._append(step)

    @property
    def length(self) -> int:
        return self.lengths[-1]

    def _append(self, step: Any) -> None:
        name, *args = step
        length = self.length
        if name == "batch":
            if any(s[0] == "filter" for s in self.steps):
                return
            size, drop = args
            length = length // size if drop else -(-length // size)
        elif name == "repeat":
            if length >= sys.maxsize:
                return
            length = (sys.maxsize if length else 0) if args[0] is None else length * args[0]
        elif name == "slice":
            length = len(range(*slice(*args).indices(length)))
        elif name == "reindex":
            if not length:
                return
            length = len(args[0])
        elif name in ("shuffle", "random_map") and args[0] is None:
            args[0] = default_seed([*self.steps, step], len(self.steps))
            if args[0] is None:
                return
            step = (name, None)
        self.steps.append(step)
        self.lengths.append(length)

    def __getitem__(self, i: int) -> Any:
        return self.at(len(self.steps) - 1, i)

    def at(self, position: int, i: int) -> Any:
        name, *args = self.steps[position]
        if name == "range":
            return i % args[0]
        length, own = self.lengths[position - 1], self.lengths[position]

        def parent(k: int) -> Any:
            return self.at(position - 1, k)

        if name == "seed":
            return parent(i)
        if name == "repeat":
            return parent(i if args[1] else i % length)
        if name == "slice":
            start, _, step = slice(*args).indices(length)
            return parent(start + i % own * step + i // own * length)
        if name == "reindex":
            return parent(args[0][i % own] + i // own * length)
        if name == "shuffle":
            seed = default_seed(self.steps, position) if args[0] is None else args[0]
            epoch = i // length
            return parent(index_shuffle(i % length, length - 1, (seed + epoch) % 2**32, 4) + epoch * length)
        if name == "batch":
            size, (epoch, b) = args[0], divmod(i, own)
            elements = [parent(epoch * length + q) for q in range(b * size, min(length, (b + 1) * size))]
            return FAILED if FAILED in elements else tuple(elements)
        x = parent(i)
        if x is None or x is FAILED:
            return x
        if name == "map":
            return UserCode.map(x)
        if name == "map_with_index":
            return UserCode.with_index(i, x)
        if name == "random_map":
            seed = default_seed(self.steps, position) if args[0] is None else args[0]
            return random_map(x, seed, i)
        if name == "remove":
            return UserCode.removing(args[0])(x)
        if name == "fail":
            return outcome(UserCode.failing(args[0]), x)
        assert name == "filter"
        return x if UserCode.keeping(args[0])(x) else None


class StreamModel:
    """The outcomes of a stream, one after the other, and the state after each.

    ``outcomes[k]`` follows ``states[k]``; ``end`` is the state of the exhausted iterator.
    """

    def __init__(self, source: MapModel, limit: int, allow_nones: bool, wanted: list[Any]) -> None:
        self.steps = [*source.steps, ("to_iter",)]
        length = min(source.length, limit)
        self.outcomes: list[Any] = []
        self.states: list[Any] = [{"next_index": 0}]
        for i in range(length):
            if (x := source[i]) is not None or allow_nones:
                self.outcomes.append(x)
                self.states.append({"next_index": i + 1})
        self.end: Any = {"next_index": length}
        for step in wanted:
            self._append(step)

    def _append(self, step: Any) -> None:
        name, *args = step
        seed = None
        if name == "random_map":
            seed = default_seed([*self.steps, step], len(self.steps)) if args[0] is None else args[0]
            if seed is None:
                return
        self.steps.append(step)
        before = self.outcomes
        if name == "map":
            self.outcomes = [x if x is None or x is FAILED else UserCode.map(x) for x in before]
        elif name == "remove":
            fn = UserCode.removing(args[0])
            self.outcomes = [x if x is None or x is FAILED else fn(x) for x in before]
        elif name == "fail":
            fn = UserCode.failing(args[0])
            self.outcomes = [x if x is None or x is FAILED else outcome(fn, x) for x in before]
        elif name == "map_with_index":
            self.outcomes = [x if x is None or x is FAILED else UserCode.with_index(i, x) for i, x in enumerate(before)]
            self._nest("counter")
        elif name == "random_map":
            self.outcomes = [x if x is None or x is FAILED else random_map(x, seed, i) for i, x in enumerate(before)]
            self._nest("index_for_rng")
        elif name == "filter":
            keep = UserCode.keeping(args[0])
            kept = [i for i, x in enumerate(before) if x is FAILED or keep(x)]
            self.outcomes = [before[i] for i in kept]
            self.states = [self.states[0], *[self.states[i + 1] for i in kept]]
        elif name == "batch":
            size, drop = args
            groups = [before[i : i + size] for i in range(0, len(before), size)]
            ends = [self.states[i + size] if i + size <= len(before) else self.end for i in range(0, len(before), size)]
            if groups and drop and len(groups[-1]) < size and FAILED not in groups[-1]:
                groups.pop(), ends.pop()
            self.outcomes = [FAILED if FAILED in group else tuple(group) for group in groups]
            self.states = [self.states[0], *ends]
        else:
            assert name in ("seed", "options")

    def _nest(self, key: str) -> None:
        self.states = [{"parent": state, key: i} for i, state in enumerate(self.states)]
        self.end = {"parent": self.end, key: len(self.outcomes)}


def build(steps: list[Any]) -> Any:
    """The data set of steps that a model has accepted."""
    ds: Any = None
    for name, *args in steps:
        match name:
            case "range":
                ds = MapDataset.range(*args)
            case "map":
                ds = ds.map(UserCode.map)
            case "map_with_index":
                ds = ds.map_with_index(UserCode.with_index)
            case "random_map":
                ds = ds.random_map(UserCode.random, seed=args[0])
            case "remove":
                ds = ds.map(UserCode.removing(args[0]))
            case "fail":
                ds = ds.map(UserCode.failing(args[0]))
            case "filter":
                ds = ds.filter(UserCode.keeping(args[0]))
            case "seed":
                ds = ds.seed(args[0])
            case "shuffle":
                ds = ds.shuffle(seed=args[0])
            case "slice":
                ds = ds[slice(*args)]
            case "reindex":
                ds = ds.slice(args[0])
            case "repeat":
                ds = ds.repeat(args[0], reseed_each_epoch=args[1])
            case "batch":
                ds = ds.batch(args[0], drop_remainder=args[1], batch_fn=tuple)
            case "to_iter":
                ds = ds.to_iter_dataset(ReadOptions(*args[0]), allow_nones=args[1])
            case "options":
                ds = WithOptionsIterDataset(ds, OPTIONS)
            case _:
                raise AssertionError(name)
    return ds


_bound = st.none() | st.integers(-12, 12)
_seed = st.none() | st.integers(0, 2**32 - 1)
_sizes = st.integers(1, 5)
_common = [
    st.just(("map",)),
    st.just(("map_with_index",)),
    st.tuples(st.just("random_map"), _seed),
    st.tuples(st.just("remove"), st.integers(0, 3)),
    st.tuples(st.just("filter"), st.integers(0, 2)),
    st.tuples(st.just("seed"), st.integers(0, 2**70)),
    st.tuples(st.just("batch"), _sizes, st.booleans()),
]
_map_only = [
    st.tuples(st.just("shuffle"), _seed),
    st.tuples(st.just("slice"), _bound, _bound, st.none() | st.integers(1, 4) | st.integers(-4, -1)),
    st.tuples(st.just("reindex"), st.lists(st.integers(-15, 15), max_size=6)),
    st.tuples(st.just("repeat"), st.none() | st.integers(1, 3), st.booleans()),
]
_fail = st.tuples(st.just("fail"), st.integers(0, 4))

map_steps = st.lists(st.one_of(*_common, *_map_only), max_size=6)
iter_steps = st.lists(st.one_of(*_common, st.just(("options",))), max_size=5)
failing_map_steps = st.lists(st.one_of(*_common, *_map_only, _fail), max_size=4)
failing_iter_steps = st.lists(st.one_of(*_common, _fail), max_size=4)
read_options = st.sampled_from([(0, 0), (1, 1), (1, 8), (3, 5), (4, 40)])
