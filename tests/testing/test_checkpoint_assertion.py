"""``assert_equal_output_after_checkpoint`` accepts what is right, and finds each kind of mistake that an iterator can make."""

import dataclasses
import json

import numpy as np
import pytest
from local_workers import LocalWorkersIterDataset

from gristmill import DataLoader, DatasetIterator, IndexSampler, IterDataset, MapDataset
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


class Stream(IterDataset):
    """The first four numbers, by an iterator with a mistake or none."""

    def __init__(self, iterator_class):
        super().__init__()
        self.iterator_class = iterator_class

    def __iter__(self):
        return self.iterator_class()


class Right(DatasetIterator):
    def __init__(self):
        super().__init__()
        self.position = 0

    def __next__(self):
        if self.position >= 4:
            raise StopIteration
        self.position += 1
        return self.position - 1

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]


class ForgetsThePosition(Right):
    def set_state(self, state):
        pass


class RestoresAnElementTooLate(Right):
    def __init__(self):
        super().__init__()
        self.late = False

    def __next__(self):
        if self.late:
            self.late = False
            super().__next__()
        return super().__next__()

    def set_state(self, state):
        super().set_state(state)
        self.late = self.position == 1


class EndsEarlyOnceRestored(Right):
    end = 4

    def __next__(self):
        if self.position >= self.end:
            raise StopIteration
        return super().__next__()

    def set_state(self, state):
        super().set_state(state)
        self.end = 3


class KnowsThatItWasRestored(Right):
    was_restored = False

    def set_state(self, state):
        super().set_state(state)
        self.was_restored = True


class NeverEndsOnceRestored(KnowsThatItWasRestored):
    def __next__(self):
        return 99 if self.position >= 4 and self.was_restored else super().__next__()


class OtherTypes(KnowsThatItWasRestored):
    def __next__(self):
        return (np.float64 if self.was_restored else np.int64)(super().__next__())


class LiveState(Right):
    def __init__(self):
        self.state = {}
        super().__init__()

    @property
    def position(self):
        return self.state["position"]

    @position.setter
    def position(self, value):
        self.state["position"] = value

    def get_state(self):
        return self.state


class StructureChanges(Right):
    def get_state(self):
        return {"position": self.position, **({"late": 1} if self.position == 2 else {})}


class TypeChanges(Right):
    def get_state(self):
        return {"position": self.position if self.position < 3 else float(self.position)}


class ShapeChanges(Right):
    def get_state(self):
        return {"position": self.position, "history": np.zeros(self.position)}


@pytest.mark.parametrize(
    ("iterator_class", "message"),
    [
        (ForgetsThePosition, r"at step 1 state {'position': 1} was restored, and get_state\(\) gives {'position': 0}"),
        (RestoresAnElementTooLate, r"restored at step 1 from state {'position': 1}, element 1 must be 1, got 2"),
        (EndsEarlyOnceRestored, r"restored at step 0 from state .*, element 3 must be 3, got the end"),
        (NeverEndsOnceRestored, r"restored at step 0 from state .*, element 4 must be the end, got 99"),
        (OtherTypes, r"restored at step 0 .*, element 0 must be 0, got 0\.0"),
        (LiveState, r"restored at step 0 from state .*, element 0 must be 0, got the end"),
        (StructureChanges, r"the state at step 2 is like .*late.*, the first one like"),
        (TypeChanges, r"the state at step 3 is like .*float.*, the first one like .*int"),
        (ShapeChanges, r"the state at step 1 is like .*\(1,\).*, the first one like .*\(0,\)"),
    ],
)
@each_thoroughness
def test_mistakes_that_are_always_found(iterator_class, message, options):
    if iterator_class is ShapeChanges:  # whose states are no JSON
        options = {**options, "through_json": False}
    with pytest.raises(AssertionError, match=message):
        assert_equal_output_after_checkpoint(Stream(iterator_class), **options)


class EndStateIsWrong(Right):
    def set_state(self, state):
        self.position = 3 if state["position"] == 4 else state["position"]
        self.shown = state

    shown = None

    def __next__(self):
        self.shown = None
        return super().__next__()

    def get_state(self):
        return self.shown or super().get_state()


