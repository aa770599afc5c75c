"""``IterDataset.mix``: a stream of the elements of several streams."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

from gristmill.core.naming import transform_name
from gristmill.core.state import shown
from gristmill.dataset.bases.division import Division
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Infinite, Length, Unknown, added, at_most, num_elements
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import spec_of_first_parent
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Tracing, with_component
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.mixtures.map_dataset import as_datasets, check_stop, named, plan_for
from gristmill.dataset.mixtures.stream import Mix, MixIterator
from gristmill.dataset.watching import looking_once

T = TypeVar("T")

Stop = Literal["first", "all", "never"]


class MixParameters(Parameters):
    by: Any = field(is_function=True)
    stop: Stop


class MixedIterDataset(IterDataset[T]):
    """Elements of the parents in turn, as often as their weights say; with ``by``, whichever is
    furthest behind its weight.

    Order: that of ``MapDataset.mix``, until the parent whose turn it is has ended (see ``stop``).
    State: the parents' and the number of elements asked for; by name if the parents have names.
    With ``by``, schedules, or another ``stop``, also how many elements and how much of each there
    were, and the weights. Cost: about 0.1 µs per element in blocks; with ``by`` or another
    ``stop``, 2 µs.
    """

    _element_spec = spec_of_first_parent

    def __init__(
        self,
        datasets: object,
        weights: object = None,
        by: object = "elements",
        stop: Stop = "first",
    ) -> None:
        names, datasets, weights = named(datasets, weights)
        super().__init__(as_datasets(datasets, MapDataset, IterDataset))
        if not self._gm_parents:
            raise ValueError("datasets must not be empty: there is nothing to mix")
        check_stop(stop)
        if not callable(by) and (not isinstance(by, str) or by != "elements"):
            raise TypeError(
                "by must be 'elements' or a function that gives the length of an element, got"
                f" {shown(by)}"
            )
        self._gm_parameters = MixParameters(by, stop)
        self._names, self._stop = names, stop
        self._by: Any = None if by == "elements" else by
        self._plan = plan_for(names, weights, len(self._gm_parents), exactly=self._by is not None)

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return {self._plan.parameter: self._plan.shown}

    def __str__(self) -> str:
        return f"MixedIterDataset({self.text_of_parameters(list)})"

    def text_of_parameters(self, kind: Callable[[Any], Any]) -> str:
        """Return its parameters; proportions are in a sequence of this ``kind``."""
        weights = self._plan.shown
        weights = kind(weights) if isinstance(weights, tuple) else weights
        parts = [f"[{len(self._gm_parents)} parents]", f"{self._plan.parameter}={weights}"]
        if self._by is not None:
            parts.append(f"by={transform_name(self._by)}")
        if self._stop != "first":
            parts.append(f"stop={self._stop!r}")
        return ", ".join(parts)

    def _gm_num_elements(self) -> Length:
        lengths = [num_elements(parent) for parent in self._gm_parents]
        if self._stop != "first":
            if self._stop == "never" and self._plan.end is None:
                return Infinite()
            return at_most(added(lengths))
        # It ends with the first component that is drawn from without an element left, which depends
        # on the pattern.
        total = at_most(added(lengths))
        is_endless = lengths == [Infinite()] * len(lengths)
        return total if is_endless or not isinstance(total, Infinite) else Unknown()

    def _gm_traced(self, tracing: Tracing) -> Any:
        names: Sequence[Any] = range(len(self._gm_parents)) if self._names is None else self._names
        components = zip(names, self._gm_parents, strict=True)
        parents = tuple(
            [tracing.of(parent).map(with_component(name)) for name, parent in components]
        )
        by = self._by
        return tracing.over(self, _gm_parents=parents, _by=by and (lambda x: by(x.value)))

    @property
    def counts_elements(self) -> bool:
        """True if its weights are those of elements, not of what ``by`` measures."""
        return self._by is None

    @property
    def _gm_component_names(self) -> Sequence[str] | None:
        return self._names

    @property
    def _gm_makes_choices(self) -> bool:
        return self._names is not None

    @property
    def _gm_changes_in_lanes(self) -> bool:
        return self._plan.in_lane(2) is not self._plan

    def _gm_divided(self, division: Division) -> Any:
        new: Any = super()._gm_divided(division)
        if division.by_lanes:
            new._plan = self._plan.in_lane(division.num_workers)
        return new

    def __iter__(self) -> DatasetIterator[T]:
        with looking_once():
            return open_stage(self, Mix, MixIterator)

    @property
    def _described_in_checkpoints(self) -> dict[str, Any]:
        # Named components may come and go, and be weighed again, between saving and restoring.
        described = {"proportions": None} if self._names else self._gm_described_parameters
        by = {} if self._by is None else {"by": "a length"}
        return {**described, **by, **({} if self._stop == "first" else {"stop": self._stop})}
