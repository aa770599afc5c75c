import hashlib
import logging
import os
import sys
import threading
from collections import namedtuple
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from refusing import assert_raises

from gristmill.core.config import config
from gristmill.core.errors import KeyRangeError
from gristmill.sources import ArrayRecordDataSource, array_record
from gristmill.sources.array_record import MissingFileError
from gristmill.sources.reading import read_keys
from gristmill.testing import assert_source_conforms

module = pytest.importorskip(
    "array_record.python.array_record_module", reason="array_record has no wheels for this platform"
)
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


@pytest.fixture(params=[100, 0], ids=["one by one", "pooled"])
def way(request, monkeypatch):
    """Both ways of reading a block: all records singly, and all but the first with the reader's
    threads.
    """
    monkeypatch.setattr(array_record, "_POOLED_READ_SECONDS", request.param)


def at_once(function):
    """Calls ``function`` in eight threads, none of which begins before all are there."""
    start = threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: (start.wait(), function(number)), range(8)))


@pytest.mark.usefixtures("way")
def test_blocks_have_the_records_in_the_order_of_the_keys(paths):
    source = ArrayRecordDataSource(paths)
    assert_source_conforms(source)
    source.close()
    blocks = [[], [0], [5] * 3, range(38), [37, 0, 36, 7, 6, 0, 37, 20], np.arange(20)]
    for keys in blocks * 2:  # with closed files, and with open ones
        found = source.__getitems__(keys)
        assert found == [source[key] for key in keys] == [ALL[key] for key in keys]
    assert list(source) == ALL and {type(record) for record in source} == {bytes}

    class Parsed(ArrayRecordDataSource):  # what parses overrides one method
        def __getitem__(self, key):
            return super().__getitem__(key).rstrip(b"\0").decode()

    assert read_keys(Parsed(paths), list(range(38))) == [
        record.rstrip(b"\0").decode() for record in ALL
    ]
    assert Parsed(paths).__getitems__([0, 9, 37]) == [ALL[0], ALL[9], ALL[37]]
    source = ArrayRecordDataSource(
        [f"{paths[2]}[10:20]", paths[0], f"{paths[2]}[3:3]", f"{paths[2]}[15:30]", paths[3]]
    )
    expected = records_of(2)[10:20] + records_of(0) + records_of(2)[15:30] + records_of(3)
    assert len(source) == len(expected)
    rng = np.random.default_rng(0)
    for _ in range(20):
        keys = rng.integers(0, len(expected), rng.integers(1, 60)).tolist()
        assert source.__getitems__(keys) == [expected[key] for key in keys]


@pytest.mark.usefixtures("way")
def test_threads_read_files_that_others_open_and_close(paths):
    source = ArrayRecordDataSource(paths)

    def read(seed):
        for block in np.random.default_rng(seed).integers(0, len(ALL), (30, 50)).tolist():
            if seed == 0:
                source.close()
            assert (
                source.__getitems__(block) == [ALL[key] for key in block]
                and source[block[0]] == ALL[block[0]]
            )

    at_once(read)


def instruction(path, skip, take):
    return SimpleNamespace(filename=path, skip=skip, take=take, examples_in_shard=30)


def test_paths_and_parts_of_files(paths):
    path = paths[2]
    parts = [
        f"{path}[4:9]",
        Path(f"{path}[4:9]"),
        instruction(path, 4, 5),
        instruction(Path(path), np.int64(4), np.int64(5)),
    ]
    kind = namedtuple("TupleInstruction", ["filename", "skip", "take", "examples_in_shard"])
    for item in [*parts, kind(path, 4, 5, 30)]:
        for items in (item, [item], (item,)):
            source = ArrayRecordDataSource(items)
            assert (list(source), source.paths) == (records_of(2)[4:9], [path])
    for first in (paths[0], Path(paths[0])):
        assert list(ArrayRecordDataSource(first)) == records_of(0)
    for max_threads in (1, 3, 64):
        with config.override(num_threads_computing_num_records=max_threads):
            assert len(ArrayRecordDataSource(paths * 5)) == 5 * len(ALL)
    for items, names in (("a[0:1]", b"a"), (["a[0:1]", "b[3:4]"], b"ab")):
        digest = hashlib.sha1(names).hexdigest()
        text = f"ArrayRecordDataSource(hash_of_paths={digest})"
        assert repr(ArrayRecordDataSource(items)) == text
    shard_utils = pytest.importorskip(
        "tensorflow_datasets.core.utils.shard_utils", reason="TensorFlow Datasets is not installed"
    )
    item = shard_utils.FileInstruction(filename=paths[2], skip=20, take=-1, examples_in_shard=30)
    assert list(ArrayRecordDataSource([item, paths[3]])) == records_of(2)[20:] + records_of(3)
    epath = pytest.importorskip("etils.epath", reason="etils is not installed")
    assert list(ArrayRecordDataSource(epath.Path(paths[0]))) == records_of(0)


def test_wrong_parts_and_a_missing_package(paths, monkeypatch):
    for skip, take, name in ((-1, 3, "skip"), (0, -1, "take")):
        message = f"{name} must be a non-negative integer, got -1"
        assert_raises(ValueError, message, ArrayRecordDataSource, [instruction("x", skip, take)])
    assert issubclass(KeyRangeError, IndexError) and issubclass(KeyRangeError, ValueError)
    monkeypatch.setitem(sys.modules, "array_record.python.array_record_module", None)
    remedy = r"array_record, which is not installed.*pip install 'gristmill\[array-record\]'"
    for kind in (ImportError, RuntimeError):
        assert_raises(kind, remedy, ArrayRecordDataSource, "file[0:1]")
    monkeypatch.setattr(sys, "platform", "win32")
    remedy = "array_record does not exist for Windows: read the files on"
    assert_raises(RuntimeError, remedy, ArrayRecordDataSource, paths)


