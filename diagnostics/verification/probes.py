"""Looks at the stages of a pipeline while it runs: what each was asked for, and what it does that
no stage should do.

Between any two stages one is put that passes elements on, and reports each request and answer to a
``Witness``. What happens between two such moments is the doing of the stage that is at work in the
thread.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import sys
import threading
from collections.abc import Callable, Iterator
from functools import partial
from types import FrameType
from typing import Any

import numpy as np

from gristmill.core.indices import Indices, as_ints
from gristmill.core.value import Value
from gristmill.dataset.bases.items import begun_when_needed
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.node import DatasetNode, parents_of
from gristmill.dataset.descriptions.equality import Leaf, difference, leaves_of
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.engine.stream import Cell, Pos, Stream
from gristmill.dataset.slicing import PipelineEditor
from gristmill.diagnostics.verification.calls import revealing_call
from gristmill.diagnostics.verification.kept import changes, kept_by
from gristmill.diagnostics.verification.outcomes import Clock, closed
from gristmill.diagnostics.verification.subject import Subject, SubPipeline, addresses

_MAX_ASKED = 2000  # indices of a map dataset that are remembered
_MAX_HELD = 5000  # elements that are compared with what they are the next time


class Evidence(Value):
    """Something that a stage does.

    Args:
        kind: one of those in ``reasons``.
        text: what exactly, and where.
    """

    kind: str
    text: str


Address = tuple[int, ...]


class Witness:
    """The facts known about stages, by the addresses of the stages."""

    def __init__(self) -> None:
        self.evidence: dict[Address, list[Evidence]] = {}
        self.indices: dict[Address, dict[int, None]] = {}
        self.counts: dict[Address, int] = {}
        self._local = threading.local()
        # elements that were changed in place, kept alive
        self._changed: dict[int, tuple[Any, Address, str]] = {}
        self._delivered: dict[tuple[Address, int], list[Leaf]] = {}
        self._orders: dict[Address, int] = {}
        self._random = random_states()
        self._profile: Any = None  # the profile function while it is watched

    def add(self, address: Address, kind: str, text: str) -> None:
        found = self.evidence.setdefault(address, [])
        if not any([x.kind == kind for x in found]):
            found.append(Evidence(kind, text))

    def include(self, *others: dict[Address, Any]) -> None:
        """Adds the evidence, indices and counts of another witness."""
        evidence, indices, counts = others
        for address, found in evidence.items():
            for x in found:
                self.add(address, x.kind, x.text)
        self.indices = {**indices, **self.indices}
        self.counts = {**counts, **self.counts}

    def begin_again(self) -> None:
        """Prepares for the same elements once more."""
        self._orders = {}

    @property
    def _stack(self) -> list[_Work]:
        if not hasattr(self._local, "stack"):
            self._local.stack = []
        found: list[_Work] = self._local.stack
        return found

    @contextlib.contextmanager
    def _aside(self) -> Iterator[None]:
        """Suspends the watching for actions of the witness itself."""
        sys.setprofile(None)
        try:
            self._look()
            yield
        finally:
            sys.setprofile(self._profile)

    def begins(self, address: Address) -> None:
        with self._aside():
            self._stack.append(_Work(address))

    def ends(self, address: Address, elements: list[Any], indices: Any = None) -> None:
        with self._aside():
            self._end(address, elements, indices)

    def _end(self, address: Address, elements: list[Any], indices: Any) -> None:
        work = self._stack.pop()
        self._compare(work)
        if indices is None:
            self.counts[address] = self.counts.get(address, 0) + len(elements)
        else:
            asked = self.indices.setdefault(address, {})
            asked.update(dict.fromkeys(as_ints(indices)[: max(0, _MAX_ASKED - len(asked))]))
        for element in elements:
            self._deliver(address, element)

    def fails(self) -> None:
        with self._aside():
            self._stack.pop()

    def _deliver(self, address: Address, element: Any) -> None:
        number = self._orders[address] = self._orders.get(address, -1) + 1
        if number >= _MAX_HELD:
            return
        if id(element) in self._changed:
            _, by, text = self._changed[id(element)]
            self.add(by, "in place", text)
        leaves = leaves_of(element)
        before = self._delivered.setdefault((address, number), leaves)
        if self._stack:
            is_other = difference(before, leaves) is not None
            self._stack[-1].received.append((element, leaves, is_other))

    def _compare(self, work: _Work) -> None:
        for element, leaves, is_other in work.received:
            found = difference(leaves, leaves_of(element))
            if found is None:
                continue
            text = (
                f"it changes its input{found[0] and ' at '}{found[0]}, from {found[1]!s:.100} to"
                f" {found[2]!s:.100}"
            )
            if is_other:  # this time it was another one to begin with
                self.add(work.address, "in place", text)
            elif len(self._changed) < _MAX_HELD:
                self._changed[id(element)] = (element, work.address, text)

    def _look(self) -> None:
        if not self._stack:
            self._random = random_states()
            return
        before, self._random = self._random, random_states()
        for name, state in self._random.items():
            if before.get(name, state) != state:
                text = f"it draws from the global generator of {name}"
                self.add(self._stack[-1].address, "random", text)

    def on_call(self, frame: FrameType, event: str, argument: Any) -> None:
        """Returns a profile function: notes calls that give something else each time or in each
        process.
        """
        stack = self._stack
        if stack and event in ("c_call", "call"):
            found = revealing_call(frame, event, argument)
            if found is not None:
                self.add(stack[-1].address, *found)

    @contextlib.contextmanager
    def watching_calls(self) -> Iterator[None]:
        before, self._profile = sys.getprofile(), self.on_call
        threading.setprofile(self.on_call)
        sys.setprofile(self.on_call)
        try:
            yield
        finally:
            self._profile = before
            sys.setprofile(before)
            threading.setprofile(None)


class _Work:
    """A stage that is being asked."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self.received: list[tuple[Any, list[Leaf], bool]] = []


