"""The index shuffle: a pseudo-random permutation of ``[0, max_index]`` that needs no memory.

A small block cipher over at least 16 bits (a Feistel network whose round function is the one of
Simon) is walked until the value falls into the range again ("cycle walking"), so the image of any
index is known without knowing the others. Bit-exact with Grain 0.2.18, except that an index too
large for the cipher's block is mapped to itself, which makes the function a permutation at every
length (Grain loses one record at lengths ``2**k + 1``).

Source: R. Beaulieu et al., "The SIMON and SPECK Families of Lightweight Block Ciphers", 2013; J.
Black and P. Rogaway, "Ciphers with Arbitrary Finite Domains", 2002; the round keys are those of
C++'s ``std::seed_seq``.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast, overload

import numpy as np

from gristmill.core.errors import as_int
from gristmill.core.locks import Lock

if TYPE_CHECKING:
    from numpy.typing import NDArray

_UINT32 = 0xFFFFFFFF
_ROUNDS = 4  # of every shuffle in a pipeline
_WINDOW = 4096  # indices permuted at a time, for lengths above _WHOLE
_WHOLE = 1 << 16  # up to this length an epoch's permutation is computed at once
_SMALL = 1 << 11  # up to this length of a table, fewer operations matter more than shorter ones
_FEW = 32  # for fewer records a single walk takes longer than the whole permutation
_LONG = 4 * _WINDOW  # what is as long is computed at once, and not kept
_NUM_WINDOWS = 8  # kept per Permutation: some epochs or some threads at different places


def _mix(value: int) -> int:
    return value ^ (value >> 27)


@lru_cache(maxsize=256)
def round_keys(seed: int, rounds: int) -> tuple[int, ...]:
    """Returns the cipher's keys: ``rounds`` 32-bit words that C++'s ``std::seed_seq{seed}``
    generates.
    """
    n = rounds
    t = 11 if n >= 623 else 7 if n >= 68 else 5 if n >= 39 else 3 if n >= 7 else (n - 1) // 2
    p = (n - t) // 2
    q = p + t
    m = max(2, n)
    x = [0x8B8B8B8B] * n
    for k in range(m):
        a = 1664525 * _mix(x[k % n] ^ x[(k + p) % n] ^ x[(k - 1) % n]) & _UINT32
        c = a + (0 if k == 0 else k % n) + (seed if k == 1 else 0) + (1 if k == 0 else 0)
        x[(k + p) % n] = (x[(k + p) % n] + a) & _UINT32
        x[(k + q) % n] = (x[(k + q) % n] + c) & _UINT32
        x[k % n] = c & _UINT32
    for k in range(m, m + n):
        a = 1566083941 * _mix((x[k % n] + x[(k + p) % n] + x[(k - 1) % n]) & _UINT32) & _UINT32
        c = (a - k % n) & _UINT32
        x[(k + p) % n] ^= a
        x[(k + q) % n] ^= c
        x[k % n] = c
    return tuple(x)


@lru_cache(maxsize=256)
def _half_bits(max_index: int) -> int:
    """Half the cipher's block, in bits: the block is even, at least 16 bits, and Grain's (through a
    double) elsewhere.
    """
    bits = math.ceil(math.log2(max_index))
    return max(bits + bits % 2, 16) // 2


@lru_cache(maxsize=17)
def _round_array(half: int) -> NDArray[np.uint32]:
    """Returns the round function of every ``half``-bit word, for ``half <= 16``: one look-up is far
    cheaper than the rotations.
    """
    return _round(np.arange(1 << half, dtype=np.uint64), half).astype(np.uint32)


@lru_cache(maxsize=17)
def _round_table(half: int) -> list[int]:
    return cast("list[int]", _round_array(half).tolist())


@overload
def _round(z: int, half: int) -> int: ...
@overload
def _round(z: NDArray[Any], half: int) -> NDArray[Any]: ...
def _round(z: Any, half: int) -> Any:
    mask = (1 << half) - 1
    rot1 = (z << 1 | z >> half - 1) & mask
    rot2 = (z << 2 | z >> half - 2) & mask
    rot8 = (z << 8 | z >> half - 8) & mask
    return (rot1 & rot8) ^ rot2


@lru_cache(maxsize=256)
def _permuted_few(max_index: int, seed: int, rounds: int) -> list[int]:
    return cast(
        "list[int]",
        _first_returns(_encrypt_16_bits(round_keys(seed, rounds)), max_index + 1).tolist(),
    )


def _permute_one(index: int, max_index: int, seed: int, rounds: int) -> int:
    if max_index < _FEW:
        return _permuted_few(max_index, seed, rounds)[index]
    half = _half_bits(max_index)
    if index >> 2 * half:
        return index  # does not fit the block: see the module's docstring
    mask = (1 << half) - 1
    keys = [key & mask for key in round_keys(seed, rounds)]
    table = _round_table(half) if half <= 16 else None
    while True:
        left, right = index >> half, index & mask
        if table is not None:
            for j in range(0, rounds, 2):
                left ^= table[right] ^ keys[j]
                right ^= table[left] ^ keys[j + 1]
        else:
            for j in range(0, rounds, 2):
                left ^= _round(right, half) ^ keys[j]
                right ^= _round(left, half) ^ keys[j + 1]
        index = left << half | right
        if index <= max_index:
            return index


def _encrypt(values: NDArray[Any], half: int, keys: tuple[int, ...]) -> NDArray[Any]:
    """Returns one encryption of each of ``values``, uint32 if the block has at most 32 bits, uint64
    otherwise.
    """
    mask = (1 << half) - 1
    left, right = values >> half, values & mask
    if half <= 16:
        table = _round_array(half)
        for j in range(0, len(keys), 2):
            left ^= table[right]
            left ^= keys[j] & mask
            right ^= table[left]
            right ^= keys[j + 1] & mask
    else:
        for j in range(0, len(keys), 2):
            left ^= _round(right, half) ^ (keys[j] & mask)
            right ^= _round(left, half) ^ (keys[j + 1] & mask)
    left <<= half
    left |= right
    return left


def _encrypt_16_bits(keys: tuple[int, ...]) -> NDArray[np.uint16]:
    """Returns one encryption of every value of the smallest block, uint16 [2**16]: in bytes, which
    is twice as fast.
    """
    keys_8 = [np.uint8(key & 0xFF) for key in keys]
    table, byte = _round_array(8).astype(np.uint8), np.arange(256, dtype=np.uint8)
    left = byte[:, None] ^ (table ^ keys_8[0])  # [left half, right half], also below
    right = table.take(left) ^ (byte ^ keys_8[1])
    for j in range(2, len(keys), 2):
        left ^= table.take(right)
        left ^= keys_8[j]
        right ^= table.take(left)
        right ^= keys_8[j + 1]
    values: NDArray[np.uint16] = left.astype(np.uint16)
    values <<= 8
    values |= right
    return values.reshape(-1)


def _first_returns(step: NDArray[Any], length: int) -> NDArray[Any]:
    """Returns the first value below ``length`` on the walk ``i, step[i], step[step[i]], …``, for
    each ``i`` below it.

    Args:
        step: a permutation of ``range(len(step))``, whose length is a power of two.
        length: may be more than ``len(step)``.
    """
    # A walk from all ends up everywhere, so it pays to forget the upper half as long as it is
    # large: few walk far to leave it. ``take`` and ``nonzero`` are quicker than indexing and
    # ``flatnonzero`` for the short arrays of most turns.
    while len(step) > _SMALL and len(step) >= 2 * length:
        half = len(step) // 2
        lower = step[:half].copy()
        away = (lower >= half).nonzero()[0]
        values = lower.take(away)
        while away.size:
            values = step.take(values)
            lower[away] = values
            still = (values >= half).nonzero()[0]
            away, values = away.take(still), values.take(still)
        step = lower
    # Then map every value back into range by doubling the steps of those outside.
    block = np.arange(len(step), dtype=step.dtype)
    home = np.where(block < length, block, step)
    values = step[:length]
    while (values >= length).any():
        values = home.take(values)
        home = home.take(home)
    return values


def _permute_range(start: int, stop: int, max_index: int, seed: int) -> NDArray[np.int64]:
    """Returns the images of ``start … stop-1``, as int64 [stop - start]."""
    half = _half_bits(max_index)
    keys = round_keys(seed, _ROUNDS)
    # indices from here on do not fit the block: see the module's docstring
    fit = min(stop, 1 << 2 * half)
    dtype = np.uint32 if half <= 16 else np.uint64
    if half == 8:
        values: NDArray[Any] = _first_returns(_encrypt_16_bits(keys), max_index + 1)[start:fit]
    else:
        values = _encrypt(np.arange(start, max(fit, start), dtype=dtype), half, keys)
        away = np.flatnonzero(values > max_index)
        while away.size:
            walked = _encrypt(values[away], half, keys)
            values[away] = walked
            away = away[walked > max_index]
    return np.concatenate(
        [values.astype(np.int64), np.arange(max(fit, start), stop, dtype=np.int64)]
    )


def index_shuffle(index: int, max_index: int, seed: int, rounds: int) -> int:
    """Returns the image of ``index`` under a pseudo-random permutation of ``[0, max_index]``.

    For fixed ``max_index``, ``seed`` and ``rounds`` the function is a bijection of ``[0,
    max_index]``. It is the permutation that ``IndexSampler`` and ``MapDataset.shuffle`` use, with 4
    rounds and ``seed + epoch`` as seed.

    Args:
        index: position to look up, in ``[0, max_index]``.
        max_index: largest index, a signed 64-bit integer: the length minus one.
        seed: unsigned 32-bit integer.
        rounds: rounds of the cipher, an even number in ``[4, 1024]``.

    Returns:
        The shuffled index, a built-in ``int`` in ``[0, max_index]``.

    Raises:
        TypeError: an argument is not an integer.
        ValueError: an argument is out of its range.

    Example:
        >>> [index_shuffle(i, max_index=4, seed=0, rounds=4) for i in range(5)]
        [0, 4, 1, 2, 3]
    """
    index, max_index = as_int("index", index), as_int("max_index", max_index, maximum=2**63 - 1)
    seed, rounds = as_int("seed", seed, minimum=0, maximum=_UINT32), as_int("rounds", rounds)
    if rounds % 2 or not 4 <= rounds <= 1024:
        raise ValueError(f"rounds must be an even integer in [4, 1024], got {rounds}")
    if not 0 <= index <= max_index:
        raise ValueError(f"index must be in [0, max_index] = [0, {max_index}], got {index}")
    return _permute_one(index, max_index, seed, rounds) if max_index else 0


def shuffled_order(length: int, seed: int) -> NDArray[np.int64]:
    """Returns ``index_shuffle`` of all of ``0 … length-1``, int64 [length], with ``seed`` modulo
    ``2**32``; ``length >= 1``.
    """
    return (
        np.zeros(1, np.int64)
        if length == 1
        else _permute_range(0, length, length - 1, seed & _UINT32)
    )


class Permutation:
    """The shuffled order of ``length`` records, another one in every epoch (seed ``seed + epoch``,
    modulo ``2**32``).

    Thread-safe and cheap to pickle: the windows it keeps are only a cache. Looking up a block near
    other recent ones costs about 20 ns per index, a single index of a long epoch about 1 µs.
    """

    __slots__ = ("_lock", "_windows", "length", "seed")

    def __init__(self, length: int, seed: int) -> None:
        self.length = length
        self.seed = seed
        self._lock = Lock()
        self._windows: dict[tuple[int, int], NDArray[np.int64]] = {}

    def __getstate__(self) -> tuple[int, int]:
        return self.length, self.seed

    def __setstate__(self, state: tuple[int, int]) -> None:
        Permutation.__init__(self, *state)

    @property
    def _window_size(self) -> int:
        return self.length if self.length <= _WHOLE else _WINDOW

    def one(self, epoch: int, position: int) -> int:
        """Returns the record at ``position`` of ``epoch``."""
        if self.length == 1:
            return 0
        if self.length <= _WHOLE:
            return int(self._window(epoch, 0)[position])
        return _permute_one(position, self.length - 1, (self.seed + epoch) & _UINT32, _ROUNDS)

    def many(self, epochs: NDArray[Any], positions: NDArray[Any]) -> NDArray[np.int64]:
        """Returns the records at ``positions`` of ``epochs``, arrays of the same shape [n], n >= 1;
        int64 [n].
        """
        if self.length == 1:
            return np.zeros(len(positions), np.int64)
        positions = positions.astype(np.int64, copy=False)
        first = epochs[0]
        if epochs[-1] == first and (epochs == first).all():
            return self._many(int(first), positions)
        result = np.empty(len(positions), np.int64)
        for epoch in np.unique(epochs):
            here = epochs == epoch
            result[here] = self._many(int(epoch), positions[here])
        return result

    def run(self, epoch: int, start: int, num: int) -> NDArray[np.int64] | None:
        """Returns the records at ``start, start + 1, …`` of one epoch, read-only int64 [num], or
        ``None`` if that is no quicker.
        """
        size = self._window_size
        window, offset = divmod(start, size)
        if offset + num <= min(size, self.length - window * size):
            return self._window(epoch, window)[offset : offset + num]
        if num < _LONG or start + num > self.length:
            return None
        return _permute_range(start, start + num, self.length - 1, (self.seed + epoch) & _UINT32)

    def _many(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.length <= _WHOLE:
            return self._window(epoch, 0)[positions]
        windows = positions // _WINDOW
        first, last = int(windows.min()), int(windows.max())
        if first == last:
            return self._window(epoch, first)[positions - first * _WINDOW]
        used = range(first, last + 1) if last - first == 1 else np.unique(windows).tolist()
        # far apart: most of what the windows hold would go to waste
        if len(used) * _WINDOW > 64 * len(positions):
            seed, top = (self.seed + epoch) & _UINT32, self.length - 1
            return np.array(
                [_permute_one(p, top, seed, _ROUNDS) for p in positions.tolist()], np.int64
            )
        result = np.empty_like(positions)
        for window in used:
            here = windows == window
            result[here] = self._window(epoch, window)[positions[here] - window * _WINDOW]
        return result

    def _window(self, epoch: int, window: int) -> NDArray[np.int64]:
        found = self._windows.get((epoch, window))
        return self._compute_window(epoch, window) if found is None else found

    def _compute_window(self, epoch: int, window: int) -> NDArray[np.int64]:
        with self._lock:  # threads that read ahead all come for the same window
            found = self._windows.get((epoch, window))
            if found is None:
                size = self._window_size
                start = window * size
                seed = (self.seed + epoch) & _UINT32
                found = _permute_range(start, min(start + size, self.length), self.length - 1, seed)
                found.flags.writeable = False  # views of it are handed out
                # oldest first; replaced, never changed
                windows = dict(list(self._windows.items())[1 - _NUM_WINDOWS :])
                windows[epoch, window] = found
                self._windows = windows
        return found
