"""TFRecord files, and what they are made of: checksums and compressed data."""

import gzip
import io
import zlib

import numpy as np
import pytest
from refusing import assert_raises
from tfrecords import framed

from gristmill.core.errors import StateIndexError
from gristmill.sources import crc32c as module
from gristmill.sources import tfrecord
from gristmill.sources.crc32c import crc32c, masked_crc32c
from gristmill.sources.inflate import InflatedFile
from gristmill.sources.tfrecord import TFRecordFile, check_compression

RECORDS = [b"a", b"", b"bb" * 100, bytes(3000), b"last"]
COMPRESS = {None: bytes, "gzip": gzip.compress, "zlib": zlib.compress}
ENDS = np.cumsum([0, *[len(framed(record)) for record in RECORDS]]).tolist()
CONTENT = b"".join(map(framed, RECORDS))
PLACES = [*range(62), *range(235, 270), 3000, *range(len(CONTENT) - 30, len(CONTENT))]


@pytest.fixture(params=[None, 12, 100], ids=lambda size: f"block_{size}")
def open_file(request, tmp_path, monkeypatch):
    """Opens a file with the given content, which is read in small or large blocks."""
    if request.param is not None:
        monkeypatch.setattr(tfrecord, "_BLOCK_BYTES", request.param)
        monkeypatch.setattr(tfrecord, "_PIECE_BYTES", max(7, request.param // 3))
    files = []

    def open_file(content, check_crc=True, compression=None):
        path = tmp_path / "file.tfrecord"
        path.write_bytes(content)
        files.append(TFRecordFile(path, check_crc=check_crc, compression=compression))
        return files[-1]

    yield open_file
    for file in files:
        file.close()


def read_all(file, offset=0):
    """All records from ``offset`` on, until the end or an error, and where each begins."""
    records, begins = [], []
    while True:
        try:
            block, offsets = file.read(offset)
        except ValueError as error:
            return records, [*begins, offset], error
        assert len(offsets) == len(block) + 1 and offsets[0] == offset
        if not block:
            return records, [*begins, offset], None
        records += block
        begins += offsets[:-1]
        offset = offsets[-1]


@pytest.mark.parametrize("compression", COMPRESS)
def test_reading_from_every_record_and_no_further(open_file, compression):
    file = open_file(COMPRESS[compression](CONTENT), compression=compression)
    for first in [*range(len(ENDS)), *reversed(range(len(ENDS)))]:
        assert read_all(file, ENDS[first]) == (RECORDS[first:], ENDS[first:], None)
    for _ in range(2):
        match = rf"at most {len(CONTENT)}, .*file\.tfrecord, got {len(CONTENT) + 1}"
        assert_raises(StateIndexError, match, file.read, len(CONTENT) + 1)
    assert read_all(file, ENDS[-2])[0] == RECORDS[-1:]


def test_many_records_and_none_and_a_damage_of_compressed_data(open_file):
    rng = np.random.default_rng(1)
    records = [rng.bytes(n) for n in rng.integers(0, 300, 500).tolist()]
    content = b"".join(map(framed, records))
    assert read_all(open_file(content))[0] == records and open_file(b"").read(0) == ([], [0])
    read, _, error = read_all(open_file(gzip.compress(content)[:-20], compression="gzip"))
    assert len(read) > 450 and read == records[: len(read)]
    assert "file.tfrecord cannot be read behind byte" in str(error) and "cut off" in str(error)


@pytest.mark.parametrize("check_crc", [True, False])
def test_cut_off_anywhere(open_file, check_crc):
    for size in PLACES:
        whole = sum(end <= size for end in ENDS) - 1
        records, _, error = read_all(open_file(CONTENT[:size], check_crc))
        assert records == RECORDS[:whole]
        if size in ENDS:
            assert error is None
            continue
        left, is_header = CONTENT[ENDS[whole] : size], size - ENDS[whole] < 12
        missing = f"12 bytes of its header: {left.hex()}"
        if not is_header:
            missing = f"{len(RECORDS[whole]) + 4} bytes of its data: {left[12:44].hex()}"
        assert f"fewer than {missing}" in str(error)
        what = f"not a valid TFRecord file: the record at byte {ENDS[whole]} is cut off"
        assert f"file.tfrecord is damaged or {what}" in str(error)
        assert open_file(CONTENT[:size], check_crc).skip(ENDS[whole]) == size


def test_any_damaged_byte_is_noticed(open_file):
    for position in PLACES:
        content = bytearray(CONTENT)
        content[position] ^= 1 << position % 8
        damaged = sum(end <= position for end in ENDS) - 1
        file = open_file(bytes(content))
        records, _, error = read_all(file)
        assert records == RECORDS[:damaged]
        part = "length" if position - ENDS[damaged] < 12 else "data"
        text = f"the record at byte {ENDS[damaged]} has a wrong checksum of its {part}"
        assert text in str(error) and "check_crc=False" in str(error)
        if part == "length":
            assert_raises(ValueError, "wrong checksum of its length", file.skip, ENDS[damaged])
        else:
            assert file.skip(ENDS[damaged]) == ENDS[damaged + 1]
            assert read_all(file, ENDS[damaged + 1])[0] == RECORDS[damaged + 1 :]
    for offset in sorted({*range(1, 60), *range(230, 260)}.difference(ENDS)):
        match = rf"file\.tfrecord .* byte {offset} "
        assert_raises(ValueError, match, open_file(CONTENT).read, offset)
    content = b"".join([framed(record, with_checksums=False) for record in RECORDS])
    assert read_all(open_file(content, check_crc=False))[0] == RECORDS
    assert read_all(open_file(content))[0] == []


@pytest.mark.parametrize("check_crc", [True, False])
def test_a_foreign_file_is_refused_before_it_is_read(open_file, check_crc):
    text = b"This is no TFRecord file, but some text.\n" * 20
    announced = int.from_bytes(text[:8], "little") + 4
    cut_off = f"is cut off: fewer than {announced} bytes of its data"
    what = "has a wrong checksum of its length" if check_crc else cut_off
    assert_raises(ValueError, f"byte 0 {what}", open_file(text, check_crc).read, 0)
    for name in ("gzip", "zlib"):
        file = open_file(COMPRESS[name](CONTENT), check_crc)
        assert_raises(ValueError, f"try compression='{name}'", file.read, 0)
        match = r"file\.tfrecord cannot be read behind byte 0: the compressed data are damaged"
        assert_raises(ValueError, match, open_file(CONTENT, check_crc, compression=name).read, 0)


class Opens(io.RawIOBase):
    """A path that opens what is given, or itself, which fails."""

    def __init__(self, file=None):
        self.file = file

    def __str__(self):
        return "some/path"

    def open(self, mode):
        return self.file or self

    def seek(self, offset, whence=io.SEEK_SET):
        return offset

    def read(self, size=-1):
        raise OSError(5, "Input/output error")


def test_paths(tmp_path):
    path = tmp_path / "file.tfrecord"
    path.write_bytes(CONTENT)
    for name in (str(path), path, Opens(io.BytesIO(CONTENT))):
        file = TFRecordFile(name, check_crc=True, compression=None)
        assert read_all(file)[0] == RECORDS
        file.close()
        file.close()
    missing = tmp_path / "missing.tfrecord"
    options = {"check_crc": True, "compression": None}
    assert_raises(FileNotFoundError, r"missing\.tfrecord", TFRecordFile, missing, **options)
    with pytest.raises(OSError, match="Input/output error") as error:
        TFRecordFile(Opens(), check_crc=True, compression=None).read(12)
    assert error.value.__notes__ == ["some/path was to be read behind byte 12."]
    assert [check_compression(x) for x in (None, "gzip", "zlib")] == [None, "gzip", "zlib"]
    match = "compression must be 'gzip', 'zlib' or None, got 'GZIP'"
    assert_raises(ValueError, match, check_compression, "GZIP")


def slow_crc32c(data):
    register = 0xFFFFFFFF
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
    return register ^ 0xFFFFFFFF


def test_checksums_are_the_published_ones_for_all_lengths(monkeypatch):
    """RFC 3720, appendix B.4, and catalogues; masked by TensorFlow's rule: rotated by 15 bits, plus
    a constant.
    """
    strings = [bytes(32), b"\xff" * 32, bytes(range(32)), bytes(range(31, -1, -1)), b"123456789"]
    published = [0x8A9136AA, 0x62A8AB43, 0x46DD794E, 0x113FDB5C, 0xE3069283]
    assert crc32c(strings).tolist() == published
    assert masked_crc32c(strings).tolist() == [
        ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32 for crc in published
    ]
    rng = np.random.default_rng(1)
    strings = [rng.bytes(n) for n in [*range(70), 127, 128, 129, 1000, 1023, 1024, 1025]]
    strings += [bytes(n) for n in range(20)]  # leading zeros count
    expected = [slow_crc32c(data) for data in strings]
    assert crc32c(strings).tolist() == [int(crc32c([data])[0]) for data in strings] == expected
    assert crc32c(strings).dtype == np.uint32 and crc32c([]).tolist() == []
    strings = [rng.bytes(size) for size in (4 * 1024 - 4, 4 * 1024, 70_001)]
    whole = crc32c(strings).tolist()
    assert whole[:2] == [*map(slow_crc32c, strings[:2])]
    monkeypatch.setattr(module, "_MAX_FOLD", 16)
    assert [int(crc32c([data])[0]) for data in strings] == whole


DATA = bytes(range(256)) * 2000
COMPRESSED = [
    gzip.compress(DATA),
    zlib.compress(DATA),
    gzip.compress(DATA[:1000]) + gzip.compress(DATA[1000:]),
]


def inflated(content):
    return InflatedFile(io.BytesIO(content))


def earlier_plans_of(file, size):
    return iter(lambda: file.read(size), b"")


def test_reading_and_seeking_in_compressed_files():
    for content in COMPRESSED:
        file = inflated(content)
        assert [file.read(1) for _ in range(5)] == [b"\0", b"\1", b"\2", b"\3", b"\4"]
        for size in (1000, 10**7):
            file = inflated(content)
            pieces = [*earlier_plans_of(file, size)]
            assert (
                b"".join(pieces) == DATA and max(map(len, pieces)) <= size and file.read(1) == b""
            )
        for offset in (5, 300_000, 300_000, 7, 0, len(DATA) - 1, len(DATA)):
            assert file.seek(offset) == offset and file.read(3)[:1] == DATA[offset : offset + 1]
        assert file.seek(10**9) == file.seek(0, io.SEEK_END) == len(DATA) and file.read(3) == b""
    data = bytes(10**7)  # one piece of the file holds more than is asked for, up to the last byte
    assert b"".join(earlier_plans_of(inflated(zlib.compress(data)), 1000)) == data
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
            assert_raises(ValueError, match, pieces.extend, earlier_plans_of(file, 10_000))
            assert DATA.startswith(b"".join(pieces)) and sum(map(len, pieces)) >= least
            assert_raises(ValueError, match, file.read, 1)
