"""Damaged files: an error that names them or what was written, never the end of the interpreter,
never other data.

As a program, ``test_damaged_files.py FORMAT FOLDER FIRST LAST`` tries the damages from number
``FIRST`` to below ``LAST``. It prints the number of each before it reads the file, so that the last
one says which has killed it, and ``wrong: ...`` where that broke the law: an error of the
documented type that names the file, or the data; before an error the data, too.
"""

import contextlib
import gzip
import itertools
import logging
import random
import signal
import struct
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
from parquet_rows import exact, plain_rows

from gristmill.dataset.bases.element_spec import get_element_spec
from gristmill.dataset.stages.parquet import ParquetIterDataset
from gristmill.dataset.stages.tfrecord import TFRecordIterDataset
from gristmill.sources import ArrayRecordDataSource, ParquetSource, array_record, parquet
from gristmill.sources.crc32c import masked_crc32c

resource = pytest.importorskip(
    "resource", reason="the system does not limit the memory of a process"
)
MAX_MEMORY = 4 << 30  # of address space: a damaged length must not ask for more
KINDS = ["bits"] * 5 + ["bytes"] * 5 + ["length"] * 3 + ["cut", "zeros", "repeat", "remove", "copy"]
LENGTHS = [
    struct.pack("<q", length)
    for bits in (7, 15, 31, 40, 62)
    for length in (0, -1, (1 << bits) - 1, -(1 << bits))
]
# the last are varints
LENGTHS += [length[:4] for length in LENGTHS] + [b"\xff" * n + b"\x01" for n in (1, 3, 4, 8, 9)]


def damage(content, places, seed):
    """``content`` with a damage of a random kind, mostly in one of ``places``: pairs of begin and
    end.
    """
    rng = random.Random(seed)
    data = bytearray(content)

    def place():
        return rng.randrange(*rng.choice([*places, *places, (0, len(content))]))

    kind, begin = rng.choice(KINDS), place()
    if kind in ("bits", "bytes"):
        for _ in range(rng.choice([1, 1, 1, 2, 4])):
            data[place()] ^= 1 << rng.randrange(8) if kind == "bits" else rng.randrange(1, 256)
        return bytes(data)
    end = min(begin + int(2 ** rng.uniform(0, 11)), len(content))
    length, source = rng.choice(LENGTHS), rng.randrange(len(content) - (end - begin) + 1)
    begin, end, new = {
        "length": (begin, begin + len(length), length),
        "cut": (begin, len(content), b""),
        "zeros": (begin, end, bytes(end - begin)),
        "repeat": (begin, begin, data[begin:end]),
        "remove": (begin, end, b""),
        "copy": (begin, end, data[source : source + end - begin]),
    }[kind]
    data[begin:end] = new
    return bytes(data)


def some_records():
    rng = random.Random(1)
    return [f"record {i} ".encode() * (i % 9) + rng.randbytes(i % 50) for i in range(60)]


# good files, each with the places where damage has the largest effect, and with what is read from
# them
class Format:
    error: type[Exception]

    def __init__(self, folder):
        self.path = str(folder / "damaged")
        self.files = [*self.write(folder)]

    def check(self, number):
        content, places, settings = self.files[number % len(self.files)]
        damaged = damage(content, places, number)
        Path(self.path).write_bytes(damaged)
        self.read(damaged, settings)

    @contextlib.contextmanager
    def documented(self):
        """The list of errors that came up, which are of the documented type and name the file."""
        errors = []
        try:
            yield errors
        except (self.error, NotImplementedError) as error:
            # the latter: the damage requires an unknown codec
            assert self.path in str(error), f"{error!r} does not name the file"
            errors.append(error)

    def delivered(self, ds):
        """The elements up to the first error, and that."""
        elements, it = [], iter(ds)
        with self.documented() as errors:
            elements += it
        for _ in range(10 if errors else 0):  # records after it: as well as can be
            with self.documented():
                it.skip_failed()
                for _ in it:
                    pass
                break
        return elements, errors


PAGES = {"data_page_version": "2.0", "write_page_checksum": True, "write_page_index": True}
DELTA = {"data_page_size": 64, "column_encoding": {"n": "DELTA_BINARY_PACKED"}}


