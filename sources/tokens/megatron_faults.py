"""Faults of a Megatron index that are found by comparing its entries with one another."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Entries(NamedTuple):
    """Neighbouring entries: the first sequence, and of each the length, start and end in bytes."""

    first: int
    lengths: NDArray[np.int32]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def fault_of_picked(found: Entries, num_bytes: int, itemsize: int) -> tuple[int, str] | None:
    """Returns a sequence that cannot be right, and the reason, or ``None``.

    Sequences may be picked from the file, repeated, and in any order. Other overlaps are damage. So
    are a single gap, and a single repetition without gaps, if one flipped bit of a length explains
    them.

    Args:
        found: all entries; each is within the file.
        num_bytes: size of the file of tokens.
        itemsize: bytes of a token.

    Example:
        >>> lengths, starts = np.array([4, 5], np.int32), np.array([0, 5])
        >>> fault_of_picked(
        ...     Entries(0, lengths, starts, starts + lengths), 10, 1
        ... )  # doctest: +ELLIPSIS
        (0, 'one bit of the length of sequence 0 has flipped: it has 4 tokens, and no sequence ...')
    """
    lengths = found.lengths
    order = np.argsort(found.starts, kind="stable")
    order = order[lengths[order] > 0]
    starts, ends = found.starts[order], found.ends[order]
    gap_starts, gap_ends = np.append(0, ends), np.append(starts, num_bytes)
    gaps = np.flatnonzero(gap_ends > gap_starts)
    repeats = (starts[1:] == starts[:-1]) & (ends[1:] == ends[:-1])
    is_flipped = (
        not len(gaps) and repeats.sum() == 1 and _is_bit(int(lengths[order[1:]][repeats][0]))
    )
    overlaps = starts[1:] < ends[:-1]
    if not is_flipped and lengths.sum(dtype=np.int64) * itemsize != num_bytes:
        overlaps &= ~repeats
    if overlaps.any():
        i = int(np.argmax(overlaps))
        places = f"from {starts[i]} to {ends[i]} and from {starts[i + 1]} to {ends[i + 1]}"
        return (
            int(order[i + 1]),
            f"sequences {order[i]} and {order[i + 1]} share tokens, with the bytes {places}",
        )
    if len(gaps) == 1:
        begin, end = int(gap_starts[gaps[0]]), int(gap_ends[gaps[0]])
        missing = (end - begin) // itemsize
        ending = np.flatnonzero((found.ends == begin) & (lengths & missing == 0))
        if _is_bit(missing) and len(ending):
            last = int(ending[-1])
            what = (
                f"one bit of the length of sequence {last} has flipped: it has {lengths[last]}"
                " tokens"
            )
            return last, f"{what}, and no sequence has the next {missing}"
    return None


def size_of_tokens(found: Entries, num_bytes: int, itemsize: int) -> int:
    """Returns the bytes of a token for which the first entries follow one another, or ``itemsize``.

    Example:
        >>> lengths, starts = np.array([4, 5], np.int32), np.array([0, 8])
        >>> size_of_tokens(Entries(0, lengths, starts, starts + lengths), 18, 1)
        2
    """
    nexts = found.starts[1:] if len(found.starts) > 1 else np.array([num_bytes])
    lengths, taken = (
        found.lengths[: len(nexts)].astype(np.int64),
        nexts - found.starts[: len(nexts)],
    )
    sizes = [size for size in (itemsize, 1, 2, 4, 8) if (taken == size * lengths).all()]
    return sizes[0] if sizes else itemsize


def flipped_document(numbers: NDArray[np.int64], others: NDArray[np.intp]) -> str | None:
    """Returns the fault of a list of as many documents as sequences of which one bit has flipped,
    or ``None``.

    Args:
        numbers: the first sequence of each document.
        others: the documents whose first sequence has another number than they have.
    """
    if len(others) != 1:
        return None
    document, sequence = int(others[0]), int(numbers[others[0]])
    if (document ^ sequence).bit_count() != 1:
        return None
    begins = (
        f"document {document} begins with sequence {sequence}, and all others with that of their"
        " number"
    )
    return f"one bit of the list of documents has flipped: {begins}"


def _is_bit(number: int) -> bool:
    return number > 0 and number & (number - 1) == 0
