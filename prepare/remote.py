"""The folder of an object store that files are written to.

A store has no renames and no locks. An object appears as a whole, or not at all, also one that is
uploaded in parts. What decides between two pipelines, the manifest, is created on the condition
that it does not exist. Two writers of one file upload the same bytes.
"""

from __future__ import annotations

import contextlib
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from gristmill.core.errors import missing_package
from gristmill.prepare.formats.base import as_checksum
from gristmill.prepare.local import UNFINISHED
from gristmill.sources.storage.remote import root_of

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
        if url.startswith(("http://", "https://")):
            raise ValueError(
                "path must be a local folder or the URL of an object store (s3://, gs://, "
                f"az://), got {url!r}"
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
        import obstore

        try:
            return bytes(obstore.get(self._bucket(), self._key(name)).bytes())
        except FileNotFoundError:
            return None

    def size(self, name: str) -> int | None:
        """Returns the size of an object; ``None`` if there is none."""
        found = self._head(name)
        return None if found is None else int(found["size"])

    def version(self, name: str) -> str:
        """Returns the entity tag of an object."""
        found = self._head(name)
        return "" if found is None else str(found["e_tag"])

    def create(self, name: str, content: bytes) -> bool:
        """Writes a small object unless one of this name exists. Returns False if it exists."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(self._bucket(), self._key(name), content, mode="create")
        except AlreadyExistsError:
            return False
        return True

    def replace(self, name: str, content: bytes) -> None:
        """Writes a small object, in place of the one of this name."""
        import obstore

        obstore.put(self._bucket(), self._key(name), content)

    def publish(self, path: Path, name: str) -> None:
        """Uploads a file that is whole. If it is not large, another writer's object stays."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        is_large = path.stat().st_size > _WHOLE_BYTES
        with contextlib.suppress(AlreadyExistsError):
            obstore.put(
                self._bucket(), self._key(name), path, mode="overwrite" if is_large else "create"
            )

    def remove(self, name: str) -> None:
        """Removes an object, if there is one."""
        import obstore

        with contextlib.suppress(FileNotFoundError):
            obstore.delete(self._bucket(), self._key(name))

    def checksum(self, name: str) -> str:
        """Returns the checksum of an object, all of which is read."""
        import obstore

        checksum = 0
        for piece in obstore.get(self._bucket(), self._key(name)).stream(min_chunk_size=8 << 20):
            checksum = zlib.crc32(piece, checksum)
        return as_checksum(checksum)

    def unfinished_names(self) -> list[str]:
        """Returns the names of the small objects that are left of writing."""
        import obstore

        pages = obstore.list(self._bucket(), self._key(UNFINISHED))
        return [
            f"{UNFINISHED}/{found['path'].rpartition('/')[2]}" for page in pages for found in page
        ]

    def remove_unfinished(self) -> None:
        """Removes all that is left of writing."""
        import obstore

        for page in obstore.list(self._bucket(), self._key(UNFINISHED)):
            obstore.delete(self._bucket(), [found["path"] for found in page])

    @contextlib.contextmanager
    def workspace(self, name: str) -> Iterator[Path]:
        """An empty local folder for what becomes ``name``, which is removed at the end."""
        with tempfile.TemporaryDirectory(prefix="gristmill-") as folder:
            yield Path(folder)

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Does nothing: two writers of one file upload the same bytes."""
        yield

    def _head(self, name: str) -> Any:
        import obstore

        try:
            return obstore.head(self._bucket(), self._key(name))
        except FileNotFoundError:
            return None

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
