"""Pipelines that are not deterministic, each for another reason, with the words expected in stage
and reason.
"""

import functools
import gc
import os
import random
import threading
import time
import uuid
from operator import itemgetter
from pathlib import Path

import elsewhere
import numpy as np
from elsewhere import numbered as imported

import gristmill as grain

FOLDER = Path(__file__).parents[1]
WORDS = ["one", "two", "three", "four", "five", "six", "seven"]
NAMES = iter(WORDS * 1000)
SEEN, VOCABULARY, COARSE, LATER, UNIQUE = [], {}, {}, {}, set()


def numbers():
    return grain.MapDataset.range(40).map(int)


def rows():
    return grain.MapDataset.source([{"n": i} for i in range(8)])


def in_place(row):
    row["n"] += 1
    return row


def counting(x):
    counting.calls += 1
    return x, counting.calls


counting.calls = 0


def numbered(word, _vocabulary={}):  # noqa: B006
    return _vocabulary.setdefault(word, len(_vocabulary))


@functools.lru_cache
def first_of(key):
    return LATER.setdefault(key, len(LATER))


@functools.cache
def squared(x):
    return x * x


def is_new(x):
    return x not in UNIQUE and not UNIQUE.add(x)


class Centred:  # by the first element that it gets
    def __call__(self, x):
        if not hasattr(self, "mean"):
            self.mean = x
        return x - self.mean


def with_generator():
    rng = np.random.default_rng(0)
    return numbers().map(lambda x: x + rng.normal()).shuffle(seed=1)


class Adding:
    total = 0

    def __call__(self, x):
        self.total += x
        return self.total


class Forgetful(grain.DatasetIterator):
    total = 0  # which its state lacks

    def __next__(self):
        self.total += next(self._parent)
        return self.total

    def get_state(self):
        return self._parent.get_state()

    def set_state(self, state):
        self._parent.set_state(state)


class Sums(grain.IterDataset):
    def __iter__(self):
        return Forgetful(self._parent.__iter__())


class Ordered(grain.MapDataset):
    last = 0  # that was asked for

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self.slice(index)
        last, self.last = self.last, index
        return index - last


def mapped(fn):
    return lambda: numbers().map(fn).map(str).shuffle(seed=1).batch(2)


def streamed(fn):
    return lambda: (
        numbers().to_iter_dataset().map(fn).filter(lambda x: x is not None).batch(3, batch_fn=list)
    )


HERE = {  # a second run in this process shows these
    "random": (
        mapped(lambda x: x + random.random()),
        "MapMapDataset(transform=<lambda>",
        "global generator of random",
    ),
    "numpy": (
        streamed(lambda x: x + np.random.rand()),
        "MapIterDataset(",
        "global generator of numpy.random",
    ),
    "no seed": (
        mapped(lambda x: x + np.random.default_rng().random()),
        "MapMapDataset(transform=<lambda>",
        "without a seed",
    ),
    "uuid": (streamed(lambda x: (x, uuid.uuid4().hex)), "MapIterDataset(", "without a seed"),
    "clock": (
        streamed(lambda x: (x, time.time())),
        "MapIterDataset(",
        "the clock is read: it calls time.time",
    ),
    "in place": (
        lambda: rows().shuffle(seed=1).map(in_place).map(itemgetter("n")),
        "transform=in_place",
        "changed in place",
    ),
    "in place, cached": (
        lambda: (
            rows()
            .map(dict.copy)
            .to_iter_dataset()
            .cache()
            .map(in_place)
            .map(itemgetter("n"))
            .repeat(3)
        ),
        "MapIterDataset(transform=in_place",
        "changed in place: it changes its input at ['n'], from 0 to 1",
    ),
    "generator": (with_generator, "MapMapDataset(transform=<lambda>", "a generator is kept: rng"),
    "iterator": (
        mapped(lambda x: (x, next(NAMES))),
        "MapMapDataset(",
        "an iterator is kept: the global variable NAMES",
    ),
    "counter": (
        mapped(counting),
        "transform=counting",
        "state is kept between calls: the attribute calls",
    ),
    "global list": (
        mapped(lambda x: SEEN.append(x) or len(SEEN)),
        "MapMapDataset(",
        "the global variable SEEN",
    ),
    "with garbage": (
        mapped(lambda x: (SEEN.append(x), gc.collect(0), len(SEEN))[2]),
        "MapMapDataset(",
        "the global variable SEEN",
    ),
    "object": (lambda: numbers().map(Adding()).map(str), "transform=Adding", "total"),
}
COLD = {  # a second run finds the state of the first one: only unused copies show these
    "vocabulary": (
        mapped(lambda x: VOCABULARY.setdefault(x % 7, len(VOCABULARY))),
        "MapMapDataset(",
        "VOCABULARY of <lambda>",
    ),
    "vocabulary of a module": (
        mapped(numbered),
        "transform=numbered",
        "default argument 0 of numbered",
    ),
    "function of another module": (
        mapped(lambda x: imported(x % 7)),
        "MapMapDataset(",
        "WORDS of numbered",
    ),
    "attribute of another module": (
        mapped(lambda x: elsewhere.numbered(x % 7)),
        "MapMapDataset(",
        "WORDS of numbered",
    ),
    "coarse cache": (
        mapped(lambda x: COARSE.setdefault(x % 7, x)),
        "MapMapDataset(",
        "COARSE of <lambda>",
    ),
    "coarse lru_cache": (mapped(lambda x: first_of(x % 7)), "MapMapDataset(", "kept between calls"),
    "first element": (
        streamed(Centred()),
        "MapIterDataset(transform=Centred",
        "the attribute mean of Centred",
    ),
    "seen before": (
        lambda: numbers().shuffle(seed=1).to_iter_dataset().map(lambda x: x % 7).filter(is_new),
        "FilterIterDataset(",
        "the global variable UNIQUE of is_new",
    ),
    "state": (lambda: Sums(numbers().to_iter_dataset()).map(str), "Sums", "get_state"),
    "order of calls": (lambda: Ordered(numbers()).map(str), "Ordered", "last"),
    "rng in elements": (
        lambda: numbers().random_map(lambda x, rng: (x, rng), seed=1).to_iter_dataset(),
        "RandomMapMapDataset",
        "asked for at once",
    ),
}
IN_PROCESSES = {  # those that only another process shows
    "set": (
        mapped(lambda x: "".join({f"{word}{x}" for word in WORDS})),
        "MapMapDataset(",
        "a set is iterated",
    ),
    "process": (streamed(lambda x: (x, os.getpid())), "MapIterDataset(", "process"),
    "hash": (mapped(lambda x: hash(f"{x}")), "MapMapDataset(transform=<lambda>", "hash()"),
    "address": (mapped(lambda x: (x, id(WORDS))), "MapMapDataset(transform=<lambda>", "address"),
    "thread": (
        mapped(lambda x: (x, threading.get_ident())),
        "MapMapDataset(transform=<lambda>",
        "thread",
    ),
    "files": (
        mapped(lambda x: [x, *os.listdir(FOLDER)]),  # noqa: PTH208
        "MapMapDataset(",
        "the order of files",
    ),
    "glob": (
        mapped(lambda x: [str(path) for path in FOLDER.glob("*.py")]),
        "MapMapDataset(",
        "the order of files",
    ),
}
