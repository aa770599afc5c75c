"""Transformation objects to stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.core.state import shown
from gristmill.transforms import Batch, Filter, FlatMap, Map, MapWithIndex, RandomMap, Tolerate
from gristmill.transforms.base import for_a_class


def apply_transformations(ds: Any, transformations: Any) -> Any:
    """Returns ``ds`` with one transformation, or a sequence of them in order, applied.

    Args:
        ds: a ``MapDataset`` or ``IterDataset``.
        transformations: instances of the transformation classes.

    Raises:
        NotImplementedError: an object is of no transformation class.
    """
    for transform in (
        transformations if isinstance(transformations, Sequence) else (transformations,)
    ):
        match transform:
            case Batch():
                ds = ds.batch(
                    transform.batch_size,
                    drop_remainder=transform.drop_remainder,
                    batch_fn=transform.batch_fn,
                )
            case Map():
                ds = ds.map(transform)
            case RandomMap():
                ds = ds.random_map(transform)
            case MapWithIndex():
                ds = ds.map_with_index(transform)
            case FlatMap():
                ds = ds.flat_map(transform)
            case Filter():
                ds = ds.filter(transform)
            case Tolerate():
                ds = transform.apply(ds)
            case _:
                advice = (
                    for_a_class(transform) or "; use ds.map(...) and the like for plain functions"
                )
                raise NotImplementedError(
                    "transformations must be Batch, Map, RandomMap, MapWithIndex, FlatMap, Filter"
                    f" or Tolerate objects, got {shown(transform)} of type"
                    f" {type(transform).__name__}{advice}"
                )
    return ds
