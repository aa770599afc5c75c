"""What a checkpoint says about its pipeline, and that another pipeline is refused (decision 17)."""

import json

import numpy as np
import pytest

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError

HANDLER = CheckpointHandler()


class AddOne(gristmill.transforms.Map):
    def map(self, element):
        return element + 1


class Keep(gristmill.transforms.Filter):
    def filter(self, element):
        return True


def chain(*, n=20, seed=3, batch_size=2, random_seed=5, step=1, drop=False, epochs=2, filtered=False, source=None):
    ds = gristmill.MapDataset.range(n) if source is None else gristmill.MapDataset.source(source)
    ds = ds.shuffle(seed=seed)[::step].repeat(epochs).map(lambda x: x + 1).to_iter_dataset()
    ds = ds.random_map(lambda x, rng: x + int(rng.integers(9)), seed=random_seed)
    if filtered:
        ds = ds.filter(lambda x: True)
    return iter(ds.batch(batch_size, drop_remainder=drop))


def loader(*, n=20, seed=3, batch_size=2, shuffle=True, operations=1, source=None, sequential_seed=None, shard=None):
    if sequential_seed is None:
        sampler = gristmill.samplers.IndexSampler(n, shuffle=shuffle, num_epochs=2, seed=seed)
    else:
        sampler = gristmill.samplers.SequentialSampler(n, seed=sequential_seed)
    steps = [AddOne()] * operations + [gristmill.transforms.Batch(batch_size)]
    data = list(range(20)) if source is None else source
    return iter(gristmill.DataLoader(data_source=data, sampler=sampler, operations=steps, shard_options=shard))


# Each changes what the stream holds, and what the message must name.
CHAINS = [
    ({"n": 22}, "length"),
    ({"seed": 4}, "seed of ShuffleMapDataset"),
    ({"random_seed": 6}, "seed of RandomMapDatasetIterator"),
    ({"batch_size": 4}, "batch_size of BatchDatasetIterator"),
    ({"drop": True}, "drop_remainder"),
    ({"step": 2}, "length"),
    ({"epochs": 3}, "length of MapMapDataset"),
    ({"filtered": True}, "stage"),
    ({"source": list(range(20))}, "stage"),
    ({"source": np.arange(20)}, "stage"),
]
LOADERS = [
    ({"batch_size": 4}, "batch_size of Batch"),
    ({"operations": 2}, "stage"),
    ({"seed": 4}, "sampler of DataLoader"),
    ({"shuffle": False}, "sampler of DataLoader"),
    ({"source": range(20)}, "source of DataLoader"),
    ({"shard": gristmill.sharding.ShardOptions(0, 2)}, "length of DataLoader"),
]


@pytest.mark.parametrize(("make", "changed", "named"), [(chain, *row) for row in CHAINS] + [(loader, *row) for row in LOADERS])
def test_another_pipeline_is_refused_by_name_and_left_as_it_was(tmp_path, make, changed, named):
    it = make()
    next(it), next(it)
    HANDLER.save(tmp_path, it)
    other, undisturbed = make(**changed), make(**changed)
    np.testing.assert_array_equal(next(other), next(undisturbed))
    with pytest.raises(StateMismatchError, match="belongs to another pipeline") as refusal:
        HANDLER.restore(tmp_path, other)
    assert named in str(refusal.value)
    np.testing.assert_array_equal(next(other), next(undisturbed))


def test_the_seed_of_a_sequential_sampler_is_noticed_although_its_repr_does_not_show_it(tmp_path):
    it = loader(sequential_seed=1)
    next(it)
    HANDLER.save(tmp_path, it)
    with pytest.raises(StateMismatchError, match="sampler_seed of DataLoader"):
        HANDLER.restore(tmp_path, loader(sequential_seed=2))


@pytest.mark.parametrize("make", [chain, loader])
def test_an_equal_pipeline_with_other_functions_threads_and_version_continues(tmp_path, make):
    it = make()
    next(it)
    HANDLER.save(tmp_path, it)
    expected = next(it)
    file = tmp_path / "pipeline_0-of-1.json"
    written = json.loads(file.read_text())
    assert written["library"] == f"gristmill {gristmill.__version__}"
    file.write_text(json.dumps({**written, "library": "gristmill 99.0"}))
    np.testing.assert_array_equal(next(HANDLER.restore(tmp_path, make())), expected)


