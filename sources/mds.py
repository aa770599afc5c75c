"""``MDSSource``: the shards of MosaicML Streaming, read at random without their library.

A shard has the number of its samples, then where each begins and the last one ends (all as 32-bit
words), a description, and the samples. A sample has the sizes of those columns whose size is not
fixed, and the values of all columns.
"""

from __future__ import annotations

import bz2
import json
import os
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gristmill.core.errors import as_int, missing_package
from gristmill.core.state import shown
from gristmill.sources.kept import KeptValues
from gristmill.sources.mds_encodings import PICKLE, decoder_of
from gristmill.sources.sharded import ShardedSource, ShardMap
from gristmill.sources.storage.errors import damaged
from gristmill.sources.storage.files import Files, is_url

_INDEX = "index.json"
_COMPRESSIONS = ("bz2", "gz", "zstd")
_REMEDY = "Copy the shard again, or write it again"


class _Shard:
    """A shard, as ``index.json`` describes it.

    Args:
        values: its entry there.
        is_raw: whether the file without compression is read.
    """

    def __init__(self, values: dict[str, Any], is_raw: bool) -> None:
        self.num_samples = as_int("samples", values["samples"], minimum=0)
        self.columns = [
            *zip(
                values["column_names"],
                values["column_encodings"],
                values["column_sizes"],
                strict=True,
            )
        ]
        file = values["raw_data"] if is_raw else values["zip_data"]
        self.name, self.num_bytes = file["basename"], int(file["bytes"])
        self.raw_bytes = int(values["raw_data"]["bytes"])
        self.compression = None if is_raw else str(values["compression"]).partition(":")[0]


