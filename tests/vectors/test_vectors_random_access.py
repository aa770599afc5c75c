"""Datasets with random access, what they draw and their seeds, as Grain has them."""

import json
import math
import re
import sys
from itertools import islice

import numpy as np
import pytest
from formulas import window_shuffled
from operations import operation
from refusing import assert_raises
from vector_data import FAN, build, load, plain

from gristmill import MapDataset
from gristmill.core import tree
from gristmill.core.permutation import Permutation, round_keys
from gristmill.dataset.mixtures.selection import integer_weights
from gristmill.experimental import (
    FlatMapMapDataset,
    RngPool,
    WindowShuffleMapDataset,
    index_shuffle,
)

SHUFFLE, RANDOM_MAP, MIX = load("ds_shuffle"), load("ds_random_map"), load("ds_mix")
INDICES, SEEDS = load("ds_index_semantics")["rows"], load("ds_default_seeds")["rows"]
OWN_WINDOWS, WINDOWS = load("exp_window_shuffle")["map"], load("ds_window_shuffle")["map"]
CIPHER = load("index_shuffle")
SHAPES = {
    "round_keys": 25,
    "full_permutations": 79,
    "samples": 159,
    "rounds": 68,
    "power_of_two_plus_one": 10,
}


def test_how_many_cases_there_are():
    assert {name: len(CIPHER[name]) for name in SHAPES} == SHAPES
    assert [len(SHUFFLE[name]) for name in ("orders", "samples", "pipelines")] == [44, 45, 9]
    assert [len(RANDOM_MAP[name]) for name in ("rows", "pipelines")] == [30, 8]
    assert (len(INDICES), len(SEEDS), len(OWN_WINDOWS) + len(WINDOWS)) == (23, 68, 17)


def check_values(ds, start, expected):
    """One at a time, with any integers, in a block, and in a block backwards."""
    indices = range(start, start + len(expected))
    assert [plain(ds[i]) for i in indices] == [plain(ds[np.int64(i)]) for i in indices] == expected
    assert plain(list(ds._gm_items(indices))) == expected
    assert plain(list(ds._gm_items(np.array(indices[::-1])))) == expected[::-1]


def test_shuffled_orders_and_samples():
    for case in SHUFFLE["orders"]:
        n = case["n"]
        assert len(case["epochs"]) >= 2
        for epoch, order in case["epochs"].items():
            check_values(MapDataset.range(n).shuffle(seed=case["seed"]), int(epoch) * n, order)
    for case in SHUFFLE["samples"]:
        n, seed = case["n"], case["seed"]
        permutation, ds = Permutation(n, seed), MapDataset.range(n).shuffle(seed=seed)
        for epoch, index, expected in case["samples"]:
            assert ds[epoch * n + index] == permutation.one(epoch, index) == expected, (
                n,
                seed,
                epoch,
                index,
            )


@pytest.mark.parametrize("row", SHUFFLE["pipelines"], ids=lambda row: row["pipeline"])
def test_shuffle_pipelines(row):
    code = row["pipeline"].replace("  (tutorial)", "").replace(", first 12", "")  # remarks
    ds = build(
        code.replace("[0..10]", "list(__import__('builtins').range(11))").replace(
            "[0..7]", "[0,1,2,3,4,5,6,7]"
        )
    )
    assert [plain(x) for x in islice(ds, len(row["list"]))] == row["list"]
    for name in row.keys() - {"pipeline", "list"}:
        if name.startswith("element_"):
            assert plain(ds[int(name.removeprefix("element_"))]) == row[name]
        else:
            assert name in ("two_epochs", "three_epochs", "filtered")
            found = ds.filter(lambda batch: batch.sum() % 2 == 0) if name == "filtered" else ds
            assert [plain(found[i]) for i in range(len(row[name]))] == row[name]
            assert name != "filtered" or len(found) == len(row[name])


