import hashlib
import logging
import os
import pickle
import sys
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import cloudpickle
import numpy as np
import pytest

from gristmill.core.config import config
from gristmill.core.errors import KeyRangeError
from gristmill.sources import ArrayRecordDataSource, array_record
from gristmill.sources.array_record import MissingFileError
from gristmill.sources.reading import read_keys

module = pytest.importorskip("array_record.python.array_record_module", reason="array_record has no wheels for this platform")

SIZES = [7, 0, 30, 1]


def write(path, records, options="group_size:1"):
    writer = module.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()
    return str(path)


def records_of(file):
    return [f"file {file} record {i}".encode() + bytes(i) for i in range(SIZES[file])]


ALL = [record for file in range(len(SIZES)) for record in records_of(file)]


@pytest.fixture(scope="module")
def paths(tmp_path_factory):
    folder = tmp_path_factory.mktemp("array_record")
    return [write(folder / f"data-{file}", records_of(file)) for file in range(len(SIZES))]


@pytest.fixture(params=["one by one", "pooled"])
def way(request, monkeypatch):
    """Both ways of reading a block: all records singly, and all but the first with the reader's threads."""
    monkeypatch.setattr(array_record, "_POOLED_READ_SECONDS", 100 if request.param == "one by one" else 0)


def at_once(function):
    """Calls ``function`` in eight threads, none of which begins before all are there."""
    start = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: (start.wait(), function(number)), range(8)))


# Reading.


@pytest.mark.usefixtures("way")
def test_blocks_have_the_records_in_the_order_of_the_keys(paths):
    source = ArrayRecordDataSource(paths)
    blocks = [[], [0], [37], [5, 5, 5], range(38), [37, 0, 36, 7, 6, 0, 37, 20], [np.int64(3), np.uint8(9), True]]
    for keys in blocks * 2:  # with closed files, and with open ones
        assert source.__getitems__(keys) == [ALL[key] for key in keys]
        assert read_keys(source, keys) == [source[key] for key in keys] == [ALL[key] for key in keys]
    assert len(source) == len(ALL) and list(source) == ALL
    assert {type(record) for record in source} == {bytes}

    class Parsed(ArrayRecordDataSource):  # what parses overrides one method
        def __getitem__(self, key):
            return super().__getitem__(key).rstrip(b"\0").decode()

    source = Parsed(paths)
    assert read_keys(source, list(range(38))) == list(source) == [record.rstrip(b"\0").decode() for record in ALL]
    assert source.__getitems__([0, 9, 37]) == [ALL[0], ALL[9], ALL[37]]


@pytest.mark.usefixtures("way")
def test_random_blocks_of_parts_of_files(paths):
    rng = np.random.default_rng(0)
    source = ArrayRecordDataSource([f"{paths[2]}[10:20]", paths[0], f"{paths[2]}[3:3]", f"{paths[2]}[15:30]", paths[3]])
    expected = records_of(2)[10:20] + records_of(0) + records_of(2)[15:30] + records_of(3)
    assert len(source) == len(expected)
    for _ in range(20):
        keys = rng.integers(0, len(expected), rng.integers(1, 60)).tolist()
        assert source.__getitems__(keys) == [expected[key] for key in keys]
    assert source.__getitems__(np.arange(20)) == expected[:20]


def test_keys_outside_and_of_other_types_are_errors(paths):
    source = ArrayRecordDataSource(paths)
    assert issubclass(KeyRangeError, IndexError) and issubclass(KeyRangeError, ValueError)
    for key in (-1, 38, 10**30):
        with pytest.raises(KeyRangeError, match=rf"record key must be in \[0, 38\).*got {key}"):
            source[key]
        with pytest.raises(KeyRangeError, match=f"got {key}"):
            source.__getitems__([0, 1, key])
    for key in (1.0, "1", None, slice(2)):
        with pytest.raises(TypeError):
            source[key]


@pytest.mark.usefixtures("way")
def test_many_threads_read_from_files_that_nobody_has_opened_or_that_one_closes(paths):
    source = ArrayRecordDataSource(paths)

    def read(seed):
        for block in np.random.default_rng(seed).integers(0, len(ALL), (30, 50)).tolist():
            if seed == 0:
                source.close()
            assert source.__getitems__(block) == [ALL[key] for key in block]
            assert source[block[0]] == ALL[block[0]]

    at_once(read)


