"""A zoo of pipelines: every checkpoint of one is restored in every other one, which refuses it, or continues as the one saved."""

import contextlib
import itertools
import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from entry import plain
from stage_table import ITER_ENTRIES, MAP_ENTRIES

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError
from gristmill.experimental import FlatMapTransform

HANDLER = CheckpointHandler()
NUM_COMPARED = 4  # elements
PROCESSES = ("mp_prefetch", "parquet_workers")
TEXT_NAME = "process_0-of-1.json"


class AddOne(gristmill.transforms.Map):
    def map(self, element):
        return element + 1


class Draw(gristmill.transforms.RandomMap):
    def random_map(self, element, rng):
        return element, int(rng.integers(1000))


class Odd(gristmill.transforms.Filter):
    def filter(self, element):
        return element % 2


class Fan(FlatMapTransform):
    def __init__(self, max_fan_out=3):
        self.max_fan_out = max_fan_out

    def flat_map(self, element):
        return [element] * (element % self.max_fan_out)


def index_sampler(n=17, *, shuffle=True, seed=1, num_epochs=2, shard=None):
    shard = shard or gristmill.sharding.NoSharding()
    return gristmill.samplers.IndexSampler(n, shard_options=shard, shuffle=shuffle, num_epochs=num_epochs, seed=seed)


def loader(*operations, sampler=None, source=None, workers=0, shard=None):
    return gristmill.DataLoader(
        data_source=range(17) if source is None else source,
        sampler=sampler or index_sampler(),
        operations=operations,
        worker_count=workers,
        shard_options=shard,
    )


Batch, Shard = gristmill.transforms.Batch, gristmill.sharding.ShardOptions
LOADERS = {
    "loader": loader,
    "loader_in_order": lambda: loader(sampler=index_sampler(shuffle=False)),
    "loader_seed": lambda: loader(sampler=index_sampler(seed=2)),
    "loader_epochs": lambda: loader(sampler=index_sampler(num_epochs=3)),
    "loader_endless": lambda: loader(sampler=index_sampler(num_epochs=None)),
    "loader_shorter": lambda: loader(sampler=index_sampler(16)),
    "loader_sequential": lambda: loader(sampler=gristmill.samplers.SequentialSampler(17)),
    "loader_sequential_seed": lambda: loader(Draw(), sampler=gristmill.samplers.SequentialSampler(17, seed=5)),
    "loader_sequential_seed_6": lambda: loader(Draw(), sampler=gristmill.samplers.SequentialSampler(17, seed=6)),
    "loader_range_20": lambda: loader(source=range(20)),
    "loader_range_source": lambda: loader(source=gristmill.sources.RangeDataSource(0, 17, 1)),
    "loader_range_source_by_2": lambda: loader(source=gristmill.sources.RangeDataSource(0, 34, 2)),
    "loader_list": lambda: loader(source=[*range(17)]),
    "loader_tuple": lambda: loader(source=(*range(17),)),
    "loader_array": lambda: loader(source=np.arange(17)),
    "loader_map": lambda: loader(AddOne()),
    "loader_map_map": lambda: loader(AddOne(), AddOne()),
    "loader_random": lambda: loader(Draw()),
    "loader_filter": lambda: loader(Odd()),
    "loader_filter_map": lambda: loader(Odd(), AddOne()),
    "loader_batch": lambda: loader(Batch(2)),
    "loader_batch_3": lambda: loader(Batch(3)),
    "loader_batch_drop": lambda: loader(Batch(2, drop_remainder=True)),
    "loader_map_batch": lambda: loader(AddOne(), Batch(2)),
    "loader_batch_map": lambda: loader(Batch(2), AddOne()),
    "loader_fan": lambda: loader(Fan()),
    "loader_fan_4": lambda: loader(Fan(4)),
    "loader_fan_map": lambda: loader(Fan(), AddOne()),
    "loader_fan_seed": lambda: loader(Fan(), sampler=index_sampler(seed=2)),
    "loader_sampler_shard_0": lambda: loader(sampler=index_sampler(shard=Shard(0, 2))),
    "loader_sampler_shard_1": lambda: loader(sampler=index_sampler(shard=Shard(1, 2))),
    "loader_sampler_shard_drop": lambda: loader(sampler=index_sampler(shard=Shard(0, 2, True))),
    "loader_shard_0": lambda: loader(shard=Shard(0, 2)),
    "loader_shard_1": lambda: loader(shard=Shard(1, 2)),
    "loader_shard_0_of_3": lambda: loader(shard=Shard(0, 3)),
    "loader_shard_drop": lambda: loader(shard=Shard(0, 2, True)),
}
WORKERS = {
    "loader_1_worker": lambda: loader(workers=1),
    "loader_2_workers": lambda: loader(workers=2),
    "loader_2_workers_batch": lambda: loader(Batch(2), workers=2),
    "loader_2_workers_fan": lambda: loader(Fan(), workers=2),
}
SAME_BUT_FOR_FUNCTIONS = {"default_options", "map_with_nones", "flat_map_with_nones", "flat_map_to_nothing"}  # of users
TABLE = {
    **{entry.name: entry.make for entry in ITER_ENTRIES},
    **{f"map_{entry.name}": lambda entry=entry: entry.make().to_iter_dataset() for entry in MAP_ENTRIES},
}
ALL = {name: make for name, make in {**TABLE, **LOADERS}.items() if name not in SAME_BUT_FOR_FUNCTIONS}


