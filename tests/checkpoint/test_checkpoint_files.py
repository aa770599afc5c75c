"""The files of a checkpoint: descriptions (decision 17), saves that fail, files of other programs;
and states, which are small.
"""

import json
import random
import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from operations import operation
from refusing import assert_raises
from state_damage import HOSTILE, is_harmless, places, with_part

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError
from gristmill.dataset import IterDataset, MapDataset
from gristmill.dataset.descriptions.pipeline import describe
from gristmill.experimental import (
    ElasticIterator,
    FirstFitPackIterDataset,
    FlatMapTransform,
    InterleaveIterDataset,
)

HANDLER = CheckpointHandler()
PROCESS, PIPELINE = "process_0-of-1.json", "pipeline_0-of-1.json"
Batch, ShardOptions = gristmill.transforms.Batch, gristmill.sharding.ShardOptions
ADD_ONE = operation(gristmill.transforms.Map, "map", lambda x: x + 1)


def chain(
    *,
    n=20,
    seed=3,
    batch_size=2,
    random_seed=5,
    step=1,
    drop=False,
    epochs=2,
    filtered=False,
    source=None,
):
    ds = gristmill.MapDataset.range(n) if source is None else gristmill.MapDataset.source(source)
    ds = ds.shuffle(seed=seed)[::step].repeat(epochs).map(lambda x: x + 1).to_iter_dataset()
    ds = ds.random_map(lambda x, rng: x + int(rng.integers(9)), seed=random_seed)
    ds = ds.filter(lambda x: True) if filtered else ds
    return iter(ds.batch(batch_size, drop_remainder=drop))


def loader(
    *,
    seed=3,
    batch_size=2,
    shuffle=True,
    num_maps=1,
    source=None,
    sequential_seed=None,
    shard=None,
    workers=0,
):
    sampler = gristmill.samplers.IndexSampler(20, shuffle=shuffle, num_epochs=2, seed=seed)
    if sequential_seed is not None:
        sampler = gristmill.samplers.SequentialSampler(20, seed=sequential_seed)
    steps = [ADD_ONE] * num_maps + [Batch(batch_size)]
    data = list(range(20)) if source is None else source
    arguments = {
        "data_source": data,
        "sampler": sampler,
        "operations": steps,
        "shard_options": shard,
    }
    return iter(gristmill.DataLoader(**arguments, worker_count=workers))


def described(folder):
    return json.loads((folder / PIPELINE).read_text())


# What is saved, what changes what the stream holds, and what the message must name.
OTHERS = [
    *((chain, {"n": 22}, "length"), (chain, {"seed": 4}, "seed of ShuffleMapDataset")),
    (chain, {"random_seed": 6}, "seed of RandomMapDatasetIterator"),
    (chain, {"batch_size": 4}, "batch_size of BatchDatasetIterator"),
    (chain, {"drop": True}, "drop_remainder"),
    (chain, {"step": 2}, "length"),
    (chain, {"epochs": 3}, "length of MapMapDataset"),
    (chain, {"filtered": True}, "stage"),
    *((chain, {"source": list(range(20))}, "stage"), (chain, {"source": np.arange(20)}, "stage")),
    *((loader, {"batch_size": 4}, "batch_size of Batch"), (loader, {"num_maps": 2}, "stage")),
    (loader, {"seed": 4}, "sampler of DataLoader"),
    (loader, {"shuffle": False}, "sampler of DataLoader"),
    (loader, {"source": range(20)}, "source of DataLoader"),
    (loader, {"shard": ShardOptions(0, 2)}, "length of DataLoader"),
    (loader, {"workers": 2}, "worker_count of DataLoader"),
    (
        lambda shard=0: loader(shard=ShardOptions(shard, 2)),
        {"shard": 1},
        "shard_options of DataLoader",
    ),
    # its repr does not show it
    (lambda seed=1: loader(sequential_seed=seed), {"seed": 2}, "sampler_seed of DataLoader"),
]


@pytest.mark.parametrize(("make", "changed", "named"), OTHERS)
def test_another_pipeline_is_refused_by_name_and_left_as_it_was(tmp_path, make, changed, named):
    it, other, undisturbed = make(), make(**changed), make(**changed)
    next(it), next(it)
    HANDLER.save(tmp_path, it)
    np.testing.assert_array_equal(next(other), next(undisturbed))
    with pytest.raises(StateMismatchError, match=f"belongs to another pipeline.*{named}"):
        HANDLER.restore(tmp_path, other)
    np.testing.assert_array_equal(next(other), next(undisturbed))


