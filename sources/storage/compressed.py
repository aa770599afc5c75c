"""Compressed files, cut into frames that are decoded in one of three ways.

A gzip file is a sequence of members, a zstd file one of frames; both are called frames here. One
that has at most 64 MiB of text is decoded alone (``WHOLE``). ``bgzip`` makes such files.

``gzip`` and ``zstd`` make one frame of a whole file. A longer frame is cut:

* A gzip member, with the package ``indexed_gzip``: at deflate blocks about every 2 MiB of text. The
  text from there on is decoded from a bit of the file, with the 32 KiB of text in front of it. The
  way of such a frame is that bit, 0 to 7, in the byte ``start``.
* Any other: every 4 MiB of text. Each of these is decoded after all those in front of it
  (``STREAMED``), and has the ``start`` of the whole.
"""

from __future__ import annotations

import io
import itertools
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np

from gristmill.core.errors import missing_package
from gristmill.sources.storage.errors import damaged
from gristmill.sources.storage.file_object import FileObject
from gristmill.sources.storage.files import Files

MAX_FRAME_BYTES = 1 << 26
WHOLE, STREAMED = 8, 9
_STREAMED_BYTES = 1 << 22
_SPACING_BYTES = 1 << 21
_WINDOW_BYTES = 1 << 15  # of text, to which deflate may refer
_READ_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16  # that are decoded at a time: what is left of one is copied
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHERS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
    b"\x89GMI": "gristmill index",
}
_REMEDY = "Copy or write the file again"

# As ``IndexedGzipFile.export_index`` writes an index: its header, and for each point the place in
# the file and in the text, the bits of the byte in front that belong to it, and whether it has a
# window. The windows follow.
_INDEX_HEADER = struct.Struct("<5sBBQQIII")
_INDEX_POINT = struct.Struct("<QQBB")


class Frame(NamedTuple):
    """A frame of a file.

    Attributes:
        start: its first byte in the file.
        stop: the byte after the last one that is needed to decode it.
        text: its content.
        way: ``WHOLE``, ``STREAMED`` or a bit, as above.
        window: the text in front of a frame that is decoded from a bit.
    """

    start: int
    stop: int
    text: bytes
    way: int = WHOLE
    window: bytes | memoryview = b""


def compression_of(files: Files, number: int) -> str | None:
    """Return ``"gzip"``, ``"zstd"``, or ``None`` for a file that is not compressed, by its first
    bytes.

    Raises:
        ValueError: it is compressed in another way.
    """
    (head,) = files.read([(number, 0, min(8, files.sizes[number]))])
    if head.startswith(_GZIP):
        return "gzip"
    if head.startswith(_ZSTD) or _is_skippable(head):
        return "zstd"
    for magic, name in _OTHERS.items():
        if head.startswith(magic):
            raise ValueError(
                f"{files.paths[number]} is a {name} file, which cannot be read here: decompress it,"
                " or write it as zstd"
            )
    return None


def frames_of(files: Files, number: int) -> Iterator[Frame]:
    """Yield the frames of a compressed file that hold something, from front to back.

    Raises:
        DamagedFileError: a frame is cut off or cannot be decoded, or between frames is something
            else.
        ImportError: it is a zstd file, and zstandard is not installed.
    """
    reader = _FileReader(files, number)
    while reader.peek(1):
        start, pieces, num_bytes = reader.position, [], 0
        texts = _texts(reader)
        for text in texts:
            pieces.append(text)
            num_bytes += len(text)
            if num_bytes > MAX_FRAME_BYTES:
                break
        if num_bytes <= MAX_FRAME_BYTES:
            if num_bytes:
                yield Frame(start, reader.position, b"".join(pieces))
        elif (points := _points(files, number, start)) is not None:
            following = itertools.chain(pieces, texts, _all_texts(reader))
            yield from _frames_from_points(files, number, points, following)
        else:
            for text in _cut(itertools.chain(pieces, texts), itertools.repeat(_STREAMED_BYTES)):
                yield Frame(start, reader.position, text, STREAMED)


def streamed(files: Files, number: int, start: int) -> Iterator[bytes]:
    """Yield the texts of the streamed frames with this ``start``. Raises: as ``frames_of``."""
    return _cut(_texts(_FileReader(files, number, start)), itertools.repeat(_STREAMED_BYTES))


def decode(path: str, start: int, compressed: bytes) -> bytes:
    """Return the text of a whole frame at byte ``start`` of ``path``. Raises: as ``frames_of``."""
    if compressed.startswith(_ZSTD):
        return _zstd_decoder(path, start)(compressed)
    decoder = zlib.decompressobj(wbits=31)
    try:
        text = decoder.decompress(compressed, MAX_FRAME_BYTES)
    except zlib.error as error:
        raise _undecodable(path, start, "gzip member", error) from error
    if not decoder.eof:
        raise _cut_off(path, start, "gzip member")
    return text


