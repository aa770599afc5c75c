"""``read`` and ``verify_files``: a dataset of what ``write`` has written, and its checksums."""

from __future__ import annotations

import hashlib
import itertools
import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from gristmill.core.cached import cached as computed_once
from gristmill.core.errors import KeyRangeError
from gristmill.core.state import shown
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.origins import RecordKey, UpstreamElement
from gristmill.dataset.stages.source import SourceMapDataset
from gristmill.prepare.files import Folder, changed_file
from gristmill.prepare.formats import described_format
from gristmill.prepare.formats.base import Format, crc32_of
from gristmill.prepare.local import LocalFolder
from gristmill.prepare.manifest import NAME, Manifest, ManifestError, WrittenFile
from gristmill.prepare.remote import RemoteFolder
from gristmill.sources.reading import read_keys
from gristmill.sources.storage.files import is_url

# The pairs of functions that this process has written with, by folder: read takes them from here.
_CODECS: dict[str, Any] = {}


def read(
    path: str | os.PathLike[str],
    *,
    codec: Any = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> MapDataset[Any]:
    """Return a dataset of the elements that ``write`` has written, in the same order.

    Values have the dtype, shape and structure that they were written with. The dataset knows the
    files by the manifest: none of them is opened before it is read. ``gristmill.explain`` names the
    file and the position in it.

    Args:
        path: the folder, or its URL.
        codec: for a folder that another program has written with ``codec=(encode, decode)``: these
            functions.
        cache_dir: for URLs: where files are kept of formats whose libraries read local files only
            (ArrayRecord, Bagz), all of which are downloaded now, and indexes of JSON lines and tar.
            By default below ``$XDG_CACHE_HOME`` or ``~/.cache``.

    Raises:
        ManifestError: there is no manifest, or not all files are written (a ``ValueError``).
        ValueError: a codec is needed, or none is.
        ImportError: a package is missing.

    Example:
        >>> import tempfile
        >>> import gristmill, numpy
        >>> folder = tempfile.mkdtemp()
        >>> ds = gristmill.MapDataset.range(3)
        >>> ds = ds.map(lambda i: {"id": i, "row": numpy.full(2, i, numpy.int16)})
        >>> report = gristmill.write(ds, folder)
        >>> gristmill.read(folder)[2]
        {'id': 2, 'row': array([2, 2], dtype=int16)}
    """
    folder = folder_at(path)
    manifest = _complete_manifest(folder)
    if codec is None:
        codec = _CODECS.get(str(folder))
    format = described_format(manifest.format, codec)
    files = [file for file in manifest.files if file.records]
    paths = [f"{folder}/{file.name}" for file in files]
    if isinstance(folder, RemoteFolder) and paths:
        format.index_dir = os.fspath(_cache_dir(folder, cache_dir))
        paths = _downloaded(paths, format.index_dir) if format.is_read_by_path else paths
    return WrittenMapDataset(WrittenSource(format, files, paths))


def verify_files(path: str | os.PathLike[str]) -> None:
    """Compare the size and the checksum of each file with the manifest; return if all agree.

    Args:
        path: the folder, or its URL, all of which is read then.

    Raises:
        ManifestError: a file is missing or was changed, and which; or not all files are written (a
            ``ValueError``).
    """
    folder = folder_at(path)
    verify_manifest(folder, _complete_manifest(folder), remote_checksums=True)


def folder_at(path: Any) -> Folder:
    """Returns the folder of a path or URL.

    Raises:
        TypeError: it is no path.
        ValueError: it is empty, or a file.
    """
    if not isinstance(path, str | os.PathLike) or not isinstance(os.fspath(path), str):
        raise TypeError(
            f"path must be a folder or its URL, got {shown(path)} of type {type(path).__name__}"
        )
    text = os.fspath(path)
    text = text if is_url(text) else os.path.expanduser(text)  # noqa: PTH111
    if not text or Path(text).is_file():
        kind = "the file " if text else ""
        raise ValueError(f"path must be a folder or its URL, got {kind}{shown(text)}")
    return RemoteFolder(text) if is_url(text) else LocalFolder(text)


def manifest_in(folder: Folder) -> Manifest | None:
    """Returns the manifest of a folder; ``None`` if there is none."""
    text = folder.read(NAME)
    return None if text is None else Manifest.from_bytes(text, str(folder))


def note_codec(folder: Folder, codec: Any) -> None:
    """Remembers the functions that this process writes a folder with."""
    _CODECS[str(folder)] = codec.functions


def verify_manifest(
    folder: Folder, manifest: Manifest, *, checksums: bool = True, remote_checksums: bool = False
) -> None:
    """Compares files with the manifest.

    Args:
        folder: where they are.
        manifest: its manifest.
        checksums: compare checksums of local files, not only sizes.
        remote_checksums: those of remote files, too.

    Raises:
        ManifestError: a file is missing or was changed.
    """
    for file in manifest.files:
        size = folder.size(file.name)
        if size != file.bytes:
            raise changed_file(folder, file, size)
        if isinstance(folder, RemoteFolder):
            is_same = not remote_checksums or folder.checksum(file.name) == file.checksum
        else:
            is_same = not checksums or crc32_of(Path(folder.path, file.name)) == file.checksum
        if not is_same:
            raise changed_file(folder, file, size)


class WrittenSource:
    """The elements of written files, by position.

    Args:
        format: how they are read.
        files: the files with records, in order.
        paths: where they are.
    """

    def __init__(self, format: Format, files: Sequence[WrittenFile], paths: Sequence[str]) -> None:
        self._format = format
        self._files = list(files)
        self.paths = list(paths)
        self.ends = [*itertools.accumulate([file.records for file in files])]

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def __getitem__(self, key: int) -> Any:
        return self._source[self._checked(key)]

    def __getitems__(self, keys: Sequence[int]) -> list[Any]:
        return read_keys(self._source, [self._checked(key) for key in keys])

    def __repr__(self) -> str:
        text = "".join([f"{file.name}:{file.bytes}:{file.checksum};" for file in self._files])
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]
        what = f"{self._format.name}, {len(self)} records, {len(self._files)} files"
        return f"WrittenSource({what}, {digest})"

    def described_files(self) -> list[str]:
        """Returns a text for each file that other files do not have, without its folder."""
        return [f"{file.name} {file.bytes} {file.checksum}" for file in self._files]

    def close(self) -> None:
        """Closes all files. The next read opens them again."""
        close = getattr(vars(self).pop("_source", None), "close", None)
        if close is not None:
            close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_source"}

    @computed_once
    def _source(self) -> Any:
        return self._format.source(self.paths, [file.records for file in self._files])

    def _checked(self, key: int) -> int:
        if not 0 <= key < len(self):
            raise KeyRangeError(
                f"key must be in [0, {len(self)}), the number of records, got {key}"
            )
        return key


