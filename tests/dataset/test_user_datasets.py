"""Data sets and iterators that users write: every pattern in use goes on working, under and over our own stages."""

import gc

import numpy as np
import pytest

from gristmill.core.options import DatasetOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.telling.description import describe


class Squares(MapDataset):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if isinstance(index, slice):
            return self.slice(index)
        assert type(index) is int
        return (index % self.n) ** 2


class BareSquares(Squares):
    """Neither calls ``super().__init__`` nor knows of slices."""

    def __init__(self, n):
        self.n = n

    def __getitem__(self, index):
        return (index % self.n) ** 2


class Doubled(MapDataset):
    """With a parent, as the documentation recommends."""

    def __init__(self, parent):
        super().__init__(parent)

    def __len__(self):
        return len(self._parent)

    def __getitem__(self, index):
        return 2 * self._parent[index]


@pytest.mark.parametrize("kind", [Squares, BareSquares])
def test_map_datasets(kind):
    ds = kind(5)
    squares = [0, 1, 4, 9, 16]
    assert list(ds) == squares
    assert ds.parents == ()
    assert list(ds.slice(slice(1, None, 2))) == [1, 9]
    assert list(ds.shuffle(seed=3)) == [squares[i] for i in MapDataset.range(5).shuffle(seed=3)]
    assert list(ds.seed(3).shuffle()) == [squares[i] for i in MapDataset.range(5).seed(3).shuffle()]
    assert list(ds.map(str).repeat(2)) == 2 * [str(x) for x in squares]
    assert [b.tolist() for b in ds.batch(2)] == [[0, 1], [4, 9], [16]]
    assert list(Doubled(ds)) == [0, 2, 8, 18, 32]
    assert list(Doubled(ds).map_with_index(lambda i, x: (i, x)))[4] == (4, 32)
    assert ds.shuffle(seed=1)._block(np.array([7, -3])) == [ds.shuffle(seed=1)[i] for i in (7, -3)]
    it = iter(ds)
    next(it)
    assert it.get_state() == {"next_index": 1}


def test_parents():
    ds = Squares(2)
    doubled = Doubled(ds)
    assert doubled.parents == (ds,) and doubled._parent is ds and doubled._parents == (ds,)
    with pytest.raises(ValueError, match="exactly one parent"):
        _ = ds._parent

    class Joined(MapDataset):
        def __len__(self):
            return 1

        def __getitem__(self, index):
            return [parent[0] for parent in self.parents]

    for parents in ([ds, doubled], (ds, doubled), iter([ds, doubled])):
        joined = Joined(parents)
        assert joined.parents == (ds, doubled)
        assert list(joined) == [[0, 0]]
        with pytest.raises(ValueError, match="exactly one parent"):
            _ = joined._parent
    with pytest.raises(TypeError, match="parents"):
        Joined([1, 2])
    with pytest.raises(TypeError, match="parents"):
        Joined(5)
    with pytest.raises(AttributeError):
        ds.parents = ()


class Stream(IterDataset):
    """The pattern in the wild: a data set over a parent, an iterator over the parent's iterator."""

    def __init__(self, parent):
        super().__init__(parent)

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


class BareStream(IterDataset):
    """Nothing calls ``super().__init__``."""

    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return BareIterator(self.n)


class BareIterator(DatasetIterator):
    def __init__(self, n):
        self.n = n
        self.position = 0

    def __next__(self):
        if self.position == self.n:
            raise StopIteration
        self.position += 1
        return self.position - 1

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


def check_positions(make, expected):
    it = iter(make())
    states = [it.get_state()]
    for x in expected:
        assert next(it) == x
        states.append(it.get_state())
    with pytest.raises(StopIteration):
        next(it)
    for k, state in reversed(list(enumerate(states))):
        it.set_state(state)
        assert list(it) == expected[k:]
        fresh = iter(make())
        fresh.set_state(state)
        assert list(fresh) == expected[k:]


def test_streams_over_and_under_ours():
    source = MapDataset.source("abcde").to_iter_dataset()
    check_positions(lambda: Stream(source), [(1, "a"), (2, "b"), (3, "c"), (4, "d"), (5, "e")])
    check_positions(lambda: Stream(MapDataset.source("ab")), [(1, "a"), (2, "b")])  # a map parent is iterated
    check_positions(
        lambda: Stream(Stream(source).filter(lambda x: x[0] % 2)).batch(2, batch_fn=list),
        [[(1, (1, "a")), (2, (3, "c"))], [(3, (5, "e"))]],
    )
    check_positions(
        lambda: Stream(source).map_with_index(lambda i, x: (i, *x)).random_map(lambda x, rng: x, seed=1).map(str),
        [str((i, i + 1, c)) for i, c in enumerate("abcde")],
    )


def test_streams_without_super_init():
    check_positions(lambda: BareStream(3), [0, 1, 2])
    check_positions(lambda: BareStream(5).map(str).batch(2, batch_fn=list), [["0", "1"], ["2", "3"], ["4"]])
    check_positions(lambda: BareStream(5).filter(lambda x: x % 2).map_with_index(lambda i, x: (i, x)), [(0, 1), (1, 3)])
    check_positions(lambda: Stream(BareStream(2)), [(1, 0), (2, 1)])
    ds = WithOptionsIterDataset(BareStream(2), DatasetOptions(min_shm_size=1))
    assert list(ds) == [0, 1]
    it = iter(BareStream(3))
    it.start_prefetch()
    it.close()
    it.close()
    del it
    gc.collect()  # nothing is printed: warnings are errors


