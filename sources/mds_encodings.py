"""The encodings of columns in MosaicML's shards (MDS), as its library writes them."""

from __future__ import annotations

import io
import json
import pickle
import struct
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np

_SHAPE_DTYPES = ("<u1", "<u2", "<u4", "<u8")
_VALUE_DTYPES = {
    8: "uint8",
    9: "int8",
    16: "uint16",
    17: "int16",
    18: "float16",
    32: "uint32",
    33: "int32",
    34: "float32",
    64: "uint64",
    65: "int64",
    66: "float64",
}
PICKLE = "pkl"


def decoder_of(encoding: str, decode_images: bool) -> Callable[[bytes], Any]:
    """Returns what makes a value of the bytes of a column.

    Args:
        encoding: its name in ``index.json``, such as ``ndarray:float32:2,3``.
        decode_images: make pictures of Pillow of ``jpeg`` and ``png``; otherwise leave the bytes.

    Raises:
        ValueError: there is no such encoding.
    """
    name, _, config = encoding.partition(":")
    if name == "ndarray":
        return _arrays(config)
    if name in _SCALARS:
        dtype = np.dtype(_SCALARS[name])
        return lambda data: np.frombuffer(data, dtype)[0]
    image = _image if decode_images else bytes
    images: dict[str, Callable[[bytes], Any]] = {
        "jpeg": image,
        "png": image,
        "pil": _raw_image,
        "jpeg_array": lambda data: _listed(data, 0, image),
        "jpegarray": lambda data: _listed(data, 0, image),
        "list[jpeg]": lambda data: _listed(data, 4, image),
        "list[png]": lambda data: _listed(data, 4, image),
        "list[pil]": lambda data: _listed(data, 4, _raw_image),
    }
    found = images.get(name) or _PLAIN.get(name)
    if found is None:
        known = ", ".join(sorted(["ndarray", *_SCALARS, *images, *_PLAIN]))
        raise ValueError(f"the encoding {encoding!r} is not known; those that are: {known}")
    return found


_SCALARS = {
    f"{kind}{bits}": f"<{kind[0]}{bits // 8}"
    for kind in ("uint", "int")
    for bits in (8, 16, 32, 64)
}
_SCALARS |= {f"float{bits}": f"<f{bits // 8}" for bits in (16, 32, 64)}
_PLAIN: dict[str, Callable[[bytes], Any]] = {
    "bytes": bytes,
    "str": lambda data: data.decode(),
    "int": lambda data: struct.unpack("<q", data)[0],
    "str_int": lambda data: int(data.decode()),
    "str_float": lambda data: float(data.decode()),
    "str_decimal": lambda data: Decimal(data.decode()),
    "json": json.loads,
    PICKLE: pickle.loads,
}


def _arrays(config: str) -> Callable[[bytes], Any]:
    """Returns a decoder of arrays whose dtype and shape are in the encoding, or else before the
    values.
    """
    name, _, text = config.partition(":")
    fixed = tuple(map(int, text.split(","))) if text else None

    def decode(data: bytes) -> Any:
        place = 0
        dtype = name
        if not dtype:
            dtype, place = _VALUE_DTYPES[data[0]], 1
        shape: Any = fixed
        if shape is None:
            num_axes, kind = data[place] >> 2, data[place] & 3
            axis = np.dtype(_SHAPE_DTYPES[kind])
            shape = np.frombuffer(data, axis, num_axes, place + 1)
            place += 1 + num_axes * axis.itemsize
        values = np.frombuffer(data, np.dtype(dtype).newbyteorder("<"), offset=place)
        return values.reshape(shape).astype(dtype)

    return decode


def _listed(data: bytes, start: int, decode: Callable[[bytes], Any]) -> list[Any]:
    num = int.from_bytes(data[start : start + 4], "little")
    sizes = np.frombuffer(data, "<u4", num, start + 4).tolist()
    place, values = start + 4 + 4 * num, []
    for size in sizes:
        values.append(decode(data[place : place + size]))
        place += size
    return values


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError(
            "pictures need the package Pillow: run pip install pillow, or pass decode_images=False"
        ) from error
    return PIL.Image


def _image(data: bytes) -> Any:
    image = _pillow().open(io.BytesIO(data))
    image.load()  # otherwise the first use does it, in another thread perhaps
    return image


def _raw_image(data: bytes) -> Any:
    width, height, size = struct.unpack("<3I", data[:12])
    return _pillow().frombytes(
        data[12 : 12 + size].decode(), (width, height), bytes(data[12 + size :])
    )
