"""``MapDataset``: an endless, lazily computed sequence with random access."""

from __future__ import annotations

import abc
import builtins
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, overload

from gristmill.core import grain_names
from gristmill.core.cached import cached
from gristmill.core.errors import SourceEnded
from gristmill.core.exiting import end_thread_at_exit
from gristmill.core.indices import Indices, as_array, as_ints
from gristmill.core.instruments import shadow
from gristmill.dataset.bases.division import Division
from gristmill.dataset.bases.items import each_alone
from gristmill.dataset.bases.length import AtMost, Exact, Length, of_number
from gristmill.dataset.bases.migration_hints import OF_MAP_DATASETS
from gristmill.dataset.bases.node import (
    DatasetNode,
    ancestors,
    as_parents,
    dropping_steps,
    is_of_library,
    reads_once,
    spec_of_first_parent,
)
from gristmill.dataset.bases.observing import Instrument, Wrap, divert_items, observed_items
from gristmill.dataset.bases.origins import RecordKey, UpstreamElement
from gristmill.dataset.errors.context import failed_at, with_error_context
from gristmill.dataset.errors.tracebacks import filter_traceback
from gristmill.dataset.faults.attempts import Reports
from gristmill.dataset.methods import (
    MapBucketMethods,
    MapDatasetMeta,
    MapElementMethods,
    MapPartMethods,
    MapSequenceMethods,
)
from gristmill.sources.reading import may_be_read_again

if TYPE_CHECKING:
    from gristmill.dataset.bases.iterator import DatasetIterator

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_ALL = slice(None)


