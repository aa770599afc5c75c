"""Remote files that are downloaded whole, for libraries that want local paths.

What holds for all processes that share a folder, whenever one of them is killed or the machine
stops:

1. A file is written under another name, brought to the disk, and renamed. A record has its size,
   time of change and checksum. A path is returned if the file has the size of the remote one, and
   either the time of change or the checksum of the record. Any other file is downloaded again.
2. One process downloads at a time. It holds a lock that the kernel takes back if the process dies;
   an unfinished file then has no owner, and the next process with the lock removes it.
3. A file is not thrown away while a process lives that was given its path, nor while that process's
   children do that it forked.
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
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from gristmill.sources.storage.files import Files
from gristmill.sources.storage.once import name_that_fits
from gristmill.sources.storage.parts import Room, write_all
from gristmill.sources.storage.posix import fcntl
from gristmill.sources.storage.remote import check_versions, download, without_query

_log = logging.getLogger("gristmill")

_PIECE_BYTES = 8 << 20
_PIECES_AT_ONCE = 16
_PINS: list[int] = []  # open while this process lives: what it was given paths of is locked
_UNFINISHED = ".unfinished"
_SECOND = 10**9


def whole_files(
    files: Files, numbers: Sequence[int], identities: Sequence[str], folder: str, room: Room
) -> list[str]:
    """Returns the local paths of these files, each with the name that it has in its store,
    downloaded if they are not there.

    Args:
        files: where they are.
        numbers: which of them.
        identities: for each of these, what distinguishes it from all others.
        folder: where they are kept.
        room: how much of them.

    Raises:
        OSError: one cannot be read or written, or they need more room than there is.
    """
    paths = [
        Path(folder, "files", *_place_of(files.paths[n], text))
        for n, text in zip(numbers, identities, strict=True)
    ]
    with _one_process(folder):
        # first, because these may fill the disk
        for path in Path(folder).glob(f"files/*/*{_UNFINISHED}"):
            path.unlink()
        _pin(folder, paths)
        records = _records_in(folder)
        missing = {
            path: number
            for number, path in zip(numbers, paths, strict=True)
            if not _is_whole(path, files.sizes[number], records.get(path.parent.name), folder)
        }
        for path in paths:
            with contextlib.suppress(OSError):  # used now, if it is there
                os.utime(path, ns=(time.time_ns(), path.stat().st_mtime_ns))
        if missing:
            _make_room(sum(files.sizes[number] for number in missing.values()), folder, room)
        _download(files, {number: path for path, number in missing.items()}, folder)
    return [str(path) for path in paths]


def _place_of(path: str, identity: str) -> tuple[str, str]:
    name = PurePosixPath(without_query(path))  # in a store it may be longer than in a file system
    return hashlib.sha1(identity.encode(), usedforsecurity=False).hexdigest()[:20], name_that_fits(
        name.stem, name.suffix[:32]
    )


class _Record(NamedTuple):
    """Size, time of change and checksum of a file when it had been written."""

    size: int
    changed: int  # in ns
    checksum: int

    @classmethod
    def of(cls, path: Path) -> _Record:
        """Reads all of a file, and returns its record."""
        checksum = 0
        with path.open("rb") as file:
            while piece := file.read(_PIECE_BYTES):
                checksum = zlib.crc32(piece, checksum)
            status = os.fstat(file.fileno())
        return cls(status.st_size, status.st_mtime_ns, checksum)

    def note(self, path: Path, folder: str) -> None:
        with Path(folder, "records").open("a") as file:
            file.write(f"\n{path.parent.name} {self.size} {self.changed} {self.checksum}\n")


def _records_in(folder: str) -> dict[str, _Record]:
    """Returns the records of files, by the names of their folders, without incomplete lines."""
    found = {}
    with contextlib.suppress(FileNotFoundError):
        for line in Path(folder, "records").read_text(errors="replace").splitlines():
            name, *numbers = line.split() or [""]
            if len(numbers) == len(_Record._fields) and all(
                number.isdecimal() for number in numbers
            ):
                found[name] = _Record(*map(int, numbers))
    return found


def _is_whole(path: Path, size: int, record: _Record | None, folder: str) -> bool:
    """Returns True if the file is what was downloaded."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if record is not None and record.size == size == status.st_size:
        if record.changed == status.st_mtime_ns:
            return True
        now = _Record.of(path)
        if now.checksum == record.checksum:
            now.note(path, folder)
            return True
    _log.warning("cached: %s is not what was downloaded, and is downloaded again", path)
    return False


