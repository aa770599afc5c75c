"""The beginnings of the lines of text files, noted in one pass."""

from __future__ import annotations

import codecs
import re
import tempfile
import zlib
from collections.abc import Callable, Mapping

import numpy as np

from gristmill.sources.storage.compressed import WHOLE, compression_of, frames_of
from gristmill.sources.storage.errors import damaged
from gristmill.sources.storage.files import Files
from gristmill.sources.storage.frames import OFFSET_BITS

BLANK = b" \t\r\n"  # what JSON calls whitespace
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_READ_BYTES = 1 << 22
_PIECE_BYTES = 1 << 18  # fits in a processor's cache, where lines are looked for
_HEAD_BYTES = 1 << 12  # of a file, which are checked for being text
_MAY_BE_BLANK = np.zeros(256, bool)  # the first byte of a line that is no record
_MAY_BE_BLANK[list(BLANK + BYTE_ORDER_MARK[:1])] = True
_NEWLINE = 10
_WHOLE_DTYPES = {"records": "<u8", "frames": "<u8", "texts": "<u8"}
_DTYPES = _WHOLE_DTYPES | {
    "ways": "|u1",
    "windows": "|u1",
    "window_stops": "<u8",
    "checksums": "<u4",
}
_OTHER_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\0\0\xfe\xff")  # of UTF-16 and UTF-32
_ASCII = rb"[\t\n\r -~]"  # as are the first two characters of most JSON texts
_WIDE_TEXT = re.compile(rb"(?:%b\0){2}|(?:\0%b){2}|(?:%b\0{3}){2}|(?:\0{3}%b){2}" % ((_ASCII,) * 4))
_CONTROL = re.compile(rb"[\x01-\x08\x0b\x0c\x0e-\x1f\x7f]")


def scan_lines(
    files: Files, number: int, progress: Callable[[int], None]
) -> Mapping[str, np.ndarray]:
    """Returns the beginnings of the lines of a file that are not blank.

    Returns:
        ``records``: where each begins, and where the text ends; bytes, or places if the file is
        compressed (see ``frames.py``). Then also ``frames``, for each its first byte and the byte
        after it, and ``texts``, how many bytes of text are in front of each, and in all. If a frame
        is not ``WHOLE`` (see ``compressed.py``), also ``ways``, that of each frame, ``windows`` and
        ``window_stops``, the windows of all frames and where each of them ends, and ``checksums``,
        the CRC-32 of the text of each frame, or 0 for a whole one.

    Raises:
        DamagedFileError: a compressed file is, or the file is not text.
        ValueError: it is compressed in a way that cannot be read.
    """
    with LineStarts() as lines:
        if compression_of(files, number) is None:
            _scan_plain(files, number, progress, lines)
            return {"records": lines.noted()}
        return _scan_compressed(files, number, progress, lines)


def are_lines(sizes: Mapping[str, tuple[str, int]]) -> bool:
    """Returns true if ``scan_lines`` may have made arrays of these dtypes and lengths."""
    dtypes = {name: dtype for name, (dtype, _) in sizes.items()}
    lengths = {name: length for name, (_, length) in sizes.items()}
    if not lengths.get("records") or any([dtypes[name] != _DTYPES.get(name) for name in dtypes]):
        return False
    if lengths.keys() == {"records"}:
        return True
    if lengths.keys() not in (_WHOLE_DTYPES.keys(), _DTYPES.keys()):
        return False
    num_frames = lengths["texts"] - 1
    names = ("ways", "window_stops", "checksums") if "ways" in lengths else ()
    return lengths["frames"] == 2 * num_frames and all(
        [lengths[name] == num_frames for name in names]
    )


def _scan_compressed(
    files: Files, number: int, progress: Callable[[int], None], lines: LineStarts
) -> Mapping[str, np.ndarray]:
    bounds: list[int] = []
    ways, windows, window_stops, checksums = bytearray(), bytearray(), [], []
    texts = [0]
    for frame in frames_of(files, number):
        if not bounds:
            _check_text(files.paths[number], frame.text[:_HEAD_BYTES])
        bounds += frame.start, frame.stop
        ways.append(frame.way)
        windows += frame.window
        window_stops.append(len(windows))
        checksums.append(0 if frame.way == WHOLE else zlib.crc32(frame.text))
        texts.append(texts[-1] + len(frame.text))
        lines.add(np.frombuffer(frame.text, np.uint8))
        progress(frame.stop)
    records = lines.noted()
    starts = np.array(texts, "<u8")
    for low in range(0, len(records), 1 << 20):  # in place: there may be many
        part = records[low : low + (1 << 20)]
        frame_numbers = np.searchsorted(starts, part, "right").astype("<u8") - np.uint64(1)
        part[:] = (frame_numbers << np.uint64(OFFSET_BITS)) | (part - starts[frame_numbers])
    found = {"records": records, "frames": np.array(bounds, "<u8"), "texts": starts}
    if ways.count(WHOLE) < len(ways):
        found["ways"] = np.frombuffer(ways, "|u1")
        found["windows"] = np.frombuffer(windows, "|u1")
        found["window_stops"] = np.array(window_stops, "<u8")
        found["checksums"] = np.array(checksums, "<u4")
    return found


