"""Every public name is there, once: all its spellings are one object; and its type hints can be
looked up.
"""

import importlib
import inspect
import typing

import pytest
from public_names import ALIASES
from refusing import assert_raises

import gristmill

# Names of the frozen legacy surface that only the root and its modules have.
NOT_IN_PYTHON = [
    "samplers",
    "checkpoint",
    "sources",
    "DataLoaderIterator",
    "SharedMemoryArrayMetadata",
    "IterableSampler",
]
NOT_IN_PYTHON += ["TfRandomMap", "FlatMap", "__version__"]
MODULES = [
    "checkpoint",
    "constants",
    "diagnostics",
    "experimental",
    "multiprocessing",
    "samplers",
    "sharding",
    "sources",
]
MODULES += ["lengths", "transforms", "testing", "python", "python.experimental"]


def resolve(name):
    place = gristmill
    for part in name.split(".") if name else ():
        place = getattr(place, part)
    return place


@pytest.mark.parametrize(("home", "aliases"), ALIASES.items(), ids=list(ALIASES))
def test_all_spellings_are_one_object(home, aliases):
    canonical = resolve(home)
    for alias in aliases:
        assert resolve(alias) is canonical, alias
        module, _, name = alias.rpartition(".")
        namespace = {}
        exec(f"from gristmill{module and '.'}{module} import {name} as found", namespace)
        assert namespace["found"] is canonical
        assert name in dir(resolve(module))


def test_no_public_name_is_forgotten_or_changed():
    known = {*ALIASES, *(alias for aliases in ALIASES.values() for alias in aliases)}
    for module in MODULES:
        names = [name for name in dir(resolve(module)) if not name.startswith("_")]
        public = getattr(resolve(module), "__all__", names)
        assert {f"{module}.{name}" for name in public} - known <= {"python.experimental"}
    assert [name for name in NOT_IN_PYTHON if hasattr(gristmill.python, name)] == []
    for name in MODULES:
        module = importlib.import_module(f"gristmill.{name}")
        assert resolve(name) is module and module.__name__ == f"gristmill.{name}" and module.__doc__
        assert name.partition(".")[0] in dir(gristmill)
    for place in ("", "python", "checkpoint", "sources"):
        module = resolve(place)
        for name in ("NoSuchName", "_no_such_name", "__no_such_name__"):
            assert_raises(
                AttributeError,
                rf"module '{module.__name__}' has no attribute '{name}'",
                getattr,
                module,
                name,
            )
    assert not hasattr(gristmill, "_src")
    values = {
        name: getattr(gristmill.constants, name)
        for name in dir(gristmill.constants)
        if name.isupper()
    }
    features = values.pop("META_FEATURES")
    assert values == {
        name: f"_{name.lower()}"
        for name in ("INDEX", "RECORD_KEY", "DATASET_INDEX", "EPOCH", "SEED", "RECORD")
    }
    assert type(features) is frozenset and features == set(values.values())


def test_classes_keep_their_names_in_states():
    assert gristmill.python.MapOperation[int, str](str).map_function is str
    assert (
        gristmill.experimental.PackAndBatchOperation[dict].__origin__
        is gristmill.experimental.PackAndBatchOperation
    )
    for spelling, name in [
        *(
            (f"python.{name}Transform", name)
            for name in ("Map", "RandomMap", "MapWithIndex", "Filter")
        ),
        *(
            ("python.InMemoryDataSource", "SharedMemoryDataSource"),
            ("python.PyGrainDatasetIterator", "DataLoaderIterator"),
        ),
        ("python.PyGrainCheckpointHandler", "CheckpointHandler"),
        *(
            (f"sharding.{name}", name)
            for name in ("NoSharding", "ShardOptions", "ShardByJaxProcess")
        ),
        *((f"samplers.{name}", name) for name in ("IndexSampler", "SequentialSampler")),
        *(
            (f"sources.{name}", name)
            for name in ("RangeDataSource", "ArrayRecordDataSource", "SharedMemoryDataSource")
        ),
    ]:
        kind = resolve(spelling)
        assert kind.__name__ == kind.__qualname__ == name
    handler = gristmill.checkpoint.CheckpointHandler
    # how it names itself for Orbax
    assert handler.typestr() == f"{handler.__module__}.{handler.__qualname__}"
    version, info = gristmill.__version__, gristmill.__version_info__
    assert type(version) is str and type(info) is tuple and len(info) >= 2
    assert info == tuple(int(part) for part in version.split(".") if part.isdigit())


def functions_of(cls):
    for owner in (*cls.__mro__, *type(cls).__mro__):
        for name, value in vars(owner).items():
            function = getattr(value, "fget", None) or getattr(value, "__func__", value)
            is_public = not name.startswith("_") or name in (
                "__init__",
                "__iter__",
                "__next__",
                "__getitem__",
                "__len__",
            )
            if (
                is_public
                and inspect.isfunction(function)
                and owner.__module__.startswith("gristmill")
            ):
                yield f"{cls.__name__}.{name}", function


@pytest.mark.parametrize("module", sorted(gristmill._MODULES))
def test_hints_of_all_public_functions(module):
    found = 0
    for name, value in vars(importlib.import_module(f"gristmill.{module}")).items():
        is_ours = getattr(value, "__module__", "").startswith("gristmill")
        if (
            not name.startswith("_")
            and is_ours
            and (inspect.isclass(value) or inspect.isfunction(value))
        ):
            for _, function in [
                (name, value),
                *(functions_of(value) if inspect.isclass(value) else ()),
            ]:
                typing.get_type_hints(function)
                found += 1
    assert found or module in ("constants", "monitoring", "python")