class Parquet(Format):
    error = ValueError
    OPTIONS = (
        {"store_schema": False},
        {"compression": "none", "use_dictionary": False},
        PAGES | {"compression": "zstd"},
        {"write_statistics": False, "store_schema": False, "compression": "gzip"},
        DELTA | {"use_dictionary": False, "compression": "lz4"},
    )

    def write(self, folder):
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {
            "n": pa.int64(),
            "must": pa.int32(),
            "text": pa.string(),
            "some": pa.list_(pa.int32()),
            "half": pa.float32(),
            "pair": pa.list_(pa.int16()),
            "both": pa.struct([("a", pa.int64()), ("b", pa.string())]),
            "odd": pa.bool_(),
        }
        schema = pa.schema([pa.field(name, kinds[name], name != "must") for name in kinds])
        rows = [
            {"n": None if i % 17 == 3 else i, "must": i, "text": f"text {i % 7}", "half": i / 2}
            | {"some": [*range(i % 5)] if i % 11 else None, "pair": [i, i + 1]}
            | {"both": {"a": i, "b": str(i)}, "odd": i % 2 > 0}
            for i in range(120)
        ]
        for options in self.OPTIONS:
            pq.write_table(
                pa.Table.from_pylist(rows, schema), folder / "good", row_group_size=50, **options
            )
            content = (folder / "good").read_bytes()
            end = len(content) - 8
            footer = (end - int.from_bytes(content[end : end + 4], "little"), end)
            checks = "write_page_checksum" in options
            kwargs = {"page_checksum_verification": True} if checks else {"memory_map": True}
            for block_rows in (7, 100):  # several of them, or one, per row group
                yield content, [footer, footer, footer, (end, end + 4)], (block_rows, kwargs)

    def read(self, _, settings):
        parquet._BLOCK_ROWS, kwargs = settings
        ds = ParquetIterDataset(self.path, **kwargs)
        with self.documented():
            get_element_spec(ds)
        rows, errors = self.delivered(ds)
        plain, is_readable = self.plainly_read(**kwargs)
        num_rows = min(len(rows), len(plain))
        assert [*map(exact, rows[:num_rows])] == plain[:num_rows], "pyarrow reads other values"
        assert errors or (is_readable and len(rows) == len(plain)), (
            f"no error, {len(rows)} rows: pyarrow reads {len(plain)}"
        )

    def plainly_read(self, **kwargs):
        import pyarrow as pa
        import pyarrow.parquet as pq

        rows = []
        with contextlib.suppress(OSError, ValueError, pa.ArrowException):
            with pq.ParquetFile(self.path, **kwargs) as file:
                for group in range(file.num_row_groups):
                    rows += plain_rows(file, group)
            return rows, True
        return rows, False


class ParquetTable(Parquet):
    def read(self, _, settings):
        _, kwargs = settings
        kwargs.pop("memory_map", None)
        rows, source = {}, []
        with self.documented() as errors:
            source = ParquetSource(self.path, **kwargs)
        for key in range(min(len(source), 200)):
            with self.documented() as failed:
                rows[key] = exact(source[key])
            errors += failed
        plain, is_readable = self.plainly_read(**kwargs)
        for key, row in rows.items():
            assert key >= len(plain) or row == plain[key], f"pyarrow reads another row {key}"
        assert errors or (is_readable and len(rows) == len(plain)), (
            f"no error, {len(rows)} rows: pyarrow reads {len(plain)}"
        )
        with self.documented():
            block = source.__getitems__([*rows]) if rows else []
            assert [*map(exact, block)] == [*rows.values()], "a block of other rows"


