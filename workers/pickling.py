"""Pickling between a process and its workers.

Plain pickling is tried first: it is quick. What it cannot do, ``cloudpickle`` can: lambdas,
closures, and functions and classes of ``__main__``, which travel by value. A class that a worker
has received so goes back as a reference, so that an instance that returns is an instance of the
very class of the program.
"""

from __future__ import annotations

import contextlib
import copyreg
import functools
import importlib
import io
import pickle
import sys
from collections import ChainMap
from collections.abc import Callable
from types import FunctionType, ModuleType
from typing import Any, ClassVar

import cloudpickle
import numpy as np
from cloudpickle import cloudpickle as _cloudpickle

from gristmill.core.errors import drop_notes_of_serializing
from gristmill.core.node_types import registered_types, registration_of
from gristmill.workers.classes import completed
from gristmill.workers.flags import is_absl_flags, reduce_flags
from gristmill.workers.reductions import (
    REDUCERS,
    Reduced,
    is_importable,
    is_single_dispatch,
    reduce_cached_property,
    reduce_single_dispatch,
)

# The classes that this process has received by value, and the names under which their owner finds
# them.
_received: dict[type, str] = {}


class CloudPickler(cloudpickle.Pickler):
    """A cloudpickler for the way to a worker and back."""

    dispatch_table: ClassVar[Any] = ChainMap(
        {**cloudpickle.Pickler.dispatch_table, **REDUCERS}, copyreg.dispatch_table
    )

    def reducer_override(self, obj: Any) -> Reduced:
        kind = type(obj)
        if issubclass(kind, type):
            if obj in _received:
                return _class_named, (_received[obj],)
            _import_module_of(obj)
            return completed(obj, super().reducer_override(obj))
        if kind is FunctionType:
            _import_module_of(obj)
            if is_single_dispatch(obj) and not is_importable(obj):
                return reduce_single_dispatch(obj)
            return super().reducer_override(obj)
        if kind is np.ndarray and not obj.dtype.isnative and not obj.dtype.hasobject:
            # NumPy itself sometimes changes the byte order to that of the machine, and the dtype
            # with it.
            return np.ndarray, (obj.shape, obj.dtype, bytearray(obj.tobytes()))
        if kind is io.TextIOWrapper and obj not in (sys.stdout, sys.stderr):
            # cloudpickle would send the text, in which the positions are other ones.
            raise TypeError(f"cannot pickle an open text file, {obj!r:.200}")
        if issubclass(kind, functools.cached_property):
            return reduce_cached_property(obj)
        if issubclass(kind, ModuleType) and kind is not ModuleType:
            # cloudpickle does not recognise it as a module. Its name may differ from the imported
            # one.
            name = next((name for name, module in [*sys.modules.items()] if module is obj), None)
            return NotImplemented if name is None else (importlib.import_module, (name,))
        return reduce_flags(obj) if is_absl_flags(obj) else NotImplemented


def _import_module_of(obj: type | FunctionType) -> None:
    """Imports the module of ``obj`` if its package does so lazily.

    cloudpickle looks in imported modules only.
    """
    module = getattr(obj, "__module__", None)
    if (
        isinstance(module, str)
        and module not in sys.modules
        and module.partition(".")[0] in sys.modules
    ):
        with contextlib.suppress(Exception):
            importlib.import_module(module)


def remember_received_classes() -> None:
    """Called in a worker when it has loaded what it was sent."""
    _received.update(_cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)


def _class_named(name: str) -> type:
    return _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[name]


def dumps(
    value: object, buffer_callback: Callable[[pickle.PickleBuffer], object] | None = None
) -> bytes:
    """Return ``value`` pickled, by value what cannot be imported. An error that prevents it is
    raised as it is.
    """
    file = io.BytesIO()
    try:
        CloudPickler(file, pickle.HIGHEST_PROTOCOL, buffer_callback).dump(value)
    except Exception as error:
        drop_notes_of_serializing(error)
        raise
    return file.getvalue()


def pickled_registrations() -> dict[tuple[str, str], bytes | str]:
    """Return the registrations of classes that workers import, for ``core.node_types.expect``."""
    found: dict[tuple[str, str], bytes | str] = {}
    for cls in registered_types():
        if is_importable(cls):
            try:
                found[cls.__module__, cls.__qualname__] = dumps(registration_of(cls))
            except Exception as error:
                found[cls.__module__, cls.__qualname__] = f"{type(error).__name__}: {error}"
    return found
