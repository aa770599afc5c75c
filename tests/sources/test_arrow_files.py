from pathlib import Path

import pytest
from pyarrow import fs
from refusing import assert_raises

from gristmill.sources.arrow_files import open_input

fsspec = pytest.importorskip("fsspec")
MAPS = Path("/proc/self/maps")


@pytest.fixture
def path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_bytes(b"content")
    return tmp_path / "file"


def test_everything_that_names_a_file(path):
    in_memory, local = fsspec.filesystem("memory"), fs.LocalFileSystem()
    in_memory.pipe("/there/file", b"content")
    whole = [None, local, "file:///", fsspec.filesystem("file")]
    folders = [None, fs.SubTreeFileSystem(str(path.parent), local), path.parent.as_uri()]
    names = [(str(path), filesystem) for filesystem in whole] + [
        ("file", filesystem) for filesystem in folders
    ]
    for name, filesystem in [*names, (path.as_uri(), None), ("/there/file", in_memory)]:
        with open_input(name, filesystem) as file:
            assert (file.read(), file.read_at(3, 2), file.size()) == (b"content", b"nte", 7)


@pytest.mark.skipif(not MAPS.exists(), reason="the system does not list what is mapped there")
def test_local_files_are_mapped_into_memory(path):
    for filesystem in (None, fsspec.filesystem("file")):
        for memory_map in (False, True):
            with open_input(str(path), filesystem, memory_map):
                assert (str(path) in MAPS.read_text()) == memory_map


def test_what_cannot_be_opened(path):
    for error, match, *arguments in [
        (FileNotFoundError, "missing", str(path.parent / "missing")),
        *(
            (FileNotFoundError, "missing", "missing", path.parent.as_uri()),
            (ValueError, "nowhere", "nowhere://file"),
        ),
        (TypeError, "filesystem must be one of pyarrow or fsspec, or a URI, got 3", "file", 3),
    ]:
        assert_raises(error, match, open_input, *arguments)