@pytest.fixture
def opened():
    """New iterators of a pipeline, after so many elements; closed at the end."""
    iterators = []

    def opened(make, position=0):
        it = iter(make())
        iterators.append(it)
        following(it, position)
        return it

    yield opened
    for it in iterators:
        it.close()


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


@pytest.mark.filterwarnings("ignore:.*examples are dropped")
@pytest.mark.parametrize("name", ALL)
def test_a_checkpoint_of_another_pipeline_is_refused_or_continues_as_that_one(name, saved, opened):
    root, expected = saved
    it = opened(ALL[name], 1)
    before = it.get_state()
    accepted = set()
    for other in ALL:
        try:
            assert HANDLER.restore(root / other, it) is it
        except StateMismatchError as refusal:
            assert "belongs to another pipeline" in str(refusal)
            assert it.get_state() == before
        else:
            accepted.add(other)
            assert following(it) == expected[other], other
            it = opened(ALL[name], 1)
    assert name in accepted
    assert following(it) == following(opened(ALL[name], 1))


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
def test_a_state_of_another_pipeline_is_refused_or_has_the_same_layout(name, saved, opened, tmp_path):
    """Whose it is cannot be seen then (decision 17), but nothing else happens than that elements come, or a refusal."""
    root, _ = saved
    it = opened(ALL[name], 1)
    before = it.get_state()
    own = json.loads(before) if isinstance(before, bytes) else before
    different = {(root / other / TEXT_NAME).read_bytes(): other for other in ALL if other != name}
    for other in (name, *different.values()):
        (tmp_path / TEXT_NAME).write_bytes((root / other / TEXT_NAME).read_bytes())
        try:
            HANDLER.restore(tmp_path, it)
        except StateMismatchError:
            assert it.get_state() == before
            continue
        state = json.loads((root / other / TEXT_NAME).read_text())
        assert has_the_layout_of(state, {key: value for key, value in own.items() if key not in OF_LOADERS}), other
        if name in PROCESSES and other != name:  # it takes long to start them
            it.set_state(before)
            continue
        try:
            following(it)
        except StateMismatchError:
            assert other != name
        it = opened(ALL[name], 1)
    assert following(it) == following(opened(ALL[name], 1))


