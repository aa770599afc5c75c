import abc
import dataclasses
import inspect
import logging
import pickle
import typing
import warnings
from collections.abc import Sequence

import numpy as np
import pytest
from refusing import assert_raises

from gristmill import (
    BatchOperation,
    FilterOperation,
    MapDataset,
    MapOperation,
    Operation,
    RandomMapOperation,
    Record,
    RecordMetadata,
    transforms,
)
from gristmill.experimental import PackAndBatchOperation
from gristmill.transforms.base import transform_function


def records(values=range(4)):
    return [
        Record(RecordMetadata(i, 10 + i, np.random.Generator(np.random.Philox(key=i))), x)
        for i, x in enumerate(values)
    ]


def run(operation, data=None):
    with pytest.warns(DeprecationWarning):
        return list(operation(iter(records() if data is None else data)))


OPERATIONS = {
    "Map": MapOperation(lambda x: x * 2),
    "Filter": FilterOperation(lambda x: x % 2),
    "Batch": BatchOperation(2),
}
OPERATIONS["RandomMap"] = RandomMapOperation(lambda x, rng: x + int(rng.integers(1000)))
DRAWN = [i + int(np.random.Generator(np.random.Philox(key=i)).integers(1000)) for i in range(4)]


def test_elements_metadata_and_errors():
    for name, expected in (
        ("Map", [(i, None, 2 * i) for i in range(4)]),
        ("Filter", [(1, None, 1), (3, None, 3)]),
    ):
        given = records()
        out = run(OPERATIONS[name], given)
        assert [(r.metadata.index, r.metadata.record_key, r.data) for r in out] == expected
        # it stays with the record
        assert all(r.metadata.rng is given[r.metadata.index].metadata.rng for r in out)
        assert all(r.metadata.record_key is not None for r in given)
    assert [r.data for r in run(OPERATIONS["RandomMap"])] == DRAWN
    # tests for truth
    assert [r.data for r in run(FilterOperation(lambda x: [x] if x > 1 else []))] == [2, 3]
    given = records()
    out = run(BatchOperation(3), given)
    assert [(b.metadata.index, b.metadata.record_key, b.data.tolist()) for b in out] == [
        (2, None, [0, 1, 2]),
        (3, None, [3]),
    ]
    assert [b.metadata.rng for b in out] == [given[2].metadata.rng, given[3].metadata.rng]
    assert [b.data.tolist() for b in run(BatchOperation(3, drop_remainder=True))] == [[0, 1, 2]]
    assert [b.data for b in run(BatchOperation(3, batch_fn=tuple))] == [(0, 1, 2), (3,)]
    (batch,) = run(
        BatchOperation(2), records([{"a": 1, "b": (np.zeros(2),)}, {"b": (np.ones(2),), "a": 2}])
    )
    assert batch.data["a"].tolist() == [1, 2] and batch.data["b"][0].tolist() == [[0, 0], [1, 1]]
    with pytest.raises(TypeError) as caught:
        run(BatchOperation(3), records([{"a": 1}, {"b": 1}, {"a": 2}]))
    assert str(caught.value).startswith(
        "Record structures do not match. Record at position 0 has structure "
    )
    assert "while records at positions [1] have structures [" in str(caught.value)
    for size in (0, -1):
        with pytest.raises(
            ValueError, match=rf"^batch_size must be a positive integer\. Got {size}\.$"
        ):
            BatchOperation(size)
    assert_raises(TypeError, "batch_size must be an integer", BatchOperation, 1.5)
    for operation, what in [
        (MapOperation(lambda x: 1 // (x - 2)), "map function"),
        (RandomMapOperation(lambda x, rng: 1 // (x - 2)), "random map function"),
        (FilterOperation(lambda x: 1 // (x - 2)), "condition function"),
    ]:
        with pytest.raises(ValueError) as caught:
            run(operation)
        assert str(caught.value) == f"PyGrain encountered an error when calling {what}."
        assert isinstance(caught.value.__cause__, ZeroDivisionError)


def test_operations_are_values_and_warn_of_deprecation_once(caplog):
    caplog.set_level(logging.ERROR, "gristmill")
    for name, operation in OPERATIONS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out = operation(iter(records()))
        assert caplog.records == []
        with pytest.warns(
            DeprecationWarning, match=rf"{name}Operation is deprecated.*{name}$"
        ) as caught:
            list(out)
        (record,) = caplog.records
        assert len(caught) == 1 and record.levelname == "ERROR"
        assert f"{name}Operation is deprecated" in record.getMessage()
        caplog.clear()
    assert MapOperation(len) == MapOperation(len) != MapOperation(max)
    for operation, text in [
        (MapOperation(len), "MapOperation(map_function=<built-in function len>)"),
        (
            RandomMapOperation(len),
            "RandomMapOperation(random_map_function=<built-in function len>)",
        ),
        (
            FilterOperation(condition_function=len),
            "FilterOperation(condition_function=<built-in function len>)",
        ),
        (
            BatchOperation(2, batch_fn=len),
            "BatchOperation(batch_size=2, drop_remainder=False, batch_fn=<built-in function len>)",
        ),
    ]:
        assert repr(operation) == text and isinstance(operation, Operation)


def packing(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return PackAndBatchOperation(*args, **kwargs)


def bare_records(elements):
    return (Record(RecordMetadata(i, 10 + i), element) for i, element in enumerate(elements))


def test_packing_is_deprecated_and_a_value(caplog):
    with (
        caplog.at_level(logging.ERROR, "gristmill"),
        pytest.warns(DeprecationWarning, match="FirstFitPackIterDataset"),
    ):
        one = PackAndBatchOperation(length_struct={"x": 4}, batch_size=2)
    assert "PackAndBatchOperation is deprecated" in caplog.text
    assert one == packing({"x": 4}, 2, max_sequences_per_bin=None) != packing({"x": 4}, 3)
    assert (
        repr(one)
        == "PackAndBatchOperation(length_struct={'x': 4}, batch_size=2, max_sequences_per_bin=None)"
    )
    assert pickle.loads(pickle.dumps(one)) == one


def test_packing_gives_metadata_of_the_last_element():
    batches = list(packing(4, 1)(bare_records([np.arange(2), np.arange(2), np.arange(3)])))
    assert [batch.metadata for batch in batches] == [RecordMetadata(1), RecordMetadata(2)]
    assert [batch.data[0].tolist() for batch in batches] == [[[0, 1, 0, 1]], [[0, 1, 2, 0]]]
    packs = packing(3, 2)
    assert list(packs(bare_records([]))) == []
    next(packs(bare_records([np.full(3, i) for i in range(5)])))
    assert [b.data[0].tolist() for b in packs(bare_records([np.array([9])]))] == [
        [[9, 0, 0], [0, 0, 0]]
    ]
    elements = [
        ([np.arange(2), 5], {"y": np.ones((1, 3), np.float32)}),
        ([np.arange(1), 6], {"y": np.zeros((0, 3), np.float32)}),
    ]
    (batch,) = packing(([3, 2], {"y": 2}), 2)(bare_records(elements))
    values, segment_ids, positions = batch.data
    assert [array.tolist() for array in values[0]] == [[[0, 1, 0], [0, 0, 0]], [[5, 6], [0, 0]]]
    assert values[1]["y"].shape == (2, 2, 3) and values[1]["y"].dtype == np.float32
    assert segment_ids[0][0].tolist() == [[1, 1, 2], [0, 0, 0]]
    assert positions[1]["y"].tolist() == [[0, 0], [0, 0]] and positions[0][1].dtype == np.int32
    for arguments, error, match in [
        *((({"x": 4}, 0), ValueError, "batch_size"), (({"x": 4}, 1.5), TypeError, "batch_size")),
        (({"x": 4}, 2, 0), ValueError, "max_sequences_per_bin"),
        (({"x": 0}, 2), ValueError, r"length_struct\['x'\]"),
        (({"x": "a"}, 2), TypeError, r"length_struct\['x'\]"),
        (({}, 2), ValueError, "length_struct"),
    ]:
        assert_raises(error, match, packing, *arguments)
    for element, match in [
        ({"x": np.arange(5)}, r"truncated.*\(\"\['x'\]\", 5, 4\)"),
        ({"y": np.arange(1)}, "structure.*key 11: give"),
        *(({"x": [1, 2]}, "structure"), ({"x": np.array([300])}, r"\['x'\].*int8")),
    ]:
        with pytest.raises(ValueError, match=match):
            list(packing({"x": 4}, 2)(bare_records([{"x": np.zeros(1, np.int8)}, element])))


METHODS = {
    transforms.Map: "map(self, element)",
    transforms.RandomMap: "random_map(self, element, rng)",
}
METHODS |= {
    transforms.TfRandomMap: "np_random_map(self, element, rng)",
    transforms.Filter: "filter(self, element)",
}
METHODS |= {
    transforms.MapWithIndex: "map_with_index(self, index, element)",
    transforms.FlatMap: "flat_map(self, element)",
}


def test_abstract_classes():
    for kind, signature in METHODS.items():
        name = signature.partition("(")[0]
        assert isinstance(kind, abc.ABCMeta) and kind.__abstractmethods__ == {name}
        assert (
            f"{name}({', '.join(inspect.signature(getattr(kind, name)).parameters)})" == signature
        )
        assert kind.__init__ is object.__init__
        assert kind.__str__ is object.__str__
        assert kind.__repr__ is object.__repr__
        assert_raises(TypeError, name, kind)
        complete = type("Complete", (kind,), {name: lambda self, *args: args})
        assert getattr(complete(), name)(1, 2) == (1, 2)
    assert set(typing.get_args(transforms.Transformation)) == {
        transforms.Batch,
        transforms.Tolerate,
        *METHODS,
    }
    assert transforms.Transformations == Sequence[transforms.Transformation]
    assert transforms.DatasetSelectionMap.__abstractmethods__ == {"__len__", "__getitem__"}


@dataclasses.dataclass(frozen=True)
class Scale(transforms.Map):
    factor: int

    def map(self, element):
        return element * self.factor


def test_transformations_are_values():
    assert list(MapDataset.range(3).map(Scale(3))) == [0, 3, 6]
    batch = transforms.Batch(2)
    assert repr(batch) == "Batch(batch_size=2, drop_remainder=False, batch_fn=None)"
    assert hash(batch) == hash(transforms.Batch(2)) and batch != transforms.Batch(2, True)
    assert_raises(dataclasses.FrozenInstanceError, None, setattr, batch, "batch_size", 3)
    for value in (Scale(3), batch, transforms.Batch(2, True, len)):
        assert pickle.loads(pickle.dumps(value)) == value
    methods = {
        "map": lambda self, element: "the method",
        "__call__": lambda self, element: "the call",
    }
    both = type("Both", (transforms.Map,), methods)()
    assert transform_function(both, transforms.Map, "map")(1) == "the method"
    assert transform_function(both, transforms.Filter, "filter")(1) == "the call"
    assert transform_function(len, transforms.Map, "map") is len
    match = "transform must be callable or an instance of Filter, got"
    for wrong in (5, None, "map", Scale(2)):
        assert_raises(TypeError, match, transform_function, wrong, transforms.Filter, "filter")
    for method in ("map", "filter", "map_with_index", "random_map"):
        ds = MapDataset.range(3).seed(0).to_iter_dataset()
        assert_raises(TypeError, "transform must be callable", getattr(ds, method), 5)
