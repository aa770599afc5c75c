"""The parts of a question in ``questions/``. Imports the standard library alone: every environment
loads it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from typing import Any


@dataclasses.dataclass
class Measured:
    """Results together with the seconds they took (or another figure), from a run that knows better
    than the clock around it.
    """

    figure: float
    results: Iterable[Any]


Run = Callable[[], Iterable[Any] | Measured]


@dataclasses.dataclass(frozen=True)
class Workload:
    """The same work done by several candidates.

    Args:
        name: a few words for the table.
        unit: what the table counts in.
        scale: how many units a second has (or what else a run measures).
        count: how many elements (records, calls) a run handles; figures are per element.
        candidates: from a candidate's name to a function that takes a module and returns a run.
            ``gristmill``, ``grain`` and ``torch`` get the module of that name in the environment it
            is installed in, ``tf.data`` gets TensorFlow, and libraries that write data sets get
            their modules (see ``measure.MODULES``). Any other candidate is the bound, and gets
            numpy. A run is called again and again; what is timed is the call and the iteration over
            what it returns (or the run returns ``Measured``). An iterator with ``close`` is closed.
        goals: from a text for the table to a test of the medians (by candidate, in units).
        compare: whether the results show that all did the same work: equal number and sum of
            elements, and for gristmill and Grain the same elements in the same order.
        max_rounds: the most runs of each candidate, of a workload that takes long.
        environment: the environment below ``.peers`` in which all candidates run; by default each
            has its own.
    """

    name: str
    unit: str
    scale: float
    count: int
    candidates: Mapping[str, Callable[[Any], Run]]
    goals: Mapping[str, Callable[[Mapping[str, float]], bool]]
    compare: bool = True
    max_rounds: int = 1_000
    environment: str | None = None


def double(x: Any) -> Any:
    """The map of most workloads: as little work as a user function can do."""
    return 2 * x
