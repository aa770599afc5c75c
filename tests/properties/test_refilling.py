"""Stages that compute groups of elements again: nested at random, restored anywhere, interrupted at
every line.
"""

import itertools
import json
import random
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from computing_ahead import DIRECT
from dropping import Dropping
from formulas import window_order
from interrupting import interrupted

from gristmill import MapDataset
from gristmill.dataset.engine.caching import Cache
from gristmill.dataset.engine.choices import NEW
from gristmill.dataset.engine.elements import BatchStream, Each
from gristmill.dataset.engine.groups import Spread, Window
from gristmill.dataset.engine.joining import Repeat
from gristmill.dataset.engine.rebatching import Rebatch
from gristmill.dataset.engine.stream import Cell, Stream

NUM = 60
ENGINE = tuple(
    f"engine/{name}.py"
    for name in ("groups", "rebatching", "choices", "stream", "elements", "read", "caching")
)


def copies(x):
    return [x] * (x % 3)


def unbatched(batch):
    return batch.tolist()


def in_windows(size, seed, xs):
    windows = [xs[i : i + size] for i in range(0, len(xs), size)]
    return [part[i] for k, part in enumerate(windows) for i in window_order(len(part), seed + k)]


# Each stage, and a model of it: functions of a dataset and of a list.
def window(size, seed):
    return lambda ds: ds.window_shuffle(size, seed=seed), partial(in_windows, size, seed)


def spread(ds_fn, list_fn):
    return lambda ds: ds.flat_map(ds_fn), lambda xs: [y for x in xs for y in list_fn(x)]


def rebatched(first, size, drop):
    def make(ds):
        return ds.batch(first).rebatch(size, drop_remainder=drop).flat_map(unbatched)

    return make, lambda xs: xs[: len(xs) - len(xs) % size if drop else None]


STAGES = {
    "window 7": window(7, 3),
    "window 4": window(4, 1),
    "window 90": window(90, 2),
    "flat_map": spread(copies, copies),
    "flat_map 1": spread(lambda x: (x,), lambda x: [x]),
    "rebatch": rebatched(3, 5, False),
    "rebatch to smaller": rebatched(5, 2, True),
    "limit": (lambda ds: ds.limit(50), lambda xs: xs[:50]),
    "filter": (lambda ds: ds.filter(lambda x: x % 4), lambda xs: [x for x in xs if x % 4]),
    "map": (lambda ds: ds.map(lambda x: x + 1), lambda xs: [x + 1 for x in xs]),
    "repeat": (lambda ds: ds.repeat(2), lambda xs: xs * 2),
    "batch": (lambda ds: ds.batch(4, batch_fn=list).flat_map(list), lambda xs: xs),
    "cache": (lambda ds: ds.cache(copy_elements=True).repeat(2), lambda xs: xs * 2),
    "map_with_index": (
        lambda ds: ds.map_with_index(lambda i, x: x + i % 2),
        lambda xs: [x + i % 2 for i, x in enumerate(xs)],
    ),
}


def random_pipeline(rng, num):
    names = rng.choices([*STAGES], k=num)
    ds, xs = (
        MapDataset.range(num_elements := rng.randrange(30, NUM)).to_iter_dataset(DIRECT),
        [*range(num_elements)],
    )
    for name in names:
        make, model = STAGES[name]
        ds, xs = make(ds), model(xs)
    return ds, xs, names


@pytest.mark.parametrize("seed", range(20))
def test_after_a_restore_anywhere_the_same_elements_follow(seed):
    rng = random.Random(seed)
    ds, expected, names = random_pipeline(rng, rng.randrange(2, 6))
    it, states = iter(ds), []
    for x in expected:
        states.append(json.dumps(it.get_state()))
        assert next(it) == x, names
    assert next(it, None) is None
    states.append(json.dumps(it.get_state()))
    assert next(it, None) is None and json.dumps(it.get_state()) == states[-1]
    size = rng.choice([1, 7])
    for i in range(0, len(states), 3):
        it.set_state(json.loads(states[i]))
        found = list(itertools.islice(it, size)) if size == 1 else it._gm_take(size)
        assert found == expected[i : i + size], names
        it.set_state(json.loads(json.dumps(it.get_state())))
        assert [*it] == expected[i + size :], names


