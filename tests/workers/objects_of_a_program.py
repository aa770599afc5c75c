"""A program with one object of each kind.

It runs as a script, by ``-c``, from standard input and as a cell of a notebook. It prints the
objects that differ in a worker, and the frames of an error without workers and with one.
"""

import abc
import collections.abc
import colorsys
import dataclasses
import enum
import functools
import sys
import threading
import traceback
import types
import typing
import weakref

import numpy as np

import gristmill as gm


@functools.cache
def cached(x):
    return 1 if x < 2 else x * cached(x - 1)


@functools.lru_cache(maxsize=8, typed=True)
def lru_cached(x):
    return x, cached(x)


def remembered(function):
    return functools.wraps(function)(functools.lru_cache(lambda x: (function(x), "remembered")))


@remembered
def wrapped_cached(x):
    return x


@functools.cache
class CachedClass:
    pass


@functools.singledispatch
def kind(x):
    return "other"


@kind.register
def _(x: int):
    return "int"


@kind.register(list)
def _(x):
    return [kind(y) for y in x]


@kind.register(collections.abc.Mapping)
def _(x):
    return {key: kind(y) for key, y in x.items()}


class Tokenizer:
    def __init__(self):
        self.n = 3

    @functools.lru_cache  # noqa: B019 (that it is one is the point)
    def cached_method(self, x):
        return x * self.n

    @functools.cached_property
    def two(self):
        """Twice one."""
        return 2

    @staticmethod
    @functools.cache
    def static(x):
        return x + 1

    @classmethod
    @functools.cache
    def of_class(cls, x):
        return cls.__name__, x

    @functools.singledispatchmethod
    def kind(self, x):
        return "other"

    @kind.register
    def _(self, x: int):
        return "int", self.n

    def power(self, x, y):
        return x**y

    cube = functools.partialmethod(power, y=3)


class OwnProperty(functools.cached_property):
    pass


class Derived(Tokenizer):
    three = OwnProperty(lambda self: self.two + 1)

    @functools.cached_property
    def two(self):
        return super().two + 10


class Color(enum.Enum):
    RED = 1
    CRIMSON = 1  # noqa: PIE796 (another name of the same member)
    GREEN = enum.auto()


class Planet(enum.Enum):
    EARTH = 6, 3
    MARS = 3, 2

    def __init__(self, mass, radius):
        self.density = mass / radius
        self.twin = self


class Size(str, enum.Enum):  # noqa: UP042 (with a value of its own)
    S = "s", 1
    L = "l", 2

    def __new__(cls, text, number):
        self = str.__new__(cls, text)
        self._value_, self.text = number, text * 2
        return self


class AnyCase(enum.EnumMeta):
    def __getitem__(cls, name):
        return super().__getitem__(name.upper())


class Named(enum.Enum, metaclass=AnyCase):
    """Without members."""


class Split(Named):
    TRAIN = 1


class Shape(tuple, enum.Enum):
    WIDE = 1, 2


class Permission(enum.Flag):
    R = 1
    W = 2
    RW = 3


@dataclasses.dataclass
class Base:
    x: int

    @dataclasses.dataclass
    class Inner:
        x: int = 1


class Abstract(abc.ABC):
    @abc.abstractmethod
    def f(self): ...


Abstract.register(int)


@typing.runtime_checkable
class HasF(typing.Protocol):
    def f(self): ...


class Typed(typing.TypedDict, total=False):
    a: int


class MoreTyped(Typed):
    b: int


CalledTyped = typing.TypedDict("CalledTyped", {"not a name": int})


class LazyModule(types.ModuleType):
    def __getattr__(self, name):
        return getattr(colorsys, name)


def failing(i):
    def inner(j):
        return [(lambda k: tokenizer.missing(k))(j) for _ in range(1)]

    return inner(i)


tokenizer = Tokenizer()
Identifier = typing.NewType("Identifier", int)
P, Ts = typing.ParamSpec("P"), typing.TypeVarTuple("Ts")
by_size = functools.cmp_to_key(lambda a, b: b - a)
doubled = np.frompyfunc(lambda x: 2 * x, 1, 1)
strong = weakref.WeakKeyDictionary({tokenizer: 5})
alive = weakref.WeakValueDictionary({"t": tokenizer})
own = threading.local()
lazy = sys.modules["colorsys"] = LazyModule("a module that is imported by another name")
table = np.array([(1, 2.5)], [("id", "i4"), ("w", "f8")]).view(np.recarray)

