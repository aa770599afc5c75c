"""Mixtures by schedules and by length, until all have ended or never, and mixtures that are changed
between two runs.
"""

import itertools
import json
import math
import os
import random
import sys
from collections import Counter
from fractions import Fraction
from string import ascii_lowercase

import cloudpickle
import numpy as np
import pytest
from operations import flat
from refusing import assert_raises

import gristmill
from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions, Schedule
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError
from gristmill.dataset.states.mixtures import mixtures_in
from gristmill.experimental import (
    BestFitPackIterDataset,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
)

# Workers would import this module, and JAX with it.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

SEED = int(os.environ.get("GRISTMILL_TEST_SEED", "0"))
DIRECT = ReadOptions(num_threads=0)


def draw_schedule(rng, most=6):
    """A schedule, and what it is made of."""
    names = "abcdefgh"[: rng.randint(1, most)]
    positions = sorted({0, *[rng.randint(1, 90) for _ in range(rng.randint(0, 4))]})
    is_linear, steps = rng.random() < 0.4, {}
    for position in positions:
        choices = [
            0,
            1,
            rng.randint(1, 9),
            Fraction(rng.randint(1, 99), 100),
            round(rng.uniform(0.001, 3), 3),
        ]
        weights = {name: rng.choice(choices) for name in names}
        weights[rng.choice(names)] = rng.randint(1, 5)
        steps[position] = weights
    return (Schedule.linear if is_linear else Schedule)(steps), steps, is_linear, names


def integrals(steps, is_linear, names, n):
    """The integral of each share up to every position, in exact arithmetic, from the definition
    alone.
    """
    positions = [*steps]
    exact = {p: {name: Fraction(str(w)) for name, w in steps[p].items()} for p in positions}
    shares = {
        p: {name: weights[name] / sum(weights.values()) for name in names}
        for p, weights in exact.items()
    }
    total = dict.fromkeys(names, Fraction(0))
    for t in range(n):
        yield dict(total)
        here = max(p for p in positions if p <= t)
        later = next((p for p in positions if p > t), None)
        for name in names:
            share = shares[here][name]
            if is_linear and later is not None:  # the mean over [t, t + 1]
                share += (shares[later][name] - share) * (
                    Fraction(2 * (t - here) + 1, 2) / (later - here)
                )
            total[name] += share


def check_schedule(seed, n):
    rng = random.Random(seed)
    schedule, steps, is_linear, names = draw_schedule(rng)
    selection = schedule.selection(names)
    # without what is kept
    single = Schedule.of_description(json.loads(json.dumps(schedule.described()))).selection(names)
    components, inner = selection.run(0, n)
    counts = [0] * len(names)
    for position, integral in enumerate(integrals(steps, is_linear, names, n)):
        assert all(
            abs(count - w) < 1 for count, w in zip(counts, integral.values(), strict=True)
        ), (schedule, position)
        if rng.random() < 0.05:
            assert single.counts(position) == counts
            assert single._next(position, counts) == components[position]
        assert inner[position] == counts[components[position]]
        counts[components[position]] += 1
    far = rng.randrange(5 * selection._unchanging_from + 500)  # also if the order repeats
    if rng.random() < 0.2:
        assert [single[far + i] for i in range(30)] == [*zip(*selection.run(far, 30), strict=True)]


def test_prefixes_of_a_schedule_are_within_one_of_the_integral():
    for i in range(80):
        check_schedule(SEED + i, 140)


@pytest.mark.slow
def test_prefixes_of_many_schedules():
    for i in range(100_000 if os.environ.get("GRISTMILL_TEST_LONG") else 300):
        check_schedule(SEED + 1000 + i, 120)


# of components, and the largest weight
NUMS = [*itertools.product((1, 2, 3, 4, 100), (9,)), (3, 9973), (100, 499)]


