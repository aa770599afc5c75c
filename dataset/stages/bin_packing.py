"""``FirstFitPackIterDataset`` and ``BestFitPackIterDataset``: sequences packed into bins."""

from __future__ import annotations

import abc
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from gristmill.core.errors import as_int
from gristmill.core.seeds import check_seed
from gristmill.dataset.bases.cells import Cells, Placed, placed
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import Length, at_most, num_elements
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import spec_of
from gristmill.dataset.bases.traced import Traced, Tracing, noting_failed
from gristmill.dataset.engine.iterators import StreamIterator, open_stage
from gristmill.dataset.engine.packing import BinPack
from gristmill.transforms.bin_packing import Bins, MakePlacer, best_fit, emission_order, first_fit
from gristmill.transforms.pack_layout import PackedRows, PackLayout
from gristmill.transforms.sequences import Array


class _PackIterDataset(IterDataset[dict[str, Any]]):
    """Base of the two packings."""

    def __init__(
        self,
        parent: IterDataset[Any] | MapDataset[Any],
        *,
        length_struct: Mapping[str, Any],
        num_packing_bins: int,
        seed: int = 0,
        shuffle_bins: bool = True,
        shuffle_bins_group_by_feature: str | None = None,
        meta_features: Sequence[str] = (),
        pack_alignment_struct: Mapping[str, Any] | None = None,
        padding_struct: Mapping[str, Any] | None = None,
        max_sequences_per_bin: int | None = None,
    ) -> None:
        super().__init__(parent)
        self._packing = Packing(
            algorithm=self._algorithm(),
            length_struct=length_struct,
            num_packing_bins=num_packing_bins,
            seed=seed,
            shuffle_bins=shuffle_bins,
            shuffle_bins_group_by_feature=shuffle_bins_group_by_feature,
            meta_features=meta_features,
            pack_alignment_struct=pack_alignment_struct,
            padding_struct=padding_struct,
            max_sequences_per_bin=max_sequences_per_bin,
        )

    @staticmethod
    @abc.abstractmethod
    def _algorithm() -> MakePlacer:
        """Returns a factory of the algorithm that chooses the bins."""

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return self._packing.described()

    def _gm_num_elements(self) -> Length:
        return at_most(num_elements(self._gm_parent))  # a row holds one of them at least

    @property
    def _element_spec(self) -> Any:
        return self._packing.layout.spec(spec_of(self._gm_parent))

    def _gm_traced(self, tracing: Tracing) -> Any:
        packing = replace(
            self._packing, meta_features=[*_as_names(self._packing.meta_features), RECORD]
        )
        layout = self._packing.layout
        elements = tracing.of(self._gm_parent).map(noting_failed(partial(_with_record, layout)))
        return tracing.over(self, _gm_parents=(elements,), _packing=packing).map(
            partial(_traced_row, layout)
        )

    def __iter__(self) -> DatasetIterator[dict[str, Any]]:
        return open_stage(self, partial(BinPack, packing=self._packing), BinPackDatasetIterator)


class FirstFitPackIterDataset(_PackIterDataset):
    """Returns rows of fixed length of sequences one after another: each goes into the
    first bin with room for it.

    ``num_packing_bins`` bins are filled at a time. When a sequence fits into none of them they are
    given out, one bin at a time, and it begins the next ones. A row is a dict: for each feature
    ``f`` its values; ``f_segment_ids``, ``int32``, which count the sequences in the row from 1 and
    are 0 in unused cells; ``f_positions``, ``int32``, which count from 0 in each sequence. What is
    nested in an element is nested in a row, with those two beside it. Dtypes are those of the first
    sequence of the bins.

    Order: bins are shuffled with ``seed`` plus the number of rows before them. State: the parent's
    before the first sequence of the bins, the row, and the count of rows; restoring packs the bins
    again. ``skip_failed`` skips a single sequence; the state says which one until the bins
    have been given out. Cost: a few µs per sequence and one copy; it grows with the logarithm of
    the number of bins (with several features, with their number).

    Output depends on the order of sequences: under ``mp_prefetch`` every worker packs those of its
    own share. More bins leave fewer cells unused, but hold more in memory and take longer to
    restore.

    Args:
        parent: a dataset of dicts of features: arrays whose first axis is that of the sequence,
            lists of numbers, or scalars, sequences of length 1. Features that are not named below
            are dropped; ``None`` is skipped.
        length_struct: feature to cells in a bin, at least 1. Sequences must be truncated to it. For
            a feature that is itself a dict of features: a dict of these; so for the other structs.
        num_packing_bins: bins that are filled at a time, at least 1.
        seed: a non-negative integer.
        shuffle_bins: shuffle the bins before they are given out.
        shuffle_bins_group_by_feature: shuffle only bins in which the mean of the different non-zero
            values of this feature, which is not nested, is equal, and give them out in the order of
            that mean.
        meta_features: features without segment ids and positions, all that is nested in them
            included. Those not in ``length_struct`` can be anything: the row has the list of them.
        pack_alignment_struct: feature to alignment: sequences begin at multiples of it. 1 by
            default.
        padding_struct: feature to the value of unused cells. 0 by default.
        max_sequences_per_bin: at least 1; no limit by default.

    Raises:
        TypeError: an argument has the wrong type; when iterating, an element that is not a dict.
        ValueError: a number is out of range, or names do not agree. When iterating, a sequence is
            too long, or its trailing shape or its values do not suit the bins; names the feature.
        KeyError: when iterating, an element lacks a feature.

    Example:
        >>> import numpy as np
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.source([3, 4, 2]).map(lambda n: {"x": np.full(n, n)}).to_iter_dataset()
        >>> packing = dict(length_struct={"x": 6}, num_packing_bins=2, shuffle_bins=False)
        >>> for row in FirstFitPackIterDataset(ds, **packing):
        ...     print(row["x"], row["x_segment_ids"])
        [3 3 3 2 2 0] [1 1 1 2 2 0]
        [4 4 4 4 0 0] [1 1 1 1 0 0]
    """

    @staticmethod
    def _algorithm() -> MakePlacer:
        return first_fit


