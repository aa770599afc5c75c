"""``HuggingFaceIterDataset``: the examples of a streaming data set of Hugging Face's
``datasets``.
"""

from __future__ import annotations

import contextlib
import json
import sys
import weakref
from collections.abc import Generator, Iterator
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import shown, state_count, state_field, state_flag
from gristmill.core.value import Value
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.parameters import Described, Parameters, field
from gristmill.dataset.engine.files import Reading
from gristmill.dataset.engine.iterators import StreamIterator
from gristmill.dataset.engine.stream import Cell, Pos
from gristmill.dataset.errors.context import add_error_context
from gristmill.dataset.stages.files import ReadingIterDataset
from gristmill.sources.hugging_face import check_data_set
from gristmill.sources.hugging_face_stream import (
    StreamFacts,
    examined,
    finish,
    fits,
    fresh,
    sharded,
)

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

# how many are read again after an error, at most, where the library's states are exact
_EXAMPLES_BETWEEN_PLACES = 256
_ALL = range(sys.maxsize)


class HuggingFaceParameters(Parameters):
    dataset: Any = field(in_checkpoint=False, in_repr=False)  # what it is made of is described


class _Place(Value):
    """The position of the library's stream after ``index`` elements, or its beginning."""

    index: int
    library_state: str  # empty at the beginning


_START = _Place(0, "")


class _Position(NamedTuple):
    num: int  # elements before it
    place: _Place  # at or before it
    is_at_end: bool = False


