"""``install_as_grain``: code that imports Grain gets gristmill."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from gristmill import _MODULES as PUBLIC_MODULES
from gristmill.workers.setup import run_in_workers

_MODULES = {*PUBLIC_MODULES, "python.experimental"}


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds ``grain`` and its public modules; each *is* the module of the same name of ours."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "grain" and not fullname.startswith("grain."):
            return None
        if fullname != "grain" and fullname.removeprefix("grain.") not in _MODULES:
            # Another finder would look for it in our folders and load a second copy of a module of ours.
            raise ModuleNotFoundError(f"No module named {fullname!r}", name=fullname)
        return importlib.util.spec_from_loader(fullname, self)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module = importlib.import_module("gristmill" + spec.name.removeprefix("grain"))
        spec.loader_state = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Only takes back what the import system has written over: the module has been executed under its own name."""
        alias = module.__spec__
        if alias is not None and isinstance(alias.loader, _Finder):
            module.__spec__ = alias.loader_state


def install_as_grain() -> None:
    """Makes ``import grain``, and its public modules, give gristmill for the rest of the process and in its workers.

    May be called again. Call it before anything imports Grain itself.

    Raises:
        RuntimeError: the real Grain has been imported already.

    Example:
        >>> install_as_grain()
        >>> import grain.python as pygrain
        >>> pygrain.__name__
        'gristmill.python'
    """
    present: Any = sys.modules.get("grain")
    if present is not None and present.__name__ != "gristmill":
        raise RuntimeError(
            "cannot install gristmill as grain: the real grain has been imported already "
            f"({getattr(present, '__file__', 'unknown place')}). Call install_as_grain() before the first import of grain."
        )
    if not any([isinstance(finder, _Finder) for finder in sys.meta_path]):
        sys.meta_path.insert(0, _Finder())
        run_in_workers(install_as_grain)