DRAWS = {
    "integers_0_2**31": lambda rng: int(rng.integers(0, 2**31)),
    "integers_100": lambda rng: int(rng.integers(100)),
}
DRAWS |= {"random": lambda rng: rng.random().hex(), "normal": lambda rng: rng.normal().hex()}
DRAWS |= {"uint32x3": lambda rng: rng.integers(0, 2**32, 3, dtype=np.uint32).tolist()}
DRAWS |= {
    "permutation_6": lambda rng: rng.permutation(6).tolist(),
    "raw": lambda rng: rng.bit_generator.random_raw(6).tolist(),
}
DRAWS |= {"float32": lambda rng: float(rng.random(dtype=np.float32)).hex()}


def test_draws_default_seeds_and_index_semantics():
    for row in RANDOM_MAP["rows"]:
        assert row.keys() == {"seed", "index", *DRAWS}
        for kind, draw in DRAWS.items():
            ds = MapDataset.range(5).random_map(
                lambda _, rng, draw=draw: draw(rng), seed=row["seed"]
            )
            assert ds[row["index"]] == row[kind], (row["seed"], row["index"], kind)
    for row in RANDOM_MAP["pipelines"]:
        assert row.keys() == {"pipeline", "list"}
        assert plain(list(build(row["pipeline"]))) == row["list"], row
    vectors, pool = load("exp_misc")["rng_pool"], RngPool(42)
    assert len(vectors["draws"]) == 6
    for case in vectors["draws"]:
        rng = pool.acquire_rng(case["index"], op_seed=case["op_seed"])
        assert rng.bit_generator.state["state"]["key"].tolist() == vectors["key"]
        assert rng.integers(0, 1000, 6).tolist() == case["integers_1000"]
        assert [float(x).hex() for x in rng.random(2)] == case["random"]
        assert [float(x).hex() for x in rng.standard_normal(2)] == case["normal"]
        # half a word stays behind: the next user must not see it
        rng.integers(0, 2**31, dtype=np.uint32)
        pool.release_rng(rng)
    for row in SEEDS:
        code = re.sub(
            r" \+ (\d+) x map\(f\) \+ ",
            lambda match: ".map(f)" * int(match[1]) + ".",
            row["pipeline"],
        )
        seed = build(code)._default_seed
        assert (seed, seed.dtype) == (row["seed"], "uint32"), row
    for row in INDICES:
        ds = build(row["pipeline"])
        assert (len(ds), str(ds)) == (row["len"], row["str"])
        assert row["lo"] < 0 and row["lo"] + len(row["values"]) > 2 * row["len"]
        check_values(ds, row["lo"], row["values"])


