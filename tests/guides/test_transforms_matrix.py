"""The tables of the guide to transforms name every public method, and say of each what it is."""

import inspect
import itertools
import re
from pathlib import Path

import numpy as np
import pytest

import gristmill as grain

PAGE = (Path(__file__).parents[2] / "docs/guides/transforms.md").read_text()
ROWS = [[cell.strip() for cell in line.strip("|").split("|")] for line in PAGE.splitlines() if line.startswith("|")]
CLASSES = [grain.MapDataset, grain.IterDataset]
ARGUMENTS = {
    "batch": (3,),
    "filter": (bool,),
    "flat_map": (lambda x: [x] * x,),
    "limit": (4,),
    "map": (str,),
    "map_with_index": (lambda i, x: x,),
    "mp_prefetch": (grain.MultiprocessingOptions(2),),
    "multithread_prefetch": (2, 1),
    "random_map": (lambda x, rng: x, 0),
    "rebatch": (3,),
    "repeat": (2,),
    "seed": (0,),
    "thread_prefetch": (2,),
    "window_shuffle": (3, 0),
    "zip": (grain.MapDataset.range(6).to_iter_dataset(),),
}
WITHOUT_EXAMPLE = {"apply", "pipe", "parents", "prefetch", "prefetch_to_device"}


def names_in(table: str) -> dict[str, list[str]]:
    """The rows of the table with that header, by the first name in backticks."""
    start = next(i for i, row in enumerate(ROWS) if " | ".join(row).startswith(table))
    rows = itertools.takewhile(lambda row: row[0] != "Method", ROWS[start + 2 :])
    return {re.findall(r"`(\w+)`", row[0])[0]: row[1:] for row in rows}


METHODS = names_in("Method | `MapDataset` | `IterDataset` | Number of elements | Seed")


def public(names: object) -> set[str]:
    return {name for name in names if not name.startswith("_")}  # type: ignore[attr-defined]


def test_every_method_is_in_the_column_of_its_class_and_takes_a_seed_or_not():
    factories = names_in("Method | `MapDataset` | `IterDataset` | Number of elements | State")
    for column, cls in enumerate(CLASSES):
        assert {method for method, row in METHODS.items() if row[column] == "yes"} == public(dir(cls))
        assert {factory for factory, row in factories.items() if row[column] == "yes"} == public(vars(type(cls)))
        for method in public(dir(cls)) - {"parents", "seed"}:
            takes_seed = "seed" in inspect.signature(getattr(cls, method)).parameters
            assert takes_seed == (METHODS[method][3] == "yes"), method
    methods = set(names_in("Method | Moves the iterator"))
    assert methods == public(dir(grain.DatasetIterator)) == public(vars(grain.DataLoaderIterator))


@pytest.mark.parametrize("method", sorted(public(dir(grain.IterDataset)) - WITHOUT_EXAMPLE))
def test_states(method):
    ds = grain.MapDataset.range(6).map(np.int64).to_iter_dataset()
    ds = ds.batch(2) if method == "rebatch" else ds
    args = ARGUMENTS.get(method, ())
    args, keywords = (args[:1], {"seed": args[1]}) if METHODS[method][3] == "yes" else (args, {})
    with iter(getattr(ds, method)(*args, **keywords)) as it:
        next(it)
        adds_nothing = it.get_state().keys() == {"next_index"}
    assert adds_nothing == (METHODS[method][4] == "–")
