"""Keyed hashes of plain keys and of numbers: the same on every machine, in every process and
version of Python.

Keys are written down unambiguously (a letter for the type, lengths before what has one), then
hashed.

Source: J.-P. Aumasson et al., "BLAKE2: simpler, smaller, fast as MD5", 2013; S. Vigna's SplitMix64.
"""

from __future__ import annotations

import hashlib
import operator
from typing import Any

import numpy as np

_MASK = 2**64 - 1


class KeyedHash:
    """A function of keys into ``[0, 2**64)``, another one for every seed.

    Keys are ``str``, ``bytes``, integers (NumPy's too; ``True`` is 1) and tuples of these. Equal
    keys have equal hashes; text is never equal to bytes.

    Args:
        seed: a non-negative integer of any size.

    Example:
        >>> KeyedHash(0)("speaker 7") == KeyedHash(0)("speaker 7") != KeyedHash(1)("speaker 7")
        True
        >>> KeyedHash(0)(0.5)
        Traceback (most recent call last):
        ...
        TypeError: a key must be a str, bytes, an integer or a tuple of these, got 0.5 of type float
    """

    def __init__(self, seed: int) -> None:
        self._hash = hashlib.blake2b(key=hashlib.blake2b(_encoded(seed)).digest(), digest_size=8)

    def __call__(self, key: Any) -> int:
        digest = self._hash.copy()
        digest.update(_encoded(key))
        return int.from_bytes(digest.digest(), "little")


def _encoded(key: Any) -> bytes:
    if isinstance(key, str):
        return b"s" + key.encode(errors="surrogatepass")
    if isinstance(key, bytes):
        return b"b" + key
    if isinstance(key, tuple):
        return b"t" + b"".join(
            [len(part).to_bytes(8, "little") + part for part in map(_encoded, key)]
        )
    try:
        number = operator.index(key)
    except TypeError:
        raise TypeError(
            f"a key must be a str, bytes, an integer or a tuple of these, got {key!r:.200} of type"
            f" {type(key).__name__}"
        ) from None
    return b"i" + number.to_bytes(number.bit_length() // 8 + 1, "little", signed=True)


def mixed(value: Any, seed: int) -> Any:
    """Returns a hash of 64 bits: of an ``int``, or of each of an array of integers; ``seed`` is one
    below ``2**64``.
    """
    if isinstance(value, np.ndarray) and value.dtype != object:
        value = value.astype(np.uint64)
    value = (value * 0x9E3779B97F4A7C15 & _MASK) ^ seed
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & _MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & _MASK
    return value ^ value >> 31
