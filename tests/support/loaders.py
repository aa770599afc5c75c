"""Loaders of numbers, and operations made of functions; workers import this instead of the
tests.
"""

from operations import plain

from gristmill import DataLoader, RangeDataSource, ReadOptions, SequentialSampler
from gristmill.transforms import Filter, Map, MapWithIndex, RandomMap, TfRandomMap

DIRECT = ReadOptions(0, 0)


def make(n, *operations, **changes):
    arguments = {
        "data_source": RangeDataSource(0, n, 1),
        "sampler": SequentialSampler(n, seed=3),
        "operations": operations,
    }
    return DataLoader(**{**arguments, "read_options": DIRECT, **changes})


def run(n, *operations, **changes):
    return plain(make(n, *operations, **changes))


class Of:
    def __init__(self, fn):
        self.fn = fn


Mapped = type("Mapped", (Of, Map), {"map": lambda self, element: self.fn(element)})
Kept = type("Kept", (Of, Filter), {"filter": lambda self, element: self.fn(element)})
IndexMapped = type(
    "IndexMapped",
    (Of, MapWithIndex),
    {"map_with_index": lambda self, index, element: self.fn(index, element)},
)
RandomMapped = type(
    "RandomMapped",
    (Of, RandomMap),
    {"random_map": lambda self, element, rng: self.fn(element, rng)},
)
DrawOld = type(
    "DrawOld", (TfRandomMap,), {"np_random_map": lambda self, element, rng: draw(element, rng)}
)


def draw(element, rng):
    return (*element, int(rng.integers(1000)))


TO_TUPLE = Mapped(lambda x: (x,))
DRAW = RandomMapped(draw)  # appends a number to a tuple
WITH_INDEX = IndexMapped(lambda index, x: (index, x))
# changes nothing, but pipelines carry records
AS_RECORDS = [WITH_INDEX, Mapped(lambda pair: pair[1])]


class Source:  # returns what ``fn`` makes of a key
    def __init__(self, n, fn=lambda key: key, text="Source()"):
        self.n, self.fn, self.text = n, fn, text

    def __len__(self):
        return self.n

    def __getitem__(self, key):
        return self.fn(key)

    def __repr__(self):
        return self.text


class Faults:  # raises for some numbers until it is healed, as a disk does that comes and goes
    def __init__(self, *bad, error=OSError):
        self.bad = set(bad)
        self.error = error

    def __call__(self, x):
        if x in self.bad:
            raise self.error(f"bad {x}")
        return x
