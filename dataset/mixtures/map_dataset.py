"""``mix``, ``concatenate`` and ``select_from_datasets``: elements of several datasets in one."""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gristmill.core.errors import check_word
from gristmill.core.indices import Indices, as_ints
from gristmill.core.naming import without_addresses
from gristmill.core.state import shown
from gristmill.dataset.bases.epochs import any_pair
from gristmill.dataset.bases.items import begun_when_needed, item
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset, not_over_a_part
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.origins import UpstreamElement
from gristmill.dataset.errors.context import add_before, failed_at
from gristmill.dataset.mixtures.plans import PatternPlan, Plan, PlannedSelectionMap, SchedulePlan
from gristmill.dataset.mixtures.schedule import Schedule
from gristmill.dataset.mixtures.selection import (
    BlockSelectionMap,
    ConcatenationMap,
    Selected,
    SelectionWithProportionsMap,
    integer_weights,
    select_singly,
    selected,
)

T = TypeVar("T")

_LOOKS = 64  # at elements, for the next one of a component


class MixedMapDataset(BlockMapDataset[T]):
    """Element ``i`` is ``datasets[j][k]`` with ``(j, k) = selection_map[i]``.

    Order: the selection's. Cost: about 0.05 µs per element in blocks, and a block of each dataset
    that is selected from.
    """

    _element_spec = spec_of_first_parent
    _gm_moves_records = True  # every component starts again by itself
    _names: Mapping[int, str] = {}  # of the components, where they have any

    def __init__(self, datasets: Sequence[MapDataset[T]], selection_map: Any) -> None:
        super().__init__(as_datasets(datasets, MapDataset))
        if not hasattr(selection_map, "__getitem__") or not hasattr(selection_map, "__len__"):
            raise TypeError(
                "selection_map must be a DatasetSelectionMap, or have its __len__ and __getitem__, "
                f"got {shown(selection_map)} of type {type(selection_map).__name__}"
            )
        self._selection_map = selection_map
        self._length = len(selection_map)

    def __len__(self) -> int:
        return self._length

    @property
    def _gm_shares_records(self) -> bool:
        has_pattern = isinstance(self._selection_map, BlockSelectionMap)
        return not has_pattern or any_pair(self._gm_parents, parallel_ones=True) is not None

    def _gm_over_parts(self, replaced: Callable[[Any], Any]) -> MixedMapDataset[T]:
        if not isinstance(self._selection_map, BlockSelectionMap):
            raise not_over_a_part(self, "selects elements by their position")
        parts = [replaced(parent) for parent in self._gm_parents]
        kept, selection_map = self._selection_map.over_lengths([len(part) for part in parts])
        new = MixedMapDataset([parts[component] for component in kept], selection_map)
        return new._with_names(
            [self._names[component] for component in kept] if self._names else None
        )

    @property
    def selects_by_functions_of_users(self) -> bool:
        """True if the selection is not one of this library."""
        return not isinstance(self._selection_map, BlockSelectionMap)

    def name_of(self, component: int) -> str:
        """Return what messages call a component."""
        return self._names.get(component, f"component {component}")

    @property
    def _gm_is_mixed_in_lanes(self) -> bool:
        selection_map = self._selection_map
        return isinstance(selection_map, BlockSelectionMap) and not isinstance(
            selection_map, ConcatenationMap
        )

    def over_lanes(self, lanes: Sequence[MapDataset[T]], num_lanes: int) -> MixedMapDataset[T]:
        """Return a lane of this mixture over ``lanes``, that lane of each component."""
        new = MixedMapDataset(
            lanes, self._selection_map.in_lane([len(lane) for lane in lanes], num_lanes)
        )
        new._names = self._names
        return new

    @property
    def _gm_component_names(self) -> list[str] | None:
        return [self._names[i] for i in range(len(self._gm_parents))] if self._names else None

    def _with_names(self, names: Sequence[str] | None) -> MixedMapDataset[T]:
        """Sets the names of components for ``explain``; the dataset is not in use yet."""
        self._names = dict(enumerate(names or ()))
        return self

    def __str__(self) -> str:
        return f"MixedMapDataset[{len(self._gm_parents)} parents]"

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return {"selection_map": self._selection_map}

    def __repr__(self) -> str:
        lengths = [len(parent) for parent in self._gm_parents]
        text = without_addresses(repr(self._selection_map))  # a user's may have none of its own
        return f"MixedMapDataset(parent_lengths={lengths}, selection_map={text})"

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        self._check_not_empty(self._length, indices[:1])
        if len(indices) == 1:
            return map(self._drawn_alone, as_ints(indices))
        try:
            shares, places = self._select(indices)
            parents = [self._component(component) for component, _ in shares]
        except Exception:
            return map(self._drawn_alone, as_ints(indices))
        if len(shares) == 1:
            return self._noting(begun_when_needed(parents[0], shares[0][1]), lambda: shares[0][0])
        columns: list[Iterator[Any]] = []  # of each element that is read, by its place
        for (_, inner_indices), parent in zip(shares, parents, strict=True):
            columns += [begun_when_needed(parent, inner_indices)] * len(inner_indices)
        left = iter(places)

        def drawn_last() -> int:
            place = places[len(places) - operator.length_hint(left) - 1]
            return [component for component, inner_indices in shares for _ in inner_indices][place]

        return self._noting(map(next, map(columns.__getitem__, left)), drawn_last)

    def _drawn_alone(self, index: int) -> Any:
        try:
            component, inner_index = self._selected(index)
        except Exception as error:
            failed_at(error, self, index)
            raise
        try:
            return item(self._gm_parents[component], inner_index)
        except Exception as error:
            self._note_component(error, component)
            raise

    def _noting(self, elements: Iterator[Any], component: Callable[[], int]) -> Iterator[Any]:
        """Returns ``elements``, and notes at an error in which component it came up."""
        try:
            yield from elements
        except Exception as error:
            self._note_component(error, component())
            raise

    def _note_component(self, error: Exception, component: int) -> None:
        add_before(error, f"It happened in the component with dataset_index={component} of {self}.")

    def _selected(self, index: int) -> tuple[int, int]:
        component, inner = selected(self._selection_map, index)
        self._component(component)
        return component, inner

    def _gm_num_drawn(self, num: int, parent: int) -> int:
        for index in range(num, num + _LOOKS):  # the next of its elements says how many were before
            component, inner = self._selected(index)
            if component == parent:
                return inner
        return num * len(self._gm_parents[parent]) // max(1, self._length)

    def _gm_counts_before(self, num: int) -> dict[str, dict[str, int]] | None:
        if not isinstance(self._selection_map, SelectionWithProportionsMap | PlannedSelectionMap):
            return None
        nums = self._selection_map.nums_before(num)
        counts = {}
        for i, (count, parent) in enumerate(zip(nums, self._gm_parents, strict=True)):
            counts[self._names.get(i, str(i))] = {
                "elements": count,
                "lengths": count,
                "epochs": count // len(parent),
            }
        return counts

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement]:
        component, inner = self._selected(index)
        names = (self._names.get(component, component),)
        return [UpstreamElement(self._gm_parents[component], inner, components=names)]

    def _select(self, indices: Indices) -> Selected:
        selection_map = self._selection_map
        if isinstance(selection_map, BlockSelectionMap):
            return selection_map.select(indices)
        return select_singly(selection_map, indices)

    def _component(self, component: int) -> MapDataset[T]:
        try:
            return self._gm_parents[component]
        except IndexError:
            raise IndexError(
                f"selection_map gave the dataset index {component}, of {len(self._gm_parents)}"
                " datasets: it must be below that"
            ) from None


