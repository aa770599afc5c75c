"""Settings of workers on Ray."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Literal

from gristmill.core.errors import as_int
from gristmill.core.options import (
    AUTO_LANES,
    MAX_LANES,
    MultiprocessingOptions,
    NumberOrAuto,
    check_max_workers,
    number_or_auto,
)

_MAX_BYTES_AHEAD = 1 << 28


@dataclass(slots=True, repr=False)
class RayOptions:
    """Options of Ray actors that run a pipeline: their number, their machines, and how far they may
    run ahead.

    To be given wherever ``MultiprocessingOptions`` is: elements, their order and states are the
    same, and a state that was taken with one continues with the other. Needs the extra ``ray``. The
    actors are in the cluster that this program is connected to (``ray.init(address=...)``,
    ``RAY_ADDRESS``). Where it is connected to none, a local one is started for it, which can be
    reached from this machine alone.

    Args:
        num_workers: number of actors, at least 1, or ``"auto"``: the number is found while they
            run. If the cluster has no room for all of them, those that have some do the work;
            others join them as soon as there is room.
        num_lanes: into how many lanes the stream is divided (see ``MultiprocessingOptions``), at
            least as many as actors: it can be resized up to this number. ``None``: one for each
            actor; 16 for ``"auto"``.
        pool: the name of a set of actors that several programs of the cluster share. Each has lanes
            of its own. The actors are those of the first program that asks for them; when it ends,
            another one starts new ones.
        resources: custom resources of Ray that an actor needs, by name, to choose machines:
            ``{"loader": 1}``.
        num_cpus: CPUs that an actor counts for where Ray chooses its machine.
        max_bytes_ahead: bytes of elements that all actors together may have ready ahead of the
            consumer, in Ray's object store: never more than half of the smallest one in the
            cluster, for any value, so that nothing is spilled to disk. A single element that is
            larger comes alone. What ``ReadOptions`` read ahead inside of an actor is not counted.
        writable: whether arrays can be written to, at the cost of one copy; else they are read-only
            views of the object store.
        runtime_env: the environment of the actors (``env_vars``, ``pip``, …), as Ray takes it for
            actors: folders of this machine (``working_dir``) are for ``ray.init``. By default
            ``JAX_PLATFORMS`` is ``cpu`` there.
        max_workers: the largest number for ``"auto"``; by default the number of lanes.

    Raises:
        TypeError: a value is of the wrong type.
        ValueError: a value is out of range.

    Example:
        >>> RayOptions(4, num_lanes=16)
        RayOptions(num_workers=4, num_lanes=16)
    """

    executor: ClassVar[Literal["ray"]] = "ray"  # as that of ``MultiprocessingOptions``

    num_workers: NumberOrAuto
    num_lanes: int | None = field(default=None, kw_only=True)
    pool: str | None = field(default=None, kw_only=True)
    resources: Mapping[str, float] | None = field(default=None, kw_only=True)
    num_cpus: float = field(default=1, kw_only=True)
    max_bytes_ahead: int = field(default=_MAX_BYTES_AHEAD, kw_only=True)
    writable: bool = field(default=True, kw_only=True)
    runtime_env: Mapping[str, Any] | None = field(default=None, kw_only=True)
    max_workers: int | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        self.num_workers = number_or_auto("num_workers", self.num_workers, 1)
        self.max_workers = check_max_workers(self.max_workers, self.num_workers, 1)
        num_workers = 1 if self.num_workers == "auto" else self.num_workers
        if self.num_lanes is not None:
            self.num_lanes = as_int("num_lanes", self.num_lanes, minimum=1)
        if not num_workers <= (self.num_lanes or num_workers) <= MAX_LANES:
            raise ValueError(
                f"num_lanes must be at least num_workers, {num_workers}, and at most {MAX_LANES},"
                f" got {self.num_lanes or num_workers}: an actor computes whole lanes. Use fewer"
                " workers or more lanes"
            )
        if self.pool is not None and (not isinstance(self.pool, str) or not self.pool):
            raise TypeError(
                f"pool must be a name, a str that is not empty, or None, got {self.pool!r:.200}"
            )
        self.max_bytes_ahead = as_int("max_bytes_ahead", self.max_bytes_ahead, minimum=1)
        _check_amount("num_cpus", self.num_cpus)
        if self.resources is not None:
            _check_mapping("resources", self.resources)
            for name, amount in self.resources.items():
                _check_amount(f"resources[{name!r}]", amount)
        if not isinstance(self.writable, bool):
            raise TypeError(f"writable must be True or False, got {self.writable!r:.200}")
        if self.runtime_env is not None:
            _check_mapping("runtime_env", self.runtime_env)

    def __repr__(self) -> str:
        # which may have secrets
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "runtime_env"}
        given = [
            f"{f.name}={values[f.name]!r}"
            for f in fields(self)
            if f.name in values and values[f.name] != f.default
        ]
        return f"{type(self).__qualname__}({', '.join(given)})"


WorkerOptions = MultiprocessingOptions | RayOptions


def in_lanes(options: Any) -> Any:
    """Return ``options`` with a number of lanes if they need one: with ``"auto"`` it is a
    constant.
    """
    return (
        replace(options, num_lanes=AUTO_LANES)
        if options.num_workers == "auto" and options.num_lanes is None
        else options
    )


def with_number(options: Any, num_workers: int) -> Any:
    """Return ``options`` with a number of workers that is fixed."""
    return replace(options, num_workers=num_workers, max_workers=None)


def check_worker_options(name: str, options: Any) -> Any:
    """Return ``options``, if they say which workers to use.

    Raises:
        TypeError: they do not.
    """
    if not isinstance(options, WorkerOptions):
        raise TypeError(
            f"{name} must be a MultiprocessingOptions or a RayOptions, got {options!r:.200}"
        )
    return options


def _check_amount(name: str, amount: Any) -> None:
    if isinstance(amount, bool) or not isinstance(amount, int | float):
        raise TypeError(f"{name} must be a number, got {amount!r:.200}")
    if not 0 <= amount < math.inf:
        raise ValueError(f"{name} must not be negative, and finite, got {amount!r}")


def _check_mapping(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all([isinstance(key, str) for key in value]):
        raise TypeError(f"{name} must be a mapping with names as keys, or None, got {value!r:.200}")
