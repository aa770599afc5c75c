"""``bucket_batch``: batches of elements of similar lengths."""

from __future__ import annotations

import bisect
import logging
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import Any, Literal, NamedTuple, TypeAlias, TypeVar

import numpy as np

from gristmill.core.errors import StateIndexError, StateMismatchError, as_int
from gristmill.core.indices import Indices, as_ints
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.core.state import shown, state_count, state_field
from gristmill.dataset.ahead.lookahead import Lookahead
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import BlockIterator, DatasetIterator, go_to, iterate
from gristmill.dataset.bases.length import Infinite, Length, at_most, num_elements
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset, not_over_a_part, read
from gristmill.dataset.bases.node import dropping_steps, random_seed, spec_of
from gristmill.dataset.bases.origins import Part
from gristmill.dataset.bases.parameters import Parameters, aside, function, silent
from gristmill.dataset.bucket_plan import BucketPlan, Members, base_of
from gristmill.dataset.states.refilling import refilling
from gristmill.dataset.states.values import copied, given
from gristmill.dataset.telling.failures import tell
from gristmill.transforms.batching import Allocate, BufferPool
from gristmill.transforms.length_buckets import Lengths, check_batch_sizes, check_boundaries, chosen_boundaries
from gristmill.transforms.ragged import Padding, Rows

T = TypeVar("T")
OnLong = Literal["raise", "truncate", "drop"]

_log = logging.getLogger("gristmill")
_NUMBERS = re.compile(r"([0-9]{1,12}(-[0-9]{1,12})?(,[0-9]{1,12}(-[0-9]{1,12})?)*)?")


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


