"""Tracebacks without the frames of the library: of an error in his code, a user sees his own lines."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from types import FrameType, TracebackType
from typing import Any

from gristmill.core.config import config
from gristmill.core.errors import add_note

_THREADS_AND_WORKERS = ("gristmill.dataset.readahead", "gristmill.dataset.pullahead", "gristmill.workers.child")
_NOTE = (
    "Frames of gristmill are left out of this traceback. To see them, call "
    'gristmill.config.update("py_traceback_filtering", "off") or set GRISTMILL_PY_TRACEBACK_FILTERING=off.'
)


class UnfilteredTraceback(Exception):
    """The cause, in the mode ``remove_frames``, of an error whose traceback is without our frames: it has all of them."""


def filter_traceback(error: BaseException) -> None:
    """Leaves our frames out of the traceback of ``error``, as ``config.py_traceback_filtering`` says.

    Type, arguments and causes stay as they are; so does the frame that raised the error, and all code of users. To be called by
    a ``next`` that raises the error, where it is caught. If that runs inside of another ``next`` of ours, or of a thread or a
    worker process that computes ahead of one, nothing happens.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration):
        with contextlib.suppress(Exception):
            _filter(error)


def _filter(error: Exception) -> None:
    mode = config.py_traceback_filtering
    if mode == "auto":
        mode = "tracebackhide" if _is_in_ipython() else "quiet_remove_frames"
    if mode == "off" or _is_inside():
        return
    folders = _library_folders()
    links: list[TracebackType] = []
    link = error.__traceback__
    while link is not None:
        links.append(link)
        link = link.tb_next
    is_hidden = [link.tb_frame.f_code.co_filename.startswith(folders) for link in links[:-1]] + [False]
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
        if not hide:  # anew: whoever raises the error again has the old ones
            kept = TracebackType(kept, link.tb_frame, link.tb_lasti, link.tb_lineno)
    BaseException.with_traceback(error, kept)
    if _NOTE not in getattr(error, "__notes__", ()):
        add_note(error, _NOTE)


def _is_inside() -> bool:
    """Whether the ``next`` that calls ``filter_traceback`` runs inside of something of ours that will pass on the error."""
    frame: FrameType | None = sys._getframe(1)
    num_nexts = 0
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if name in _THREADS_AND_WORKERS:
            return True
        if frame.f_code.co_name == "__next__" and name in ("gristmill.dataset.iterator", "gristmill.loader.iterator"):
            num_nexts += frame.f_code.co_qualname != "PlainIterator.__next__"
        frame = frame.f_back
    return num_nexts > 1


def _library_folders() -> tuple[str, ...]:
    """Where the modules of the library are: its packages need not lie together."""
    packages = [module for name, module in [*sys.modules.items()] if name.partition(".")[0] == "gristmill"]
    return tuple({f"{folder}{os.sep}" for package in packages for folder in getattr(package, "__path__", ())})


def _is_in_ipython() -> bool:
    """Whether an IPython that knows how to hide frames shows the tracebacks."""
    ipython: Any = sys.modules.get("IPython")
    return ipython is not None and ipython.version_info[:2] >= (7, 17) and ipython.get_ipython() is not None


def _hide(frame: FrameType, error: BaseException) -> None:
    variables = frame.f_locals
    variables["__tracebackhide__"] = True
    if type(variables) is dict:  # a copy, which lives as long as the frame: the error must not be in it
        for name in [name for name, value in variables.items() if value is error]:
            del variables[name]


def _attach(error: Exception) -> None:
    """Makes a copy of ``error`` with its whole traceback, and what caused it, its cause."""
    if isinstance(error.__cause__, UnfilteredTraceback):  # it is raised once more
        return
    text = "".join(traceback.format_exception_only(error)).strip()  # whatever its ``__str__`` raises
    whole = UnfilteredTraceback(
        f"{text}\n\nThis is the error below with all frames. Those of gristmill are left out below: see py_traceback_filtering."
    ).with_traceback(error.__traceback__)
    whole.__cause__, whole.__context__ = error.__cause__, error.__context__
    whole.__suppress_context__ = error.__suppress_context__
    vars(BaseException)["__cause__"].__set__(error, whole)