class TuplesInStates(Right):
    def get_state(self):
        return {"position": (self.position,)}

    def set_state(self, state):
        self.position = state["position"][0] if isinstance(state["position"], tuple) else 0


class WorksOnlyWhenNew(Right):
    def set_state(self, state):
        self.position += state["position"]

    def get_state(self):
        return {"position": min(self.position, 4)}


class WorksOnce(Right):
    num_restored = 0

    def set_state(self, state):
        self.num_restored += 1
        if self.num_restored == 1:
            super().set_state(state)
        else:
            self.position = 0


class KeepsWhatItWasGiven(Right):
    def __init__(self):
        super().__init__()
        self.kept = {"position": 0}

    def __next__(self):
        element = super().__next__()
        self.kept["position"] = self.position
        return element

    def get_state(self):
        return dict(self.kept)

    def set_state(self, state):
        super().set_state(state)
        self.kept = state


@pytest.mark.parametrize(
    ("iterator_class", "option", "message"),
    [
        (EndStateIsWrong, "at_end", "restored at step 4 from state .*, element 4 must be the end, got 3"),
        (TuplesInStates, "through_json", "at step 1 state .* was restored"),
        (WorksOnlyWhenNew, "in_place", "at step 1 state .* was restored"),
        (WorksOnlyWhenNew, "twice", "at step 1 state .* was restored"),
        (WorksOnce, "twice", "at step 1 state .* was restored"),
        (KeepsWhatItWasGiven, "unchanged", "at step 0 the restored state {'position': 0} was changed to {'position': 4}"),
    ],
)
def test_mistakes_that_an_option_finds(iterator_class, option, message):
    assert_equal_output_after_checkpoint(Stream(Right), **{option: True})
    assert_equal_output_after_checkpoint(Stream(iterator_class))
    with pytest.raises(AssertionError, match=message):
        assert_equal_output_after_checkpoint(Stream(iterator_class), **{option: True})


@each_thoroughness
def test_a_dataset_without_elements_shows_nothing(options):
    with pytest.raises(AssertionError, match="the dataset did not produce any elements"):
        assert_equal_output_after_checkpoint(MapDataset.range(0).to_iter_dataset(), **options)


def test_iterators_are_closed():
    class Counting(Right):
        num_open = 0

        def __init__(self):
            super().__init__()
            Counting.num_open += 1

        def close(self):
            if not self._closed:
                Counting.num_open -= 1
            super().close()

    assert_equal_output_after_checkpoint(Stream(Counting), **THOROUGH)
    assert Counting.num_open == 0


def test_arrays_in_arrays_of_objects_are_compared():
    def ragged(*lengths):
        return np.array([None, *[np.arange(length) for length in lengths]], object)

    for wrong in (ragged(1, 3), ragged(1, 2, 3), ragged(1, 2)[:2]):
        elements = iter([ragged(1, 2), wrong])
        ds = MapDataset.source([0]).map(lambda _, elements=elements: next(elements))
        with pytest.raises(AssertionError, match="restored at step 0"):
            assert_equal_output_after_checkpoint(ds)


def test_what_has_no_states():
    for ds in ([1, 2], iter([1])):
        with pytest.raises(TypeError, match="ds must be a dataset whose iterators have get_state and set_state, got one with a"):
            assert_equal_output_after_checkpoint(ds)


def test_anything_with_states_will_do():
    class Words:
        def __iter__(self):
            return WordIterator()

    class WordIterator:
        left = ("a", "b")

        def __iter__(self):
            return self

        def __next__(self):
            if not self.left:
                raise StopIteration
            word, *rest = self.left
            self.left = tuple(rest)
            return word

        def get_state(self):
            return json.dumps(self.left).encode()

        def set_state(self, state):
            self.left = tuple(json.loads(state))

    assert_equal_output_after_checkpoint(Words(), at_end=True, in_place=True, twice=True, unchanged=True)
