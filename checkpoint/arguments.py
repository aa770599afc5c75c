"""Arguments to pass to Orbax. Importing this module imports Orbax."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection
from typing import Any

import orbax.checkpoint as ocp

from gristmill.checkpoint.handler import CheckpointHandler


@ocp.args.register_with_handler(CheckpointHandler, for_save=True)
@dataclasses.dataclass
class CheckpointSave(ocp.args.CheckpointArgs):
    """Saves the position of an iterator: ``manager.save(step, args=CheckpointSave(iterator))``.

    Args:
        item: a ``DataLoaderIterator`` or ``DatasetIterator``.
    """

    item: Any


@ocp.args.register_with_handler(CheckpointHandler, for_restore=True)
@dataclasses.dataclass
class CheckpointRestore(ocp.args.CheckpointArgs):
    """Restores an iterator in place: ``manager.restore(step, args=CheckpointRestore(iterator))``.

    Args:
        item: an iterator of an equal pipeline; of mixtures with names, weights and components may
            be other.
        drop: names of components that the mixture no longer has; their positions are dropped.
    """

    item: Any
    drop: Collection[str] = ()
