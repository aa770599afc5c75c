"""Where the seeds of random steps come from when they are not given."""

import numpy as np
from refusing import assert_raises
from users_datasets import BareMap, BareStream

from gristmill.core.options import DatasetOptions
from gristmill.dataset import MapDataset
from gristmill.dataset.stages.options import WithOptionsIterDataset

RANGE = MapDataset.range(9)
SEEDED = RANGE.seed(42)
STREAM = SEEDED.to_iter_dataset()


def derived(*entropy):
    return int(np.random.SeedSequence(entropy).generate_state(1, np.uint32)[0])


def draw(x, rng):
    return int(rng.integers(10**9))


Joined = type("Joined", (BareMap,), {"__init__": MapDataset.__init__})
NEAR, FAR = MapDataset.range(3).seed(1).shuffle(), MapDataset.range(3).map(str).seed(2)

SEEDS = [
    (SEEDED.shuffle(), 3329053876, (42, 1)),
    # Distance counts and nothing else.
    *[(ds.shuffle(), 955475868, (42, 2)) for ds in (SEEDED.map(str), SEEDED[1:], SEEDED.repeat(2), SEEDED.batch(2))],
    (SEEDED.filter(str).shuffle(), None, (42, 2)),
    (STREAM.random_map(draw), None, (42, 2)),
    (WithOptionsIterDataset(STREAM, DatasetOptions()).random_map(str), None, (42, 3)),
    (STREAM.seed(5).random_map(str), None, (5, 1)),
    # The nearest seed counts; ``None`` is no seed point, but a step.
    (RANGE.seed(1).map(str).seed(2).shuffle(), None, (2, 1)),
    (RANGE.seed(1).map(str).seed(2).seed(None).shuffle(), None, (2, 2)),
    (RANGE.seed(1).shuffle(seed=5).shuffle(), None, (1, 2)),
    # Seeds of any size
    (RANGE.seed(2**32).shuffle(), None, (2**32, 1)),
    (RANGE.seed(2**200).shuffle(), None, (2**200, 1)),
    (RANGE.seed(np.uint32(7)).shuffle(), None, (7, 1)),
    # Several parents level by level, counted on each path
    (Joined([NEAR, FAR, MapDataset.range(3)]).map(str), None, (2, 2, 1, 3)),
    (Joined([FAR, FAR]), None, (2, 1, 2, 1)),
    # The walk ends at classes that know nothing of it.
    (BareMap(3).seed(1).shuffle(), None, (1, 1)),
    (BareStream(3).seed(1).random_map(str), None, (1, 1)),
]


def test_the_default_seed_is_the_seed():
    for ds, number, entropy in SEEDS:
        assert ds._default_seed == derived(*entropy)
        assert number in (None, ds._default_seed)
        assert ds._default_seed.dtype == np.uint32
    for ds, same in [
        (SEEDED.shuffle(), SEEDED.shuffle(seed=derived(42, 1))),
        (SEEDED.random_map(draw), SEEDED.random_map(draw, seed=derived(42, 1))),
        (STREAM.random_map(draw), STREAM.random_map(draw, seed=derived(42, 2))),
        (SEEDED.shuffle().shuffle(), SEEDED.shuffle(seed=derived(42, 1)).shuffle(seed=derived(42, 2))),
    ]:
        assert list(ds) == list(same)
    assert derived(2**32, 1) != derived(0, 1)
    assert len(list(RANGE.random_map(draw, seed=2**40))) == 9


def test_missing_seeds_say_what_to_do():
    for ds in (RANGE, RANGE.to_iter_dataset(), RANGE.seed(None), BareMap(3), BareStream(3)):
        assert ds._default_seed is None
        for method in {"shuffle", "random_map"} & {*dir(ds)}:
            assert_raises(ValueError, r"ds\.seed\(seed\)", getattr(ds, method), *[str] * (method == "random_map"))
    assert_raises(ValueError, r"ds\.seed\(seed\)", RANGE.shuffle(seed=1).shuffle)
