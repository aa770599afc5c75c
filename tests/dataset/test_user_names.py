"""Users' classes may have attributes and methods of any names but those of a short list."""

import inspect
import re

import numpy as np
import pytest
from users_datasets import BareIterator, BareMap, BareStream

from gristmill import DatasetIterator, IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.experimental import (
    InterleaveIterDataset,
    ThreadPrefetchIterDataset,
    ZipIterDataset,
    ZipMapDataset,
    multithread_prefetch,
)

NAMES = re.findall(
    r"\w+",
    """
    adds ahead allocate array arrays at augment base batch batch_size batches before begin
    behind block block_size blocks budget buffer build cache children class_name clone closed
    columns components config context copy count counter current cursor cycle data dataset
    datasets decode default definition device dictionary drawn draws drop drops dtype element
    elements encode end engine epoch epochs error errors examples executor expect family fd
    features file files fill filter flow fn folder function generator handle has_failed header
    index index_of indices inner instrument is_closed item items iterator join key keys kind
    label labels lanes last length limit limits lock log logger made_of make map mapping marks
    mark metadata metrics mixes name names next next_index num num_elements num_workers observed
    offset offsets open options order origin origins over owner parameters params part parts
    path paths place pool pop pos position prefetch process push queue random rate read reader
    record records repeat reset restore return_to rng root rows run sample sampler samples
    schedule seed shape shard shards shuffle size skip slice source sources split stage start
    state state_at step steps stop stream table take text thread threads tokenizer tokens total
    transform transforms update upstream value values weights window work worker workers write
    """,
)
PRIVATE = [f"_{name}" for name in NAMES]
HOOKS = {
    "_parent",
    "_parents",
    "_ctx",
    "_stats",
    "_default_seed",
}  # ours to read, a user's to replace


def test_the_library_has_few_names_in_classes_of_users():
    assert len(NAMES) >= 150
    for base in (MapDataset, IterDataset, DatasetIterator):
        names = {
            name
            for kind in base.__mro__
            if kind.__module__.startswith("gristmill")
            for name in vars(kind)
        }
        ours = {
            name
            for name in names
            if name.startswith("_") and not name.startswith(("__", "_gm_", "_abc_"))
        }
        assert ours <= HOOKS | {
            "_element_spec",
            "_get_next_index",
            "_set_next_index",
            "_repr_html_",
        }
        assert all(
            not inspect.isdatadescriptor(inspect.getattr_static(base, name))
            for name in HOOKS & names
        )


PROTOCOL = {"close", "start_prefetch"}  # of iterators, which those downstream call


def named(kind, how):
    """Return a subclass of ``kind`` that uses all names, for attributes of objects or methods."""
    names = [*PRIVATE, *HOOKS, *{*NAMES, *public_names(kind)} - {"n", "position"} - PROTOCOL]
    names = [name for name in names if name not in vars(kind)]
    if how == "methods":

        def helper(self, *, only_for_users):
            raise AssertionError("called by the library")

        return type(kind.__name__, (kind,), dict.fromkeys(names, helper))

    def __init__(self, *args):
        kind.__init__(self, *args)
        for name in names:
            setattr(self, name, "mine")

    return type(kind.__name__, (kind,), {"__init__": __init__})


def public_names(kind):
    return [name for name in dir(kind) if not name.startswith("_")]


def add_one(x):
    return x + 1


def is_odd(x):
    return x % 2 == 1


def draw(x, rng):
    return x, int(rng.integers(100))


def twice(x):
    return [x, x]


def as_row(x):
    return {"x": np.full(x % 4 + 1, x)}


