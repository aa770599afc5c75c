"""``bucket_batch``: batches of elements of similar lengths."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np

from gristmill.core.errors import as_int
from gristmill.core.indices import Indices, as_ints
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.core.state import shown
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Infinite, Length, at_most, num_elements
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset
from gristmill.dataset.bases.node import dropping_steps, random_seed, spec_of
from gristmill.dataset.bases.origins import UpstreamElement
from gristmill.dataset.bases.parameters import field
from gristmill.dataset.bases.traced import Traced, Tracing, grouped, noting_failed
from gristmill.dataset.engine.bucket_plan import BucketElements, BucketPlan, base_of
from gristmill.dataset.engine.buckets import BucketBatch
from gristmill.dataset.engine.iterators import StreamIterator, open_stage
from gristmill.dataset.errors.context import add_error_context
from gristmill.dataset.stages.bucket_parameters import (
    BucketParameters,
    OnLong,
    StreamBucketParameters,
    check_on_long,
)
from gristmill.transforms.batching import Allocate, BufferPool
from gristmill.transforms.length_buckets import (
    Lengths,
    check_batch_sizes,
    check_boundaries,
    chosen_boundaries,
)
from gristmill.transforms.ragged import Padding, Rows

T = TypeVar("T")

_log = logging.getLogger("gristmill")


class MapBucketParameters(BucketParameters):
    lengths: Any = field(in_checkpoint=False, in_repr=False)
    window: int
    seed: int = field(in_repr=False)
    shard_options: ShardOptions = field(in_checkpoint=False)

    def __post_init__(self) -> None:
        super().__post_init__()
        self._replace(window=as_int("window", self.window, minimum=1))
        if self.shard_options.shard_count > 1 and not (self.drop_remainder or self.with_lengths):
            raise ValueError(
                "with several shards all batches must have as many rows, also those of what is left"
                " at the end of an epoch: pass with_lengths=True, which fills them up with rows of"
                " length 0, or drop_remainder=True"
            )


class BucketBatchMapDataset(BlockMapDataset[T]):
    """Batches of elements of similar lengths; see ``MapDataset.bucket_batch``.

    Order: within each window of the parent's order, batches are permuted by ``index_shuffle`` with
    seed ``seed + e * n + w``, for window ``w`` of the ``n`` in epoch ``e``. Cost: planning takes
    about 0.1 µs per length; then one copy per leaf.

    Attributes:
        num_long: how many elements of an epoch are longer than the last boundary, which were
            truncated or dropped.
    """

    _gm_parameters: MapBucketParameters
    _gm_makes_batches = True
    _gm_shared_by_threads = ("_lengths", "_plan")
    _gm_needs_whole = "knows the lengths of all elements"

    def __init__(
        self,
        parent: object,
        lengths: object,
        boundaries: int | Sequence[int],
        max_tokens: int | None = None,
        batch_sizes: int | Sequence[int] | None = None,
        window: int = 65_536,
        seed: int | None = None,
        pad_to: object = "boundary",
        pad_value: object = 0,
        drop_remainder: bool = False,
        on_long: OnLong = "raise",
        with_lengths: bool = False,
        shard_options: ShardOptions | None = None,
    ) -> None:
        super().__init__(parent)
        if sparse := dropping_steps(self._gm_parent):
            raise ValueError(
                f"cannot batch after {sparse[0]}: it may drop elements, and batches by index"
                " would have holes. Call to_iter_dataset() before bucket_batch(), with a function"
                " that gives the length of an element"
            )
        if isinstance(num_elements(parent), Infinite):
            raise ValueError(
                f"cannot plan batches of {parent}, which is endless: call repeat() after"
                " bucket_batch()"
            )
        check_on_long(on_long)
        shard = NoSharding() if shard_options is None else shard_options
        if not isinstance(shard, ShardOptions):
            raise TypeError(f"shard_options must be a ShardOptions, got {shown(shard)}")
        self._lengths = found = _lengths_of(base_of(self._gm_parent), lengths)
        limits = _boundaries(found, boundaries, max_tokens, on_long, shard.shard_count)
        sizes = check_batch_sizes(limits, max_tokens, batch_sizes, num_shards=shard.shard_count)
        has_seed = seed is not None or self._gm_default_seed is not None
        seed = random_seed(self, seed, "bucket_batch", bits=32) if has_seed else 0
        common = limits, max_tokens, sizes, pad_to, pad_value, drop_remainder, on_long, with_lengths
        self._gm_parameters = given = MapBucketParameters(*common, found, window, seed, shard)
        self._padding = self._gm_parameters.padding()
        self._plan = BucketPlan(
            self._gm_parent,
            found,
            limits,
            given.batch_sizes,
            given.window,
            given.seed,
            given.drop_remainder,
            given.keeps_long,
        )
        self._allocate = BufferPool()
        self._report_long()

    def _report_long(self) -> None:
        given, num = self._gm_parameters, self.num_long
        if not num:
            return
        text = (
            f"{num} of {len(self._gm_parent)} elements are longer than the last boundary,"
            f" {given.boundaries[-1]}"
        )
        if given.on_long == "raise":
            key, length = given.lengths.first_longer(given.boundaries[-1])
            raise ValueError(
                f"{text}: lengths[{key}] is {length}, for one. Pass on_long='truncate' or 'drop',"
                f" or boundaries up to the greatest length, {given.lengths.longest}"
            )
        _log.warning("%s, and are %s", text, "truncated to it" if given.keeps_long else "dropped")

    @property
    def num_long(self) -> int:
        """The number of elements of an epoch that are longer than the last boundary, which were
        truncated or dropped.
        """
        return self._plan.num_long

    @property
    def boundaries(self) -> tuple[int, ...]:
        """The greatest length of each bucket."""
        return self._gm_parameters.boundaries

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """Rows of the batches of each bucket, of all shards together."""
        return self._gm_parameters.batch_sizes

    def __len__(self) -> int:
        return self._plan.num_batches

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return {
            **super()._gm_described_parameters,
            "elements_per_bucket": self._plan.counts.tolist(),
        }

    @property
    def _element_spec(self) -> Any:
        given = self._gm_parameters
        return given.spec(self._padding, spec_of(self._gm_parent), given.shard_options.shard_count)

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        self._check_not_empty(len(self), indices[:1])
        return map(self._batch, as_ints(indices))

    def _members(self, index: int) -> tuple[BucketElements, slice, int]:
        """Returns the elements of a batch, this shard's slice, and its full size."""
        members, shard = self._plan.members(index), self._gm_parameters.shard_options
        size = self._gm_parameters.batch_sizes[members.bucket] // shard.shard_count
        return members, slice(shard.shard_index * size, (shard.shard_index + 1) * size), size

    def _batch(self, index: int) -> Any:
        try:
            members, own, size = self._members(index)
        except Exception as error:
            add_error_context(error, self, [index])
            raise
        num_real = len(members.indices[own])
        here = own if num_real else slice(1)  # what rows look like is known by an element alone
        elements = list(self._gm_parents[0]._gm_items(members.indices[here]))
        rows = self._gm_parameters.rows(
            members.bucket, size, num_real, members.lengths[here], max(members.lengths)
        )
        try:
            if any([element is None for element in elements]):
                raise ValueError(
                    "an element of this batch is None: a step before bucket_batch() leaves elements"
                    " out. Call to_iter_dataset() before it"
                )
            return self._padding.collate(elements, rows, self._allocate)
        except Exception as error:
            add_error_context(error, self, [index])
            raise

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement]:
        members, own, _ = self._members(index)
        return [
            UpstreamElement(self._gm_parent, i) for i in members.indices[own] or members.indices[:1]
        ]


