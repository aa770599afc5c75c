"""Tar shards against Python's ``tarfile`` and a naive reading of WebDataset's rules; damage; what
is read, and how much.
"""

import io
import os
import random
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from refusing import assert_raises

from gristmill.core.errors import KeyRangeError
from gristmill.sources import ChangedFileError, DamagedFileError, TarSource
from gristmill.sources.storage import sidecar
from gristmill.sources.storage.files import Files
from gristmill.sources.tar_index import index_archive
from gristmill.sources.tar_members import tar_members

FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
OTHERS = [tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.FIFOTYPE]
KINDS = {tarfile.REGTYPE: "file", tarfile.LNKTYPE: "hard link", tarfile.SYMTYPE: "symbolic link"}
INDEX = r"[Dd]elete (it|/.*/a\.tar\.gmidx)"


def add(tar, name, data=b"", **fields):
    member = tarfile.TarInfo(name)
    member.size = len(data)
    for field, value in fields.items():
        setattr(member, field, value)
    tar.addfile(member, io.BytesIO(data))


def write(path, files, **options):
    with tarfile.open(path, "w", **options) as tar:
        for name, data in files:
            add(tar, name, data)
    return path


def naive(paths, extensions=None):
    """Records as WebDataset describes them, from what ``tarfile`` reads."""
    records = []
    for path in paths:
        records.append(None)
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                match = re.match(r"^((?:.*/)?[^./][^./]*)\.([^/]*)$", member.name, re.DOTALL)
                # tarfile reads the target of a hard link
                is_file = member.isreg() or member.islnk()
                if not is_file or match is None or re.match(r"__[^/]*__($|/)", member.name):
                    continue
                key, extension = match[1], match[2].lower()
                if records[-1] is None or records[-1]["__key__"] != key:
                    records.append({"__key__": key})
                if extensions is None or extension in extensions:
                    records[-1][extension] = tar.extractfile(member).read()
    return [record for record in records if record is not None]


def random_archive(path, rng, kind):
    """An archive with all that may be in one, in one of the three formats."""
    letters = "abcäßγ字🜁 _-=" if kind != "ustar" else "abcdef_- ="

    def name(size):
        return "".join(rng.choices(letters, k=size)).strip() or "x"

    targets = []
    with tarfile.open(path, "w", format=FORMATS[kind]) as tar:
        for number in range(rng.randrange(1, 12)):
            folder = "/".join(
                name(rng.choice([3, 30] if kind == "ustar" else [3, 60, 200]))
                for _ in range(rng.randrange(3))
            )
            stem = f"{folder}/{number}{name(4)}".lstrip("/")
            for extension in rng.sample(
                ["jpg", "CLS", "json", "seg.PNG", "", "txt", "ä" if kind != "ustar" else "a"],
                rng.randrange(1, 5),
            ):
                size = rng.choice(
                    [0, 1, 511, 512, 513, rng.randrange(5000), rng.randrange(100_000)]
                )
                mtime = rng.choice([0, 1.5, 1e9]) if kind == "pax" else rng.randrange(2**33)
                add(
                    tar,
                    f"{stem}.{extension}",
                    rng.randbytes(size),
                    mtime=mtime,
                    uid=rng.choice([0, 3_000_000]) if kind != "ustar" else 0,
                )
                targets += [f"{stem}.{extension}"] * (kind != "ustar" or len(stem) < 90)
                if not rng.randrange(3):
                    add(
                        tar,
                        f"{folder}/{name(3)}.jpg".lstrip("/"),
                        type=rng.choice(OTHERS),
                        linkname=stem[:90],
                    )
                if not rng.randrange(3):
                    add(
                        tar,
                        rng.choice(
                            [".hidden.jpg", "a/._0.jpg", "README", "__x__", "__x__/a.jpg", "b/none"]
                        ),
                        rng.randbytes(700),
                    )
            links = rng.sample(["-.jpg", ".0", ".1", ".2"], rng.randrange(4))
            for name_of_link in [f"{stem}{end}" for end in sorted(links, reverse=True)]:
                if targets:
                    target = rng.choice(["", "./"]) + rng.choice(targets)
                    add(tar, name_of_link, type=tarfile.LNKTYPE, linkname=target)
                    targets += [name_of_link] * (kind != "ustar" or len(stem) < 90)


