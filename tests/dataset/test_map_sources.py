"""What counts as a source of a ``MapDataset``, and how it is read."""

import numpy as np
import pytest
from refusing import assert_raises

from gristmill.dataset import MapDataset


class TorchLike:
    """A map-style data set of PyTorch: ``__getitem__`` and ``__len__`` alone."""

    paths = ["a", "b"]  # noqa: RUF012

    def __len__(self):
        return 5

    def __getitem__(self, index):
        assert type(index) is int and 0 <= index < 5
        return {"x": index}


class TfdsLike(TorchLike):
    """Sources of TFDS and Hugging Face read many records at once."""

    def __init__(self):
        self.calls = []

    def __getitems__(self, keys):
        self.calls.append(list(keys))
        return [self[key] for key in keys]


ROWS = [{"x": i} for i in range(5)]
SOURCES = [
    *[(source, list(source)) for source in ([1, "a", (2,)], (1, 2, 3), "héllo", b"abc", range(3, 30, 7), bytearray(b"xy"))],
    (MapDataset.range(5), [*range(5)]),
    ({0: "a", 1: "b"}, ["a", "b"]),
    (TorchLike(), ROWS),
    (TfdsLike(), ROWS),
]


@pytest.mark.parametrize(("source", "records"), SOURCES)
def test_sources(source, records):
    ds, n = MapDataset.source(source), len(records)
    assert len(ds) == n
    assert [ds[i] for i in range(-n, 2 * n)] == ds._block(range(-n, 2 * n)) == 3 * list(ds) == 3 * records


def test_a_batch_is_one_vectored_read_and_numpy_arrays_give_rows():
    source = TfdsLike()
    MapDataset.source(source).repeat().batch(8)[0]
    assert source.calls == [[0, 1, 2, 3, 4, 0, 1, 2]]
    array = np.arange(12).reshape(4, 3)
    ds = MapDataset.source(array)
    assert len(ds) == 4
    assert np.array_equal(np.stack([*ds._block([3, 0, 7]), ds[-1]]), array[[3, 0, 3, 3]])
    assert [batch.tolist() for batch in ds.batch(3)] == [array[:3].tolist(), array[3:].tolist()]


def test_a_source_that_grows():
    records = [1, 2]
    ds = MapDataset.source(records)
    fixed, shuffled = ds.repeat(1), ds.shuffle(seed=1)
    assert ds[2] == 1 and sorted(shuffled) == [1, 2]
    records.append(3)
    assert len(ds) == len(ds.map(str)) == 3 and ds[2] == 3 and list(ds) == sorted(shuffled) == [1, 2, 3]
    assert len(fixed) == 2
    it = iter(ds)
    records.append(4)
    assert list(it) == [1, 2, 3]  # the length was read when the iterator was made
    assert list(ds) == [1, 2, 3, 4]


def test_what_sources_may_lack():
    def source(**methods):
        return type("Source", (), {f"__{name}__": method for name, method in methods.items()})()

    def fail(self, *args):
        raise OSError("disk")

    ds = MapDataset.source(source(getitem=lambda self, index: index))  # a source without length gets the index as it is
    assert ds[10**20] == 10**20 and ds[-7] == -7
    for function in (len, iter):  # and nothing on stderr when the half-made iterator goes
        assert_raises(TypeError, "len", function, ds)
    assert_raises(KeyError, None, MapDataset.source({"a": 1}).__getitem__, 0)
    assert list(MapDataset.source([None, 0, None, False])) == [0, False]
    assert str(MapDataset.source(source(len=fail, getitem=fail)).map(str).shuffle(seed=1)) == "ShuffleMapDataset"
    assert MapDataset.source(TorchLike()).paths == ["a", "b"] and MapDataset.source([1]).paths == []
    ds = MapDataset.source(source(len=lambda self: 5, getitem=lambda self, index: index if index != 3 else fail(self)))
    it = iter(ds)
    assert [next(it) for _ in range(3)] == [0, 1, 2]
    for read in (lambda: ds[3], lambda: next(it)):
        assert_raises(OSError, "disk", read)  # as it is
