"""The classes that users derive their transformations from."""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gristmill.core.errors import as_int
from gristmill.core.naming import transform_name
from gristmill.core.state import shown


class Map(abc.ABC):
    """A transformation of one element into another.

    Must be thread-safe, and picklable when worker processes are used; so for all classes here.

    Example:
        >>> class PlusOne(Map):
        ...     def map(self, element):
        ...         return element + 1
        >>> PlusOne().map(1)
        2
    """

    @abc.abstractmethod
    def map(self, element: Any, /) -> Any:
        """Returns the transformed element."""


class RandomMap(abc.ABC):
    """A transformation that draws from the element's private random generator."""

    @abc.abstractmethod
    def random_map(self, element: Any, rng: np.random.Generator, /) -> Any:
        """Returns the transformed element; ``rng`` must not be kept after the call."""


class TfRandomMap(abc.ABC):
    """A random transformation under the method name that Grain's TensorFlow backend uses."""

    @abc.abstractmethod
    def np_random_map(self, element: Any, rng: np.random.Generator, /) -> Any:
        """Returns the transformed element."""


class MapWithIndex(abc.ABC):
    """A transformation of an element and its index."""

    @abc.abstractmethod
    def map_with_index(self, index: int, element: Any, /) -> Any:
        """Returns the transformed element."""


class Filter(abc.ABC):
    """Decides which elements stay."""

    @abc.abstractmethod
    def filter(self, element: Any, /) -> bool:
        """Returns whether to keep the element."""


class FlatMap(abc.ABC):
    """Makes any number of elements of one, up to ``max_fan_out``.

    Attributes:
        max_fan_out: the most items that ``flat_map`` returns; subclasses define it.

    Example:
        >>> class Letters(FlatMap):
        ...     max_fan_out = 10
        ...
        ...     def flat_map(self, element):
        ...         return list(element)
        >>> Letters().flat_map("ab")
        ['a', 'b']
    """

    max_fan_out: int

    @abc.abstractmethod
    def flat_map(self, element: Any, /) -> Iterable[Any]:
        """Returns the items that take the element's place, in order; a generator will do."""


@dataclass(frozen=True)
class Batch:
    """Combines consecutive elements into one.

    After sharding (the usual case with ``IndexSampler``) ``batch_size`` is the size per process;
    before it, the global one. The size is checked where the transformation is applied.

    Args:
        batch_size: elements per batch, at least 1.
        drop_remainder: drop the last batch if it is smaller.
        batch_fn: makes a batch of a list of elements; by default the leaves are stacked along a new
            first axis.

    Example:
        >>> Batch(batch_size=2)
        Batch(batch_size=2, drop_remainder=False, batch_fn=None)
    """

    batch_size: int
    drop_remainder: bool = False
    batch_fn: Callable[[Sequence[Any]], Any] | None = None


@dataclass(frozen=True)
class Tolerate:
    """Skips elements that fail, within a budget.

    As ``IterDataset.tolerate`` does, for the operations between it and the ``Tolerate`` before, or
    the sampler: what is counted, what is never tolerated and what a state has is said there. The
    arguments are checked where it is applied.

    Args:
        errors: the exceptions that count as faults.
        max_rate, max_total, max_consecutive, retries, backoff_seconds, log: see
            ``IterDataset.tolerate``.

    Example:
        >>> Tolerate(OSError, max_total=3).max_total
        3
    """

    errors: type[Exception] | tuple[type[Exception], ...] = (Exception,)
    max_rate: float | None = 1e-3
    max_total: int | None = None
    max_consecutive: int | None = 100
    retries: int = 0
    backoff_seconds: float = 0.1
    log: Any = None


class DatasetSelectionMap(abc.ABC):
    """Maps an index to an element of a data set; stateless, picklable and deterministic."""

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the length of the selection."""

    @abc.abstractmethod
    def __getitem__(self, index: int) -> tuple[int, int]:
        """Returns the index of a data set and the index of an element in it."""


Transformation: TypeAlias = (
    Tolerate | Batch | Map | RandomMap | TfRandomMap | Filter | FlatMap | MapWithIndex
)
Transformations: TypeAlias = Sequence[Transformation]


def _known_to_keras(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns ``function``, called so that layers of Keras see what calls them, if there may be
    any.
    """
    if "keras" not in sys.modules:
        return function
    from gristmill.core.as_in_grain._src.python.dataset import as_in_grain

    return as_in_grain(function)


def transform_function(transform: Any, kind: type, method: str) -> Callable[..., Any]:
    """Returns the function to call for ``transform``: the ``method`` of an instance of ``kind``, or
    a callable itself.

    Raises:
        TypeError: ``transform`` is neither, or a class of transformations.
    """
    if isinstance(transform, kind):
        return _known_to_keras(getattr(transform, method))
    if callable(transform) and not is_transformation_class(transform):
        return _known_to_keras(transform)
    raise TypeError(
        f"transform must be callable or an instance of {kind.__name__}, got {shown(transform)} of"
        f" type {type(transform).__name__}{for_a_class(transform)}"
    )


# A loader treats an object that belongs to several classes as the first of these.
TRANSFORMATION_CLASSES = (
    Map,
    RandomMap,
    TfRandomMap,
    FlatMap,
    Filter,
    Batch,
    MapWithIndex,
    Tolerate,
)


def is_transformation_class(transform: Any) -> bool:
    return isinstance(transform, type) and issubclass(transform, TRANSFORMATION_CLASSES)


def for_a_class(transform: Any) -> str:
    """Returns a hint if ``transform`` is a class of transformations; empty for anything else."""
    if not is_transformation_class(transform):
        return ""
    name = transform.__name__
    return f": {name} is a class, pass an instance, {name}()"


def check_batch_size(batch_size: Any) -> int:
    return as_int("batch_size", batch_size, minimum=1)


def check_max_fan_out(transform: FlatMap) -> int:
    if not hasattr(transform, "max_fan_out"):
        raise TypeError(
            f"{transform_name(transform)} must have an attribute max_fan_out: the most items that"
            " it makes of one element"
        )
    return as_int("max_fan_out", transform.max_fan_out, minimum=1)