@pytest.mark.parametrize("seed", range(40))
def test_any_archive_is_read_as_tarfile_reads_it(tmp_path, seed):
    rng = random.Random(seed)
    kind = [*FORMATS][seed % 3]
    paths = [str(tmp_path / f"shard-{i:03}.tar") for i in range(rng.randrange(1, 4))]
    for path in paths:
        random_archive(path, rng, kind)
    expected = naive(paths)
    source = TarSource(str(tmp_path / "shard-*"))
    assert len(source) == len(expected) and source.paths == paths
    assert list(source) == expected == source.__getitems__(range(len(source)))
    # the order of files, too
    assert [list(record) for record in source] == [list(record) for record in expected]
    keys = rng.choices(range(len(expected)), k=50)
    assert source.__getitems__(keys) == [expected[key] for key in keys]
    sizes = [
        sum(len(data) for name, data in record.items() if name != "__key__") for record in expected
    ]
    assert source.lengths.tolist() == sizes and source.lengths.dtype == np.int64
    for window_bytes in (512, 5000, 1 << 22):
        members = list(tar_members(Files(paths[:1]), 0, window_bytes))
        with tarfile.open(paths[0], "r:") as tar:
            expected = list(tar)
        files = [(x.name, x.offset_data, x.size) for x in expected if x.isreg()]
        assert [x[:3] for x in members if x.kind == "file"] == files
        kinds = [
            (x.name, KINDS.get(x.type, "other"), x.linkname * (x.type in KINDS)) for x in expected
        ]
        assert [(x.name.rstrip("/"), x.kind, x.target) for x in members] == kinds


def test_hard_links_are_read_and_symbolic_ones_are_counted(tmp_path, caplog):
    folder = tmp_path / "d"
    folder.mkdir()
    for name, data in (("0.jpg", bytes(70_000)), ("0.txt", b"zero"), ("1.txt", b"one")):
        (folder / name).write_bytes(data)
    links = {
        "0.png": "0.txt",
        "1.jpg": "0.jpg",
        "2.jpg": "1.jpg",
        "2.txt": "0.txt",
        "3.txt": "2.txt",
    }
    for name, target in links.items():
        os.link(folder / target, folder / name)
    for name in ("1.png", "2.png", "latest", ".x.png"):
        (folder / name).symlink_to("0.jpg")
    os.link(folder / "2.png", folder / "3.png", follow_symlinks=False)
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:  # stores a file once, as tar does
        for name in sorted(path.name for path in folder.iterdir()):
            tar.add(folder / name, f"./{name}")
        for name in ("./1.jpg", "3.txt"):  # as tar does for a file that is stored twice
            add(tar, name, type=tarfile.LNKTYPE, linkname="0.jpg" if "1" in name else "./3.txt")
    files = {"0": ("jpg", "png", "txt"), "1": ("jpg", "txt"), "2": ("jpg", "txt"), "3": ("txt",)}
    expected = [
        {"__key__": f"./{key}", **{name: (folder / f"{key}.{name}").read_bytes() for name in names}}
        for key, names in files.items()
    ]
    sizes = [sum(map(len, [*record.values()][1:])) for record in expected]
    for _ in range(2):  # without an index, and with one
        caplog.clear()
        source = TarSource([path, path])
        assert list(source) == source.__getitems__(range(8)) == 2 * expected
        assert source.lengths.tolist() == 2 * sizes
        (warning,) = [record.getMessage() for record in caplog.records]
        match = (
            rf": 6 are missing from their records, such as './1\.png' of {path}\. .*--dereference"
        )
        assert re.search(match, warning)