class Examples(Reading):
    """The examples of a stream of the library, with a single reader. It is opened when it is
    needed, from the last known place, and dropped when it fails.

    Args:
        data: the library's data set.
        facts: its properties.
        kept: which of its examples are delivered.
    """

    _is_closed = False
    _reader: Any = None  # a data set whose ``state_dict`` is that of
    _examples: Generator[Any, None, None] | None = None  # the position after element
    _index = 0
    _known = _START  # the place that was noted last
    # which is there until the end of the program, as a name of the module may not be
    _finish = staticmethod(finish)

    def __init__(self, stage: DatasetNode, data: Any, facts: StreamFacts, kept: range) -> None:
        super().__init__(stage)
        self._data, self._facts, self._kept = data, facts, kept

    @property
    def name(self) -> str:
        return "HuggingFaceDatasetIterator"

    @property
    def parameters(self) -> Parameters:
        return Described(self._facts.described)

    def __str__(self) -> str:
        return f"{self.name}({_as_text(self._facts)})"

    def start(self) -> _Position:
        return _Position(0, _START)

    def _run(self, cell: Cell) -> Iterator[Any]:
        index, place, is_at_end = cell.pos
        if is_at_end:
            return
        try:
            for x in self._examples_from(index, place):
                self._index = index = index + 1
                if index - place.index >= _EXAMPLES_BETWEEN_PLACES:
                    place = self._place_at(index, place)
                cell.pos = _Position(index, place)
                yield (x, x := None)[0]
        except GeneratorExit:
            raise
        except BaseException as error:  # an interrupt, too, which may come up anywhere
            self._drop_reader()
            add_error_context(error, self)
            if isinstance(error, Exception):
                cell.past_failed = partial(self._pass, cell)
            raise
        self._drop_reader()
        cell.pos = _Position(index, _START, True)

    def _examples_from(self, index: int, place: _Place) -> Iterator[Any]:
        """Return the examples that are delivered after element ``index``."""
        if self._examples is None or self._index != index:
            self._drop_reader()
            self._open(index, self._known if place.index < self._known.index <= index else place)
        assert self._examples is not None
        if self._kept == _ALL:
            return self._examples
        left = self._kept[index:]
        num_read = self._num_read(index)
        if left:
            return islice(self._examples, left[0] - num_read, left[-1] + 1 - num_read, left.step)
        return iter(())

    def _num_read(self, index: int) -> int:
        """Return how many examples have been read for ``index`` elements."""
        return self._kept[index - 1] + 1 if index else 0

    def _open(self, index: int, place: _Place) -> None:
        """Make a reader, and let it read again what was delivered since ``place``."""
        if self._is_closed:
            raise ValueError(f"{self} is closed")
        self._reader = fresh(self._data)
        if place.library_state:
            self._reader.load_state_dict(json.loads(place.library_state))
        examples = iter(self._reader)
        num_again = self._num_read(index) - self._num_read(place.index)
        num_found = sum([1 for _ in islice(examples, num_again)])
        if num_found < num_again:
            raise StateMismatchError(
                f"the state of {self} is about a longer stream: {num_again - num_found} of the"
                " examples that it has delivered are not there any more. Restore it with the files"
                " that it was saved with"
            )
        self._examples, self._index = examples, index
        self._finalizer = weakref.finalize(self, _close_generator, examples)

    def _drop_reader(self) -> None:
        examples, reader, self._examples, self._reader = self._examples, self._reader, None, None
        if examples is not None:
            self._finalizer.detach()
            examples.close()
        if reader is not None:
            self._finish(reader)

    def _place_at(self, index: int, place: _Place) -> _Place:
        """Return the place at ``index``, if it can be known; else ``place``, before it."""
        if place.index == index or not self._facts.is_exact:
            return place
        if self._known.index != index and self._examples is not None and self._index == index:
            self._known = _Place(index, json.dumps(self._reader.state_dict()))
        return self._known if self._known.index == index else place

    def save(self, pos: Pos) -> Any:
        index, place, is_at_end = pos
        place = _START if is_at_end else self._place_at(index, place)
        return {
            "num_delivered": index,
            "num_since_library_state": index - place.index,
            "library_state": place.library_state,
            "is_at_end": is_at_end,
        }

    def saves_anywhere(self) -> bool:
        return False  # it asks the reader

    def load(self, state: object) -> _Position:
        index = state_count(state, "num_delivered", self)
        since = state_count(state, "num_since_library_state", self)
        text = state_field(state, "library_state", self)
        is_at_end = state_flag(state, "is_at_end", self)
        if since > index or (text == "" and since != index):
            raise StateMismatchError(
                f"num_since_library_state in the state of {self} must be at most num_delivered,"
                f" {index}, and the same where library_state is empty, got {since}"
            )
        if text and is_at_end:
            raise StateMismatchError(
                f"library_state in the state of {self} must be empty at the end, got {shown(text)}"
            )
        if text != "":
            self._check_library_state(text)
        return _Position(index, _Place(index - since, text), is_at_end)

    def _check_library_state(self, text: object) -> None:
        try:
            state = json.loads(text) if isinstance(text, str) else None
        except ValueError:
            state = None
        if not self._facts.is_exact or not fits(self._data, state):
            raise StateMismatchError(
                f"library_state in the state of {self} must be the text of a state_dict of an equal"
                f" data set in the same epoch, got {shown(text)}: restore it with the data set, the"
                " steps and the release of datasets that it was saved with"
            )

    def key_between(self, before: Pos, after: Pos) -> int:
        return self._kept[after.num - 1]

    def _pass(self, cell: Cell) -> None:
        try:
            next(self.run(cell), None)
        except Exception as error:
            # A generator of Python that has raised is at its end, and the library's state is before
            # what failed.
            raise NotImplementedError(
                f"{self} cannot move past what failed: the library cannot. Do what may fail in"
                " a stage after it, such as .map(...), where skip_failed() and tolerate() work;"
                " skip damaged files when the data set is loaded"
            ) from error

    def close(self) -> None:
        self._is_closed = True
        self._drop_reader()


def _close_generator(examples: Generator[Any, None, None]) -> None:
    """Close a generator before the modules that it uses, unless another thread runs it."""
    with contextlib.suppress(ValueError):
        examples.close()


