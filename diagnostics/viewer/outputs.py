"""The outputs that are looked at: computed by one thread for all requests, and kept for a while.

Guarantees:

1. The pipeline is used by one thread only. A request waits some seconds at most, and then gets the
   progress; what is computed continues meanwhile, and is there at the next request.
2. The latest outputs are kept, as long as they are small; the very latest always.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from gristmill.core.locks import Lock
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.errors.tracebacks import filter_traceback
from gristmill.diagnostics.graph.spec_text import element_nbytes
from gristmill.diagnostics.provenance import Provenance, explain
from gristmill.diagnostics.runtime.attended import Attended, PipelineStalledError
from gristmill.diagnostics.view import dataset_iterator
from gristmill.diagnostics.viewer.history import RowHistory, StageResult, history_of
from gristmill.diagnostics.viewer.leaves import ElementLeaf, leaves_of, num_rows, row_of
from gristmill.diagnostics.viewer.steps import Output, Step, steps_of

T = TypeVar("T")

_MAX_KEPT, _MAX_KEPT_BYTES = 32, 512 << 20
_READ_SECONDS = 1.5  # for what many outputs take, until it is said how far it is
_WAIT_SECONDS = 4.0  # for one


@dataclass(frozen=True)
class Waiting:
    """The answer if a requested output does not exist yet.

    Args:
        reached: the number of the step that is worked at.
        text: what it waits for, if nothing comes.
    """

    reached: int
    text: str = ""


@dataclass
class Seen:
    """An output, and what was found out about it."""

    output: Output
    leaves: list[ElementLeaf]
    num_rows: int | None
    nbytes: int
    provenance: Provenance | str | None = None
    histories: dict[int | None, RowHistory] = field(default_factory=dict)  # of its rows

    def row(self, row: int | None) -> list[ElementLeaf]:
        return self.leaves if row is None else row_of(self.leaves, row)


class Outputs:
    """All outputs of a pipeline. Used by any thread, by several at once.

    Args:
        pipeline: a dataset or a ``DataLoader``.
    """

    def __init__(self, pipeline: Any) -> None:
        self.pipeline = pipeline
        self._steps = steps_of(pipeline)
        self._attended = Attended(
            lambda: dataset_iterator(self._steps.it), _WAIT_SECONDS, "", close=self._steps.close
        )
        self._kept: OrderedDict[Step, Seen] = OrderedDict()
        self._lock = Lock()

    @property
    def length(self) -> int | None:
        return self._steps.length

    def at(self, step: Step) -> Seen | Waiting:
        """Returns the output at a step."""
        seen = self._found(step)
        if seen is not None:
            return seen
        return self._waited_for(lambda: self._read(step), lambda: self._found(step))

    def history(self, seen: Seen, row: int | None) -> RowHistory | Waiting:
        """Returns the history of one of the rows of an output, or of all of it."""

        def compute() -> RowHistory:
            provenance = self._provenance(seen)
            found = seen.histories[row] = history_of(self.pipeline, seen.output, row, provenance)
            return found

        return self._waited_for(compute, lambda: seen.histories.get(row))

    def provenance(self, seen: Seen) -> Provenance | str | Waiting:
        """Returns the lineage of an output, or the reason why it is not known."""
        return self._waited_for(lambda: self._provenance(seen), lambda: seen.provenance)

    def _provenance(self, seen: Seen) -> Provenance | str:
        """Returns the lineage, in the thread of the pipeline."""
        if seen.provenance is None:
            output = seen.output
            has_state = output.state is not None and not isinstance(self.pipeline, MapDataset)
            where = {"state": output.state} if has_state else {"step": output.step.number}
            try:
                seen.provenance = explain(self.pipeline, **where)
            except Exception as error:
                seen.provenance = f"What it is made of is not known: {error}"
        return seen.provenance

    def stage(self, seen: Seen, row: int | None, number: int) -> StageResult | None:
        """Returns a stage of the history of a row, if it has been computed."""
        history = seen.histories.get(row)
        return (
            history.stages[number] if history is not None and number < len(history.stages) else None
        )

    def restore(self, put: Callable[[Any], None]) -> Step | Waiting:
        """Returns the step that follows a state, which ``put`` sets an iterator to; its errors come
        as they are.
        """
        return self._waited_for(lambda: self._steps.restore(put), lambda: None)

    def close(self) -> None:
        """Ends what is at work, and closes the iterator."""
        self._attended.__exit__()

    def _waited_for(
        self, work: Callable[[], T | None], found: Callable[[], T | None]
    ) -> T | Waiting:
        """Returns ``found()``, after ``work`` if it is nothing yet. One after the other."""
        with self._lock:
            result = found()
            if result is not None:
                return result
            try:
                if not self._attended.is_stuck:
                    result = self._attended.call(work, progress=lambda: self._steps.at.number)
                else:
                    self._attended.call(lambda: None)  # runs after earlier requests
                    result = found()
            except PipelineStalledError as error:
                return Waiting(self._steps.at.number, str(error).strip())
            return Waiting(self._steps.at.number) if result is None else result

    def _read(self, step: Step) -> Seen | None:
        """Reads a step, in the thread of the pipeline."""
        output = self._steps.output(step, time.monotonic() + _READ_SECONDS)
        if output is None:
            return None
        if output.error is not None:
            filter_traceback(output.error)
        leaves = leaves_of(output.element)
        nbytes = sum([element_nbytes(leaf.value) for leaf in leaves])
        seen = self._kept[step] = Seen(output, leaves, num_rows(leaves), nbytes)
        self._kept.move_to_end(step)
        while len(self._kept) > 1 and (
            len(self._kept) > _MAX_KEPT
            or sum([kept.nbytes for kept in self._kept.values()]) > _MAX_KEPT_BYTES
        ):
            self._kept.popitem(last=False)
        return seen

    def _found(self, step: Step) -> Seen | None:
        with contextlib.suppress(KeyError):
            self._kept.move_to_end(step)
        return self._kept.get(step)
