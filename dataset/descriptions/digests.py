"""Digests of functions, objects and data, which are equal in all programs where these are equal.

- A function counts with its bytecode, constants, defaults, the values that it closes over, and what
  it names in its module or in other modules of the user.
- An object of a user's class counts with the methods and constants of the class, and with its
  attributes: those of ``__getstate__``, if the class defines it.
- What code changes itself while elements are computed does not count: counters, logs, caches, open
  files (see ``code_names``).
- Values of Python's own library count with what pickle keeps of them. Iterators, generators of
  random numbers, and what cannot be pickled, such as locks and files, count with their class.
- Code of installed packages is taken to be the same. Their objects count with their text (``repr``)
  and, where NumPy can read them, their values.
- Of large data parts are compared.
"""

from __future__ import annotations

import copyreg
import enum
import functools
import hashlib
import inspect
import os
import random
import sys
import types
from argparse import Namespace
from collections import deque
from collections.abc import Callable, Iterator
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.naming import stable_repr, without_addresses
from gristmill.dataset.descriptions.code_names import changed_attributes, names_of

_MAX_ITEMS = 1000  # of a list whose values are compared; of a longer one as many, evenly spread
_MAX_END = 1 << 15  # bytes at each end of a long text
_MAX_BYTES = 1 << 26  # of arrays, likewise
_MAX_DEPTH = 50
_STANDARD = Path(os.__file__).parent  # where the modules of Python itself are
_MUTABLE = (list, dict, set, bytearray, deque, np.ndarray)
_PLAIN = (int, float, complex, str, bytes, bool, type(None))
_SPACES = (types.ModuleType, types.SimpleNamespace, Namespace)
_DESCRIPTORS = (types.MemberDescriptorType, types.GetSetDescriptorType)
_USED_UP = (
    *(random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator),
    Iterator,
)


