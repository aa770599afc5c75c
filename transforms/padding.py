"""Batches of a fixed size, the missing rows of which are padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from gristmill.core import tree
from gristmill.core.element_spec import ShapeDtypeStruct, map_spec
from gristmill.transforms.base import check_batch_size
from gristmill.transforms.batching import ends_in_nul, jax_of_keys, leaf_path, stack


def batch_and_pad(
    values: Sequence[Any], *, batch_size: int, pad_value: Any = 0, with_mask: bool = False
) -> Any:
    """Returns a batch of ``batch_size`` rows: those of ``values``, and as many rows of padding as
    are missing.

    Law: the first ``len(values)`` rows are those of the default batching. Meant for
    ``ds.batch(b, batch_fn=functools.partial(batch_and_pad, batch_size=b))``, whose last batch is
    then as large as the others.

    Args:
        values: the elements, pytrees of equal structure: at least one, at most ``batch_size``.
        batch_size: rows of the result.
        pad_value: what the padding is filled with: one value for all leaves, or a pytree of the
            elements' structure with a value for each. It is cast to the dtype of the first
            element's leaf, which must not change it by more than rounding.
        with_mask: return a pair, of the batch and an array of ``batch_size`` booleans that are true
            for the rows of ``values``.

    Raises:
        TypeError: ``batch_size`` is not an integer.
        ValueError: there are no values, more than ``batch_size``, or values of different structure
            or shape; or ``pad_value`` has another structure, or a leaf cannot hold it.
        OverflowError: an integer in ``pad_value`` is out of the range of a leaf.

    Example:
        >>> batch_and_pad(
        ...     [{"x": 1, "y": 0.5}, {"x": 2, "y": 1.5}], batch_size=3, pad_value={"x": -1, "y": 0}
        ... )
        {'x': array([ 1,  2, -1]), 'y': array([0.5, 1.5, 0. ])}
        >>> batch_and_pad([7, 8], batch_size=3, with_mask=True)
        (array([7, 8, 0]), array([ True,  True, False]))
    """
    size = check_batch_size(batch_size)
    if not 0 < len(values) <= size:
        raise ValueError(
            f"cannot batch {len(values)} values to batch_size {size}: there must be at least 1 and"
            f" at most {size}"
        )
    num_missing = size - len(values)
    padding = [_padding(values[0], pad_value)] * num_missing if num_missing else []
    batch = stack([*values, *padding])
    return (batch, np.arange(size) < len(values)) if with_mask else batch


def _output_spec(
    input_spec: Any, batch_size: int, drop_remainder: bool, with_mask: bool = False
) -> Any:
    """Returns the spec of the results of ``batch_and_pad`` for elements like ``input_spec``, for
    ``get_element_spec``.
    """
    spec = map_spec(
        lambda leaf: ShapeDtypeStruct((batch_size, *leaf.shape), leaf.dtype), input_spec
    )
    return (spec, ShapeDtypeStruct((batch_size,), np.bool_)) if with_mask else spec


batch_and_pad.__dict__["output_spec"] = _output_spec


def _padding(value: Any, pad_value: Any) -> Any:
    """Returns an element like ``value`` that is filled with ``pad_value``."""
    leaves, structure = tree.flattener()(value)
    pads = pad_values(pad_value, structure, len(leaves), value)
    padding = [
        filled(np.shape(leaf), pad, dtype_of(leaf), partial(leaf_path, value, i))
        for i, (leaf, pad) in enumerate(zip(leaves, pads, strict=True))
    ]
    return tree.unflatten(structure, padding)


def pad_values(pad_value: Any, structure: Any, num: int, value: Any) -> list[Any]:
    """Returns the padding value of each of the ``num`` leaves of elements like ``value``.

    Raises:
        ValueError: ``pad_value`` is neither one value nor of the ``structure`` of the elements.
    """
    pads, pad_structure = tree.flattener()(pad_value)
    if len(pads) == 1 and pads[0] is pad_value:
        return [pad_value] * num
    if pad_structure != structure:
        raise ValueError(
            "pad_value must be one value, or have the structure of the elements with a value for"
            f" each leaf; got {pad_value!r:.200} for elements like {value!r:.100}"
        )
    return pads


def dtype_of(leaf: Any) -> np.dtype[Any]:
    """Returns the dtype of the array that a leaf is or becomes."""
    dtype: np.dtype[Any] = leaf.dtype if hasattr(leaf, "dtype") else np.asarray(leaf).dtype
    return dtype


def filled(shape: tuple[int, ...], pad: Any, dtype: np.dtype[Any], path: Callable[[], str]) -> Any:
    """Returns an array of ``pad``, for the leaf at ``path``.

    Raises:
        ValueError: the dtype cannot hold it without changing it by more than rounding; names the
            leaf.
        OverflowError: it is an integer out of range.
    """
    jax = jax_of_keys([pad])
    if jax is not None and pad.dtype == dtype:
        return jax.numpy.broadcast_to(pad, shape)
    try:
        return _filled(shape, pad, dtype)
    except (ValueError, TypeError, OverflowError) as error:
        kind = OverflowError if isinstance(error, OverflowError) else ValueError
        which = f"leaf {path()}" if path() else "the elements"
        raise kind(
            f"pad_value must be a value that {which} of dtype {dtype} can hold, got {pad!r:.100}; "
            "it may be a pytree like the elements, with a value for each leaf"
        ) from error


def _filled(shape: tuple[int, ...], pad: Any, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Returns an array of ``pad``, which must not be changed by more than rounding."""
    kind = getattr(dtype, "kind", "")  # other libraries have dtypes without
    if np.iscomplexobj(pad) and kind in "biuf":
        raise ValueError("a complex number")
    if ends_in_nul(pad) and kind in "SU":
        raise ValueError("its NUL would be lost")
    with np.errstate(all="ignore"):
        filled = np.full(shape, pad, dtype)
    if kind in "biu":
        is_kept = filled == pad
    elif kind in "fc":
        is_kept = np.isfinite(filled) == np.isfinite(pad)
    elif kind in "SU":
        is_kept = filled == np.asarray(pad).astype(kind)
    else:
        return filled
    if not np.all(is_kept):
        raise ValueError(f"it would become {filled.flat[0]!r}")
    return filled
