"""The proportions in which mixtures come in batches, lanes and on hosts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from gristmill.core.value import Value
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.mixtures.iter_dataset import MixedIterDataset
from gristmill.dataset.mixtures.shares import counts_of_components
from gristmill.dataset.slicing import part_of_lanes, slice_pipeline
from gristmill.dataset.stages.batch import BatchIterDataset, BatchMapDataset
from gristmill.dataset.stages.global_batch import GlobalBatchIterDataset
from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterDataset
from gristmill.dataset.stages.multithread_prefetch import MultithreadPrefetchIterDataset
from gristmill.diagnostics.table import Column, DataTable

_NUM_ELEMENTS = 8192  # of a mixture that are looked at, of all lanes together
_MAX_BATCHES = 64
_MAX_SHOWN = 6  # components


class MixtureShares(Value):
    """The proportions of the components of one mixture. Prints as text.

    Args:
        mixture: the mixture, as text.
        whole: what part of all elements each component has, by name.
        groups: the smallest and the largest part of each component in the batches, lanes and hosts:
            by what these are, such as ``"4 lanes"``.
    """

    mixture: str
    whole: dict[str, float]
    groups: dict[str, dict[str, tuple[float, float]]]

    def __str__(self) -> str:
        names = [*self.whole][:_MAX_SHOWN]
        whole = {name: (part, part) for name, part in self.whole.items()}
        more = ", …" if len(self.whole) > len(names) else ""

        def text(row: tuple[str, dict[str, tuple[float, float]]]) -> str:
            return ", ".join([f"{name} {_range_text(*row[1][name])}" for name in names]) + more

        columns = Column("group", lambda row: row[0]), Column("parts", text)
        lines = DataTable(columns, {"whole": whole, **self.groups}.items()).lines(has_titles=False)
        return "\n".join([f"proportions of {self.mixture}:", *[f"  {line}" for line in lines]])


def mixture_shares(ds: Any, batch_size: int | None = None) -> list[MixtureShares]:
    """Return the proportions of the components of every mixture of a pipeline. No element is
    computed.

    Looked at are the first elements of the mixtures nearest to the sources, without what ``filter``
    drops. Mixtures that are shuffled, and those with ``by=``, are skipped.

    Args:
        ds: a ``MapDataset`` or ``IterDataset``.
        batch_size: elements of a batch; by default those of the pipeline's batches, if it has any.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> half = MapDataset.mix({"a": MapDataset.range(80), "b": MapDataset.range(80)})
        >>> print(mixture_shares(half.to_iter_dataset().global_batch(8, num_lanes=4))[0])
        proportions of MixedMapDataset[2 parents]:
          whole         a 50.0%, b 50.0%
          batches of 8  a 50.0%, b 50.0%
          4 lanes       a 50.0%, b 50.0%
    """
    divided = next((node for node in ancestors(ds) if isinstance(node, _DIVIDERS)), None)
    lanes = [ds] if divided is None else _lanes(divided)
    size = batch_size or _batch_size(ds)
    num = _NUM_ELEMENTS // len(lanes)
    found = []
    for mixtures in zip(*[_mixtures(lane) for lane in lanes], strict=False):
        counts = [_counts(mixture, range(num)) for mixture in mixtures]
        whole = _sum(counts)
        if not whole:
            continue
        groups: dict[str, list[Counter[str]]] = {}
        if size:
            groups[f"batches of {size}"] = [*_batches(mixtures, size, _is_in_lanes(ds, divided))]
        if len(lanes) > 1:
            groups[f"{len(lanes)} {_name_of_lanes(divided)}"] = counts
        num_hosts = _num_hosts(divided)
        if num_hosts > 1:
            hosts = [part_of_lanes(range(len(lanes)), i, num_hosts) for i in range(num_hosts)]
            groups[f"{num_hosts} hosts"] = [_sum([counts[i] for i in part]) for part in hosts]
        parts = {name: _ranges(group, whole) for name, group in groups.items()}
        found.append(MixtureShares(str(mixtures[0]), _parts(whole, whole), parts))
    return found


_DIVIDERS = (
    GlobalBatchIterDataset,
    MultiprocessPrefetchIterDataset,
    MultithreadPrefetchIterDataset,
)


def _lanes(divided: Any) -> list[Any]:
    parent = divided._gm_parents[0]
    if isinstance(divided, GlobalBatchIterDataset):
        num, by_lanes = divided._gm_parameters.num_lanes, True
    elif isinstance(divided, MultiprocessPrefetchIterDataset):
        num, by_lanes = divided._num_lanes, divided._by_lanes
    else:
        num, by_lanes = divided._num_lanes, False
    return [slice_pipeline(parent, i, num, by_lanes=by_lanes) for i in range(num)]


def _num_hosts(divided: Any) -> int:
    if not isinstance(divided, GlobalBatchIterDataset):
        return 1
    return int(divided._gm_parameters.shard_options.shard_count)


def _name_of_lanes(divided: Any) -> str:
    if isinstance(divided, MultithreadPrefetchIterDataset):
        return "threads"
    has_lanes = isinstance(divided, GlobalBatchIterDataset) or divided._by_lanes
    return "lanes" if has_lanes else "workers"


def _batch_size(ds: Any) -> int:
    for node in ancestors(ds):
        if isinstance(node, GlobalBatchIterDataset | BatchIterDataset | BatchMapDataset):
            return int(node._gm_parameters.batch_size)
    return 0


def _is_in_lanes(ds: Any, divided: Any) -> bool:
    """Return true if batches are made in each lane, not of elements of all lanes."""
    if divided is None or isinstance(divided, GlobalBatchIterDataset):
        return False
    upstream = ancestors(divided._gm_parents[0])
    return any([isinstance(node, BatchIterDataset | BatchMapDataset) for node in upstream])


def _mixtures(ds: Any) -> Iterator[Any]:
    """Yield mixtures of streams, and the datasets that streams are made from, in the order of the
    graph.
    """
    if isinstance(ds, MapDataset) or (isinstance(ds, MixedIterDataset) and ds.counts_elements):
        yield ds
    if not isinstance(ds, MapDataset):
        for parent in ds._gm_parents:
            yield from _mixtures(parent)


def _counts(ds: Any, indices: range) -> Counter[str]:
    """Return how often each component comes among elements of a mixture."""
    if isinstance(ds, MixedIterDataset):
        pairs = zip(
            ds._plan.names,
            ds._plan.counts(indices.start),
            ds._plan.counts(indices.stop),
            strict=True,
        )
        return Counter({name: stop - start for name, start, stop in pairs})
    return counts_of_components(ds, indices[: max(0, len(ds) - indices.start)])


def _batches(mixtures: Sequence[Any], size: int, is_in_lanes: bool) -> Iterator[Counter[str]]:
    """Yield the counts of each batch: of one lane, or of as many elements of each lane."""
    num = len(mixtures)
    if is_in_lanes:
        for mixture in mixtures:
            yield from _batches([mixture], size, False)
        return
    for batch in range(min(_MAX_BATCHES, _NUM_ELEMENTS // size)):
        start, stop = batch * size, (batch + 1) * size
        runs = [range(-((i - start) // num), -((i - stop) // num)) for i in range(num)]
        counts = _sum([_counts(mixture, run) for mixture, run in zip(mixtures, runs, strict=True)])
        if counts.total() == size:
            yield counts


def _sum(counts: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for count in counts:
        total.update(count)
    return total


def _parts(counts: Counter[str], whole: Counter[str]) -> dict[str, float]:
    return {name: counts[name] / max(1, counts.total()) for name in whole}


def _ranges(group: Sequence[Counter[str]], whole: Counter[str]) -> dict[str, tuple[float, float]]:
    parts = [_parts(counts, whole) for counts in group if counts.total()] or [_parts(whole, whole)]
    return {
        name: (min([part[name] for part in parts]), max([part[name] for part in parts]))
        for name in whole
    }


def _range_text(least: float, most: float) -> str:
    return f"{most:.1%}" if f"{least:.1%}" == f"{most:.1%}" else f"{least:.1%} to {most:.1%}"
