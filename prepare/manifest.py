"""``manifest.json``: the files of a written folder, and the pipeline that they are from.

It is created before the first file, with ``"complete": false``, and replaced once all files are
there. It has no times, paths or names of machines: the same pipeline gives the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.core.value import Value

NAME = "manifest.json"
_VERSION = 1
_VERSION_KEY = "gristmill_manifest"


class ManifestError(ValueError):
    """A folder cannot be used: its manifest is missing, damaged, or of another pipeline."""


class WrittenFile(Value):
    """A file of a written folder.

    Args:
        name: its name in the folder.
        records: how many records it has; 0 for a file that belongs to the one before it, such as an
            index.
        bytes: its size.
        checksum: ``"crc32:"`` and eight hexadecimal digits.
    """

    name: str
    records: int
    bytes: int
    checksum: str


class WrittenPart(Value):
    """The files that one call of ``write`` adds to a folder, the first or one with ``append=True``.

    Args:
        pipeline: the description of the pipeline (see ``pipeline``).
        request: the arguments that decide where a file ends.
        records_per_file: the positions, or the elements of a stream, that belong to one file.
        record_bytes: the mean size of a record in a sample, before compression.
        first_file: the number of its first file.
        num_files: how many files it is divided into; ``None`` for a stream, whose length is not
            known before its end.
        faults: elements that ``tolerate`` has skipped: ``total``, and the last ones of each file
            with their record keys.
    """

    pipeline: Mapping[str, Any]
    request: Mapping[str, Any]
    records_per_file: int
    record_bytes: int
    first_file: int
    num_files: int | None
    faults: Mapping[str, Any]


class Manifest(Value):
    """The contents of ``manifest.json``.

    Args:
        complete: all files of all parts are there.
        format: what files are written as, and all that is needed to read them (see ``formats``).
        parts: the calls of ``write`` that the files are from.
        files: the files of finished parts, in the order of their records.
    """

    complete: bool
    format: Mapping[str, Any]
    parts: Sequence[WrittenPart]
    files: Sequence[WrittenFile]

    @property
    def num_records(self) -> int:
        return sum(file.records for file in self.files)

    @property
    def num_bytes(self) -> int:
        return sum(file.bytes for file in self.files)

    def to_bytes(self) -> bytes:
        """Returns the text of the file, which depends on nothing but the values."""
        values = {
            _VERSION_KEY: _VERSION,
            "complete": self.complete,
            "format": self.format,
            "records": self.num_records,
            "bytes": self.num_bytes,
            "parts": [part.as_dict() for part in self.parts],
            "files": [file.as_dict() for file in self.files],
        }
        return f"{json.dumps(values, indent=1)}\n".encode()

    @classmethod
    def from_bytes(cls, text: bytes, place: str) -> Manifest:
        """Returns the manifest that a file has.

        Args:
            text: the bytes of the file.
            place: the folder, for messages.

        Raises:
            ManifestError: it is damaged, or written by a later version.
        """
        try:
            values = json.loads(text)
            version = values[_VERSION_KEY]
            if version == _VERSION:
                files = [WrittenFile(**file) for file in values["files"]]
                for file in files:
                    _check_file(file)
                return cls(
                    bool(values["complete"]),
                    dict(values["format"]),
                    [WrittenPart(**part) for part in values["parts"]],
                    files,
                )
        except (ValueError, TypeError, LookupError) as error:
            raise ManifestError(
                f"{place}/{NAME} is damaged, or not from gristmill.write: {error}. Use "
                "another folder, or remove this one"
            ) from error
        raise ManifestError(
            f"{place}/{NAME} must be of version {_VERSION}, got {shown(version)}: use a newer "
            "gristmill"
        )


def _check_file(file: WrittenFile) -> None:
    """Refuses an entry that ``write`` does not make."""
    if not re.fullmatch(r"part-\d+\.[\w.]+", file.name):
        raise ValueError(f"a file is named {shown(file.name)}")
    as_int("records", file.records, minimum=0)
    as_int("bytes", file.bytes, minimum=0)
