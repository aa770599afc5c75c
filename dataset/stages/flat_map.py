"""``flat_map``: one element into several, or none."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias, TypeVar

from gristmill.core.indices import Indices, as_ints
from gristmill.core.naming import transform_name
from gristmill.core.state import shown
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import unknown_number
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.origins import UpstreamElement
from gristmill.dataset.bases.parameters import FunctionParameters, field
from gristmill.dataset.bases.traced import Traced, Tracing, noting_failed
from gristmill.dataset.engine.groups import Spread
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.errors.context import failed_at
from gristmill.dataset.faults.attempts import Event, events_here
from gristmill.transforms.base import FlatMap, check_max_fan_out, for_a_class, transform_function

T = TypeVar("T")

_Items: TypeAlias = tuple[list[Any], list[Event] | None]  # ``None`` if events were not needed

_HANDED_OUT = object()
_FOR_FUNCTIONS = "; use ds.flat_map(..., max_fan_out=...) for plain functions"


class StreamFlatMapParameters(FunctionParameters):
    # ``None`` is an element like any other, in a DataLoader.
    with_nones: bool = field(in_checkpoint=False, in_repr=False)


class FlatMapMapDataset(BlockMapDataset[T]):
    """Returns the items that ``transform`` makes of each element; item ``j`` of element ``i`` is at
    ``i * max_fan_out + j``.

    Where an element has fewer items, there is no element (``None``). Order: the parent's. Cost: one
    call per element of the parent, where its items are requested in blocks or one after another; so
    items that share memory with one another must not be changed in place.

    Args:
        parent: the dataset.
        transform: a ``FlatMap``. ``ds.flat_map`` also takes functions.

    Raises:
        TypeError: ``transform`` is not a ``FlatMap``, or has no ``max_fan_out``.
        ValueError: ``max_fan_out`` is not positive. When an element is read: it has more items than
            that.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> class Letters(FlatMap):
        ...     max_fan_out = 3
        ...
        ...     def flat_map(self, element):
        ...         return list(element)
        >>> ds = FlatMapMapDataset(MapDataset.source(["ab", "", "cde"]), Letters())
        >>> len(ds), ds[1], ds[2], list(ds)
        (9, 'b', None, ['a', 'b', 'c', 'd', 'e'])
    """

    _gm_is_rebuilt = True
    _gm_drops = True
    _gm_takes_apart = True
    # The index of the parent's element that was split last, its items, and what has failed on the
    # way. A thread that uses it takes it away from the others.
    _memo: tuple[int, _Items] | None

    def __init__(self, parent: object, transform: FlatMap) -> None:
        super().__init__(parent)
        if not isinstance(transform, FlatMap):
            raise TypeError(
                f"transform must be an instance of FlatMap, got {shown(transform)} of type"
                f" {type(transform).__name__}{for_a_class(transform) or _FOR_FUNCTIONS}"
            )
        self._transform = transform
        self._max_fan_out = check_max_fan_out(transform)
        self._gm_parameters = FunctionParameters(transform)

    def __len__(self) -> int:
        return min(len(self._gm_parent) * self._max_fan_out, sys.maxsize)

    @property
    def _gm_shares_records(self) -> bool:
        return True  # items of one element are of one record

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return {"max_fan_out": self._max_fan_out}

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_memo"}

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        size, numbers = self._max_fan_out, as_ints(indices)
        if isinstance(indices, range) and indices.step == 1:
            wanted: Any = range(indices.start // size, (indices.stop - 1) // size + 1)
        else:
            wanted = list(dict.fromkeys([i // size for i in numbers]))
        found: dict[int, _Items] = {}
        memo = vars(self).pop("_memo", None)
        if (
            memo is not None
            and memo[0] == wanted[0]
            and (memo[1][1] is not None or self._events() is None)
        ):
            found[memo[0]] = memo[1]
            wanted = wanted[1:]
        return self._parts(numbers, found, self._split(wanted) if wanted else iter(()))

    def _parts(
        self, numbers: Sequence[int], found: dict[int, _Items], split: Iterator[list[Any]]
    ) -> Iterator[Any]:
        """Returns the items at ``numbers``, of ``found`` or the next of ``split``."""
        size, num_left = self._max_fan_out, len(numbers)
        for i in numbers:
            number, position = divmod(i, size)
            pair = found.get(number)
            # its user may have changed it
            if pair is None or (position < len(pair[0]) and pair[0][position] is _HANDED_OUT):
                pair = found[number] = self._noted(split if pair is None else self._split([number]))
            items, noted = pair
            events = self._events() if noted else None
            if noted and events is not None:  # what failed counts once
                events += (
                    noted if not position else [event._replace(counts=False) for event in noted]
                )
            x = None
            if position < len(items):
                x, items[position] = items[position], _HANDED_OUT
            num_left -= 1
            if not num_left and position < size - 1:
                self._memo = number, pair
            yield (x, x := None)[0]

    def _noted(self, split: Iterator[list[Any]]) -> _Items:
        """Returns the next items in ``split``, with what has failed before them."""
        events = self._events()
        if events is None:
            return next(split), None
        start = len(events)
        items, noted = next(split), events[start:]
        del events[start:]
        return items, noted

    def _events(self) -> list[Event] | None:
        return events_here(self._reports)

    def _split(self, numbers: Indices) -> Iterator[list[Any]]:
        """Returns the items of each of the parent's elements at ``numbers``."""
        transform, most = self._transform, self._max_fan_out

        def split(x: object, number: int) -> list[Any]:
            try:
                return [] if x is None else items_of(transform, x, most)
            except Exception as error:
                failed_at(error, self, number * most)
                raise

        return map(split, self._gm_parents[0]._gm_items(numbers), numbers)

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement]:
        return [UpstreamElement(self._gm_parent, index // self._max_fan_out)]


class FlatMapIterDataset(IterDataset[T]):
    """Returns the items that ``transform`` makes of each element; ``None`` is skipped without a
    call.

    Order: the parent's. State: the parent's before the element whose items are being delivered, and
    how many of them were. To continue there, the element is read and split again. Cost: one call
    per element of the parent.

    Args:
        parent: the dataset.
        transform: a ``FlatMap``, or a callable that makes an iterable of items of an element.
            ``max_fan_out`` is not looked at.

    Raises:
        TypeError: ``transform`` is not callable.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> list(FlatMapIterDataset(MapDataset.source(["ab", "", "c"]).to_iter_dataset(), list))
        ['a', 'b', 'c']
    """

    _gm_num_elements = unknown_number  # the transformation decides it
    _gm_parameters: StreamFlatMapParameters

    def __init__(self, parent: object, transform: object, *, with_nones: bool = False) -> None:
        super().__init__(parent)
        self._gm_parameters = StreamFlatMapParameters(transform, with_nones)
        transform_function(transform, FlatMap, "flat_map")

    def _gm_traced(self, tracing: Tracing) -> Any:
        given = self._gm_parameters
        fn = transform_function(given.transform, FlatMap, "flat_map")

        def split(x: Traced) -> list[Traced]:
            if x.value is None and not given.with_nones:
                return []
            return [x.part(item, self) for item in as_list(fn(x.value), given.transform)]

        return tracing.over(self, _gm_parameters=given.replaced(transform=noting_failed(split)))

    def __iter__(self) -> DatasetIterator[T]:
        given = self._gm_parameters
        fn = transform_function(given.transform, FlatMap, "flat_map")
        split = partial(_split, fn, given.transform)
        return open_stage(self, partial(Spread, split=split, with_nones=given.with_nones))


def _split(fn: Callable[[Any], Any], transform: object, x: object) -> list[Any]:
    return as_list(fn(x), transform)


class FlatMapFunction(FlatMap):
    """A function as a ``FlatMap``, under its own name."""

    def __init__(self, transform: object, max_fan_out: int) -> None:
        self._transform = transform
        self._fn = transform_function(transform, FlatMap, "flat_map")
        self.max_fan_out = max_fan_out

    def __str__(self) -> str:
        return transform_name(self._transform)

    def flat_map(self, element: object) -> Iterable[Any]:
        return self._fn(element)


def flat_map_of(transform: object, max_fan_out: int | None) -> FlatMap:
    """Returns the arguments of ``MapDataset.flat_map`` as a ``FlatMap``.

    Raises:
        TypeError: ``transform`` is not callable, or there is no ``max_fan_out``.
    """
    if max_fan_out is not None:
        return FlatMapFunction(transform, max_fan_out)
    if isinstance(transform, FlatMap):
        return transform
    if for_a_class(transform):
        transform_function(transform, FlatMap, "flat_map")
    raise TypeError(
        "max_fan_out must be given: the most items that the function makes of one element"
    )


def items_of(transform: FlatMap, element: object, most: int) -> list[Any]:
    """Returns the items that ``transform`` makes of ``element``, at most ``most``."""
    items = as_list(transform.flat_map(element), transform, most + 1)
    if len(items) > most:
        raise ValueError(
            f"{transform_name(transform)} made more items of one element than its max_fan_out ="
            f" {most}: raise max_fan_out (above about 100 it costs time, as each element has that"
            " many indices), or split elements less"
        )
    return items


def as_list(items: Any, transform: object, most: int | None = None) -> list[Any]:
    """Returns the first ``most`` items that a flat map returned."""
    if (
        type(items) is not list
        and not isinstance(items, Iterable)
        and not hasattr(items, "__getitem__")
    ):
        raise TypeError(
            f"{transform_name(transform)} must return a sequence or another iterable of items, got"
            f" {items!r:.200} of type {type(items).__name__}"
        )
    return list(items) if most is None else list(itertools.islice(items, most))