@pytest.mark.parametrize(
    ("num", "most", "make"), [(*num, make) for num in NUMS for make in (Schedule, Schedule.linear)]
)
def test_random_access_far_from_the_beginning(num, most, make):
    rng = random.Random(num)
    steps = {
        p: [rng.randint(1, most) if p < 50_000 or i % 3 else 0 for i in range(num)]
        for p in (0, 10_007, 50_000)
    }
    steps[50_000][-1] = 7
    selection = make(steps).selection([str(i) for i in range(num)])
    for start in (9_990, 49_990, 60_000, 10**9, 10**12):
        counts = selection.counts(start)
        assert sum(counts) == start
        for position in range(start, start + 40):
            component, before = selection[position]
            assert before == counts[component]
            counts[component] += 1
            integral = selection.integral(position + 1)
            assert all(
                abs(c * selection.whole - w) < selection.whole
                for c, w in zip(counts, integral, strict=True)
            )
        assert selection.counts(start + 40) == counts
        assert selection.run(start, 5)[0] == [selection[start + i][0] for i in range(5)]
    parts = [MapDataset.range(10**7).repeat() for _ in range(num)]
    ds = MapDataset.mix(parts, make(steps))
    component, before = selection[10**9]
    assert ds[10**9] == before % 10**7


def lists(name, num, epochs=1):
    """Elements that say where they come from, of 1 to 3 tokens."""
    first = 1000 * (ascii_lowercase.index(name) + 1)
    return (
        MapDataset.range(first, first + num)
        .map(lambda x: {"x": np.full(x % 3 + 1, x)})
        .to_iter_dataset(DIRECT)
    )


def num_tokens(element):
    return len(element["x"])


def mixture(weights, num=60, **options):
    names = weights.names if isinstance(weights, Schedule) else weights
    return IterDataset.mix({name: lists(name, num) for name in names}, weights, **options)


