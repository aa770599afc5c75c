"""``global_batch``: the batches of one host, the same for any number of hosts and workers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import numpy as np

from gristmill.core.cached import cached
from gristmill.core.element_spec import ShapeDtypeStruct, map_spec
from gristmill.core.errors import as_int, check_word
from gristmill.core.options import AUTO_LANES
from gristmill.core.ray_options import WorkerOptions, check_worker_options
from gristmill.core.sharding import NoSharding, ShardOptions
from gristmill.core.state import shown
from gristmill.dataset.bases.division import Division
from gristmill.dataset.bases.element_spec import batched_spec
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.length import (
    AtMost,
    Exact,
    Infinite,
    Length,
    longest,
    num_elements,
    scaled,
    shortest,
)
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import ancestors, mixes_in_lanes, spec_of
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Traced, Tracing, grouped
from gristmill.dataset.engine.global_batch import GlobalBatchIterator
from gristmill.dataset.engine.lane_rows import Part
from gristmill.dataset.lanes.rows import LaneRowsIterDataset, zero_like
from gristmill.dataset.slicing import part_of_lanes, slice_pipeline
from gristmill.dataset.stages.batch import batch_function
from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterDataset
from gristmill.dataset.stages.repeat import RepeatIterDataset
from gristmill.transforms.base import check_batch_size

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

T = TypeVar("T")
End = Literal["drop", "pad", "repeat"]

_MAX_DEFAULT_LANES = 64

_NUM_SHOWN = 16  # numbers in a message


class GlobalBatchParameters(Parameters):
    # a state continues with another one, as with other hosts and workers
    batch_size: int = field(in_checkpoint=False)
    num_lanes: int
    shard_options: ShardOptions = field(in_checkpoint=False)
    workers: WorkerOptions | None = field(in_checkpoint=False, in_repr=False)
    end: End
    agree: Any = field(in_checkpoint=False, in_repr=False)
    agree_every: int = field(in_checkpoint=False, in_repr=False)
    batch_fn: Any = field(in_checkpoint=False, in_repr=False)
    worker_init_fn: Any = field(in_checkpoint=False, in_repr=False)

    def __post_init__(self) -> None:
        size, given = check_batch_size(self.batch_size), vars(self)["num_lanes"]
        shard = vars(self)["shard_options"]  # ``None``: a single host
        if given is None:
            num_lanes = min(_MAX_DEFAULT_LANES, size & -size)
        else:
            num_lanes = as_int("num_lanes", given, minimum=1)
        self._replace(
            batch_size=size,
            num_lanes=num_lanes,
            shard_options=NoSharding() if shard is None else shard,
            agree_every=as_int("agree_every", self.agree_every, minimum=1),
        )
        if not isinstance(self.shard_options, ShardOptions):
            raise TypeError(
                f"shard_options must be a ShardOptions, got {self.shard_options!r:.200}"
            )
        check_word("end", self.end, "drop", "pad", "repeat")
        for name in ("agree", "batch_fn", "worker_init_fn"):
            if not callable(getattr(self, name)) and getattr(self, name) is not None:
                raise TypeError(
                    f"{name} must be callable or None, got {getattr(self, name)!r:.200}"
                )
        self._check_divisibility()
        self._check_workers()

    def _check_divisibility(self) -> None:
        size, num_lanes, num_hosts = self.batch_size, self.num_lanes, self.shard_options.shard_count
        if size % num_lanes:
            raise ValueError(
                f"num_lanes must divide batch_size, {size}, got {num_lanes}: every step takes as"
                f" many elements of each lane. Take one of {_listed(_divisors(size))}"
            )
        if num_lanes % num_hosts:
            fitting = [number for number in _divisors(size) if not number % num_hosts]
            if fitting:
                advice = f"num_lanes={' or '.join(map(str, fitting[:3]))} would fit"
            else:
                advice = f"no divisor of {size} would fit"
            raise ValueError(
                f"shard_count in shard_options must divide num_lanes, {num_lanes}, got {num_hosts}:"
                f" a host owns whole lanes. Take one of {_listed(_divisors(num_lanes))} hosts, or"
                f" other lanes: {advice}"
            )

    def _check_workers(self) -> None:
        workers = self.workers
        if workers is None:
            return
        check_worker_options("workers", workers)
        if workers.num_lanes is not None:
            raise ValueError(
                f"workers must have num_lanes=None, got {workers}: give num_lanes to global_batch"
                " itself"
            )
        if self.num_parts > len(self.lanes):
            raise ValueError(
                f"num_workers in workers must be at most {len(self.lanes)}, the number of lanes of"
                f" a host, got {workers.num_workers}: a worker computes whole lanes. Use fewer"
                " workers or more lanes"
            )

    @property
    def lanes(self) -> range:
        """The lanes of this host."""
        return part_of_lanes(
            range(self.num_lanes), self.shard_options.shard_index, self.shard_options.shard_count
        )

    @property
    def num_parts(self) -> int:
        """The number of parts of each batch, which workers compute: one each, or with ``"auto"``
        several, so that there may be more or fewer workers.
        """
        num: Any = 1 if self.workers is None else self.workers.num_workers
        return min(AUTO_LANES, len(self.lanes)) if num == "auto" else max(1, num)

    @property
    def rows_per_lane(self) -> int:
        """The number of elements of each lane in a batch."""
        return self.batch_size // self.num_lanes

    @property
    def num_rows(self) -> int:
        """The number of rows of this host in a batch."""
        return self.rows_per_lane * len(self.lanes)


def global_batch(
    ds: DatasetNode,
    batch_size: int,
    *,
    num_lanes: int | None = None,
    shard_options: ShardOptions | None = None,
    workers: WorkerOptions | None = None,
    end: End = "drop",
    agree: Callable[..., int] | None = None,
    agree_every: int = 16,
    batch_fn: Callable[[list[Any]], Any] | None = None,
) -> IterDataset[Any]:
    """Returns ``ds.global_batch(batch_size, ...)`` of a dataset or ``DataLoader``; see
    ``IterDataset.global_batch``.

    Args:
        ds: a ``MapDataset``, ``IterDataset`` or ``DataLoader``.
        batch_size, num_lanes, shard_options, workers, end, agree, agree_every, batch_fn: as for the
            method.

    Raises:
        TypeError: ``ds`` is of another type; else as the method.
        ValueError: as the method.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> list(global_batch(MapDataset.range(8), 4))
        [array([0, 1, 2, 3]), array([4, 5, 6, 7])]
    """
    method = getattr(ds, "global_batch", None)
    if method is None:
        raise TypeError(
            f"ds must be a MapDataset, IterDataset or DataLoader, got {shown(ds)} of type"
            f" {type(ds).__name__}"
        )
    batches: IterDataset[Any] = method(
        batch_size,
        num_lanes=num_lanes,
        shard_options=shard_options,
        workers=workers,
        end=end,
        agree=agree,
        agree_every=agree_every,
        batch_fn=batch_fn,
    )
    return batches


def _divisors(number: int) -> list[int]:
    return [i for i in range(1, number + 1) if not number % i]


def _listed(numbers: Sequence[int]) -> str:
    text = ", ".join(map(str, numbers[:_NUM_SHOWN]))
    return f"{text}, …" if len(numbers) > _NUM_SHOWN else text


class GlobalBatchIterDataset(IterDataset[T]):
    """The rows of one host in batches that are divided among all hosts.
    ``IterDataset.global_batch`` says what they are.

    Order: that of the lanes, and in a lane that of the parent's share. State: that of every lane of
    the host. Cost: that of the lanes, and one copy of the rows; a second one with several workers.
    """

    _gm_parameters: GlobalBatchParameters

    def __init__(self, parent: object, parameters: GlobalBatchParameters) -> None:
        super().__init__(parent)
        self._gm_parameters = parameters
        for node in ancestors(self._gm_parent):
            if isinstance(node, MultiprocessPrefetchIterDataset):
                raise ValueError(
                    f"{self} cannot be applied to a pipeline that has {node}: lanes have no workers"
                    " of their own. Leave that out, and give workers=MultiprocessingOptions(...)"
                    " to global_batch"
                )
        _check_roots(self._gm_parent, parameters.num_lanes)
        repeats = parameters.end == "repeat" and not isinstance(num_elements(parent), Infinite)
        lanes: IterDataset[Part] = LaneRowsIterDataset(
            RepeatIterDataset(parent) if repeats else parent,
            parameters.lanes,
            parameters.num_lanes,
            parameters.rows_per_lane,
            stacks=parameters.batch_fn is None,
            pads=parameters.end == "pad",
        )
        self._rows: IterDataset[Part] = lanes
        workers, init_fn = parameters.workers, parameters.worker_init_fn
        if workers is not None and workers.num_workers == "auto":
            workers = replace(workers, num_lanes=parameters.num_parts)
            made: Any = MultiprocessPrefetchIterDataset(lanes, workers, init_fn, True)
            self._rows = made.divided_by_lanes(False)
        elif workers is not None:
            self._rows = lanes.mp_prefetch(workers, init_fn, sequential_slice=True)
        has_others = parameters.shard_options.shard_count > 1
        if has_others and parameters.agree is None and not self.is_computed:
            stage, lane = self._unsteady
            raise ValueError(
                f"agree must be given with several hosts and end={parameters.end!r}, since {stage}"
                f" makes it unknown how many elements lane {lane} has: all hosts have to end at"
                " the same step. Pass agree=gristmill.checkpoint.agree_jax (or agree_torch, or a"
                " function of yours), or end='repeat'"
            )

    @cached
    def lane_lengths(self) -> list[Length]:
        """Returns the number of elements of each lane, for the lanes of all hosts."""
        parameters = self._gm_parameters
        if parameters.end == "repeat":
            return [Infinite()] * parameters.num_lanes
        return [num_elements(self._lane(lane)) for lane in range(parameters.num_lanes)]

    def _lane(self, lane: int) -> Any:
        return slice_pipeline(
            self._gm_parents[0], lane, self._gm_parameters.num_lanes, by_lanes=True
        )

    @cached
    def mixes_in_lanes(self) -> bool:
        """True if lanes are mixtures of the lanes of components."""
        return self._gm_parameters.num_lanes > 1 and mixes_in_lanes(self._gm_parents[0])

    @cached
    def is_computed(self) -> bool:
        """True if the number of steps follows from the pipeline."""
        return all([isinstance(length, Exact | Infinite) for length in self.lane_lengths])

    @property
    def _unsteady(self) -> tuple[Any, int]:
        """The first stage that makes a length unknown, and a lane in which it does."""
        lane = [isinstance(length, Exact | Infinite) for length in self.lane_lengths].index(False)
        stage = self._lane(lane)
        while above := [
            x for x in stage._gm_parents if not isinstance(num_elements(x), Exact | Infinite)
        ]:
            stage = above[0]
        return stage, lane

    def num_steps_after(self, rows: int) -> Length:
        """Returns the number of steps after ``rows`` rows of every lane."""
        size = self._gm_parameters.rows_per_lane
        left = [scaled(length, lambda num: max(0, num - rows)) for length in self.lane_lengths]
        if self._gm_parameters.end == "pad":
            return scaled(longest(left), lambda num: -(-num // size))
        return scaled(shortest(left), lambda num: num // size)

    def _gm_num_elements(self) -> Length:
        return self.num_steps_after(0)

    @property
    def _element_spec(self) -> Any:
        num, batch_fn = self._gm_parameters.num_rows, batch_function(self._gm_parameters.batch_fn)
        batch = batched_spec(batch_fn, spec_of(self._gm_parent), num, True)
        if self._gm_parameters.end == "pad":
            return batch, ShapeDtypeStruct((num,), np.bool_)
        return batch

    def zero_row(self) -> Any:
        """Returns an element of zeros if the element spec is known without reading."""
        try:
            return map_spec(
                lambda leaf: np.zeros(leaf.shape, leaf.dtype)[()], spec_of(self._gm_parent)
            )
        except (NotImplementedError, ValueError, TypeError) as error:
            # a stage, perhaps a user's, does not say it
            raise ValueError(
                f"no lane of shard {self._gm_parameters.shard_options.shard_index} has had an"
                f" element, so that the padding is unknown there: {error}. Say what elements look"
                " like (see get_element_spec), or use fewer lanes"
            ) from error

    def _gm_over(self, replaced: Callable[[Any], Any]) -> Any:
        new: Any = super()._gm_over(replaced)
        # the replacement of the parent may have no shards
        _check_roots(new._gm_parent, self._gm_parameters.num_lanes)
        return new

    def _gm_divided(self, division: Division) -> Any:
        raise ValueError(
            f"{self} cannot be shared out among {division.num_workers} workers, since its lanes"
            " are: give workers=MultiprocessingOptions(...) to global_batch"
        )

    def _gm_traced(self, tracing: Tracing) -> Any:
        given = self._gm_parameters
        batch_fn = partial(_grouped, batch_function(given.batch_fn))
        agree = None if given.agree is None else _own_number
        traced = given.replaced(
            workers=None, agree=agree, agree_every=1, batch_fn=batch_fn, worker_init_fn=None
        )
        steps: IterDataset[Any] = GlobalBatchIterDataset(tracing.of(self._gm_parent), traced)
        return steps.map(_without_padding) if given.end == "pad" else steps

    def __iter__(self) -> DatasetIterator[T]:
        return GlobalBatchIterator(self, iterate(self._rows))


def _own_number(num: int, largest: bool = False) -> int:
    """Stands for an agreement of hosts in a traced stream, which asks for nothing more."""
    return 1 if largest else num


def _grouped(make: Callable[[list[Any]], Any], elements: list[Any]) -> Traced:
    """Groups as ``grouped``; rows of lanes that never had an element are not traced."""
    present = next(x for x in elements if isinstance(x, Traced))
    zero = Traced(lambda: zero_like(present.value), [()])
    return grouped(make, [x if isinstance(x, Traced) else zero for x in elements])


def _without_padding(step: tuple[Traced, Any]) -> Traced:
    batch, is_there = step
    rows = [row if flag else () for row, flag in zip(batch.rows, is_there, strict=True)]
    return Traced(lambda: (batch.value, is_there), rows, True)


def _check_roots(parent: IterDataset[Any], num_lanes: int) -> None:
    """Refuses a pipeline with a root that is shorter than the number of lanes."""
    for node in ancestors(slice_pipeline(parent, num_lanes - 1, num_lanes, by_lanes=True)):
        is_share = (
            node._gm_is_share
            or (num_lanes == 1 and isinstance(node, MapDataset))
            or hasattr(node, "set_slice")
        )
        if is_share and num_elements(node) in (Exact(0), AtMost(0)):
            root = node._gm_parents[0] if node._gm_is_share else node
            length = f" of {len(root)} elements" if isinstance(root, MapDataset) else ""
            raise ValueError(
                f"num_lanes must be at most the length of every root, got {num_lanes}:"
                f" {root}{length} has nothing for the last lane. Use fewer lanes, or a smaller"
                " batch_size, of which the default number follows"
            )
