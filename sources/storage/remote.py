"""Files in object stores and on servers, of which ranges are read.

What holds when several threads and processes read:

1. A store (a bucket, a server) is connected to once in a process, by the first request, and shared
   by all threads and ``Files``. Connections are never used after a fork: the child gets an error
   that says so, or, from fsspec, its own.
2. Requests run together in the threads of one pool, ``_MAX_REQUESTS`` at a time in a process. No
   request waits for another, and a thread that waits for them can be interrupted.
3. What comes back is of the object that was found at first and as long as requested, or an
   error is raised: each answer says which object it is of (its entity tag, or when it was changed),
   and which bytes of it. An answer that says something else is requested again, and never used. A
   warning names servers that report neither tag nor time.
4. Every wait ends: an answer has 30 seconds, and a silent server is given up after two of them, a
   minute.
"""

from __future__ import annotations

import fnmatch
import logging
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from urllib.parse import unquote, urlsplit

from gristmill.core.errors import missing_package
from gristmill.core.uninterrupted import computed_by
from gristmill.sources.storage.errors import ChangedFileError, changed
from gristmill.sources.storage.once import reason

_log = logging.getLogger("gristmill")

T = TypeVar("T")
R = TypeVar("R")

# 32 requests of 50 ms at once cost 1.6 ms each. In that time a machine that gets 160 MB/s reads 256
# KB: ranges that are closer to each other than that are had sooner by one request. An answer of 8
# MB arrives within its 30 seconds at 270 KB/s.
_MAX_GAP = 256 << 10
_MAX_REQUEST = 8 << 20
_MAX_REQUESTS = 32
# The library itself retries statuses 429 and 5xx, refused connections and silence, for about half a
# minute in all. It starts nothing after 45 seconds, so silence of 30 seconds is retried once.
_RETRY: Any = {
    "max_retries": 10,
    "retry_timeout": timedelta(seconds=45),
    "backoff": {
        "init_backoff": timedelta(seconds=0.25),
        "max_backoff": timedelta(seconds=8),
        "base": 3,
    },
}
_ANSWER_SECONDS = 30  # obstore's own setting for buckets, AWS_TIMEOUT or the like changes it there
# Seconds before another request, after an answer of other bytes or one that ended early.
_PAUSES = (0.1, 0.4, 1.6)
_PATIENCE_SECONDS = 10  # no more attempts after that: the library has retried

STORES = re.compile(r"(s3a?|gs|az|azure|abfss?|adl)://")
_SERVERS = re.compile(r"https?://")
_FINAL = ("FileNotFoundError", "NotFoundError", "PermissionDeniedError", "UnauthenticatedError")
_HAS_TRIED = re.compile(r"after [1-9]\d* retries")  # in the text of the library's errors
_VARIABLES = ("AWS_", "AZURE_", "GOOGLE_")


class Found(NamedTuple):
    """The answer of a store about an object: its length in bytes, and a text that another object at
    its place does not have.
    """

    size: int
    version: str


class Request(NamedTuple):
    """One range of a file that is requested, and its parts: for each part its owner and
    place.
    """

    number: int
    start: int
    stop: int
    parts: list[tuple[int, int, int]]


class Store(Protocol):
    """A bucket, a server or a file system. All its methods may be called by several threads at
    once.
    """

    def find(self, path: str, /) -> Found: ...

    def get(self, path: str, start: int, stop: int, found: Found, /) -> memoryview: ...

    def download(self, path: str, found: Found, to: Path, /) -> None: ...

    def names(self, pattern: str, /) -> Iterable[str]: ...


def find_all(paths: Sequence[str], filesystem: Any) -> list[Found]:
    """Returns the answers about these objects, which are requested together.

    Raises:
        OSError: one is not there, or the store does not answer; the text says which.
        ImportError, ValueError: there is nothing to read such URLs with.
    """
    stores = stores_of(paths, filesystem)
    found = together(lambda number: stores[number].find(paths[number]), range(len(paths)))
    unknown = [
        path
        for path, known in zip(paths, found, strict=True)
        if not known.version and _SERVERS.match(path)
    ]
    if unknown and filesystem is None:
        _log.warning(
            "%s%s: the server reports neither an entity tag (ETag) nor a time of change"
            " (Last-Modified). A file that changes while it is read is noticed only if its size"
            " changes",
            without_query(unknown[0]),
            f" and {len(unknown) - 1} more" if len(unknown) > 1 else "",
        )
    return found


