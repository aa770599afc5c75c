"""Arrays as sound: WAV to play, and the outline of the wave to look at."""

from __future__ import annotations

import io
import wave
from typing import Any

import numpy as np
import numpy.typing as npt

MIN_SAMPLES = 1000
MAX_SECONDS = 120  # that are played
MAX_CHANNELS = 8
_MAX_IN_BIN = 4096  # samples that are looked at for a part of the outline


def channels_of(array: npt.NDArray[Any]) -> npt.NDArray[Any] | None:
    """Sound as [samples, channels], a view; ``None`` if an array has not the shape of sound."""
    if array.dtype.kind not in "iuf" or array.ndim not in (1, 2):
        return None
    if array.ndim == 1:
        array = array[:, None]
    elif array.shape[0] <= MAX_CHANNELS < array.shape[1]:
        array = array.T
    return array if 1 <= array.shape[1] <= MAX_CHANNELS and array.shape[0] >= MIN_SAMPLES else None


def outline(channels: npt.NDArray[Any], num_bins: int) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
    """Returns the least and the greatest value of each part of a sound, between -1 and 1, [parts]
    each.

    Args:
        channels: [samples, channels].
        num_bins: how many parts, fewer if there are fewer samples.
    """
    edges = np.linspace(0, len(channels), min(num_bins, len(channels)) + 1).astype(np.int64)
    lows, highs = [], []
    for start, stop in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
        part = as_floats(channels[start : stop : max(1, (stop - start) // _MAX_IN_BIN)])
        lows.append(part.min())
        highs.append(part.max())
    loudest = max(1.0, float(np.max(highs)), -float(np.min(lows)))
    return np.asarray(lows) / loudest, np.asarray(highs) / loudest


def wav_of(channels: npt.NDArray[Any], rate: int) -> bytes:
    """Returns the first two minutes of a sound as a WAV file of 16 bits, one or two channels; too
    loud a sound is made softer.

    Args:
        channels: [samples, channels].
        rate: samples per second.
    """
    samples = as_floats(channels[: rate * MAX_SECONDS, :2])
    loudest = max(1.0, float(np.abs(samples).max(initial=0)))
    file = io.BytesIO()
    with wave.open(file, "wb") as wav:
        wav.setparams((samples.shape[1], 2, rate, 0, "NONE", ""))
        wav.writeframes(np.rint(samples * (32767 / loudest)).astype("<i2").tobytes())
    return file.getvalue()


def as_floats(channels: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    """Samples of any type as floats, 1 the loudest that integers can be."""
    floats = channels.astype(np.float64)
    if channels.dtype.kind in "iu":
        limits = np.iinfo(channels.dtype)
        middle = (float(limits.max) + float(limits.min) + 1) / 2
        floats = (floats - middle) / (float(limits.max) - middle + 1)
    return np.nan_to_num(floats, posinf=1, neginf=-1)
