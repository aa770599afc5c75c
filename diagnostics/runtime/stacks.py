"""Stacks of threads, in this process and in workers that do not answer.

A worker that is stuck, perhaps in C code, cannot be asked; but the interpreter's own signal handler
can still write down the stacks of its threads, into a file in memory that the consumer finds among
the worker's open files. That needs Linux.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import sys
import time
import traceback
from pathlib import Path
from types import FrameType

_FILE = "gristmill-stacks"
_SIGNAL = signal.SIGUSR1 if hasattr(signal, "SIGUSR1") else None
_ANSWER_SECONDS = 0.5
_MAX_BYTES = 20_000


def stack_text(ident: int | None, leave_out: tuple[str, ...] = ()) -> str:
    """Returns the stack of a thread of this process, its innermost call last; empty if there is
    none.

    Args:
        ident: of the thread.
        leave_out: folders whose files are of no interest, unless they are all there is.
    """
    frame: FrameType | None = sys._current_frames().get(ident) if ident is not None else None
    if frame is None:
        return ""
    summary = traceback.extract_stack(frame)
    of_interest = [entry for entry in summary if not entry.filename.startswith(leave_out)]
    return "".join(traceback.format_list(of_interest or summary[-3:]))


def show_stacks_when_asked() -> None:
    """Called in a worker: from now on ``worker_stacks`` may ask."""
    if _SIGNAL is None or not _can_ask() or signal.getsignal(_SIGNAL) is not signal.SIG_DFL:
        return
    if any(name == _FILE for _, name in _memory_files(os.getpid())):
        return
    file = os.fdopen(os.memfd_create(_FILE), "w")
    faulthandler.register(_SIGNAL, file=file, all_threads=True)


def worker_stacks(process_id: int) -> str:
    """Returns the stacks of all threads of a worker, the innermost call first; empty if it cannot
    be asked.

    Where no worker can be, it is a sentence that says so.
    """
    if not _can_ask():
        return (
            "(where it is cannot be shown: that needs os.memfd_create and /proc, which Linux has)"
        )
    files = [path for path, name in _memory_files(process_id) if name == _FILE]
    if not files or not _catches(process_id):
        return ""
    try:
        before = files[0].stat().st_size
        os.kill(process_id, _SIGNAL or 0)
        size, deadline = before, time.monotonic() + _ANSWER_SECONDS
        while time.monotonic() < deadline:
            time.sleep(0.02)
            last, size = size, files[0].stat().st_size
            if before < last == size:
                break
        with files[0].open("rb") as file:
            file.seek(before)
            return file.read(_MAX_BYTES).decode(errors="replace")
    except OSError:  # it has ended meanwhile
        return ""


def _can_ask() -> bool:
    return _SIGNAL is not None and hasattr(os, "memfd_create") and Path("/proc/self/fd").is_dir()


def _memory_files(process_id: int) -> list[tuple[Path, str]]:
    found = []
    try:
        for path in Path(f"/proc/{process_id}/fd").iterdir():
            target = str(path.readlink())
            if target.startswith("/memfd:"):
                found.append((path, target.removeprefix("/memfd:").removesuffix(" (deleted)")))
    except OSError:
        pass
    return found


def _catches(process_id: int) -> bool:
    """True if the signal would reach the handler: other processes would die of it."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text()
    except OSError:
        return False
    masks = [line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")]
    return bool(masks) and bool(int(masks[0], 16) >> (int(_SIGNAL or 1) - 1) & 1)
