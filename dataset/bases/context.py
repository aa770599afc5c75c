"""The context that the iterators of one pipeline share."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from gristmill.core.options import DatasetOptions
from gristmill.core.value import Value
from gristmill.dataset.ahead.budget import Budget, budget_of
from gristmill.dataset.watching import watcher

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode


class Numbers(Value):
    """Which elements of a whole pipeline are those of share ``index`` of ``count``: its element
    ``i`` is number ``numbers(i)``.

    From ``origin`` on, runs of ``run`` consecutive elements belong to the shares in turn.

    Example:
        >>> list(map(Numbers(1, 2), range(4))), list(map(Numbers(1, 2, run=3), range(4)))
        ([1, 3, 5, 7], [3, 4, 5, 9])
    """

    index: int
    count: int
    run: int = 1
    origin: int = 0

    def __call__(self, i: Any) -> Any:
        """Returns the number of element ``i``; those of an array of them, too."""
        return self.origin + (i // self.run * self.count + self.index) * self.run + i % self.run

    def of(self, start: int, num: int) -> Sequence[int]:
        """Returns the numbers of ``num`` elements of the share, from ``start`` on."""
        if self.run == 1:
            first: int = self(start)
            return range(first, first + num * self.count, self.count)
        return [self(i) for i in range(start, start + num)]

    def num_before(self, number: int) -> int:
        """Returns the number of elements of the shard before ``number``."""
        cycles, rest = divmod(max(0, number - self.origin), self.run * self.count)
        return cycles * self.run + min(max(0, rest - self.index * self.run), self.run)


ALL_NUMBERS = Numbers(0, 1)
_NONE_GIVEN = DatasetOptions()


@dataclass
class IteratorContext:
    """The context that all iterators of one pipeline share."""

    options: DatasetOptions = _NONE_GIVEN
    numbers: Numbers = ALL_NUMBERS
    # Of pipelines that may be opened again: see ``Stream.is_logged``.
    logged: ClassVar[dict[str, int] | None] = None
    # called with every iterator that joins, if set
    joined: Callable[[Any], None] | None = field(default_factory=watcher)
    num_processes: int = 1  # that share what the options allow
    lender: IteratorContext | None = None  # whose budget it is
    # Of the outermost context: what several threads may make first is in dictionaries, whose
    # ``setdefault`` keeps the first one.
    workers: dict[str, Any] = field(default_factory=dict)  # see ``worker_set``
    _budgets: dict[int, Budget] = field(default_factory=dict)  # by process

    @property
    def budget(self) -> Budget:
        """The budget that all prefetching stages share; later options do not change it."""
        if self.lender is not None:
            return self.lender.budget
        whole, process_id = self.outermost, os.getpid()
        budget = whole._budgets.get(process_id)
        if budget is None:
            new = budget_of(whole.options, whole.num_processes)
            budget = whole._budgets.setdefault(process_id, new)
        return budget

    @property
    def known_budget(self) -> Budget | None:
        """Returns ``budget``; ``None`` if it was not needed yet."""
        if self.lender is not None:
            return self.lender.known_budget
        return self.outermost._budgets.get(os.getpid())

    def use(self, budget: Budget) -> None:
        """Share ``budget``, which another pipeline of this process has."""
        self._budgets[os.getpid()] = budget

    def belong_to(self, index: int, count: int, whole: IteratorContext) -> None:
        """Makes the pipeline share ``index`` of ``count`` of one with ``whole``."""
        self.options = whole.options.merge(self.options)
        self.numbers = self.numbers.replaced(index=index, count=count)
        self.lender = whole

    @property
    def outermost(self) -> IteratorContext:
        """That of the whole pipeline, where this is of one that it opens."""
        return self


class ComponentContext(IteratorContext):
    """Of a pipeline that another one opens: that one's options, and its own where they say nothing.

    Workers open whole pipelines, not shares of them, so it is always that of the only worker.
    """

    def __init__(self, outer: IteratorContext, options: DatasetOptions | None = None) -> None:
        self.outer = outer
        # a default of the class elsewhere, which saves each context an attribute
        self.logged = {} if outer.logged is None else outer.logged  # type: ignore[misc]
        self.joined = outer.joined
        self._own = options or DatasetOptions()

    @property
    def outermost(self) -> IteratorContext:
        return self.outer.outermost

    @property  # looked up when used: the outer pipeline may get options after its parts were made
    def options(self) -> DatasetOptions:
        return self.outer.options.merge(self._own)

    @options.setter
    def options(self, options: DatasetOptions) -> None:
        self._own = options


def collected_options(ds: DatasetNode) -> DatasetOptions:
    """Returns the merged options of ``ds`` and upstream; those nearest the output win."""
    options = DatasetOptions()
    for parent in ds._gm_parents:
        options = options.merge(collected_options(parent))
    return options if ds._gm_own_options is None else ds._gm_own_options.merge(options)