class HuggingFaceIterDataset(ReadingIterDataset[Any]):
    """Returns the examples of a ``datasets.IterableDataset`` (``load_dataset(...,
    streaming=True)``), as it gives them.

    What was done to it by the library's own ``map``, ``filter``, ``with_format``,
    ``interleave_datasets``, … holds. The files are those that it had when it was loaded: workers
    get it as it is and list nothing again.

    Order: the library's. The epoch that ``set_epoch`` gave it when this dataset was made is that of
    every iterator; ``repeat`` gives the same examples in the same order again, so shuffle
    downstream of it. State: the library's ``state_dict`` as text, and how many elements there were.
    Restoring continues with exactly the next example, any number of times: by the library's state
    where it is exact, which reads on in the file; else, for ``batch(by_column=...)``,
    ``map(batched=True)`` of Arrow tables, ``async`` functions, files joined with a generator, and
    releases before 5.2, by reading from the beginning. Cost: what the library's own iteration
    costs.

    A shuffle with a buffer (``shuffle(buffer_size=1000)``) is refused, as the library loses what is
    in the buffer when it is resumed: shuffle files by ``shuffle(seed=..., buffer_size=1)`` and
    examples by ``window_shuffle`` downstream of this dataset.

    Workers (``mp_prefetch``) share the shards of the stream, worker ``i`` of ``n`` reads shards
    ``i``, ``i + n``, …, if it has as many and what was done to it looks at every example alone.
    Else every worker reads everything and keeps every ``n``-th example: run costly stages
    downstream of this dataset then, or call ``reshard()`` before.

    What fails in the library is an error of ``next``, which comes again: the library cannot go past
    it. Put functions that may fail downstream of this dataset (``.map(...)``), where
    ``skip_failed`` and ``tolerate`` go past them.

    Args:
        dataset: one split, loaded with ``streaming=True``, or made by ``to_iterable_dataset``. What
            is done to it later (``set_epoch``) does not matter.

    Raises:
        TypeError: it is something else: all splits, or one with random access
            (``HuggingFaceSource`` is for those).
        ValueError: it is shuffled with a buffer, or by a random generator without a seed.
        ImportError: ``datasets`` is not installed.

    Example:
        >>> import datasets
        >>> numbers = datasets.Dataset.from_dict({"x": range(5)}).to_iterable_dataset(num_shards=2)
        >>> ds = HuggingFaceIterDataset(numbers.filter(lambda row: row["x"] != 1))
        >>> it = iter(ds.map(lambda row: row["x"]))
        >>> next(it), next(it)
        (0, 2)
        >>> state = it.get_state()
        >>> list(it)
        [3, 4]
        >>> it.set_state(state)
        >>> next(it)
        3
    """

    def __init__(self, dataset: Any) -> None:
        super().__init__()
        _check(dataset)
        self._gm_parameters = HuggingFaceParameters(dataset)
        self._gm_data = fresh(dataset)
        self._facts = examined(self._gm_data)
        self._kept = _ALL  # which examples of the stream are delivered

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return self._facts.described

    def __str__(self) -> str:
        return f"HuggingFaceIterDataset({_as_text(self._facts)})"

    @property
    def _element_spec(self) -> Any:
        # The answer of every stage that does not know it (see ``spec_of``): one that is wrong for
        # some rows would be worse.
        raise NotImplementedError(
            f"{self} cannot say what its examples look like: features do not say where values are"
            " missing, nor how long lists are. Put a map with an output_spec of its own after it"
            " that needs no input_spec"
        )

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps some of the shards, or of the examples: those of one of several workers."""
        del sequential_slice  # a shard is read in order in any case
        num_workers, worker = sl.step or 1, sl.start or 0
        is_share = sl.stop is None and 0 <= worker < num_workers
        if (
            is_share
            and self._kept == _ALL
            and self._facts.can_share_shards
            and num_workers <= self._facts.num_shards
        ):
            self._gm_data = sharded(self._gm_data, num_workers, worker)
            self._facts = examined(self._gm_data)
        else:
            self._kept = self._kept[sl]

    def __iter__(self) -> DatasetIterator[Any]:
        make = partial(Examples, data=self._gm_data, facts=self._facts, kept=self._kept)
        return StreamIterator(self, [], make)


def _check(dataset: DatasetNode) -> None:
    check_data_set(
        dataset,
        "IterableDataset",
        "HuggingFaceIterDataset",
        for_other=(
            "it has random access: use MapDataset.source(HuggingFaceSource(dataset)), which"
            " shuffles all of it"
        ),
        how_to_load="datasets.load_dataset(name, split='train', streaming=True)",
        else_="load_dataset(..., streaming=True) gives one",
    )


def _as_text(facts: StreamFacts) -> str:
    return ", ".join([f"{name}={value}" for name, value in facts.described.items()])
