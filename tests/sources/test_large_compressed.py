"""Compressed files of lines that are one part larger than those that are decoded alone."""

import gzip
import io
import json
import logging
import pickle
import random
import re
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from refusing import assert_raises

from gristmill.sources import ChangedFileError, DamagedFileError, JsonlSource
from gristmill.sources.storage import compressed, frames

zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
NUM_RECORDS = 45_000
NUM_SMALL = 100


def lines(num_records, num_bytes):
    """Lines that compress well, of about ``num_bytes`` each."""
    rng = random.Random(0)
    fillers = [rng.randbytes(20).hex() * (num_bytes // 40) for _ in range(50)]
    return b"".join([b'[%d, "%s"]\n' % (i, fillers[i % 50].encode()) for i in range(num_records)])


def random_lines(num_records):
    rng = random.Random(0)
    texts = [rng.randbytes(150).hex().encode() for _ in range(num_records)]
    return b"".join([b'[%d, "%s"]\n' % (i, text) for i, text in enumerate(texts)])


def gzipped(*texts):
    return b"".join([gzip.compress(text, 1) for text in texts]) + bytes(100)


def with_zstd(*texts):
    compressor = zstandard.ZstdCompressor(write_checksum=True)
    return b"".join([compressor.compress(text) for text in texts])


def check(source, expected):
    """Assert that the records are those expected, in order, at random, and read by threads."""
    assert len(source) == len(expected)
    in_order = source.__getitems__(range(0, len(source), 20))
    assert [record[0] for record in in_order] == expected[::20]
    copy = pickle.loads(pickle.dumps(source))
    keys = random.Random(1).choices(range(len(expected)), k=20)
    assert [copy[key][0] for key in keys] == [expected[key] for key in keys]
    keys = range(len(expected))
    blocks = [keys[start : start + 30] for start in keys[::300]]
    with ThreadPoolExecutor(4) as pool:
        found = [[record[0] for record in block] for block in pool.map(copy.__getitems__, blocks)]
    assert found == [[expected[key] for key in block] for block in blocks]


@pytest.fixture(params=["with indexed_gzip", "without"])
def package(request, monkeypatch):
    """Both ways to read gzip: with the package of the extra ``gzip``, and without it."""
    if request.param == "without":
        monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    else:
        pytest.importorskip("indexed_gzip", reason="indexed_gzip is not installed")
    return request.param


@pytest.fixture(scope="module")
def large_text():
    text = lines(NUM_RECORDS, 1600)
    assert len(text) > compressed.MAX_FRAME_BYTES
    return text


EXPECTED = [*range(NUM_SMALL), *range(NUM_RECORDS), *range(NUM_SMALL)]


@pytest.mark.usefixtures("package")
def test_a_large_gzip_member_is_read(tmp_path, large_text):
    small = lines(NUM_SMALL, 100)
    (tmp_path / "a.gz").write_bytes(gzipped(small, large_text, small))
    check(JsonlSource(tmp_path / "a.gz"), EXPECTED)


def test_a_large_zstd_frame_is_read(tmp_path, large_text):
    small = lines(NUM_SMALL, 100)
    (tmp_path / "a.zst").write_bytes(with_zstd(small, large_text, small))
    check(JsonlSource(tmp_path / "a.zst"), EXPECTED)


@pytest.fixture
def small_limits(monkeypatch):
    """Parts are large from 512 KiB on. ``indexed_gzip`` wants points at least 32 KiB apart."""
    monkeypatch.setattr(compressed, "MAX_FRAME_BYTES", 1 << 19)
    monkeypatch.setattr(compressed, "_SPACING_BYTES", 1 << 16)
    monkeypatch.setattr(compressed, "_STREAMED_BYTES", 1 << 16)


def with_name(text, level):
    """A member with a name, a time and blocks that were flushed, as some programs write it."""
    file = io.BytesIO()
    with gzip.GzipFile("a name", "wb", level, file) as writer:
        for start in range(0, len(text), 100_000):
            writer.write(text[start : start + 100_000])
            writer.flush()
    return file.getvalue()


@pytest.mark.usefixtures("small_limits", "package")
@pytest.mark.parametrize("level", [0, 1, 6, 9])
def test_members_of_any_kind_are_read(tmp_path, level):
    rng = random.Random(level)
    texts = [lines(rng.choice([3, 2000, 4000]), 400) for _ in range(5)]
    texts[2] = random_lines(4000)
    packed = [with_name(texts[0], level), *[gzip.compress(text, level) for text in texts[1:]]]
    (tmp_path / "a.gz").write_bytes(b"".join(packed))
    expected = [json.loads(line)[0] for text in texts for line in text.splitlines()]
    check(JsonlSource(tmp_path / "a.gz", max_bytes=1 << 17), expected)


@pytest.mark.usefixtures("small_limits", "package")
def test_damage_of_a_large_gzip_member_is_noticed(tmp_path):
    check_damage(tmp_path / "a.gz", gzip.compress(random_lines(4000), 1))


@pytest.mark.usefixtures("small_limits")
def test_damage_of_a_large_zstd_frame_is_noticed(tmp_path):
    check_damage(tmp_path / "a.zst", with_zstd(random_lines(4000)))


def check_damage(path, content):
    path.write_bytes(content[:-9])
    assert_raises(DamagedFileError, f"{path} is damaged at byte", JsonlSource, path)
    middle = len(content) // 2
    changed = content[:middle] + bytes([content[middle] ^ 32]) + content[middle + 1 :]
    path.write_bytes(changed)
    assert_raises(DamagedFileError, f"{path} is damaged at byte", JsonlSource, path)
    path.write_bytes(content)
    source = pickle.loads(pickle.dumps(JsonlSource(path)))
    path.write_bytes(changed)
    wrong = [key for key in range(0, 4000, 50) if not is_read(source, key)]
    assert wrong and 0 not in wrong


def is_read(source, key):
    try:
        return source[key][0] == key or pytest.fail("other data")
    except (ChangedFileError, DamagedFileError):
        return False


def of_gzip(text):
    return gzip.compress(text, 1)


@pytest.mark.usefixtures("small_limits")
@pytest.mark.parametrize(
    ("compress", "remedy"),
    [
        pytest.param(of_gzip, r"install gristmill\[gzip\] and delete .*gmidx, or write", id="gzip"),
        pytest.param(
            with_zstd,
            r"in order, or write the file again in small parts: zstd -dc OLD \| split",
            id="zstd",
        ),
    ],
)
def test_reading_out_of_order_warns_once(tmp_path, monkeypatch, caplog, compress, remedy):
    monkeypatch.setitem(sys.modules, "indexed_gzip", None)
    monkeypatch.setattr(frames, "_MAX_PASSED", 30)
    (tmp_path / "a.z").write_bytes(compress(lines(4000, 400)))
    source = JsonlSource(tmp_path / "a.z", max_bytes=0)
    assert [record[0] for record in source] == [*range(4000)]
    assert not caplog.records
    with caplog.at_level(logging.WARNING, "gristmill"):
        for key in [0, 3999] * 5:
            assert source[key][0] == key
    (message,) = [record.getMessage() for record in caplog.records]
    assert str(tmp_path / "a.z") in message
    assert re.search(remedy, message), message
