"""The Orbax handler for iterators."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from gristmill.core.state import shown, state_from_text, state_to_text
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.descriptions.pipeline import describe
from gristmill.dataset.states.files import read_checkpoint, write_checkpoint
from gristmill.dataset.states.mixtures import as_names, without_components


class CheckpointHandler:
    """Saves and restores the position of iterators: one small JSON file per process,
    ``process_<i>-of-<n>.json``.

    Works with Orbax's ``CheckpointManager``, ``Composite``, ``Checkpointer`` and
    ``AsyncCheckpointer``. The state is taken before ``save`` returns, so the iterator may continue
    while Orbax finishes the checkpoint.
    """

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        """Writes the position of ``item`` (or ``args.item``) into ``directory``."""
        write_checkpoint(directory, *_position(item, args))

    async def async_save(self, directory: Any, item: Any = None, args: Any = None) -> list[Any]:
        """Takes the position of ``item`` (or ``args.item``) now; what it returns writes it, as soon
        as there is ``directory``.
        """
        return [_Pending(functools.partial(write_checkpoint, directory, *_position(item, args)))]

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """Sets ``item`` (or ``args.item``) to the position in ``directory``, starts its read-ahead
        and returns it.

        Of components of mixtures that ``args.drop`` names, and that the mixtures do not have any
        more, positions are forgotten.

        Raises:
            ValueError: there is no file of this process, or it belongs to another pipeline; the
                iterator is unchanged.
        """
        iterator = _iterator(item, args)
        if isinstance(iterator, DatasetIterator):
            text = read_checkpoint(directory, _describe(iterator), iterator._gm_merged_state)
            state, drop = state_from_text(text, iterator), as_names(getattr(args, "drop", ()))
            iterator.set_state(without_components(state, drop) if drop else state)
        else:
            iterator.set_state(read_checkpoint(directory, _describe(iterator)).encode())
        iterator.start_prefetch()
        return iterator

    def structure(self, directory: Any) -> None:
        """Nothing: there is no tree of arrays."""

    def metadata(self, directory: Any) -> None:
        """Nothing: there is no tree of arrays."""

    def finalize(self, directory: Any) -> None:
        """Nothing is left to do."""

    def close(self) -> None:
        """Nothing is held."""

    @classmethod
    def typestr(cls) -> str:
        """Returns the name under which Orbax notes the handler."""
        return f"{cls.__module__}.{cls.__qualname__}"


class _Pending:
    """The background operation that Orbax waits for, as for a future."""

    def __init__(self, write: Callable[[], None]) -> None:
        self._write = functools.cache(write)

    def result(self, timeout: float | None = None) -> None:
        self._write()


def _position(item: Any, args: Any) -> tuple[str, dict[str, Any] | None]:
    """Returns the text of an iterator's state, and what describes its pipeline."""
    iterator = _iterator(item, args)
    if isinstance(iterator, DatasetIterator):
        return state_to_text(iterator._gm_alone(iterator.get_state)), _describe(iterator)
    return iterator.get_state().decode(), _describe(iterator)


def _iterator(item: Any, args: Any) -> Any:
    iterator = item if item is not None else getattr(args, "item", None)
    if iterator is None:
        raise ValueError(
            "there is no iterator to save or restore: pass it as item, or as"
            " args=CheckpointSave(iterator)"
        )
    if not hasattr(iterator, "get_state"):
        raise TypeError(
            f"item must be an iterator with get_state and set_state, got {shown(iterator)}: pass"
            " iter(loader)"
        )
    return iterator


def _describe(iterator: Any) -> Any:
    if isinstance(iterator, DatasetIterator):
        return describe(iterator)
    # a DataLoader's iterator; others have the same three methods only
    describe_itself = getattr(iterator, "_gm_describe", None)
    return None if describe_itself is None else describe_itself()