def check_versions(
    paths: Sequence[str], found: Sequence[Found | None], filesystem: Any, numbers: Sequence[int]
) -> None:
    """Checks the versions of files in file systems of fsspec, whose answers do not have them.

    Raises:
        ChangedFileError: one is another by now.
    """
    if filesystem is None:
        return
    filesystem.invalidate_cache()
    store = FilesystemStore(filesystem)
    for number, now in zip(
        numbers, together(lambda number: store.find(paths[number]), numbers), strict=True
    ):
        known = found[number]
        assert known is not None
        _check(paths[number], known, now)


def read_ranges(
    paths: Sequence[str],
    found: Sequence[Found | None],
    filesystem: Any,
    ranges: Sequence[tuple[int, int, int]],
) -> list[bytes]:
    """Returns the bytes ``start`` to ``stop - 1`` of file ``number``, for each
    ``(number, start, stop)``, by few requests at once.
    """
    numbers = list({number for number, _, _ in ranges})
    stores = dict(
        zip(numbers, stores_of([paths[number] for number in numbers], filesystem), strict=True)
    )

    def parts_of(request: Request) -> list[tuple[int, bytes]]:
        number, begin, end, parts = request
        known = found[number]
        assert known is not None
        answer = stores[number].get(paths[number], begin, end, known)
        return [
            (place, bytes(answer[start - begin : stop - begin])) for place, start, stop in parts
        ]

    pieces: list[list[bytes]] = [[] for _ in ranges]
    for answer in together(parts_of, list(coalesced(ranges))):
        for place, piece in answer:  # those of one range come in the order of the file
            pieces[place].append(piece)
    return [theirs[0] if len(theirs) == 1 else b"".join(theirs) for theirs in pieces]


def download(
    paths: Sequence[str], found: Sequence[Found | None], filesystem: Any, number: int, to: Path
) -> None:
    """Writes all of file ``number`` to a local file, from one answer and so of one version."""
    known = found[number]
    assert known is not None
    stores_of([paths[number]], filesystem)[0].download(paths[number], known, to)


def check_range(paths: Sequence[str], sizes: Sequence[int], one: tuple[int, int, int]) -> None:
    """Refuses a range that ends beyond its file: the caller has a wrong size of the file."""
    number, start, stop = one
    if stop > sizes[number]:
        raise OSError(
            f"{without_query(paths[number])} ends at byte {sizes[number]}, bytes {start} to"
            f" {stop - 1} were to be read"
        )


def coalesced(
    ranges: Sequence[tuple[int, int, int]], max_gap: int = _MAX_GAP, max_bytes: int = _MAX_REQUEST
) -> Iterator[Request]:
    """Yields the requests by which ``ranges`` are read: in the order of files and bytes, none
    longer than ``max_bytes``.

    Example:
        >>> for request in coalesced([(0, 50, 60), (0, 0, 10), (1, 0, 25)], 40, max_bytes=20):
        ...     print(*request)
        0 0 10 [(1, 0, 10)]
        0 50 60 [(0, 50, 60)]
        1 0 20 [(2, 0, 20)]
        1 20 25 [(2, 20, 25)]
        >>> for request in coalesced([(0, 50, 60), (0, 0, 10)], max_gap=40, max_bytes=60):
        ...     print(*request)
        0 0 60 [(1, 0, 10), (0, 50, 60)]
    """
    now: Request | None = None
    for place in sorted(range(len(ranges)), key=ranges.__getitem__):
        number, first, last = map(int, ranges[place])
        for start in range(first, last, max_bytes):
            stop = min(start + max_bytes, last)
            if (
                now
                and now.number == number
                and start - now.stop <= max_gap
                and max(stop, now.stop) - now.start <= max_bytes
            ):
                now.parts.append((place, start, stop))
                now = now._replace(stop=max(stop, now.stop))
            else:
                if now:
                    yield now
                now = Request(number, start, stop, [(place, start, stop)])
    if now:
        yield now


