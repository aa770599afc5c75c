"""Records as a TFRecord file has them."""

import struct

from gristmill.sources.crc32c import masked_crc32c


def framed(record: bytes, *, with_checksums: bool = True) -> bytes:
    size = struct.pack("<Q", len(record))
    size_crc, crc = [
        struct.pack("<I", int(crc) if with_checksums else 0)
        for crc in masked_crc32c([size, record])
    ]
    return size + size_crc + record + crc
