"""``explain``: the records that an output is made of."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from typing import Any

from gristmill.core.errors import as_int
from gristmill.core.state import shown
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.next_index import set_next_index
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.bases.traced import Traced, Tracing, rows_at
from gristmill.diagnostics.provenance.records import Provenance, Row, record_of
from gristmill.diagnostics.view import dataset_iterator
from gristmill.loader import DataLoader, DataLoaderIterator
from gristmill.loader.iterator import loader_of

_NO_STATE = object()


class NoOutputError(ValueError):
    """There is no output to explain."""


def explain(it_or_ds: Any, *, state: Any = None, step: int | None = None, ledger: Any = None) -> Provenance:
    """Returns which records an output is made of, row by row.

    Of an iterator it is the last output; with ``state`` the one that follows it, with ``step`` the one of that number. Law: it
    says what made the output, whatever steps, workers, lanes and threads it came through. The iterator stays where it is, and
    nothing of it is used. No record is read where arithmetic says which ones there are; otherwise the pipeline is run once more
    in this process, for this output, over elements that know their records. Functions of the user are called where they decide:
    those of ``filter``, ``flat_map`` and packed lengths; and those of a ``MapDataset`` where nobody knows otherwise whether they
    leave out elements by ``None``, which is so with ``state``.

    Args:
        it_or_ds: an iterator, made by ``iter(ds)``; or, with ``state`` or ``step``, also a ``MapDataset``, ``IterDataset`` or
            ``DataLoader``.
        state: what ``get_state`` returned.
        step: counted from 0: of a ``MapDataset`` the index; of a stream the number of the output, where that is arithmetic
            (functions of ``map`` are taken to leave out nothing, as in ``len(ds)``).
        ledger: a ``Ledger``, or its path: with it ``step`` may be any past step.

    Raises:
        TypeError: ``it_or_ds`` is none of these.
        ValueError: there was no output yet, there is none after ``state``, or the arguments do not go together.
        IndexError: there is no output ``step``.
        NotImplementedError: a step of the pipeline does not tell what its outputs are made of; or, with ``step``, the place of
            an output does not follow from its number. It is named.

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
        raise ValueError("state and step must not both be given: each of them says which output is meant")
    if ledger is not None:
        from gristmill.diagnostics.provenance.ledger import as_ledger

        if step is None:
            raise ValueError("step must be given with ledger: it says which output is meant")
        return subject.at_recorded_step(_step(step), as_ledger(ledger))
    if step is not None:
        return subject.at_step(_step(step))
    return subject.after(state) if state is not None else subject.last()


def _step(step: Any) -> int:
    return as_int("step", step)


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
            ds = _definition_of(given)
            if ds is None:
                raise TypeError(
                    f"it_or_ds must be an iterator made by iter(ds), so that its dataset is known; {given!s:.200} was not: pass "
                    "the dataset, with state=it.get_state() taken before the output"
                )
            return cls(ds, given)
        if isinstance(given, MapDataset | IterDataset | DataLoader):
            return cls(given)
        raise TypeError(
            f"it_or_ds must be a dataset, a DataLoader or an iterator of one, got {shown(given)} of type {type(given).__name__}"
        )

    def last(self) -> Provenance:
        if self.iterator is None:
            raise ValueError("state or step must be given with a dataset: it has no last output, as an iterator has")
        it = dataset_iterator(self.iterator)
        state = it._before_last()
        if state is None:
            Tracing(False).of(_definition_of(it))  # which names what has no states, and is refused for that
            raise NoOutputError(f"{it!s:.200} has given no output since it was made or its state was set: call next() first")
        return _of_stream(_definition_of(it), state, it.get_state())

    def after(self, state: Any, following: Any = _NO_STATE, num: int = 1) -> Provenance:
        if isinstance(self.definition, DataLoader):
            it = dataset_iterator(DataLoaderIterator(self.definition, state))
            return _of_stream(_definition_of(it), it.get_state(), num=num)
        return _of_stream(self.definition, state, following, num)

    def at_step(self, step: int) -> Provenance:
        ds = self.definition
        if isinstance(ds, MapDataset):
            rows, _ = rows_at(ds, step)
            return Provenance([Row([record_of(piece) for piece in pieces]) for pieces in rows], step=step)
        if step < 0:
            raise IndexError(f"step must be from 0 on, got {step}")
        tracing = Tracing(False)
        with _twin(_stream_of(ds), tracing) as it:
            try:
                set_next_index(it, step)
            except NotImplementedError as error:
                raise NotImplementedError(
                    f"output {step} does not follow from its number: {error}. Pass state=... (--state), or record a Ledger while "
                    "iterating (for batch in gristmill.Ledger(path).follow(it)) and pass it as ledger=... (--ledger)"
                ) from error
            return _told(_next(it, f"there is no output {step}", IndexError), tracing, step)

    def at_recorded_step(self, step: int, ledger: Any) -> Provenance:
        found, state = ledger.state_before(step)
        try:
            if state is None:
                told = _of_stream(_stream_of(self.definition), None, num=step + 1)
            else:
                following = ledger.state_at(step + 1) if found == step else None
                told = self.after(state, _NO_STATE if following is None else following, step - found + 1)
        except NoOutputError:
            raise IndexError(f"there is no output {step}: the stream ends before it") from None
        told.step = step
        return told


