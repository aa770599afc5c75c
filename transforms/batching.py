"""Stacking elements into a batch."""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import methodcaller
from typing import Any

import numpy as np

from gristmill.core import tree

# from here on a fresh allocation costs more (page faults) than the copy into it
_POOLED_BYTES = 1 << 20
# Free buffers that a stage or iterator keeps. When it takes one, the others together keep no more
# bytes than _MAX_OTHERS or three times as many as that one has.
_MAX_BUFFERS = 4
_MAX_OTHERS = 1 << 28
_MOST_KEPT = 31 << 20  # glibc learns nothing from blocks of 32 MiB
_kept = [0]  # the largest block that was freed
_SCALARS: dict[type, Any] = {
    int: np.int64,
    float: np.float64,
    bool: np.bool_,
    complex: np.complex128,
}
_ENDS_IN_NUL = {str: methodcaller("endswith", "\0"), bytes: methodcaller("endswith", b"\0")}
# Grain's words, which programs look for
_SAME_STRUCTURE = "Expected all input elements to have the same structure but"
_AS_THEY_ARE = "batch_fn=list keeps elements as they are"
LEAF_TYPES = frozenset({*_SCALARS, str, bytes, np.ndarray, *np.sctypeDict.values()})

Allocate = Callable[[tuple[int, ...], "np.dtype[Any]"], "np.ndarray[Any, Any]"]


class BufferPool:
    """Large arrays whose memory is used again after the consumer has dropped them.

    ``pool(shape, dtype)`` returns an uninitialised array, as ``numpy.empty`` does. The end of its
    chain of bases is a ``_Loan``, which everything that looks at the array keeps alive. The buffer
    returns to the pool when the loan is collected, so nothing that can still be seen is
    overwritten. This counts no references and works without a GIL. Thread-safe: free buffers are
    moved by single calls of a deque.
    """

    def __init__(self) -> None:
        self._free: deque[np.ndarray[Any, Any]] = deque(maxlen=_MAX_BUFFERS)

    def __reduce__(self) -> tuple[type[BufferPool], tuple[()]]:
        return BufferPool, ()

    def __call__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        num_bytes = dtype.itemsize * math.prod(shape)
        if num_bytes < _POOLED_BYTES or dtype.hasobject:
            return np.empty(shape, dtype)
        buffer = self._take(num_bytes)
        if buffer is None:
            buffer = np.empty(num_bytes, np.uint8)
        return np.asarray(_Loan(buffer, self._free)).view(dtype).reshape(shape)

    def _take(self, num_bytes: int) -> np.ndarray[Any, Any] | None:
        """Return a free buffer of this size, and forget those that are too large to keep."""
        found, room = None, max(_MAX_OTHERS, 3 * num_bytes)
        for _ in range(len(self._free)):
            try:
                buffer = self._free.pop()
            except IndexError:  # another thread was faster
                break
            if found is None and buffer.nbytes == num_bytes:
                found = buffer
            elif buffer.nbytes <= room:
                room -= buffer.nbytes
                self._free.appendleft(buffer)
        return found


class _Loan:
    """The memory of a buffer in use; it appends the buffer to ``free`` when it is collected."""

    __slots__ = ("__array_interface__", "_buffer", "_free")

    def __init__(self, buffer: np.ndarray[Any, Any], free: deque[np.ndarray[Any, Any]]) -> None:
        self._buffer, self._free = buffer, free
        self.__array_interface__ = buffer.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._buffer)


