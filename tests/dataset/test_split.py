"""Splits: no part ever has a record of another, sizes are exact, and keys alone decide where they
are asked to.
"""

import itertools
import pickle
import random
import warnings
from fractions import Fraction

import numpy as np
import pytest
from refusing import assert_raises

import gristmill as grain
from gristmill.core import permutation
from gristmill.core.apportion import Apportionment, largest_remainders
from gristmill.core.keyed_hash import KeyedHash
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.descriptions.pipeline import check_description, describe
from gristmill.dataset.stages.split import SplitMapDataset

_range, _mix = grain.MapDataset.range, grain.MapDataset.mix
TWO = {"train": 0.7, "test": 0.3}


def add_ten(x):
    return x + 10


def leaves(x):
    """The records that an element is made of."""
    if isinstance(x, tuple | list | np.ndarray):
        return {leaf for part in x for leaf in leaves(part)}
    return set() if x is None else {int(x)}


STEPS = {
    "map": lambda ds, rng: ds.map(lambda x: x),
    "shuffle": lambda ds, rng: ds.shuffle(seed=0),
    "window_shuffle": lambda ds, rng: ds.window_shuffle(4, seed=0),
    "repeat": lambda ds, rng: ds.repeat(
        rng.choice([1, 2, None]), reseed_each_epoch=rng.random() < 0.8
    ),
    "slice": lambda ds, rng: ds[rng.randint(0, 2) : rng.randint(-4, -1) : rng.randint(1, 2)],
    "back": lambda ds, rng: ds[::-1],
    "list": lambda ds, rng: ds.slice(rng.sample(range(len(ds)), min(len(ds) // 2, 30))),
    "filter": lambda ds, rng: ds.filter(lambda x: len(leaves(x)) != 1 or max(leaves(x)) % 5 > 0),
    "batch": lambda ds, rng: ds.batch(rng.randint(1, 4), batch_fn=list),
    "flat_map": lambda ds, rng: ds.flat_map(lambda x: [x, x], max_fan_out=2),
    "mix": lambda ds, rng: _mix([ds, other(rng)], [rng.random() + 0.1, 1]),
    "concatenate": lambda ds, rng: grain.MapDataset.concatenate([other(rng), ds]),
    "zip": lambda ds, rng: ds.zip(ds.map(lambda x: x)),
}


NEW = itertools.count(1000, 1000)


def other(rng):
    start = next(NEW)
    return _range(start, start + rng.choice([5, 24])).shuffle(seed=0)


def random_chain(ds, rng, num):
    for _ in range(num):
        step = STEPS[rng.choice(sorted(STEPS))]
        try:
            new = step(ds, rng)
        except ValueError:  # a batch after a filter, an endless one repeated, a mixture of nothing
            continue
        ds = new if len(new) else ds
    return ds


@pytest.mark.filterwarnings("ignore:.*takes every n-th element")
@pytest.mark.filterwarnings("ignore:.*split")
def test_parts_of_random_chains_are_disjoint_over_twenty_epochs(monkeypatch):
    ours = permutation._permute_range

    # any other will do of few records, of which ours takes a millisecond
    def permuted(start, stop, max_index, seed):
        if max_index > 10_000:
            return ours(start, stop, max_index, seed)
        return np.random.default_rng(seed).permutation(max_index + 1)[start:stop]

    monkeypatch.setattr(permutation, "_permute_range", permuted)
    made = refused = 0
    for seed in range(250):
        rng = random.Random(seed)
        ds = random_chain(_range(rng.choice([7, 24])), rng, rng.randint(0, 5))
        by = None if seed % 2 else lambda x: str(x) if isinstance(x, list | tuple) else int(x) // 2
        try:
            parts = ds.split(TWO, seed=rng.randrange(9), by=by)
        except ValueError as error:
            assert "Split before that step" in str(error)
            refused += 1
            continue
        found = []
        for part in parts.values():
            chain = random_chain(part, rng, rng.randint(0, 3)) if len(part) else part
            length = len(chain)
            indices = [i + epoch * length for epoch in range(20) for i in range(min(length, 24))]
            found.append(leaves(list(chain._gm_items(indices))) if length else set())
        if by is None or not any([isinstance(ds[i], list | tuple) for i in range(min(len(ds), 9))]):
            assert found[0].isdisjoint(found[1]), (seed, ds)
        made += 1
    assert made > 150 and refused > 5, (made, refused)


def test_growing_the_source_moves_no_record_of_a_split_by_keys():
    for seed in range(20):
        small, large = [
            _range(n).split(TWO, seed, by=lambda x: f"group {x // 3}") for n in (300, 3000)
        ]
        found = {name: set(part) for name, part in large.items()}
        for name in TWO:
            assert set(small[name]) == found[name] & set(range(300))
        assert {x // 3 for x in found["train"]}.isdisjoint([x // 3 for x in found["test"]])
        assert len(found["train"]) + len(found["test"]) == 3000
        assert abs(len(found["test"]) - 900) < 200


def test_a_hash_of_a_key_is_the_same_everywhere():
    found = [
        KeyedHash(5)(key)
        for key in ("a", b"a", 97, -1, 2**100, ("a", b""), ("", "a"), (("a",),), "\ud800", True)
    ]
    assert len(set(found)) == len(found)
    assert found[:3] == [2301056111028773062, 6065624400260939159, 12234911164617899758]
    assert KeyedHash(5)(np.int8(97)) == KeyedHash(5)(97) == found[2]
    assert KeyedHash(5)(np.str_("a")) == found[0]
    assert KeyedHash(2**200)("a") != KeyedHash(2**200 + 1)("a")
    for key in (0.5, None, ["a"], ("a", 1.0)):
        with pytest.raises(
            TypeError, match="must be a str, bytes, an integer or a tuple of these, got"
        ):
            KeyedHash(0)(key)


def test_positions_are_shared_out_exactly_and_in_order():
    rng = random.Random(0)
    for _ in range(80):
        sizes = [rng.randint(0, 60) for _ in range(rng.randint(1, 5))]
        apportionment = Apportionment(sizes, rng.getrandbits(64))
        parts = [
            [apportionment.position(part, i) for i in range(size)]
            for part, size in enumerate(sizes)
        ]
        assert all([part == sorted(part) for part in parts])
        assert sorted(itertools.chain(*parts)) == [*range(sum(sizes))]
        for part, size in enumerate(sizes):
            for dtype in (np.int64, object):
                if size:
                    found = apportionment.position(part, np.arange(size).astype(dtype)).tolist()
                    assert found == parts[part]
    times = np.zeros(50)
    for seed in range(4000):
        times[Apportionment([44, 6], seed).position(1, np.arange(6))] += 1
    # no position is more likely than others: 6 standard deviations
    assert abs(times / 4000 - 0.12).max() < 0.03
    assert largest_remainders(10, [Fraction(1, 3)] * 3) == [4, 3, 3]


def test_sizes_seeds_and_elements():
    for n in (0, 1, 7, 1000):
        parts = _range(n).split({"a": 0.5, "b": 0.3, "c": 1 / 5})
        assert [len(part) for part in parts.values()] == largest_remainders(
            n, [Fraction(w, 10) for w in (5, 3, 2)]
        )
        assert sorted([x for part in parts.values() for x in part]) == [*range(n)]
    test = _range(10**12).split({"train": 0.98, "test": 0.02})["test"]
    assert len(test) == 2 * 10**10
    assert test[10**10 + 7] == list(test._gm_items(range(10**10 + 5, 10**10 + 9)))[2] >= 10**11
    assert list(_range(50).split(TWO, seed=1)["test"]) != list(
        _range(50).split(TWO, seed=2)["test"]
    )
    drawn = _range(9).random_map(lambda x, rng: (x, rng.random()), seed=1)
    part = drawn.split(TWO)["test"]
    # draws differ between epochs
    assert part[1] == drawn[part[1][0]] and part[1 + len(part)] == drawn[part[1][0] + 9] != part[1]
    holed = _range(30).map(lambda x: None if x % 3 == 0 else x).split(TWO, by=lambda x: x)
    assert sum([len(part) for part in holed.values()]) == 20 and None not in [
        *holed["train"],
        *holed["test"],
    ]


def test_what_is_split():
    ds, twin = _range(60), _range(60)
    mixed = _mix(
        [ds.shuffle(seed=1).map(add_ten), _range(100, 140).shuffle(seed=2).repeat()], [1, 2]
    ).map(add_ten)
    for by in (None, lambda x: x // 4):
        parts = mixed.split(TWO, by=by)
        for part in parts.values():  # each component is split by itself, and mixed as before
            splits = [node for node in ancestors(part) if isinstance(node, SplitMapDataset)]
            assert {str(node.parents[0]) for node in splits} == {
                str(_range(60)),
                str(_range(100, 140)),
            }
            elements = [part[i] for i in range(30)]
            assert sum([x >= 100 for x in elements]) == 20
        if by:
            assert {x // 4 for x in parts["train"]}.isdisjoint([x // 4 for x in parts["test"]])
    pairs = ds.shuffle(seed=3).zip(twin.map(add_ten).shuffle(seed=3)).split(TWO)["test"]
    assert len(pairs) == 18 and all([y == x + 10 for x, y in pairs.repeat(3)])
    sample = ds.shuffle(seed=1)[:20]
    parts = sample.split(TWO)
    # the first epoch, in every epoch
    assert {x for part in parts.values() for x in part.repeat(5)} == set(sample)
    assert len(parts["train"].repeat()[: 10**6]) == 10**6
    empty = _mix([_range(2), _range(100, 200)]).split({"train": 0.9, "test": 0.1})["test"]
    assert len(empty) == 10 and min(empty) >= 100  # nothing of the short component is in it
    assert [*_mix([ds[:30], ds[30:]]).split(TWO)["test"].repeat(2)]  # they have nothing in common


def test_refusals():
    ds = _range(20)
    for wrong, error, match in [
        ([0.5, 0.5], TypeError, "mapping of the names"),
        ({}, ValueError, "at least one part"),
        ({1: 1.0}, TypeError, "names of parts must be strings"),
        ({"a": "x"}, TypeError, "must be numbers"),
        ({"a": 98, "b": 2}, ValueError, "{'a': 0.98, 'b': 0.02}"),
        ({"a": 1, "b": 0}, ValueError, r"positive and finite, got weights\['b'\] = 0"),
        ({"a": float("nan")}, ValueError, "positive and finite"),
    ]:
        assert_raises(error, match, ds.split, wrong)
    assert_raises(TypeError, "by must be a function", ds.split, TWO, 0, "key")
    chosen = grain.MapDataset.select_from_datasets([ds, ds], [(0, 1), (1, 1)])
    for straddling in (
        ds.slice([0, 0, 1]),
        _mix([ds, ds[10:]]),
        ds.zip(ds[::-1]),
        ds.repeat(2)[3:],
        chosen,
    ):
        assert_raises(ValueError, "Split before that step", straddling.split, TWO)
    with pytest.raises(TypeError, match="must be a str") as info:
        len(ds.split(TWO, by=lambda x: x / 2)["train"])
    assert "element 0" in info.value.__notes__[0]
    assert_raises(AttributeError, "on the MapDataset", getattr, ds.to_iter_dataset(), "split")


def test_keys_are_computed_once_and_travel():
    asked = []
    parts = _range(50).split(TWO, by=lambda x: asked.append(x) or x)
    assert asked == []
    again = pickle.loads(pickle.dumps(parts["test"]._assignment))
    assert again.size(1) == len(parts["test"]) == 50 - len(parts["train"]) and asked == [*range(50)]


def test_another_split_is_another_pipeline():
    def described(weights=TWO, seed=0, by=None, name="test"):
        return describe(_range(30).split(weights, seed, by)[name])

    saved = described()
    check_description(saved, described())
    others = (
        described({"train": 0.69, "test": 0.31}),
        described(seed=1),
        described(by=int),
        described(name="train"),
    )
    for own in (*others, described({"test": 0.3, "train": 0.7})):
        with pytest.raises(grain.checkpoint.StateMismatchError, match="another pipeline"):
            check_description(saved, own)


def test_a_warning_where_a_slice_would_leak():
    ds = _range(20)
    shuffled = ds.shuffle(seed=1)
    for leaking in (
        shuffled[:15],
        shuffled.map(add_ten)[5:].batch(2),
        _mix([shuffled[2:9:3], ds]),
        shuffled.slice([1, 2]),
    ):
        with pytest.warns(UserWarning, match="split"):
            leaking.repeat(2)
        leaking.repeat(1), leaking.repeat(2, reseed_each_epoch=False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for clean in (
            ds[:15].shuffle(seed=1),
            shuffled,
            shuffled[1::3],
            shuffled[::-2],
            shuffled.split(TWO)["test"],
            ds[3:],
        ):
            clean.repeat(2)
        shuffled.repeat(1, reseed_each_epoch=False)[:15].repeat(2)
        ds.window_shuffle(5, seed=1)[:15].repeat(2)
