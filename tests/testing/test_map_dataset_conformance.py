"""``assert_map_dataset_conforms`` accepts whatever is a map dataset, and names the law that a wrong one breaks."""

import threading

import numpy as np
import pytest

from gristmill import MapDataset
from gristmill.testing import assert_map_dataset_conforms


class Right(MapDataset):
    """A dataset without any mistake, to derive mistakes from."""

    def __init__(self):
        super().__init__()
        self.arrays = [np.arange(i, i + 3) for i in range(20)]

    def __len__(self):
        return 20

    def __getitem__(self, index):
        return self.slice(index) if isinstance(index, slice) else self.element(index)

    def element(self, index):
        return self.arrays[index % 20] + index // 20


class Filtering(Right):
    def element(self, index):
        return super().element(index) if index % 3 else None


class OneEpoch(Right):
    def element(self, index):
        return self.arrays[range(20)[index]]


class TwoParents(MapDataset):
    def __init__(self, first, second):
        super().__init__((first, second))

    def __len__(self):
        return min(len(self.parents[0]), len(self.parents[1]))

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self.slice(index)
        return {"first": self.parents[0][index], "second": self.parents[1][index]}


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


def test_a_dataset_may_have_one_epoch():
    assert_map_dataset_conforms(OneEpoch(), endless=False)
    with pytest.raises(AssertionError, match=r"is there. Found: ds\[20\] raised IndexError"):
        assert_map_dataset_conforms(OneEpoch())


def test_a_worker_process_reads_the_same():
    assert_map_dataset_conforms(RIGHT["parents"], in_worker=True)


class Grows(Right):
    length = 20

    def __len__(self):
        return self.length

    def __repr__(self):
        return "Grows"

    def element(self, index):
        if threading.current_thread() is not threading.main_thread():
            self.length = 30
        return super().element(index)


class NegativeLength(Right):
    def __len__(self):
        return -1


class Random(Right):
    def element(self, index):
        return float(np.random.default_rng().normal())


class NewEpochsDiffer(Right):
    """The second time that it is asked for a later epoch, that one is another one."""

    num_epochs = 0

    def element(self, index):
        self.num_epochs += index >= 20
        return super().element(index) if index < 20 else self.num_epochs


class WrongBlocks(Right):
    def _block(self, indices):
        return [self[i] for i in sorted(indices)]


class NoRanges(Right):
    def _block(self, indices):
        return [self[i] for i in indices] if isinstance(indices, list) else [self[0]] * len(indices)


class ShortBlocks(Right):
    def _block(self, indices):
        return [self[i] for i in indices][:10]


class OfOneThread(Right):
    main = threading.get_ident()

    def element(self, index):
        return super().element(index) if threading.get_ident() == self.main else None


class HoldsALock(Right):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class WithAddress(Right):
    __repr__ = object.__repr__


class WithoutSlices(Right):
    def __getitem__(self, index):
        return self.element(index)


class SlicesToLists(Right):
    def __getitem__(self, index):
        return [self[i] for i in range(*index.indices(20))] if isinstance(index, slice) else self.element(index)


class SlicesWithoutStep(Right):
    def __getitem__(self, index):
        return self.slice(slice(index.start, index.stop)) if isinstance(index, slice) else self.element(index)


class SlicesForwards(Right):
    def __getitem__(self, index):
        return self.slice(sorted(range(20)[index])) if isinstance(index, slice) else self.element(index)


class IteratesBackwards(Right):
    def __iter__(self):
        return iter(self[::-1])


class IteratesForEver(Right):
    def __iter__(self):
        return iter(self.repeat())


class IteratesNones(Filtering):
    def __iter__(self):
        return iter(self.to_iter_dataset(allow_nones=True))


WRONG = {
    Grows: r"len\(ds\) is the length of an epoch.*len\(ds\) after reads must be 20, got 30",
    NegativeLength: r"len\(ds\) is the length of an epoch.*len\(ds\) raised ValueError",
    Random: r"depends on what is asked for alone.*ds\[-21\] must be",
    NewEpochsDiffer: r"depends on what is asked for alone.*ds\[150\] must be",
    WrongBlocks: r"vectored read gives the same.*ds\[150\], read with 25 others must be",
    NoRanges: r"vectored read gives the same.*ds._block\(array.* must be",
    ShortBlocks: r"vectored read gives the same.*a read of .* at once gave 10 instead of 26",
    OfOneThread: r"several threads.*ds\[-?\d+\] in one of 8 threads must be .* got None",
    HoldsALock: r"copy made by cloudpickle.*copying HoldsALock raised TypeError",
    WithAddress: r"the repr is the same.*has a memory address",
    WithoutSlices: r"ds\[a:b:c\] is a dataset.*ds\[slice.* raised TypeError.*Begin __getitem__ with",
    SlicesToLists: r"ds\[a:b:c\] is a dataset.*of type list",
    SlicesWithoutStep: r"ds\[a:b:c\] is a dataset.*len\(ds\[slice\(1, None, 2\)\]\) must be 10, got 19",
    SlicesForwards: r"ds\[a:b:c\] is a dataset.*ds\[slice\(None, None, -1\)\]\[0\] must be",
    IteratesBackwards: r"iterating gives the elements.*the first elements must be",
    IteratesForEver: r"iterating gives the elements.*what comes after an epoch must be \[\], got",
    IteratesNones: r"iterating gives the elements.*the first elements must be",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_mistakes_are_found_and_named(kind):
    with pytest.raises(AssertionError, match=f"(?s)^broken law: .*{WRONG[kind]}"):
        assert_map_dataset_conforms(kind())


def test_wrong_arguments():
    with pytest.raises(TypeError, match="ds must be a MapDataset, got"):
        assert_map_dataset_conforms(MapDataset.range(3).to_iter_dataset())
    with pytest.raises(ValueError, match="max_elements must be a positive integer"):
        assert_map_dataset_conforms(Right(), max_elements=0)