def decode_from_bit(
    path: str,
    start: int,
    bit: int,
    compressed: bytes,
    window: bytes,
    num_bytes: int,
) -> bytes:
    """Return the text of a frame that is decoded from a bit.

    Args:
        path: the file.
        start: the byte that the frame begins in.
        bit: the first bit of it, of 8 from the lowest on.
        compressed: the bytes from ``start`` on.
        window: the last 32 KiB of text in front of the frame, to which deflate may refer.
        num_bytes: the number of bytes of text.

    Raises:
        DamagedFileError: it cannot be decoded.
    """
    if bit:
        words = np.frombuffer(compressed + b"\0", np.uint8)
        compressed = ((words[:-1] >> bit) | (words[1:] << (8 - bit))).tobytes()
    try:
        return zlib.decompressobj(-zlib.MAX_WBITS, window).decompress(compressed, num_bytes)
    except zlib.error as error:
        raise _undecodable(path, start, "part of a gzip member", error) from error


class _Point(NamedTuple):
    """A place in a gzip file from which it can be decoded."""

    start: int
    bit: int
    text_start: int
    window: memoryview


def _points(files: Files, number: int, start: int) -> list[_Point] | None:
    """Return the points of a gzip file from byte ``start`` on, and last its end.

    Returns:
        None for zstd, without the package ``indexed_gzip``, and if it puts points too far apart.
    """
    if files.read_one(number, start, start + 2) != _GZIP:
        return None
    try:
        import indexed_gzip
    except ImportError:
        return None
    exported = io.BytesIO()
    try:
        file = indexed_gzip.IndexedGzipFile(
            fileobj=io.BufferedReader(FileObject(files, number), _READ_BYTES),
            spacing=_SPACING_BYTES,
            window_size=_WINDOW_BYTES,
        )
        file.build_full_index()
        file.export_index(fileobj=exported)
    except indexed_gzip.ZranError as error:  # also where a checksum is wrong
        raise _undecodable(files.paths[number], start, "gzip member", error) from error
    points = [point for point in _parsed(exported.getbuffer()) if point.start >= start]
    gaps = [after.text_start - point.text_start for point, after in itertools.pairwise(points)]
    return points if max(gaps) <= MAX_FRAME_BYTES else None


def _parsed(index: memoryview) -> list[_Point]:
    """Return the points of an index of ``indexed_gzip``, and last the end of the text."""
    *_, text_size, _, window_size, num_points = _INDEX_HEADER.unpack_from(index)
    windows = _INDEX_HEADER.size + num_points * _INDEX_POINT.size
    fields = _INDEX_POINT.iter_unpack(index[_INDEX_HEADER.size : windows])
    points = []
    for start, text_start, num_bits, has_window in fields:
        window = index[windows : windows + window_size * has_window]
        windows += len(window)
        points.append(_Point(start - bool(num_bits), -num_bits % 8, text_start, window))
    if points[-1].text_start < text_size:
        points.append(_Point(points[-1].start, 0, text_size, index[:0]))
    return points


def _frames_from_points(
    files: Files,
    number: int,
    points: list[_Point],
    texts: Iterator[bytes],
) -> Iterator[Frame]:
    """Yield a frame for each of the points, with its text, cut from ``texts``."""
    path = files.paths[number]
    sizes = [after.text_start - point.text_start for point, after in itertools.pairwise(points)]
    # A point may begin within the byte at which the frame in front of it ends.
    stops = [*[point.start + 1 for point in points[1:-1]], files.sizes[number]]
    frames = [frame for frame in zip(points, stops, sizes, strict=False) if frame[2]]
    found = _cut(texts, [size for _, _, size in frames])
    for point, stop, size in frames:
        text = next(found, b"")
        if len(text) != size:
            raise _undecodable(path, point.start, "part of a gzip member", "it has another length")
        yield Frame(point.start, stop, text, point.bit, point.window)
    if any(texts):  # which also reads the checksum after the text
        raise _undecodable(path, points[-1].start, "end of a gzip member", "it has another length")


def _cut(texts: Iterable[bytes], sizes: Iterable[int]) -> Iterator[bytes]:
    """Yield the same text in pieces of these sizes, of which the last one may be shorter."""
    rest = bytearray()
    remaining = iter(texts)
    for size in sizes:
        while len(rest) < size and (text := next(remaining, None)) is not None:
            rest += text
        if not rest:
            return
        yield bytes(rest[:size])
        del rest[:size]


