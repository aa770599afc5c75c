"""Saving and restoring iterators with Orbax."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from gristmill.checkpoint.handler import CheckpointHandler
from gristmill.core.errors import StateMismatchError, missing_package

if TYPE_CHECKING:
    from gristmill.checkpoint.arguments import CheckpointRestore, CheckpointSave

__all__ = ["CheckpointHandler", "CheckpointRestore", "CheckpointSave", "StateMismatchError"]


def __getattr__(name: str) -> Any:
    if name not in ("CheckpointRestore", "CheckpointSave"):
        raise AttributeError(f"module 'gristmill.checkpoint' has no attribute {name!r}")
    try:
        arguments = importlib.import_module("gristmill.checkpoint.arguments")
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != "orbax":
            raise
        raise missing_package("orbax-checkpoint", "orbax", f"gristmill.checkpoint.{name}") from error
    globals()[name] = value = getattr(arguments, name)
    return value