@pytest.mark.parametrize("make", [chain, loader])
def test_a_checkpoint_without_description_restores(tmp_path, make):
    it = make()
    next(it)
    HANDLER.save(tmp_path, it)
    expected = next(it)
    (tmp_path / "pipeline_0-of-1.json").unlink()  # as Grain writes it
    np.testing.assert_array_equal(next(HANDLER.restore(tmp_path, make())), expected)


def test_a_loader_describes_itself_in_the_terms_of_its_arguments(tmp_path):
    HANDLER.save(tmp_path, loader())
    pipeline = json.loads((tmp_path / "pipeline_0-of-1.json").read_text())["pipeline"]
    assert pipeline == {
        "stage": "Batch",
        "batch_size": 2,
        "drop_remainder": False,
        "parents": [
            {
                "stage": "Map",
                "parents": [
                    {
                        "stage": "DataLoader",
                        "length": 40,
                        "worker_count": 0,
                        "shard_options": "NoSharding(shard_index=0, shard_count=1, drop_remainder=False)",
                        "sampler": repr(gristmill.samplers.IndexSampler(20, shuffle=True, num_epochs=2, seed=3)),
                        "sampler_seed": 3,
                        "source": "<class 'list'>",
                    }
                ],
            }
        ],
    }


def test_no_address_of_an_object_gets_into_a_description(tmp_path):
    class Source:
        def __len__(self):
            return 3

        def __getitem__(self, i):
            return i

    HANDLER.save(tmp_path, iter(gristmill.MapDataset.source(Source()).to_iter_dataset()))
    assert " at 0x" not in (tmp_path / "pipeline_0-of-1.json").read_text()
    HANDLER.restore(tmp_path, iter(gristmill.MapDataset.source(Source()).to_iter_dataset()))


def test_an_iterator_that_does_not_validate_is_not_compared(tmp_path):
    it = loader()
    next(it)
    HANDLER.save(tmp_path, it)
    other = loader(seed=9)._loader
    unchecked = gristmill.DataLoaderIterator(other, None, validate_state=False)
    HANDLER.restore(tmp_path, unchecked)
    assert json.loads(unchecked.get_state())["last_seen_indices"] == json.loads(it.get_state())["last_seen_indices"]


class SeededSampler:
    _shard_options = gristmill.NoSharding()

    def __init__(self, seed):
        self._seed = seed

    def __repr__(self):
        return "SeededSampler()"

    def __len__(self):
        return 6

    def __getitem__(self, index):
        if index >= 6:
            raise IndexError(index)
        return gristmill.RecordMetadata(index, index)


@pytest.mark.parametrize("seed", [np.int64(3), (1, 2), np.random.SeedSequence(5)])
def test_numbers_of_numpy_and_any_seed_of_a_users_sampler_can_be_saved(tmp_path, seed):
    operations = [gristmill.Batch(np.int64(2), np.bool_(True))]
    iterator, other = (
        iter(gristmill.DataLoader(data_source=range(6), sampler=SeededSampler(seed), operations=operations)) for _ in range(2)
    )
    next(iterator)
    HANDLER.save(tmp_path, iterator)
    assert next(HANDLER.restore(tmp_path, other)).tolist() == [2, 3]


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"pipeline": 3}', "\xff"])
def test_a_damaged_description_is_refused(tmp_path, text):
    iterator = iter(gristmill.DataLoader(data_source=range(6), sampler=gristmill.SequentialSampler(6)))
    HANDLER.save(tmp_path, iterator)
    (tmp_path / "pipeline_0-of-1.json").write_bytes(text.encode("latin-1"))
    next(iterator)
    with pytest.raises(StateMismatchError):
        HANDLER.restore(tmp_path, iterator)
    assert next(iterator) == 1


def test_what_is_no_iterator_cannot_be_saved(tmp_path):
    with pytest.raises(TypeError, match="item must be an iterator"):
        HANDLER.save(tmp_path, [1, 2])