def test_some_files_alone(tmp_path):
    files = [
        (f"{i}.{name}", f"{i} {name}".encode() * 9000)
        for i in range(5)
        for name in ("jpg", "cls", "json")[: 1 + i % 3]
    ]
    path = write(tmp_path / "a.tar", files)
    source = TarSource(path, extensions=["JPG", ".json"])
    assert source.__getitems__(range(5)) == naive([path], {"jpg", "json"})
    assert source.lengths.tolist() == [
        sum(map(len, list(record.values())[1:])) for record in source
    ]
    source = TarSource(path, extensions=["cls"])
    assert source[1]["cls"] == b"1 cls" * 9000
    assert source.lengths.tolist() == [0, 45000, 45000, 0, 45000]
    match = r"extensions: the record '0' of .*a\.tar has none of \['cls'\]; it has \['jpg'\]"
    assert_raises(ValueError, match, source.__getitem__, 0)
    assert_raises(ValueError, match, source.__getitems__, [1, 0, 99])
    assert_raises(KeyRangeError, "99", source.__getitems__, [1, 99, 0])


def shards(folder, num_shards=3, num_records=5):
    folder.mkdir(exist_ok=True)
    for shard in range(num_shards):
        files = [
            (f"{i:03}.{name}", f"{shard} {i} {name}".encode() * i)
            for i in range(num_records)
            for name in ("jpg", "cls")
        ]
        write(folder / f"s-{shard:03}.tar", files)
    return str(folder / f"s-{{000..{num_shards - 1:03}}}.tar")


def test_indices_in_a_folder_and_texts(tmp_path):
    source = TarSource(shards(tmp_path / "a"))
    shards(tmp_path / "b")
    other = TarSource(str(tmp_path / "b/*.tar"), index_dir=tmp_path / "indices")
    assert repr(other) == repr(source) == f"TarSource({source._files.described()})"
    assert not [*(tmp_path / "b").glob("*.gmidx")]
    assert len([*(tmp_path / "indices").glob("*.gmidx")]) == 3
    assert repr(TarSource(source.paths, extensions=["jpg"])) != repr(source)
    assert_raises(FileNotFoundError, "indices .* alone", TarSource, str(tmp_path / "a/*.gmidx"))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel counts reads")
def test_files_beyond_8_gigabytes_are_passed_unread(tmp_path):
    """Sizes as GNU and POSIX write them where eleven octal digits do not suffice; the file is a
    hole.
    """
    for kind in ("gnu", "pax"):
        path, size = tmp_path / f"{kind}.tar", 9 * 2**30
        with path.open("wb") as file:
            for name, num_bytes in (("0.bin", size), ("0.cls", 1), ("1.cls", 1)):
                member = tarfile.TarInfo(name)
                member.size = num_bytes
                file.write(member.tobuf(FORMATS[kind]))
                file.write(b"7") if num_bytes == 1 else file.seek(num_bytes, os.SEEK_CUR)
                file.seek(-num_bytes % 512, os.SEEK_CUR)
            file.truncate(file.tell() + 1024)
        before = bytes_read()
        source = TarSource(path, extensions=["cls"])
        assert source.__getitems__([1, 0]) == [
            {"__key__": "1", "cls": b"7"},
            {"__key__": "0", "cls": b"7"},
        ]
        assert bytes_read() - before < 2_000_000
        assert TarSource(path).lengths.tolist() == [size + 1, 1]


def bytes_read(name="rchar"):
    """The number of bytes, or of reads, of this process from all files."""
    return int(re.search(rf"{name}: (\d+)", Path("/proc/self/io").read_text())[1])


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel counts reads")
def test_a_record_is_one_read_of_what_is_needed(tmp_path):
    kinds = {"jpg": 3000, "cls": 2, "wav": 200_000, "json": 20}
    path = write(
        tmp_path / "a.tar",
        [(f"{i}.{name}", bytes(size)) for i in range(200) for name, size in kinds.items()],
    )
    # Two reads of the index; the small files before the large one with its header; the large one;
    # the files after it.
    for extensions, most in ((["jpg", "cls"], 3), (["jpg", "json"], 4), ([*kinds], 5)):
        source = TarSource(path, extensions=extensions)
        # all is open
        assert source[3] == {"__key__": "3", **{name: bytes(kinds[name]) for name in extensions}}
        before = bytes_read("syscr")
        for key in range(50, 150):
            source[key]
        assert 100 * most <= bytes_read("syscr") - before <= 100 * most + 20
        before = bytes_read()
        source.__getitems__(range(50, 150))
        assert bytes_read() - before < 100 * (sum([kinds[name] for name in extensions]) + 4000)
    source = TarSource(write(tmp_path / "b.tar", [(f"{i}.cls", b"") for i in range(2000)]))
    source[0]
    before = bytes_read()
    keys = [1990, 1999, 0, 5]
    assert [record["__key__"] for record in source.__getitems__(keys)] == [*map(str, keys)]
    assert bytes_read() - before < 10_000


