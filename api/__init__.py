"""gristmill: deterministic, checkpointable data loading, with the names and meanings of Grain.

Everything is imported when first used. ``import gristmill as grain`` is the whole migration; see
``install_as_grain`` for code that imports ``grain`` itself.
"""

from __future__ import annotations

import importlib
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gristmill import checkpoint as checkpoint
    from gristmill import constants as constants
    from gristmill import diagnostics as diagnostics
    from gristmill import lengths as lengths
    from gristmill import monitoring as monitoring
    from gristmill import multiprocessing as multiprocessing
    from gristmill import samplers as samplers
    from gristmill import sharding as sharding
    from gristmill import sources as sources
    from gristmill import testing as testing
    from gristmill import transforms as transforms
    from gristmill.core.config import config as config
    from gristmill.core.errors import FaultBudgetError as FaultBudgetError
    from gristmill.core.version import __version__ as __version__
    from gristmill.core.version import __version_info__ as __version_info__
    from gristmill.dataset.bases.length import dataset_length as dataset_length
    from gristmill.dataset.mixtures.schedule import Schedule as Schedule
    from gristmill.dataset.stages.global_batch import global_batch as global_batch
    from gristmill.dataset.stages.hugging_face import (
        HuggingFaceIterDataset as HuggingFaceIterDataset,
    )
    from gristmill.diagnostics import diagnose as diagnose
    from gristmill.diagnostics import observe as observe
    from gristmill.diagnostics import start_telemetry as start_telemetry
    from gristmill.diagnostics import stop_telemetry as stop_telemetry
    from gristmill.diagnostics import verify as verify
    from gristmill.diagnostics import visualize as visualize
    from gristmill.diagnostics.provenance import Ledger as Ledger
    from gristmill.diagnostics.provenance import explain as explain
    from gristmill.diagnostics.viewer import view as view
    from gristmill.install import install_as_grain as install_as_grain
    from gristmill.loader import DataLoaderIterator as DataLoaderIterator
    from gristmill.prepare import WriteReport as WriteReport
    from gristmill.prepare import read as read
    from gristmill.prepare import verify_files as verify_files
    from gristmill.prepare import write as write
    from gristmill.python import *  # noqa: F403  (every name of the legacy surface is reachable from here too)
    from gristmill.samplers import IterableSampler as IterableSampler
    from gristmill.sharding import even_split as even_split
    from gristmill.sources import BagDataSource as BagDataSource
    from gristmill.sources import HuggingFaceSource as HuggingFaceSource
    from gristmill.sources import ImageFolderSource as ImageFolderSource
    from gristmill.sources import JsonlSource as JsonlSource
    from gristmill.sources import MDSSource as MDSSource
    from gristmill.sources import ParquetSource as ParquetSource
    from gristmill.sources import TarSource as TarSource
    from gristmill.sources import TokenSource as TokenSource
    from gristmill.sources import cached as cached
    from gristmill.transforms import MapWithIndex as MapWithIndex
    from gristmill.transforms.length_buckets import bucket_boundaries as bucket_boundaries

_MODULES = frozenset(
    {
        "checkpoint",
        "constants",
        "diagnostics",
        "experimental",
        "lengths",
        "monitoring",
        "multiprocessing",
        "python",
        "samplers",
        "sharding",
        "sources",
        "testing",
        "transforms",
    }
)
# The names that belong here; all others are the legacy surface's.
_NAMES = {
    "BagDataSource": "gristmill.sources",
    "DataLoader": "gristmill.loader",
    "DataLoaderIterator": "gristmill.loader",
    "DatasetIterator": "gristmill.dataset",
    "FaultBudgetError": "gristmill.core.errors",
    "HuggingFaceIterDataset": "gristmill.dataset.stages.hugging_face",
    "HuggingFaceSource": "gristmill.sources",
    "ImageFolderSource": "gristmill.sources",
    "IterDataset": "gristmill.dataset",
    "IterableSampler": "gristmill.samplers",
    "JsonlSource": "gristmill.sources",
    "Ledger": "gristmill.diagnostics.provenance",
    "MDSSource": "gristmill.sources",
    "MapDataset": "gristmill.dataset",
    "MultiprocessingOptions": "gristmill.core.options",
    "ParquetSource": "gristmill.sources",
    "RayOptions": "gristmill.core.ray_options",
    "ReadOptions": "gristmill.core.options",
    "Record": "gristmill.core.record",
    "RecordMetadata": "gristmill.core.record",
    "Schedule": "gristmill.dataset.mixtures.schedule",
    "TarSource": "gristmill.sources",
    "TokenSource": "gristmill.sources",
    "WriteReport": "gristmill.prepare",
    "__version__": "gristmill.core.version",
    "__version_info__": "gristmill.core.version",
    "bucket_boundaries": "gristmill.transforms.length_buckets",
    "cached": "gristmill.sources",
    "config": "gristmill.core.config",
    "dataset_length": "gristmill.dataset.bases.length",
    "diagnose": "gristmill.diagnostics",
    "explain": "gristmill.diagnostics.provenance",
    "global_batch": "gristmill.dataset.stages.global_batch",
    "install_as_grain": "gristmill.install",
    "load": "gristmill.loader",
    "observe": "gristmill.diagnostics",
    "read": "gristmill.prepare",
    "start_telemetry": "gristmill.diagnostics",
    "stop_telemetry": "gristmill.diagnostics",
    "verify": "gristmill.diagnostics",
    "verify_files": "gristmill.prepare",
    "view": "gristmill.diagnostics.viewer",
    "visualize": "gristmill.diagnostics",
    "write": "gristmill.prepare",
}


class _ForKeras:
    """Finds ``grain`` for Keras alone: for its utilities, and when it is given a dataset of ours.
    Not if Grain is loaded.
    """

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> Any:
        if name != "grain":
            return None
        frame = sys._getframe(1)
        while frame.f_back is not None and "importlib" in frame.f_globals.get("__name__", ""):
            frame = frame.f_back
        if not frame.f_globals.get("__name__", "").startswith("keras."):
            return None
        importlib.import_module("gristmill.install").install_as_grain()
        return importlib.import_module("importlib.util").find_spec(name)


if _ForKeras not in sys.meta_path:
    sys.meta_path.insert(0, _ForKeras)


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"gristmill.{name}")
    if name in _NAMES:
        value = getattr(importlib.import_module(_NAMES[name]), name)
    elif name.startswith("_"):
        raise AttributeError(f"module 'gristmill' has no attribute {name!r}")
    else:
        try:
            value = getattr(importlib.import_module("gristmill.python"), name)
        except AttributeError:
            raise AttributeError(f"module 'gristmill' has no attribute {name!r}") from None
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    own = [name for name in globals() if name.startswith("__")]
    return sorted({*own, *_MODULES, *_NAMES, *importlib.import_module("gristmill.python").__all__})


def _new_observer() -> Any:
    """Returns an observer, for ``gristmill.core.hooks``."""
    return importlib.import_module("gristmill.diagnostics.runtime.automatic").automatic_observer()


def _pipeline_html(pipeline: Any) -> Any:
    return importlib.import_module("gristmill.diagnostics.notebook").pipeline_html(pipeline)


if os.environ.keys() & {
    "ENABLE_PYGRAIN_PROMETHEUS_TELEMETRY",
    "GRISTMILL_ENABLE_PROMETHEUS_TELEMETRY",
}:
    importlib.import_module(
        "gristmill.diagnostics.runtime.metrics.prometheus"
    ).start_from_environment()