class MapDataset(
    DatasetNode,
    MapElementMethods[T_co],
    MapSequenceMethods[T_co],
    MapBucketMethods[T_co],
    MapPartMethods[T_co],
    grain_names.MapDataset,
    metaclass=MapDatasetMeta,
):
    """A lazily computed sequence with random access: ``ds[i]`` is the element at ``i``, ``len(ds)``
    the length of an epoch.

    Any integer is a valid index: ``i // len(ds)`` is its epoch. ``None`` means that
    there is no element at an index (it was filtered out); iteration skips such indices.
    Datasets are immutable: every method returns a new one. ``ds[i]`` depends on ``i`` alone, and
    may be asked for from several threads.

    Subclasses define ``__len__`` and ``__getitem__``.

    Args:
        parents: the dataset or datasets that this one is made of.

    Example:
        >>> ds = MapDataset.source([1, 2, 3, 4]).map(lambda x: x * 10).batch(2)
        >>> len(ds), ds[1]
        (2, array([30, 40]))
    """

    _gm_node_family = "MapDataset"
    _gm_migration_hints = OF_MAP_DATASETS
    _gm_parents: tuple[MapDataset[Any], ...] = ()
    _gm_current_instrument: Instrument | None = None  # of an object of a user's class
    # over other parents, since it keeps something that follows from them
    _gm_is_rebuilt: ClassVar = False
    # True if each element is made of the parent's element at the same index, and of nothing else.
    _gm_keeps_indices: ClassVar[bool] = False
    # true if its function gets the index of each element, or random numbers for it
    _gm_gets_index: ClassVar[bool] = False
    # What its positions hold over the epochs (see ``epochs``).
    _gm_moves_records = False
    _gm_has_one_epoch = False
    _gm_is_reshuffled = False  # whether every epoch has an order of its own
    _gm_needs_whole = ""  # why it has no meaning over a part of its parent, in words
    # Whether some positions are in no part of the same kind.
    _gm_takes_a_part = False

    def __init__(self, parents: MapDataset[Any] | Iterable[MapDataset[Any]] = ()) -> None:
        self._gm_parents = as_parents(parents, MapDataset)

    @abc.abstractmethod
    def __len__(self) -> int:
        """Returns the length of one epoch."""

    @overload
    def __getitem__(self, index: builtins.slice) -> MapDataset[T_co]: ...
    @overload
    def __getitem__(self, index: int) -> T_co: ...
    @abc.abstractmethod
    def __getitem__(self, index: object) -> Any:
        """Returns the element at ``index``, ``None`` if there is none; for a slice, the dataset of
        those elements.
        """

    def __iter__(self: MapDataset[T | None]) -> DatasetIterator[T]:
        return MapDataset.to_iter_dataset(self).__iter__()

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        """Returns an iterator over the elements at ``indices`` (see ``items``)."""
        return map(self._gm_item, as_ints(indices))

    def _gm_item(self, index: int) -> Any:
        try:
            return self[index]
        except Exception as error:
            if isinstance(error, StopIteration) and (
                not self._gm_parents or isinstance(error.__cause__, SourceEnded)
            ):
                raise SourceEnded from error
            failed_at(error, self, index)
            raise

    @cached
    def _gm_draws_once(self) -> bool:
        """True if something upstream may not give the same element when it is asked again."""
        return reads_once(self)

    @cached
    def _gm_draws_many(self) -> bool:
        """True if a source upstream reads several records in one call."""
        return any([node._gm_reads_many for node in ancestors(self)])

    @cached
    def _gm_draws_blocks(self) -> bool:
        """True if something upstream reads blocks, of which more elements will come."""
        return any([node._gm_reads_blocks for node in ancestors(self)])

    @property
    def _gm_reads_once(self) -> bool:
        """True if this stage itself may not give the same element when it is asked again."""
        return not self._gm_parents and type(self)._gm_items is MapDataset._gm_items

    def _gm_set_instrument(self, wrap: Wrap | None) -> None:
        """Lets elements be computed through what ``wrap`` makes (see ``observing``)."""
        divert_items(self, wrap)

    @property
    def _gm_is_mixed_in_lanes(self) -> bool:
        # Stages that look at elements one by one, and those that group or repeat them, are applied
        # to a lane.
        can_be_over_lane = self._gm_keeps_indices or self._gm_is_rebuilt
        is_one_of_ours = can_be_over_lane and len(self._gm_parents) == 1 and is_of_library(self)
        return is_one_of_ours and self._gm_parents[0]._gm_is_mixed_in_lanes

    def _gm_num_elements(self) -> Length:
        """Returns the number of elements of an epoch that exist."""
        length = of_number(len(self))
        return AtMost(length.num) if isinstance(length, Exact) and dropping_steps(self) else length

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement | RecordKey]:
        """Returns the lineage of the element at ``index``; empty if it is unknown."""
        return [UpstreamElement(self._gm_parents[0], index)] if self._gm_keeps_indices else ()

    def _gm_behind(self, indices: Indices) -> tuple[MapDataset[Any], Indices] | None:
        """Returns the dataset upstream that has the elements, and their indices in it."""
        return (self._gm_parents[0], indices) if self._gm_keeps_indices else None

    def _gm_made_of(self, index: int) -> Iterable[UpstreamElement | RecordKey]:
        """Returns ``_gm_origins`` for ``explain``, which may run functions that decide it."""
        return self._gm_origins(index)

    def _gm_num_drawn(self, num: int, parent: int) -> int:
        """Returns from how many elements of a parent the first ``num`` are made."""
        return num

    def _gm_counts_before(self, num: int) -> dict[str, dict[str, int]] | None:
        """Returns the draw counts of the first ``num`` elements by component of the nearest mixture
        upstream; ``None`` if they are not its first ones.
        """
        return self._gm_parents[0]._gm_counts_before(num) if self._gm_keeps_indices else None

    def _gm_divided(self, division: Division) -> Any:
        """Returns the dataset that a worker has in place of this one."""
        if not division.is_sequential:
            return division.every_nth(self)
        if not self._gm_parents:
            raise ValueError(
                "sequential_slice=True can cut only MapDataset.source and MapDataset.range into"
                f" parts, not {self!s:.200}: use sequential_slice=False"
            )
        return division.over_shares(self)

    @property
    def _gm_shares_records(self) -> bool:
        return False

    @property
    def _gm_data(self) -> Any:
        """The object that distinguishes its records from others, if it has no parents."""
        return self

    @property
    def _gm_passed_on(self) -> tuple[MapDataset[Any], slice] | None:
        """The dataset, and the slice of its positions, whose elements it passes on."""
        return (self._gm_parents[0], _ALL) if self._gm_keeps_indices else None

    def _gm_over_parts(self, replaced: Callable[[Any], Any]) -> MapDataset[T_co]:
        """Returns this stage over parts of its parents that never change, for ``split``."""
        return self._gm_over(replaced)

    def _gm_over(self, replaced: Callable[[Any], Any]) -> MapDataset[T_co]:
        """Returns this stage over a part of its parent, for ``sequential_slice``.

        A copy will do if element ``i`` is made of the parent's at ``i``, which cannot be proved of
        code: so other kinds of stages are refused, unless they are ours and are constructed again.

        Raises:
            ValueError: this stage may be of such a kind.
        """
        if self._gm_needs_whole:
            raise not_over_a_part(self, self._gm_needs_whole)
        if len(self._gm_parents) != 1:
            raise not_over_a_part(self, "combines several datasets")
        new = super()._gm_over(replaced)
        length = len(self)
        if len(self._gm_parent) != length or len(new) != len(new._gm_parent):
            raise not_over_a_part(self, "has a length of its own")
        for name, value in vars(self).items():
            if _is_per_element(value, length) and replaced(value) is value:
                raise not_over_a_part(
                    self, f"has an attribute, {name}, with an entry for every element"
                )
        return new


