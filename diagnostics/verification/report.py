"""The result of ``verify``."""

from __future__ import annotations

from typing import Any, Literal

from gristmill.core.naming import one_line
from gristmill.core.value import Value
from gristmill.diagnostics.diagnosis.mixture_shares import MixtureShares
from gristmill.diagnostics.table import Column, DataTable
from gristmill.diagnostics.units import time_text

_MAX_VALUE = 300  # characters
_PLAIN = (bool, int, float, str, type(None))
AFTERWARDS = "not run: there was a difference before"
_MARKS = {"passed": "ok", "failed": "DIFFERENT", "skipped": "-"}


class Check(Value):
    """One condition under which the pipeline was run.

    Args:
        name: in words.
        status: ``"passed"``, ``"failed"``, or ``"skipped"``: it does not apply, or was not got to.
        num_steps: number of outputs that were compared, the end among them.
        note: why it was skipped, or an empty text.
        num_wanted: number of outputs to compare; 0 if it was skipped.
    """

    name: str
    status: Literal["passed", "failed", "skipped"]
    num_steps: int = 0
    note: str = ""
    num_wanted: int = 0

    @property
    def steps(self) -> str:
        """The number of steps in words, such as ``"20 steps"`` or ``"12 of 20 steps"``."""
        of = f" of {self.num_wanted}" if self.num_steps < self.num_wanted else ""
        return f"{self.num_steps}{of} step{'s' * (max(self.num_steps, self.num_wanted) != 1)}"


class Report(Value):
    """The result of running a pipeline under many conditions that must not change its output.
    Prints as text.

    Args:
        ok: nothing was different.
        checks: what was compared, in this order, and what was not and why.
        num_steps: how many outputs the pipeline was run for.
        seconds: how long it took.
        note: a remark on the run that others were compared with; empty if there is nothing to say.
        condition: under which there was a difference; ``None`` if there was none, as for those that
            follow.
        step: at which output, counted from 0; for ``ds[i]`` in random order, the index.
        leaf: where in the output: ``['image'][3, 1]``; empty for the output itself.
        values: what the first run gave there, and what the other one did: numbers and texts as they
            are, others as text.
        stage: the text of the stage that it comes from.
        reason: why, if that can be determined.
        mixtures: the proportions of mixtures in batches, in lanes and on hosts.
    """

    ok: bool
    checks: tuple[Check, ...]
    num_steps: int
    seconds: float
    note: str = ""
    condition: str | None = None
    step: int | None = None
    leaf: str | None = None
    values: tuple[Any, Any] | None = None
    stage: str | None = None
    reason: str | None = None
    mixtures: tuple[MixtureShares, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Returns all of it as JSON-able data."""
        found = self.as_dict()
        if self.values is not None:
            found["values"] = [x if isinstance(x, _PLAIN) else repr(x) for x in self.values]
        for name in ("checks", "mixtures"):
            found[name] = [x.as_dict() for x in found[name]]
        return found

    def __str__(self) -> str:
        lines = [f"deterministic, as far as {self.num_steps} steps show"]
        if not self.ok:
            assert self.values is not None
            first, other = [
                one_line(x if isinstance(x, str) else repr(x), _MAX_VALUE) for x in self.values
            ]
            lines = [
                "NOT deterministic",
                f"  under      {self.condition}",
                f"  at step    {self.step}{f', {self.leaf}' if self.leaf else ''}",
                f"  the first  {first}",
                f"  the other  {other}",
                f"  stage      {self.stage}",
                f"  reason     {self.reason}",
            ]
        lines += [self.note] if self.note else []
        run = [check for check in self.checks if check.note != AFTERWARDS]
        lines += DataTable(_COLUMNS, run).lines(has_titles=False)
        others = [check.name for check in self.checks if check.note == AFTERWARDS]
        lines += [f"not run: {'; '.join(others)}"] if others else []
        return "\n".join([*lines, *map(str, self.mixtures), time_text(1e9 * self.seconds)])

    __repr__ = __str__


_COLUMNS = (
    Column("", lambda check: _MARKS[check.status], width=9),
    Column("", lambda check: check.name),
    Column("", lambda check: f"{check.steps}  {check.note}"),
)
