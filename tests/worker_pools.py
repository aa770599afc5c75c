"""Worker processes that wait for the next test that needs them."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from gristmill.workers import pool as pool_module
from gristmill.workers.pool import unpark


def is_shared(array: np.ndarray) -> bool:
    """True if the element is in memory that its worker has, too."""
    while isinstance(array.base, np.ndarray):
        array = array.base
    return not isinstance(array.base, bytearray)


def end_parked_pools() -> None:
    pool_module._end([pool for pool in [*pool_module._parked] if unpark(pool)])


def parked_for_long(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Until this continues, processes wait for as long as a busy machine may take."""
    monkeypatch.setattr(pool_module, "_PARKED_SECONDS", 60.0)
    yield
    end_parked_pools()
