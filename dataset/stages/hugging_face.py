"""``HuggingFaceIterDataset``: the examples of a streaming data set of Hugging Face's ``datasets``."""

from __future__ import annotations

import contextlib
import copy
import json
import sys
import weakref
from collections.abc import Generator
from functools import partial
from itertools import islice
from typing import Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.state import shown, state_count, state_field, state_flag
from gristmill.core.value import Value
from gristmill.dataset.bases.cells import Piece
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator
from gristmill.dataset.bases.length import Length, Unknown
from gristmill.dataset.bases.node import is_of_library
from gristmill.dataset.bases.parameters import Parameters, aside
from gristmill.dataset.bases.passing import PassingIterator
from gristmill.dataset.bases.traced import Traced, Tracing, refuse_to_trace
from gristmill.dataset.telling.failures import tell
from gristmill.sources.hugging_face import check_data_set
from gristmill.sources.hugging_face_stream import StreamFacts, examined, finish, fits, fresh, sharded

_EXAMPLES_BETWEEN_PLACES = 256  # how many are read again after an error, at most, where the library's states are exact
_ALL = range(sys.maxsize)


class HuggingFaceParameters(Parameters):
    dataset: Any = aside()  # what it is made of is described


class _Place(Value):
    """Where the library's stream was when the iterator had delivered ``index`` elements: its state, or its beginning."""

    index: int
    library_state: str  # empty at the beginning


_START = _Place(0, "")


