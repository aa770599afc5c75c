"""Builds pipelines from descriptions, runs them step by step and prints what came out.

Run as ``python peer_driver.py MODULE < descriptions.json`` with ``grain`` or ``gristmill``; prints
one line of JSON for every description, so that the lines of the two can be compared. Imports
nothing but NumPy and MODULE. A description is

    {"kind": "code", "code": "..."}     # the value of the last line; `m` is the module, `np` is
    NumPy, `attempt` is below {"kind": "dataset", "code": "M.range(3).shuffle(seed=1)", "indices":
    [i, ...], "limit": n, "extras": false,
     "states": [state, ...], "restore": [position, ...], "in_place": true}
     An expression with the names of ``Builder.names``. The last keys are for us: the states that
     Grain had, those of them to restore in any case (others are if ours differ), and whether to do
     so on an iterator that was used, too.
"""

import ast
import collections
import faulthandler
import functools
import importlib
import json
import logging
import sys
import warnings

import numpy as np

ELEMENTS = {
    "int": lambda i: i,
    "float": lambda i: i / 4,
    "bool": lambda i: i % 2 == 0,
    "int32": np.int32,
}
ELEMENTS |= {
    "uint8": lambda i: np.uint8(i % 200),
    "float32": lambda i: np.float32(i) / 3,
    "scalar_array": lambda i: np.array(i),
}
ELEMENTS |= {
    "int_or_float": lambda i: i if i % 2 else i + 0.5,
    "sometimes_none": lambda i: None if i % 3 == 1 else i,
}
ELEMENTS |= {"int8_or_uint8": lambda i: np.int8(i % 100) if i % 3 else np.uint8(i % 200)}
ELEMENTS |= {
    "str": lambda i: "é" * (i % 4) + str(i),
    "bytes": lambda i: b"x" * (i % 4) + str(i).encode(),
}
ELEMENTS |= {
    "array": lambda i: np.arange(i, i + 3, dtype=np.int16),
    "no_bytes": lambda i: np.zeros((0, 2), np.int32),
}
ELEMENTS |= {
    "matrix": lambda i: np.full((2, 2), i, np.float16, order="F"),
    "dict": lambda i: {"b": i, "a": np.float32(i)},
}
ELEMENTS |= {
    "tuple": lambda i: (i, float(i)),
    "list": lambda i: [i, str(i)],
    "named": lambda i: Pair(i, np.int32(i)),
}
ELEMENTS |= {"nested": lambda i: {"x": (i, {"y": [np.int8(i % 100), None]}), "e": {}}}
ELEMENTS |= {
    "ordered": lambda i: collections.OrderedDict(z=i, a=[i]),
    "holes": lambda i: {"a": np.arange(i, i + i * 7 % 5)},
}
ELEMENTS |= {
    "rows": lambda i: {
        "x": np.arange(i, i + i % 4 + 1),
        "y": (np.full((i % 4 + 1, 2), i, np.float32),),
    },
    "tokens": lambda i: {"a": np.arange(10 * i, 10 * i + 1 + i * 7 % 9)},
    "sequences": lambda i: {
        "a": np.arange(10 * i, 10 * i + 1 + i * 7 % 9, dtype=np.int32),
        "b": np.full((1 + i * 3 % 5, 2), i + 0.5),
        "m": i,
    },
}
Pair = collections.namedtuple("Pair", "first second")


class Source:
    """Records of a kind, computed when read."""

    def __init__(self, kind, length):
        self.kind = kind
        self.length = length

    def __len__(self):
        return self.length

    def __getitem__(self, key):
        return ELEMENTS[self.kind](int(key))

    def __repr__(self):
        return f'Source("{self.kind}", \\ {self.length} "0": 0 é)'


