"""Pictures in folders and archives: classes and files sorted, labels, and errors that name what is
missing.
"""

import io
import os
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

import numpy as np
import pytest
from refusing import assert_raises

import gristmill as grain
from gristmill.sources.storage.errors import DamagedFileError

FILES = ["zebra/b.png", "zebra/a.PNG", "ant/deep/10.jpg", "ant/9.jpeg", "bee/x.y.png"]
SORTED = ["ant/9.jpeg", "ant/deep/10.jpg", "bee/x.y.png", "zebra/a.PNG", "zebra/b.png"]
OTHERS = ["zebra/notes.txt", "zebra/.hidden.png", ".git/c.png", "readme.md"]


def in_a_folder(tmp_path, prefix=""):
    for name in [*FILES, *OTHERS]:
        path = tmp_path / "data" / prefix / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(name.encode())
    return tmp_path / "data"


def in_a_zip(tmp_path):
    return shutil.make_archive(str(tmp_path / "x"), "zip", in_a_folder(tmp_path))


def in_a_tar(tmp_path):
    in_a_folder(tmp_path, "photos/train")
    shutil.rmtree(tmp_path / "data" / "photos" / "train" / ".git")
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        archive.add(tmp_path / "data" / "photos" / "train", "train")
    return tmp_path / "x.tar"


@pytest.mark.parametrize("make", [in_a_folder, in_a_zip, in_a_tar])
def test_pictures_labels_and_classes(tmp_path, make):
    source = grain.ImageFolderSource(make(tmp_path))
    assert source.classes == ["ant", "bee", "zebra"]
    assert source.class_to_idx == {"ant": 0, "bee": 1, "zebra": 2}
    assert source.paths == SORTED and source.labels.tolist() == [0, 0, 1, 2, 2]
    elements = [
        {"image": name.encode(), "label": label, "path": name}
        for name, label in zip(SORTED, source.labels, strict=True)
    ]
    assert list(source) == elements and type(source[0]["label"]) is int
    assert "5 pictures, 3 classes" in repr(source) and str(tmp_path) not in repr(source)


@pytest.mark.parametrize("kind", ["folder", "tar", "zip"])
def test_links_are_followed_and_an_empty_class_is_an_error(tmp_path, kind):
    data = in_a_folder(tmp_path)
    (data / "ant" / "loop").symlink_to(data)
    (data / "bee" / "hard.png").hardlink_to(data / "zebra" / "b.png")
    (data / "bee" / "soft.png").symlink_to("../bee/hard.png")

    def made():
        return data if kind == "folder" else shutil.make_archive(str(tmp_path / "x"), kind, data)

    if kind != "zip":  # shutil would go around the loop
        source = grain.ImageFolderSource(made())
        assert source.paths == sorted([*SORTED, "bee/hard.png", "bee/soft.png"])
        assert [source[i]["image"] for i in (2, 3)] == [b"zebra/b.png"] * 2
    (data / "ant" / "loop").unlink()
    (data / "none").mkdir()
    assert_raises(ValueError, "class 'none' .* has no file", grain.ImageFolderSource, made())


def test_extensions_and_decoding(tmp_path):
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "red").mkdir()
    image.fromarray(np.full((2, 3, 3), (255, 0, 0), np.uint8)).save(tmp_path / "red" / "a.png")
    (tmp_path / "red" / "b.TXT").write_bytes(b"no picture")

    def decoded(data):
        return np.asarray(image.open(io.BytesIO(data)))

    source = grain.ImageFolderSource(tmp_path, decode=decoded)
    assert source[0]["image"].tolist() == [[[255, 0, 0]] * 3] * 2
    other = grain.ImageFolderSource(tmp_path, extensions=["txt"], decode=decoded)
    with pytest.raises(image.UnidentifiedImageError) as caught:
        other[0]
    assert caught.value.__notes__[0].startswith("decode failed for red/b.TXT")


def test_what_is_wrong_is_named(tmp_path):
    source = grain.ImageFolderSource
    assert_raises(ValueError, "has no folders", source, tmp_path)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a.png").write_bytes(b"x")
    (tmp_path / "empty" / "inner").mkdir(parents=True)
    message = "the class 'empty' .* has no file that ends with .bmp, "
    assert_raises(ValueError, message, source, tmp_path)
    (tmp_path / "x.tar").write_bytes(b"no archive")
    assert_raises(DamagedFileError, "a zip archive, or a tar archive", source, tmp_path / "x.tar")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("full/a.png", b"some bytes")
    damaged = bytearray((tmp_path / "x.zip").read_bytes())
    damaged[damaged.index(b"some bytes")] ^= 1
    (tmp_path / "x.zip").write_bytes(damaged)
    read = source(tmp_path / "x.zip").__getitem__
    assert_raises(DamagedFileError, "full/a.png cannot be read", read, 0)


@pytest.mark.skipif(not hasattr(os, "geteuid"), reason="POSIX only")
def test_a_folder_that_cannot_be_read_is_an_error():
    with tempfile.TemporaryDirectory() as top:
        locked = in_a_folder(Path(top)) / "ant" / "deep"
        Path(top).chmod(0o755)
        locked.chmod(0)
        is_root = os.geteuid() == 0
        if is_root:  # who may read everywhere
            os.seteuid(65534)
        try:
            assert_raises(PermissionError, str(locked), grain.ImageFolderSource, f"{top}/data")
        finally:
            if is_root:
                os.seteuid(0)
            locked.chmod(0o755)
