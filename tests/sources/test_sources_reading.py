"""Objects accepted as sources, reading records singly and in blocks, and keys past the end."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusing import assert_raises

from gristmill import sources
from gristmill.core.errors import SourceEnded
from gristmill.sources import RandomAccessDataSource, RangeDataSource
from gristmill.sources.reading import read_keys, wrap_keys

KEYS = [3, 1, 1, 0, 3]


class Plain:  # records are 10 times the key; all reads are logged
    def __init__(self):
        self.calls = []

    def __len__(self):
        return 4

    def __getitem__(self, key):
        self.calls.append(key)
        return key * 10


def read_block(self, keys):
    self.calls.append(list(keys))
    return [key * 10 for key in keys]


def parse(self, key):
    return f"parsed {Plain.__getitem__(self, key)}"


def parse_block(self, keys):
    return [f"parsed {record}" for record in read_block(self, keys)]


def derived(*bases, **methods):
    return type("Derived", bases, methods)


# As those of Hugging Face, PyTorch and TFDS are, and as Grain's; the others override one of the two
# methods, or both.
Vectored = derived(Plain, __getitem__=Plain.__getitem__, __getitems__=read_block)
GrainVectored = derived(Plain, _getitems=lambda self, keys: tuple(read_block(self, keys)))
Parsing = derived(Vectored, __getitem__=parse)
Mixed = derived(derived(__getitem__=parse), Vectored)
Disabled = derived(Vectored, __getitems__=None)
IN_BLOCKS = [Vectored, GrainVectored, derived(Parsing, __getitems__=parse_block)]


@pytest.mark.parametrize("keys", [[], [2], KEYS])
def test_blocks_equal_single_reads_by_the_most_derived_method(keys):
    for kind in (Plain, Parsing, Mixed, Disabled, *IN_BLOCKS):
        source = kind()
        assert read_keys(source, keys) == [kind()[key] for key in keys]
        assert source.calls == ([keys] if kind in IN_BLOCKS and len(keys) > 1 else keys)


@given(st.lists(st.integers(-(10**20), 10**20)), st.integers(1, 50))
def test_ordinary_sequences_and_keys_around_their_length(keys, length):
    wrapped, data = wrap_keys(range(length), keys), list(range(100, 100 + length))
    assert wrapped == [key % length for key in keys]
    expected = [data[key] for key in wrapped]
    assert (
        read_keys(data, wrapped)
        == read_keys(tuple(data), wrapped)
        == read_keys(np.array(data), wrapped)
        == expected
    )


class Answering(Vectored):  # gives the records that it is made with, or raises that error
    def __init__(self, answer):
        self.answer = answer

    def __getitem__(self, keys):
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    __getitems__ = __getitem__


def test_wrong_answers_errors_and_keys_that_stay():
    for n in (0, 4, 6):
        match = f"Answering.__getitems__ must return one record per key, got {n} for 5"
        assert_raises(ValueError, match, read_keys, Answering([0] * n), KEYS)
    match = r"Answering\.__getitems__ must return a sequence of records, got dict"
    assert_raises(TypeError, match, read_keys, Answering({"x": 0, "y": 1}), [0, 1])
    for keys in ([1], KEYS):
        assert_raises(SourceEnded, None, read_keys, Answering(StopIteration()), keys)
    assert_raises(IndexError, "list index out of range", read_keys, [1, 2], [0, 5])
    keys = wrap_keys(np.zeros(3), [np.int64(4), True, np.uint64(2)])
    assert keys == [1, 1, 2] and {type(key) for key in keys} == {int}
    for source in (derived(__getitem__=parse)(), derived(__getitem__=parse, __len__=None)()):
        assert wrap_keys(source, [-1, 10**9, "a"]) == [-1, 10**9, "a"]
    others = ["a", "%d", None, (1, 2), 1.5]
    assert wrap_keys([1, 2, 3], [*others, 4]) == [*others, 1]
    assert (wrap_keys({}, others), wrap_keys([], [])) == (others, [])
    for keys in ([3], ["a", 3]):
        assert_raises(IndexError, "the source list is empty", wrap_keys, [], keys)
    source = [0, 1]  # the length is looked at each time
    assert wrap_keys(source, [2]) == [0]
    source.append(2)
    assert wrap_keys(source, [2]) == [2]


def test_hugging_face_is_read_in_blocks_of_the_same_types(monkeypatch):
    datasets = pytest.importorskip("datasets")
    calls = []
    read = datasets.Dataset.__getitems__
    monkeypatch.setattr(
        datasets.Dataset,
        "__getitems__",
        lambda self, keys: calls.append(list(keys)) or read(self, keys),
    )
    columns = {
        "x": [0.1 * i for i in range(8)],
        "n": [1, 2, None, 4, 5, 6, 7, 8],
        "t": [[i] * (i % 3) for i in range(8)],
    }

    def exact(records):
        return [
            {name: (type(x), str(x), getattr(x, "dtype", None)) for name, x in record.items()}
            for record in records
        ]

    for kind, expected_calls in ((None, [list(range(8))]), ("numpy", [])):
        rows = datasets.Dataset.from_dict(columns).with_format(kind)
        assert (
            exact(read_keys(rows, range(8))) == exact([rows[i] for i in range(8)])
            and calls == expected_calls
        )
        calls.clear()


def test_what_is_a_source():
    class Letters(RandomAccessDataSource[str]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int, /) -> str:
            return "abc"[index]

    for source in ([1], (1,), "a", {"a": 1}, np.zeros(3), Letters()):
        assert isinstance(source, RandomAccessDataSource)
    for other in ({1, 2}, iter([1]), 3, None):
        assert not isinstance(other, RandomAccessDataSource)
    assert_raises(TypeError, None, RandomAccessDataSource)
    for ours in (sources.ArrayRecordDataSource, RangeDataSource, sources.SharedMemoryDataSource):
        assert issubclass(ours, RandomAccessDataSource)


@given(st.integers(-50, 50), st.integers(0, 50), st.integers(-7, 7).filter(bool))
def test_a_range_source_holds_what_range_holds(start, distance, step):
    stop = start + distance * (1 if step > 0 else -1)
    expected, source = list(range(start, stop, step)), RangeDataSource(start, stop, step)
    assert list(source) == expected and len(source) == len(expected)
    keys = list(range(len(expected)))[::-1] * 2
    assert (
        source.__getitems__(keys)
        == [source[key] for key in keys]
        == [expected[key] for key in keys]
    )


def test_lengths_texts_and_keys_of_range_sources():
    lengths = {(0, 0, 1): 0, (0, 1, 5): 1, (0, 3 * 10**17 + 1, 3): 10**17 + 1, (10, 0, -3): 4}
    assert {arguments: len(RangeDataSource(*arguments)) for arguments in lengths} == lengths
    source = RangeDataSource(start=np.int64(0), stop=10, step=2)
    # which states carry
    assert repr(source) == str(source) == "RangeDataSource(start=0, stop=10, step=2)"
    assert (source[np.int64(1)], type(source[np.int64(1)])) == (2, int)
