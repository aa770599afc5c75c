"""Where the seeds of random steps come from when they are not given."""

import numpy as np
import pytest

from gristmill.core.options import DatasetOptions
from gristmill.dataset import IterDataset, MapDataset
from gristmill.dataset.stages.options import WithOptionsIterDataset


def derived(*entropy):
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])


def test_distance_counts_and_nothing_else():
    ds = MapDataset.range(9).seed(42)
    assert ds.shuffle()._default_seed == 3329053876 == derived(42, 1)
    for step in (lambda d: d.map(str), lambda d: d[1:], lambda d: d.repeat(2), lambda d: d.batch(2), lambda d: d.filter(str)):
        assert step(ds).shuffle()._default_seed == 955475868 == derived(42, 2)
    assert ds.to_iter_dataset().random_map(str)._default_seed == derived(42, 2)
    options = WithOptionsIterDataset(ds.to_iter_dataset(), DatasetOptions())
    assert options.random_map(str)._default_seed == derived(42, 3)
    assert ds.to_iter_dataset().seed(5).random_map(str)._default_seed == derived(5, 1)


def test_default_seed_is_the_seed():
    ds = MapDataset.range(9).seed(42)
    assert list(ds.shuffle()) == list(ds.shuffle(seed=derived(42, 1)))

    def draw(x, rng):
        return int(rng.integers(10**9))

    assert list(ds.random_map(draw)) == list(ds.random_map(draw, seed=derived(42, 1)))
    it = ds.to_iter_dataset()
    assert list(it.random_map(draw)) == list(it.random_map(draw, seed=derived(42, 2)))
    assert list(ds.shuffle().shuffle()) == list(ds.shuffle(seed=derived(42, 1)).shuffle(seed=derived(42, 2)))


def test_the_nearest_seed_counts():
    ds = MapDataset.range(9).seed(1).map(str).seed(2)
    assert ds.shuffle()._default_seed == derived(2, 1)
    assert ds.seed(None).shuffle()._default_seed == derived(2, 2)  # ``None`` is no seed point, but a step
    assert MapDataset.range(9).seed(1).shuffle(seed=5).shuffle()._default_seed == derived(1, 2)


def test_seeds_of_any_size():
    big = MapDataset.range(9).seed(2**32).shuffle()
    assert big._default_seed == derived(2**32, 1) != derived(0, 1)
    assert MapDataset.range(9).seed(2**200).shuffle()._default_seed == derived(2**200, 1)
    assert MapDataset.range(9).seed(np.uint32(7)).shuffle()._default_seed == derived(7, 1)
    assert list(MapDataset.range(3).random_map(lambda x, rng: int(rng.integers(9)), seed=2**40))


def test_attribute():
    assert MapDataset.range(3)._default_seed is None
    assert MapDataset.range(3).to_iter_dataset()._default_seed is None
    assert MapDataset.range(3).seed(None)._default_seed is None
    seed = MapDataset.range(3).seed(1).map(str)._default_seed
    assert seed.dtype == np.uint32


def test_several_parents_level_by_level():
    class Joined(MapDataset):
        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index

    near = MapDataset.range(3).seed(1).shuffle()
    far = MapDataset.range(3).map(str).seed(2)
    both = Joined([near, far, MapDataset.range(3)])
    assert both.map(str)._default_seed == derived(2, 2, 1, 3)
    twice = Joined([far, far])
    assert twice._default_seed == derived(2, 1, 2, 1)  # counted on each path


def test_missing_seeds_say_what_to_do():
    for make in (
        lambda: MapDataset.range(3).shuffle(),
        lambda: MapDataset.range(3).random_map(str),
        lambda: MapDataset.range(3).to_iter_dataset().random_map(str),
        lambda: MapDataset.range(3).seed(None).shuffle(),
        lambda: MapDataset.range(3).shuffle(seed=1).shuffle(),
    ):
        with pytest.raises(ValueError, match=r"ds\.seed\(seed\)"):
            make()


def test_walk_ends_at_classes_that_know_nothing_of_it():
    class Bare(MapDataset):
        def __init__(self):
            pass

        def __len__(self):
            return 3

        def __getitem__(self, index):
            return index % 3

    class BareStream(IterDataset):
        def __init__(self):
            pass

        def __iter__(self):
            return iter([1, 2])

    assert Bare()._default_seed is None and BareStream()._default_seed is None
    assert sorted(Bare().shuffle(seed=1)) == [0, 1, 2]
    assert Bare().seed(1).shuffle()._default_seed == derived(1, 1)
    assert BareStream().seed(1).random_map(str)._default_seed == derived(1, 1)
    with pytest.raises(ValueError, match="seed"):
        Bare().shuffle()
