"""Texts of times, sizes and rates, alike in tables, reports, notebooks and on the command line."""

from __future__ import annotations

_TIMES = ((1_000_000_000, "s"), (1_000_000, "ms"), (1000, "µs"))
_SIZES = ((1 << 40, "TiB"), (1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB"))


def digits_text(value: float) -> str:
    """Returns the text of a number with three digits, or with all digits before the point.

    Example:
        >>> digits_text(1.25), digits_text(12.5), digits_text(1250.4)
        ('1.25', '12.5', '1,250')
    """
    return f"{value:,.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def time_text(nanoseconds: float) -> str:
    """Returns the text of a time in its largest whole unit.

    Example:
        >>> time_text(971), time_text(1_066_000), time_text(82 * 60 * 1e9)
        ('971 ns', '1.07 ms', '4,920 s')
    """
    return _in_units(nanoseconds, _TIMES, "ns")


def size_text(num_bytes: float) -> str:
    """Returns the text of a size in its largest whole unit.

    Example:
        >>> size_text(640), size_text(1280), size_text(3 << 40)
        ('640 bytes', '1.25 KiB', '3.00 TiB')
    """
    return _in_units(num_bytes, _SIZES, "bytes")


def rate_text(per_second: float | None) -> str:
    """Returns the text of a rate, such as ``12.5 elements/s``."""
    number = "an unknown number of" if per_second is None else digits_text(per_second)
    return f"{number} elements/s"


def _in_units(value: float, units: tuple[tuple[int, str], ...], smallest: str) -> str:
    for size, unit in units:
        if value >= size:
            return f"{digits_text(value / size)} {unit}"
    return f"{int(value)} {smallest}"
