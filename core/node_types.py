"""Node types that a program has registered with JAX, for processes that do not run the program.

A class that travels by value takes its ``Registration`` along. A class that is imported is
registered by its own module, or, if another module has registered it, by ``register_expected``.
"""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import pickle
import sys
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from gristmill.core.locks import Lock

# Registered by JAX itself. Trees have them as nodes without JAX, too.
_BUILT_IN = frozenset({dict, list, tuple, type(None), OrderedDict, defaultdict})

# Classes to register. Of others, by module and qualified name: the pickled registration, or the
# reason why it could not be pickled.
_received: list[tuple[type, Registration]] = []
_expected: dict[tuple[str, str], bytes | str] = {}
_lock = Lock()  # held while a class is registered


class Registration(NamedTuple):
    """Call of a function of ``jax.tree_util`` that registers a class."""

    function: str
    arguments: tuple[Any, ...]  # after the class


def registration_of(cls: type) -> Registration | None:
    """Returns the call that has registered ``cls`` with JAX in this process, or ``None``."""
    entry = _registry().get(cls)
    if entry is None:
        return None
    flatten, unflatten = entry
    # JAX keeps no other arguments. Without the names of children, messages would number the leaves.
    is_of_jax = inspect.isfunction(flatten) and str(flatten.__module__).startswith("jax.")
    given = inspect.getclosurevars(flatten).nonlocals if is_of_jax else {}
    if "flatten_with_keys" in given:
        return Registration("register_pytree_with_keys", (given["flatten_with_keys"], unflatten))
    if {"data_fields", "meta_fields"} <= given.keys():
        data, meta = given["data_fields"], given["meta_fields"]
        fields = dataclasses.fields(cls) if dataclasses.is_dataclass(cls) else ()
        dropped = tuple([x.name for x in fields if x.init and x.name not in (*data, *meta)])
        return Registration(
            "register_dataclass", (data, meta, dropped) if dropped else (data, meta)
        )
    return Registration("register_pytree_node", (flatten, unflatten))


def registered_types() -> Iterator[type]:
    """Yields the classes that are registered in this process, without those of JAX."""
    for cls in [*_registry()]:
        if cls not in _BUILT_IN and str(cls.__module__).partition(".")[0] not in ("jax", "jaxlib"):
            yield cls


def receive(cls: type, registration: Registration) -> None:
    """Notes a class that this process has received, for ``register_expected``."""
    _received.append((cls, registration))


def expect(registrations: Mapping[tuple[str, str], bytes | str]) -> None:
    """Notes classes that this process imports, for ``register_expected``.

    Args:
        registrations: by module and qualified name of a class, its pickled registration, or the
            reason why it could not be pickled.
    """
    _expected.update(registrations)


def register_expected() -> None:
    """Registers the received classes with JAX, and the expected ones whose modules are imported.

    Classes that this process has registered meanwhile stay as they are.

    Raises:
        ValueError: a registration that is needed could not be pickled.
    """
    if _received:
        with _lock:
            while _received:
                _register(*_received[0])
                del _received[0]
    for key in [key for key in [*_expected] if key[0] in sys.modules]:
        found: Any = importlib.import_module(key[0])  # waits for another thread that imports it
        for part in key[1].split("."):
            found = getattr(found, part, None)
        with _lock:
            if isinstance(found, type) and key in _expected:
                _register_by_name(found, _expected[key])
                del _expected[key]


def _register_by_name(cls: type, registration: bytes | str) -> None:
    if cls not in _registry():
        if isinstance(registration, str):
            raise ValueError(
                f"{cls.__module__}.{cls.__qualname__} is registered with JAX by functions that"
                f" cannot be sent to workers ({registration}); register it in worker_init_fn, too"
            )
        _register(cls, pickle.loads(registration))


def _register(cls: type, registration: Registration) -> None:
    import jax

    if cls not in _registry():
        getattr(jax.tree_util, registration.function)(cls, *registration.arguments)


def _registry() -> dict[type, tuple[Callable[..., Any], Callable[..., Any]]]:
    """Returns the functions that flatten and unflatten each class; JAX has no public one for it."""
    registry: dict[type, tuple[Callable[..., Any], Callable[..., Any]]]
    registry = getattr(sys.modules.get("jax._src.tree_util"), "_registry", {})
    return registry
