"""Lines of JSON: the records that a naive reader finds, in any order, from files that are
compressed or not; and damage.
"""

import contextlib
import gzip
import io
import itertools
import json
import pickle
import random
import re
import shutil
import subprocess
import tarfile
import zlib
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from refusing import assert_raises

import gristmill as grain
from gristmill.sources import ChangedFileError, DamagedFileError, JsonlSource
from gristmill.sources.storage import compressed, frames, lines, sidecar
from gristmill.sources.storage.files import Files

zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed")
MARK = "\N{BYTE ORDER MARK}".encode()


def random_value(rng, depth=0):
    kind = rng.randrange(6 if depth < 2 else 4)
    if kind == 4:
        return [random_value(rng, depth + 1) for _ in range(rng.randrange(4))]
    if kind == 5:
        return {f"k{i}": random_value(rng, depth + 1) for i in range(rng.randrange(4))}
    return [
        rng.randrange(-99, 10**12),
        rng.random(),
        None if depth else True,  # a line null is an error
        "".join(rng.choices('aé漢🎉\\" \t\n\u2028\x85', k=rng.randrange(30))),
    ][kind]


def random_text(rng, num_lines):
    """Lines of all kinds; the last one sometimes without an end."""
    text = MARK if rng.random() < 0.3 else b""
    for _ in range(num_lines):
        blanks = "".join(rng.choices(" \t\r", k=rng.choice([0, 0, 0, 1, 5])))
        line = (
            ""
            if rng.random() < 0.2
            else json.dumps(random_value(rng), ensure_ascii=rng.random() < 0.5)
        )
        text += MARK * rng.choice([0, 0, 0, 0, 1, 2])  # as where files were joined
        text += (blanks + line + rng.choice(["", "", " "]) + rng.choice(["\n", "\r\n"])).encode()
    return text.rstrip(b"\r\n") if rng.random() < 0.3 else text


def naive(text):
    lines = [re.sub(b"^(%b)+" % MARK, b"", line) for line in text.split(b"\n")]
    return [json.loads(line) for line in lines if line.strip()]


def parts(rng, text):
    """The text in parts of random sizes, some of them empty."""
    cuts = sorted(rng.choices(range(len(text) + 1), k=rng.choice([0, 1, 5, 40])))
    return [text[start:stop] for start, stop in itertools.pairwise([0, *cuts, len(text)])]


def plain(rng, text):
    return text


def gzipped(rng, text):
    return b"".join([gzip.compress(part, rng.randrange(10)) for part in parts(rng, text)]) + bytes(
        rng.choice([0, 512])
    )


def with_zstd(rng, text):
    file = b""
    for part in parts(rng, text):
        options = {"write_checksum": rng.random() < 0.5, "write_content_size": rng.random() < 0.5}
        if rng.random() < 0.5:
            file += zstandard.ZstdCompressor(**options).compress(part)
        else:  # without the size in front
            compressor = zstandard.ZstdCompressor(**options).compressobj()
            file += compressor.compress(part) + compressor.flush()
        if rng.random() < 0.3:
            file += bytes([0x50 + rng.randrange(16)]) + b"\x2a\x4d\x18\5\0\0\0other"
    return file


@pytest.fixture
def small_reads(monkeypatch):
    """Everything that is done in parts is done in small ones."""
    monkeypatch.setattr(lines, "_READ_BYTES", 37)
    monkeypatch.setattr(lines, "_PIECE_BYTES", 11)
    monkeypatch.setattr(compressed, "_READ_BYTES", 64)
    monkeypatch.setattr(compressed, "_PIECE_BYTES", 7)
    monkeypatch.setattr(frames, "_GROUP_BYTES", 50)


@pytest.fixture
def small_parts(monkeypatch):
    """Most parts of compressed files are longer than those that are decoded alone."""
    monkeypatch.setattr(compressed, "MAX_FRAME_BYTES", 300)
    monkeypatch.setattr(compressed, "_STREAMED_BYTES", 70)
    monkeypatch.setattr(frames, "_MAX_STREAMS", 2)


