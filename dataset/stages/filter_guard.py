"""Notices that a pipeline throws away nearly everything."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable
from typing import Any, ClassVar

from gristmill.dataset.errors.context import on_delivery

_log = logging.getLogger("gristmill")

NONE_SEEN = (0, 0)

WINDOW = 1000
_WARN_INTERVAL_SECONDS = 60.0


class FilterGuard:
    """Counts kept and dropped elements in windows of 1000 and checks each full window against the
    pipeline's options.

    ``observe(kept)`` raises ``ValueError`` at the element that completes a window with too many
    drops, before counting any of the block, so that taking its elements singly raises at the right
    one. An iterator set back to an earlier position takes ``counts`` back as well: the error comes
    again then. When it has reached the user, counting starts again.

    Args:
        stage: whose elements these are, or what it is called.
    """

    # when, by the name of the stage: for all its iterators in this process
    _last_warned: ClassVar[dict[str, float]] = {}

    def __init__(self, stage: Any) -> None:
        self._stage: Callable[[], Any] = (
            (lambda: stage) if isinstance(stage, str) else weakref.ref(stage)
        )
        self.counts = NONE_SEEN  # kept and seen elements of the present window

    def observe(self, kept: list[bool], options: Any) -> None:
        """Counts a block of elements, each kept or dropped."""
        (num_kept, num_seen), warn = self.counts, False
        while num_seen + len(kept) >= WINDOW:
            end = WINDOW - num_seen
            ratio = (WINDOW - num_kept - sum(kept[:end])) / WINDOW
            threshold = options.filter_raise_threshold_ratio
            if threshold and ratio >= threshold:
                error = ValueError(self._message(ratio, "filter_raise_threshold_ratio"))
                on_delivery(error, self._begin_anew)
                raise error
            threshold = options.filter_warn_threshold_ratio
            if threshold and ratio >= threshold:
                warn = True
                worst = ratio
            num_kept = num_seen = 0
            kept = kept[end:]
        self.counts = (num_kept + sum(kept), num_seen + len(kept))
        if warn:
            self._warn(worst)

    def check(self, decisions: list[bool], options: Any) -> None:
        """Checks a full window of ``decisions``, and clear it; after an error when a user has got
        that.
        """
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

    def _begin_anew(self) -> None:
        self.counts = NONE_SEEN

    def _message(self, ratio: float, option: str) -> str:
        return (
            f"{self._name} dropped {ratio:.2%} of {WINDOW} consecutive elements. Check that it does"
            " what it should, or filter the data beforehand. To switch this check off, set"
            f" DatasetOptions({option}=None)."
        )