@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
def test_many_archives_with_few_open_files(tmp_path):
    pattern = shards(tmp_path / "many", 300, 2)
    command = [sys.executable, Path(__file__).with_name("read_many_archives.py"), pattern]
    subprocess.run(command, check=True, timeout=60)


def header(name, size=0, **fields):
    member = tarfile.TarInfo(name)
    member.size = size
    for field, value in fields.items():
        setattr(member, field, value)
    return member.tobuf(tarfile.GNU_FORMAT)


def padded(data):
    return data + bytes(-len(data) % 512)


def file(name, data=b"data"):
    return header(name, len(data)) + padded(data)


def pax(records):
    return header("x", len(records), type=b"x") + padded(records)


def link(name, target, kind=b"1"):
    return header(name, type=kind, linkname=target)


A, B, END = file("a.jpg"), file("b.jpg"), bytes(1024)
WRONG = bytearray(A)
WRONG[3] ^= 1
TEXT = b"This is no archive.\n" * 100
LATER = f"byte {len(A + B)}: there is no header"
NEXT = "byte 1024: 'b.jpg', which begins there, would end at byte 2048; the archive has "
BAD_PAX = "byte 1536: there is no extended header"
AGAIN = "byte 1024: the record 'a' has 'jpg' already"
NONE = "byte 0: none of its 0 files "
FOLDERS = header("a/", type=b"5") + header("a.b", type=b"5")
PIPE = header("pipe", type=b"6") + link("a.jpg", "pipe")
NO_TARGET = "'{}' is a hard link to '{}', and no file before".format
REFUSED = {
    "nothing": (b"", "byte 0: it is empty, which is no header"),
    "text": (TEXT, "byte 0: it begins with b'This is no archi', which is no header"),
    "zeros only": (bytes(1 << 21), "byte 0: it begins with"),
    "a piece of zeros": (bytes(100), "byte 0: it begins with"),
    "another checksum": (WRONG + END, "byte 0: it begins with"),
    "another checksum, later": (A + B + WRONG + END, LATER),
    "cut off in a header": (A + B[:100], f"byte {len(A)}: the header of a file is cut off"),
    "cut off in data": (A + B[:514], f"{NEXT}1538"),
    "cut off behind data": (A + B[:1000], f"{NEXT}2024"),
    "one after another": (A + END + B + END, "byte 2048: the archive has ended.*--concatenate"),
    "zeros inside": (A + bytes(512) + B + END, "byte 1536: the archive has ended before"),
    "unknown kind": (
        A + header("b.jpg", type=b"Z"),
        "byte 1024: 'b.jpg' is of the unknown kind b'Z'",
    ),
    "no size": (header("a.jpg")[:124] + b"xx" + END, "byte 0: it begins"),
    "negative size": (A + pax(b"13 size=-500\n") + B, "byte 2048: b'-500' is no size of a file"),
    "size is no number": (A + pax(b"10 size=z\n") + B, "byte 2048: b'z' is no size of a file"),
    "a damaged extended header": (A + pax(b"99 path=b.jpg\n") + B, f"{BAD_PAX}, but b'99 path"),
    "a name with a zero": (A + pax(b"14 path=b\0.jpg\n"[:14]) + B, BAD_PAX),
    "a link with a zero": (A + pax(b"14 linkpath=\0\n"[:14]) + B, BAD_PAX),
    "an extended header at the end": (
        A + pax(b"14 path=b.jpg\n"),
        "byte 2048: .* announces a file",
    ),
    "the same file again": (A + A, f"{AGAIN}, and here again"),
    "small letters": (A + file("a.JPG"), AGAIN),
    "a file called key": (A + file("a.__key__"), "byte 1024: the record 'a' has '__key__' already"),
    "apart": (A + B + file("a.cls"), "the record 'a' lie apart: before 'a.cls' .*--sort=name"),
    "no records": (file("README") * 2, "none of its 2 files belongs to a record. Name them"),
    "symbolic links": (link("a.jpg", "x", b"2") * 2, f"{NONE}.* 2 symbolic links.*--dereference"),
    "folders": (FOLDERS, f"{NONE}belongs to a record; .* 0 symbolic links and 2 folders"),
    "a pipe and a link to it": (PIPE, f"{NONE}.* and 2 folders and devices"),
    "a link to nothing": (
        A + link("b.jpg", "c.jpg"),
        f"{NO_TARGET('b.jpg', 'c.jpg')}.*--hard-deref",
    ),
    "a link forward": (link("a.jpg", "b.jpg") + B, NO_TARGET("a.jpg", "b.jpg")),
    "a link to such a one": (link("x", "y") + link("a.jpg", "x"), NO_TARGET("a.jpg", "x")),
    "a link in place of a file": (A + B + link("a.jpg", "b.jpg"), "the record 'a' lie apart"),
}
WITHOUT_END = {"nothing", "text", "zeros only", "a piece of zeros"}


