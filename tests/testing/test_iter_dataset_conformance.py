"""``assert_iter_dataset_conforms`` accepts whatever is a stream, and names the law that a wrong one breaks."""

import threading

import numpy as np
import pytest

from gristmill import DatasetIterator, IterDataset, MapDataset, ReadOptions
from gristmill.testing import assert_iter_dataset_conforms, assert_iterator_conforms


class RightIterator(DatasetIterator):
    """Counts to ten without any mistake, to derive mistakes from."""

    end = 10

    def __init__(self, ds):
        super().__init__()
        self.ds = ds
        self.position = 0

    def __next__(self):
        if self.position >= self.end:
            raise StopIteration
        self.position += 1
        return self.element(self.position - 1)

    def element(self, position):
        return np.full(2, position)

    def get_state(self):
        return {"position": self.position, "more": {"list": [0, 1]}}

    def set_state(self, state):
        state["more"]["list"]
        self.position = state["position"]


class Stream(IterDataset):
    """A dataset of the iterators of a class."""

    def __init__(self, iterator_class):
        super().__init__()
        self.iterator_class = iterator_class

    def __iter__(self):
        return self.iterator_class(self)


class Endless(RightIterator):
    end = 10**9


class WithBlocks(RightIterator):
    """Has a ``_take`` of its own, and refuses after ``close``."""

    def __next__(self):
        if self._closed:
            raise ValueError("closed")
        return super().__next__()

    def _take(self, n):
        positions = range(self.position, min(self.position + n, self.end))
        self.position = positions.stop
        return [self.element(i) for i in positions]


class Lenient(RightIterator):
    """Reads states of older versions, which lack a part."""

    def get_state(self):
        return {"position": self.position, "new": 0}

    def set_state(self, state):
        state.get("new")
        self.position = state["position"]


class NumberAsState(RightIterator):
    def get_state(self):
        return self.position

    def set_state(self, state):
        if type(state) is not int:
            raise ValueError(state)
        self.position = state


class Pairs(IterDataset):
    """The sums of neighbours of a parent, as users write it."""

    def __iter__(self):
        return PairsIterator(iter(self.parents[0]))


class PairsIterator(DatasetIterator):
    def __next__(self):
        before = self._parents[0].get_state()
        try:
            return next(self._parents[0]) + next(self._parents[0])
        except StopIteration:
            raise
        except Exception:
            self._parents[0].set_state(before)
            raise

    def get_state(self):
        return self._parents[0].get_state()

    def set_state(self, state):
        self._parents[0].set_state(state)


class Scaled(IterDataset):
    def __init__(self, parent):
        super().__init__(parent)

    def __iter__(self):
        return ScaledIterator(iter(self.parents[0]))


class ScaledIterator(PairsIterator):
    def __next__(self):
        return next(self._parents[0]) * 10


