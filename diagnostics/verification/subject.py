"""The pipeline that is verified, or a part of it, and the ways of running it that must not be
observable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from gristmill.core.options import DatasetOptions, MultiprocessingOptions, ReadOptions
from gristmill.core.value import Value
from gristmill.dataset.bases.context import Numbers
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator, iterate
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import DatasetNode, ancestors, computed_by, parents_of
from gristmill.dataset.descriptions.display import stage_inputs
from gristmill.dataset.slicing import PipelineEditor, numbers_of
from gristmill.dataset.stages.limit import LimitIterDataset
from gristmill.dataset.stages.options import WithOptionsIterDataset
from gristmill.dataset.stages.prefetch import PrefetchIterDataset
from gristmill.diagnostics.graph.stages import last_stage
from gristmill.loader import DataLoader

DIRECT = ReadOptions(num_threads=0, prefetch_buffer_size=0)
NUM_WORKERS = 2


class SubPipeline(Value):
    """A stage of a pipeline with all that is before it.

    Args:
        address: which of the inputs of each stage leads to it, from the last stage on.
        indices: at which it is read, of a map dataset; ``None`` for the first ones.
        num: how many elements it gives, of a stream; ``None`` for all.
    """

    address: tuple[int, ...] = ()
    indices: tuple[int, ...] | None = None
    num: int | None = None


WHOLE = SubPipeline()


def inputs_of(node: Any) -> list[Any]:
    """Returns the datasets that one draws from."""
    found = parents_of(node) or stage_inputs(node)
    return [x for x in found if isinstance(x, DatasetNode)]


def stage_at(pipeline: Any, address: Sequence[int]) -> Any:
    node = last_stage(pipeline)
    for i in address:
        node = inputs_of(node)[i]
    return node


def addresses(pipeline: Any) -> dict[tuple[int, ...], Any]:
    """Returns all stages by where they are, each once, the last one first."""
    found: dict[tuple[int, ...], Any] = {}
    seen: set[int] = set()
    todo: list[tuple[tuple[int, ...], Any]] = [((), last_stage(pipeline))]
    for address, node in todo:
        if id(node) not in seen:
            seen.add(id(node))
            found[address] = node
            todo += [((*address, i), x) for i, x in enumerate(inputs_of(node))]
    return found


class Subject:
    """The pipeline that is run.

    Args:
        pipeline: a dataset or a ``DataLoader``.
        part: which part of it.
    """

    def __init__(self, pipeline: Any, part: SubPipeline = WHOLE) -> None:
        self.pipeline = pipeline
        self.part = part
        node = stage_at(pipeline, part.address)
        self.map: MapDataset[Any] | None = None  # that is read by index
        if isinstance(node, MapDataset):
            self.map = node if part.indices is None else MapDataset.slice(node, part.indices)
            self.stream: IterDataset[Any] = PrefetchIterDataset(self.map, DIRECT, allow_nones=True)
        else:
            self.stream = node if part.num is None else LimitIterDataset(node, part.num)
        self.has_states_of_its_own = isinstance(pipeline, DataLoader) and part == WHOLE

    def open(self) -> DatasetIterator[Any]:
        """Returns a new iterator of the stream."""
        return iterate(self.stream)

    def open_as_given(self) -> Any:
        """Returns the user's iterator: of a ``DataLoader``, one with states of its own."""
        return iter(self.pipeline) if self.has_states_of_its_own else self.open()

    @property
    def has_workers(self) -> bool:
        return any([node._gm_starts_workers for node in ancestors(self.stream)])

    @property
    def has_own_workers(self) -> bool:
        """True if the pipeline has workers, including workers inside of a stage."""
        return self.has_workers or self.with_own_workers(0) is not None

    @property
    def is_share(self) -> bool:
        return numbers_of(self.stream) != Numbers(0, 1)

    def with_threads(self, num_threads: int) -> IterDataset[Any] | None:
        """Returns the same stream, read by ``num_threads`` threads; ``None`` if no threads read
        it.
        """
        options = ReadOptions(num_threads=num_threads, prefetch_buffer_size=2 * num_threads)
        varied = VariedStreams(lambda ds: computed_by(ds, threads=options))
        stream = varied.replaced(self.stream)
        if varied.has_changed and num_threads:
            return WithOptionsIterDataset(stream, DatasetOptions(max_threads=num_threads))
        return stream if varied.has_changed else None

    def with_own_workers(self, num_workers: int) -> IterDataset[Any] | None:
        """Returns the same stream, computed by ``num_workers`` of its worker processes; ``None`` if
        that cannot be.
        """
        varied = VariedStreams(lambda ds: computed_by(ds, num_workers=num_workers))
        stream: IterDataset[Any] = varied.replaced(self.stream)
        return stream if varied.has_changed else None

    def in_lanes(self, num_workers: int) -> IterDataset[Any]:
        """Returns its elements in lanes, computed by ``num_workers`` processes."""
        options = MultiprocessingOptions(num_workers, num_lanes=NUM_WORKERS, executor="processes")
        return IterDataset.mp_prefetch(self.stream, options)

    def in_stream_order(self) -> IterDataset[Any]:
        """Returns the same stream, computed by processes."""
        return IterDataset.mp_prefetch(
            self.stream, MultiprocessingOptions(NUM_WORKERS, executor="processes"), order="stream"
        )


class VariedStreams(PipelineEditor):
    """A pipeline with other streams in place of some of its own.

    Args:
        vary: returns another stream, or the same one, for each stream over its new parents.
    """

    def __init__(self, vary: Callable[[Any], Any]) -> None:
        super().__init__()
        self._vary = vary
        self.has_changed = False

    def _replace(self, ds: Any) -> Any:
        if not isinstance(ds, IterDataset):
            return ds
        same = self._over_replaced(ds) if parents_of(ds) else ds
        varied = self._vary(same)
        self.has_changed |= varied is not same
        return varied


def maps_read_by_streams(pipeline: Any) -> Iterator[tuple[tuple[int, ...], Any]]:
    """Yields the map datasets that are read by index, and where they are."""
    found = addresses(pipeline)
    for address, node in found.items():
        user = found.get(address[:-1]) if address else None
        if isinstance(node, MapDataset) and not isinstance(user, MapDataset):
            yield address, node
