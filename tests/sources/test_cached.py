"""Remote files that are kept on a local disk: as if they were read from afar, also if processes are
killed or disks are full.
"""

import contextlib
import logging
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import cloudpickle
import pytest
from refusing import assert_raises

import gristmill as grain
from gristmill.sources import cached
from gristmill.sources.storage import parts
from gristmill.sources.storage.cached import CachedFiles
from gristmill.sources.storage.errors import ChangedFileError
from gristmill.sources.storage.files import Files
from gristmill.testing import assert_source_conforms

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("obstore")

from fixed_rows import FixedRows  # noqa: E402
from servers import HttpServer, retry_quickly, s3_bucket  # noqa: E402

MB = 1 << 20
PROGRAMS = Path(__file__).parent


def taken(folder):
    """The bytes that a folder takes on the disk."""
    return sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*"))


@pytest.fixture(scope="module")
def data():
    return {
        f"{number}.bin": random.Random(number).randbytes(size)
        for number, size in enumerate([3 * MB + 500, 100, 5 * MB])
    }


@pytest.fixture(scope="module")
def served(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("served")
    for name, content in data.items():
        (folder / name).write_bytes(content)
    with HttpServer(folder) as server:
        yield server


@pytest.fixture
def server(served):
    served.requests.clear()
    return served


class Parts:
    """A source that reads through an object of its own, which cannot be copied while it is open."""

    def __init__(self, rows):
        self.rows, self.same_rows, self.opened = rows, rows, threading.Lock()

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, key):
        return self.rows[key]

    def __getstate__(self):
        return {"rows": self.rows, "same_rows": self.same_rows}


def urls(server):
    return [f"{server.url}/{number}.bin" for number in range(3)]


def some_ranges(data, number, rng):
    sizes = [len(content) for content in data.values()]
    ranges = []
    for _ in range(number):
        which = rng.choice([0, 1, 2])
        start = rng.randrange(sizes[which] + 1)
        ranges.append((which, start, min(sizes[which], start + rng.choice([0, 1, 1000, 100_000]))))
    return ranges


def of(data, ranges):
    contents = list(data.values())
    return [contents[number][start:stop] for number, start, stop in ranges]


def test_a_second_epoch_asks_for_nothing(server, data, tmp_path):
    plain = FixedRows(urls(server), row_bytes=1000)
    source = cached(plain, tmp_path)
    assert (repr(source), len(source), type(source)) == (repr(plain), len(plain), FixedRows)
    ds = grain.MapDataset.source(source).shuffle(seed=1)
    first = list(ds)
    assert sorted(first) == sorted(plain.__getitems__(range(len(plain))))
    server.requests.clear()
    assert list(ds) == first
    assert (
        list(grain.MapDataset.source(cloudpickle.loads(cloudpickle.dumps(source))).shuffle(seed=1))
        == first
    )
    assert len(cloudpickle.dumps(source)) < 4000
    options = grain.MultiprocessingOptions(num_workers=2)
    assert list(ds.to_iter_dataset().mp_prefetch(options)) == first
    assert_source_conforms(source)
    assert server.num_requests == 0
    assert list(grain.MapDataset.source(cached(plain, tmp_path)).shuffle(seed=1)) == first
    assert server.num_requests == 0
    deep = cached(Parts(plain), tmp_path)
    assert deep.rows is deep.same_rows is not plain and deep[7] == plain[7]
    assert isinstance(deep.rows._files, CachedFiles) and not isinstance(plain._files, CachedFiles)
    local = FixedRows([str(server.folder / name) for name in data], row_bytes=1000)
    assert cached(local, tmp_path)[5] == local[5] and repr(cached(local, tmp_path)) == repr(source)


