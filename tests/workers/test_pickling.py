"""Objects of ``__main__``, which travel by value: in workers they are as in the program, and come back as they were."""

import subprocess
import sys
from pathlib import Path

import pytest
from programs import PATIENCE_SECONDS, output

PROGRAM = """
    import abc, collections, enum, typing
    from dataclasses import dataclass, field
    import gristmill as gm
    class Base:
        '''Sets all its slots but one, and compares them.'''
        __slots__ = ()
        def __init__(self, x):
            for name in self.names():
                if name != "empty":
                    setattr(self, name, x)
            if hasattr(self, "__dict__"):
                self.free = [x]
        def names(self):
            kinds = [(name, type(value).__name__) for cls in type(self).__mro__ for name, value in vars(cls).items()]
            return [name for name, kind in kinds if kind == "member_descriptor"]
        def parts(self):
            return {name: getattr(self, name, None) for name in self.names()} | getattr(self, "__dict__", {})
        def __eq__(self, other):
            return type(self) is type(other) and self.parts() == other.parts()
    class WithDict(Base): pass
    class Slots(Base): __slots__ = ("x", "empty")
    class OneSlot(Base): __slots__ = "only"
    class Documented(Base): __slots__ = {"x": "what it is"}
    class Private(Base): __slots__ = ("__x", "_y")
    class WithBoth(Base): __slots__ = ("x", "__dict__", "__weakref__")
    class NothingMore(Slots): __slots__ = ()
    class MoreSlots(Slots): __slots__ = ("z",)
    class DictBelowSlots(Slots): pass
    class SlotsBelowDict(WithDict): __slots__ = ("z",)
    class Itself(Base):
        __slots__ = ("x", "me")
        def __init__(self, x): self.x, self.me = x, self
        def parts(self): return self.x, self.me is self
    class Reduces(Base):
        __slots__ = ("x",)
        def __reduce__(self): return type(self), (self.x,)
    class Abstract(Base, abc.ABC): __slots__, get = ("x",), abc.abstractmethod(lambda self: 0)
    class Concrete(Abstract): __slots__, get = (), lambda self: self.x
    T = typing.TypeVar("T")
    class Box(Base, typing.Generic[T]): __slots__ = ("x",)
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
    class FrozenSlots: x: int
    class Row(typing.NamedTuple): x: int
    class RowWithMethods(collections.namedtuple("Parts", "x y")):
        __slots__ = ()
        def __new__(cls, x): return super().__new__(cls, x, -x)
        def __getnewargs__(self): return self[:1]
    class Color(enum.Enum): RED, GREEN = 0, 1
    slotted = [Slots, OneSlot, Documented, Private, WithBoth, NothingMore, MoreSlots, DictBelowSlots, SlotsBelowDict]
    others = [WithDict, Itself, Reduces, Concrete, Box, Error, DataSlots, FrozenSlots, Row, RowWithMethods, Color]
    def layout(value):
        '''What there is room for in an instance.'''
        return hasattr(value, "__dict__"), hasattr(value, "__weakref__")
    captured = [cls(x) for cls in slotted + others for x in (0, 1)]
    def make(i):
        value = (slotted + others)[i // 2](i % 2)
        return value, layout(value), [value, {"captured": captured[i]}]
    ds = gm.MapDataset.range(len(captured)).map(make).to_iter_dataset().mp_prefetch(gm.MultiprocessingOptions(1))
    for expected, (value, there, (again, inner)) in zip(captured, ds, strict=True):
        assert type(value) is type(expected) and value == expected == inner["captured"], (value, expected)
        assert again is value and there == layout(expected), (expected, there)
    print(Private(7).parts(), DictBelowSlots(8).parts())
"""


def test_instances_of_every_kind_of_class_of_the_program(tmp_path):
    assert output(tmp_path, PROGRAM) == ["{'_Private__x': 7, '_y': 7} {'empty': None, 'x': 8, 'free': [8]}"]


OBJECTS = Path(__file__).with_name("objects_of_a_program.py")
CELL = """
import pathlib, sys
from IPython.core.interactiveshell import InteractiveShell
from ipykernel.compiler import XCachingCompiler
InteractiveShell.compiler_class = XCachingCompiler
InteractiveShell.instance().run_cell(pathlib.Path(sys.argv[1]).read_text())
"""
WAYS = {
    "script": ([OBJECTS], "", str(OBJECTS)),
    "command": (["-c", OBJECTS.read_text()], "", "<string>"),
    "standard input": (["-"], OBJECTS.read_text(), "<stdin>"),
    "notebook": (["-c", CELL, OBJECTS], "", "ipykernel"),
}


@pytest.mark.parametrize("way", WAYS)
def test_objects_of_a_program_are_the_same_in_a_worker_and_errors_show_their_lines(way):
    arguments, given, file = WAYS[way]
    done = subprocess.run([sys.executable, *arguments], input=given, capture_output=True, text=True, timeout=PATIENCE_SECONDS)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    here, in_worker = done.stdout.splitlines()
    assert here == in_worker and file in here
    lines = OBJECTS.read_text().splitlines()
    number = lines.index("def failing(i):") + 1
    for name, offset in (("failing", 4), ("inner", 2), ("<lambda>", 2)):
        assert f"{number + offset}, '{name}', " in here
        if way in ("script", "notebook"):
            assert repr(lines[number + offset - 1].strip()) in here