def stack(values: Sequence[Any], allocate: Allocate = np.empty) -> Any:
    """Returns one element whose leaves are those of ``values``, stacked along a new first axis.

    Every element must have the structure of the first (JAX's pytree rules; ``None`` is a node
    without leaves). The leaves at one position must have equal shapes; their dtypes are promoted as
    ``numpy.stack`` does, but never numbers to text. Arrays in the result are new and C-contiguous,
    containers keep their types.

    Text and bytes become an array of their greatest length, whose unused cells are NUL: those that
    end so would lose it.

    Args:
        values: the elements, at least one.
        allocate: gives uninitialised arrays of a shape and dtype, used where these are known
            beforehand.

    Raises:
        ValueError: no elements, or elements of different structure or shape, or text together with
            numbers or bytes; names the first leaf that differs. Or text or bytes end in NUL.

    Example:
        >>> stack([{"x": 1, "y": (2.5,)}, {"x": 3, "y": (4,)}])
        {'x': array([1, 3]), 'y': (array([2.5, 4. ]),)}
    """
    if not len(values):
        raise ValueError("cannot batch zero elements")
    first = values[0]
    kind = type(first)
    # Flat dicts, tuples and bare leaves of well-known types need no general traversal.
    if kind in LEAF_TYPES:
        types = set(map(type, values))
        if types <= LEAF_TYPES:
            return _stack_leaf(values, types, allocate, lambda: "")
    elif (
        kind is dict
        and first
        and all([type(v) is dict and v.keys() == first.keys() for v in values])
    ):
        try:
            keys = sorted(first)
        except TypeError:
            return _stack_tree(values, allocate)
        columns = [[v[key] for v in values] for key in keys]
        types_of = [set(map(type, column)) for column in columns]
        if all([types <= LEAF_TYPES for types in types_of]):
            return {
                key: _stack_leaf(column, types, allocate, partial(_key_path, key))
                for key, column, types in zip(keys, columns, types_of, strict=True)
            }
    elif (
        kind is tuple and first and all([type(v) is tuple and len(v) == len(first) for v in values])
    ):
        columns = [[v[i] for v in values] for i in range(len(first))]
        types_of = [set(map(type, column)) for column in columns]
        if all([types <= LEAF_TYPES for types in types_of]):
            return tuple(
                [
                    _stack_leaf(column, types, allocate, partial(_key_path, i))
                    for i, (column, types) in enumerate(zip(columns, types_of, strict=True))
                ]
            )
    return _stack_tree(values, allocate)


def _key_path(key: Any) -> str:
    return f"[{key!r}]"


def leaf_path(value: Any, i: int) -> str:
    return tree.leaf_paths(value)[i]


def _stack_tree(values: Sequence[Any], allocate: Allocate) -> Any:
    flatten = tree.flattener()
    first_leaves, structure = flatten(values[0])
    rows = [first_leaves]
    for position, value in enumerate(values):
        if position == 0:
            continue
        leaves, other = flatten(value)
        if other != structure:
            raise ValueError(_structure_difference(values[0], value, position))
        rows.append(leaves)
    columns = [[row[i] for row in rows] for i in range(len(first_leaves))]
    stacked = [
        _stack_leaf(column, set(map(type, column)), allocate, partial(leaf_path, values[0], i))
        for i, column in enumerate(columns)
    ]
    return tree.unflatten(structure, stacked)


def _stack_leaf(
    leaves: Sequence[Any], types: set[type], allocate: Allocate, path: Callable[[], str]
) -> Any:
    if len(types) == 1:
        (kind,) = types
        if kind is np.ndarray:
            result = _stack_arrays(leaves, allocate)
            if result is not None:
                return result
        elif kind in _SCALARS:
            try:
                return np.array(leaves, _SCALARS[kind])
            except OverflowError:
                pass  # an int beyond 64 bits: NumPy's promotion decides
        elif kind is str or kind is bytes:
            if True in map(_ENDS_IN_NUL[kind], leaves):
                check_no_nul(leaves, path)
            return np.array(leaves)
        elif issubclass(kind, np.number | np.bool_):
            return np.array(leaves)
    if any([issubclass(kind, str | bytes) for kind in types]):
        check_no_nul(leaves, path)
    try:
        jax = jax_of_keys(leaves)
        if jax is not None:
            return jax.numpy.stack(leaves)
        if len(leaves) == 1:
            leaf = leaves[0]
            return np.expand_dims(
                (leaf if isinstance(leaf, np.ndarray) else np.asarray(leaf)).copy(), 0
            )
        result = np.ascontiguousarray(np.stack(leaves))
        check_kinds(result.dtype, leaves)
        return result
    except (ValueError, TypeError) as error:
        raise _not_stacked(leaves, path() or "of the elements", error) from error


