import copy
import dataclasses
import pickle

import numpy as np
import pytest
from refusing import assert_raises

from gristmill.core.record import Record, RecordMetadata, sampled


def philox(key):
    return np.random.Generator(np.random.Philox(key=key))


def test_mutable_fields_with_defaults_in_slots_equality_by_value_and_texts():
    rng = philox(1)
    assert dataclasses.astuple(RecordMetadata(3)) == (3, None, None)
    metadata = RecordMetadata(index=3, record_key=4, rng=rng)
    assert (metadata.index, metadata.record_key, metadata.rng) == (3, 4, rng)
    record = Record(metadata=metadata, data="x")
    assert record.metadata is metadata and record.data == "x"
    assert Record[int](metadata, 1).data == 1
    for kind, names in ((RecordMetadata, ["index", "record_key", "rng"]), (Record, ["metadata", "data"])):
        assert [field.name for field in dataclasses.fields(kind)] == names
    metadata.index, metadata.record_key, record.data = 5, 6, 7
    rng = metadata.rng = philox(0)
    assert (metadata.index, metadata.record_key, record.data) == (5, 6, 7) and metadata.rng is rng
    for thing in (metadata, record):
        assert_raises(AttributeError, None, setattr, thing, "other", 1)
        assert not hasattr(thing, "__dict__")
    rng = philox(1)
    assert RecordMetadata(1, 2, rng) == RecordMetadata(1, 2, rng) != RecordMetadata(1, 2, philox(1))
    assert RecordMetadata(1, 2) != RecordMetadata(1, 3)
    assert RecordMetadata(1, 2) != (1, 2, None)
    assert Record(RecordMetadata(1), 5) == Record(RecordMetadata(1), 5) != Record(RecordMetadata(1), 6)
    lazy = sampled(1, 2, 7)
    assert lazy == lazy
    for thing in (RecordMetadata(1), Record(RecordMetadata(1), 1), lazy):
        assert_raises(TypeError, "unhashable", hash, thing)
    rng = philox(0)
    assert str(RecordMetadata(1, 2, rng)) == "RecordMetadata(index=1, record_key=2, rng=Generator(Philox))"
    assert str(RecordMetadata(1)) == "RecordMetadata(index=1, record_key=None, rng=None)"
    assert repr(RecordMetadata(1, 2)) == "RecordMetadata(index=1, record_key=2, rng=None)"
    assert repr(RecordMetadata(1, 2, rng)) == f"RecordMetadata(index=1, record_key=2, rng={rng!r})"
    assert repr(sampled(1, 2, 7)).startswith("RecordMetadata(index=1, record_key=2, rng=Generator(Philox) at 0x")
    assert str(sampled(1, 2, 7)) == "RecordMetadata(index=1, record_key=2, rng=Generator(Philox))"
    text = "Record(metadata=RecordMetadata(index=1, record_key=2, rng=None), data='x')"
    assert repr(Record(RecordMetadata(1, 2), "x")) == text


def test_without_its_key_sampled_and_replaced_a_record_has_one_generator():
    rng = philox(1)
    metadata = RecordMetadata(1, 2, rng)
    removed = metadata.remove_record_key()
    assert (removed.index, removed.record_key) == (1, None) and removed.rng is rng
    assert removed is not metadata and metadata.record_key == 2
    assert removed.remove_record_key() is removed
    metadata = sampled(1, 2, 7)
    rng = metadata.rng
    assert isinstance(rng, np.random.Generator) and metadata.rng is rng
    assert rng.random() == philox(7).random()
    assert metadata.remove_record_key().rng is copy.copy(metadata).rng is rng
    assert sampled(1, 2, None).rng is None
    # It goes on in what replaces its metadata, whoever asks first and through whichever of the two.
    for first in (0, 1):
        metadata, reference = sampled(1, 2, 7), philox(7)
        both = metadata, metadata.remove_record_key()
        assert both[first].rng.random() == reference.random()
        assert both[1 - first].rng.random() == reference.random()
        assert both[0].rng is both[1].rng
    metadata = sampled(1, 2, 7)
    rng = metadata.rng
    replaced = dataclasses.replace(metadata, index=9)
    assert (replaced.index, replaced.record_key) == (9, 2) and replaced.rng is rng
    assert dataclasses.asdict(RecordMetadata(1, 2)) == {"index": 1, "record_key": 2, "rng": None}
    fields = dataclasses.asdict(sampled(1, 2, 7))
    assert fields["index"] == 1 and fields["rng"].random() == philox(7).random()
    assert dataclasses.astuple(Record(RecordMetadata(1), "x")) == ((1, None, None), "x")


@pytest.mark.parametrize("asked_before", [False, True])
def test_copies_and_pickles(asked_before):
    for clone in (copy.copy, copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))):
        metadata, reference = sampled(1, 2, 7), philox(7)
        if asked_before:
            assert metadata.rng.random() == reference.random()
        other = copy.copy(metadata) if clone is copy.copy else clone(Record(metadata, [1])).metadata
        assert (other.index, other.record_key) == (1, 2)
        assert other.rng.random() == reference.random()
