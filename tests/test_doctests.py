"""Every example in a docstring runs. (``pytest --doctest-modules`` would import the folders under
their own names.)
"""

import configparser
import doctest
import importlib
import pkgutil
from pathlib import Path
from typing import get_origin

import pytest

from gristmill import IterDataset, MapDataset


def modules() -> list[str]:
    """Names of all modules of the packages that setup.cfg lists."""
    setup = configparser.ConfigParser()
    setup.read(Path(__file__).parents[1] / "setup.cfg")
    names = []
    for package in setup["options"]["packages"].split():
        path = importlib.import_module(package).__path__
        names += [
            package,
            *(f"{package}.{found.name}" for found in pkgutil.iter_modules(path) if not found.ispkg),
        ]
    return names


@pytest.mark.parametrize("name", modules())
def test_examples_of_module(name, monkeypatch):
    module = importlib.import_module(name)
    protocols = {
        key: get_origin(value)
        for key, value in vars(module).items()
        if getattr(value, "__module__", "") == name
    }
    monkeypatch.setattr(
        module, "__test__", {key: value for key, value in protocols.items() if value}, raising=False
    )
    known = (
        {"MapDataset": MapDataset, "IterDataset": IterDataset}
        if name == "gristmill.dataset.methods"
        else {}
    )
    assert doctest.testmod(module, extraglobs=known).failed == 0
