"""What every stage says its elements look like, without reading any; and that they do look like it."""

import functools

import numpy as np
import pytest

from gristmill import IterDataset, MapDataset, MultiprocessingOptions
from gristmill.experimental import (
    CacheIterDataset,
    DatasetOptions,
    InterleaveIterDataset,
    LimitIterDataset,
    RepeatIterDataset,
    ShapeDtypeStruct,
    ThreadPrefetchIterDataset,
    WithOptionsIterDataset,
    get_element_spec,
    multithread_prefetch,
)
from gristmill.sources import RangeDataSource
from gristmill.transforms import Map, MapWithIndex, RandomMap

INT = ShapeDtypeStruct((), np.int64)
IMAGE = {"image": ShapeDtypeStruct((4, 3), np.uint8), "label": INT}


class Images:
    """A source that says what it holds, and must not be read."""

    element_spec = IMAGE

    def __len__(self):
        return 10

    def __getitem__(self, key):
        raise AssertionError("no element may be read")


class ToFloat(Map):
    def map(self, element):
        return element["image"] / 255

    def output_spec(self, input_spec):
        return ShapeDtypeStruct(input_spec["image"].shape, np.float64)


class WithNoise(RandomMap):
    def random_map(self, element, rng):
        return element, rng.normal()

    def output_spec(self, input_spec):
        return input_spec, ShapeDtypeStruct((), np.float64)


class Numbered(MapWithIndex):
    def map_with_index(self, index, element):
        return index, element

    def output_spec(self, input_spec):
        return INT, input_spec


class Sum:
    def __call__(self, elements, scale=1):
        return scale * sum(elements)

    def output_spec(self, input_spec, batch_size, drop_remainder):
        return {"sum of": (batch_size, drop_remainder, input_spec)}


def images():
    return MapDataset.source(Images())


def test_sources():
    assert get_element_spec(MapDataset.range(3)) == INT
    assert get_element_spec(images()) == IMAGE
    assert get_element_spec(MapDataset.source(np.zeros((5, 2), np.int8))) == ShapeDtypeStruct((2,), np.int8)
    assert get_element_spec(MapDataset.source(RangeDataSource(0, 5, 1))) == INT
    assert get_element_spec(MapDataset.source(images())) == IMAGE
    with pytest.raises(NotImplementedError, match=r"SourceMapDataset\(source=list\).*attribute element_spec"):
        get_element_spec(MapDataset.source([1, 2]))


MAP_PASSED_ON = {
    "shuffle": lambda ds: ds.shuffle(seed=1),
    "slice": lambda ds: ds[2:],
    "reindex": lambda ds: ds.slice([3, 1]),
    "repeat": lambda ds: ds.repeat(2),
    "seed": lambda ds: ds.seed(1),
    "filter": lambda ds: ds.filter(lambda x: True),
    "window_shuffle": lambda ds: ds.window_shuffle(3, seed=1),
    "mix": lambda ds: MapDataset.mix([ds, MapDataset.range(3)]),
    "concatenate": lambda ds: MapDataset.concatenate([ds, MapDataset.range(3)]),
}
ITER_PASSED_ON = {
    "seed": lambda ds: ds.seed(1),
    "filter": lambda ds: ds.filter(lambda x: True),
    "window_shuffle": lambda ds: ds.window_shuffle(3, seed=1),
    "options": lambda ds: WithOptionsIterDataset(ds, DatasetOptions(min_shm_size=1)),
    "thread_prefetch": lambda ds: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=1),
    "mp_prefetch": lambda ds: ds.mp_prefetch(MultiprocessingOptions(2)),
    "multithread_prefetch": lambda ds: multithread_prefetch(ds, 2, 1),
    "limit": lambda ds: LimitIterDataset(ds, 3),
    "repeat": lambda ds: RepeatIterDataset(ds, 3),
    "cache": lambda ds: CacheIterDataset(ds),
    "mix": lambda ds: IterDataset.mix([ds, MapDataset.range(3).to_iter_dataset()]),
    "interleave": lambda ds: InterleaveIterDataset([ds, MapDataset.range(3)], cycle_length=2),
}


