"""What counts as a source of a ``MapDataset``, and how it is read."""

import numpy as np
import pytest

from gristmill.dataset import MapDataset


def everything(source):
    ds = MapDataset.source(source)
    n = len(ds)
    singly = [ds[i] for i in range(-n, 2 * n)]
    assert singly == ds._block(range(-n, 2 * n))
    assert singly == 3 * list(ds)
    return singly[:n]


@pytest.mark.parametrize(
    "source", [[1, "a", (2,)], (1, 2, 3), "héllo", b"abc", range(3, 30, 7), bytearray(b"xy"), MapDataset.range(5)]
)
def test_sequences(source):
    assert everything(source) == list(source)


def test_numpy_arrays_give_rows():
    array = np.arange(12).reshape(4, 3)
    ds = MapDataset.source(array)
    assert len(ds) == 4
    assert np.array_equal(np.stack(ds._block([3, 0, 7])), array[[3, 0, 3]])
    assert np.array_equal(ds[-1], array[3])
    batches = list(ds.batch(3))
    assert np.array_equal(batches[0], array[:3]) and np.array_equal(batches[1], array[3:])


def test_a_source_that_grows():
    records = [1, 2]
    ds = MapDataset.source(records)
    fixed = ds.repeat(1)
    shuffled = ds.shuffle(seed=1)
    assert ds[2] == 1 and sorted(shuffled) == [1, 2]
    records.append(3)
    assert len(ds) == 3 and ds[2] == 3 and list(ds) == [1, 2, 3]
    assert len(ds.map(str)) == 3
    assert sorted(shuffled) == [1, 2, 3]
    assert len(fixed) == 2
    it = iter(ds)
    records.append(4)
    assert list(it) == [1, 2, 3]  # the length was read when the iterator was made
    assert list(ds) == [1, 2, 3, 4]


class TorchLike:
    """A map-style data set of PyTorch: ``__getitem__`` and ``__len__`` alone."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        assert type(index) is int and 0 <= index < 5
        return {"x": index}


class TfdsLike(TorchLike):
    """TFDS's data sources read many records at once, given a list of keys."""

    def __init__(self):
        self.calls = []

    def __getitems__(self, keys):
        assert type(keys) is list or hasattr(keys, "__len__")
        assert all(type(key) is int for key in keys)
        self.calls.append(list(keys))
        return [self[key] for key in keys]


class HuggingFaceLike(TorchLike):
    """A data set of Hugging Face: columns for slices, a list of rows from ``__getitems__``."""

    def __getitem__(self, key):
        if isinstance(key, int):
            return super().__getitem__(key)
        raise AssertionError("rows are asked for one by one or with __getitems__")

    def __getitems__(self, keys):
        return [{"x": key} for key in keys]


@pytest.mark.parametrize("source", [TorchLike(), TfdsLike(), HuggingFaceLike()])
def test_data_sets_of_other_libraries(source):
    assert everything(source) == [{"x": i} for i in range(5)]
    assert [b["x"].tolist() for b in MapDataset.source(source).batch(2)] == [[0, 1], [2, 3], [4]]


def test_a_batch_is_one_vectored_read():
    source = TfdsLike()
    MapDataset.source(source).repeat().batch(8)[0]
    assert source.calls == [[0, 1, 2, 3, 4, 0, 1, 2]]


def test_a_source_without_length_gets_the_index_as_it_is():
    class Endless:
        def __getitem__(self, index):
            return index

    ds = MapDataset.source(Endless())
    assert ds[10**20] == 10**20 and ds[-7] == -7
    with pytest.raises(TypeError, match="len"):
        len(ds)
    with pytest.raises(TypeError, match="len"):
        iter(ds)  # and nothing on stderr when the half-made iterator goes


def test_keys_of_a_dict():
    ds = MapDataset.source({0: "a", 1: "b"})
    assert list(ds) == ["a", "b"]
    with pytest.raises(KeyError):
        MapDataset.source({"a": 1})[0]


def test_elements_that_are_none_are_not_there():
    assert list(MapDataset.source([None, 0, None, False])) == [0, False]


def test_construction_reads_nothing():
    class Untouched:
        def __len__(self):
            raise AssertionError("asked for its length")

        def __getitem__(self, key):
            raise AssertionError("read")

    ds = MapDataset.source(Untouched())
    assert str(ds.map(str).shuffle(seed=1)) == "ShuffleMapDataset"


def test_paths():
    class WithPaths(TorchLike):
        paths = ["a", "b"]  # noqa: RUF012

    assert MapDataset.source(WithPaths()).paths == ["a", "b"]
    assert MapDataset.source([1]).paths == []


def test_errors_of_the_source_arrive_as_they_are():
    class Broken(TorchLike):
        def __getitem__(self, index):
            if index == 3:
                raise OSError("disk")
            return index

    ds = MapDataset.source(Broken())
    assert ds[2] == 2
    with pytest.raises(OSError, match="disk"):
        ds[3]
    it = iter(ds)
    assert [next(it) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="disk"):
        next(it)
