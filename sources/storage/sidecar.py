"""Sidecars: arrays that are noted beside a data file, ``<file>.gmidx``, and read by ranges.

A sidecar begins with 20 bytes (magic, version, size and CRC-32 of the header) and the header, a
JSON text that is padded to a multiple of 64 bytes: the kind of the data, their size, SHA-1 of their
first and last 16 KiB, and for each array its type, where it begins after the header, and its
length. The arrays follow, little-endian, each from a multiple of 64 bytes on.

Sidecars are made once, by the first process that needs them: see the guarantees in ``once.py``.
Processes that find that one is being made turn to the next file and look again later, so
processes that begin together divide the files among them.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import struct
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import numpy as np

from gristmill.core.uninterrupted import computed_by
from gristmill.sources.storage.errors import changed, damaged
from gristmill.sources.storage.files import Files, is_url
from gristmill.sources.storage.once import explained, locked, name_that_fits, renamed
from gristmill.sources.storage.progress import Progress

Sizes = Mapping[str, tuple[str, int]]
"""Dtype and length of each array of a sidecar."""

REMEDY = "Delete it, so that it is made again"
"""Text of errors about a sidecar whose arrays are damaged."""

Scan = Callable[[Files, int, Callable[[int], None]], Mapping[str, np.ndarray]]
"""Reads a file once, from front to back: ``scan(files, number, progress)``. It passes the number of
bytes read so far to ``progress``.
"""

_MAGIC = b"\x89GMIDX\r\n"
_VERSION = 1
_PREFIX = struct.Struct("<8sIII")  # magic, version, size of the header, its CRC-32
_ALIGNMENT = 64
_DTYPES = ("|u1", "<u2", "<u4", "<u8", "|i1", "<i2", "<i4", "<i8", "<f4", "<f8")
_EDGE_BYTES = 1 << 14  # of the data's head and tail that are compared
_GUESSED_BYTES = 4096  # most headers are shorter
_GAP_ITEMS = 512  # items at most that far apart are read at once
_NUM_THREADS = 8
_NO_SUCH_PLACE = (errno.ENOTDIR, errno.ENAMETOOLONG)  # explained by the code that writes there
_WAIT_SECONDS = 0.05  # until locks of other processes are tried again

_log = logging.getLogger("gristmill")


class _Edges(NamedTuple):
    """A digest that identifies data without reading all of them."""

    size: int
    head: str
    tail: str

    def difference(self, other: _Edges) -> str | None:
        """Return in words how the data of ``other`` differ; ``None`` if they are the same."""
        if self.size != other.size:
            return f"it had {self.size} bytes and has {other.size}"
        if self.head != other.head:
            return f"its first {min(self.size, _EDGE_BYTES)} bytes are others"
        return (
            None
            if self.tail == other.tail
            else f"its last {min(self.size, _EDGE_BYTES)} bytes are others"
        )


class _Array(NamedTuple):
    dtype: str
    start: int  # in the sidecar
    length: int


class _Header(NamedTuple):
    kind: str
    data: _Edges
    arrays: dict[str, _Array]
    digest: str
    stop: int  # the number of bytes of the sidecar


class _Unfit(Exception):
    """Why a sidecar cannot be used and has to be made again."""


class Sidecar:
    """Named arrays noted beside a data file, read by ranges, never loaded whole.

    When a process first reads it, it sees whether the data are what the sidecar is of, and whether
    that is still the same. Pickles hold the names of the files. All methods may be called by
    several threads at once.

    Args:
        files: the sidecars of a source.
        number: which of them.
        data: the data files of the source.
        data_number: which of them this is the sidecar of.
        digest: what the header was when the source was made.
        is_remote: whether the data are in a store or on a server; ``data`` sees then, in each
            process, whether they have changed.
    """

    def __init__(
        self,
        files: Files,
        number: int,
        data: Files,
        data_number: int,
        digest: str,
        is_remote: bool = False,
    ) -> None:
        self._files, self._number = files, number
        self._data, self._data_number = data, data_number
        self._digest, self._is_remote = digest, is_remote
        self._opened: tuple[int, dict[str, _Array]] | None = None

    @property
    def path(self) -> str:
        """The file that the arrays are in."""
        return self._files.paths[self._number]

    def names(self) -> list[str]:
        """Return the names of the arrays."""
        return [*self._arrays()]

    def length(self, name: str) -> int:
        """Return the number of items of an array."""
        return self._arrays()[name].length

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return the items ``start`` to ``stop - 1`` of an array, as a new one: one read.

        Raises:
            ChangedFileError: the sidecar or the data are not what they were.
            OSError: one of them cannot be read.
        """
        array = self._arrays()[name]
        assert 0 <= start <= stop <= array.length, (name, start, stop, array.length)
        items = np.empty(stop - start, array.dtype)
        if stop > start:
            self._files.read_into(
                self._number, array.start + start * items.itemsize, items.view(np.uint8).data
            )
        return items

    def read_many(
        self, name: str, starts: Sequence[int] | np.ndarray, count: int = 1
    ) -> np.ndarray:
        """Return the items ``start`` to ``start + count - 1`` of an array for each of ``starts``.

        Returns:
            An array of shape (number of starts, ``count``). Items that are close together are read
            at once. Raises: as ``read``.
        """
        if len(starts) == 1:
            return self.read(name, int(starts[0]), int(starts[0]) + count)[np.newaxis]
        array = self._arrays()[name]
        items = np.empty((len(starts), count), array.dtype)
        if not len(starts):
            return items
        starts = np.asarray(starts, np.int64)
        order = np.argsort(starts, kind="stable")
        starts = starts[order]
        # of a run that is read at once
        is_first = np.diff(starts, prepend=starts[0] - _GAP_ITEMS - 1) > _GAP_ITEMS
        low = starts[is_first]
        high = starts[np.flatnonzero(np.append(is_first[1:], True))] + count
        assert low[0] >= 0 and high[-1] <= array.length, (name, low[0], high[-1], array.length)
        bounds = (array.start + np.stack([low, high], 1) * items.itemsize).tolist()
        runs = b"".join(self._files.read([(self._number, start, stop) for start, stop in bounds]))
        # from an item's number in the array to that in the runs
        shifts = np.cumsum(high - low) - high
        places = starts + shifts[np.cumsum(is_first) - 1]
        items[order] = np.frombuffer(runs, array.dtype)[places[:, np.newaxis] + np.arange(count)]
        return items

    def close(self) -> None:
        """Closes the file. The next read opens it again."""
        self._files.close()

    def _arrays(self) -> dict[str, _Array]:
        opened = self._opened
        if opened is None or opened[0] != os.getpid():
            opened = self._opened = os.getpid(), self._checked_arrays()
        return opened[1]

    def _checked_arrays(self) -> dict[str, _Array]:
        path = self._data.paths[self._data_number]
        try:
            header = _read_header(self._files, self._number)
        except _Unfit as why:
            raise changed(path, f"its index {self._files.paths[self._number]} {why}") from None
        difference = (
            None
            if self._is_remote
            else header.data.difference(_edges(self._data, self._data_number))
        )
        if difference is not None:
            raise changed(path, difference)
        if header.digest != self._digest:
            raise changed(path, f"its index {self._files.paths[self._number]} is another")
        return header.arrays

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}


