"""Notices that a pipeline throws away nearly everything."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from gristmill.dataset.errors.context import on_delivery

if TYPE_CHECKING:
    from gristmill.core.options import DatasetOptions

_log = logging.getLogger("gristmill")

WINDOW = 1000
_WARN_INTERVAL_SECONDS = 60.0


class FilterGuard:
    """Checks each window of ``WINDOW`` kept and dropped elements against the pipeline's options.

    Args:
        stage: whose elements these are, or what it is called.
    """

    # when, by the name of the stage: for all its iterators in this process
    _last_warned: ClassVar[dict[str, float]] = {}

    def __init__(self, stage: object) -> None:
        self._stage: Callable[[], Any] = (
            (lambda: stage) if isinstance(stage, str) else weakref.ref(stage)
        )

    def check(self, decisions: list[bool], options: DatasetOptions) -> None:
        """Checks a full window, and clears it; after an error when a user has got that."""
        num_dropped = decisions.count(False)
        ratio = num_dropped / len(decisions)
        threshold = options.filter_raise_threshold_ratio
        if threshold and ratio >= threshold:
            error = ValueError(self._message(ratio, "filter_raise_threshold_ratio"))
            on_delivery(error, decisions.clear)
            raise error
        decisions.clear()
        threshold = options.filter_warn_threshold_ratio
        if threshold and ratio >= threshold:
            self._warn(ratio)

    def _warn(self, ratio: float) -> None:
        now = time.monotonic()
        if (
            now - self._last_warned.get(self._name, -_WARN_INTERVAL_SECONDS)
            >= _WARN_INTERVAL_SECONDS
        ):
            self._last_warned[self._name] = now
            _log.warning("%s", self._message(ratio, "filter_warn_threshold_ratio"))

    def __reduce__(self) -> Any:  # errors of workers refer to it
        return FilterGuard, (self._name,)

    @property
    def _name(self) -> str:
        return str(self._stage())

    def _message(self, ratio: float, option: str) -> str:
        return (
            f"{self._name} dropped {ratio:.2%} of {WINDOW} consecutive elements. Check that it does"
            " what it should, or filter the data beforehand. To switch this check off, set"
            f" DatasetOptions({option}=None)."
        )