def mix(
    datasets: object, weights: Any, by: object = "elements", stop: str = "first"
) -> MixedMapDataset[Any]:
    """Return the stage for ``MapDataset.mix(datasets, weights, by=by, stop=stop)``."""
    names, datasets, weights = named(datasets, weights)
    parents = as_datasets(datasets, MapDataset)
    check_stop(stop)
    if not isinstance(by, str) or by != "elements":
        raise ValueError(
            f"by must be 'elements' for map datasets, got {shown(by)}: which component is next"
            " would depend on all elements before. Mix streams:"
            " IterDataset.mix([ds.to_iter_dataset(), ...], by=...)"
        )
    if not parents:
        raise ValueError("datasets must not be empty: there is nothing to mix")
    lengths = [len(parent) for parent in parents]
    empty = [f"datasets[{i}], {parents[i]}" for i, length in enumerate(lengths) if not length]
    if empty:
        raise ValueError(
            f"datasets to mix must have elements, but {', and '.join(empty)}, is empty: leave"
            " it out"
        )
    if stop == "first" and not isinstance(weights, Schedule):
        proportions = integer_weights(weights, len(parents))
        return MixedMapDataset(
            parents, SelectionWithProportionsMap.of_datasets(lengths, proportions)
        )._with_names(names)
    return MixedMapDataset(
        parents, PlannedSelectionMap(plan_for(names, weights, len(parents)), lengths, stop)
    )._with_names(names)


