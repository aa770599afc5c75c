"""What the iterators of one pipeline share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from gristmill.core.options import DatasetOptions
from gristmill.dataset.watching import watcher


@dataclass
class IteratorContext:
    """What all iterators of one pipeline share."""

    options: DatasetOptions = field(default_factory=DatasetOptions)
    worker_index: int = 0
    worker_count: int = 1
    joined: Callable[[Any], None] | None = field(default_factory=watcher)  # is told of every iterator that joins, if set

    def belong_to(self, index: int, count: int, options: DatasetOptions) -> None:
        """Makes the pipeline the share of worker ``index`` of ``count``, with ``options`` where it has none of its own."""
        self.options = options.merge(self.options)
        self.worker_index, self.worker_count = index, count


class ComponentContext(IteratorContext):
    """Of a pipeline that another one opens: that one's options, and its own where they say nothing.

    Workers open whole pipelines, not shares of them, so it is always that of the only worker.
    """

    def __init__(self, outer: IteratorContext, options: DatasetOptions | None = None) -> None:
        self.outer = outer
        self.joined = outer.joined
        self._own = options or DatasetOptions()

    @property  # looked up when used: the outer pipeline may get options after its parts were made
    def options(self) -> DatasetOptions:
        return self.outer.options.merge(self._own)

    @options.setter
    def options(self, options: DatasetOptions) -> None:
        self._own = options


def collected_options(ds: Any) -> DatasetOptions:
    """The options in ``ds`` and upstream, merged as iterators merge them: nearest the output first, then first parent first."""
    options = DatasetOptions()
    for parent in ds._parents:
        options = options.merge(collected_options(parent))
    return options if ds._own_options is None else ds._own_options.merge(options)
