"""Worker processes that wait for the next test that needs them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gristmill.workers.pool import WorkerPool
from gristmill.workers.registry import registry


def is_shared(array: np.ndarray) -> bool:
    """True if the element is in memory that its worker has, too."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return not isinstance(array.base, bytearray)


def close_idle_pools() -> None:
    registry.close_idle()


def idle_for_long(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Until this continues, processes wait for as long as a busy machine may take."""
    monkeypatch.setattr(WorkerPool, "idle_seconds", 60.0)
    yield
    close_idle_pools()
