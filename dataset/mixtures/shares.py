"""The proportions of the components of mixtures in the shares of workers, hosts and slices."""

from __future__ import annotations

import sys
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gristmill.core.indices import Indices, as_ints
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.mixtures.map_dataset import MixedMapDataset
from gristmill.dataset.stages.batch import BatchMapDataset
from gristmill.dataset.stages.repeat import RepeatMapDataset
from gristmill.dataset.stages.slice import SliceMapDataset

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

_NUM_LOOKED_AT = 1000  # elements of each share
_MAX_LOOKED_AT = 1 << 16  # elements of the whole
_MAX_SHARES = 16  # that are looked at
_MAX_OFF = 0.01  # of a share
_MAX_SHOWN = 4  # shares and components in a message
_PACKAGE = str(Path(__file__).parents[2])


class OneSided(NamedTuple):
    """A mixture of which some share has other proportions than the whole: the parts of each
    component, by name, of the whole and of each share.
    """

    mixture: MixedMapDataset[Any]
    whole: dict[Any, float]
    shares: list[dict[Any, float]]


def one_sided(ds: MapDataset[Any], shares: Sequence[Indices], whole: Indices) -> OneSided | None:
    """Return a mixture of which one of ``shares`` is off by more than 1 %, if there is one."""
    drawn = dict(_drawn(ds, whole))
    of_shares = [dict(_drawn(ds, share)) for share in shares]
    for mixture, counts in drawn.items():
        found = [of_share.get(mixture, Counter()) for of_share in of_shares]
        if any([_is_off(share, counts) for share in found]):
            return OneSided(
                mixture, _parts(counts, counts), [_parts(share, counts) for share in found]
            )
    return None


def warn_if_one_sided(ds: DatasetNode, count: int, stage: object, share: str) -> None:
    """Warn if one of ``count`` shares of a pipeline has other proportions than the whole.

    Args:
        ds: the pipeline, or a map dataset.
        count: the number of shares.
        stage: what divides it, for the message.
        share: what a share is called.
    """
    for root in _roots(ds):
        num = min(len(root), _NUM_LOOKED_AT * count, _MAX_LOOKED_AT)
        shares = [range(i, num, count) for i in range(min(count, _MAX_SHARES))]
        found = one_sided(root, shares, range(num)) if count > 1 else None
        if found is not None:
            _warn_of(found, stage, [f"{share} {i} of {count}" for i in range(len(shares))])
            return


def warn_if_slice_is_one_sided(ds: MapDataset[Any], sl: slice) -> None:
    """Warn if a slice with a step has other proportions than its range."""
    indices = range(*sl.indices(len(ds)))
    if abs(indices.step) > 1 and len(indices) > 1:
        indices = indices[: min(_NUM_LOOKED_AT, 1 + _MAX_LOOKED_AT // abs(indices.step))]
        found = one_sided(ds, [indices], range(min(indices), max(indices) + 1))
        if found is not None:
            _warn_of(found, f"[{_part(sl.start)}:{_part(sl.stop)}:{sl.step}]", ["the slice"])


def _part(number: object) -> str:
    return "" if number is None else str(number)


def _warn_of(found: OneSided, stage: object, names: Sequence[str]) -> None:
    given = zip(names[:_MAX_SHOWN], found.shares, strict=False)
    shares = ", ".join([f"{name} has {_text(share, found.mixture)}" for name, share in given])
    warnings.warn(
        f"{stage} takes every n-th element of {found.mixture}, which does not keep its proportions,"
        f" {_text(found.whole, found.mixture)}: {shares}. This is Grain's stream. For the same"
        " proportions everywhere divide it into lanes, with MultiprocessingOptions(...,"
        " num_lanes=...) or global_batch; or mix streams, with"
        " IterDataset.mix([ds.to_iter_dataset(), ...])",
        stacklevel=_depth_of_user(),
    )


def _depth_of_user() -> int:
    """Return the ``stacklevel`` of the first code that is not of this package."""
    depth, frame = 0, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        depth, frame = depth + 1, frame.f_back
    return depth + 1


def _roots(ds: DatasetNode) -> Iterator[MapDataset[Any]]:
    """Yield the map datasets that streams are made from."""
    if isinstance(ds, MapDataset):
        yield ds
    elif not hasattr(ds, "set_slice"):  # which divides what is upstream itself
        for parent in ds._gm_parents:
            yield from _roots(parent)


def counts_of_components(ds: MapDataset[Any], indices: Indices) -> Counter[str]:
    """Return how many elements at ``indices`` each component gives, by name."""
    for mixture, counts in _drawn(ds, indices):
        return Counter({mixture.name_of(i): counts[i] for i in range(len(mixture._gm_parents))})
    return Counter()


def _drawn(
    ds: MapDataset[Any], indices: Indices
) -> Iterator[tuple[MixedMapDataset[Any], Counter[int]]]:
    """Yield the mixtures upstream with the number of elements at ``indices`` that each component
    gives.

    Mixtures that are shuffled downstream are skipped: they have no period.
    """
    if not len(indices):
        return
    if isinstance(ds, MixedMapDataset) and not ds.selects_by_functions_of_users:
        shares, _ = ds._select(indices)
        yield ds, Counter({component: len(inner) for component, inner in shares})
        for component, inner in shares:
            yield from _drawn(ds._gm_parents[component], inner)
    elif isinstance(ds, BatchMapDataset):
        nums = [ds._gm_num_drawn(i, 0) for i in islice(as_ints(indices), _NUM_LOOKED_AT)]
        ends = [ds._gm_num_drawn(i + 1, 0) for i in islice(as_ints(indices), _NUM_LOOKED_AT)]
        yield from _drawn(
            ds._gm_parents[0],
            [i for start, stop in zip(nums, ends, strict=True) for i in range(start, stop)],
        )
    elif isinstance(ds, SliceMapDataset | RepeatMapDataset):
        yield from _drawn(ds._gm_parents[0], ds._moved(indices))
    elif ds._gm_keeps_indices:
        yield from _drawn(ds._gm_parents[0], indices)


def _is_off(share: Counter[int], whole: Counter[int]) -> bool:
    num, total = share.total(), whole.total()
    most = max(_MAX_OFF * num, 1)  # a share cannot have parts of elements
    return num > 0 and any(
        [abs(share[i] - count * num / total) > most for i, count in whole.items()]
    )


def _parts(share: Counter[int], whole: Counter[int]) -> dict[Any, float]:
    return {i: share[i] / max(1, share.total()) for i in sorted(whole)}


def _text(parts: dict[Any, float], mixture: MixedMapDataset[Any]) -> str:
    largest = sorted(parts, key=lambda i: -parts[i])[:_MAX_SHOWN]
    text = ", ".join([f"{mixture.name_of(i)} {parts[i]:.1%}" for i in sorted(largest)])
    return f"{text}, …" if len(parts) > len(largest) else text
