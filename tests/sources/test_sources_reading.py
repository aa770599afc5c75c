import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.sources.reading import read_keys, wrap_keys

KEYS = [3, 1, 1, 0, 3]


class Plain:
    """Records are 10 times the key; all reads are logged."""

    def __init__(self):
        self.calls = []

    def __len__(self):
        return 4

    def __getitem__(self, key):
        self.calls.append(key)
        return key * 10


class Vectored(Plain):
    """As Hugging Face, PyTorch and TFDS sources are."""

    def __getitem__(self, key):
        return super().__getitem__(key)

    def __getitems__(self, keys):
        self.calls.append(list(keys))
        return [key * 10 for key in keys]


class GrainVectored(Plain):
    def _getitems(self, keys):
        self.calls.append(list(keys))
        return tuple(key * 10 for key in keys)


class Parsing(Vectored):
    """Overrides one of the two methods only."""

    def __getitem__(self, key):
        return f"parsed {super().__getitem__(key)}"


class Mixin:
    def __getitem__(self, key):
        return f"mixed {super().__getitem__(key)}"


class Mixed(Mixin, Vectored):
    pass


class OnceMoreVectored(Parsing):
    def __getitems__(self, keys):
        return [f"parsed {record}" for record in super().__getitems__(keys)]


class Disabled(Vectored):
    __getitems__ = None


@pytest.mark.parametrize("kind", [Plain, Vectored, GrainVectored, Parsing, Mixed, OnceMoreVectored, Disabled])
@pytest.mark.parametrize("keys", [[], [2], KEYS])
def test_a_block_is_what_single_reads_are(kind, keys):
    assert read_keys(kind(), keys) == [kind()[key] for key in keys]


@pytest.mark.parametrize("kind", [Vectored, GrainVectored, OnceMoreVectored])
def test_a_vectored_read_is_called_once_for_several_keys(kind):
    source = kind()
    read_keys(source, KEYS)
    assert source.calls == [KEYS]


@pytest.mark.parametrize("kind", [Vectored, GrainVectored])
def test_one_key_is_read_by_getitem(kind):
    source = kind()
    assert read_keys(source, [2]) == [20]
    assert source.calls == [2]


@pytest.mark.parametrize("kind", [Plain, Parsing, Mixed, Disabled])
def test_getitem_decides_where_it_is_the_more_derived_method(kind):
    source = kind()
    read_keys(source, KEYS)
    assert source.calls == KEYS


@given(st.lists(st.integers(0, 6)))
def test_ordinary_sequences(keys):
    data = list(range(100, 107))
    expected = [data[key] for key in keys]
    assert read_keys(data, keys) == read_keys(tuple(data), keys) == read_keys(np.array(data), keys) == expected
    assert read_keys("abcdefg", keys) == ["abcdefg"[key] for key in keys]


@pytest.mark.parametrize("num_records", [0, 4, 6])
def test_a_vectored_read_must_return_one_record_per_key(num_records):
    class Wrong(Vectored):
        def __getitem__(self, key):
            return key

        def __getitems__(self, keys):
            return [0] * num_records

    with pytest.raises(ValueError, match=f"Wrong.__getitems__ must return one record per key, got {num_records} for 5"):
        read_keys(Wrong(), KEYS)


def test_a_table_is_not_a_list_of_records():
    class Table(Vectored):
        def __getitem__(self, key):
            return {"x": key, "y": key}

        def __getitems__(self, keys):
            return {"x": keys, "y": keys}

    with pytest.raises(TypeError, match=r"Table\.__getitems__ must return a sequence of records, got dict"):
        read_keys(Table(), [0, 1])


@pytest.mark.parametrize("keys", [[1], KEYS])
@pytest.mark.parametrize("base", [Plain, Vectored])
def test_stop_iteration_does_not_end_the_data(base, keys):
    class Stops(base):
        def __getitem__(self, key):
            raise StopIteration

        def __getitems__(self, keys):
            raise StopIteration

    with pytest.raises(RuntimeError, match="the source Stops raised StopIteration") as caught:
        read_keys(Stops(), keys)
    assert isinstance(caught.value.__cause__, StopIteration)


