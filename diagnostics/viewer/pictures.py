"""Arrays as pictures: the order of their axes, how their values become brightness, and PNG. Large
ones are made small first.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from gristmill.diagnostics.viewer.numbers import is_numeric, sample

SMALL, LARGE = 320, 1280  # pixels, the longer side of a picture among others and by itself
MAX_FRAMES = 8
_MAX_LABEL = 63  # a picture of small integers shows classes: they are spread over the range
_PNG_TYPES = {1: 0, 3: 2, 4: 6}  # the number of channels, and what PNG calls it


@dataclass(frozen=True)
class Picture:
    """A picture in an array.

    Args:
        array: shape [frames, height, width, channels], a view where that is possible; 1, 3 or 4
            channels.
        low, high: the values that become black and white.
    """

    array: npt.NDArray[Any]
    low: float
    high: float

    @property
    def is_scaled(self) -> bool:
        """True if the displayed range differs from the usual black and white."""
        return (self.low, self.high) not in ((0, 1), (0, 255))

    @property
    def num_frames(self) -> int:
        return min(MAX_FRAMES, self.array.shape[0])

    def png(self, frame: int, size: int) -> bytes:
        """Returns one of ``num_frames`` frames as PNG, its longer side no more than ``size``
        pixels.
        """
        index = frame * (self.array.shape[0] - 1) // max(1, self.num_frames - 1)
        pixels = reduced(self.array[index], size).astype(np.float32)  # [height, width, channels]
        span = self.high - self.low or 1.0
        with np.errstate(invalid="ignore"):
            scaled = np.nan_to_num((pixels - self.low) * (255 / span))
        return png_of(np.clip(np.rint(scaled), 0, 255).astype(np.uint8))


def picture_of(array: npt.NDArray[Any], is_named: bool) -> Picture | None:
    """Returns the picture that an array holds, according to its shape and type; ``None`` if it
    holds none.

    Args:
        array: [height, width], with 1, 3 or 4 channels before or after them, and perhaps frames
            before all of it.
        is_named: whether its name says that it is a picture. It has to be of bytes, or large enough
            with three channels, if not.
    """
    if not is_numeric(array) or array.dtype.kind == "c" or not array.size:
        return None
    frames = _frames(array, is_named)
    if frames is None:
        return None
    return Picture(frames, *_black_and_white(frames))


def _frames(array: npt.NDArray[Any], is_named: bool) -> npt.NDArray[Any] | None:
    """Returns the array as [frames, height, width, channels]."""
    is_bytes = array.dtype == np.uint8
    least = 4 if is_named else 8 if is_bytes else 16
    shape = array.shape
    if array.ndim == 2:
        return array[None, :, :, None] if (is_named or is_bytes) and min(shape) >= least else None
    if array.ndim not in (3, 4):
        return None
    stacked = array if array.ndim == 4 else array[None]
    height, width, channels = stacked.shape[1:]
    allowed = (1, 3, 4) if is_named or is_bytes else (3,)
    if channels in allowed and min(height, width) >= least:
        return stacked
    if height in allowed and min(width, channels) >= least:
        return np.moveaxis(stacked, 1, -1)
    if is_named and array.ndim == 3 and min(shape[1:]) >= least:  # frames without channels
        return array[..., None]
    return None


def _black_and_white(frames: npt.NDArray[Any]) -> tuple[float, float]:
    if frames.dtype.kind == "b":
        return 0, 1
    values = sample(frames)
    with np.errstate(invalid="ignore"):
        values = values.astype(np.float64)
        finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
    if frames.dtype.kind in "iu":
        is_usual = low >= 0 and high <= 255 and (frames.shape[-1] > 1 or high > _MAX_LABEL)
        return (0, 255) if is_usual else (min(low, 0), max(high, 1))
    if low >= 0 and high <= 1:
        return 0, 1
    return (0, 255) if low >= 0 and 1 < high <= 255 and frames.shape[-1] > 1 else (low, high)


def reduced(pixels: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    """Returns the pixels [height, width, channels] of a picture whose longer side is ``size`` or
    less: means of squares of them.

    Of very large pictures not all pixels are looked at.
    """
    longest = max(pixels.shape[:2])
    skip = max(1, longest // (2 * size))
    pixels = pixels[::skip, ::skip]
    factor = -(-max(pixels.shape[:2]) // size)
    if factor == 1:
        return pixels
    height, width = [max(1, n // factor) for n in pixels.shape[:2]]
    down, across = min(factor, pixels.shape[0]), min(factor, pixels.shape[1])
    cut = pixels[: height * down, : width * across].astype(np.float32)
    mean: npt.NDArray[Any] = cut.reshape(height, down, width, across, -1).mean(axis=(1, 3))
    return mean


def png_of(pixels: npt.NDArray[np.uint8]) -> bytes:
    """Returns a PNG file of pixels [height, width, channels].

    Example:
        >>> png_of(np.zeros((2, 3, 1), np.uint8))[:8]
        b'\\x89PNG\\r\\n\\x1a\\n'
    """
    height, width, channels = pixels.shape
    # before each line, that it is not filtered
    lines = np.zeros((height, 1 + width * channels), np.uint8)
    lines[:, 1:] = pixels.reshape(height, -1)
    header = struct.pack(">IIBBBBB", width, height, 8, _PNG_TYPES[channels], 0, 0, 0)
    parts = [(b"IHDR", header), (b"IDAT", zlib.compress(lines.tobytes(), 3)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        [
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
            for name, data in parts
        ]
    )