@contextlib.contextmanager
def _one_process(folder: str) -> Iterator[None]:
    Path(folder, "files").mkdir(parents=True, exist_ok=True)
    descriptor = os.open(Path(folder, "files.lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        is_reported = False
        while not _is_locked(descriptor):
            if not is_reported:
                _log.info(
                    "cached: another process downloads files into %s; waiting until it is done",
                    folder,
                )
                is_reported = True
            time.sleep(0.05)
        yield
    finally:
        os.close(descriptor)


def _is_locked(descriptor: int) -> bool:
    """True if the lock of this open file could be had."""
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
    """Returns the files that living processes were given. Pins of others are removed."""
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
    free = room.make_room(
        num_bytes, [path for path in Path(folder).glob("files/*/*") if path not in pinned]
    )
    if free < num_bytes:
        raise OSError(
            f"cached: files of {num_bytes} bytes have to be downloaded into {folder}, where"
            f" {max(free, 0)} of max_bytes are free: files that are read by path have to be there"
            " as a whole. Raise max_bytes, or use another folder"
        )


def _download(files: Files, paths: dict[int, Path], folder: str) -> None:
    """Downloads many pieces at a time; files without versions one by one."""
    descriptors: dict[int, int] = {}
    try:
        batch: list[tuple[int, int, int]] = []
        for number, path in paths.items():
            path.parent.mkdir(exist_ok=True)
            found = files._found[number]
            if found is not None and not found.version:
                download(files.paths, files._found, files._filesystem, number, _unfinished(path))
                descriptors[number] = os.open(_unfinished(path), os.O_WRONLY | os.O_CLOEXEC)
                continue
            descriptors[number] = os.open(
                _unfinished(path), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
            if files.sizes[number] and hasattr(os, "posix_fallocate"):
                # a full disk is an error now
                os.posix_fallocate(descriptors[number], 0, files.sizes[number])
            for start in range(0, files.sizes[number], _PIECE_BYTES):
                batch.append((number, start, min(start + _PIECE_BYTES, files.sizes[number])))
                if len(batch) == _PIECES_AT_ONCE:
                    _write(files, batch, descriptors)
                    _finish(files, descriptors, paths, folder, but=number)
                    batch = []
            if len(descriptors) > 8 * _PIECES_AT_ONCE:  # small files: at most 128 are open
                _write(files, batch, descriptors)
                _finish(files, descriptors, paths, folder)
                batch = []
        _write(files, batch, descriptors)
        _finish(files, descriptors, paths, folder)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        num_bytes, free = (
            sum(files.sizes[number] for number in paths),
            shutil.disk_usage(folder).free,
        )
        raise OSError(
            error.errno,
            f"cached: the disk of {folder} is full: {num_bytes} bytes have to be downloaded, and"
            f" {free} are free ({os.strerror(error.errno)}). Make room there, or use another"
            " folder",
        ) from error
    finally:
        for descriptor in descriptors.values():
            os.close(descriptor)
        for path in paths.values():
            with contextlib.suppress(OSError):
                _unfinished(path).unlink(missing_ok=True)


def _write(
    files: Files, batch: Sequence[tuple[int, int, int]], descriptors: dict[int, int]
) -> None:
    for (number, start, _), piece in zip(batch, files.read(batch), strict=True):
        write_all(descriptors[number], piece, start)


def _finish(
    files: Files,
    descriptors: dict[int, int],
    paths: dict[int, Path],
    folder: str,
    but: int | None = None,
) -> None:
    numbers = [number for number in descriptors if number != but]
    check_versions(files.paths, files._found, files._filesystem, numbers)
    for number in numbers:
        os.fsync(descriptors[number])
        os.close(descriptors.pop(number))
        path = _unfinished(paths[number])
        # Clocks of file systems are coarse: a later write must get another time.
        earlier = path.stat().st_mtime_ns - _SECOND
        os.utime(path, ns=(time.time_ns(), earlier))
        _Record.of(path).note(paths[number], folder)
        path.rename(paths[number])


def _unfinished(path: Path) -> Path:
    return path.with_name(name_that_fits(path.name, _UNFINISHED))
