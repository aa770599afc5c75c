"""Arrays noted beside files: reads, the process that makes them, and what is made again or
refused.
"""

import json
import logging
import os
import pickle
import random
import re
import struct
import subprocess
import sys
import tempfile
import threading
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from refusing import assert_raises
from sidecar_processes import SCENES, data_files, names_in

from gristmill.sources import ChangedFileError, DamagedFileError
from gristmill.sources.storage import once
from gristmill.sources.storage.files import Files
from gristmill.sources.storage.sidecar import open_sidecars, without_sidecars


class Counted:
    """A scan that counts how often it is called."""

    def __init__(self):
        self.numbers = []

    def __call__(self, files, number, progress):
        self.numbers.append(number)
        size = files.sizes[number]
        progress(size)
        return {
            "squares": np.arange(size, dtype="<u8") ** 2,
            "bytes": np.frombuffer(b"".join(files.read([(number, 0, size)])), "u1"),
        }


def test_arrays_are_read_as_they_were_noted(tmp_path):
    rng = random.Random(0)
    dtypes = ["<u8", "<u4", "u1", "<i2", "<f4"]
    arrays = {
        f"{kind}-{length}": np.random.default_rng(length).integers(0, 100, length).astype(kind)
        for kind in dtypes
        for length in (0, 1, 7, 5000)
    }
    (tmp_path / "data").write_bytes(b"x")
    (sidecar,) = open_sidecars(Files([str(tmp_path / "data")]), "test", lambda *_: arrays)
    sidecar = pickle.loads(pickle.dumps(sidecar))
    assert sidecar.names() == [*arrays] and sidecar.path == str(tmp_path / "data.gmidx")
    for name, array in arrays.items():
        assert sidecar.length(name) == len(array)
        for _ in range(10):
            start, stop = sorted(rng.choices(range(len(array) + 1), k=2))
            found = sidecar.read(name, start, stop)
            assert found.dtype == array.dtype and found.flags.writeable
            assert found.tolist() == array[start:stop].tolist()
            count = rng.randrange(1, 4)
            last = len(array) - count
            starts = rng.choices(range(last + 1), k=rng.randrange(40)) if last >= 0 else []
            found = sidecar.read_many(name, starts, count)
            assert found.dtype == array.dtype and found.tolist() == [
                array[start : start + count].tolist() for start in starts
            ]
    sidecar.close()
    assert sidecar.read("u1-1", 0, 1) == arrays["u1-1"]


def test_a_sidecar_is_made_once_by_many_threads(tmp_path):
    files, scan = data_files(tmp_path / "data", 5), Counted()
    start = threading.Barrier(8)

    def work(_):
        start.wait()
        return [sidecar.length("squares") for sidecar in open_sidecars(files, "test", scan)]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(work, range(8))) == [[100] * 5] * 8
    assert sorted(scan.numbers) == list(range(5))
    open_sidecars(Files([files.paths[0]] * 2), "test", scan)  # the same file twice
    assert len(scan.numbers) == 5 and len(names_in(tmp_path / "data")) == 10


def test_the_lock_of_a_file_that_was_removed_is_none(tmp_path):
    path, name = tmp_path / "index", tmp_path / "index.lock"
    with once.locked(path) as is_first:
        late = os.open(name, os.O_RDWR)
        assert is_first and not once._has_lock(late, name)
        with once.locked(path) as is_second:
            assert not is_second
    assert not name.exists() and not once._has_lock(late, name)
    with once.locked(path) as is_third:
        assert is_third and not once._has_lock(late, name)
    os.close(late)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("scene", SCENES)
def test_processes(scene):
    # files are synced to disk many times
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        program = [sys.executable, Path(__file__).with_name("sidecar_processes.py"), scene, folder]
        result = subprocess.run(program, capture_output=True, text=True, timeout=60)
    found = (result.returncode, result.stdout, result.stderr)
    assert found == (0, '"all is well"\n', ""), result.stderr


def test_folders_for_indices(tmp_path):
    scan = Counted()
    for folder in "ab":
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "x").write_bytes(folder.encode() * 9)
    files = Files([str(tmp_path / folder / "x") for folder in "ab"])
    for _ in range(2):
        sidecars = open_sidecars(files, "test", scan, index_dir=tmp_path / "new" / "indices")
        assert [bytes(sidecar.read("bytes", 0, 9)) for sidecar in sidecars] == [b"a" * 9, b"b" * 9]
        open_sidecars(files, "other", scan, index_dir=str(tmp_path / "new" / "indices"))
    assert sorted(scan.numbers) == [0, 0, 1, 1] and len(names_in(tmp_path / "new" / "indices")) == 4
    assert names_in(tmp_path / "a") == ["x"]
    open_sidecars(files, "test", scan)
    # those beside the files are good
    open_sidecars(files, "test", scan, index_dir=tmp_path / "newer")
    assert len(scan.numbers) == 6 and not (tmp_path / "newer").exists()
    open_sidecars(files, "other", scan, index_dir=tmp_path / "newer")  # those are not
    assert len(scan.numbers) == 8


