"""One file of a written folder: from elements to bytes under its name.

What is known of a finished file is written before the file gets its name. So a file that has its
name is always known, and one that is known but has no name is written again.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gristmill.core.errors import FaultBudgetError
from gristmill.core.value import Value
from gristmill.dataset.faults.budget import REMEDY
from gristmill.prepare.formats.base import Format, crc32_of
from gristmill.prepare.local import UNFINISHED, LocalFolder, sync
from gristmill.prepare.manifest import NAME, Manifest, ManifestError, WrittenFile
from gristmill.prepare.remote import RemoteFolder

Folder = LocalFolder | RemoteFolder

_NONE = (
    "None means that an element is missing, so that it could not be read back: leave it out by a "
    "filter, or make another value of it by a map before"
)
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_OF_ITERATORS = re.compile(r"(, at element [^:.]*|\. Nothing is lost.*)", re.DOTALL)
_FULL_TEXTS = ("No space left", "quota exceeded", "File too large")


class ElementError(ValueError):
    """The format or codec cannot hold an element."""


class Finished(Value):
    """Facts about a file that is written.

    Args:
        files: the file with records, and those that belong to it; none if there were no elements.
        faults: what ``tolerate`` has skipped on the way: ``total`` and ``last``.
        versions: of each file, a text that changes when the file is changed.
        state: of the stream after the file's last element; ``None`` for a range of positions.
        is_last: the stream ends with this file.
    """

    files: tuple[WrittenFile, ...]
    faults: Mapping[str, Any]
    versions: Mapping[str, str]
    state: str | None = None
    is_last: bool = False

    @classmethod
    def from_bytes(cls, text: bytes) -> Finished:
        values = json.loads(text)
        return cls(**{**values, "files": tuple([WrittenFile(**file) for file in values["files"]])})

    def to_bytes(self) -> bytes:
        return json.dumps(
            {**self.as_dict(), "files": [file.as_dict() for file in self.files]}
        ).encode()


class FileWriter:
    """Writes the files of a folder. It pickles into workers.

    Args:
        folder: where files get their names.
        format: how elements become files.
    """

    def __init__(self, folder: Folder, format: Format) -> None:
        self.folder = folder
        self.format = format

    def finished(self, number: int) -> Finished | None:
        """Returns what is known of file ``number``; ``None`` if it is not written.

        Raises:
            ManifestError: it was changed after it was written.
        """
        text = self.folder.read(_known_as(number))
        if text is None:
            return self._in_manifest(number)
        found = Finished.from_bytes(text)
        for file in found.files:
            size = self.folder.size(file.name)
            if size is None:
                return None
            if size != file.bytes or self._has_other_content(
                file, found.versions.get(file.name, "")
            ):
                raise changed_file(self.folder, file, size)
        return found

    def write(
        self,
        number: int,
        elements: Iterable[Any],
        faults: Callable[[], Mapping[str, Any]],
        where: Callable[[int], str],
        has_holes: bool,
        ended: Callable[[], tuple[str | None, bool]] = lambda: (None, False),
    ) -> Finished:
        """Writes file ``number``. The caller holds its lock.

        Args:
            number: of the file.
            elements: those of the file.
            faults: called after the last element; returns what was skipped.
            where: names the last element, which is at a place in ``elements``, for messages.
            has_holes: ``None`` is no element.
            ended: called after the last element; returns the state of the stream, and whether it
                has ended.

        Raises:
            ElementError: an element cannot be written.
            OSError: the disk is full, or the folder cannot be written.
        """
        stem = stem_of(number)
        with full_disk_explained(self.folder), self.folder.workspace(stem) as workspace:
            first = workspace / f"{stem}{self.format.suffixes[0]}"
            num_records = self._write_records(str(first), number, elements, where, has_holes)
            paths = [workspace / f"{stem}{suffix}" for suffix in self.format.suffixes]
            paths = paths if num_records else []
            for path in paths:
                sync(path)
            files = [
                WrittenFile(
                    path.name, 0 if place else num_records, path.stat().st_size, crc32_of(path)
                )
                for place, path in enumerate(paths)
            ]
            is_local = isinstance(self.folder, LocalFolder)
            versions = {path.name: str(path.stat().st_mtime_ns) for path in paths if is_local}
            done = Finished(tuple(files), faults(), versions, *ended())
            self._publish(number, done, paths)
        return done

    def _publish(self, number: int, done: Finished, paths: Iterable[Path]) -> None:
        """Makes files known, and gives them their names, the one with records last."""
        for path in paths:
            if (
                self.folder.size(path.name) is not None
                and self.folder.read(_known_as(number)) is None
            ):
                raise ManifestError(
                    f"{self.folder}/{path.name} exists and was not written here: remove it, or "
                    "use another folder"
                )
        self.folder.replace(_known_as(number), done.to_bytes())
        for path in reversed([*paths]):
            self.folder.publish(path, path.name)

    def _write_records(
        self,
        path: str,
        number: int,
        elements: Iterable[Any],
        where: Callable[[int], str],
        has_holes: bool,
    ) -> int:
        """Returns the number of records."""
        encode = self.format.encode
        writer: Any = None
        place, num_holes = -1, 0
        try:
            for place, element in enumerate(elements):
                if element is None and has_holes:
                    num_holes += 1
                    continue
                if writer is None:
                    writer = self.format.open(path, number)
                try:
                    if element is None:
                        raise TypeError(_NONE)
                    writer.write(encode(element))
                except OSError:
                    raise
                except Exception as error:
                    raise unwritable(where(place), self.format, error) from error
        except BaseException:
            if writer is not None:
                _close_anyway(writer)
            raise
        if writer is not None:
            writer.close()
        return place + 1 - num_holes

    def _in_manifest(self, number: int) -> Finished | None:
        """Returns what the manifest knows of a file that another process has completed."""
        text = self.folder.read(NAME)
        if text is None or not (manifest := Manifest.from_bytes(text, str(self.folder))).complete:
            return None
        files = tuple([file for file in manifest.files if number_of(file.name) == number])
        return Finished(files, {"total": 0, "last": []}, {}) if files else None

    def _has_other_content(self, file: WrittenFile, version: str) -> bool:
        if not isinstance(self.folder, LocalFolder) or self.folder.version(file.name) == version:
            return False
        return crc32_of(Path(self.folder.path, file.name)) != file.checksum


def stem_of(number: int) -> str:
    """Returns the name of file ``number`` without its suffix.

    Example:
        >>> stem_of(7)
        'part-000007'
    """
    return f"part-{number:06d}"


def number_of(name: str) -> int:
    """Returns the number of a file.

    Example:
        >>> number_of("part-000007.jsonl.gz")
        7
    """
    return int(name.partition(".")[0].removeprefix("part-"))


def unwritable(name: str, format: Format, error: Exception) -> ElementError:
    """Returns the error for an element that a format or codec refuses."""
    reason: object = error
    if isinstance(error, RecursionError):
        reason = "it is nested too deeply, or part of itself: change it by a map before"
    if isinstance(error, UnicodeEncodeError):
        reason = f"a text in it is not valid Unicode: repair it by a map before ({error})"
    return ElementError(f"{name} cannot be written as {format.name}: {reason}")


def changed_file(folder: Any, file: WrittenFile, size: int | None) -> ManifestError:
    """Returns the error for a file that is not what was written."""
    what = (
        "is missing"
        if size is None
        else f"has {size} bytes"
        if size != file.bytes
        else "has another checksum"
    )
    return ManifestError(
        f"{folder}/{file.name} was changed after it was written: it {what}, and had {file.bytes} "
        f"bytes, {file.checksum}. Restore "
        "it, or write the folder again with overwrite=True"
    )


def _known_as(number: int) -> str:
    return f"{UNFINISHED}/{stem_of(number)}.json"


def _close_anyway(writer: Any) -> None:
    """Closes a file that is given up."""
    try:
        writer.close()
    except Exception:  # the file is removed; what is wrong with it was raised before
        return


@contextlib.contextmanager
def full_disk_explained(folder: Any) -> Iterator[None]:
    """Raises one kind of error for a full disk, for all libraries of formats."""
    try:
        yield
    except _FullDiskError:
        raise
    except Exception as error:
        cause = error.__cause__ if isinstance(error, ElementError) and error.__cause__ else error
        number = cause.errno if isinstance(cause, OSError) else None
        if number not in _FULL and not any([text in str(cause) for text in _FULL_TEXTS]):
            raise
        raise _FullDiskError(
            number or errno.ENOSPC,
            f"{folder} cannot take another file: {cause}. Finished files stay. Make room and call "
            "write again: it continues there",
        ) from error


@contextlib.contextmanager
def stop_explained(folder: Any) -> Iterator[None]:
    """Says of killed workers and exceeded limits how ``write`` continues, in place of how iterators
    do.
    """
    try:
        yield
    except FaultBudgetError as error:
        remedy = (
            "Look at the records, or allow more. Finished files stay. Call write again with larger "
            "limits: it continues there."
        )
        raise FaultBudgetError(str(error).replace(REMEDY, remedy), error.last) from error
    except RuntimeError as error:
        if "Nothing is lost" not in str(error):
            raise
        text = _OF_ITERATORS.sub("", str(error))
        raise RuntimeError(
            f"{folder} is not complete: {text}. Finished files stay. Call write again: it "
            "continues there; with fewer workers if memory has run out"
        ) from error


class _FullDiskError(OSError):
    """The disk is full. Users know it as ``OSError``."""
