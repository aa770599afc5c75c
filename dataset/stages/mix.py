"""``mix``, ``concatenate`` and ``select_from_datasets``: elements of several datasets in one."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from gristmill.core.errors import StateMismatchError
from gristmill.core.indices import Indices, as_ints
from gristmill.core.naming import without_addresses
from gristmill.core.state import plain_counts, shown, state_count, state_field, state_flag, state_list
from gristmill.dataset.bases.epochs import any_pair
from gristmill.dataset.bases.feed import Feed, what_failed
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, iterate, marked, pull, return_to, skip_one
from gristmill.dataset.bases.length import Infinite, Length, Unknown, added, at_most, num_elements
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset, not_over_a_part, stream_elements
from gristmill.dataset.bases.next_index import check_no_gaps, move_to_index
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.origins import Part
from gristmill.dataset.bases.traced import Tracing, with_component
from gristmill.dataset.selection import (
    BlockSelectionMap,
    ConcatenationMap,
    Selected,
    SelectionWithProportionsMap,
    integer_weights,
    select_singly,
    selected,
)
from gristmill.dataset.states.refilling import refuse_refilling
from gristmill.dataset.telling.failures import add_before, tell
from gristmill.dataset.watching import looking_once

T = TypeVar("T")

_FIRST_BLOCK = 64  # elements


class MixedMapDataset(BlockMapDataset[T]):
    """Element ``i`` is ``datasets[j][k]`` with ``(j, k) = selection_map[i]``.

    Order: the selection's. Cost: about 0.05 µs per element in blocks, and a block of each dataset that is selected from.
    """

    _element_spec = spec_of_first_parent
    _moves_records = True  # every component begins anew by itself

    def __init__(self, datasets: Sequence[MapDataset[T]], selection_map: Any) -> None:
        super().__init__(_as_datasets(datasets, MapDataset))
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
    def _shares_records(self) -> bool:
        has_pattern = isinstance(self._selection_map, BlockSelectionMap)
        return not has_pattern or any_pair(self._parents, parallel_ones=True) is not None

    def _over_parts(self, replaced: Callable[[Any], Any]) -> MixedMapDataset[T]:
        if not isinstance(self._selection_map, BlockSelectionMap):
            raise not_over_a_part(self, "selects elements by their position")
        parts = [replaced(parent) for parent in self._parents]
        kept, selection_map = self._selection_map.over_lengths([len(part) for part in parts])
        return MixedMapDataset([parts[component] for component in kept], selection_map)

    def __str__(self) -> str:
        return f"MixedMapDataset[{len(self._parents)} parents]"

    @property
    def _described_parameters(self) -> dict[str, Any]:
        return {"selection_map": self._selection_map}

    def __repr__(self) -> str:
        lengths = [len(parent) for parent in self._parents]
        text = without_addresses(repr(self._selection_map))  # a user's may have none of its own
        return f"MixedMapDataset(parent_lengths={lengths}, selection_map={text})"

    def _block(self, indices: Indices) -> list[Any]:
        self._check_not_empty(self._length, indices)
        if len(indices) == 1:
            return self._read(*self._selected(as_ints(indices)[0]))
        shares, places = self._select(indices)
        if len(shares) == 1:
            return self._read(*shares[0])
        found: list[Any] = []
        for component, inner_indices in shares:
            found += self._read(component, inner_indices)
        return [found[place] for place in places]

    def _stream(self, feed: Feed) -> Iterator[Any]:
        self._check_not_empty(self._length)
        shares, places = self._select(feed.indices)
        streams: list[tuple[int, Iterator[Any]]] = []  # at each place, the one that its element comes from
        for component, inner_indices in shares:
            streams += [(component, stream_elements(self._component(component), Feed(inner_indices)))] * len(inner_indices)
        return self._mixed([streams[place] for place in places], feed)

    def _mixed(self, streams: list[tuple[int, Iterator[Any]]], feed: Feed) -> Iterator[Any]:
        for component, stream in feed.steps(streams):
            try:
                yield next(stream)
            except Exception as error:
                add_before(what_failed(error), f"It happened in the component with dataset_index={component} of {self}.")
                raise

    def _selected(self, index: int) -> tuple[int, list[int]]:
        try:
            component, inner = selected(self._selection_map, index)
            self._component(component)
        except Exception as error:
            tell(error, self, [index])
            raise
        return component, [inner]

    def _num_drawn(self, num: int, parent: int) -> int:
        for index in range(num, num + _FIRST_BLOCK):  # the next of its elements says how many were before
            component, (inner,) = self._selected(index)
            if component == parent:
                return inner
        return num * len(self._parents[parent]) // max(1, self._length)

    def _origins(self, index: int) -> Iterable[Part]:
        component, (inner,) = self._selected(index)
        return [Part(self._parents[component], inner, components=(component,))]

    def _select(self, indices: Indices) -> Selected:
        selection_map = self._selection_map
        if isinstance(selection_map, BlockSelectionMap):
            return selection_map.select(indices)
        return select_singly(selection_map, indices)

    def _component(self, component: int) -> MapDataset[T]:
        try:
            return self._parents[component]
        except IndexError:
            raise IndexError(
                f"selection_map gave the dataset index {component}, of {len(self._parents)} datasets: it must be below that"
            ) from None

    def _read(self, component: int, indices: Indices) -> list[Any]:
        parent = self._component(component)
        try:
            return parent._block(indices)
        except Exception as error:
            add_before(error, f"It happened in the component with dataset_index={component} of {self}.")
            raise


def mix(datasets: Sequence[MapDataset[Any]], weights: Sequence[float] | None) -> MixedMapDataset[Any]:
    """The stage for ``MapDataset.mix(datasets, weights)``."""
    parents = _as_datasets(datasets, MapDataset)
    if not parents:
        raise ValueError("datasets must not be empty: there is nothing to mix")
    lengths = [len(parent) for parent in parents]
    empty = [f"datasets[{i}], {parents[i]}" for i, length in enumerate(lengths) if not length]
    if empty:
        raise ValueError(f"datasets to mix must have elements, but {', and '.join(empty)}, is empty: leave it out")
    return MixedMapDataset(parents, SelectionWithProportionsMap.of_datasets(lengths, integer_weights(weights, len(parents))))


def concatenate(datasets: Sequence[MapDataset[Any]]) -> MixedMapDataset[Any]:
    """The stage for ``MapDataset.concatenate(datasets)``."""
    parents = _as_datasets(datasets, MapDataset)
    lengths = [len(parent) for parent in parents]
    for i, length in enumerate(lengths):
        if length >= sys.maxsize:
            raise ValueError(f"datasets to concatenate must end, but datasets[{i}], {parents[i]}, is endless: slice it first")
    return MixedMapDataset(parents, ConcatenationMap(lengths))


def _as_datasets(datasets: Any, *kinds: type) -> list[Any]:
    if not isinstance(datasets, Sequence) or isinstance(datasets, str | bytes):
        raise TypeError(f"datasets must be a list of datasets, got {shown(datasets)} of type {type(datasets).__name__}")
    for i, ds in enumerate(datasets):
        if not isinstance(ds, kinds):
            names = " or ".join([kind.__name__ for kind in kinds])
            raise TypeError(f"datasets[{i}] must be a {names}, got {shown(ds)} of type {type(ds).__name__}")
    return list(datasets)


class MixedIterDataset(IterDataset[T]):
    """Elements of the parents in turn, as often as their weights say.

    Order: that of ``MapDataset.mix``, until the parent whose turn it is has ended. State: the parents' and the number of
    elements asked for; by name if the parents have names. Cost: about 0.1 µs per element in blocks.
    """

    _element_spec = spec_of_first_parent

    def __init__(self, datasets: Any, weights: Any = None) -> None:
        names = None
        if isinstance(datasets, Mapping):
            names = _sorted_names(datasets)
            if weights is not None:
                weights = _weights_by_name(names, weights)
            datasets = [datasets[name] for name in names]
        elif isinstance(weights, Mapping):
            raise TypeError("weights must be a sequence like datasets, got a mapping: give both as mappings of the same keys")
        super().__init__(_as_datasets(datasets, MapDataset, IterDataset))
        if not self._parents:
            raise ValueError("datasets must not be empty: there is nothing to mix")
        self._names = None if names is None else [str(name) for name in names]  # as JSON has them
        self._proportions = integer_weights([1] * len(self._parents) if weights is None else weights, len(self._parents))

    @property
    def _described_parameters(self) -> dict[str, Any]:
        return {"proportions": self._proportions}

    def __str__(self) -> str:
        return f"MixedIterDataset([{len(self._parents)} parents], proportions={list(self._proportions)})"

    def _num_elements(self) -> Length:
        # It ends with the first component whose turn comes in vain, which depends on the pattern.
        lengths = [num_elements(parent) for parent in self._parents]
        total = at_most(added(lengths))
        is_endless = lengths == [Infinite()] * len(lengths)
        return total if is_endless or not isinstance(total, Infinite) else Unknown()

    def _traced(self, tracing: Tracing) -> Any:
        names: Sequence[Any] = range(len(self._parents)) if self._names is None else self._names
        twins = zip(names, self._parents, strict=True)
        return tracing.over(self, _parents=tuple([tracing.of(parent).map(with_component(name)) for name, parent in twins]))

    def __iter__(self) -> DatasetIterator[T]:
        return MixedDatasetIterator(self._parents, self._proportions, self._names)


def _sorted_names(datasets: Mapping[Any, Any]) -> list[Any]:
    try:
        names = sorted(datasets)
    except TypeError:
        raise TypeError(f"the keys of datasets must be strings, got {list(datasets)!r:.200}") from None
    if len(set(map(str, names))) < len(names):
        raise ValueError(f"the keys of datasets must differ as text, got {names!r:.200}")
    return names


def _weights_by_name(names: list[Any], weights: Any) -> list[Any]:
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights must be a mapping like datasets, with the keys {names!r:.200}, got {weights!r:.200}")
    if set(weights) != set(names):
        raise ValueError(f"weights must have the same keys as datasets, {names!r:.200}, got {list(weights)!r:.200}")
    return [weights[name] for name in names]


class MixedDatasetIterator(BlockIterator[T]):
    _flow = "stateful"
    _placed_by = ("_index", "_has_ended")
    _is_expected = False  # the parents read ahead
    _was_asked = False

    def __init__(self, datasets: Sequence[Any], proportions: tuple[int, ...], names: list[str] | None) -> None:
        with looking_once():
            super().__init__([iterate(ds) for ds in datasets])
        self._datasets = datasets
        self._proportions = proportions
        self._names = names
        self._by_name = None if names is None else dict(zip(names, proportions, strict=True))
        self._selection = SelectionWithProportionsMap(proportions, sys.maxsize)
        self._index = 0  # how often a parent was asked for an element
        self._has_ended = False

    def __str__(self) -> str:
        return f"MixedDatasetIterator([{len(self._parents)} parents], proportions={self._proportions})"

    @property
    def _described_parameters(self) -> dict[str, Any]:
        # Named components may come and go, and be weighed anew, between saving and restoring.
        return {"proportions": self._proportions if self._names is None else None}

    @property
    def _components(self) -> dict[str, DatasetIterator[Any]] | None:
        """The parents by name, if they have names: how a description compares them."""
        return None if self._names is None else dict(zip(self._names, self._parents, strict=True))

    def _take(self, n: int) -> list[Any]:
        if not self._is_expected:
            if n > 1 or self._was_asked:  # the first element is not to wait for all parents
                self._expect(1.0, 0.0)
            self._was_asked = True
        taken: list[Any] = []
        while len(taken) < n and not self._has_ended:
            # What is read in vain when a parent has ended is no more than what was delivered before.
            taken += self._take_block(min(n - len(taken), max(_FIRST_BLOCK, self._index)))
        return taken

    def _expect(self, rate: float, due: float) -> None:
        self._is_expected = True
        total = sum(self._proportions)
        first: dict[int, float] = {}  # draws from this before the first one from a parent
        shares, places = self._selection.select(range(self._index, self._index + 2 * len(self._parents)))
        found = [component for component, inner in shares for _ in inner]
        for i, place in enumerate(places):
            first.setdefault(found[place], i)
        for component, (parent, proportion) in enumerate(zip(self._parents, self._proportions, strict=True)):
            parent._expect(rate * proportion / total, due + first.get(component, total / proportion) / rate)

    def _take_block(self, n: int) -> list[Any]:
        if n == 1:
            return self._take_one()
        before = [marked(parent) for parent in self._parents]
        if any([mark is None for mark in before]):
            return [x for _ in range(n) for x in self._take_one()]
        shares, places = self._selection.select(range(self._index, self._index + n))
        found: list[Any] = []
        for component, inner in shares:
            elements = self._pull(component, len(inner))
            if len(elements) < len(inner):  # then the parents are asked again, for what comes before that
                for parent, mark in zip(self._parents, before, strict=True):
                    return_to(parent, mark)
                return self._take_until_the_end(n)
            found += elements
        self._index += n
        return [found[place] for place in places]

    def _take_one(self) -> list[Any]:
        if self._has_ended:
            return []
        component, _ = self._selection[self._index]
        taken = self._pull(component, 1)
        self._index += 1
        self._has_ended = not taken
        return taken

    def _take_until_the_end(self, n: int) -> list[Any]:
        taken: list[Any] = []
        while len(taken) < n and not self._has_ended:
            taken += self._take_one()
        return taken

    def _pull(self, component: int, n: int) -> list[Any]:
        try:
            return pull(self._parents[component], n)
        except Exception as error:
            add_before(error, f"It happened in the component with input_index={component} of {self}.")
            raise

    def get_state(self) -> Any:
        states: Any = [parent.get_state() for parent in self._parents]
        if self._by_name is not None:
            states = dict(zip(self._by_name, states, strict=True))
        state = {"parents": states, "index": self._index, "stop": self._has_ended}
        if self._by_name is not None and self._is_taken_again:  # by a step that holds elements; Grain ignores the entry
            state["proportions"] = self._by_name.copy()
        return state

    def _restore(self, state: Any) -> None:
        states = state_field(state, "parents", self)
        index = state_count(state, "index", self)
        has_ended = state_flag(state, "stop", self)
        if self._names is not None:
            states = self._states_by_name(states)
            self._check_change(state)
        else:
            states = state_list(state, "parents", self, len(self._parents), "the number of datasets")
        for parent, parent_state in zip(self._parents, states, strict=True):
            parent.set_state(parent_state)
        self._index = index
        self._has_ended = has_ended
        self._is_expected = self._was_asked = False

    def _states_by_name(self, states: Any) -> list[Any]:
        """The states of the components, those that are new at the beginning."""
        if not isinstance(states, Mapping):
            raise StateMismatchError(f"parents in the state of {self} must be a mapping of names to states, got {shown(states)}")
        by_name = {str(name): state for name, state in states.items()}
        assert self._names is not None
        return [
            by_name[name] if name in by_name else iterate(ds).get_state()
            for name, ds in zip(self._names, self._datasets, strict=True)
        ]

    def _check_change(self, state: Mapping[str, Any]) -> None:
        """Refuses other weights and components if elements are to be taken again; states of Grain do not tell weights."""
        saved = state.get("proportions", self._by_name)
        counts = plain_counts(list(saved.values())) if isinstance(saved, Mapping) else None
        if not isinstance(saved, Mapping) or counts is None:
            raise StateMismatchError(
                f"proportions in the state of {self} must be a mapping of names to non-negative integers, got {shown(saved)}"
            )
        names = {str(name) for name in state["parents"]}
        if names != set(self._names or ()):
            refuse_refilling(self, f"other components ({shown(self._names)}, not {shown(sorted(names))})")
        if dict(zip(map(str, saved), counts, strict=True)) != self._by_name:
            refuse_refilling(self, f"other weights ({shown(self._by_name)}, not {shown(saved)})")

    def _get_next_index(self) -> int:
        check_no_gaps(self)
        return self._index - self._has_ended  # the last one was asked for in vain

    def _set_next_index(self, index: int) -> None:
        check_no_gaps(self)
        for parent, num in zip(self._parents, self._selection.nums_before(index), strict=True):
            move_to_index(parent, num)
        self._index, self._has_ended = index, False
        self._is_expected = self._was_asked = False

    def _skip(self) -> None:
        component, _ = self._selection[self._index]
        self._has_ended = not skip_one(self._parents[component])
        self._index += 1