@pytest.mark.usefixtures("way")
def test_the_same_as_array_records_own_source(paths):
    reason = "array_record's own source needs absl and etils"
    peer_module = pytest.importorskip("array_record.python.array_record_data_source", reason=reason)
    items = [*paths, f"{paths[2]}[2:9]"]
    ours, peer = ArrayRecordDataSource(items), peer_module.ArrayRecordDataSource(items)
    keys = [44, 3, 3, 0, 17]
    assert (len(ours), repr(ours)) == (len(peer), repr(peer))
    assert ours.__getitems__(keys) == peer.__getitems__(keys) == read_keys(peer, keys)


# What paths can be.


def instruction(path, skip, take):
    return SimpleNamespace(filename=path, skip=skip, take=take, examples_in_shard=30)


def test_paths_and_parts_of_files(paths):
    tuple_instruction = namedtuple("TupleInstruction", ["filename", "skip", "take", "examples_in_shard"])
    path = paths[2]
    for item in (
        f"{path}[4:9]",
        Path(f"{path}[4:9]"),
        instruction(path, 4, 5),
        instruction(Path(path), np.int64(4), np.int64(5)),
        tuple_instruction(path, 4, 5, 30),
    ):
        for items in (item, [item], (item,)):
            source = ArrayRecordDataSource(items)
            assert list(source) == records_of(2)[4:9]
            assert source.paths == [path]
    assert list(ArrayRecordDataSource(paths[0])) == list(ArrayRecordDataSource(Path(paths[0]))) == records_of(0)
    shard_utils = pytest.importorskip("tensorflow_datasets.core.utils.shard_utils", reason="TensorFlow Datasets is not installed")
    item = shard_utils.FileInstruction(filename=paths[2], skip=20, take=-1, examples_in_shard=30)
    assert list(ArrayRecordDataSource([item, paths[3]])) == records_of(2)[20:] + records_of(3)
    epath = pytest.importorskip("etils.epath", reason="etils is not installed")
    assert list(ArrayRecordDataSource(epath.Path(paths[0]))) == records_of(0)


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ([], "must not be empty"),
        ((), "must not be empty"),
        (3, "got 3 of type int"),
        (None, "got None of type NoneType"),
        ({"a"}, "of type set"),
        (b"path", "got 112 of type int"),
        (["a[0:1]", 3], "got 3 of type int"),
        ("file[5:3]", "ends before it starts"),
        ([instruction("file", -1, 3)], "skip must be a non-negative integer, got -1"),
        ([instruction("file", 0, -1)], "take must be a non-negative integer, got -1"),
    ],
)
def test_other_paths_are_errors(bad, message):
    with pytest.raises(ValueError, match=message):
        ArrayRecordDataSource(bad)


def test_numbers_of_records_and_repr(paths):
    for max_threads in (1, 3, 64):
        with config.override(num_threads_computing_num_records=max_threads):
            assert len(ArrayRecordDataSource(paths * 5)) == 5 * len(ALL)
    for items, names in (("a[0:1]", b"a"), (["a[0:1]", "b[3:4]"], b"ab")):
        assert repr(ArrayRecordDataSource(items)) == f"ArrayRecordDataSource(hash_of_paths={hashlib.sha1(names).hexdigest()})"


# Files that are missing or broken.


def test_a_missing_file_is_named(paths, tmp_path):
    assert issubclass(MissingFileError, RuntimeError) and issubclass(MissingFileError, FileNotFoundError)
    missing = str(tmp_path / "missing")
    with pytest.raises(MissingFileError, match=f"{missing} does not exist.*No such file"):
        ArrayRecordDataSource([*paths, missing])
    source = ArrayRecordDataSource([*paths, f"{missing}[0:3]"])  # found out when it is needed
    assert source[37] == ALL[37]
    with pytest.raises(MissingFileError, match=f"{missing} does not exist"):
        source[38]
    write(tmp_path / "data-0", [b"x"])
    for pattern in ("data-*", "data@4"):
        with pytest.raises(MissingFileError, match="patterns are not expanded, pass a list of files"):
            ArrayRecordDataSource(tmp_path / pattern)