class HuggingFaceIterDataset(IterDataset[Any]):
    """Returns the examples of a ``datasets.IterableDataset`` (``load_dataset(..., streaming=True)``), as it gives them.

    What was done to it by the library's own ``map``, ``filter``, ``with_format``, ``interleave_datasets``, … holds. The files are
    those that it had when it was loaded: workers get it as it is and list nothing anew.

    Order: the library's. The epoch that ``set_epoch`` gave it when this dataset was made is that of every iterator; ``repeat``
    gives the same examples in the same order again, so shuffle behind it. State: the library's ``state_dict`` as text, and how
    many elements there were. Restoring goes on with exactly the next example, any number of times: by the library's state where
    it is exact, which reads on in the file; else, for ``batch(by_column=...)``, ``map(batched=True)`` of Arrow tables, ``async``
    functions, files joined with a generator, and releases before 5.2, by reading from the
    beginning. Cost: what the library's own iteration costs.

    A shuffle with a buffer (``shuffle(buffer_size=1000)``) is refused, as the library loses what is in the buffer when it is
    resumed: shuffle files by ``shuffle(seed=..., buffer_size=1)`` and examples by ``window_shuffle`` behind this dataset.

    Workers (``mp_prefetch``) share the shards of the stream, worker ``i`` of ``n`` reads shards ``i``, ``i + n``, …, if it has as
    many and what was done to it looks at every example alone. Else every worker reads everything and keeps every ``n``-th
    example: do what is costly behind this dataset then, or call ``reshard()`` before.

    What fails in the library is an error of ``next``, which comes again: the library cannot go past it. Put functions that may
    fail behind this dataset (``.map(...)``), where ``skip_failed`` and ``tolerate`` go past them.

    Args:
        dataset: one split, loaded with ``streaming=True``, or made by ``to_iterable_dataset``. What is done to it later
            (``set_epoch``) does not matter.

    Raises:
        TypeError: it is something else: all splits, or one with random access (``HuggingFaceSource`` is for those).
        ValueError: it is shuffled with a buffer, or by a random generator without a seed.
        ImportError: ``datasets`` is not installed.

    Example:
        >>> import datasets
        >>> numbers = datasets.Dataset.from_dict({"x": range(5)}).to_iterable_dataset(num_shards=2)
        >>> it = iter(HuggingFaceIterDataset(numbers.filter(lambda row: row["x"] != 1)).map(lambda row: row["x"]))
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
        self._parameters = HuggingFaceParameters(dataset)
        self._data = fresh(dataset)
        self._facts = examined(self._data)
        self._kept = _ALL  # which examples of the stream are delivered

    @property
    def _described_parameters(self) -> dict[str, Any]:
        return self._facts.described

    def __str__(self) -> str:
        facts = self._facts.described
        return f"HuggingFaceIterDataset({', '.join([f'{name}={value}' for name, value in facts.items()])})"

    def _num_elements(self) -> Length:
        return Unknown()  # the files tell, when they are read

    @property
    def _element_spec(self) -> Any:
        # The answer of every stage that does not know it (see ``spec_of``): one that is wrong for some rows would be worse.
        raise NotImplementedError(
            f"{self} cannot say what its examples look like: features do not tell where values are missing, nor how long lists "
            "are. Put a map with an output_spec of its own behind it that needs no input_spec"
        )

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        """Keeps some of the shards, or of the examples: those of one of several workers."""
        del sequential_slice  # a shard is read in order in any case
        num_workers, worker = sl.step or 1, sl.start or 0
        is_share = sl.stop is None and 0 <= worker < num_workers
        if is_share and self._kept == _ALL and self._facts.can_share_shards and num_workers <= self._facts.num_shards:
            self._data = sharded(self._data, num_workers, worker)
            self._facts = examined(self._data)
        else:
            self._kept = self._kept[sl]

    def __iter__(self) -> DatasetIterator[Any]:
        return HuggingFaceDatasetIterator(self._data, self._facts, self._kept)

    def _traced(self, tracing: Tracing) -> Any:
        if not is_of_library(self):
            raise refuse_to_trace(self)
        return _TracedExamples(self)


class HuggingFaceDatasetIterator(BlockIterator[Any]):
    """One reader of a stream. It is made when it is needed, from the last known place, and dropped when it fails."""

    _flow = "stateful"  # an element does not add one to every count in the state
    _stays_on_error = True
    _finish = staticmethod(finish)  # which is there until the end of the program, as a name of the module may not be

    def __init__(self, data: Any, facts: StreamFacts, kept: range) -> None:
        super().__init__()
        self._data, self._facts, self._kept = data, facts, kept
        self._is_whole = kept == _ALL
        self._index = 0  # elements that were delivered
        self._is_at_end = False
        self._place_known = self._place_before = _START  # both at or before ``_index``, the second before the last element
        self._reader: Any = None  # a data set of our own, whose ``state_dict`` is that of
        self._examples: Generator[Any, None, None] | None = None  # what comes behind element ``_index``

    def __str__(self) -> str:
        facts = self._facts.described
        return f"HuggingFaceDatasetIterator({', '.join([f'{name}={value}' for name, value in facts.items()])})"

    @property
    def _described_parameters(self) -> dict[str, Any]:
        return self._facts.described

    def last_key(self) -> int:
        """Which example of the stream, of this worker's shards, was delivered last."""
        return self._kept[self._index - 1]

    def _num_read(self, index: int) -> int:
        """How many examples of the stream have been read when ``index`` elements have been delivered."""
        return self._kept[index - 1] + 1 if index else 0

    def _take(self, n: int) -> list[Any]:
        if self._is_at_end:
            return []
        before = self._mark()
        elements: list[Any] = []
        try:
            while len(elements) < n:
                num_wanted = min(n - len(elements), _EXAMPLES_BETWEEN_PLACES)
                part = self._read(num_wanted)
                elements += part
                if len(part) < num_wanted:
                    break
        except BaseException as error:  # an interrupt, too, which may come up anywhere
            self._drop_reader()
            self._index, self._is_at_end, self._place_known, self._place_before = before
            tell(error, self)
            raise
        return elements

    def _read(self, n: int) -> list[Any]:
        examples = self._examples if self._examples is not None else self._open()
        if self._is_whole:  # usual, and quicker
            part = list(islice(examples, n))
        else:
            first, step = self._kept[self._index] - self._num_read(self._index), self._kept.step
            part = list(islice(examples, first, first + (n - 1) * step + 1, step))
        self._index += len(part)
        if len(part) < n:
            self._is_at_end = True
            self._drop_reader()
        elif self._index - self._place_known.index >= _EXAMPLES_BETWEEN_PLACES:
            self._note_place()
        return part

    def _open(self) -> Generator[Any, None, None]:
        """Makes a reader, and has it read again what was delivered since the place that is known."""
        if self._closed:
            raise ValueError(f"{self} is closed")
        place = self._place_known
        self._reader = fresh(self._data)
        if place.library_state:
            self._reader.load_state_dict(json.loads(place.library_state))
        examples = iter(self._reader)
        num_again = self._num_read(self._index) - self._num_read(place.index)
        num_found = sum([1 for _ in islice(examples, num_again)])
        if num_found < num_again:
            raise StateMismatchError(
                f"the state of {self} is about a longer stream: {num_again - num_found} of the examples that it has delivered "
                "are not there any more. Restore it with the files that it was saved with"
            )
        self._examples = examples
        self._finalizer = weakref.finalize(self, _close_generator, examples)
        return examples

    def _drop_reader(self) -> None:
        examples, reader, self._examples, self._reader = self._examples, self._reader, None, None
        if examples is not None:
            self._finalizer.detach()
            examples.close()
        if reader is not None:
            self._finish(reader)

    def _note_place(self) -> None:
        if self._examples is None or not self._facts.is_exact or self._place_known.index == self._index:
            return
        self._place_before = self._place_known
        self._place_known = _Place(self._index, json.dumps(self._reader.state_dict()))

    def get_state(self) -> Any:
        if not self._is_at_end:
            self._note_place()
        return self._state(self._index, _START if self._is_at_end else self._place_known, is_at_end=self._is_at_end)

    def _state(self, index: int, place: _Place, *, is_at_end: bool = False) -> Any:
        return {
            "num_delivered": index,
            "num_since_library_state": index - place.index,
            "library_state": place.library_state,
            "is_at_end": is_at_end,
        }

    def _restore(self, state: Any) -> None:
        index = state_count(state, "num_delivered", self)
        since = state_count(state, "num_since_library_state", self)
        text = state_field(state, "library_state", self)
        is_at_end = state_flag(state, "is_at_end", self)
        if since > index or (text == "" and since != index):
            raise StateMismatchError(
                f"num_since_library_state in the state of {self} must be at most num_delivered, {index}, and the same where "
                f"library_state is empty, got {since}"
            )
        if text and is_at_end:
            raise StateMismatchError(f"library_state in the state of {self} must be empty at the end, got {shown(text)}")
        if text != "":
            self._check_library_state(text)
        self._go_to(index, is_at_end, _Place(index - since, text))

    def _check_library_state(self, text: Any) -> None:
        try:
            state = json.loads(text) if isinstance(text, str) else None
        except ValueError:
            state = None
        if not self._facts.is_exact or not fits(self._data, state):
            raise StateMismatchError(
                f"library_state in the state of {self} must be the text of a state_dict of an equal data set in the same epoch, "
                f"got {shown(text)}: restore it with the data set, the steps and the release of datasets that it was saved with"
            )

    def _go_to(self, index: int, is_at_end: bool, place: _Place) -> None:
        if index != self._index or place != self._place_known:
            self._drop_reader()
            self._place_known = self._place_before = place
        self._index, self._is_at_end = index, is_at_end

    def _mark(self) -> Any:
        return self._index, self._is_at_end, self._place_known, self._place_before

    def _return_to(self, mark: Any) -> None:
        index, is_at_end, known, before = mark
        if index != self._index or is_at_end != self._is_at_end:
            self._drop_reader()
            self._place_known, self._place_before = known, before
        self._index, self._is_at_end = index, is_at_end

    def _state_at(self, mark: Any) -> Any:
        index, is_at_end, known, _ = mark
        return self._state(index, _START if is_at_end else known, is_at_end=is_at_end)

    def _before_last(self) -> Any:
        if not self._index:
            return None
        index = self._index - 1
        places = [place for place in (self._place_known, self._place_before) if place.index <= index]
        return self._state(index, places[0]) if places else None

    def _skip(self) -> None:
        try:
            self._take(1)
        except Exception as error:
            # A generator of Python that has raised is at its end, and the library's state still stands before what failed.
            raise NotImplementedError(
                f"{self} cannot move past what failed: the library cannot. Do what may fail behind it, by .map(...) of the "
                "pipeline, where skip_failed() and tolerate() go past it; leave out damaged files when the data set is loaded"
            ) from error

    def close(self) -> None:
        super().close()
        self._drop_reader()