@pytest.mark.parametrize("saver", [(0, 2), (1, 2), (0, 3), (2, 3), (0, 1)])
@pytest.mark.parametrize("taker", [(0, 2), (1, 2), (0, 3), (2, 3), (0, 1)])
def test_shards_that_only_the_loader_knows(saver, taker, tmp_path, opened):
    """They are not in the state; a number that is none of the shard's tells some of them apart, the description all."""
    sampler = index_sampler(12, num_epochs=1)
    it = opened(lambda: loader(sampler=sampler, shard=Shard(*saver)), 2)
    other = opened(lambda: loader(sampler=sampler, shard=Shard(*taker)), 1)
    before = other.get_state()
    HANDLER.save(tmp_path, it)
    if saver == taker:
        assert following(HANDLER.restore(tmp_path, other)) == following(it)
        return
    with pytest.raises(StateMismatchError, match=r"(length|shard_options) of DataLoader"):
        HANDLER.restore(tmp_path, other)
    assert other.get_state() == before
    if saver[1] == taker[1]:
        (tmp_path / "pipeline_0-of-1.json").unlink()
        with pytest.raises(StateMismatchError, match=f"in shard {taker[0]} of {taker[1]}"):
            HANDLER.restore(tmp_path, other)
        assert other.get_state() == before


@pytest.fixture(scope="module")
def saved_by_workers(tmp_path_factory):
    root = tmp_path_factory.mktemp("workers")
    zoo = {**WORKERS, **{name: LOADERS[name] for name in ("loader", "loader_batch", "loader_fan", "loader_shard_0")}}
    return root, save_all(zoo, root)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", WORKERS)
def test_a_checkpoint_of_other_workers(name, saved_by_workers, tmp_path, opened):
    root, expected = saved_by_workers
    it = opened(WORKERS[name], 1)
    before, own = it.get_state(), following(it)
    it.set_state(before)
    for other in expected:
        (tmp_path / TEXT_NAME).write_bytes((root / other / TEXT_NAME).read_bytes())
        for directory in (root / other, tmp_path):  # with and without a description
            try:
                HANDLER.restore(directory, it)
            except StateMismatchError:
                assert it.get_state() == before
            else:
                assert directory is tmp_path or following(it) == expected[other]
                it.set_state(before)
    assert following(it) == own


DAMAGED = {name: ALL[name] for name in ("chain", "interleave", "concat_then_split", "loader_map_batch", "loader_fan")}


def changed_bytes(text, num):
    """What may become of a file: a byte is another one, is missing, or the end is."""
    for i in range(0, len(text), max(1, len(text) // num)):
        byte = text[i]
        for other in {byte ^ 1, byte ^ 128, ord("7")} - {byte}:
            yield text[:i] + bytes([other]) + text[i + 1 :]
        yield text[:i] + text[i + 1 :]
        yield text[:i]
    yield from (text + b"7", text + b"}", text + text, b"\0" * len(text), b"null")


@pytest.mark.parametrize("file", [TEXT_NAME, "pipeline_0-of-1.json"])
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_refused_or_restores_exactly(name, file, tmp_path, opened):
    it = opened(DAMAGED[name], 2)
    HANDLER.save(tmp_path, it)
    state, expected = it.get_state(), following(it)
    it = opened(DAMAGED[name], 1)
    before = it.get_state()
    text = (tmp_path / file).read_bytes()
    for damaged in changed_bytes(text, 40):
        (tmp_path / file).write_bytes(damaged)
        try:
            HANDLER.restore(tmp_path, it)
        except StateMismatchError:
            assert it.get_state() == before
        else:
            assert file != TEXT_NAME  # of the description, spaces and the version of the library do not matter
            assert it.get_state() == state, damaged
            it.set_state(before)
    (tmp_path / file).write_bytes(text)
    assert following(HANDLER.restore(tmp_path, it)) == expected


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_state_without_description_is_never_half_applied(name, tmp_path, opened):
    it = opened(DAMAGED[name], 2)
    HANDLER.save(tmp_path, it)
    (tmp_path / "pipeline_0-of-1.json").unlink()
    it = opened(DAMAGED[name], 1)
    before = it.get_state()
    text = (tmp_path / TEXT_NAME).read_bytes()
    for damaged in changed_bytes(text, 30):
        (tmp_path / TEXT_NAME).write_bytes(damaged)
        try:
            HANDLER.restore(tmp_path, it)
        except StateMismatchError:
            assert it.get_state() == before
        else:
            it.set_state(before)
    assert following(it) == following(opened(DAMAGED[name], 1))
