"""The folder of an object store that files are written to.

A store has no renames and no locks. An object appears as a whole, or not at all, also one that is
uploaded in parts. What decides between two pipelines, the manifest, is created on the condition
that it does not exist. Two writers of one file upload the same bytes.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gristmill.core.checksums import crc32
from gristmill.core.errors import missing_package
from gristmill.prepare.formats.base import as_checksum
from gristmill.prepare.local import UNFINISHED
from gristmill.sources.storage.posix import fcntl
from gristmill.sources.storage.remote import STORES, root_of

_LOCKS: Any = fcntl
_PIECE_BYTES = 8 << 20
_WHOLE_BYTES = 64 << 20  # larger objects are uploaded in parts, for which stores know no condition


class RemoteFolder:
    """A folder of a bucket. It pickles into workers, which connect by themselves.

    Args:
        url: ``s3://bucket/folder`` or another that obstore knows, without a slash at the end.

    Raises:
        ImportError: obstore is not installed.
        ValueError: a URL that cannot be written, such as that of a server.
    """

    def __init__(self, url: str) -> None:
        self.path = url.rstrip("/")
        if not STORES.match(url):
            raise ValueError(
                "path must be a local folder or the URL of an object store (s3://, gs://, "
                f"az://), got {url!r}"
            )
        if re.search(r"[*{\[]|(?<!:)//", self.path):
            raise ValueError(
                "path must be a URL without '*', '{', '[' (which are patterns where files are "
                f"read) and without empty parts, got {url!r}"
            )
        self._root = root_of(self.path)
        self._prefix = self.path[len(self._root) + 1 :]
        self._opened: Any = None
        self._bucket()

    def __str__(self) -> str:
        return self.path

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_opened": None}

    def read(self, name: str) -> bytes | None:
        """Returns the bytes of a small object; ``None`` if there is none."""
        with contextlib.suppress(FileNotFoundError), self._explained(name):
            return bytes(self._do("get", name).bytes())
        return None

    def size(self, name: str) -> int | None:
        """Returns the size of an object; ``None`` if there is none."""
        with contextlib.suppress(FileNotFoundError), self._explained(name):
            return int(self._do("head", name)["size"])
        return None

    def create(self, name: str, content: bytes) -> bool:
        """Writes a small object unless one of this name exists. Returns False if it exists."""
        with contextlib.suppress(FileExistsError), self._explained(name):
            self._do("put", name, content, mode="create")
            return True
        return False

    def replace(self, name: str, content: bytes) -> None:
        """Writes a small object, in place of the one of this name."""
        with self._explained(name):
            self._do("put", name, content)

    def exchange(self, name: str, old: bytes, new: bytes) -> bool:
        """Writes a small object if the one of this name is ``old``. Returns False if it is not."""
        with contextlib.suppress(FileExistsError), self._explained(name):
            found = self._do("get", name)
            if bytes(found.bytes()) == old:
                known = {name: found.meta[name] for name in ("e_tag", "version")}
                version = {name: value for name, value in known.items() if value is not None}
                self._do("put", name, new, mode=version)
                return True
        return False

    def publish(self, path: Path, name: str) -> None:
        """Uploads a file that is whole. If it is not large, another writer's object stays."""
        is_large = path.stat().st_size > _WHOLE_BYTES
        with contextlib.suppress(FileExistsError), self._explained(name):
            self._do("put", name, path, mode="overwrite" if is_large else "create")

    def remove(self, name: str) -> None:
        """Removes an object, if there is one."""
        with contextlib.suppress(FileNotFoundError), self._explained(name):
            self._do("delete", name)

    def checksum(self, name: str) -> str:
        """Returns the checksum of an object, all of which is read."""
        checksum = 0
        with self._explained(name):
            for piece in self._do("get", name).stream(min_chunk_size=_PIECE_BYTES):
                checksum = crc32(piece, checksum)
        return as_checksum(checksum)

    def unfinished_names(self) -> list[str]:
        """Returns the names of the small objects that are left of writing."""
        with self._explained(UNFINISHED):
            pages = self._do("list", UNFINISHED)
            names = [found["path"].rpartition("/")[2] for page in pages for found in page]
        return [f"{UNFINISHED}/{name}" for name in names]

    def unfinished_sizes(self) -> list[int]:
        """Returns the number of bytes that is written of each file in work on this machine."""
        sizes = []
        for folder in self._workspaces():
            with contextlib.suppress(OSError):  # it has just been finished
                sizes.append(sum([path.stat().st_size for path in folder.iterdir()]))
        return sizes

    def remove_unfinished(self) -> None:
        """Removes all that is left of writing."""
        for name in self.unfinished_names():
            self.remove(name)

    @contextlib.contextmanager
    def workspace(self, name: str) -> Iterator[Path]:
        """Yields an empty local folder for what becomes ``name``, which is removed at the end.

        The process holds a lock of the folder. One that is left of a killed process has none, and
        is removed by the next one that writes into this folder of the store.
        """
        for old in self._workspaces() if _LOCKS is not None else ():
            with _locked(old) as is_left:
                if is_left:
                    shutil.rmtree(old, ignore_errors=True)
        while True:
            path = Path(tempfile.mkdtemp(prefix=f"{self._workspace_prefix()}{name}."))
            with _locked(path) as is_own:
                if is_own and path.exists():  # else another process has just taken it for a rest
                    try:
                        yield path
                    finally:
                        shutil.rmtree(path, ignore_errors=True)
                    return

    def _workspace_prefix(self) -> str:
        digest = hashlib.sha1(self.path.encode(), usedforsecurity=False).hexdigest()[:12]
        return f"gristmill-{digest}-"

    def _workspaces(self) -> list[Path]:
        """Returns the folders on this machine with files in work."""
        return [*Path(tempfile.gettempdir()).glob(f"{self._workspace_prefix()}*")]

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Does nothing: two writers of one file upload the same bytes."""
        yield

    def _do(self, function: str, name: str, *given: Any, **options: Any) -> Any:
        """Calls a function of obstore for the object of a name, within ``_explained``."""
        obstore = importlib.import_module("obstore")
        return getattr(obstore, function)(self._bucket(), self._key(name), *given, **options)

    @contextlib.contextmanager
    def _explained(self, name: str) -> Iterator[None]:
        """Raises errors of the store, also those while an answer is read, as kinds of ``OSError``.

        Raises:
            FileNotFoundError, FileExistsError: as the store says.
            OSError: it cannot be reached, or refuses; names the object.
        """
        try:
            yield
        except Exception as error:
            kinds = {
                "NotFoundError": FileNotFoundError,
                "AlreadyExistsError": FileExistsError,
                "PreconditionError": FileExistsError,  # another object is there
            }
            kind = kinds.get(type(error).__name__, OSError)
            if isinstance(error, FileNotFoundError):
                kind = FileNotFoundError
            elif not type(error).__module__.startswith("obstore") and not isinstance(
                error, OSError
            ):
                raise
            text = " ".join(str(error).partition("\n\nDebug source")[0].split())[:500]
            raise kind(
                f"{self.path}/{name}: {text}. Check the address, the credentials and what they "
                "may do there, and call again: finished files stay"
            ) from error

    def _key(self, name: str) -> str:
        return f"{self._prefix}/{name}" if self._prefix else name

    def _bucket(self) -> Any:
        if self._opened is None:
            try:
                from obstore import store
            except ImportError as error:
                raise missing_package("obstore", "remote", f"writing {self.path}") from error
            self._opened = store.from_url(self._root)
        return self._opened


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Locks a folder for the body, which gets False if another process has locked it.

    Without locks of files (Windows), it gets True.
    """
    if _LOCKS is None:
        yield True
        return
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it was just removed, or is another user's
        yield False
        return
    try:
        _LOCKS.flock(descriptor, _LOCKS.LOCK_EX | _LOCKS.LOCK_NB)
        is_locked = True
    except OSError:
        is_locked = False
    try:
        yield is_locked
    finally:
        os.close(descriptor)