@pytest.mark.parametrize("compress", [plain, gzipped, with_zstd])
@pytest.mark.parametrize("reads", ["whole", "small_reads", "small_parts"])
def test_records_are_those_of_a_naive_reader(tmp_path, request, reads, compress):
    if reads != "whole":
        request.getfixturevalue(reads)
    for seed in range(12):
        rng = random.Random(f"{seed} {compress.__name__}")
        texts = [random_text(rng, rng.choice([0, 1, 2, 30])) for _ in range(rng.choice([1, 3]))]
        folder = tmp_path / str(seed)
        folder.mkdir()
        for i, text in enumerate(texts):
            (folder / f"{i}.jsonl").write_bytes(compress(rng, text))
        expected = [record for text in texts for record in naive(text)]
        source = JsonlSource(folder / "*", max_bytes=rng.choice([0, 100, 10**6]))
        assert len(source) == len(expected) and list(source) == expected
        assert len(source.lengths) == len(expected) and (source.lengths > 0).all()
        assert source.lengths.dtype == np.int64
        assert repr(JsonlSource(folder / "*")) == repr(source)  # now that there are indices
        again = pickle.loads(cloudpickle.dumps(source))
        for _ in range(3):
            keys = rng.choices(range(len(expected)), k=rng.randrange(60)) if expected else []
            assert again.__getitems__(keys) == [expected[key] for key in keys]


def test_lengths_are_those_of_the_lines(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'1\n"two"\r\n\n  \n[3]')
    member = gzip.compress
    (tmp_path / "b.gz").write_bytes(
        member(b'{"a"') + member(b': 1}\n2\n"') + member(b"") + member(b'end"\n')
    )
    source = JsonlSource([tmp_path / "a.jsonl", tmp_path / "b.gz"])
    assert list(source) == [1, "two", [3], {"a": 1}, 2, "end"]
    assert source.lengths.tolist() == [2, 11, 3, 9, 2, 6]
    (tmp_path / "empty").write_bytes(b"")
    assert JsonlSource(tmp_path / "empty").lengths.tolist() == []
    assert len(JsonlSource([tmp_path / "a.jsonl"] * 2)) == 6


