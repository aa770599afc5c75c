"""Opening files where pyarrow does."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gristmill.sources.storage.file_object import FileObject
from gristmill.sources.storage.local import is_local

if TYPE_CHECKING:
    from gristmill.sources.storage.files import Files


def open_input(path: str, filesystem: Any = None, memory_map: bool = False) -> Any:
    """Returns ``path``, opened as ``pyarrow.parquet.ParquetFile`` would open it: a
    ``pyarrow.NativeFile``.

    Args:
        path: a local file, or with no ``filesystem`` a URI such as ``s3://bucket/file``.
        filesystem: one of pyarrow or fsspec, or a URI.
        memory_map: for local files.

    Raises:
        OSError: the file cannot be opened.
        TypeError, ValueError: there is no such filesystem.
    """
    from pyarrow import fs

    if filesystem is None:
        filesystem, path = _located(path, memory_map)
    elif isinstance(filesystem, str):
        filesystem, folder = fs.FileSystem.from_uri(filesystem)
        filesystem = fs.SubTreeFileSystem(folder, filesystem) if folder else filesystem
    elif is_local(filesystem) and not isinstance(filesystem, fs.FileSystem):  # fsspec's
        filesystem = fs.LocalFileSystem(use_mmap=memory_map)
    elif not isinstance(filesystem, fs.FileSystem):
        if not hasattr(filesystem, "open"):
            raise TypeError(
                f"filesystem must be one of pyarrow or fsspec, or a URI, got {filesystem!r:.200}"
            )
        filesystem = fs.PyFileSystem(fs.FSSpecHandler(filesystem))
    return filesystem.open_input_file(path)


def _located(path: str, memory_map: bool) -> tuple[Any, str]:
    from pyarrow import fs

    local = fs.LocalFileSystem(use_mmap=memory_map)
    try:
        local.get_file_info(path)
    except ValueError:  # what pyarrow says of a URI
        filesystem, path = fs.FileSystem.from_uri(path)
        return filesystem, path
    return local, path


def open_ranges(files: Files, number: int) -> Any:
    """Returns one of ``files``, opened as pyarrow wants it: a ``pyarrow.NativeFile``. Its errors
    are raised as they are.
    """
    import pyarrow

    return pyarrow.PythonFile(FileObject(files, number), mode="r")