@pytest.mark.parametrize("case", REFUSED)
def test_an_incomplete_archive_is_refused_and_leaves_no_index(tmp_path, case):
    content, match = REFUSED[case]
    if case not in WITHOUT_END and "cut off" not in case and not content.endswith(END):
        content += END
    (tmp_path / "a.tar").write_bytes(content)
    match = rf"a\.tar is damaged at .*{match}|a\.tar .*{match}"
    assert_raises(DamagedFileError, match, TarSource, tmp_path / "a.tar")
    assert [path.name for path in tmp_path.iterdir()] == ["a.tar"]


@pytest.mark.parametrize("kind", ["gz", "bz2", "xz", "sparse", "pax sparse"])
def test_what_cannot_be_read_at_random_is_refused(tmp_path, kind):
    path = tmp_path / f"a.tar.{kind}"
    if "sparse" in kind:
        content = (
            header("a.jpg", 0, type=b"S")
            if kind == "sparse"
            else pax(b"22 GNU.sparse.major=1\n") + A
        )
        path.write_bytes(content + END)
        match = (
            r"byte (0|1024) a file that is not stored in one piece, 'a\.jpg': write the archive"
            r" without --sparse"
        )
    else:
        with tarfile.open(path, f"w:{kind}") as tar:
            add(tar, "a.jpg", b"data")
        match = rf"a\.tar\.{kind} is compressed \({kind[0]}.*Unpack it"
    assert_raises(ValueError, match, TarSource, path)


def test_archives_without_end_or_files_and_old_headers(tmp_path):
    signed = bytearray(header("ä.jpg"))
    signed[148:156] = b"%06o\0 " % (
        int(signed[148:154], 8) - 256 * sum(byte > 127 for byte in signed[:148])
    )
    members = [
        A,
        pax(b"16 comment=none\n"),
        header("g", 18, type=b"g"),
        padded(b"18 comment=of all\n"),
        B,
    ]
    latin = tarfile.TarInfo("ö.jpg").tobuf(tarfile.GNU_FORMAT, "latin-1")
    members += [
        header("v7/", 1500, type=b"\0"),
        header("link", 1500, type=b"1", linkname="a.jpg"),
        header("volume", type=b"V"),
        header("c.jpg", type=b"7"),
        bytes(signed),
        latin,
    ]
    path = tmp_path / "a.tar"
    for end in (b"", bytes(100), bytes(512), bytes(1024), bytes(10240)):
        path.write_bytes(b"".join(members) + end)
        records = list(TarSource(path))
        assert [record["__key__"] for record in records] == ["a", "b", "c", "ä", "\udcf6"]
        assert records[1]["jpg"] == b"data"
    path.write_bytes(bytes(10240))
    assert len(TarSource(path)) == 0 and TarSource(path).lengths.tolist() == []
    assert len(TarSource([path, write(tmp_path / "b.tar", [("a.jpg", b"")])])) == 1


def big_archive(path, middle):
    """More than the ends by which an index knows its archive again; its middle may differ."""
    files = [(f"{i:03}.jpg", b"%03d" % i * 300) for i in range(300)]
    return write(path, [*files[:150], (middle, b"x" * 900), *files[150:]])


