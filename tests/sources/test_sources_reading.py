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
def test_a_block_is_what_single_reads_are_and_is_read_at_once_where_the_more_derived_method_does(kind):
    for keys in ([], [2], KEYS):
        source = kind()
        assert read_keys(source, keys) == [kind()[key] for key in keys]
        is_vectored = kind in (Vectored, GrainVectored, OnceMoreVectored) and len(keys) > 1
        assert source.calls == ([keys] if is_vectored else keys)


@given(st.lists(st.integers(0, 6)))
def test_ordinary_sequences(keys):
    data = list(range(100, 107))
    expected = [data[key] for key in keys]
    assert read_keys(data, keys) == read_keys(tuple(data), keys) == read_keys(np.array(data), keys) == expected
    assert read_keys("abcdefg", keys) == ["abcdefg"[key] for key in keys]


def answering(answer, base=Vectored):
    class Answering(base):
        def __getitem__(self, key):
            return answer(key)

        def __getitems__(self, keys):
            return answer(keys)

    return Answering()


def test_wrong_answers_and_errors():
    for n in (0, 4, 6):
        with pytest.raises(ValueError, match=f"Answering.__getitems__ must return one record per key, got {n} for 5"):
            read_keys(answering(lambda _, n=n: [0] * n), KEYS)
    with pytest.raises(TypeError, match=r"Answering\.__getitems__ must return a sequence of records, got dict"):
        read_keys(answering(lambda keys: {"x": keys, "y": keys}), [0, 1])
    for keys, base in ([1], Plain), ([1], Vectored), (KEYS, Plain), (KEYS, Vectored):
        with pytest.raises(RuntimeError, match="the source Answering raised StopIteration") as caught:
            read_keys(answering(lambda _: next(iter([])), base), keys)
        assert isinstance(caught.value.__cause__, StopIteration)
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


class NoLength:
    def __getitem__(self, key):
        return key


class NoneLength(NoLength):
    __len__ = None


def test_keys_that_stay_and_others():
    keys = wrap_keys(np.zeros(3), [np.int64(4), True, np.uint64(2)])
    assert keys == [1, 1, 2]
    assert {type(key) for key in keys} == {int}
    for source in (NoLength(), NoneLength()):
        assert wrap_keys(source, [-1, 10**9, "a"]) == [-1, 10**9, "a"]
    others = ["a", "%d", None, (1, 2), 1.5]
    assert wrap_keys([1, 2, 3], [*others, 4]) == [*others, 1]
    assert wrap_keys({}, others) == others
    assert wrap_keys([], []) == []
    for keys in ([3], ["a", 3]):
        with pytest.raises(IndexError, match="the source list is empty"):
            wrap_keys([], keys)
    source = [0, 1]  # the length is looked at each time
    assert wrap_keys(source, [2]) == [0]
    source.append(2)
    assert wrap_keys(source, [2]) == [2]


@pytest.mark.parametrize("kind", [None, "numpy"])
def test_records_of_hugging_face_have_the_same_types_alone_and_in_blocks(kind):
    datasets = pytest.importorskip("datasets")
    columns = {"x": [0.1 * i for i in range(8)], "n": [1, 2, None, 4, 5, 6, 7, 8], "t": [[i] * (i % 3) for i in range(8)]}
    rows = datasets.Dataset.from_dict(columns).with_format(kind)

    def exact(records):
        return [{name: (type(x), str(x), getattr(x, "dtype", None)) for name, x in record.items()} for record in records]

    assert exact(read_keys(rows, range(8))) == exact([rows[i] for i in range(8)])


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
