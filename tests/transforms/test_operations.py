import logging
import warnings

import numpy as np
import pytest
from refusing import assert_raises

from gristmill import Record, RecordMetadata
from gristmill.python import BatchOperation, FilterOperation, MapOperation, Operation, RandomMapOperation


def records(values=range(4)):
    return [Record(RecordMetadata(i, 10 + i, np.random.Generator(np.random.Philox(key=i))), x) for i, x in enumerate(values)]


def run(operation, data=None):
    """All that the operation gives; its deprecation is part of the contract and tested below."""
    with pytest.warns(DeprecationWarning):
        return list(operation(iter(records() if data is None else data)))


OPERATIONS = {
    "Map": MapOperation(lambda x: x * 2),
    "RandomMap": RandomMapOperation(lambda x, rng: x + int(rng.integers(1000))),
    "Filter": FilterOperation(lambda x: x % 2),
    "Batch": BatchOperation(2),
}
DRAWN = [i + int(np.random.Generator(np.random.Philox(key=i)).integers(1000)) for i in range(4)]


def test_elements_and_metadata():
    for name, expected in (("Map", [(i, None, 2 * i) for i in range(4)]), ("Filter", [(1, None, 1), (3, None, 3)])):
        given = records()
        out = run(OPERATIONS[name], given)
        assert [(r.metadata.index, r.metadata.record_key, r.data) for r in out] == expected
        assert all(r.metadata.rng is given[r.metadata.index].metadata.rng for r in out)  # it stays with the record
        assert all(r.metadata.record_key is not None for r in given)
    assert [r.data for r in run(OPERATIONS["RandomMap"])] == DRAWN
    assert [r.data for r in run(FilterOperation(lambda x: [x] if x > 1 else []))] == [2, 3]  # tests for truth
    given = records()
    out = run(BatchOperation(3), given)
    assert [(b.metadata.index, b.metadata.record_key, b.data.tolist()) for b in out] == [(2, None, [0, 1, 2]), (3, None, [3])]
    assert [b.metadata.rng for b in out] == [given[2].metadata.rng, given[3].metadata.rng]
    assert [b.data.tolist() for b in run(BatchOperation(3, drop_remainder=True))] == [[0, 1, 2]]
    assert [b.data for b in run(BatchOperation(3, batch_fn=tuple))] == [(0, 1, 2), (3,)]
    (batch,) = run(BatchOperation(2), records([{"a": 1, "b": (np.zeros(2),)}, {"b": (np.ones(2),), "a": 2}]))
    assert batch.data["a"].tolist() == [1, 2] and batch.data["b"][0].tolist() == [[0, 0], [1, 1]]


def test_errors():
    with pytest.raises(TypeError) as caught:
        run(BatchOperation(3), records([{"a": 1}, {"b": 1}, {"a": 2}]))
    assert str(caught.value).startswith("Record structures do not match. Record at position 0 has structure ")
    assert "while records at positions [1] have structures [" in str(caught.value)
    for size in (0, -1):
        assert_raises(ValueError, rf"^batch_size must be a positive integer\. Got {size}\.$", BatchOperation, size)
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


def test_operations_are_values_and_tell_that_they_are_deprecated_once_and_when_iteration_starts(caplog):
    caplog.set_level(logging.ERROR, "gristmill")
    for name, operation in OPERATIONS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            out = operation(iter(records()))
        assert caplog.records == []
        with pytest.warns(DeprecationWarning, match=rf"{name}Operation is deprecated.*{name}$") as caught:
            list(out)
        (record,) = caplog.records
        assert len(caught) == 1 and record.levelname == "ERROR"
        assert f"{name}Operation is deprecated" in record.getMessage()
        caplog.clear()
    assert MapOperation(len) == MapOperation(len) != MapOperation(max)
    for operation, text in [
        (MapOperation(len), "MapOperation(map_function=<built-in function len>)"),
        (RandomMapOperation(len), "RandomMapOperation(random_map_function=<built-in function len>)"),
        (FilterOperation(condition_function=len), "FilterOperation(condition_function=<built-in function len>)"),
        (BatchOperation(2, batch_fn=len), "BatchOperation(batch_size=2, drop_remainder=False, batch_fn=<built-in function len>)"),
    ]:
        assert repr(operation) == text
        assert isinstance(operation, Operation)
