"""The threads and the memory that prefetching stages of a pipeline share and use."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gristmill.dataset.bases.observing import shared_budget
from gristmill.diagnostics.units import size_text, time_text

if TYPE_CHECKING:
    from gristmill.diagnostics.runtime.summary import ExecutionSummary, StageSummary

_MAX_NAMED = 3
_MIN_SHARE = 0.01  # of the time, that is worth a word


@dataclass(frozen=True)
class BudgetUse:
    """The part of the shared threads and memory that the prefetching stages of one process use at
    the moment.

    Args:
        process: ``"main"``, or ``"worker 0"`` and so on, after the name of its node if it is on
            Ray.
        num_threads: that read or pull ahead.
        max_threads: the most that there may be.
        num_bytes: what elements take that are ready or being computed, if their sizes are known.
        max_bytes: the most that they may take.
        is_fixed: whether the options of the pipeline say how many threads; else a stage that may
            use more gets them.
        decisions: the changes of the number of threads, where that is ``"auto"``, with their
            reasons.
    """

    process: str
    num_threads: int
    max_threads: int
    num_bytes: int
    max_bytes: int
    is_fixed: bool
    decisions: tuple[str, ...] = ()


def budgets_of(observer: Any, process: str) -> list[BudgetUse]:
    """Returns the use of the budgets that an observer observes in this process: one, or none as
    long as nothing was computed ahead.
    """
    found = [budget for budget in map(shared_budget, observer.alive()) if budget is not None]
    return [
        BudgetUse(
            process,
            x.num_threads,
            x.max_threads,
            x.memory.num_bytes,
            x.memory.max_bytes,
            not x.is_flexible,
            () if x.tuning is None else tuple(map(str, x.tuning.decisions)),
        )
        for x in {id(budget): budget for budget in found}.values()
    ]


def ahead_text(summary: ExecutionSummary) -> str:
    """Returns all of it in one line, with those stages for which others waited longest; empty if
    nothing is computed ahead.
    """
    budgets = summary.budgets
    if not budgets:
        return ""
    processes = f" in {len(budgets)} processes" if len(budgets) > 1 else ""
    text = (
        f"read-ahead: {sum([x.num_threads for x in budgets])} of"
        f" {sum([x.max_threads for x in budgets])} threads{processes},"
        f" {size_text(sum([x.num_bytes for x in budgets]))} of"
        f" {size_text(sum([x.max_bytes for x in budgets]))} ahead"
    )
    kinds = [(stage, kind) for stage in summary.values() for kind in ("thread", "memory")]
    waits = sorted(
        [(getattr(stage, f"{kind}_wait_ns"), stage, kind) for stage, kind in kinds],
        key=lambda wait: -wait[0],
    )
    waits = [wait for wait in waits if wait[0]]
    if sum([ns for ns, _, _ in waits]) < _MIN_SHARE * summary.elapsed_ns:
        return text
    named = [
        f"{time_text(ns)} for {'threads' if kind == 'thread' else kind} in {short_name(stage)}"
        for ns, stage, kind in waits[:_MAX_NAMED]
    ]
    if waits[_MAX_NAMED:]:
        named.append(
            f"{time_text(sum([ns for ns, _, _ in waits[_MAX_NAMED:]]))} in"
            f" {len(waits) - _MAX_NAMED} more"
        )
    return f"{text}; waited {', '.join(named)}" if named else text


def short_name(stage: StageSummary) -> str:
    """Returns the name of a stage, and its number in the table."""
    return f"{stage.kind} ({stage.id})"
