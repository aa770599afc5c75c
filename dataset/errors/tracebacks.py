"""Tracebacks without the frames of the library: of an error in their code, users see their own
lines.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import traceback
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from gristmill.core.config import config
from gristmill.core.errors import add_note

# Where errors leave the library: the functions of that name in these modules.
_EXITS = {
    "gristmill.dataset.bases.iterator": "__next__",
    "gristmill.dataset.engine.iterators": "__next__",
    "gristmill.loader.iterator": "__next__",
    "gristmill.dataset.bases.map": "__getitem__",
}
_THREADS_AND_WORKERS = (
    "gristmill.dataset.ahead.readahead",
    "gristmill.dataset.ahead.pullahead",
    "gristmill.workers.child",
)
_NOTE = (
    "Frames of gristmill are left out of this traceback. To see them, call"
    ' gristmill.config.update("py_traceback_filtering", "off") or set'
    " GRISTMILL_PY_TRACEBACK_FILTERING=off."
)


class UnfilteredTraceback(Exception):
    """The cause, in the mode ``remove_frames``, of an error: it has all frames."""


def filter_traceback(error: BaseException) -> None:
    """Leaves our frames out of the traceback of ``error``, as ``config.py_traceback_filtering``
    says.

    Type, arguments and causes stay as they are; so does the frame that raised the error, and all
    code of users. Of an interrupt from the keyboard, which may come anywhere, frames of the library
    and of what it calls are removed even where they raised it, and nothing is noted. Called by a
    ``next`` or ``ds[i]`` that raises the error, where it is caught. If that runs inside of another
    one of ours, or of a thread or a worker process that computes ahead, nothing happens.
    """
    if isinstance(error, Exception | KeyboardInterrupt) and not isinstance(error, StopIteration):
        with contextlib.suppress(Exception):
            _filter(error)


def _filter(error: BaseException) -> None:
    mode = config.py_traceback_filtering
    if mode == "auto":
        mode = "tracebackhide" if _is_in_ipython() else "quiet_remove_frames"
    if mode == "off" or _is_inside():
        return
    links: list[TracebackType] = []
    link = error.__traceback__
    while link is not None:
        links.append(link)
        link = link.tb_next
    is_interrupt = isinstance(error, KeyboardInterrupt)
    is_hidden = _are_ours(
        [link.tb_frame.f_code.co_filename for link in links], with_calls=is_interrupt
    )
    is_hidden[-1:] = [is_hidden[-1] and is_interrupt] if links else []
    if not any(is_hidden):
        return
    if mode == "tracebackhide":
        for link, hide in zip(links, is_hidden, strict=True):
            if hide:
                _hide(link.tb_frame, error)
        return
    if mode == "remove_frames":
        _attach(error)
    kept: TracebackType | None = None
    for link, hide in zip(reversed(links), reversed(is_hidden), strict=True):
        if not hide:  # again: a caller that raises the error again has the old ones
            kept = TracebackType(kept, link.tb_frame, link.tb_lasti, link.tb_lineno)
    BaseException.with_traceback(error, kept)
    if not is_interrupt and _NOTE not in getattr(error, "__notes__", ()):
        add_note(error, _NOTE)


def _are_ours(files: list[str], *, with_calls: bool) -> list[bool]:
    """Returns which files are of this library, or of Python's called by it if ``with_calls``."""
    folders, python = _library_folders(), f"{Path(threading.__file__).parent}{os.sep}"
    found: list[bool] = []
    for file in files:
        is_called = with_calls and bool(found) and found[-1]
        is_pythons = file.startswith((python, "<frozen ")) and "site-packages" not in file
        found.append(file.startswith(folders) or (is_called and is_pythons))
    return found


def _is_inside() -> bool:
    """True if another frame of this library will pass on the error."""
    frame: FrameType | None = sys._getframe(1)
    num_exits = 0
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name in _THREADS_AND_WORKERS:
            return True
        if frame.f_code.co_name == _EXITS.get(str(name)):
            num_exits += frame.f_code.co_qualname != "PlainIterator.__next__"
        frame = frame.f_back
    return num_exits > 1


def _library_folders() -> tuple[str, ...]:
    """Returns the folders of the library's modules: its packages need not be in one folder."""
    packages = [
        module for name, module in [*sys.modules.items()] if name.partition(".")[0] == "gristmill"
    ]
    return tuple(
        {f"{folder}{os.sep}" for package in packages for folder in getattr(package, "__path__", ())}
    )


def _is_in_ipython() -> bool:
    """True if the tracebacks are shown by an IPython that can hide frames."""
    ipython: Any = sys.modules.get("IPython")
    return (
        ipython is not None
        and ipython.version_info[:2] >= (7, 17)
        and ipython.get_ipython() is not None
    )


def _hide(frame: FrameType, error: BaseException) -> None:
    variables = frame.f_locals
    variables["__tracebackhide__"] = True
    # a copy, which lives as long as the frame: the error must not be in it
    if type(variables) is dict:
        for name in [name for name, value in variables.items() if value is error]:
            del variables[name]


def _attach(error: BaseException) -> None:
    """Makes a copy of ``error`` with its whole traceback, and what caused it, its cause."""
    if isinstance(error.__cause__, UnfilteredTraceback):  # it is raised once more
        return
    # its ``__str__`` may raise anything
    text = "".join(traceback.format_exception_only(error)).strip()
    whole = UnfilteredTraceback(
        f"{text}\n\nThis is the error below with all frames. Those of gristmill are left out below:"
        " see py_traceback_filtering."
    ).with_traceback(error.__traceback__)
    whole.__cause__, whole.__context__ = error.__cause__, error.__context__
    whole.__suppress_context__ = error.__suppress_context__
    vars(BaseException)["__cause__"].__set__(error, whole)
