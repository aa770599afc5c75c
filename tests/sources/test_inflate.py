import gzip
import io
import zlib

import pytest

from gristmill.sources.inflate import InflatedFile

DATA = bytes(range(256)) * 2000
COMPRESSED = {
    "gzip": gzip.compress(DATA),
    "zlib": zlib.compress(DATA),
    "two": gzip.compress(DATA[:1000]) + gzip.compress(DATA[1000:]),
}


def read_all(file, size):
    pieces = []
    while piece := file.read(size):
        assert len(piece) <= size
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("kind", COMPRESSED)
@pytest.mark.parametrize("size", [1, 1000, 10**7])
def test_reading(kind, size):
    file = InflatedFile(io.BytesIO(COMPRESSED[kind]))
    if size == 1:
        assert [file.read(1) for _ in range(5)] == [b"\0", b"\1", b"\2", b"\3", b"\4"]
    else:
        assert read_all(file, size) == DATA
        assert file.read(1) == b""


@pytest.mark.parametrize("kind", COMPRESSED)
def test_seeking(kind):
    file = InflatedFile(io.BytesIO(COMPRESSED[kind]))
    for offset in (5, 300_000, 300_000, 7, 0, len(DATA) - 1, len(DATA)):
        assert file.seek(offset) == offset
        assert file.read(3)[:1] == DATA[offset : offset + 1]
    assert file.seek(10**9) == len(DATA)
    assert file.read(3) == b""
    assert file.seek(0, io.SEEK_END) == len(DATA)


def test_a_file_that_goes_to_great_lengths():
    """What one piece of a file holds is more than is asked for, up to the last byte."""
    data = bytes(10**7)
    file = InflatedFile(io.BytesIO(zlib.compress(data)))
    assert read_all(file, 1000) == data


def test_empty():
    assert InflatedFile(io.BytesIO(b"")).read(5) == b""
    assert InflatedFile(io.BytesIO(gzip.compress(b""))).read(5) == b""


def test_cut_off():
    file = InflatedFile(io.BytesIO(COMPRESSED["gzip"][:-20]))
    for _ in range(2):
        file.seek(0)
        read = b""
        with pytest.raises(ValueError, match="cut off"):
            while True:
                read += file.read(10_000)
        assert read == DATA[: len(read)] and len(read) > 100_000
        with pytest.raises(ValueError, match="cut off"):
            file.read(1)


def test_damaged():
    compressed = bytearray(zlib.compress(DATA, 0))
    compressed[-1] ^= 1
    file = InflatedFile(io.BytesIO(compressed))
    for _ in range(2):
        with pytest.raises(ValueError, match="damaged"):
            read_all(file, 1 << 20)
    with pytest.raises(ValueError, match="damaged"):
        InflatedFile(io.BytesIO(b"plain text")).read(1)


def test_close():
    inner = io.BytesIO(COMPRESSED["gzip"])
    InflatedFile(inner).close()
    assert inner.closed
