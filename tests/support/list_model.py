"""Map pipelines as plain lists and formulas: the specification once more, without blocks, threads
or iterators.

A pipeline is a list of stages, each a tuple of a name and its arguments. ``build`` makes the data
set of it, ``MapModel`` what it has to deliver. An element that user code fails at is ``FAILED``.
"""

import sys
from typing import Any

import numpy as np
from formulas import chosen, shuffled, stream
from hypothesis import strategies as st

from gristmill.core.options import DatasetOptions, ReadOptions
from gristmill.dataset import MapDataset

FAILED = "failed"
OPTIONS = DatasetOptions(filter_warn_threshold_ratio=None)


class Boom(Exception):
    """The error of failing user code."""


def weight(x: Any) -> int:
    """A number that depends on all of an element."""
    if isinstance(x, tuple | list):
        return sum(weight(v) * (i + 3) for i, v in enumerate(x))
    return x if isinstance(x, int) else 1


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
    return UserCode.random(x, stream(seed, index))


def integer_weights(weights: list[float]) -> list[int]:
    scale = 100 / min(weights)
    return [int(w * scale) for w in weights]


# of what there is, at a place among shuffled ranges: ``(place, [(length, seed)], weights)``
JOINS = ("mix", "concatenate")


def default_seed(steps: list[Any], position: int) -> int | None:
    """The seed of the stage at ``position``, from the nearest ``seed`` upstream."""
    for distance in range(1, position + 1):
        step = steps[position - distance]
        if step[0] in JOINS:
            return None
        if step[0] == "seed":
            return int(np.random.SeedSequence([step[1], distance]).generate_state(1, np.uint32)[0])
    return None


class MapModel:
    """``model[i]`` and ``model.length`` of a list of map stages; stages that are not allowed there
    are removed from ``steps``.
    """

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
        elif name in JOINS:
            lengths = self._lengths_joined(len(self.steps), args)
            if max(lengths) > 10**6 or (name == "mix" and not length):
                return
            length = sum(lengths)
            if name == "mix":
                proportions = integer_weights(args[2])
                total = sum(proportions)
                length = int(
                    min(n / (p / total) for n, p in zip(lengths, proportions, strict=True))
                )
        elif name in ("shuffle", "random_map") and args[0] is None:
            args[0] = default_seed([*self.steps, step], len(self.steps))
            if args[0] is None:
                return
            step = (name, None)
        self.steps.append(step)
        self.lengths.append(length)

    def _lengths_joined(self, position: int, args: list[Any]) -> list[int]:
        place, others, _ = args
        lengths = [n for n, _ in others]
        return [*lengths[:place], self.lengths[position - 1], *lengths[place:]]

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
            return parent(shuffled(i, length, seed))
        if name in JOINS:
            place, others, weights = args
            if name == "mix":
                j, k = chosen(integer_weights(weights), i)
            else:
                epoch, k = divmod(i, own)
                lengths = self._lengths_joined(position, args)
                j = 0
                while k >= lengths[j]:
                    k -= lengths[j]
                    j += 1
                k += epoch * lengths[j]
            n, seed = [*others[:place], (0, 0), *others[place:]][j]
            return parent(k) if j == place else shuffled(k, n, seed) % n
        if name == "batch":
            size, (epoch, b) = args[0], divmod(i, own)
            elements = [
                parent(epoch * length + q) for q in range(b * size, min(length, (b + 1) * size))
            ]
            return FAILED if FAILED in elements else tuple(elements)
        return element_of(name, args, default_seed(self.steps, position), i, parent(i))


def element_of(name: str, args: list[Any], seed: int | None, i: int, x: Any) -> Any:
    """The result for ``x``, at index ``i``, of a stage that makes one element of one."""
    if x is None or x is FAILED:
        return x
    match name:
        case "map":
            return UserCode.map(x)
        case "map_with_index":
            return UserCode.with_index(i, x)
        case "random_map":
            return random_map(x, seed if args[0] is None else args[0], i)
        case "remove":
            return UserCode.removing(args[0])(x)
        case "fail":
            return outcome(UserCode.failing(args[0]), x)
    assert name == "filter"
    return x if UserCode.keeping(args[0])(x) else None


def joined(ds: Any, place: int, others: list[Any]) -> list[Any]:
    parts = [MapDataset.range(n).shuffle(seed=seed) for n, seed in others]
    return [*parts[:place], ds, *parts[place:]]


_BUILD: dict[str, Any] = {
    "range": lambda _, *args: MapDataset.range(*args),
    "map": lambda ds: ds.map(UserCode.map),
    "map_with_index": lambda ds: ds.map_with_index(UserCode.with_index),
    "random_map": lambda ds, seed: ds.random_map(UserCode.random, seed=seed),
    "remove": lambda ds, k: ds.map(UserCode.removing(k)),
    "fail": lambda ds, k: ds.map(UserCode.failing(k)),
    "filter": lambda ds, k: ds.filter(UserCode.keeping(k)),
    "seed": lambda ds, seed: ds.seed(seed),
    "shuffle": lambda ds, seed: ds.shuffle(seed=seed),
    "slice": lambda ds, *args: ds[slice(*args)],
    "reindex": lambda ds, indices: ds.slice(indices),
    "repeat": lambda ds, num, reseeds: ds.repeat(num, reseed_each_epoch=reseeds),
    "batch": lambda ds, size, drop: ds.batch(size, drop_remainder=drop, batch_fn=tuple),
    "mix": lambda ds, place, others, weights: MapDataset.mix(joined(ds, place, others), weights),
    "concatenate": lambda ds, place, others, _: MapDataset.concatenate(joined(ds, place, others)),
    "to_iter": lambda ds, options, nones: ds.to_iter_dataset(
        ReadOptions(*options), allow_nones=nones
    ),
}


def build(steps: list[Any]) -> Any:
    """The dataset of stages that a model has accepted."""
    ds: Any = None
    for name, *args in steps:
        ds = _BUILD[name](ds, *args)
    return ds


def finite(length: int, steps: list[Any], limit: int) -> MapModel:
    """A model of no more than ``limit`` elements, with a state of the end that can be reached."""
    model = MapModel(length, steps)
    return model if model.length <= limit else MapModel(length, [*steps, ("slice", 0, limit, None)])


def read_with(steps: list[Any], options: Any, allow_nones: bool) -> list[Any]:
    return [("to_iter", options, allow_nones) if step[0] == "to_iter" else step for step in steps]


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
    st.tuples(
        st.just("slice"), _bound, _bound, st.none() | st.integers(1, 4) | st.integers(-4, -1)
    ),
    st.tuples(st.just("reindex"), st.lists(st.integers(-15, 15), max_size=6)),
    st.tuples(st.just("repeat"), st.none() | st.integers(1, 3), st.booleans()),
    st.lists(st.tuples(st.integers(1, 7), st.integers(0, 9)), max_size=3).flatmap(
        lambda others: st.tuples(
            st.sampled_from(JOINS),
            st.integers(0, len(others)),
            st.just(others),
            st.lists(
                st.integers(1, 5) | st.floats(0.01, 3),
                min_size=len(others) + 1,
                max_size=len(others) + 1,
            ),
        )
    ),
]
_fail = st.tuples(st.just("fail"), st.integers(0, 4))
map_steps = st.lists(st.one_of(*_common, *_map_only), max_size=6)
failing_map_steps = st.lists(st.one_of(*_common, *_map_only, _fail), max_size=4)
read_options = st.sampled_from([(0, 0), (1, 1), (1, 8), (3, 5), (4, 40)])