class Digest:
    """A hash of values and code. Each function, class and object with attributes is added once.

    Args:
        add_dataset: adds a dataset to a digest.
    """

    def __init__(self, add_dataset: Callable[[Digest, Any], None] | None = None) -> None:
        self._hash = hashlib.sha256()
        self._add_dataset = add_dataset
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # so that no other object gets the same id
        self._depth = 0
        self._num_bytes = 0  # of arrays

    def hexdigest(self) -> str:
        return self._hash.hexdigest()[:16]

    def add(self, value: Any) -> None:
        """Adds a value: plain ones by content, functions by code, others by class and content."""
        kind = type(value)
        self._depth += 1
        if kind in (bytes, str):
            self._add_text(value if kind is bytes else value.encode("utf-8", "surrogatepass"))
        elif kind in _PLAIN:
            self._note(f"{kind.__name__} {value!r}")
        elif self._depth > _MAX_DEPTH:
            self._note("deeper")
        elif isinstance(value, np.ndarray):
            self._add_array(value)
        elif kind in (list, tuple):
            self._add_list(value)
        elif kind is dict:
            self._note(f"dict {len(value)}")
            self._add_list([*value.keys(), *value.values()])
        elif kind in (set, frozenset):
            self._add_set(value)
        elif id(value) in self._seen:
            self._note("again")
        else:
            self._seen.add(id(value))
            self._kept.append(value)
            self._add_object(value)
        self._depth -= 1

    def add_class(self, kind: type) -> None:
        """Adds the methods and constants of a class of the user; of others the name."""
        is_own = not _is_installed(kind)
        self._note(f"class {kind.__qualname__}" if is_own else _full_name(kind))
        if id(kind) in self._seen or not is_own:
            return
        self._seen.add(id(kind))
        self._kept.append(kind)
        for base in kind.__bases__:
            self.add_class(base)
        _, _, stored, mutated = _changed(kind)
        for name, value in sorted(vars(kind).items()):
            function = _function_in(value)
            if function is not None:
                self._note(name)
                self.add(function)
            elif not (
                name.startswith("__")
                or name in stored
                or name == "_abc_impl"
                or isinstance(value, _DESCRIPTORS)
                or (name in mutated and isinstance(value, _MUTABLE))
            ):
                self._note(name)
                self.add(value)

    def add_attributes(self, value: object, state: Any = None, *, but: str | None = None) -> None:
        """Adds the attributes of an object, except for those that its methods change.

        Args:
            value: the object.
            state: its attributes, if they are not all.
            but: the beginning of names of attributes that are excluded, too.
        """
        _, _, stored, mutated = _changed(type(value))
        found = _attributes(value) if state is None else state
        for name, attribute in found.items():
            if not (
                name in stored
                or (but is not None and name.startswith(but))
                or isinstance(inspect.getattr_static(type(value), name, None), _COMPUTED_ONCE)
                or (name in mutated and isinstance(attribute, _MUTABLE))
            ):
                self._note(name)
                self.add(attribute)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, functools.partial):
            self.add((value.func, value.args, dict(value.keywords)))
        elif isinstance(value, types.MethodType):
            self.add((value.__self__, value.__func__))
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, types.BuiltinFunctionType):
            self._note(f"{value.__module__}.{value.__qualname__}")
            if not isinstance(value.__self__, types.ModuleType):
                self.add(value.__self__)
        elif isinstance(value, type):
            self.add_class(value)
        elif isinstance(value, types.ModuleType):
            self._note(value.__name__)
        elif isinstance(value, np.generic):
            self._note(f"{value.dtype} {value!r}")
        elif isinstance(getattr(value, "__wrapped__", None), types.FunctionType):
            self.add((_full_name(type(value)), inspect.unwrap(value)))
        elif self._add_dataset is not None and hasattr(type(value), "_gm_node_family"):
            self._add_dataset(self, value)
        elif isinstance(value, enum.Enum):
            self._add_enum(value)
        elif not _is_installed(type(value)):
            self._add_own(value)
        elif _is_of_python(type(value)):
            self._add_value(value)
        else:
            self._add_installed(value)

    def _add_enum(self, value: enum.Enum) -> None:
        self._note(f"{_full_name(type(value))} {value.name}")
        self.add(value.value)

    def _add_own(self, value: object) -> None:
        """Adds an object of a user's class."""
        kind = type(value)
        self.add_class(kind)
        base: Any
        for base in (list, tuple, dict, set, frozenset, int, float, complex, str, bytes):
            if isinstance(value, base):
                self.add(base(value))
        state = None
        if getattr(kind, "__getstate__", None) is not getattr(object, "__getstate__", None):
            try:
                state = value.__getstate__()
            except Exception:  # the user's own, of an object that pickles otherwise
                state = None
        if state is None or isinstance(state, dict):
            self.add_attributes(value, state)
        else:
            self.add(state)

    def _add_value(self, value: object) -> None:
        """Adds an object of Python's library or NumPy, as pickle keeps it."""
        kind = type(value)
        self._note(_full_name(kind))
        if isinstance(value, _USED_UP):
            return
        if not _is_value(kind):  # such as a thread
            self.add(getattr(value, "__dict__", None) if callable(value) else None)
            return
        try:
            reduce = copyreg.dispatch_table.get(kind)
            parts: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:  # it cannot be pickled
            return
        if not isinstance(parts, str):
            parts = [[*part] if isinstance(part, Iterator) else part for part in parts]
        self.add(parts)

    def _add_installed(self, value: object) -> None:
        """Adds an object of an installed package."""
        kind = type(value)
        self._note(_full_name(kind))
        files = getattr(value, "described_files", None)  # of our own sources, wherever they are
        try:
            if callable(files):
                self.add(files())
            elif not self._add_as_array(value):
                self._add_text(without_addresses(stable_repr(value)).encode(errors="replace"))
            self.add(getattr(value, "_fingerprint", None))  # of Hugging Face
        except Exception:  # of the package: nothing is known but the class
            self._note("no text")
        for function in _users_functions(value, set()):  # such as parse= of a source
            self.add(function)

    def _add_as_array(self, value: object) -> bool:
        if not hasattr(type(value), "__array__"):
            return False
        try:
            array = np.asarray(value)
        except Exception:  # such as a tensor with gradients
            return False
        self._add_array(array)
        return True

    def _add_text(self, value: bytes) -> None:
        """Adds bytes: of long ones the length and both ends."""
        self._note(f"text {len(value)}")
        is_long = len(value) > 2 * _MAX_END
        for part in (value[:_MAX_END], value[-_MAX_END:]) if is_long else (value,):
            self._hash.update(part)

    def _add_array(self, value: np.ndarray[Any, Any]) -> None:
        self._note(f"array {value.dtype} {value.shape}")
        if isinstance(value, np.ma.MaskedArray):
            self._add_array(np.ma.getmaskarray(value))
        value = np.asarray(value)
        rows = value.reshape(-1) if value.ndim == 0 else value
        if value.dtype.hasobject:
            self._add_list(rows[:_MAX_ITEMS].tolist())
        else:
            step = -(-value.nbytes // max(_MAX_BYTES - self._num_bytes, _MAX_END)) or 1
            data = np.ascontiguousarray(rows[::step]).tobytes()
            self._num_bytes += len(data)
            self._hash.update(data)

    def _add_list(self, value: list[Any] | tuple[Any, ...]) -> None:
        self._note(f"{type(value).__name__} {len(value)}")
        step = -(-len(value) // _MAX_ITEMS) or 1
        for item in value[::step]:
            self.add(item)

    def _add_set(self, value: AbstractSet[Any]) -> None:
        """Adds a set in an order that does not depend on the hashes of this process."""
        items = [f"{type(item).__name__} {item!r}" for item in value if type(item) in _PLAIN]
        for item in value if len(items) < len(value) else ():
            inner = type(self)(self._add_dataset)
            inner._depth = self._depth
            inner.add(item)
            items.append(inner.hexdigest())
        self._note(f"set {sorted(items)}")

    def _add_function(self, function: types.FunctionType) -> None:
        if _is_installed(function):
            self._note(f"{function.__module__}.{function.__qualname__}")
            return
        self._add_code(function.__code__)
        self.add((function.__defaults__, function.__kwdefaults__))
        names = names_of(function.__code__)
        for name, cell in zip(
            function.__code__.co_freevars, function.__closure__ or (), strict=True
        ):
            try:
                self._add_named(name, cell.cell_contents, function)
            except ValueError:  # not assigned yet
                continue
        for name in sorted(names.globals & function.__globals__.keys()):
            self._add_named(name, function.__globals__[name], function)

    def _add_named(self, name: str, value: object, function: types.FunctionType) -> None:
        """Adds a value that a function knows by a name, unless the function changes it."""
        names = names_of(function.__code__)
        if name in names.stored or (name in names.mutated and isinstance(value, _MUTABLE)):
            return
        self._note(name)
        if not isinstance(value, _SPACES):
            self.add(value)
        elif not isinstance(value, types.ModuleType) or not _is_installed(value):
            for inner in sorted(names.loaded & vars(value).keys()):
                self._add_named(inner, vars(value)[inner], function)

    def _add_code(self, code: types.CodeType) -> None:
        self._note(f"{code.co_names} {code.co_varnames}")
        self._hash.update(code.co_code)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._add_code(constant)
            elif isinstance(constant, frozenset):
                self._note(f"{sorted(map(repr, constant))}")
            else:
                self._note(f"{type(constant).__name__} {constant!r}")

    def _note(self, text: str) -> None:
        self._hash.update(f"{text}\0".encode("utf-8", "surrogateescape"))


_COMPUTED_ONCE = functools.cached_property


def _changed(kind: type) -> Any:
    """Returns the names that the methods of a class change."""
    functions: dict[str, list[types.CodeType]] = {}
    for base in kind.__mro__:
        for name, value in vars(base).items() if not _is_installed(base) else ():
            code = getattr(_function_in(value), "__code__", None)
            if code is not None:
                functions.setdefault(name, []).append(code)
    return changed_attributes(functions)


def _function_in(value: Any) -> Any:
    """Returns the function of a method, property or decorated function of a class."""
    if isinstance(value, staticmethod | classmethod):
        value = value.__func__
    elif isinstance(value, property):
        value = value.fget
    elif isinstance(value, _COMPUTED_ONCE):
        value = value.func
    value = inspect.unwrap(value) if hasattr(value, "__wrapped__") else value
    return value if isinstance(value, types.FunctionType) else None


def _users_functions(value: object, seen: set[int]) -> Iterator[Any]:
    """Yield the functions of the user that an object of this library has."""
    if type(value).__module__.partition(".")[0] != "gristmill" or id(value) in seen:
        return
    seen.add(id(value))
    for inner in getattr(value, "__dict__", {}).values():
        if callable(inner) and not _is_installed(inner):
            yield inner
        else:
            yield from _users_functions(inner, seen)


def _is_value(kind: type) -> bool:
    """Returns True for a class that says itself what of its objects is pickled."""
    default: Any = object
    return (
        kind in copyreg.dispatch_table
        or kind.__reduce__ is not default.__reduce__
        or kind.__reduce_ex__ is not default.__reduce_ex__
        or hasattr(kind, "__getnewargs__")
        or kind in _SPACES
    )


def _attributes(value: object) -> dict[str, Any]:
    slots = [
        name
        for base in type(value).__mro__
        for name in [vars(base).get("__slots__", ())]
        for name in ([name] if isinstance(name, str) else name)
    ]
    found = {name: getattr(value, name) for name in slots if hasattr(value, name)}
    return {**found, **getattr(value, "__dict__", {})}


def _full_name(kind: type) -> str:
    return f"class {kind.__module__}.{kind.__qualname__}"


def _is_of_python(kind: type) -> bool:
    """Returns True for classes of Python's library and of NumPy."""
    name = kind.__module__.partition(".")[0]
    return name == "numpy" or name in sys.stdlib_module_names


def _is_installed(value: Any) -> bool:
    """Returns True for code of Python itself and of packages."""
    is_module = isinstance(value, types.ModuleType)
    name = value.__name__ if is_module else getattr(value, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    if name == "__main__" or (
        file is None and name in sys.modules and name not in sys.builtin_module_names
    ):
        return False
    if file is None or name.partition(".")[0] == "gristmill":
        return file is not None or name in sys.builtin_module_names
    return "site-packages" in Path(file).parts or Path(file).is_relative_to(_STANDARD)