def _lengths_of(base: MapDataset[Any], lengths: object) -> Lengths:
    """Returns ``lengths``, or those of the source, one for each element of ``base``."""
    if lengths is None:
        lengths = getattr(base, "lengths", None)
        if lengths is None:
            raise ValueError(
                f"lengths must be given, since {base} has no attribute lengths: an array with one"
                " for each record"
            )
    found = lengths if isinstance(lengths, Lengths) else Lengths(lengths)
    if len(found) != len(base):
        raise ValueError(
            f"lengths must have one length for each element of {base}, {len(base)}, for any part"
            f" of them and any order, got {len(found)}"
        )
    return found


def _boundaries(
    lengths: Lengths, boundaries: object, max_tokens: int | None, on_long: OnLong, num_shards: int
) -> tuple[int, ...]:
    if not isinstance(boundaries, int | np.integer) or isinstance(boundaries, bool):
        return check_boundaries(boundaries)
    if not len(lengths):
        raise ValueError(
            f"boundaries must be lengths where there are no records to choose {boundaries} by, got"
            " that number"
        )
    if max_tokens is None:
        longest = None
    else:
        longest = max(1, as_int("max_tokens", max_tokens, minimum=1) // num_shards)
    number = as_int("boundaries", boundaries, minimum=1)
    return tuple(chosen_boundaries(lengths, number, longest, keep_long=on_long != "drop"))


class BucketBatchIterDataset(IterDataset[T]):
    """Batches of elements of similar lengths, each as soon as a bucket is full; see
    ``IterDataset.bucket_batch``.

    Order: that in which buckets become full; at the end, what is left in them, shorter elements
    first. State: the parent's before the oldest element that is held, how many were read since, and
    which of those are held; to continue there, these are read again. Cost: about 1 µs per element,
    and one copy per leaf.
    """

    _gm_parameters: StreamBucketParameters

    def __init__(
        self,
        parent: object,
        length_fn: Callable[[Any], int],
        boundaries: Sequence[int],
        max_tokens: int | None = None,
        batch_sizes: int | Sequence[int] | None = None,
        pad_to: object = "boundary",
        pad_value: object = 0,
        drop_remainder: bool = False,
        on_long: OnLong = "raise",
        with_lengths: bool = False,
    ) -> None:
        super().__init__(parent)
        if not callable(length_fn):
            raise TypeError(
                "length_fn must be a callable that gives the length of an element, got"
                f" {shown(length_fn)}"
            )
        if isinstance(boundaries, int | np.integer):
            raise TypeError(
                f"boundaries must be a sequence of lengths, got {boundaries}: the lengths in a"
                " stream are not known beforehand. bucket_boundaries(lengths, number) chooses them"
                " by some"
            )
        limits = check_boundaries(boundaries)
        sizes = check_batch_sizes(limits, max_tokens, batch_sizes)
        common = limits, max_tokens, sizes, pad_to, pad_value, drop_remainder, on_long, with_lengths
        self._gm_parameters = StreamBucketParameters(*common, length_fn)
        self._padding = self._gm_parameters.padding()

    def _gm_num_elements(self) -> Length:
        return at_most(num_elements(self._gm_parent))  # a batch has one of them at least

    @property
    def _element_spec(self) -> Any:
        return self._gm_parameters.spec(self._padding, spec_of(self._gm_parent), 1)

    def _gm_traced(self, tracing: Tracing) -> Any:
        length_of = self._gm_parameters.length_fn
        given = self._gm_parameters.replaced(length_fn=noting_failed(lambda x: length_of(x.value)))
        # which is skipped
        parent = tracing.of(self._gm_parent).map(lambda x: None if x.value is None else x)
        return tracing.over(
            self,
            _gm_parents=(parent,),
            _gm_parameters=given,
            _padding=_TracedPadding(self._padding),
        )

    def __iter__(self) -> DatasetIterator[T]:
        return open_stage(
            self,
            partial(BucketBatch, given=self._gm_parameters, padding=self._padding),
            BucketBatchDatasetIterator,
        )


class BucketBatchDatasetIterator(StreamIterator[T]):
    """The iterator of ``bucket_batch`` of streams."""

    _gm_engine: BucketBatch

    @property
    def num_long(self) -> int:
        """The number of elements so far that are longer than the last boundary, and were truncated
        or dropped.
        """
        return self._gm_engine.num_long(self.pos)


class _TracedPadding:
    """Makes batches of elements that know their records."""

    def __init__(self, padding: Padding) -> None:
        self._padding = padding

    def collate(self, elements: Sequence[Traced], rows: Rows, allocate: Allocate) -> Traced:
        return grouped(lambda values: self._padding.collate(values, rows, allocate), elements)
