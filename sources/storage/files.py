"""Numbered files that are read by ranges.

What holds when several threads and processes use one ``Files``:

1. Any thread may read at any time: no reader keeps a position.
2. A file is opened by the first read of a process that needs it. Copies (pickles) carry paths and sizes, and open anew.
3. What comes back is as long as what was asked for. A file whose size or time of change is not what it was is an error.
4. At most ``_MAX_OPEN`` files are open. One that is closed to make room for another is open until reads under way are done.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import PurePosixPath
from typing import Any, Protocol

from gristmill.sources.storage.local import LocalFile, local_size

_MAX_OPEN = 128
_URL = re.compile(r"[a-zA-Z][a-zA-Z0-9+.-]+://")


class RangeFile(Protocol):
    """A file of which ranges are read, from any thread."""

    def read(self, ranges: Sequence[tuple[int, int]], /) -> list[bytes]: ...

    def read_into(self, start: int, buffer: memoryview, /) -> None: ...


def is_url(path: str) -> bool:
    """Whether ``path`` is that of an object store or a server.

    Example:
        >>> is_url("s3://bucket/a.jsonl"), is_url("/data/a.jsonl")
        (True, False)
    """
    return _URL.match(path) is not None


class Files:
    """Files by number, of which ranges are read.

    Args:
        paths: local paths or URLs, at least one, without patterns (see ``list_files``).
        filesystem: an fsspec file system to read all of them through; with ``None`` URLs are read through obstore.

    Raises:
        OSError: a file does not exist or cannot be read.
        ImportError: a URL, and obstore is not installed.
    """

    def __init__(self, paths: Sequence[str], filesystem: Any = None) -> None:
        self.paths = list(paths)
        self._filesystem = filesystem
        self.sizes = self._sizes()
        self._start_closed()

    def _start_closed(self) -> None:
        self._open: dict[int, RangeFile] = {}
        self._process = os.getpid()

    def _is_remote(self, path: str) -> bool:
        return self._filesystem is not None or is_url(path)

    def _sizes(self) -> list[int]:
        return [local_size(path) for path in self.paths]

    def __len__(self) -> int:
        return len(self.paths)

    def read(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """The bytes ``start`` to ``stop - 1`` of file ``number``, for each ``(number, start, stop)``, in this order.

        Ranges of remote files that lie close together are read by one request, and requests run together.

        Raises:
            ChangedFileError: a file is not what it was.
            OSError: a file cannot be read.
        """
        if len(ranges) == 1:
            ((number, start, stop),) = ranges
            return self._file(number).read([(start, stop)])
        places: dict[int, list[int]] = {}
        for place, (number, _, _) in enumerate(ranges):
            places.setdefault(number, []).append(place)
        answer = [b""] * len(ranges)
        for number, theirs in places.items():
            for place, piece in zip(theirs, self._file(number).read([ranges[place][1:] for place in theirs]), strict=True):
                answer[place] = piece
        return answer

    def read_into(self, number: int, start: int, buffer: memoryview) -> None:
        """Fills ``buffer``, writable and contiguous, with the bytes of file ``number`` from ``start`` on. Raises: as ``read``."""
        self._file(number).read_into(start, buffer)

    def _file(self, number: int) -> RangeFile:
        if self._process != os.getpid():  # a fork: connections are not shared with the other process
            self._start_closed()
        file = self._open.get(number)
        if file is None:
            path = self.paths[number]
            file = LocalFile(path, self.sizes[number])
            while len(self._open) >= _MAX_OPEN:
                self._open.pop(next(iter(self._open)), None)
            self._open[number] = file
        return file

    def described(self) -> str:
        """What tells these files from others, wherever they lie, in a few words: for the ``repr`` of a source.

        Example:
            >>> Files([]).described()
            '0 files, 0 bytes, da39a3ee'
        """
        import hashlib

        text = "".join(f"{PurePosixPath(path).name}:{size};" for path, size in zip(self.paths, self.sizes, strict=True))
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()[:8]
        num_files = f"{len(self)} file{'' if len(self) == 1 else 's'}"
        return f"{num_files}, {sum(self.sizes)} bytes, {digest}"

    def close(self) -> None:
        """Closes all files. The next read opens them again."""
        self._start_closed()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_open", "_process")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_closed()


def list_files(name: str, patterns: Any, filesystem: Any = None) -> list[str]:
    """The files that ``patterns`` stand for: each pattern's in the order of their names, the patterns in the order given.

    Args:
        name: the parameter's name, for messages.
        patterns: a path or URL, or a non-empty sequence of them. ``*``, ``?``, ``[abc]``, ``**`` stand for what is there,
            ``{a,b}`` and ``{000..127}`` for all of these, which must exist.

    Raises:
        TypeError, ValueError: ``patterns`` is something else, or empty.
        FileNotFoundError: nothing is there for one of them.
    """
    import glob

    if isinstance(patterns, str | os.PathLike):
        patterns = [patterns]
    if isinstance(patterns, bytes) or not isinstance(patterns, Sequence):
        raise TypeError(f"{name} must be a path, a pattern or a sequence of them, got {patterns!r:.200}")
    if not patterns:
        raise ValueError(f"{name} must not be empty: it has to name at least one file")
    found: list[str] = []
    for pattern in patterns:
        if not isinstance(pattern, str | os.PathLike) or not isinstance(os.fspath(pattern), str):
            raise TypeError(f"{name} must have items that are paths or patterns, got {pattern!r:.200}")
        for path in with_braces(os.fspath(pattern).removeprefix("file://")):
            if os.path.exists(path):
                found.append(path)
                continue
            those = sorted(glob.glob(path, recursive=True)) if glob.has_magic(path) else []
            if not those:
                raise FileNotFoundError(f"{name}: there is no file {path!r}")
            found += those
    return found


def with_braces(pattern: str) -> list[str]:
    """The patterns that ``{a,b}`` and ``{000..127}`` in ``pattern`` stand for, the leftmost braces changing slowest.

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
        choices = [f"{number:0{width}d}" for number in range(int(match[1]), int(match[2]) + 1)]
    rest = with_braces(pattern[match.end() :])
    return [pattern[: match.start()] + choice + tail for choice in choices for tail in rest]


