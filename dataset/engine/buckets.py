"""The stream of batches of elements of similar lengths."""

from __future__ import annotations

import bisect
import re
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise
from operator import itemgetter
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.core.errors import StateIndexError, StateMismatchError, as_int
from gristmill.core.state import shown, state_count, state_field
from gristmill.dataset.engine.packing import Collected, Collecting, less
from gristmill.dataset.engine.stream import Cell, Pos, Stream, pass_outputs
from gristmill.dataset.errors.context import add_error_context
from gristmill.transforms.batching import Allocate, BufferPool
from gristmill.transforms.ragged import Padding

if TYPE_CHECKING:
    from gristmill.dataset.stages.bucket_parameters import StreamBucketParameters

_NUMBERS = re.compile(r"([0-9]{1,12}(-[0-9]{1,12})?(,[0-9]{1,12}(-[0-9]{1,12})?)*)?")


class Held(NamedTuple):
    """An element in a bucket.

    Args:
        num: its number.
        element: the element.
        length: its length.
        before: the parent's position before it.
        counts: how many choices each stage upstream had made there.
    """

    num: int
    element: Any
    length: int
    before: Pos
    counts: dict[str, int]


class Buckets:
    """Elements that are held for batches.

    Args:
        num: how many buckets there are.
        num_known: elements, from where the collection began, that were read in an earlier run.
        num_long: elements so far that were longer than the last boundary.
    """

    def __init__(self, num: int, num_known: int, num_long: int) -> None:
        self.held: list[list[Held]] = [[] for _ in range(num)]
        self.num_known = num_known
        self.num_long = num_long
        self.full: int | None = None  # the bucket of the next batch, if that can be made

    def all_held(self) -> list[Held]:
        """Return what is held, the oldest element first."""
        return sorted([held for bucket in self.held for held in bucket], key=itemgetter(0))


