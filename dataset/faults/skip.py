"""The stream that skips outputs of its parent that fail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import partial
from itertools import compress, islice, repeat
from operator import length_hint
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import FaultBudgetError, StateMismatchError, add_note
from gristmill.core.state import plain_int, shown, state_count, state_field
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.bases.traced import Tracing
from gristmill.dataset.engine.choices import NEW, USUAL, Records
from gristmill.dataset.engine.stream import Cell, Pos, Stream
from gristmill.dataset.faults.budget import Fault, Tolerance, failed_again, refuse, refused_by
from gristmill.dataset.faults.counts import Choice, Count, Faults, Skipped
from gristmill.dataset.faults.known import total_in
from gristmill.dataset.states.values import copied

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

_MOST = 64  # elements that are returned one by one before the consumer is asked how many it wants


class SkipFailed(Stream):
    """The outputs of the parent that do not fail.

    The position: ``(the parent's, outputs that were tried, Count)``. The choice to skip an output
    has the parent's state after it: computed again, the output may not fail, or be another.
    """

    flow = "dropping"
    makes_choices = counts_faults = True

    def __init__(
        self,
        stage: DatasetNode,
        parent: Stream,
        tolerance: Tolerance,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(stage, parent)
        self.tolerance = tolerance
        self.tracing = tracing

    def _run(self, cell: Cell) -> Iterator[Any]:
        while True:
            pos, tried, count = cell.pos
            inner, choices = self.inner.at(pos, choices=cell.choices), cell.choices
            if choices is None:
                try:
                    wanted = cell.take_wanted()
                    # which begin at a position before the output
                    if wanted > 1 and not self.tolerance.retries:
                        inner.wanted = wanted
                        steps = repeat(True, wanted)
                        cell.compute_by(partial(_after, inner, tried + wanted, steps, count))
                        yield from compress(islice(self.parent.run(inner), wanted), steps)
                        is_at_end = length_hint(steps) > 0
                        cell.end_block()
                    else:
                        before = tried
                        for x in islice(self.parent.run(inner), _MOST):
                            tried += 1
                            cell.pos = inner.settle(), tried, count
                            yield (x, x := None)[0]
                        is_at_end = tried < before + _MOST
                    if not is_at_end:
                        continue
                    found: list[Any] | None = []
                except Exception as error:
                    cell.end_block()
                    found = self._skip_or_raise(cell, error)
            else:
                found = self._one(cell)
            if found is None:
                continue
            if not found:
                cell.pos = inner.settle(), *cell.pos[1:]
                return
            cell.pos = inner.settle(), cell.pos[1] + 1, *cell.pos[2:]
            yield found.pop()

    def _one(self, cell: Cell) -> list[Any] | None:
        """Return the next output in a list, empty at the end; ``None`` if it was skipped."""
        choices = cell.choices
        assert choices is not None
        choice = choices.ask(self.key)
        counts = {**choices.counts} if self.parent.chooses else None
        if choice is not NEW and choice is not USUAL:
            if choice.get("epoch", 0) <= cell.pos[2].epoch:
                self._skip_again(cell, choice, counts)
                return None
            choice = USUAL  # the end comes before
        try:
            found = list(islice(self.parent.run(self.inner), 1))
        except Exception as error:
            return self._skip_or_raise(cell, error, counts, is_known=choice is USUAL)
        if not found:
            choices.retract(self.key)
        return found

    def _skip_or_raise(
        self,
        cell: Cell,
        error: Exception,
        counts: Mapping[str, int] | None = None,
        *,
        is_known: bool = False,
    ) -> list[Any] | None:
        """Return the output of a further attempt in a list; ``None`` if it was skipped.

        Args:
            cell: where the output before it was yielded.
            error: the error of the first attempt.
            counts: of choices before the first attempt.
            is_known: the output did not fail before.
        """
        before, tried, count = cell.pos
        inner, limits = self.inner, self.tolerance.limits

        def compute() -> list[Any]:
            inner.go_to(before)
            if counts is not None and cell.choices is not None:
                cell.choices.go_back(counts)
            return list(islice(self.parent.run(inner), 1))

        try:
            found, last = self.tolerance.attempt(compute, error)
            if last is None:
                return found
            error = last
            if is_known:
                failed_again(error, self, limits)
                raise error
            self._check_budget(tried, count, error)
            self._check_state(before, error)
        except Exception as refused:
            cause = refused.__cause__ if isinstance(refused, FaultBudgetError) else None
            # A stage upstream counts what it has let through.
            fault = self._fault(cause or refused) if refused_by(refused) == limits.number else None
            cell.past_failed = partial(self._pass, cell, fault, counts)
            del cause
            raise
        else:
            self._skip(cell, self._fault(error), counts)
            if self.tracing is not None:
                self.tracing.note_fault(error)
            return None
        finally:
            del error  # its traceback refers to this frame

    def _fault(self, error: BaseException) -> Fault:
        return Fault.of(error, self.parent)

    def _check_budget(self, tried: int, count: Count, error: Exception) -> None:
        limits = self.tolerance.limits
        if self.ctx.lender is not None:
            limits = limits.replaced(max_rate=None, max_total=None)
        faults = [*count.last_faults, self._fault(error)]
        exceeded = limits.exceeded(count.total + 1, tried + 1, count.row_at(tried) + 1, faults)
        if exceeded is not None:
            refuse(exceeded, limits)
            raise exceeded from error

    def _check_state(self, pos: Pos, error: Exception) -> None:
        """Raise ``error`` if the parent, perhaps a plain iterator, has no state."""
        try:
            self.parent.save(pos)
            return
        except NotImplementedError as stateless:
            reason = str(stateless)
        add_note(error, f"{self} does not skip the element: {reason}")
        raise error

    def _skip(self, cell: Cell, fault: Fault, counts: Mapping[str, int] | None) -> None:
        """Move past the output that failed, and count it."""
        self.inner.pass_failed()
        _, tried, count = cell.pos
        state = self.parent.save(self.inner.pos)
        skipped = Skipped(tried, fault)
        if cell.choices is not None:
            choice = Choice({"after": state}, (skipped,))
            if count.epoch:
                choice["epoch"] = count.epoch
            if counts is not None and (asked := cell.choices.num_since(counts)):
                choice["asked"] = asked
            cell.choices.note(self.key, choice)
        if self.ctx.lender is None and not self.is_logged(tried):
            self.tolerance.write([fault])
            self.report_faults(self.tolerance.limits.name, 1)
        cell.pos = self.inner.pos, tried + 1, count.added(tried, 1, [skipped])

    def _skip_again(
        self, cell: Cell, choice: Mapping[str, Any], counts: Mapping[str, int] | None
    ) -> None:
        """Move past an output that was skipped before, without an attempt."""
        _, tried, count = cell.pos
        if self.tracing is not None:
            self._trace(cell, counts)
        after = self.parent.load(copied(choice["after"]))
        if cell.choices is not None:
            cell.choices.repeat(choice.get("asked", {}))
            cell.choices.note(self.key, choice)
        self.inner.go_to(after)
        cell.pos = after, tried + 1, count.added(tried, 1, getattr(choice, "skipped", ()))

    def _trace(self, cell: Cell, counts: Mapping[str, int] | None) -> None:
        assert self.tracing is not None
        try:
            # an output that does not fail now is skipped, too
            for x in islice(self.parent.run(self.inner), 1):
                self.tracing.note_faults(x.rows)
        except Exception as error:
            self.tracing.note_fault(error)
        if counts is not None and cell.choices is not None:
            cell.choices.go_back(counts)

    def _pass(self, cell: Cell, fault: Fault | None, counts: Mapping[str, int] | None) -> None:
        """Move past an output that a user skips, which is counted unless ``fault`` is ``None``."""
        if fault is not None:
            self._skip(cell, fault, counts)
            pos, tried, count = cell.pos
            cell.pos = pos, tried, count._replace(row=0)
            return
        self.inner.pass_failed()
        cell.pos = self.inner.pos, *cell.pos[1:]
        if cell.choices is not None:
            cell.choices.retract(self.key)

    def start(self) -> Pos:
        return self.parent.start(), 0, Count()

    def next_epoch(self, end: Pos, records: Records = ()) -> Pos:
        inner, tried, count = end
        for record in [record for record in records if record.key == self.key]:
            for i, choice in record.unusual:
                count = count.added(tried + i, 1, getattr(choice, "skipped", ()))
            tried += record.num
        count = count._replace(epoch=count.epoch + 1)
        return self.parent.next_epoch(inner, records), tried, count

    def pos_of_parent(self, pos: Pos, i: int) -> Pos:
        return pos[0]

    def save(self, pos: Pos) -> Any:
        inner, tried, count = pos
        epoch = {"epoch": count.epoch} if count.epoch else {}
        counts = {"total": count.total, **epoch}
        faults = Faults(counts, self.tolerance.limits, count.recent, self.key)
        return {"parent": self.parent.save(inner), "tried": tried, "faults": [faults]}

    def faults_in(self, pos: Pos) -> Any:
        return super().faults_in(pos), pos[2]

    def load(self, state: object) -> Pos:
        tried, found = state_count(state, "tried", self), state_field(state, "faults", self)
        counts = found[0] if isinstance(found, list) and len(found) == 1 else found
        total = total_in(counts, self)
        epoch = state_count(counts, "epoch", self) if "epoch" in counts else 0
        inner = self.parent.load(state_field(state, "parent", self))
        return inner, tried, Count(total, epoch=epoch)

    def check_choice(self, choice: object) -> None:
        if not (
            isinstance(choice, dict)
            and "after" in choice
            and plain_int(choice.get("epoch", 0)) is not None
            and isinstance(choice.get("asked", {}), dict)
        ):
            raise StateMismatchError(
                f"a choice in the state of {self} must have the state after an element, got"
                f" {shown(choice)}"
            )
        self.parent.load(copied(choice["after"]))

    def place(self, pos: Pos) -> Place | None:
        place = self.parent.place(pos[0])
        return None if place is None else place.with_gaps()


def _after(inner: Cell, end: int, steps: Iterator[bool], count: Count) -> Pos:
    """Return the position in a block of outputs; ``steps`` has those that were not yielded."""
    return inner.settle(), end - length_hint(steps), count
