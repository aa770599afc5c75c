"""The error context added to an exception that leaves ``next``: the stage that raised it, and the
element.

A stage adds it where it calls users' code: ``add_error_context`` adds a note to the error, and the
note stays with the error in other threads and processes. Nothing here runs while nothing fails.
Nothing here raises, even if names and lengths of users' objects do: the original error is raised in
any case, with its type and its arguments.
"""

from __future__ import annotations

import contextlib
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import StateMismatchError, add_note, stop_iteration_error
from gristmill.core.value import Value
from gristmill.dataset.bases.node import ancestors, is_of_library
from gristmill.dataset.bases.origins import Place
from gristmill.dataset.descriptions.lineage import SourceRecords, origin

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

_ON_DELIVERY = "_gristmill_on_delivery"
_PIPELINE_ERROR = "_gristmill_of_no_element"
_MAX_NAME = 200  # characters
_MAX_SHOWN = 8  # numbers of a list
_SETTINGS = (
    "Workers lack what the program has set or registered in libraries, unless worker_init_fn does"
    " so there, too."
)


class Failure(Value):
    """The location of an error in a pipeline, as plain data: errors are pickled, and must keep no
    pipeline alive.

    Args:
        stage: the name of what raised it.
        elements: the numbers of the elements that it worked on, in words; nothing if they are not
            known.
        details: the records that these are made of.
        again: what stages without more information say of epochs.
        record_keys: of these records, if they are numbers or text.
    """

    stage: str
    elements: str = ""
    details: tuple[_Detail, ...] = ()
    again: str = ""
    record_keys: tuple[int | str, ...] = ()

    def place(self) -> str:
        """Returns the place in words: "by" a stage "at" an element, if that is known."""
        are_several = len({detail.source for detail in self.details}) > 1
        details = "; ".join([detail.text(are_several) for detail in self.details])
        words = [
            self.stage and f" by {self.stage}",
            self.elements,
            f"({details})" if details else "",
        ]
        return " ".join([word for word in words if word]) + self.again


class _Detail(Value):
    """Records of one source in one epoch."""

    source: tuple[int, str]  # its number and its name
    epoch: int | None
    keys: str

    def text(self, with_source: bool) -> str:
        epoch = "" if self.epoch is None else f"epoch {self.epoch}, "
        return epoch + self.keys + (f" of {self.source[1]}" if with_source else "")


class Note(str):
    """A note of ours at an error, which says where it came up."""

    failure: Failure
    is_on_its_way: bool  # through the stages that were asked for the element

    @classmethod
    def of(cls, introduction: str, failure: Failure, *, is_on_its_way: bool = False) -> Note:
        new = cls(f"{introduction}{failure.place()}.")
        new.failure, new.is_on_its_way = failure, is_on_its_way
        return new

    def changed(self, failure: Failure, *, is_on_its_way: bool = False) -> Note:
        """Returns the note of the same introduction."""
        introduction = self.removesuffix(f"{self.failure.place()}.")
        return Note.of(introduction, failure, is_on_its_way=is_on_its_way)


def add_error_context(error: BaseException, stage: Any, indices: Iterable[Any] = ()) -> None:
    """Notes at ``error`` that ``stage`` has raised it, at these indices: those that its method was
    called with.

    To be called by the stage, or by the harness that calls it. An existing context is kept: it is
    nearer to the cause.
    """
    _add_error_context(
        error, stage, lambda: _failure_at(stage, [operator.index(i) for i in indices])
    )


def with_error_context(error: Exception, stage: object, indices: Iterable[Any] = ()) -> Exception:
    """Returns ``error``, which ``stage`` is about to raise itself, with such a note."""
    add_error_context(error, stage, indices)
    return error


def failed_at(error: Exception, stage: DatasetNode, index: object) -> None:
    """Notes at ``error``, which a function that ``stage`` called has raised, the index of the
    element.

    To be called where ``error`` is caught, before it is raised again.

    Raises:
        RuntimeError: ``error`` is ``StopIteration``.
    """
    add_error_context(error, stage, [index])
    if isinstance(error, StopIteration):
        raise instead_of_stop(error, str(stage)) from error


