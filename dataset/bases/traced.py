"""What an output is made of: elements that know their records, and pipelines that run over such elements.

A *twin* of a pipeline is the same pipeline over ``Traced`` elements. Stages that pass elements on are its own, with their own
code and states; those with a function have one that makes a ``Traced`` of a ``Traced``, and calls the user's function only if
somebody asks for the element. A stage tells its twin by ``_traced(tracing)``.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeAlias

from gristmill.core.value import Value
from gristmill.dataset.bases.node import DatasetNode, ancestors, default_seed, is_of_library, parents_of
from gristmill.dataset.bases.origins import Part, RecordKey
from gristmill.dataset.tolerance import passed_over


class Piece(Value):
    """A record that an output is made of.

    Args:
        source: what it was read from, in words.
        key: which record of it.
        epoch: how often the source had been gone through; ``None`` if that is not known.
        index: where the element stood that the pipeline read by its index; ``None`` where there is no index.
        components: of the mixtures that it went through, the outermost first.
        seeds: of the random streams that steps drew from for it, ``(seed, index)``, that of the first step first.
        span: its cells in a packed row.
    """

    source: str
    key: Any
    epoch: int | None = None
    index: int | None = None
    components: tuple[Any, ...] = ()
    seeds: tuple[tuple[int, int], ...] = ()
    span: tuple[int, int] | None = None


Rows: TypeAlias = Sequence[tuple[Piece, ...]]


class Traced:
    """An element, which is computed when somebody asks for it, and the records of which it is made.

    Args:
        compute: gives the element.
        rows: the records of every row, if it is a batch; else there is one row.
        is_batch: whether it is.
    """

    has_function = False  # what users' functions did to it since then may have changed its rows

    def __init__(self, compute: Callable[[], Any], rows: Rows, is_batch: bool = False) -> None:
        self._compute: Callable[[], Any] | None = compute
        self._value: Any = None
        self.rows = rows
        self.is_batch = is_batch

    @property
    def value(self) -> Any:
        """The element."""
        if self._compute is not None:
            self._value, self._compute = self._compute(), None
        return self._value

    @property
    def pieces(self) -> tuple[Piece, ...]:
        """All records."""
        return tuple([piece for row in self.rows for piece in row])

    def then(self, function: Callable[[Any], Any]) -> Traced:
        """What ``function`` makes of it."""
        new = Traced(lambda: function(self.value), self.rows, self.is_batch)
        new.has_function = True
        return new

    def of(self, value: Any) -> Traced:
        """A part of it, or what became of it."""
        new = Traced(lambda: value, self.rows, self.is_batch)
        new.has_function = True
        return new

    def with_pieces(self, change: Callable[[Piece], Piece]) -> Traced:
        """The same element, of whose records more is known."""
        new = Traced(lambda: self.value, [tuple([change(piece) for piece in row]) for row in self.rows], self.is_batch)
        new.has_function = self.has_function
        return new

    def __deepcopy__(self, memo: Any) -> Traced:
        return self


def grouped(make: Callable[[list[Any]], Any], elements: Sequence[Traced]) -> Traced:
    """The batch that ``make`` makes of ``elements``."""
    return Traced(lambda: make([x.value for x in elements]), [x.pieces for x in elements], True)


def side_by_side(elements: Sequence[Traced]) -> Traced:
    """The tuple of ``elements``: row by row, if all have the same number of rows."""
    rows, is_batch = joined_rows([x.rows for x in elements], any([x.is_batch for x in elements]))
    return Traced(lambda: tuple([x.value for x in elements]), rows, is_batch)


def joined_rows(parts: Sequence[Rows], is_batch: bool) -> tuple[Rows, bool]:
    if is_batch and len({len(rows) for rows in parts}) == 1:
        return [tuple([piece for row in rows for piece in row]) for rows in zip(*parts, strict=True)], True
    return [tuple([piece for rows in parts for row in rows for piece in row])], False


class Tracing:
    """How the twin of a pipeline is made.

    Args:
        is_exact: functions of ``map`` are run, too, where an element is left out if they return ``None``. Otherwise it is
            assumed that they do not.
    """

    def __init__(self, is_exact: bool) -> None:
        self.is_exact = is_exact
        self.assumes = False  # that some function leaves out nothing
        self.faults: list[Piece] = []  # records that were passed over

    def note_faults(self, rows: Rows) -> None:
        """Notes that these records were passed over."""
        self.faults += [piece for row in rows for piece in row if piece not in self.faults]

    @contextlib.contextmanager
    def noting_faults(self, ds: Any) -> Iterator[None]:
        """Notes what the steps up to ``ds`` pass over in this context."""
        with passed_over() as events:
            yield
        steps = {node._tolerance.limits.number: node for node in ancestors(ds) if node._tolerance is not None}
        for event in events:
            for index in steps[event.number]._failing(event.at, event.num):
                self.note_faults(rows_at(parents_of(steps[event.number])[0], index)[0])

    def of(self, ds: Any) -> Any:
        """The twin of a stream; of a map dataset that of the stream that it is iterated as.

        Raises:
            NotImplementedError: one of its stages has none; it is named.
        """
        stream = ds if hasattr(ds, "_traced") else ds.to_iter_dataset()
        return stream._traced(self)

    def over(self, ds: Any, **changed: Any) -> Any:
        """A copy of the step ``ds`` over the twins of its parents, or over ``_parents``, with other attributes."""
        new = copy.copy(ds)
        if "_parents" not in changed:
            changed["_parents"] = tuple([self.of(parent) for parent in parents_of(ds)])
        vars(new).update({"_default_seed": default_seed(ds), **changed})
        return new


def unexplained(stage: Any, reason: str) -> NotImplementedError:
    return NotImplementedError(f"{stage!s:.200} cannot be explained: {reason}")


def refuse_to_trace(stage: DatasetNode) -> NotImplementedError:
    if is_of_library(stage):
        return unexplained(stage, "it does not say which elements its outputs are made of")
    return unexplained(
        stage,
        "nobody knows what a class of yours does with its elements. Give it a method _traced(tracing) that returns the twin of "
        "this step (see gristmill.dataset.bases.traced), or explain the pipeline before it",
    )


def rows_at(ds: Any, index: int) -> tuple[Rows, bool]:
    """The records of the element at ``index`` of a map dataset, row by row, and whether it is a batch. Nothing is read.

    Raises:
        NotImplementedError: a step does not say what its elements are made of.
    """
    return _rows(ds, index, Piece("", None, 0, index))


def _rows(ds: Any, index: int, piece: Piece) -> tuple[Rows, bool]:
    """``piece`` has what is known of the element at ``index`` so far."""
    if not is_of_library(ds):
        return [(_own_record(ds, index, piece),)], False
    origins: list[Part | RecordKey] = list(ds._made_of(index))
    if not origins:
        raise refuse_to_trace(ds)
    makes_batches = ds._makes_batches
    found = [_rows_of(ds, one, piece, makes_batches) for one in origins]
    if makes_batches:
        return [tuple([x for row in rows for x in row]) for rows, _ in found], True
    if len(found) == 1:
        return found[0]
    return joined_rows([rows for rows, _ in found], any([is_batch for _, is_batch in found]))


def _rows_of(ds: Any, one: Part | RecordKey, piece: Piece, is_batch: bool) -> tuple[Rows, bool]:
    if isinstance(one, RecordKey):
        epoch = None if one.epoch is None or piece.epoch is None else piece.epoch + one.epoch
        index = piece.index if one.sampled is None else one.sampled
        found = piece.replaced(source=ds._record_source, key=one.key, epoch=epoch, index=index, seeds=one.seeds + piece.seeds)
        return [(found,)], False
    assert piece.epoch is not None
    return _rows(
        one.ds,
        one.index,
        piece.replaced(
            index=one.index if is_batch else piece.index,
            epoch=piece.epoch + one.epoch,
            components=piece.components + one.components,
            seeds=one.seeds + piece.seeds,
        ),
    )


def _own_record(ds: Any, index: Any, piece: Piece) -> Piece:
    """The record that a user's map dataset reads."""
    if ds.parents:
        raise refuse_to_trace(ds)
    epoch, key = divmod(index, max(1, len(ds)))
    return piece.replaced(source=ds._record_source, key=key, epoch=None if piece.epoch is None else piece.epoch + epoch)


def with_component(component: Any) -> Callable[[Traced], Traced]:
    """Says of elements which component of a mixture they come from."""
    return lambda x: x.with_pieces(lambda piece: piece.replaced(components=(component, *piece.components)))


def with_epochs(num: int, elements: Iterable[Any]) -> list[Any]:
    """Says of ``elements`` that their stream has begun anew so often."""
    return [x.with_pieces(lambda p: p.replaced(epoch=None if p.epoch is None else p.epoch + num)) for x in elements]
