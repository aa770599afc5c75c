"""Specs of the elements of a dataset, found without reading any."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from gristmill.core.naming import transform_name
from gristmill.core.state import shown
from gristmill.dataset.bases.node import DatasetNode, spec_of
from gristmill.dataset.bases.parameters import parameters_of


def get_element_spec(ds: DatasetNode) -> Any:
    """Returns what the elements of ``ds`` look like: a pytree with a ``ShapeDtypeStruct`` in place
    of every array.

    No element is read and no iterator is made. A length that is not known before the elements are
    is ``None``, as the first axis of batches the last of which may be smaller. A source says what
    its records look like with an attribute ``element_spec``, a transformation what it makes of that
    with a method ``output_spec(input_spec)``, a ``batch_fn`` with a method
    ``output_spec(input_spec, batch_size, drop_remainder)`` (which is also given those keywords of a
    ``functools.partial`` that it takes), and a dataset of your own with a property
    ``_element_spec``.

    Args:
        ds: a ``MapDataset`` or ``IterDataset``.

    Raises:
        TypeError: ``ds`` is no dataset.
        NotImplementedError: a source, a dataset or a ``batch_fn`` does not say what its elements
            look like.
        ValueError: a transformation does not.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> get_element_spec(MapDataset.range(10).batch(4, drop_remainder=True))
        ShapeDtypeStruct(shape=(4,), dtype=<class 'numpy.int64'>)
        >>> get_element_spec(MapDataset.range(10).to_iter_dataset().batch(4))
        ShapeDtypeStruct(shape=(None,), dtype=<class 'numpy.int64'>)
    """
    if not isinstance(ds, DatasetNode):
        raise TypeError(
            f"ds must be a MapDataset or IterDataset, got {shown(ds)} of type {type(ds).__name__}"
        )
    return spec_of(ds)


def _transformed_spec(stage: DatasetNode) -> Any:
    transform = parameters_of(stage).transform
    if not hasattr(transform, "output_spec"):
        raise ValueError(
            f"cannot tell what {transform_name(transform)} makes of an element: use an object, as"
            " of a class derived from Map, with a method output_spec(self, input_spec) that"
            " returns a pytree of ShapeDtypeStruct"
        )
    return transform.output_spec(spec_of(stage._gm_parents[0]))


# ``_element_spec`` of stages that apply ``_transform`` to every element
transformed_spec = property(_transformed_spec)


def batched_spec(batch_fn: object, spec: object, batch_size: int, drop_remainder: bool) -> Any:
    """Returns the spec of the batches that ``batch_fn`` makes of elements with spec ``spec``."""
    arguments = {"batch_size": batch_size, "drop_remainder": drop_remainder}
    keywords: dict[str, Any] = {}
    while isinstance(batch_fn, functools.partial):
        keywords = {**batch_fn.keywords, **keywords}
        batch_fn = batch_fn.func
    if not hasattr(batch_fn, "output_spec"):
        raise NotImplementedError(
            f"cannot tell what batches the batch_fn {transform_name(batch_fn)} makes: use an object"
            " with a method output_spec(self, input_spec, batch_size, drop_remainder) that returns"
            " a pytree of ShapeDtypeStruct"
        )
    known = inspect.signature(batch_fn.output_spec).parameters
    arguments |= {name: value for name, value in keywords.items() if name in known}
    return batch_fn.output_spec(spec, **arguments)
