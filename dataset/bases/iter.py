"""``IterDataset``: a lazily computed stream."""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, TypeVar

from gristmill.core import grain_names
from gristmill.dataset.bases.division import Division
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Length, Unknown, exact_length, length_hint
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.migration_hints import OF_STREAMS
from gristmill.dataset.bases.node import DatasetNode, as_parents, is_of_library
from gristmill.dataset.bases.traced import Tracing, refuse_to_trace
from gristmill.dataset.methods import (
    IterAheadMethods,
    IterBucketMethods,
    IterDatasetMeta,
    IterElementMethods,
    IterSequenceMethods,
)

T_co = TypeVar("T_co", covariant=True)


class IterDataset(
    DatasetNode,
    IterElementMethods[T_co],
    IterSequenceMethods[T_co],
    IterBucketMethods[T_co],
    IterAheadMethods[T_co],
    grain_names.IterDataset,
    metaclass=IterDatasetMeta,
):
    """A stream of elements without random access, whose iterators can be saved and restored.

    Immutable; every ``iter(ds)`` is an independent iterator at the beginning. Most are made by
    ``MapDataset.to_iter_dataset()``.

    ``len(ds)`` is the number of elements where it follows from the stages, and a ``TypeError`` that
    says why where it does not (downstream of a filter, without end, of files). As the length of a
    ``MapDataset``, it counts elements that a function of ``map`` drops by returning ``None``.
    ``operator.length_hint(ds)`` is the greatest number there can be, where that is known.

    Subclasses define ``__iter__``.

    Args:
        parents: the dataset or datasets that this one is made of.

    Example:
        >>> ds = MapDataset.range(5).to_iter_dataset().filter(lambda x: x % 2 == 0).batch(2)
        >>> list(ds)
        [array([0, 2]), array([4])]
        >>> len(MapDataset.range(5).to_iter_dataset().batch(2))
        3
    """

    _gm_node_family = "IterDataset"
    _gm_migration_hints = OF_STREAMS
    _gm_passes_on: ClassVar = False  # all it does with elements is to pass them on, each as it is
    # its state and those upstream say which element each of them gives next
    _gm_states_have_place: ClassVar = False
    # What the stage does, if several workers can do it, each to some of the elements: it changes
    # them one by one, with their number or without, it chooses which are kept, or it makes batches.
    _gm_works_on: ClassVar[
        Literal["nothing", "elements", "numbered elements", "choice", "batches"] | None
    ] = None

    def __init_subclass__(cls, **given: Any) -> None:
        super().__init_subclass__(**given)
        if "__iter__" in vars(cls):
            # For explain. In the class itself, as ``iter(ds)`` looks there; mypy allows no method
            # to be replaced.
            cls.__iter__ = _noting_dataset(cls.__iter__)  # type: ignore[method-assign]

    def __init__(self, parents: Any | Iterable[Any] = ()) -> None:
        self._gm_parents = as_parents(parents, MapDataset, IterDataset)

    @abc.abstractmethod
    def __iter__(self) -> DatasetIterator[T_co]:
        """Returns an iterator at the beginning."""

    __len__ = exact_length
    __length_hint__ = length_hint

    def __bool__(self) -> bool:
        return True  # for any length

    def _gm_num_elements(self) -> Length:
        """Returns the number of elements that it delivers; unknown for users' datasets."""
        return Unknown()

    def _gm_traced(self, tracing: Tracing) -> Any:
        """Returns the traced stream: it gives ``Traced`` elements, and has the same states."""
        if not (self._gm_passes_on and is_of_library(self)):
            raise refuse_to_trace(self)
        return tracing.over(self)

    def _gm_divided(self, division: Division) -> Any:
        """Returns the dataset that a worker has in place of this one."""
        if hasattr(self, "set_slice"):
            return division.sliced_by_itself(self)
        if not self._gm_parents:
            raise ValueError(
                f"an IterDataset source of class {type(self).__name__} cannot be sliced among"
                f" {division.num_workers} workers: start from a MapDataset (to_iter_dataset()),"
                " give the class a method set_slice(sl, sequential_slice=False) that keeps a part"
                " of its data, or use one worker. If it draws from other datasets, pass them to"
                " super().__init__()"
            )
        return division.over_shares(self)


def _noting_dataset(iterate: Callable[[Any], Any]) -> Any:
    """Returns a method ``__iter__`` whose iterators know the dataset that they are of."""

    @functools.wraps(iterate)
    def noting(self: Any) -> Any:
        it = iterate(self)
        if hasattr(it, "_gm_definition"):  # as a DatasetIterator has: quicker to ask
            it._gm_definition = self
        return it

    return noting
