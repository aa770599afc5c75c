"""Finds the stages at which a pipeline is split, and makes its parts.

A dataset is split itself if its positions have the same records in all epochs. A stage that moves
records (a shuffle, a mixture, a repetition), and everything downstream, is made again over parts of
its parents. Where it has no meaning over these, as a slice has none, its first epoch is split: a
dataset whose positions keep their records.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from gristmill.core.apportion import Apportionment, largest_remainders
from gristmill.core.keyed_hash import KeyedHash
from gristmill.core.seeds import check_seed
from gristmill.dataset.bases.epochs import any_pair, keeps_records, may_hold_twice
from gristmill.dataset.bases.map import MapDataset, NotOverAPartError, ReindexMapDataset
from gristmill.dataset.slicing import PipelineEditor
from gristmill.dataset.stages.repeat import RepeatMapDataset
from gristmill.dataset.stages.split import (
    Assignment,
    KeyAssignment,
    SplitMapDataset,
    SplitParameters,
)

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

_TOLERANCE = Fraction(1, 10**6)  # of the sum of weights, which people round
_MAX_KEYS = 2**40  # a dataset with more records is repeated forever


def split(
    ds: object, weights: Mapping[str, float], seed: int, by: Callable[[Any], Any] | None
) -> dict[str, Any]:
    """Returns the parts for ``ds.split(weights, seed, by)``."""
    if by is not None and not callable(by):
        raise TypeError(
            f"by must be a function of an element, got {by!r:.200} of type {type(by).__name__}"
        )
    return _Splitter(_shares(weights), check_seed(seed), by).split(ds)


def _shares(weights: object) -> dict[str, Fraction]:
    if not isinstance(weights, Mapping):
        raise TypeError(
            f"weights must be a mapping of the names of parts to numbers, got {weights!r:.200}"
        )
    if not weights:
        raise ValueError("weights must name at least one part, got none")
    shares = {}
    for name, weight in weights.items():
        if not isinstance(name, str):
            raise TypeError(
                f"the names of parts must be strings, got {name!r:.200} of type"
                f" {type(name).__name__}"
            )
        shares[name] = _share(name, weight)
    total = sum(shares.values(), Fraction())
    if abs(total - 1) > _TOLERANCE:
        whole = {name: round(float(share / total), 6) for name, share in shares.items()}
        raise ValueError(
            f"the sum of weights must be 1, got {float(total):g}: {dict(weights)!r:.200}. For parts"
            f" in these proportions use {whole!r:.200}; a part for what is to be left out must be"
            " named, too"
        )
    return {name: share / total for name, share in shares.items()}


def _share(name: str, weight: Any) -> Fraction:
    try:
        # 0.1 is a tenth
        share = weight if isinstance(weight, Fraction) else Fraction(str(float(weight)))
    except (TypeError, ValueError, OverflowError):  # infinities and NaN
        share = Fraction(0)
        if isinstance(weight, str | bytes) or not hasattr(weight, "__float__"):
            raise TypeError(
                f"weights must be numbers, got weights[{name!r}] = {weight!r:.200} of type"
                f" {type(weight).__name__}"
            ) from None
    if share <= 0:
        raise ValueError(
            f"weights must be positive and finite, got weights[{name!r}] = {weight!r:.200}: leave"
            " out the part"
        )
    return share


class _Splitter:
    """Makes the parts of everything upstream, each once."""

    def __init__(
        self, shares: dict[str, Fraction], seed: int, by: Callable[[Any], Any] | None
    ) -> None:
        self._shares = shares
        self._seed = seed
        self._by = by
        # by the dataset and the stages downstream of it
        self._parts: dict[tuple[int, ...], dict[str, Any]] = {}
        self._split: list[Any] = []

    def split(self, ds: Any) -> dict[str, Any]:
        parts = self._parts_of(ds, ())
        pair = any_pair(self._split, parallel_ones=False) if self._by is None else None
        if pair is not None:
            raise ValueError(
                f"cannot split {ds!s:.200}: {pair[0]!s:.200} and {pair[1]!s:.200}, which it is made"
                f" of, may have records in common, and these could come into two parts. {_OR_BY}"
            )
        return parts

    def _parts_of(self, ds: DatasetNode, behind: tuple[Any, ...]) -> dict[str, Any]:
        """Returns parts of ``ds``, from which the stages ``behind`` make what has keys."""
        place = (id(ds), *map(id, behind))
        if place not in self._parts:
            self._parts[place] = self._made(ds, behind)
        return self._parts[place]

    def _made(self, ds: Any, behind: tuple[Any, ...]) -> dict[str, Any]:
        can_straddle = self._by is None and may_hold_twice(ds)  # where there are keys, these decide
        if keeps_records(ds) and not can_straddle:
            return self._split_here(ds, behind)
        steps = self._steps_from_parents(ds, behind)
        if steps is not None and _can_be_over_parts(ds):
            below = [self._parts_of(parent, steps) for parent in ds._gm_parents]
            return {name: _over(ds, [parts[name] for parts in below]) for name in self._shares}
        if not can_straddle and len(ds) <= _MAX_KEYS:
            return self._split_here(RepeatMapDataset(ds, 1, reseed_each_epoch=False), behind)
        if can_straddle:
            reason = (
                "it may have a record at several positions, which could come into two parts."
                f" {_OR_BY}"
            )
        else:
            reason = f"it is endless. {_REMEDY}"
        raise ValueError(f"cannot split {ds!s:.200}: {reason}")

    def _steps_from_parents(
        self, ds: MapDataset[Any], behind: tuple[Any, ...]
    ) -> tuple[Any, ...] | None:
        """Returns the stages that make elements with keys of each parent's, if known."""
        if self._by is None or ds._gm_moves_records or isinstance(ds, ReindexMapDataset):
            return behind  # elements pass as they are
        is_one_of_one = (
            len(ds._gm_parents) == 1 and len(ds) == len(ds._gm_parent) and not ds._gm_shares_records
        )
        return (ds, *behind) if is_one_of_one else None

    def _split_here(self, ds: MapDataset[Any], behind: tuple[Any, ...]) -> dict[str, Any]:
        self._split.append(ds)
        shares = list(self._shares.values())
        if self._by is None:
            sizes = largest_remainders(len(ds), shares)
            assignment: Assignment = Apportionment(sizes, KeyedHash(self._seed)("split"))
        else:
            keyed = ds
            for step in behind:
                keyed = _over(step, [keyed])
            assignment = KeyAssignment(keyed, self._by, shares, self._seed)
        weights = {name: float(share) for name, share in self._shares.items()}
        return {
            name: SplitMapDataset(
                ds, SplitParameters(name, weights, self._seed, self._by, assignment)
            )
            for name in weights
        }


_REMEDY = "Split before that step"
_OR_BY = f"{_REMEDY}, or pass by=, a function of an element that returns which record it is"


def _can_be_over_parts(ds: MapDataset[Any]) -> bool:
    if not ds._gm_parents:
        return False
    try:
        ds._gm_over_parts(lambda value: value)
    except NotOverAPartError:
        return False
    return True


def _over(ds: DatasetNode, parents: list[Any]) -> Any:
    """Returns ``ds`` over other parents."""
    return _OverParts(ds._gm_parents, parents).over_replaced(ds)


class _OverParts(PipelineEditor):
    def __init__(self, old: tuple[Any, ...], new: list[Any]) -> None:
        super().__init__()
        self._replaced.update({id(before): after for before, after in zip(old, new, strict=True)})

    def over_replaced(self, ds: DatasetNode) -> Any:
        return self._over_replaced(ds)

    def _replace(self, ds: DatasetNode) -> Any:
        return self._over_replaced(ds)

    def _copied(self, ds: Any, replaced: Callable[[Any], Any]) -> Any:
        return ds._gm_over_parts(replaced)
