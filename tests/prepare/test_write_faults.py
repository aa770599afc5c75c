"""A kill, a full disk and a second writer leave whole files, which the same call completes."""

import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from refusing import assert_raises
from written import check_appends_at_once, contents, packed, sparse

import gristmill as grain
from gristmill.prepare.local import LocalFolder

PIPELINES = {
    "ranges": lambda ds: ds,
    "stream": lambda ds: ds.to_iter_dataset().batch(1, batch_fn=lambda x: x[0]),
}
HERE = Path(__file__).parent
PATHS = os.pathsep.join([str(HERE.parent / "support"), os.environ.get("PYTHONPATH", "")])


def killed(folder, name, num_kills, workers=0):
    command = [
        sys.executable,
        HERE / "killed_writers.py",
        folder,
        name,
        str(num_kills),
        str(workers),
        "1",
    ]
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        env={**os.environ, "PYTHONPATH": PATHS},
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "num_kills", "workers"),
    [
        pytest.param("sparse", 8, 0, id="ranges"),
        pytest.param("packed", 8, 0, id="stream"),
        pytest.param("sparse", 20, 0, id="20 of ranges", marks=pytest.mark.slow),
        pytest.param("packed", 20, 0, id="20 of a stream", marks=pytest.mark.slow),
        pytest.param("sparse", 5, 2, id="with workers", marks=pytest.mark.slow),
    ],
)
def test_killed_at_random_moments(tmp_path, name, num_kills, workers):
    from killed_writers import NUM, write

    done = killed(tmp_path / "a", name, num_kills, workers)
    assert done.returncode == 0, done.stderr
    write(tmp_path / "b", name, 0)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert NUM > 100


@pytest.mark.parametrize("make", PIPELINES.values(), ids=list(PIPELINES))
def test_a_killed_worker_is_an_error_and_the_call_continues(tmp_path, make):
    death, folder, here = tmp_path / "death", tmp_path / "written", os.getpid()
    death.touch()

    def fatal(i):
        if i == 47 and death.exists() and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return b"%d" % i

    ds = make(grain.MapDataset.range(60).map(fatal))
    workers = grain.MultiprocessingOptions(num_workers=2, executor="processes")
    arguments = {"format": "tfrecord", "records_per_file": 10, "workers": workers}
    text = r"is not complete: Worker .*SIGKILL[^.]*\. Finished files stay\. Call write again"
    assert_raises(RuntimeError, text, grain.write, ds, folder, **arguments)
    death.unlink()
    assert grain.write(ds, folder, **arguments).complete
    assert [*grain.read(folder)] == [b"%d" % i for i in range(60)]


@pytest.mark.parametrize("format", ["array_record", "jsonl", "parquet"])
def test_a_full_disk_is_an_error_and_the_same_call_continues(tmp_path, format):
    """A limit for the size of a file takes the place of a small disk."""

    def sized(i):
        return {"id": i, "text": os.urandom(9).hex() * (2000 if i == 47 else 20)}

    texts = [sized(i) for i in range(60)]
    ds = grain.MapDataset.source(texts)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    arguments = {
        "format": format,
        "records_per_file": 10,
        "compression": "none" if format == "parquet" else None,
    }
    if format == "array_record":
        arguments["compression"] = "uncompressed"
        ds = ds.map(lambda x: {**x, "more": bytes(300_000 if x["id"] == 47 else 0)})
    resource.setrlimit(
        resource.RLIMIT_FSIZE, (200_000 if format == "array_record" else 20_000, before[1])
    )
    try:
        for _ in range(2):
            assert_raises(
                OSError,
                "cannot take another file.* call write again",
                grain.write,
                ds,
                tmp_path,
                **arguments,
            )
            names = sorted(path.name for path in tmp_path.glob("part*"))
            assert names == [f"part-{k:06d}.{format}" for k in range(4)]
            assert not [*tmp_path.glob(".unfinished/*.tmp")]
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert grain.write(ds, tmp_path, **arguments).new_files == 2
    assert [x["id"] for x in grain.read(tmp_path)] == [*range(60)]


def test_a_folder_without_the_right_to_write_is_named_and_stays():
    ds = grain.MapDataset.range(5).map(lambda i: b"a")
    with tempfile.TemporaryDirectory() as top:
        folder = Path(top, "written")
        grain.write(ds, folder)
        before, is_root = contents(folder), os.geteuid() == 0
        Path(top).chmod(0o755)
        folder.chmod(0o555)
        if is_root:  # who may write everywhere
            os.seteuid(65534)
        try:
            for flags in ({"overwrite": True}, {"append": True}):
                text = f"path must be a folder that can be written to, got {folder}"
                assert_raises(PermissionError, text, grain.write, ds.map(bytes), folder, **flags)
            assert contents(folder) == before
        finally:
            if is_root:
                os.seteuid(0)
            folder.chmod(0o755)


def test_twenty_full_disks_leave_the_same_bytes(tmp_path):
    ds = grain.MapDataset.range(60).map(lambda i: {"id": i, "text": "a" * 10_000 * (1 + i // 3)})
    arguments = {"format": "jsonl", "records_per_file": 3}
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        for k in range(20):  # file k has a little more
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000 * (k + 1), before[1]))
            assert_raises(
                OSError, "cannot take another", grain.write, ds, tmp_path / "a", **arguments
            )
            assert len([*tmp_path.glob("a/part*")]) == k
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert grain.write(ds, tmp_path / "a", **arguments).new_files == 1
    grain.write(ds, tmp_path / "b", **arguments)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


def _write(make, folder, queue):
    report = grain.write(make(200), folder, format="tfrecord", records_per_file=5)
    queue.put((report.complete, report.new_files))


@pytest.mark.parametrize("make", [sparse, packed], ids=["ranges", "stream"])
def test_two_writers_write_each_file_once(tmp_path, make):
    context = multiprocessing.get_context("spawn")
    queue = context.Queue()
    writers = [context.Process(target=_write, args=(make, tmp_path / "a", queue)) for _ in range(2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0, 0]
    reports = [queue.get() for _ in writers]
    alone = grain.write(make(200), tmp_path / "b", format="tfrecord", records_per_file=5)
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert sum(num for _, num in reports) == len(alone.files) and any(
        complete for complete, _ in reports
    )


def test_of_two_appends_at_once_one_is_refused(tmp_path):
    check_appends_at_once(str(tmp_path))


def test_small_files_while_another_process_removes(tmp_path):
    folder = LocalFolder(str(tmp_path))
    stop = threading.Event()

    def remove():
        while not stop.wait(0.001):
            folder.remove_unfinished()

    with ThreadPoolExecutor() as pool:
        removing = pool.submit(remove)
        try:
            for k in range(300):
                assert folder.create(f"{k}", b"first")
                assert not folder.create(f"{k}", b"second")
                folder.replace(f"{k}", b"third")
                with folder.lock(f"{k}"):
                    assert folder.read(f"{k}") == b"third"
        finally:
            stop.set()
        removing.result()
    folder.remove_unfinished()
    assert {path.name for path in tmp_path.iterdir()} == {f"{k}" for k in range(300)}
