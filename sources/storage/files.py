"""Numbered files that are read by ranges.

What holds when several threads and processes use one ``Files``:

1. Any thread may read at any time: no reader keeps a position.
2. A file is opened by the first read of a process that needs it. Copies (pickles) carry paths and
   sizes, and open again.
3. What comes back is as long as requested. A file that is not what it was is an error (see
   ``local``).
4. Connections to stores and servers belong to the process, not to a ``Files`` (see ``remote``).
"""

from __future__ import annotations

import contextlib
import copy
import glob
import os
import re
import urllib.parse
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, ClassVar

from gristmill.sources.storage import forks, remote
from gristmill.sources.storage.local import (
    LocalFile,
    LocalFiles,
    is_local,
    local_size,
    starting_folder,
)
from gristmill.sources.storage.per_process import PerProcess

# in the memo of copy.deepcopy: the function of a ``Files`` that makes what takes its place in the
# copy
REPLACEMENT = "files"
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


def is_url(path: str) -> bool:
    """True if ``path`` is that of an object store or a server.

    Example:
        >>> is_url("s3://bucket/a.jsonl"), is_url("/data/a.jsonl")
        (True, False)
    """
    return _URL.match(path) is not None


class Files(PerProcess):
    """Files by number, of which ranges are read: local ones, and those of object stores and
    servers.

    Sizes of remote files are found out together. Ranges that are close to each other are read by
    one request.

    Args:
        paths: local paths or URLs, at least one, without patterns (see ``list_files``).
        filesystem: an fsspec file system to read all of them through; with ``None`` URLs are read
            through obstore.

    Raises:
        OSError: a file does not exist or cannot be read.
        ImportError: a URL, and obstore is not installed.
        ValueError: a URL of another kind than those of ``remote``.
    """

    _of_process: ClassVar[tuple[str, ...]] = ("_local",)

    def __init__(self, paths: Sequence[str], filesystem: Any = None) -> None:
        self.paths = list(paths)
        # A local file system resolves relative paths at each read.
        if is_local(filesystem):
            self.paths = [path if is_url(path) else os.path.abspath(path) for path in self.paths]  # noqa: PTH100
        self._filesystem = filesystem
        remotely = [filesystem is not None or is_url(path) for path in self.paths]
        those = [path for path, is_remote in zip(self.paths, remotely, strict=True) if is_remote]
        found = iter(remote.find_all(those, filesystem) if those else [])
        # None of local files
        self._found = [next(found) if is_remote else None for is_remote in remotely]
        self.sizes = [
            known.size if known else local_size(path)
            for path, known in zip(self.paths, self._found, strict=True)
        ]
        self._starting_folder = starting_folder(
            [path for path, is_remote in zip(self.paths, remotely, strict=True) if not is_remote]
        )
        self._start_closed()

    def _start_closed(self) -> None:
        self._local = LocalFiles(
            [self.local_path(number) for number in range(len(self.paths))], self.sizes
        )
        super()._start_closed()

    def __len__(self) -> int:
        return len(self.paths)

    def local_path(self, number: int) -> str:
        """Return the absolute path of a local file, for libraries that open it themselves."""
        return os.path.join(self._starting_folder, self.paths[number])  # noqa: PTH118

    def read(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Returns the bytes ``start`` to ``stop - 1`` of file ``number``, for each
        ``(number, start, stop)``, in this order.

        Ranges of remote files that are close together are read by one request, and requests run
        together.

        Raises:
            ChangedFileError: a file is not what it was.
            OSError: a file cannot be read.
        """
        if not ranges:
            return []
        first = ranges[0][0]
        is_one = first == ranges[-1][0] and (
            len(ranges) < 3 or all([one[0] == first for one in ranges])
        )
        if is_one and self._found[first] is None:
            return self._file(first).read(ranges)
        places: dict[int | None, list[int]] = {}  # those of all remote files are read together
        for place, (number, _, _) in enumerate(ranges):
            places.setdefault(number if self._found[number] is None else None, []).append(place)
        answer = [b""] * len(ranges)
        for which, theirs in places.items():
            wanted = [ranges[place] for place in theirs]
            pieces = self._read_remote(wanted) if which is None else self._file(which).read(wanted)
            for place, piece in zip(theirs, pieces, strict=True):
                answer[place] = piece
        return answer

    def _read_remote(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        for one in ranges:
            remote.check_range(self.paths, self.sizes, one)
        return remote.read_ranges(self.paths, self._found, self._filesystem, ranges)

    def is_local(self, number: int) -> bool:
        """Returns True for a local file, False for one of a store or server."""
        return self._found[number] is None

    def read_one(self, number: int, start: int, stop: int) -> bytes:
        """Returns the bytes ``start`` to ``stop - 1`` of one file. Raises: as ``read``."""
        if self._found[number] is None:
            return self._file(number).read_one(start, stop)
        return self._read_remote([(number, start, stop)])[0]

    def read_into(self, number: int, start: int, buffer: memoryview) -> None:
        """Fills ``buffer``, writable and contiguous, with the bytes of file ``number`` from
        ``start`` on. Raises: as ``read``.
        """
        if self._found[number] is None:
            self._file(number).read_into(start, buffer)
        else:
            buffer = buffer.cast("B")
            buffer[:] = self._read_remote([(number, start, start + len(buffer))])[0]

    def _file(self, number: int) -> LocalFile:
        if self._fork != forks.number:  # what is closed here stays open in the parent process
            self._start_closed()
        return self._local.opened.get(number) or self._local.file(number)

    def described(self) -> str:
        """Returns a short text that identifies these files in any folder, for the ``repr`` of a
        source.

        Example:
            >>> Files([]).described()
            '0 files, 0 bytes, da39a3ee'
        """
        import hashlib

        text = "".join(
            f"{PurePosixPath(remote.without_query(path)).name}:{size};"
            for path, size in zip(self.paths, self.sizes, strict=True)
        )
        digest = hashlib.sha1(
            text.encode("utf-8", "surrogateescape"), usedforsecurity=False
        ).hexdigest()[:8]
        num_files = f"{len(self)} file{'' if len(self) == 1 else 's'}"
        return f"{num_files}, {sum(self.sizes)} bytes, {digest}"

    def close(self) -> None:
        """Closes all files. The next read opens them again."""
        self._local.close()

    def __deepcopy__(self, memo: dict[Any, Any]) -> Files:
        if REPLACEMENT in memo:
            replaced: Files = memo[REPLACEMENT](self)
            return replaced
        duplicate = copy.copy(self)
        duplicate.__setstate__(copy.deepcopy(self.__getstate__(), memo))
        return duplicate


def list_files(name: str, patterns: Any, filesystem: Any = None) -> list[str]:
    """Returns the files that ``patterns`` stand for: each pattern's in the order of their names,
    the patterns in the order given.

    Args:
        name: the parameter's name, for messages.
        patterns: a path or URL, or a non-empty sequence of them. ``*``, ``?``, ``[abc]``, ``**``
            stand for what is there, ``{a,b}`` and ``{000..127}`` for all of these, which must
            exist. Servers (``https://``) do not list what is there.
        filesystem: an fsspec file system, of which these are paths.

    Raises:
        TypeError, ValueError: ``patterns`` is something else, or empty, or a pattern of a server's
            files.
        FileNotFoundError: nothing is there for one of them.
    """
    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    if isinstance(patterns, bytes) or not isinstance(patterns, Sequence):
        raise TypeError(
            f"{name} must be a path, a pattern or a sequence of them, got {patterns!r:.200}"
        )
    if not patterns:
        raise ValueError(f"{name} must not be empty: it has to name at least one file")
    found: list[str] = []
    for pattern in patterns:
        if not isinstance(pattern, str | os.PathLike) or not isinstance(os.fspath(pattern), str):
            raise TypeError(
                f"{name} must have items that are paths or patterns, got {pattern!r:.200}"
            )
        for path in _one_by_one(name, os.fspath(pattern), filesystem):
            those = _files_like(path, filesystem)
            if not those:
                raise FileNotFoundError(f"{name}: there is no file {path!r}")
            found += those
    return found


def _one_by_one(name: str, pattern: str, filesystem: Any) -> list[str]:
    """Returns the expansions of the braces in a pattern. A local file may have them in its name."""
    if filesystem is None and pattern.startswith("file://"):
        pattern = urllib.parse.unquote(pattern.removeprefix("file://"))
    if filesystem is None and not is_url(pattern) and Path(pattern).exists():
        return [pattern]
    return with_braces(pattern, name)


def _files_like(path: str, filesystem: Any) -> list[str]:
    """Returns the files that ``path`` stands for. Of remote ones that are no pattern ``Files``
    finds out whether they exist.
    """
    if filesystem is not None or is_url(path):
        return (
            sorted(remote.stores_of([path], filesystem)[0].names(path))
            if remote.has_pattern(path)
            else [path]
        )
    if Path(path).exists():
        return [path]
    return sorted(_matching(path)) if glob.has_magic(path) else []


def _matching(pattern: str) -> set[str]:
    """Return the local paths that match ``pattern``, as ``glob.glob`` spells them.

    ``glob.glob`` itself follows loops of symbolic links some forty times. ``**`` at the end matches
    only files.
    """
    names = pattern.split("/")
    if "**" not in names:
        return set(glob.glob(pattern))  # noqa: PTH207 - paths as they were given
    place = names.index("**")
    start, rest = "/".join([*names[:place], ""]), "/".join(names[place + 1 :])
    found: set[str] = set()
    for top in glob.glob(start) if start.strip("/") else [start]:  # noqa: PTH207
        path = Path(top).absolute()
        for folder in _folders_below(
            top, {_identity(above.stat()) for above in (path, *path.parents)}
        ):
            found |= _matching(f"{glob.escape(folder)}{rest or '*'}")
    return found if rest else {path for path in found if not Path(path).is_dir()}


def _folders_below(folder: str, above: set[tuple[int, int]]) -> Iterator[str]:
    """Yields ``folder`` and the folders in it, except for hidden ones.

    All end with a slash, except for ``""``, the current folder. Links to the folders ``above``,
    which contain ``folder``, are not followed. Folders that cannot be read are skipped, as by
    ``glob.glob``.
    """
    yield folder
    inner: dict[str, tuple[int, int]] = {}
    with contextlib.suppress(OSError), os.scandir(folder or ".") as entries:
        for entry in entries:
            # a link to itself, or into a folder that cannot be read
            with contextlib.suppress(OSError):
                if entry.is_dir() and not entry.name.startswith("."):
                    inner[f"{folder}{entry.name}/"] = _identity(entry.stat())
    for path, identity in inner.items():
        if identity not in above:
            yield from _folders_below(path, {*above, identity})


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def with_braces(pattern: str, name: str = "pattern") -> list[str]:
    """Returns the patterns that ``{a,b}`` and ``{000..127}`` in ``pattern`` stand for, the leftmost
    braces changing slowest.

    Example:
        >>> with_braces("{a,b}-{08..10}.tar")
        ['a-08.tar', 'a-09.tar', 'a-10.tar', 'b-08.tar', 'b-09.tar', 'b-10.tar']
    """
    match = re.search(r"\{(?:(\d+)\.\.(\d+)|([^{}]*,[^{}]*))\}", pattern)
    if match is None:
        return [pattern]
    if match[3] is not None:
        choices = match[3].split(",")
    else:
        width = len(match[1]) if len(match[1]) == len(match[2]) or match[1].startswith("0") else 0
        if int(match[1]) > int(match[2]):
            raise ValueError(
                f"{name}: {match[0]} stands for nothing, since {match[1]} is more than {match[2]};"
                " turn them round"
            )
        choices = [f"{number:0{width}d}" for number in range(int(match[1]), int(match[2]) + 1)]
    rest = with_braces(pattern[match.end() :], name)
    return [pattern[: match.start()] + choice + tail for choice in choices for tail in rest]
