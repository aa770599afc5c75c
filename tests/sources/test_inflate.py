import gzip
import io
import zlib

import pytest
from refusing import assert_raises

from gristmill.sources.inflate import InflatedFile

DATA = bytes(range(256)) * 2000
COMPRESSED = [gzip.compress(DATA), zlib.compress(DATA), gzip.compress(DATA[:1000]) + gzip.compress(DATA[1000:])]


def inflated(content):
    return InflatedFile(io.BytesIO(content))


def read_all(file, size):
    pieces = []
    while piece := file.read(size):
        assert len(piece) <= size
        pieces.append(piece)
    return b"".join(pieces)


@pytest.mark.parametrize("content", COMPRESSED, ids=["gzip", "zlib", "two"])
def test_reading_and_seeking(content):
    file = inflated(content)
    assert [file.read(1) for _ in range(5)] == [b"\0", b"\1", b"\2", b"\3", b"\4"]
    for size in (1000, 10**7):
        file = inflated(content)
        assert read_all(file, size) == DATA and file.read(1) == b""
    for offset in (5, 300_000, 300_000, 7, 0, len(DATA) - 1, len(DATA)):
        assert file.seek(offset) == offset and file.read(3)[:1] == DATA[offset : offset + 1]
    assert file.seek(10**9) == len(DATA) and file.read(3) == b""
    assert file.seek(0, io.SEEK_END) == len(DATA)


def test_great_lengths_empty_cut_off_and_damaged_files():
    data = bytes(10**7)  # one piece of the file holds more than is asked for, up to the last byte
    assert read_all(inflated(zlib.compress(data)), 1000) == data
    for empty in (b"", gzip.compress(b"")):
        assert inflated(empty).read(5) == b""
    inner = io.BytesIO(COMPRESSED[0])
    InflatedFile(inner).close()
    assert inner.closed
    stored = bytearray(zlib.compress(DATA, 0))
    stored[-1] ^= 1
    cases = [(COMPRESSED[0][:-20], "cut off", 100_001), (stored, "damaged", 1), (b"plain text", "damaged", 0)]
    for content, match, least in cases:
        file = inflated(content)
        for _ in range(2):
            file.seek(0)
            read = b""
            with pytest.raises(ValueError, match=match):
                while True:
                    read += file.read(10_000)
            assert read == DATA[: len(read)] and len(read) >= least
            assert_raises(ValueError, match, file.read, 1)