class TFRecord(Format):
    error = ValueError

    def write(self, _):
        self.records = some_records()
        lengths = [struct.pack("<Q", len(record)) for record in self.records]
        checksums = [
            [struct.pack("<I", int(crc)) for crc in masked_crc32c(strings)]
            for strings in (lengths, self.records)
        ]
        content = b"".join(
            itertools.chain(*zip(lengths, checksums[0], self.records, checksums[1], strict=True))
        )
        ends = [*itertools.accumulate([len(record) + 16 for record in self.records])]
        # with the checksum before
        headers = [(end - 4, min(end + 12, len(content))) for end in ends]
        for check_crc in (True, False):
            yield content, headers, (check_crc, None, None)
            halves = gzip.compress(content[:2000]) + gzip.compress(content[2000:])
            for compressed, inflate, name in [
                (halves, gzip.decompress, "gzip"),
                (zlib.compress(content), zlib.decompress, "zlib"),
            ]:
                places = [(0, 12), (len(compressed) - 8, len(compressed))]
                yield compressed, places, (check_crc, name, inflate)

    def read(self, damaged, settings):
        check_crc, compression, inflate = settings
        records, errors = self.delivered(
            TFRecordIterDataset(self.path, check_crc=check_crc, compression=compression)
        )
        assert not check_crc or set(records) <= set(self.records), "a record that was never written"
        try:
            content = inflate(damaged) if inflate and damaged else damaged
        except (OSError, EOFError, zlib.error):
            assert errors, f"no error, though {compression} has one"
            return
        expected, is_good = self.parsed(content, check_crc)
        assert records == expected[: len(records)], "other records"
        assert errors or (is_good and len(records) == len(expected)), "no error"
        assert compression or bool(errors) != is_good, f"{errors}, though the file is good"

    @staticmethod
    def parsed(content, check_crc):
        """The records, as simply as can be, up to the first damaged one; and whether none is
        damaged.
        """
        records, begin = [], 0
        while len(content) - begin >= 12:
            length, length_crc = struct.unpack_from("<QI", content, begin)
            end = begin + 12 + length
            if end + 4 > len(content):
                break
            record = content[begin + 12 : end]
            found = [length_crc, int.from_bytes(content[end : end + 4], "little")]
            if check_crc and [*masked_crc32c([content[begin : begin + 8], record])] != found:
                break
            records.append(record)
            begin = end + 4
        return records, begin == len(content)


class ArrayRecord(Format):
    error = RuntimeError

    def write(self, folder):
        from array_record.python.array_record_module import ArrayRecordWriter

        logging.disable()  # that records come in groups
        array_record._POOLED_READ_SECONDS = 0
        self.records = some_records()
        others = ("group_size:1,uncompressed", "group_size:7", "group_size:1,transpose:true")
        for options in ("group_size:1", *others):
            writer = ArrayRecordWriter(str(folder / "good"), options)
            for record in self.records:
                writer.write(record)
            writer.close()
            content = (folder / "good").read_bytes()
            blocks = [i for i in range(0, len(content), 1 << 16) if any(content[i : i + 1000])]
            yield content, [(i, i + 1000) for i in blocks], None

    def read(self, *_):
        with self.documented(), ArrayRecordDataSource(self.path) as source:
            assert len(source) == len(self.records), f"{len(source)} records"
            for i in range(len(self.records)):
                with self.documented():
                    assert source[i] == self.records[i], f"record {i} is another one"
            assert source.__getitems__(range(len(self.records))) == self.records, (
                "a block of other records"
            )


FORMATS = {
    "parquet": Parquet,
    "parquet_table": ParquetTable,
    "tfrecord": TFRecord,
    "array_record": ArrayRecord,
}


def main(name, folder, first, last):
    files = FORMATS[name](Path(folder))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY, MAX_MEMORY))
    for number in range(int(first), int(last)):
        print(number, flush=True)
        try:
            files.check(number)
        except Exception as error:
            text = " ".join(f"{type(error).__name__}: {error}".split())
            print(f"wrong: damage {number}: {text}", flush=True)


PACKAGES = {
    "parquet": "pyarrow",
    "parquet_table": "pyarrow",
    "tfrecord": "numpy",
    "array_record": "array_record",
}
MANY = pytest.param(100, 250, marks=[pytest.mark.slow, pytest.mark.timeout(300)], id="many")


@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize(("first", "last"), [pytest.param(0, 100, id="some"), MANY])
def test_damages(name, first, last, tmp_path):
    pytest.importorskip(PACKAGES[name])
    wrong = []
    while first < last:
        command = [sys.executable, __file__, name, str(tmp_path), str(first), str(last)]
        # for a program that hangs
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
        lines = done.stdout.splitlines()
        wrong += [line for line in lines if line.startswith("wrong")]
        numbers = [int(line) for line in lines if line.isdigit()]
        assert numbers, done.stderr  # it did not come to the first file
        first = numbers[-1] + 1
        if done.returncode:
            killed = done.returncode < 0
            code = done.returncode
            end = signal.Signals(-code).name if killed else f"exit code {code}"
            wrong.append(f"wrong: damage {numbers[-1]}: ended by {end}: {done.stderr[-300:]}")
    assert "\n".join(wrong) == ""


if __name__ == "__main__":
    main(*sys.argv[1:])
