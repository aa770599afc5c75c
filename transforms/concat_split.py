"""Sequences joined one after another and cut into pieces of fixed lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gristmill.transforms.sequences import Array, as_dtype_of


@dataclass(frozen=True)
class Target:
    """A feature of an output.

    Args:
        name: of the feature.
        length: cells in an output.
        is_meta: never cut, but repeated with every part of its element; without segment ids and
            positions.
        bos_id: overwrites the first token of every part; ``None`` to leave it.
    """

    name: str
    length: int
    is_meta: bool = False
    bos_id: int | None = None


class Concatenation:
    """An output in the making: parts of elements, one after another.

    Args:
        targets: the features, in the order in which they are looked at.
        sequences: an element that fits, an array for each feature, to begin with.
    """

    # the meta feature for whose sake the last element did not begin here
    limiting: Target | None = None

    def __init__(self, targets: Sequence[Target], sequences: Sequence[Array] | None = None) -> None:
        self._targets = targets
        self._used = [0] * len(targets)
        # of each feature, an array for each part of an element
        self._parts: list[list[Array]] = [[] for _ in targets]
        self._likes: list[Any] = []  # dtypes and trailing shapes of the first parts
        self._bos: list[Array | None] = []
        if sequences is not None:
            self.add(sequences, [0] * len(targets))

    def __len__(self) -> int:
        """Returns the number of parts."""
        return len(self._parts[0])

    def add(self, sequences: Sequence[Array], starts: Sequence[int]) -> list[int] | None:
        """Adds what there is room for of an element; returns where its rest begins, ``None`` if
        nothing is left.

        If this raises, nothing has changed.

        Args:
            sequences: an array for each feature.
            starts: where the rest begins that has not been added to outputs before; 0 for meta
                features.

        Raises:
            ValueError: a meta feature is longer than an output, or a trailing shape or values do
                not suit the parts before.
        """
        counts = []
        is_cut = False
        for target, array, start, used in zip(
            self._targets, sequences, starts, self._used, strict=True
        ):
            count, room = len(array) - start, target.length - used
            if count > room:
                if target.is_meta:
                    if count > target.length:
                        raise ValueError(
                            f"meta feature {target.name!r} is {count} long, and length_struct gives"
                            f" it {target.length} cells: meta features are not cut, truncate it or"
                            " give it more"
                        )
                    self.limiting = target
                    return list(starts)
                count, is_cut = room, True
            counts.append(count)
        if (
            is_cut
            and not any(starts)
            and not any([n for n, t in zip(counts, self._targets, strict=True) if not t.is_meta])
        ):
            return list(starts)
        ends = [start + count for start, count in zip(starts, counts, strict=True)]
        parts = [
            array[start:end] for array, start, end in zip(sequences, starts, ends, strict=True)
        ]
        if not len(self):
            self._bos = [
                _bos(target, part) for target, part in zip(self._targets, parts, strict=True)
            ]
            self._likes = [(part.dtype, part.shape[1:]) for part in parts]
        elif [(part.dtype, part.shape[1:]) for part in parts] != self._likes:
            parts = [
                as_dtype_of(
                    repr(target.name), part, dtype, trailing, "the first sequence in this row"
                )
                for target, part, (dtype, trailing) in zip(
                    self._targets, parts, self._likes, strict=True
                )
            ]
        for i, part in enumerate(parts):
            self._parts[i].append(part)
            self._used[i] += counts[i]
        return (
            [0 if target.is_meta else end for target, end in zip(self._targets, ends, strict=True)]
            if is_cut
            else None
        )

    def output(self) -> dict[str, Array]:
        """Values; and segment ids, which count the parts from 1, and positions, which count in each
        part. New arrays.
        """
        row: dict[str, Array] = {}
        for target, used, parts, bos in zip(
            self._targets, self._used, self._parts, self._bos, strict=True
        ):
            row[target.name] = values = np.zeros(
                (target.length, *parts[0].shape[1:]), parts[0].dtype
            )
            np.concatenate(parts, out=values[:used])
            if target.is_meta:
                continue
            sizes = np.array(list(map(len, parts)))
            starts = sizes.cumsum() - sizes
            row[f"{target.name}_segment_ids"] = segment_ids = np.zeros(target.length, np.int32)
            segment_ids[:used] = np.repeat(np.arange(1, len(parts) + 1, dtype=np.int32), sizes)
            row[f"{target.name}_positions"] = positions = np.zeros(target.length, np.int32)
            positions[:used] = np.arange(used) - np.repeat(starts, sizes)
            if bos is not None:
                values[starts[sizes > 0]] = bos
        return row


def _bos(target: Target, like: Array) -> Array | None:
    """Returns the first token of every part."""
    if target.bos_id is None:
        return None
    return as_dtype_of(
        repr(target.name), np.array(target.bos_id), like.dtype, (), "its tokens, for bos_token_id,"
    )


def is_full_length(targets: Sequence[Target], sequences: Sequence[Array]) -> bool:
    """True if an element fits into an output, and fills it with at least one of its features."""
    differences = [
        target.length - len(array) for target, array in zip(targets, sequences, strict=True)
    ]
    return min(differences) == 0