def _close_generator(examples: Generator[Any, None, None]) -> None:
    """Close a generator before the modules that it uses, unless another thread runs it."""
    with contextlib.suppress(ValueError):
        examples.close()


class _TracedExamples(IterDataset[Traced]):
    """The elements of ``ds``, with where they stand in the stream."""

    def __init__(self, ds: HuggingFaceIterDataset) -> None:
        super().__init__()
        self._ds = ds

    def _num_elements(self) -> Length:
        return Unknown()

    def set_slice(self, sl: slice, sequential_slice: bool = False) -> None:
        self._ds = copy.copy(self._ds)
        self._ds.set_slice(sl, sequential_slice)

    def __iter__(self) -> DatasetIterator[Traced]:
        return _TracedIterator(self._ds)


class _TracedIterator(PassingIterator[Traced]):
    _flow = "stateful"

    def __init__(self, ds: HuggingFaceIterDataset) -> None:
        super().__init__(ds.__iter__())
        self._ds = ds

    def _take(self, n: int) -> list[Traced]:
        taken: list[Traced] = []
        while len(taken) < n and (elements := self._source._take(1)):
            reader: Any = self._source
            taken.append(Traced(partial(_itself, elements[0]), [(Piece(str(self._ds), reader.last_key(), 0),)]))
        return taken


def _itself(x: Any) -> Any:
    return x


def _check(dataset: Any) -> None:
    check_data_set(
        dataset,
        "IterableDataset",
        "HuggingFaceIterDataset",
        for_other="it has random access: use MapDataset.source(HuggingFaceSource(dataset)), which shuffles all of it",
        how_to_load="datasets.load_dataset(name, split='train', streaming=True)",
        else_="load_dataset(..., streaming=True) gives one",
    )
