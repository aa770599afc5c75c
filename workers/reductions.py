"""Reductions of objects that cloudpickle cannot send, changes, or sends by a useless name.

A name is useless if a worker cannot import it, such as that of an object that the program itself
(``__main__``) defines.
"""

from __future__ import annotations

import copyreg
import dataclasses
import functools
import gc
import pickle
import sys
import threading
import typing
import weakref
from collections.abc import Callable, Mapping, MutableMapping
from types import CodeType, FunctionType
from typing import Any, Protocol, TypeAlias, TypedDict, TypeGuard

import cloudpickle
import numpy as np

Reduced: TypeAlias = tuple[Any, ...] | str
Reducer: TypeAlias = Callable[[Any], Reduced]  # of the objects of one type
Function: TypeAlias = Callable[..., object]


class LruParameters(TypedDict):
    """Arguments of ``functools.lru_cache``."""

    maxsize: int
    typed: bool


class GenericFunction(Protocol):
    """A function that ``functools.singledispatch`` has made."""

    registry: Mapping[type, Function]

    def register(self, cls: type, implementation: Function, /) -> object: ...


class TypeAliasObject(Protocol):
    """The alias that a ``type`` statement makes."""

    __name__: str
    __value__: object
    __type_params__: tuple[object, ...]


_reduce_code: Callable[[CodeType], tuple[object, tuple[object, ...]]] = (
    cloudpickle.Pickler.dispatch_table[CodeType]
)


