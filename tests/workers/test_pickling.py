"""Objects of ``__main__`` travel by value: they are the same in workers, and when they return."""

import functools
import pickle
import subprocess
import sys
from pathlib import Path

import pytest
from both_ends import Ends
from programs import PATIENCE_SECONDS, output

from gristmill.workers.codec import MIN_SHARED_BYTES, Encoder
from gristmill.workers.pickling import dumps

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
            kinds = [
                (name, type(value).__name__)
                for cls in type(self).__mro__
                for name, value in vars(cls).items()
            ]
            return [name for name, kind in kinds if kind == "member_descriptor"]
        def parts(self):
            return {name: getattr(self, name, None) for name in self.names()} | getattr(
                self, "__dict__", {}
            )
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

        def __eq__(self, other):
            return type(self) is type(other) and (self.args, self.x) == (other.args, other.x)
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
    slotted = [
        Slots,
        OneSlot,
        Documented,
        Private,
        WithBoth,
        NothingMore,
        MoreSlots,
        DictBelowSlots,
        SlotsBelowDict,
    ]
    others = [
        WithDict,
        Itself,
        Reduces,
        Concrete,
        Box,
        Error,
        DataSlots,
        FrozenSlots,
        Row,
        RowWithMethods,
        Color,
    ]
    def layout(value):
        '''What there is room for in an instance.'''
        return hasattr(value, "__dict__"), hasattr(value, "__weakref__")
    captured = [cls(x) for cls in slotted + others for x in (0, 1)]
    def make(i):
        value = (slotted + others)[i // 2](i % 2)
        return value, layout(value), [value, {"captured": captured[i]}]
    options = gm.MultiprocessingOptions(1, executor="processes")
    ds = gm.MapDataset.range(len(captured)).map(make).to_iter_dataset().mp_prefetch(options)
    for expected, (value, there, (again, inner)) in zip(captured, ds, strict=True):
        assert type(value) is type(expected) and value == expected == inner["captured"], (
            value,
            expected,
        )
        assert again is value and there == layout(expected), (expected, there)
    print(Private(7).parts(), DictBelowSlots(8).parts())
"""


def test_instances_of_every_kind_of_class_of_the_program(tmp_path):
    assert output(tmp_path, PROGRAM) == [
        "{'_Private__x': 7, '_y': 7} {'empty': None, 'x': 8, 'free': [8]}"
    ]


OBJECTS = Path(__file__).with_name("objects_of_a_program.py")
CELL = """
import pathlib, sys
from ipykernel.compiler import XCachingCompiler
from IPython.core.interactiveshell import InteractiveShell
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
def test_objects_of_a_program_are_the_same_in_a_worker(way):
    arguments, given, file = WAYS[way]
    done = subprocess.run(
        [sys.executable, *arguments],
        input=given,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    here, in_worker = done.stdout.splitlines()
    assert here == in_worker and file in here
    lines = OBJECTS.read_text().splitlines()
    number = lines.index("def failing(i):") + 1
    for name, offset in (("failing", 4), ("inner", 2), ("<lambda>", 2)):
        assert f"{number + offset}, '{name}', " in here
        if way in ("script", "notebook"):
            assert repr(lines[number + offset - 1].strip()) in here


REGISTERED = """
    import dataclasses, fractions, sys
    import jax
    import numpy as np
    import gristmill as gm
    import nodes
    from jax.tree_util import (
        GetAttrKey,
        register_dataclass,
        register_pytree_node,
        register_pytree_node_class,
    )
    from jax.tree_util import (
        register_pytree_with_keys,
        register_pytree_with_keys_class,
        register_static,
    )
    @register_dataclass
    @dataclasses.dataclass
    class Data:
        x: object
        name: str = dataclasses.field(metadata={"static": True})
    class OnlyKeyed:
        def __init__(self, x): self.x = x
        def tree_flatten_with_keys(self): return ((GetAttrKey("x"), self.x),), None
        @classmethod
        def tree_unflatten(cls, aux, children): return cls(*children)
        def __repr__(self): return f"{type(self).__name__}({self.x!r})"
    class Base(OnlyKeyed):
        def tree_flatten(self): return (self.x,), None
    Node = register_pytree_node_class(type("Node", (Base,), {}))
    KeyedNode = register_pytree_with_keys_class(type("KeyedNode", (OnlyKeyed,), {}))
    @register_static
    @dataclasses.dataclass(frozen=True)
    class Static: x: str = "same"
    class MadeByBase:
        def __init_subclass__(cls): register_dataclass(dataclasses.dataclass(cls))
    class Child(MadeByBase):
        x: object
        name: str = dataclasses.field(default="same", metadata={"static": True})
    class Meta(type):
        def __new__(mcs, *args):
            return register_dataclass(dataclasses.dataclass(super().__new__(mcs, *args)))
    class MadeByMeta(metaclass=Meta): x: object
    class Keyed(Base): pass
    class Plain(Base): pass
    register_pytree_with_keys(
        Keyed, Base.tree_flatten_with_keys, lambda aux, children: Keyed(*children)
    )
    register_pytree_node(Plain, Base.tree_flatten, lambda aux, children: Plain(*children))
    register_pytree_node(nodes.Late, Base.tree_flatten, lambda aux, children: nodes.Late(*children))
    register_dataclass(nodes.Fields, ["x"], [], drop_fields=["y"])
    register_pytree_node(
        fractions.Fraction,
        lambda f: ((f.numerator,), f.denominator),
        lambda aux, c: ("fraction", aux, *c),
    )
    x = lambda i: np.full(2 + i // 2, i)
    makers = [
        lambda i: Data(x(i), "a"),
        lambda i: Node(x(i)),
        lambda i: KeyedNode(x(i)),
        lambda i: Keyed(x(i)),
        lambda i: Plain(x(i)),
        lambda i: [Static(), x(i)],
        lambda i: nodes.Early(x(i)),
        lambda i: nodes.Late(x(i)),
        lambda i: nodes.Fields(x(i)),
        lambda i: Child(x(i)),
        lambda i: MadeByMeta(x(i)),
        lambda i: fractions.Fraction(i, 7),
        lambda i: __import__("lazy_nodes").Lazy(x(i)),
        lambda i: [jax.random.key(i), x(i)],
    ]
    def register_again(index, count):
        register_pytree_node(Plain, Base.tree_flatten, lambda aux, children: Plain(*children))
    def outputs(ds, n, *init):
        options = gm.MultiprocessingOptions(n, num_lanes=1, executor="processes")
        found = []
        with iter(ds.to_iter_dataset().batch(n_rows).mp_prefetch(options, *init)) as it:
            for _ in makers:
                try: found.append(repr(next(it)))
                except ValueError as error:
                    found.append(str(error))
                    it.skip_failed()
        return found
    # The last of 3 rows has another shape, so that the error names the leaf.
    for n_rows, init in ((2, []), (3, [register_again])):
        ds = gm.MapDataset.range(n_rows * len(makers)).map(
            lambda i: makers[i // n_rows](i % n_rows)
        )
        here = outputs(ds, 0)
        assert not [text for text in here if "object" in text], here
        for a, b in zip(here, outputs(ds, 1, *init), strict=True):
            print(*([] if a == b else [a, b]), end="")
    def uses_no_jax(i): return i, "jax" in sys.modules
    options = gm.MultiprocessingOptions(1, executor="processes")
    used = gm.MapDataset.range(2).map(uses_no_jax).to_iter_dataset().batch(2).mp_prefetch(options)
    print(next(iter(used))[1])
"""
NODES = """
import dataclasses, jax
class Base:
    def __init__(self, x): self.x = x
    def __repr__(self): return f"{type(self).__name__}({self.x!r})"
class Late(Base): pass
class Early(Base): pass
@dataclasses.dataclass
class Fields:
    x: object
    y: int = 0
jax.tree_util.register_pytree_node(
    Early, lambda early: ((early.x,), None), lambda aux, children: Early(*children)
)
"""


def test_classes_registered_with_jax_are_nodes_in_workers(tmp_path):
    (tmp_path / "nodes.py").write_text(NODES)
    (tmp_path / "lazy_nodes.py").write_text(NODES.replace("Early", "Lazy"))
    assert output(tmp_path, REGISTERED) == ["[False False]"]


class Refuses:
    """Raises an error that has notes as pickle adds them from Python 3.14 on, and one of its
    own.
    """

    def __reduce__(self):
        error = TypeError("refused")
        for note in ("when serializing dict item 0", "mine", *["when serializing dict item 1"] * 2):
            error.add_note(note)
        raise error


def nested(value, depth):
    for _ in range(depth):
        value = [value]
    return value


def failures():
    """Returns functions that must fail to pickle a value: alone, as an element and as a state."""
    with Ends() as ends:
        encoder = Encoder(ends.arena, MIN_SHARED_BYTES)
        yield dumps
        yield lambda value: pickle_error(encoder.encode([value], None).failure)
        yield lambda value: encoder.encode([], value)


def pickle_error(failure):
    expected = "An element of type list could not be sent from a worker process."
    assert (failure.__notes__.pop()) == expected
    raise failure


class Proxy:
    """Says that it is of the class of another object, as proxies do."""

    def __init__(self, of):
        self.of = of

    __class__ = property(lambda self: type(self.of))

    def __reduce__(self):
        return Proxy, (self.of,)


@pytest.mark.parametrize(
    "of", [dumps, Proxy, functools.cached_property(len)], ids=["function", "class", "property"]
)
def test_proxies_are_pickled_by_what_they_are(of):
    proxy = pickle.loads(dumps([lambda: None, Proxy(of)]))[1]  # by cloudpickle
    assert type(proxy) is Proxy and type(proxy.of) is type(of)


def test_of_the_notes_of_pickle_the_last_one_is_kept():
    for fail in failures():
        with pytest.raises(TypeError, match="refused") as caught:
            fail(nested(Refuses(), 20))
        last = "list item 0" if sys.version_info >= (3, 14) else "dict item 1"
        assert caught.value.__notes__ == ["mine", f"when serializing {last}"]
        with pytest.raises(pickle.PicklingError, match="deep recursion") as caught:
            fail(nested(0, 100_000))
        for error in (caught.value, caught.value.__cause__):
            assert len(getattr(error, "__notes__", [])) <= 1