def together(function: Callable[[T], R], items: Sequence[T]) -> list[R]:
    """Returns ``[function(item) for item in items]``, computed in the threads for requests; the
    error of the first that has one.
    """
    pool = _POOLS.get(os.getpid()) or _POOLS.setdefault(
        os.getpid(), ThreadPoolExecutor(_MAX_REQUESTS, "gristmill requests")
    )
    return computed_by(pool, function, items)


# By process: after a fork there are no threads, and connections are another's. setdefault is the
# lock that a fork cannot break.
_POOLS: dict[int, ThreadPoolExecutor] = {}
_OPENED: dict[tuple[object, ...], Store] = {}
_CONNECTED: list[int] = []  # the process that used obstore first


def stores_of(paths: Sequence[str], filesystem: Any) -> list[Store]:
    """Returns the store that reads each of ``paths``: ``filesystem``, if given, else the bucket or
    server of a URL, which all share.
    """
    if filesystem is not None:
        return [FilesystemStore(filesystem)] * len(paths)
    roots = [root_of(path) for path in paths]
    stores = {root: _opened(root) for root in set(roots)}
    return [stores[root] for root in roots]


def _opened(root: str) -> Store:
    """Buckets are configured by variables: where these have changed, it is another one."""
    names = (
        ()
        if _SERVERS.match(root)
        else sorted(name for name in os.environ if name.startswith(_VARIABLES))
    )
    key = (os.getpid(), root, *(f"{name}={os.environ[name]}" for name in names))
    return _OPENED.get(key) or _OPENED.setdefault(key, UrlStore(root))


def root_of(path: str) -> str:
    """Returns the bucket or server of a URL, with the query that a server needs in each request.

    Example:
        >>> root_of("s3://bucket/folder/a.jsonl"), root_of("https://host:80/folder/a.jsonl?key=1")
        ('s3://bucket', 'https://host:80/?key=1')
    """
    if STORES.match(path):
        return "/".join(path.split("/", 3)[:3])
    if not _SERVERS.match(path):
        raise ValueError(
            "URLs that begin with s3://, gs://, az://, https:// or http:// can be read, got"
            f" {path!r:.200}: for others, pass a file system of fsspec as filesystem="
        )
    parts = urlsplit(path)
    return f"{parts.scheme}://{parts.netloc}/{'?' * bool(parts.query)}{parts.query}"


def without_query(path: str) -> str:
    """Returns a path or URL without what follows the question mark in that of a server: signatures,
    which must stay secret.

    Example:
        >>> without_query("https://host/a.bin?signature=1"), without_query("s3://bucket/why?.bin")
        ('https://host/a.bin', 's3://bucket/why?.bin')
    """
    return path.partition("?")[0] if _SERVERS.match(path) else path


def _is_of_disk(error: Exception) -> bool:
    """Returns True if it is the local disk that cannot be written, not a store that cannot be
    read.
    """
    return isinstance(error, OSError) and reason(error, "folder") is not None


