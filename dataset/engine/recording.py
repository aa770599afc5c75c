"""The choices that are made in a shard, recorded for each of its elements.

A stage downstream of shards that replays elements records the choices of their stages too. They are
made elsewhere, in a thread or a worker, so they come with the states: executors pass on a
``StateWithChoices`` where they pass on a state, and do not look into it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, ClassVar, NamedTuple

from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.parameters import NONE
from gristmill.dataset.engine.choices import Choices, Records
from gristmill.dataset.engine.iterators import Given, StreamIterator
from gristmill.dataset.engine.stream import Cell, Layer, Pos, Stream


class ShardChoices(NamedTuple):
    """Choices around a position of a shard.

    Attributes:
        made: those for the element before the position.
        known: those of an earlier run. They begin where this run has begun.
        counts: how many of ``known`` each stage has made until the position.
        met_end: a stage upstream that replays elements has met a known end.
    """

    made: Records = ()
    known: Records = ()
    counts: Mapping[str, int] = {}
    met_end: bool = False


class StateWithChoices(NamedTuple):
    """The state of a shard, with choices; ``None`` is the state at the beginning."""

    state: Any
    choices: ShardChoices = ShardChoices()


def state_in(state: object) -> Any:
    """Return the state of a shard without choices."""
    return state.state if type(state) is StateWithChoices else state


def with_known(state: object, known: Records, prefixes: tuple[str, ...]) -> Any:
    """Return the state of a shard that makes choices again.

    Args:
        state: of the shard.
        known: the choices, of all shards.
        prefixes: begin the keys of the stages in this shard.
    """
    own = tuple([record for record in known if record.key.startswith(prefixes)])
    return StateWithChoices(state_in(state), ShardChoices(known=own)) if own else state_in(state)


def add_choices(choices: Choices | None, state: object) -> None:
    """Record what was chosen in a shard for the element before ``state``."""
    if choices is not None and type(state) is StateWithChoices:
        choices.add(state.choices.made)
        choices.met_end |= state.choices.met_end


def key_prefix(key: str, number: int) -> str:
    """Return what the keys of stages in a shard begin with."""
    return f"{key}.{number}/"


class RecordChoices(Layer):
    """The parent's elements. The position, ``(the parent's, ShardChoices)``, has the choices."""

    flow = "one_to_one"
    own = (ShardChoices(),)

    def __init__(self, stage: Any, parent: Stream) -> None:
        super().__init__(stage, parent)
        self.choices = Choices()

    def _run(self, cell: Cell) -> Iterator[Any]:
        pos, before = cell.pos
        choices = self.choices
        choices.restart(before.known)
        choices.counts = {**before.counts}
        choices.restart(known := choices.to_come())
        inner = self.inner
        inner.choices = choices
        inner.go_to(pos)  # a live run may have asked before
        counts: Mapping[str, int] = {}
        try:
            for x in self.parent.run(inner):
                made, counts = choices.hand_over(counts), {**choices.counts}
                if known and all([counts.get(record.key, 0) >= record.num for record in known]):
                    known = ()
                cell.pos = inner.settle(), ShardChoices(made, known, counts if known else {})
                yield (x, x := None)[0]
        except Exception:
            cell.past_failed = partial(self._pass, cell, counts, known)
            raise
        self._move(cell, counts, known)

    def _pass(self, cell: Cell, counts: Mapping[str, int], known: Records) -> None:
        self.inner.pass_failed()
        self._move(cell, counts, known)

    def _move(self, cell: Cell, counts: Mapping[str, int], known: Records) -> None:
        """Move to where the parent is."""
        choices = self.choices
        made = choices.hand_over(counts)
        here = ShardChoices(made, known, {**choices.counts}, choices.met_end)
        cell.pos = self.inner.settle(), here

    def save(self, pos: Pos) -> Any:
        return StateWithChoices(self.parent.save(pos[0]), pos[1])

    def saves_anywhere(self) -> bool:
        return False  # each element is delivered with its state

    def load(self, state: object) -> Pos:
        if type(state) is not StateWithChoices:
            return self.parent.load(state), ShardChoices()
        own = state.state
        return (self.parent.start() if own is None else self.parent.load(own)), state.choices


class ShardIterator(StreamIterator[Any]):
    """The iterator of a shard that records choices, or that ends in an iterator of a user.

    Args:
        it: the iterator of what the shard delivers.
        make: makes the stream over that of ``it``; by default, it is that.
    """

    _gm_stage_name: ClassVar = None  # type: ignore[assignment]  # it does nothing to elements

    def __init__(
        self,
        it: DatasetIterator[Any],
        make: Callable[[Any, Stream], Stream] = lambda _, stream: stream,
    ) -> None:
        super().__init__(Given(NONE), [it], make)


def shard_iterator(it: DatasetIterator[Any], *, records: bool) -> StreamIterator[Any]:
    """Return an iterator of a shard, for an executor.

    Args:
        it: the iterator of what the shard delivers.
        records: choices are recorded; then the state at the end is needed, too.
    """
    if not records:
        return it if isinstance(it, StreamIterator) else ShardIterator(it)
    recording = ShardIterator(it, RecordChoices)
    recording._gm_counts_faults = True
    return recording
