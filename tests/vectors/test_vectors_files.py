"""Grain's elements and states of files, at every position."""

import base64

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from vector_data import load, plain

from gristmill.experimental import ParquetIterDataset, TFRecordIterDataset

VECTORS = load("exp_misc")


def write_numbers(path, numbers):
    pq.write_table(pa.table({"x": pa.array(numbers, pa.int64())}), path, row_group_size=2)
    return str(path)


@pytest.fixture
def datasets(tmp_path):
    one = write_numbers(tmp_path / "one.parquet", range(5))
    two = write_numbers(tmp_path / "two.parquet", range(10, 13))
    records = tmp_path / "records.tfrecord"
    records.write_bytes(base64.b64decode(VECTORS["tfrecord"]["file_base64"]))
    return {
        "parquet": ParquetIterDataset(one),
        "parquet_two_files": ParquetIterDataset([one, two]),
        "tfrecord": TFRecordIterDataset(str(records), check_crc=False),  # the file has none
    }


def text(element):
    return element.decode() if isinstance(element, bytes) else {name: plain(value) for name, value in element.items()}


@pytest.mark.parametrize("name", ["parquet", "parquet_two_files", "tfrecord"])
def test_elements_and_states(datasets, name):
    vector, ds = VECTORS[name], datasets[name]
    it = iter(ds)
    assert it.get_state() == vector["states"][0]
    for element, state in zip(vector["output"], vector["states"][1:], strict=True):
        assert text(next(it)) == element
        assert it.get_state() == state
    assert next(it, None) is None
    assert it.get_state() == vector["state_after_end"]
    for position, state in enumerate([*vector["states"], vector["state_after_end"]]):
        it.set_state(state)
        assert [text(element) for element in it] == vector["output"][position:]


def test_checksums_are_compared_unless_told_otherwise(tmp_path, datasets):
    with pytest.raises(ValueError, match=r"records\.tfrecord .* byte 0 has a wrong checksum .*check_crc=False"):
        list(TFRecordIterDataset(tmp_path / "records.tfrecord"))