@pytest.mark.parametrize("max_bytes", [None, 64 << 10, MB, 4 * MB])
def test_threads_read_the_same_ranges_within_the_room(server, data, tmp_path, max_bytes):
    ranges = some_ranges(
        data, 300 if max_bytes is None or max_bytes >= MB else 50, random.Random(max_bytes)
    )
    files = CachedFiles(Files(urls(server)), str(tmp_path), max_bytes)
    blocks = [ranges[start : start + 10] for start in range(0, len(ranges), 10)]
    with ThreadPoolExecutor(16) as pool:
        assert list(pool.map(files.read, blocks)) == [of(data, block) for block in blocks]
    buffer = bytearray(2 * MB)
    files.read_into(2, 1_000_000, memoryview(buffer))
    assert buffer == data["2.bin"][1_000_000 : 1_000_000 + 2 * MB]
    assert files.read([(0, 0, 3 * MB + 500), (1, 100, 100)]) == [data["0.bin"], b""]
    for outside in [(1, 99, 101), (0, 4 * MB, 5 * MB)]:
        with pytest.raises(OSError, match=r"\d\.bin ends at byte"):
            files.read([outside])
    assert 0 < taken(tmp_path) <= (max_bytes or 16 * MB)
    server.requests.clear()
    assert files.read(ranges) == of(data, ranges)
    assert (server.num_requests == 0) == (max_bytes is None)
    # they would take room as long as they are open
    assert not any(part.is_thrown_away() for part in files._parts.values())


def test_what_was_used_least_recently_goes_first(server, tmp_path):
    files = CachedFiles(Files(urls(server)), str(tmp_path), MB)  # parts of 128 KB
    for part in range(6):
        files.read([(2, part << 17, (part << 17) + 10)])
    [newest] = [max(tmp_path.glob("*.part"), key=lambda path: path.stat().st_mtime_ns)]
    for path in tmp_path.glob("*.part"):
        os.utime(path, (1, 2 if path.name.endswith("-000003.part") else 1))
    os.utime(newest, (10, 10))
    files.read([(2, part << 17, (part << 17) + 10) for part in range(6, 9)])
    left = {path.name[-8:-5] for path in tmp_path.glob("*.part")}
    assert {"003", "005", "006", "007", "008"} <= left and len(left) < 9 and taken(tmp_path) <= MB


def test_a_changed_file_is_another_one(tmp_path, monkeypatch):
    retry_quickly(monkeypatch)
    (tmp_path / "served").mkdir()
    path, folder = tmp_path / "served/rows.bin", tmp_path / "kept"
    path.write_bytes(bytes(3 * MB))
    with HttpServer(path.parent) as server:
        old = cached(FixedRows(f"{server.url}/rows.bin"), folder)
        assert old[0] == bytes(64)
        path.write_bytes(b"\1" * 3 * MB)
        new = cached(FixedRows(f"{server.url}/rows.bin"), folder)
        assert new[0] == b"\1" * 64 and old[1] == bytes(64)
        with pytest.raises(ChangedFileError, match=r"rows.bin has changed"):
            old[len(old) - 1]
        paths = [
            cached([f"{server.url}/rows.bin?X-Amz-Signature={number}"], folder) for number in (1, 2)
        ]
        assert paths[0] == paths[1] and Path(paths[0][0]).read_bytes() == path.read_bytes()
        path.write_bytes(b"\2" * 10)