def each_output(ds: Any) -> Iterator[Provenance]:
    """What every output of a dataset or ``DataLoader`` is made of, from the first one on.

    Args:
        ds: of a ``MapDataset`` the elements of an epoch. Of a stream the outputs; it runs in this process, as for ``explain``.

    Raises:
        TypeError, NotImplementedError: as ``explain``.
    """
    subject = _Subject.of(ds)
    if isinstance(ds, MapDataset):
        yield from map(subject.at_step, range(len(ds)))
        return
    tracing = Tracing(True)
    with _twin(_stream_of(subject.definition), tracing) as it:
        for step, x in enumerate(it):
            yield _told(x, tracing, step)
            tracing.faults.clear()


def _definition_of(it: Any) -> Any:
    return it if isinstance(it, IterDataset) else it._definition


def _stream_of(ds: Any) -> Any:
    if isinstance(ds, DataLoader):
        return _definition_of(dataset_iterator(DataLoaderIterator(ds)))
    return ds


def _of_stream(ds: Any, state: Any, following: Any = _NO_STATE, num: int = 1) -> Provenance:
    """Of output number ``num`` behind ``state``; ``following`` is the state after it, if that is known."""
    for is_exact in (False, True):
        if not is_exact and (following is _NO_STATE or not _tells_place(ds)):
            continue  # what is assumed could not be checked
        tracing = Tracing(is_exact)
        with _twin(ds, tracing) as it:
            try:
                if state is not None:
                    it.set_state(state)
                for _ in range(num - 1):
                    _next(it, "the stream ends before it", NoOutputError)
                tracing.faults.clear()
                told = _told(
                    _next(it, "there is no output after this state: the stream is at its end", NoOutputError), tracing, None
                )
                if not tracing.assumes or it.get_state() == following:
                    return told
            except Exception:
                if not tracing.assumes:
                    raise
    raise AssertionError("the second one is exact")


def _tells_place(ds: Any) -> bool:
    """Whether a state says which elements have been read for the outputs before it."""
    return all([node._tells_place or node._works_on is not None for node in ancestors(ds) if isinstance(node, IterDataset)])


@contextlib.contextmanager
def _twin(ds: Any, tracing: Tracing) -> Iterator[DatasetIterator[Any]]:
    it = iterate(tracing.of(ds))
    try:
        yield it
    finally:
        it.close()


def _next(it: DatasetIterator[Any], reason: str, kind: type[Exception]) -> Traced:
    for x in it:
        assert isinstance(x, Traced)
        return x
    raise kind(reason)


def _told(x: Traced, tracing: Tracing, step: int | None) -> Provenance:
    rows = [Row([record_of(piece) for piece in pieces]) for pieces in x.rows]
    return Provenance(rows, [record_of(piece) for piece in tracing.faults], step)
