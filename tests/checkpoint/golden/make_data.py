"""Writes the files in ``data`` that pipelines of the golden states read. Needs pyarrow."""

import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

DATA = Path(__file__).parent / "data"


def masked_crc(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) % 2**32)


def write_records(path, records):
    parts = []
    for record in records:
        length = struct.pack("<Q", len(record))
        parts += [length, masked_crc(length), record, masked_crc(record)]
    path.write_bytes(b"".join(parts))


def write_table(path, numbers):
    table = pa.table({"x": pa.array(numbers, pa.int64()), "name": pa.array([f"é{i}" for i in numbers])})
    pq.write_table(table, path, row_group_size=3, compression="none")


if __name__ == "__main__":
    DATA.mkdir(exist_ok=True)
    write_table(DATA / "one.parquet", range(8))
    write_table(DATA / "two.parquet", range(20, 25))
    write_records(DATA / "records.tfrecord", [b"one", b"", b"three\xff", b"4" * 40, b"five"])
