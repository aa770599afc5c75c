"""What a checkpoint says about the pipeline it belongs to.

A state is only a position; two pipelines with equal layouts of states cannot be told apart by it. So a checkpoint of ours
also has the stages with their parameters, lengths, seeds and sources. The code of user functions and options that do not
change elements (threads, buffers) are not part of it.
"""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import numpy as np

from gristmill.core.errors import StateMismatchError
from gristmill.core.naming import without_addresses
from gristmill.core.state import shown
from gristmill.dataset.graph import only_parent

_MAX_TEXT = 1000


def describe(node: Any) -> dict[str, Any]:
    """The stage of a dataset or iterator, its parameters, and the same of everything upstream; JSON-able."""
    name = getattr(node, "_stage_name", type(node).__name__)
    if name is None:  # the same elements and states as without this stage
        return describe(only_parent(node))
    description: dict[str, Any] = {"stage": name}
    if hasattr(node, "__len__"):
        try:
            description["length"] = len(node)
        except TypeError:  # of a source without a length
            description["length"] = None
    for name, attribute in getattr(node, "_parameters", {}).items():
        description[name] = as_json(attrgetter(attribute)(node))
    components = getattr(node, "_components", None)
    if components is not None:
        return {**description, "components": {name: describe(component) for name, component in components.items()}}
    parents = [describe(parent) for parent in getattr(node, "_upstream", node._parents)]
    if parents:
        description["parents"] = parents
    return description


def description_text(description: dict[str, Any]) -> str:
    """A description on one line, inputs first: ``Stage(Stage(...), parameter=..., length=...)``."""
    parents = [description_text(parent) for parent in description.get("parents", ())]
    parameters = [f"{key}={value}" for key, value in description.items() if key not in ("stage", "parents")]
    return f"{description['stage']}({', '.join(parents + parameters)})"


def source_text(source: Any) -> str:
    """What stands for a source in a description: its ``repr`` if that can be the same in another run, else its type."""
    if isinstance(source, list | tuple | np.ndarray):
        return str(type(source))
    return _text(source)


def complete_repr(value: Any) -> str:
    """``repr(value)``; of a dataset, whose ``repr`` is for people and may be abbreviated, all of it on one line.

    States and checkpoints have it, for other processes and later versions to compare.
    """
    from gristmill.dataset.map_dataset import MapDataset

    is_chain = isinstance(value, MapDataset) and type(value).__repr__ is MapDataset.__repr__
    return description_text(describe(value)) if is_chain else repr(value)


def check_description(saved: Any, own: Any, place: str = "the last stage") -> None:
    """Compares two descriptions.

    Raises:
        StateMismatchError: names the first stage, from the output upwards, that differs, with both values.
    """
    if not isinstance(saved, dict):
        raise StateMismatchError(f"the description of a stage in a checkpoint must be a JSON object, got {shown(saved)}")
    for key in dict.fromkeys([*saved, *own]):
        if key not in ("parents", "components") and saved.get(key) != own.get(key):
            raise StateMismatchError(
                f"the checkpoint belongs to another pipeline: {key} of {own['stage']} ({place}) was {saved.get(key)!r} "
                f"when it was saved, and is {own.get(key)!r} here"
            )
    saved_components, saved_parents = saved.get("components", {}), saved.get("parents", [])
    if not isinstance(saved_components, dict) or not isinstance(saved_parents, list):
        raise StateMismatchError(f"the description of {own['stage']} ({place}) in a checkpoint is damaged, got {shown(saved)}")
    for name, component in own.get("components", {}).items():
        if name in saved_components:  # others have been added or removed, as they may be
            check_description(saved_components[name], component, f"component {name!r} of {own['stage']}")
    own_parents = own.get("parents", [])
    if len(saved_parents) != len(own_parents):
        raise StateMismatchError(
            f"the checkpoint belongs to another pipeline: {own['stage']} ({place}) had {len(saved_parents)} parents "
            f"when it was saved, and has {len(own_parents)} here"
        )
    for i, (saved_parent, own_parent) in enumerate(zip(saved_parents, own_parents, strict=True)):
        which = "the stage" if len(own_parents) == 1 else f"parent {i}, the stage"
        check_description(saved_parent, own_parent, f"{which} before {own['stage']}")


def as_json(value: Any) -> Any:
    """A parameter as it stands in a description."""
    if isinstance(value, np.generic):
        value = value.item()
    return value if value is None or isinstance(value, bool | int | float | str) else _text(value)


def _text(value: Any) -> str:
    return without_addresses(complete_repr(value))[:_MAX_TEXT]
