"""The output of commands."""

from __future__ import annotations

import sys
from typing import TextIO


class OutputClosedError(BaseException):
    """The reader of the output, such as ``head``, has closed it. No error of a pipeline is that."""


def say(*lines: str) -> None:
    """Prints lines at once.

    Raises:
        OutputClosedError: the output is closed.
    """
    try:
        for line in lines:
            print_anywhere(line, sys.stdout)
    except BrokenPipeError:
        raise OutputClosedError from None


def print_anywhere(text: str, stream: TextIO) -> None:
    """Prints any text on any terminal."""
    encoding = stream.encoding or "utf-8"
    print(text.encode(encoding, "backslashreplace").decode(encoding), file=stream, flush=True)
