"""``BagDataSource``: the library's records, in any order; files that are damaged, cut off, foreign
or changed.
"""

import random
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from refusing import assert_raises

from gristmill.sources import BagDataSource, DamagedFileError, bag

bagz = pytest.importorskip("bagz", reason="bagz exists for Linux only")
SIZES = [7, 0, 30, 1]


def write(path, records, **options):
    with bagz.Writer(path, bagz.Writer.Options(**options)) as writer:
        for record in records:
            writer.write(record)
    return str(path)


def records_of(file):
    return [f"file {file} record {i} ".encode() * (i % 4) for i in range(SIZES[file])]


ALL = [record for file in range(len(SIZES)) for record in records_of(file)]


@pytest.fixture(scope="module", params=[".bagz", ".bag"])
def suffix(request):
    return request.param


@pytest.fixture(scope="module")
def folder(tmp_path_factory, suffix):
    folder = tmp_path_factory.mktemp("bag")
    for file in range(len(SIZES)):
        write(folder / f"data-{file:05d}-of-{len(SIZES):05d}{suffix}", records_of(file))
    return folder


@pytest.fixture(params=[100, -1], ids=["one by one", "pooled"])
def way(request, monkeypatch):
    """Both ways of reading a block: all records singly, and all but the first with the library's
    threads.
    """
    monkeypatch.setattr(bag, "_POOLED_READ_SECONDS", request.param)


def test_records_are_those_of_the_library_in_any_order(folder, suffix, way):
    theirs = bagz.Reader(str(folder / f"data@{len(SIZES)}{suffix}"))
    for paths in (
        folder / f"data@{len(SIZES)}{suffix}",
        str(folder / f"data@*{suffix}"),
        folder / f"data-*{suffix}",
        [
            folder / f"data-0000{{0,1}}-of-*{suffix}",
            f"file://{folder}/data-00002-of-00004{suffix}",
            folder / f"data-00003-*{suffix}",
        ],
        ",".join(str(path) for path in sorted(folder.glob(f"data-*{suffix}"))),
    ):
        source = BagDataSource(paths)
        assert len(source) == len(theirs) == sum(SIZES)
        assert [source[i] for i in range(len(source))] == list(theirs) == ALL
        rng = random.Random(1)
        for size in (0, 1, 3, 50):
            keys = [rng.randrange(len(ALL)) for _ in range(size)]
            assert source.__getitems__([np.int64(key) for key in keys]) == [
                ALL[key] for key in keys
            ]


def test_a_file_without_records(folder, suffix):
    empty = BagDataSource(folder / f"data-00001-of-00004{suffix}")
    assert len(empty) == 0 and empty.__getitems__([]) == []


def test_lengths_are_the_sizes_of_plain_records(folder, suffix):
    source = BagDataSource(folder / f"data@*{suffix}")
    if suffix == ".bag":
        assert source.lengths.dtype == np.int64
        assert source.lengths.tolist() == [len(record) for record in ALL]
    else:
        assert not hasattr(source, "lengths")
        assert_raises(AttributeError, "are compressed", lambda: source.lengths)


def with_word(data, place, value):
    return data[:place] + struct.pack("<Q", value) + data[place + 8 :]


CUT = "is cut off, or no Bagz file"
# Changes of the content, given where its table of ends begins, and the text of the error.
DAMAGED_WHEN_MADE = {
    "cut by a byte": (lambda data, table: data[:-1], CUT),
    "cut by a word": (lambda data, table: data[:-8], CUT),
    "cut in half": (lambda data, table: data[: len(data) // 2], CUT),
    "without its beginning": (lambda data, table: data[3:], CUT),
    "short": (lambda data, table: b"abc", "0: it has 3 bytes, too few"),
    "text": (lambda data, table: b"a line of text\n" * 20, CUT),
}
DAMAGED_WHEN_READ = {
    "an end far away": lambda data, table: with_word(data, table + 8 * 5, 2**62),
    "an end before its beginning": lambda data, table: with_word(data, table + 8 * 5, 1),
    "all ends": lambda data, table: data[:table] + b"\xff" * (len(data) - table - 8) + data[-8:],
}


def damaged(path, change):
    """Return a file of 20 records that is damaged, and the place of its table."""
    write(path, [b"abc" * i for i in range(20)])
    data = path.read_bytes()
    table = struct.unpack("<Q", data[-8:])[0]
    path.write_bytes(change(data, table))
    return path, table


@pytest.mark.parametrize("damage", DAMAGED_WHEN_MADE)
def test_other_files_are_refused_when_the_source_is_made(damage, suffix, tmp_path):
    change, message = DAMAGED_WHEN_MADE[damage]
    path, _ = damaged(tmp_path / f"x{suffix}", change)
    text = rf"x{suffix} is damaged at byte .*{message}"
    assert_raises(DamagedFileError, text, BagDataSource, path)


@pytest.mark.parametrize("damage", DAMAGED_WHEN_READ)
def test_damaged_ends_are_named_with_file_and_byte(damage, suffix, tmp_path, way):
    path, table = damaged(tmp_path / f"x{suffix}", DAMAGED_WHEN_READ[damage])
    source = BagDataSource(path)
    text = "Copy or write the file again"
    if damage != "all ends":
        text = f"damaged at byte {table + 40}: record 5 is said to be from byte.*{text}"
    assert_raises(DamagedFileError, text, source.__getitem__, 5)
    for keys in ([5, 6], [19, 5]):
        assert_raises(DamagedFileError, text, source.__getitems__, keys)


def test_a_record_that_cannot_be_decompressed_is_an_error(tmp_path, way):
    records = [random.Random(i).randbytes(20) * 3 for i in range(50)]
    path = write(tmp_path / "x.bagz", records)
    data = bytearray((tmp_path / "x.bagz").read_bytes())
    table = struct.unpack("<Q", data[-8:])[0]
    begin = struct.unpack("<Q", data[table + 8 * 29 : table + 8 * 30])[0]
    data[begin] ^= 255
    (tmp_path / "x.bagz").write_bytes(data)
    source = BagDataSource(path)
    message = rf"x.bagz is damaged at byte {begin}: record 30, up to byte \d+, cannot be read"
    assert_raises(DamagedFileError, message, lambda: source[30])
    assert_raises(DamagedFileError, message, source.__getitems__, [*range(50)])
    good = [key for key in range(50) if key != 30]
    assert source.__getitems__(good) == [records[key] for key in good]
    assert b"" in bagz.Reader(path).read_indices([*range(50)])  # the library says nothing


CHANGES = ["cut off", "longer", "written in place", "replaced"]


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_does_not_end_the_process(change, suffix, tmp_path):
    """In a process of its own: it would be ended by a signal if a part of the file were read that
    is no longer there.
    """
    path = str(tmp_path / f"x{suffix}")
    command = [sys.executable, Path(__file__).with_name("change_bag.py"), path, change]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(f"{path} has changed since this source was made") == 2


def test_a_file_whose_ends_are_in_another_is_refused(tmp_path, suffix):
    options = {"limits_placement": bagz.LimitsPlacement.SEPARATE}
    apart = write(tmp_path / f"apart{suffix}", [b"abc"] * 20, **options)
    message = "in a file of their own, .*limits.apart.*LimitsPlacement.TAIL"
    assert_raises(DamagedFileError, message, BagDataSource, apart)