def add_error_place(error: BaseException, stage: Any, place: Callable[[], Place | None]) -> None:
    """Adds the error context of a stream that fails at the element which ``place`` returns."""
    _add_error_context(error, stage, lambda: _failure_at_place(stage, place()))


def _add_error_context(
    error: BaseException, stage: DatasetNode, failure: Callable[[], Failure]
) -> None:
    if isinstance(error, Exception) and not isinstance(error, StateMismatchError):
        with contextlib.suppress(Exception):
            name, existing = _name(stage), note_at(error)
            if existing is None or existing.failure.stage == name:
                try:
                    found = failure()
                except Exception:
                    found = Failure(name)
                note(error, Note.of("Raised", found, is_on_its_way=True))


def add_error_epoch(error: BaseException, it: object, epoch: int) -> None:
    """Adds to ``error`` that the data upstream of ``it`` has restarted ``epoch`` times."""
    with contextlib.suppress(Exception):
        existing = note_at(error)
        if existing is None or not epoch:
            return
        failure = existing.failure
        if existing.is_on_its_way and failure.details:
            details = [
                x.replaced(epoch=None if x.epoch is None else x.epoch + epoch)
                for x in failure.details
            ]
            note(
                error,
                existing.changed(failure.replaced(details=tuple(details)), is_on_its_way=True),
            )
            return
        words = f", in epoch {epoch} of {it}"
        if not failure.again.endswith(words):  # the error is raised once more
            note(error, existing.changed(failure.replaced(again=failure.again + words)))


def add_error_worker(error: BaseException, worker: str, otherwise: str) -> None:
    """Notes at ``error`` its worker, and ``otherwise`` if the element is not known."""
    existing = note_at(error)
    if existing is None:
        note(error, Note.of(f"Raised in {worker}", Failure("", again=f", {otherwise}")))
    else:
        failure = existing.failure
        known = (
            failure if failure.elements else failure.replaced(again=f"{failure.again}, {otherwise}")
        )
        note(error, Note.of(f"Raised in {worker}", known))


def add_settings_note(error: BaseException) -> None:
    """Adds a note to an error of a worker: it may lack settings of the program.

    An error that the library or pickling raised gets no note.
    """
    last = error.__traceback__
    while last is not None and last.tb_next is not None:
        last = last.tb_next
    module = "gristmill" if last is None else str(last.tb_frame.f_globals.get("__name__"))
    if module.partition(".")[0] not in ("gristmill", "cloudpickle") and _SETTINGS not in getattr(
        error, "__notes__", ()
    ):
        add_note(error, _SETTINGS)


def end_error_context(error: BaseException) -> None:
    """Marks ``error`` as kept to be raised later, by stages that did not ask."""
    existing = note_at(error)
    if existing is not None:
        existing.is_on_its_way = False


def instead_of_stop(error: BaseException, stage: str) -> RuntimeError:
    """Returns the error raised, from it, in place of a ``StopIteration`` of a user's function,
    which would be mistaken for the end.
    """
    new, existing = stop_iteration_error(stage), note_at(error)
    if existing is not None:
        note(new, existing)
    return new


def on_delivery(error: BaseException, call: Callable[[], object]) -> None:
    """Lets ``call`` be called when a user gets ``error``, not as often as it is raised."""
    vars(error)[_ON_DELIVERY] = call


def pipeline_error(message: str) -> RuntimeError:
    """Returns an error, of a process for example, that skipping elements does not help against."""
    error = RuntimeError(message)
    vars(error)[_PIPELINE_ERROR] = True
    return error


def is_pipeline_error(error: BaseException) -> bool:
    """True if ``error`` is about more than the element that was requested."""
    return not vars(error).keys().isdisjoint((_ON_DELIVERY, _PIPELINE_ERROR))


def deliver(error: BaseException) -> None:
    """Called when a user gets ``error``."""
    call = vars(error).pop(_ON_DELIVERY, None)
    if call is not None:
        call()


def note_at(error: BaseException) -> Note | None:
    """Our note at ``error``."""
    notes = vars(error).get("__notes__")
    if isinstance(notes, list):
        return next((old for old in notes if isinstance(old, Note)), None)
    return None


def note(error: BaseException, new: Note) -> None:
    """Adds a note of ours, or puts it in place of an older one."""
    notes: Any = vars(error).get("__notes__")
    for i, old in enumerate(notes if isinstance(notes, list) else ()):
        if isinstance(old, Note):
            notes[i] = new
            return
    add_note(error, new)


