"""Checks that a pipeline gives the same elements whenever and wherever it runs."""

from __future__ import annotations

import importlib
from typing import Any


def assert_deterministic(ds: Any, *, steps: int = 200, seconds: float = 60) -> None:
    """Asserts that ``ds`` gives the same elements and states in every run, process, thread and
    order of restoring.

    See ``gristmill.verify`` for the comparisons; it returns the same result without an assertion.

    Args:
        ds: a ``MapDataset``, ``IterDataset`` or ``DataLoader``.
        steps: how many outputs to compare, at least 1.
        seconds: how long it may take, about.

    Raises:
        AssertionError: there is a difference; names step, leaf, stage, both values and, where it
            can be determined, the reason.
        TypeError, ValueError: as ``gristmill.verify`` raises them.

    Example:
        >>> import random
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.range(10).map(lambda x: x + random.random())
        >>> assert_deterministic(ds)  # doctest: +ELLIPSIS
        Traceback (most recent call last):
        ...
        AssertionError: NOT deterministic
          under      a second run
        ...
    """
    report = importlib.import_module("gristmill.diagnostics").verify(
        ds, steps=steps, seconds=seconds
    )
    if not report.ok:
        raise AssertionError(str(report))