class BucketBatch(Collecting[Buckets]):
    """Batches of elements of similar lengths, each as soon as its bucket is full.

    The position: the parent's before the oldest element that is held, how many elements were read
    since, the numbers of those that are held, how many elements were too long.
    """

    own = (0, (), 0)

    def __init__(
        self, stage: Any, parent: Stream, given: StreamBucketParameters, padding: Padding
    ) -> None:
        super().__init__(stage, parent)
        self.given = given
        self.padding = padding
        self._allocate: Allocate = BufferPool()

    def _run(self, cell: Cell) -> Iterator[Any]:
        _, num_read, held, num_long, _ = cell.pos
        gone = frozenset(range(num_read)).difference(held)
        found = self.collected(
            cell, gone, lambda: Buckets(len(self.given.boundaries), num_read, num_long)
        )
        while True:
            try:
                self._fill(found)
            except Exception as error:
                self.keep(cell, found, error)
                raise
            if found.made.full is None:
                cell.pos = self._pos(found)
                return
            try:
                made = [self._batch(found.made, found.made.full)]
            except Exception as error:
                add_error_context(error, self)
                self.keep(cell, found, error)
                cell.past_failed = partial(self._pass_batch, cell, found)
                raise
            self._empty(cell, found)
            yield made.pop()

    def _fill(self, found: Collected[Buckets]) -> None:
        """Read elements until a bucket is full; at the end, choose the first one that is not
        empty.
        """
        buckets = found.made
        if buckets.full is not None:
            return
        if not found.is_last:
            for x in self.elements(found):
                try:
                    bucket = self._put(found, x)
                except Exception as error:
                    self.fail(error, self.inner)
                    raise
                if bucket is not None:
                    buckets.full = bucket
                    self.move_on(found)
                    return
            if found.num < buckets.num_known:
                raise self._changed("the data end before all that was read")
        if not self.given.drop_remainder:
            buckets.full = next((b for b, held in enumerate(buckets.held) if held), None)

    def _put(self, found: Collected[Buckets], x: object) -> int | None:
        """Put an element into its bucket, if it goes into one; return the bucket if it is full
        then.
        """
        given, buckets = self.given, found.made
        is_known = found.num < buckets.num_known
        length = given.length_fn(x)
        if type(length) is not int or length < 0:
            length = as_int("the length of an element, which length_fn gives,", length, minimum=0)
        bucket = bisect.bisect_left(given.boundaries, length)
        if bucket == len(buckets.held):
            if given.on_long == "raise":
                raise ValueError(
                    f"an element of length {length} is longer than the last boundary,"
                    f" {given.boundaries[-1]}: pass on_long='truncate' or 'drop', or a greater"
                    " boundary"
                )
            buckets.num_long += not is_known
            if given.on_long == "drop":
                return None
            bucket -= 1
        held = buckets.held[bucket]
        held.append(Held(found.num, x, length, found.after, found.counts))
        is_full = len(held) == given.batch_sizes[bucket]
        if is_full and is_known:
            raise self._changed("more elements of one bucket are held than a batch has rows")
        return bucket if is_full else None

    def _changed(self, what: str) -> StateIndexError:
        return StateIndexError(
            f"the state of {self} does not go with what is read: {what}. Data or arguments have"
            " changed since"
        )

    def _batch(self, buckets: Buckets, full: int) -> Any:
        """Return the batch of the bucket that is full, or of what is left in one."""
        held, given = buckets.held[full], self.given
        lengths = [x.length for x in held]
        rows = given.rows(full, given.batch_sizes[full], len(held), lengths, max(lengths))
        return self.padding.collate([x.element for x in held], rows, self._allocate)

    def _empty(self, cell: Cell, found: Collected[Buckets]) -> None:
        buckets = found.made
        if buckets.full is not None:
            buckets.held[buckets.full], buckets.full = [], None
        cell.pos = found.pos = self._pos(found)

    def _pass_batch(self, cell: Cell, found: Collected[Buckets]) -> None:
        """Skip a batch that cannot be made."""
        self._empty(cell, found)
        found.resume, self._kept = (found.after, self.records()), found

    def without(self, found: Collected[Buckets], number: int) -> Pos:
        return self._pos(found)

    def _pos(self, found: Collected[Buckets]) -> Pos:
        """Return the position after what was read, from which what is held is read again."""
        buckets = found.made
        held = buckets.all_held()
        # after a failure
        rest = [i for i in range(found.num, buckets.num_known) if i not in found.skipped]
        if not held and found.num < buckets.num_known:
            num_gone = (rest[0] if rest else buckets.num_known) - found.num
            pass_outputs(self.parent, self.inner, num_gone)
            found.num += num_gone - 1
            self.move_on(found)
        first, before, counts = (
            (held[0].num, held[0].before, held[0].counts)
            if held
            else (found.num, found.after, found.counts)
        )
        if self.choices is not None:
            self.choices.forget_until(counts)
            found.counts = less(found.counts, counts)
            buckets.held = [
                [x._replace(counts=less(x.counts, counts)) for x in bucket]
                for bucket in buckets.held
            ]
        numbers = (*[x.num - first for x in held], *[i - first for i in rest])
        return (
            before,
            max(found.num, buckets.num_known) - first,
            numbers,
            buckets.num_long,
            self.known_records(),
        )

    def save_layer(self, pos: Pos) -> Any:
        parent, num_read, held, num_long = pos
        return {
            "parent": self.parent.save(parent),
            "num_read": num_read,
            "held": _as_text(held),
            "num_long": num_long,
        }

    def load_layer(self, state: Any) -> Pos:
        num_read, num_long = [state_count(state, key, self) for key in ("num_read", "num_long")]
        held = _as_numbers(state_field(state, "held", self), sum(self.given.batch_sizes))
        if (
            held is None
            or held[:1] != [0][:num_read]
            or any([b <= a for a, b in pairwise([*held, num_read])])
        ):
            raise StateMismatchError(
                f"held in the state of {self} must be numbers that increase from 0 and are below"
                f" num_read, {num_read}, such as '0-2,5', and no more than the buckets hold, got"
                f" {shown(state['held'])}"
            )
        parent = self.load_parent(state, f"{len(held)} elements" if held else None)
        return parent, num_read, tuple(held), num_long

    def num_long(self, pos: Pos) -> int:
        return int(pos[3])

    def allocate_with(self, allocate: Allocate) -> None:
        self._allocate = allocate


def _as_text(numbers: Sequence[int]) -> str:
    """Return increasing numbers as a text, since states do not change their shape: ``"0-2,5"``."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and number == parts[-1][-1] + 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    return ",".join(["-".join(map(str, part)) for part in parts])


def _as_numbers(text: object, most: int) -> list[int] | None:
    """Return the numbers of ``_as_text``; ``None`` if it is no such text, or has more than
    ``most``.
    """
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
