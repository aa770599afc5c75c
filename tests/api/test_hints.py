"""Type hints of everything public can be looked up, and legacy operations are generic."""

import importlib
import inspect
import typing

import pytest

import gristmill
import gristmill.python as pygrain


def functions_of(cls):
    for owner in (*cls.__mro__, *type(cls).__mro__):
        for name, value in vars(owner).items():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            is_public = not name.startswith("_") or name in ("__init__", "__iter__", "__next__", "__getitem__", "__len__")
            if is_public and inspect.isfunction(function) and owner.__module__.startswith("gristmill"):
                yield f"{cls.__name__}.{name}", function


@pytest.mark.parametrize("module", sorted(gristmill._MODULES))
def test_hints_of_all_public_functions(module):
    found = 0
    for name, value in vars(importlib.import_module(f"gristmill.{module}")).items():
        is_ours = getattr(value, "__module__", "").startswith("gristmill")
        if not name.startswith("_") and is_ours and (inspect.isclass(value) or inspect.isfunction(value)):
            for _, function in [(name, value), *(functions_of(value) if inspect.isclass(value) else ())]:
                typing.get_type_hints(function)
                found += 1
    assert found or module in ("constants", "monitoring", "python")


def test_legacy_operations_are_generic():
    assert pygrain.MapOperation[int, str](str).map_function is str
    assert gristmill.experimental.PackAndBatchOperation[dict].__origin__ is gristmill.experimental.PackAndBatchOperation