def test_missing_and_foreign_files_are_named(paths, tmp_path):
    assert issubclass(MissingFileError, RuntimeError) and issubclass(
        MissingFileError, FileNotFoundError
    )
    missing = str(tmp_path / "missing")
    message = f"{missing} does not exist.*No such file"
    assert_raises(MissingFileError, message, ArrayRecordDataSource, [*paths, missing])
    source = ArrayRecordDataSource([*paths, f"{missing}[0:3]"])  # found out when it is needed
    assert source[37] == ALL[37]
    assert_raises(MissingFileError, f"{missing} does not exist", source.__getitem__, 38)
    write(tmp_path / "data-0", [b"x"])
    for pattern in ("data-*", "data@4"):
        message = "not expanded, pass a list of files"
        assert_raises(MissingFileError, message, ArrayRecordDataSource, tmp_path / pattern)
    whole = Path(paths[2]).read_bytes()
    half = whole[: len(whole) // 2]
    for name, content in (("half", half), ("empty", b""), ("text", b"text " * 50_000)):
        path = tmp_path / name
        path.write_bytes(content)
        message = f"{path} cannot be read as an ArrayRecord file: [A-Za-z]"
        with pytest.raises(RuntimeError, match=message) as caught:
            ArrayRecordDataSource([paths[0], path])
        assert not isinstance(caught.value, FileNotFoundError)
        source = ArrayRecordDataSource(f"{path}[0:1]")
        assert_raises(RuntimeError, f"{path} cannot be read", source.__getitem__, 0)
    assert_raises(RuntimeError, f"{tmp_path} cannot be read", ArrayRecordDataSource, tmp_path)


@pytest.mark.usefixtures("way")
def test_broken_records_and_ranges_past_the_end_are_named(paths, tmp_path):
    records = [os.urandom(1000) for _ in range(40)]
    path = tmp_path / "broken"
    write(path, records)
    path.write_bytes(path.read_bytes().replace(records[20][:100], bytes(100)))
    source = ArrayRecordDataSource(path)
    broken = f"cannot read record 20 of {path}: .*hash mismatch"
    assert_raises(RuntimeError, broken, source.__getitem__, 20)
    # the first error in the order of the keys
    assert_raises(RuntimeError, broken, source.__getitems__, [3, 20, 21, 40])
    assert_raises(KeyRangeError, None, source.__getitems__, [3, 40, 20, 21])
    assert source.__getitems__([*range(20), *range(21, 40)]) == records[:20] + records[21:]
    source = ArrayRecordDataSource([paths[0], instruction(paths[2], 25, 6), f"{paths[2]}[0:2]"])
    assert source[0] == ALL[0]
    for keys in ([7], [0, 12], [0, 1, 8]):
        past = f"{paths[2]} has 30 records, but 31 were to be read from it"
        assert_raises(RuntimeError, past, source.__getitems__, keys)
    for start, stop in ((25, 31), (30, 31), (31, 31), (0, 10**30)):
        items = [paths[0], f"{paths[2]}[0:30]", f"{paths[2]}[{start}:{stop}]"]
        past = rf"range \[{start}:{stop}\] is beyond the end of {paths[2]}, which has 30 records"
        assert_raises(ValueError, past, ArrayRecordDataSource, items)
    assert_raises(ValueError, "which has 0 records", ArrayRecordDataSource, f"{paths[1]}[0:1]")
    assert len(ArrayRecordDataSource([f"{paths[2]}[30:30]", f"{paths[1]}[0:0]"])) == 0


def test_reader_options_and_groups(paths, tmp_path, caplog):
    for options in (
        {},
        {"max_parallelism": "1"},
        {"index_storage_option": "offloaded", "footer_prefetch_bytes": "0"},
    ):
        assert list(ArrayRecordDataSource(paths, reader_options=options)) == ALL
    for options, message in [
        ({"readahead_buffer_size": "0"}, "readahead_buffer_size is present more than once"),
        ({"bogus": "1"}, "Unknown option bogus, valid options: .*max_parallelism"),
    ]:
        source = ArrayRecordDataSource(paths, options)
        assert_raises(ValueError, message, source.__getitem__, 0)
    files = [
        write(tmp_path / f"grouped-{file}", [b"x"] * 20, "group_size:16") for file in range(20)
    ]
    source = ArrayRecordDataSource([*files, *paths])
    # a file is opened, and says this, once for all threads
    with caplog.at_level(logging.INFO, "gristmill"):
        found = []
        at_once(lambda _: found.append(source.__getitems__(range(400))))
        assert found == [[b"x"] * 400] * 8
        assert list(source) == [b"x"] * 400 + ALL
    assert {(record.levelno, record.name) for record in caplog.records} == {
        (logging.ERROR, "gristmill")
    }
    texts = sorted(record.getMessage().partition(":")[0] for record in caplog.records)
    assert texts == sorted(f"{file} was written with group_size" for file in files)
    assert "group_size:16: reading one record decodes 16 of them" in caplog.text