INTERRUPTED = [
    ["window 4", "flat_map", "window 7"],
    ["rebatch", "window 7", "batch"],
    ["flat_map", "rebatch to smaller", "window 4", "limit"],
    ["batch", "flat_map", "cache"],
]


@pytest.mark.parametrize("names", INTERRUPTED)
def test_an_interrupt_at_any_line_loses_no_element(names):
    ds, expected = MapDataset.range(11).to_iter_dataset(DIRECT), [*range(11)]
    for name in names:
        make, model = STAGES[name]
        ds, expected = make(ds), model(expected)
    num_interrupts = 0
    for num in range(0, len(expected), 5):
        for number in itertools.count(num % 2, 2):
            it = iter(ds)
            found = [next(it) for _ in range(num)]
            was_interrupted = interrupted(
                lambda it=it, found=found: found.append(next(it)), number, ENGINE
            )
            if number % 4 > 1:
                it.set_state(it.get_state())
            assert [*found, *it] == expected, number
            if not was_interrupted:
                break
            num_interrupts += 1
    assert num_interrupts > 40


# What positions do not determine: streams that drop elements as they like, and note that.
STAGE = SimpleNamespace(_gm_parameters=SimpleNamespace(text=str))


class Numbers(Stream):
    """The numbers below ``NUM``; the position is the next one."""

    def start(self):
        return 0

    def save(self, pos):
        return pos

    def load(self, state):
        return state

    def _run(self, cell):
        while cell.pos < NUM:
            cell.pos += 1
            yield cell.pos - 1


# Streams and models of all but those that drop elements.
REFILLING = {
    "window": (lambda parent: Window(STAGE, parent, 7, 3), partial(in_windows, 7, 3)),
    "large window": (lambda parent: Window(STAGE, parent, 40, 5), partial(in_windows, 40, 5)),
    "flat_map": (
        lambda p: Spread(STAGE, p, copies, with_nones=False),
        lambda xs: [y for x in xs for y in copies(x)],
    ),
    "rebatch": (
        lambda p: Spread(
            STAGE,
            Rebatch(
                STAGE,
                BatchStream(STAGE, p, 3, np.array, drop_remainder=False),
                5,
                drop_remainder=False,
            ),
            unbatched,
            with_nones=False,
        ),
        lambda xs: xs,
    ),
    "cache": (
        lambda p: Repeat(STAGE, Cache(STAGE, p, copy_elements=False), 2, None),
        lambda xs: xs * 2,
    ),
}


class Run:
    """A random chain of streams, the elements that came, and what was decided so far."""

    def __init__(self, names, rng):
        self.names, self.rng = names, rng
        self.delivered = []
        self.open()

    def open(self):
        self.stream, self.droppers = Numbers(STAGE), []
        for name in self.names:
            if name == "drop":
                self.stream = Dropping(STAGE, self.stream, self.rng)
                self.droppers.append(self.stream)
            else:
                self.stream = REFILLING[name][0](self.stream)
        self.cell = Cell(self.stream.start())

    def take(self, num):
        run = self.stream.run(self.cell)
        self.cell.wanted = num
        elements = [*itertools.islice(run, num)]
        self.cell.settle()
        self.delivered += elements
        return bool(elements)

    def save(self):
        text = json.dumps(self.stream.save(self.cell.pos))
        return (
            text,
            [*self.delivered],
            [[*dropper.decisions] for dropper in self.droppers],
            self.cell.pos,
        )

    def restore(self, saved, *, opens_again):
        text, delivered, decisions, pos = saved
        if opens_again:
            self.open()
            pos = self.stream.load(json.loads(text))
        self.cell.go_to(pos)
        self.delivered = [*delivered]
        for dropper, decided in zip(self.droppers, decisions, strict=True):
            dropper.decisions[:] = decided

    def check(self):
        xs, droppers = [*range(NUM)], iter(self.droppers)
        for name in self.names:
            xs = next(droppers).model(xs) if name == "drop" else REFILLING[name][1](xs)
        assert self.delivered == xs, self.names