class BlockMapDataset(MapDataset[T]):
    """The base of our own stages, which define ``_gm_items``."""

    _reports: Reports | None = None  # takes faults that are tolerated, of a copy for one reader

    def __init__(self, parents: object = ()) -> None:
        self._gm_parents = as_parents(parents, MapDataset)

    @abc.abstractmethod
    def _gm_items(self, indices: Indices) -> Iterator[Any]: ...

    @property
    def _gm_reads_once(self) -> bool:
        return False

    def _gm_set_instrument(self, wrap: Wrap | None) -> None:
        is_read_once = self._gm_draws_once
        items = None if wrap is None else partial(observed_items, wrap, is_read_once=is_read_once)
        shadow(self, "_gm_items", items)

    def _gm_over(self, replaced: Callable[[Any], Any]) -> MapDataset[T]:
        if self._gm_is_rebuilt:
            remake: Any = type(self)
            new: MapDataset[T] = remake(replaced(self._gm_parent), **self._gm_parameters.as_dict())
            return new
        return super()._gm_over(replaced)

    def __len__(self) -> int:
        return len(self._gm_parents[0])

    def __getitem__(self, index: object) -> Any:
        if type(index) is not int:
            if isinstance(index, slice):
                return MapDataset.slice(self, index)
            index = _as_index(index)
        try:
            return next(self._gm_items([index]))
        except BaseException as error:
            end_thread_at_exit()
            if isinstance(error, SourceEnded):
                raise StopIteration from error
            filter_traceback(error)
            raise

    def __str__(self) -> str:
        return self._gm_stage_text()

    def _check_not_empty(self, length: int, indices: Iterable[Any] = ()) -> None:
        if not length:
            raise with_error_context(
                IndexError(f"{self} is empty: it has no element at any index"), self, indices
            )


class ReindexMapDataset(BlockMapDataset[T]):
    """The base of stages that give their parent's elements at other indices."""

    _element_spec = spec_of_first_parent

    @abc.abstractmethod
    def _reindex(self, index: Any) -> Any:
        """Returns the parent's index for an ``int``, or those for an array [n]."""

    def _reindex_range(self, indices: range) -> Indices | None:
        """Returns the parent's indices for a ``range``, if there is a quicker way."""
        return None

    @property
    def _limit(self) -> int:
        """Up to this magnitude of an index the arithmetic of ``_reindex`` fits int64."""
        length = len(self)
        return max(2**62 - length, length - 1)

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        try:
            moved = self._moved(indices)
        except Exception as error:
            if len(indices) > 1:
                return each_alone(self, indices)
            failed_at(error, self, indices[0])
            raise
        return self._gm_parents[0]._gm_items(moved)

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement]:
        return [UpstreamElement(self._gm_parent, self._reindex(index))]

    def _gm_behind(self, indices: Indices) -> tuple[MapDataset[Any], Indices] | None:
        return self._gm_parents[0], self._moved(indices)

    def _moved(self, indices: Indices) -> Indices:
        if len(indices) == 1:
            return [self._reindex(as_ints(indices)[0])]
        moved = self._reindex_range(indices) if isinstance(indices, range) else None
        result: Indices = self._reindex(as_array(indices, self._limit)) if moved is None else moved
        return result


class NotOverAPartError(ValueError):
    """A stage has no meaning over a part of its parents."""


def not_over_a_part(step: DatasetNode, reason: str) -> NotOverAPartError:
    return NotOverAPartError(
        f"sequential_slice=True gives every worker a part of the source, but {step!s:.200}"
        f" {reason}: over a part, elements would be lost or repeated. Use sequential_slice=False"
    )


def _is_per_element(value: Any, length: int) -> bool:
    if callable(value) or isinstance(value, str | bytes | Mapping):
        return False
    try:
        return 0 < len(value) == length
    except TypeError:
        return False


def _as_index(index: Any) -> int:
    try:
        return index.__index__()
    except AttributeError:
        raise TypeError(
            f"index must be an integer or a slice, got {index!r:.100} of type"
            f" {type(index).__name__}"
        ) from None


def source_reads_once(source: object) -> bool:
    """True if ``source`` may not give the same record again."""
    return reads_once(source) if isinstance(source, DatasetNode) else not may_be_read_again(source)


def farthest_behind(ds: MapDataset[Any], indices: Indices) -> tuple[MapDataset[Any], Indices]:
    """Returns the farthest dataset upstream with the elements of ``ds``, and their indices."""
    while (found := ds._gm_behind(indices)) is not None:
        ds, indices = found
    return ds, indices