class _FileReader:
    """A file from byte ``start`` to its end."""

    def __init__(self, files: Files, number: int, start: int = 0) -> None:
        self.path, self.size = files.paths[number], files.sizes[number]
        self.position = start
        self.is_gzip = compression_of(files, number) == "gzip"
        self._files, self._number = files, number
        self._buffer, self._buffer_start = b"", 0

    def peek(self, num_bytes: int) -> bytes:
        """Return the next bytes, at most ``_READ_BYTES``; fewer only at the end."""
        here = self.position - self._buffer_start
        if len(self._buffer) - here < num_bytes:
            stop = min(self.size, self.position + _READ_BYTES)
            (self._buffer,) = self._files.read([(self._number, self.position, stop)])
            self._buffer_start, here = self.position, 0
        return self._buffer[here : here + num_bytes]

    def take(self, num_bytes: int) -> bytes:
        """Return the next bytes, fewer only at the end, and move past them."""
        pieces = []
        while num_bytes and (piece := self.peek(min(num_bytes, _READ_BYTES))):
            self.position += len(piece)
            num_bytes -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)


def _texts(reader: _FileReader) -> Iterator[bytes]:
    """Yield the text of the frame that begins here in pieces, and move the reader past it."""
    return _texts_of_member(reader) if reader.is_gzip else _texts_of_frame(reader)


def _all_texts(reader: _FileReader) -> Iterator[bytes]:
    while reader.peek(1):
        yield from _texts(reader)


def _texts_of_member(reader: _FileReader) -> Iterator[bytes]:
    start, path = reader.position, reader.path
    if reader.peek(2) != _GZIP:
        while piece := reader.take(_READ_BYTES):
            if piece.strip(b"\0"):  # some programs fill the last block of a tape
                raise damaged(
                    path, start, "a gzip member is followed by other data", "Write the file again"
                )
        return
    decoder = zlib.decompressobj(wbits=31)
    while not decoder.eof:
        piece = reader.peek(_PIECE_BYTES)
        if not piece:
            raise _cut_off(path, start, "gzip member")
        try:
            text = decoder.decompress(piece, _READ_BYTES)
        except zlib.error as error:
            raise _undecodable(path, start, "gzip member", error) from error
        rest = decoder.unused_data if decoder.eof else decoder.unconsumed_tail
        reader.position += len(piece) - len(rest)
        yield text


def _texts_of_frame(reader: _FileReader) -> Iterator[bytes]:
    start, path = reader.position, reader.path
    head = reader.peek(18)  # the longest header
    if _is_skippable(head) and len(head) >= 8:
        size = int.from_bytes(head[4:8], "little")
        reader.position += min(8 + size, reader.size - start)
        if reader.position < start + 8 + size:
            raise _cut_off(path, start, "skippable zstd frame")
        return
    if not head.startswith(_ZSTD) or len(head) < 5:
        raise damaged(path, start, "a zstd frame should begin here", "Write the file again")
    has_checksum, is_single = head[4] >> 2 & 1, head[4] >> 5 & 1
    num_size_bytes = (is_single, 2, 4, 8)[head[4] >> 6]
    decode = _zstd_decoder(path, start)
    decode(reader.take(5 + (not is_single) + (0, 1, 2, 4)[head[4] & 3] + num_size_bytes))
    is_last = False
    while not is_last:  # blocks, each after a header of three bytes
        header = reader.take(3)
        block = int.from_bytes(header, "little")
        is_last = bool(block & 1)
        num_bytes = (1 if block >> 1 & 3 == 1 else block >> 3) + 4 * (is_last and has_checksum)
        content = reader.take(num_bytes)
        if len(header) < 3 or len(content) < num_bytes:
            raise _cut_off(path, start, "zstd frame")
        yield decode(header + content)


def _zstd_decoder(path: str, start: int) -> Callable[[bytes], bytes]:
    """Return a function that decodes the next bytes of a zstd frame."""
    try:
        import zstandard
    except ImportError as error:
        raise missing_package("zstandard", "zstd", f"reading {path}") from error
    decoder = zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def decode(compressed: bytes) -> bytes:
        try:
            text: bytes = decoder.decompress(compressed)
        except zstandard.ZstdError as error:
            raise _undecodable(path, start, "zstd frame", error) from error
        return text

    return decode


def _is_skippable(head: bytes) -> bool:
    return head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F


def _cut_off(path: str, start: int, what: str) -> ValueError:
    return damaged(
        path, start, f"the {what} that begins here is cut off", "Copy or write the file again"
    )


def _undecodable(path: str, start: int, what: str, error: Exception | str) -> ValueError:
    return damaged(
        path,
        start,
        f"the {what} that begins here cannot be decoded ({error})",
        "Copy or write the file again",
    )
