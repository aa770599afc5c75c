"""``assert_equal_output_after_checkpoint`` accepts what is right, and finds each kind of mistake;
what is taken for equal.
"""

import copy
import dataclasses
import itertools
import json
from collections import namedtuple

import numpy as np
from local_workers import LocalWorkersIterDataset
from mistakes import variant
from refusing import assert_raises
from users_datasets import BareIterator

from gristmill import DataLoader, IndexSampler, IterDataset, MapDataset
from gristmill.dataset.descriptions.equality import are_equal
from gristmill.experimental import ElasticIterator
from gristmill.experimental import assert_equal_output_after_checkpoint as check
from gristmill.sharding import ShardOptions
from gristmill.testing.checkpoints import shape_of

THOROUGH = {
    "at_end": True,
    "through_json": True,
    "in_place": True,
    "twice": True,
    "unchanged": True,
}
OF_BYTES = {**THOROUGH, "through_json": False}


class Words:  # anything with states will do; these are bytes
    left = ("a", "b")

    def __iter__(self):
        return self

    def __next__(self):
        if not self.left:
            raise StopIteration
        word, *self.left = self.left
        return word

    def get_state(self):
        return json.dumps(self.left).encode()

    def set_state(self, state):
        self.left = json.loads(state)


def test_what_is_right_is_accepted():
    for is_thorough in (False, True):
        numbers = MapDataset.range(5)
        for ds, thorough in (
            (numbers.shuffle(seed=3), THOROUGH),
            (
                numbers.map(lambda x: {"x": np.full(2, x), "y": [None, np.nan]})
                .to_iter_dataset()
                .batch(2, batch_fn=list),
                THOROUGH,
            ),
            (
                MapDataset.range(9).to_iter_dataset().filter(lambda x: x % 3 == 1).repeat(2),
                THOROUGH,
            ),
            (LocalWorkersIterDataset(numbers.to_iter_dataset(), 2), THOROUGH),
            (ElasticIterator(numbers, 2, ShardOptions(1, 2)), THOROUGH),
            (ElasticIterator(numbers, 2, ShardOptions(1, 2)).map(sum), THOROUGH),
            (
                DataLoader(
                    data_source=range(4),
                    sampler=IndexSampler(4, shuffle=True, seed=1, num_epochs=1),
                ),
                OF_BYTES,
            ),
            (variant(Words, __iter__=lambda self: Words())(), OF_BYTES),
        ):
            check(ds, **(thorough if is_thorough else {}))


def stream(kind):
    return variant(IterDataset, __iter__=lambda self: kind())()


class Right(BareIterator):
    restored = None
    num_open = 0

    def __init__(self):
        super().__init__(4)
        Right.num_open += 1

    def __next__(self):
        return self.element(super().__next__())

    def element(self, position):
        return position

    def set_state(self, state):
        super().set_state(state)
        self.restored = self.position

    def close(self):
        Right.num_open -= not self._gm_closed
        super().close()


def wrong(message, element=Right.element, **overrides):
    return message, stream(variant(Right, element=element, **overrides))


def ends(end):
    return property(end, lambda it, n: None)


def is_new(it):
    return it.restored is None


