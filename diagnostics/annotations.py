"""Names of stages in profiles of JAX, for as long as one is being taken."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any


def annotate_while_profiling(observer: Any) -> None:
    """Has ``observer`` mark the calls of stages while JAX records a profile; looked at once for
    each output.
    """
    observer.output.is_profiling = _is_profiling
    observer.output.switch = observer.annotate


def _is_profiling() -> bool:
    profiler = _modules.get("jax.profiler")  # no profile is taken without importing it
    return profiler is not None and profiler.TraceAnnotation.is_enabled() is True


_modules: Any = sys.modules


def annotated(
    original: Callable[[Any, Any], list[Any]],
    probe: Any,
    method: str,
    *,
    is_read_ahead: bool = False,
) -> Callable[[Any, Any], list[Any]]:
    """Returns ``original``, whose calls appear in the profile under the names that tools for input
    pipelines look for.
    """
    from jax.profiler import TraceAnnotation

    labels = {
        "_ipl_stage_name": probe.name,
        "_ipl_stage_id": probe.number,
        "_ipl_stage_cat": probe.category,
    }

    def call(owner: Any, argument: Any) -> list[Any]:
        with TraceAnnotation(f"{probe.kind}.{method}", **labels):
            return original(owner, argument)

    def read(owner: Any, indices: Any) -> list[Any]:
        with TraceAnnotation(
            "Prefetch._getitem",
            _ipl_dataset_name=probe.name,
            _ipl_dataset_index=int(indices[0]),
            **labels,
        ):
            return call(owner, indices)

    return read if is_read_ahead else call