class BestFitPackIterDataset(_PackIterDataset):
    """Returns rows of fixed length of sequences one after another: each goes into the
    fullest bin with room for it.

    Of equally full bins the first one takes it; with several features, how full a bin is says the
    sum over them. Everything else, arguments too, is as in ``FirstFitPackIterDataset``. Leaves
    fewer cells unused, mostly.

    Order: bins are shuffled with ``seed`` plus the number of rows before them. State: as of
    ``FirstFitPackIterDataset``. Cost: as there.

    Example:
        >>> import numpy as np
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.source([3, 4, 2]).map(lambda n: {"x": np.full(n, n)}).to_iter_dataset()
        >>> packing = dict(length_struct={"x": 6}, num_packing_bins=2, shuffle_bins=False)
        >>> for row in BestFitPackIterDataset(ds, **packing):
        ...     print(row["x"], row["x_segment_ids"])
        [3 3 3 0 0 0] [1 1 1 0 0 0]
        [4 4 4 4 2 2] [1 1 1 1 2 2]
    """

    @staticmethod
    def _algorithm() -> MakePlacer:
        return best_fit


RECORD = "__gristmill_record__"  # the feature of a traced element that is the element itself


def _with_record(layout: PackLayout, x: Traced) -> dict[str, Any] | None:
    if x.value is None:
        return None
    # An error of packing is raised here, where the record is known.
    layout.read(x.value)
    return {**x.value, RECORD: x}


def _as_names(meta_features: Sequence[str]) -> Sequence[str]:
    return (meta_features,) if isinstance(meta_features, str) else meta_features


def _traced_row(layout: PackLayout, row: dict[str, Any]) -> Traced:
    """Returns a packed row, with the cells of each sequence in all but meta features."""
    elements, own = row[RECORD], {name: value for name, value in row.items() if name != RECORD}
    spans = layout.spans(own, len(elements))
    pieces = []
    for i, x in enumerate(elements):
        parts = [Placed(Cells(path, length, *found[i])) for path, length, found in spans]
        pieces += placed(x, parts, keeps_empty=True)
    return Traced(lambda: own, [tuple(pieces)])


@dataclass
class Packing:
    """The rules of putting sequences into bins and emitting these, as the datasets have them."""

    algorithm: MakePlacer
    length_struct: Mapping[str, Any]
    num_packing_bins: int
    seed: int
    shuffle_bins: bool
    shuffle_bins_group_by_feature: str | None
    meta_features: Sequence[str]
    pack_alignment_struct: Mapping[str, Any] | None
    padding_struct: Mapping[str, Any] | None
    max_sequences_per_bin: int | None

    def __post_init__(self) -> None:
        self.layout = PackLayout(
            self.length_struct, self.meta_features, self.pack_alignment_struct, self.padding_struct
        )
        self.num_packing_bins = as_int("num_packing_bins", self.num_packing_bins, minimum=1)
        self.seed = check_seed(self.seed)
        if self.max_sequences_per_bin is not None:
            self.max_sequences_per_bin = as_int(
                "max_sequences_per_bin", self.max_sequences_per_bin, minimum=1
            )
        group = self.shuffle_bins_group_by_feature
        self._group = None if group is None else self.layout.index(group)

    def described(self) -> dict[str, Any]:
        """Returns the parameters that determine the rows."""
        given = {name.name: getattr(self, name.name) for name in fields(Packing)[1:]}
        return {"algorithm": self.algorithm.__name__, **given}

    def bins_like(self, sequences: list[Array]) -> Bins:
        """Empty bins for sequences like these."""
        features = self.layout.features
        return Bins(
            features,
            self.algorithm(features, self.num_packing_bins, self.max_sequences_per_bin),
            sequences,
        )

    def rows(self, bins: Bins, num_before: int) -> PackedRows:
        """Returns the contents of ``bins`` in the order in which they are emitted."""
        columns = bins.columns()
        order: Sequence[int] = range(len(bins))
        if self.shuffle_bins:
            grouped_by = None if self._group is None else columns[self._group][0]
            order = emission_order(len(bins), self.seed + num_before, grouped_by)
        return self.layout.rows(columns, bins.extras, order)


class BinPackDatasetIterator(StreamIterator[dict[str, Any]]):
    """The iterator of the two packings."""

    _gm_engine: BinPack

    def get_packed_batch_size_bytes(self) -> int:
        """Returns how many bytes the arrays of all bins take, and the numbers that say how full
        these are.

        Raises:
            ValueError: no element has been packed yet, so that dtypes are not known.
        """
        if self._gm_engine.num_bytes is None:
            raise ValueError("the size is known when an element has been packed: call next() first")
        return self._gm_engine.num_bytes
