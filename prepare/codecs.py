"""Codecs: elements become bytes, for formats whose records are bytes.

``msgpack`` is MessagePack, with arrays as Flax writes them (``flax.serialization``): extension type
1 is a NumPy array, the MessagePack list of its shape, the name of its dtype and its bytes in C
order; 2 is a complex number; 3 is a NumPy scalar, like an array without axes. Extension type 4 is a
tuple, the MessagePack list of its items. So a record is read in any language, and in Python without
this library. See decision 16.
"""

from __future__ import annotations

import abc
import functools
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from gristmill.core.errors import missing_package
from gristmill.core.naming import transform_name
from gristmill.core.state import shown

_ARRAY, _COMPLEX, _SCALAR, _TUPLE = 1, 2, 3, 4
_MORE_BYTES = 256  # of an array: its shape and the name of its dtype
_KINDS = "?bcfiumMSUV"  # of dtypes, as NumPy abbreviates them
_JSON_SCALARS = {bool, int, float, str, type(None)}


class Codec(abc.ABC):
    """Turns elements into bytes and back."""

    name: str

    def described(self) -> dict[str, Any]:
        """Returns what a manifest says of the codec."""
        return {"name": self.name}

    def restored(self, saved: Mapping[str, Any]) -> Codec:
        """Returns the codec that a manifest describes."""
        return self

    def fitted(self, elements: Sequence[Any]) -> Codec:
        """Returns the codec for elements like these, the first ones."""
        return self

    @abc.abstractmethod
    def encode(self, element: Any) -> bytes:
        """Returns the bytes of an element.

        Raises:
            TypeError, ValueError: the codec cannot hold the element; the text says what to do.
        """

    @abc.abstractmethod
    def decode(self, record: bytes) -> Any:
        """Returns the element that the bytes stand for."""


class BytesCodec(Codec):
    """Elements that are bytes already."""

    name = "bytes"

    def encode(self, element: Any) -> bytes:
        if type(element) is not bytes:
            raise TypeError(
                f"it must be bytes, as the elements before it are, got {_kind(element)}; or "
                "choose a codec"
            )
        return element

    def decode(self, record: bytes) -> bytes:
        return record


class JsonCodec(Codec):
    """Elements that JSON can hold, as UTF-8."""

    name = "json"

    def encode(self, element: Any) -> bytes:
        return json_text(element).encode()

    def decode(self, record: bytes) -> Any:
        return json.loads(record)


class MsgpackCodec(Codec):
    """Trees of arrays, numbers, texts and bytes (see the top of this file)."""

    name = "msgpack"

    def __init__(self) -> None:
        try:
            self._library: Any = importlib.import_module("msgpack")
        except ImportError as error:
            raise missing_package(
                "msgpack", "write", "codec='msgpack', for elements that are no bytes,"
            ) from error
        self._packed = self._library.packb

    def encode(self, element: Any) -> bytes:
        try:
            return self._packed(
                element, default=self._extension, strict_types=True, use_bin_type=True
            )
        except ValueError as error:
            if "recursion" not in str(error):
                raise
            raise RecursionError(str(error)) from None  # which has a line for each level

    def decode(self, record: bytes) -> Any:
        return self._library.unpackb(
            record, ext_hook=self._from_extension, strict_map_key=False, raw=False
        )

    def __reduce__(self) -> Any:
        return type(self), ()

    def _extension(self, value: Any) -> Any:
        if type(value) is tuple:
            return self._library.ExtType(_TUPLE, self.encode([*value]))
        if type(value) is int:
            raise ValueError(
                "an integer in it has more than 64 bits: make it a text, by a map before"
            )
        if isinstance(value, complex) and not isinstance(value, np.generic):
            return self._library.ExtType(_COMPLEX, self._packed((value.real, value.imag)))
        if is_array(value) or _is_jax_array(value):
            array = np.asarray(value)
            code = _SCALAR if isinstance(value, np.generic) else _ARRAY
            content = (array.shape, _dtype_name(array.dtype), array.tobytes())
            # The default buffer, of 256 kB, would be allocated within that of the element: each
            # time by the kernel, which takes 15 µs.
            packed = self._packed(content, use_bin_type=True, buf_size=array.nbytes + _MORE_BYTES)
            return self._library.ExtType(code, packed)
        raise TypeError(f"MessagePack cannot hold a value of {_kind(value)}: {_remedy(value)}")

    def _from_extension(self, code: int, content: bytes) -> Any:
        if code == _TUPLE:
            return tuple(self.decode(content))
        if code == _COMPLEX:
            return complex(*self._library.unpackb(content))
        if code not in (_ARRAY, _SCALAR):
            return self._library.ExtType(code, content)
        shape, name, data = self._library.unpackb(content)
        array = np.frombuffer(data, _dtype(name)).reshape(shape)
        return array.copy() if code == _ARRAY else array[()]


class FunctionsCodec(Codec):
    """A pair of functions of the user, which ``read`` must be given again."""

    name = "functions"

    def __init__(self, encode: Callable[[Any], bytes], decode: Callable[[bytes], Any]) -> None:
        self._encode, self._decode = encode, decode

    @property
    def functions(self) -> tuple[Callable[[Any], bytes], Callable[[bytes], Any]]:
        """The pair."""
        return self._encode, self._decode

    def described(self) -> dict[str, Any]:
        names = [
            transform_name(function).partition(" @ ")[0]
            for function in (self._encode, self._decode)
        ]
        return {"name": self.name, "encode": names[0], "decode": names[1]}

    def encode(self, element: Any) -> bytes:
        record = self._encode(element)
        if not isinstance(record, bytes):
            raise TypeError(
                f"the first function of codec must return bytes, it returned {_kind(record)}"
            )
        return record

    def decode(self, record: bytes) -> Any:
        return self._decode(record)


