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
from typing import Any

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
        return super().reducer_override(obj)


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
