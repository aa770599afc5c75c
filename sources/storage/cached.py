"""Remote files that are kept on a local disk while they are read: ``cached``.

A source reads remote files through ``Files``, its own or those of its parts. ``cached`` copies the
source as pickling it does, so without what is open, with a ``CachedFiles`` in place of each
``Files`` that is met on the way. Nothing else is asked of a source.

What holds when several threads and processes read through a cache (see also ``parts``):

1. What is read is the same as without the cache, and of one version. A file in another version, or
   of another size, is another file. One whose store reports no versions is downloaded as a whole,
   from one answer, before any of it is read.
2. A block is fetched by one thread at a time, in all processes. No thread waits for it for longer
   than ``_WAIT_SECONDS``, or while it fetches a block itself: after that it fetches the block, too.
3. Where nothing can be kept, what is read comes from the store, and one warning says so.
"""

from __future__ import annotations

import copy
import errno
import hashlib
import logging
import os
import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from gristmill.core.descriptors import max_descriptors
from gristmill.core.errors import as_int
from gristmill.core.locks import Lock
from gristmill.sources.storage import forks
from gristmill.sources.storage.files import REPLACEMENT, Files, is_url, list_files
from gristmill.sources.storage.once import explained, reason
from gristmill.sources.storage.parts import SUFFIX, CachePart, PartLayout, Room, Trust, layout_for
from gristmill.sources.storage.remote import Found, check_range, check_versions, without_query
from gristmill.sources.storage.whole_files import whole_files

_log = logging.getLogger("gristmill")