@pytest.mark.parametrize("seed", range(60))
def test_choices_of_elements_that_are_computed_again_are_those_of_the_first_run(seed):
    rng = random.Random(seed)
    names = ["drop", *rng.choices([*REFILLING, "drop"], k=rng.randrange(1, 4))]
    names.append(rng.choice([*REFILLING]))  # without which there is nothing that keeps records
    run = Run(names, rng)
    saved = [run.save()]
    for _ in range(12):
        for _ in range(rng.randrange(8)):
            run.take(rng.choice([1, 1, 1, 5]))
            saved.append(run.save())
        run.restore(rng.choice(saved[-6:]), opens_again=rng.random() < 0.7)
    while run.take(rng.choice([1, 7])):
        pass
    run.check()


class Mixture(Stream):
    """Numbers of two components at random, those of ``b`` from 1000 on; the position is the next
    number of each.
    """

    makes_choices = True

    def __init__(self, rng, names):
        super().__init__(STAGE)
        self.rng, self.names = rng, names

    def start(self):
        return 0, 0

    def save(self, pos):
        return [*pos]

    def load(self, state):
        return tuple(state)

    def _run(self, cell):
        choices = cell.choices
        while True:
            nums = dict(zip("ab", cell.pos, strict=True))
            left = [name for name in self.names if nums[name] < NUM // 2]
            if not left:
                return
            name = choices.ask("0")
            if name is NEW:
                name = self.rng.choice(left)
            choices.note("0", name)
            if name not in self.names:
                continue
            x = nums[name] + 1000 * (name == "b")
            nums[name] += 1
            cell.pos = nums["a"], nums["b"]
            yield x


class Kept(Stream):
    """The elements that seven does not divide."""

    def _run(self, cell):
        for x in self.parent.run(cell):
            if x % 7:
                yield x


HOLDING = {
    "window": lambda p: Window(STAGE, p, 7, 3),
    "window of some": lambda p: Window(STAGE, Kept(STAGE, p), 6, 1),
    "flat_map": lambda p: Spread(STAGE, p, lambda x: [x] * 3, with_nones=False),
    "flat_map of some": lambda p: Spread(
        STAGE, Kept(STAGE, p), lambda x: [x] * 3, with_nones=False
    ),
    "rebatch": lambda p: Rebatch(
        STAGE, Each(STAGE, p, partial(np.full, 3), with_nones=True), 2, drop_remainder=False
    ),
}


@pytest.mark.parametrize("name", HOLDING)
def test_elements_whose_component_is_gone_are_left_out_of_what_is_held(name):
    def opened(names):
        return HOLDING[name](Mixture(rng, names))

    expected = [x for x in range(NUM // 2) if x % 7 or not name.endswith("some")]
    for seed in range(2):
        rng = random.Random(seed)
        stream = opened("ab")
        cell = Cell(stream.start())
        found, states = [], [stream.start()]
        for x in stream.run(cell):
            found.append(x)
            states.append(cell.pos)
        for num, pos in enumerate(states):
            after, texts = [*found[:num]], [json.dumps(stream.save(pos))]
            for _ in range(2):  # and once more from the first position that differs
                other = opened("a")
                cell = Cell(other.load(json.loads(texts[-1])))
                for x in itertools.islice(other.run(cell), 2):
                    after.append(x)
                texts.append(json.dumps(other.save(cell.pos)))
            other = opened("a")
            after += other.run(Cell(other.load(json.loads(texts[-1]))))
            rows = [row for x in after for row in np.atleast_1d(x).tolist()]
            of_a = [x for x in rows if x < 1000]
            assert sorted(of_a) == sorted(expected * (1 if "window" in name else 3))
            assert not any([np.any(x >= 1000) for x in after[num:]])
            if "window" in name:
                size = 7 - name.endswith("some")
                rest = [x for x in found[num : -(-num // size) * size] if x < 1000]
                assert after[num : num + len(rest)] == rest
