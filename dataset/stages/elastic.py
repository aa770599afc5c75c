"""``ElasticIterator``: one of several shards, whose number may change from one checkpoint to the
next.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from gristmill.core.errors import as_int
from gristmill.core.options import MultiprocessingOptions, ReadOptions
from gristmill.core.sharding import ShardOptions
from gristmill.core.state import shown
from gristmill.dataset.bases.context import IteratorContext
from gristmill.dataset.bases.element_spec import batched_spec
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate, share_context
from gristmill.dataset.bases.length import (
    AtMost,
    Exact,
    Infinite,
    Length,
    Unknown,
    num_elements,
    scaled,
)
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import spec_of
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Tracing, grouped
from gristmill.dataset.engine.iterators import Given, StreamIterator, adopt
from gristmill.dataset.mixtures.shares import warn_if_one_sided
from gristmill.dataset.stages.batch import BatchFn, batch_function
from gristmill.dataset.stages.elastic_batches import Batches, batches_of
from gristmill.dataset.stages.elastic_files import ElasticFiles, open_files
from gristmill.dataset.stages.prefetch import TracedMapDataset

T = TypeVar("T")


class ElasticParameters(Parameters):
    # a state continues with another one, and with other shards
    global_batch_size: int = field(in_checkpoint=False)
    shard_options: ShardOptions = field(in_checkpoint=False)
    read_options: ReadOptions | None = field(in_checkpoint=False, in_repr=False)
    multiprocessing_options: MultiprocessingOptions | None = field(
        in_checkpoint=False, in_repr=False
    )


class ElasticIterator(StreamIterator[T], IterDataset[T]):
    """Iterates over one shard of ``ds`` in batches; a checkpoint of any number of shards restores
    with any other number.

    Law, for a ``MapDataset``: in step ``t`` the ``n`` shards together deliver the next
    ``global_batch_size`` elements of ``ds``, of which shard ``s`` has every ``n``-th, from the
    ``s``-th on. All shards end with the same step, the last one for which a whole global batch is
    there. A state is the same in all shards after the same step, and restores in any shard of any
    number of shards.

    If ``ds`` has a filter, no shard knows without evaluating it which elements are its own:
    everything up to the last filter is computed in all shards, stages downstream of it for a
    shard's own elements only.

    Law, for an ``IterDataset``: it interleaves datasets, such as files, of which shard ``s`` has
    numbers ``s``, ``s + n``, …. Each shard ends when its datasets do, its last batch may be
    smaller. After the number of shards has changed, every element that no shard had delivered is
    delivered by exactly one, in an order of its own. That takes the states of all shards: Orbax
    checkpoints have them; otherwise see ``get_shard_states``.

    It is an iterator, and also a dataset that can be chained (``it.map(...)``) whose only iterator
    it is itself: iterating over it again continues where it is.

    Where ``ds`` tolerates faults, every shard has the budget for its own part, and the state has
    the shard's counts beside the position. The same number of shards continues with them. Another
    one continues with the rate, of one shard or of all whose states a checkpoint joins: as many
    faults as that are of its own elements so far, rounded up. What fails is tried again.

    Order: as above. State: ``{"global_next_index": g}``, with ``tolerate`` also ``"faults"``; for
    an ``IterDataset`` this shard, the number of shards, and which datasets are where. Cost: that of
    ``ds``, sliced, batched and converted by ``to_iter_dataset``.

    Args:
        ds: a ``MapDataset``, not sharded. Or an ``IterDataset``: an ``InterleaveIterDataset``, with
            or without stages downstream that have no state of their own, such as ``map``,
            ``filter`` and ``batch``.
        global_batch_size: elements per step in all shards together, a multiple of their number. 0,
            for an ``IterDataset``: single elements.
        shard_options: this shard and the number of shards.
        read_options: number of threads and batches ahead. An ``IterDataset`` reads ahead as its own
            parts say.
        multiprocessing_options: computes the batches of a ``MapDataset`` in worker processes.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: ``global_batch_size`` is not a positive multiple of the number of shards, or
            ``ds`` is an ``IterDataset`` whose state cannot be divided again.
        NotImplementedError: ``multiprocessing_options`` for an ``IterDataset``.

    Example:
        >>> ds = MapDataset.range(16)
        >>> it = ElasticIterator(ds, 4, ShardOptions(shard_index=1, shard_count=2))
        >>> next(it), next(it), it.get_state()
        (array([1, 3]), array([5, 7]), {'global_next_index': 8})
        >>> of_four = ElasticIterator(ds, 8, ShardOptions(shard_index=3, shard_count=4))
        >>> of_four.set_state(it.get_state())
        >>> next(of_four)
        array([11, 15])
    """

    _is_shared = True
    _gm_engine: Batches | ElasticFiles

    def __init__(
        self,
        ds: MapDataset[Any] | IterDataset[Any],
        global_batch_size: int,
        shard_options: ShardOptions,
        *,
        read_options: ReadOptions | None = None,
        multiprocessing_options: MultiprocessingOptions | None = None,
    ) -> None:
        if not isinstance(ds, MapDataset | IterDataset):
            raise TypeError(
                f"ds must be a MapDataset or IterDataset, got {shown(ds)} of type"
                f" {type(ds).__name__}"
            )
        if not isinstance(shard_options, ShardOptions):
            raise TypeError(f"shard_options must be a ShardOptions, got {shard_options!r:.200}")
        for name, value, kind in (
            ("read_options", read_options, ReadOptions),
            ("multiprocessing_options", multiprocessing_options, MultiprocessingOptions),
        ):
            if not isinstance(value, kind | None):
                raise TypeError(f"{name} must be a {kind.__name__} or None, got {value!r:.200}")
        size = as_int(
            "global_batch_size", global_batch_size, minimum=1 if isinstance(ds, MapDataset) else 0
        )
        self._batch_size, rest = divmod(size, shard_options.shard_count)
        if rest:
            raise ValueError(
                "global_batch_size must be divisible by the number of shards,"
                f" {shard_options.shard_count}, got {size}"
            )
        self._ds = ds
        self._given = ElasticParameters(size, shard_options, read_options, multiprocessing_options)
        if isinstance(ds, MapDataset):
            warn_if_one_sided(ds, shard_options.shard_count, "ElasticIterator", "shard")
        elif multiprocessing_options is not None:
            raise NotImplementedError(
                "multiprocessing_options needs a MapDataset: the state of workers cannot be divided"
                " again"
            )
        self._open(None)

    def _open(self, batch_fn: BatchFn) -> None:
        """Begin, with batches that ``batch_fn`` makes."""
        ds, given, shard = self._ds, self._given, self.shard_options
        make: Callable[[Any], Batches | ElasticFiles]
        if isinstance(ds, MapDataset):
            options = (
                given.read_options or ReadOptions(),
                given.multiprocessing_options or MultiprocessingOptions(),
            )
            make = batches_of(
                ds, size=given.global_batch_size, shard=shard, options=options, batch_fn=batch_fn
            )
        else:
            make = open_files(ds, self._batch_size, shard, batch_fn)
        super().__init__(Given(given), [], make)
        if (running := self._gm_engine.running) is not None:
            self._gm_ctx.options = running._gm_ctx.options
            adopt(self, [running])
        share_context(self._gm_engine.open_iterators(), self._gm_ctx)

    def _gm_traced(self, tracing: Tracing) -> Any:
        ds: Any = self._ds
        is_map = isinstance(ds, MapDataset)
        traced = TracedMapDataset(ds, tracing, False) if is_map else tracing.of(ds)
        options = ReadOptions(0) if is_map else None
        new: Any = ElasticIterator(
            traced, self._given.global_batch_size, self._given.shard_options, read_options=options
        )
        new._open(partial(grouped, batch_function(None)))
        return new

    @property
    def shard_options(self) -> ShardOptions:
        """The shard that it reads."""
        return self._given.shard_options

    @property
    def base_iterator(self) -> DatasetIterator[T]:
        """The iterator of this shard alone, which is this one."""
        return self

    def _gm_num_elements(self) -> Length:
        length = num_elements(self._ds)
        if isinstance(self._ds, MapDataset) and isinstance(length, Exact | AtMost | Infinite):
            return scaled(length, lambda num: num // self._given.global_batch_size)
        return Unknown()  # the lengths of a shard's datasets are not known

    @property
    def _element_spec(self) -> Any:
        spec = spec_of(self._ds)
        if not self._batch_size:
            return spec
        return batched_spec(
            batch_function(None), spec, self._batch_size, isinstance(self._ds, MapDataset)
        )

    @property
    def _gm_draws_from(self) -> Sequence[Any]:
        return (self._ds,)

    @property
    def _gm_described_upstream(self) -> Sequence[Any]:
        return (self._ds if isinstance(self._ds, MapDataset) else iterate(self._ds),)

    def get_shard_states(self) -> dict[int, dict[str, Any]]:
        """Returns the states of the datasets of this shard, by their number among all datasets; for
        an ``IterDataset``.

        Those of all shards together are what ``set_shard_states`` of another number of shards
        needs.

        Returns:
            For each dataset ``{"exhausted": 0 or 1, "state": state}``. The state is ``None`` where
            it says nothing more: of a dataset from which nothing was read, or that has ended.

        Raises:
            NotImplementedError: ``ds`` is a ``MapDataset``, for which every state is that of all
                shards.

        Example:
            >>> from gristmill.dataset.stages.interleave import (
            ...     InterleaveDatasetIterator,
            ...     InterleaveIterDataset,
            ... )
            >>> ds = InterleaveIterDataset(
            ...     [MapDataset.range(i, i + 3) for i in (0, 10, 20, 30)], cycle_length=2
            ... )
            >>> of_two = [ElasticIterator(ds, 0, ShardOptions(shard, 2)) for shard in range(2)]
            >>> [next(it) for it in of_two], next(of_two[0]), next(of_two[0])
            ([0, 10], 20, 1)
            >>> states = of_two[0].get_shard_states() | of_two[1].get_shard_states()
            >>> of_three = [ElasticIterator(ds, 0, ShardOptions(shard, 3)) for shard in range(3)]
            >>> for it in of_three:
            ...     it.set_shard_states(states)
            >>> [list(it) for it in of_three]
            [[2, 30, 31, 32], [11, 12], [21, 22]]
        """
        return self._files.states_in(self.get_state())

    def set_shard_states(self, states: Mapping[int | str, Any]) -> None:
        """Continues with the datasets of this shard from ``states``.

        Args:
            states: what ``get_shard_states`` of all shards gave, in one mapping, for any number of
                them. The keys may be text, as in JSON; datasets of other shards are ignored.

        Raises:
            NotImplementedError: ``ds`` is a ``MapDataset``, for which every state is that of all
                shards.
            StateMismatchError: the state of a dataset of this shard is missing or damaged; nothing
                has changed then.
        """
        self.set_state(self._files.state_from(states))

    @property
    def _files(self) -> ElasticFiles:
        if not isinstance(self._gm_engine, ElasticFiles):
            raise NotImplementedError(
                "the shards of a MapDataset have no states of their own: get_state() of any shard"
                " restores in all"
            )
        return self._gm_engine

    def _gm_share_context(self, ctx: IteratorContext) -> None:
        super()._gm_share_context(ctx)
        share_context(self._gm_engine.open_iterators(), ctx)
