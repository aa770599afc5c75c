"""Transformation objects to stages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gristmill.core.state import shown
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.map import MapDataset
from gristmill.transforms import Batch, Filter, FlatMap, Map, MapWithIndex, RandomMap, Tolerate
from gristmill.transforms.base import for_a_class


def apply_transformations(ds: object, transformations: Any) -> Any:
    """Returns ``ds`` with one transformation, or a sequence of them in order, applied.

    Args:
        ds: a ``MapDataset`` or ``IterDataset``.
        transformations: instances of the transformation classes.

    Raises:
        NotImplementedError: an object is of no transformation class.
    """
    # A user's class may have methods of these names that do something else.
    kind: Any = MapDataset if isinstance(ds, MapDataset) else IterDataset
    for transform in (
        transformations if isinstance(transformations, Sequence) else (transformations,)
    ):
        match transform:
            case Batch():
                ds = kind.batch(
                    ds,
                    transform.batch_size,
                    drop_remainder=transform.drop_remainder,
                    batch_fn=transform.batch_fn,
                )
            case Map():
                ds = kind.map(ds, transform)
            case RandomMap():
                ds = kind.random_map(ds, transform)
            case MapWithIndex():
                ds = kind.map_with_index(ds, transform)
            case FlatMap():
                ds = kind.flat_map(ds, transform)
            case Filter():
                ds = kind.filter(ds, transform)
            case Tolerate():
                ds = kind.tolerate(ds, **vars(transform))
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
