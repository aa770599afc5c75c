"""``assert_iter_dataset_conforms`` accepts every stream, and names the law that a wrong one
breaks.
"""

import copy
import itertools
import operator
import threading
from functools import partial

import numpy as np
import pytest
from computing_ahead import Failing, numbers
from mistakes import MAIN_THREAD, assert_found, variant
from refusing import assert_raises
from users_datasets import BareIterator

from gristmill import DatasetIterator, IterDataset, MapDataset
from gristmill.testing import assert_iter_dataset_conforms, assert_iterator_conforms


class Right(BareIterator):  # counts to ten without any mistake, to derive mistakes from
    def __init__(self, ds, end=10):
        self.ds, self.more = ds, {"list": [0, 1]}
        super().__init__(end)

    def __next__(self):
        return self.element(super().__next__())

    def element(self, position):
        return np.full(2, position)

    def get_state(self):
        return {"position": self.position, "more": copy.deepcopy(self.more)}

    def set_state(self, state):
        state["more"]["list"]
        self.position = state["position"]


class Stream(IterDataset):  # a dataset of the iterators of a class
    def __init__(self, kind, **attributes):
        super().__init__()
        vars(self).update(kind=kind, **attributes)

    def __iter__(self):
        return self.kind(self)


class WithBlocks(Right):  # has a ``_gm_take`` of its own, and refuses after ``close``
    def __next__(self):
        if self._gm_closed:
            raise ValueError("closed")
        return super().__next__()

    def _gm_take(self, n):
        positions = range(self.position, min(self.position + n, self.n))
        self.position = positions.stop
        return [self.element(i) for i in positions]


class BeginsAnew(Right):
    def __next__(self):
        if self.position < self.n:
            return super().__next__()
        self.position = 0
        raise StopIteration


class PairsIterator(DatasetIterator):  # the sums of neighbours of a parent, as users write it
    def __next__(self):
        before = self._parents[0].get_state()
        try:
            return next(self._parents[0]) + next(self._parents[0])
        except OSError:
            self._parents[0].set_state(before)
            raise

    def get_state(self):
        return self._parents[0].get_state()

    def set_state(self, state):
        self._parents[0].set_state(state)


class Pairs(IterDataset):
    kind = PairsIterator

    def __iter__(self):
        return self.kind(iter(self.parents[0]))


def stream(**overrides):
    return Stream(variant(Right, **overrides))


RIGHT = [
    *(Stream(Right), Stream(partial(Right, end=10**9)), Stream(WithBlocks), Pairs(numbers(20))),
    stream(  # it reads states of older versions, which lack a part
        get_state=lambda it: {"position": it.position, "new": 0},
        set_state=lambda it, state: vars(it).update(position=state["position"]),
    ),
    stream(
        get_state=lambda it: it.position,
        set_state=lambda it, state: vars(it).update(position=operator.index(state)),
    ),
]


@pytest.mark.parametrize("ds", RIGHT)
def test_what_is_right_is_accepted(ds):
    assert_iter_dataset_conforms(ds)
    assert_iter_dataset_conforms(ds, max_elements=1)
    assert_iterator_conforms(lambda: iter(ds), max_elements=3)


def test_workers_compute_the_same():
    assert_iter_dataset_conforms(Stream(Right), max_elements=5, workers=[1])
    scaled = variant(
        Pairs, kind=variant(PairsIterator, __next__=lambda self: next(self._parents[0]) * 10)
    )
    assert_iter_dataset_conforms(scaled(numbers(20)), max_elements=5, workers=(1, 2))
    message = "change no element...the elements by 2 worker processes must be ... got"
    assert_found(
        message, assert_iter_dataset_conforms, Pairs(numbers(20)), max_elements=4, workers=[2]
    )


def failing(*keys, times=1):
    return numbers(20, fn=Failing(*keys, times=times, error=OSError))


# keeps what it has read for the next attempt, its state does not say so, and need not
class HoldsHalfAPair(PairsIterator):
    half = ()

    def __next__(self):
        self.before = self.get_state()
        while len(self.half) < 2:
            self.half = (*self.half, next(self._parents[0]))
        pair, self.half = self.half, ()
        return sum(pair)

    def get_state(self):
        return self.before if self.half else super().get_state()

    def set_state(self, state):
        super().set_state(state)
        self.half = ()


class RepeatsAfterErrors(PairsIterator):
    failed = False

    def __next__(self):
        try:
            return super().__next__() + self.failed
        except OSError:
            self.failed = True
            raise


def test_errors_lose_nothing():
    check = assert_iter_dataset_conforms
    for pairs in (Pairs, variant(Pairs, kind=HoldsHalfAPair)):
        check(pairs(numbers(20)), failing=pairs(failing(0, 5, 8, 9)))
    loses_half_a_pair = variant(
        PairsIterator, __next__=lambda it: next(it._parents[0]) + next(it._parents[0])
    )
    message = "an error loses nothing..."
    half, again = (
        "get_state() after OSError... at element 2 must be",
        "the elements delivered around the errors must be",
    )
    for kind, found in ((loses_half_a_pair, half), (RepeatsAfterErrors, again)):
        pairs = variant(Pairs, kind=kind)
        assert_found(message + found, check, pairs(numbers(20)), failing=pairs(failing(5)))
    check(numbers(20), max_elements=4, failing=failing(3))
    message += "element 7 raised OSError... again and again"
    assert_found(message, check, numbers(20), failing=failing(7, times=100))
    message = "failing must raise .*, it raised nothing before element 4"
    assert_raises(ValueError, message, check, numbers(20), max_elements=4, failing=failing(19))


def wrong(message, element=Right.element, **overrides):
    return message, stream(element=element, **overrides)


