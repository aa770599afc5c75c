"""What an error says when it leaves ``next``: which stage raised it, and about which element.

Nothing here runs as long as nothing fails. Nothing here raises either, whatever the objects of users do when they are asked
for their names and lengths: the error that is to be explained goes out in any case, of the same type and with the same
arguments.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import CodeType, FrameType, TracebackType
from typing import Any

from gristmill.core.errors import StateMismatchError, add_note
from gristmill.dataset.counting import CountingIterator
from gristmill.dataset.graph import DatasetNode
from gristmill.dataset.iterator import BlockIterator, DatasetIterator, PlainIterator
from gristmill.dataset.map_dataset import MapDataset, ancestors
from gristmill.dataset.origin import Records, is_ours, origin
from gristmill.dataset.round_robin import RoundRobinIterator
from gristmill.dataset.stages.batch import BatchDatasetIterator
from gristmill.dataset.stages.cache import CacheDatasetIterator
from gristmill.dataset.stages.filter import FilterDatasetIterator
from gristmill.dataset.stages.flat_map import FlatMapDatasetIterator
from gristmill.dataset.stages.interleave import InterleaveDatasetIterator
from gristmill.dataset.stages.map import MapDatasetIterator
from gristmill.dataset.stages.prefetch import PrefetchDatasetIterator
from gristmill.dataset.stages.rebatch import RebatchDatasetIterator
from gristmill.dataset.stages.repeat import RepeatDatasetIterator
from gristmill.dataset.stages.slice import SliceMapDataset
from gristmill.dataset.stages.thread_prefetch import ForeignIterator, ThreadPrefetchDatasetIterator
from gristmill.dataset.stated_blocks import StatedBlocks
from gristmill.dataset.tracebacks import filter_traceback

# They run nobody's code: what they raise themselves says all that there is to say.
_ENGINE = (PrefetchDatasetIterator, RoundRobinIterator, ThreadPrefetchDatasetIterator, InterleaveDatasetIterator)
# They call the user's function for the element that they have just taken from their parent.
_AT_LAST_ELEMENT = (
    MapDatasetIterator,
    CountingIterator,
    FilterDatasetIterator,
    FlatMapDatasetIterator,
    BatchDatasetIterator,
)
# When an error passes through them, everything upstream goes back to where it was before the output that failed.
_REWINDING = {
    StatedBlocks._take_one.__code__,
    ThreadPrefetchDatasetIterator._try_take_directly.__code__,
    CacheDatasetIterator._read_until.__code__,
    RebatchDatasetIterator._read.__code__,
}
_TELLING = {BlockIterator.__next__.__code__, *_REWINDING}  # they see to it that an error has a note
_MAX_NAME = 200  # characters
_MAX_SHOWN = 8  # numbers of a list


class Note(str):
    """A note of ours at an error, which ends with the ``place`` where it came up."""

    place: str
    has_element: bool  # whether that tells the element

    @classmethod
    def of(cls, introduction: str, place: str, *, has_element: bool = True) -> Note:
        new = cls(f"{introduction}{place}.")
        new.place, new.has_element = place, has_element
        return new

    def during(self, repeats: Sequence[RepeatDatasetIterator[Any]]) -> Note:
        """This note where the one who made it did not know of ``repeats``."""
        words = "".join([f", in epoch {repeat._epoch} of {repeat}" for repeat in repeats if repeat._epoch])
        if self.place.endswith(words):  # there are none, or the error is raised once more
            return self
        introduction = self.removesuffix(f"{self.place}.")
        return Note.of(introduction, self.place + words, has_element=self.has_element)


@dataclass(frozen=True)
class Failure:
    """Where in a pipeline an error came up.

    Args:
        stage: what raised it.
        elements: the numbers of the elements that it worked on, if they are known.
        how: what stands before and after them in a sentence.
        of: a dataset and the indices there that ``elements`` are made of, if these are known.
        epoch: how often an iterator had begun anew before.
    """

    stage: Any
    elements: Sequence[int] = ()
    how: str = "at {}"
    of: tuple[MapDataset[Any], Sequence[int]] | None = None
    epoch: int = 0

    def place(self) -> str:
        """In words: "by" a stage "at" an element, if that is known."""
        words = f"by {_name(self.stage)}"
        if not self.elements:
            return words
        found = [] if self.of is None else origin(*self.of)
        where = self.how.format(_numbers("element", self.elements))
        num_sources = len({id(records.source) for records in found})
        details = "; ".join([self._details(records, num_sources) for records in found])
        return f"{words} {where} ({details})" if details else f"{words} {where}"

    def _details(self, records: Records, num_sources: int) -> str:
        details = []
        if records.epoch is not None:
            details.append(f"epoch {records.epoch + self.epoch}")
        if records.sampled:
            details.append(_numbers("sampler index", records.sampled))
        details.append(_numbers("record key" if records.sampled else "source key", records.keys))
        text = ", ".join(details)
        return f"{text} of {_name(records.source)}" if num_sources > 1 else text


def located(error: BaseException, *, is_caught: bool = False) -> Failure | Note | None:
    """Where ``error`` came up, or the note that it has if it has passed somebody who has told; ``None`` if it is no stage's.

    To be called where it is caught, as long as the iterators upstream are where it met them.

    Args:
        error: any error.
        is_caught: that is over: whoever caught it may have told.
    """
    if not isinstance(error, StateMismatchError):
        with contextlib.suppress(Exception):
            return _located(error, is_caught)
    return None


def explain(found: Failure | Note | None, error: BaseException) -> BaseException:
    """``error``, with a note where it came up, and without our frames in its traceback if it is about to leave the pipeline.

    Args:
        found: what ``located`` has found.
        error: what is being raised by the ``next`` that calls this.
    """
    with contextlib.suppress(Exception):
        if found is not None:
            note(error, _note_of(found))
    filter_traceback(error)
    return error


def tell_before_rewinding(error: Exception) -> None:
    """Notes where an error came up that is being handled, if iterators are about to be taken back because of it."""
    with contextlib.suppress(Exception):
        if error.__traceback__ is not None and error.__traceback__.tb_frame.f_code in _REWINDING:
            found = located(error)
            if found is not None:
                note(error, _note_of(found))


def tell_in_worker(error: BaseException, worker: str, otherwise: str) -> None:
    """Notes at ``error`` which worker raised it, and where; ``otherwise`` stands for an element that is not known."""
    found = located(error, is_caught=True)
    told = Note.of("", "", has_element=False) if found is None else _note_of(found)
    place = told.place if told.has_element else f"{told.place}, {otherwise}"
    note(error, Note.of(f"Raised in {worker}", place))


def note(error: BaseException, new: Note) -> None:
    """Adds a note of ours, or puts it in place of an older one: an exception may be raised again, and elsewhere."""
    notes: Any = vars(error).get("__notes__")
    for i, old in enumerate(notes if isinstance(notes, list) else ()):
        if isinstance(old, Note):
            notes[i] = new
            return
    add_note(error, new)


def _note_of(found: Failure | Note) -> Note:
    return found if isinstance(found, Note) else Note.of("Raised", f" {found.place()}", has_element=bool(found.elements))


def _located(error: BaseException, is_caught: bool) -> Failure | Note | None:
    told = _note_at(error)
    stage: Any = None
    elements: Sequence[int] = ()
    repeats: list[RepeatDatasetIterator[Any]] = []
    for i, (frame, code) in enumerate(_frames(error.__traceback__)):
        if (i or is_caught) and code in _TELLING and told is not None:
            return told.during(repeats)
        if code.co_varnames[:1] != ("self",) or not i:  # the first one runs, and refers to the error
            continue
        owner: Any = frame.f_locals.get("self")
        if not isinstance(owner, DatasetIterator | DatasetNode):
            continue
        if owner is not stage:
            stage, elements = owner, ()
        if isinstance(owner, MapDataset):
            elements = _asked_for(frame, code) or elements
        elif isinstance(owner, RepeatDatasetIterator):
            repeats.append(owner)
    if stage is None or isinstance(stage, _ENGINE):
        if isinstance(error.__cause__, StopIteration):
            told = _note_at(error.__cause__)
        return None if told is None else told.during(repeats)
    epoch = sum([repeat._epoch for repeat in repeats])
    if isinstance(stage, MapDataset):
        return Failure(stage, elements, f"at {{}}{_share(stage)}", (stage, elements), epoch)
    if not isinstance(stage, _AT_LAST_ELEMENT) or not is_ours(stage):
        return Failure(stage)
    return _at_last_element(stage, epoch)


def _note_at(error: BaseException) -> Note | None:
    notes = vars(error).get("__notes__")
    return next((old for old in notes if isinstance(old, Note)), None) if isinstance(notes, list) else None


def _frames(tb: TracebackType | None) -> Iterator[tuple[FrameType, CodeType]]:
    while tb is not None:
        yield tb.tb_frame, tb.tb_frame.f_code
        tb = tb.tb_next


def _asked_for(frame: FrameType, code: CodeType) -> Sequence[int]:
    """The indices that a method of a map dataset was called with."""
    if code.co_argcount < 2 or code.co_name not in ("_block", "_batch", "__getitem__"):
        return ()
    value: Any = frame.f_locals.get(code.co_varnames[1])
    with contextlib.suppress(TypeError):
        return [operator.index(value)]
    return [operator.index(i) for i in value] if isinstance(value, Iterable) else ()


def _at_last_element(stage: Any, epoch: int) -> Failure:
    """The place of a stage that has failed with the element that its parent gave last."""
    position = _Position.of(stage if isinstance(stage, BatchDatasetIterator) else stage._parents[0])
    if position is None:
        return Failure(stage)
    number, size = position.last // position.size, position.size
    if size > 1 and not position.is_exact:
        ds, indices = position.in_dataset(range(position.last, position.last + 1))
        return Failure(stage, indices, f"at what ends with {{}}{_share(ds)}")
    ds, indices = position.in_dataset(range(number * size, position.last + 1))
    return Failure(stage, indices if size == 1 else [number], f"at {{}}{_share(ds)}", (ds, indices), epoch + position.epoch)


@dataclass(frozen=True)
class _Position:
    """How far an iterator has come, by the random access part of its pipeline."""

    base: PrefetchDatasetIterator[Any]  # what reads that
    last: int  # the index that it gave last
    size: int  # elements of it that make one of the iterator's
    is_exact: bool  # none is left out on the way
    epoch: int

    @classmethod
    def of(cls, it: Any) -> _Position | None:
        """``None`` if it does not follow from what the iterators upstream say of themselves."""
        index, size, is_exact, epoch = None, 1, True, 0
        while not isinstance(it, PrefetchDatasetIterator):
            if not is_ours(it) or len(it._parents) != 1:
                return None
            if isinstance(it, BatchDatasetIterator):
                size *= it._batch_size
            elif isinstance(it, RepeatDatasetIterator):
                epoch += it._epoch
            elif it._kind == "stateful":
                return None
            elif isinstance(it, ThreadPrefetchDatasetIterator) and index is None:
                index = _next_index(it._state())
            is_exact = is_exact and it._kind != "dropping"
            it = it._parents[0]
        next_index = it._next_index if index is None else index
        return cls(it, next_index - 1, size, is_exact and not it._has_gaps(), epoch)

    def in_dataset(self, indices: range) -> tuple[MapDataset[Any], range]:
        """The dataset whose elements these are, and their indices in it: that of all workers, of which this may be one."""
        ds = self.base._ds
        if isinstance(ds, SliceMapDataset) and not ds._adds_step:
            step = ds._reindex(1) - ds._reindex(0) if len(ds) > 1 else 1
            start = ds._reindex(indices[0])
            return ds._parent, range(start, start + step * len(indices), step)
        return ds, indices


def _next_index(state: Any) -> int | None:
    """That of the random access part, in a state of a pipeline of which ``_Position`` can be told."""
    while isinstance(state, dict) and "parent" in state:
        state = state["parent"]
    return state["next_index"] if isinstance(state, dict) and "next_index" in state else None


def _share(ds: MapDataset[Any]) -> str:
    """What follows a number of an element of ``ds`` if that is only the part of one worker."""
    is_part = any([isinstance(node, SliceMapDataset) and not node._adds_step for node in ancestors(ds)])
    return " of its share" if is_part else ""


def _name(stage: Any) -> str:
    """On one line; of what a user has wrapped, its own."""
    kind: Any = type(stage)
    if isinstance(stage, PlainIterator | ForeignIterator):
        return getattr(stage._iterator, "__qualname__", type(stage._iterator).__qualname__)
    if kind.__str__ is not object.__str__:
        with contextlib.suppress(Exception):
            text = " ".join(str(stage).split())
            return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}..."
    return kind.__name__


def _numbers(noun: str, numbers: Sequence[Any]) -> str:
    """``numbers`` in words; keys of a user's sampler may be anything.

    Example:
        >>> _numbers("element", [7]), _numbers("source key", [3, 1]), _numbers("sampler index", [4, 5, 6])
        ('element 7', 'source keys 3 and 1', 'sampler indices 4 to 6')
    """
    first, *others = numbers
    if not others:
        return f"{noun} {first}"
    plural = "sampler indices" if noun == "sampler index" else f"{noun}s"
    if len(others) > 1 and type(first) is int and list(numbers) == list(range(first, first + len(numbers))):
        return f"{plural} {first} to {numbers[-1]}"
    if len(numbers) > _MAX_SHOWN:
        return f"{plural} {', '.join(map(str, numbers[:_MAX_SHOWN]))}, ... ({len(numbers)} of them)"
    return f"{plural} {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
