"""Measures how well a pipeline mixes: how batches differ from the whole, what neighbours share, and
what a batch costs storage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gristmill.core.errors import as_int
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.descriptions.lineage import origin
from gristmill.diagnostics.files import write_text
from gristmill.diagnostics.html import html_or_text, render

_MAX_CLASSES = 64
_MAX_POINTS = 1000
_WIDTH, _HEIGHT, _MARGIN, _HEAD = 640, 240, 16, 44


@dataclass(frozen=True)
class ShuffleQuality:
    """The result of ``shuffle_quality``.

    Args:
        distance: of batches from all elements, from 0 to 1: half the sum of the differences of
            shares of classes, on average.
        ideal: the distance if the same elements were mixed completely; not 0, since batches are
            small.
        correlation: of the classes of neighbours, from -1 to 1; about 0 where they are independent.
        blocks_per_batch: the mean number of blocks of storage that a batch touches; ``None`` where
            records have no positions.
        batch_size: elements of a batch.
        num_batches: that were looked at.
        num_classes: of keys.
    """

    distance: float
    ideal: float
    correlation: float
    blocks_per_batch: float | None
    batch_size: int
    num_batches: int
    num_classes: int
    _points: tuple[tuple[float, float], ...] = field(default=(), repr=False)

    @property
    def ratio(self) -> float:
        """The distance, by that of elements that are mixed completely: 1 is as good as it gets."""
        return self.distance / self.ideal if self.ideal else 1.0

    def to_dict(self) -> dict[str, Any]:
        """Returns all figures, JSON-able."""
        found = asdict(self) | {"ratio": self.ratio}
        del found["_points"]
        return found

    def __str__(self) -> str:
        blocks = self.blocks_per_batch
        lines = [
            f"distance of batches from the whole: {self.distance:.3f} ({self.ratio:.2f} of a"
            f" complete shuffle's {self.ideal:.3f})",
            f"correlation of neighbours: {self.correlation:.3f}",
            f"blocks touched: {'not known' if blocks is None else f'{blocks:.1f} per batch'}",
            f"looked at: {self.num_batches} batches of {self.batch_size},"
            f" {self.num_classes} classes",
        ]
        return "\n".join(lines)

    def svg(self) -> str:
        """Returns a picture: elements from left to right, their classes from top to bottom. A
        complete shuffle is an even cloud.
        """
        dots = [
            (
                _MARGIN + x * (_WIDTH - 2 * _MARGIN),
                _HEAD + y * (_HEIGHT - _HEAD - _MARGIN),
            )
            for x, y in self._points
        ]
        text = (
            f"distance {self.distance:.3f} ({self.ratio:.2f} of complete), correlation"
            f" {self.correlation:.3f}"
        )
        return render(
            "shuffle.svg.j2",
            width=_WIDTH,
            height=_HEIGHT,
            margin=_MARGIN,
            label="classes of elements in their order",
            text=text,
            dots=dots,
        )

    def save_svg(self, path: str | os.PathLike[str]) -> None:
        """Writes the picture to a file."""
        write_text(path, self.svg() + "\n")

    def _repr_html_(self) -> str:
        return html_or_text(self.svg, self)


def shuffle_quality(
    ds: Any,
    key: Callable[[Any], Any] | None = None,
    batch_size: int = 256,
    *,
    block_size: int = 256,
    max_batches: int = 256,
) -> ShuffleQuality:
    """Returns how well the elements of ``ds`` are mixed, measured with batches from all parts of an
    epoch.

    Keys are classes; of more than 64 different ones, 64 ranges of about as many elements are the
    classes. What batches are compared with is all elements that were looked at. A complete shuffle
    has a distance above 0 too, which is reported beside it.

    Args:
        ds: a ``MapDataset``, of whose epoch batches in equal distances are read, or an
            ``IterDataset``, read from its start.
        key: the class of an element, such as its label or the file it comes from; by default where
            its record is in the source, which needs a ``MapDataset`` that knows.
        batch_size: elements of a batch, at least 1.
        block_size: consecutive records of a source that count as one block.
        max_batches: the most batches to look at.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is not positive, there is not a whole batch, or records have no
            positions to be keys.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> labels = MapDataset.range(64_000).map(lambda x: x // 1000)
        >>> quality = shuffle_quality(
        ...     labels.block_shuffle(64, group_size=200, seed=0), lambda label: label, 128
        ... )
        >>> quality.ratio < 1.5, quality.correlation < 0.1
        (True, True)
    """
    if not isinstance(ds, MapDataset | IterDataset):
        raise TypeError(
            f"ds must be a MapDataset or IterDataset, got {ds!r:.200} of type {type(ds).__name__}"
        )
    if key is not None and not callable(key):
        raise TypeError(
            f"key must be a function of an element, got {key!r:.200} of type {type(key).__name__}"
        )
    sizes = {"batch_size": batch_size, "block_size": block_size, "max_batches": max_batches}
    batch_size, block_size, max_batches = [
        as_int(name, size, minimum=1) for name, size in sizes.items()
    ]
    found: list[Any] = []
    touched: list[int] = []
    for elements, positions in _batches(ds, batch_size, max_batches, key is not None):
        if len(elements) < batch_size:
            continue
        if key is None and len(positions) < batch_size:
            raise ValueError(
                f"records of {ds!s:.200} have no positions that are known: pass key=, a function of"
                " an element"
            )
        found += positions[:batch_size] if key is None else map(key, elements)
        if positions:
            touched.append(len({position // block_size for position in positions}))
    if not found:
        raise ValueError(
            f"{ds!s:.200} has not a whole batch of {batch_size} elements: choose a smaller"
            " batch_size"
        )
    codes, num_classes = _classes(found)
    batches = codes.reshape(-1, batch_size)
    mixed = np.random.default_rng(0).permutation(codes).reshape(batches.shape)
    step = -(-len(codes) // _MAX_POINTS)
    points = [
        (i / len(codes), float(codes[i]) / max(num_classes - 1, 1))
        for i in range(0, len(codes), step)
    ]
    return ShuffleQuality(
        distance=_distance(batches, num_classes),
        ideal=_distance(mixed, num_classes),
        correlation=_correlation(batches),
        blocks_per_batch=float(np.mean(touched)) if touched else None,
        batch_size=batch_size,
        num_batches=len(batches),
        num_classes=num_classes,
        _points=tuple(points),
    )


def _batches(
    ds: Any, size: int, most: int, needs_elements: bool
) -> Iterator[tuple[list[Any], list[int]]]:
    """Yields elements that exist, and the positions of their records in the source where known."""
    if isinstance(ds, MapDataset):
        num = len(ds) // size
        most = min(num, most)
        for i in range(most):
            start = i * num // most * size
            indices = range(start, start + size)
            elements = list(ds._gm_items(indices)) if needs_elements else list(indices)
            yield [x for x in elements if x is not None], _record_keys(ds, indices)
        return
    with iter(ds) as it:
        for _ in range(most):
            elements = [x for _, x in zip(range(size), it, strict=False)]
            if len(elements) < size:
                return
            yield elements, []


def _record_keys(ds: MapDataset[Any], indices: range) -> list[int]:
    keys = [key for i in indices for records in origin(ds, [i]) for key in records.keys]
    return keys if all([isinstance(key, int) for key in keys]) else []


def _classes(keys: list[Any]) -> tuple[NDArray[np.int64], int]:
    """Returns the class of each key, numbered, and how many there are; in the order of keys where
    they have one.
    """
    try:
        different = sorted(set(keys))
    except TypeError:
        different = list(dict.fromkeys(keys))
    numbers = {key: i for i, key in enumerate(different)}
    codes = np.array([numbers[key] for key in keys], np.int64)
    if len(different) <= _MAX_CLASSES:
        return codes, len(different)
    before = np.concatenate([[0], np.cumsum(np.bincount(codes))])[:-1]  # elements of lower keys
    return (before[codes] * _MAX_CLASSES // len(codes)).astype(np.int64), _MAX_CLASSES


def _distance(batches: NDArray[np.int64], num_classes: int) -> float:
    whole = np.bincount(batches.reshape(-1), minlength=num_classes) / batches.size
    shares = [np.bincount(batch, minlength=num_classes) / len(batch) for batch in batches]
    return float(np.abs(np.array(shares) - whole).sum(axis=1).mean() / 2)


def _correlation(batches: NDArray[np.int64]) -> float:
    left, right = batches[:, :-1].reshape(-1), batches[:, 1:].reshape(-1)
    if not len(left) or left.std() == 0 or right.std() == 0:
        return 0.0
    return float(np.corrcoef(left, right)[0, 1])