def test_a_state_that_a_users_iterator_refuses_halfway_changes_nothing():
    class Careless(BareIterator):
        def set_state(self, state):
            self.position = 99
            self.position = state["position"]

    class Ds(IterDataset):
        def __iter__(self):
            return Careless(5)

    it = iter(Ds().map(str).map_with_index(lambda i, x: (i, x)).batch(2, batch_fn=list))
    next(it)
    before = it.get_state()
    with pytest.raises(KeyError):
        it.set_state({"parent": {}, "counter": 0})
    assert it.get_state() == before
    assert list(it) == [[(2, "2"), (3, "3")], [(4, "4")]]


def test_errors_do_not_advance_our_stages_over_a_users_iterator():
    failing = [2]

    def fail(x):
        if x in failing:
            raise KeyError(x)
        return x

    it = iter(BareStream(5).map(fail).batch(3, batch_fn=list))
    with pytest.raises(KeyError):
        next(it)
    assert it.get_state() == {"position": 0}
    failing.clear()
    assert list(it) == [[0, 1, 2], [3, 4]]


def test_generators():
    class Generated(IterDataset):
        def __iter__(self):
            return (i * i for i in range(5))

    class Yielding(IterDataset):
        def __iter__(self):
            yield from range(5)

    assert list(Generated()) == [0, 1, 4, 9, 16]
    assert list(Generated().map(str)) == ["0", "1", "4", "9", "16"]
    assert list(Yielding().filter(lambda x: x % 2).batch(5, batch_fn=list)) == [[1, 3]]
    assert next(iter(Stream(Generated().map(str)))) == (1, "0")
    assert list(Yielding().batch(2, batch_fn=list).map_with_index(lambda i, x: (i, x))) == [(0, [0, 1]), (1, [2, 3]), (2, [4])]
    it = iter(Yielding().map(str))
    assert next(it) == "0"
    for call in (it.get_state, lambda: it.set_state({})):
        with pytest.raises(NotImplementedError, match="generator"):
            call()
    assert next(it) == "1"
    it.close()
    with pytest.raises(ValueError, match="closed"):
        next(it)


def test_what_is_no_iterator_is_refused():
    class Wrong(IterDataset):
        def __iter__(self):
            return [1, 2]

    with pytest.raises(TypeError, match=r"Wrong\.__iter__"):
        iter(Wrong().map(str))


def test_contexts_are_merged():
    class Pair(DatasetIterator):
        def __next__(self):
            return tuple(next(parent) for parent in self._parents)

        def get_state(self):
            return [parent.get_state() for parent in self._parents]

        def set_state(self, state):
            for parent, inner in zip(self._parents, state, strict=True):
                parent.set_state(inner)

    def stream(**options):
        return iter(WithOptionsIterDataset(MapDataset.range(3).to_iter_dataset().map(str), DatasetOptions(**options)))

    one, other = stream(min_shm_size=1), stream(min_shm_size=2, filter_warn_threshold_ratio=0.5)
    pair = Pair([one, other])
    assert pair._ctx.options == DatasetOptions(min_shm_size=1, filter_warn_threshold_ratio=0.5)
    assert one._ctx is other._ctx is pair._ctx
    assert next(pair) == ("0", "0")
    foreign = stream()
    foreign._share_context(IteratorContext(worker_index=1, worker_count=2))
    with pytest.raises(ValueError, match="worker"):
        Pair([stream(), foreign])
    with pytest.raises(TypeError, match="parents"):
        Pair([iter([1])])


def test_closing_reaches_the_parents_of_a_users_iterator():
    closed = []

    class Closing(StreamIterator):
        def close(self):
            closed.append(self)
            super().close()

    inner = iter(MapDataset.source("abc").to_iter_dataset())
    it = Closing(inner)
    next(it)
    it.close()
    it.close()
    with pytest.raises(ValueError, match="closed"):
        next(it)
    with pytest.raises(ValueError, match="closed"):
        next(inner)
    count = len(closed)
    assert count == 2
    Closing(iter(MapDataset.source("abc").to_iter_dataset()))
    gc.collect()
    assert len(closed) == 3  # also when the iterator is dropped


def test_user_code_of_a_users_iterator_may_not_end_the_stream_by_accident():
    def careless(x):
        return next(iter([]))

    it = iter(Stream(MapDataset.range(3).map(careless)))
    with pytest.raises(RuntimeError, match="StopIteration"):
        next(it)


def test_classes_are_not_modified():
    before = dict(vars(StreamIterator))
    list(Stream(MapDataset.range(3)).map(str))
    assert dict(vars(StreamIterator)) == before


NAMES = ("parameters", "upstream", "text", "family", "place", "kind", "length", "source", "data", "position", "state", "options")


class NamedStream(IterDataset):
    """Has attributes that anybody may think of."""

    def __init__(self, parent):
        super().__init__(parent)
        vars(self).update({f"_{name}": "mine" for name in NAMES})

    def __iter__(self):
        it = StreamIterator(iter(self._parent))
        for name in NAMES:
            setattr(it, f"_{name}", "mine")
        return it


class NamedSquares(Squares):
    def __init__(self, n):
        super().__init__(n)
        for name in NAMES:
            setattr(self, f"_{name}", "mine")


def test_names_of_users_attributes_are_theirs():
    ds = (
        NamedStream(NamedSquares(4).map(lambda x: x).to_iter_dataset())
        .map(lambda pair: 1 // (pair[1] - 9))
        .batch(2, batch_fn=list)
    )
    assert repr(ds).count("Named") == 2
    it = iter(ds)
    own = describe(it)["parents"][0]["parents"][0]
    assert own.keys() == {"stage", "parents"} and own["stage"] == "StreamIterator"
    next(it)
    with pytest.raises(ZeroDivisionError) as caught:
        next(it)
    assert caught.value.__notes__[0].startswith("Raised by MapDatasetIterator")
    it.skip_failed()
    assert list(it) == []
