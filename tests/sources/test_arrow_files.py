from pathlib import Path

import pytest
from pyarrow import fs

from gristmill.sources.arrow_files import open_input

fsspec = pytest.importorskip("fsspec")
MAPS = Path("/proc/self/maps")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"content")
    return tmp_path / "file"


def test_everything_that_names_a_file(path):
    in_memory = fsspec.filesystem("memory")
    in_memory.pipe("/there/file", b"content")
    folder = fs.SubTreeFileSystem(str(path.parent), fs.LocalFileSystem())
    for name, filesystem in [
        (str(path), None),
        ("file", None),
        (path.as_uri(), None),
        (str(path), fs.LocalFileSystem()),
        ("file", folder),
        ("file", path.parent.as_uri()),
        (str(path), "file:///"),
        (str(path), fsspec.filesystem("file")),
        ("/there/file", in_memory),
    ]:
        with open_input(name, filesystem) as file:
            assert (file.read(), file.read_at(3, 2), file.size()) == (b"content", b"nte", 7)


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not list what is mapped there")
def test_local_files_are_mapped_into_memory(path):
    for filesystem in (None, fsspec.filesystem("file")):
        for memory_map in (False, True):
            with open_input(str(path), filesystem, memory_map):
                assert (str(path) in MAPS.read_text()) == memory_map


def test_what_cannot_be_opened(path):
    with pytest.raises(FileNotFoundError, match="missing"):
        open_input(str(path.parent / "missing"))
    with pytest.raises(FileNotFoundError, match="missing"):
        open_input("missing", path.parent.as_uri())
    with pytest.raises(ValueError, match="nowhere"):
        open_input("nowhere://file")
    with pytest.raises(TypeError, match="filesystem must be one of pyarrow or fsspec, or a URI, got 3"):
        open_input("file", 3)
