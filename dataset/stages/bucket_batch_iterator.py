"""The iterator of ``bucket_batch`` of streams: buckets of elements as they come, and what both twins are made with."""

from __future__ import annotations

import bisect
import re
from collections.abc import Callable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

from gristmill.core.errors import StateIndexError, StateMismatchError, as_int, check_word
from gristmill.core.state import shown, state_count, state_field
from gristmill.dataset.ahead.lookahead import Lookahead
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, go_to, snapshot, state_to_refill
from gristmill.dataset.bases.parameters import Parameters, function, silent
from gristmill.dataset.states.mixtures import drawn_until, has_mixtures
from gristmill.dataset.states.refilling import refilling
from gristmill.dataset.states.values import copied, given
from gristmill.dataset.telling.failures import tell
from gristmill.transforms.batching import Allocate, BufferPool
from gristmill.transforms.ragged import Padding, Rows

T = TypeVar("T")
OnLong = Literal["raise", "truncate", "drop"]

_NUMBERS = re.compile(r"([0-9]{1,12}(-[0-9]{1,12})?(,[0-9]{1,12}(-[0-9]{1,12})?)*)?")


def check_on_long(on_long: Any) -> None:
    check_word("on_long", on_long, "raise", "truncate", "drop")


class BucketParameters(Parameters):
    """What both twins are made with; ``boundaries`` are those that were chosen, ``batch_sizes`` those of all shards together."""

    boundaries: tuple[int, ...]
    max_tokens: int | None = silent()
    batch_sizes: tuple[int, ...]
    pad_to: Any
    pad_value: Any = silent()
    drop_remainder: bool
    on_long: OnLong
    with_lengths: bool

    def __post_init__(self) -> None:
        self._replace(drop_remainder=bool(self.drop_remainder), with_lengths=bool(self.with_lengths))
        check_on_long(self.on_long)

    @property
    def keeps_long(self) -> bool:
        """Whether what is longer than the last boundary is in the last bucket."""
        return self.on_long == "truncate"

    def padding(self) -> Padding:
        """What makes batches."""
        return Padding(self.pad_to, self.pad_value, self.with_lengths)

    def rows(self, bucket: int, num: int, num_real: int, lengths: Sequence[int], longest: int) -> Rows:
        """What a batch is to have of which ``num_real`` of ``num`` rows are there."""
        return Rows(
            num if self.with_lengths else num_real, num_real, lengths, self.boundaries[bucket], longest, self.boundaries[-1]
        )

    def spec(self, padding: Padding, spec: Any, num_shards: int) -> Any:
        """What batches look like of elements that look like ``spec``."""
        sizes = {size // num_shards for size in self.batch_sizes}
        is_known = len(sizes) == 1 and (self.drop_remainder or self.with_lengths)
        return padding.spec(spec, sizes.pop() if is_known else None, self.boundaries[0] if len(self.boundaries) == 1 else None)


class StreamBucketParameters(BucketParameters):
    length_fn: Callable[[Any], int] = function()


class _At(NamedTuple):
    """Where an iterator is.

    Args:
        parent: the parent's state before the oldest element that is held; ``None`` as long as nothing was read.
        num_read: elements that were read since, that one too.
        held: which of these are held, counted from it.
        num_long: elements before that were longer than the last boundary, since the beginning.
    """

    parent: Any
    num_read: int = 0
    held: tuple[int, ...] = ()
    num_long: int = 0


# An element in a bucket: its number, itself, its length, and what gives the parent's state before a number.
_Held: TypeAlias = tuple[int, Any, int, Callable[[int], Any]]


class _Memory:
    """What was read, and is not in a state.

    Args:
        parent: the iterator to read from.
        at: where it is.
        num_buckets: how many there are.
    """

    def __init__(self, parent: DatasetIterator[Any], at: _At, num_buckets: int) -> None:
        self._parent = parent
        self.ahead = Lookahead(parent)
        self.buckets: list[list[_Held]] = [[] for _ in range(num_buckets)]
        self.full: int | None = None  # the bucket that is to be given out next
        self.num_long = at.num_long
        self.num_known, self._held = at.num_read, frozenset(at.held)  # elements that were read before, to be read again

    @property
    def is_known(self) -> bool:
        """Whether the next element was read before."""
        return self.ahead.num_passed < self.num_known

    @property
    def is_gone(self) -> bool:
        """Whether the next element was read before, and is not held."""
        return self.is_known and self.ahead.num_passed not in self._held

    @property
    def at(self) -> _At:
        """Where it has come."""
        first = min([bucket[0] for bucket in self.buckets if bucket], default=None, key=itemgetter(0))
        if first is None:
            return _At(self.ahead.state, num_long=self.num_long)
        oldest, *_, state = first
        numbers = sorted([held[0] - oldest for bucket in self.buckets for held in bucket])
        before = state_to_refill(self._parent, state(oldest), lambda: self.ahead.state)
        if has_mixtures(before):
            before = drawn_until(before, self.ahead.state)
        return _At(before, self.ahead.num_passed - oldest, tuple(numbers), self.num_long)


class BucketBatchDatasetIterator(BlockIterator[T]):
    """As ``PackIterator`` does, it keeps what it has read through errors, and reads it again after an interrupt."""

    _flow = "stateful"
    _is_costly_to_restore = True
    _refills = True
    _stays_on_error = True
    _parameters: StreamBucketParameters

    def __init__(self, parent: DatasetIterator[Any], parameters: StreamBucketParameters, padding: Padding) -> None:
        super().__init__(parent)
        self._source = parent
        self._parameters, self._padding = parameters, padding
        self._allocate: Allocate = BufferPool()
        self._begin(_At(None))

    @property
    def num_long(self) -> int:
        """How many elements have come that are longer than the last boundary, and were truncated or dropped."""
        return self._at.num_long

    def _num_long_elements(self) -> int:
        return self.num_long

    def _begin(self, at: _At) -> None:
        self._at = at
        self._memory: _Memory | None = self._new_memory()  # ``None`` after an interrupt

    def _new_memory(self) -> _Memory:
        return _Memory(self._source, self._at, len(self._parameters.boundaries))

    def _take(self, n: int) -> list[Any]:
        memory = self._take_memory()
        began = self._at
        batches: list[Any] = []
        try:
            while len(batches) < n and self._fill(memory):
                batches.append(self._batch(memory))
                self._empty(memory)
        except BaseException as error:
            if not memory.ahead.has_failed:
                tell(error, self)
            if isinstance(error, Exception) and not batches:
                self._memory = memory
            raise
        self._at, self._memory = memory.at, memory
        if batches:
            self._last = began
        return batches

    def _take_memory(self) -> _Memory:
        """What is in memory, taken away, so that it cannot be used again by whoever is interrupted."""
        memory, self._memory = self._memory, None
        if memory is None:
            if self._at.parent is not None:
                go_to(self._source, copied(self._at.parent))
            memory = self._new_memory()
        memory.ahead.has_failed = False
        if self._at.parent is None:
            self._at = self._at._replace(parent=memory.ahead.state)
        return memory

    def _fill(self, memory: _Memory) -> bool:
        """Reads until a bucket is full, or all has been read; false if there is nothing to give out."""
        while memory.full is None:
            if not self._read(memory):
                left = [] if self._parameters.drop_remainder else [b for b, bucket in enumerate(memory.buckets) if bucket]
                memory.full = left[0] if left else None
                return bool(left)
        return True

    def _read(self, memory: _Memory) -> bool:
        """Reads elements, up to one that fills a bucket; false at the end."""
        ahead = memory.ahead
        try:
            block = ahead.block()
        except Exception:
            if not (ahead.has_failed and memory.is_gone):
                raise
            ahead.skip()
            return True
        if not block and memory.is_known:
            raise self._changed("the data end before all that was read")
        states = ahead.states()
        for element in block:
            self._put(memory, element, states)
            ahead.position += 1
            if memory.full is not None:
                break
        return bool(block)

    def _put(self, memory: _Memory, element: Any, states: Callable[[int], Any]) -> None:
        """Puts the next element into its bucket, if it goes into one."""
        if element is None or (memory.num_known and memory.is_gone):
            return
        given = self._parameters
        length = given.length_fn(element)
        if type(length) is not int or length < 0:
            length = as_int("the length of an element, which length_fn gives,", length, minimum=0)
        bucket = bisect.bisect_left(given.boundaries, length)
        if bucket == len(memory.buckets):
            if given.on_long == "raise":
                raise ValueError(
                    f"an element of length {length} is longer than the last boundary, {given.boundaries[-1]}: pass "
                    "on_long='truncate' or 'drop', or a greater boundary"
                )
            memory.num_long += not memory.is_known
            if given.on_long == "drop":
                return
            bucket -= 1
        held = memory.buckets[bucket]
        held.append((memory.ahead.num_passed, element, length, states))
        if len(held) == given.batch_sizes[bucket]:
            if memory.is_known:
                raise self._changed("more elements of one bucket are held than a batch has rows")
            memory.full = bucket

    def _changed(self, what: str) -> StateIndexError:
        return StateIndexError(f"the state of {self} does not go with what is read: {what}. Data or arguments have changed since")

    def _batch(self, memory: _Memory) -> Any:
        """The batch of the bucket that is full, or of what is left in one."""
        assert memory.full is not None
        held, given = memory.buckets[memory.full], self._parameters
        _, elements, lengths, _ = zip(*held, strict=True)
        rows = given.rows(memory.full, given.batch_sizes[memory.full], len(held), lengths, max(lengths))
        return self._padding.collate(elements, rows, self._allocate)

    def _empty(self, memory: _Memory) -> None:
        assert memory.full is not None
        memory.buckets[memory.full] = []
        memory.full = None

    def _before_last(self) -> Any:
        return None if self._last is None else self._state(self._last)

    def get_state(self) -> Any:
        return self._state(self._at)

    def _state(self, at: _At) -> Any:
        parent = self._source.get_state() if at.parent is None else copied(at.parent)
        return {"parent": parent, "num_read": at.num_read, "held": _as_text(at.held), "num_long": at.num_long}

    def _restore(self, state: Any) -> None:
        parent = state_field(state, "parent", self)
        num_read, num_long = [state_count(state, key, self) for key in ("num_read", "num_long")]
        held = _as_numbers(state_field(state, "held", self), sum(self._parameters.batch_sizes))
        if held is None or held[:1] != [0][:num_read] or any([b <= a for a, b in pairwise([*held, num_read])]):
            raise StateMismatchError(
                f"held in the state of {self} must be numbers that increase from 0 and are below num_read, {num_read}, such as "
                f"'0-2,5', and no more than the buckets hold, got {shown(state['held'])}"
            )
        at = _At(given(parent), num_read, tuple(held), num_long)
        with refilling(self, f"{len(held)} elements" if held else None):
            self._source.set_state(copied(at.parent))
        if self._counts_faults or has_mixtures(at.parent):  # a text does not say whose faults they are, nor the weights of now
            at = at._replace(parent=copied(snapshot(self._source)))
        self._begin(at)

    def _allocate_with(self, allocate: Allocate) -> None:
        self._allocate = allocate

    def _skip(self) -> None:
        memory = self._take_memory()
        try:
            if not self._fill(memory):
                self._memory = memory
                return
        except StateMismatchError:
            raise
        except Exception:  # of one element, before or here
            memory.ahead.skip()
            self._read_known(memory)
        else:  # of making a batch
            self._empty(memory)
        self._at, self._memory = memory.at, memory

    def _read_known(self, memory: _Memory) -> None:
        """Reads what was read before, without what fails."""
        while memory.is_known:
            try:
                self._read(memory)
            except StateMismatchError:
                raise
            except Exception:
                memory.ahead.skip()


def _as_text(numbers: Sequence[int]) -> str:
    """Increasing ``numbers`` as a text, as states do not change their shape: ``"0-2,5"``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join(["-".join(map(str, part)) for part in parts])


def _as_numbers(text: Any, most: int) -> list[int] | None:
    """The numbers of ``_as_text``; ``None`` if it is no such text, or there are too many in it."""
    if not isinstance(text, str) or not _NUMBERS.fullmatch(text):
        return None
    numbers: list[int] = []
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        run = range(int(first), int(last or first) + 1)
        if len(run) > most - len(numbers):
            return None
        numbers += run
    return numbers