def test_a_file_is_of_one_version_though_the_store_reports_none(tmp_path, caplog):
    (tmp_path / "served").mkdir()
    path, folder = tmp_path / "served/rows.bin", tmp_path / "kept"
    versions = [bytes([number]) * 9 * MB for number in range(3)]
    path.write_bytes(versions[0])
    with HttpServer(path.parent, tags=False) as server:
        url = f"{server.url}/rows.bin"
        with caplog.at_level(logging.WARNING, logger="gristmill"):
            sources = [cached(FixedRows(url), folder)]
        assert any(
            f"cached: the store of {url} reports no versions" in record.message
            for record in caplog.records
        )
        assert any(
            f"{url}: the server reports neither an entity tag" in record.message
            for record in caplog.records
        )
        num_requests = server.num_requests
        assert sources[0][0] == versions[0][:64]
        assert server.num_requests == num_requests + 1  # one answer is of one version
        sources.append(cloudpickle.loads(cloudpickle.dumps(sources[0])))
        path.write_bytes(versions[1])
        for source in sources:
            assert source[len(source) - 1] == versions[0][:64]
        assert server.num_requests == num_requests + 1
        assert cached(FixedRows(url), folder)[5] == versions[1][:64]
        [first] = cached(url, folder)
        path.write_bytes(versions[2])
        [second] = cached(url, folder)
        assert [Path(path).read_bytes() for path in (first, second)] == versions[1:]
        server.faults = {server.num_requests + 1: "cut", server.num_requests + 2: "short"}.get
        assert Path(*cached(url, folder)).read_bytes() == versions[2]
    memory = fsspec.filesystem("memory")
    memory.pipe("/rows.bin", versions[0])
    source = cached(FixedRows("/rows.bin", filesystem=memory), folder)
    assert source[0] == versions[0][:64]
    memory.pipe("/rows.bin", versions[1])
    with pytest.raises(ChangedFileError, match=r"/rows\.bin has changed"):
        source[len(source) - 1]


def cut(path, rng):
    os.truncate(path, rng.randrange(path.stat().st_size))