def wrongly_set(message, get_state=Right.get_state, **parts):
    """Its ``set_state`` computes attributes of the state, one after the other."""

    def set_state(it, state):
        for name, part in parts.items():
            setattr(it, name, part(state))

    return wrong(message, get_state=get_state, set_state=set_state)


BUFFER, MORE, POSITION = np.zeros(2), operator.itemgetter("more"), operator.itemgetter("position")
WRONG = [
    wrong(
        "iter(ds) is a DatasetIterator...Found: iter(ds) is a list_iterator",
        __new__=lambda *_: iter([1, 2]),
    ),
    wrong(
        "iter(it) is it...Found: iter(it) is another object", __iter__=lambda it: type(it)(it.ds)
    ),
    wrong("is there. Found: next(it) raised ZeroDivisionError", lambda it, i: 1 // (i - 4)),
    wrong(
        "an element stays...element 0, looked at after later ones, must be",
        lambda it, i: np.add(0.0, i, out=BUFFER),
    ),
    ("after its end...after the end, next(it) gave array([0, 0])", Stream(BeginsAnew)),
    wrong(  # in the dataset, whose last iterator sets it back
        "every iterator gives the same...element 0 of two iterators that take turns must be",
        position=property(
            lambda it: it.ds.position, lambda it, value: vars(it.ds).update(position=value)
        ),
    ),
    wrong(
        "states are JSON-able...json.dumps of the state ... raised TypeError",
        get_state=lambda it: np.int64(it.position),
    ),
    wrong("states are JSON-able...ZeroDivisionError: ", get_state=lambda it: 1 // 0),
    wrong(
        "a state is apart...the state taken at step 0, after later steps, must be [0]",
        position=property(
            lambda it: it.state[0],
            lambda it, n: vars(it).setdefault("state", [n]).__setitem__(0, n),
        ),
        get_state=lambda it: it.state,
    ),
    wrong(
        "apart...the state that it gave before was changed",
        get_state=lambda it: {"position": it.position, "more": it.more},
    ),
    wrongly_set(
        "a state is apart...after the state that was set was changed, must be",
        position=POSITION,
        more=MORE,
    ),
    # Elements depend on a number that states do not have.
    wrong(
        "exactly where...element 1 must be 1, got 0",
        lambda it, i: next(vars(it).setdefault("calls", itertools.count())),
    ),
    wrongly_set(
        "exactly where...TypeError: ...unhashable",
        get_state=lambda it: {"position": (it.position,)},
        position=lambda state: sum({POSITION(state)}.pop()),
    ),
    wrongly_set(
        "is refused...set_state(None) raised nothing; right is a state like {'position': 5",
        position=lambda state: dict(state or {}).get("position", 0),
    ),
    wrongly_set(
        "is refused...after the state {'position': 0} was refused, must be ... got {'position': 0",
        position=POSITION,
        more=lambda state: copy.deepcopy(state["more"]),
    ),
    wrong(
        "called twice...ZeroDivisionError",
        close=lambda it: vars(it).update(_gm_closed=1 // (not it._gm_closed)),
        __del__=lambda it: it,
    ),
    wrong(
        "lost unnoticed...raised StopIteration, although element 5 was not there yet",
        __next__=lambda it: next(iter(())) if it._gm_closed else Right.__next__(it),
    ),
    wrong(
        "lost unnoticed...must be array([5, 5]), got array([6, 6])",
        lambda it, i: np.full(2, i + it._gm_closed),
    ),
    wrong(
        "lost unnoticed...get_state() after close() must be",
        close=lambda it: vars(it).update(position=0),
    ),
    wrong(
        "start_prefetch...get_state() after start_prefetch() must be",
        start_prefetch=lambda it: next(it),
    ),
    wrong(
        "start_prefetch...element 0 after start_prefetch() must be",
        lambda it, i: np.full(2, i + getattr(it, "taken", 0)),
        start_prefetch=lambda it: vars(it).update(taken=1),
    ),
    wrong("start_prefetch...ZeroDivisionError", start_prefetch=lambda it: 1 // 0),
]


@pytest.mark.parametrize(("message", "ds"), WRONG)
def test_mistakes_are_found_and_named(message, ds):
    assert_found(message, assert_iter_dataset_conforms, ds)
    assert_found(message, assert_iterator_conforms, lambda: iter(ds))


def test_mistakes_of_datasets_and_wrong_arguments():
    short = partial(Right, end=3)
    of_one_thread = variant(
        Stream,
        __iter__=lambda self: (Right if threading.get_ident() == MAIN_THREAD else short)(self),
    )
    ends_early = variant(Stream, __getstate__=lambda self: {**vars(self), "kind": short})(Right)
    for message, ds in (
        (
            "copy made by cloudpickle...copying Stream raised TypeError",
            Stream(Right, lock=threading.Lock()),
        ),
        (
            "copy made by cloudpickle...elements of a copy made before the first use must be",
            ends_early,
        ),
        ("several threads...the elements of each of several threads", of_one_thread(Right)),
    ):
        assert_found(message, assert_iter_dataset_conforms, ds)
    check = assert_iter_dataset_conforms
    assert_raises(TypeError, "ds must be an IterDataset, got", check, MapDataset.range(3))
    assert_raises(
        TypeError,
        "failing must be an IterDataset, got",
        check,
        numbers(20),
        failing=MapDataset.range(3),
    )
    assert_raises(
        ValueError, "max_elements must be a positive integer", check, numbers(20), max_elements=0
    )
    assert_raises(
        AssertionError,
        "must have at least one element to be checked",
        check,
        Stream(partial(Right, end=0)),
    )