def jax_of_keys(arrays: Sequence[Any]) -> Any:
    """Return JAX if all ``arrays`` are of typed keys (``jax.random.key``); otherwise ``None``.

    NumPy cannot hold such keys.
    """
    jax: Any = sys.modules.get("jax")
    kind = getattr(jax, "Array", None)  # missing while another thread imports JAX
    if kind is None or not all([isinstance(array, kind) for array in arrays]):
        return None
    return (
        jax
        if all([jax.dtypes.issubdtype(array.dtype, jax.dtypes.extended) for array in arrays])
        else None
    )


def _not_stacked(leaves: Sequence[Any], name: str, error: Exception) -> ValueError:
    shown = [(_shape(leaf), str(getattr(leaf, "dtype", type(leaf).__name__))) for leaf in leaves]
    other = next(
        (i for part in (0, 1) for i, x in enumerate(shown) if x[part] != shown[0][part]), 0
    )
    first, second = [f"{shape} {dtype}" for shape, dtype in (shown[0], shown[other])]
    if not other:
        return ValueError(
            f"leaf {name}, {first} in every element, cannot be batched: {error}. {_AS_THEY_ARE}"
        )
    law = required([shape for shape, _ in shown])
    return ValueError(
        f"{_SAME_STRUCTURE} got: leaf {name} is {first} in element 0 and {second} in element"
        f" {other}. {law}; {_AS_THEY_ARE}"
    )


def required(shapes: Sequence[Any]) -> str:
    """Return the rule that differing leaves with these shapes break."""
    are_equal = all([shape == shapes[0] for shape in shapes])
    return (
        "Their dtypes must be of one kind"
        if are_equal
        else "Their shapes must be equal and their dtypes of one kind"
    )


def _shape(leaf: Any) -> Any:
    try:
        return np.shape(leaf)
    except Exception:  # of a user's ``__array__``
        return "(unknown shape)"


def _stack_arrays(leaves: Sequence[Any], allocate: Allocate) -> Any:
    """Return one allocation filled in C, for arrays of one shape and dtype; ``None`` if they are
    not.
    """
    first = leaves[0]
    shape, dtype = first.shape, first.dtype
    if not shape or not dtype.isnative or dtype.names is not None:
        return None
    num = len(leaves)
    if [leaf.shape for leaf in leaves].count(shape) != num or [leaf.dtype for leaf in leaves].count(
        dtype
    ) != num:
        return None
    _keep_when_freed(num * first.nbytes)
    out = allocate((num, *shape), dtype)
    np.concatenate(leaves, out=out.reshape(num * shape[0], *shape[1:]))
    return out


def _keep_when_freed(num_bytes: int) -> None:
    """Let malloc keep the memory of elements, which are freed together with each batch of
    ``num_bytes``, for the next ones.

    glibc gives what is free at the end of a heap back to the system if it is more than twice the
    largest block that was ever freed. Then each page of the next elements costs a page fault, which
    is a twentieth of the time to decode an image. Batches are pooled or in shared memory, so it
    sees none of them freed.
    """
    num_bytes = min(num_bytes, _MOST_KEPT)
    if num_bytes > _kept[0]:
        _kept[0] = num_bytes
        np.empty(num_bytes, np.uint8)  # which is freed


