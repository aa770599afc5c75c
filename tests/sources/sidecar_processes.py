"""A program that makes sidecars in forked processes, some of which are killed:
``sidecar_processes.py SCENE FOLDER``.

It has one thread, so that forking is safe, and imports everything once.
"""

from __future__ import annotations

import contextlib
import json
import os
import pty
import resource
import signal
import sys
import termios
import threading
import traceback
from collections.abc import Callable

# Imported before the rights to read its file are given up.
from concurrent.futures import ThreadPoolExecutor  # noqa: F401
from pathlib import Path

import numpy as np

from gristmill.sources.storage import progress, sidecar
from gristmill.sources.storage.files import Files
from gristmill.sources.storage.sidecar import open_sidecars

NUM_ITEMS = 1000
LEFT = ("*.lock", "*.part")


def data_files(folder: Path, number: int) -> Files:
    folder.mkdir(parents=True)
    paths = [folder / f"data-{i}" for i in range(number)]
    for i, path in enumerate(paths):
        path.write_bytes(bytes([i]) * 100)
    return Files([str(path) for path in paths])


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def expected(files: Files, number: int) -> np.ndarray:
    return np.arange(NUM_ITEMS, dtype="<u8") * (number + 1)


def scan(files: Files, number: int, progress: Callable[[int], None]) -> dict[str, np.ndarray]:
    """Notes that it was called."""
    log = os.open(Path(files.paths[0]).with_name("scans"), os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(log, f"{number}\n".encode())
    os.close(log)
    progress(50)
    return {"items": expected(files, number)}


def check(files: Files, scan: sidecar.Scan = scan) -> None:
    for number, one in enumerate(open_sidecars(files, "test", scan)):
        assert (one.read("items", 0, NUM_ITEMS) == expected(files, number)).all()


def forked(function: Callable[[], object]) -> int:
    process_id = os.fork()
    if process_id:
        return process_id
    status = 1
    try:
        function()
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def status_of(process_id: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1])


def together(folder: Path) -> None:
    """Eight processes begin at the same time: each file is read once."""
    for attempt in range(5):
        files = data_files(folder / str(attempt), 6)
        wait, go = os.pipe()
        processes = [
            forked(
                lambda files=files, wait=wait, go=go: (os.close(go), os.read(wait, 1), check(files))
            )
            for _ in range(8)
        ]
        os.close(go)  # all of them begin now
        assert [status_of(process) for process in processes] == [0] * 8
        os.close(wait)
        assert sorted((folder / str(attempt) / "scans").read_text().split()) == list("012345")
        assert not [left for pattern in LEFT for left in (folder / str(attempt)).glob(pattern)]


def killed(folder: Path) -> None:
    """The process that makes a sidecar is killed, at one of several points, while two others wait
    for it.
    """
    for attempt in range(20):
        point = ["scan", "progress", "write", "fsync", "rename"][attempt % 5]
        files = data_files(folder / str(attempt), 2)
        told, tell = os.pipe()

        def stop(*_: object, tell: int = tell) -> None:
            os.write(tell, b"x")
            signal.pause()

        def die(files: Files = files, point: str = point, stop: Callable[..., None] = stop) -> None:
            def stopping(
                files: Files, number: int, progress: Callable[[int], None]
            ) -> dict[str, np.ndarray]:
                if point == "scan":
                    stop()
                return scan(files, number, stop if point == "progress" else progress)

            if point == "fsync":
                os.fsync = stop
            if point == "rename":
                Path.replace = stop
            if point == "write":
                np.ascontiguousarray = stop
            check(files, stopping)

        owner = forked(die)
        assert os.read(told, 1) == b"x"
        others = [forked(lambda files=files: check(files)) for _ in range(2)]
        os.kill(owner, signal.SIGKILL)
        assert status_of(owner) == -signal.SIGKILL
        assert [status_of(process) for process in others] == [0, 0], point
        os.close(told), os.close(tell)
        assert not [left for pattern in LEFT for left in (folder / str(attempt)).glob(pattern)], (
            point
        )
        scans = (folder / str(attempt) / "scans").read_text().split()
        assert len(scans) <= 4 and set(scans) == {"0", "1"}, (point, scans)


