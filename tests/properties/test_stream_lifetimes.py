"""References held by stream stages and their reads: alone, and nested."""

import contextlib
import itertools
import sysconfig
import weakref
from collections import Counter

import numpy as np
import pytest
from computing_ahead import without_collector  # noqa: F401
from waiting import running, wait_until

from gristmill import IterDataset, MapDataset, ReadOptions
from gristmill import experimental as gx

# Without the GIL, what another thread has made is freed when that thread runs next.
FREES_LATER = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
LENGTH = 60
READING = [ReadOptions(num_threads=0), ReadOptions(num_threads=2, prefetch_buffer_size=20)]


class Element:
    def __init__(self, x, *parts):
        self.x, self.parts = x, parts

    def __deepcopy__(self, memo):
        return Element(self.x)


def source(seen=None, length=LENGTH, options=READING[0]):
    def make(i):
        if seen is not None:
            seen[i] += 1
        return Element(i)

    return MapDataset.range(length).map(make).to_iter_dataset(options)


def tokens(ds):
    return ds.map(lambda element: {"x": np.full(3, element.x)})


STAGES = {
    "source": lambda ds: ds,
    "zip": lambda ds: ds.zip(),
    "flat_map": lambda ds: ds.flat_map(lambda x: [Element(0), Element(1)]),
    "window": lambda ds: ds.window_shuffle(10, seed=1),
    "limit": lambda ds: ds.limit(10 * LENGTH),
    "repeat": lambda ds: ds.repeat(1),
    "cache": lambda ds: ds.cache(copy_elements=True).repeat(2),
    "rebatch": lambda ds: ds.map(lambda element: np.full(3, element.x)).rebatch(5),
    "mix": lambda ds: IterDataset.mix([ds]),
    "interleave": lambda ds: gx.InterleaveIterDataset([ds], cycle_length=1, iter_buffer_size=3),
    "interleave_directly": lambda ds: gx.InterleaveIterDataset(
        [ds], cycle_length=1, iter_buffer_size=0
    ),
    "pack": lambda ds: gx.FirstFitPackIterDataset(
        tokens(ds), length_struct={"x": 7}, num_packing_bins=4
    ),
    "concat": lambda ds: gx.ConcatThenSplitIterDataset(tokens(ds), length_struct={"x": 7}),
    "prefetch": lambda ds: gx.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=8),
    "prefetch_directly": lambda ds: gx.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=0),
    "threads": lambda ds: gx.multithread_prefetch(ds, 2, 4),
    "threads_directly": lambda ds: gx.multithread_prefetch(ds, 2, 0),
    "batch": lambda ds: ds.batch(4, batch_fn=lambda elements: Element(0, *elements)),
}
each_stage = pytest.mark.parametrize("stage", STAGES)


def refs(x):
    """Weak references to all that was delivered with ``x``."""
    if isinstance(x, Element):
        return [weakref.ref(x), *refs(x.parts)]
    if isinstance(x, list | tuple | dict):
        return [ref for part in (x.values() if isinstance(x, dict) else x) for ref in refs(part)]
    return [weakref.ref(x)] if isinstance(x, np.ndarray) else []


@each_stage
@pytest.mark.usefixtures("without_collector")
def test_what_was_delivered_is_the_consumers_alone(stage):
    for number, after in enumerate(["source", "mix", "prefetch", "threads_directly", "interleave"]):
        options = READING[(number + [*STAGES].index(stage)) % 2]
        it = iter(STAGES[after](STAGES[stage](source(options=options))))
        num, left = 0, []
        for take in itertools.cycle([lambda it: [next(it)], lambda it: it._gm_take(7)]):
            try:
                found = refs(take(it))
            except StopIteration:
                break
            num += len(found)
            left += [ref for ref in found if ref() is not None]
            if left and not FREES_LATER:  # a thread is about to let go of it
                wait_until(lambda left=left: all([ref() is None for ref in left]))
        wait_until(lambda left=left: all([ref() is None for ref in left]))
        assert num >= 20
        it.close()


