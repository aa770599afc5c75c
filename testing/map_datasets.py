"""Checks that a user's ``MapDataset`` keeps the promises on which downstream stages depend."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.bases.map import MapDataset
from gristmill.testing.laws import BLOCKS, Law, check_answers, spread

_LENGTH = Law(
    "len(ds) is the length of an epoch, always the same",
    "Return a non-negative int that reads do not change.",
)
_SLICES = Law(
    "ds[a:b:c] is a dataset of the elements at these indices",
    "Begin __getitem__ with: if isinstance(index, slice): return self.slice(index)",
)
_ITERATION = Law(
    "iterating gives the elements of one epoch in order, without None",
    "Let MapDataset.__iter__ do it, or do the same.",
)
_PAST_INT64 = 2**62  # no program reaches the end of such an epoch


def assert_map_dataset_conforms(
    ds: MapDataset[Any], *, max_elements: int = 50, endless: bool = True, in_worker: bool = False
) -> None:
    """Asserts that ``ds`` is a sequence with random access as ``MapDataset`` describes it, on which
    any stage can build.

    Checked are the length; reading again, in other orders, in blocks, in eight threads at a time,
    and from copies made by cloudpickle; indices of later and negative epochs; slices; iteration;
    and that the ``repr`` has no memory address and is that of a copy. Whether the elements are the
    intended ones is for a test of your own.

    Args:
        ds: an instance of your class with at least one element, or the checks say little.
        max_elements: how many indices of the epoch to read, spread over all; each is read about 20
            times.
        endless: whether every integer is an index; without it, ``ds`` cannot be repeated or
            shuffled again in each epoch.
        in_worker: also start a worker process and read there.

    Raises:
        AssertionError: something is not so; says which law is broken, what was found, and what to
            do.
        TypeError: ``ds`` is not a ``MapDataset``.

    Example:
        >>> class Squares(MapDataset):
        ...     def __len__(self):
        ...         return 10
        ...
        ...     def __getitem__(self, index):
        ...         return self.slice(index) if isinstance(index, slice) else (index % 10) ** 2
        >>> assert_map_dataset_conforms(Squares())
        >>> assert_map_dataset_conforms(Squares().shuffle(seed=1).batch(3))
    """
    if not isinstance(ds, MapDataset):
        raise TypeError(f"ds must be a MapDataset, got {shown(ds)} of type {type(ds).__name__}")
    max_elements = as_int("max_elements", max_elements, minimum=1)
    length = _LENGTH.run("len(ds)", len, ds)
    indices = spread(length, max_elements)
    if endless and 0 < length < _PAST_INT64:
        indices += [length, 2 * length - 1, 7 * length + length // 2, -1, -length, -length - 1]
    check_answers(ds, indices, _elements, "ds[{}]".format, with_repr=True, in_worker=in_worker)
    # what stages hand on beside lists
    for block in (np.array(indices), range(min(length, max_elements))) if length else ():
        what = f"ds._gm_items({block!r:.200})"
        BLOCKS.equal(
            what,
            [ds[int(i)] for i in block],
            BLOCKS.run(what, lambda indices: [*ds._gm_items(indices)], block),
        )
    for sl in (slice(None), slice(1, None, 2), slice(None, None, -1)):
        _check_slice(ds, sl, max_elements)
    _check_iteration(ds, min(length, max_elements))
    _LENGTH.equal("len(ds) after reads", length, len(ds))


def _elements(ds: MapDataset[Any], indices: list[int]) -> list[Any]:
    return [ds[indices[0]]] if len(indices) == 1 else [*ds._gm_items(indices)]


def _check_slice(ds: MapDataset[Any], sl: slice, max_elements: int) -> None:
    what = f"ds[{sl}]"
    part, indices = _SLICES.run(what, ds.__getitem__, sl), range(len(ds))[sl]
    _SLICES.check(
        isinstance(part, MapDataset), f"{what} is {shown(part)} of type {type(part).__name__}"
    )
    _SLICES.equal(f"len({what})", len(indices), len(part))
    for i in spread(len(indices), max_elements):
        _SLICES.equal(f"{what}[{i}]", ds[indices[i]], part[i])


def _check_iteration(ds: MapDataset[Any], count: int) -> None:
    expected = [x for x in map(ds.__getitem__, range(count)) if x is not None]
    with iterate(ds) as it:
        _ITERATION.equal(
            "the first elements",
            expected,
            _ITERATION.run("iterating", list, islice(it, len(expected))),
        )
        if count == len(ds):
            _ITERATION.equal("what comes after an epoch", [], list(islice(it, 1)))
