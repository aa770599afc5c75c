"""The data that the functions of a stage keep between calls: in closures, attributes, global
variables.
"""

from __future__ import annotations

import contextlib
import os
import random
import sys
import types
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.naming import transform_name
from gristmill.dataset.bases.node import DatasetNode, is_of_library
from gristmill.dataset.bases.parameters import parameters_of
from gristmill.dataset.descriptions.equality import digest_of

_MAX_DEPTH = 5
_MAX_THINGS = 2000
_MAX_BYTES = 1 << 24  # of an array that is looked at
_MAX_LENGTH = 100_000
_LIBRARIES = ("gristmill", "builtins", "abc", "typing", "numpy", "collections")
_PLAIN_MODULES = ("builtins", "numpy", "gristmill", "collections", "functools")
_GENERATORS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)


def kept_by(stage: Any) -> dict[str, tuple[str, bytes]]:
    """Return the data that the functions of a stage can reach: for the words that name it, its kind
    and its digest.
    """
    walk = _Walk()
    if not is_of_library(stage):
        walk.visit_object("its attribute {name}", stage, 0)
    for value in [*vars(stage).values(), *parameters_of(stage).as_dict().values()]:
        if callable(value) or not _is_plain(value):
            walk.visit("", value, 0)
    return walk.found


def changes(
    before: dict[str, tuple[str, bytes]], after: dict[str, tuple[str, bytes]]
) -> Iterator[tuple[str, str]]:
    """Yields kind and name of what has changed, and then of what is new."""
    for name, (kind, digest) in after.items():
        if name in before and before[name][1] != digest:
            yield kind, name
    for name, (kind, _) in after.items():
        if name not in before:
            yield kind, name


def _is_plain(value: Any) -> bool:
    module = type(value).__module__.partition(".")[0]
    return module in _PLAIN_MODULES and not isinstance(value, _GENERATORS)


def _kind(value: Any) -> str:
    if isinstance(value, _GENERATORS):
        return "generator"
    return "iterator" if isinstance(value, Iterator) else "state"


def _bases_of_users(cls: type) -> list[type]:
    return [base for base in cls.__mro__ if base.__module__.partition(".")[0] not in _LIBRARIES]


def _is_data(name: str, value: Any) -> bool:
    """True if an attribute of a class is neither a method nor one of those that Python makes."""
    return not name.startswith("__") and not callable(value) and not hasattr(value, "__get__")


