"""Any output of a pipeline by its number: those of a ``MapDataset`` by index, those of a stream by
states on the way.

``output`` is called by one thread at a time. It may take long; what is not reached by a deadline is
continued with later.
"""

from __future__ import annotations

import abc
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gristmill.core.options import ReadOptions
from gristmill.core.state import plain_int
from gristmill.dataset.bases.iterator import snapshot
from gristmill.dataset.bases.length import Exact, dataset_length
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.next_index import get_next_index
from gristmill.diagnostics.cli.reader import iterator_of, jumped

_MAX_MARKS = 512
_NUM_LATEST = 64


@dataclass(frozen=True)
class Step:
    """The number of an output.

    Args:
        number: counted from 0, from where ``since`` says.
        since: 0: from the beginning; else from that one of the states which were given.
    """

    number: int
    since: int = 0


@dataclass(frozen=True)
class Output:
    """The output at a step.

    Args:
        step: which one; the end comes earlier than asked for if there are fewer.
        element: what the pipeline gave.
        error: what it raised in place of an element.
        is_end: there is no element; the stream has ended.
        state: before it, where there are states.
    """

    step: Step
    element: Any = None
    error: BaseException | None = None
    is_end: bool = False
    state: Any = None


class Steps(abc.ABC):
    """All outputs of a pipeline.

    Args:
        it: an iterator of it.
        length: the number of outputs from the beginning; ``None`` if it is unknown or infinite.
    """

    def __init__(self, it: Any, length: int | None) -> None:
        self.it = it  # in use, to find what a thread waits for
        self.length = length
        self.at = Step(0)  # that is worked at: what ``next`` gives

    @abc.abstractmethod
    def output(self, step: Step, deadline: float) -> Output | None:
        """Returns the output at a step; ``None`` if only ``at`` was reached by the deadline."""

    @abc.abstractmethod
    def restore(self, put: Callable[[Any], None]) -> Step:
        """Returns the step that follows a state, which ``put`` sets an iterator to."""

    def close(self) -> None:
        self.it.close()


def steps_of(pipeline: Any) -> Steps:
    return IndexedSteps(pipeline) if isinstance(pipeline, MapDataset) else StreamSteps(pipeline)


class IndexedSteps(Steps):
    """Of a ``MapDataset``: steps are indices, and there are some in every epoch."""

    def __init__(self, ds: MapDataset[Any]) -> None:
        stream = MapDataset.to_iter_dataset(ds, ReadOptions(num_threads=0))
        super().__init__(iterator_of(stream), len(ds))
        self._ds = ds

    def output(self, step: Step, deadline: float) -> Output | None:
        self.at = step
        try:
            return Output(step, self._ds[step.number])
        except Exception as error:
            return Output(step, error=error)

    def restore(self, put: Callable[[Any], None]) -> Step:
        put(self.it)
        return Step(get_next_index(self.it))


class StreamSteps(Steps):
    """Of a stream: it continues from the nearest state that it has seen before, and keeps no more
    than some hundreds of them.

    Args:
        pipeline: an ``IterDataset`` or a ``DataLoader``.
    """

    def __init__(self, pipeline: Any) -> None:
        length = dataset_length(pipeline)
        super().__init__(iterator_of(pipeline), length.num if isinstance(length, Exact) else None)
        self._pipeline = pipeline
        self._marks = [_Marks(snapshot(self.it))]
        self._num: dict[int, int] = {}  # outputs, since each of the states, if the end was seen

    def output(self, step: Step, deadline: float) -> Output | None:
        if step.number >= self._num.get(step.since, step.number + 1):
            return Output(Step(self._num[step.since], step.since), is_end=True)
        try:
            self._go_back(step)
            while self.at.number < step.number:
                if time.monotonic() > deadline:
                    return None
                self._take(passes=True)
            state = snapshot(self.it)
            return Output(step, self._take(), state=state)
        except StopIteration:
            self._num[step.since] = self.at.number
            if not step.since:
                self.length = self.at.number
            return Output(self.at, is_end=True)
        except Exception as error:
            return Output(self.at, error=error, state=snapshot(self.it))

    def _go_back(self, step: Step) -> None:
        """Moves to ``step``, or as near before it as possible without computing elements."""
        marks = self._marks[step.since]
        start, state = marks.before(step.number)
        is_before = self.at.since == step.since and start <= self.at.number <= step.number
        if not is_before:
            if state is None:  # of a pipeline that has no states
                self.it.close()
                self.it = iterator_of(self._pipeline)
                start = 0
            else:
                self.it.set_state(state)
            self.at = Step(start, step.since)
        if not step.since and step.number > self.at.number + 1 and jumped(self.it, step.number):
            self.at = step

    def _take(self, passes: bool = False) -> Any:
        """Returns the next output. One that fails stays where it is, unless it is skipped."""
        self._marks[self.at.since].add(self.at.number, self.it)
        try:
            element = next(self.it)
        except StopIteration:
            raise
        except Exception as error:
            if not passes:
                raise
            self._pass(error)
            element = None
        self.at = Step(self.at.number + 1, self.at.since)
        return element

    def _pass(self, failed: Exception) -> None:
        try:
            self.it.skip_failed()
        except Exception as error:
            failed.add_note(f"What comes after it cannot be shown: {error}")
            raise failed from None

    def restore(self, put: Callable[[Any], None]) -> Step:
        put(self.it)
        try:
            self.at = Step(get_next_index(self.it))
        except NotImplementedError:  # its number is not known: it counts from there on
            state = snapshot(self.it)
            firsts = [marks.first for marks in self._marks]
            if state not in firsts:
                self._marks.append(_Marks(state))
            self.at = Step(0, [*firsts, state].index(state))
        return self.at


class _Marks:
    """States at some steps: the first one, the latest ones, and others at equal distances.

    Args:
        first: the state at step 0; ``None`` if there are no states.
    """

    def __init__(self, first: Any) -> None:
        self.first = first
        self._spread: dict[int, Any] = {}
        self._latest: OrderedDict[int, Any] = OrderedDict()
        self._distance = 1

    def add(self, number: int, it: Any) -> None:
        if self.first is None or number in self._latest:
            return
        state = snapshot(it)
        self._latest[number] = state
        if len(self._latest) > _NUM_LATEST:
            self._latest.popitem(last=False)
        if number % self._distance == 0:
            self._spread[number] = state
        while len(self._spread) > _MAX_MARKS:
            self._distance *= 2
            self._spread = {
                n: state for n, state in self._spread.items() if n % self._distance == 0
            }

    def before(self, number: int) -> tuple[int, Any]:
        """Returns the nearest step not after ``number`` whose state is known, and that state."""
        found = [n for marks in (self._spread, self._latest) for n in marks if n <= number]
        nearest = max(found, default=0)
        return nearest, self._latest.get(nearest, self._spread.get(nearest, self.first))


def step_number(text: str) -> int | None:
    """Returns the number of a step as one types it; ``None`` of other texts."""
    digits = text.replace(",", "").replace(" ", "").replace("_", "")
    return (
        plain_int(int(digits))
        if digits.isascii() and digits.isdecimal() and len(digits) < 19
        else None
    )