class UrlStore:
    """A bucket or a server, read through obstore.

    Args:
        root: its URL (see ``root_of``).

    Raises:
        ImportError: obstore is not installed.
        OSError: it is not configured as it must be: the environment lacks something.
    """

    def __init__(self, root: str) -> None:
        try:
            import obstore
            from obstore import store
            from obstore.exceptions import BaseError
        except ImportError as error:
            raise missing_package("obstore", "remote", f"reading {without_query(root)}") from error
        if _CONNECTED and _CONNECTED[0] != os.getpid():
            raise RuntimeError(
                f"{without_query(root)} cannot be read in a process that was forked from one that"
                " had read from object stores or servers: connections do not survive that. Start"
                " processes by 'spawn' or 'forkserver' (mp_prefetch does so by itself; torch's"
                " DataLoader takes multiprocessing_context='forkserver')"
            )
        _CONNECTED[:] = [os.getpid()]
        self._root = root
        self._errors = BaseError
        self._library = obstore
        try:
            if _SERVERS.match(root):
                self._store: Any = self._server({"timeout": timedelta(seconds=_ANSWER_SECONDS)})
            else:
                self._store = store.from_url(root, retry_config=_RETRY)
        except BaseError as error:
            raise OSError(f"{without_query(root)} cannot be used: {_first_line(error)}") from error

    def _server(self, options: Any) -> Any:
        options["allow_http"] = self._root.startswith("http://")
        return self._library.store.HTTPStore.from_url(
            self._root, client_options=options, retry_config=_RETRY
        )

    def _key(self, path: str) -> str:
        return (
            unquote(urlsplit(path).path).lstrip("/")
            if _SERVERS.match(path)
            else path[len(self._root) + 1 :]
        )

    def find(self, path: str) -> Found:
        """Returns the size and version of an object. A server is asked for its first byte, and so
        whether it knows ranges.

        Raises:
            OSError: it is not there, or may not be read.
        """
        key = self._key(path)
        if STORES.match(path):
            _check_key(path, key)

        def ask() -> Found:
            if _SERVERS.match(path):
                try:
                    return _found(
                        self._library.get(self._store, key, options={"range": (0, 1)}).meta
                    )
                except self._errors as error:
                    if not _is_out_of_range(error):  # as of an empty file
                        raise
            return _found(self._library.head(self._store, key))

        return self._answer(ask, path, "its size is not known")

    def get(self, path: str, start: int, stop: int, found: Found) -> memoryview:
        """Returns the bytes ``start`` to ``stop - 1``, of the object that was found.

        Raises:
            ChangedFileError: it is another one by now.
            OSError: they cannot be read.
        """
        key = self._key(path)

        def ask() -> memoryview:
            try:
                # has tried again by itself
                result = self._library.get(self._store, key, options={"range": (start, stop)})
            except self._errors as error:
                if _is_out_of_range(error):
                    _check(path, found, self.find(path))
                raise
            _check(path, found, _found(result.meta))
            answer = memoryview(result.bytes())
            if len(answer) != stop - start:
                raise OSError(
                    f"the answer had {len(answer)} bytes in place of {stop - start}, each time"
                )
            return answer

        return self._answer(ask, path, f"bytes {start} to {stop - 1} cannot be read")

    def _answer(self, ask: Callable[[], T], path: str, what: str) -> T:
        """Returns the result of ``ask``, called again after errors of a single answer."""
        deadline = time.monotonic() + _PATIENCE_SECONDS
        for pause in (*_PAUSES, None):
            try:
                return ask()
            except ChangedFileError as error:  # or the answer of another server under the same name
                problem: Exception = error
            except (self._errors, OSError, ValueError) as error:
                if _is_of_disk(error):
                    raise
                problem = error
            if type(problem).__name__ in _FINAL or _HAS_TRIED.search(str(problem)):
                break
            if pause is None or time.monotonic() > deadline:
                break
            time.sleep(pause)
        if isinstance(problem, ChangedFileError):
            raise problem
        raise self._explained(problem, path, what) from problem

    def download(self, path: str, found: Found, to: Path) -> None:
        """Writes all of the object that was found to a local file, from one answer.

        Raises:
            ChangedFileError, OSError: as ``get``; or the file cannot be written.
        """
        key = self._key(path)
        with to.open("wb") as file:

            def ask() -> None:
                file.seek(0)
                file.truncate()
                result = self._library.get(self._patient_store(), key)
                _check(path, found, _found(result.meta))
                for piece in result.stream(min_chunk_size=_MAX_REQUEST):
                    file.write(piece)
                if file.tell() != found.size:
                    raise OSError(
                        f"the answer had {file.tell()} bytes in place of {found.size}, each time"
                    )

            self._answer(ask, path, "it cannot be downloaded")

    def _patient_store(self) -> Any:
        """Returns the server with a limit for silence, not for whole answers."""
        silence = {"timeout": timedelta(days=1), "read_timeout": timedelta(seconds=_ANSWER_SECONDS)}
        return self._server(silence) if _SERVERS.match(self._root) else self._store

    def names(self, pattern: str) -> Iterator[str]:
        """Yields the URLs that ``pattern`` stands for, in no particular order."""
        if _SERVERS.match(pattern):
            raise ValueError(
                f"{without_query(pattern)!r:.200} has a pattern, but servers do not tell which"
                " files they have: name each, by {000..127} for example"
            )
        segments = self._key(pattern).split("/")
        literal = next(place for place, segment in enumerate(segments) if has_pattern(segment))
        try:
            for objects in self._library.list(
                self._store, "/".join(segments[:literal]) or None, chunk_size=1000
            ):
                for found in objects:
                    if is_like(found["path"].split("/"), segments):
                        yield f"{self._root}/{found['path']}"
        except (self._errors, OSError) as error:
            raise self._explained(error, pattern, "what is there is not known") from error

    def _explained(self, error: Exception, path: str, what: str) -> OSError:
        kind, remedy = OSError, "Is the address right, and the network there?"
        name = type(error).__name__
        if isinstance(error, FileNotFoundError):
            kind, remedy = FileNotFoundError, "There is no such object. Is the name right?"
        elif name in ("PermissionDeniedError", "UnauthenticatedError"):
            kind, remedy = (
                PermissionError,
                (
                    "Credentials are looked for in the environment: are they there, and may they"
                    " read it?"
                ),
            )
        elif name == "NotSupportedError":
            remedy = (
                "The server must answer requests for ranges of bytes; Python's http.server, for"
                " one, does not"
            )
        text = _first_line(error)
        query = urlsplit(path).query if _SERVERS.match(path) else ""
        if query:
            text = text.replace(query, "…")
        return kind(f"{without_query(path)}: {what}: {text}. {remedy}")


