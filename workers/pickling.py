"""Pickling between a process and its workers.

Plain pickling is tried first: it is quick. What it cannot do, ``cloudpickle`` can: lambdas, closures, and functions and
classes of ``__main__``, which travel by value. A class that a worker has received so goes back as a reference, so that an
instance that returns is an instance of the very class of the program.
"""

from __future__ import annotations

import io
import pickle
import sys
from collections.abc import Callable
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NamedTuple

import cloudpickle
import numpy as np
from cloudpickle import cloudpickle as _cloudpickle

from gristmill.workers.flags import is_absl_flags, reduce_flags

# The classes that this process has received by value, and the names under which their owner finds them.
_received: dict[type, str] = {}


class CloudPickler(cloudpickle.Pickler):
    """A cloudpickler for the way to a worker and back."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, type) and obj in _received:
            return _class_named, (_received[obj],)
        if type(obj) is np.ndarray and not obj.dtype.isnative and not obj.dtype.hasobject:
            # NumPy itself sometimes changes the byte order to that of the machine, and the dtype with it.
            return np.ndarray, (obj.shape, obj.dtype, bytearray(obj.tobytes()))
        if type(obj) is io.TextIOWrapper and obj not in (sys.stdout, sys.stderr):
            # cloudpickle would send the text, in which the positions are other ones.
            raise TypeError(f"cannot pickle an open text file, {obj!r:.200}")
        if is_absl_flags(obj):
            return reduce_flags(obj)
        reduced = super().reducer_override(obj)
        if isinstance(obj, type) and "__slots__" in vars(obj):
            return _with_slots(obj, reduced)
        return reduced


def _with_slots(cls: type, reduced: Any) -> Any:
    """What makes a class that travels by value, with slots: cloudpickle leaves them out, and then the class there has instances
    with a ``__dict__``, which the class here cannot take back.
    """
    if not isinstance(reduced, tuple) or reduced[0] is not _cloudpickle._make_skeleton_class:
        return reduced
    if NamedTuple in vars(cls).get("__orig_bases__", ()):  # makes its own, and accepts no others
        return reduced
    names = tuple([name for name, value in vars(cls).items() if _is_slot(name, value)])
    keywords, (attributes, _) = reduced[1][3], reduced[2]
    keywords["__slots__"] = names
    for name in names:
        attributes.pop(name, None)
    return reduced


def _is_slot(name: str, value: Any) -> bool:
    return isinstance(value, MemberDescriptorType) or (
        isinstance(value, GetSetDescriptorType) and name in ("__dict__", "__weakref__")
    )


def remember_received_classes() -> None:
    """Called in a worker when it has loaded what it was sent."""
    _received.update(_cloudpickle._DYNAMIC_CLASS_TRACKER_BY_CLASS)


def _class_named(name: str) -> type:
    return _cloudpickle._DYNAMIC_CLASS_TRACKER_BY_ID[name]


def dumps(value: Any, buffer_callback: Callable[[pickle.PickleBuffer], Any] | None = None) -> bytes:
    """``value`` pickled, by value what cannot be imported; raises whatever makes that impossible."""
    file = io.BytesIO()
    CloudPickler(file, pickle.HIGHEST_PROTOCOL, buffer_callback).dump(value)
    return file.getvalue()