def test_other_errors_pass():
    with pytest.raises(IndexError, match="list index out of range"):
        read_keys([1, 2], [0, 5])


def test_torch_datasets_are_sources():
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    from torch.utils.data import Subset, TensorDataset

    dataset = TensorDataset(torch.arange(10), torch.arange(10) * 2)
    subset = Subset(dataset, [9, 8, 7, 6])  # has a __getitems__ of its own
    for source in (dataset, subset):
        expected = [[int(value) for value in source[key]] for key in KEYS]
        assert [[int(value) for value in record] for record in read_keys(source, KEYS)] == expected
    assert wrap_keys(subset, [-1, 4]) == [3, 0]


@given(st.lists(st.integers(-(10**20), 10**20)), st.integers(1, 50))
def test_keys_wrap_around_the_length(keys, length):
    assert wrap_keys(range(length), keys) == [key % length for key in keys]


def test_wrapped_keys_are_built_in_ints():
    keys = wrap_keys(np.zeros(3), [np.int64(4), True, np.uint64(2)])
    assert keys == [1, 1, 2]
    assert {type(key) for key in keys} == {int}


class NoLength:
    def __getitem__(self, key):
        return key


class NoneLength(NoLength):
    __len__ = None


@pytest.mark.parametrize("source", [NoLength(), NoneLength()])
def test_keys_of_a_source_without_a_length_stay(source):
    assert wrap_keys(source, [-1, 10**9, "a"]) == [-1, 10**9, "a"]


def test_keys_that_are_no_integers_stay():
    keys = ["a", "%d", None, (1, 2), 1.5]
    assert wrap_keys([1, 2, 3], [*keys, 4]) == [*keys, 1]
    assert wrap_keys({}, keys) == keys


@pytest.mark.parametrize("keys", [[3], ["a", 3]])
def test_an_empty_source_has_no_record_for_any_integer(keys):
    assert wrap_keys([], []) == []
    with pytest.raises(IndexError, match="the source list is empty"):
        wrap_keys([], keys)


def test_the_length_is_looked_at_each_time():
    source = [0, 1]
    assert wrap_keys(source, [2]) == [0]
    source.append(2)
    assert wrap_keys(source, [2]) == [2]


@pytest.mark.parametrize("kind", [None, "numpy"])
def test_records_of_hugging_face_have_the_same_types_alone_and_in_blocks(kind):
    datasets = pytest.importorskip("datasets")
    columns = {"x": [0.1 * i for i in range(8)], "n": [1, 2, None, 4, 5, 6, 7, 8], "t": [[i] * (i % 3) for i in range(8)]}
    rows = datasets.Dataset.from_dict(columns).with_format(kind)
    alone, block = [rows[i] for i in range(8)], read_keys(rows, range(8))
    for one, other in zip(alone, block, strict=True):
        assert {name: (type(value), str(value), getattr(value, "dtype", None)) for name, value in one.items()} == {
            name: (type(value), str(value), getattr(value, "dtype", None)) for name, value in other.items()
        }


def test_hugging_face_is_read_in_blocks_where_that_is_the_same(monkeypatch):
    datasets = pytest.importorskip("datasets")
    calls = []
    read = datasets.Dataset.__getitems__
    monkeypatch.setattr(datasets.Dataset, "__getitems__", lambda self, keys: calls.append(list(keys)) or read(self, keys))
    rows = datasets.Dataset.from_dict({"x": [1, 2, 3]})
    assert read_keys(rows, [2, 0]) == [{"x": 3}, {"x": 1}]
    assert calls == [[2, 0]]
    read_keys(rows.with_format("numpy"), [2, 0])
    assert calls == [[2, 0]]
