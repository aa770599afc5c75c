"""``explain``: the records that an output is made of."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.dataset.bases.cells import Rows
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.length import Exact, dataset_length
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.next_index import set_next_index
from gristmill.dataset.bases.node import ancestors, dropping_steps
from gristmill.dataset.bases.traced import Traced, Tracing, rows_at, unexplained
from gristmill.dataset.stages.prefetch import deciding_part
from gristmill.diagnostics.provenance.places import with_places
from gristmill.diagnostics.provenance.records import Provenance, Row, record_of
from gristmill.diagnostics.view import dataset_iterator
from gristmill.loader import DataLoader, DataLoaderIterator
from gristmill.loader.iterator import loader_of

_NO_STATE = object()


class NoOutputError(ValueError):
    """There is no output to explain."""


def explain(
    it_or_ds: Any, *, state: Any = None, step: int | None = None, ledger: Any = None
) -> Provenance:
    """Returns which records an output is made of, row by row.

    Of an iterator it is the last output; with ``state`` the one that follows it, with ``step`` the
    one of that number. Law: the answer is exact for all stages, workers, lanes and threads that the
    output came through. The iterator keeps its position, and none of its elements is used. No
    record is read if the records follow from arithmetic; otherwise the pipeline is run once more in
    this process, for this output, over elements that know their records. Functions of the user are
    called if they decide: those of ``filter``, ``flat_map`` and packed lengths; those after
    packing, which may cut rows; those before ``tolerate``; and, with ``state``, those of a
    ``MapDataset``, which may drop elements by ``None``. For the same reason, records of lists
    and of users' sources are read then.

    A row that is packed and then cut has the records whose cells it has, with their spans in it. A
    function that changes the number of cells is refused, because it is not known which cells are
    left. A function that keeps the number is assumed to keep their places.

    Args:
        it_or_ds: an iterator, made by ``iter(ds)``; or, with ``state`` or ``step``, also a
            ``MapDataset``, ``IterDataset`` or ``DataLoader``.
        state: what ``get_state`` returned.
        step: of a ``MapDataset`` the index; of a stream the number of the output, counted from 0,
            if the records follow from it by arithmetic. Functions of ``map`` are assumed to drop
            nothing, as in ``len(ds)``.
        ledger: a ``Ledger``, or its path. With it ``step`` may be any step that it has recorded.

    Raises:
        TypeError: ``it_or_ds`` is of another type.
        ValueError: there was no output yet, there is none after ``state``, or the arguments exclude
            each other.
        IndexError: there is no output ``step``, or the ledger has not recorded it.
        NotImplementedError: a stage of the pipeline cannot be explained; or, with ``step``, the
            position of an output does not follow from its number, as after holes of a
            ``MapDataset``. The error names the stage.

    Example:
        >>> from gristmill import MapDataset
        >>> ds = MapDataset.source(list("abcdefgh")).shuffle(seed=1).to_iter_dataset().batch(2)
        >>> it = iter(ds)
        >>> next(it), next(it)
        (array(['f', 'h'], dtype='<U1'), array(['g', 'a'], dtype='<U1'))
        >>> [row.records[0].record_key for row in explain(it).rows]
        [6, 0]
        >>> explain(ds, step=1) == explain(it)
        True
    """
    subject = _Subject.of(it_or_ds)
    if state is not None and step is not None:
        raise ValueError(
            "state and step must not both be given: each of them says which output is meant"
        )
    if step is not None:
        step = as_int("step", step)
    if ledger is not None:
        from gristmill.diagnostics.provenance.ledger import as_ledger

        if step is None:
            raise ValueError("step must be given with ledger: it says which output is meant")
        found = subject.at_recorded_step(step, as_ledger(ledger))
    elif step is not None:
        found = subject.at_step(step)
    else:
        found = subject.after(state) if state is not None else subject.last()
    return with_places(found, subject.definition)


@dataclasses.dataclass
class _Subject:
    """A pipeline, and its iterator if there is one."""

    definition: Any
    iterator: Any = None

    @classmethod
    def of(cls, given: Any) -> _Subject:
        inner = getattr(given, "followed_iterator", None)  # of a ledger
        if inner is not None:
            return cls.of(inner)
        if isinstance(given, DataLoaderIterator):
            return cls(loader_of(given), given)
        if isinstance(given, DatasetIterator):
            ds = definition_of(given)
            if ds is None:
                raise TypeError(
                    "it_or_ds must be an iterator made by iter(ds), so that its dataset is known;"
                    f" {given!s:.200} was not: pass the dataset, with state=it.get_state() taken"
                    " before the output"
                )
            return cls(ds, given)
        if isinstance(given, MapDataset | IterDataset | DataLoader):
            return cls(given)
        raise TypeError(
            f"it_or_ds must be a dataset, a DataLoader or an iterator of one, got {shown(given)} of"
            f" type {type(given).__name__}"
        )

    def last(self) -> Provenance:
        if self.iterator is None:
            raise ValueError(
                "state or step must be given with a dataset: it has no last output, as an"
                " iterator has"
            )
        it = dataset_iterator(self.iterator)
        state = it._gm_before_last()
        if state is None:
            # Raises an error that names the stage if that has no states.
            Tracing(False).of(definition_of(it))
            raise NoOutputError(
                f"{it!s:.200} has given no output since it was made or its state was set: call"
                " next() first"
            )
        return _of_stream(definition_of(it), state, it.get_state())

    def after(self, state: Any) -> Provenance:
        return _of_stream(*self._begun_at(state))

    def _begun_at(self, state: Any) -> tuple[Any, Any]:
        """Returns the stream, and its state when the subject is in ``state``."""
        if not isinstance(self.definition, DataLoader):
            return self.definition, state
        it = dataset_iterator(DataLoaderIterator(self.definition, state))
        return definition_of(it), it.get_state()

    def at_step(self, step: int) -> Provenance:
        ds = self.definition
        if isinstance(ds, MapDataset):
            rows, _ = rows_at(ds, step)
            return Provenance(_rows(rows), step=step)
        _check_of_stream(step)
        stream, tracing = _stream_of(ds), Tracing(False)
        with _traced_iterator(stream, tracing) as it:
            try:
                if it._gm_has_gaps():
                    raise NotImplementedError(
                        f"{_holes_of(stream)} drops elements, so that steps are no indices"
                    )
                set_next_index(it, step)
            except IndexError:
                length = dataset_length(ds)
                num = f"{length.num:,} outputs" if isinstance(length, Exact) else "no more outputs"
                raise IndexError(f"there is no output {step}: the stream has {num}") from None
            except NotImplementedError as error:
                raise NotImplementedError(
                    f"output {step} does not follow from its number: {error}. Pass state=..."
                    " (--state), or record a Ledger while iterating (for batch in"
                    " gristmill.Ledger(path).follow(it)) and pass it as ledger=... (--ledger)"
                ) from error
            x = _next(it, f"there is no output {step}", IndexError)
            return _provenance_of(x, tracing, step)

    def at_recorded_step(self, step: int, ledger: Any) -> Provenance:
        _check_of_stream(step)
        found, state = ledger.state_before(step)
        following = None
        if found == step and not isinstance(self.definition, DataLoader):
            following = ledger.state_at(step + 1)
        try:
            ds, state = self._begun_at(state)
            if found < step:
                state = _state_after(ds, state, step - found)
            provenance = _of_stream(ds, state, _NO_STATE if following is None else following)
        except NoOutputError:
            raise IndexError(f"there is no output {step}: the stream ends before it") from None
        provenance.step = step
        return provenance


def each_output(ds: Any) -> Iterator[Provenance]:
    """Yields what every output of a dataset or ``DataLoader`` is made of, from the first one on.

    Args:
        ds: a ``MapDataset``, for the elements of an epoch, without holes; or a stream, for its
            outputs. It runs in this process, as for ``explain``.

    Raises:
        TypeError, NotImplementedError: as ``explain``.
    """
    subject = _Subject.of(ds)
    if isinstance(ds, MapDataset):
        deciding = deciding_part(ds)
        has_holes = bool(dropping_steps(deciding))
        for i in range(len(ds)):
            if not has_holes or deciding[i] is not None:
                yield subject.at_step(i)
        return
    tracing = Tracing(True)
    with _traced_iterator(_stream_of(subject.definition), tracing) as it:
        for step, x in enumerate(it):
            yield _provenance_of(x, tracing, step)
            tracing.faults.clear()


def _check_of_stream(step: int) -> None:
    if step < 0:
        raise IndexError(
            f"step must be at least 0 for a stream, which counts its outputs from 0, got {step}"
        )


def _holes_of(ds: Any) -> str:
    """Returns the text of the first stage of a map dataset that leaves holes."""
    stages = [stage for stage in dropping_steps(ds) if isinstance(stage, MapDataset)]
    return f"{stages[-1]!s:.200}" if stages else "a stage of a MapDataset"


def definition_of(it: Any) -> Any:
    """Returns the dataset that ``it`` iterates over; ``None`` if that is not known."""
    return it if isinstance(it, IterDataset) else it._gm_definition


def _stream_of(ds: Any) -> Any:
    if isinstance(ds, DataLoader):
        return definition_of(dataset_iterator(DataLoaderIterator(ds)))
    return ds


def _of_stream(ds: Any, state: Any, following: Any = _NO_STATE) -> Provenance:
    """Returns the provenance of the output after ``state``.

    ``following`` is the state after that output, if it is known.
    """
    for is_exact in (False, True):
        if not is_exact and (following is _NO_STATE or not _states_have_place(ds)):
            continue  # what is assumed could not be checked
        tracing = Tracing(is_exact)
        try:
            with _traced_iterator(ds, tracing, state) as it:
                x = _next(it, "there is no output after this state: the stream is at its end")
                provenance = _provenance_of(x, tracing, None)
                # At the end, the state is the same with and without what a function drops.
                if not tracing.assumes or (
                    it.get_state() == following and next(it, None) is not None
                ):
                    return provenance
        except Exception:
            if not tracing.assumes:
                raise
    raise AssertionError("the second one is exact")


def _state_after(ds: Any, state: Any, num: int) -> Any:
    """Returns the state ``num`` outputs after ``state``."""
    with _traced_iterator(ds, Tracing(True), state) as it:
        for _ in range(num):
            _next(it, "the stream ends before it")
        return it.get_state()


def _states_have_place(ds: Any) -> bool:
    """True if a state says which elements have been read for the outputs before it."""
    streams = [node for node in ancestors(ds) if isinstance(node, IterDataset)]
    return all([x._gm_states_have_place or x._gm_works_on is not None for x in streams])


@contextlib.contextmanager
def _traced_iterator(
    ds: Any, tracing: Tracing, state: Any = None
) -> Iterator[DatasetIterator[Any]]:
    it = iterate(tracing.of(ds))
    try:
        if state is not None:
            it.set_state(state)
        yield it
    finally:
        it.close()


def _next(it: DatasetIterator[Any], reason: str, kind: type[Exception] = NoOutputError) -> Traced:
    for x in it:
        assert isinstance(x, Traced)
        return x
    raise kind(reason)


def _provenance_of(x: Traced, tracing: Tracing, step: int | None) -> Provenance:
    return Provenance(_rows(x.rows), [record_of(record) for record in tracing.faults], step)


def _rows(rows: Rows) -> list[Row]:
    cut_by = next((record.cut_by for row in rows for record in row if record.cut_by), None)
    if cut_by is not None:
        raise unexplained(
            cut_by,
            "it takes rows of several records apart, or changes the number of their cells, so that"
            " it is not known which records are left. Cut before records are packed or batched, or"
            " explain the pipeline up to this stage",
        )
    return [Row([record_of(record) for record in records]) for records in rows]