def flip_a_bit_of_the_table(path, rng):
    overwrite(
        path,
        rng.randrange(4 * 5 * MB // 4096),
        lambda byte: bytes([byte[0] ^ 1 << rng.randrange(8)]),
    )


def flip_a_bit_of_the_data(path, rng):
    overwrite(
        path,
        rng.randrange(path.stat().st_size - 3 * MB, path.stat().st_size),
        lambda byte: bytes([byte[0] ^ 8]),
    )


def make_a_hole(path, rng):
    overwrite(path, rng.randrange(path.stat().st_size - MB), lambda _: bytes(MB // 2))


def exchange_pages(path, rng):
    """Exchanges the first two pages, in the table and in the data."""
    content = bytearray(path.read_bytes())
    data = 4 * 65_536
    for start, size in [(0, 4), (data, 4096)]:
        pages = content[start : start + 2 * size]
        content[start : start + 2 * size] = pages[size:] + pages[:size]
    path.write_bytes(content)


def empty(path, rng):
    path.write_bytes(b"")


def extend(path, rng):
    os.truncate(path, path.stat().st_size + 10**6)


def overwrite(path, place, change):
    with path.open("r+b") as file:
        file.seek(place)
        byte = file.read(1)
        file.seek(place)
        file.write(change(byte))


DAMAGES = [
    cut,
    cut,
    flip_a_bit_of_the_table,
    flip_a_bit_of_the_data,
    make_a_hole,
    exchange_pages,
    empty,
    extend,
]


@pytest.mark.parametrize("is_settled", [False, True], ids=["just written", "trusted"])
def test_damaged_parts_are_read_again_while_open(server, data, tmp_path, is_settled):
    rng = random.Random(is_settled)
    ranges = [
        (number, start, start + 1000)
        for number in (0, 2)
        for start in range(0, 3 * MB - 1000, 30_000)
    ]
    sources = [CachedFiles(Files(urls(server)), str(tmp_path), None) for _ in range(2)]
    for damage in DAMAGES:
        for files in sources:
            assert files.read(ranges) == of(data, ranges)
        if is_settled:
            for path in tmp_path.glob("*.part"):
                os.utime(path, (1, 1))
            assert sources[0].read(ranges) == sources[0].read(ranges) == of(data, ranges)
            server.requests.clear()
            assert sources[0].read(ranges) == of(data, ranges) and server.num_requests == 0
        for path in tmp_path.glob("*.part"):
            damage(path, rng)
        # These ranges are fetched first, so there may be a hole before them.
        last = [(2, 5 * MB - 10, 5 * MB), (0, 3 * MB, 3 * MB + 10)]
        assert sources[1].read(last) == of(data, last)
        for files in (*sources, CachedFiles(Files(urls(server)), str(tmp_path), None)):
            assert files.read(ranges) == of(data, ranges), damage
    shutil.rmtree(tmp_path)
    files.close()
    assert files.read(ranges) == files.read(ranges) == of(data, ranges)


def flip_a_bit(path, rng):
    overwrite(path, rng.randrange(path.stat().st_size), lambda byte: bytes([byte[0] ^ 1]))


def test_whole_files_that_were_damaged_are_downloaded_again(server, data, tmp_path):
    rng = random.Random(0)
    [path] = map(Path, cached(urls(server)[0], tmp_path))
    for damage in (cut, flip_a_bit, empty, extend, Path.unlink, None):
        if damage is None:  # the file is right, and its record is not
            (tmp_path / "records").write_text("nonsense\n\0")
        else:
            damage(path, rng) if damage is not Path.unlink else damage(path)
        num_requests = server.num_requests
        assert (
            cached(urls(server)[0], tmp_path) == [str(path)] and path.read_bytes() == data["0.bin"]
        )
        assert server.num_requests > num_requests + 1
    os.utime(path, (1, 1))  # as after copying: the checksum is right
    num_requests = server.num_requests
    for _ in range(2):
        assert cached(urls(server)[0], tmp_path) == [str(path)]
    assert server.num_requests == num_requests + 2  # for its version in the store


def test_a_killed_writer_leaves_no_wrong_page(tmp_path):
    layout = parts.layout_for(MB)
    content = random.Random(0).randbytes(layout.block_bytes)
    names = [
        str(tmp_path / f"{num_writes}-{half}.part") for num_writes in range(3) for half in range(2)
    ]
    command = [sys.executable, PROGRAMS / "kill_part_writer.py", *names]
    program = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    codes = [int(code) for code in program.stdout.split()]
    # It is killed before and in the middle of each write: that of the bytes and that of the
    # checksums.
    assert codes == [-signal.SIGKILL] * 4 + [0] * 2
    for name, code in zip(names, codes, strict=True):
        part = parts.CachePart(name, layout.block_bytes, layout)
        pages = [part.read(start, start + 4096) for start in range(0, layout.block_bytes, 4096)]
        assert all(
            page in (None, content[4096 * i : 4096 * i + 4096]) for i, page in enumerate(pages)
        )
        assert (None in pages) == (code != 0)


def filling(server, folder, max_bytes=0, seed=0, program="fill_cache.py"):
    arguments = [" ".join(urls(server)), str(folder), str(max_bytes), str(seed)]
    command = [sys.executable, PROGRAMS / program, *arguments]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def kill_at_random_moments(server, folder, times, max_bytes, check, program="fill_cache.py"):
    """Kills processes that begin to fill an empty folder, and has ``check`` look at what they
    leave.
    """
    rng = random.Random(max_bytes)
    for seed in range(times):
        shutil.rmtree(folder, ignore_errors=True)
        with filling(server, folder, max_bytes, seed, program) as process:
            num_requests = server.num_requests + rng.randrange(12)
            while server.num_requests < num_requests and process.poll() is None:
                time.sleep(0.001)
            # not a wait for anything: when it is killed must be any time
            time.sleep(rng.uniform(0, 0.03))
            process.send_signal(signal.SIGKILL)
        check()


@pytest.mark.slow
@pytest.mark.parametrize("max_bytes", [0, 2 * MB])
def test_killed_at_any_moment_it_leaves_nothing_wrong(server, data, tmp_path, max_bytes):
    ranges = [
        (number, start, start + 1000)
        for number in (0, 2)
        for start in range(0, 3 * MB - 1000, 5000)
    ]
    num_requests = []

    def check():
        server.requests.clear()
        files = CachedFiles(Files(urls(server)), str(tmp_path), max_bytes or None)
        assert files.read(ranges) == of(data, ranges)
        assert not max_bytes or taken(tmp_path) <= max_bytes
        num_requests.append(server.num_requests)

    kill_at_random_moments(server, tmp_path, 12, max_bytes, check)
    assert len(set(num_requests)) > 1  # they were killed at different moments


def test_several_processes_fetch_a_block_once(server, tmp_path):
    server.requests.clear()
    with contextlib.ExitStack() as stack:
        processes = [stack.enter_context(filling(server, tmp_path)) for _ in range(3)]
        assert [process.communicate(timeout=60)[0] for process in processes] == [
            "begun\ndone\n"
        ] * 3
    wanted = [request for request in server.requests if request[2] not in ("bytes=0-0", None)]
    assert len(wanted) <= 2 * 10  # ten blocks; one that is waited for too long is fetched twice


def test_without_room_data_come_from_the_store_with_one_warning(server, tmp_path, caplog):
    with filling(server, tmp_path, program="read_with_full_folder.py") as process:
        text, _ = process.communicate(timeout=60)
    why = (
        r"File too large: there is no space left, or no more may be used; make room, or give a"
        r" folder with room as folder\n"
    )
    kept = (
        rf"WARNING:gristmill:cached: files cannot be kept in {tmp_path}, so they are read from"
        rf" their store: {why}"
    )
    assert len(re.findall(kept, text)) == 1
    with HttpServer(server.folder, tags=False) as untold:
        for place in (server, untold):
            num_requests = place.num_requests
            with filling(place, tmp_path, program="copy_into_full_folder.py") as process:
                text, _ = process.communicate(timeout=60)
            full = (
                r"\[Errno 27\] cached: the disk of .* is full: 8389208 bytes have to be .* \(File"
                r" too large\). Make room"
            )
            assert re.match(full, text)
            # one for each file, and one that could not be written
            assert place.num_requests <= num_requests + 4
            assert not list(tmp_path.glob("files/*/*.unfinished"))
    blocked = tmp_path / "blocked"
    files = CachedFiles(Files(urls(server)), str(blocked), None)
    blocked.write_text("not a folder")
    with caplog.at_level(logging.WARNING, logger="gristmill"):
        assert files.read([(1, 5, 10)]) == files.read([(1, 5, 10)])
    assert len(caplog.records) == 1


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    folder = tmp_path / "kept"
    folder.mkdir(mode=0o555)
    command = [sys.executable, PROGRAMS / "keep_in_locked_folder.py", str(folder), "/etc/hosts"]
    program = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    lines = program.stdout.splitlines()
    assert len(lines) == 4, program.stderr
    for line, place in zip(
        lines, [folder, folder, folder / "deeper", folder / "deeper"], strict=True
    ):
        assert line.startswith(f"[Errno 13] cannot keep files in {place}: ")
        assert line.endswith("the folder cannot be written; give a folder that can as folder")
    blocked = tmp_path / "file"
    blocked.write_text("")
    for place in (blocked, blocked / "deeper"):
        message = (
            rf"cannot keep files in {place}: .*: a file is in place of a folder; give another one"
            r" as folder"
        )
        assert_raises(OSError, message, cached, "https://host/a.bin", place)


def test_array_records_by_path(tmp_path, server):
    module = pytest.importorskip("array_record.python.array_record_module")
    folder, kept = tmp_path / "served", tmp_path / "kept"
    folder.mkdir()
    for shard in range(3):
        writer = module.ArrayRecordWriter(str(folder / f"{shard}.array_record"), "group_size:1")
        for i in range(100):
            writer.write(f"record {100 * shard + i}".encode())
        writer.close()
    with HttpServer(folder) as http:
        addresses = [f"{http.url}/{{0..2}}.array_record"]
        source = grain.sources.ArrayRecordDataSource(cached(addresses, kept))
        records = [f"record {i}".encode() for i in range(300)]
        assert list(source) == records
        num_requests = http.num_requests
        # whether they have changed
        assert cached(addresses, kept) == source.paths and http.num_requests == num_requests + 3
        ds = grain.MapDataset.source(source).shuffle(seed=0).to_iter_dataset()
        assert sorted(ds.mp_prefetch(grain.MultiprocessingOptions(num_workers=2))) == sorted(
            records
        )
    pytest.importorskip("moto")
    with s3_bucket() as bucket:
        for shard in range(3):
            bucket.put(
                f"train/{shard}.array_record", (folder / f"{shard}.array_record").read_bytes()
            )
        source = grain.sources.ArrayRecordDataSource(
            cached(f"{bucket.url}/train/*.array_record", kept)
        )
        assert source.__getitems__(range(300)) == records


@pytest.mark.slow
def test_downloads_that_are_killed_leave_no_torn_file(server, data, tmp_path):
    def check():
        found = list(tmp_path.glob("files/*/*.bin"))
        assert all(path.read_bytes() == data[path.name] for path in found)
        paths = cached(urls(server), tmp_path)
        assert [Path(path).read_bytes() for path in paths] == list(data.values())
        assert len(list(tmp_path.glob("files/*/*"))) == 3

    kill_at_random_moments(server, tmp_path, 12, 0, check, program="copy_whole_files.py")


def test_downloads_by_several_processes_and_room_for_them(server, data, tmp_path):
    with contextlib.ExitStack() as stack:
        processes = [
            stack.enter_context(filling(server, tmp_path, program="copy_whole_files.py"))
            for _ in range(2)
        ]
        paths = [process.communicate(timeout=60)[0].split()[1:] for process in processes]
    assert paths[0] == paths[1] and [Path(path).read_bytes() for path in paths[0]] == list(
        data.values()
    )
    assert server.num_requests == 2 * 3 + 3  # sizes, and each file once
    room = taken(tmp_path) + MB
    assert cached(urls(server)[:1], tmp_path, max_bytes=room) == paths[0][:1]
    files = CachedFiles(Files(urls(server)), str(tmp_path), room)  # parts have the rest of the room
    assert files.read([(2, start, start + 5) for start in range(0, 5 * MB, MB)]) == [
        data["2.bin"][start : start + 5] for start in range(0, 5 * MB, MB)
    ]
    assert taken(tmp_path) <= room
    (server.folder / "new.bin").write_bytes(bytes(6 * MB))
    # others go: the processes that had them have ended
    cached(f"{server.url}/new.bin", tmp_path, max_bytes=room)
    assert Path(paths[0][0]).exists() and not Path(paths[0][2]).exists() and taken(tmp_path) <= room
    with pytest.raises(
        OSError,
        match=(
            r"files of 5242880 bytes have to be downloaded into .* of max_bytes are free.*Raise"
            r" max_bytes"
        ),
    ):
        cached(urls(server)[2], tmp_path, max_bytes=room)


@pytest.mark.parametrize("num_letters", [240, 250, 300])
def test_names_that_are_too_long_for_a_file_system_are_cut(tmp_path, num_letters):
    memory = pytest.importorskip("fsspec").filesystem("memory")
    url = f"/bucket-of-long-names/{'a' * num_letters}.txt"
    memory.pipe(url, b"some text")
    (path,) = cached(url, tmp_path, filesystem=memory)
    assert Path(path).read_bytes() == b"some text" and path.endswith(".txt")
    assert cached(url, tmp_path, filesystem=memory) == [path]
    memory.rm("/bucket-of-long-names", recursive=True)


def test_what_cannot_be_cached(tmp_path):
    assert_raises(TypeError, "got a lock", cached, threading.Lock(), tmp_path)