class WrittenMapDataset(SourceMapDataset[Any]):
    """The elements of written files, which ``explain`` names with the file.

    Args:
        source: the files.
    """

    def __init__(self, source: WrittenSource) -> None:
        super().__init__(source)

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement | RecordKey]:
        epoch, key = divmod(index, len(self))
        source = self._gm_source
        number = bisect_right(source.ends, key)
        start = source.ends[number - 1] if number else 0
        return [
            UpstreamElement(
                SourceMapDataset(_FileOfFolder(source, number, start)), key - start, epoch
            )
        ]


class _FileOfFolder:
    """One file of a source, by its path."""

    def __init__(self, source: WrittenSource, number: int, start: int) -> None:
        self._source, self._number, self._start = source, number, start

    def __len__(self) -> int:
        return self._source.ends[self._number] - self._start

    def __getitem__(self, key: int) -> Any:
        return self._source[self._start + key]

    def __repr__(self) -> str:
        return self._source.paths[self._number]


def _complete_manifest(folder: Folder) -> Manifest:
    manifest = manifest_in(folder)
    if manifest is None:
        raise ManifestError(
            f"{folder} has no {NAME}: it is no folder that gristmill.write has written"
        )
    if not manifest.complete:
        raise ManifestError(
            f"{folder} is not complete: the call of gristmill.write that was interrupted "
            "continues if it is repeated; other hosts may not have written all of theirs"
        )
    return manifest


def _cache_dir(folder: RemoteFolder, given: Any) -> Path:
    if given is not None:
        return Path(given).expanduser()
    digest = hashlib.sha1(str(folder).encode(), usedforsecurity=False).hexdigest()[:16]
    home = os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()
    return Path(home, "gristmill", digest)


def _downloaded(urls: Sequence[str], cache_dir: str) -> list[str]:
    from gristmill.sources.storage.cached import cached

    paths: list[str] = cached(list(urls), cache_dir)
    return paths