class MapBucketParameters(BucketParameters):
    lengths: Any = aside()
    window: int
    seed: int = silent()
    shard_options: ShardOptions = aside(in_text=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._replace(window=as_int("window", self.window, minimum=1))
        if self.shard_options.shard_count > 1 and not (self.drop_remainder or self.with_lengths):
            raise ValueError(
                "with several shards all batches must have as many rows, also those of what is left at the end of an epoch: pass "
                "with_lengths=True, which fills them up with rows of length 0, or drop_remainder=True"
            )


class StreamBucketParameters(BucketParameters):
    length_fn: Callable[[Any], int] = function()


def check_on_long(on_long: Any) -> None:
    if on_long not in ("raise", "truncate", "drop"):
        raise ValueError(f"on_long must be 'raise', 'truncate' or 'drop', got {on_long!r:.100}")


class BucketBatchMapDataset(BlockMapDataset[T]):
    """Batches of elements of similar lengths; see ``MapDataset.bucket_batch``.

    Order: within each window of the parent's order, batches are permuted by ``index_shuffle`` with seed ``seed + e * n + w``, for
    window ``w`` of the ``n`` in epoch ``e``. Cost: planning takes about 0.1 µs per length; then one copy per leaf.

    Attributes:
        num_long: how many elements of an epoch are longer than the last boundary, which were truncated or dropped.
    """

    _parameters: MapBucketParameters

    def __init__(
        self,
        parent: Any,
        lengths: Any,
        boundaries: int | Sequence[int],
        max_tokens: int | None = None,
        batch_sizes: int | Sequence[int] | None = None,
        window: int = 65_536,
        seed: int | None = None,
        pad_to: Any = "boundary",
        pad_value: Any = 0,
        drop_remainder: bool = False,
        on_long: OnLong = "raise",
        with_lengths: bool = False,
        shard_options: ShardOptions | None = None,
    ) -> None:
        super().__init__(parent)
        if sparse := dropping_steps(parent):
            raise ValueError(
                f"cannot batch after {sparse[0]}: it may leave out elements, and batches by index would have holes. "
                "Call to_iter_dataset() before bucket_batch(), with a function that gives the length of an element"
            )
        if isinstance(num_elements(parent), Infinite):
            raise ValueError(f"cannot plan batches of {parent}, which is endless: call repeat() after bucket_batch()")
        check_on_long(on_long)
        shard = NoSharding() if shard_options is None else shard_options
        if not isinstance(shard, ShardOptions):
            raise TypeError(f"shard_options must be a ShardOptions, got {shown(shard)}")
        found = _lengths_of(base_of(parent), lengths)
        limits = _boundaries(found, boundaries, max_tokens, on_long, shard.shard_count)
        sizes = check_batch_sizes(limits, max_tokens, batch_sizes, num_shards=shard.shard_count)
        has_seed = seed is not None or self._default_seed is not None
        seed = random_seed(self, seed, "bucket_batch", bits=32) if has_seed else 0
        common = limits, max_tokens, sizes, pad_to, pad_value, drop_remainder, on_long, with_lengths
        self._parameters = given = MapBucketParameters(*common, found, window, seed, shard)
        self._padding = self._parameters.padding()
        self._plan = BucketPlan(
            parent, found, limits, given.batch_sizes, given.window, given.seed, given.drop_remainder, given.keeps_long
        )
        self._allocate = BufferPool()
        self._tell_long()

    def _tell_long(self) -> None:
        given, num = self._parameters, self.num_long
        if not num:
            return
        text = f"{num} of {len(self._parent)} elements are longer than the last boundary, {given.boundaries[-1]}"
        if given.on_long == "raise":
            key, length = given.lengths.first_longer(given.boundaries[-1])
            raise ValueError(
                f"{text}: lengths[{key}] is {length}, for one. Pass on_long='truncate' or 'drop', or boundaries up to the "
                f"greatest length, {given.lengths.longest}"
            )
        _log.warning("%s, and are %s", text, "truncated to it" if given.keeps_long else "dropped")

    @property
    def num_long(self) -> int:
        """How many elements of an epoch are longer than the last boundary, which were truncated or dropped."""
        return self._plan.num_long

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The greatest length of each bucket."""
        return self._parameters.boundaries

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Rows of the batches of each bucket, of all shards together."""
        return self._parameters.batch_sizes

    def __len__(self) -> int:
        return self._plan.num_batches

    @property
    def _described_parameters(self) -> dict[str, Any]:
        return {**super()._described_parameters, "elements_per_bucket": self._plan.counts.tolist()}

    @property
    def _element_spec(self) -> Any:
        given = self._parameters
        return given.spec(self._padding, spec_of(self._parent), given.shard_options.shard_count)

    def _over(self, replaced: Callable[[Any], Any]) -> BucketBatchMapDataset[T]:
        raise not_over_a_part(self, "knows the lengths of all elements")

    def _block(self, indices: Indices) -> list[Any]:
        self._check_not_empty(len(self), indices)
        return [self._batch(i) for i in as_ints(indices)]

    def _members(self, index: int) -> tuple[Members, slice, int]:
        """The elements of a batch, which of them are this shard's, and how many rows that has if none is missing."""
        members, shard = self._plan.members(index), self._parameters.shard_options
        size = self._parameters.batch_sizes[members.bucket] // shard.shard_count
        return members, slice(shard.shard_index * size, (shard.shard_index + 1) * size), size

    def _batch(self, index: int) -> Any:
        try:
            members, own, size = self._members(index)
        except Exception as error:
            tell(error, self, [index])
            raise
        num_real = len(members.indices[own])
        here = own if num_real else slice(1)  # what rows look like is known by an element alone
        elements = read(self._parents[0], members.indices[here])
        rows = self._parameters.rows(members.bucket, size, num_real, members.lengths[here], max(members.lengths))
        try:
            if any([element is None for element in elements]):
                raise ValueError(
                    "an element of this batch is None: a step before bucket_batch() leaves elements out. Call to_iter_dataset() "
                    "before it"
                )
            return self._padding.collate(elements, rows, self._allocate)
        except Exception as error:
            tell(error, self, [index])
            raise

    def _origins(self, index: int) -> Iterable[Part]:
        members, own, _ = self._members(index)
        return [Part(self._parent, i) for i in members.indices[own] or members.indices[:1]]


def _lengths_of(base: MapDataset[Any], lengths: Any) -> Lengths:
    """``lengths``, or those that the source of ``base`` has, one for each element of ``base``."""
    if lengths is None:
        lengths = getattr(base, "lengths", None)
        if lengths is None:
            raise ValueError(f"lengths must be given, since {base} has no attribute lengths: an array with one for each record")
    found = lengths if isinstance(lengths, Lengths) else Lengths(lengths)
    if len(found) != len(base):
        raise ValueError(
            f"lengths must have one length for each element of {base}, {len(base)}, whatever part of them is used and in "
            f"whatever order, got {len(found)}"
        )
    return found


def _boundaries(lengths: Lengths, boundaries: Any, max_tokens: int | None, on_long: OnLong, num_shards: int) -> tuple[int, ...]:
    if not isinstance(boundaries, int | np.integer) or isinstance(boundaries, bool):
        return check_boundaries(boundaries)
    if not len(lengths):
        raise ValueError(f"boundaries must be lengths where there are no records to choose {boundaries} by, got that number")
    longest = None if max_tokens is None else max(1, as_int("max_tokens", max_tokens, minimum=1) // num_shards)
    number = as_int("boundaries", boundaries, minimum=1)
    return tuple(chosen_boundaries(lengths, number, longest, keep_long=on_long != "drop"))


class BucketBatchIterDataset(IterDataset[T]):
    """Batches of elements of similar lengths, each as soon as a bucket is full; see ``IterDataset.bucket_batch``.

    Order: that in which buckets become full; at the end, what is left in them, shorter elements first. State: the parent's before
    the oldest element that is held, how many were read since, and which of those are held; to continue there, these are read
    again. Cost: about 1 µs per element, and one copy per leaf.
    """

    _parameters: StreamBucketParameters

    def __init__(
        self,
        parent: Any,
        length_fn: Callable[[Any], int],
        boundaries: Sequence[int],
        max_tokens: int | None = None,
        batch_sizes: int | Sequence[int] | None = None,
        pad_to: Any = "boundary",
        pad_value: Any = 0,
        drop_remainder: bool = False,
        on_long: OnLong = "raise",
        with_lengths: bool = False,
    ) -> None:
        super().__init__(parent)
        if not callable(length_fn):
            raise TypeError(f"length_fn must be a callable that gives the length of an element, got {shown(length_fn)}")
        if isinstance(boundaries, int | np.integer):
            raise TypeError(
                f"boundaries must be a sequence of lengths, got {boundaries}: the lengths in a stream are not known beforehand. "
                "bucket_boundaries(lengths, number) chooses them by some"
            )
        limits = check_boundaries(boundaries)
        sizes = check_batch_sizes(limits, max_tokens, batch_sizes)
        common = limits, max_tokens, sizes, pad_to, pad_value, drop_remainder, on_long, with_lengths
        self._parameters = StreamBucketParameters(*common, length_fn)
        self._padding = self._parameters.padding()

    def _num_elements(self) -> Length:
        return at_most(num_elements(self._parent))  # a batch has one of them at least

    @property
    def _element_spec(self) -> Any:
        return self._parameters.spec(self._padding, spec_of(self._parent), 1)

    def __iter__(self) -> DatasetIterator[T]:
        return BucketBatchDatasetIterator(iterate(self._parent), self._parameters, self._padding)


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
        return _At(state(oldest), self.ahead.num_passed - oldest, tuple(numbers), self.num_long)


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

    def _begin(self, at: _At) -> None:
        self._at = at
        self._memory: _Memory | None = self._new_memory()  # ``None`` after an interrupt

    def _new_memory(self) -> _Memory:
        return _Memory(self._source, self._at, len(self._parameters.boundaries))

    def _take(self, n: int) -> list[Any]:
        memory = self._take_memory()
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

    def get_state(self) -> Any:
        at = self._at
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
