"""Times, sizes and rates as texts."""

from __future__ import annotations

_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1000, "us"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def time_text(nanoseconds: float) -> str:
    """A time in the largest unit of which there is one: ``971ns``, ``1.07ms``."""
    for size, unit in _TIMES:
        if nanoseconds >= size:
            return f"{nanoseconds / size:.2f}{unit}"
    return f"{int(nanoseconds)}ns"


def size_text(num_bytes: float) -> str:
    """A size in the largest unit of which there is one: ``640 bytes``, ``1.25 KiB``."""
    for size, unit in _SIZES:
        if num_bytes >= size:
            return f"{num_bytes / size:.2f} {unit}"
    return f"{int(num_bytes)} bytes"


def rate_text(per_second: float | None) -> str:
    """How many elements come: ``12.5 elements/s``."""
    if per_second is None:
        return "an unknown number of elements/s"
    digits = 0 if per_second >= 100 else 1 if per_second >= 10 else 2
    return f"{per_second:,.{digits}f} elements/s"
