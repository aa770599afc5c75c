"""The base of iterators that add nothing to their parent's position."""

from __future__ import annotations

from typing import Any, TypeVar

from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, skip_one, state_at
from gristmill.dataset.bases.origins import Place, place_of

T_co = TypeVar("T_co", covariant=True)


class PassingIterator(BlockIterator[T_co]):
    """The base of iterators whose position is their only parent's. Who has more to restore overrides ``_return_to`` as well."""

    def __init__(self, parent: DatasetIterator[Any]) -> None:
        super().__init__(parent)
        self._source = parent  # the parent without the detour of a property

    def get_state(self) -> Any:
        return self._source.get_state()

    def _restore(self, state: Any) -> None:
        self._source.set_state(state)

    def _skip(self) -> None:
        skip_one(self._source)

    def _pass_failed(self) -> bool:
        return self._flow != "stateful" and self._source._pass_failed()

    def _mark(self) -> Any:
        return self._source._mark()

    def _return_to(self, mark: Any) -> None:
        self._source._return_to(mark)

    def _state_at(self, mark: Any) -> Any:
        return state_at(self._source, mark)

    def _place(self) -> Place | None:
        place = None if self._flow == "stateful" else place_of(self._source)
        return place.with_gaps() if place is not None and self._flow == "dropping" else place

    def _merged_state(self, states: Any) -> Any:
        return self._source._merged_state(states)