@pytest.mark.parametrize("make", [chain, loader])
def test_checkpoints_of_other_versions_or_undescribed_continue(tmp_path, make):
    it = make()
    next(it)
    HANDLER.save(tmp_path, it)
    expected, file = next(it), tmp_path / PIPELINE
    assert described(tmp_path)["library"] == f"gristmill {gristmill.__version__}"
    file.write_text(json.dumps({**described(tmp_path), "library": "gristmill 99.0"}))
    np.testing.assert_array_equal(next(HANDLER.restore(tmp_path, make())), expected)
    file.unlink()  # as Grain writes it
    np.testing.assert_array_equal(next(HANDLER.restore(tmp_path, make())), expected)


def test_a_damaged_description_of_a_loader_is_refused(tmp_path):
    it = loader()
    next(it)
    HANDLER.save(tmp_path, it)
    shard = "NoSharding(shard_index=0, shard_count=1, drop_remainder=False)"
    of_loader = {
        "stage": "DataLoader",
        "length": 40,
        "worker_count": 0,
        "shard_options": shard,
        "sampler_seed": 3,
    }
    sampler = gristmill.samplers.IndexSampler(20, shuffle=True, num_epochs=2, seed=3)
    of_loader |= {"sampler": repr(sampler), "source": "<class 'list'>"}
    of_map = {"stage": "Map", "parents": [of_loader]}
    expected = {"stage": "Batch", "batch_size": 2, "drop_remainder": False, "parents": [of_map]}
    assert described(tmp_path)["pipeline"] == expected
    # What does not validate is not compared.
    unchecked = gristmill.DataLoaderIterator(loader(seed=9)._loader, None, validate_state=False)
    HANDLER.restore(tmp_path, unchecked)
    found = json.loads(unchecked.get_state())["last_seen_indices"]
    assert found == json.loads(it.get_state())["last_seen_indices"]
    next(it)
    before = it.get_state()
    for text in ("", "{}", "[]", '{"pipeline": 3}', "\xff"):
        (tmp_path / PIPELINE).write_bytes(text.encode("latin-1"))
        assert_raises(StateMismatchError, None, HANDLER.restore, tmp_path, it)
    assert it.get_state() == before
    assert_raises(TypeError, "item must be an iterator", HANDLER.save, tmp_path, [1, 2])