def open_sidecars(
    files: Files,
    kind: str,
    scan: Scan,
    *,
    fits: Callable[[Sizes], bool] = lambda _: True,
    index_dir: str | os.PathLike[str] | None = None,
    filesystem: Any = None,
) -> list[Sidecar]:
    """Return the sidecars of all ``files``, in their order; those that are missing or do not fit
    are made first.

    A sidecar is looked for in ``index_dir``, if there is one, and beside its file. It is made in
    ``index_dir``, else beside the file. Meanwhile a progress bar is shown, if tqdm is installed and
    standard error is a terminal.

    Args:
        files: the data.
        kind: what the data are and what is noted about them. Data have sidecars of one kind only,
            beside them.
        scan: makes the arrays, little-endian and of one dimension. Several threads call it at once,
            for different files.
        fits: returns true if ``scan`` may have made arrays of these sizes; if not, they are made
            again.
        index_dir: a folder for sidecars of files whose own folder cannot be written; it is made if
            it does not exist.
        filesystem: the fsspec file system that ``files`` were made with.

    Raises:
        DamagedFileError: something that is not a sidecar of this kind has the name of one; or
            any damage that ``scan`` finds.
        OSError: a file cannot be read, or a sidecar cannot be written.
        ValueError: a remote file has no sidecar beside it and ``index_dir`` is not given.
    """
    folder = None if index_dir is None else Path(index_dir).absolute()
    places = _Opening(files, kind, scan, fits, folder, filesystem).all()
    remote = Files([place.path for place in places if place.is_remote], filesystem)
    local = Files([place.path for place in places if not place.is_remote])
    counts = {True: iter(range(len(remote))), False: iter(range(len(local)))}
    sidecars = []
    for number, (place, path) in enumerate(zip(places, files.paths, strict=True)):
        group = remote if place.is_remote else local
        is_remote = filesystem is not None or is_url(path)
        sidecars.append(
            Sidecar(group, next(counts[place.is_remote]), files, number, place.digest, is_remote)
        )
    return sidecars