class FilesystemStore:
    """The store that reads through a file system of fsspec.

    Args:
        filesystem: an object with ``info``, ``glob`` and ``cat_file``, which must be safe to use
            from several threads.

    Raises:
        TypeError: it is something else.
    """

    def __init__(self, filesystem: Any) -> None:
        for method in ("info", "glob", "cat_file"):
            if not callable(getattr(filesystem, method, None)):
                raise TypeError(
                    "filesystem must be a file system of fsspec, such as fsspec.filesystem('s3'),"
                    f" got {filesystem!r:.200}"
                )
        self._filesystem = filesystem

    def find(self, path: str) -> Found:
        """Returns the size and version of a file."""
        try:
            info = self._filesystem.info(path)
        except FileNotFoundError as error:
            raise FileNotFoundError(
                f"{path}: there is no such file in {type(self._filesystem).__name__}"
            ) from error
        if info.get("type") == "directory":
            raise IsADirectoryError(
                f"{path} is a folder, not a file: name its files, or a pattern such as"
                f" {path.rstrip('/')}/*"
            )
        if info.get("size") is None:
            raise OSError(
                f"{path}: {type(self._filesystem).__name__} does not tell its size, which ranges"
                " are read by"
            )
        names = (
            "ETag",
            "etag",
            "generation",
            "md5Hash",
            "mtime",
            "LastModified",
            "last_modified",
            "created",
        )
        return Found(info["size"], next((str(info[name]) for name in names if info.get(name)), ""))

    def get(self, path: str, start: int, stop: int, found: Found) -> memoryview:
        """Returns the bytes ``start`` to ``stop - 1``."""
        what = f"{path}: bytes {start} to {stop - 1} cannot be read"
        for pause in (*_PAUSES, None):
            try:
                answer = memoryview(self._filesystem.cat_file(path, start=start, end=stop))
            except FileNotFoundError as error:
                raise FileNotFoundError(f"{what}: there is no such file any more") from error
            except Exception as error:  # of any library
                raise OSError(f"{what}: {_first_line(error) or type(error).__name__}") from error
            if len(answer) == stop - start:
                return answer
            self._filesystem.invalidate_cache()
            _check(path, found, self.find(path))
            if pause is not None:
                time.sleep(pause)
        raise OSError(f"{what}: the answer had {len(answer)} bytes in place of {stop - start}")

    def download(self, path: str, found: Found, to: Path) -> None:
        """Writes all of the file to a local one, by one request where the library can."""
        try:
            self._filesystem.get_file(path, str(to))
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{path}: there is no such file any more") from error
        except Exception as error:  # of any library
            if _is_of_disk(error):
                raise
            raise OSError(
                f"{path} cannot be downloaded: {_first_line(error) or type(error).__name__}"
            ) from error
        if to.stat().st_size != found.size:
            raise changed(path, f"it had {found.size} bytes and has {to.stat().st_size}")

    def names(self, pattern: str) -> list[str]:
        """Returns the files that ``pattern`` stands for."""
        found = self._filesystem.glob(pattern, detail=True)
        last = pattern.rpartition("/")[2]
        return [
            name
            for name, info in found.items()
            if info.get("type") != "directory"
            and name.rpartition("/")[2].startswith(".") <= last.startswith(".")
        ]