def error_of(folder: Path, limit: Callable[[], object], **options: object) -> str:
    """The error of making a sidecar in a process with limits."""
    files = data_files(folder, 1)
    folder.chmod(0o555)
    read, write = os.pipe()

    def make() -> None:
        limit()
        with contextlib.suppress(OSError):
            try:
                open_sidecars(files, "test", scan_in_silence, **options)
            except OSError as error:
                os.write(write, f"{type(error).__name__} {error}".encode())
                raise

    assert status_of(forked(make)) == 0
    os.close(write)
    text = os.read(read, 10**4).decode()
    os.close(read)
    return text


def scan_in_silence(
    files: Files, number: int, progress: Callable[[int], None]
) -> dict[str, np.ndarray]:
    return {"items": expected(files, number)}


def refused(folder: Path) -> None:
    """A folder that cannot be written, and a full disk."""
    folder.chmod(0o755)

    def unprivileged() -> None:
        if os.geteuid() == 0:
            os.setuid(65534)

    text = error_of(folder / "read-only", unprivileged)
    assert text.startswith("PermissionError ") and "give a folder that can as index_dir" in text, (
        text
    )
    text = error_of(folder / "root-only", unprivileged, index_dir=folder / "root-only" / "indices")
    assert text.startswith("PermissionError ") and "indices" in text, text
    (folder / "indices").mkdir(mode=0o777)
    (folder / "indices").chmod(0o777)
    assert error_of(folder / "elsewhere", unprivileged, index_dir=folder / "indices") == ""
    assert len(list((folder / "indices").iterdir())) == 1

    full = folder / "full"
    text = error_of(
        full, lambda: (full.chmod(0o755), resource.setrlimit(resource.RLIMIT_FSIZE, (5000, 5000)))
    )
    assert (
        text.startswith("OSError ") and "make room" in text and str(full / "data-0.gmidx") in text
    ), text
    assert names_in(full) == ["data-0"]


def shown(folder: Path) -> None:
    """A bar on a terminal, and nothing elsewhere."""
    progress.QUICK_SECONDS = 0.0
    files = data_files(folder / "silent", 3)
    read, write = os.pipe()
    assert status_of(forked(lambda: (os.dup2(write, 2), check(files)))) == 0
    os.close(write)
    assert os.read(read, 100) == b""
    files = data_files(folder / "shown", 3)
    terminal, inner = pty.openpty()
    termios.tcsetwinsize(inner, (40, 100))
    assert status_of(forked(lambda: (os.dup2(inner, 2), check(files)))) == 0
    os.close(inner)
    text = ""
    with contextlib.suppress(OSError):  # that no process writes there any more
        while True:
            text += os.read(terminal, 10**4).decode()
    assert "indexing 3 files" in text and "300/300" in text, repr(text)


def interrupted(folder: Path) -> None:
    """Ctrl-C while many files are read: all threads stop, and nothing is left of what they did."""
    for number in (1, 30):
        files = data_files(folder / str(number), number)
        told, tell = os.pipe()

        def endless(
            files: Files, number: int, progress: Callable[[int], None], tell: int = tell
        ) -> dict[str, np.ndarray]:
            os.write(tell, b"x")
            while True:
                progress(1)

        def make(files: Files = files, endless: sidecar.Scan = endless) -> None:
            with contextlib.suppress(KeyboardInterrupt):
                open_sidecars(files, "test", endless)
            # as at the end of any program:
            for thread in set(threading.enumerate()) - {threading.current_thread()}:
                thread.join()  # Python may have lost one that it was starting

        process = forked(make)
        for _ in range(min(number, sidecar._NUM_THREADS)):
            assert os.read(told, 1) == b"x"
        os.kill(process, signal.SIGINT)
        assert status_of(process) == 0
        assert names_in(folder / str(number)) == sorted(Path(path).name for path in files.paths)


SCENES = {scene.__name__: scene for scene in (together, killed, refused, shown, interrupted)}

if __name__ == "__main__":
    SCENES[sys.argv[1]](Path(sys.argv[2]))
    print(json.dumps("all is well"))
