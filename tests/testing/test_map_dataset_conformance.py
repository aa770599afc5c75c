"""``assert_map_dataset_conforms`` accepts whatever is a map dataset, and names the law that a wrong one breaks."""

import threading

import numpy as np
import pytest
from mistakes import assert_found, variant
from refusing import assert_raises

from gristmill import MapDataset
from gristmill.testing import assert_map_dataset_conforms


class Right(MapDataset):
    """A dataset without any mistake, to derive mistakes from."""

    def __init__(self, **attributes):
        super().__init__()
        vars(self).update(arrays=[np.arange(i, i + 3) for i in range(20)], **attributes)

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.slice(index) if isinstance(index, slice) else self.element(index)

    def element(self, index):
        return self.arrays[index % 20] + index // 20


class TwoParents(MapDataset):
    def __init__(self, first, second):
        super().__init__((first, second))

    def __len__(self):
        return min(len(self.parents[0]), len(self.parents[1]))

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self.slice(index)
        return {"first": self.parents[0][index], "second": self.parents[1][index]}


Filtering = variant(Right, element=lambda self, i: Right.element(self, i) if i % 3 else None)
RIGHT = {
    "right": Right(),
    "filtering": Filtering(),
    "parents": TwoParents(MapDataset.range(9).shuffle(seed=1), Filtering()),
    "under_stages": Right().shuffle(seed=3).repeat(2).batch(3),
    "endless": Right().repeat(),
    "empty": Right()[:0],
    "one": Right()[:1],
    "huge": MapDataset.range(10**18).shuffle(seed=3),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_accepted(name):
    assert_map_dataset_conforms(RIGHT[name])
    assert_map_dataset_conforms(RIGHT[name], max_elements=1)


def test_options():
    one_epoch = variant(Right, element=lambda self, i: self.arrays[range(20)[i]])()
    assert_map_dataset_conforms(one_epoch, endless=False)
    assert_found("is there. Found: ds[20] raised IndexError", assert_map_dataset_conforms, one_epoch)
    assert_map_dataset_conforms(RIGHT["parents"], in_worker=True)


def wrong(message, base=Right, **overrides):
    return message, variant(base, **overrides)(seen=[])


WRONG = [
    wrong(  # as soon as another thread has read
        "length of an epoch...len(ds) after reads must be 20, got 30",
        __len__=lambda self: 30 if len({*self.seen}) > 1 else 20,
        __repr__=lambda self: "Grows",
        element=lambda self, i: self.seen.append(threading.get_ident()) or Right.element(self, i),
    ),
    wrong("length of an epoch...len(ds) raised ValueError", __len__=lambda self: -1),
    wrong("depends on what is asked...ds[-21] must be", element=lambda self, i: np.random.default_rng().normal()),
    wrong(  # the second time that it is asked for a later epoch, that one is another one
        "depends on what is asked...ds[150] must be",
        element=lambda self, i: Right.element(self, i) if i < 20 else self.seen.append(i) or len(self.seen),
    ),
    wrong(
        "vectored read...ds[150], read with 25 others must be", _block=lambda self, indices: [self[i] for i in sorted(indices)]
    ),
    wrong(
        "vectored read...ds._block(array... must be",
        _block=lambda self, indices: [self[i if isinstance(indices, list) else 0] for i in indices],
    ),
    wrong("vectored read...at once gave 10 instead of 26", _block=lambda self, indices: [self[i] for i in indices[:10]]),
    wrong("the repr is the same...has a memory address", __repr__=object.__repr__),
    wrong(
        "ds[a:b:c] is a dataset...ds[slice... raised TypeError...Begin __getitem__ with",
        __getitem__=lambda self, index: self.element(index),
    ),
    wrong("ds[a:b:c] is a dataset...of type list", slice=lambda self, sl: [self[i] for i in range(20)[sl]]),
    wrong(
        "ds[a:b:c] is a dataset...len(ds[slice(1, None, 2)]) must be 10, got 19",
        slice=lambda self, sl: MapDataset.slice(self, slice(sl.start, sl.stop)),
    ),
    wrong(
        "ds[a:b:c] is a dataset...ds[slice(None, None, -1)][0] must be",
        slice=lambda self, sl: MapDataset.slice(self, sorted(range(20)[sl])),
    ),
    wrong("iterating gives...the first elements must be", __iter__=lambda self: iter(self[::-1])),
    wrong("iterating gives...what comes after an epoch must be [], got", __iter__=lambda self: iter(self.repeat())),
    wrong(
        "iterating gives...the first elements must be",
        Filtering,
        __iter__=lambda self: iter(self.to_iter_dataset(allow_nones=True)),
    ),
]


@pytest.mark.parametrize(("message", "ds"), WRONG)
def test_mistakes_are_found_and_named(message, ds):
    assert_found(message, assert_map_dataset_conforms, ds)


def test_wrong_arguments():
    check = assert_map_dataset_conforms
    assert_raises(TypeError, "ds must be a MapDataset, got", check, MapDataset.range(3).to_iter_dataset())
    assert_raises(ValueError, "max_elements must be a positive integer", check, Right(), max_elements=0)
