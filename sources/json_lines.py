"""Lines of JSON (https://jsonlines.org), read in any order."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gristmill.core.errors import add_note, as_int
from gristmill.core.naming import transform_name
from gristmill.sources.sharded import ShardedSource, ShardMap
from gristmill.sources.storage.errors import DamagedFileError, changed, damaged
from gristmill.sources.storage.files import Files, list_files
from gristmill.sources.storage.frames import OFFSET_BITS, Frames
from gristmill.sources.storage.lines import BLANK, BYTE_ORDER_MARK, are_lines, scan_lines
from gristmill.sources.storage.sidecar import REMEDY, open_sidecars, without_sidecars

_OFFSETS = (1 << OFFSET_BITS) - 1
_CHECKED_BYTES = 1 << 12  # of the blanks before the first record of a file
_NEWLINE = 10
_DECODER = json.JSONDecoder()


class JsonlSource(ShardedSource[Any]):
    """The lines of JSON files, one record a line; keys count through the files in the order of
    ``patterns``.

    A record is what ``json.loads`` makes of a line, ``source[key]`` always of the same one. Lines
    end with ``\\n`` or ``\\r\\n``; the last of a file may lack it. Lines of whitespace alone are no
    records. A byte order mark before a line is not part of it. A line ``null`` is an error when it
    is read, because ``None`` means that an element is missing.

    Where the lines begin is noted once, in an index beside each file, ``<file>.gmidx`` (8 bytes a
    record), by the first process that needs it. A record costs two reads then, for any size of the
    file, and nothing is held in memory.

    Files that begin like gzip or zstd are decompressed (zstd needs the extra ``zstd``). A record
    costs the decompression of its part of the file, unless the part is one of those used last.
    Parts are what ``bgzip`` writes, the frames of zstd's seekable format, or files joined by
    ``cat``. ``gzip`` and ``zstd`` make one part of a file. If it has more than 64 MiB of text, its
    records are read fast in their order. For another order it is decompressed from its beginning
    again and again, and a warning says so. The extra ``gzip`` prevents that for gzip: the index
    then has a place every 2 MiB of text from which to decompress, with 32 KiB for each.

    Args:
        patterns: a path or URL, or a sequence of them, with ``*``, ``**``, ``?``, ``[abc]`` and
            ``{000..127}``.
        parse: what makes a record of a line (``bytes``, without its end), such as ``orjson.loads``
            or ``bytes``. By default ``json.loads`` of the text, which must be UTF-8.
        index_dir: a folder for indices, for files in folders that cannot be written and for files
            that are not on this machine.
        max_bytes: how much decompressed text a process keeps; without effect on files that are not
            compressed.
        filesystem: an fsspec file system to read the files through.

    Raises:
        FileNotFoundError: a file does not exist, or nothing matches a pattern.
        DamagedFileError: a file is not text, or compressed and damaged.
        ValueError: a file is compressed in another way, or an index is needed that can be written
            nowhere.
        OSError: an index cannot be written; the text says what to do.
        ImportError: a package is missing.

    Example:
        >>> import tempfile
        >>> from pathlib import Path
        >>> path = Path(tempfile.mkdtemp(), "pets.jsonl")
        >>> path.write_text('{"name": "Ada"}\\n{"name": "Bo"}\\n')
        31
        >>> source = JsonlSource(path)
        >>> len(source), source[1]
        (2, {'name': 'Bo'})
    """

    def __init__(
        self,
        patterns: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
        *,
        parse: Callable[[bytes], Any] | None = None,
        index_dir: str | os.PathLike[str] | None = None,
        max_bytes: int = 1 << 26,
        filesystem: Any = None,
    ) -> None:
        if parse is not None and not callable(parse):
            raise TypeError(
                f"parse must be a function of a line of bytes, or None, got {parse!r:.200}"
            )
        max_bytes = as_int("max_bytes", max_bytes, minimum=0)
        self._parse = parse
        self._files = Files(
            without_sidecars(list_files("patterns", patterns, filesystem)), filesystem
        )
        self._sidecars = open_sidecars(
            self._files,
            "json lines",
            scan_lines,
            fits=are_lines,
            index_dir=index_dir,
            filesystem=filesystem,
        )
        self._frames = Frames(self._files, self._sidecars, max_bytes)
        self._is_compressed = ["frames" in sidecar.names() for sidecar in self._sidecars]
        self._stops = [self._stop(number) for number in range(len(self._files))]
        self._shards = ShardMap([sidecar.length("records") - 1 for sidecar in self._sidecars])
        self._start_closed()

    @property
    def paths(self) -> list[str]:
        """The names of the files, in their order."""
        return list(self._files.paths)

    @property
    def lengths(self) -> np.ndarray:
        """The number of bytes of each record's line in the text, with its end (and blank lines that
        follow it): ``int64``.

        They are computed from the indices, 8 bytes for each record, each time.
        """
        return np.concatenate([self._lengths(number) for number in range(len(self._files))])

    def _lengths(self, number: int) -> np.ndarray:
        sidecar, end = self._sidecars[number], self._files.sizes[number]
        starts = sidecar.read("records", 0, sidecar.length("records"))
        if self._is_compressed[number]:
            texts = sidecar.read("texts", 0, sidecar.length("texts"))
            frames = np.minimum(starts >> np.uint64(OFFSET_BITS), np.uint64(len(texts) - 1))
            starts = texts[frames] + (starts & np.uint64(_OFFSETS))
            end = int(texts[-1])
        lengths = np.diff(starts.astype(np.int64))
        if starts[-1] != end or (lengths <= 0).any():
            raise damaged(
                sidecar.path,
                0,
                "its records do not follow one another to the end of the text",
                REMEDY,
            )
        return lengths

    def _stop(self, number: int) -> int:
        """Return the end of the text of a file."""
        if self._is_compressed[number]:
            return self._sidecars[number].length("frames") // 2 << OFFSET_BITS
        return self._files.sizes[number]

    def _read_many(self, places: Sequence[tuple[int, int]]) -> list[Any]:
        ranges, leads = self._ranges(places)
        texts = self._texts(ranges)
        return [self._record(*of_one) for of_one in zip(places, leads, ranges, texts, strict=True)]

    def _ranges(
        self, lines: Sequence[tuple[int, int]]
    ) -> tuple[list[tuple[int, int, int]], list[int]]:
        """Return the range to read for each line, and the number of its bytes before the line.

        A range ends where the next line begins. It starts with the byte that ends the previous
        line, or up to 4 KiB before the first line of a file.
        """
        by_file: dict[int, list[int]] = {}
        for place, (number, _) in enumerate(lines):
            by_file.setdefault(number, []).append(place)
        ranges = [(0, 0, 0)] * len(lines)
        leads = [0] * len(lines)
        for number, places in by_file.items():
            sidecar, offsets, end = (
                self._sidecars[number],
                _OFFSETS if self._is_compressed[number] else -1,
                self._stops[number],
            )
            found = sidecar.read_many("records", [lines[place][1] for place in places], 2).tolist()
            last = sidecar.length("records") - 2
            for place, (start, stop) in zip(places, found, strict=True):
                record = lines[place][1]
                if not start < stop <= end or (record == last and stop < end):
                    what = f"record {record} is noted as from {start} to {stop} of {end}"
                    raise damaged(sidecar.path, 0, what, REMEDY)
                lead = 1 if start & offsets else 0
                if not record:
                    lead = min(start & offsets, _CHECKED_BYTES)
                leads[place] = lead
                ranges[place] = number, start - lead, stop
        return ranges, leads

    def _texts(self, ranges: Sequence[tuple[int, int, int]]) -> list[bytes]:
        if not any(self._is_compressed):
            return self._files.read(ranges)
        texts = [b""] * len(ranges)
        for is_compressed, reader in ((False, self._files), (True, self._frames)):
            places = [
                place
                for place, (number, _, _) in enumerate(ranges)
                if self._is_compressed[number] == is_compressed
            ]
            for place, text in zip(
                places, reader.read([ranges[place] for place in places]), strict=True
            ):
                texts[place] = text
        return texts

    def _record(
        self, line: tuple[int, int], lead: int, span: tuple[int, int, int], text: bytes
    ) -> Any:
        end = text.find(b"\n", lead)
        if end != len(text) - 1 or lead > 1 or (lead and text[0] != _NEWLINE):
            self._check(line, lead, span, text, end)
        content = text[lead : end if end >= 0 else None].removesuffix(b"\r")
        try:
            if self._parse is not None:
                record = self._parse(_without_marks(content))
            else:
                string = str(content, "utf-8")
                record, length = _DECODER.raw_decode(string)
                if length != len(string):
                    record = json.loads(string)
        except Exception as error:
            if self._parse is not None or not isinstance(error, ValueError | RecursionError):
                add_note(
                    error,
                    f"in record {line[1]} of {self._files.paths[line[0]]},"
                    f" {self._line_text(line[0], span[1] + lead)}",
                )
                raise
            record = self._parsed_again(content, line, span[1] + lead)
        if record is None and _without_marks(content).strip(BLANK) == b"null":
            raise _null(
                self._files.paths[line[0]],
                f"record {line[1]}, {self._line_text(line[0], span[1] + lead)}",
            )
        return record

    def _check(
        self, line: tuple[int, int], lead: int, span: tuple[int, int, int], text: bytes, end: int
    ) -> None:
        """Checks a line that is not between two others: the first, the last without an end, or one
        that blank lines follow.
        """
        number, start, stop = span
        others = BLANK + BYTE_ORDER_MARK  # around lines
        begins = text[0] == _NEWLINE if lead and line[1] else not text[:lead].strip(others)
        ends = text[-1] == _NEWLINE or stop == self._stops[number]
        if not begins or not ends or (end >= 0 and text[end + 1 :].strip(others)):
            place = self._line_text(number, start + lead)
            raise changed(
                self._files.paths[number], f"its record {line[1]} is no line any more ({place})"
            )

    def _parsed_again(self, content: bytes, line: tuple[int, int], start: int) -> Any:
        """Return the result of ``json.loads``, which accepts leading blanks and explains errors."""
        number, index = line
        text = _without_marks(content)
        try:
            return json.loads(str(text, "utf-8"))
        except (ValueError, RecursionError) as error:
            offset = len(content) - len(text)
            if isinstance(error, UnicodeDecodeError):
                offset += error.start
            elif isinstance(error, json.JSONDecodeError):
                offset += len(error.doc[: error.pos].encode())
            what = (
                f"record {index} of the file, {self._line_text(number, start)}, is not valid JSON"
                f" ({error}): {content[:40]!r}"
            )
            first = self._part(number, start) if self._is_compressed[number] else start + offset
            remedy = "Repair the line, or skip what fails with tolerate()"
            raise damaged(self._files.paths[number], first, what, remedy) from error

    def _line_text(self, number: int, start: int) -> str:
        """Return the beginning of a record, in words."""
        if not self._is_compressed[number]:
            return f"from byte {start} on"
        return (
            f"from byte {start & _OFFSETS} on of the text of the part that begins at byte"
            f" {self._part(number, start)}"
        )

    def _part(self, number: int, place: int) -> int:
        """Return the first byte of the part of a compressed file that a place is in."""
        first = 2 * (place >> OFFSET_BITS)
        return int(self._sidecars[number].read("frames", first, first + 1)[0])

    def close(self) -> None:
        """Closes all files, and frees decompressed text. The next read opens them again."""
        super().close()
        self._files.close()
        self._frames.forget()
        for sidecar in self._sidecars:
            sidecar.close()

    def __repr__(self) -> str:
        parse = "" if self._parse is None else f", parse={transform_name(self._parse)}"
        return f"JsonlSource({self._files.described()}{parse})"


def _null(path: str, record: str) -> DamagedFileError:
    return DamagedFileError(
        f"{path} has null in {record}: None means that an element is missing. Write another value "
        "there, give a parse that returns one, or skip what fails with tolerate()"
    )


def _without_marks(content: bytes) -> bytes:
    while content.startswith(BYTE_ORDER_MARK):
        content = content[len(BYTE_ORDER_MARK) :]
    return content
