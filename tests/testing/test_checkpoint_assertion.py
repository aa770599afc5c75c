"""``assert_equal_output_after_checkpoint`` accepts what is right, and finds each kind of mistake that an iterator can make."""

import dataclasses
import json

import numpy as np
import pytest
from local_workers import LocalWorkersIterDataset
from mistakes import variant
from refusing import assert_raises
from users_datasets import BareIterator

from gristmill import DataLoader, IndexSampler, IterDataset, MapDataset
from gristmill.experimental import ElasticIterator, assert_equal_output_after_checkpoint
from gristmill.sharding import ShardOptions

THOROUGH = {"at_end": True, "through_json": True, "in_place": True, "twice": True, "unchanged": True}
each_thoroughness = pytest.mark.parametrize("options", [{}, THOROUGH], ids=["as_in_grain", "thorough"])


@dataclasses.dataclass
class Pair:
    a: np.ndarray
    b: int


RIGHT = {
    "direct": lambda: MapDataset.range(5).to_iter_dataset(),
    "map_dataset": lambda: MapDataset.range(5).shuffle(seed=3),
    "batches": lambda: MapDataset.range(5).map(lambda x: {"x": np.full(2, x), "y": None}).to_iter_dataset().batch(2),
    "not_a_number": lambda: MapDataset.source([np.nan, np.array([1, np.nan])]).to_iter_dataset(),
    "objects": lambda: MapDataset.range(3).map(lambda x: np.array([np.arange(x), "text", np.nan, None], object)),
    "dataclasses": lambda: MapDataset.range(3).map(lambda x: Pair(np.arange(x), x)).to_iter_dataset(),
    "dropping": lambda: MapDataset.range(9).to_iter_dataset().filter(lambda x: x % 3 == 1).repeat(2),
    "workers": lambda: LocalWorkersIterDataset(MapDataset.range(4).to_iter_dataset(), 2),
    "elastic": lambda: ElasticIterator(MapDataset.range(8), 4, ShardOptions(1, 2)),
    "chained_elastic": lambda: ElasticIterator(MapDataset.range(8), 4, ShardOptions(1, 2)).map(sum),
    "data_loader": lambda: DataLoader(data_source=range(4), sampler=IndexSampler(4, shuffle=True, seed=1, num_epochs=1)),
}


@each_thoroughness
@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_accepted(name, options):
    if name == "data_loader":  # its states are bytes, of JSON
        options = {**options, "through_json": False}
    assert_equal_output_after_checkpoint(RIGHT[name](), **options)


def stream(kind):
    """The first four numbers, by an iterator with a mistake or none."""
    return variant(IterDataset, __iter__=lambda self: kind())()


class Right(BareIterator):
    def __init__(self):
        super().__init__(4)

    def __next__(self):
        return self.element(super().__next__())

    def element(self, position):
        return position

    def set_state(self, state):
        super().set_state(state)
        self.restored = self.position

    restored = None


def wrong(message, **overrides):
    return message, stream(variant(Right, **overrides))


def ends(end):
    """At ``end(it)`` instead of 4."""
    return property(end, lambda it, n: None)


LIVE = {  # keeps what it was given
    "position": property(
        lambda it: it.state["position"], lambda it, value: vars(it).setdefault("state", {}).update(position=value)
    ),
    "set_state": lambda it, state: vars(it).update(state=state),
}
WRONG = [
    wrong(
        r"at step 1 state {'position': 1} was restored, and get_state\(\) gives {'position': 0}", set_state=lambda it, state: None
    ),
    wrong(
        "restored at step 1 from state {'position': 1}, element 1 must be 1, got 2",
        element=lambda it, i: i + (it.restored == i == 1),
    ),
    wrong("restored at step 0 .*, element 3 must be 3, got the end", n=ends(lambda it: 4 if it.restored is None else 3)),
    wrong("restored at step 0 .*, element 4 must be the end, got 4", n=ends(lambda it: 4 if it.restored is None else 99)),
    wrong(
        r"restored at step 0 .*, element 0 must be 0, got 0\.0",
        element=lambda it, i: (np.int64 if it.restored is None else np.float64)(i),
    ),
    wrong("restored at step 0 from .*, element 0 must be 0, got the end", **LIVE, get_state=lambda it: it.state),
    wrong(
        "the state at step 2 is like .*late.*, the first one like",
        get_state=lambda it: {"position": it.position, **({"late": 1} if it.position == 2 else {})},
    ),
    wrong(
        "the state at step 3 is like .*float.*, the first one like .*int",
        get_state=lambda it: {"position": it.position if it.position < 3 else float(it.position)},
    ),
    wrong(
        r"the state at step 1 is like .*\(1,\).*, the first one like .*\(0,\)",
        get_state=lambda it: {"position": it.position, "history": np.zeros(it.position)},
    ),
]


