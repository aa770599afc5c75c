"""Wrong arguments of sources: which one, what it got, and what is allowed."""

import tarfile

import numpy as np
import pytest
from refusing import assert_raises
from token_files import write_megatron

from gristmill import sources
from gristmill.sources import RangeDataSource, TokenSource

MEGATRON = {"window": 9, "order": "megatron"}
SEEDED = MEGATRON | {"seed": 1}
RAW = {"format": "raw", "dtype": "u2"}

# The options of the source, the error and its text.
TOKENS = [
    ({"format": "bin"}, ValueError, "format must be one of 'megatron', 'npy', 'raw', got 'bin'"),
    ({"order": "x"}, ValueError, "order must be one of 'megatron', 'olmo', None, got 'x'"),
    ({"part": ["train"]}, ValueError, "part must be one of"),
    ({"dtype": "words"}, TypeError, "dtype must be a NumPy dtype such as numpy.uint16, got 'words"),
    ({"dtype": float}, ValueError, "dtype must be of integers, got float64"),
    ({"documents": 1}, TypeError, "documents must be True, or window be given, got documents=1"),
    ({"documents": True, "window": 9}, ValueError, "must not both be given"),
    ({"documents": False}, ValueError, "window must be given if documents are not"),
    (RAW, ValueError, "window must be given: format='raw' does not say where documents begin"),
    ({"format": "npy", "documents": True}, ValueError, "format='npy' does not say where documents"),
    ({"window": 1}, ValueError, "window must be at least 2, got 1"),
    ({"window": 0, "order": "olmo"}, ValueError, "window must be a positive integer, got 0"),
    ({"window": 2.0}, TypeError, "window must be an integer"),
    ({"order": "olmo"}, ValueError, "window must be given with order='olmo'"),
    (MEGATRON, ValueError, "seed must be given with order='megatron'"),
    (MEGATRON | {"seed": 2**32}, ValueError, r"seed must be an integer in \[0, 4294967295\]"),
    (MEGATRON | {"index": 3}, TypeError, "index must be a path, got 3"),
    (SEEDED | {"num_samples": 0}, ValueError, "num_samples must be a positive integer"),
    (SEEDED | {"part": "test"}, ValueError, "split must be given with part"),
    (SEEDED | {"split": [9, 1]}, TypeError, "split must be a text such as '969,30,1'"),
    (SEEDED | {"split": "1,1,1,1"}, ValueError, "weights of train, valid and test"),
    (SEEDED | {"split": "9,1", "part": "test"}, ValueError, "leaves none of 20"),
    (SEEDED | {"index": "x"}, ValueError, "seed may be given without index"),
    (SEEDED | {"window": 200}, ValueError, "most the number of tokens, got 200, and there are 103"),
    (SEEDED | {"format": "raw"}, ValueError, "must be with format='megatron'"),
    (SEEDED | {"paths": 2}, ValueError, "got 2: make a source of each, and mix"),
    ({"window": 9, "order": "olmo", "split": "9,1"}, ValueError, "for order='megatron' only"),
    ({"window": 9, "seed": 1}, ValueError, "or order='olmo'; otherwise shuffle"),
]
PATHS = [
    ({"paths": []}, ValueError, "paths must not be empty"),
    ({"paths": 3}, TypeError, "paths must be a path"),
    ({"paths": [3]}, TypeError, "paths must have items that are paths"),
]
PARQUET = [
    *PATHS,
    ({"paths": [b"x"]}, TypeError, "paths"),
    ({"columns": "id"}, TypeError, "columns must be a sequence of names"),
    ({"columns": []}, ValueError, "columns must not be empty"),
    ({"columns": ["id", "txt"]}, ValueError, r"a\.parquet has no 'txt', but 'text'; it has 'id',"),
    ({"columns": ["id.x"]}, ValueError, r"columns: .*a\.parquet has no 'id\.x'"),
    ({"max_bytes": -1}, ValueError, "max_bytes must be a non-negative integer, got -1"),
    ({"paths": "missing.parquet"}, FileNotFoundError, "missing"),
    (
        {"paths": [], "filesystem": "file:///"},
        ValueError,
        "paths must not be empty: it has to name",
    ),
    (
        {"paths": 3, "filesystem": "file:///"},
        TypeError,
        "paths must be a path or a sequence of pat",
    ),
]
BAG = [
    *PATHS,
    ({"paths": "none.bagz"}, FileNotFoundError, "there is no file 'none.bagz'"),
    ({"paths": "none@*.bagz"}, FileNotFoundError, r"there is no first shard for 'none@\*.bagz'"),
    ({"paths": "none@2.bagz"}, FileNotFoundError, "of the 2 shards of 'none@2.bagz', 2 are missin"),
    ({"paths": "gs://x/y.bagz"}, ValueError, r"local files, .* got 'gs://x/y.bagz': .*cached\(url"),
    ({"paths": "a,b.bagz"}, FileNotFoundError, "there is no file 'a'"),
]
LINES = [
    ({"parse": "json"}, TypeError, "parse must be a function"),
    ({"max_bytes": -1}, ValueError, "max_bytes must be a non-negative integer, got -1"),
    ({"patterns": "none*.jsonl"}, FileNotFoundError, "patterns: there is no file"),
]
TARS = [
    ({"extensions": "jpg"}, TypeError, "extensions must be a list"),
    ({"extensions": []}, ValueError, "at least one"),
    ({"patterns": "none.tar"}, FileNotFoundError, r"no file .*none\.tar"),
]
IMAGES = [
    ({"path": "nowhere"}, FileNotFoundError, "there is no .*nowhere"),
    ({"extensions": "png"}, TypeError, "extensions must be a sequence"),
    ({"extensions": []}, TypeError, "extensions must be a sequence"),
    ({"path": "s3://bucket/x"}, ValueError, "of this machine, got 's3:.*download it"),
    ({"decode": "PIL"}, TypeError, "decode must be a function"),
]
ARRAY_RECORDS = [
    ({"paths": []}, ValueError, "must not be empty"),
    ({"paths": ()}, ValueError, "must not be empty"),
    ({"paths": 3}, ValueError, "got 3 of type int"),
    ({"paths": None}, ValueError, "got None of type NoneType"),
    ({"paths": {"a"}}, ValueError, "of type set"),
    ({"paths": b"path"}, ValueError, "got 112 of type int"),
    ({"paths": ["a[0:1]", 3]}, ValueError, "got 3 of type int"),
    ({"paths": "file[5:3]"}, ValueError, "ends before it starts"),
    ({"paths": "x", "reader_options": ["y:1"]}, TypeError, "reader_options"),
]
CACHED = [
    ({"source_or_urls": []}, ValueError, "source_or_urls must not be empty"),
    ({"source_or_urls": np.arange(3)}, TypeError, "got a ndarray"),
    (
        {"source_or_urls": RangeDataSource(0, 5, 1)},
        TypeError,
        "reads files by ranges.*RangeDataSou",
    ),
    ({"max_bytes": 5}, ValueError, r"at least 65536 \(64 KB\), or None for no limit, got 5"),
    ({"max_bytes": "1 GB"}, TypeError, "max_bytes must be an integer"),
]
RANGE = [
    ({"step": 0}, ValueError, "step can't be zero"),
    ({"step": 0}, AssertionError, "step can't be zero"),
    ({"start": 9}, ValueError, "length can't be negative"),
    ({"step": -1}, AssertionError, "length can't be"),
    ({"stop": 1.5}, TypeError, r"stop must be an integer, got 1\.5"),
]


