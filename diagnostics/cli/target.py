"""Pipelines and functions that a command names: ``module:attribute`` or
``path/to/file.py:attribute``.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import cloudpickle

from gristmill.core.state import shown
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.map import MapDataset
from gristmill.loader import DataLoader

_KINDS = (MapDataset, IterDataset, DataLoader)
_MAX_NAMES = 20


class CommandError(Exception):
    """An error message for the user, on one line.

    Args:
        text: the line.
        code: of the exit: 2 for what was asked for, 1 for what was found.
    """

    def __init__(self, text: str, code: int = 2) -> None:
        super().__init__(text)
        self.code = code


@contextlib.contextmanager
def errors_of(option: str) -> Iterator[None]:
    """Makes a file that an option names, but cannot be written, an error of that option."""
    try:
        yield
    except (OSError, ValueError) as error:
        raise CommandError(f"{option}: {error}") from error


def load_pipeline(name: str) -> Any:
    """Returns the dataset or ``DataLoader`` of that name; what makes one is called.

    Args:
        name: ``module:attribute`` or ``path/to/file.py:attribute``; there may be dots in
            ``attribute``.

    Raises:
        CommandError: there is no object of that name. Errors of the user's code come as they are.
    """
    place, attribute, module, value = _found(name)
    if not isinstance(value, _KINDS) and callable(value):
        required = _required_parameters(value)
        if required:
            raise CommandError(
                f"{name} cannot be called to make a pipeline: it has parameters without a default,"
                f" {', '.join(required)}; {_found_in(module)}"
            )
        value = value()
        attribute += "()"
    if not isinstance(value, _KINDS):
        raise CommandError(
            f"{place}:{attribute} must be a dataset or a DataLoader, it is {shown(value)} of type"
            f" {type(value).__name__}; {_found_in(module)}"
        )
    return value


def load_function(name: str, option: str, parameter: str) -> Any:
    """Returns the function of that name, ``module:attribute`` or ``path/to/file.py:attribute``.

    Args:
        name: of the function; there may be dots in ``attribute``.
        option: the option of the command that names it, for messages.
        parameter: what it is a function of, for messages.

    Raises:
        CommandError: there is none of that name. Errors of the user's code come as they are.
    """
    try:
        *_, module, value = _found(name, "function")
    except CommandError as error:
        raise CommandError(f"{option}: {error}") from None
    if not callable(value):
        raise CommandError(
            f"{option}: {name} must be a function of {parameter}, it is {shown(value)} of type"
            f" {type(value).__name__}; {_functions_in(module)}"
        )
    return value


def _found(name: str, kind: str = "pipeline") -> tuple[str, str, ModuleType, Any]:
    """Returns the module and the attribute that are named, and what they are.

    Args:
        name: as the command has it.
        kind: ``"pipeline"`` or ``"function"``, what it is to be.
    """
    colon = name.rfind(":")
    is_drive = colon == 1 and name[2:3] in ("/", "\\")  # C:\train.py
    place, attribute = (name, "") if colon < 0 or is_drive else (name[:colon], name[colon + 1 :])
    module = _module_of_file(place) if place.endswith(".py") else _module(place, kind)
    there = _found_in if kind == "pipeline" else _functions_in
    if not attribute:
        raise CommandError(f"a {kind} is named {place}:<attribute>; {there(module)}")
    value: Any = module
    for part in attribute.split("."):
        if not hasattr(value, part):
            raise CommandError(f"{place} has no {attribute}; {there(module)}")
        value = getattr(value, part)
    return place, attribute, module, value


def _module(name: str, kind: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # of another module, which that one wants
        file = Path(*name.split(".")).with_suffix(".py")
        hint = (
            f"is it {file}:<attribute>?"
            if file.is_file()
            else "a file is named path/to/file.py:<attribute>"
        )
        raise CommandError(
            f"there is no module {name} in this directory or among those that are installed; {hint}"
        ) from None
    except (TypeError, ValueError):
        raise CommandError(
            f"a {kind} is named module:attribute or path/to/file.py:attribute, got {name!r}"
        ) from None


def _module_of_file(name: str) -> ModuleType:
    """Returns the module that a file is, under the name by which it can be imported, so that
    workers find its functions.
    """
    path = Path(name).resolve()
    if not path.is_file():
        others = sorted(other.name for other in path.parent.glob("*.py"))[:_MAX_NAMES]
        raise CommandError(
            f"there is no file {name}; in {path.parent} there is"
            f" {', '.join(others) or 'no Python file'}"
        )
    folder, names = path.parent, [path.stem] if path.stem != "__init__" else []
    while (folder / "__init__.py").is_file():
        folder, names = folder.parent, [folder.name, *names]
    sys.path.insert(0, str(folder))
    module_name = ".".join(names)
    try:
        spec = importlib.util.find_spec(module_name)
    except (ImportError, ValueError):  # there is a dot in a name, or another module of that name
        spec = None
    if spec is not None and spec.origin is not None and Path(spec.origin).resolve() == path:
        return importlib.import_module(module_name)
    sys.path.remove(str(folder))
    sys.path.append(str(folder))  # workers, too, are to find the other module of that name first
    return _module_apart(path)


def _module_apart(path: Path) -> ModuleType:
    """Loads a file whose name belongs to another module: its definitions travel to workers by
    value, as those of a script do.
    """
    spec = importlib.util.spec_from_file_location(f"__{path.stem.replace('.', '_')}__", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    cloudpickle.register_pickle_by_value(module)
    spec.loader.exec_module(module)
    return module


def _required_parameters(value: Any) -> list[str]:
    try:
        parameters = inspect.signature(value).parameters.values()
    except (TypeError, ValueError):  # of a builtin
        return []
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [p.name for p in parameters if p.default is p.empty and p.kind not in optional]


def _found_in(module: ModuleType) -> str:
    """Returns the pipelines in a module, and the functions that may make one."""
    public = {name: value for name, value in vars(module).items() if not name.startswith("_")}
    names = [name for name, value in public.items() if isinstance(value, _KINDS)]
    makers = [
        name for name, value in _own_functions(module).items() if not _required_parameters(value)
    ]
    text = f"its pipelines are {_listed(names)}" if names else "it has no pipelines"
    more = f" and functions that may make some are {_listed(makers)}" if makers else ""
    return text + more


def _functions_in(module: ModuleType) -> str:
    """Returns the functions that a module defines, in words."""
    names = [*_own_functions(module)]
    return f"its functions are {_listed(names)}" if names else "it defines no functions"


def _own_functions(module: ModuleType) -> dict[str, Any]:
    """Returns the public functions that a module defines, by name."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_")
        and inspect.isfunction(value)
        and value.__module__ == module.__name__
    }


def _listed(names: list[str]) -> str:
    return ", ".join(names if len(names) <= _MAX_NAMES else [*names[:_MAX_NAMES], "…"])