def header_of(data):
    end = 20 + int.from_bytes(data[12:16], "little")
    return json.loads(data[20:end]), end


def with_header(change):
    """Returns a change of the header of an index, with the right checksum."""

    def changed(data, index):
        fields, end = header_of(index)
        text = change(fields)
        text = text if isinstance(text, bytes) else json.dumps(text).encode()
        text += b" " * (-(20 + len(text)) % 64)
        sizes = struct.pack("<III", 1, len(text), zlib.crc32(text))
        return data, index[:8] + sizes + text + index[end:]

    return changed


def with_array(dtype="<u8", start=0, length=50_000):
    arrays = {"squares": [dtype, start, length]}
    return with_header(lambda fields: {**fields, "arrays": {**fields["arrays"], **arrays}})


def with_fields(**fields):
    return with_header(lambda found: found | fields)


def without_kind(fields):
    return {name: fields[name] for name in fields if name != "kind"}


HOSTILE = {
    "a list": with_header(lambda fields: []),
    "a number": with_header(lambda fields: 5),
    "no kind": with_header(without_kind),
    "a kind that is no text": with_fields(kind=["test"]),
    "no arrays": with_fields(arrays=[]),
    "an array that is a text": with_fields(arrays={"squares": "u80"}),
    "data that are no list": with_fields(data=5),
    "two data": with_header(lambda fields: {**fields, "data": fields["data"][:2]}),
    "too deep": with_header(lambda fields: b"[" * 10**5),
    "no JSON": with_header(lambda fields: b"\xff"),
    "a number of too many digits": with_header(lambda fields: b"9" * 5000),
    "objects": with_array(dtype="|O"),
    "no dtype": with_array(dtype="bogus"),
    "a dtype that is a list": with_array(dtype=["<u8"]),
    "big-endian": with_array(dtype=">u8"),
    "a length that is a text": with_array(length="8"),
    **{f"length {n}": with_array(length=n) for n in (-1, 0, 1.5, 10**15, 2**64)},
    **{f"start {n}": with_array(start=n) for n in (8, 1.5, -(10**30))},
}


def with_index(change):
    return lambda data, index: (data, change(index))


def with_data(change):
    return lambda data, index: (change(data), index)


def flipped(index):
    return index[:30] + bytes([index[30] ^ 1]) + index[31:]


BAD_HEADER = "its header is not one that gristmill writes"
OTHER_VERSION = with_index(lambda index: index[:8] + b"\x02" + index[9:])
OTHER_SIZE = r"it has \d+ bytes, not \d+"
SHORT = "shorter than its header"
STALE = {
    **{name: (change, BAD_HEADER) for name, change in HOSTILE.items()},
    "data longer": (with_data(lambda data: data + b"x"), "it had 50000 bytes and has 50001"),
    "data begin": (with_data(lambda data: b"x" + data[1:]), "its first 16384 bytes are others"),
    "data end": (with_data(lambda data: data[:-1] + b"x"), "its last 16384 bytes are others"),
    "another version": (OTHER_VERSION, "it is of version 2, not 1"),
    "a bit of the header": (with_index(flipped), "another checksum"),
    "cut off in the arrays": (with_index(lambda index: index[:-1]), OTHER_SIZE),
    "longer": (with_index(lambda index: index + b"x"), OTHER_SIZE),
    "cut off in the header": (with_index(lambda index: index[:50]), SHORT),
    "cut off before the header": (with_index(lambda index: index[:10]), SHORT),
}


@pytest.mark.parametrize("name", STALE)
def test_what_does_not_fit_is_made_again_but_not_under_a_copy(tmp_path, caplog, name):
    change, reason = STALE[name]
    path, index = tmp_path / "data", tmp_path / "data.gmidx"
    path.write_bytes(random.Random(0).randbytes(50_000))
    scan = Counted()
    (sidecar,) = open_sidecars(Files([str(path)]), "test", scan)
    copy = pickle.loads(pickle.dumps(sidecar))  # as in a worker that begins later
    data, noted = change(path.read_bytes(), index.read_bytes())
    path.write_bytes(data)
    index.write_bytes(noted)
    assert_raises(ChangedFileError, f"{path}|{index}", copy.read, "squares", 0, 1)
    with caplog.at_level(logging.WARNING):
        (again,) = open_sidecars(Files([str(path)]), "test", scan)
    assert scan.numbers == [0, 0] and again.length("squares") == len(data)
    assert re.search(reason, caplog.text) and str(path) in caplog.text
    header, _ = header_of(index.read_bytes())
    assert header["kind"] == "test" and header["data"][0] == len(data)
    assert names_in(tmp_path) == ["data", "data.gmidx"]


def test_arrays_of_other_names_dtypes_or_lengths_are_made_again(tmp_path, caplog):
    path, scan = tmp_path / "data", Counted()
    path.write_bytes(b"data")
    open_sidecars(Files([str(path)]), "test", lambda *_: {"squares": np.arange(4, dtype="<u4")})

    def fits(sizes):
        return sizes == {"squares": ("<u8", 4), "bytes": ("|u1", 4)}

    for _ in range(2):
        open_sidecars(Files([str(path)]), "test", scan, fits=fits)
    assert scan.numbers == [0] and "its arrays are not those of this version" in caplog.text


