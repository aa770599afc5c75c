"""What stream stages hold on to, and how often they read: alone, and under one another."""

import contextlib
import gc
import itertools
import threading
import time
import weakref
from collections import Counter

import numpy as np
import pytest

from gristmill import IterDataset, MapDataset, ReadOptions
from gristmill.experimental import (
    CacheIterDataset,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
    FlatMapIterDataset,
    InterleaveIterDataset,
    LimitIterDataset,
    RebatchIterDataset,
    RepeatIterDataset,
    ThreadPrefetchIterDataset,
    WindowShuffleIterDataset,
    ZipIterDataset,
    multithread_prefetch,
)

DIRECT = ReadOptions(num_threads=0)
LENGTH = 60
ENOUGH_SECONDS = 30.0  # for a thread to end; a bound for broken code


class Element:
    def __init__(self, x, *parts):
        self.x, self.parts = x, parts

    def __deepcopy__(self, memo):
        return Element(self.x)


def source(seen=None, length=LENGTH, options=DIRECT):
    def make(i):
        if seen is not None:
            seen[i] += 1
        return Element(i)

    return MapDataset.range(length).map(make).to_iter_dataset(options)


def tokens(ds):
    return ds.map(lambda element: {"x": np.full(3, element.x)})


def identity(x):
    return x


STAGES = {
    "source": identity,
    "zip": lambda ds: ZipIterDataset([ds]),
    "flat_map": lambda ds: FlatMapIterDataset(ds, lambda x: [Element(0), Element(1)]),
    "window": lambda ds: WindowShuffleIterDataset(ds, window_size=10, seed=1),
    "limit": lambda ds: LimitIterDataset(ds, 10 * LENGTH),
    "repeat": lambda ds: RepeatIterDataset(ds, 1),
    "cache": lambda ds: RepeatIterDataset(CacheIterDataset(ds, copy_elements=True), 2),
    "rebatch": lambda ds: RebatchIterDataset(ds.map(lambda element: np.full(3, element.x)), 5),
    "mix": lambda ds: IterDataset.mix([ds]),
    "interleave": lambda ds: InterleaveIterDataset([ds], cycle_length=1, iter_buffer_size=3),
    "interleave_directly": lambda ds: InterleaveIterDataset([ds], cycle_length=1, iter_buffer_size=0),
    "pack": lambda ds: FirstFitPackIterDataset(tokens(ds), length_struct={"x": 7}, num_packing_bins=4),
    "concat": lambda ds: ConcatThenSplitIterDataset(tokens(ds), length_struct={"x": 7}),
    "prefetch": lambda ds: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=8),
    "prefetch_directly": lambda ds: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=0),
    "threads": lambda ds: multithread_prefetch(ds, 2, 4),
    "threads_directly": lambda ds: multithread_prefetch(ds, 2, 0),
    "batch": lambda ds: ds.batch(4, batch_fn=lambda elements: Element(0, *elements)),
}


def refs(x):
    """Weak references to all that was delivered with ``x``."""
    if isinstance(x, Element):
        return [weakref.ref(x), *refs(x.parts)]
    if isinstance(x, list | tuple):
        return [ref for part in x for ref in refs(part)]
    if isinstance(x, dict):
        return refs([*x.values()])
    return [weakref.ref(x)] if isinstance(x, np.ndarray) else []


@pytest.fixture
def without_collector():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


READING = {"directly": DIRECT, "by threads": ReadOptions(num_threads=2, prefetch_buffer_size=20)}


@pytest.mark.parametrize("number", range(5))
@pytest.mark.parametrize("stage", STAGES)
def test_what_was_delivered_is_the_consumers_alone(stage, number, without_collector):
    after = ["source", "mix", "prefetch", "threads_directly", "interleave"][number]
    options = [*READING.values()][(number + [*STAGES].index(stage)) % 2]  # in turn: any two choices meet
    it = iter(STAGES[after](STAGES[stage](source(options=options))))
    num = 0
    for take in itertools.cycle([lambda: [next(it)], lambda: it._take(7)]):
        try:
            found = refs(take())
        except StopIteration:
            break
        num += len(found)
        deadline = time.monotonic() + ENOUGH_SECONDS
        while any(ref() is not None for ref in found):  # a thread is about to let go of it
            assert time.monotonic() < deadline
            time.sleep(0)
    assert num >= 20
    it.close()


def running():
    return {thread for thread in threading.enumerate() if thread.name.startswith("gristmill")}


@pytest.mark.parametrize("after", STAGES)
@pytest.mark.parametrize("stage", ["prefetch", "interleave", "threads"])
def test_an_iterator_that_is_dropped_is_gone_and_its_threads_end(stage, after, without_collector):
    for num in (0, 1, 5):
        others = running()
        ds = STAGES[stage](source(length=10**6, options=READING["by threads"]))
        it = iter(STAGES[after](IterDataset.mix([ds, ds])))
        it.start_prefetch()
        list(itertools.islice(it, num))
        it.get_state()
        assert running() - others
        ref = weakref.ref(it)
        del it
        assert ref() is None
        deadline = time.monotonic() + ENOUGH_SECONDS
        while left := running() - others:
            for thread in left:
                with contextlib.suppress(RuntimeError):  # another thread is about to start it
                    thread.join(1)
            assert time.monotonic() < deadline


OF_ELEMENTS = ["rebatch", "pack", "concat"]  # cannot stand behind what makes something else of them
PAIRS = [
    (stage, after)
    for stage in STAGES
    for after in STAGES
    if after not in OF_ELEMENTS or stage not in ("batch", "zip", *OF_ELEMENTS)
]


@pytest.mark.parametrize("block_size", [1, 7])
@pytest.mark.parametrize(("stage", "after"), PAIRS)
def test_elements_are_read_once_but_perhaps_those_of_the_last_block(stage, after, block_size):
    seen = Counter()
    ds = STAGES[after](STAGES[stage](source(seen, length=6 * LENGTH)))
    for _ in ds.batch(block_size, batch_fn=list):
        pass
    assert all(seen[i] == 1 for i in range(3 * LENGTH))
    assert max(seen.values()) <= 4  # stages of two kinds look for the end in whole blocks