def of_tokens(folder, paths=1, **options):
    return TokenSource([folder / "m"] * paths, **options)


# The source, its arguments where a row has no others, files of the folder in angle brackets, rows.
TABLE = {
    "tokens": (of_tokens, {"folder": "<>"}, TOKENS),
    "parquet": (sources.ParquetSource, {"paths": "<a.parquet>"}, PARQUET),
    "bag": (sources.BagDataSource, {}, BAG),
    "jsonl": (sources.JsonlSource, {"patterns": "<a.jsonl>"}, LINES),
    "tar": (sources.TarSource, {"patterns": "<a.tar>"}, TARS),
    "images": (sources.ImageFolderSource, {"path": "<>"}, IMAGES),
    "array_record": (sources.ArrayRecordDataSource, {}, ARRAY_RECORDS),
    "cached": (sources.cached, {"source_or_urls": [], "folder": "<kept>"}, CACHED),
    "range": (RangeDataSource, {"start": 0, "stop": 5, "step": 1}, RANGE),
}
ROWS = [
    pytest.param(name, *row, id=f"{name} {number}")
    for name, (_, _, rows) in TABLE.items()
    for number, row in enumerate(rows)
]
NEEDS = {"parquet": "pyarrow", "bag": "bagz", "array_record": "array_record"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("arguments")
    write_megatron(folder / "m", np.array_split(np.arange(103), 20))
    (folder / "a.jsonl").write_bytes(b"1\n")
    with tarfile.open(folder / "a.tar", "w") as tar:
        tar.add(folder / "a.jsonl", "a.jsonl")
    return folder


@pytest.mark.parametrize(("name", "options", "error", "message"), ROWS)
def test_wrong_arguments(folder, name, options, error, message):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{NEEDS[name]} is not installed")
    if name == "parquet" and not (folder / "a.parquet").exists():
        import pyarrow
        import pyarrow.parquet

        pyarrow.parquet.write_table(pyarrow.table({"id": [1], "text": [""]}), folder / "a.parquet")
    make, others, _ = TABLE[name]
    arguments = {
        key: folder / value[1:-1] if isinstance(value, str) and value.startswith("<") else value
        for key, value in (others | options).items()
    }
    assert_raises(error, message, make, **arguments)