@each_stage
@pytest.mark.usefixtures("without_collector")
def test_threads_of_a_dropped_iterator_end(stage):
    for below, num in zip(
        ["prefetch", "interleave", "threads"] * 2, [0, 1, 5, 5, 0, 1], strict=True
    ):
        others = set(running("gristmill"))
        ds = STAGES[below](source(length=10**6, options=READING[1]))
        it = iter(STAGES[stage](IterDataset.mix([ds, ds])))
        it.start_prefetch()
        list(itertools.islice(it, num))
        it.get_state()
        assert {*running("gristmill")} - others
        ref = weakref.ref(it)
        del it
        assert ref() is None
        for thread in {*running("gristmill")} - others:
            with contextlib.suppress(RuntimeError):  # another thread is about to start it
                thread.join(1)
        wait_until(lambda others=others: not {*running("gristmill")} - others)


OF_ELEMENTS = ["rebatch", "pack", "concat"]  # they need the elements of the source


@each_stage
def test_elements_are_read_once_but_for_the_last_block(stage):
    for number, after in enumerate(STAGES, [*STAGES].index(stage)):
        if after in OF_ELEMENTS and stage in ("batch", "zip", *OF_ELEMENTS):
            continue
        seen = Counter()
        ds = STAGES[after](STAGES[stage](source(seen, length=4 * LENGTH)))
        for _ in ds.batch([1, 7][number % 2], batch_fn=list):
            pass
        assert all(seen[i] == 1 for i in range(2 * LENGTH)), after
        # stages of two kinds look for the end in whole blocks
        assert max(seen.values()) <= 4, after


class Vectored:
    def __len__(self):
        return LENGTH

    def __getitem__(self, key):
        return Element(key)

    def __getitems__(self, keys):
        return [Element(key) for key in keys]


def renewed(x):
    """Another element: ``map`` keeps the last one of its parent until the next one is requested."""
    return Element(x.x)


SAME = {
    "source": lambda ds: ds,
    "map": lambda ds: ds.map(renewed),
    "maps": lambda ds: ds.map(renewed).map(renewed),
    "map_with_index": lambda ds: ds.map_with_index(lambda i, x: x),
    "random_map": lambda ds: ds.random_map(lambda x, rng: x, seed=1),
    "filter": lambda ds: ds.filter(lambda x: True),
    "shuffle": lambda ds: ds.shuffle(seed=1)[:],
    "block_shuffle": lambda ds: ds.block_shuffle(4, seed=1),
    "chosen": lambda ds: ds.slice([3, 1, 2]).repeat(),
    "mix": lambda ds: MapDataset.mix([ds, ds.map(renewed)]),
    "concatenate": lambda ds: MapDataset.concatenate([ds[:5], ds[5:]]),
    "zip": lambda ds: ds.zip(ds).map(lambda pair: renewed(pair[0])),
    "flat_map": lambda ds: ds.flat_map(lambda x: [x], max_fan_out=1),
    "batch": lambda ds: ds.batch(2, batch_fn=lambda pair: pair[0]),
    "tolerate": lambda ds: ds.tolerate(ZeroDivisionError),
}


@pytest.mark.parametrize("stage", SAME.values(), ids=SAME)
@pytest.mark.parametrize(
    "ds",
    [MapDataset.range(LENGTH).map(Element), MapDataset.source(Vectored())],
    ids=["map", "source"],
)
def test_an_iterator_of_a_map_dataset_keeps_no_element(without_collector, ds, stage):  # noqa: F811
    items = stage(ds)._gm_items(range(20))
    for _ in range(20):
        element = weakref.ref(next(items))
        assert element() is None


def test_map_keeps_no_element_of_its_parent_but_the_last(without_collector):  # noqa: F811
    parent = MapDataset.range(LENGTH).map(Element)
    items, elements = parent.map(lambda x: x).map(lambda x: x)._gm_items(range(20)), []
    for _ in range(20):
        elements.append(weakref.ref(next(items)))
        assert all(element() is None for element in elements[:-1])
