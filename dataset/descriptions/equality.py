"""Comparison of two values of any types: digests of their leaves, as small records that can be
compared later, in another process too.

Two values are equal if their structures are, and the types, dtypes, shapes and bits of their
leaves; every NaN is the same. Arrays of any library are read in pieces, so that memory does
not grow with their size. Objects with an ``==`` of their own are compared by it, others by what
they are made of.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import pickle
import types
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.core.naming import one_line, without_addresses
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.node import DatasetNode
from gristmill.dataset.descriptions.pipeline import describe
from gristmill.workers.pickling import dumps

_MAX_TEXT = 120  # characters
# bytes of a leaf that are kept, so that the place of a difference can be determined
_MAX_KEPT = 1 << 12
_MAX_PARTS = 64  # of a list that has leaves of their own
_MAX_DEPTH = 60
_CHUNK = 1 << 17  # entries of an array
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_PLAIN = frozenset(_SCALARS)
_IDENTITY: Any = object.__eq__
_NAMED = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


@dataclasses.dataclass(frozen=True, slots=True)
class Leaf:
    """A part of a value.

    Args:
        path: where it is, as one would write it: ``['image'][3]``; nothing for the value itself.
        digest: of its type and content.
        shown: its type and content, abbreviated.
        kept: itself, or what is kept of it, if it is small.
    """

    path: str
    digest: bytes
    shown: str
    kept: Any = None


def are_equal(a: object, b: object) -> bool:
    """Returns true if no leaf differs.

    Example:
        >>> are_equal({"x": np.array([1.0, np.nan])}, {"x": np.array([1.0, np.nan])})
        True
        >>> are_equal(1, 1.0)
        False
    """
    return a is b or difference(leaves_of(a), leaves_of(b)) is None


def leaves_of(value: object) -> list[Leaf]:
    """Returns the containers and leaves of ``value``, in an order that follows from its content.

    Example:
        >>> [(leaf.path, leaf.shown) for leaf in leaves_of({"a": [1, 2.5]})]
        [('', 'dict of 1'), ("['a']", 'list of 2'), ("['a'][0]", '1'), ("['a'][1]", '2.5')]
    """
    return list(_leaves(value, "", ()))


def digest_of(value: object) -> bytes:
    """Returns the digest of all that ``value`` is made of."""
    return _together(_leaves(value, "", ()))


def difference(expected: Sequence[Leaf], got: Sequence[Leaf]) -> tuple[str, Any, Any] | None:
    """Returns the path of the first leaf that differs, and both values; else ``None``."""
    for a, b in zip(expected, got, strict=False):
        if a.path != b.path:
            return min(a.path, b.path, key=len), a.shown, b.shown
        if a.digest != b.digest and not _are_equal_by_their_own(a.kept, b.kept):
            return _place(a, b)
    if len(expected) != len(got):
        longer = max(expected, got, key=len)[min(len(expected), len(got))]
        if len(expected) > len(got):
            return longer.path, longer.shown, "nothing"
        return longer.path, "nothing", longer.shown
    return None


class _Kept(bytes):
    """A pickled object with an ``==`` of its own."""


def _are_equal_by_their_own(a: object, b: object) -> bool:
    if isinstance(a, _Kept) and isinstance(b, _Kept):
        with contextlib.suppress(Exception):
            return bool(pickle.loads(a) == pickle.loads(b))
    return False


def _place(a: Leaf, b: Leaf) -> tuple[str, Any, Any]:
    x, y = a.kept, b.kept
    if (
        isinstance(x, np.ndarray)
        and isinstance(y, np.ndarray)
        and x.dtype == y.dtype
        and x.shape == y.shape
    ):
        for index in np.ndindex(x.shape):
            if digest_of(x[index]) != digest_of(y[index]):
                text = f"[{', '.join(map(str, index))}]" if index else ""
                return a.path + text, _plain(x[index]), _plain(y[index])
    if isinstance(x, _Scalar) and isinstance(y, _Scalar) and type(x.value) is type(y.value):
        return a.path, x.value, y.value
    return a.path, a.shown, b.shown


def _plain(x: object) -> Any:
    value = x.item() if hasattr(x, "item") else x
    return value if isinstance(value, _SCALARS) else str(x)


class _Scalar:
    """A number or text as it is, also if it is ``None``."""

    __slots__ = ("value",)

    def __init__(self, value: object) -> None:
        self.value = value


def _together(leaves: Iterator[Leaf]) -> bytes:
    hasher = hashlib.blake2b(digest_size=16)
    for leaf in leaves:
        hasher.update(leaf.digest)
        hasher.update(leaf.path.encode("utf-8", "surrogatepass"))
    return hasher.digest()


def _leaf(path: str, kind: str, content: bytes, shown: str, kept: object = None) -> Leaf:
    hasher = hashlib.blake2b(kind.encode("utf-8", "surrogatepass"), digest_size=16)
    hasher.update(b"\0")
    hasher.update(content)
    return Leaf(path, hasher.digest(), shown, kept)


def _leaves(value: Any, path: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    kind = type(value)
    if kind in _SCALARS:
        yield _scalar(value, path)
    elif id(value) in above or len(above) > _MAX_DEPTH:
        # objects that refer to one another in a circle
        yield _leaf(path, "again", b"", "…")
    elif _is_array(value):
        yield from _of_array(value, path, (*above, id(value)))
    elif isinstance(value, np.random.Generator):
        yield from _of_parts(
            value, path, {".bit_generator.state": value.bit_generator.state}, above
        )
    elif isinstance(value, Mapping):
        yield from _of_mapping(value, path, above)
    elif isinstance(value, set | frozenset):
        content = b"".join(sorted([digest_of(x) for x in value]))
        yield _leaf(path, _name(kind), content, f"{kind.__name__} of {len(value)}")
    elif kind in (list, tuple) and len(value) > _MAX_PARTS and _PLAIN.issuperset(map(type, value)):
        content = repr(value).encode("utf-8", "surrogatepass")
        yield _leaf(path, f"{_name(kind)} {len(value)}", content, _text(value))
    elif isinstance(value, list | tuple):
        names = [f".{name}" for name in getattr(value, "_fields", ())] or [
            f"[{i}]" for i in range(len(value))
        ]
        yield from _of_parts(value, path, dict(zip(names, value, strict=False)), above)
    elif isinstance(value, DatasetNode | DatasetIterator):
        text = str(describe(value))
        yield _leaf(path, _name(kind), text.encode("utf-8", "surrogatepass"), _text(value))
    elif isinstance(value, _NAMED):
        name = (
            f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', value.__name__)}"
        )
        yield _leaf(path, "name", name.encode(), name)
    else:
        yield from _of_object(value, path, above)


def _scalar(value: Any, path: str) -> Leaf:
    if isinstance(value, str):
        content = value.encode("utf-8", "surrogatepass")
    elif isinstance(value, bytes):
        content = value
    else:
        content = (hex(value) if type(value) is int else repr(value)).encode()
    is_small = len(content) <= _MAX_TEXT
    kept = _Scalar(value) if is_small else None
    text = _text(
        value if is_small else value[:_MAX_TEXT] if isinstance(value, str | bytes) else hex(value)
    )
    return _leaf(path, type(value).__name__, content, text, kept)


def _of_mapping(value: Mapping[Any, Any], path: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    items = [(digest_of(key), key, x) for key, x in value.items()]
    if not isinstance(value, OrderedDict):
        items.sort(key=lambda item: item[0])
    parts: dict[str, Any] = {}
    for _, key, x in items:
        name = f"[{_text(key)}]"
        while name in parts:  # of another key with the same text
            name += "'"
        parts[name] = x
    yield from _of_parts(
        value, path, parts, above, content=b"".join([digest for digest, *_ in items])
    )


def _of_parts(
    value: object,
    path: str,
    parts: Mapping[str, Any],
    above: tuple[int, ...],
    name: str = "",
    content: bytes = b"",
) -> Iterator[Leaf]:
    """Yields a leaf for a container, and those of its parts; one for all if there are many."""
    kind, here = name or _name(type(value)), (*above, id(value))
    shown = f"{type(value).__name__} of {len(parts)}"
    if len(parts) > _MAX_PARTS:
        hasher = hashlib.blake2b(content, digest_size=16)
        for part, x in parts.items():
            hasher.update(_together(_leaves(x, part, here)))
        yield _leaf(path, f"{kind} {len(parts)}", hasher.digest(), _text(value))
        return
    yield _leaf(path, f"{kind} {len(parts)}", content, shown)
    for part, x in parts.items():
        yield from _leaves(x, path + part, here)


def _of_object(value: object, path: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    kind: Any = type(value)
    if dataclasses.is_dataclass(kind):
        fields = {
            f".{field.name}": getattr(value, field.name, None) for field in dataclasses.fields(kind)
        }
        yield from _of_parts(value, path, fields, above)
        return
    parts = _reduced(value)
    if parts is None:
        yield _leaf(path, _name(kind), without_addresses(_text(value)).encode(), _text(value))
    elif kind.__eq__ is not _IDENTITY:
        digest, kept = _together(_of_parts(value, path, parts, above)), None
        with contextlib.suppress(Exception):
            pickled = dumps(value)
            kept = _Kept(pickled) if len(pickled) <= _MAX_KEPT else None
        yield _leaf(path, _name(kind), digest, _text(value), kept)
    else:
        yield from _of_parts(value, path, parts, above)


def _reduced(value: object) -> dict[str, Any] | None:
    """Returns the arguments from which an object is rebuilt; ``None`` if they are unknown."""
    try:
        reduced = value.__reduce_ex__(4)
    except Exception:
        state = getattr(value, "__dict__", None)
        return None if state is None else {f".{name}": x for name, x in state.items()}
    if isinstance(reduced, str):
        return {"": reduced}
    function, arguments, state, items, pairs = (*reduced, None, None, None)[:5]
    parts = {"()": getattr(function, "__qualname__", "")}
    parts |= {f"({i})": x for i, x in enumerate(arguments) if x is not type(value)}
    slots = None
    if isinstance(state, tuple) and len(state) == 2 and isinstance(state[1], dict):
        state, slots = state
    for more in (state, slots):
        if isinstance(more, dict):
            parts |= {f".{name}": x for name, x in more.items()}
        elif more is not None:
            parts[".state"] = more
    parts |= {f"[{i}]": x for i, x in enumerate(items or ())}
    parts |= {f"[{_text(key)}]": x for key, x in pairs or ()}
    return parts


def _is_array(value: object) -> bool:
    return isinstance(value, np.ndarray | np.generic) or (
        hasattr(value, "dtype") and hasattr(value, "shape") and hasattr(value, "__array__")
    )


def _of_array(value: Any, path: str, above: tuple[int, ...]) -> Iterator[Leaf]:
    try:
        array = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception:  # of a library whose dtype NumPy does not have
        yield _leaf(path, _name(type(value)), without_addresses(repr(value)).encode(), _text(value))
        return
    kind = f"{array.dtype}{list(array.shape)}"
    values = _text(np.array2string(array, threshold=8, precision=4)) if array.ndim < 3 else ""
    shown = f"{kind} {values}".rstrip()
    if array.dtype.hasobject:
        entries: dict[str, Any] = {
            f"[{', '.join(map(str, index))}]": array[index] for index in np.ndindex(array.shape)
        }
        if array.dtype.names is not None:
            entries = {name: tuple(entry) for name, entry in entries.items()}
        yield from _of_parts(value, path, entries, above, kind)
        return
    hasher = hashlib.blake2b(digest_size=16)
    _hash_array(array, hasher)
    kept = np.array(array) if array.nbytes <= _MAX_KEPT else None
    yield _leaf(path, kind, hasher.digest(), shown, kept)


def _hash_array(array: Any, hasher: Any) -> None:
    if array.dtype.names is not None:  # there may be anything between the fields
        for name in array.dtype.names:
            _hash_array(array[name], hasher)
        return
    if not array.size:
        return
    for chunk in np.nditer(
        array, flags=["external_loop", "buffered"], order="C", buffersize=_CHUNK
    ):
        entries: Any = np.ascontiguousarray(chunk)
        if entries.dtype.kind == "c":
            entries = entries.view(entries.real.dtype)
        if entries.dtype.kind == "f":
            missing = np.isnan(entries)
            if missing.any():
                entries = np.where(missing, entries.dtype.type(np.nan), entries)
        hasher.update(entries.view(np.uint8))


def _name(kind: type) -> str:
    # as which a script runs, and not what it sends
    module = "" if kind.__module__ == "__main__" else kind.__module__
    return f"{module}.{kind.__qualname__}"


def _text(value: object) -> str:
    try:
        return one_line(without_addresses(repr(value)), _MAX_TEXT)
    except Exception as error:  # of a user's object
        return f"{type(value).__name__} ({type(error).__name__} when its repr was asked for)"
