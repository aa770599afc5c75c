"""``ImageFolderSource``: pictures in a folder for each class."""

from __future__ import annotations

import hashlib
import os
import posixpath
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, SupportsIndex

import numpy as np

from gristmill.core.cached import cached
from gristmill.core.locks import Lock
from gristmill.core.naming import transform_name
from gristmill.core.state import shown
from gristmill.sources.sharded import checked_key
from gristmill.sources.storage import forks
from gristmill.sources.storage.errors import DamagedFileError, damaged
from gristmill.sources.storage.files import Files, is_url
from gristmill.sources.storage.per_process import PerProcess

EXTENSIONS = (".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp")


class ImageFolderSource(PerProcess):
    """The pictures of a folder that has a folder for each class, or of a ``.zip`` or ``.tar``
    archive of such a folder.

    An element is a dictionary: ``image``, the bytes of the file or what ``decode`` makes of them;
    ``label``, the number of the class; ``path``, the name of the file below the folder, with
    slashes. Classes are sorted by name and numbered from 0, files are sorted by name within a
    class, also those in folders of a class. Hidden files and folders are skipped, and so are files
    with other extensions. If an archive has one folder that has all others, and no picture there,
    its folders are the classes. Links are followed, but not to a folder that they are in; in a tar
    archive only those to files.

    Args:
        path: the folder or archive.
        extensions: the endings of the files to read, with or without a dot; capital letters do not
            count.
        decode: makes a picture of the bytes of a file, such as ``PIL.Image.open`` with
            ``io.BytesIO``.

    Attributes:
        classes: the names of the classes, sorted.
        class_to_idx: the number of each class.
        labels: the label of each element, an array of int64.

    Raises:
        FileNotFoundError: there is no such folder or archive.
        OSError: a folder cannot be read.
        ValueError: there are no classes, or one without a picture; it is named.

    Example:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> for name in ("cat/1.jpg", "cat/2.jpg", "dog/1.JPG", "dog/notes.txt"):
        ...     (folder / name).parent.mkdir(exist_ok=True)
        ...     _ = (folder / name).write_bytes(b"...")
        >>> source = ImageFolderSource(folder)
        >>> len(source), source.class_to_idx, source[2]
        (3, {'cat': 0, 'dog': 1}, {'image': b'...', 'label': 1, 'path': 'dog/1.JPG'})
    """

    _of_process = ("_file",)

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        extensions: Sequence[str] = EXTENSIONS,
        decode: Callable[[bytes], Any] | None = None,
    ) -> None:
        if decode is not None and not callable(decode):
            raise TypeError(f"decode must be a function of bytes, got {shown(decode)}")
        if (
            isinstance(extensions, str)
            or not extensions
            or not all([isinstance(text, str) and text for text in extensions])
        ):
            raise TypeError(
                "extensions must be a sequence of texts, such as ['jpg', 'png'], got"
                f" {shown(extensions)}"
            )
        if is_url(os.fspath(path)):
            raise ValueError(
                f"path must be a folder or archive of this machine, got {shown(path)}: download it"
            )
        self._path = os.path.abspath(path)  # noqa: PTH100
        self._decode = decode
        endings = tuple([f".{text.lower().removeprefix('.')}" for text in extensions])
        if Path(self._path).is_dir():
            classes, names = _in_folder(Path(self._path))
            self._archive: str | None = None
        else:
            self._archive, classes, names, self._members = _in_archive(self._path, endings)
        found = [name for name in names if name.lower().endswith(endings)]
        self.classes = sorted(classes)
        self.class_to_idx = {name: number for number, name in enumerate(self.classes)}
        order = sorted(found, key=lambda name: (name.split("/")[0], name))
        self._check(order, endings)
        self._names = order
        self.labels = np.array([self.class_to_idx[name.split("/")[0]] for name in order], np.int64)
        self._start_closed()

    def __len__(self) -> int:
        return len(self._names)

    def __getitem__(self, key: SupportsIndex, /) -> dict[str, Any]:
        """Returns the picture at the key.

        Raises:
            KeyRangeError: the key is negative or not below ``len(self)``.
            OSError: the file cannot be read.
            Exception: what ``decode`` raises, with the name of the file.
        """
        number = checked_key(key, len(self))
        name = self._names[number]
        data = self._read(name)
        try:
            image = data if self._decode is None else self._decode(data)
        except Exception as error:
            error.add_note(f"decode failed for {name} of {self._path}")
            raise
        return {"image": image, "label": int(self.labels[number]), "path": name}

    def __repr__(self) -> str:
        decode = (
            ""
            if self._decode is None
            else f", decode={transform_name(self._decode).partition(' @ ')[0]}"
        )
        return (
            f"ImageFolderSource({Path(self._path).name!r}, {len(self)} pictures,"
            f" {len(self.classes)} classes, {self._digest}{decode})"
        )

    @cached
    def _digest(self) -> str:
        """A short text of the names of the pictures, and the size of an archive."""
        size = "" if self._archive is None else Path(self._path).stat().st_size
        text = "\n".join([*self._names, f"{size}"]).encode("utf-8", "surrogateescape")
        return hashlib.sha1(text, usedforsecurity=False).hexdigest()[:8]

    @property
    def paths(self) -> list[str]:
        """The names of the files below the folder, one for each element."""
        return list(self._names)

    def close(self) -> None:
        """Closes an archive. The next read opens it again."""
        if "_file" in vars(self):
            self._file.close()

    def _start_closed(self) -> None:
        vars(self).pop("_file", None)
        super()._start_closed()

    @cached
    def _file(self) -> Any:
        return _ZipReader(self._path) if self._archive == "zip" else Files([self._path])

    def _read(self, name: str) -> bytes:
        if self._archive is None:
            return Path(self._path, name).read_bytes()
        # a process shares the position in an open file with its fork
        if self._fork != forks.number:
            self._start_closed()
        if self._archive == "zip":
            try:
                data: bytes = self._file.read(self._members[name])
            except (zipfile.BadZipFile, EOFError) as error:
                raise damaged(
                    self._path, 0, f"{name} cannot be read: {error}", "Copy the archive again"
                ) from error
            return data
        start, size = self._members[name]
        return self._file.read_one(0, start, start + size)

    def _check(self, names: Sequence[str], endings: Sequence[str]) -> None:
        if not self.classes:
            raise ValueError(
                f"{self._path} has no folders: it must have a folder with pictures for each class"
            )
        empty = sorted({*self.classes} - {name.split("/")[0] for name in names})
        if empty:
            others = f", nor have {len(empty) - 1} others" if len(empty) > 1 else ""
            raise ValueError(
                f"the class {empty[0]!r} of {self._path} has no file that ends with"
                f" {', '.join(endings)}{others}: add pictures, remove the folder, or pass"
                " extensions="
            )