def add_before(error: BaseException, text: str) -> None:
    """Adds a note of a stage that the error passes, before the one that says where it came up."""
    add_note(error, text)
    notes, own = error.__notes__, note_at(error)
    if own is not None and notes[-1] == text:
        notes.insert(notes.index(own), notes.pop())


def _failure_at(stage: DatasetNode, indices: Sequence[int]) -> Failure:
    if not indices:
        return Failure(_name(stage))
    found = origin(stage, indices)
    elements = f"at {_numbers('element', indices)}{_share(stage)}"
    return Failure(_name(stage), elements, _details(found, 0), record_keys=_record_keys(found))


def _failure_at_place(stage: DatasetNode, place: Place | None) -> Failure:
    name = _name(stage)
    if place is None or not is_of_library(stage):
        return Failure(name)
    if place.size > 1 and not place.is_exact:
        ds, indices = _in_whole(place, range(place.last, place.last + 1))
        return Failure(name, f"at what ends with {_numbers('element', indices)}{_share(ds)}")
    number = place.last // place.size
    ds, indices = _in_whole(place, range(number * place.size, place.last + 1))
    elements = _numbers("element", indices if place.size == 1 else [number])
    found = origin(ds, indices)
    return Failure(
        name,
        f"at {elements}{_share(ds)}",
        _details(found, place.epoch),
        record_keys=_record_keys(found),
    )


def _in_whole(place: Place, indices: range) -> tuple[Any, range]:
    """Returns the dataset of all workers that has these elements, and their indices in it."""
    ds = place.ds
    if ds._gm_is_share:
        step = ds._reindex(1) - ds._reindex(0) if len(ds) > 1 else 1
        start = ds._reindex(indices[0])
        return ds._gm_parent, range(start, start + step * len(indices), step)
    return ds, indices


def _share(ds: DatasetNode) -> str:
    """Returns the text after the index of an element that counts those of one worker only."""
    return " of its share" if any([node._gm_is_share for node in ancestors(ds)]) else ""


def _record_keys(found: Sequence[SourceRecords]) -> tuple[int | str, ...]:
    return tuple(
        [key for records in found for key in records.keys[:_MAX_SHOWN] if type(key) in (int, str)]
    )


def _details(found: Sequence[SourceRecords], epoch: int) -> tuple[_Detail, ...]:
    sources = {id(records.source): i for i, records in enumerate(found)}
    details = []
    for records in found:
        keys = _numbers("record key" if records.sampled else "source key", records.keys)
        if records.sampled:
            keys = f"{_numbers('sampler index', records.sampled)}, {keys}"
        source = sources[id(records.source)], _name(records.source)
        details.append(
            _Detail(source, None if records.epoch is None else records.epoch + epoch, keys)
        )
    return tuple(details)


def _name(stage: DatasetNode) -> str:
    """Returns the name of a stage on one line."""
    kind: Any = type(stage)
    if kind.__str__ is not object.__str__:
        with contextlib.suppress(Exception):
            text = " ".join(str(stage).split())
            return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}..."
    name: str = kind.__name__
    return name


def _numbers(noun: str, numbers: Sequence[Any]) -> str:
    """Returns ``numbers`` in words; keys of a user's sampler may be anything.

    Example:
        >>> (
        ...     _numbers("element", [7]),
        ...     _numbers("source key", [3, 1]),
        ...     _numbers("sampler index", [4, 5, 6]),
        ... )
        ('element 7', 'source keys 3 and 1', 'sampler indices 4 to 6')
    """
    first, *others = numbers
    if not others:
        return f"{noun} {first}"
    plural = "sampler indices" if noun == "sampler index" else f"{noun}s"
    if (
        len(others) > 1
        and type(first) is int
        and list(numbers) == list(range(first, first + len(numbers)))
    ):
        return f"{plural} {first} to {numbers[-1]}"
    if len(numbers) > _MAX_SHOWN:
        return f"{plural} {', '.join(map(str, numbers[:_MAX_SHOWN]))}, ... ({len(numbers)} of them)"
    return f"{plural} {', '.join(map(str, numbers[:-1]))} and {numbers[-1]}"