@pytest.mark.parametrize("letter", ["a", "\u3042", "\U0001f600", "\udcff"])
def test_names_of_any_length_have_indices(tmp_path, letter):
    encoded = len(os.fsencode(letter))
    for num_bytes in (180, 208, 232, 244, 249, 250, 255):
        folder = tmp_path / str(num_bytes)
        folder.mkdir()
        name = letter * (num_bytes // encoded) + "x" * (num_bytes % encoded)
        path, other = folder / name, folder / f"{name[:-1]}y"  # names of two files may begin alike
        path.write_bytes(b"data")
        other.write_bytes(b"others")
        files, scan = Files([str(path), str(other)]), Counted()
        for index_dir in (None, None, tmp_path / "indices"):
            lengths = [
                sidecar.length("bytes")
                for sidecar in open_sidecars(files, "test", scan, index_dir=index_dir)
            ]
            assert lengths == [4, 6]
        for found in folder.glob("*.gmidx"):
            found.unlink()
        for _ in range(2):
            open_sidecars(files, "test", scan, index_dir=tmp_path / "indices")
        assert sorted(scan.numbers) == [0, 0, 1, 1] and names_in(folder) == sorted(
            [path.name, other.name]
        )
        if num_bytes <= 249:  # names that were in use before long ones were cut
            assert os.path.basename(open_sidecars(files, "test", scan)[0].path) == f"{name}.gmidx"  # noqa: PTH119


def test_no_file_is_left_of_making_an_index_with_a_long_name(tmp_path):
    path = tmp_path / ("\u3042" * 83 + ".gmidx")
    for _ in range(2):
        with once.locked(path) as is_mine, once.renamed(path) as file:
            lock, part = sorted(
                set(names_in(tmp_path)) - {path.name}, key=lambda name: name.endswith(".part")
            )
            assert is_mine and without_sidecars([lock, part, path.name]) == []
            file.write(b"index")
        assert names_in(tmp_path) == [path.name] and path.read_bytes() == b"index"
        left = tmp_path / f"{part.removesuffix('.part')[:-16]}{'0' * 16}.part"
        left.write_bytes(b"half")  # of a process that was killed; the next one removes it


def test_another_index_of_the_same_data_is_noticed(tmp_path):
    files = data_files(tmp_path / "data", 1)
    (sidecar,) = open_sidecars(files, "test", Counted())
    copy = pickle.loads(pickle.dumps(sidecar))
    (tmp_path / "data" / "data-0.gmidx").unlink()
    assert_raises(FileNotFoundError, "data-0.gmidx", copy.length, "squares")
    open_sidecars(files, "test", lambda *_: {"circles": np.arange(225, dtype="<u4")})
    assert_raises(ChangedFileError, "data-0 has changed", copy.length, "squares")


def test_an_index_dir_that_is_no_folder_is_explained(tmp_path):
    files, folder = data_files(tmp_path / "data", 1), tmp_path / "data/data-0"
    for index_dir, what in (
        (folder, "another one"),
        (folder / "x", "another one"),
        (tmp_path / ("x" * 256), "a shorter path"),
    ):
        message = f"cannot write the index {index_dir}: .*; give .*{what} as index_dir"
        options = {"index_dir": index_dir}
        assert_raises(OSError, message, open_sidecars, files, "test", Counted(), **options)


@pytest.mark.parametrize("content", [b"", b"notes of mine", b"\x89GMIDX"])
def test_nothing_else_is_written_over(tmp_path, content):
    files = data_files(tmp_path / "data", 1)
    index = tmp_path / "data" / "data-0.gmidx"
    index.write_bytes(content)
    message = "data-0.gmidx is damaged at byte 0: it is not an index"
    assert_raises(DamagedFileError, message, open_sidecars, files, "test", Counted())
    assert index.read_bytes() == content
    index.unlink()
    open_sidecars(files, "tests", Counted())
    message = "of the kind 'tests', not 'test'"
    assert_raises(DamagedFileError, message, open_sidecars, files, "test", Counted())


def test_an_error_of_the_scan_is_that_of_the_first_file(tmp_path):
    files = data_files(tmp_path / "data", 20)

    def scan(files, number, progress):
        if number in (7, 8, 13):
            raise ZeroDivisionError(number)
        return Counted()(files, number, progress)

    for _ in range(3):
        assert_raises(ZeroDivisionError, "^7$", open_sidecars, files, "test", scan)
    assert not [*(tmp_path / "data").glob("*.lock"), *(tmp_path / "data").glob("*.part")]
    assert [sidecar.length("squares") for sidecar in open_sidecars(files, "test", Counted())] == [
        100
    ] * 20


def test_sidecars_are_no_data():
    paths = [
        "https://x/a.jsonl?b.gmidx",
        "https://x/a.gmidx?sign=1",
        "a.gmidx.lock",
        "a.gmidx.host-1-2.part",
        "a.gmidx.jsonl",
    ]
    assert without_sidecars(paths) == [paths[0], paths[-1]]