@pytest.mark.parametrize("name", MAP_PASSED_ON)
def test_map_stages_that_pass_elements_on(name):
    assert get_element_spec(MAP_PASSED_ON[name](images())) == IMAGE


@pytest.mark.parametrize("name", ITER_PASSED_ON)
def test_iter_stages_that_pass_elements_on(name):
    assert get_element_spec(ITER_PASSED_ON[name](images().to_iter_dataset())) == IMAGE


@pytest.mark.parametrize("convert", [lambda ds: ds, lambda ds: ds.to_iter_dataset()], ids=["map", "iter"])
def test_transformations_say_it_themselves(convert):
    ds = convert(images())
    floats = ShapeDtypeStruct((4, 3), np.float64)
    assert get_element_spec(ds.map(ToFloat())) == floats
    assert get_element_spec(ds.random_map(WithNoise(), seed=1)) == (IMAGE, ShapeDtypeStruct((), np.float64))
    assert get_element_spec(ds.map_with_index(Numbered())) == (INT, IMAGE)
    assert get_element_spec(ds.map(ToFloat()).map_with_index(Numbered())) == (INT, floats)
    for silent in (ds.map(len), ds.random_map(lambda x, rng: x, seed=1), ds.map_with_index(lambda i, x: x)):
        with pytest.raises(ValueError, match=r"cannot tell what .*(len|<lambda>).*output_spec\(self, input_spec\)"):
            get_element_spec(silent)


@pytest.mark.parametrize("convert", [lambda ds: ds, lambda ds: ds.to_iter_dataset()], ids=["map", "iter"])
def test_batches(convert):
    ds = convert(images())
    expected = {"image": ShapeDtypeStruct((None, 4, 3), np.uint8), "label": ShapeDtypeStruct((None,), np.int64)}
    assert get_element_spec(ds.batch(4)) == expected
    expected = {"image": ShapeDtypeStruct((2, 5, 4, 3), np.uint8), "label": ShapeDtypeStruct((2, 5), np.int64)}
    assert get_element_spec(ds.batch(5, drop_remainder=True).batch(2, drop_remainder=True)) == expected
    numbers = convert(MapDataset.range(10))
    said = {"sum of": (4, False, INT)}
    assert get_element_spec(numbers.batch(4, batch_fn=Sum())) == said
    assert get_element_spec(numbers.batch(4, batch_fn=functools.partial(Sum(), scale=3))) == said
    with pytest.raises(NotImplementedError, match=r"batch_fn list.*output_spec\(self, input_spec, batch_size, drop_remainder\)"):
        get_element_spec(ds.batch(4, batch_fn=list))


def test_of_what_cannot_tell_the_source_is_named_and_not_the_stage():
    ds = MapDataset.source([1]).shuffle(seed=1).to_iter_dataset().batch(2)
    with pytest.raises(NotImplementedError, match="SourceMapDataset"):
        get_element_spec(ds)


def test_users_datasets_take_part():
    class Silent(IterDataset):
        def __iter__(self):
            raise AssertionError

    class Telling(Silent):
        @property
        def _element_spec(self):
            return INT

    assert get_element_spec(Telling().batch(2)) == ShapeDtypeStruct((None,), np.int64)
    with pytest.raises(NotImplementedError, match=r"Silent.*_element_spec"):
        get_element_spec(Silent().batch(2))


def test_not_a_dataset():
    for wrong in (3, [1, 2], iter(MapDataset.range(3)), None):
        with pytest.raises(TypeError, match="must be a MapDataset or IterDataset"):
            get_element_spec(wrong)


def test_elements_look_as_they_should():
    arrays = {"image": np.zeros((4, 3), np.uint8), "label": np.int64(3)}

    class Real(Images):
        def __getitem__(self, key):
            return arrays

    ds = MapDataset.source(Real()).to_iter_dataset().batch(3, drop_remainder=True)
    spec = get_element_spec(ds)
    for batch in ds:
        assert {key: ShapeDtypeStruct(array.shape, array.dtype) for key, array in batch.items()} == spec