_MAX_OPEN = max(64, min(1024, max_descriptors() // 4))  # parts of 256 MB
_WAIT_SECONDS = 20.0
_RETRY_SECONDS = 60.0  # after the disk was full, say
_BLOCKS_AT_ONCE = 64  # in memory
_EXPLAINED = ("keep files in", "folder")
_SIGNED = re.compile(r"(^|&)(x-amz-signature|x-goog-signature|signature|sig)=", re.IGNORECASE)

Block = tuple[int, int]  # the number of a file, and which of its blocks


def cached(
    source_or_urls: Any,
    folder: str | os.PathLike[str],
    max_bytes: int | None = None,
    *,
    filesystem: Any = None,
) -> Any:
    """Returns a source that keeps what it reads from afar in ``folder``; or, for URLs, the local
    paths of these files, downloaded.

    The source has the same elements and the same ``repr`` as ``source_or_urls``, and reads blocks
    of 1 MB. What was read once, by whichever process of this machine, is read from the disk from
    then on, if its checksums are right. A file that has changed in its store is another one. Where
    a store reports neither entity tags nor times of change, a warning says so, and each file is
    downloaded as a whole for this source and its copies alone.

    URLs are for libraries that want paths: all files that are not in ``folder`` are downloaded
    before this returns.

    Any number of processes may share ``folder``, which must be on a disk of this machine, and any
    may be killed at any time.

    Args:
        source_or_urls: a source of gristmill that reads URLs, or a URL, a pattern or a sequence of
            them (see ``JsonlSource``); local paths among them are returned as they are.
        folder: where files are kept; made if it does not exist.
        max_bytes: how much may be kept there, at least 64 KB; above that, what was used least
            recently is thrown away. Files whose paths were given to a process that lives stay. By
            default there is no limit but the disk.
        filesystem: for URLs, a file system of fsspec to read them through. A source has its own.

    Returns:
        a copy of the source, or a list of paths.

    Raises:
        TypeError: this is no source that reads files by ranges.
        ValueError: ``max_bytes`` is too small.
        OSError: ``folder`` cannot be written; or, for URLs, one cannot be read, or there is not
            enough room.

    Example:
        >>> import tempfile, fsspec
        >>> memory = fsspec.filesystem("memory")
        >>> memory.pipe("/bucket/a.txt", b"some text")
        >>> [path] = cached("/bucket/*.txt", tempfile.mkdtemp(), filesystem=memory)
        >>> with open(path) as file:
        ...     print(file.read())
        some text
    """
    if max_bytes is not None:
        max_bytes = as_int("max_bytes", max_bytes)
        if max_bytes < 64 << 10:
            raise ValueError(
                f"max_bytes must be at least 65536 (64 KB), or None for no limit, got {max_bytes}"
            )
    kept = Path(folder).absolute()
    with explained(kept, *_EXPLAINED):
        kept.mkdir(parents=True, exist_ok=True)
        if not os.access(kept, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    folder = str(kept)
    if isinstance(source_or_urls, str | os.PathLike | list | tuple):
        return _downloaded(source_or_urls, folder, max_bytes, filesystem)
    if filesystem is not None:
        raise TypeError("filesystem is for URLs: give it to the source")
    return _through_a_cache(source_or_urls, folder, max_bytes)


def _downloaded(urls: Any, folder: str, max_bytes: int | None, filesystem: Any) -> list[str]:
    paths = list_files("source_or_urls", urls, filesystem)
    numbers = [
        number for number, path in enumerate(paths) if filesystem is not None or is_url(path)
    ]
    if numbers:
        files = Files(paths, filesystem)
        warn_of_versions(files, numbers)
        found = downloaded(files, numbers, uuid.uuid4().hex, folder, Room(folder, max_bytes))
        for number, path in zip(numbers, found, strict=True):
            paths[number] = path
    return paths


def downloaded(
    files: Files, numbers: Sequence[int], otherwise: str, folder: str, room: Room
) -> list[str]:
    """Returns the local paths of remote files, as ``whole_files`` does.

    ``otherwise`` replaces a version that is not known.
    """
    identities = [identity_of(files, number, otherwise) for number in numbers]
    with explained(Path(folder), *_EXPLAINED):
        return whole_files(files, numbers, identities, folder, room)


def _through_a_cache(source: Any, folder: str, max_bytes: int | None) -> Any:
    replaced: list[Files] = []

    def wrap(files: Files) -> Files:
        replaced.append(files)
        warn_of_versions(files, range(len(files)))
        return CachedFiles(files, folder, max_bytes)

    memo: dict[Any, Any] = {REPLACEMENT: wrap}
    try:
        duplicate = copy.deepcopy(source, memo)
    except TypeError:  # what cannot be pickled
        replaced.clear()
    if not replaced:
        raise TypeError(
            "source_or_urls must be a source that reads files by ranges, such as JsonlSource, or"
            f" URLs, got a {type(source).__name__}. For a library that wants local paths, make the"
            " source of cached(urls, folder)"
        )
    return duplicate


def identity_of(files: Files, number: int, otherwise: str) -> str:
    """Returns the text that identifies a remote file, with ``otherwise`` in place of a version if
    its store has none.

    Of a signed address, what is signed is part of it.
    """
    path, found, filesystem = files.paths[number], files._found[number], files._filesystem
    assert found is not None
    if path.startswith(("http://", "https://")) and _SIGNED.search(urlsplit(path).query):
        path = without_query(path)
    return f"{_text_of(filesystem)} {path} {found.size} {found.version or otherwise}"


def warn_of_versions(files: Files, numbers: Sequence[int]) -> None:
    """Warns of files whose store reports no version."""
    unversioned = [number for number in numbers if not _has_version(files._found[number])]
    if unversioned:
        _log.warning(
            "cached: the store of %s%s reports no versions (neither an entity tag nor a time of"
            " change). Each such file is downloaded as a whole, from one answer, so that it is of"
            " one version; no other source and no later program uses it",
            without_query(files.paths[unversioned[0]]),
            f" and {len(unversioned) - 1} more" if len(unversioned) > 1 else "",
        )


def _has_version(found: Found | None) -> bool:
    """Returns False for a remote file without a known version."""
    return found is None or bool(found.version)


def _text_of(filesystem: Any) -> str:
    """Returns the text that identifies a file system of fsspec."""
    if filesystem is None:
        return ""
    try:
        return str(filesystem.to_json(include_password=False))
    except (AttributeError, TypeError, ValueError):  # arguments that are no JSON
        return f"{type(filesystem).__module__}.{type(filesystem).__qualname__}"


class _UnderWay:
    """Blocks that threads of this process fetch, with the locks that the threads hold meanwhile."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._blocks: dict[Block, Lock] = {}

    def begin(self, block: Block, mine: Lock) -> Lock | None:
        """Return the lock of the thread that fetches the block; ``None``: the caller is to do
        so.
        """
        with self._lock:
            other = self._blocks.get(block)
            if other is not None and not other.is_free():
                return other
            self._blocks[block] = mine
            return None

    def end(self, mine: Lock) -> None:
        """Forget the blocks of a thread. If an interrupt prevents that, its lock is free."""
        with self._lock:
            self._blocks = {block: lock for block, lock in self._blocks.items() if lock is not mine}


def _blocks_of(number: int, start: int, stop: int, block_bytes: int) -> list[Block]:
    return [(number, block) for block in range(start // block_bytes, -(-stop // block_bytes))]


def _few_blocks_at_a_time(
    places: Iterable[int], ranges: Sequence[tuple[int, int, int]], block_bytes: int
) -> Iterator[list[int]]:
    """Yields ``places``, those of missing ranges, in groups that need few blocks each."""
    group: list[int] = []
    blocks: set[Block] = set()
    for place in sorted(places, key=ranges.__getitem__):
        own = _blocks_of(*ranges[place], block_bytes)
        blocks.update(own)
        if group and len(blocks) > _BLOCKS_AT_ONCE:
            yield group
            group, blocks = [], set(own)
        group.append(place)
    if group:
        yield group


class CachedFiles(Files):
    """The same files as ``files``, of which remote ones are read by blocks that are kept in a
    folder.

    Args:
        files: files, local ones or others; their paths, sizes and description are those of this.
        folder: where blocks are kept, an absolute path.
        max_bytes: how much; ``None`` for no limit.
    """

    _of_process = (
        *Files._of_process,
        *("_parts", "_names", "_under_way", "_room", "_unversioned", "_whole"),
        *("_keep_again_at", "_look_after_at"),
    )

    def __init__(self, files: Files, folder: str, max_bytes: int | None) -> None:
        self._folder, self._max_bytes = folder, max_bytes
        self._layout: PartLayout = layout_for(max_bytes)
        self._otherwise = uuid.uuid4().hex  # travels with copies
        self.__setstate__(files.__getstate__() | vars(self))

    def _start_closed(self) -> None:
        self._parts: dict[Block, CachePart] = {}  # by the number of a file, and which of its parts
        self._names: dict[int, str] = {}
        self._under_way = _UnderWay()
        self._room = Room(self._folder, self._max_bytes)
        self._unversioned = {i for i, found in enumerate(self._found) if not _has_version(found)}
        self._whole: dict[int, Files] = {}  # local copies of those files
        self._keep_again_at = self._look_after_at = 0.0
        super()._start_closed()

    def close(self) -> None:
        super().close()
        self._parts, self._whole = {}, {}

    def _read_remote(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        if self._fork != forks.number:
            self._start_closed()
        if time.monotonic() >= self._look_after_at:
            self._look_after_parts()
        if not (whole := self._unversioned):
            return self._read_through_parts(ranges)
        others = iter(self._read_through_parts([one for one in ranges if one[0] not in whole]))
        return [self._read_whole(*one) if one[0] in whole else next(others) for one in ranges]

    def _read_whole(self, number: int, start: int, stop: int) -> bytes:
        """Returns bytes of a file without a known version, from its local copy."""
        check_range(self.paths, self.sizes, (number, start, stop))
        if number not in self._whole:
            (path,) = downloaded(self, [number], self._otherwise, self._folder, self._room)
            self._whole[number] = Files([path])
        return self._whole[number].read([(0, start, stop)])[0]

    def _read_through_parts(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        pieces: list[Any] = self._kept_in_open_parts(ranges)
        for place in [place for place, piece in enumerate(pieces) if piece is None]:
            check_range(self.paths, self.sizes, ranges[place])
            pieces[place] = self._kept(*ranges[place])
        missing = [place for place, piece in enumerate(pieces) if piece is None]
        groups, read = _few_blocks_at_a_time(missing, ranges, self._layout.block_bytes), self._fetch
        if missing and time.monotonic() < self._keep_again_at:
            # Whole blocks would be fetched without need.
            groups, read = iter([missing]), super()._read_remote
        for places in groups:
            found = read([ranges[place] for place in places])
            for place, piece in zip(places, found, strict=True):
                pieces[place] = piece
        return pieces

    def _kept_in_open_parts(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes | None]:
        """Returns the blocks that are available at once. Written for speed: this is all that
        happens in a second epoch.
        """
        parts, part_bytes = self._parts, self._layout.part_bytes
        pieces: list[bytes | None] = []
        used: dict[CachePart, Trust] = {}
        last: CachePart | None = None
        try:
            for number, start, stop in ranges:
                which = start // part_bytes
                part = parts.get((number, which))
                first = which * part_bytes
                if part is None or stop - first > part_bytes or start >= stop:
                    pieces.append(None)
                    continue
                if part is not last:
                    used.setdefault(part, part.trust)
                    last = part
                pieces.append(part.read_trusted(start - first, stop - first))
            if all([part.is_unchanged(trust) for part, trust in used.items()]):
                return pieces
        except OSError as error:  # a broken disk
            self._cannot_keep(error)
        return [None] * len(ranges)

    def _kept(self, number: int, start: int, stop: int) -> bytes | None:
        """Returns the bytes from the disk, ``None`` if some of them are not there."""
        if start >= stop:
            return b""
        part_bytes = self._layout.part_bytes
        pieces: list[bytes] = []
        for which in range(start // part_bytes, -(-stop // part_bytes)):
            part, first = self._part(number, which), which * part_bytes
            try:
                if part is None:
                    return None
                piece = part.read(max(start - first, 0), min(stop - first, part_bytes))
            except OSError as error:
                self._cannot_keep(error)
                return None
            if piece is None:
                return None
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _part(self, number: int, which: int) -> CachePart | None:
        part = self._parts.get((number, which))
        if part is not None:
            return part
        path = f"{self._folder}/{self._name(number)}-{which:06d}{SUFFIX}"
        num_left = self.sizes[number] - which * self._layout.part_bytes
        num_bytes = min(self._layout.part_bytes, num_left)
        try:
            try:
                part = CachePart(path, num_bytes, self._layout)
            except FileNotFoundError:  # on another machine, or removed
                Path(self._folder).mkdir(parents=True, exist_ok=True)
                part = CachePart(path, num_bytes, self._layout)
        except OSError as error:
            self._cannot_keep(error)
            return None
        for key in [*self._parts][: max(0, len(self._parts) + 1 - _MAX_OPEN)]:
            self._parts.pop(key, None)
        self._parts[number, which] = part
        return part

    def _look_after_parts(self) -> None:
        """Notes which parts were used, and closes those that were thrown away: open files take room
        on the disk.
        """
        self._look_after_at = time.monotonic() + 1
        for key, part in list(self._parts.items()):
            if not part.is_kept():
                self._parts.pop(key, None)

    def _name(self, number: int) -> str:
        if number not in self._names:
            text = f"{identity_of(self, number, self._otherwise)} {self._layout}"
            digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
            self._names[number] = digest[:20]
        return self._names[number]

    def _cannot_keep(self, error: OSError) -> None:
        if not self._keep_again_at:
            text = "cached: files cannot be kept in %s, so they are read from their store: %s"
            _log.warning(text, self._folder, reason(error, "folder") or str(error))
        self._keep_again_at = time.monotonic() + _RETRY_SECONDS

    def _fetch(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Returns the bytes of ranges that are in few blocks, some of which are not there."""
        size = self._layout.block_bytes
        blocks = sorted({block for one in ranges for block in _blocks_of(*one, size)})
        fetched, others = self._fetch_blocks(blocks)
        self._wait_for(others)
        missing = [block for block in others if not self._has(block)]
        fetched |= self._fetch_blocks(missing, alone=False)[0]
        answer = []
        for number, start, stop in ranges:
            pieces = []
            for block in _blocks_of(number, start, stop, size):
                first = block[1] * size
                begin, end = max(start, first), min(stop, first + size)
                data, span = fetched.get(block), slice(begin - first, end - first)
                piece = self._kept(number, begin, end) if data is None else data[span]
                if piece is None:
                    (piece,) = super()._read_remote([(number, begin, end)])
                pieces.append(piece)
            answer.append(pieces[0] if len(pieces) == 1 else b"".join(pieces))
        return answer

    def _place(self, block: Block) -> tuple[CachePart | None, int]:
        number, which = block
        which, place = divmod(which, self._layout.part_bytes // self._layout.block_bytes)
        return self._part(number, which), place

    def _has(self, block: Block) -> bool:
        part, place = self._place(block)
        try:
            return part is not None and part.has(place)
        except OSError:
            return False

    def _fetch_blocks(
        self, blocks: Sequence[Block], alone: bool = True
    ) -> tuple[dict[Block, bytes], dict[Block, Any]]:
        """Fetches and keeps blocks, with ``alone`` those that no other thread fetches. Returns what
        was fetched, and what others fetch.
        """
        lock = Lock()
        with lock:
            return self._fetch_holding(lock, blocks, alone)

    def _fetch_holding(
        self, lock: Lock, blocks: Sequence[Block], alone: bool
    ) -> tuple[dict[Block, bytes], dict[Block, Any]]:
        mine: dict[Block, CachePart | None] = {}
        others: dict[Block, Lock | None] = {}  # None if it is another process
        locked: list[tuple[CachePart, int]] = []
        try:
            for block in blocks:
                if self._has(block):
                    continue
                other = self._under_way.begin(block, lock)
                if other is not None and alone:
                    others[block] = other
                    continue
                part, place = self._place(block)
                if alone and part is not None:
                    locked.append((part, place))  # first, since an interrupt may follow the call
                    if not part.is_mine_to_fill(place):
                        locked.pop()
                        others[block] = None
                        continue
                if not self._has(block):  # it may have come meanwhile
                    mine[block] = part
            size = self._layout.block_bytes
            ranges = [
                (number, which * size, min((which + 1) * size, self.sizes[number]))
                for number, which in mine
            ]
            fetched = dict(zip(mine, super()._read_remote(ranges) if ranges else [], strict=True))
            numbers = list({number for number, _ in mine})
            check_versions(self.paths, self._found, self._filesystem, numbers)
            for block, data in fetched.items():
                self._keep(mine[block], self._place(block)[1], data)
            return fetched, others
        finally:
            for part, place in locked:
                part.end_filling(place)
            self._under_way.end(lock)

    def _keep(self, part: CachePart | None, place: int, data: bytes) -> None:
        if part is None or time.monotonic() < self._keep_again_at:
            return
        try:
            num_thrown_away = self._room.num_thrown_away
            if not self._room.take(len(data)):
                raise OSError("max_bytes are taken by whole files")
            if self._room.num_thrown_away != num_thrown_away:
                self._look_after_parts()
            part.fill(place, data)
        except OSError as error:
            self._cannot_keep(error)

    def _wait_for(self, others: dict[Block, Lock | None]) -> None:
        deadline = time.monotonic() + _WAIT_SECONDS
        for block, lock in others.items():
            while not self._has(block) and time.monotonic() < deadline:
                if lock is not None:
                    lock.is_free(deadline - time.monotonic())
                    break
                part, place = self._place(block)
                if part is None:
                    break
                if part.is_mine_to_fill(place):  # the other one has given up, or was killed
                    part.end_filling(place)
                    break
                time.sleep(0.005)
