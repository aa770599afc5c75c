"""The share of a pipeline that one of several workers runs."""

from __future__ import annotations

import abc
import copy
from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from gristmill.core.sharding import ShardOptions, even_split
from gristmill.dataset.bases.context import Numbers
from gristmill.dataset.bases.division import Division
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.length import Length, added, num_elements
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import DatasetNode, ancestors
from gristmill.dataset.stages.runs import RunsMapDataset
from gristmill.dataset.stages.slice import SliceMapDataset

T = TypeVar("T")


def worker_slice(index: int, count: int) -> slice:
    """Returns which elements are those of worker ``index`` of ``count``."""
    return slice(index, None, count)


def numbers_of(ds: DatasetNode) -> Numbers:
    """Returns which numbers the elements of ``ds`` have in the whole pipeline."""
    return next(
        (node.numbers for node in ancestors(ds) if isinstance(node, RunsMapDataset)), Numbers(0, 1)
    )


def lanes_of_worker(index: int, count: int, num_lanes: int) -> range:
    """Returns which lanes worker ``index`` of ``count`` computes, in their order."""
    return range(index, num_lanes, count)


def part_of_lanes(lanes: range, index: int, count: int) -> range:
    """Return the lanes of worker ``index`` of ``count`` whose rows are side by side in a batch."""
    return lanes[slice(*even_split(len(lanes), ShardOptions(index, count)))]


def slice_pipeline(
    ds: IterDataset[T], index: int, count: int, *, sequential: bool = False, by_lanes: bool = False
) -> IterDataset[T]:
    """Returns the pipeline that worker ``index`` of ``count`` runs in place of ``ds``.

    Where the pipeline goes over from random access to a stream, it keeps every ``count``-th
    element, from ``index`` on: random streams and shuffles upstream of that place are those of the
    whole. A dataset with a method ``set_slice(sl, sequential_slice)`` slices itself: a copy of it
    does. Everything between these places and the output is copied, everything before is shared;
    ``ds`` and what it is made of stay as they are.

    Law: of a pipeline in which every element is made of one element of the random access part, by
    stages that do not count elements or depend on the worker, the shares taken in turn give ``ds``.
    No element is in two shares.

    Args:
        ds: the pipeline; ``count == 1`` gives it back.
        index: the worker, in ``[0, count)``.
        count: number of workers.
        sequential: cut the sources themselves into ``count`` consecutive parts, and run all stages
            on one part.
        by_lanes: return lane ``index`` of ``count``, in which a mixture has the proportions, and a
            schedule the positions, of the whole (see ``mixtures.lanes``).

    Raises:
        ValueError: a source of the pipeline cannot be sliced; or, with ``sequential``, a source
            cannot be cut, or a stage has no meaning on a part of its source.

    Example:
        >>> ds = MapDataset.range(5).to_iter_dataset().map(lambda x: x * 10)
        >>> list(slice_pipeline(ds, 0, 2)), list(slice_pipeline(ds, 1, 2))
        ([0, 20, 40], [10, 30])
        >>> (
        ...     list(slice_pipeline(ds, 0, 2, sequential=True)),
        ...     list(slice_pipeline(ds, 1, 2, sequential=True)),
        ... )
        ([0, 10, 20], [30, 40])
    """
    shard = ShardOptions(index, count)
    return ds if count == 1 else _Slicer(shard, sequential, by_lanes).replaced(ds)


def num_elements_of_shares(
    ds: IterDataset[Any], count: int, sequential: bool, by_lanes: bool = False
) -> Length:
    """Returns the number of elements that all shards of ``ds`` have together."""
    shares = [
        slice_pipeline(ds, i, count, sequential=sequential, by_lanes=by_lanes) for i in range(count)
    ]
    return added([num_elements(share) for share in shares])


class PipelineEditor(abc.ABC):
    """Replaces the datasets of one pipeline, each once, however many ways lead to it."""

    def __init__(self) -> None:
        self._replaced: dict[int, Any] = {}  # by the id of the dataset

    def replaced(self, ds: DatasetNode) -> Any:
        """Returns the replacement of ``ds``."""
        if id(ds) not in self._replaced:
            self._replaced[id(ds)] = self._replace(ds)
        return self._replaced[id(ds)]

    @abc.abstractmethod
    def _replace(self, ds: DatasetNode) -> Any: ...

    def _over_replaced(self, ds: DatasetNode) -> Any:
        """Returns ``ds`` over what takes the place of its parents."""
        parents = set(map(id, ds._gm_parents))

        def is_made_of_parents(value: object) -> bool:
            if not isinstance(value, DatasetNode):
                return False
            upstream = set(map(id, ancestors(value)))
            return id(ds) not in upstream and not parents.isdisjoint(upstream)

        def replaced(value: Any) -> Any:
            # Users keep parents, and what they make of them, under names of their own, several in a
            # list or dictionary.
            if is_made_of_parents(value):
                return self.replaced(value)
            if type(value) in (list, tuple) and any(map(is_made_of_parents, value)):
                return type(value)(map(replaced, value))
            if type(value) is dict and any(map(is_made_of_parents, value.values())):
                return {key: replaced(x) for key, x in value.items()}
            return value

        return self._copied(ds, replaced)

    def _copied(self, ds: DatasetNode, replaced: Callable[[Any], Any]) -> Any:
        return ds._gm_over(replaced)


def replaced_in(ds: IterDataset[T], old: object, new: object) -> IterDataset[T]:
    """Returns ``ds`` with ``new`` in place of ``old``, which it is made of."""
    result: IterDataset[T] = _Replacing(old, new).replaced(ds)
    return result


class _Replacing(PipelineEditor):
    def __init__(self, old: Any, new: Any) -> None:
        super().__init__()
        self._replaced[id(old)] = new

    def _replace(self, ds: DatasetNode) -> Any:
        return self._over_replaced(ds)


class _Slicer(PipelineEditor, Division):
    def __init__(self, shard: ShardOptions, is_sequential: bool, by_lanes: bool) -> None:
        PipelineEditor.__init__(self)
        Division.__init__(self, shard.shard_index, shard.shard_count, is_sequential, by_lanes)
        self._shard = shard
        self._slice = worker_slice(shard.shard_index, shard.shard_count)

    def _replace(self, ds: Any) -> Any:
        return ds._gm_divided(self)

    def every_nth(self, ds: MapDataset[Any]) -> MapDataset[Any]:
        share = partial(_inserted_slice, sl=self._slice)
        if not self.by_lanes:
            return share(ds)
        # other workers do without the modules of mixtures
        from gristmill.dataset.mixtures.lanes import lane_of

        return lane_of(ds, self.index, self.num_workers, share)

    def part(self, ds: MapDataset[Any]) -> MapDataset[Any]:
        return _inserted_slice(ds, slice(*even_split(len(ds), self._shard)))

    def over_shares(self, ds: DatasetNode) -> Any:
        return self._over_replaced(ds)

    def sliced_by_itself(self, ds: DatasetNode) -> Any:
        new = ds._gm_over(_own_container)
        new.set_slice(self._slice, self.is_sequential)
        return new


def _own_container(value: object) -> Any:
    # which ``set_slice`` may change in place
    return copy.copy(value) if type(value) in (list, dict, set) else value


def _inserted_slice(ds: MapDataset[Any], sl: slice) -> MapDataset[Any]:
    part: SliceMapDataset[Any] = SliceMapDataset(ds, sl)
    part._gm_adds_step, part._gm_is_share = False, True  # default seeds are those of the whole
    return part
