"""The Orbax handler for iterators."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gristmill.core.state import process_file_name, state_to_text
from gristmill.dataset.iterator import DatasetIterator, read_process_file


class CheckpointHandler:
    """Saves and restores the position of iterators: one small JSON file per process, ``process_<i>-of-<n>.json``.

    Works with Orbax's ``CheckpointManager``, ``Composite`` and ``Checkpointer``. The state is taken before ``save`` returns,
    so the iterator may go on while Orbax finishes the checkpoint.
    """

    def save(self, directory: Any, item: Any = None, args: Any = None) -> None:
        """Writes the position of ``item`` (or ``args.item``) into ``directory``."""
        iterator = _iterator(item, args)
        if isinstance(iterator, DatasetIterator):
            text = state_to_text(iterator.get_state())
        else:
            text = iterator.get_state().decode()
        path = Path(directory) / process_file_name() if isinstance(directory, str) else directory / process_file_name()
        path.write_text(text)

    def restore(self, directory: Any, item: Any = None, args: Any = None) -> Any:
        """Sets ``item`` (or ``args.item``) to the position in ``directory``, starts its read-ahead and returns it.

        Raises:
            ValueError: there is no file of this process, or the state belongs to another pipeline.
        """
        iterator = _iterator(item, args)
        text = read_process_file(directory)
        iterator.set_state(json.loads(text) if isinstance(iterator, DatasetIterator) else text.encode())
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
        """The name under which Orbax notes the handler."""
        return f"{cls.__module__}.{cls.__qualname__}"


def _iterator(item: Any, args: Any) -> Any:
    iterator = item if item is not None else getattr(args, "item", None)
    if iterator is None:
        raise ValueError("there is no iterator to save or restore: pass it as item, or as args=CheckpointSave(iterator)")
    return iterator
