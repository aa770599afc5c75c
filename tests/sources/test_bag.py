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

from gristmill import MapDataset, MultiprocessingOptions
from gristmill.core.errors import KeyRangeError
from gristmill.sources import BagDataSource, ChangedFileError, DamagedFileError, bag
from gristmill.testing import assert_source_conforms

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


def test_it_conforms(folder, suffix, way):
    assert_source_conforms(BagDataSource(folder / f"data@*{suffix}"), max_records=7)


def test_keys_out_of_range_are_refused(folder, suffix):
    source = BagDataSource(folder / f"data@*{suffix}")
    for key in (-1, len(ALL), 2**70):
        assert_raises(
            KeyRangeError,
            rf"must be in \[0, {len(ALL)}\), the number of records, got {key}",
            source.__getitems__,
            [0, key],
        )
        assert_raises(KeyRangeError, f"got {key}", lambda key=key: source[key])
    empty = BagDataSource(folder / f"data-00001-of-00004{suffix}")
    assert len(empty) == 0 and empty.__getitems__([]) == []


def test_lengths_are_the_sizes_of_plain_records(folder, suffix):
    source = BagDataSource(folder / f"data@*{suffix}")
    if suffix == ".bag":
        assert source.lengths.dtype == np.int64 and source.lengths.tolist() == [
            len(record) for record in ALL
        ]
        batches = (
            MapDataset.source(source)
            .map(list)
            .map(np.array)
            .bucket_batch(None, [20, 70], batch_sizes=4, seed=1)
        )
        assert sum(len(batch) for batch in batches) == len(ALL)
    else:
        assert not hasattr(source, "lengths")
        assert_raises(AttributeError, "are compressed", lambda: source.lengths)


def test_copies_are_small_and_workers_read(folder, suffix):
    import cloudpickle

    source = BagDataSource(folder / f"data@*{suffix}")
    source.__getitems__([0, 30])
    assert len(cloudpickle.dumps(source)) < 1500
    ds = MapDataset.source(source).map(len).to_iter_dataset()
    assert list(ds.mp_prefetch(MultiprocessingOptions(num_workers=2))) == [
        len(record) for record in ALL
    ]
    with BagDataSource(folder / f"data@*{suffix}") as other:
        assert other[0] == ALL[0]
    assert other[3] == ALL[3]  # which opens the files again


def test_the_text_identifies_the_files_in_any_folder(folder, suffix, tmp_path):
    text = repr(BagDataSource(folder / f"data@*{suffix}"))
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    assert repr(BagDataSource(tmp_path / f"data-*{suffix}")) == text
    assert repr(BagDataSource(folder / f"data-00000-of-*{suffix}")) != text


@pytest.mark.parametrize(
    ("paths", "error", "message"),
    [
        ("nowhere.bagz", FileNotFoundError, "there is no file 'nowhere.bagz'"),
        ("nowhere@*.bagz", FileNotFoundError, "there is no first shard for 'nowhere@\\*.bagz'"),
        ("nowhere@2.bagz", FileNotFoundError, "of the 2 shards of 'nowhere@2.bagz', 2 are missing"),
        (
            "gs://bucket/data.bagz",
            ValueError,
            r"local files, .* got 'gs://bucket/data.bagz': .*cached\(urls",
        ),
        ("a,b.bagz", FileNotFoundError, "there is no file 'a'"),
        ([], ValueError, "must not be empty"),
        ([3], TypeError, "must have items that are paths"),
        (3, TypeError, "must be a path, a pattern or a sequence"),
    ],
)
def test_wrong_paths_are_refused(paths, error, message):
    assert_raises(error, message, BagDataSource, paths)


def with_word(data, place, value):
    return data[:place] + struct.pack("<Q", value) + data[place + 8 :]


DAMAGED_WHEN_MADE = {
    "cut by a byte": (lambda data, table: data[:-1], "is cut off, or no Bagz file"),
    "cut by a word": (lambda data, table: data[:-8], "is cut off, or no Bagz file"),
    "cut in half": (lambda data, table: data[: len(data) // 2], "is cut off, or no Bagz file"),
    "without its beginning": (lambda data, table: data[3:], "is cut off, or no Bagz file"),
    "short": (lambda data, table: b"abc", "damaged at byte 0: it has 3 bytes, too few"),
    "text": (lambda data, table: b"a line of text\n" * 20, "is cut off, or no Bagz file"),
}
DAMAGED_WHEN_READ = {
    "an end far away": (
        lambda data, table: with_word(data, table + 8 * 5, 2**62),
        "record 5 is said to be from byte",
    ),
    "an end before its beginning": (
        lambda data, table: with_word(data, table + 8 * 5, 1),
        "record 5 is said to be from byte",
    ),
    "all ends": (
        lambda data, table: data[:table] + b"\xff" * (len(data) - table - 8) + data[-8:],
        "record 5 is said to be from byte",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED_WHEN_MADE)
def test_files_that_are_none_are_refused_when_the_source_is_made(damage, suffix, tmp_path):
    path = write(tmp_path / f"x{suffix}", [b"abc" * i for i in range(20)])
    data = (tmp_path / f"x{suffix}").read_bytes()
    change, message = DAMAGED_WHEN_MADE[damage]
    (tmp_path / f"x{suffix}").write_bytes(change(data, struct.unpack("<Q", data[-8:])[0]))
    assert_raises(
        DamagedFileError,
        rf"x{suffix} is damaged at byte .*{message.removeprefix('damaged at byte ')}",
        BagDataSource,
        path,
    )


@pytest.mark.parametrize("damage", DAMAGED_WHEN_READ)
def test_damaged_ends_are_named_with_file_and_byte(damage, suffix, tmp_path, way):
    path = write(tmp_path / f"x{suffix}", [b"abc" * i for i in range(20)])
    data = (tmp_path / f"x{suffix}").read_bytes()
    table = struct.unpack("<Q", data[-8:])[0]
    change, message = DAMAGED_WHEN_READ[damage]
    (tmp_path / f"x{suffix}").write_bytes(change(data, table))
    source = BagDataSource(path)
    for read in (
        lambda: source[5],
        lambda: source.__getitems__([5, 6]),
        lambda: source.__getitems__([19, 5]),
    ):
        if damage == "all ends":
            assert_raises(DamagedFileError, "Copy or write the file again", read)
        else:
            assert_raises(DamagedFileError, rf"damaged at byte {table + 40}: {message}", read)


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


def test_files_that_changed_or_have_no_ends_are_errors(tmp_path, suffix):
    path = write(tmp_path / f"x{suffix}", [b"abc"] * 20)
    source = BagDataSource(path)
    write(tmp_path / f"x{suffix}", [b"abc"] * 21)
    assert_raises(ChangedFileError, "bytes and has", lambda: source[0])
    (tmp_path / f"x{suffix}").unlink()
    assert_raises(FileNotFoundError, "x", lambda: source[0])
    apart = write(
        tmp_path / f"apart{suffix}", [b"abc"] * 20, limits_placement=bagz.LimitsPlacement.SEPARATE
    )
    assert_raises(
        DamagedFileError,
        "in a file of their own, .*limits.apart.*LimitsPlacement.TAIL",
        BagDataSource,
        apart,
    )