def test_mixes_and_others():
    for row in MIX["map_mix"]:
        components = [
            MapDataset.range(n).map_with_index(lambda i, _, j=j: (j, i))
            for j, n in enumerate(row["lengths"])
        ]
        ds = MapDataset.mix(components, row["weights"])
        assert list(integer_weights(row["weights"], len(row["lengths"]))) == row["int_weights"]
        assert (len(ds), len(row["selection"])) == (row["len"], 60)
        check_values(ds, 0, row["selection"])
        blocks = [list(ds._gm_items(range(start, min(60, start + 7)))) for start in range(0, 60, 7)]
        assert [x for block in blocks for x in plain(block)] == row["selection"]
    for row in MIX["map_mix_infinite"]:
        ds = MapDataset.mix([MapDataset.range(n).repeat() for n in row["repeated"]], row["weights"])
        assert len(ds) == row["len"] == sys.maxsize
        check_values(ds, 0, row["first20"])
    concatenation, selection, mixture = MIX["others"]
    alternating = operation(
        object, "__getitem__", lambda i: ((i + 1) % 2, i // 2), __len__=lambda self: 10
    )
    selected = MapDataset.select_from_datasets(
        [MapDataset.range(15), MapDataset.range(100, 115)], alternating
    )
    for ds, row, key, start in (
        (build(concatenation["pipeline"]), concatenation, "index_minus_8_to_15", -8),
        (selected, selection, "index_0_to_14", 0),
        (build(mixture["pipeline"]), mixture, "index_minus_6_to_13", -6),
    ):
        assert len(ds) == row["len"]
        check_values(ds, start, row[key])
    ds = FlatMapMapDataset(MapDataset.range(5), FAN)
    recorded = load("exp_misc")["flat_map_map"]["value"]
    assert len(recorded) == 18
    check_values(ds, 0, recorded)
    assert list(ds) == [x for x in recorded[:15] if x is not None]


def test_window_shuffle():
    """In Grain the last window of an epoch reaches into the next one when the window size does not
    divide the length; ours ends with the epoch. There, the formula of that decision is checked, all
    whole windows of the first epoch are Grain's still.
    """
    for case in OWN_WINDOWS + WINDOWS:
        n, size, seed = case["n"], case["window_size"], case["seed"]
        recorded = case.get("values_0_to_2n") or [i % n for i in case["parent_index_for_0_to_2n"]]
        expected = (
            [window_shuffled(i, n, size, seed) % n for i in range(2 * n)] if n % size else recorded
        )
        check_values(
            WindowShuffleMapDataset(MapDataset.range(n), window_size=size, seed=seed), 0, expected
        )
        assert expected[: n // size * size] == recorded[: n // size * size]
        assert (expected != recorded) == bool(n % size) and len(recorded) == 2 * n
        assert sorted(expected[:n]) == sorted(expected[n:]) == list(range(n))
    assert len([case for case in OWN_WINDOWS + WINDOWS if case["n"] % case["window_size"]]) == 7


def in_block(index: int, max_index: int) -> bool:
    """True if ``index`` fits the cipher's block, whose size Grain takes from a logarithm in double
    precision.
    """
    bits = math.ceil(math.log2(max_index))
    return index < 2 ** max(bits + bits % 2, 16)


def test_round_keys_and_permutations():
    for case in CIPHER["round_keys"]:
        assert list(round_keys(case["seed"], case["rounds"])) == case["keys"]
    for case in CIPHER["full_permutations"]:
        n, seed = case["n"], case["seed"]
        permutation = Permutation(n, seed)
        assert [index_shuffle(i, n - 1, seed, 4) for i in range(n)] == case["output"]
        assert permutation.many(np.zeros(n, np.int64), np.arange(n)).tolist() == case["output"]
        assert [permutation.one(0, i) for i in range(n)] == case["output"]
    for n in [*range(1, 513), 4097, 65535, 65536, 65537, 65538, 131073, 262145]:
        permutation = Permutation(n, seed=n)
        blocks = np.split(np.arange(n), [1, 100, n // 2, n - 3]) if n > 512 else [np.arange(n)]
        order = np.concatenate(
            [permutation.many(np.zeros(len(block), np.int64), block) for block in blocks]
        )
        assert order.dtype == np.int64
        assert np.array_equal(np.bincount(order, minlength=n), np.ones(n)), n
        # it takes long for a small n
        for i in {0, 1, 4095, 4096, n // 2, n - 2, n - 1} & set(range(n)) if n > 100 else ():
            assert order[i] == index_shuffle(i, n - 1, n, 4)


@pytest.mark.parametrize(
    ("name", "num_deviations"), [("samples", 3), ("rounds", 0), ("power_of_two_plus_one", 10)]
)
def test_samples_of_permutations(name, num_deviations):
    """Equal to Grain but for indices that do not fit the block: those map to themselves (DECISIONS
    2).
    """
    deviations = []
    for case in CIPHER[name]:
        n, seed, indices = case["n"], case["seed"], case["index"]
        pairs = list(zip(indices, case["output"], strict=True))
        expected = [
            output if n == 1 or in_block(index, n - 1) else index for index, output in pairs
        ]
        deviations += [
            (n, index)
            for ours, (index, grains) in zip(expected, pairs, strict=True)
            if ours != grains
        ]
        assert [index_shuffle(i, n - 1, seed, case["rounds"]) for i in indices] == expected, case
        if case["rounds"] == 4:
            positions = np.array(indices, np.int64)
            assert (
                Permutation(n, seed).many(np.zeros_like(positions), positions).tolist() == expected
            )
    assert len(deviations) == num_deviations
    assert all(
        index == n - 1 and (n - 1).bit_count() == 1 and n.bit_length() % 2
        for n, index in deviations
    )


LONG = [
    2**31 - 1,
    2**31 + 5,
    2**32,
    2**32 + 1,
    2**50 + 1,
    2**53 - 1,
    2**53 + 1,
    2**60 + 7,
    2**62 + 3,
    2**62 + 5000,
    2**63 - 1,
]
# The rounded logarithm makes the block too small for many of the indices below.
NUM_OUTSIDE = {2**32 + 1: 1, 2**50 + 1: 1, 2**60 + 7: 7, 2**62 + 3: 3, 2**62 + 5000: 200}


def test_lengths_beyond_32_and_53_bits():
    """One index at a time and whole blocks agree, stay in range, and no two indices share an
    image.
    """
    for n in LONG:
        top, permutation, images = n - 1, Permutation(n, seed=2**32 - 1), {}
        for start in (0, n // 3, min(2**53, n - 200) - 100, n - 200):
            block = np.arange(start, start + 200, dtype=np.int64)
            # epoch 1 of seed 2**32 - 1 is seed 0
            many = permutation.many(np.ones(200, np.int64), block).tolist()
            assert many == [index_shuffle(i, top, 0, 4) for i in block.tolist()]
            assert many == [permutation.one(1, i) for i in block.tolist()]
            images |= dict(zip(block.tolist(), many, strict=True))
        assert len(set(images.values())) == len(images)
        assert 0 <= min(images.values()) <= max(images.values()) <= top
        outside = [i for i in images if not in_block(i, top)]
        assert len(outside) == NUM_OUTSIDE.get(n, 0) and all([images[i] == i for i in outside])


def parsed(text):
    """Elements as NumPy's ``repr`` writes them: empty arrays show their shape."""

    def array(values, dtype=None, shape=None):
        return np.array(values, dtype) if shape is None else np.array(values, dtype).reshape(shape)

    kinds = {name: getattr(np, name) for name in ("float32", "float64", "uint8", "int8")}
    return eval(text, {"np": np, "array": array, **kinds})


def described(batch):
    """``batch`` as the vectors write it down."""
    if type(batch) is dict:
        return {"dict": {key: described(value) for key, value in batch.items()}, "type": "dict"}
    if type(batch) in (list, tuple):
        return {type(batch).__name__: [described(value) for value in batch]}
    if batch is None:
        return None
    assert type(batch) is np.ndarray and batch.flags.c_contiguous
    dtype = "object" if batch.dtype == object else batch.dtype.str
    return {
        "dtype": dtype,
        "shape": list(batch.shape),
        "values": [repr(x) for x in batch.ravel().tolist()],
    }


@pytest.mark.parametrize("jax_or_none", [tree._jax_tree_util, lambda: None])
def test_batches_with_and_without_jax(jax_or_none, monkeypatch):
    monkeypatch.setattr(tree, "_jax_tree_util", jax_or_none)
    vectors = load("ds_batch")
    for case in vectors["cases"]:
        elements = parsed(case["elements"])
        ds = MapDataset.source(elements)
        for batch in (
            ds.batch(len(elements))[0],
            next(iter(ds.to_iter_dataset().batch(len(elements)))),
        ):
            # the order of keys counts
            assert json.dumps(described(batch)) == json.dumps(case["batch"]), case["case"]
    # What Grain batches silently into an array of objects is an error here (10 §11.4, DECISIONS 1).
    for case in vectors["errors"] + vectors["grain_silent"]:
        elements = parsed(case["elements"])
        assert_raises(
            ValueError,
            "same structure",
            MapDataset.source(elements).batch(len(elements)).__getitem__,
            0,
        )
    assert sum(len(vectors[name]) for name in ("cases", "errors", "grain_silent")) == 39