@pytest.mark.parametrize(("message", "ds"), WRONG)
@each_thoroughness
def test_mistakes_that_are_always_found(message, ds, options):
    if ds is WRONG[-1][1]:  # its states are no JSON
        options = {**options, "through_json": False}
    assert_raises(AssertionError, message, assert_equal_output_after_checkpoint, ds, **options)


FOR_NEW = {
    "get_state": lambda it: {"position": min(it.position, 4)},
    "set_state": lambda it, state: vars(it).update(position=it.position + state["position"]),
}
SOMETIMES_WRONG = {
    "at_end": wrong(
        "restored at step 4 from state .*, element 4 must be the end, got 4", n=ends(lambda it: 4 + (it.restored == 4))
    ),
    "through_json": wrong(
        "at step 1 state .* was restored",
        get_state=lambda it: {"position": (it.position,)},
        set_state=lambda it, state: vars(it).update(position=sum(state["position"]) * isinstance(state["position"], tuple)),
    ),
    "in_place": wrong("at step 1 state .* was restored", **FOR_NEW),
    "twice": wrong("at step 1 state .* was restored", **FOR_NEW),
    "twice ": wrong(
        "at step 1 state .* was restored",
        set_state=lambda it, state: vars(it).update(position=state["position"] if it.restored is None else 0, restored=1),
    ),
    "unchanged": wrong(
        "at step 0 the restored state {'position': 0} was changed to {'position': 4}", **LIVE, get_state=lambda it: dict(it.state)
    ),
}


@pytest.mark.parametrize("name", SOMETIMES_WRONG)
def test_mistakes_that_an_option_finds(name):
    (message, ds), option = SOMETIMES_WRONG[name], {name.strip(): True}
    assert_equal_output_after_checkpoint(stream(Right), **option)
    assert_equal_output_after_checkpoint(ds)
    assert_raises(AssertionError, message, assert_equal_output_after_checkpoint, ds, **option)


def test_iterators_are_closed():
    class Counting(Right):
        num_open = 0

        def __init__(self):
            super().__init__()
            Counting.num_open += 1

        def close(self):
            Counting.num_open -= not self._closed
            super().close()

    assert_equal_output_after_checkpoint(stream(Counting), **THOROUGH)
    assert Counting.num_open == 0


def test_arrays_in_arrays_of_objects_are_compared():
    def ragged(*lengths):
        return np.array([None, *[np.arange(length) for length in lengths]], object)

    for wrong in (ragged(1, 3), ragged(1, 2, 3), ragged(1, 2)[:2]):
        elements = iter([ragged(1, 2), wrong])
        ds = MapDataset.source([0]).map(lambda _, elements=elements: next(elements))
        assert_raises(AssertionError, "restored at step 0", assert_equal_output_after_checkpoint, ds)


def test_what_shows_nothing():
    for options in ({}, THOROUGH):
        nothing, message = MapDataset.range(0).to_iter_dataset(), "the dataset did not produce any elements"
        assert_raises(AssertionError, message, assert_equal_output_after_checkpoint, nothing, **options)
    for ds in ([1, 2], iter([1])):
        message = "ds must be a dataset whose iterators have get_state and set_state, got one with a"
        assert_raises(TypeError, message, assert_equal_output_after_checkpoint, ds)


class Words:
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


def test_anything_with_states_will_do():
    ds = variant(Words, __iter__=lambda self: Words())()
    assert_equal_output_after_checkpoint(ds, at_end=True, in_place=True, twice=True, unchanged=True)