def _scan_plain(
    files: Files, number: int, progress: Callable[[int], None], lines: LineStarts
) -> None:
    size = files.sizes[number]
    buffer = np.empty(min(size, _READ_BYTES), np.uint8)
    for start in range(0, size, _READ_BYTES):
        piece = buffer[: min(_READ_BYTES, size - start)]
        files.read_into(number, start, piece.data)
        if not start:
            _check_text(files.paths[number], piece[:_HEAD_BYTES].tobytes())
        lines.add(piece)
        progress(start + len(piece))


def _check_text(path: str, head: bytes) -> None:
    """Refuses files that are not text in UTF-8.

    Zero bytes alone do not make a file binary, because a crash of the system may leave runs of
    them. A line that has some is an error when it is read.
    """
    zero = head.find(b"\0")
    if head.startswith(_OTHER_MARKS) or _WIDE_TEXT.match(head) or (zero >= 0 and _is_binary(head)):
        found = "there is a zero byte" if zero >= 0 else f"it begins with {head[:2]!r}"
        what = f"{found}, so it is not text in UTF-8"
        raise damaged(
            path, max(zero, 0), what, "Leave out files of other formats, and write UTF-16 as UTF-8"
        )


def _is_binary(head: bytes) -> bool:
    """Returns true if most lines have control characters or are not UTF-8, and for tar archives."""
    lines = [line for line in head.split(b"\n") if line.strip(b"\0" + BLANK)]
    return 2 * sum(map(_is_foreign, lines)) > len(lines) or head[257:262] == b"ustar"


def _is_foreign(line: bytes) -> bool:
    try:
        codecs.getincrementaldecoder("utf-8")().decode(line)  # which may end within a character
    except UnicodeDecodeError:
        return True
    return _CONTROL.search(line) is not None


def _is_blank(line: np.ndarray) -> bool:
    return not line.tobytes().replace(BYTE_ORDER_MARK, b"").strip(BLANK)


class LineStarts:
    """Finds where lines begin that are not blank, in a text that comes in pieces.

    Byte order marks are blank, because files that begin with one may be joined. The mark at the
    beginning of the text is in no line.

    Example:
        >>> with LineStarts() as lines:
        ...     lines.add(np.frombuffer(b"1\\n\\n  \\n22\\n3", np.uint8))
        ...     lines.noted().tolist()
        [0, 6, 9, 10]
    """

    def __init__(self) -> None:
        self._held = np.empty(0, np.uint8)  # last bytes, if a byte order mark may begin with them
        self._position = 0
        self._pending: int | None = 0  # where the line begins of which only blanks have come
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (8 bytes a line may be more than there is memory)

    def add(self, piece: np.ndarray) -> None:
        """Adds the next bytes of the text (``uint8``)."""
        for start in range(0, len(piece), _PIECE_BYTES):
            part = piece[start : start + _PIECE_BYTES]
            if len(self._held):
                part = np.concatenate([self._held, part])
            tail = part[-2:].tobytes()
            num_held = 2 if tail == BYTE_ORDER_MARK[:2] else int(tail.endswith(BYTE_ORDER_MARK[:1]))
            self._held = part[len(part) - num_held :].copy()
            self._add(part[: len(part) - num_held])

    def noted(self) -> np.ndarray:
        """Returns the beginnings of the lines and, as the last item, the end of the text; once all
        has come.
        """
        self._add(self._held)
        self._file.write(np.array([self._position], "<u8").data)
        self._file.flush()
        return np.memmap(self._file, "<u8", "r+")

    def _add(self, piece: np.ndarray) -> None:
        if self._position == 0 and piece[: len(BYTE_ORDER_MARK)].tobytes() == BYTE_ORDER_MARK:
            self._position = self._pending = len(BYTE_ORDER_MARK)
            piece = piece[len(BYTE_ORDER_MARK) :]
        base, self._position = self._position, self._position + len(piece)
        newlines = np.flatnonzero(piece == _NEWLINE)
        if self._pending is not None:
            if not _is_blank(piece[: newlines[0] if len(newlines) else None]):
                self._file.write(np.array([self._pending], "<u8").data)
            elif not len(newlines):
                return
            self._pending = None
        if not len(newlines):
            return
        starts = newlines + 1
        if starts[-1] == len(piece):
            self._pending = self._position
            starts = starts[:-1]
        first_bytes = piece[starts]
        is_record = ~_MAY_BE_BLANK[first_bytes]
        for i in np.flatnonzero(~is_record & (first_bytes != _NEWLINE)).tolist():
            is_last = i + 1 == len(newlines)
            if not _is_blank(piece[starts[i] : None if is_last else newlines[i + 1]]):
                is_record[i] = True
            elif is_last:
                self._pending = base + int(starts[i])
        self._file.write((starts[is_record] + base).astype("<u8").data)

    def __enter__(self) -> LineStarts:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
