"""The payload of worker threads: a task that each of them loads, so that it works on objects of its
own.

Guarantees:

1. Copied is what a worker process gets by value: stages, functions, transforms and all that these
   hold. An object that is used in several places is copied once by each thread.
2. Shared with the program are sources, classes, code, read-only arrays, shared memory and, as in
   one process, modules and what is imported from them.
3. A function that cannot be pickled stays shared, and so does such an attribute of a user's stage.
   All others are copied.
"""

from __future__ import annotations

import inspect
import io
import pickle
from dataclasses import replace
from multiprocessing.shared_memory import SharedMemory
from types import CodeType
from typing import Any

import numpy as np

from gristmill.core.value import Value
from gristmill.dataset.bases.node import DatasetNode
from gristmill.dataset.workers.task import PipelineTask
from gristmill.workers.pickling import CloudPickler
from gristmill.workers.shared_array import SharedMemoryArray

# most of what is pickled, and not worth a look
_PLAIN = frozenset({str, int, float, bool, bytes, type(None)})


class ThreadPayload:
    """Called in a thread, returns the thread's own copy of ``task``."""

    def __init__(self, task: PipelineTask) -> None:
        self._task = task
        # by id: an object, and what threads have in its place
        self._shared: dict[int, tuple[Any, Any]] = {}
        self._pickled: bytes | None = None
        for pickler in (_Pickler(self._shared), _CarefulPickler(self._shared)):
            try:
                self._pickled = pickler.pickled(replace(task, budget=None))
                return
            except Exception:
                continue

    def __call__(self) -> PipelineTask:
        if self._pickled is None:
            return self._task
        task: PipelineTask = _Unpickler(self._pickled, self._shared).load()
        return replace(task, budget=self._task.budget)


class _Pickler(CloudPickler):
    """Pickles what threads copy and notes what they share."""

    def __init__(self, shared: dict[int, tuple[Any, Any]]) -> None:
        self._file = io.BytesIO()
        self._shared = shared
        super().__init__(self._file, pickle.HIGHEST_PROTOCOL)

    def pickled(self, value: object) -> bytes:
        self.dump(value)
        return self._file.getvalue()

    def persistent_id(self, obj: Any) -> int | None:
        """Return the key of ``obj`` if it is shared."""
        kind = type(obj)
        if kind in _PLAIN:
            return None
        if issubclass(kind, DatasetNode | Value | PipelineTask):
            self._enter(obj)
        elif (
            issubclass(kind, type | SharedMemory | SharedMemoryArray)
            or kind is object
            or _is_read_only(obj)
        ):
            self._share(obj)
        elif kind is CodeType:
            # Python 3.13 without the GIL never frees a function that is not nested, nor its
            # globals.
            self._shared[id(obj)] = obj, obj.replace(co_flags=obj.co_flags | inspect.CO_NESTED)
        return id(obj) if id(obj) in self._shared else None

    def _enter(self, part: object) -> None:
        """Called for a part of the pipeline before what it holds."""
        for name in getattr(type(part), "_gm_shared_by_threads", ()):
            if not isinstance(value := getattr(part, name), DatasetNode):
                self._share(value)

    def _share(self, obj: object) -> None:
        self._shared[id(obj)] = obj, obj


class _CarefulPickler(_Pickler):
    """Also notes as shared what cannot be pickled of that which parts of a pipeline hold."""

    def __init__(self, shared: dict[int, tuple[Any, Any]]) -> None:
        super().__init__(shared)
        # ids; what holds one of these cannot be pickled, either
        self._unpicklable: set[int] = set()

    def _enter(self, part: object) -> None:
        super()._enter(part)
        for value in vars(part).values():
            try:
                _Trial(
                    {key: x for key, x in self._shared.items() if key not in self._unpicklable}
                ).dump(value)
            except Exception:
                self._unpicklable.add(id(value))
                self._share(value)


class _Trial(_Pickler):
    """Pickles what a part of the pipeline holds, without other parts."""

    def persistent_id(self, obj: object) -> int | None:
        return 0 if issubclass(type(obj), DatasetNode | Value) else super().persistent_id(obj)


class _Unpickler(pickle.Unpickler):
    def __init__(self, pickled: bytes, shared: dict[int, tuple[Any, Any]]) -> None:
        super().__init__(io.BytesIO(pickled))
        self._shared = shared

    def persistent_load(self, key: int) -> Any:
        return self._shared[key][1]


def _is_read_only(obj: object) -> bool:
    return isinstance(obj, np.ndarray) and not obj.flags.writeable