def concatenate(datasets: Sequence[MapDataset[Any]]) -> MixedMapDataset[Any]:
    """Return the stage for ``MapDataset.concatenate(datasets)``."""
    parents = as_datasets(datasets, MapDataset)
    lengths = [len(parent) for parent in parents]
    for i, length in enumerate(lengths):
        if length >= sys.maxsize:
            raise ValueError(
                f"datasets to concatenate must end, but datasets[{i}], {parents[i]}, is endless:"
                " slice it first"
            )
    return MixedMapDataset(parents, ConcatenationMap(lengths))


def _sorted_names(datasets: Mapping[Any, Any]) -> list[Any]:
    try:
        names = sorted(datasets)
    except TypeError:
        raise TypeError(
            f"the keys of datasets must be strings, got {list(datasets)!r:.200}"
        ) from None
    if len(set(map(str, names))) < len(names):
        raise ValueError(f"the keys of datasets must differ as text, got {names!r:.200}")
    return names


def _weights_by_name(names: list[Any], weights: object) -> list[Any]:
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"weights must be a mapping like datasets, with the keys {names!r:.200}, got"
            f" {weights!r:.200}"
        )
    if set(weights) != set(names):
        raise ValueError(
            f"weights must have the same keys as datasets, {names!r:.200}, got"
            f" {list(weights)!r:.200}"
        )
    return [weights[name] for name in names]


def named(datasets: object, weights: object) -> tuple[list[str] | None, Any, Any]:
    """Return the names of components, if any, with these and their weights in that order."""
    if isinstance(datasets, Mapping):
        names = _sorted_names(datasets)
        if weights is not None and not isinstance(weights, Schedule):
            weights = _weights_by_name(names, weights)
        return [str(name) for name in names], [datasets[name] for name in names], weights
    if isinstance(weights, Mapping):
        raise TypeError(
            "weights must be a sequence like datasets, got a mapping: give both as mappings of the"
            " same keys"
        )
    return None, datasets, weights


def plan_for(names: list[str] | None, weights: Any, num: int, *, exactly: bool = False) -> Plan:
    """Return the plan of ``num`` components; ``exactly``: with the weights as they are, not with
    what Grain makes of them.
    """
    own = [str(i) for i in range(num)] if names is None else names
    if isinstance(weights, Schedule):
        weights.check_num(num)
        unknown = sorted(set(weights.names) - set(own))
        if unknown:
            form = "as sequences" if names is None else "by these names"
            raise ValueError(
                f"a schedule must have weights of the datasets, {own!r:.200}, got {unknown!r:.200},"
                f" too: give the weights {form}, in the form of the datasets"
            )
        return SchedulePlan(own, weights)
    proportions = integer_weights([1] * num if weights is None else weights, num)
    if exactly:
        if weights is None:
            given = [1] * num
        else:
            given = [w.item() if hasattr(w, "item") else w for w in weights]
        return SchedulePlan(own, Schedule({0: dict(zip(own, given, strict=True))}))
    return PatternPlan(own, proportions)


def check_stop(stop: object) -> None:
    check_word("stop", stop, "first", "all", "never")


def as_datasets(datasets: object, *kinds: type) -> list[Any]:
    if not isinstance(datasets, Sequence) or isinstance(datasets, str | bytes):
        raise TypeError(
            f"datasets must be a list of datasets, got {shown(datasets)} of type"
            f" {type(datasets).__name__}"
        )
    for i, ds in enumerate(datasets):
        if not isinstance(ds, kinds):
            names = " or ".join([kind.__name__ for kind in kinds])
            raise TypeError(
                f"datasets[{i}] must be a {names}, got {shown(ds)} of type {type(ds).__name__}"
            )
    return list(datasets)
