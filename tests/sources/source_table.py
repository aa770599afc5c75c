"""One small instance of every source of ten records; the value of record ``i`` is ``i``."""

import gzip
import importlib
import inspect
import io
import json
import pkgutil
import shutil
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from token_files import write_megatron, write_raw

from gristmill import sources
from gristmill.sources.columns import ColumnsDataSource, SeriesDataSource
from gristmill.sources.sharded import ShardedSource

HALVES = (range(7), range(7, 10))


@dataclass(frozen=True)
class SourceEntry:
    """A source, and how a test makes it.

    Attributes:
        name: the name of its tests.
        make: makes the source of a folder.
        write: writes the files into the folder; None for a source without files.
        value: makes the number of a record of the record.
        needs: the packages that it needs.
        takes_negative: True if keys below 0 count from the end, as in a list.
        from_urls: makes the source of the URLs of its files and a folder for indices; None if it
            reads local files alone.
        checks_files: True if it notices that a file has changed since it was made.
        length: the number of records.
    """

    name: str
    make: Callable[[Path], Any]
    write: Callable[[Path], None] | None = None
    value: Callable[[Any], int] = int
    needs: tuple[str, ...] = ()
    takes_negative: bool = False
    from_urls: Callable[[list[str], Path], Any] | None = None
    checks_files: bool = True
    length: int = 10


def write_array_records(folder: Path) -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    for file, numbers in enumerate(HALVES):
        writer = ArrayRecordWriter(str(folder / f"{file}.array_record"), "group_size:1")
        for number in numbers:
            writer.write(b"%d" % number)
        writer.close()


def bag_writer(suffix: str) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        import bagz

        for file, numbers in enumerate(HALVES):
            with bagz.Writer(str(folder / f"{file}{suffix}")) as writer:
                for number in numbers:
                    writer.write(b"%d" % number)

    return write