def concatenate(batches: Sequence[Any], allocate: Allocate = np.empty) -> Any:
    """Returns one batch with the rows of ``batches``, one after the other.

    Args:
        batches: elements of one structure whose leaves are arrays, at least one.
        allocate: as for ``stack``.

    Raises:
        ValueError: their structures or shapes differ; names the first leaf.

    Example:
        >>> concatenate([{"x": np.array([1, 2])}, {"x": np.array([3])}])
        {'x': array([1, 2, 3])}
    """
    if len(batches) == 1:
        return batches[0]
    flatten = tree.flattener()
    rows, structures = zip(*map(flatten, batches), strict=True)
    for position, structure in enumerate(structures):
        if structure != structures[0]:
            raise ValueError(_structure_difference(batches[0], batches[position], position))
    leaves = []
    for i, arrays in enumerate(zip(*rows, strict=True)):
        try:
            leaves.append(join_arrays(arrays, allocate))
        except (ValueError, TypeError) as error:
            name = leaf_path(batches[0], i) or "of the elements"
            found = sorted({f"{array.shape[1:]} {array.dtype}" for array in arrays})
            if len(found) == 1:
                raise ValueError(
                    f"leaf {name}, rows of {found[0]}, cannot be joined: {error}. {_AS_THEY_ARE}"
                ) from error
            law = required([array.shape[1:] for array in arrays])
            raise ValueError(
                f"{_SAME_STRUCTURE} got: leaf {name} is {' and '.join(found)}. {law};"
                f" {_AS_THEY_ARE}"
            ) from error
    return tree.unflatten(structures[0], leaves)


def join_arrays(arrays: Sequence[Any], allocate: Allocate) -> Any:
    """Return the rows of ``arrays`` one after the other, in an array that ``allocate`` makes if
    they are NumPy's.
    """
    if any([type(array) is not np.ndarray for array in arrays]):
        jax = jax_of_keys(arrays)
        return (np if jax is None else jax.numpy).concatenate(arrays)
    shape, dtype = (sum(map(len, arrays)), *arrays[0].shape[1:]), np.result_type(*arrays)
    check_kinds(dtype, arrays)
    return np.concatenate(arrays, out=allocate(shape, dtype))


def check_kinds(dtype: np.dtype[Any], parts: Iterable[Any]) -> None:
    """Refuses to join ``parts`` in an array of ``dtype`` if that would convert other values to
    text.

    Raises:
        TypeError: there are text, bytes or numbers among them, of two kinds.
    """
    if dtype.kind in "SU" and len({np.asarray(part).dtype.kind for part in parts}) > 1:
        raise TypeError("text, bytes and numbers do not go into one array")


def ends_in_nul(value: Any) -> bool:
    """True if ``value`` is text or bytes that an array would truncate."""
    if isinstance(value, str):
        return value.endswith("\0")
    return isinstance(value, bytes) and value.endswith(b"\0")


def check_no_nul(leaves: Sequence[Any], path: Callable[[], str]) -> None:
    """Refuses text and bytes that an array would cut short."""
    for i, leaf in enumerate(leaves):
        if ends_in_nul(leaf):
            place = f"leaf {path()} of element {i}" if path() else f"element {i}"
            raise ValueError(
                "text and bytes to batch must not end in NUL, which NumPy's arrays of them lose,"
                f" but {place} ends in {leaf[-20:]!r}. Pass batch_fn=list to keep elements as they"
                " are, or decode them before"
            )


def _structure_difference(first: Any, other: Any, position: int) -> str:
    first_paths, other_paths = tree.leaf_paths(first), tree.leaf_paths(other)
    missing = [p for p in first_paths if p not in set(other_paths)]
    extra = [p for p in other_paths if p not in set(first_paths)]
    if missing or extra:
        where = f"leaf {missing[0] or '(the element itself)'} is missing" if missing else ""
        more = f"leaf {extra[0] or '(the element itself)'} is not in element 0" if extra else ""
        detail = f"in element {position} " + " and ".join(filter(None, (where, more)))
    else:
        detail = f"{tree.flatten(first)[1]} and {tree.flatten(other)[1]}"
    return (
        f"{_SAME_STRUCTURE} got: {detail}; element 0 is {first!r:.100}, element {position} is"
        f" {other!r:.100}"
    )
