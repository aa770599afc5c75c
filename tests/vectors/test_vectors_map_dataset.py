from itertools import islice

import numpy as np
import pytest
from vector_data import build, load, plain

from gristmill import MapDataset
from gristmill.core.permutation import Permutation


def test_shuffled_orders():
    orders = load("ds_shuffle")["orders"]
    assert len(orders) == 44
    for case in orders:
        n = case["n"]
        ds = MapDataset.range(n).shuffle(seed=case["seed"])
        assert len(case["epochs"]) >= 2
        for epoch, order in case["epochs"].items():
            indices = range(int(epoch) * n, (int(epoch) + 1) * n)
            assert [ds[i] for i in indices] == order
            assert ds._block(indices) == order


def test_shuffled_samples():
    cases = load("ds_shuffle")["samples"]
    assert len(cases) == 45
    for case in cases:
        n, seed = case["n"], case["seed"]
        permutation = Permutation(n, seed)
        ds = MapDataset.range(n).shuffle(seed=seed)
        for epoch, index, expected in case["samples"]:
            assert ds[epoch * n + index] == permutation.one(epoch, index) == expected, (n, seed, epoch, index)


def ds_of(pipeline):
    """The dataset of a pipeline that is followed by a remark."""
    code = pipeline.replace("  (tutorial)", "").replace(", first 12", "")
    return build(code.replace("[0..10]", "list(__import__('builtins').range(11))").replace("[0..7]", "[0,1,2,3,4,5,6,7]"))


@pytest.mark.parametrize("row", load("ds_shuffle")["pipelines"], ids=lambda row: row["pipeline"])
def test_shuffle_pipelines(row):
    row = dict(row)
    ds = ds_of(row.pop("pipeline"))
    first = row.pop("list")
    assert [plain(x) for x in islice(ds, len(first))] == first
    for name, expected in row.items():
        if name in ("two_epochs", "three_epochs"):
            assert [ds[i] for i in range(len(expected))] == expected
        elif name.startswith("element_"):
            assert plain(ds[int(name.removeprefix("element_"))]) == expected
        else:
            assert name == "filtered"
            filtered = ds.filter(lambda batch: batch.sum() % 2 == 0)
            assert [plain(filtered[i]) for i in range(len(filtered))] == expected


DRAWS = {
    "integers_0_2**31": lambda rng: int(rng.integers(0, 2**31)),
    "integers_100": lambda rng: int(rng.integers(100)),
    "random": lambda rng: rng.random().hex(),
    "normal": lambda rng: rng.normal().hex(),
    "uint32x3": lambda rng: rng.integers(0, 2**32, 3, dtype=np.uint32).tolist(),
    "permutation_6": lambda rng: rng.permutation(6).tolist(),
    "float32": lambda rng: float(rng.random(dtype=np.float32)).hex(),
    "raw": lambda rng: rng.bit_generator.random_raw(6).tolist(),
}


def test_random_map_draws():
    rows = load("ds_random_map")["rows"]
    assert len(rows) == 30
    for row in rows:
        assert row.keys() == {"seed", "index", *DRAWS}
        for kind, draw in DRAWS.items():
            ds = MapDataset.range(5).random_map(lambda _, rng, draw=draw: draw(rng), seed=row["seed"])
            assert ds[row["index"]] == row[kind], (row["seed"], row["index"], kind)


@pytest.mark.parametrize("row", load("ds_random_map")["pipelines"], ids=lambda row: row["pipeline"])
def test_random_map_pipelines(row):
    assert row.keys() == {"pipeline", "list"}
    assert plain(list(build(row["pipeline"]))) == row["list"]


@pytest.mark.parametrize("row", load("ds_index_semantics")["rows"], ids=lambda row: row["pipeline"])
def test_index_semantics(row):
    ds = build(row["pipeline"])
    assert len(ds) == row["len"]
    assert str(ds) == row["str"]
    indices = range(row["lo"], row["lo"] + len(row["values"]))
    assert row["lo"] < 0 and indices.stop > 2 * row["len"]
    assert [plain(ds[i]) for i in indices] == row["values"]
    assert [plain(ds[np.int64(i)]) for i in indices] == row["values"]
    assert plain(ds._block(indices)) == row["values"]
    assert plain(ds._block(np.array(indices[::-1]))) == row["values"][::-1]


def test_no_row_of_the_map_datasets_is_left_out():
    assert len(load("ds_shuffle")["pipelines"]) == 9
    assert len(load("ds_random_map")["pipelines"]) == 8
    assert len(load("ds_index_semantics")["rows"]) == 23