def _check_key(path: str, key: str) -> None:
    """Refuses keys of which the library would make others."""
    if not key or key.endswith("/"):
        raise IsADirectoryError(
            f"{path} is no file: name its files, or a pattern such as {path.rstrip('/')}/*"
        )
    if "//" in f"/{key}":
        raise OSError(
            f"{path} has two slashes in a row, which obstore cannot read: pass a file system of"
            " fsspec as filesystem="
        )


def _found(meta: Any) -> Found:
    """Returns size and version. A weak entity tag counts as the one before the answer was
    compressed.
    """
    tag, version, when = meta["e_tag"], meta["version"], meta["last_modified"]
    return Found(
        meta["size"],
        (tag or version or (when.isoformat() if when.timestamp() else ""))
        .removeprefix("W/")
        .strip('"'),
    )


def _check(path: str, before: Found, now: Found) -> None:
    if now.size != before.size:
        raise changed(without_query(path), f"it had {before.size} bytes and has {now.size}")
    if now.version != before.version:
        raise changed(
            without_query(path),
            f"its version was {before.version or 'unknown'} and is {now.version or 'unknown'}",
        )


def _is_out_of_range(error: Exception) -> bool:
    return " 416 " in str(error) or "Wanted range" in str(error)


def _first_line(error: Exception) -> str:
    return " ".join(str(error).partition("\n\nDebug source")[0].split())[:500].rstrip(" .:-")


def has_pattern(path: str) -> bool:
    """True if ``path`` stands for several.

    Example:
        >>> (
        ...     has_pattern("a-*.bin"),
        ...     has_pattern("https://[::1]/a.bin?key=1"),
        ...     has_pattern("s3://b/a?"),
        ... )
        (True, False, True)
    """
    if _SERVERS.match(path):
        return re.search(r"[*\[]", urlsplit(path).path) is not None
    return re.search(r"[*?\[]", path) is not None


def is_like(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """True if a path is one of those that a pattern stands for, both cut at ``/``. A leading dot
    has to be written.

    Example:
        >>> (
        ...     is_like(["a", "b", "c.bin"], ["a", "**", "*.bin"]),
        ...     is_like(["a", ".bin"], ["a", "*"]),
        ...     is_like(["a", "b"], ["*"]),
        ... )
        (True, False, False)
    """
    if not patterns:
        return not names
    if patterns[0] == "**":
        return is_like(names, patterns[1:]) or (
            bool(names) and names[0][:1] != "." and is_like(names[1:], patterns)
        )
    if not names or (names[0].startswith(".") and not patterns[0].startswith(".")):
        return False
    return fnmatch.fnmatchcase(names[0], patterns[0]) and is_like(names[1:], patterns[1:])