LIVE = {  # keeps what it was given
    "position": property(
        lambda it: it.state["position"],
        lambda it, n: vars(it).setdefault("state", {}).update(position=n),
    ),
    "set_state": lambda it, state: vars(it).update(state=state),
}
NO_JSON = wrong(
    r"the state at step 1 is like .*\(1,\).*, the first one like .*\(0,\)",
    get_state=lambda it: {"position": it.position, "history": np.zeros(it.position)},
)
WRONG = [
    wrong(
        r"step 1 state {'position': 1} was restored, and get_state\(\) gives {'position': 0}",
        set_state=lambda *_: None,
    ),
    wrong(
        "restored at step 1 from state {'position': 1}, element 1 must be 1, got 2",
        lambda it, i: i + (it.restored == i == 1),
    ),
    wrong(
        "restored at step 0 .*, element 3 must be 3, got the end",
        n=ends(lambda it: 4 if is_new(it) else 3),
    ),
    wrong(
        "restored at step 0 .*, element 4 must be the end, got 4",
        n=ends(lambda it: 4 if is_new(it) else 99),
    ),
    wrong(
        r"step 0 .*, element 0 must be 0, got 0\.0",
        lambda it, i: (np.int64 if is_new(it) else np.float64)(i),
    ),
    wrong(
        "restored at step 0 from .*, element 0 must be 0, got the end",
        **LIVE,
        get_state=lambda it: it.state,
    ),
    wrong(
        "the state at step 2 is like .*late.*, the first one like",
        get_state=lambda it: {"position": it.position, **({"late": 1} if it.position == 2 else {})},
    ),
    wrong(
        "the state at step 3 is like .*float.*, the first one like .*int",
        get_state=lambda it: {"position": it.position if it.position < 3 else float(it.position)},
    ),
    NO_JSON,
]
FOR_NEW = {
    "get_state": lambda it: {"position": min(it.position, 4)},
    "set_state": lambda it, state: vars(it).update(position=it.position + state["position"]),
}
FOUND_BY_AN_OPTION = [
    (
        "at_end",
        *wrong(
            "restored at step 4 from .*, element 4 must be the end, got 4",
            n=ends(lambda it: 4 + (it.restored == 4)),
        ),
    ),
    (
        "through_json",
        *wrong(
            "at step 1 state .* was restored",
            get_state=lambda it: {"position": (it.position,)},
            set_state=lambda it, state: vars(it).update(
                position=sum(state["position"]) * isinstance(state["position"], tuple)
            ),
        ),
    ),
    *[
        (option, *wrong("at step 1 state .* was restored", **FOR_NEW))
        for option in ("in_place", "twice")
    ],
    (
        "twice",
        *wrong(
            "at step 1 state .* was restored",
            set_state=lambda it, state: vars(it).update(
                position=state["position"] * is_new(it), restored=1
            ),
        ),
    ),
    (
        "unchanged",
        *wrong(
            "at step 0 the restored state .* was changed to {'position': 4}",
            **LIVE,
            get_state=lambda it: {**it.state},
        ),
    ),
]


def test_mistakes_are_found_always_or_by_an_option():
    for message, ds in WRONG:
        assert_raises(AssertionError, message, check, ds)
        assert_raises(
            AssertionError, message, check, ds, **(OF_BYTES if ds is NO_JSON[1] else THOROUGH)
        )
    for option, message, ds in FOUND_BY_AN_OPTION:
        check(stream(Right), **{option: True})
        check(ds)
        assert_raises(AssertionError, message, check, ds, **{option: True})
    before = Right.num_open
    check(stream(Right), **THOROUGH)
    assert Right.num_open == before
    for options in ({}, THOROUGH):
        assert_raises(
            AssertionError,
            "did not produce any elements",
            check,
            MapDataset.range(0).to_iter_dataset(),
            **options,
        )
        for ds in ([1, 2], iter([1])):
            assert_raises(
                TypeError,
                "ds must be a dataset whose iterators have get_state and set_state",
                check,
                ds,
                **options,
            )


Pair = namedtuple("Pair", "a b")


@dataclasses.dataclass
class Example:
    image: np.ndarray
    label: int


class Opaque:
    def __init__(self, value):
        self.value = value


class Blank:
    __slots__ = ()


VALUES = [
    *(None, True, 1, 1.0, 0.0, -0.0, float("nan"), np.int64(7), np.float32(1), "text", b"text"),
    *({1, 2}, [1], (1,), Pair(1, 2), Pair(1, 3), {"a": 1}, {"a": 1, 2: None}),
    *(
        np.arange(3),
        np.arange(3.0),
        np.array([1, np.nan]),
        np.array(["2020-01-01", "NaT"], "datetime64[D]"),
    ),
    np.array([(1, np.nan)], [("a", int), ("b", float)]),
    *[
        np.array([*map(np.arange, lengths), None, "x"], object)
        for lengths in ((2,), (3,), (2, 3), (2, 2))
    ],
    *(
        Example(np.arange(3), 1),
        Example(np.arange(3), 2),
        Opaque([np.arange(3)]),
        Opaque([np.arange(4)]),
    ),
    *(np.random.default_rng(1), np.random.default_rng(2)),
]


def test_a_value_equals_its_copy_and_no_other():
    for (i, value), (j, other) in itertools.product(enumerate(VALUES), repeat=2):
        assert are_equal(value, copy.deepcopy(other)) == (i == j)
        assert are_equal({"x": [value]}, {"x": [copy.deepcopy(other)]}) == (i == j)
    assert are_equal(Blank(), Blank())  # there is nothing to compare
    assert not are_equal(Blank(), object())
    circles = [Opaque(0), Opaque(0)]
    for circle in circles:
        circle.value = [circle]
    assert are_equal(*circles) and are_equal({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert shape_of({"a": 1, "b": [2, None]}) == shape_of({"a": 5, "b": [0, None]})
    for other in (
        {"a": 1.0, "b": [2, None]},
        {"a": 1, "b": [2]},
        {"a": 1, "b": (2, None)},
        {"a": None, "b": [2, None]},
        {},
    ):
        assert shape_of({"a": 1, "b": [2, None]}) != shape_of(other)
