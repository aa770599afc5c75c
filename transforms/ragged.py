"""Batches of elements whose leaves have different lengths, padded along their first axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from gristmill.core import tree
from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import add_note, as_int
from gristmill.core.state import shown
from gristmill.transforms.batching import LEAF_TYPES, Allocate, check_kinds, leaf_path, stack
from gristmill.transforms.padding import dtype_of, filled, pad_values

_KEEP = "keep"  # stands for ``None``, which is no leaf
_ADVICE = (
    "pad_to can say for each leaf how it is padded, in the structure of the elements: 'boundary' or"
    " 'longest' for those of the record's length, a number of cells for others, None for those that"
    " are all of one shape"
)


class Rows(NamedTuple):
    """The required rows of a batch.

    Args:
        num: rows; those that have no element are filled.
        num_real: elements that are rows; if 0, one only shows what rows look like.
        lengths: of the elements.
        boundary: cells of leaves that are padded to the boundary.
        longest: the greatest of the lengths, of all shards.
        limit: what is longer is cut.
    """

    num: int
    num_real: int
    lengths: Sequence[int]
    boundary: int
    longest: int
    limit: int


class Padding:
    """The way leaves are padded.

    Args:
        pad_to: ``"boundary"``, ``"longest"``, a number of cells, or ``None``: for all leaves, or a
            pytree with one for each.
        pad_value: what unused cells are filled with: one value for all leaves, or a pytree with a
            value for each.
        with_lengths: whether a batch comes with the lengths of its rows.

    Raises:
        TypeError: ``pad_to`` is something else.
        ValueError: it is another text or number.
    """

    def __init__(self, pad_to: Any, pad_value: Any, with_lengths: bool) -> None:
        self._with_lengths = with_lengths
        self._is_one = pad_to is None or isinstance(pad_to, str | int | np.integer)
        self._pad_to = tree.with_nones_as(pad_to, _KEEP)
        self._pad_value = pad_value
        self._targets = [_as_target(leaf) for leaf in tree.flatten(self._pad_to)[0]]

    def collate(self, elements: Sequence[Any], rows: Rows, allocate: Allocate = np.empty) -> Any:
        """Returns one batch of ``elements``, at least one, whose structures must be equal.

        Raises:
            ValueError: structures or shapes do not agree, a leaf is longer than what it is padded
                to, or not of its record's length; names the leaf.
        """
        columns, structure = _columns(elements)
        targets = self._per_leaf(structure, len(columns), elements[0])
        pads = pad_values(self._pad_value, structure, len(columns), elements[0])
        leaves = []
        for i, (column, target, pad) in enumerate(zip(columns, targets, pads, strict=True)):
            path = partial(leaf_path, elements[0], i)
            try:
                leaves.append(_padded(column, target, pad, rows, allocate, path))
            except (ValueError, TypeError) as error:
                add_note(
                    error,
                    (
                        f"It happened with leaf {path()}."
                        if path()
                        else "It happened with the elements."
                    ),
                )
                raise
        batch = tree.unflatten(structure, leaves)
        if not self._with_lengths:
            return batch
        lengths = np.zeros(rows.num, np.int32)
        lengths[: rows.num_real] = np.minimum(rows.lengths[: rows.num_real], rows.limit)
        return batch, lengths

    def spec(self, spec: Any, num_rows: int | None, boundary: int | None) -> Any:
        """Returns the spec of batches of elements with spec ``spec``; ``None`` for numbers that
        differ.
        """
        leaves, structure = tree.flatten(spec)
        targets = self._per_leaf(structure, len(leaves), spec)
        cells = {"boundary": boundary, "longest": None}
        new = []
        for leaf, target in zip(leaves, targets, strict=True):
            shape = leaf.shape
            if target != _KEEP and shape:
                shape = (cells[target] if isinstance(target, str) else target, *shape[1:])
            new.append(ShapeDtypeStruct((num_rows, *shape), leaf.dtype))
        batch = tree.unflatten(structure, new)
        return (batch, ShapeDtypeStruct((num_rows,), np.int32)) if self._with_lengths else batch

    def _per_leaf(self, structure: Any, num: int, element: Any) -> list[Any]:
        if self._is_one:
            return self._targets * num
        if tree.flatten(self._pad_to)[1] != structure:
            raise ValueError(
                "pad_to must be one value, or have the structure of the elements, got"
                f" {shown(self._pad_to)} for elements like {element!r:.100}"
            )
        return self._targets


def _as_target(value: Any) -> Any:
    if not isinstance(value, str):
        return as_int("pad_to", value, minimum=1)
    if value not in (_KEEP, "boundary", "longest"):
        raise ValueError(
            f"pad_to must be 'boundary', 'longest', a number of cells or None, got {value!r:.100}"
        )
    return value


def _columns(elements: Sequence[Any]) -> tuple[list[Sequence[Any]], Any]:
    """Returns the values of each leaf, and the structure of all ``elements``."""
    flatten = tree.flattener()
    first = elements[0]
    leaves, structure = flatten(first)
    kinds = set(map(type, elements))
    if kinds <= LEAF_TYPES:  # as in ``stack``, what is flat needs no general traversal
        return [elements], structure
    if kinds == {dict} and all([element.keys() == first.keys() for element in elements]):
        columns: list[Sequence[Any]] = [
            [element[key] for element in elements] for key in sorted(first)
        ]
        if set().union(*[map(type, column) for column in columns]) <= LEAF_TYPES:
            return columns, structure
    rows = [leaves]
    for i in range(1, len(elements)):
        leaves, other = flatten(elements[i])
        if other != structure:
            raise ValueError(
                "all elements of a batch must have the same structure, but element 0 is"
                f" {first!r:.100} and element {i} is {elements[i]!r:.100}. What has another length"
                " in every element must be an array, not a list"
            )
        rows.append(leaves)
    return [*zip(*rows, strict=True)], structure


def _padded(
    leaves: Sequence[Any],
    target: Any,
    pad: Any,
    rows: Rows,
    allocate: Allocate,
    path: Callable[[], str],
) -> Any:
    """Returns the column of one leaf."""
    if target == _KEEP or not any(map(np.ndim, leaves)):
        num_missing = rows.num - rows.num_real
        real, first = [*leaves[: rows.num_real]], leaves[0]
        if num_missing:
            real += [filled(np.shape(first), pad, dtype_of(first), path)] * num_missing
        return stack(real, allocate)
    arrays = [np.asarray(leaf) for leaf in leaves]
    rest = arrays[0].shape[1:]
    wrong = next(
        (i for i, array in enumerate(arrays) if not array.ndim or array.shape[1:] != rest), None
    )
    if wrong is not None:
        raise ValueError(
            f"leaves to pad must differ in their first axis alone, got the shapes {arrays[0].shape}"
            f" and {arrays[wrong].shape}"
        )
    num_cells = _num_cells(arrays, target, rows)
    dtype = np.result_type(*arrays)
    check_kinds(dtype, arrays)
    filling = filled((), pad, dtype, path)
    out: NDArray[Any] = allocate((rows.num, num_cells, *rest), dtype)
    for row, array in zip(out, arrays[: rows.num_real], strict=False):
        num = min(len(array), num_cells)
        row[:num] = array[:num]
        row[num:] = filling
    out[rows.num_real :] = filling
    return out


def _num_cells(arrays: list[NDArray[Any]], target: Any, rows: Rows) -> int:
    """Returns the length of all rows, to which each of ``arrays`` may be padded or cut."""
    if not isinstance(target, str):
        longest = max(map(len, arrays))
        if longest > target:
            raise ValueError(
                f"a leaf of {longest} cells is longer than the {target} that pad_to gives it"
            )
        return int(target)
    for array, length in zip(arrays, rows.lengths, strict=True):
        if len(array) != length:
            raise ValueError(
                f"a leaf has {len(array)} cells, but the length of its record is {length}: either"
                " the lengths are not those of these records, or the leaf is not to be padded to"
                f" the {target}. {_ADVICE}"
            )
    return rows.boundary if target == "boundary" else min(rows.longest, rows.limit)
