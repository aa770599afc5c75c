"""Remote files that are downloaded whole, for libraries that want local paths.

What holds for all processes that share a folder, whenever one of them is killed or the machine stops:

1. A file that has its name is complete: it is written under another one, brought to the disk, and renamed.
2. One process downloads at a time. It holds a lock that the kernel takes back if the process dies; what is unfinished then
   belongs to nobody, and whoever gets the lock removes it.
3. A file is not thrown away while a process lives that was given its path, nor while that process's children do that it forked.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import logging
import os
import shutil
import time
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from gristmill.sources.storage.files import Files
from gristmill.sources.storage.once import name_that_fits
from gristmill.sources.storage.parts import Room
from gristmill.sources.storage.posix import fcntl
from gristmill.sources.storage.remote import without_query

_log = logging.getLogger("gristmill")

_PIECE_BYTES = 8 << 20
_PIECES_AT_ONCE = 16
_PINS: list[int] = []  # open while this process lives: what it was given paths of is locked
_UNFINISHED = ".unfinished"


def whole_files(files: Files, numbers: Sequence[int], identities: Sequence[str], folder: str, room: Room | None) -> list[str]:
    """The local paths of these files, each with the name that it has in its store, downloaded if they are not there.

    Args:
        files: where they are.
        numbers: which of them.
        identities: for each of these, what tells it from all others.
        folder: where they are kept.
        room: how much of them; ``None`` for no limit.

    Raises:
        OSError: one cannot be read or written, or they need more room than there is.
    """
    paths = [Path(folder, "files", *_place_of(files.paths[n], text)) for n, text in zip(numbers, identities, strict=True)]
    with _one_process(folder):
        _pin(folder, paths)
        for path in Path(folder).glob(f"files/*/*{_UNFINISHED}"):
            path.unlink()
        missing = {path: number for number, path in zip(numbers, paths, strict=True) if not path.exists()}
        for path in paths:
            with contextlib.suppress(OSError):  # used now, if it is there
                os.utime(path)
        if room is not None and missing:
            _make_room(sum(files.sizes[number] for number in missing.values()), folder, room)
        _download(files, {number: path for path, number in missing.items()}, folder)
    return [str(path) for path in paths]


def _place_of(path: str, identity: str) -> tuple[str, str]:
    name = PurePosixPath(without_query(path))  # in a store it may be longer than in a file system
    return hashlib.sha1(identity.encode(), usedforsecurity=False).hexdigest()[:20], name_that_fits(name.stem, name.suffix[:32])


@contextlib.contextmanager
def _one_process(folder: str) -> Iterator[None]:
    Path(folder, "files").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(Path(folder, "files.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        is_told = False
        while not _is_locked(descriptor):
            if not is_told:
                _log.info("cached: another process downloads files into %s; waiting until it is done", folder)
                is_told = True
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """Whether the lock of this open file could be had."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _pin(folder: str, paths: Sequence[Path]) -> None:
    pin = Path(folder, "pins", uuid.uuid4().hex)
    pin.parent.mkdir(exist_ok=True)
    descriptor = os.open(pin, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    _PINS.append(descriptor)
    pin.write_text("".join(f"{path}\n" for path in paths))


def _pinned(folder: str) -> set[Path]:
    """The files that living processes were given. Pins of others are removed."""
    pinned: set[Path] = set()
    for pin in Path(folder).glob("pins/*"):
        descriptor = os.open(pin, os.O_RDWR | os.O_CLOEXEC)
        try:
            if _is_locked(descriptor):
                pin.unlink()
            else:
                pinned.update(map(Path, pin.read_text().splitlines()))
        finally:
            os.close(descriptor)
    return pinned


def _make_room(num_bytes: int, folder: str, room: Room) -> None:
    pinned = _pinned(folder)
    free = room.make_room(num_bytes, [path for path in Path(folder).glob("files/*/*") if path not in pinned])
    if free < num_bytes:
        raise OSError(
            f"cached: files of {num_bytes} bytes have to be downloaded into {folder}, where {max(free, 0)} of max_bytes are "
            "free: files that are read by path have to be there as a whole. Raise max_bytes, or use another folder"
        )


def _download(files: Files, paths: dict[int, Path], folder: str) -> None:
    """Many pieces at a time, of one file or of many."""
    descriptors: dict[int, int] = {}
    try:
        batch: list[tuple[int, int, int]] = []
        for number, path in paths.items():
            path.parent.mkdir(exist_ok=True)
            descriptors[number] = os.open(_unfinished(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            if files.sizes[number] and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(descriptors[number], 0, files.sizes[number])  # a full disk is an error now
            for start in range(0, files.sizes[number], _PIECE_BYTES):
                batch.append((number, start, min(start + _PIECE_BYTES, files.sizes[number])))
                if len(batch) == _PIECES_AT_ONCE:
                    _write(files, batch, descriptors)
                    _finish(descriptors, paths, but=number)
                    batch = []
            if len(descriptors) > 8 * _PIECES_AT_ONCE:  # small files: at most 128 are open
                _write(files, batch, descriptors)
                _finish(descriptors, paths)
                batch = []
        _write(files, batch, descriptors)
        _finish(descriptors, paths)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        num_bytes, free = sum(files.sizes[number] for number in paths), shutil.disk_usage(folder).free
        raise OSError(
            error.errno,
            f"cached: the disk of {folder} is full: {num_bytes} bytes have to be downloaded, and {free} are free. Make room "
            "there, or use another folder",
        ) from error
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)


def _write(files: Files, batch: Sequence[tuple[int, int, int]], descriptors: dict[int, int]) -> None:
    for (number, start, _), piece in zip(batch, files.read(batch), strict=True):
        done = 0
        while done < len(piece):
            done += os.pwrite(descriptors[number], memoryview(piece)[done:], start + done)


def _finish(descriptors: dict[int, int], paths: dict[int, Path], but: int | None = None) -> None:
    for number in [number for number in descriptors if number != but]:
        os.fsync(descriptors[number])
        os.close(descriptors.pop(number))
        _unfinished(paths[number]).rename(paths[number])


def _unfinished(path: Path) -> Path:
    return path.with_name(name_that_fits(path.name, _UNFINISHED))