class _SidecarPath(NamedTuple):
    """The path of a sidecar."""

    path: str
    is_remote: bool
    digest: str


class _Opening:
    """One call of ``open_sidecars``."""

    def __init__(
        self,
        files: Files,
        kind: str,
        scan: Scan,
        fits: Callable[[Sizes], bool],
        folder: Path | None,
        filesystem: Any,
    ) -> None:
        self._files, self._kind, self._scan, self._fits = files, kind, scan, fits
        self._folder, self._filesystem = folder, filesystem
        self._is_stopped = False

    def all(self) -> list[_SidecarPath]:
        found = self._in_threads(self._find, range(len(self._files)))
        missing = [number for number, place in enumerate(found) if place is None]
        if not missing:
            return [place for place in found if place is not None]
        if self._folder is not None:
            with explained(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
        with Progress({number: self._files.sizes[number] for number in missing}) as self._progress:
            while missing:
                for number, place in zip(
                    missing, self._in_threads(self._make, missing), strict=True
                ):
                    found[number] = place
                missing = [number for number in missing if found[number] is None]
                if missing:
                    _log.debug(
                        "another process makes the index of %s", self._files.paths[missing[0]]
                    )
                    time.sleep(_WAIT_SECONDS)
        return [place for place in found if place is not None]

    def _in_threads(
        self, function: Callable[[int], _SidecarPath | None], numbers: Sequence[int]
    ) -> list[_SidecarPath | None]:
        """Return the results for all numbers, in their order. Raises the first error in this order,
        when all threads have ended.
        """
        if len(numbers) == 1:
            return [function(numbers[0])]
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(min(len(numbers), _NUM_THREADS) or 1) as pool:
            try:
                return computed_by(pool, function, numbers)
            except BaseException:
                self._is_stopped = True
                raise

    def _is_remote(self, number: int) -> bool:
        return self._filesystem is not None or is_url(self._files.paths[number])

    def _own_place(self, number: int) -> Path:
        """Return the path at which the sidecar is made: in ``index_dir`` by a name that no other
        path and no other kind has there.
        """
        path, _ = _without_query(self._files.paths[number])
        if self._folder is None:
            return Path(_beside(path))
        whole = path if self._is_remote(number) else Path(path).resolve()
        text = f"{self._kind}\n{whole}".encode("utf-8", "surrogateescape")
        digest = hashlib.sha1(text, usedforsecurity=False).hexdigest()[:16]
        return self._folder / name_that_fits(PurePosixPath(path).name[:100], f"-{digest}.gmidx")

    def _find(self, number: int) -> _SidecarPath | None:
        """Return a sidecar that fits, if there is one."""
        name, query = _without_query(self._files.paths[number])
        candidates = [(f"{_beside(name)}{query}", self._is_remote(number))]
        if self._folder is not None:
            candidates.insert(0, (str(self._own_place(number)), False))
        for path, is_remote in candidates:
            try:
                return self._fitting(path, is_remote, number)
            except OSError as error:  # some object stores refuse what is not there
                is_missing = isinstance(error, FileNotFoundError) or error.errno in _NO_SUCH_PLACE
                if not is_missing and not (is_remote and self._folder is not None):
                    raise
            except _Unfit as why:
                _log.warning("%s is not used, an index is made again: %s", path, why)
        if self._folder is None and self._is_remote(number):
            raise ValueError(
                f"index_dir must be given: {name} has no index beside it that fits, and none can be"
                " written there; name a folder on this machine for it"
            )
        return None

    def _fitting(self, path: str, is_remote: bool, number: int) -> _SidecarPath:
        """Return the sidecar at ``path``. Raises FileNotFoundError, _Unfit, and DamagedFileError if
        nothing may be written there.
        """
        header = _read_header(Files([path], self._filesystem if is_remote else None), 0)
        if header.kind != self._kind:
            if self._folder is not None:
                raise _Unfit(f"it is of the kind {header.kind!r}, not {self._kind!r}")
            what = f"it is an index of the kind {header.kind!r}, not {self._kind!r}"
            raise damaged(path, 0, what, "Delete it, or give a folder as index_dir")
        difference = header.data.difference(_edges(self._files, number))
        if difference is not None:
            raise _Unfit(f"{self._files.paths[number]} is not what it was: {difference}")
        if not self._fits(
            {name: (array.dtype, array.length) for name, array in header.arrays.items()}
        ):
            raise _Unfit("its arrays are not those of this version")
        return _SidecarPath(path, is_remote, header.digest)

    def _make(self, number: int) -> _SidecarPath | None:
        """Return the sidecar, made by this process or another; ``None`` while another process makes
        it.
        """
        path = self._own_place(number)
        with locked(path) as is_mine:
            if not is_mine:
                return None
            # unless another process has made it
            with contextlib.suppress(FileNotFoundError, _Unfit):
                return self._fitting(str(path), False, number)

            def progress(num_bytes: int) -> None:
                if self._is_stopped:
                    raise InterruptedError(
                        f"{self._files.paths[number]} has no index: that of another file could not"
                        " be made"
                    )
                self._progress.report(number, num_bytes)

            edges = _edges(self._files, number)
            arrays = self._scan(self._files, number, progress)
            progress(self._files.sizes[number])
            return _SidecarPath(str(path), False, _write(path, self._kind, edges, arrays))


def without_sidecars(paths: Sequence[str]) -> list[str]:
    """Return the paths of data: patterns such as ``data/*`` match sidecars, too, and what is there
    while they are made.

    Example:
        >>> without_sidecars(["a.jsonl", "a.jsonl.gmidx", "b.jsonl"])
        ['a.jsonl', 'b.jsonl']
    """
    return [
        path
        for path in paths
        if not re.search(r"\.gmidx(\.lock|\..*\.part)?$", _without_query(path)[0])
    ]


def _beside(path: str) -> str:
    """Return the path of the sidecar beside a file: ``<path>.gmidx``, or a shorter name."""
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{name_that_fits(name, '.gmidx')}"


def _without_query(path: str) -> tuple[str, str]:
    """Return a path, and what follows it in the URL of a server: signatures, which are others every
    time.
    """
    name, mark, query = (
        path.partition("?") if path.startswith(("http://", "https://")) else (path, "", "")
    )
    return name, mark + query


def _edges(files: Files, number: int) -> _Edges:
    size = files.sizes[number]
    head, tail = files.read(
        [(number, 0, min(size, _EDGE_BYTES)), (number, max(0, size - _EDGE_BYTES), size)]
    )
    return _Edges(
        size, *[hashlib.sha1(edge, usedforsecurity=False).hexdigest() for edge in (head, tail)]
    )


def _read_header(files: Files, number: int) -> _Header:
    """Return the header of a sidecar.

    Raises:
        _Unfit: it is a sidecar, but not a whole one of this version.
        DamagedFileError: it is something else, which must not be overwritten.
        OSError: there is no such file, or it cannot be read.
    """
    path, size = files.paths[number], files.sizes[number]
    (start,) = files.read([(number, 0, min(size, _GUESSED_BYTES))])
    if not start.startswith(_MAGIC):
        raise damaged(
            path,
            0,
            "it is not an index of gristmill",
            "Delete it, or give a folder for indices as index_dir",
        )
    if len(start) < _PREFIX.size:
        raise _Unfit("it is shorter than its header")
    _, version, num_bytes, checksum = _PREFIX.unpack_from(start)
    if version != _VERSION:
        raise _Unfit(f"it is of version {version}, not {_VERSION}")
    body = _PREFIX.size + num_bytes
    if body > size:
        raise _Unfit("it is shorter than its header")
    if body > len(start):
        (start,) = files.read([(number, 0, body)])
    text = start[_PREFIX.size : body]
    if zlib.crc32(text) != checksum:
        raise _Unfit("its header has another checksum than it says")
    try:
        header = _parsed(text, body)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError):
        raise _Unfit("its header is not one that gristmill writes") from None
    if header.stop != size:
        raise _Unfit(f"it has {size} bytes, not {header.stop}")
    return header