def test_an_archive_that_changed_or_was_damaged_is_noticed(tmp_path):
    path = big_archive(tmp_path / "a.tar", "x.jpg")
    source = TarSource(path)
    start = next(
        member.start for member in tar_members(Files([str(path)]), 0) if member.name == "x.jpg"
    )
    source.close()
    big_archive(path, "y.jpg")  # the same size, beginning and end
    other = TarSource(path)
    assert other[149] == {"__key__": "149", "jpg": b"149" * 300}
    match = (
        rf"a\.tar has changed .* at byte {start - 512} is not the file 'x\.jpg' that its index has"
        rf" there\. {INDEX}"
    )
    for source in (other, cloudpickle.loads(cloudpickle.dumps(other))):
        assert_raises(ChangedFileError, match, source.__getitem__, 150)
        assert_raises(ChangedFileError, match, source.__getitems__, [3, 150, 999])
    with path.open("r+b") as damaged:
        damaged.seek(start - 300)
        damaged.write(b"?")
    match = (
        rf"a\.tar is damaged at byte {start - 512}: there is no header, where its index has that of"
        rf" 'x\.jpg'.*{INDEX}"
    )
    assert_raises(DamagedFileError, match, TarSource(path).__getitem__, 150)
    assert_raises(ChangedFileError, "was written to while it was read", other.__getitem__, 0)
    (tmp_path / "a.tar.gmidx").unlink()
    assert_raises(DamagedFileError, "there is no header", TarSource, path)


def test_no_damaged_byte_of_an_index_gives_another_record(tmp_path):
    path = write(
        tmp_path / "a.tar",
        [(f"{i}.{name}", b"data" * i) for i in range(6) for name in ("jpg", "cls")],
    )
    expected = list(TarSource(path))
    index = tmp_path / "a.tar.gmidx"
    content = index.read_bytes()
    noticed = 0
    for position in range(0, len(content), 3):
        index.write_bytes(
            content[:position]
            + bytes([content[position] ^ 1 << position % 8])
            + content[position + 1 :]
        )
        try:
            source = TarSource(path)
            assert source.__getitems__(range(len(source))) == expected
        except DamagedFileError as error:
            noticed += 1
            assert "a.tar" in str(error) and re.search(INDEX, str(error))
    assert noticed > 50  # of the others most are in the index's header, for which it is made again


def test_an_index_of_other_records_is_noticed(tmp_path):
    """Headers of indices have checksums, and arrays have none."""
    path, index = (
        write(tmp_path / "a.tar", [(f"{i}.jpg", b"data" * i) for i in range(4)]),
        tmp_path / "a.tar.gmidx",
    )
    files = Files([str(path)])
    arrays = index_archive(files, 0, lambda _: None, 4096)
    starts, lengths = arrays["starts"], arrays["lengths"]
    for changes in (
        {"starts": starts[1:], "lengths": lengths[1:]},
        {"starts": starts[:-1], "lengths": lengths[:-1]},
        {"starts": starts[[0, 2, 1, 3, 4]]},
        {"starts": starts[::-1].copy()},
        {"starts": starts + 2**40},
        {"lengths": -lengths},
    ):
        index.unlink(missing_ok=True)
        sidecar._write(index, "tar", sidecar._edges(files, 0), {**arrays, **changes})
        source = TarSource(path)
        assert_raises(DamagedFileError, INDEX, lambda s: (list(s), s.lengths), source)


def test_no_damaged_byte_of_a_header_gives_another_record(tmp_path):
    path = write(tmp_path / "a.tar", [("a.jpg", b"a"), ("b.jpg", b"b")], format=tarfile.GNU_FORMAT)
    content = path.read_bytes()
    expected = list(TarSource(path, index_dir=tmp_path / "whole"))
    # but of the checksum, which may be filled up
    for position in [*range(148), *range(156, 512), *range(1024, 1172, 7)]:
        path.write_bytes(
            content[:position]
            + bytes([content[position] ^ 1 << position % 8])
            + content[position + 1 :]
        )
        match = f"byte {position // 512 * 512}: .*header"
        assert_raises(DamagedFileError, match, TarSource, path, index_dir=tmp_path / "damaged")
    path.write_bytes(content)
    assert list(TarSource(path, index_dir=tmp_path / "whole")) == expected
