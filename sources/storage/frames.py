"""Text of compressed files by places.

A *place* is a position in the text of a file: ``frame << 28 | offset``, as in BGZF. Places are in
the order of the text. ``compressed.py`` says what a frame is.

Guarantees where several threads use one ``Frames``:

1. The frames that were used last are kept, in each process its own.
2. A streamed frame is decoded by one thread at a time, after those in front of it. The decoder
   stays where it is, so frames in the order of the text are decoded once. For a frame in front of
   it, it restarts.
"""

from __future__ import annotations

import logging
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from gristmill.core.locks import Lock
from gristmill.sources.storage import compressed, forks
from gristmill.sources.storage.compressed import STREAMED, WHOLE
from gristmill.sources.storage.errors import changed, damaged
from gristmill.sources.storage.files import Files
from gristmill.sources.storage.per_process import PerProcess
from gristmill.sources.storage.sidecar import REMEDY, Sidecar

OFFSET_BITS = 28
_OFFSETS = (1 << OFFSET_BITS) - 1
_GROUP_BYTES = 1 << 24  # of compressed frames that are read at once
_MAX_STREAMS = 16
_MAX_PASSED = 64  # frames that are decoded and not wanted, until a warning

_log = logging.getLogger("gristmill")


FrameKey = tuple[int, int]  # the number of a file, and that of the frame in it


class _Bounds(NamedTuple):
    """The bytes that a frame is decoded from, and how it is decoded."""

    start: int
    stop: int
    way: int

    @property
    def num_bytes_to_read(self) -> int:
        """The number of bytes that are read at once for the frame: none if it is streamed."""
        return 0 if self.way == STREAMED else self.stop - self.start


class _FrameDecoder:
    """A decoder of streamed frames that have one ``start``.

    Attributes:
        lock: held by the thread that decodes.
        first: the number of the first of the frames.
        following: the number of the frame that is decoded next.
        texts: the texts of that one and of those after it; None before the first read and after
            an error.
        num_passed: how many frames were decoded that were not wanted.
    """

    def __init__(self, first: int) -> None:
        self.lock = Lock()
        self.first = self.following = first
        self.texts: Iterator[bytes] | None = None
        self.num_passed = 0