def test_files_that_are_no_array_record_files_are_named(paths, tmp_path):
    whole = Path(paths[2]).read_bytes()
    for name, content in (("half", whole[: len(whole) // 2]), ("empty", b""), ("text", b"text " * 50_000)):
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(RuntimeError, match=f"{path} cannot be read as an ArrayRecord file: [A-Za-z]") as caught:
            ArrayRecordDataSource([paths[0], path])
        assert not isinstance(caught.value, FileNotFoundError)
        with pytest.raises(RuntimeError, match=f"{path} cannot be read"):
            ArrayRecordDataSource(f"{path}[0:1]")[0]
    with pytest.raises(RuntimeError, match=f"{tmp_path} cannot be read"):
        ArrayRecordDataSource(tmp_path)


@pytest.mark.usefixtures("way")
def test_a_broken_record_is_named_and_the_others_can_be_read(tmp_path):
    records = [os.urandom(1000) for _ in range(40)]
    path = tmp_path / "broken"
    write(path, records)
    path.write_bytes(path.read_bytes().replace(records[20][:100], bytes(100)))
    source = ArrayRecordDataSource(path)
    for read in (lambda: source[20], lambda: source.__getitems__([3, 20, 21, 40])):  # the first error in the order of the keys
        with pytest.raises(RuntimeError, match=f"cannot read record 20 of {path}: .*hash mismatch"):
            read()
    with pytest.raises(KeyRangeError):
        source.__getitems__([3, 40, 20, 21])
    good = [key for key in range(40) if key != 20]
    assert source.__getitems__(good) == [records[key] for key in good]


@pytest.mark.usefixtures("way")
@pytest.mark.parametrize("item", [lambda path: f"{path}[25:31]", lambda path: instruction(path, 25, 6)])
def test_a_range_past_the_end_is_an_error_at_the_first_read(paths, item):
    source = ArrayRecordDataSource([paths[0], item(paths[2]), f"{paths[2]}[0:2]"])
    assert source[0] == ALL[0]
    for keys in ([7], [0, 12], [0, 1, 8]):
        with pytest.raises(RuntimeError, match=f"{paths[2]} has 30 records, but 31 were to be read from it"):
            source.__getitems__(keys)


def test_without_the_package_the_error_names_it(paths, monkeypatch):
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    with pytest.raises(RuntimeError, match="needs the package array_record, which is not installed"):
        ArrayRecordDataSource("file[0:1]")
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(RuntimeError, match="array_record does not exist for Windows: read the files on Linux"):
        ArrayRecordDataSource(paths)


# The reader's options, and open files.


def test_reader_options(paths):
    for options in ({}, {"max_parallelism": "1"}, {"index_storage_option": "offloaded", "footer_prefetch_bytes": "0"}):
        assert list(ArrayRecordDataSource(paths, reader_options=options)) == ALL
    for options, message in (
        ({"bogus": "1"}, "Unknown option bogus, valid options: .*max_parallelism"),
        ({"readahead_buffer_size": "0"}, "readahead_buffer_size is present more than once"),
    ):
        source = ArrayRecordDataSource(paths, options)
        with pytest.raises(ValueError, match=message):
            source[0]
    with pytest.raises(TypeError, match="reader_options"):
        ArrayRecordDataSource("x", ["max_parallelism:1"])


def test_a_file_is_opened_once_for_all_threads_and_says_then_that_it_has_groups(paths, tmp_path, caplog):
    files = [write(tmp_path / f"grouped-{file}", [b"x"] * 20, "group_size:16") for file in range(20)]
    source = ArrayRecordDataSource([*files, *paths])
    with caplog.at_level(logging.INFO, "gristmill"):
        at_once(lambda _: source.__getitems__(range(400)) == [b"x"] * 400 or pytest.fail("other records"))
        assert list(source) == [b"x"] * 400 + ALL
    assert {(record.levelno, record.name) for record in caplog.records} == {(logging.ERROR, "gristmill")}
    texts = sorted(record.getMessage().partition(":")[0] for record in caplog.records)
    assert texts == sorted(f"{file} was written with group_size" for file in files)
    assert "group_size:16: reading one record decodes 16 of them" in caplog.text


def num_open(paths):
    links = [str(link.resolve()) for link in Path("/proc/self/fd").iterdir()]
    return sum(links.count(path) for path in {str(Path(path).resolve()) for path in paths})


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are listed on Linux only")
def test_files_are_open_between_the_first_read_and_the_end_of_the_context(paths):
    source = ArrayRecordDataSource(paths)
    assert num_open(paths) == 0
    with source as entered:
        assert entered is source
        assert num_open(paths) == 0
        assert source[0] == ALL[0]
        assert num_open(paths) == 1
        assert list(source) == ALL
        assert num_open(paths) == 3  # none for the empty file
    assert num_open(paths) == 0
    assert source[0] == ALL[0]
    source.close()
    source.close()
    assert num_open(paths) == 0


def test_pickles_have_no_open_files(paths):
    for package in (pickle, cloudpickle):
        source = ArrayRecordDataSource([*paths, f"{paths[2]}[3:5]"], {"max_parallelism": "1"})
        fresh = package.dumps(source)
        assert list(source) == ALL + records_of(2)[3:5]
        assert package.dumps(source) == fresh
        copy = package.loads(fresh)
        assert list(copy) == list(source)
        assert (len(copy), repr(copy), copy.paths) == (len(source), repr(source), source.paths)