def _parsed(text: bytes, body: int) -> _Header:
    """Return the header in this text, of a sidecar whose arrays begin at byte ``body``.

    Raises:
        AttributeError, KeyError, TypeError, ValueError, RecursionError: it is not as ``_write``
            writes it.
    """
    fields = json.loads(text)
    kind, edges = fields["kind"], _Edges(*fields["data"])
    arrays: dict[str, _Array] = {}
    start = 0
    for name, (dtype, stated_start, length) in fields["arrays"].items():
        if dtype not in _DTYPES or type(length) is not int or length < 0 or stated_start != start:
            raise ValueError(name)
        arrays[name] = _Array(dtype, body + start, length)
        start += _padded(length * np.dtype(dtype).itemsize)
    if not isinstance(kind, str) or fields["num_bytes"] != start:
        raise ValueError(kind)
    return _Header(
        kind, edges, arrays, hashlib.sha1(text, usedforsecurity=False).hexdigest(), body + start
    )


def _padded(num_bytes: int) -> int:
    return -(-num_bytes // _ALIGNMENT) * _ALIGNMENT


def _write(path: Path, kind: str, edges: _Edges, arrays: Mapping[str, np.ndarray]) -> str:
    """Writes a sidecar. Returns the digest of its header."""
    table: dict[str, tuple[str, int, int]] = {}
    num_bytes = 0
    for name, array in arrays.items():
        assert array.ndim == 1 and array.dtype.str in _DTYPES, name
        table[name] = (array.dtype.str, num_bytes, len(array))
        num_bytes += _padded(array.nbytes)
    fields = {"kind": kind, "data": edges, "arrays": table, "num_bytes": num_bytes}
    text = json.dumps(fields).encode()
    text += b" " * (-(_PREFIX.size + len(text)) % _ALIGNMENT)
    with explained(path), renamed(path) as file:
        file.write(_PREFIX.pack(_MAGIC, _VERSION, len(text), zlib.crc32(text)) + text)
        for array in arrays.values():
            file.write(np.ascontiguousarray(array).view(np.uint8).data)
            file.write(bytes(-array.nbytes % _ALIGNMENT))
    return hashlib.sha1(text, usedforsecurity=False).hexdigest()
