"""The iterator that writes a ledger."""

from __future__ import annotations

from collections.abc import Awaitable, Iterator
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.next_index import get_next_index
from gristmill.loader import DataLoaderIterator
from gristmill.loader.iterator import loader_of

if TYPE_CHECKING:
    from gristmill.diagnostics.provenance.ledger import Ledger


class FollowedIterator(Iterator[Any]):
    """The elements and states of ``iterator``, whose place before each step is written into a ledger.

    Everything else (``close``, ``start_prefetch``, ...) is that of the iterator, too.
    """

    def __init__(self, ledger: Ledger, iterator: Any, step: int | None) -> None:
        if not isinstance(iterator, DatasetIterator | DataLoaderIterator):
            raise TypeError(
                f"iterator must be one of a dataset or DataLoader, got {shown(iterator)} of type {type(iterator).__name__}: make "
                "it with iter(ds)"
            )
        self._ledger = ledger
        self.followed_iterator = iterator
        self._noted = -1  # the step that was written down last, since its state was asked for
        self._step = self._next_step() if step is None else as_int("step", step, minimum=0)

    @property
    def step(self) -> int:
        """The number of the next output."""
        return self._step

    def __getattr__(self, name: str) -> Any:
        return getattr(self.followed_iterator, name)

    def __iter__(self) -> FollowedIterator:
        return self

    def __next__(self) -> Any:
        is_recorded = not self._step % self._ledger.every
        text = self._encoded() if is_recorded else b""
        element = self.followed_iterator.__next__()
        if is_recorded:
            self._ledger.write(self._step, text)
        self._step += 1
        return element

    def get_state(self) -> Any:
        """The state of the iterator. Its step is written down, so that ``set_state`` finds it."""
        state = self.followed_iterator.get_state()
        if self._noted != self._step:
            self._ledger.note_unless_recorded(self._step, self._ledger.encoded(state))
            self._noted = self._step
        return state

    def set_state(self, state: Any, *, step: int | None = None) -> None:
        """Continues from ``state``, which was taken before output ``step``; the ledger knows it of states that it has met."""
        before = self.followed_iterator.get_state()
        self.followed_iterator.set_state(state)
        try:
            self._step = self._next_step() if step is None else as_int("step", step, minimum=0)
        except BaseException:
            self.followed_iterator.set_state(before)
            raise

    async def save(self, directory: Any) -> Awaitable[None]:
        """As that of the iterator."""
        self.get_state()
        saved: Awaitable[None] = await self.followed_iterator.save(directory)
        return saved

    async def load(self, directory: Any) -> Awaitable[None]:
        """As that of the iterator."""
        loaded = await self.followed_iterator.load(directory)

        async def restore() -> None:
            await loaded
            self._step = self._next_step()

        return restore()

    def _encoded(self) -> bytes:
        return self._ledger.encoded(self.followed_iterator.get_state())

    def _next_step(self) -> int:
        """The number of the next output, from the state."""
        it = self.followed_iterator
        step = self._ledger.step_of(self._encoded())
        if step is not None:
            return step
        try:
            return get_next_index(it)
        except (NotImplementedError, ValueError):
            pass
        if it.get_state() == _new(it).get_state():
            return 0
        raise ValueError(
            f"{self._ledger} does not know the step of the state of {it!s:.200}: it was taken without it. Give the number of the "
            "next output: ledger.follow(it, step=...) or set_state(state, step=...)"
        )


def _new(it: Any) -> Any:
    """An iterator at the beginning, of the same dataset."""
    if isinstance(it, DataLoaderIterator):
        return iter(loader_of(it))
    ds = it._definition
    return it if ds is None else iterate(ds)
