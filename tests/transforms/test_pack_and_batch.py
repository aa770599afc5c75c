import logging
import pickle
import warnings

import numpy as np
import pytest
from refusing import assert_raises

from gristmill import Record, RecordMetadata
from gristmill.experimental import PackAndBatchOperation


def operation(*args, **kwargs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return PackAndBatchOperation(*args, **kwargs)


def records(elements):
    for i, element in enumerate(elements):
        yield Record(RecordMetadata(i, 10 + i), element)


def test_it_is_deprecated_and_a_value(caplog):
    with caplog.at_level(logging.ERROR, "gristmill"), pytest.warns(DeprecationWarning, match="FirstFitPackIterDataset"):
        one = PackAndBatchOperation(length_struct={"x": 4}, batch_size=2)
    assert "PackAndBatchOperation is deprecated" in caplog.text
    assert one == operation({"x": 4}, 2, max_sequences_per_bin=None) != operation({"x": 4}, 3)
    assert repr(one) == "PackAndBatchOperation(length_struct={'x': 4}, batch_size=2, max_sequences_per_bin=None)"
    assert pickle.loads(pickle.dumps(one)) == one


def test_metadata_are_those_of_the_last_element_and_nothing_is_kept_between_calls():
    batches = list(operation(4, 1)(records([np.arange(2), np.arange(2), np.arange(3)])))
    assert [batch.metadata for batch in batches] == [RecordMetadata(1), RecordMetadata(2)]
    assert [batch.data[0].tolist() for batch in batches] == [[[0, 1, 0, 1]], [[0, 1, 2, 0]]]
    packs = operation(3, 2)
    assert list(packs(records([]))) == []
    next(packs(records([np.full(3, i) for i in range(5)])))
    assert [b.data[0].tolist() for b in packs(records([np.array([9])]))] == [[[9, 0, 0], [0, 0, 0]]]


def test_any_pytree_and_scalars():
    elements = [([np.arange(2), 5], {"y": np.ones((1, 3), np.float32)}), ([np.arange(1), 6], {"y": np.zeros((0, 3), np.float32)})]
    (batch,) = operation(([3, 2], {"y": 2}), 2)(records(elements))
    values, segment_ids, positions = batch.data
    assert [array.tolist() for array in values[0]] == [[[0, 1, 0], [0, 0, 0]], [[5, 6], [0, 0]]]
    assert values[1]["y"].shape == (2, 2, 3) and values[1]["y"].dtype == np.float32
    assert segment_ids[0][0].tolist() == [[1, 1, 2], [0, 0, 0]]
    assert positions[1]["y"].tolist() == [[0, 0], [0, 0]]
    assert positions[0][1].dtype == np.int32


def test_errors():
    for arguments, error, match in [
        (({"x": 4}, 0), ValueError, "batch_size"),
        (({"x": 4}, 1.5), TypeError, "batch_size"),
        (({"x": 4}, 2, 0), ValueError, "max_sequences_per_bin"),
        (({"x": 0}, 2), ValueError, r"length_struct\['x'\]"),
        (({"x": "a"}, 2), TypeError, r"length_struct\['x'\]"),
        (({}, 2), ValueError, "length_struct"),
    ]:
        assert_raises(error, match, operation, *arguments)
    for element, match in [
        ({"x": np.arange(5)}, r"truncated.*\(\"\['x'\]\", 5, 4\)"),
        ({"y": np.arange(1)}, "structure"),
        ({"x": [1, 2]}, "structure"),
        ({"x": np.array([300])}, r"\['x'\].*int8"),
    ]:
        assert_raises(ValueError, match, list, operation({"x": 4}, 2)(records([{"x": np.zeros(1, np.int8)}, element])))