_CODECS: dict[str, Callable[[], Codec]] = {
    "bytes": BytesCodec,
    "json": JsonCodec,
    "msgpack": MsgpackCodec,
}


def codec_of(value: Any) -> Codec:
    """Returns the codec that an argument stands for: a name, or a pair of functions.

    Raises:
        TypeError, ValueError: it is something else.
        ImportError: its package is missing.
    """
    if isinstance(value, Codec):
        return value
    if isinstance(value, tuple | list) and len(value) == 2 and all(map(callable, value)):
        return FunctionsCodec(*value)
    if value == "example":
        return importlib.import_module("gristmill.prepare.example_codec").ExampleCodec()
    if not isinstance(value, str) or value not in _CODECS:
        names = ", ".join(map(repr, [*_CODECS, "example"]))
        raise ValueError(
            f"codec must be one of {names}, or a pair of functions (encode, decode), got "
            f"{shown(value)}"
        )
    return _CODECS[value]()


def described_codec(saved: Mapping[str, Any], given: Any = None) -> Codec:
    """Returns the codec that a manifest names.

    Args:
        saved: its entry.
        given: a pair of functions, for a folder that was written with one.

    Raises:
        ValueError: the folder was written with a pair of functions, and ``given`` is ``None``; or
            the other way round.
    """
    is_pair = saved.get("name") == FunctionsCodec.name
    if is_pair and given is None:
        raise ValueError(
            "the records were encoded by a function of the program, "
            f"{shown(saved.get('encode'))}: pass "
            f"codec=(encode, decode), where decode is {shown(saved.get('decode'))}"
        )
    if given is not None and not is_pair:
        raise ValueError(
            f"codec must be None for records that were encoded by {shown(saved.get('name'))}, got "
            f"{shown(given)}"
        )
    return codec_of(given if is_pair else saved.get("name")).restored(saved)


def json_text(element: Any) -> str:
    """Returns the JSON of an element, on one line.

    Raises:
        TypeError, ValueError: JSON cannot hold it; the text says what to do.
    """
    _check_json(element)
    try:
        text = json.dumps(element, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except ValueError as error:
        if "JSON compliant" in str(error):
            raise ValueError(
                "JSON has no NaN and no infinity: replace them by None, or write another format"
            ) from error
        raise
    return text


def is_array(value: Any) -> bool:
    """Returns True for arrays and scalars of NumPy without a mask, which would be lost.

    Example:
        >>> is_array(np.ones(2)), is_array(np.float32(1)), is_array(np.ma.masked_array([1], [True]))
        (True, True, False)
    """
    is_one = isinstance(value, np.ndarray | np.generic)
    return is_one and not isinstance(value, np.ma.MaskedArray)


def _check_json(value: Any) -> None:
    """Refuses values that JSON would change, such as tuples, or does not have."""
    if type(value) is list:
        kinds = {*map(type, value)}
        for item in value if kinds - _JSON_SCALARS else ():
            _check_json(item)
    elif type(value) is dict:
        for key, item in value.items():
            if type(key) is not str:
                raise TypeError(
                    f"JSON would change it: keys must be texts, got {shown(key)} of {_kind(key)}. "
                    "Change it by a map before"
                )
            _check_json(item)
    elif type(value) not in _JSON_SCALARS:
        remedy = "make a list of it, by a map before" if type(value) is tuple else _remedy(value)
        raise TypeError(f"JSON cannot hold a value of {_kind(value)}: {remedy}")


@functools.cache
def _dtype_name(dtype: np.dtype[Any]) -> str:
    if dtype.hasobject or dtype.names is not None or (dtype.kind not in _KINDS):
        raise TypeError(
            f"an array of dtype {dtype} cannot be written: make arrays of numbers or texts of it, "
            "by a map before"
        )
    is_plain = dtype.isnative and dtype.kind not in "SU" and _is_known(dtype.name)
    return dtype.name if is_plain else dtype.str


def _is_known(name: str) -> bool:
    try:
        _dtype(name)
    except TypeError:
        return False
    return True


@functools.cache
def _dtype(name: str) -> np.dtype[Any]:
    """Returns the dtype of a name; those of ml_dtypes, such as bfloat16, need that package."""
    try:
        return np.dtype(name)
    except TypeError:
        try:
            return np.dtype(getattr(importlib.import_module("ml_dtypes"), name))
        except ImportError as error:
            raise TypeError(
                f"arrays of dtype {name} need the package ml_dtypes: run pip install ml_dtypes"
            ) from error
        except AttributeError:
            raise TypeError(f"{name!r} is no dtype") from None


def _is_jax_array(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] in ("jax", "jaxlib") and hasattr(
        value, "__array__"
    )


def _kind(value: Any) -> str:
    kind = type(value)
    return (
        f"the type {kind.__qualname__}"
        if kind.__module__ == "builtins"
        else f"the type {kind.__module__}.{kind.__qualname__}"
    )


def _remedy(value: Any) -> str:
    if isinstance(value, np.ma.MaskedArray):
        return "write its data and its mask as two arrays, by a map before"
    if isinstance(value, np.ndarray | np.generic):
        return "write array_record with the codec msgpack, or call .tolist() in a map before"
    if hasattr(value, "numpy"):
        return "call .numpy() in a map before"
    if isinstance(value, tuple):
        return "make a dict or a plain tuple of it, by a map before"
    return (
        "make arrays, numbers, texts, lists or dicts of it, by a map before, or write "
        "array_record with codec=(encode, decode)"
    )