def is_importable(obj: object) -> bool:
    """Return True if a worker finds ``obj`` by its name."""
    module, name = (
        getattr(obj, "__module__", None),
        getattr(obj, "__qualname__", getattr(obj, "__name__", None)),
    )
    if module == "__main__" or not isinstance(module, str) or not isinstance(name, str):
        return False
    by_value = cloudpickle.list_registry_pickle_by_value()
    if any([f"{module}.".startswith(f"{registered}.") for registered in by_value]):
        return False
    found: object = sys.modules.get(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found is obj


def _code(code: CodeType) -> Reduced:
    """Reduces code with the name of its file, which cloudpickle omits and tracebacks show."""
    return _code_in_file, (_reduce_code(code)[1], code.co_filename)


def _code_in_file(args: tuple[Any, ...], filename: str) -> CodeType:
    return CodeType(*args).replace(co_filename=filename)


def _cached(wrapper: functools._lru_cache_wrapper[object]) -> Reduced:
    """Reduces a cached function to the function, without the cache."""
    if is_importable(wrapper):
        return wrapper.__reduce__()
    held, function = gc.get_referents(wrapper), wrapper.__wrapped__
    if not any([x is function for x in held]):  # functools.wraps has replaced the attribute
        function = _function_among([x for x in held if not isinstance(x, type)], wrapper)
    attributes = {
        name: value for name, value in vars(wrapper).items() if name != "cache_parameters"
    }
    return _make_cached, (function, wrapper.cache_parameters()), attributes


def _make_cached(function: Function, parameters: LruParameters) -> Function:
    return functools.lru_cache(**parameters)(function)


def _function_among(held: list[object], owner: object) -> Function:
    """Return the only function among ``held``, the objects that ``owner`` refers to.

    Raises:
        PicklingError: there is no function, or more than one.
    """
    found = [x for x in held if callable(x)]
    if len(found) != 1:
        raise pickle.PicklingError(f"cannot pickle {owner!r:.200}: its function is not known")
    return found[0]


def is_single_dispatch(function: FunctionType) -> TypeGuard[GenericFunction]:
    """Return True for functions that ``functools.singledispatch`` has made."""
    return (
        function.__globals__ is vars(functools)
        and hasattr(function, "registry")
        and hasattr(function, "dispatch")
    )


def reduce_single_dispatch(function: GenericFunction) -> Reduced:
    """Reduces a generic function to its implementations, without the cache."""
    registry = {**function.registry}
    own = vars(functools.singledispatch(registry[object]))
    attributes = {
        name: value
        for name, value in vars(function).items()
        if name == "__wrapped__" or name not in own
    }
    names = {
        name: getattr(function, name)
        for name in functools.WRAPPER_ASSIGNMENTS
        if hasattr(function, name)
    }
    state = registry, attributes, names
    return functools.singledispatch, (registry[object],), state, None, None, _set_single_dispatch


def _set_single_dispatch(
    function: GenericFunction,
    state: tuple[dict[type, Function], dict[str, object], dict[str, object]],
) -> None:
    registry, attributes, names = state
    for cls, implementation in registry.items():
        function.register(cls, implementation)
    vars(function).update(attributes)
    for name, value in names.items():
        setattr(function, name, value)


def reduce_cached_property(descriptor: functools.cached_property[object]) -> Reduced:
    """Reduces a cached property without its lock, which it has before Python 3.12."""
    state = {name: value for name, value in vars(descriptor).items() if name != "lock"}
    return copyreg.__newobj__, (type(descriptor),), state, None, None, _set_cached_property  # type: ignore[attr-defined]


def _set_cached_property(
    descriptor: functools.cached_property[object], state: dict[str, Any]
) -> None:
    functools.cached_property.__init__(descriptor, state["func"])
    vars(descriptor).update(state)


def _partial_method(method: functools.partialmethod[object]) -> Reduced:
    """Reduces a partial method to its parts: from Python 3.14 on it cannot be made without them."""
    return _make_partial_method, (method.func, method.args, method.keywords), vars(method)


def _make_partial_method(
    function: Function, args: tuple[object, ...], options: dict[str, object]
) -> functools.partialmethod[object]:
    return functools.partialmethod(function, *args, **options)


def _comparison_key(key: object) -> Reduced:
    """Reduces the key function that ``functools.cmp_to_key`` returns.

    Keys of elements, which have the same type, are refused.
    """
    held = [x for x in gc.get_referents(key) if x is not type(key)]
    if len(held) > 1:
        raise TypeError(f"cannot pickle {key!r:.200}")
    return functools.cmp_to_key, (_function_among(held, key),)


def _ufunc(ufunc: np.ufunc) -> Reduced:
    """Reduces a ufunc of ``numpy.frompyfunc`` to its function, all others to their names."""
    held = gc.get_referents(ufunc)
    if not any([callable(x) for x in held]):
        reduced: Reduced = _reduce_ufunc(ufunc)
        return reduced
    return _make_ufunc, (_function_among(held, ufunc), ufunc.nin, ufunc.nout, ufunc.identity)


def _make_ufunc(function: Function, nin: int, nout: int, identity: object) -> np.ufunc:
    return np.frompyfunc(function, nin, nout, identity=identity)


def _new_type(new: typing.NewType) -> Reduced:
    if is_importable(new):
        return new.__reduce__()
    return typing.NewType, (new.__name__, new.__supertype__), {**vars(new)}


def _type_parameter(parameter: Any) -> Reduced:
    """Reduces a ``ParamSpec`` or ``TypeVarTuple`` to its parts."""
    if is_importable(parameter):
        return parameter.__reduce__()
    options = {"bound": getattr(parameter, "__bound__", None)}
    if hasattr(parameter, "has_default") and parameter.has_default():
        options["default"] = parameter.__default__
    given = {name: value for name, value in options.items() if value is not None}
    return _make_type_parameter, (type(parameter), parameter.__name__, given)


def _make_type_parameter(
    kind: Callable[..., object], name: str, options: dict[str, object]
) -> object:
    return kind(name, **options)


def _type_alias(alias: TypeAliasObject) -> Reduced:
    """Reduces the alias that a ``type`` statement makes to its parts; its value is evaluated."""
    if is_importable(alias):
        return alias.__reduce__()
    return _make_type_alias, (alias.__name__, alias.__value__, alias.__type_params__)


def _make_type_alias(name: str, value: object, parameters: tuple[Any, ...]) -> object:
    return typing.TypeAliasType(name, value, type_params=parameters)  # type: ignore[attr-defined]


def _weak_dict(values: MutableMapping[object, object]) -> Reduced:
    """Reduces a weak dict to its entries; the worker drops those that nothing else refers to."""
    return type(values), (dict(values),)


_reduce_ufunc = copyreg.dispatch_table[np.ufunc]

REDUCERS: dict[type, Reducer] = {
    CodeType: _code,
    type(functools.cache(len)): _cached,
    type(functools.cmp_to_key(lambda a, b: 0)): _comparison_key,
    functools.partialmethod: _partial_method,
    np.ufunc: _ufunc,
    typing.NewType: _new_type,
    typing.ParamSpec: _type_parameter,
    typing.TypeVarTuple: _type_parameter,
    weakref.WeakKeyDictionary: _weak_dict,
    weakref.WeakValueDictionary: _weak_dict,
    threading.local: lambda local: (threading.local, ()),  # as in every other thread, empty
    # A copy of these would not be recognised.
    type(dataclasses.MISSING): lambda missing: "MISSING",
    type(dataclasses.KW_ONLY): lambda keyword_only: "KW_ONLY",
    # cloudpickle before 3.0 copies these.
    dataclasses._FIELD_BASE: lambda kind: kind.name,  # type: ignore[attr-defined]
}
if sys.version_info >= (3, 12):
    REDUCERS[typing.TypeAliasType] = _type_alias
