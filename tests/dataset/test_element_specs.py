"""The element spec of every stage, computed without reading, compared with elements."""

import functools

import numpy as np
import pytest
from refusing import assert_raises

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, RangeDataSource
from gristmill import experimental as gx
from gristmill.experimental import ShapeDtypeStruct, get_element_spec
from gristmill.transforms import Map, MapWithIndex, RandomMap

INT = ShapeDtypeStruct((), np.int64)
FLOAT = ShapeDtypeStruct((), np.float64)
IMAGE = {"image": ShapeDtypeStruct((4, 3), np.uint8), "label": INT}


class Source:
    """Says what it holds, and must not be read unless it is given that."""

    element_spec = IMAGE

    def __init__(self, **record):
        self.record = record

    def __len__(self):
        return 10

    def __getitem__(self, key):
        assert self.record, "no element may be read"
        return self.record


def telling(kind, method, spec):
    """A transformation that says what it gives."""
    return type(
        "Telling", (kind,), {method: None, "output_spec": lambda self, input_spec: spec(input_spec)}
    )()


TO_FLOAT = telling(Map, "map", lambda spec: ShapeDtypeStruct(spec["image"].shape, np.float64))
WITH_NOISE = telling(RandomMap, "random_map", lambda spec: (spec, FLOAT))
NUMBERED = telling(MapWithIndex, "map_with_index", lambda spec: (INT, spec))


class Sum:
    def __call__(self, elements, scale=1):
        return scale * sum(elements)

    def output_spec(self, input_spec, batch_size, drop_remainder):
        return {"sum of": (batch_size, drop_remainder, input_spec)}


IMAGES, RANGE = MapDataset.source(Source()), MapDataset.range(3)
STREAM = IMAGES.to_iter_dataset()
SPECS = [
    (RANGE, INT),
    (MapDataset.source(np.zeros((5, 2), np.int8)), ShapeDtypeStruct((2,), np.int8)),
    (MapDataset.source(RangeDataSource(0, 5, 1)), INT),
    (IMAGES.zip(MapDataset.range(10)), (IMAGE, INT)),
    (STREAM.zip(RANGE, STREAM), (IMAGE, INT, IMAGE)),
]
PASSING_ON = [MapDataset.source(IMAGES), IMAGES.shuffle(seed=1), IMAGES[2:], IMAGES.slice([3, 1])]
PASSING_ON += [
    MapDataset.mix([IMAGES, RANGE]),
    MapDataset.concatenate([IMAGES, RANGE]),
    IterDataset.mix([STREAM, RANGE]),
]
PASSING_ON += [
    STREAM.limit(3),
    STREAM.cache(),
    STREAM.repeat(3),
    gx.InterleaveIterDataset([STREAM, RANGE], cycle_length=2),
]
PASSING_ON += [
    STREAM.thread_prefetch(1),
    STREAM.multithread_prefetch(2, 1),
    STREAM.mp_prefetch(MultiprocessingOptions(2)),
]
PASSING_ON += [gx.WithOptionsIterDataset(STREAM, gx.DatasetOptions(min_shm_size=1))]


def test_sources_and_stages_that_pass_elements_on():
    for ds, spec in SPECS + [(ds, IMAGE) for ds in PASSING_ON]:
        assert get_element_spec(ds) == spec, ds


@pytest.mark.parametrize(
    "convert", [lambda ds: ds, lambda ds: ds.to_iter_dataset()], ids=["map", "iter"]
)
def test_steps_of_both_kinds(convert):
    ds, numbers = convert(IMAGES), convert(MapDataset.range(10))
    floats = ShapeDtypeStruct((4, 3), np.float64)
    ragged = {
        "image": ShapeDtypeStruct((None, 4, 3), np.uint8),
        "label": ShapeDtypeStruct((None,), np.int64),
    }
    dense = {
        "image": ShapeDtypeStruct((2, 5, 4, 3), np.uint8),
        "label": ShapeDtypeStruct((2, 5), np.int64),
    }
    for made, spec in [
        (ds.seed(1), IMAGE),
        (ds.repeat(2), IMAGE),
        (ds.filter(bool), IMAGE),
        (ds.window_shuffle(3, seed=1), IMAGE),
        (ds.map(TO_FLOAT), floats),
        (ds.random_map(WITH_NOISE, seed=1), (IMAGE, FLOAT)),
        (ds.map(TO_FLOAT).map_with_index(NUMBERED), (INT, floats)),
        (ds.batch(4), ragged),
        (ds.batch(5, drop_remainder=True).batch(2, drop_remainder=True), dense),
        (numbers.batch(4, batch_fn=Sum()), {"sum of": (4, False, INT)}),
        (numbers.batch(4, batch_fn=functools.partial(Sum(), scale=3)), {"sum of": (4, False, INT)}),
    ]:
        assert get_element_spec(made) == spec
    for silent in (
        ds.map(len),
        ds.random_map(lambda x, rng: x, seed=1),
        ds.map_with_index(lambda i, x: x),
    ):
        with pytest.raises(
            ValueError, match=r"cannot tell what .*(len|<lambda>).*output_spec\(self, input_spec\)"
        ):
            get_element_spec(silent)
    match = r"batch_fn list.*output_spec\(self, input_spec, batch_size, drop_remainder\)"
    assert_raises(NotImplementedError, match, get_element_spec, ds.batch(4, batch_fn=list))


def test_stages_without_a_spec():
    methods = {"__iter__": lambda self: pytest.fail("it is not read")}
    silent = type("Silent", (IterDataset,), methods)()
    tells = type("Tells", (IterDataset,), {**methods, "_element_spec": INT})()
    for ds in (
        MapDataset.source([1, 2]),
        MapDataset.source([1]).shuffle(seed=1).to_iter_dataset().batch(2),
    ):
        # the source is named and not the stage
        match = r"SourceMapDataset\(source=list\).*attribute element_spec"
        assert_raises(NotImplementedError, match, get_element_spec, ds)
    # users' datasets take part
    assert get_element_spec(tells.batch(2)) == ShapeDtypeStruct((None,), np.int64)
    assert_raises(NotImplementedError, r"Silent.*_element_spec", get_element_spec, silent.batch(2))
    for wrong in (3, [1, 2], iter(RANGE), None):
        assert_raises(TypeError, "must be a MapDataset or IterDataset", get_element_spec, wrong)
    ds = (
        MapDataset.source(Source(image=np.zeros((4, 3), np.uint8), label=np.int64(3)))
        .to_iter_dataset()
        .batch(3, drop_remainder=True)
    )
    for batch in ds:
        assert {
            key: ShapeDtypeStruct(array.shape, array.dtype) for key, array in batch.items()
        } == get_element_spec(ds)
