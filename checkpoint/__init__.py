"""Saving and restoring iterators with Orbax; what the hosts of a run agree on, and one state of
theirs.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import StateMismatchError, missing_package

if TYPE_CHECKING:
    from gristmill.checkpoint.arguments import CheckpointRestore, CheckpointSave
    from gristmill.checkpoint.handler import CheckpointHandler
    from gristmill.checkpoint.hosts import agree_jax, agree_torch, merge_states

__all__ = [
    "CheckpointHandler",
    "CheckpointRestore",
    "CheckpointSave",
    "StateMismatchError",
    "agree_jax",
    "agree_torch",
    "merge_states",
]
_OF_HOSTS = ("agree_jax", "agree_torch", "merge_states")  # which need no Orbax


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gristmill.checkpoint' has no attribute {name!r}")
    if name in _OF_HOSTS:
        globals()[name] = value = getattr(
            importlib.import_module("gristmill.checkpoint.hosts"), name
        )
        return value
    try:
        # Registers the arguments with the handler: Orbax asks for them when it is given either.
        module = importlib.import_module("gristmill.checkpoint.arguments")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "orbax":
            raise
        if name != "CheckpointHandler":
            raise missing_package(
                "orbax-checkpoint", "orbax", f"gristmill.checkpoint.{name}"
            ) from error
        module = importlib.import_module("gristmill.checkpoint.handler")  # which needs no Orbax
    globals()[name] = value = getattr(module, name)
    return value
