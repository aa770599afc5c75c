"""Descriptions of elements without the elements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from gristmill.core import tree
from gristmill.core.errors import as_int


@runtime_checkable
class ShapeDtypeStructProtocol(Protocol):
    """Anything with a ``shape`` and a ``dtype``: NumPy and JAX arrays, ``jax.ShapeDtypeStruct``,
    ours.

    Example:
        >>> isinstance(np.zeros(3), ShapeDtypeStructProtocol)
        True
    """

    @property
    def shape(self) -> tuple[int | None, ...]: ...

    @property
    def dtype(self) -> Any: ...


@dataclass(frozen=True, slots=True, eq=False)
class ShapeDtypeStruct:
    """The shape and dtype of an array, as a value: hashable, and equal to another of the same shape
    and an equivalent dtype.

    Args:
        shape: the length of every axis; ``None`` where it is not known.
        dtype: what ``numpy.dtype`` takes, or a dtype of another library. Kept as given;
            ``numpy.float32`` and ``numpy.dtype("float32")`` are equivalent.

    Raises:
        TypeError: ``shape`` is not a sequence of integers and ``None``, or ``dtype`` is ``None``.
        ValueError: a length is negative.

    Example:
        >>> ShapeDtypeStruct((2, None), np.float32)
        ShapeDtypeStruct(shape=(2, None), dtype=<class 'numpy.float32'>)
        >>> ShapeDtypeStruct((2,), np.int32) == ShapeDtypeStruct((2,), np.dtype("int32"))
        True
    """

    shape: tuple[int | None, ...]
    dtype: Any

    def __post_init__(self) -> None:
        try:
            shape = [
                None if size is None else as_int("shape", size, minimum=0) for size in self.shape
            ]
        except TypeError:
            raise TypeError(
                f"shape must be a sequence of integers and None, got {self.shape!r:.200}"
            ) from None
        if self.dtype is None:
            raise TypeError("dtype must be a dtype, got None")
        object.__setattr__(self, "shape", tuple(shape))

    @property
    def _key(self) -> tuple[Any, Any]:
        try:
            return self.shape, np.dtype(self.dtype)
        except TypeError:  # of another library
            return self.shape, self.dtype

    def __eq__(self, other: object) -> bool:
        return self._key == other._key if isinstance(other, ShapeDtypeStruct) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._key)


def map_spec(fn: Callable[[Any], Any], spec: Any) -> Any:
    """Returns ``spec`` with ``fn`` of each of its leaves in their places."""
    leaves, structure = tree.flatten(spec)
    return tree.unflatten(structure, [fn(leaf) for leaf in leaves])
