"""The conditions under which a pipeline must give the same: what each of them runs, and what that
is compared with.

A condition gives outcomes with the steps that they are of, in any order. What is the same under it
is promised by the guides: with lanes the stream of any number of workers, for instance, and not the
stream without lanes.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import itertools
import json
import random
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Literal

from gristmill.core.state import state_from_text
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.diagnostics.verification.fresh import Surroundings, run_fresh
from gristmill.diagnostics.verification.outcomes import (
    Clock,
    StepOutcome,
    closed,
    element_outcome,
    end_outcome,
    error_outcome,
    outcomes_of,
    recorded,
    state_text,
)
from gristmill.diagnostics.verification.subject import NUM_WORKERS, WHOLE, Subject, SubPipeline
from gristmill.workers.pickling import dumps

Found = Iterator[tuple[int, StepOutcome]]
_SEED = 20  # of what is drawn here
_MAX_BLOCK = 17


class CannotRunError(Exception):
    """A condition does not apply, for a reason that is said."""


class Condition:
    """A way of running a pipeline."""

    part = WHOLE  # of the pipeline
    name: str
    otherwise: str  # the reason of a difference of which nothing else is known
    compares_states = True
    is_unordered = False  # whether outcomes come in another order than their steps
    is_about: Literal["runs", "threads", "processes"] = "runs"
    process: str | None = None  # the fresh process that runs it on a copy; None for this process
    has_own_base = False  # if ``base`` returns outcomes

    def base(self, subject: Subject, num: int, clock: Clock) -> list[StepOutcome] | None:
        """Returns the outcomes to compare with; ``None`` for those of the pipeline as it is."""
        return None

    def run(self, subject: Subject, base: Sequence[StepOutcome], clock: Clock) -> Found:
        """Yields up to ``len(base)`` outcomes with their steps; by default those of ``open``.

        Args:
            subject: the pipeline that is run.
            base: the outcomes to compare with.
            clock: the time limit.

        Raises:
            CannotRunError: the condition does not apply.
        """
        yield from enumerate(recorded(self.open(subject), len(base), clock))

    def open(self, subject: Subject) -> Callable[[], Any]:
        """Returns a factory of iterators that read the states of this condition."""
        return subject.open


class Again(Condition):
    name = "a second run"
    otherwise = "it gives something else in every run"

    def run(self, subject: Subject, base: Sequence[StepOutcome], clock: Clock) -> Found:
        has_states = not subject.has_states_of_its_own
        yield from enumerate(recorded(subject.open_as_given, len(base), clock, has_states))


class RandomOrder(Condition):
    name = "ds[i] in random order"
    otherwise = "an element depends on which others were asked for before"
    compares_states = False
    is_unordered = True
    process = "by index"
    has_own_base = True

    def __init__(self, part: SubPipeline, which: str) -> None:
        self.part = part
        self.name += which

    def base(self, subject: Subject, num: int, clock: Clock) -> list[StepOutcome]:
        return [x for _, x in self._elements(subject, range(self._num(subject, num)), clock)]

    def run(self, subject: Subject, base: Sequence[StepOutcome], clock: Clock) -> Found:
        indices = list(range(len(base)))
        random.Random(_SEED).shuffle(indices)
        return self._elements(subject, indices, clock)

    def _num(self, subject: Subject, num: int) -> int:
        ds = subject.map
        if ds is None:
            raise CannotRunError("nothing is read by index")
        return min(num, _made(lambda: len(ds)))

    def _elements(self, subject: Subject, indices: Any, clock: Clock) -> Found:
        for i in indices:
            if clock.is_over:
                return
            try:
                yield i, element_outcome(subject.map[i])  # type: ignore[index]
            except Exception as error:
                yield i, error_outcome(error)


class Blocks(Condition):
    name = "blocks of other sizes"
    otherwise = "an element depends on how many are asked for at once"
    process = "by index"

    def run(self, subject: Subject, base: Sequence[StepOutcome], clock: Clock) -> Found:
        num, rng, step, it = len(base), random.Random(_SEED), 0, subject.open()
        try:
            while step < num and not clock.is_over:
                size = min(rng.randint(1, _MAX_BLOCK), num - step)
                block, outcome = _block(it, size)
                for i, element in enumerate(block, 1):
                    has_state = i == len(block) and outcome is None
                    yield step, element_outcome(element, state_text(it) if has_state else None)
                    step += 1
                if outcome is not None:
                    if step < num:
                        yield step, outcome
                    return
        finally:
            closed(it)


class RandomBlocks(RandomOrder):
    name = "several ds[i] at a time"
    otherwise = "an element depends on which others are asked for at once"

    def run(self, subject: Subject, base: Sequence[StepOutcome], clock: Clock) -> Found:
        rng, start, total = random.Random(_SEED), 0, len(base)
        assert subject.map is not None
        while start < total and not clock.is_over:
            indices = range(start, min(total, start + rng.randint(2, _MAX_BLOCK)))
            start = indices.stop
            try:
                block = list(subject.map._gm_items(list(indices)))
            except Exception:  # as the elements alone say
                continue
            for i, element in zip(indices, block, strict=True):
                yield i, element_outcome(element)


class Restored(Condition):
    name = "saved and restored at random steps"
    otherwise = "its state does not say all that decides what comes next (get_state, set_state)"
    compares_states = False
    is_unordered = True
    process = "restored"

    def run(self, subject: Subject, base: Sequence[StepOutcome], clock: Clock) -> Found:
        yield from self._restarted(subject, base, clock.part(0.5))
        yield from self._from_the_beginning(subject, len(base), clock)

    def _restarted(self, subject: Subject, base: Sequence[StepOutcome], clock: Clock) -> Found:
        """Yields the second half without computing the first, as after a restart."""
        steps = [i for i in range(1, len(base) // 2 + 1) if isinstance(base[i - 1].state, str)]
        if not steps:
            return
        it = subject.open()
        try:
            it.set_state(state_from_text(str(base[steps[-1] - 1].state), it))
            num = len(base) - steps[-1]
            for i, outcome in enumerate(itertools.islice(outcomes_of(it, with_states=False), num)):
                yield steps[-1] + i, outcome
                if clock.is_over:
                    return
        except Exception as error:
            yield steps[-1], error_outcome(error)
        finally:
            closed(it)

    def _from_the_beginning(self, subject: Subject, num: int, clock: Clock) -> Found:
        rng, it, step = random.Random(_SEED), subject.open_as_given(), 0
        saved: list[tuple[int, Any]] = []
        try:
            while not clock.is_over:
                try:
                    state = through_text(it.get_state(), it)
                except NotImplementedError as error:
                    raise CannotRunError(f"its iterators have no states: {error}") from None
                saved.append((step, state))
                if rng.random() < 0.3 and step:  # the same iterator, back to where it was before
                    step, state = rng.choice(saved)
                else:
                    closed(it)
                    it = subject.open_as_given()
                try:
                    it.set_state(state)
                except Exception as error:
                    yield step, error_outcome(error)
                    return
                length = rng.randint(1, max(2, num // 6))
                for outcome in itertools.islice(outcomes_of(it, with_states=False), length):
                    if step < num:
                        yield step, outcome
                    if outcome.is_last:
                        return
                    step += 1
                if step >= num:
                    return
        finally:
            closed(it)


class Fresh(Condition):
    where = "a fresh process"
    otherwise = "it depends on the process that runs it"
    is_about = "processes"

    def __init__(self, pipeline: bytes | str, surroundings: Surroundings) -> None:
        self.pipeline = pipeline
        self.surroundings = surroundings
        seed = surroundings.hash_seed
        self.name = f"{self.where} with PYTHONHASHSEED={seed}, another locale and order of files"

    def run(self, subject: Subject, base: Sequence[StepOutcome], clock: Clock) -> Found:
        try:
            found = self.outcomes(subject.part, len(base), clock, self.surroundings)
        except Exception as error:
            text = f"the process failed, {type(error).__name__}: {error!s:.300}"
            raise CannotRunError(text) from error
        yield from enumerate(found)

    def outcomes(
        self, part: SubPipeline, num: int, clock: Clock, surroundings: Surroundings
    ) -> list[StepOutcome]:
        """Returns the first outcomes in a new process.

        Raises:
            Exception: the process could not be started, or died.
        """
        packed = self.pipeline if isinstance(self.pipeline, bytes) else dumps(self.pipeline)
        record = partial(_recorded_there, part, num, clock.left)
        with contextlib.closing(run_fresh(packed, [record], clock, surroundings)) as results:
            return next(results)


def _recorded_there(
    part: SubPipeline, num: int, seconds: float, pipeline: Any
) -> list[StepOutcome]:
    """Returns outcomes of a pipeline, or of the one that a text names; runs in the new process."""
    if isinstance(pipeline, str):
        target = importlib.import_module("gristmill.diagnostics.cli.target")
        try:
            pipeline = target.load_pipeline(pipeline)
        except Exception as error:
            return [error_outcome(error)]
    return recorded(Subject(pipeline, part).open, num, Clock(seconds))


class MadeAnew(Fresh):
    where = "made again, in a process"
    otherwise = "the code that makes the pipeline depends on the process that runs it"


class Threads(Condition):
    otherwise = (
        "an element depends on the thread that computes it, or on something that threads share"
    )
    is_about = "threads"
    process = "restored"

    def __init__(self, num_threads: int) -> None:
        self.num_threads = num_threads
        self.name = f"{num_threads} thread{'' if num_threads == 1 else 's'}"

    def open(self, subject: Subject) -> Callable[[], Any]:
        try:
            stream = subject.with_threads(self.num_threads)
        except Exception as error:
            raise CannotRunError(f"it cannot be made with other threads: {error}") from error
        if stream is None:
            raise CannotRunError("no threads read it ahead")
        return lambda: iterate(stream)


class _ByWorkers(Condition, abc.ABC):
    otherwise = "an element depends on the process that computes it"
    is_about = "processes"
    process = "with workers"

    @abc.abstractmethod
    def _stream(self, subject: Subject) -> Any:
        """Returns the stream that workers compute."""

    def open(self, subject: Subject) -> Callable[[], Any]:
        stream = _made(lambda: self._stream(subject))
        return lambda: iterate(stream)


class OwnWorkers(_ByWorkers):
    def __init__(self, num_workers: int) -> None:
        self.num_workers = num_workers
        self.name = f"{num_workers} workers in place of its own"

    def _stream(self, subject: Subject) -> Any:
        stream = subject.with_own_workers(self.num_workers)
        if stream is None:
            raise CannotRunError(
                "it has no workers, or already this number, or their number decides what it gives"
            )
        return stream


class WorkersInStreamOrder(_ByWorkers):
    name = f'{NUM_WORKERS} workers, order="stream"'

    def _stream(self, subject: Subject) -> Any:
        if subject.has_workers:
            raise CannotRunError("it has workers of its own")
        if subject.is_share:
            raise CannotRunError("it is the share of a worker")
        subject.in_lanes(0)  # what cannot be divided into lanes cannot be divided at all
        return subject.in_stream_order()


class Lanes(_ByWorkers):
    name = f"0 and {NUM_WORKERS} workers, in {NUM_WORKERS} lanes"
    has_own_base = True

    def base(self, subject: Subject, num: int, clock: Clock) -> list[StepOutcome]:
        if subject.has_workers:
            raise CannotRunError("it has workers of its own")
        stream = _made(lambda: subject.in_lanes(0))
        return recorded(lambda: iterate(stream), num, clock)

    def _stream(self, subject: Subject) -> Any:
        return subject.in_lanes(NUM_WORKERS)


def _made(make: Callable[[], Any]) -> Any:
    try:
        return make()
    except CannotRunError:
        raise
    except Exception as error:
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise CannotRunError(f"{kind}{error}") from error


def _block(it: Any, size: int) -> tuple[list[Any], StepOutcome | None]:
    """Up to ``size`` next elements, taken at once; and what came in place of the next one, if
    anything did.
    """
    block: list[Any] = []
    if isinstance(it, StreamIterator) and not it._gm_reads_once:
        with contextlib.suppress(Exception):  # which the elements before it come before
            block = it._gm_take(size)
            return block, None if len(block) == size else end_outcome()
    while len(block) < size:
        try:
            block.append(next(it))
        except StopIteration:
            return block, end_outcome()
        except Exception as error:
            return block, error_outcome(error)
    return block, None


def through_text(state: Any, it: Any) -> Any:
    """Returns a state as it is after being written to and read from a checkpoint."""
    if isinstance(state, bytes):
        return state
    try:
        return state_from_text(json.dumps(state), it)
    except (TypeError, ValueError):  # it is no JSON, which a checkpoint would refuse
        return state
