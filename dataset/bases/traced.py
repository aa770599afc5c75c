"""The lineage of outputs: elements that know their records, and pipelines over such elements.

A *traced* pipeline is the same pipeline over ``Traced`` elements. Stages that pass elements on
keep their own code and states. Those with a function have one that makes a ``Traced`` of a
``Traced``, and calls the user's function only if the element is requested. A stage returns its
traced version from ``_gm_traced(tracing)``.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from gristmill.dataset.bases.cells import (
    LineageRecord,
    Rows,
    are_several,
    cut_by,
    kept_rows,
    parted_rows,
)
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import (
    DatasetNode,
    ancestors,
    default_seed,
    is_of_library,
    parents_of,
)
from gristmill.dataset.bases.origins import RecordKey, UpstreamElement
from gristmill.dataset.errors.context import note_at
from gristmill.dataset.faults.attempts import noted_events

T = TypeVar("T")


class Traced:
    """An element, which is computed when it is needed, and the records that it is made of.

    Args:
        compute: gives the element.
        rows: the records of every row of a batch, else of the one row; or a function that returns
            them.
        is_batch: whether it is a batch.
        changed_by: the last stage whose function made it from another element, or an empty text.
    """

    def __init__(
        self,
        compute: Callable[[], Any],
        rows: Rows | Callable[[], Rows],
        is_batch: bool = False,
        changed_by: str = "",
    ) -> None:
        self._compute: Callable[[], Any] | None = compute
        self._value: Any = None
        self._rows = rows
        self.is_batch = is_batch
        self.changed_by = changed_by

    @property
    def value(self) -> Any:
        """The element."""
        if self._compute is not None:
            try:
                self._value, self._compute = self._compute(), None
            except Exception as error:
                note_failed(error, self.rows)
                raise
        return self._value

    @property
    def rows(self) -> Rows:
        """The records of every row."""
        if callable(self._rows):
            self._rows = self._rows()
        return self._rows

    @property
    def records(self) -> tuple[LineageRecord, ...]:
        """All records."""
        return tuple([record for row in self.rows for record in row])

    def then(self, function: Callable[[Any], Any], stage: object) -> Traced:
        """Returns the element that ``function``, of ``stage``, makes of it."""
        name = str(stage)
        new = Traced(
            lambda: function(self.value), lambda: kept_rows(self, new, name), self.is_batch, name
        )
        return new

    def part(self, value: object, stage: DatasetNode) -> Traced:
        """Returns one of the elements that ``stage`` makes of it."""
        name = str(stage)
        new = Traced(lambda: value, lambda: parted_rows(self, new, name), self.is_batch, name)
        return new

    def with_records(self, change: Callable[[LineageRecord], LineageRecord]) -> Traced:
        """Returns the same element with its records changed by ``change``."""
        return Traced(
            lambda: self.value,
            lambda: [tuple([change(record) for record in row]) for row in self.rows],
            self.is_batch,
            self.changed_by,
        )

    def __deepcopy__(self, memo: object) -> Traced:
        return self


def grouped(make: Callable[[list[Any]], Any], elements: Sequence[Traced]) -> Traced:
    """Returns the batch that ``make`` makes of ``elements``."""
    return Traced(
        lambda: make([x.value for x in elements]), lambda: [x.records for x in elements], True
    )


def side_by_side(elements: Sequence[Traced]) -> Traced:
    """Returns the tuple of ``elements``: row by row, if all have the same number of rows."""
    rows, is_batch = joined_rows([x.rows for x in elements], any([x.is_batch for x in elements]))
    return Traced(lambda: tuple([x.value for x in elements]), rows, is_batch)


def joined_rows(parts: Sequence[Rows], is_batch: bool) -> tuple[Rows, bool]:
    if is_batch and len({len(rows) for rows in parts}) == 1:
        return [
            tuple([record for row in rows for record in row]) for rows in zip(*parts, strict=True)
        ], True
    return [tuple([record for rows in parts for row in rows for record in row])], False


_FAILED = "_gristmill_failed_rows"


def note_failed(error: Exception, rows: Rows) -> None:
    """Notes at ``error`` the records of the element that it is about, unless some are noted."""
    with contextlib.suppress(Exception):  # of an exception of the user's that takes no attributes
        vars(error).setdefault(_FAILED, rows)


def noting_failed(function: Callable[[Traced], T]) -> Callable[[Traced], T]:
    """Returns ``function``, whose errors note the records of the element."""

    def noting(x: Traced) -> T:
        try:
            return function(x)
        except Exception as error:
            note_failed(error, x.rows)
            raise

    return noting


class Tracing:
    """Makes the traced version of a pipeline.

    Args:
        is_exact: functions of ``map`` are run, too, where an element is dropped if they return
            ``None``. Otherwise it is assumed that they do not.
    """

    def __init__(self, is_exact: bool) -> None:
        self.is_exact = is_exact
        self.assumes = False  # that some function drops nothing
        self.computes = False  # functions are called at once, so that they fail in their stages
        self.faults: list[LineageRecord] = []  # records that were skipped

    def note_faults(self, rows: Rows) -> None:
        """Notes that these records were skipped."""
        self.faults += [record for row in rows for record in row if record not in self.faults]

    def note_fault(self, error: Exception) -> None:
        """Notes that the element was skipped that ``error`` is about."""
        rows, context = vars(error).get(_FAILED, ()), note_at(error)
        keys = () if context is None else context.failure.record_keys
        named = [tuple([record for record in row if record.key in keys]) for row in rows]
        self.note_faults(named if any(named) else rows)

    @contextlib.contextmanager
    def noting_faults(self, ds: DatasetNode) -> Iterator[None]:
        """Note the elements that stages up to ``ds`` skip or replace in this context."""
        steps = {
            node._gm_tolerance.limits.number: node
            for node in ancestors(ds)
            if node._gm_tolerance is not None
        }
        reports = next((step._reports for step in steps.values()), None)
        before = 0 if reports is None else len(reports.here())
        with noted_events(passes_on=True) as events:
            yield
        for event in events if reports is None else reports.here()[before:]:
            for index in steps[event.stage]._failing(event.at, event.num):
                self.note_faults(rows_at(parents_of(steps[event.stage])[0], index)[0])

    def of(self, ds: object) -> Any:
        """Returns the traced version of a stream; for a map dataset, of its ``to_iter_dataset()``.

        Raises:
            NotImplementedError: one of its stages has none; it is named.
        """
        stream: Any = MapDataset.to_iter_dataset(ds) if isinstance(ds, MapDataset) else ds
        return stream._gm_traced(self)

    def over(self, ds: DatasetNode, **changed: Any) -> Any:
        """Returns a copy of the stage ``ds`` over its traced parents, with other attributes."""
        new = copy.copy(ds)
        if "_gm_parents" not in changed:
            changed["_gm_parents"] = tuple([self.of(parent) for parent in parents_of(ds)])
        if self.computes and "_fn" in changed:
            changed["_fn"] = _computing(changed["_fn"])
        vars(new).update({"_gm_default_seed": default_seed(ds), **changed})
        return new


def _computing(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *given: computed(function(*given))


def computed(x: object) -> Any:
    """Returns ``x``; if it is ``Traced``, its element is computed, which may fail."""
    if isinstance(x, Traced):
        x.value  # noqa: B018
    return x


def unexplained(stage: object, reason: str) -> NotImplementedError:
    return NotImplementedError(f"{stage!s:.200} cannot be explained: {reason}")


def refuse_to_trace(stage: DatasetNode) -> NotImplementedError:
    if is_of_library(stage):
        return unexplained(stage, "it does not say which elements its outputs are made of")
    return unexplained(
        stage,
        "the library does not know what a class of yours does with its elements. Give it a method"
        " _gm_traced(tracing) that returns the twin of this stage (see"
        " gristmill.dataset.bases.traced), or explain the pipeline upstream of it",
    )


def rows_at(ds: DatasetNode, index: int) -> tuple[Rows, bool]:
    """Returns the records of the element at ``index`` of a map dataset, row by row, and whether it
    is a batch. Nothing is read.

    Raises:
        NotImplementedError: a stage does not say what its elements are made of.
    """
    return _rows(ds, index, LineageRecord("", None, 0, index))


def _rows(ds: Any, index: int, record: LineageRecord) -> tuple[Rows, bool]:
    """Returns the rows of an element, of which ``record`` has what is known so far."""
    if not is_of_library(ds):
        return [(_own_record(ds, index, record),)], False
    origins: list[UpstreamElement | RecordKey] = list(ds._gm_made_of(index))
    if not origins:
        raise refuse_to_trace(ds)
    makes_batches = ds._gm_makes_batches
    found = [_rows_of(ds, one, record, makes_batches) for one in origins]
    if makes_batches:
        return [tuple([x for row in rows for x in row]) for rows, _ in found], True
    if len(found) == 1:
        rows, is_batch = found[0]
        if ds._gm_takes_apart and is_batch and are_several(rows):
            return cut_by(rows, str(ds)), is_batch
        return found[0]
    return joined_rows([rows for rows, _ in found], any([is_batch for _, is_batch in found]))


def _rows_of(
    ds: DatasetNode, one: UpstreamElement | RecordKey, record: LineageRecord, is_batch: bool
) -> tuple[Rows, bool]:
    if isinstance(one, RecordKey):
        epoch = None if one.epoch is None or record.epoch is None else record.epoch + one.epoch
        index = record.index if one.sampled is None else one.sampled
        found = record.replaced(
            source=ds._gm_record_source,
            key=one.key,
            epoch=epoch,
            index=index,
            seeds=one.seeds + record.seeds,
        )
        return [(found,)], False
    assert record.epoch is not None
    known = record.replaced(
        index=one.index if is_batch else record.index,
        epoch=record.epoch + one.epoch,
        components=record.components + one.components,
        seeds=one.seeds + record.seeds,
    )
    return _rows(one.ds, one.index, known)


def _own_record(ds: MapDataset[Any], index: int, record: LineageRecord) -> LineageRecord:
    """Returns the record that a user's map dataset reads."""
    if ds._gm_parents:
        raise refuse_to_trace(ds)
    epoch, key = divmod(index, max(1, len(ds)))
    return record.replaced(
        source=ds._gm_record_source,
        key=key,
        epoch=None if record.epoch is None else record.epoch + epoch,
    )


def with_component(component: object) -> Callable[[Traced], Traced]:
    """Says of elements which component of a mixture they come from."""
    return lambda x: x.with_records(
        lambda record: record.replaced(components=(component, *record.components))
    )


def with_epochs(num: int, elements: Iterable[Any]) -> list[Any]:
    """Returns ``elements`` with ``num`` added to the epochs of their records."""
    return [
        x.with_records(lambda p: p.replaced(epoch=None if p.epoch is None else p.epoch + num))
        for x in elements
    ]
