"""Relative paths, which are made absolute at construction, and patterns of local files."""

import glob
import gzip
import os
import pickle
import random
import struct
import tarfile
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from token_files import write_megatron, write_raw

import gristmill as grain
from gristmill import sources
from gristmill.sources.crc32c import masked_crc32c
from gristmill.sources.storage.files import list_files

bagz = pytest.importorskip("bagz", reason="bagz is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
fs = pytest.importorskip("pyarrow.fs", reason="pyarrow is not installed")
pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")
fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed")
array_record = pytest.importorskip(
    "array_record.python.array_record_module", reason="it has no wheels for this platform"
)


def write_all(folder, letter):
    """Writes files of the same names and sizes in each folder, with other data."""
    folder.mkdir()
    text = f'"{letter}"\n"{letter * 2}"\n'.encode()
    (folder / "a.jsonl").write_bytes(text)
    (folder / "a.jsonl.gz").write_bytes(gzip.compress(text, mtime=0))
    (folder / "0.txt").write_bytes(text)
    with tarfile.open(folder / "a.tar", "w") as tar:
        tar.add(folder / "0.txt", "0.txt")
    write_raw(folder / "a.bin", np.full(9, ord(letter)))
    write_megatron(folder / "m", [[ord(letter)] * 3])
    size, data = struct.pack("<Q", len(text)), text
    size_crc, data_crc = [struct.pack("<I", crc) for crc in masked_crc32c([size, data])]
    (folder / "a.tfrecord").write_bytes(size + size_crc + data + data_crc)
    pyarrow.parquet.write_table(pyarrow.table({"x": [letter]}), folder / "a.parquet")
    with bagz.Writer(folder / "a.bag") as bag:
        bag.write(text)
    writer = array_record.ArrayRecordWriter(str(folder / "a.ar"), "group_size:1")
    for record in text.split():
        writer.write(record)
    writer.close()


PARQUET = grain.experimental.ParquetIterDataset
RAW = {"dtype": np.uint16, "format": "raw", "window": 4}
LOCAL, FILE = fs.LocalFileSystem(), fsspec.filesystem("file")
IN_FOLDER = {"index_dir": "indices"}
# The class, what is read, and options.
MADE = {
    "lines": (sources.JsonlSource, "a.jsonl", {}),
    "lines of a pattern": (sources.JsonlSource, "**/*.jsonl", {}),
    "lines with index_dir": (sources.JsonlSource, "./a.jsonl", IN_FOLDER),
    "lines, compressed": (sources.JsonlSource, Path("a.jsonl.gz"), {}),
    "lines of fsspec": (sources.JsonlSource, "a.jsonl", IN_FOLDER | {"filesystem": FILE}),
    "tar": (sources.TarSource, ["a.tar"], {}),
    "tokens": (sources.TokenSource, "a.bin", RAW),
    "tokens of Megatron's": (sources.TokenSource, "m", {"format": "megatron"}),
    "bag": (sources.BagDataSource, "a.bag", {}),
    "parquet": (sources.ParquetSource, "a.parquet", {}),
    "parquet of pyarrow": (sources.ParquetSource, "a.parquet", {"filesystem": LOCAL}),
    "ArrayRecord": (sources.ArrayRecordDataSource, "a.ar", {}),
    "ArrayRecord, a range": (sources.ArrayRecordDataSource, ["a.ar[1:2]"], {}),
    "cached": (lambda path: sources.cached(sources.JsonlSource(path), "kept"), "a.jsonl", {}),
    "stream of Parquet": (PARQUET, "a.parquet", {}),
    "stream of pyarrow": (PARQUET, "a.parquet", {"filesystem": LOCAL}),
    "stream of several files": (PARQUET, ["a.parquet", "./a.parquet"], {}),
    "stream of TFRecord": (grain.experimental.TFRecordIterDataset, Path("a.tfrecord"), {}),
}


def contents(made):
    return repr(
        [element.tolist() if isinstance(element, np.ndarray) else element for element in made]
    )


@pytest.mark.parametrize("name", MADE)
def test_a_change_of_the_current_folder_changes_no_data(tmp_path, monkeypatch, name):
    kind, paths, options = MADE[name]
    for letter in "ab":
        write_all(tmp_path / letter, letter)
    monkeypatch.chdir(tmp_path / "b")
    other = kind(paths, **options)  # makes its indices, too
    monkeypatch.chdir(tmp_path / "a")
    expected, made = contents(kind(paths, **options)), kind(paths, **options)
    assert expected != contents(other)
    text = repr(made)
    copy = cloudpickle.dumps(made)
    for folder in (tmp_path / "b", tmp_path):
        monkeypatch.chdir(folder)
        again = pickle.loads(copy)
        assert contents(made) == contents(again) == expected
        assert repr(made) == repr(again) == text and str(tmp_path) not in text
        made = pickle.loads(copy)


def grow(folder, rng, depth):
    folder.mkdir()
    for _ in range(rng.randrange(1, 4)):
        ends = rng.choice(["a", "b", ".x"]), rng.choice(["", "[1]", "*"])
        path = folder / f"{ends[0]}{rng.randrange(9)}{ends[1]}"
        if depth and rng.random() < 0.6 and not path.exists():
            grow(path, rng, depth - 1)
        else:
            path.with_name(f"{path.name}.t").touch()


@pytest.mark.parametrize("seed", range(10))
def test_patterns_stand_for_what_glob_finds(tmp_path, monkeypatch, seed):
    monkeypatch.chdir(tmp_path)
    grow(Path("r"), random.Random(seed), 4)
    patterns = ["**/*.t", "r/**/*.t", "r/**/a*/**/*.t", "r/a*/**/b*/*.t", "r/*/**/.*", "*/**/*"]
    for pattern in [*patterns, f"{tmp_path}/r/**/**/*.t"]:
        expected = sorted(set(glob.glob(pattern, recursive=True)))  # noqa: PTH207 - paths as they were given
        assert (list_files("paths", pattern) if expected else []) == expected, pattern
    found = sorted(glob.glob("r/**", recursive=True))  # noqa: PTH207
    expected = [path for path in found if not Path(path).is_dir()]
    assert (list_files("paths", "r/**") if expected else []) == expected


def test_patterns_follow_links_and_no_loops_of_them(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for folder in ("data", "data/a", "data/c", "elsewhere"):
        os.mkdir(folder)  # noqa: PTH102 - paths as they are given
        Path(folder, "x.t").touch()
    links = {f"data/itself{i}": f"itself{i}" for i in range(4)}
    links |= {"data/linked": "../elsewhere", "data/me": ".", "data/a/up": "..", "data/a/root": "/"}
    links |= {"elsewhere/back": "../data", "data/a/c": "../c", "data/c/a": "../a"}
    links |= {"data/nowhere": "none"}
    for path, target in links.items():
        Path(path).symlink_to(target)
    names = ("a/c/x.t", "a/x.t", "c/a/x.t", "c/x.t", "linked/x.t", "x.t")
    expected = [f"data/{name}" for name in names]
    for pattern in ("data/**/*.t", "./data/**/*.t", "data/**/**/x.t", f"{tmp_path}/data/**/*.t"):
        found = list_files("paths", pattern)
        assert found == [f"{pattern.partition('data/')[0]}{path}" for path in expected]
    assert list_files("paths", "data/a/**/*.t") == ["data/a/c/x.t", "data/a/x.t"]
