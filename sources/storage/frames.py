"""Compressed files that are made of parts of their own, and can so be read from anywhere.

A gzip file is a sequence of members, a zstd file of frames; both are called frames here. Each is decoded alone. ``bgzip`` writes
frames of 64 KiB, ``zstd`` and ``gzip`` one for a whole file, and files that are joined by ``cat`` have the frames of all.

A *place* is a position in the text of a file: ``frame << 28 | offset``, as in BGZF. Places are in the order of the text.
"""

from __future__ import annotations

import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from gristmill.core.errors import missing_package
from gristmill.core.locks import Lock
from gristmill.sources.storage import forks
from gristmill.sources.storage.errors import changed, damaged
from gristmill.sources.storage.files import Files
from gristmill.sources.storage.per_process import PerProcess
from gristmill.sources.storage.sidecar import REMEDY, Sidecar

MAX_FRAME_BYTES = 1 << 26
OFFSET_BITS = 28
_OFFSETS = (1 << OFFSET_BITS) - 1
_READ_BYTES = 1 << 20
_PIECE_BYTES = 1 << 16  # that are decoded at a time: what is left of one is copied
_GROUP_BYTES = 1 << 24  # of compressed frames that are read at once
_GZIP = b"\x1f\x8b"
_ZSTD = b"\x28\xb5\x2f\xfd"
_OTHERS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\x00": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
    b"\x89GMI": "gristmill index",
}


FrameKey = tuple[int, int]  # the number of a file, and that of the frame in it


class Frame(NamedTuple):
    """A frame of a file: its first byte, the byte after it, and what it holds."""

    start: int
    stop: int
    text: bytes


