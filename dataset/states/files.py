"""The files of a checkpoint, of which every process has its own.

``process_<i>-of-<n>.json`` is Grain's: the state. ``pipeline_<i>-of-<n>.json`` describes the
pipeline it belongs to (see ``description``) and has a checksum of the state; both are compared when
it is there.

What is written over an older checkpoint is written beside it first, so that a full disk leaves the
older one as it is.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import process_file_name, shown, state_from_text, state_to_text
from gristmill.dataset.descriptions.pipeline import check_description

_PROCESS_FILE = re.compile("process_[0-9]+-of-[0-9]+\\.json")
_DATASET_FILE = re.compile("shard_state_([0-9]+)\\.json")
_UNFINISHED = ".unfinished"  # at the end of the names of files that are being written
_NUM_NAMED = 8  # files in a message


def write_checkpoint(directory: object, state: str, description: dict[str, Any] | None) -> None:
    """Writes this process's files into ``directory``."""
    from gristmill.core.version import __version__  # reading the metadata takes 8 ms

    path = _as_path(directory)
    name = process_file_name()
    pipeline_name = _pipeline_file_name(name)
    files = {name: state.encode()}
    if description is not None:
        library = f"gristmill {__version__}"
        pipeline = {
            "library": library,
            "state_crc32": zlib.crc32(files[name]),
            "pipeline": description,
        }
        files[pipeline_name] = state_to_text(pipeline).encode()
    try:
        for file, content in files.items():
            _write(path / f"{file}{_UNFINISHED}", content)
    except BaseException:
        for file in files:
            with contextlib.suppress(OSError):
                (path / f"{file}{_UNFINISHED}").unlink(missing_ok=True)
        raise
    # Without its description a state is restored unchecked, beside another one it would be refused:
    # in this order, a program that is killed in between leaves a checkpoint that can be restored.
    (path / pipeline_name).unlink(missing_ok=True)
    for file in files:
        (path / f"{file}{_UNFINISHED}").replace(path / file)


def _write(path: Any, content: bytes) -> None:
    """Writes a file; when this returns, all of it is on the disk, if it is a file of this
    system.
    """
    with path.open("wb") as file:
        file.write(content)
        if isinstance(path, Path):
            file.flush()
            os.fsync(file.fileno())


def read_checkpoint(
    directory: object,
    description: dict[str, Any] | None,
    merged_state: Callable[[Any], Any] | None = None,
) -> str:
    """Returns the text of the state in this process's file in ``directory``.

    Args:
        directory: the directory of the checkpoint.
        description: of the pipeline to restore.
        merged_state: makes the state of this process from those of all processes if their number
            was another one.

    Raises:
        StateMismatchError: (a ``ValueError``) there is no such file, it is damaged, or the
            checkpoint belongs to another pipeline.
    """
    path = _as_path(directory)
    name = process_file_name()
    if (path / name).exists():
        return _read(path, name, description)
    try:
        if merged_state is not None and path.is_dir():
            return state_to_text(merged_state(_states_of_others(path, description)))
        reason = (
            "either this is no checkpoint of an iterator, or it was written by another number of"
            " processes"
        )
    except StateMismatchError as error:
        reason = str(error)
    raise StateMismatchError(f"File {path / name} does not exist: {reason}")


def _states_of_others(path: Any, description: dict[str, Any] | None) -> Any:
    """Returns the states of all processes of a checkpoint; or of all datasets that they share out,
    by number, as Grain writes them.
    """
    files = sorted(file.name for file in path.iterdir())
    datasets = [match for match in map(_DATASET_FILE.fullmatch, files) if match]
    if datasets:
        return {
            match[1]: state_from_text((path / match[0]).read_bytes(), match[0])
            for match in datasets
        }
    names = [file for file in files if _PROCESS_FILE.fullmatch(file)]
    if not names or not _is_complete(names):
        raise StateMismatchError(
            f"{path} must have the files of all processes of one checkpoint, it has {len(names)}:"
            f" {shown(names[:_NUM_NAMED])}"
        )
    return [state_from_text(_read(path, name, description), name) for name in names]


def _is_complete(names: list[str]) -> bool:
    """True if these are the files of all processes. The number in a name may be arbitrarily large,
    so the code does not count up to it.
    """
    numbers = [[int(number) for number in re.findall("[0-9]+", name)] for name in names]
    return sorted(numbers) == [[i, len(names)] for i in range(len(names))]


def _read(path: Any, name: str, description: dict[str, Any] | None) -> str:
    text = (path / name).read_bytes()
    pipeline = path / _pipeline_file_name(name)
    if description is not None and pipeline.exists():
        try:
            saved = json.loads(pipeline.read_bytes())
            crc32, saved_description = saved["state_crc32"], saved["pipeline"]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise StateMismatchError(
                f"{pipeline} is damaged: {shown(error)}. Without that file the state is restored"
                " unchecked"
            ) from error
        check_description(saved_description, description)
        if crc32 != zlib.crc32(text):
            raise StateMismatchError(
                f"{path / name} is damaged: its checksum is {zlib.crc32(text)}, {pipeline.name}"
                f" says {shown(crc32)}. Without {pipeline.name} the state is restored unchecked"
            )
    try:
        return text.decode()
    except UnicodeDecodeError as error:
        raise StateMismatchError(f"{path / name} is damaged: {error}") from error


def _pipeline_file_name(process_file: str) -> str:
    return process_file.replace("process_", "pipeline_", 1)


def _as_path(directory: object) -> Any:
    return Path(directory) if isinstance(directory, str) else directory