CASES = {
    "recursive cache": lambda: (
        cached(5),
        cached.__wrapped__(1),
        cached.__name__,
        cached.__module__,
    ),
    "lru_cache": lambda: (
        lru_cached(3),
        lru_cached.cache_parameters(),
        lru_cached.cache_clear(),
        lru_cached.cache_info(),
    ),
    "wraps over cache": lambda: wrapped_cached(3),
    "cached class": lambda: CachedClass() is CachedClass(),
    "singledispatch": lambda: (kind([1, "a", {"k": 2}]), [*map(str, kind.registry)], kind.__name__),
    "cached method": lambda: tokenizer.cached_method(2),
    "cached_property": lambda: (tokenizer.two, Tokenizer.two.__doc__, Derived().three),
    "static and class methods": lambda: (Tokenizer.static(1), Derived.of_class(1)),
    "singledispatchmethod": lambda: (tokenizer.kind(1), tokenizer.kind("a")),
    "partialmethod": lambda: tokenizer.cube(2),
    "Enum": lambda: (list(Color.__members__), Color.CRIMSON.name, Color(2).name, len(Color)),
    "Enum with __init__": lambda: (
        Planet.EARTH.density,
        Planet((3, 2)).name,
        Planet.MARS.twin is Planet.MARS,
    ),
    "Enum with __new__": lambda: (str.upper(Size.L), Size(2).text, Size.S.value),
    "Enum with a metaclass": lambda: (Split["train"], len(Split)),
    "Enum of tuples": lambda: (Shape.WIDE, Shape((1, 2)).value),
    "nested class": lambda: Base.Inner(),
    "TypedDict": lambda: (
        sorted(MoreTyped.__required_keys__),
        sorted(MoreTyped.__optional_keys__),
        CalledTyped({"not a name": 1}),
    ),
    "Flag": lambda: (str(Permission.R | Permission.W), str(~Permission.R), Permission(0).name),
    "dataclass": lambda: dataclasses.make_dataclass("D", [("y", int)], bases=(Base,))(1, 2).y,
    "ABC and Protocol": lambda: (
        isinstance(1, Abstract),
        isinstance(tokenizer, HasF),
        sorted(Typed.__optional_keys__),
    ),
    "NewType": lambda: (Identifier(3), Identifier.__name__, Identifier.__supertype__),
    "type parameters": lambda: str((P, Ts)),
    "cmp_to_key": lambda: sorted([1, 3, 2], key=by_size),
    "frompyfunc": lambda: (doubled(4), doubled.nin),
    "weak references": lambda: (strong[tokenizer], alive["t"].n),
    "thread-local": lambda: (setattr(own, "x", 1), own.x),
    "lazy module": lambda: lazy.rgb_to_hsv(1, 0, 0),
    "recarray": lambda: (float(table.w[0]), int(table[0].id)),
}


def outcome(name):
    try:
        return name, repr(CASES[name]())
    except Exception as error:
        return name, repr(error)


def in_workers(ds, num_workers):
    return ds.to_iter_dataset().mp_prefetch(
        gm.MultiprocessingOptions(num_workers, num_lanes=1, executor="processes")
    )


assert "numpy.rec" not in sys.modules, "then it is not known whether a lazy import is a problem"
results = [dict(in_workers(gm.MapDataset.source(list(CASES)).map(outcome), n)) for n in (0, 1)]
for case, expected in results[0].items():
    if results[1][case] != expected or "Error(" in expected:
        print(f"{case}: {expected} here, {results[1][case]} in a worker")
for n in (0, 1):
    try:
        next(iter(in_workers(gm.MapDataset.range(1).map(failing), n)))
    except AttributeError as error:
        frames = [
            x
            for x in traceback.extract_tb(error.__traceback__)
            if x.name in ("failing", "inner", "<lambda>")
        ]
        print(*[(x.filename, x.lineno, x.name, x.line) for x in frames])
