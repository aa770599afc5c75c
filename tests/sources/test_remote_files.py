"""Ranges of files in object stores and on servers: real ones on this machine, with faults."""

import contextlib
import os
import pickle
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import pytest

import gristmill as grain
from gristmill.sources.storage import remote
from gristmill.sources.storage.errors import ChangedFileError
from gristmill.sources.storage.files import Files, list_files
from gristmill.testing import assert_source_conforms

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("obstore")
pytest.importorskip("moto")

from fixed_rows import FixedRows  # noqa: E402
from servers import RANGES, HttpServer, retry_quickly, s3_bucket  # noqa: E402

SIZES = {"a.bin": 100_000, "empty.bin": 0, "größer ü.bin": 600_000, "one byte.bin": 1}
DATA = {name: random.Random(name).randbytes(size) for name, size in SIZES.items()}


@pytest.fixture
def quick(monkeypatch):
    retry_quickly(monkeypatch)
    monkeypatch.setattr(remote, "_ANSWER_SECONDS", 0.1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("served")
    for name, data in DATA.items():
        (folder / name).write_bytes(data)
    return folder


@contextlib.contextmanager
def on_a_server(folder):
    with HttpServer(folder, delay_seconds=0.001) as server:
        yield [f"{server.url}/{name}?signature=secret" for name in DATA], None


@contextlib.contextmanager
def in_a_bucket(folder):
    with s3_bucket() as bucket:
        yield [bucket.put(f"train/{name}", data) for name, data in DATA.items()], None


@contextlib.contextmanager
def in_memory(folder):
    memory = fsspec.filesystem("memory")
    for name, data in DATA.items():
        memory.pipe(f"/remote/{name}", data)
    yield [f"memory://remote/{name}" for name in DATA], memory


@contextlib.contextmanager
def of_a_filesystem_of_folders(folder):
    yield list(DATA), fsspec.filesystem("dir", path=str(folder), target_protocol="file")


@pytest.mark.parametrize("place", [on_a_server, in_a_bucket, in_memory, of_a_filesystem_of_folders])
def test_ranges_are_what_they_are_in_local_files(folder, place):
    rng = random.Random(0)
    local = Files([str(folder / name) for name in DATA])
    with place(folder) as (paths, filesystem):
        files = Files(paths, filesystem)
        assert (files.sizes, files.described()) == (local.sizes, local.described())
        blocks = []
        for _ in range(8):
            block = []
            for _ in range(rng.choice([0, 1, 40])):
                number = rng.randrange(len(DATA))
                start = rng.randrange(files.sizes[number] + 1)
                block.append(
                    (number, start, min(files.sizes[number], start + rng.choice([0, 1, 50, 5000])))
                )
            blocks.append(block)
        blocks.append([(2, 0, 600_000), (2, 5, 6), (0, 0, 100_000), (1, 0, 0)])
        copy = pickle.loads(pickle.dumps(files))
        with ThreadPoolExecutor(16) as pool:
            for those in (files, copy):
                assert list(pool.map(those.read, blocks)) == [local.read(block) for block in blocks]
        buffer = bytearray(1000)
        copy.read_into(2, 123_456, memoryview(buffer))
        assert bytes(buffer) == DATA["größer ü.bin"][123_456:124_456]
        files.close()
        message = r"a\.bin ends at byte 100000, bytes 99000 to 100000 were to be read"
        with pytest.raises(OSError, match=message):
            files.read([(0, 99_000, 100_001)])
        assert files.read([(0, 5, 9)]) == [DATA["a.bin"][5:9]]
        rows = FixedRows(paths, row_bytes=10_000, filesystem=filesystem)
        assert_source_conforms(rows)
        local_paths = [str(folder / name) for name in DATA]
        assert repr(rows) == repr(FixedRows(local_paths, row_bytes=10_000))


def test_a_block_is_few_requests_that_run_together(tmp_path):
    (tmp_path / "long.bin").write_bytes(bytes(40_000_000))
    (tmp_path / "other.bin").write_bytes(bytes(1000))
    meeting = threading.Barrier(2)  # requests are answered when two are there
    with HttpServer(tmp_path, faults=lambda number: (meeting.wait(30), None)[1]) as server:
        files = Files([f"{server.url}/long.bin", f"{server.url}/other.bin"])
        assert server.num_requests == 2
        neighbours = [(0, start, start + 100) for start in range(0, 100_000, 1000)]
        random.Random(1).shuffle(neighbours)
        files.read([*neighbours, (1, 0, 5), (1, 900, 1000)])
        assert sorted(request[2] for request in server.requests[2:]) == [
            "bytes=0-99099",
            "bytes=0-999",
        ]
        meeting = threading.Barrier(20)
        files.read([(0, start, start + 100) for start in range(0, 40_000_000, 2_000_000)])
        assert server.num_requests == 2 + 2 + 20
        meeting = threading.Barrier(5)
        assert sum(map(len, files.read([(0, 0, 40_000_000)]))) == 40_000_000
        assert server.num_requests == 24 + 5  # of at most 8 MiB each


def test_patterns(tmp_path):
    names = ["train/a1.bin", "train/a2.bin", "train/.hidden.bin", "train/deep/x.bin"]
    names += ["train/deep/y.txt", "é b%20.bin"]
    with s3_bucket() as bucket:
        memory = fsspec.filesystem("memory")
        for name in names:
            bucket.put(name, b"data")
            memory.pipe(f"/patterns/{name}", b"data")
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_bytes(b"data")
        patterns = ["train/*.bin", "train/a[2-9].bin", "*/a?.*", "**/*.bin", "train/**/*.bin"]
        for pattern in [*patterns, "train/{a2,a1}.bin", "*.bin"]:
            local = list_files("paths", f"{tmp_path}/{pattern}")
            expected = [os.path.relpath(path, tmp_path) for path in local]
            found = list_files("paths", f"{bucket.url}/{pattern}")
            assert found == [f"{bucket.url}/{name}" for name in expected]
            if "**" not in pattern and "?." not in pattern:
                of_fsspec = list_files("paths", f"memory://patterns/{pattern}", memory)
                assert [path.rpartition("patterns/")[2] for path in of_fsspec] == expected
        both = [f"{bucket.url}/train/a2.bin", f"{bucket.url}/*.bin"]
        assert list_files("paths", both)[0] == both[0]
        with pytest.raises(FileNotFoundError, match="paths: there is no file 's3://bucket/none-"):
            list_files("paths", f"{bucket.url}/none-*")
        with pytest.raises(OSError, match="s3://no-bucket/a"):
            list_files("paths", "s3://no-bucket/a*")
    message = r"'https://host/\*.bin' has a pattern, but servers do not tell"
    with pytest.raises(ValueError, match=message):
        list_files("paths", "https://host/*.bin?signature=secret")
    urls = ["https://[::1]:80/00.bin?a=b", "https://[::1]:80/01.bin?a=b"]
    assert list_files("paths", "https://[::1]:80/{00..01}.bin?a=b") == urls


def test_what_can_be_mended_is_mended(folder, quick):
    rng = random.Random(2)
    wrong = ["cut", "short", "long", *RANGES, "other tag", "whole", "429", "500", "503", "silent"]
    faults = [rng.choice(wrong + [None] * len(wrong)) for _ in range(2000)]
    for tags in (True, False):
        with HttpServer(folder, faults=faults.__getitem__, tags=tags) as server:
            files = Files([f"{server.url}/{name}" for name in DATA])
            for start in range(0, 600_000, 60_000):
                ranges = [
                    (2, begin, begin + 20) for begin in range(start, start + 60_000, 6_000)
                ] + [(0, start // 7, start // 6)]
                expected = [list(DATA.values())[number][begin:end] for number, begin, end in ranges]
                for _ in range(9):  # after four wrong answers in a row, the caller asks again
                    with contextlib.suppress(OSError, ChangedFileError):
                        pieces = files.read(ranges)
                        break
                assert pieces == expected
            assert server.num_requests > 30


@pytest.mark.parametrize(
    ("fault", "kind", "text"),
    [
        ("403", PermissionError, "403 Forbidden.*Credentials"),
        ("404", FileNotFoundError, "404 Not Found.*no such object"),
        ("429", OSError, "after 10 retries.*429"),
        ("500", OSError, "after 10 retries.*500.*network"),
        ("short", OSError, "5 bytes in place of 10"),
        ("long", OSError, "14 bytes in place of 10"),
        ("cut", OSError, "body error"),
        ("other range", OSError, r"Requested 5\.\.15, got 6\.\.16"),
        ("shorter range", OSError, r"Requested 5\.\.15, got 5\.\.14"),
        ("no size", OSError, "CONTENT_RANGE"),
        ("no range", OSError, "Content-Range"),
        ("whole", OSError, "must answer requests for ranges"),
        ("silent", OSError, "after 10 retries"),
    ],
)
def test_what_cannot_be_mended_says_what_failed_and_where(folder, quick, fault, kind, text):
    with HttpServer(folder) as server:
        files = Files([f"{server.url}/a.bin?signature=secret"])
        server.faults = lambda number: fault
        began = time.monotonic()
        match = rf"^{server.url}/a.bin: bytes 5 to 14 cannot be read: .*{text}"
        with pytest.raises(kind, match=match) as caught:
            files.read([(0, 5, 15)])
        assert time.monotonic() - began < 20
        assert "secret" not in str(caught.value) and "Debug source" not in str(caught.value)
        if fault not in ("short", "long", "cut", "silent"):
            with pytest.raises(kind, match=f"^{server.url}/a.bin: its size is not known: "):
                Files([f"{server.url}/a.bin"])
        server.faults = None
        assert files.read([(0, 5, 15)]) == [DATA["a.bin"][5:15]]  # an error is nothing that stays


@pytest.mark.parametrize("fault", [*RANGES, "short", "long", "cut", "whole", "other tag"])
def test_a_single_wrong_answer_is_asked_for_again(folder, quick, fault):
    with HttpServer(folder, faults=lambda number: fault if number in (0, 2) else None) as server:
        # The first answer cannot differ from an earlier one.
        if fault in ("other tag", "other size"):
            server.faults = lambda number: fault if number == 1 else None
        files = Files([f"{server.url}/a.bin"])
        assert files.sizes == [100_000]
        assert files.read([(0, 5, 15)]) == [DATA["a.bin"][5:15]]
        server.faults = lambda number: fault
        error = ChangedFileError if fault in ("other tag", "other size") else OSError
        with pytest.raises(error):
            files.read([(0, 5, 15)])


def test_a_silent_server_is_given_up_in_time(folder, monkeypatch):
    scale = 1 / 40  # of the minute
    retry_quickly(monkeypatch)
    retry = remote._RETRY | {"retry_timeout": remote._RETRY["retry_timeout"] * scale}
    monkeypatch.setattr(remote, "_RETRY", retry)
    for name in ("_ANSWER_SECONDS", "_PATIENCE_SECONDS"):
        monkeypatch.setattr(remote, name, getattr(remote, name) * scale)
    with HttpServer(folder, faults=lambda number: "silent" if number else None) as server:
        files = Files([f"{server.url}/a.bin"])
        began = time.monotonic()
        with pytest.raises(OSError, match=r"a\.bin: bytes 5 to 14 cannot be read"):
            files.read([(0, 5, 15)])
        assert 45 * scale < time.monotonic() - began < 90 * scale + 5  # a busy machine takes longer
        assert server.num_requests == 1 + 2


def test_what_cannot_be_had_at_all(folder, quick, monkeypatch):
    memory = fsspec.filesystem("memory")
    no_buckets = "s3://, gs://, az://, https:// or http:// can be read, got 'ftp://host/a"
    missing = "/none.bin: there is no such file in MemoryFileSystem"
    refused = "http://127.0.0.1:1/a.bin: its size is not known: .*error sending"
    kind_of_files = r"filesystem must be a file system of fsspec, such as .*, got 's3'"
    with HttpServer(folder) as server:
        urls = [f"{server.url}/a.bin", f"{server.url}/none.bin?signature=secret"]
        for paths, filesystem, kind, text in [
            (urls, None, FileNotFoundError, "/none.bin: its size"),
            (["/none.bin"], memory, FileNotFoundError, missing),
            (
                ["s3://bucket"],
                None,
                IsADirectoryError,
                r"s3://bucket is no file: .* s3://bucket/\*",
            ),
            (["s3://bucket/folder/"], None, IsADirectoryError, r"such as s3://bucket/folder/\*"),
            (["s3://bucket/a//b"], None, OSError, "s3://bucket/a//b has two slashes in a row"),
            (["ftp://host/a.bin"], None, ValueError, no_buckets),
            (["az://box/a.bin"], None, OSError, "az://box cannot be used: .*[Aa]ccount"),
            (["a.bin"], "s3", TypeError, kind_of_files),
            (["http://127.0.0.1:1/a.bin"], None, OSError, refused),
        ]:
            with pytest.raises(kind, match=text) as caught:
                Files(paths, filesystem)
            assert "secret" not in str(caught.value)
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(
        ImportError,
        match=r"reading gs://bucket needs the package obstore.*pip install 'gristmill\[remote\]'",
    ):
        Files(["gs://bucket/a.bin"])


def test_a_file_that_changes_while_it_is_read(tmp_path, quick):
    path = tmp_path / "rows.bin"
    for tags, other in [(True, 64_000), (True, 100), (False, 100), (False, 70_000)]:
        path.write_bytes(bytes(64_000))
        with HttpServer(tmp_path, tags=tags) as server:
            rows = grain.MapDataset.source(FixedRows(f"{server.url}/rows.bin"))
            message = r"/rows.bin has changed since this source was.*Make the source again"
            with contextlib.closing(iter(rows.batch(10, batch_fn=list).to_iter_dataset())) as it:
                next(it)
                path.write_bytes(b"\1" * other)
                with pytest.raises(ChangedFileError, match=message):
                    list(it)
    with s3_bucket() as bucket:
        files = Files([bucket.put("rows.bin", bytes(100))])
        bucket.put("rows.bin", b"\1" * 100)
        with pytest.raises(ChangedFileError, match=r"s3://bucket/rows\.bin has changed"):
            files.read([(0, 5, 10)])
    memory = fsspec.filesystem("memory")
    memory.pipe("/rows.bin", bytes(100))
    files = Files(["/rows.bin"], memory)
    memory.pipe("/rows.bin", bytes(50))
    with pytest.raises(ChangedFileError, match="it had 100 bytes and has 50"):
        files.read([(0, 40, 60)])


def test_workers_and_few_requests_under_block_shuffle(tmp_path):
    rows = [i.to_bytes(64, "big") for i in range(8192)]
    for shard in range(2):
        (tmp_path / f"{shard}.bin").write_bytes(b"".join(rows[4096 * shard : 4096 * (shard + 1)]))
    with HttpServer(tmp_path, delay_seconds=0.002) as server:
        source = FixedRows([f"{server.url}/{{0..1}}.bin"])
        assert len(cloudpickle.dumps(source)) < 4000
        shuffled = grain.MapDataset.source(source).block_shuffle(seed=1, block_size=1024)
        ds = shuffled.batch(128, batch_fn=list)
        server.requests.clear()
        alone = list(ds.to_iter_dataset())
        assert sorted(row for batch in alone for row in batch) == rows
        assert server.num_requests <= len(rows) / 64
        parallel = ds.to_iter_dataset().mp_prefetch(grain.MultiprocessingOptions(num_workers=2))
        assert [list(batch) for batch in parallel] == [list(batch) for batch in alone]


def test_a_forked_process_gets_an_error_and_does_not_hang(tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(5))
    with HttpServer(tmp_path) as server:
        program = Path(__file__).with_name("forked_files.py")
        command = [sys.executable, "-W", "ignore", program, f"{server.url}/a.bin"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_who_waits_for_requests_can_be_interrupted(folder):
    with HttpServer(folder, faults=lambda number: "silent" if number else None) as server:
        files = Files([f"{server.url}/a.bin"])
        timer = threading.Timer(0.3, os.kill, [os.getpid(), 2])
        timer.start()
        began = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            files.read([(0, start, start + 1) for start in (0, 50_000)])
        assert time.monotonic() - began < 20  # much less than it would wait
        timer.join()
        server.faults = None
        server.closing.set()
