"""Saving and restoring iterators with Orbax."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import StateMismatchError, missing_package

if TYPE_CHECKING:
    from gristmill.checkpoint.arguments import CheckpointRestore, CheckpointSave
    from gristmill.checkpoint.handler import CheckpointHandler

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave", "StateMismatchError"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'gristmill.checkpoint' has no attribute {name!r}")
    try:
        # Registers the arguments with the handler: Orbax asks for them when it is given either.
        module = importlib.import_module("gristmill.checkpoint.arguments")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "orbax":
            raise
        if name != "CheckpointHandler":
            raise missing_package("orbax-checkpoint", "orbax", f"gristmill.checkpoint.{name}") from error
        module = importlib.import_module("gristmill.checkpoint.handler")  # which needs no Orbax
    globals()[name] = value = getattr(module, name)
    return value
