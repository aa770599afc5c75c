"""A zoo of pipelines: every checkpoint of one is restored in other ones, which refuse it, or continue as the one saved."""

import contextlib
import itertools
import json
import random
import sys

import cloudpickle
import numpy as np
import pytest
from law_pipelines import PIPELINES, plain
from operations import operation
from refusing import assert_raises

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError
from gristmill.experimental import FlatMapTransform

cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which workers would import, and the laws with it
HANDLER = CheckpointHandler()
NUM_COMPARED = 4  # elements
NUM_OTHERS = 12  # pipelines whose checkpoint is restored
PROCESSES = ("mp_prefetch", "parquet_workers")
TEXT_NAME, PIPELINE_NAME = "process_0-of-1.json", "pipeline_0-of-1.json"


def fan(n=3):
    return operation(FlatMapTransform, "flat_map", lambda x: [x] * (x % n), max_fan_out=n)


def of(*operations, sampler=None, source=range(17), workers=0, shard=None, n=17, **changes):
    """A function that makes a loader; ``changes`` are of its sampler."""
    sampler = sampler or gristmill.samplers.IndexSampler(n, **{"shuffle": True, "seed": 1, "num_epochs": 2, **changes})
    arguments = {"data_source": source, "sampler": sampler, "operations": operations, "shard_options": shard}
    return lambda: gristmill.DataLoader(**arguments, worker_count=workers)


Batch, Shard, Range = gristmill.transforms.Batch, gristmill.sharding.ShardOptions, gristmill.sources.RangeDataSource
Sequential = gristmill.samplers.SequentialSampler
ADD_ONE = operation(gristmill.transforms.Map, "map", lambda x: x + 1)
DRAW = operation(gristmill.transforms.RandomMap, "random_map", lambda x, rng: (x, int(rng.integers(1000))))
ODD = operation(gristmill.transforms.Filter, "filter", lambda x: x % 2)
STEPS = {"map": ADD_ONE, "random": DRAW, "filter": ODD, "batch": Batch(2), "batch3": Batch(3), "fan": fan(), "fan4": fan(4)}
STEPS["drop"] = Batch(2, drop_remainder=True)
CHAINS = ["map", "map_map", "random", "filter", "filter_map", "batch", "batch3", "drop", "map_batch", "batch_map", "fan", "fan4"]
SOURCES = [range(20), Range(0, 17, 1), Range(0, 34, 2), [*range(17)], (*range(17),), np.arange(17)]
CHANGES = [{"shuffle": False}, {"seed": 2}, {"num_epochs": 3}, {"num_epochs": None}, {"n": 16}]
LOADERS = {
    "loader": of(),
    "loader_fan_seed": of(fan(), seed=2),
    "loader_fan_map": of(fan(), ADD_ONE),
    **{f"loader_{chain}": of(*[STEPS[step] for step in chain.split("_")]) for chain in CHAINS},
    **{f"loader, {changes}": of(**changes) for changes in CHANGES},
    **{f"loader_source_{i}": of(source=source) for i, source in enumerate(SOURCES)},
    "loader_sequential": of(sampler=Sequential(17)),
    **{f"loader_sequential_seed_{i}": of(DRAW, sampler=Sequential(17, seed=i)) for i in (5, 6)},
    **{f"loader, sampler {shard}": of(shard_options=Shard(*shard)) for shard in ((0, 2), (1, 2), (0, 2, True))},
    **{f"loader_shard_{i}_of_{n}": of(shard=Shard(i, n)) for i, n in ((0, 2), (1, 2), (0, 3))},
    "loader_shard_drop": of(shard=Shard(0, 2, True)),
}
SAME_BUT_FOR_FUNCTIONS = {"default_options", "map_with_nones", "flat_map_with_nones", "flat_map_to_nothing"}  # of users
ALL = {name: make for name, make in {**PIPELINES, **LOADERS}.items() if name not in SAME_BUT_FOR_FUNCTIONS}


@pytest.fixture
def opened():
    """New iterators of a pipeline, after so many elements; closed at the end."""
    with contextlib.ExitStack() as stack:

        def opened(make, position=0):
            it = stack.enter_context(contextlib.closing(iter(make())))
            following(it, position)
            return it

        yield opened


def following(it, n=NUM_COMPARED):
    return [plain(x) for x in itertools.islice(it, n)]


def save_all(zoo, root):
    """Saves every pipeline in a folder of its name; returns what each would have delivered next."""
    expected = {}
    for name, make in zoo.items():
        with contextlib.closing(iter(make())) as it:
            following(it, 3)
            (root / name).mkdir()
            HANDLER.save(root / name, it)
            expected[name] = following(it)
    return expected


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    root = tmp_path_factory.mktemp("zoo")
    return root, save_all(ALL, root)


def has_the_layout_of(state, own):
    """Whether all that ``own`` has is in ``state``, too."""
    if isinstance(own, dict):
        return isinstance(state, dict) and all(has_the_layout_of(state.get(key), value) for key, value in own.items())
    if isinstance(own, list):
        return isinstance(state, list) and len(state) == len(own)
    return own is None or type(state) is type(own)


OF_LOADERS = {"worker_count", "sampler", "data_source"}  # in states with items of a record, where Grain has them not


@pytest.mark.filterwarnings("ignore:.*examples are dropped")
@pytest.mark.parametrize("name", ALL)
def test_a_checkpoint_of_another_pipeline_is_refused_or_continues_as_that_one(name, saved, opened, tmp_path):
    """Without description, whose a state is cannot be seen (decision 17), but it is refused, or has the same layout."""
    root, expected = saved
    descriptions = {other: json.loads((root / other / PIPELINE_NAME).read_text())["pipeline"] for other in ALL}
    same = [other for other in ALL if descriptions[other] == descriptions[name]]
    num = 4 if name in PROCESSES else NUM_OTHERS  # it takes long to start them
    different = random.Random(name).sample([other for other in ALL if other not in same], 2 * num)
    it = opened(ALL[name], 1)
    before = it.get_state()
    own = json.loads(before) if isinstance(before, bytes) else before
    for other in different[:num]:
        assert_raises(StateMismatchError, "belongs to another pipeline", HANDLER.restore, root / other, it)
        assert it.get_state() == before
    for other in (name, *different):
        (tmp_path / TEXT_NAME).write_bytes((root / other / TEXT_NAME).read_bytes())
        try:
            HANDLER.restore(tmp_path, it)
        except StateMismatchError:
            assert it.get_state() == before
            continue
        state = json.loads((root / other / TEXT_NAME).read_text())
        assert has_the_layout_of(state, {key: value for key, value in own.items() if key not in OF_LOADERS}), other
        if name in PROCESSES and other != name:
            it.set_state(before)
            continue
        try:
            following(it)
        except StateMismatchError:
            assert other != name
        it = opened(ALL[name], 1)
    assert following(it) == following(opened(ALL[name], 1))
    for other in same:
        it = opened(ALL[name], 1)
        assert HANDLER.restore(root / other, it) is it
        assert following(it) == expected[other], other
