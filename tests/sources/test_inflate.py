import gzip
import io
import zlib

from refusing import assert_raises

from gristmill.sources.inflate import InflatedFile

DATA = bytes(range(256)) * 2000
COMPRESSED = [gzip.compress(DATA), zlib.compress(DATA), gzip.compress(DATA[:1000]) + gzip.compress(DATA[1000:])]


def inflated(content):
    return InflatedFile(io.BytesIO(content))


def pieces_of(file, size):
    return iter(lambda: file.read(size), b"")


def test_reading_seeking_great_lengths_empty_cut_off_and_damaged_files():
    for content in COMPRESSED:
        file = inflated(content)
        assert [file.read(1) for _ in range(5)] == [b"\0", b"\1", b"\2", b"\3", b"\4"]
        for size in (1000, 10**7):
            file = inflated(content)
            pieces = [*pieces_of(file, size)]
            assert b"".join(pieces) == DATA and max(map(len, pieces)) <= size and file.read(1) == b""
        for offset in (5, 300_000, 300_000, 7, 0, len(DATA) - 1, len(DATA)):
            assert file.seek(offset) == offset and file.read(3)[:1] == DATA[offset : offset + 1]
        assert file.seek(10**9) == file.seek(0, io.SEEK_END) == len(DATA) and file.read(3) == b""
    data = bytes(10**7)  # one piece of the file holds more than is asked for, up to the last byte
    assert b"".join(pieces_of(inflated(zlib.compress(data)), 1000)) == data
    inner = io.BytesIO(gzip.compress(b""))
    assert inflated(b"").read(5) == InflatedFile(inner).read(5) == b""
    InflatedFile(inner).close()
    assert inner.closed
    stored = bytearray(zlib.compress(DATA, 0))
    stored[-1] ^= 1
    for content, match, least in (
        (COMPRESSED[0][:-20], "cut off", 100_001),
        (stored, "damaged", 1),
        (b"plain text", "damaged", 0),
    ):
        file = inflated(content)
        for _ in range(2):
            file.seek(0)
            pieces = []
            assert_raises(ValueError, match, pieces.extend, pieces_of(file, 10_000))
            assert DATA.startswith(b"".join(pieces)) and sum(map(len, pieces)) >= least
            assert_raises(ValueError, match, file.read, 1)