def lines_writer(suffix: str, compress: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def write(folder: Path) -> None:
        for file, numbers in enumerate(HALVES):
            text = "".join([json.dumps({"i": number}) + "\n" for number in numbers])
            (folder / f"{file}.jsonl{suffix}").write_bytes(compress(text.encode()))

    return write


def zstd_compressed(data: bytes) -> bytes:
    import zstandard

    return zstandard.ZstdCompressor().compress(data)


def write_parquet(folder: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    for file, numbers in enumerate(HALVES):
        table = pyarrow.table({"i": pyarrow.array(numbers, pyarrow.int64())})
        pyarrow.parquet.write_table(table, folder / f"{file}.parquet", row_group_size=3)


def add_to_tar(archive: tarfile.TarFile, name: str, number: int) -> None:
    member = tarfile.TarInfo(name)
    data = b"%d" % number
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def write_tars(folder: Path) -> None:
    for file, numbers in enumerate(HALVES):
        with tarfile.open(folder / f"{file}.tar", "w") as archive:
            for number in numbers:
                add_to_tar(archive, f"{number}.cls", number)


def write_tokens(folder: Path) -> None:
    for file, numbers in enumerate(HALVES):
        write_raw(folder / f"{file}.bin", list(numbers))


def write_documents(folder: Path) -> None:
    for file, numbers in enumerate(HALVES):
        write_megatron(folder / str(file), [[number] * 2 for number in numbers])


def mds_writer(compression: str) -> Callable[[Path], None]:
    golden = Path(__file__).parent / "mds_golden" / compression

    def write(folder: Path) -> None:
        shutil.copytree(golden, folder, dirs_exist_ok=True)

    return write


def write_images(folder: Path) -> None:
    for label, numbers in zip("ab", HALVES, strict=True):
        (folder / "images" / label).mkdir(parents=True)
        for number in numbers:
            (folder / "images" / label / f"{number}.png").write_bytes(b"%d" % number)


def write_zip(folder: Path) -> None:
    write_image_archive(folder, "zip")


def write_tar(folder: Path) -> None:
    write_image_archive(folder, "tar")


def write_image_archive(folder: Path, kind: str) -> None:
    write_images(folder)
    shutil.make_archive(str(folder / "images"), kind, folder / "images")
    shutil.rmtree(folder / "images")


def hugging_face(folder: Path) -> Any:
    import datasets

    return sources.HuggingFaceSource(datasets.Dataset.from_dict({"i": list(range(10))}))


def series(folder: Path) -> Any:
    import pandas as pd

    return SeriesDataSource(pd.Series(range(10)))


def shared_memory(folder: Path) -> Any:
    return sources.SharedMemoryDataSource(range(10))


def of_name(name: str) -> Callable[[dict[str, Any]], int]:
    return lambda record: int(record[name])


def first(record: Any) -> int:
    return int(record[0])


def array_records(folder: Path) -> Any:
    return sources.ArrayRecordDataSource(sorted(folder.glob("*.array_record")))


def tokens(folder: Path) -> Any:
    options: dict[str, Any] = {"dtype": np.uint16, "window": 1, "order": "olmo"}
    return sources.TokenSource(folder / "*.bin", "raw", **options)


def documents(folder: Path) -> Any:
    return sources.TokenSource([folder / "0", folder / "1"])


def mds(folder: Path) -> Any:
    return sources.MDSSource(folder, decode_images=False)


def mds_of_urls(urls: list[str], _: Path) -> Any:
    return sources.MDSSource(urls[0].rpartition("/")[0], decode_images=False)


def indexed(kind: Callable[..., Any]) -> Callable[[list[str], Path], Any]:
    return lambda urls, indices: kind(urls, index_dir=indices)


def parquet_of_urls(urls: list[str], _: Path) -> Any:
    return sources.ParquetSource(urls)


def tight_lines(folder: Path) -> Any:
    """Return a source of lines that keeps one decompressed part at a time."""
    return sources.JsonlSource(folder / "*.zst", max_bytes=0)


def matching(kind: Callable[[Path], Any], pattern: str) -> Callable[[Path], Any]:
    return lambda folder: kind(folder / pattern)


ARRAY_RECORD = ("array_record.python.array_record_module",)
ROW, IMAGE, ID = of_name("i"), of_name("image"), of_name("id")
PLAIN, GZ, ZSTD = (
    lines_writer("", bytes),
    lines_writer(".gz", gzip.compress),
    lines_writer(".zst", zstd_compressed),
)
LINES, TARS = indexed(sources.JsonlSource), indexed(sources.TarSource)
SOURCES = [
    SourceEntry(
        "array_record", array_records, write_array_records, needs=ARRAY_RECORD, checks_files=False
    ),
    SourceEntry("bag", matching(sources.BagDataSource, "*"), bag_writer(".bag"), needs=("bagz",)),
    SourceEntry("bagz", matching(sources.BagDataSource, "*"), bag_writer(".bagz"), needs=("bagz",)),
    SourceEntry("jsonl", matching(sources.JsonlSource, "*"), PLAIN, ROW, from_urls=LINES),
    SourceEntry("jsonl_gz", matching(sources.JsonlSource, "*"), GZ, ROW, from_urls=LINES),
    SourceEntry("jsonl_zst", tight_lines, ZSTD, ROW, ("zstandard",), from_urls=LINES),
    SourceEntry(
        "parquet",
        matching(sources.ParquetSource, "*"),
        write_parquet,
        ROW,
        ("pyarrow",),
        from_urls=parquet_of_urls,
    ),
    SourceEntry(
        "tar", matching(sources.TarSource, "*"), write_tars, of_name("cls"), from_urls=TARS
    ),
    SourceEntry("tokens", tokens, write_tokens, first),
    SourceEntry("documents", documents, write_documents, first),
    SourceEntry("mds", mds, mds_writer("plain"), ID, ("PIL",), from_urls=mds_of_urls, length=5),
    SourceEntry("mds_gz", mds, mds_writer("gz"), ID, ("PIL",), from_urls=mds_of_urls, length=5),
    *[
        SourceEntry(
            name, matching(sources.ImageFolderSource, file), write, IMAGE, (), False, None, False
        )
        for name, file, write in [
            ("images", "images", write_images),
            ("images_zip", "images.zip", write_zip),
            ("images_tar", "images.tar", write_tar),
        ]
    ],
    SourceEntry("hugging_face", hugging_face, value=ROW, needs=("datasets",)),
    SourceEntry("range", lambda folder: sources.RangeDataSource(0, 10, 1)),
    SourceEntry("columns", lambda folder: ColumnsDataSource({"i": np.arange(10)}), value=ROW),
    SourceEntry("series", series, needs=("pandas",), takes_negative=True),
    SourceEntry("shared_memory", shared_memory, takes_negative=True),
]


def source_classes() -> set[type]:
    """Every concrete class of the package ``sources`` that is a source."""
    found = set()
    for info in pkgutil.walk_packages(sources.__path__, sources.__name__ + "."):
        for value in vars(importlib.import_module(info.name)).values():
            is_own = inspect.isclass(value) and value.__module__ == info.name
            if is_own and not inspect.isabstract(value) and not issubclass(value, tuple):
                is_source = hasattr(value, "__getitem__") and hasattr(value, "__len__")
                found |= {value} if is_source else set()
    return found - {sources.RandomAccessDataSource, ShardedSource}