class Frames(PerProcess):
    """Text of compressed files by places. See the guarantees above.

    Args:
        files: the data.
        sidecars: theirs, with the arrays of ``lines.scan_lines``.
        max_bytes: how much text to keep; the last frame is kept in any case.
    """

    _of_process = ("_kept", "_num_bytes", "_lock", "_streams")

    def __init__(self, files: Files, sidecars: Sequence[Sidecar], max_bytes: int) -> None:
        self._files, self._sidecars, self._max_bytes = files, sidecars, max_bytes
        self._start_closed()

    def _start_closed(self) -> None:
        self._kept: OrderedDict[FrameKey, bytes] = OrderedDict()
        self._num_bytes = 0
        self._lock = Lock()
        self._streams: OrderedDict[tuple[int, int], _FrameDecoder] = OrderedDict()
        super()._start_closed()

    def forget(self) -> None:
        """Frees the frames that are kept, and the decoders."""
        with self._lock:
            self._kept.clear()
            self._streams.clear()
            self._num_bytes = 0

    def read(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        """Return the text between two places for each ``(number, start, stop)``, in this order.

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
        bounds = self._bounds(self._missing(order, frames))
        for group in _groups(frames, bounds):
            missing = sorted(self._missing(group, frames) & bounds.keys())
            wanted = [key for key in missing if bounds[key].way != STREAMED]
            found = self._files.read([(key[0], *bounds[key][:2]) for key in wanted])
            read = dict(zip(wanted, found, strict=True))
            for place in group:
                texts[place] = self._text(ranges[place], frames[place], read, bounds)
        return texts

    def _missing(self, places: list[int], frames: dict[int, list[FrameKey]]) -> set[FrameKey]:
        """Return the frames of these places that are not kept."""
        return {key for place in places for key in frames[place] if key not in self._kept}

    def _bounds(self, frames: set[FrameKey]) -> dict[FrameKey, _Bounds]:
        by_file: dict[int, list[int]] = {}
        for number, frame in sorted(frames):
            by_file.setdefault(number, []).append(frame)
        bounds: dict[FrameKey, _Bounds] = {}
        for number, theirs in by_file.items():
            sidecar = self._sidecars[number]
            found = sidecar.read_many("frames", [2 * frame for frame in theirs], 2).tolist()
            ways = [WHOLE] * len(theirs)
            if "ways" in sidecar.names():
                ways = sidecar.read_many("ways", theirs)[:, 0].tolist()
            for frame, (start, stop), way in zip(theirs, found, ways, strict=True):
                if not 0 <= start < stop <= self._files.sizes[number] or way > STREAMED:
                    what = f"it has frame {frame} from byte {start} to {stop} of kind {way}"
                    raise damaged(sidecar.path, 0, what, REMEDY)
                bounds[number, frame] = _Bounds(start, stop, way)
        return bounds

    def _text(
        self,
        span: tuple[int, int, int],
        frames: list[FrameKey],
        read: dict[FrameKey, bytes],
        bounds: dict[FrameKey, _Bounds],
    ) -> bytes:
        number, start, stop = span
        pieces = []
        for key in frames:
            text = self._decoded(key, read, bounds)
            low = start & _OFFSETS if key[1] == start >> OFFSET_BITS else 0
            high = stop & _OFFSETS if key[1] == stop >> OFFSET_BITS else len(text)
            if not low <= high <= len(text):
                what = f"it names byte {max(low, high)} of a part that has {len(text)}"
                raise damaged(self._sidecars[number].path, 0, what, REMEDY)
            pieces.append(text[low:high])
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _decoded(
        self,
        key: FrameKey,
        read: dict[FrameKey, bytes],
        bounds: dict[FrameKey, _Bounds],
    ) -> bytes:
        text = self._kept_text(key)
        if text is not None:
            return text
        number, frame = key
        if key not in bounds:  # it was kept when the bounds of the others were read
            bounds |= self._bounds({key})
        path, (start, stop, way) = self._files.paths[number], bounds[key]
        if way == STREAMED:
            return self._streamed(key, start)
        content = read.get(key)
        if content is None:  # it was kept when the content of the others was read
            content = self._files.read_one(number, start, stop)
        if way == WHOLE:
            text = compressed.decode(path, start, content)
        else:
            window = _window(self._sidecars[number], frame)
            num_bytes = self._num_bytes_of(key)
            text = compressed.decode_from_bit(path, start, way, content, window, num_bytes)
        self._keep(key, text, start, way)
        return text

    def _num_bytes_of(self, key: FrameKey) -> int:
        """Return the number of bytes of text that the index has for a frame."""
        before, after = self._sidecars[key[0]].read("texts", key[1], key[1] + 2).tolist()
        return int(after - before)

    def _streamed(self, key: FrameKey, start: int) -> bytes:
        number, frame = key
        stream = self._stream(number, start)
        with stream.lock:
            text = self._kept_text(key)  # another thread may have decoded it
            if text is not None:
                return text
            if stream.texts is None or frame < stream.following:
                stream.texts = compressed.streamed(self._files, number, start)
                stream.following = stream.first
            self._count_passed(number, start, stream, frame - stream.following)
            texts, stream.texts = stream.texts, None  # after an error it restarts
            decoded = b""
            for each in range(stream.following, frame + 1):
                decoded = next(texts, b"")
                self._keep((number, each), decoded, start, STREAMED)  # other threads may want it
            stream.texts, stream.following = texts, frame + 1
            return decoded

    def _stream(self, number: int, start: int) -> _FrameDecoder:
        with self._lock:
            stream = self._streams.get((number, start))
        if stream is None:
            sidecar = self._sidecars[number]
            starts = sidecar.read("frames", 0, sidecar.length("frames"))[::2]
            stream = _FrameDecoder(int(np.searchsorted(starts, start)))
        with self._lock:
            stream = self._streams.setdefault((number, start), stream)
            self._streams.move_to_end((number, start))
            while len(self._streams) > _MAX_STREAMS:
                self._streams.popitem(last=False)
            return stream

    def _count_passed(
        self, number: int, start: int, stream: _FrameDecoder, num_passed: int
    ) -> None:
        before, stream.num_passed = stream.num_passed, stream.num_passed + num_passed
        if before <= _MAX_PASSED < stream.num_passed:
            path, index = self._files.paths[number], self._sidecars[number].path
            is_gzip = compressed.compression_of(self._files, number) == "gzip"
            _log.warning(
                "%s: the part that begins at byte %d is decoded from there for each record that "
                "does not follow the one read last. Read the records in order, or %swrite the file "
                "again in small parts: %s",
                path,
                start,
                f"install gristmill[gzip] and delete {index}, or " if is_gzip else "",
                small_parts("gzip" if is_gzip else "zstd"),
            )

    def _kept_text(self, key: FrameKey) -> bytes | None:
        with self._lock:
            text = self._kept.get(key)
            if text is not None:
                self._kept.move_to_end(key)
            return text

    def _keep(self, key: FrameKey, text: bytes, start: int, way: int) -> None:
        number, frame = key
        path, num_bytes = self._files.paths[number], self._num_bytes_of(key)
        if len(text) != num_bytes:
            what = f"had {num_bytes} bytes of text and has {len(text)}"
            raise changed(path, f"the part that begins at byte {start} {what}")
        if way != WHOLE:
            (checksum,) = self._sidecars[number].read("checksums", frame, frame + 1)
            if zlib.crc32(text) != checksum:
                raise changed(path, f"the part that begins at byte {start} has another text")
        with self._lock:
            if key not in self._kept:
                self._kept[key] = text
                self._num_bytes += len(text)
            while self._num_bytes > self._max_bytes and len(self._kept) > 1:
                self._num_bytes -= len(self._kept.popitem(last=False)[1])


def _window(sidecar: Sidecar, frame: int) -> bytes:
    """Return the last 32 KiB of text in front of a frame that is decoded from a bit."""
    start, stop = [0, *sidecar.read("window_stops", max(frame - 1, 0), frame + 1).tolist()][-2:]
    if not 0 <= start <= stop <= sidecar.length("windows"):
        raise damaged(sidecar.path, 0, f"it has a window from byte {start} to {stop}", REMEDY)
    return sidecar.read("windows", start, stop).tobytes()


def small_parts(command: str) -> str:
    """Return the command that writes a file again in parts of a megabyte."""
    return f"{command} -dc OLD | split -C 1M --filter={command} - > NEW"


def _groups(
    frames: dict[int, list[FrameKey]],
    bounds: dict[FrameKey, _Bounds],
) -> Iterator[list[int]]:
    """Yield the places of ranges, in order, in groups whose frames are read at once."""
    group: list[int] = []
    seen: set[FrameKey] = set()
    num_bytes = 0
    for place, theirs in frames.items():
        new = [frame for frame in theirs if frame in bounds and frame not in seen]
        more = sum([bounds[frame].num_bytes_to_read for frame in new])
        if group and num_bytes + more > _GROUP_BYTES:
            yield group
            group, seen, num_bytes = [], set(), 0
            more = sum([bounds[frame].num_bytes_to_read for frame in theirs if frame in bounds])
        group.append(place)
        seen.update(theirs)
        num_bytes += more
    if group:
        yield group


def _frames_in(number: int, start: int, stop: int) -> list[FrameKey]:
    """Return the frames from place ``start`` up to place ``stop``, each with the number of the
    file.
    """
    last = (stop - 1) >> OFFSET_BITS if stop & _OFFSETS == 0 else stop >> OFFSET_BITS
    return [(number, frame) for frame in range(start >> OFFSET_BITS, last + 1)]
