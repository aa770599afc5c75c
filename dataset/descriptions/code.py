"""The description that identifies a pipeline: its stages, and the code of its functions.

The code of a function is compared by the parts that can be compared: its bytecode, constants,
defaults, the values it closes over, and the functions and constants of its module that it names.
Code of installed packages is taken to be the same, and of large data parts are compared. Lists,
dicts and arrays that a function changes itself, such as a log of its calls, do not count. Bytecode
differs between versions of Python, so it is compared within one version only.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import inspect
import os
import sys
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import StateMismatchError
from gristmill.core.naming import transform_name
from gristmill.core.state import shown
from gristmill.dataset.bases.node import is_of_library
from gristmill.dataset.bases.parameters import parameters_of
from gristmill.dataset.descriptions.pipeline import check_description, describe, source_first
from gristmill.sources.columns import ColumnsDataSource

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
_MAX_ITEMS = 1000  # of a list whose values are compared; of a longer one as many, evenly spread
_MAX_END = 1 << 15  # bytes at each end of a long text
_MAX_BYTES = 1 << 26  # of arrays, likewise
_MAX_DEPTH = 50
_STANDARD = Path(os.__file__).parent  # where the modules of Python itself are
_MUTATORS = {
    *(
        "add",
        "append",
        "appendleft",
        "clear",
        "discard",
        "extend",
        "insert",
        "pop",
        "popitem",
        "remove",
        "setdefault",
        "sort",
    ),
    *("update", "write", "__setitem__"),
}
_MUTABLE = (list, dict, set, np.ndarray)
_PLAIN = (int, float, complex, str, bytes, bool, type(None))


def described_pipeline(ds: Any) -> dict[str, Any]:
    """Returns the description of a dataset, as JSON: stages, digests of functions and data.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> described_pipeline(MapDataset.range(3).map(abs))["code"][1]["name"]
        'abs'
    """
    return {
        "stages": describe(ds),
        "python": _PYTHON,
        "code": [_code_of(*found) for found in _nodes(ds)],
    }


def pipeline_difference(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """Returns the first difference of two descriptions in words; ``None`` if there is none."""
    try:
        check_description(saved.get("stages"), own["stages"])
    except StateMismatchError as error:
        _, is_difference, text = str(error).partition("pipeline: ")
        # without the remedy of checkpoints
        return text.rpartition(". ")[0] if is_difference else str(error)
    if saved.get("python") != own["python"]:
        return None
    for then, now in zip(saved.get("code", ()), own["code"], strict=False):
        if then != now:
            text = f"the code or the data of {now['stage']} differ"
            if then.get("name") != now["name"]:
                return f"{text}, {shown(then.get('name'))} then, {shown(now['name'])} now"
            return f"{text}: {now['name']}" if now["name"] else text
    return None


def _nodes(ds: Any, *, is_described: bool = True) -> Iterator[tuple[Any, bool]]:
    """Yield the datasets upstream, the sources first, and whether the description of ``ds`` has
    them.

    It has none of those that are sources of others.
    """
    for node in source_first(ds):
        for inner in node._gm_draws_from:
            if not node._gm_parents:
                yield from _nodes(inner, is_described=False)
        yield node, is_described


def _code_of(node: Any, is_described: bool) -> dict[str, str]:
    digest = _Digest()
    parameters = parameters_of(node)
    if not is_described:
        digest.add(parameters.described())
    names = []
    if is_of_library(node):
        values = parameters.as_dict()
        described = parameters.described()
        for name in values:
            if name not in described and (callable(values[name]) or _is_object(values[name])):
                names.append(transform_name(values[name]).partition(" @ ")[0])
                digest.add(values[name])
        if not node._gm_parents and not node._gm_draws_from:
            data = node._gm_data
            is_in_memory = type(data).__module__ == ColumnsDataSource.__module__
            digest.add(vars(data) if is_in_memory else data)
    else:
        digest.add_class(type(node))
        digest.add({name: value for name, value in vars(node).items() if not name.startswith("_")})
    return {
        "stage": str(node.__class__.__name__),
        "name": ", ".join(names),
        "digest": digest.hexdigest(),
    }


def _is_object(value: Any) -> bool:
    return not isinstance(value, _PLAIN) and hasattr(value, "__dict__")


class _Digest:
    """A hash of values and code. Each function, class and object with attributes is added once."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()
        self._seen: set[int] = set()
        self._kept: list[Any] = []  # so that no other object gets the same id
        self._depth = 0
        self._num_bytes = 0  # of arrays

    def hexdigest(self) -> str:
        return self._hash.hexdigest()[:16]

    def add(self, value: Any) -> None:
        """Adds a value: plain ones by content, functions by code, others by their class."""
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
        elif id(value) in self._seen:
            self._note("again")
        else:
            self._seen.add(id(value))
            self._kept.append(value)
            self._add_object(value)
        self._depth -= 1

    def add_class(self, kind: type) -> None:
        """Adds the methods of a class of the user; of others the name."""
        self._note(
            f"class {kind.__module__}.{kind.__qualname__}"
            if _is_installed(kind)
            else f"class {kind.__qualname__}"
        )
        if id(kind) in self._seen or _is_installed(kind):
            return
        self._seen.add(id(kind))
        for base in kind.__bases__:
            self.add_class(base)
        for name in sorted(vars(kind)):
            value = vars(kind)[name]
            value = getattr(value, "__func__", getattr(value, "fget", value))
            if isinstance(value, types.FunctionType):
                self._note(name)
                self.add(value)

    def _add_object(self, value: Any) -> None:
        if isinstance(value, functools.partial):
            self.add((value.func, value.args, dict(value.keywords)))
        elif isinstance(value, types.MethodType):
            self.add((value.__self__, value.__func__))
        elif isinstance(value, types.FunctionType):
            self._add_function(value)
        elif isinstance(value, type):
            self.add_class(value)
        elif isinstance(value, np.generic):
            self._note(f"{value.dtype} {value!r}")
        elif hasattr(value, "__module__") and isinstance(value, types.BuiltinFunctionType):
            self._note(f"{value.__module__}.{value.__qualname__}")
        else:
            self.add_class(type(value))
            if not _is_installed(type(value)):
                self._add_attributes(value)

    def _add_attributes(self, value: Any) -> None:
        """Adds the attributes of an object, except for those that its methods change."""
        methods = [
            inspect.unwrap(x)
            for x in vars(type(value)).values()
            if isinstance(x, types.FunctionType)
        ]
        codes = [
            method.__code__
            for method in methods
            if method.__name__ not in ("__init__", "__post_init__", "__setstate__")
        ]
        assigned = {
            instruction.argval
            for code in codes
            for instruction in dis.get_instructions(code)
            if _assigns(instruction)
        }
        mutates = any(map(_mutates, codes))
        for name, attribute in getattr(value, "__dict__", {}).items():
            if name not in assigned and not (mutates and isinstance(attribute, _MUTABLE)):
                self._note(name)
                self.add(attribute)

    def _add_text(self, value: bytes) -> None:
        """Adds bytes: of long ones the length and both ends."""
        self._note(f"text {len(value)}")
        is_long = len(value) > 2 * _MAX_END
        for part in (value[:_MAX_END], value[-_MAX_END:]) if is_long else (value,):
            self._hash.update(part)

    def _add_array(self, value: np.ndarray[Any, Any]) -> None:
        self._note(f"array {value.dtype} {value.shape}")
        rows = value.reshape(-1) if value.ndim == 0 else value
        if value.dtype.hasobject:
            self._add_list(rows[:_MAX_ITEMS].tolist())
        else:
            step = -(-value.nbytes // max(_MAX_BYTES - self._num_bytes, _MAX_END)) or 1
            data = np.ascontiguousarray(rows[::step]).tobytes()
            self._num_bytes += len(data)
            self._hash.update(data)

    def _add_list(self, value: Any) -> None:
        self._note(f"{type(value).__name__} {len(value)}")
        step = -(-len(value) // _MAX_ITEMS) or 1
        for item in value[::step]:
            self.add(item)

    def _add_function(self, function: types.FunctionType) -> None:
        if _is_installed(function):
            self._note(f"{function.__module__}.{function.__qualname__}")
            return
        self._add_code(function.__code__)
        self.add((function.__defaults__, function.__kwdefaults__))
        mutates = _mutates(function.__code__)
        for cell in function.__closure__ or ():
            try:
                value = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            if not (mutates and isinstance(value, _MUTABLE)):
                self.add(value)
        for name in _names_in(function.__code__):
            value = function.__globals__.get(name)
            if isinstance(value, (*_PLAIN, tuple, types.FunctionType, type)) and value is not None:
                self._note(name)
                self.add(value)

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


def _names_in(code: types.CodeType) -> list[str]:
    inner = [
        name
        for constant in code.co_consts
        if isinstance(constant, types.CodeType)
        for name in _names_in(constant)
    ]
    return [*dict.fromkeys([*code.co_names, *inner])]


def _mutates(code: types.CodeType) -> bool:
    """Returns True if the code may change a list, dict or array in place, as a counter or a log
    is.
    """
    inner = [constant for constant in code.co_consts if isinstance(constant, types.CodeType)]
    is_assigning = any(
        [
            instruction.opname in ("STORE_SUBSCR", "DELETE_SUBSCR")
            for instruction in dis.get_instructions(code)
        ]
    )
    return is_assigning or not _MUTATORS.isdisjoint(code.co_names) or any(map(_mutates, inner))


def _assigns(instruction: dis.Instruction) -> bool:
    return instruction.opname == "STORE_ATTR"


def _is_installed(value: Any) -> bool:
    """Returns True for code of Python itself and of packages."""
    name = getattr(value, "__module__", None) or "builtins"
    file = getattr(sys.modules.get(name), "__file__", None)
    if name == "__main__" or (
        file is None and name in sys.modules and name not in sys.builtin_module_names
    ):
        return False
    if file is None or name.partition(".")[0] == "gristmill":
        return file is not None or name in sys.builtin_module_names
    return "site-packages" in Path(file).parts or Path(file).is_relative_to(_STANDARD)