THREADS = MultiprocessingOptions(1, executor="threads")
LENGTHS = np.arange(12) % 4 + 1
MAP_STAGES = {
    "batch": lambda ds: MapDataset.batch(ds, 3),
    "block_shuffle": lambda ds: MapDataset.block_shuffle(ds, 4, seed=1),
    "bucket_batch": lambda ds: MapDataset.bucket_batch(
        MapDataset.map(ds, as_row), LENGTHS, [2, 4], batch_sizes=2
    ),
    "concatenate": lambda ds: MapDataset.concatenate([ds, ds]),
    "filter": lambda ds: MapDataset.filter(ds, is_odd),
    "flat_map": lambda ds: MapDataset.flat_map(ds, twice, max_fan_out=2),
    "map": lambda ds: MapDataset.map(ds, add_one),
    "map_with_index": lambda ds: MapDataset.map_with_index(ds, lambda i, x: (i, x)),
    "mix": lambda ds: MapDataset.mix({"a": ds, "b": MapDataset.range(9)}, {"a": 2, "b": 1}),
    "random_map": lambda ds: MapDataset.random_map(ds, draw, seed=1),
    "repeat": lambda ds: MapDataset.repeat(ds, 2),
    "seed": lambda ds: MapDataset.seed(ds, 3).shuffle(),
    "shuffle": lambda ds: MapDataset.shuffle(ds, seed=1),
    "slice": lambda ds: MapDataset.slice(ds, slice(1, None, 2)),
    "split": lambda ds: MapDataset.split(ds, {"train": 0.5, "test": 0.5}, seed=0)["train"],
    "to_iter_dataset": lambda ds: MapDataset.to_iter_dataset(ds, ReadOptions(2, 4)),
    "tolerate": lambda ds: MapDataset.tolerate(ds, ValueError),
    "window_shuffle": lambda ds: MapDataset.window_shuffle(ds, 4, seed=1),
    "zip": lambda ds: ZipMapDataset([ds, ds]),
    "global_batch": lambda ds: MapDataset.global_batch(ds, 3, num_lanes=3),
    "interleave": lambda ds: InterleaveIterDataset([ds, ds], cycle_length=2),
    "workers": lambda ds: MapDataset.to_iter_dataset(ds).mp_prefetch(THREADS),
    "itself": lambda ds: ds,
}
ITER_STAGES = {
    "batch": lambda ds: IterDataset.batch(ds, 3),
    "cache": lambda ds: IterDataset.cache(ds).repeat(2),
    "filter": lambda ds: IterDataset.filter(ds, is_odd),
    "flat_map": lambda ds: IterDataset.flat_map(ds, twice),
    "limit": lambda ds: IterDataset.limit(ds, 7),
    "map": lambda ds: IterDataset.map(ds, add_one),
    "map_with_index": lambda ds: IterDataset.map_with_index(ds, lambda i, x: (i, x)),
    "mix": lambda ds: IterDataset.mix(
        {"a": ds, "b": MapDataset.range(9).to_iter_dataset()}, {"a": 2, "b": 1}
    ),
    "mp_prefetch": lambda ds: IterDataset.mp_prefetch(ds, THREADS),
    "multithread_prefetch": lambda ds: multithread_prefetch(ds, 1, 2),
    "random_map": lambda ds: IterDataset.random_map(ds, draw, seed=1),
    "rebatch": lambda ds: IterDataset.batch(ds, 3).rebatch(2),
    "repeat": lambda ds: IterDataset.repeat(ds, 2),
    "seed": lambda ds: IterDataset.seed(ds, 3),
    "thread_prefetch": lambda ds: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=2),
    "tolerate": lambda ds: IterDataset.tolerate(ds, ValueError),
    "window_shuffle": lambda ds: IterDataset.window_shuffle(ds, 4, seed=1),
    "zip": lambda ds: ZipIterDataset([ds, ds]),
    "interleave": lambda ds: InterleaveIterDataset([ds, ds], cycle_length=2),
    "itself": lambda ds: ds,
}


def results(ds):
    """Return elements, states, what follows one of these, and the text of a dataset."""
    it = iter(ds)
    states, elements = [it.get_state()], []
    for x in it:
        elements.append(x)
        states.append(it.get_state())
    again = iter(ds)
    again.set_state(states[len(elements) // 2])
    return repr([elements, states, list(again), repr(ds)])


@pytest.mark.parametrize("how", ["attributes", "methods"])
@pytest.mark.parametrize("stage", MAP_STAGES)
def test_map_datasets_of_users_may_use_any_name(stage, how):
    assert results(MAP_STAGES[stage](named(BareMap, how)(12))) == results(
        MAP_STAGES[stage](BareMap(12))
    )


@pytest.mark.parametrize("how", ["attributes", "methods"])
@pytest.mark.parametrize("stage", ITER_STAGES)
def test_streams_of_users_may_use_any_name(stage, how):
    class Stream(named(BareStream, how)):
        def __iter__(self):
            return named(BareIterator, how)(12)

    Stream.__name__ = "BareStream"
    assert results(ITER_STAGES[stage](Stream(12))) == results(ITER_STAGES[stage](BareStream(12)))