class _ZipReader:
    """A zip archive that threads may read, and close, at the same time, also without the GIL."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: zipfile.ZipFile | None = None
        self._lock = Lock()  # held to open and close members, which zipfile counts without one

    def read(self, name: str) -> bytes:
        with self._lock:
            if self._file is None:
                self._file = zipfile.ZipFile(self._path)
            member = self._file.open(name)
        try:
            return member.read()
        finally:
            with self._lock:
                member.close()

    def close(self) -> None:
        """Close the archive, once members that are open have been read; the next read opens it."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None


def _in_folder(top: Path) -> tuple[list[str], list[str]]:
    """Returns the classes, and the files of all of them."""
    classes = [
        entry.name for entry in os.scandir(top) if entry.is_dir() and not entry.name.startswith(".")
    ]
    names = []
    for name in classes:
        for folder, folders, files in os.walk(top / name, onerror=_raise, followlinks=True):
            real = Path(folder).resolve()
            around = {real, *real.parents}  # a link to one of them would have no end
            folders[:] = [
                inner
                for inner in folders
                if not inner.startswith(".") and Path(folder, inner).resolve() not in around
            ]
            names += [
                Path(folder, file).relative_to(top).as_posix()
                for file in files
                if not file.startswith(".")
            ]
    return classes, names


def _raise(error: OSError) -> None:
    """Raises what ``os.walk`` would pass over, so that no pictures are missing unnoticed."""
    raise error


def _in_archive(
    path: str, endings: tuple[str, ...]
) -> tuple[str, list[str], list[str], dict[str, Any]]:
    """Returns the kind of the archive, classes, files, and where each of them is."""
    if not Path(path).exists():
        raise FileNotFoundError(
            f"path must be a folder or an archive of pictures, and there is no {path}"
        )
    kind = "zip" if zipfile.is_zipfile(path) else "tar"
    visible = {
        name: place
        for name, place in (_in_zip(path) if kind == "zip" else _in_tar(path))
        if not name.startswith(".") and "/." not in name
    }
    inner = _below_top(visible)
    classes = dict.fromkeys([name.split("/")[0] for name in inner])
    if len(classes) == 1:
        below = _below_top({name.partition("/")[2]: place for name, place in inner.items()})
        if below and not any([_is_picture_in_top(name, endings) for name in inner]):
            inner, classes = below, dict.fromkeys([name.split("/")[0] for name in below])
    files = {name: place for name, place in inner.items() if place is not None}
    return kind, [*classes], list(files), files


def _below_top(members: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the members but the files of the top folder."""
    return {
        name: place for name, place in members.items() if name and ("/" in name or place is None)
    }


def _is_picture_in_top(name: str, endings: tuple[str, ...]) -> bool:
    return name.count("/") == 1 and name.lower().endswith(endings)


def _in_zip(path: str) -> Iterator[tuple[str, str | None]]:
    """Yields the names of members, with those that zipfile knows; of folders, with ``None``."""
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            is_folder = member.is_dir()
            yield str(PurePosixPath(member.filename)), None if is_folder else member.filename


def _in_tar(path: str) -> Iterator[tuple[str, tuple[int, int] | None]]:
    """Yields the names of members, with where they begin and their sizes; of folders, with
    ``None``.
    """
    found: dict[str, tuple[int, int] | None] = {}
    links = {}
    try:
        with tarfile.open(path, "r:") as archive:
            for member in archive:
                name = str(PurePosixPath(member.name))
                if member.isreg():
                    found[name] = (member.offset_data, member.size)
                elif member.isdir():
                    found[name] = None
                elif member.islnk() or member.issym():
                    folder = posixpath.dirname(name) if member.issym() else ""
                    links[name] = posixpath.normpath(posixpath.join(folder, member.linkname))
    except tarfile.ReadError as error:
        raise DamagedFileError(
            f"{path} must be a folder, a zip archive, or a tar archive without compression:"
            f" {error}. Decompress it first"
        ) from error
    for name, target in links.items():
        for _ in links:  # of a link to a link
            target = links.get(target, target)
        if found.get(target) is not None:
            found[name] = found[target]
    yield from found.items()
