"""``install_as_grain``: code that imports Grain gets gristmill."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import gristmill
from gristmill import _MODULES as PUBLIC_MODULES
from gristmill.core import grain_names
from gristmill.core.config import config
from gristmill.workers.setup import run_in_workers

MATCHED_VERSION = (0, 2, 18)  # of Grain

_MODULES = {*PUBLIC_MODULES, "python.experimental"}
# What ``from grain import *`` gives.
_NAMES = (
    "DataLoader DataLoaderIterator DatasetIterator IterDataset MapDataset MultiprocessingOptions"
    " ReadOptions Record RecordMetadata checkpoint config constants experimental load monitoring"
    " multiprocessing samplers sharding sources transforms"
)


class _Grain(ModuleType):
    """``grain``: everything of ``gristmill``, and the version of the Grain that is matched."""

    def __init__(self) -> None:
        super().__init__("grain", gristmill.__doc__)
        self.__path__: list[str] = []  # no other finder is to look for its modules in our folders
        self.__version_info__ = MATCHED_VERSION
        self.__version__ = ".".join(map(str, MATCHED_VERSION))
        self.__all__ = _NAMES.split()

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(gristmill, name)
        except AttributeError as error:  # which says "gristmill", and why
            raise AttributeError(f"module 'grain' has no attribute {name!r}") from error

    def __dir__(self) -> list[str]:
        return sorted({*vars(self), *dir(gristmill)})


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``grain`` and its public modules; each of these *is* the module of the same name of
    ours.
    """

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname == "grain":
            return importlib.util.spec_from_loader(fullname, self, is_package=True)
        if not fullname.startswith("grain."):
            return None
        if fullname.removeprefix("grain.") in _MODULES:
            return importlib.util.spec_from_loader(fullname, self)
        if fullname.split(".")[1] == "_src":
            return importlib.import_module("gristmill.grain_src").find_private(fullname)
        if path and importlib.machinery.PathFinder.find_spec(fullname, path) is not None:
            # It would be found in a folder of ours, and be a second copy of a module.
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        if spec.name == "grain":
            _define_flags()
            run_in_workers(importlib.import_module, "grain")  # Keras looks whether it is loaded
            return _Grain()
        module = importlib.import_module("gristmill" + spec.name.removeprefix("grain"))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Only takes back what the import system has written over: the module has been executed
        under its own name.
        """
        alias = module.__spec__
        if (
            not isinstance(module, _Grain)
            and alias is not None
            and isinstance(alias.loader, _Finder)
        ):
            module.__spec__ = alias.loader_state


def _define_flags() -> None:
    """Defines the flags that Grain has, where absl is installed; ``config`` reads them."""
    try:
        from absl import flags
    except ModuleNotFoundError as error:
        if error.name != "absl":  # it is there, and broken
            raise
        return
    for name in dir(config):
        # The last two are flags of ArrayRecord.
        if not name.startswith(("py_", "tf_", "enable_")) or f"grain_{name}" in flags.FLAGS:
            continue
        default = getattr(config, name)
        if isinstance(default, bool):
            flags.DEFINE_bool(f"grain_{name}", default, "")
        elif isinstance(default, int):
            flags.DEFINE_integer(f"grain_{name}", default, "")
        else:
            flags.DEFINE_string(f"grain_{name}", default, "")


def install_as_grain() -> None:
    """Makes ``import grain``, and its public modules, give gristmill for the rest of the process
    and in its workers.

    ``grain.__version__`` is that of the Grain that is matched. Of Grain's private modules
    (``grain._src``) those that programs are known to use are there, and warn. May be called again.
    Call it before anything imports Grain itself. For programs that cannot be edited: ``python -m
    gristmill run-as-grain program.py``.

    Raises:
        RuntimeError: the real Grain has been imported already.

    Example:
        >>> install_as_grain()
        >>> import grain.python as pygrain
        >>> pygrain.__name__
        'gristmill.python'
    """
    present: Any = sys.modules.get("grain")
    if present is not None and not isinstance(present, _Grain):
        raise RuntimeError(
            "cannot install gristmill as grain: the real grain has been imported already"
            f" ({getattr(present, '__file__', 'unknown place')}). Call install_as_grain() before"
            " the first import of grain."
        )
    if not any([isinstance(finder, _Finder) for finder in sys.meta_path]):
        sys.meta_path.insert(0, _Finder())
        run_in_workers(install_as_grain)
        # from where it can be imported now
        grain_names.MapDataset.__module__ = "grain._src.python.dataset.dataset"


def run_as_grain(arguments: Sequence[str]) -> None:
    """Runs a program, ``["script.py", …]`` or ``["-m", "module", …]``, that gets gristmill where it
    imports Grain.
    """
    install_as_grain()
    if arguments[0] == "-m":
        sys.argv = list(arguments[1:])
        sys.path.insert(0, "")
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")