class _Walk:
    """Goes from a function to all that it can reach."""

    def __init__(self) -> None:
        self.found: dict[str, tuple[str, bytes]] = {}
        self._seen: set[int] = set()
        self._alive: list[Any] = []  # so that ids stay those of what was seen

    def visit(self, name: str, value: Any, depth: int) -> None:
        is_passed = isinstance(value, types.ModuleType | DatasetNode) or depth > _MAX_DEPTH
        if is_passed or id(value) in self._seen or len(self._seen) > _MAX_THINGS:
            return
        if isinstance(value, types.FunctionType | types.MethodType | partial | type) or hasattr(
            value, "__dict__"
        ):
            self._seen.add(id(value))
            self._alive.append(value)
        if hasattr(value, "cache_info") and hasattr(value, "__wrapped__"):  # lru_cache
            cache = f"the cache of {transform_name(value.__wrapped__)}"
            self.found[cache] = ("cache", digest_of(tuple(value.cache_info())))
            self.visit(name, value.__wrapped__, depth + 1)
        elif isinstance(value, types.FunctionType):
            self._visit_function(value, depth)
        elif isinstance(value, types.MethodType):
            self.visit(name, value.__self__, depth)
            self.visit(name, value.__func__, depth + 1)
        elif isinstance(value, partial):
            for x in (value.func, *value.args, *value.keywords.values()):
                self.visit(f"an argument of {transform_name(value.func)}", x, depth + 1)
        elif isinstance(value, type):
            self._visit_class(value, depth)
        elif name:
            self._note(name, value, depth)
        else:
            self.visit_object(f"the attribute {{name}} of {type(value).__name__}", value, depth)

    def _visit_class(self, cls: type, depth: int) -> None:
        for base in _bases_of_users(cls):
            for name, value in list(vars(base).items()):
                if isinstance(value, types.FunctionType):
                    self.visit("", value, depth + 1)
                elif _is_data(name, value):
                    self.visit(f"the attribute {name} of class {base.__name__}", value, depth + 1)

    def _visit_function(self, fn: types.FunctionType, depth: int) -> None:
        owner = fn.__name__
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=False):
            with contextlib.suppress(ValueError):  # it is empty
                self.visit(f"{name}, in the closure of {owner}", cell.cell_contents, depth + 1)
        for i, value in enumerate([*(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values()]):
            self.visit(f"default argument {i} of {owner}", value, depth + 1)
        for name, value in vars(fn).items():
            self.visit(f"the attribute {name} of {owner}", value, depth + 1)
        names = _global_names(fn.__code__)
        for name in names:
            value = fn.__globals__.get(name)
            if isinstance(value, types.ModuleType):
                if _is_of_program(value.__name__):
                    for attribute in names & vars(value).keys():
                        text = f"the global variable {attribute} of {value.__name__}"
                        self.visit(text, vars(value)[attribute], depth + 1)
            elif (
                not callable(value)
                or isinstance(value, (*_GENERATORS, partial))
                or _is_with(fn, value)
            ):
                self.visit(f"the global variable {name} of {owner}", value, depth + 1)

    def visit_object(self, text: str, value: Any, depth: int) -> None:
        """Visits attributes, which may be those of the class until they are set, and methods."""
        defaults = {
            name: x
            for base in _bases_of_users(type(value))[::-1]
            for name, x in vars(base).items()
            if _is_data(name, x)
        }
        for name, x in {**defaults, **getattr(value, "__dict__", {})}.items():
            self.visit(text.format(name=name), x, depth + 1)
        self._visit_class(type(value), depth)

    def _note(self, name: str, value: Any, depth: int) -> None:
        is_data = _is_plain(value) or isinstance(value, _GENERATORS) or _kind(value) == "iterator"
        if not is_data and getattr(value, "__dict__", None) is not None:
            self.visit_object(f"the attribute {{name}} of {type(value).__name__}", value, depth)
            return
        with contextlib.suppress(Exception):
            length = len(value) if hasattr(value, "__len__") else 0
            if getattr(value, "nbytes", 0) <= _MAX_BYTES and length <= _MAX_LENGTH:
                self.found[name] = (_kind(value), digest_of(_inside(value)))


def _is_with(fn: types.FunctionType, value: Any) -> bool:
    """Return True if ``value`` is of the module of ``fn``, or of another one of the program."""
    module = getattr(value, "__module__", None)
    return module == fn.__module__ or (isinstance(module, str) and _is_of_program(module))


def _is_of_program(module: str) -> bool:
    """Return True if a module is neither of Python nor of an installed package."""
    file = getattr(sys.modules.get(module), "__file__", None)
    if module.partition(".")[0] in _LIBRARIES or not isinstance(file, str):
        return False
    of_packages = any([name in file for name in ("site-packages", "dist-packages")])
    return not of_packages and Path(os.__file__).parent not in Path(file).parents


def _inside(value: Any) -> Any:
    """Return the position of a Python generator, which cannot be pickled; other values
    unchanged.
    """
    if not isinstance(value, types.GeneratorType):
        return value
    frame = value.gi_frame
    return frame and (frame.f_lasti, {k: repr(x)[:1000] for k, x in frame.f_locals.items()})


def _global_names(code: types.CodeType) -> set[str]:
    return {*code.co_names}.union(
        *[_global_names(x) for x in code.co_consts if isinstance(x, types.CodeType)]
    )