@pytest.mark.parametrize(
    "weights",
    [
        {"a": 1, "b": 2},
        {"a": 0.7, "b": 0.2, "c": 0.1},
        Schedule({0: {"a": 1, "b": 3}, 20: {"a": 4, "b": 1}}),
        {name: 1 + i % 4 for i, name in enumerate(ascii_lowercase)},  # this number needs a tree
        Schedule(
            {
                0: dict.fromkeys(ascii_lowercase[:20], 1),
                90: {name: ord(name) for name in ascii_lowercase[:20]},
            }
        ),
    ],
)
def test_by_length_the_component_furthest_behind_is_next(weights):
    it = iter(mixture(weights, num=400, by=num_tokens))
    names = weights.names if isinstance(weights, Schedule) else [*weights]
    steps = (
        weights._points
        if isinstance(weights, Schedule)
        else {0: {n: Fraction(str(w)) for n, w in weights.items()}}
    )
    lengths, targets = dict.fromkeys(names, 0), dict.fromkeys(names, Fraction(0))
    for position in range(200):
        element = next(it)
        name = ascii_lowercase[element["x"][0] // 1000 - 1]
        # the first one of those that are equal
        assert name == max(names, key=lambda n: targets[n] - lengths[n])
        now = steps[max(p for p in steps if p <= position)]
        lengths[name] += len(element["x"])
        for n in names:
            targets[n] += Fraction(now[n]) / sum(now.values()) * len(element["x"])
        assert all(abs(targets[n] - lengths[n]) <= 3 * len(names) for n in names)
        if position % 50 == 7:
            other = iter(mixture(weights, num=400, by=num_tokens))
            other.set_state(json.loads(json.dumps(it.get_state())))
            assert other.counts() == it.counts() and it.counts()["a"]["lengths"] == lengths["a"]
            it = other


def test_until_all_have_ended_and_never(tmp_path):
    parts = {
        "a": MapDataset.range(3),
        "b": MapDataset.range(10, 20),
        "c": MapDataset.range(100, 105),
    }
    for weights in (
        None,
        {"a": 1, "b": 2, "c": 1},
        Schedule({0: {"a": 1, "b": 1}, 4: {"a": 1, "b": 1, "c": 3}}),
    ):
        ds = MapDataset.mix(parts, weights, stop="all")
        stream = IterDataset.mix(parts, weights, stop="all")
        assert (
            list(ds) == list(stream) == [ds[i] for i in range(18)] == list(ds._gm_items(range(18)))
        )
        assert (
            sorted(ds)
            == sorted(itertools.chain(*parts.values()))
            == sorted(ds[i] for i in range(18, 36))
        )
        ds, stream = [cls.mix(parts, weights, stop="never") for cls in (MapDataset, IterDataset)]
        it = iter(stream)
        assert [next(it) for _ in range(60)] == [ds[i] for i in range(60)] and len(ds) > 10**18
        counts = Counter(["abc"[(x >= 10) + (x >= 100)] for x in [ds[i] for i in range(60)]])
        # A component starts again when it is asked for more.
        lengths = {name: len(part) for name, part in parts.items()}
        assert it.counts() == {
            n: {"elements": k, "lengths": k, "epochs": (k - 1) // lengths[n]}
            for n, k in counts.items()
        }
        again = iter(stream)
        again.set_state(json.loads(json.dumps(it.get_state())))
        assert again.counts() == it.counts()
        assert [next(again) for _ in range(30)] == [next(it) for _ in range(30)]
    # What a checkpoint says of the pipeline is the same in every epoch.
    CheckpointHandler().save(tmp_path, it)
    CheckpointHandler().restore(tmp_path, again)
    assert again.counts() == it.counts() and next(again) == next(it)
    shuffled = IterDataset.mix(
        [MapDataset.range(50).shuffle(seed=1).to_iter_dataset()], stop="never"
    )
    epochs = np.array(list(shuffled.limit(150))).reshape(3, 50)
    assert all(sorted(epoch) == [*range(50)] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs.tolist()}) == 3
    # What cannot be weighed.
    empty = {
        "a": MapDataset.range(3).filter(lambda x: x > 5).to_iter_dataset(),
        "b": MapDataset.range(2),
    }
    assert list(IterDataset.mix(empty, stop="all")) == [0, 1]
    assert_raises(ValueError, "no elements", list, IterDataset.mix(empty, stop="never"))
    ends = Schedule({0: {"a": 1, "b": 0}, 5: {"a": 0, "b": 1}})
    for make in (MapDataset.mix, IterDataset.mix):
        assert (
            len(list(make({"a": MapDataset.range(9), "b": MapDataset.range(3)}, ends, stop="all")))
            == 8
        )
        assert list(
            make(
                {"a": MapDataset.range(2), "b": MapDataset.range(3)},
                Schedule({0: {"a": 1}}),
                stop="all",
            )
        ) == [0, 1]


STEPS = {
    "first_fit": lambda ds: FirstFitPackIterDataset(ds, length_struct={"x": 6}, num_packing_bins=8),
    "best_fit": lambda ds: BestFitPackIterDataset(ds, length_struct={"x": 5}, num_packing_bins=3),
    "concat_then_split": lambda ds: ConcatThenSplitIterDataset(ds, length_struct={"x": 4}),
    "window_shuffle": lambda ds: ds.window_shuffle(10, seed=1),
    "rebatch": lambda ds: ds.map(lambda x: x["x"][0]).batch(5).rebatch(3),
    "batch": lambda ds: ds.map(lambda x: x["x"][0]).batch(3).thread_prefetch(2),
    "flat_map": lambda ds: ds.flat_map(lambda x: x["x"].tolist()),
    "windows in bins": lambda ds: FirstFitPackIterDataset(
        ds.window_shuffle(7, seed=1), length_struct={"x": 6}, num_packing_bins=8
    ),
    "thread, bins, thread": lambda ds: (
        STEPS["first_fit"](ds.thread_prefetch(5)).batch(2, batch_fn=list).thread_prefetch(3)
    ),
    "lanes, bins": lambda ds: STEPS["first_fit"](
        ds.mp_prefetch(MultiprocessingOptions(0, num_lanes=3))
    ),
    "bins, lanes": (
        lambda ds: STEPS["best_fit"](ds).mp_prefetch(MultiprocessingOptions(0, num_lanes=2))
    ),
    "bins, windows": lambda ds: STEPS["best_fit"](ds).window_shuffle(9, seed=1),
    "rows, windows": lambda ds: STEPS["concat_then_split"](ds).window_shuffle(9, seed=1),
    "windows, items, windows": lambda ds: STEPS["flat_map"](
        STEPS["window_shuffle"](ds)
    ).window_shuffle(9, seed=1),
}
AFTER = Schedule({0: {"a": 1, "b": 1}, 30: {"a": 1, "b": 3, "c": 1}})
CHANGES = {
    "weights": ({"a": 1, "b": 2}, {"a": 3, "b": 1}),
    "added": ({"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 2}),
    "schedules": (Schedule({0: {"a": 1, "b": 1}, 13: {"a": 1, "b": 3}}), AFTER),
    "removed": ({"a": 1, "b": 2, "c": 1}, Schedule({0: {"a": 1, "b": 1, "c": 0}})),
}


@pytest.mark.parametrize("step", STEPS)
def test_a_changed_mixture_gives_every_token_once(step):
    """At any output, also when nothing is left to read, with another change every time, and
    sometimes a second change, of a state that nothing was read from.
    """
    kinds = [{"stop": "all"}, {"stop": "all", "by": num_tokens}]
    is_of_tokens = step not in ("rebatch", "batch")
    for num, (change, options) in enumerate(
        itertools.islice(itertools.cycle(itertools.product(CHANGES, kinds)), 10)
    ):
        before, after = CHANGES[change]
        ds = STEPS[step](mixture(before, **options))
        it, stop = iter(ds), num if num < 8 else sum(1 for _ in ds) - num + 7
        delivered = [x for element in itertools.islice(it, stop) for x in flat(element)]
        for weights in (after, after, Schedule({0: {"a": 1, "b": 5, "c": 1}}))[: 1 + num % 3]:
            state = json.loads(json.dumps(it.get_state()))
            it.close()
            it = iter(STEPS[step](mixture(weights, **options)))
            it.set_state(state)
            if num % 2:
                delivered += flat(next(it, []))
        delivered += [x for element in it for x in flat(element)]
        found = Counter(delivered)
        expected = {
            x: x % 3 + 1 if is_of_tokens else 1
            for first in (1000, 2000)
            for x in range(first, first + 60)
        }
        assert {x: n for x, n in found.items() if x < 3000} == expected, (num, change, options)
        assert all(n == (x % 3 + 1 if is_of_tokens else 1) for x, n in found.items())


def test_a_component_that_is_added_within_the_last_element():
    items = STEPS["flat_map"]
    for num in range(7):  # the last time, the end has been met
        it = iter(items(mixture({"a": 1}, 2, stop="all")))
        found = [*itertools.islice(it, num)]
        again = iter(items(mixture({"a": 1, "b": 1}, 2, stop="all")))
        again.set_state(it.get_state())
        assert Counter([*found, *again]) == {1000: 2, 1001: 3, 2000: 3, 2001: 1}


def squeeze(x):
    return {"x": np.full(x % 3 + 1, x)}


def workers(weights, *, is_before):
    parts = {
        n: MapDataset.range(1000 * i, 1000 * i + 120).map(squeeze) for i, n in enumerate(weights, 1)
    }
    ds = IterDataset.mix(
        {n: part.to_iter_dataset() for n, part in parts.items()}, weights, stop="all"
    )
    options = MultiprocessingOptions(num_workers=2, num_lanes=4)
    packed = FirstFitPackIterDataset(
        ds if is_before else ds.mp_prefetch(options), length_struct={"x": 6}, num_packing_bins=8
    )
    return iter(packed.mp_prefetch(options) if is_before else packed)


@pytest.mark.slow
@pytest.mark.parametrize("is_before", [True, False])
def test_a_changed_mixture_in_worker_processes(is_before):
    with workers({"a": 1, "b": 2}, is_before=is_before) as it:
        delivered = [x for _ in range(11) for x in flat(next(it))]
        state = json.loads(json.dumps(it.get_state()))
    with workers({"a": 5, "b": 1, "c": 2}, is_before=is_before) as it:
        it.set_state(state)
        delivered += [x for element in it for x in flat(element)]
    assert Counter(delivered) == {
        x: x % 3 + 1 for first in (1000, 2000, 3000) for x in range(first, first + 120)
    }


def test_new_weights_act_from_the_next_element_drawn():
    it = iter(mixture({"a": 1, "b": 1}).window_shuffle(8, seed=2))
    names = ["abcd"[next(it)["x"][0] // 1000 - 1] for _ in range(11)]
    state = it.get_state()
    other = iter(mixture({"c": 1, "a": 1, "b": 1}).window_shuffle(8, seed=2))
    other.set_state(state)
    names += ["abcd"[next(other)["x"][0] // 1000 - 1] for _ in range(17)]
    assert "c" not in names[:16] and Counter(names[16:24]) == {"a": 2, "b": 3, "c": 3}
    counted = {name: row["elements"] for name, row in other.counts().items()}
    # of the window that is being delivered nothing
    assert counted == {name: names[:24].count(name) for name in "abc"}


def test_what_is_gone_is_dropped_by_name(tmp_path):
    it = iter(mixture({"a": 1, "b": 1, "c": 2}))
    for _ in range(6):
        next(it)
    state, left = it.get_state(), mixture({"a": 1, "b": 1})
    with pytest.raises(StateMismatchError, match=r"does not have, \['c'\].*drop=\{'c'\}"):
        iter(left).set_state(state)
    assert_raises(TypeError, "a set of names", iter(left).set_state, state, drop="c")
    other = iter(left)
    other.set_state(state, drop={"c"})
    other.set_state(other.get_state(), drop={"c"})  # as a program that is started again does
    following = [1000 * i + state["parents"][name]["next_index"] for i, name in enumerate("ab", 1)]
    assert sorted([next(other)["x"][0] for _ in range(2)]) == following
    handler = CheckpointHandler()
    handler.save(tmp_path, it)
    assert_raises(StateMismatchError, "CheckpointRestore", handler.restore, tmp_path, iter(left))
    arguments = gristmill.checkpoint.CheckpointRestore(iter(left), drop={"c"})
    assert handler.restore(tmp_path, args=arguments).counts().keys() == {"a", "b"}
    # The component of elements held downstream of another stage that holds elements is not known.
    packed = iter(STEPS["windows in bins"](mixture({"a": 1, "b": 1, "c": 2})))
    next(packed)
    other = iter(STEPS["windows in bins"](left))
    assert_raises(StateMismatchError, "weight 0", other.set_state, packed.get_state(), drop={"c"})


DROPPING = {
    "first_fit": STEPS["first_fit"],
    "best_fit": STEPS["best_fit"],
    "bins, lanes": STEPS["bins, lanes"],
    "filter, thread, bins, batch": (
        lambda ds: STEPS["first_fit"](ds.filter(is_kept).thread_prefetch(2)).batch(2, batch_fn=list)
    ),
    "window_shuffle": STEPS["window_shuffle"],
    "filter, thread, windows, lanes": lambda ds: (
        ds.filter(is_kept)
        .thread_prefetch(2)
        .window_shuffle(9, seed=1)
        .mp_prefetch(MultiprocessingOptions(0, num_lanes=2))
    ),
    "rebatch": lambda ds: ds.rebatch(2),
    "concat_then_split": STEPS["concat_then_split"],
    "filter, flat_map": lambda ds: STEPS["flat_map"](ds.filter(is_kept)),
}


def is_kept(element):
    return element["x"][0] % 7 != 1


@pytest.mark.parametrize("step", DROPPING)
def test_held_elements_of_other_components_come_once(step):
    """At every output, then saved and restored again on the way; also when another one is dropped
    meanwhile.
    """
    before = [
        {"a": 1, "b": 2, "c": 1},
        {"a": 1, "b": 1, "c": 3},
        Schedule({0: {"a": 1, "b": 1, "c": 2}, 25: {"a": 1, "b": 3, "c": 1}}),
    ]
    kinds = [{"stop": "all"}, {"stop": "all", "by": num_tokens}]
    for num, (weights, options) in enumerate(
        itertools.islice(itertools.cycle(itertools.product(before, kinds)), 13)
    ):
        it = iter(DROPPING[step](mixture(weights, **options)))
        delivered = [x for element in itertools.islice(it, num) for x in flat(element)]
        state = json.loads(json.dumps(it.get_state()))
        it = iter(DROPPING[step](mixture({"a": 5, "b": 1, "d": 1}, **options)))
        it.set_state(state, drop={"c"})
        after = [x for element in itertools.islice(it, num % 5) for x in flat(element)]
        state = json.loads(json.dumps(it.get_state()))
        names = ("a", "b") if num % 3 else ("a",)
        it = iter(DROPPING[step](mixture(dict.fromkeys(names, 1), **options)))
        it.set_state(state, drop={"b", "d"} - {*names})
        assert {name for one in mixtures_in(it.get_state()) for name in one["parents"]} == {*names}
        last = [x for element in it for x in flat(element)]
        found = Counter(delivered + after + last)
        expected = {
            1000 * i + k: (1000 * i + k) % 3 + 1
            for i in range(1, 1 + len(names))
            for k in range(60)
        }
        if step.startswith("filter"):
            expected = {x: n for x, n in expected.items() if x % 7 != 1}
        assert {x: n for x, n in found.items() if x < 1000 * (1 + len(names))} == expected, (
            num,
            options,
        )
        assert all(n <= x % 3 + 1 for x, n in found.items())
        assert all(x // 1000 != 3 for x in after + last)
        assert all(x < 3000 for x in last) and (len(names) == 2 or all(x < 2000 for x in last))


@pytest.mark.parametrize("options", [{}, {"by": num_tokens}])
def test_a_window_keeps_its_order_without_what_is_dropped(options):
    for num in range(1, 31):
        it = iter(STEPS["window_shuffle"](mixture({"a": 1, "b": 2, "c": 1}, **options)))
        for _ in range(num):
            next(it)
        other = iter(STEPS["window_shuffle"](mixture({"a": 1, "b": 1}, **options)))
        other.set_state(json.loads(json.dumps(it.get_state())), drop={"c"})
        kept = [x for x in [next(it)["x"][0] for _ in range(-num % 10)] if x < 3000]
        assert [next(other)["x"][0] for _ in kept] == kept


def test_counts_are_in_reports_and_metrics():
    it = iter(mixture({"a": 1, "b": 2}, by=num_tokens).batch(3, batch_fn=list))
    with gristmill.observe(it) as observed:
        for _ in range(4):
            next(it)
        summary = observed.summary()
        (node,) = [node for node in summary.values() if node.components]
    assert f"drawn by {node.id}: b 8 (67%, " in str(summary)
    assert " of the length), a 4 (33%, " in str(summary)
    assert node.components == it.counts()
    assert sum(row["elements"] for row in node.components.values()) == 12


@pytest.mark.parametrize("seed", range(8))
def test_until_all_have_ended_no_element_is_lost(seed):
    rng = random.Random(seed)
    names = "abc"[: rng.randint(2, 3)]
    steps = {0, *rng.sample(range(1, 60), rng.randint(1, 3))}
    last = max(steps)
    weights = {
        p: {name: rng.choice([0, 1, 4]) if p < last else rng.randint(1, 5) for name in names}
        for p in steps
    }
    weights = {p: row if any(row.values()) else {**row, "a": 1} for p, row in weights.items()}
    parts = {
        name: MapDataset.range(100 * i, 100 * i + rng.randint(1, 40))
        for i, name in enumerate(names)
    }
    expected = sorted(x for part in parts.values() for x in part)
    for schedule in (Schedule(weights), Schedule.linear(weights)):
        mixed = MapDataset.mix(parts, schedule, stop="all")
        assert sorted(mixed) == expected and len(mixed) == len(expected)
        streams = {name: part.to_iter_dataset() for name, part in parts.items()}
        assert [*IterDataset.mix(streams, schedule, stop="all")] == [*mixed]


def test_wrong_schedules_and_arguments():
    parts = {"a": MapDataset.range(3), "b": MapDataset.range(3)}
    wrong = [
        (3, TypeError, "mapping of positions"),
        ([(0, {"a": 1})], TypeError, "mapping of positions.* of type list"),
        ({}, ValueError, r"position 0, where .*got weights at \[\]: add {0: "),
        ({1: {"a": 1}}, ValueError, r"position 0.*\[1\]"),
    ]
    wrong += [
        ({0: {"a": w}}, ValueError, "finite numbers, 0 or more")
        for w in (-1, math.nan, math.inf, "1", None)
    ]
    wrong += [
        ({0: {"a": 0}}, ValueError, "above 0"),
        ({0: {"a": 1}, 9: {}}, ValueError, "above 0 .*got {} at 9: give one"),
        ({0: {1: 1, "1": 2}}, ValueError, "differ as text, got '1' twice at 0"),
        ({0: {"a": 1, "b": 1e-9}}, ValueError, "millionth"),
        ({0: 3}, TypeError, "names"),
        ({False: {"a": 1}}, TypeError, "an integer, got False"),
        ({0: [1, 2], 5: [1]}, ValueError, "as many weights"),
    ]
    for steps, error, match in wrong:
        assert_raises(error, match, Schedule, steps)
        assert_raises(error, match, Schedule.linear, steps)
    for make in (MapDataset.mix, IterDataset.mix):
        with pytest.raises(ValueError, match=r"'c'.*by these names"):
            make(parts, Schedule({0: {"a": 1, "c": 1}}))
        with pytest.raises(ValueError, match=r"'a'.*as sequences"):
            make([*parts.values()], Schedule({0: {"a": 1}}))
        assert_raises(ValueError, "stop must be", make, parts, stop="last")
        with pytest.raises(ValueError, match="one number for each of the 2 datasets"):
            make([*parts.values()], Schedule({0: [1]}))
    assert_raises(ValueError, "Mix streams", MapDataset.mix, parts, by=len)
    assert_raises(TypeError, "by must be", IterDataset.mix, parts, by=3)
    assert_raises(TypeError, "length of an element", next, iter(IterDataset.mix(parts, by=str)))
    assert_raises(IndexError, "never stops", MapDataset.mix(parts, stop="never").__getitem__, -1)
    assert_raises(ValueError, "no IterDataset.mix", iter(MapDataset.range(3)).counts)


@pytest.mark.parametrize("options", [{}, {"stop": "all"}, {"stop": "never"}])
@pytest.mark.filterwarnings("ignore:.*takes every n-th element")
@pytest.mark.parametrize(
    "weights",
    [{"a": 2, "b": 1, "c": 1}, Schedule({0: {"a": 1, "b": 3}, 7: {"a": 1, "c": 2, "b": 1}})],
)
def test_a_mixture_of_map_datasets_counts_what_came(weights, options):
    parts = {
        "a": MapDataset.range(7),
        "b": MapDataset.range(100, 106),
        "c": MapDataset.range(200, 205),
    }
    mixed = MapDataset.mix(parts, weights, **options)
    for ds in (
        mixed,
        *([] if "stop" in options and options["stop"] == "never" else [mixed.repeat(3)]),
    ):
        texts = (
            ds.map(str).random_map(lambda x, rng: x, seed=1).to_iter_dataset().thread_prefetch(3)
        )
        it, seen = iter(texts), Counter()
        for position, x in enumerate(itertools.islice(ds, 45)):
            found = it.counts()
            assert {name: counts["elements"] for name, counts in found.items()} == {
                name: seen[name] for name in "abc"
            }
            assert all(found[name]["epochs"] == seen[name] // len(parts[name]) for name in "abc")
            assert next(it) == str(x)
            seen["abc"[x // 100]] += 1
            if position == 20:
                state, it = it.get_state(), iter(texts)
                it.set_state(state)
    batches = iter(mixed.batch(4).to_iter_dataset())
    next(batches)
    assert sum(counts["elements"] for counts in batches.counts().values()) == 4
    with pytest.raises(ValueError, match="nor in order"):
        iter(mixed.shuffle(seed=1) if options != {"stop": "never"} else mixed[::2]).counts()
    assert eval(repr(Schedule({0: {"a": 0.7, "b": 1}}))) == Schedule(
        {0: {"b": 1, "a": Fraction(7, 10)}}
    )