def random_states() -> dict[str, Any]:
    """Returns the states of the global generators, by the names of their libraries."""
    states: dict[str, Any] = {"random": random.getstate()}
    state: Any = np.random.get_state(legacy=False)
    keys = state["state"].get("key")  # of the generator that is there unless another one was set
    states["numpy.random"] = (
        repr(state) if keys is None else (keys.tobytes(), state["state"]["pos"], state["gauss"])
    )
    torch = sys.modules.get("torch")
    if hasattr(torch, "get_rng_state"):
        states["torch"] = bytes(torch.get_rng_state().numpy())  # type: ignore[union-attr]
    return states


class WitnessedPipeline(PipelineEditor):
    """A pipeline with a stage after each that reports to a witness.

    Args:
        witness: the witness that is notified.
        addresses: those of the stages, by their ids.
    """

    def __init__(self, witness: Witness, addresses: dict[int, Address]) -> None:
        super().__init__()
        self._witness = witness
        self._addresses = addresses
        self.stages: dict[Address, Any] = {}  # what takes the places of the stages

    def _copied(self, ds: Any, replaced: Callable[[Any], Any]) -> Any:
        return DatasetNode._gm_over(ds, replaced)  # over parents of the same lengths

    def _replace(self, ds: Any) -> Any:
        address = self._addresses.get(id(ds))
        if address is None:
            return self._over_replaced(ds) if parents_of(ds) else ds
        stage = self.stages[address] = self._over_replaced(ds)
        kind = _WatchedStream if isinstance(ds, IterDataset) else _WatchedMap
        return kind(stage, self._witness, address)


class _WatchedMap(BlockMapDataset[Any]):
    _gm_adds_step = False

    def __init__(self, parent: Any, witness: Witness, address: Address) -> None:
        super().__init__(parent)
        self._witness, self._address = witness, address

    def __len__(self) -> int:
        return len(self._gm_parents[0])

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        witness, address = self._witness, self._address
        items = begun_when_needed(self._gm_parents[0], indices)
        for index in as_ints(indices):
            witness.begins(address)
            try:
                x = next(items)
            except BaseException:
                witness.fails()
                raise
            witness.ends(address, [x], [index])
            yield (x, x := None)[0]


class _WatchedStream(IterDataset[Any]):
    _gm_adds_step = False

    def __init__(self, parent: Any, witness: Witness, address: Address) -> None:
        super().__init__(parent)
        self._witness, self._address = witness, address

    def __iter__(self) -> DatasetIterator[Any]:
        return open_stage(
            self, partial(_WitnessedStream, witness=self._witness, address=self._address)
        )


class _WitnessedStream(Stream):
    """The elements of the parent. Reports each to a witness."""

    flow = "one_to_one"

    def __init__(self, stage: Any, parent: Stream, witness: Witness, address: Address) -> None:
        super().__init__(stage, parent)
        self._witness, self._address = witness, address

    def _run(self, cell: Cell) -> Iterator[Any]:
        run = self.parent.run(cell)
        while True:
            self._witness.begins(self._address)
            try:
                elements = list(itertools.islice(run, 1))
            except BaseException:
                self._witness.fails()
                raise
            self._witness.ends(self._address, elements)
            if not elements:
                return
            yield elements.pop()

    def index_of(self, pos: Pos) -> int:
        return self.parent.index_of(pos)

    def at_index(self, index: int) -> Pos:
        return self.parent.at_index(index)


def watched(
    part: SubPipeline, num: int, seconds: float, pipeline: Any
) -> tuple[dict[Address, Any], ...]:
    """Watches two runs of a part of an unused pipeline.

    Returns:
        The evidence, the indices and the counts of a witness.
    """
    witness, clock = Witness(), Clock(seconds)
    with contextlib.suppress(Exception):  # of a user's code, which may fail at random
        places = {id(node): address for address, node in addresses(pipeline).items()}
        watching = WitnessedPipeline(witness, places)
        stream = watching.replaced(Subject(pipeline, part).stream)
        stream = Subject(stream).with_own_workers(0) or stream
        plain = Subject(stream).with_threads(0) or stream
        before = {address: kept_by(node) for address, node in watching.stages.items()}
        for _ in range(2):
            _watch_once(witness, plain, num, clock)
            for address, node in watching.stages.items():
                for kind, name in changes(before[address], kept_by(node)):
                    witness.add(address, kind, name)
    return witness.evidence, witness.indices, witness.counts


def _watch_once(witness: Witness, stream: Any, num: int, clock: Clock) -> None:
    witness.begin_again()
    it = iterate(stream)
    try:
        with witness.watching_calls():
            for _ in itertools.islice(it, num):
                if clock.is_over:
                    break
    finally:
        closed(it)