class MDSSource(ShardedSource[dict[str, Any]]):
    """The samples of a folder that MosaicML's ``MDSWriter`` has written: dictionaries of columns,
    in the order of ``index.json``.

    Values are those that their library gives: pictures are Pillow's, scalars NumPy's. A sample of a
    shard without compression is read by itself. A compressed shard is decompressed when a sample of
    it is wanted, and kept until shards have ``max_bytes``; then the one used longest ago is
    dropped: shuffle by ``block_shuffle``, or decompress the shards once.

    Args:
        path: the folder with ``index.json``, or its URL.
        split: a folder in it.
        decode_images: make pictures of ``jpeg`` and ``png`` columns; otherwise they are bytes, as
            in the file.
        allow_pickle: read columns of encoding ``pkl``, which can run any code.
        max_bytes: how many bytes of decompressed shards each process keeps.

    Raises:
        FileNotFoundError: there is no ``index.json``, or no file of a shard.
        DamagedFileError: a file is not what ``index.json`` says (a ``ValueError``).
        ValueError: the folder is of another format or version, has pickles, or an unknown encoding
            or compression.

    Example:
        >>> import json, pathlib, struct, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> shard = struct.pack("<4I", 2, 16, 24, 32) + struct.pack("<2q", 5, 7)
        >>> _ = (folder / "shard.00000.mds").write_bytes(shard)
        >>> entry = {
        ...     "format": "mds",
        ...     "version": 2,
        ...     "samples": 2,
        ...     "compression": None,
        ...     "zip_data": None,
        ... }
        >>> entry |= {"column_names": ["n"], "column_encodings": ["int"], "column_sizes": [8]}
        >>> entry |= {"raw_data": {"basename": "shard.00000.mds", "bytes": 32, "hashes": {}}}
        >>> _ = (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [entry]}))
        >>> source = MDSSource(folder)
        >>> len(source), source[1]
        (2, {'n': 7})
    """

    _of_process = ("_kept", "_offsets", "_decoders")

    def __init__(
        self,
        path: str | os.PathLike[str],
        split: str | None = None,
        *,
        decode_images: bool = True,
        allow_pickle: bool = False,
        max_bytes: int = 1 << 30,
    ) -> None:
        self._folder = os.fspath(path).rstrip("/") + (f"/{split}" if split else "")
        self._decode_images = bool(decode_images)
        self._max_bytes = as_int("max_bytes", max_bytes, minimum=0)
        entries = _entries(self._folder)
        try:
            self._entries = [_Shard(entry, self._is_raw(entry)) for entry in entries]
        except (LookupError, TypeError, ValueError) as error:
            raise damaged(
                f"{self._folder}/{_INDEX}", 0, f"an entry is no shard: {error!r}", "Copy it again"
            ) from error
        for shard in self._entries:
            if shard.compression not in (None, *_COMPRESSIONS):
                raise ValueError(
                    f"{self._folder}/{shard.name} has the compression {shown(shard.compression)},"
                    f" and those that are known are {', '.join(_COMPRESSIONS)}: decompress the"
                    " shards with their library, or write them with zstd"
                )
            for name, encoding, _ in shard.columns:
                decoder_of(encoding, self._decode_images)
                if encoding == PICKLE and not allow_pickle:
                    raise ValueError(
                        f"column {name!r} has pickles, which can run any code: pass"
                        " allow_pickle=True if you trust them"
                    )
        self._files = Files([f"{self._folder}/{shard.name}" for shard in self._entries])
        for shard, size, file in zip(
            self._entries, self._files.sizes, self._files.paths, strict=True
        ):
            if size != shard.num_bytes:
                raise damaged(
                    file,
                    min(size, shard.num_bytes),
                    f"it has {size} bytes, {_INDEX} says {shard.num_bytes}",
                    _REMEDY,
                )
        self._shards = ShardMap([entry.num_samples for entry in self._entries])
        self._start_closed()

    def _start_closed(self) -> None:
        self._kept: KeptValues[int, bytes] = KeptValues(self._max_bytes)
        # For each shard that was read, where its samples begin and where the last one ends.
        self._offsets: dict[int, Any] = {}
        encodings = {encoding for entry in self._entries for _, encoding, _ in entry.columns}
        self._decoders = {name: decoder_of(name, self._decode_images) for name in encodings}
        super()._start_closed()

    def _read_many(self, places: Sequence[tuple[int, int]]) -> list[dict[str, Any]]:
        ranges = [(number, *self._range(number, place)) for number, place in places]
        raw = [
            place
            for place, (number, _, _) in enumerate(ranges)
            if self._entries[number].compression is None
        ]
        data = dict(zip(raw, self._files.read([ranges[place] for place in raw]), strict=True))
        samples = []
        for place, (number, start, stop) in enumerate(ranges):
            sample = data[place] if place in data else self._unpacked(number)[start:stop]
            samples.append(self._decoded(number, start, sample))
        return samples

    def __repr__(self) -> str:
        images = "" if self._decode_images else ", decode_images=False"
        return f"MDSSource({len(self)} samples, {self._files.described()}{images})"

    @property
    def paths(self) -> list[str]:
        """The files of the shards."""
        return list(self._files.paths)

    def close(self) -> None:
        """Closes all files, and frees decompressed shards. The next read opens them again."""
        super().close()
        self._files.close()

    def _is_raw(self, entry: dict[str, Any]) -> bool:
        """Returns True if the file without compression is read: it is the only one, or it is
        local.
        """
        if not entry.get("zip_data"):
            return True
        return (
            not is_url(self._folder) and Path(self._folder, entry["raw_data"]["basename"]).exists()
        )

    def _range(self, number: int, place: int) -> tuple[int, int]:
        offsets = self._offsets.get(number)
        if offsets is None:
            offsets = self._offsets.setdefault(number, self._read_offsets(number))
        return int(offsets[place]), int(offsets[place + 1])

    def _read_offsets(self, number: int) -> Any:
        shard, path = self._entries[number], self._files.paths[number]
        size = 4 * (shard.num_samples + 2)
        if shard.compression is None:
            head = self._files.read_one(number, 0, min(size, shard.num_bytes))
        else:
            head = self._unpacked(number)[:size]
        words = np.frombuffer(head[: len(head) // 4 * 4], "<u4")
        is_whole = (
            len(words) == shard.num_samples + 2
            and words[0] == shard.num_samples
            and (words[1:-1] <= words[2:]).all()
        )
        if not is_whole or words[1] < size or words[-1] > shard.raw_bytes:
            raise damaged(
                path, 0, f"it does not begin as a shard of {shard.num_samples} samples", _REMEDY
            )
        return words[1:]

    def _unpacked(self, number: int) -> bytes:
        shard, path = self._entries[number], self._files.paths[number]

        def make() -> tuple[bytes, int]:
            packed = self._files.read_one(number, 0, shard.num_bytes)
            try:
                data = _decompressed(str(shard.compression), packed)
            except (zlib.error, OSError, EOFError, RuntimeError) as error:
                raise damaged(path, 0, f"it cannot be decompressed: {error}", _REMEDY) from error
            if len(data) != shard.raw_bytes:
                raise damaged(
                    path,
                    0,
                    f"it has {len(data)} bytes when decompressed, not {shard.raw_bytes}",
                    _REMEDY,
                )
            return data, len(data)

        return self._kept.get(number, lambda: shard.raw_bytes, make)

    def _decoded(self, number: int, offset: int, data: bytes) -> dict[str, Any]:
        columns = self._entries[number].columns
        num_sizes = sum([not size for _, _, size in columns])
        try:
            sizes = iter(np.frombuffer(data, "<u4", num_sizes).tolist())
            place, sample = 4 * num_sizes, {}
            for name, encoding, fixed in columns:
                size = fixed or next(sizes)
                if place + size > len(data):
                    raise ValueError(f"column {name!r} goes beyond the sample")
                sample[name] = self._decoders[encoding](data[place : place + size])
                place += size
        except (ValueError, IndexError, KeyError) as error:
            raise damaged(
                self._files.paths[number],
                offset,
                f"the sample there cannot be decoded: {error}",
                _REMEDY,
            ) from error
        return sample


def _entries(folder: str) -> list[dict[str, Any]]:
    """Returns the shards that ``index.json`` lists."""
    path = f"{folder}/{_INDEX}"
    if not is_url(folder) and not Path(path).exists():
        raise FileNotFoundError(
            f"there is no {path}: path must be a folder that MDSWriter has written, perhaps with"
            " split="
        )
    files = Files([path])
    try:
        index = json.loads(files.read_one(0, 0, files.sizes[0]))
        found = [dict(entry) for entry in index["shards"]] if index["version"] == 2 else None
    except (ValueError, LookupError, TypeError) as error:
        raise damaged(path, 0, f"it is no index of MDS: {error}", "Copy it again") from error
    if found is None:
        raise ValueError(
            f"{path} must be of version 2, got {shown(index['version'])}: write the data again with"
            " a newer library"
        )
    for entry in found:
        format, version = entry.get("format"), entry.get("version", 2)
        if format != "mds":
            raise ValueError(
                f"{path} has shards of format {shown(format)}: read them by JsonlSource, or write"
                " MDS"
            )
        if version != 2:
            raise ValueError(f"{path} must have shards of version 2, got {shown(version)}")
    return found


def _decompressed(compression: str, data: bytes) -> bytes:
    if compression == "gz":
        return zlib.decompress(data, wbits=47)
    if compression == "bz2":
        return bz2.decompress(data)
    try:
        import zstandard
    except ImportError as error:
        raise missing_package("zstandard", "zstd", "reading shards compressed by zstd") from error
    try:
        return zstandard.ZstdDecompressor().decompressobj().decompress(data)
    except zstandard.ZstdError as error:
        raise OSError(str(error)) from error
