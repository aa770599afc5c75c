"""The files of a checkpoint, of which every process has its own.

``process_<i>-of-<n>.json`` is Grain's: the state. ``pipeline_<i>-of-<n>.json`` describes the pipeline it belongs to (see
``description``); it is compared when it is there.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import process_file_name, state_to_text
from gristmill.dataset.description import check_description


def write_checkpoint(directory: Any, state: str, description: dict[str, Any] | None) -> None:
    """Writes this process's files into ``directory``."""
    from gristmill.core.version import __version__  # reading the metadata takes 8 ms

    library = f"gristmill {__version__}"
    path = _as_path(directory)
    name = process_file_name()
    if description is None:
        (path / _pipeline_file_name(name)).unlink(missing_ok=True)  # of another checkpoint in the same place
    else:
        (path / _pipeline_file_name(name)).write_text(state_to_text({"library": library, "pipeline": description}))
    (path / name).write_bytes(state.encode())


def read_checkpoint(directory: Any, description: dict[str, Any] | None) -> str:
    """The text of the state in this process's file in ``directory``.

    Raises:
        ValueError: there is no such file.
        StateMismatchError: the checkpoint belongs to another pipeline.
    """
    path = _as_path(directory)
    name = process_file_name()
    if not (path / name).exists():
        raise ValueError(
            f"File {path / name} does not exist: either this is no checkpoint of an iterator, or it was written by another "
            "number of processes"
        )
    pipeline = path / _pipeline_file_name(name)
    if description is not None and pipeline.exists():
        try:
            saved = json.loads(pipeline.read_bytes())["pipeline"]
        except (ValueError, LookupError, TypeError) as error:
            raise StateMismatchError(
                f"{pipeline} is damaged: {error!r}. Without that file the state is restored unchecked"
            ) from error
        check_description(saved, description)
    return (path / name).read_bytes().decode()


def _pipeline_file_name(process_file: str) -> str:
    return process_file.replace("process_", "pipeline_", 1)


def _as_path(directory: Any) -> Any:
    return Path(directory) if isinstance(directory, str) else directory