def compression_of(files: Files, number: int) -> str | None:
    """``"gzip"``, ``"zstd"``, or ``None`` for a file that is not compressed, by its first bytes.

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
                f"{files.paths[number]} is a {name} file, which cannot be read here: decompress it, or write it as zstd"
            )
    return None


def frames_of(files: Files, number: int) -> Iterator[Frame]:
    """The frames of a compressed file that hold something, from front to back.

    Raises:
        DamagedFileError: a frame is cut off or cannot be decoded, or something else lies between frames.
        ValueError: a frame holds more than 64 MiB.
        ImportError: it is a zstd file, and zstandard is not installed.
    """
    kind = compression_of(files, number)
    reader = _Reader(files, number)
    while reader.peek(1):
        start = reader.position
        text = _next_member(reader) if kind == "gzip" else _next_frame(reader)
        if text:
            yield Frame(start, reader.position, text)


def decode(path: str, start: int, compressed: bytes) -> bytes:
    """What a frame holds, which begins at byte ``start`` of ``path``. Raises: as ``frames_of``."""
    if compressed.startswith(_ZSTD):
        return _decoded_by_zstd(path, start, compressed)
    decoder = zlib.decompressobj(wbits=31)
    try:
        text = decoder.decompress(compressed, MAX_FRAME_BYTES)
    except zlib.error as error:
        raise _undecodable(path, start, "gzip member", error) from error
    if not decoder.eof:
        raise _cut_off(path, start, "gzip member")
    return text


class Frames(PerProcess):
    """Text of compressed files by places. The frames that were used last are kept, in each process its own.

    Args:
        files: the data.
        sidecars: theirs, with the arrays ``frames``, for each frame its first byte and the byte after it, and ``texts``, how many
            bytes of text are in front of each frame, and in all.
        max_bytes: how much text to keep; the last frame is kept in any case.
    """

    _of_process = ("_kept", "_num_bytes", "_lock")

    def __init__(self, files: Files, sidecars: Sequence[Sidecar], max_bytes: int) -> None:
        self._files, self._sidecars, self._max_bytes = files, sidecars, max_bytes
        self._start_closed()

    def _start_closed(self) -> None:
        self._kept: OrderedDict[FrameKey, bytes] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()
        super()._start_closed()

    def forget(self) -> None:
        """Frees the frames that are kept."""
        with self._lock:
            self._kept.clear()
            self._num_bytes = 0

    def read(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """The text of file ``number`` from place ``start`` up to ``stop``, for each ``(number, start, stop)``, in this order.

        Each frame is decoded once, if a few of them have room.

        Raises:
            DamagedFileError: a frame cannot be decoded, or is shorter than the index says.
            ChangedFileError, OSError: as ``Files.read``.
        """
        if self._fork != forks.number:
            self._start_closed()
        texts = [b""] * len(ranges)
        order = sorted(range(len(ranges)), key=ranges.__getitem__)
        frames = {place: _frames_in(*ranges[place]) for place in order}
        bounds = self._bounds({frame for theirs in frames.values() for frame in theirs})
        for group in _groups(frames, bounds):
            wanted = sorted({frame for place in group for frame in frames[place] if frame not in self._kept})
            read = self._files.read([(number, *bounds[number, frame]) for number, frame in wanted]) if wanted else []
            compressed = dict(zip(wanted, read, strict=True))
            for place in group:
                texts[place] = self._text(ranges[place], frames[place], compressed, bounds)
        return texts

    def _bounds(self, frames: set[FrameKey]) -> dict[FrameKey, tuple[int, int]]:
        by_file: dict[int, list[int]] = {}
        for number, frame in sorted(frames):
            by_file.setdefault(number, []).append(frame)
        bounds: dict[FrameKey, tuple[int, int]] = {}
        for number, theirs in by_file.items():
            sidecar = self._sidecars[number]
            found = sidecar.read_many("frames", [2 * frame for frame in theirs], 2).tolist()
            for frame, (start, stop) in zip(theirs, found, strict=True):
                if not 0 <= start < stop <= self._files.sizes[number]:
                    raise damaged(sidecar.path, 0, f"it has frame {frame} from byte {start} to {stop}", REMEDY)
                bounds[number, frame] = start, stop
        return bounds

    def _text(
        self,
        span: tuple[int, int, int],
        frames: list[FrameKey],
        compressed: dict[FrameKey, bytes],
        bounds: dict[FrameKey, tuple[int, int]],
    ) -> bytes:
        number, start, stop = span
        pieces = []
        for key in frames:
            text = self._decoded(key, compressed, bounds)
            low = start & _OFFSETS if key[1] == start >> OFFSET_BITS else 0
            high = stop & _OFFSETS if key[1] == stop >> OFFSET_BITS else len(text)
            if not low <= high <= len(text):
                what = f"it names byte {max(low, high)} of a part that has {len(text)}"
                raise damaged(self._sidecars[number].path, 0, what, REMEDY)
            pieces.append(text[low:high])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _decoded(self, key: FrameKey, compressed: dict[FrameKey, bytes], bounds: dict[FrameKey, tuple[int, int]]) -> bytes:
        with self._lock:
            text = self._kept.get(key)
            if text is not None:
                self._kept.move_to_end(key)
                return text
        if key not in compressed:  # it was kept when the others were read
            (compressed[key],) = self._files.read([(key[0], *bounds[key])])
        path, (start, _) = self._files.paths[key[0]], bounds[key]
        text = decode(path, start, compressed[key])
        before, after = self._sidecars[key[0]].read("texts", key[1], key[1] + 2).tolist()
        if len(text) != after - before:
            raise changed(path, f"the part that begins at byte {start} had {after - before} bytes of text and has {len(text)}")
        with self._lock:
            if key not in self._kept:
                self._kept[key] = text
                self._num_bytes += len(text)
            while self._num_bytes > self._max_bytes and len(self._kept) > 1:
                self._num_bytes -= len(self._kept.popitem(last=False)[1])
        return text


def _groups(frames: dict[int, list[FrameKey]], bounds: dict[FrameKey, tuple[int, int]]) -> Iterator[list[int]]:
    """The places of ranges, in order, in groups whose frames are read at once."""
    group: list[int] = []
    seen: set[FrameKey] = set()
    num_bytes = 0
    for place, theirs in frames.items():
        more = sum(bounds[frame][1] - bounds[frame][0] for frame in theirs if frame not in seen)
        if group and num_bytes + more > _GROUP_BYTES:
            yield group
            group, seen, num_bytes = [], set(), 0
            more = sum(bounds[frame][1] - bounds[frame][0] for frame in theirs)
        group.append(place)
        seen.update(theirs)
        num_bytes += more
    if group:
        yield group


def _frames_in(number: int, start: int, stop: int) -> list[FrameKey]:
    """The frames from place ``start`` up to place ``stop``, each with the number of the file."""
    last = (stop - 1) >> OFFSET_BITS if stop & _OFFSETS == 0 else stop >> OFFSET_BITS
    return [(number, frame) for frame in range(start >> OFFSET_BITS, last + 1)]


class _Reader:
    """A file from front to back."""

    def __init__(self, files: Files, number: int) -> None:
        self.path, self.size = files.paths[number], files.sizes[number]
        self.position = 0
        self._files, self._number = files, number
        self._buffer, self._buffer_start = b"", 0

    def peek(self, num_bytes: int) -> bytes:
        """The next bytes, at most ``_READ_BYTES``; fewer only at the end."""
        here = self.position - self._buffer_start
        if len(self._buffer) - here < num_bytes:
            stop = min(self.size, self.position + _READ_BYTES)
            (self._buffer,) = self._files.read([(self._number, self.position, stop)])
            self._buffer_start, here = self.position, 0
        return self._buffer[here : here + num_bytes]

    def take(self, num_bytes: int) -> bytes:
        """The next bytes, fewer only at the end, and goes on after them."""
        pieces = []
        while num_bytes and (piece := self.peek(min(num_bytes, _READ_BYTES))):
            self.position += len(piece)
            num_bytes -= len(piece)
            pieces.append(piece)
        return b"".join(pieces)


def _next_member(reader: _Reader) -> bytes:
    start, path = reader.position, reader.path
    if reader.peek(2) != _GZIP:
        while piece := reader.take(_READ_BYTES):
            if piece.strip(b"\0"):  # some programs fill the last block of a tape
                raise damaged(path, start, "after a gzip member comes something else", "Write the file anew")
        return b""
    decoder = zlib.decompressobj(wbits=31)
    pieces, num_bytes = [], 0
    while not decoder.eof:
        piece = reader.peek(_PIECE_BYTES)
        if not piece:
            raise _cut_off(path, start, "gzip member")
        try:
            text = decoder.decompress(piece, MAX_FRAME_BYTES + 1 - num_bytes)
        except zlib.error as error:
            raise _undecodable(path, start, "gzip member", error) from error
        reader.position += len(piece) - len(decoder.unconsumed_tail) - len(decoder.unused_data)
        num_bytes += len(text)
        if num_bytes > MAX_FRAME_BYTES:
            raise _too_large(path, start, "gzip member", "gzip")
        pieces.append(text)
    return b"".join(pieces)


def _next_frame(reader: _Reader) -> bytes:
    start, path = reader.position, reader.path
    head = reader.peek(18)  # the longest header
    if _is_skippable(head) and len(head) >= 8:
        size = int.from_bytes(head[4:8], "little")
        reader.position += min(8 + size, reader.size - start)
        if reader.position < start + 8 + size:
            raise _cut_off(path, start, "skippable zstd frame")
        return b""
    if not head.startswith(_ZSTD) or len(head) < 5:
        raise damaged(path, start, "a zstd frame should begin here", "Write the file anew")
    has_checksum, is_single = head[4] >> 2 & 1, head[4] >> 5 & 1
    num_size_bytes = (is_single, 2, 4, 8)[head[4] >> 6]
    at = 5 + (not is_single) + (0, 1, 2, 4)[head[4] & 3]
    if int.from_bytes(head[at : at + num_size_bytes], "little") > MAX_FRAME_BYTES:
        raise _too_large(path, start, "zstd frame", "zstd")
    pieces = [reader.take(at + num_size_bytes)]
    is_last = False
    while not is_last:  # blocks, each after a header of three bytes
        pieces.append(reader.take(3))
        block = int.from_bytes(pieces[-1], "little")
        is_last = bool(block & 1)
        num_bytes = 1 if block >> 1 & 3 == 1 else block >> 3
        pieces.append(reader.take(num_bytes + 4 * (is_last and has_checksum)))
        if len(pieces[-2]) < 3 or len(pieces[-1]) < num_bytes + 4 * (is_last and has_checksum):
            raise _cut_off(path, start, "zstd frame")
        if reader.position - start > MAX_FRAME_BYTES:
            raise _too_large(path, start, "zstd frame", "zstd")
    return _decoded_by_zstd(path, start, b"".join(pieces))


def _decoded_by_zstd(path: str, start: int, compressed: bytes) -> bytes:
    try:
        import zstandard
    except ImportError as error:
        raise missing_package("zstandard", "zstd", f"reading {path}") from error
    pieces, num_bytes = [], 0
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 31).stream_reader(compressed) as reader:
            while piece := reader.read(_READ_BYTES):
                pieces.append(piece)
                num_bytes += len(piece)
                if num_bytes > MAX_FRAME_BYTES:
                    raise _too_large(path, start, "zstd frame", "zstd")
    except zstandard.ZstdError as error:
        raise _undecodable(path, start, "zstd frame", error) from error
    return b"".join(pieces)


def _is_skippable(head: bytes) -> bool:
    return head[1:4] == b"\x2a\x4d\x18" and 0x50 <= head[0] <= 0x5F


def _cut_off(path: str, start: int, what: str) -> ValueError:
    return damaged(path, start, f"the {what} that begins here is cut off", "Copy or write the file anew")


def _undecodable(path: str, start: int, what: str, error: Exception) -> ValueError:
    return damaged(path, start, f"the {what} that begins here cannot be decoded ({error})", "Copy or write the file anew")


def _too_large(path: str, start: int, what: str, command: str) -> ValueError:
    return ValueError(
        f"{path} cannot be read in any order: the {what} that begins at byte {start} holds more than "
        f"{MAX_FRAME_BYTES >> 20} MiB, all of which would be decoded for each record. Write it anew in small parts: "
        f"{command} -dc OLD | split -C 1M --filter={command} - > NEW"
    )