def each(fn, value):
    """``fn`` of every leaf."""
    if isinstance(value, dict):
        return type(value)((key, each(fn, v)) for key, v in value.items())
    if isinstance(value, (list, tuple)):
        parts = [each(fn, v) for v in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return None if value is None else fn(value)


def plus(leaf, number):
    kind = np.asarray(leaf).dtype.kind
    if kind in "US":
        suffix = str(number) if kind == "U" else str(number).encode()
        return leaf + suffix if isinstance(leaf, (str, bytes)) else np.char.add(leaf, suffix)
    return leaf + number


def total(value):
    """A number that depends on all leaves."""
    found = []

    def add(leaf):
        array = np.asarray(leaf)
        found.append(
            sum(map(len, array.ravel().tolist()))
            if array.dtype.kind in "US"
            else int(array.astype(np.int64).sum())
        )

    each(add, value)
    return sum(found)


def plus_one(x):
    return each(lambda leaf: plus(leaf, 1), x)


def plus_index(i, x):
    return each(lambda leaf: plus(leaf, int(i)), x)


def plus_random(x, rng):
    number = int(rng.integers(1000))
    return each(lambda leaf: plus(leaf, number), x)


def with_random(x, rng):
    return {"x": x, "r": float(rng.random()), "n": int(rng.integers(10))}


def none_of_three(x):
    return None if total(x) % 3 == 0 else x


def keep_odd(x):
    return total(x) % 2


def keep_most(x):
    return total(x) % 5 != 1


def keep_none(x):
    return []


def keep_few(x):
    return total(x) % 25 == 0


def fail_sometimes(x):
    if total(x) % 13 == 5:
        raise KeyError(x)
    return x


def only(*names):
    return lambda x: {name: x[name] for name in names}


def batch_length(xs):
    return len(xs)


def call(fn):
    return fn()


def plain(value):
    """``value`` as JSON that shows types, dtypes, shapes and the order of keys."""
    if isinstance(value, np.ndarray):
        return [
            "ndarray",
            value.dtype.str,
            list(value.shape),
            [plain(v) for v in value.ravel().tolist()],
        ]
    if isinstance(value, dict):
        return [type(value).__name__, [[key, plain(v)] for key, v in sorted(value.items())]]
    if isinstance(value, (list, tuple)):
        return [type(value).__name__, [plain(v) for v in value]]
    return [type(value).__name__, repr(value)]


class Builder:
    def __init__(self, module):
        self.m = importlib.import_module(module)
        python, t, record = (
            importlib.import_module(module + ".python"),
            self.m.transforms,
            self.m.RecordMetadata,
        )

        def derived(*bases, **methods):
            return type(
                "Derived",
                bases,
                {name: lambda _, *args, fn=fn: fn(*args) for name, fn in methods.items()},
            )

        PlusOne = derived(t.Map, map=plus_one)
        PlusIndex = derived(t.MapWithIndex, map_with_index=plus_index)
        Described = derived(PlusOne, output_spec=lambda spec: spec)
        PlusRandom = derived(t.RandomMap, random_map=plus_random)
        PlusTfRandom = derived(t.TfRandomMap, np_random_map=plus_random)
        KeepMost = derived(t.Filter, filter=keep_most)
        MapAndFilter = derived(t.Map, t.Filter, map=plus_one, filter=keep_none)
        RandomAndFilter = derived(t.Filter, t.RandomMap, random_map=plus_random, filter=keep_none)

        class Copies(self.m.experimental.FlatMapTransform):
            """Up to ``max_fan_out`` copies of an element."""

            def __init__(self, max_fan_out, most=None):
                self.max_fan_out = max_fan_out
                self.most = max_fan_out if most is None else most

            def flat_map(self, element):
                return [element] * (total(element) % (self.most + 1))

        class Numbered(Copies):
            def flat_map(self, element):
                return tuple(enumerate(super().flat_map(element)))

        class Generated(Copies):
            def flat_map(self, element):
                yield from super().flat_map(element)

        class Turns(t.DatasetSelectionMap):
            """Each of ``count`` datasets in turn, with ``length`` in an epoch."""

            def __init__(self, count, length):
                self.count = count
                self.length = length

            def __len__(self):
                return self.length

            def __getitem__(self, index):
                return index % self.count, index // self.count

        class Backwards:
            """A sampler of a user, with a length or without."""

            def __init__(self, length):
                self.length = length

            def __getitem__(self, index):
                if not 0 <= index < self.length:
                    raise IndexError(index)
                rng = np.random.Generator(np.random.Philox(key=7 + index))
                return record(index, self.length - 1 - index, rng)

            def __repr__(self):
                return f"Backwards({self.length})"

        BackwardsWithLength = type(
            "BackwardsWithLength", (Backwards,), {"__len__": lambda self: self.length}
        )

        def every_third_not(records):
            """An operation as they were once: a function of an iterator."""
            return (record for record in records if record.metadata.index % 3)

        made = {name: value for name, value in locals().items() if name not in ("self", "module")}
        datasets = {
            "m": self.m,
            "M": self.m.MapDataset,
            "I": self.m.IterDataset,
            "x": self.m.experimental,
        }
        self.names = {**globals(), **made, **datasets, "partial": functools.partial}

    def run(self, spec):
        if spec["kind"] == "dataset":
            return self.dataset(spec)
        names = {"m": self.m, "np": np, "attempt": attempt, "json": json}
        *lines, last = ast.parse(spec["code"]).body
        exec(compile(ast.Module(lines, []), "code", "exec"), names)
        return eval(compile(ast.Expression(last.value), "code", "eval"), names)

    def dataset(self, spec):
        """Everything observable about the dataset of ``spec``."""
        ds = eval(spec["code"], self.names)
        result = {}
        if isinstance(ds, self.m.MapDataset):
            result["length"] = attempt(lambda: len(ds))
            result["indexed"] = [attempt(lambda i=i: plain(ds[i])) for i in spec["indices"]]
        if spec["extras"] and not isinstance(ds, self.m.DataLoader):
            result["element_spec"] = attempt(
                lambda: plain_spec(self.m.experimental.get_element_spec(ds))
            )
        if spec["extras"] and isinstance(ds, self.m.IterDataset):
            result["next_index"] = self.next_indices(ds)
        if spec["limit"]:
            it = iter(ds)
            result["start"] = attempt(lambda: state_of(it))
            result["run"] = follow(it, spec["limit"])
            theirs, mine = (
                spec.get("states", []),
                [result["start"], *result["run"]["states"], result["run"].get("end_state")],
            )
            num_elements = len(result["run"]["elements"])
            unlike = [
                i
                for i, (a, b) in enumerate(zip(theirs, mine, strict=False))
                if not same_state(b, a)
            ]
            result["restored"] = []
            for n, position in enumerate([*spec.get("restore", ()), *unlike[:5]]):
                restored = it if n % 2 and spec["in_place"] else iter(ds)
                failure = attempt(lambda: set_state_of(restored, theirs[position]))  # noqa: B023
                run = failure or {
                    "state": state_of(restored),
                    **follow(restored, spec["limit"] - min(position, num_elements)),
                }
                result["restored"].append([position, run])
                if restored is not it:
                    close(restored)
            close(it)
        return result

    def next_indices(self, ds):
        get, jump = self.m.experimental.get_next_index, self.m.experimental.set_next_index
        it = iter(ds)
        found = [attempt(lambda: get(it))]
        for _ in range(3):
            found += [attempt(lambda: plain(next(it))), attempt(lambda: get(it))]
        close(it)
        for index in (2, 1, 5):
            it = iter(ds)
            jumped = attempt(lambda it=it, index=index: jump(it, index))
            found.append(jumped)
            if jumped is None:
                for look in (state_of, get, lambda it: plain(next(it)), get):
                    found.append(attempt(lambda it=it, look=look: look(it)))
            close(it)
        return found


def follow(it, limit):
    """Elements of ``it`` and the states after them, to ``limit`` or the end or an error."""
    run = {"elements": [], "states": [], "end": None}
    while len(run["elements"]) < limit and run["end"] is None:
        element = attempt(lambda: plain(next(it)))
        state = attempt(lambda: state_of(it))
        if isinstance(element, list):
            run["elements"].append(element)
            run["states"].append(state)
        else:
            run["end"], run["end_state"] = element["error"], state
    if run["end"] and run["end"][0] == "StopIteration":
        run["again"] = attempt(lambda: plain(next(it)))
    return run


def state_of(it):
    """The state of ``it`` as it is in a file."""
    state = it.get_state()
    return json.loads(state if isinstance(state, (bytes, str)) else json.dumps(state))


def same_state(mine, theirs):
    """True if two states are the same, but for entries that only we have."""
    return json.dumps(known(mine, theirs), sort_keys=True) == json.dumps(theirs, sort_keys=True)


def known(mine, theirs):
    """``mine`` without the entries that are not in ``theirs``, at any level."""
    if isinstance(theirs, dict) and isinstance(mine, dict):
        return {key: known(value, theirs[key]) for key, value in mine.items() if key in theirs}
    if isinstance(theirs, list) and isinstance(mine, list) and len(theirs) == len(mine):
        return [known(*pair) for pair in zip(mine, theirs, strict=True)]
    return mine


def set_state_of(it, state):
    it.set_state(json.dumps(state).encode() if isinstance(it.get_state(), bytes) else state)


def close(it):
    if hasattr(it, "close"):  # Grain's DataLoaders have none
        it.close()


def plain_spec(spec):
    """An element spec as JSON."""
    if hasattr(spec, "shape"):
        return [list(spec.shape), np.dtype(spec.dtype).str]
    if isinstance(spec, dict):
        return {key: plain_spec(v) for key, v in spec.items()}
    if isinstance(spec, (list, tuple)):
        return [type(spec).__name__, *map(plain_spec, spec)]
    return repr(spec)


def attempt(fn):
    try:
        return fn()
    except Exception as error:
        return {"error": [kind.__name__ for kind in type(error).__mro__]}


def main():
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    specs = json.load(sys.stdin)
    codes = " ".join(spec["code"] for spec in specs if spec["kind"] == "dataset")
    if sys.argv[1] == "grain" and ("mp_prefetch" in codes or "worker_count" in codes):
        # Workers need absl flags that have been parsed.
        from absl import flags

        flags.FLAGS(sys.argv[:1])
    builder = Builder(sys.argv[1])
    for spec in specs:
        faulthandler.dump_traceback_later(40, exit=True)
        try:
            result = builder.run(spec)
        except Exception as error:
            result = {"error": [kind.__name__ for kind in type(error).__mro__]}
        print(json.dumps(result), flush=True)


if __name__ == "__main__":
    main()
