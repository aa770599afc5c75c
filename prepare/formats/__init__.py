"""The file formats that ``write`` knows, by name."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from typing import Any

from gristmill.core.state import shown
from gristmill.prepare.codecs import codec_of
from gristmill.prepare.formats.base import Format

DEFAULT = "array_record"

_FORMATS = {
    "array_record": ("records", "ArrayRecordFormat"),
    "bagz": ("records", "BagFormat"),
    "jsonl": ("json_lines", "JsonLinesFormat"),
    "megatron": ("tokens", "MegatronFormat"),
    "npy": ("tokens", "NpyFormat"),
    "parquet": ("parquet", "ParquetFormat"),
    "tar": ("tar", "TarFormat"),
    "tfrecord": ("records", "TFRecordFormat"),
}
NAMES = tuple(_FORMATS)


def format_of(name: Any, options: Mapping[str, Any], codec: Any = None) -> Format:
    """Returns the format of a name, with its options.

    Args:
        name: see ``NAMES``; ``None`` for ArrayRecord.
        options: those of the format.
        codec: as for ``write``; only for formats whose records are bytes.

    Raises:
        TypeError, ValueError: an argument is wrong.
        ImportError: a package is missing.
    """
    kind = _class_of(name)
    if codec is None:
        return kind(options)
    if not kind.takes_codec:
        raise ValueError(
            f"codec must be None for format={kind.name!r}, whose columns are typed by the format "
            "itself"
        )
    return kind(options, codec_of(codec))


def described_format(saved: Mapping[str, Any], codec: Any = None) -> Format:
    """Returns the format that a manifest describes (see ``Format.restored``)."""
    return _class_of(saved["name"])(saved["options"]).restored(saved, codec)


def _class_of(name: Any) -> Any:
    if name is None:
        name = DEFAULT
    if not isinstance(name, str) or name not in _FORMATS:
        raise ValueError(f"format must be one of {', '.join(map(repr, NAMES))}, got {shown(name)}")
    module, kind = _FORMATS[name]
    return getattr(importlib.import_module(f"{__name__}.{module}"), kind)
