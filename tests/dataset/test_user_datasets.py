"""Data sets and iterators that users write: every pattern in use continues working, under and over
our own stages.
"""

import gc

import pytest
from refusing import assert_raises
from users_datasets import BareMap, BareStream

from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.dataset.bases.context import IteratorContext, Numbers
from gristmill.experimental import (
    DatasetOptions,
    WithOptionsIterDataset,
    assert_equal_output_after_checkpoint,
)


class Sliceable(BareMap):
    """Calls ``super().__init__`` and knows of slices."""

    def __init__(self, n):
        MapDataset.__init__(self)
        self.n = n

    def __getitem__(self, index):
        return self.slice(index) if isinstance(index, slice) else super().__getitem__(index)


methods = {
    "__len__": lambda self: len(self._parent),
    "__getitem__": lambda self, index: 2 * self._parent[index],
}
Doubled = type("Doubled", (MapDataset,), methods)


def test_parents_of_map_datasets_and_steps_behind_them():
    ds = Sliceable(2)
    doubled = Doubled(ds)
    assert ds.parents == BareMap(2).parents == ()
    assert doubled.parents == doubled._parents == (ds,) and doubled._parent is ds
    for parents in ([ds, doubled], (ds, doubled), iter([ds, doubled])):
        joined = Doubled(parents)
        assert joined.parents == (ds, doubled)
        for several in (ds, joined):
            with pytest.raises(ValueError, match="exactly one parent"):
                _ = several._parent
    for wrong in ([1, 2], 5):
        assert_raises(TypeError, "parents", Doubled, wrong)
    doubled.parents = ()  # an attribute of the user's: stages do not ask for it
    assert list(doubled.map(lambda x: x)) == [0, 2]
    for own, same in ((kind(5), MapDataset.range(5)) for kind in (BareMap, Sliceable)):
        for step in (
            lambda ds: ds.slice(slice(1, None, 2)).repeat(2),
            lambda ds: ds.seed(3).shuffle().batch(2, batch_fn=list),
        ):
            assert list(step(own)) == list(step(same)) and list(step(own)._gm_items([3, 0])) == [
                step(own)[3],
                step(own)[0],
            ]


class Stream(IterDataset):
    """The pattern in the wild: a data set over a parent, an iterator over the parent's iterator."""

    def __iter__(self):
        return StreamIterator(self._parent.__iter__())


class StreamIterator(DatasetIterator):
    def __init__(self, parent):
        super().__init__(parent)
        self.count = 0

    def __next__(self):
        x = next(self._parent)
        self.count += 1
        return (self.count, x)

    def get_state(self):
        return {"parent": self._parent.get_state(), "count": self.count}

    def set_state(self, state):
        self._parent.set_state(state["parent"])
        self.count = state["count"]


SOURCE = MapDataset.source(list("abcde")).to_iter_dataset()
STREAMS = [
    (lambda: Stream(SOURCE), [*enumerate("abcde", 1)]),
    # a map parent is iterated
    (lambda: Stream(MapDataset.source(list("ab"))).map(str), ["(1, 'a')", "(2, 'b')"]),
    (
        lambda: Stream(Stream(SOURCE).filter(lambda x: x[0] % 2)).batch(2, batch_fn=list),
        [[(1, (1, "a")), (2, (3, "c"))], [(3, (5, "e"))]],
    ),
    (lambda: BareStream(3), [0, 1, 2]),
    (
        lambda: BareStream(5).filter(lambda x: x % 2).map_with_index(lambda i, x: (i, x)),
        [(0, 1), (1, 3)],
    ),
    (
        lambda: Stream(WithOptionsIterDataset(BareStream(2), DatasetOptions(min_shm_size=1))),
        [(1, 0), (2, 1)],
    ),
]


@pytest.mark.parametrize(("make", "expected"), STREAMS)
def test_streams_over_and_under_ours(make, expected):
    before = dict(vars(StreamIterator))
    assert list(make()) == expected
    assert_equal_output_after_checkpoint(make(), at_end=True, in_place=True)
    assert dict(vars(StreamIterator)) == before  # classes are not modified


@pytest.mark.parametrize("elements", [lambda: (x for x in range(5)), lambda: iter(range(5))])
def test_iterators_that_are_none_of_ours(elements):
    ds = type("Foreign", (IterDataset,), {"__iter__": lambda self: elements()})()
    assert list(ds) == [*range(5)] and list(Stream(ds.map(str)))[1] == (2, "1")
    assert list(
        ds.filter(lambda x: x % 2).map_with_index(lambda i, x: (i, x)).batch(5, batch_fn=list)
    ) == [[(0, 1), (1, 3)]]
    it = iter(ds.map(str))
    assert next(it) == "0"
    for call in (it.get_state, lambda: it.set_state({})):
        assert_raises(
            NotImplementedError, r"plain \w* has no state: return a DatasetIterator", call
        )
    assert next(it) == "1"
    it.close()
    assert_raises(ValueError, "closed", next, it)
    wrong = type("Wrong", (IterDataset,), {"__iter__": lambda self: [1, 2]})()
    assert_raises(TypeError, r"Wrong\.__iter__", iter, wrong.map(str))


def test_contexts_are_merged():
    class Pair(DatasetIterator):
        def __next__(self):
            return tuple(next(parent) for parent in self._parents)

        get_state = set_state = None

    def stream(**options):
        return iter(WithOptionsIterDataset(SOURCE.map(str), DatasetOptions(**options)))

    one, other = stream(min_shm_size=1), stream(min_shm_size=2, filter_warn_threshold_ratio=0.5)
    pair = Pair([one, other])
    assert pair._ctx.options == DatasetOptions(min_shm_size=1, filter_warn_threshold_ratio=0.5)
    assert one._ctx is other._ctx is pair._ctx
    assert next(pair) == ("a", "a")
    foreign = stream()
    foreign._gm_share_context(IteratorContext(numbers=Numbers(1, 2)))
    assert_raises(ValueError, "worker", Pair, [stream(), foreign])
    assert_raises(TypeError, "parents", Pair, [iter([1])])


def test_closing_reaches_the_parents_of_a_users_iterator():
    closed = []

    class Closing(StreamIterator):
        def close(self):
            closed.append(self)
            super().close()

    inner = iter(SOURCE)
    it = Closing(inner)
    next(it)
    it.close()
    it.close()
    for each in (it, inner):
        assert_raises(ValueError, "closed", next, each)
    assert len(closed) == 2
    Closing(iter(SOURCE))
    bare = iter(BareStream(3))
    bare.start_prefetch()
    bare.close()
    bare.close()
    del bare
    gc.collect()  # nothing is printed: warnings are errors
    assert len(closed) == 3  # also when the iterator is dropped