def test_parse_gets_lines_without_ends_and_errors_name_them(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b" 1 \r\n\n{x}\n3")
    source = JsonlSource(path, parse=bytes)
    assert list(source) == source.__getitems__(range(3)) == [b" 1 ", b"{x}", b"3"]
    assert repr(source) == repr(JsonlSource(path))[:-1] + ", parse=bytes)"
    with pytest.raises(ZeroDivisionError) as raised:
        JsonlSource(path, parse=lambda line: 1 // (len(line) - 1))[2]
    assert raised.value.__notes__ == [f"in record 2 of {path}, from byte 10 on"]


KINDS = {
    "whitespace around": b' \t{"a": 1}\r \r',
    "a zero at the end": b'{"a": 2}\0',
    "a hole at the end": b'{"a": 2}' + bytes(100),
    "a hole": bytes(300),
    "a hole in front": bytes(300) + b'{"a": 3}',
    "a zero in a string": b'{"a": "x\0y"}',
    "a zero escaped": b'{"a": "x\\u0000y"}',
    "a control character": b'{"a": "x\x01y"}',
    "garbage": bytes(range(9)) + b"\xff\xfe\0\x7f",
    "a form feed": b"\x0c1",
    "a mark in front": MARK + b'{"a": 4}',
    "marks in front": MARK + MARK + b" 5",
    "a mark behind": b"6" + MARK,
    "half a mark": MARK[:2] + b"7",
    "half a mark alone": MARK[:1],
    "a large number": b"1" * 4000,
    "a number that is too large": b"1" * 5000,
    "no numbers": b"[NaN, Infinity, -Infinity, 1e999]",
    "leading zeros": b"[01]",
    "a name twice": b'{"a": 1, "a": 2}',
    "deep": b"[" * 500 + b"]" * 500,
    "too deep": b"[" * 10**5 + b"]" * 10**5,
    "not closed": b"[" * 100,
    "invalid UTF-8": b'"\xed\xa0\x80"',
    "half a pair": b'"\\ud800"',
    "line separators": '"\u2028\u2029\x85"'.encode(),
    "two values": b"1 2",
    "a comma behind": b"[1,]",
    "null": b"null",
    "null with whitespace": b"\t null\r",
    "false": b"false",
    "an empty string": b'""',
    "null within": b"[null]",
}


def outcomes(lines, parse):
    """Yields the records that ``parse`` makes, without refused lines and null."""
    for line in lines:
        with contextlib.suppress(ValueError, RecursionError):
            record = parse(re.sub(b"^(%b)+" % MARK, b"", line))
            if record is not None:
                yield record


@pytest.mark.parametrize(
    ("compress", "parse"), [(bytes, None), (gzip.compress, None), (bytes, json.loads)]
)
def test_a_line_of_any_kind_costs_no_more_than_itself(tmp_path, compress, parse):
    path = tmp_path / "a.jsonl"
    for name, line in KINDS.items():
        for place in range(3):  # in the middle, at the beginning, at the end
            lines = [b'{"good": 1}', line, b"[2]"]
            lines = lines[place:] + lines[:place]
            path.write_bytes(compress(b"\n".join(lines)))
            path.with_name("a.jsonl.gmidx").unlink(missing_ok=True)
            source = JsonlSource(path, parse=parse)
            assert len(source) == 3
            found = list(grain.MapDataset.source(source).tolerate(max_rate=None))
            expected = list(outcomes(lines, parse or (lambda line: json.loads(line.decode()))))
            assert repr(found) == repr(expected), (name, place)  # NaN is not equal to itself


def test_a_line_null_is_an_error_that_says_what_to_do(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"1\n null \n2\nnull")
    for parse in (None, json.loads):
        source = JsonlSource(path, parse=parse)
        assert len(source) == 4
        match = rf"{path} has null in record 1, from byte 2 on: None means .* parse .* tolerate\(\)"
        assert_raises(DamagedFileError, match, source.__getitem__, 1)
        assert_raises(DamagedFileError, match, source.__getitems__, [0, 1, 3])
        batches = grain.MapDataset.source(source).batch(2)
        assert_raises(DamagedFileError, "null in record 1", list, batches)
    assert JsonlSource(path, parse=bytes)[3] == b"null"
    assert JsonlSource(path, parse=lambda line: json.loads(line) or 0)[3] == 0
    # a hole, by a function of the user
    assert JsonlSource(path, parse=lambda line: None)[0] is None


LINES = b'{"a": 1}\n{"b": "\xc3\xa9"}\n[1, 2]\n'
END = len(LINES)
BAD_PART = gzip.compress(LINES) + gzip.compress(b"3\n{oops}\n")
PART = "from byte 2 on of the text of the part that begins at byte "
RECORD_3 = f"record 3 of the file, from byte {END} on"
# The content, the key of the damaged record, and the text of the error.
DAMAGE = {
    "no JSON": (LINES + b"{oops}\n", 3, f"at byte {END + 1}: {RECORD_3}"),
    "cut off": (LINES + b'{"a": 1', 3, f"at byte {END + 7}: record 3"),
    "two values": (LINES + b"{} {}\n", 3, f"at byte {END + 3}: .*Extra data"),
    "Latin-1": (LINES + b'"caf\xe9"\n', 3, f"at byte {END + 4}: .*utf-8"),
    "zeros at the end": (LINES * 200 + bytes(5000), 600, f"at byte {200 * END}: "),
    "too deep": (LINES + b"[" * 10**6, 3, f"at byte {END}: .*(recursion|Stack overflow)"),
    "behind a mark": (LINES + MARK + b"{oops}\n", 3, f"at byte {END + 4}: {RECORD_3}"),
    "a mark within": (LINES + b"1" + MARK + b"\n", 3, f"at byte {END + 1}: .*Extra data"),
    "in a part": (BAD_PART, 4, PART),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_line_is_an_error_that_says_where(tmp_path, name):
    data, key, match = DAMAGE[name]
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    source = JsonlSource(path)
    # the others are as they were
    assert len(source) == key + 1 and source.__getitems__([2, 0]) == [[1, 2], {"a": 1}]
    for read in (lambda: source[key], lambda: source.__getitems__([0, key, 99])):
        with pytest.raises(DamagedFileError, match=match) as raised:
            read()
        assert str(path) in str(raised.value) and "Repair the line" in str(raised.value)


ZSTD = zstandard.ZstdCompressor(write_checksum=True).compress(LINES)
GZIP = gzip.compress(LINES)
TAR = tarfile.TarInfo("a.txt").tobuf(tarfile.GNU_FORMAT) + b"text\n" * 100
NPY = io.BytesIO()
np.save(NPY, np.zeros(1000))
PNG = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR\0\0\1\0\0\0\1\0\x08"
ZERO = "there is a zero byte"
IDEOGRAMS = "漢字".encode("utf-16")


def encoded(encoding):
    return LINES.decode().encode(encoding)


FOREIGN = {
    "UTF-16 LE": (encoded("utf-16-le"), f"at byte 1: {ZERO}.*write UTF-16"),
    "UTF-16 BE": (encoded("utf-16-be"), f"at byte 0: {ZERO}.*write UTF-16"),
    "UTF-32": (encoded("utf-32"), f"at byte 2: {ZERO}.*write UTF-16"),
    "UTF-32 LE": (encoded("utf-32-le"), f"at byte 1: {ZERO}"),
    "UTF-32 BE": (encoded("utf-32-be"), f"at byte 0: {ZERO}"),
    "UTF-16": (encoded("utf-16"), f"at byte 3: {ZERO}"),
    "UTF-16 without zeros": (IDEOGRAMS, "at byte 0: it begins with b'.xff.xfe', so it is not"),
    "tar": (TAR, f"at byte 5: {ZERO}.*Leave out files of other formats"),
    "npy": (NPY.getvalue(), f"at byte 7: {ZERO}"),
    "png": (PNG, f"at byte 8: {ZERO}"),
    "random bytes": (random.Random(0).randbytes(9999), ZERO),
    "binary in gzip": (gzip.compress(b"\x7fELF\0"), f"at byte 4: {ZERO}"),
    "bzip2": (b"BZh9" + bytes(9), "is a bzip2 file"),
    "gzip cut": ((GZIP * 2)[:-9], f"at byte {len(GZIP)}: the gzip member .* cut off"),
    "gzip bits": (GZIP[:-8] + bytes(8), "at byte 0: the gzip member .* cannot be decoded"),
    "gzip and more": (GZIP + b"hello", "a gzip member is followed by other data"),
    "zstd cut": (ZSTD * 2 + ZSTD[:-1], f"at byte {2 * len(ZSTD)}: the zstd frame .* cut off"),
    "zstd head": (ZSTD[:5], "at byte 0: the zstd frame .* cut off"),
    "zstd bits": (ZSTD[:-1] + bytes([ZSTD[-1] ^ 1]), "the zstd frame .* cannot be decoded"),
    "zstd and more": (ZSTD + b"hello", f"at byte {len(ZSTD)}: a zstd frame should begin here"),
    "zstd skippable cut": (ZSTD + b"\x50\x2a\x4d\x18\xff\0\0\0abc", "the skippable zstd frame"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_and_damaged_files_are_refused_at_once(tmp_path, name):
    data, match = FOREIGN[name]
    error = ValueError if name == "bzip2" else DamagedFileError
    path = tmp_path / "a.jsonl"
    path.write_bytes(data)
    with pytest.raises(error, match=match) as raised:
        JsonlSource(path)
    assert str(path) in str(raised.value)
    assert list(tmp_path.iterdir()) == [path]  # no index, no lock


@pytest.mark.parametrize("command", ["gzip", "zstd"])
def test_the_command_of_the_warning_makes_small_parts(tmp_path, command):
    # The warning names a command line; zstd's is not part of every system (the package zstandard,
    # which reads, is installed).
    if not all(map(shutil.which, (command, "split"))):
        pytest.skip(f"{command} and split are not installed")
    records = [{"id": i, "text": random.Random(i).randbytes(3000).hex()} for i in range(350)]
    old, new = tmp_path / "old", tmp_path / "new"
    text = b"".join([json.dumps(record).encode() + b"\n" for record in records])
    subprocess.run(f"{command} -c > {old}", shell=True, input=text, check=True)
    text = frames.small_parts(command).replace("OLD", str(old)).replace("NEW", str(new))
    subprocess.run(text, shell=True, check=True)
    source = JsonlSource(new)
    assert list(source) == records
    sidecar = Path(f"{new}.gmidx").read_bytes()
    header = json.loads(sidecar[20 : 20 + int.from_bytes(sidecar[12:16], "little")])
    assert header["arrays"]["frames"][2] == 2 * 3


def test_data_that_change_under_a_source_are_noticed(tmp_path):
    path = tmp_path / "a.jsonl"
    rng = random.Random(0)
    text = b"".join([json.dumps(rng.randbytes(10).hex()).encode() + b"\n" for _ in range(5000)])
    path.write_bytes(text)
    copies = [pickle.loads(cloudpickle.dumps(JsonlSource(path))) for _ in range(4)]
    assert copies[0][2500]
    middle = len(text) // 2
    key = middle // 23
    # of the same size, the same at both ends
    path.write_bytes(text[:middle] + b"\n" + text[middle + 1 :])
    message = "was written to while it was read"
    assert_raises(ChangedFileError, message, copies[0].__getitem__, 1)
    assert [key for key in range(5000) if not _reads(copies[1], key)] == [key]
    message = "its record .* is no line any more"
    assert_raises(ChangedFileError, message, copies[1].__getitem__, key)
    path.write_bytes(text[: 23 * 2000 - 1] + b" " + text[23 * 2000 :])  # two lines become one
    assert [key for key in range(5000) if not _reads(copies[3], key)] == [1999, 2000]
    path.write_bytes(b"x" + text[1:])
    message = "its first 16384 bytes are others"
    assert_raises(ChangedFileError, message, copies[2].__getitem__, 1)
    path.write_bytes(text + b"1\n")
    assert len(JsonlSource(path)) == 5001  # the index is made again


def _reads(source, key):
    try:
        return isinstance(source[key], str)
    except ChangedFileError:
        return False


MEMBERS = [
    gzip.compress(f'"{random.Random(i).randbytes(10_000).hex()}"\n'.encode()) for i in range(6)
]
SIZE = len(MEMBERS[3])
OTHER_MEMBERS = {
    "no member": (bytes(SIZE), "cannot be decoded"),
    "a longer one": (gzip.compress(random.Random(0).randbytes(2 * SIZE))[:SIZE], "is cut off"),
    "a shorter one": (
        gzip.compress(b'"x"\n').ljust(SIZE, b"\0"),
        "begins at byte .* had 20003 bytes of text and has 4",
    ),
}


@pytest.mark.parametrize("name", OTHER_MEMBERS)
def test_parts_that_change_in_the_middle_of_a_file_are_noticed(tmp_path, name):
    data, match = OTHER_MEMBERS[name]
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"".join(MEMBERS))
    source = JsonlSource(path)
    assert len(source) == 6 and len(source[3]) == 20_000
    source = pickle.loads(cloudpickle.dumps(source))
    path.write_bytes(b"".join([*MEMBERS[:3], data, *MEMBERS[4:]]))
    assert [len(source[key]) for key in (0, 1, 2, 4, 5)] == [20_000] * 5
    assert_raises(DamagedFileError, match, source.__getitem__, 3)


def test_decompressed_text_is_kept_within_its_budget(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(b"".join(MEMBERS))
    for max_bytes, num_kept in [(0, 1), (20_003, 1), (50_000, 2), (10**6, 6)]:
        source = JsonlSource(path, max_bytes=max_bytes)
        assert len(source.__getitems__([0, 1, 2, 3, 4, 5, 0])) == 7
        assert len(source._frames._kept) == num_kept
        assert source._frames._num_bytes == 20_003 * num_kept


# Whether the file is compressed, the place in the array of its index, and the number there.
WRONG_PLACES = [
    (False, -56, 2**63, 0, "is noted as from"),
    (False, -56, 0, 0, "is noted as from"),
    (False, -56, 10, 0, "is no line any more"),
    (True, 16, 1000, 2, "names byte 999 of a part that has 28"),
    (True, 16, 7 << 28, 2, "is noted as from"),
    (True, 16, 5, 2, "is no line any more"),
]


@pytest.mark.parametrize(("is_compressed", "place", "number", "key", "match"), WRONG_PLACES)
def test_an_index_with_wrong_places(tmp_path, is_compressed, place, number, key, match):
    path, index = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gmidx"
    path.write_bytes(GZIP * 2 if is_compressed else LINES)
    JsonlSource(path)
    whole = bytearray(index.read_bytes())
    start = place % len(whole) if place < 0 else 20 + int.from_bytes(whole[12:16], "little") + place
    whole[start : start + 8] = number.to_bytes(8, "little")
    index.write_bytes(whole)
    assert_raises(DamagedFileError, match, JsonlSource(path).__getitem__, key)


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_an_index_of_fewer_records_is_noticed(tmp_path, compress):
    """Headers have checksums, and arrays have none."""
    path, index = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gmidx"
    path.write_bytes(compress(LINES))
    files = Files([str(path)])
    scanned = lines.scan_lines(files, 0, lambda _: None)
    arrays = {name: np.array(array) for name, array in scanned.items()}
    for kept, key, match in [
        ((1, 2, 3), 0, "its record 0 is no line any more"),
        ((0, 1, 2), 1, "record 1 is noted as from"),
    ]:
        index.unlink(missing_ok=True)
        fewer = {**arrays, "records": arrays["records"][[*kept]]}
        sidecar._write(index, "json lines", sidecar._edges(files, 0), fewer)
        source = JsonlSource(path)
        assert len(source) == 2
        assert_raises(DamagedFileError, match, source.__getitem__, key)
    match = rf"{index} .* do not follow one another .*Delete it"
    assert_raises(DamagedFileError, match, lambda: source.lengths)


def test_bgzip_blocks_are_parts(tmp_path):
    """As ``bgzip`` writes them: with their size in an extra field, and an empty one at the end."""

    def block(text):
        compressor = zlib.compressobj(wbits=-15)
        body = compressor.compress(text) + compressor.flush()
        head = b"\x1f\x8b\x08\x04\0\0\0\0\0\xff\x06\0BC\x02\0" + (len(body) + 25).to_bytes(
            2, "little"
        )
        return (
            head + body + zlib.crc32(text).to_bytes(4, "little") + len(text).to_bytes(4, "little")
        )

    (tmp_path / "a.jsonl.gz").write_bytes(block(LINES[:12]) + block(LINES[12:]) + block(b""))
    assert list(JsonlSource(tmp_path / "a.jsonl.gz")) == naive(LINES)


def test_files_elsewhere_need_an_index_or_a_folder_for_it(tmp_path):
    pytest.importorskip("obstore", reason="obstore is not installed")
    from servers import HttpServer

    folder = tmp_path / "served"
    folder.mkdir()
    for i, compress in enumerate([plain, gzipped]):
        numbers = range(200 * i, 200 * i + 200)
        text = b"".join([b'{"id": %d, "text": "%b"}\n' % (i, b"x" * 50) for i in numbers])
        (folder / f"{i}.jsonl").write_bytes(compress(random.Random(0), text))
    with HttpServer(folder) as server:
        urls = [f"{server.url}/{i}.jsonl" for i in range(2)]
        message = "index_dir must be given: .*0.jsonl has no index beside it"
        assert_raises(ValueError, message, JsonlSource, urls)
        JsonlSource(folder / "*.jsonl")  # makes indices that the server serves
        source = JsonlSource(urls)
        keys = list(range(399, -1, -1))
        assert [record["id"] for record in source.__getitems__(keys)] == keys
        before = server.num_requests
        assert [record["id"] for record in source.__getitems__(range(64))] == list(range(64))
        assert server.num_requests - before <= 2

    import fsspec

    memory = fsspec.filesystem("memory")
    for i in range(2):
        memory.pipe(f"/json-lines/{i}.jsonl", (folder / f"{i}.jsonl").read_bytes())
    source = JsonlSource("/json-lines/*.jsonl", index_dir=tmp_path / "more", filesystem=memory)
    assert [record["id"] for record in source] == list(range(400))
    assert len([*(tmp_path / "more").iterdir()]) == 2
    memory.rm("/json-lines", recursive=True)
