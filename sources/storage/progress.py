"""Progress bar for long scans, shown on a terminal."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Mapping
from typing import Any

from gristmill.core.locks import Lock

QUICK_SECONDS = 0.5  # what takes no longer shows nothing


class Progress:
    """A bar for the bytes of several files, which several threads read. ``sizes`` are by the
    numbers of the files.
    """

    def __init__(self, sizes: Mapping[int, int]) -> None:
        self._done = dict.fromkeys(sizes, 0)
        self._lock = Lock()
        self._bar: Any = None
        if sys.stderr is not None and sys.stderr.isatty():
            with contextlib.suppress(ImportError):
                tqdm = importlib.import_module("tqdm").tqdm  # which has no types
                files = f"{len(sizes)} file{'' if len(sizes) == 1 else 's'}"
                self._bar = tqdm(
                    total=sum(sizes.values()),
                    unit="B",
                    unit_scale=True,
                    desc=f"indexing {files}",
                    delay=QUICK_SECONDS,
                )

    def report(self, number: int, num_bytes: int) -> None:
        """Records that ``num_bytes`` of file ``number`` have been read."""
        if self._bar is not None:
            with self._lock:
                self._bar.update(num_bytes - self._done[number])
                self._done[number] = num_bytes

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.close()
