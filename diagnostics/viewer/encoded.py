"""Byte strings that are files which a browser can show: pictures and sounds, by their first
bytes.
"""

from __future__ import annotations

import struct

MAX_BYTES = 32 << 20
_MAX_PIXELS = 64_000_000  # a small file may hold more than a browser can show
_SOUNDS = ((b"fLaC", "audio/flac"), (b"OggS", "audio/ogg"), (b"ID3", "audio/mpeg"))
_PNG = b"\x89PNG\r\n\x1a\n"
_JPEG = b"\xff\xd8\xff"


def media_type_of(data: bytes) -> str | None:
    """Returns ``image/…`` or ``audio/…`` of a file that is harmless to show; ``None`` of other
    bytes.

    PNG and JPEG of up to 64 million pixels, WAV, FLAC, Ogg and MP3, up to 32 MiB. Nothing that may
    hold a program, as SVG may.

    Example:
        >>> media_type_of(b"RIFF....WAVEfmt ")
        'audio/wav'
    """
    if len(data) > MAX_BYTES:
        return None
    if data[:8] == _PNG or data[:3] == _JPEG:
        size = _png_size(data) if data[:1] == b"\x89" else _jpeg_size(data)
        is_shown = size is not None and 0 < size[0] * size[1] <= _MAX_PIXELS
        return ("image/png" if data[:1] == b"\x89" else "image/jpeg") if is_shown else None
    if data[:4] == b"RIFF" and data[8:12] == b"WAVE":
        return "audio/wav"
    return next((kind for beginning, kind in _SOUNDS if data.startswith(beginning)), None)


def _png_size(data: bytes) -> tuple[int, int] | None:
    return struct.unpack(">II", data[16:24]) if len(data) >= 24 and data[12:16] == b"IHDR" else None


def _jpeg_size(data: bytes) -> tuple[int, int] | None:
    at = 2
    while at + 9 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2 : at + 4], "big")
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack(">HH", data[at + 5 : at + 9])
            return width, height
        at += 2 + length
    return None
