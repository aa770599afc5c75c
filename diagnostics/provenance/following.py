"""The iterators that write a ledger."""

from __future__ import annotations

import abc
import contextlib
from collections.abc import Callable, Collection
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.next_index import get_next_index
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.iterators import marked, return_to
from gristmill.diagnostics.provenance.explaining import definition_of
from gristmill.diagnostics.view import dataset_iterator
from gristmill.loader import DataLoaderIterator
from gristmill.loader.iterator import loader_of

if TYPE_CHECKING:
    from gristmill.dataset.faults.budget import FaultCounts
    from gristmill.diagnostics.provenance.ledger import Ledger


class Followed(abc.ABC):
    """The part of an iterator that records the state before each step in a ledger.

    A step is recorded before it is made. An interrupt or a full disk loses no element: either the
    element is returned, or the iterator is at the position before it.
    """

    followed_iterator: Any
    _ledger: Ledger
    _noted = -1  # the step of the last state that ``get_state`` returned
    _number: int  # of the next output

    @property
    def step(self) -> int:
        """The number of the next output."""
        return self._number

    @property
    @abc.abstractmethod
    def _dataset_iterator(self) -> DatasetIterator[Any]:
        """The iterator whose position this is."""

    def _begin(self, ledger: Ledger, step: int | None) -> None:
        self._ledger = ledger
        self._number = self._next_step(step)

    def __next__(self) -> Any:
        ledger, step, is_new = self._ledger, self._number, False
        before = marked(self._dataset_iterator)
        if not step % ledger.every:
            is_new = ledger.write(step, self._encoded())
        # The list has the element as soon as the iterator has moved: an interrupt needs a bytecode
        # in between, and there is none. After that there is no call until the element is returned.
        element: list[Any] = []
        try:
            element.extend(islice(self.followed_iterator, 1))
            if not element and is_new:
                ledger.forget(step)
        except BaseException:
            if element:
                return_to(self._dataset_iterator, before)
            raise
        if not element:
            raise StopIteration
        self._number = step + 1
        return element[0]

    def get_state(self) -> Any:
        """Returns the state; the ledger notes its step, so that ``set_state`` finds it."""
        state = self.followed_iterator.get_state()
        if self._noted != self._number:
            self._ledger.note_unless_recorded(self._number, self._ledger.encoded(state))
            self._noted = self._number
        return state

    def set_state(self, state: Any, *, drop: Collection[str] = (), step: int | None = None) -> None:
        """Continues from ``state``, which was taken before output ``step``.

        Args:
            state: as for the iterator that is followed.
            drop: as for the iterator that is followed.
            step: the number of the next output; by default, the ledger looks the state up.

        Raises:
            ValueError: the ledger does not know the state, and the step does not follow from it.
        """
        given = {"drop": drop} if drop else {}
        self._move(lambda: self.followed_iterator.set_state(state, **given), step)

    def _set_next_index(self, index: int) -> None:
        self._move(lambda: self._dataset_iterator._set_next_index(index), None)

    def skip_failed(self) -> None:
        """Moves past the output whose ``next`` failed, which has no step."""
        self.followed_iterator.skip_failed()

    def faults(self) -> FaultCounts:
        """Returns what ``tolerate`` has skipped, as the iterator that is followed does."""
        counts: FaultCounts = self.followed_iterator.faults()
        return counts

    def counts(self) -> Any:
        """Returns the draw counts of a mixture, as the iterator that is followed does."""
        return self.followed_iterator.counts()

    def _move(self, move: Callable[[], None], step: int | None) -> None:
        before = marked(self._dataset_iterator)
        move()
        try:
            self._number = self._next_step(step)
        except BaseException:
            return_to(self._dataset_iterator, before)
            raise
        self._noted = -1

    def _encoded(self) -> bytes:
        return self._ledger.encoded(self.followed_iterator.get_state())

    def _next_step(self, step: int | None) -> int:
        """Returns the number of the next output, which follows from the state if it is not
        given.
        """
        if step is not None:
            return as_int("step", step, minimum=0)
        it = self.followed_iterator
        step = self._ledger.step_of(self._encoded())
        if step is None:
            step = _num_outputs(it)
        if step is not None:
            return step
        raise ValueError(
            f"{self._ledger} does not know the step of the state of {it!s:.200}, which was taken"
            " without it, and the step does not follow from the state. Give the number of the next"
            " output: ledger.follow(it, step=...) or set_state(state, step=...)"
        )


class FollowedIterator(Followed, DatasetIterator[Any]):
    """The elements and states of an iterator of a dataset, recorded in a ledger."""

    _gm_stage_name: ClassVar = None  # in checkpoints: the same elements and states as without it

    def __init__(self, ledger: Ledger, iterator: DatasetIterator[Any], step: int | None) -> None:
        super().__init__(iterator)
        self.followed_iterator = iterator
        self._gm_definition = iterator._gm_definition
        self._begin(ledger, step)

    @property
    def _dataset_iterator(self) -> DatasetIterator[Any]:
        return self._gm_parents[0]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._gm_parents[0], name)

    def _gm_stage_text(self) -> str:
        return str(self._ledger)

    def _gm_before_last(self) -> Any:
        return self._gm_parents[0]._gm_before_last()

    def _gm_merged_state(self, states: Any) -> Any:
        return self._gm_parents[0]._gm_merged_state(states)

    def _get_next_index(self) -> int:
        return get_next_index(self._gm_parents[0])

    def _gm_skip(self) -> None:
        self._gm_parents[0]._gm_skip()


class FollowedLoaderIterator(Followed, DataLoaderIterator):
    """The elements and states of an iterator of a ``DataLoader``, recorded in a ledger."""

    def __init__(self, ledger: Ledger, iterator: DataLoaderIterator, step: int | None) -> None:
        vars(self).update(vars(iterator))  # two views of the same position
        self.followed_iterator = iterator
        self._begin(ledger, step)

    @property
    def _dataset_iterator(self) -> DatasetIterator[Any]:
        return self._iterator


def followed(
    ledger: Ledger, iterator: Any, step: int | None
) -> FollowedIterator | FollowedLoaderIterator:
    """Returns an iterator of the same elements and states that writes ``ledger``.

    Raises:
        TypeError: ``iterator`` is not one of a dataset or ``DataLoader``.
    """
    if isinstance(iterator, DatasetIterator):
        return FollowedIterator(ledger, iterator, step)
    if isinstance(iterator, DataLoaderIterator):
        return FollowedLoaderIterator(ledger, iterator, step)
    raise TypeError(
        f"iterator must be one of a dataset or DataLoader, got {shown(iterator)} of type"
        f" {type(iterator).__name__}: make it with iter(ds)"
    )


def _num_outputs(it: Any) -> int | None:
    """Returns the number of outputs before the position of ``it``; ``None`` if not known."""
    inner = dataset_iterator(it)
    ds, tracing = definition_of(inner), Tracing(False)
    if ds is None:
        return None
    # A stage that cannot be explained raises here, and so does an iterator whose index is not
    # known: then the caller asks the user for the step.
    with contextlib.suppress(NotImplementedError, ValueError):
        tracing.of(ds)
        if not tracing.assumes and not inner._gm_has_gaps():  # else elements may have been dropped
            return get_next_index(inner)
    return 0 if it.get_state() == _first_state(it, ds) else None


def _first_state(it: Any, ds: Any) -> Any:
    if isinstance(it, DataLoaderIterator):
        return iter(loader_of(it)).get_state()
    # An ElasticIterator iterates over itself; its traced pipeline has the same states.
    if ds is it:
        ds = Tracing(False).of(ds)
    return iterate(ds).get_state()
