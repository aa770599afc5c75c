"""Every example in a docstring runs. (``pytest --doctest-modules`` would import the folders under
their own names.)
"""

import doctest
import importlib
from typing import get_origin

import pytest
from house import modules

from gristmill import IterDataset, MapDataset


@pytest.mark.parametrize("name", sorted(modules()))
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
