"""Text in a page."""

from __future__ import annotations

import re
from html import escape


def safe(text: str) -> str:
    """Returns ``text`` as HTML, also in attributes; what a file cannot hold is replaced."""
    return escape(re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]", "\ufffd", text))


def shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def swatch(colour: str) -> str:
    return f'<i class="swatch {colour}"></i>'
