"""Pipelines that are not deterministic, each for another reason: the stage and the words by which the reason is to be told."""

import os
import random
import threading
import time
import uuid
from pathlib import Path

import numpy as np

import gristmill as grain

FOLDER = Path(__file__).parents[1]
WORDS = ["one", "two", "three", "four", "five", "six", "seven"]
COUNT = [0]


def numbers():
    return grain.MapDataset.range(40).map(int)


def global_random(x):
    return x + random.random()


def numpy_random(x):
    return x + np.random.rand()


def fresh_generator(x):
    return x + np.random.default_rng().random()


def in_place(x):
    x["n"] += 1
    return x


def iterate_set(x):
    return "".join({f"{word}{x}" for word in WORDS})


def read_clock(x):
    return x, time.time()


def use_address(x):
    return x, id(WORDS) % 1000_003


def use_hash(x):
    return hash(f"{x}") % 1000


def counting(x):
    counting.calls += 1
    return x, counting.calls


counting.calls = 0


def listed(x):
    return [*os.listdir(FOLDER), x]


def globbed(x):
    return [path.name for path in FOLDER.glob("*.py")] + [x]


def by_thread(x):
    return x, threading.get_ident()


def by_process(x):
    return x, os.getpid()


def unique(x):
    return x, uuid.uuid4().hex


def global_count(x):
    COUNT[0] += 1
    return x, COUNT[0]


def kept_generator():
    rng = np.random.default_rng(0)
    return numbers().map(lambda x: x + rng.normal())


def kept_iterator():
    names = iter(WORDS * 1000)
    return numbers().map(lambda x: (x, next(names)))


def plain_generator():
    names = (word for _ in range(1000) for word in WORDS)
    return numbers().map(lambda x: (x, next(names)))


class Stateful:
    """A transformation with a position."""

    def __init__(self):
        self.total = 0

    def __call__(self, x):
        self.total += x
        return self.total


class Forgetful(grain.DatasetIterator):
    """Its state leaves out what it has added up."""

    def __init__(self, parent):
        super().__init__(parent)
        self._sum = 0

    def __next__(self):
        self._sum += next(self._parent)
        return self._sum

    def get_state(self):
        return self._parent.get_state()

    def set_state(self, state):
        self._parent.set_state(state)


class Sums(grain.IterDataset):
    def __iter__(self):
        return Forgetful(self._parent.__iter__())


class Ordered(grain.MapDataset):
    """An element depends on the one that was asked for before."""

    def __init__(self, parent):
        super().__init__(parent)
        self._last = 0

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self.slice(index)
        last, self._last = self._last, index
        return index, index - last


class Once(grain.IterDataset):
    """Its iterators share one position."""

    def __init__(self):
        super().__init__()
        self._numbers = iter(range(10_000))

    def __iter__(self):
        return iter([next(self._numbers) for _ in range(20)])


def shared_rng():
    return numbers().random_map(lambda x, rng: (x, rng), seed=1).to_iter_dataset().batch(4, batch_fn=list)


def rows():
    return grain.MapDataset.source([{"n": i} for i in range(40)])


# name: the pipeline, what the stage's text begins with, and what the reason has in it
PLANTED = {
    "random": (
        lambda: numbers().map(global_random).map(str).batch(2),
        "MapMapDataset(transform=global_random",
        "global generator of random",
    ),
    "numpy.random": (
        lambda: numbers().to_iter_dataset().map(numpy_random),
        "MapIterDataset(transform=numpy_random",
        "global generator of numpy.random",
    ),
    "unseeded": (lambda: numbers().map(fresh_generator).shuffle(seed=1), "MapMapDataset(transform=fresh_gen", "without a seed"),
    "uuid": (lambda: numbers().map(unique), "MapMapDataset(transform=unique", "without a seed"),
    "in place": (lambda: rows().map(dict.copy).map(in_place).map(lambda x: x["n"]), None, None),
    "in place of the source": (
        lambda: rows().shuffle(seed=1).map(in_place).map(lambda x: x["n"]),
        "MapMapDataset(transform=in_place",
        "in place",
    ),
    "in place of a cache": (
        lambda: rows()[:5].map(dict.copy).to_iter_dataset().cache().map(in_place).map(lambda x: x["n"]).repeat(3),
        "MapIterDataset(transform=in_place",
        "in place",
    ),
    "kept generator": (kept_generator, "MapMapDataset(transform=<lambda>", "a generator is kept: rng"),
    "kept iterator": (kept_iterator, "MapMapDataset(transform=<lambda>", "an iterator is kept: names"),
    "kept generator of Python": (plain_generator, "MapMapDataset(transform=<lambda>", "an iterator is kept: names"),
    "set": (lambda: numbers().map(iterate_set).map(str.upper), "MapMapDataset(transform=iterate_set", "a set is iterated"),
    "hash": (lambda: numbers().map(use_hash), "MapMapDataset(transform=use_hash", "hash()"),
    "clock": (lambda: numbers().map(read_clock).batch(2, batch_fn=list), "MapMapDataset(transform=read_clock", "time.time"),
    "address": (lambda: numbers().map(use_address), "MapMapDataset(transform=use_address", "id"),
    "counter": (lambda: numbers().map(counting), "MapMapDataset(transform=counting", "state is kept"),
    "global counter": (lambda: numbers().map(global_count), "MapMapDataset(transform=global_count", "COUNT"),
    "object with state": (lambda: numbers().map(Stateful()).map(str), "MapMapDataset(transform=Stateful", "total"),
    "listdir": (lambda: numbers().map(listed), "MapMapDataset(transform=listed", "order of files"),
    "glob": (lambda: numbers().map(globbed).map(list), "MapMapDataset(transform=globbed", "order of files"),
    "thread": (lambda: numbers().map(by_thread), "MapMapDataset(transform=by_thread", "thread"),
    "process": (lambda: numbers().map(by_process), "MapMapDataset(transform=by_process", "process"),
    "forgetful state": (lambda: Sums(numbers().to_iter_dataset()).map(str), "Sums", "get_state"),
    "order of calls": (lambda: Ordered(numbers()).map(str), "Ordered", "_last"),
    "once": (lambda: Once().map(str), "Once", "iterator"),
    "shared generator": (shared_rng, None, None),
}
