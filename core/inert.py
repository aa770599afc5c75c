"""No-op stubs of Grain's private instruments: they accept every call and do nothing."""

from __future__ import annotations

import contextlib
from typing import Any


class InertStats:
    """``_stats`` of datasets and iterators, to which users' own datasets report in Grain. Nothing
    is recorded.

    See ``gristmill.observe`` for what measures here.
    """

    output_spec = None

    def record_self_time(
        self, *, num_elements: int = 1, offset_ns: int = 0
    ) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def record_output_spec(self, element: Any) -> Any:
        return element

    record_output_spec_for_batch = record_bytes_produced = record_bytes_consumed = (
        record_output_spec
    )

    def report(self) -> None:
        """Nothing."""


class Inert:
    """Takes any call and has any attribute; as a decorator it leaves the function as it is."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args[0] if len(args) == 1 and not kwargs and callable(args[0]) else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: object) -> None: ...


INERT = Inert()
STATS = InertStats()