RIGHT = {
    "right": Stream(RightIterator),
    "endless": Stream(Endless),
    "blocks": Stream(WithBlocks),
    "lenient": Stream(Lenient),
    "number": Stream(NumberAsState),
    "pairs": Pairs(MapDataset.range(20).to_iter_dataset()),
    "under_stages": Stream(RightIterator).map(sum).batch(3),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_accepted(name):
    assert_iter_dataset_conforms(RIGHT[name])
    assert_iter_dataset_conforms(RIGHT[name], max_elements=1)
    assert_iterator_conforms(lambda: iter(RIGHT[name]), max_elements=3)


def test_workers_compute_the_same():
    assert_iter_dataset_conforms(Stream(RightIterator), max_elements=5, workers=[1])
    assert_iter_dataset_conforms(Scaled(MapDataset.range(9).to_iter_dataset()), max_elements=5, workers=(1, 2))
    with pytest.raises(AssertionError, match=r"change no element.*the elements by 2 worker processes must be .* got"):
        assert_iter_dataset_conforms(Pairs(MapDataset.range(20).to_iter_dataset()), max_elements=4, workers=[2])


class RaisesOnce:
    """A source in which the first read of some keys fails."""

    def __init__(self, keys):
        self.keys = set(keys)

    def __len__(self):
        return 20

    def __getitem__(self, key):
        if key in self.keys:
            self.keys.remove(key)
            raise OSError(f"record {key} cannot be read now")
        return key


def failing(*keys):
    return MapDataset.source(RaisesOnce(keys)).to_iter_dataset(ReadOptions(num_threads=0))  # threads would try again


def healthy():
    return MapDataset.range(20).to_iter_dataset()


class LosesHalfAPair(PairsIterator):
    def __next__(self):
        return next(self._parents[0]) + next(self._parents[0])


class HoldsHalfAPair(PairsIterator):
    """Keeps what it has read for the next attempt, its state does not say so, and need not."""

    def __init__(self, parent):
        super().__init__(parent)
        self.position = parent.get_state()
        self.half = []

    def __next__(self):
        while len(self.half) < 2:
            self.half.append(next(self._parents[0]))
        pair, self.half = self.half, []
        self.position = self._parents[0].get_state()
        return sum(pair)

    def get_state(self):
        return dict(self.position)

    def set_state(self, state):
        self._parents[0].set_state(state)
        self.position, self.half = dict(state), []


class RepeatsAfterErrors(PairsIterator):
    failed = False

    def __next__(self):
        try:
            return super().__next__() + self.failed
        except OSError:
            self.failed = True
            raise


class AlwaysRaises(RaisesOnce):
    def __getitem__(self, key):
        if key == 7:
            raise OSError("record 7 is gone")
        return key


def pairs(parent, iterator_class):
    class PairsOf(Pairs):
        def __iter__(self):
            return iterator_class(iter(self.parents[0]))

    return PairsOf(parent)


def test_errors_lose_nothing():
    assert_iter_dataset_conforms(Pairs(healthy()), failing=Pairs(failing(0, 5, 8, 9)))
    assert_iter_dataset_conforms(pairs(healthy(), HoldsHalfAPair), failing=pairs(failing(0, 5, 8, 9), HoldsHalfAPair))
    assert_iter_dataset_conforms(healthy(), max_elements=4, failing=failing(3))
    with pytest.raises(
        AssertionError, match=r"broken law: an error loses nothing.*get_state\(\) after OSError.* at element 2 must be"
    ):
        assert_iter_dataset_conforms(pairs(healthy(), LosesHalfAPair), failing=pairs(failing(5), LosesHalfAPair))
    with pytest.raises(
        AssertionError, match=r"broken law: an error loses nothing.*the elements delivered around the errors must be"
    ):
        assert_iter_dataset_conforms(pairs(healthy(), RepeatsAfterErrors), failing=pairs(failing(5), RepeatsAfterErrors))
    with pytest.raises(AssertionError, match=r"broken law: an error loses nothing.*element 7 raised OSError.* again and again"):
        assert_iter_dataset_conforms(healthy(), failing=MapDataset.source(AlwaysRaises(())).to_iter_dataset())
    with pytest.raises(ValueError, match=r"failing must raise .*, it raised nothing before element 4"):
        assert_iter_dataset_conforms(healthy(), max_elements=4, failing=failing(19))


class Plain(RightIterator):
    def __new__(cls, ds):
        return iter([1, 2])


class AnotherIterator(RightIterator):
    def __iter__(self):
        return type(self)(self.ds)


class Raises(RightIterator):
    def element(self, position):
        return 1 // (position - 4)


class Nothing(RightIterator):
    end = 0


class ReusesABuffer(RightIterator):
    def __init__(self, ds):
        super().__init__(ds)
        self.buffer = np.zeros(2)

    def element(self, position):
        self.buffer[:] = position
        return self.buffer


class BeginsAnew(RightIterator):
    def __next__(self):
        try:
            return super().__next__()
        except StopIteration:
            self.position = 0
            raise


class SharesAPosition(RightIterator):
    """In the dataset, whose last iterator sets it back."""

    def __init__(self, ds):
        ds.position = 0
        super().__init__(ds)

    @property
    def position(self):
        return self.ds.position

    @position.setter
    def position(self, value):
        self.ds.position = value


class Random(RightIterator):
    def element(self, position):
        return np.random.default_rng().normal()


class NumPyStates(RightIterator):
    def get_state(self):
        return {**super().get_state(), "position": np.int64(self.position)}


class HandsOutItsState(RightIterator):
    def __init__(self, ds):
        super().__init__(ds)
        self.state = {"position": 0}

    @property
    def position(self):
        return self.state["position"]

    @position.setter
    def position(self, value):
        if hasattr(self, "state"):
            self.state["position"] = value

    def get_state(self):
        return self.state

    def set_state(self, state):
        self.state = {"position": state["position"]}


class HandsOutAPart(RightIterator):
    def __init__(self, ds):
        super().__init__(ds)
        self.more = {"list": [0]}

    def get_state(self):
        return {"position": self.position, "more": self.more}


class KeepsTheGivenState(RightIterator):
    def __init__(self, ds):
        super().__init__(ds)
        self.more = {"list": [0]}

    def get_state(self):
        return {"position": self.position, "more": {"list": [*self.more["list"]]}}

    def set_state(self, state):
        super().set_state(state)
        self.more = state["more"]


class ForgetsAPart(RightIterator):
    """Elements depend on a number that states do not have."""

    total = 0

    def element(self, position):
        self.total += position
        return self.total


class OffByOne(RightIterator):
    def set_state(self, state):
        super().set_state({**state, "position": state["position"] - (state["position"] == 7)})


class StatesOfManyShapes(RightIterator):
    def get_state(self):
        return {**super().get_state(), "more": {"list": list(range(self.position))}}


class NeedsTuples(RightIterator):
    def get_state(self):
        return {"position": self.position, "more": {"list": (0, 1)}}

    def set_state(self, state):
        hash(state["more"]["list"])
        super().set_state(state)


class NeedsNumbersAsKeys(RightIterator):
    def get_state(self):
        return {"position": self.position, "more": {0: 1}}

    def set_state(self, state):
        state["more"][0]
        self.position = state["position"]


class AcceptsAnything(RightIterator):
    def set_state(self, state):
        self.position = state["position"] if isinstance(state, dict) and "position" in state else 0


class AppliesHalf(RightIterator):
    def set_state(self, state):
        self.position = state["position"]
        state["more"]["list"]


class ClosesOnce(RightIterator):
    def close(self):
        if self._closed:
            raise RuntimeError("closed already")
        super().close()

    def __del__(self):
        pass


class EndsWhenClosed(RightIterator):
    def __next__(self):
        if self._closed:
            raise StopIteration
        return super().__next__()


class SkipsWhenClosed(RightIterator):
    def close(self):
        self.end = 10**6
        if not self._closed:
            super().close()

    def element(self, position):
        return super().element(position + self._closed)


class ForgetsWhenClosed(RightIterator):
    def close(self):
        super().close()
        self.position = 0


class PrefetchCounts(RightIterator):
    def start_prefetch(self):
        self.position = min(self.position + 1, self.end)


class PrefetchTakes(RightIterator):
    taken = 0

    def start_prefetch(self):
        self.taken = 1

    def element(self, position):
        return super().element(position + self.taken)


class PrefetchRaises(RightIterator):
    def start_prefetch(self):
        raise RuntimeError("nothing to prefetch")


class WrongBlocks(RightIterator):
    def _take(self, n):
        return super()._take(n)[::-1]


class ShortBlocks(RightIterator):
    def _take(self, n):
        return super()._take(min(n, 2))


class WithoutStates(RightIterator):
    def get_state(self):
        raise NotImplementedError("no states yet")


WRONG = {
    Plain: r"iter\(ds\) is a DatasetIterator.*Found: iter\(ds\) is a list_iterator",
    AnotherIterator: r"iter\(it\) is it.*Found: iter\(it\) is another object",
    Raises: r"is there. Found: next\(it\) raised ZeroDivisionError",
    ReusesABuffer: r"an element stays.*element 0, looked at after later ones, must be",
    BeginsAnew: r"after its end.*after the end, next\(it\) gave array\(\[0, 0\]\)",
    SharesAPosition: r"every iterator gives the same.*element 0 of two iterators that take turns must be",
    Random: r"every iterator gives the same.*element 0 of two iterators",
    NumPyStates: r"states are JSON-able.*json.dumps of the state .* raised TypeError",
    WithoutStates: r"states are JSON-able.*NotImplementedError: no states yet",
    HandsOutItsState: r"a state is apart.*the state taken at step 0, after later steps, must be {'position': 0}",
    HandsOutAPart: r"a state is apart.*after the state that it gave before was changed, must be",
    KeepsTheGivenState: r"a state is apart.*after the state that was set was changed, must be",
    ForgetsAPart: r"a state is apart|continues exactly where.*element \d must be",
    OffByOne: r"continues exactly where.*at step 7 state",
    StatesOfManyShapes: r"continues exactly where.*the state at step 1 is like",
    NeedsTuples: r"continues exactly where.*TypeError: unhashable",
    NeedsNumbersAsKeys: r"continues exactly where.*KeyError: 0",
    AcceptsAnything: r"does not fit is refused.*set_state\(None\) raised nothing; right is a state like {'position': 5",
    AppliesHalf: r"does not fit is refused.*after the state {'position': 0} was refused, must be .* got {'position': 0",
    ClosesOnce: r"close may be called twice.*RuntimeError: closed already",
    EndsWhenClosed: r"nothing is lost unnoticed.*raised StopIteration, although element 5 was not there yet",
    SkipsWhenClosed: r"nothing is lost unnoticed.*must be array\(\[5, 5\]\), got array\(\[6, 6\]\)",
    ForgetsWhenClosed: r"nothing is lost unnoticed.*get_state\(\) after close\(\) must be",
    PrefetchCounts: r"start_prefetch changes.*get_state\(\) after start_prefetch\(\) must be",
    PrefetchTakes: r"start_prefetch changes.*element 0 after start_prefetch\(\) must be",
    PrefetchRaises: r"start_prefetch changes.*RuntimeError: nothing to prefetch",
    WrongBlocks: r"a batch has the next elements.*ds.batch\(2, batch_fn=list\) must be",
    ShortBlocks: r"a batch has the next elements.*ds.batch\(3, batch_fn=list\) must be",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_mistakes_are_found_and_named(kind):
    message = f"(?s)^broken law: .*{WRONG[kind]}"
    ds = Stream(kind)
    with pytest.raises(AssertionError, match=message):
        assert_iter_dataset_conforms(ds)
    with pytest.raises(AssertionError, match=message):
        assert_iterator_conforms(lambda: iter(ds))


class WithALock(Stream):
    def __init__(self):
        super().__init__(RightIterator)
        self.lock = threading.Lock()


class ForgetsWhenCopied(Stream):
    start = 0

    def __iter__(self):
        it = super().__iter__()
        it.position = self.start
        return it

    def __getstate__(self):
        return {**self.__dict__, "start": 3}


class OfOneThread(Stream):
    main = threading.get_ident()

    def __iter__(self):
        return super().__iter__() if threading.get_ident() == self.main else iter(Stream(Endless).limit(3))


WRONG_DATASETS = {
    WithALock: r"copy made by cloudpickle.*copying WithALock raised TypeError",
    lambda: ForgetsWhenCopied(RightIterator): r"copy made by cloudpickle.*elements of a copy made before the first use must be",
    lambda: OfOneThread(RightIterator): r"several threads.*the elements of each of several threads",
}


@pytest.mark.parametrize("make", WRONG_DATASETS)
def test_mistakes_of_datasets_are_found_and_named(make):
    with pytest.raises(AssertionError, match=f"(?s)^broken law: .*{WRONG_DATASETS[make]}"):
        assert_iter_dataset_conforms(make())


def test_wrong_arguments():
    with pytest.raises(TypeError, match="ds must be an IterDataset, got"):
        assert_iter_dataset_conforms(MapDataset.range(3))
    with pytest.raises(TypeError, match="failing must be an IterDataset, got"):
        assert_iter_dataset_conforms(healthy(), failing=MapDataset.range(3))
    with pytest.raises(ValueError, match="max_elements must be a positive integer"):
        assert_iter_dataset_conforms(healthy(), max_elements=0)
    with pytest.raises(AssertionError, match="must have at least one element to be checked"):
        assert_iter_dataset_conforms(Stream(Nothing))
