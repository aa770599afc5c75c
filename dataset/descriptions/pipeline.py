"""The description of a pipeline in its checkpoint.

A state is only a position; two pipelines with equal layouts of states cannot be distinguished by
it. So a checkpoint of ours also has the stages with their parameters, lengths, seeds and sources.
The code of user functions and options that do not change elements (threads, buffers) are not part
of it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import PurePath
from typing import Any

import numpy as np

from gristmill.core.errors import StateMismatchError
from gristmill.core.naming import stable_repr, without_addresses
from gristmill.core.state import shown
from gristmill.dataset.bases.length import has_own_length
from gristmill.dataset.bases.node import DatasetNode

_MAX_TEXT = 1000
_MAX_SHOWN = 500  # of a value in a message
_MAX_WHOLE = 100  # characters of a value; of a longer one, the part around the first difference
_BEFORE = 30
_NUM_LANES = ("RoundRobinIterator", "num_shards")  # in descriptions, whose texts stay
_REMEDY_OF_STAGES = "Build the pipeline as it was then, or begin without the checkpoint"
MAX_FILES = 64  # that a description names
_MAX_RECORDS = 16  # of a list whose records are shown in place of their number,
_MAX_LIST = 100  # if they are not longer
_NOT_COMPARED = ("parents", "components", "source_files")  # by themselves
_NOTHING = object()


def describe(node: Any) -> dict[str, Any]:
    """Return a stage with its parameters and everything upstream, JSON-able."""
    name = node._gm_stage_name
    upstream = node._gm_described_upstream
    if name is None:  # the same elements and states as without this stage
        return describe(upstream[0])
    description: dict[str, Any] = {"stage": name}
    if has_own_length(node):
        try:
            description["length"] = len(node)
        except TypeError:  # of a source without a length
            description["length"] = None
    description.update(
        {name: as_json(value) for name, value in node._gm_described_parameters.items()}
    )
    files = node._gm_source_files
    if files is not None:
        description["source_files"] = few_files(files, MAX_FILES)
    components = node._gm_components
    if components is not None:
        return {
            **description,
            "components": {name: describe(component) for name, component in components.items()},
        }
    parents = [describe(parent) for parent in upstream]
    if parents:
        description["parents"] = parents
    return description


def description_text(description: dict[str, Any]) -> str:
    """Return a description on one line: ``Stage(Stage(...), parameter=..., length=...)``."""
    parents = [description_text(parent) for parent in description.get("parents", ())]
    parameters = [
        f"{key}={value}"
        for key, value in description.items()
        if key not in ("stage", "parents", "source_files")
    ]
    return f"{description['stage']}({', '.join(parents + parameters)})"


def source_text(source: object) -> str:
    """Return the ``repr`` of a source if another run produces the same one, else its type."""
    if isinstance(source, list | tuple | np.ndarray):
        return str(type(source))
    return _text(source)


def short_source_text(source: object) -> str:
    """Return the name of a source in its records: its ``repr``, or its length."""
    if not isinstance(source, list | tuple | np.ndarray):
        return _text(source)
    text = repr(source) if len(source) <= _MAX_RECORDS and getattr(source, "ndim", 1) == 1 else ""
    return (
        text if 0 < len(text) <= _MAX_LIST else f"{type(source).__name__} of {len(source)} records"
    )


def source_name(source: object) -> str:
    """Return the class of a source and the first of its files, if it reads any."""
    kind, paths = type(source).__name__, file_paths(source)
    if not paths:
        return kind
    more = f", … {len(paths)} files" if len(paths) > 1 else ""
    return f"{kind}({PurePath(paths[0]).name!r}{more})"


def file_paths(source: object) -> Sequence[str]:
    """Return the files of a source, in their order; empty if it has none."""
    paths = getattr(source, "paths", None) or getattr(
        getattr(source, "_files", None), "paths", None
    )
    if isinstance(paths, list | tuple) and all([isinstance(path, str) for path in paths[:1]]):
        return paths
    return ()


def source_files(source: object) -> list[str] | None:
    """Texts that distinguish the files of a source, independent of their folder, one for each; for
    a dataset, those of all its sources.

    ``None`` if there is nothing of the kind: then the text of a source identifies it.
    """
    if isinstance(source, DatasetNode):
        found = [node._gm_source_files for node in source_first(source)]
        return [text for files in found if files is not None for text in files] or None
    files = getattr(source, "described_files", None)
    return files() if callable(files) else None


def source_first(node: DatasetNode) -> Iterator[Any]:
    """Yield ``node`` and all datasets upstream in the order in which its text names them."""
    for parent in node._gm_parents:
        yield from source_first(parent)
    yield node


def few_files(files: Sequence[str], most: int) -> list[str]:
    """Return ``files``; beyond ``most`` the last ones are joined in a hash."""
    if len(files) <= most:
        return list(files)
    rest = files[most - 1 :]
    digest = hashlib.sha1(
        "\n".join(rest).encode(errors="surrogateescape"), usedforsecurity=False
    ).hexdigest()
    return [*files[: most - 1], f"{len(rest)} more, SHA-1 {digest}"]


def source_difference(
    saved: object, own: object, saved_files: object, own_files: Sequence[str] | None
) -> str | None:
    """Return ``None`` if a source has the data of the one that was saved; else what is known of the
    difference beyond their texts.

    Args:
        saved: the text of the source then.
        own: the text of the source here.
        saved_files: its files then; ``None`` if nothing is known of them.
        own_files: its files here; ``None`` if it is not made of files that may be moved.
    """
    if own_files is not None and saved_files is not None:
        difference = _file_difference(saved_files, own_files)
        if difference is None and _without_paths(saved) == _without_paths(own):
            return None
        return difference or ""
    if saved == own:
        return None
    is_elsewhere = own_files is not None and _without_paths(saved) == _without_paths(own)
    if is_elsewhere:
        return "Its files are in another folder, and only a hash of the paths was saved"
    return ""


def _file_difference(saved: object, own: Sequence[str]) -> str | None:
    """Return the first file that is another one, in words."""
    for i, (then, now) in enumerate(
        zip_longest(saved if isinstance(saved, list) else [saved], own, fillvalue=_NOTHING)
    ):
        if then != now:
            then_text, now_text = [
                "nothing" if file is _NOTHING else shown(file) for file in (then, now)
            ]
            return f"Of its files, file {i} was {then_text}, and is {now_text} here"
    return None


def _without_paths(text: object) -> Any:
    """Returns the text of a source without the paths of its files."""
    return re.sub("hash_of_paths=[0-9a-f]*", "", text) if isinstance(text, str) else text


def complete_repr(value: Any) -> str:
    """Return ``repr(value)``; of a dataset, whose ``repr`` is for people and may be abbreviated,
    all of it on one line.

    States and checkpoints have it, for other processes and later versions to compare.
    """
    is_chain = isinstance(value, DatasetNode) and value._gm_shows_chain
    return description_text(describe(value)) if is_chain else stable_repr(value)


def check_description(saved: object, own: dict[str, Any], place: str = "the last stage") -> None:
    """Compares two descriptions.

    Raises:
        StateMismatchError: names the first stage, from the output upwards, that differs, with both
            values.
    """
    if not isinstance(saved, dict):
        raise StateMismatchError(
            f"the description of a stage in a checkpoint must be a JSON object, got {shown(saved)}"
        )
    for key in dict.fromkeys([*saved, *own]):
        difference = _difference(key, saved, own)
        if difference is not None:
            what, remedy = _words_for(key if key in own else shown(key), saved.get(key), own, place)
            then, now = _parts_that_differ(saved.get(key), own.get(key))
            raise StateMismatchError(
                f"the checkpoint belongs to another pipeline: {what} was {then} when it was saved, "
                f"and is {now} here{difference and f'. {difference}'}. {remedy}"
            )
    saved_components, saved_parents = saved.get("components", {}), saved.get("parents", [])
    if not isinstance(saved_components, dict) or not isinstance(saved_parents, list):
        raise StateMismatchError(
            f"the description of {own['stage']} ({place}) in a checkpoint is damaged, got"
            f" {shown(saved)}"
        )
    for name, component in own.get("components", {}).items():
        if name in saved_components:  # others have been added or removed, as they may be
            check_description(
                saved_components[name], component, f"component {name!r} of {own['stage']}"
            )
    own_parents = own.get("parents", [])
    if len(saved_parents) != len(own_parents):
        raise StateMismatchError(
            f"the checkpoint belongs to another pipeline: {own['stage']} ({place}) had"
            f" {len(saved_parents)} parents when it was saved, and has {len(own_parents)} here."
            f" {_REMEDY_OF_STAGES}"
        )
    for i, (saved_parent, own_parent) in enumerate(zip(saved_parents, own_parents, strict=True)):
        which = "the stage" if len(own_parents) == 1 else f"parent {i}, the stage"
        check_description(saved_parent, own_parent, f"{which} before {own['stage']}")


def _words_for(key: str, then: object, own: dict[str, Any], place: str) -> tuple[str, str]:
    """Return the name of a parameter that differs, in the words of users, and the remedy."""
    stage = own["stage"]
    if key == "stage":
        return place, _REMEDY_OF_STAGES
    if (stage, key) == _NUM_LANES:
        return (
            f"num_lanes ({place}; without one, num_workers)",
            (
                f"Set num_lanes={shown(then)} beside num_workers: any number of workers can compute"
                " as many lanes"
            ),
        )
    return f"{key} of {stage} ({place})", "Change it back, or begin without the checkpoint"


def _parts_that_differ(then: object, now: object) -> list[str]:
    """Return both values as text; of long texts, the parts around the first difference."""
    texts = [shown(value, _MAX_SHOWN) for value in (then, now)]
    if max(map(len, texts)) <= _MAX_WHOLE:
        return texts
    same = next(
        (i for i, (a, b) in enumerate(zip(*texts, strict=False)) if a != b), min(map(len, texts))
    )
    start = max(0, same - _BEFORE)
    stop = start + _MAX_WHOLE
    return [
        f"{'…' if start else ''}{text[start:stop]}{'…' if len(text) > stop else ''}"
        for text in texts
    ]


def _difference(key: str, saved: dict[str, Any], own: dict[str, Any]) -> str | None:
    """Return ``None`` if two stages agree in a parameter, else what to add to both values."""
    if key in _NOT_COMPARED:
        return None
    if key == "source":
        return source_difference(
            saved.get(key), own.get(key), saved.get("source_files"), own.get("source_files")
        )
    return None if saved.get(key) == own.get(key) else ""


def as_json(value: object) -> Any:
    """Return a parameter as written in a description."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else _text(value)


def _text(value: object) -> str:
    return without_addresses(complete_repr(value))[:_MAX_TEXT]
