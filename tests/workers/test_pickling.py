"""Instances of classes of ``__main__``, which travel by value: each comes back as one of the program's own class, and equal."""

from programs import output

PROGRAM = """
    import abc, collections, enum, typing
    from dataclasses import dataclass, field
    import gristmill as gm

    class Comparable:
        __slots__ = ()
        def parts(self):
            kinds = [(name, type(value).__name__) for cls in type(self).__mro__ for name, value in vars(cls).items()]
            names = [name for name, kind in kinds if kind == "member_descriptor"]
            return {name: getattr(self, name) for name in names if hasattr(self, name)} | getattr(self, "__dict__", {})
        def __eq__(self, other):
            return type(self) is type(other) and self.parts() == other.parts()

    class WithDict:
        def __init__(self, x): self.x, self.y = x, [x]
        def __eq__(self, other): return type(self) is type(other) and vars(self) == vars(other)
    class Slots(Comparable):
        __slots__ = ("x", "empty")
        def __init__(self, x): self.x = x
    class OneSlot(Comparable):
        __slots__ = "only"
        def __init__(self, x): self.only = x
    class Documented(Comparable):
        __slots__ = {"x": "what it is"}
        def __init__(self, x): self.x = x
    class Private(Comparable):
        __slots__ = ("__x", "_y")
        def __init__(self, x): self.__x, self._y = x, self
        def parts(self): return self.__x, self._y is self
    class WithBoth(Comparable):
        __slots__ = ("x", "__dict__", "__weakref__")
        def __init__(self, x): self.x, self.other = x, 2 * x
    class NothingMore(Slots):
        __slots__ = ()
    class MoreSlots(Slots):
        __slots__ = ("z",)
        def __init__(self, x):
            super().__init__(x)
            self.z = -x
    class DictBelowSlots(Slots):
        def __init__(self, x):
            super().__init__(x)
            self.free = x
    class SlotsBelowDict(WithDict):
        __slots__ = ("z",)
        def __init__(self, x):
            super().__init__(x)
            self.z = -x
    class Reduces(Comparable):
        __slots__ = ("x",)
        def __init__(self, x): self.x = x
        def __reduce__(self): return type(self), (self.x,)
    class Abstract(Comparable, abc.ABC):
        __slots__ = ("x",)
        @abc.abstractmethod
        def get(self): pass
    class Concrete(Abstract):
        __slots__ = ()
        def __init__(self, x): self.x = x
        def get(self): return self.x
    T = typing.TypeVar("T")
    class Box(Comparable, typing.Generic[T]):
        __slots__ = ("x",)
        def __init__(self, x): self.x = x
    class Error(Exception):
        __slots__ = ("x",)
        def __init__(self, x):
            super().__init__(x)
            self.x = x
        def __eq__(self, other): return type(self) is type(other) and (self.args, self.x) == (other.args, other.x)
    @dataclass(slots=True)
    class DataSlots:
        x: int
        y: list = field(default_factory=list)
    @dataclass(frozen=True, slots=True, order=True, weakref_slot=True)
    class FrozenSlots:
        x: int
    class Row(typing.NamedTuple):
        x: int
    class RowWithMethods(collections.namedtuple("Parts", "x y")):
        __slots__ = ()
        def __new__(cls, x): return super().__new__(cls, x, -x)
        def __getnewargs__(self): return self[:1]
    class Color(enum.Enum):
        RED = 0
        GREEN = 1

    slotted = [Slots, OneSlot, Documented, Private, WithBoth, NothingMore, MoreSlots, DictBelowSlots, SlotsBelowDict, Reduces]
    classes = [WithDict, *slotted, Concrete, Box, Error, DataSlots, FrozenSlots, Row, RowWithMethods, Color]

    def layout(value):
        '''What there is room for in an instance.'''
        return hasattr(value, "__dict__"), hasattr(value, "__weakref__")

    def make(x):
        value = classes[x // 2](x % 2)
        return value, layout(value), [value, {"captured": captured[x]}]

    captured = [cls(x) for cls in classes for x in (0, 1)]
    options = gm.MultiprocessingOptions(num_workers=1)
    seen = list(gm.MapDataset.range(len(captured)).map(make).to_iter_dataset().mp_prefetch(options))
    for expected, (value, there, (again, inner)) in zip(captured, seen, strict=True):
        assert type(value) is type(expected), (value, expected)
        assert value == expected == inner["captured"], (value, expected)
        assert again is value
        assert there == layout(expected), (expected, there)
"""


def test_instances_of_every_kind_of_class_of_the_program(tmp_path):
    assert output(tmp_path, PROGRAM) == []