@pytest.mark.parametrize("make", [chain, loader])
def test_a_changed_byte_of_a_file_is_found(make, tmp_path):
    saved, it = make(), make()
    next(saved), next(it)
    before = it.get_state()
    next(saved)
    HANDLER.save(tmp_path, saved)
    for file, is_described in ((PROCESS, True), (PIPELINE, True), (PROCESS, False)):
        if not is_described:
            (tmp_path / PIPELINE).unlink()
        text = (tmp_path / file).read_bytes()
        for i in range(0, len(text), 1 + len(text) // 30):
            for changed in (bytes([text[i] ^ 1]), bytes([text[i] ^ 128]), b"7", b""):
                (tmp_path / file).write_bytes(text[:i] + changed + text[i + 1 :])
                try:
                    HANDLER.restore(tmp_path, it)
                except StateMismatchError:
                    assert it.get_state() == before
                else:  # of the description, spaces and the version of the library do not matter
                    assert not is_described or it.get_state() == saved.get_state()
                    it.set_state(before)
        (tmp_path / file).write_bytes(text)
        assert HANDLER.restore(tmp_path, it).get_state() == saved.get_state()
        it.set_state(before)


class Records:  # has no repr of its own
    def __len__(self):
        return 6

    def __getitem__(self, index):
        return gristmill.RecordMetadata(index, range(6)[index])


class SeededSampler(Records):
    _shard_options = gristmill.NoSharding()

    def __init__(self, seed):
        self._seed = seed

    def __repr__(self):
        return "SeededSampler()"


def test_sources_and_samplers_of_users(tmp_path):
    HANDLER.save(tmp_path, iter(gristmill.MapDataset.source(Records()).to_iter_dataset()))
    assert " at 0x" not in (tmp_path / PIPELINE).read_text()
    HANDLER.restore(tmp_path, iter(gristmill.MapDataset.source(Records()).to_iter_dataset()))
    for seed in (np.int64(3), (1, 2), np.random.SeedSequence(5)):
        operations = [Batch(np.int64(2), np.bool_(True))]
        loader = gristmill.DataLoader(
            data_source=range(6), sampler=SeededSampler(seed), operations=operations
        )
        next(it := iter(loader))
        HANDLER.save(tmp_path, it)
        assert next(HANDLER.restore(tmp_path, iter(loader))).tolist() == [2, 3]


def test_a_save_that_fails_or_is_killed_leaves_a_checkpoint(tmp_path):
    program = Path(__file__).with_name("killed_saves.py")
    subprocess.run([sys.executable, program, tmp_path], check=True, timeout=100)


def at(position):
    it = iter(gristmill.MapDataset.range(100).shuffle(seed=1).to_iter_dataset().batch(4))
    for _ in range(position):
        next(it)
    return it


def check_refused(folder, it, words):
    before = it.get_state()
    with pytest.raises(StateMismatchError, match=words) as refusal:
        HANDLER.restore(folder, it)
    assert is_harmless(str(refusal.value)), str(refusal.value)[:3000]
    assert it.get_state() == before


@pytest.mark.timeout(20)
def test_what_the_name_of_a_file_says_is_not_believed(tmp_path):
    """Here 10**9 processes would take all memory."""
    numbers = ["2", "3", "1000000000", "9" * 30, "9" * 200]
    for i, names in enumerate(
        [*[["process_0-of-" + n] for n in numbers], ["process_1-of-" + n for n in numbers]]
    ):
        (tmp_path / str(i)).mkdir()
        for name in names:
            (tmp_path / str(i) / f"{name}.json").write_text('{"global_next_index": 4}')
        it = ElasticIterator(gristmill.MapDataset.range(16), 4, gristmill.sharding.NoSharding())
        check_refused(
            tmp_path / str(i),
            it,
            f"files of all processes of one checkpoint, it has {len(names)}: ",
        )


def with_hostile_parts(state, rng, num):
    return [
        with_part(state, path, hostile)
        for path in places(state)
        for hostile in rng.sample(HOSTILE, num)
    ]


def test_hostile_descriptions_and_checksums_are_in_no_message(tmp_path):
    it = at(3)
    HANDLER.save(tmp_path, it)
    saved, description = described(tmp_path), json.loads(json.dumps(describe(at(0))))
    long_text = next(text for text in HOSTILE if isinstance(text, str) and len(text) > 1000)
    more = [{**description, long_text: 1}, {**description, "length": 1.5, "more": ["x" * 10**7]}]
    wrong = [
        ({"pipeline": other}, None)
        for other in with_hostile_parts(description, random.Random(1), 2) + more
    ]
    assert len(wrong) > 20
    for changed, words in wrong + [({"state_crc32": crc32}, "checksum") for crc32 in HOSTILE]:
        (tmp_path / PIPELINE).write_text(json.dumps({**saved, **changed}))
        check_refused(tmp_path, it, words)


def shards(kind, count):
    if kind == "elements":
        ds, size = gristmill.MapDataset.range(64).filter(lambda x: x % 3), 4
    else:
        files = [gristmill.MapDataset.range(10 * i, 10 * i + 5).to_iter_dataset() for i in range(5)]
        ds, size = InterleaveIterDataset(files, cycle_length=2), 0
    return [ElasticIterator(ds, size, ShardOptions(i, count)) for i in range(count)]


@pytest.mark.parametrize("form", ["processes", "datasets"])
@pytest.mark.parametrize("kind", ["elements", "files"])
def test_what_is_hostile_in_the_files_of_other_processes(tmp_path, kind, form):
    rng, old, (new,) = random.Random(1), shards(kind, 2), shards(kind, 1)
    next(old[0]), next(old[1])
    before = new.get_state()
    if form == "processes":
        states = {
            f"process_{i}-of-2.json": json.loads(json.dumps(it.get_state()))
            for i, it in enumerate(old)
        }
    else:
        states = {
            f"shard_state_{i}.json": {"exhausted": 0, "state": {"next_index": 1}} for i in range(5)
        }
    for name, state in states.items():
        for changed in with_hostile_parts(state, rng, 1 if form == "processes" else 2):
            for other, content in {**states, name: changed}.items():
                (tmp_path / other).write_text(json.dumps(content))
            try:
                HANDLER.restore(tmp_path, new)
            except StateMismatchError as refusal:
                assert is_harmless(str(refusal)), str(refusal)[:3000]
                assert new.get_state() == before
            else:
                new.set_state(before)


cloudpickle.register_pickle_by_value(sys.modules[__name__])  # which workers would import


def stream(n=10**6):
    return MapDataset.range(n).to_iter_dataset()


def packing_of_a_mix():
    tokens = stream().map(lambda i: {"tokens": np.full(i % 50 + 1, i)})
    return FirstFitPackIterDataset(
        IterDataset.mix([tokens] * 5), length_struct={"tokens": 64}, num_packing_bins=8
    ).batch(4)


CROPS = operation(FlatMapTransform, "flat_map", lambda x: [x] * 4, max_fan_out=4)


def fail_at(*bad):
    def check(element):
        if element in bad:
            raise OSError(f"record {element} is bad")
        return element

    return operation(gristmill.transforms.Map, "map", check)


def image_loader(num_workers, *operations):
    num = 1_281_167
    shard = gristmill.sharding.ShardOptions(shard_index=127, shard_count=128, drop_remainder=True)
    return gristmill.DataLoader(
        data_source=gristmill.sources.RangeDataSource(0, num, 1),
        sampler=gristmill.samplers.IndexSampler(
            num, shard_options=shard, shuffle=True, num_epochs=90, seed=2**31
        ),
        operations=[*operations, fail_at(), gristmill.transforms.Batch(256, drop_remainder=True)],
        worker_count=num_workers,
    )


def processes(ds, num):
    return ds.mp_prefetch(gristmill.multiprocessing.MultiprocessingOptions(num_workers=num))


# With the number of elements to take: none where that would start worker processes.
COMMON = {
    "images": (lambda: image_loader(0), 3),
    "images, 8 workers": (lambda: image_loader(8), 0),
    "images, crops": (lambda: image_loader(0, CROPS), 3),
    "images, crops, 4 workers": (lambda: image_loader(4, CROPS), 0),
    "mix of 5 window shuffles": (
        lambda: IterDataset.mix([stream().window_shuffle(64, seed=i) for i in range(5)]),
        3,
    ),
    "interleave": (
        lambda: InterleaveIterDataset([stream(1000) for _ in range(100)], cycle_length=16).batch(8),
        3,
    ),
    "packing of a mix": (packing_of_a_mix, 3),
    "4 processes": (
        lambda: processes(stream().random_map(lambda x, rng: x, seed=1).batch(32), 4),
        0,
    ),
    "8 processes, then batches": (lambda: processes(stream(), 8).batch(32), 0),
}


@pytest.mark.parametrize("name", COMMON)
def test_states_of_common_pipelines_are_below_a_kilobyte(name):
    make, num = COMMON[name]
    with iter(make()) as it:
        for position in range(num + 1):
            if position:
                next(it)
            state = it.get_state()
            assert len(json.dumps(json.loads(state) if isinstance(state, bytes) else state)) < 1024


def rest_of(it, when_skipped=lambda found: None):
    """The remaining outputs; those that fail are skipped."""
    found = []
    while True:
        try:
            found.append(
                np.asarray(next(it)).tolist()
                if isinstance(it, gristmill.DataLoaderIterator)
                else next(it)
            )
        except StopIteration:
            return found
        except OSError:
            it.skip_failed()
            when_skipped(found)


BAD, BATCH = fail_at(0, 5, 6), gristmill.transforms.Batch(2)
OF_LOADERS = [
    (0, [BAD]),
    (0, [BAD, CROPS]),
    (0, [CROPS, BAD, BATCH]),
    (2, [fail_at(4), BATCH]),
    (3, [fail_at(0, 5), CROPS]),
]


@pytest.mark.parametrize(("num_workers", "operations"), OF_LOADERS)
def test_the_state_of_a_loader_after_a_skipped_output_restores(num_workers, operations):
    sampler = gristmill.samplers.SequentialSampler(9)
    loader = gristmill.DataLoader(
        data_source=range(9), sampler=sampler, operations=operations, worker_count=num_workers
    )
    rests = []
    with iter(loader) as it, iter(loader) as again:

        def restore(found):
            again.set_state(it.get_state())
            assert again.get_state() == it.get_state()
            rests.append((len(found), rest_of(again)))

        start = it.get_state()
        found = rest_of(it, restore)
        again.set_state(start)
        assert rest_of(again) == found
    assert rests and all(rest == found[position:] for position, rest in rests)
