"""``ConcatThenSplitIterDataset``: sequences joined one after another and cut into pieces of fixed
lengths.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import FeatureKeyError, as_int
from gristmill.dataset.bases.cells import Cells, LineageRecord, Placed, placed
from gristmill.dataset.bases.iter import IterDataset
from gristmill.dataset.bases.iterator import DatasetIterator
from gristmill.dataset.bases.length import unknown_number
from gristmill.dataset.bases.map import MapDataset
from gristmill.dataset.bases.node import spec_of
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.bases.traced import Traced, Tracing, noting_failed
from gristmill.dataset.engine.iterators import open_stage
from gristmill.dataset.engine.packing import ConcatSplit
from gristmill.transforms.concat_split import Target
from gristmill.transforms.pack_layout import spans_of
from gristmill.transforms.sequences import Array, as_sequence


class BOSHandling(enum.Enum):
    """The way ``ConcatThenSplitIterDataset`` treats the first token of every piece of a sequence.

    Example:
        >>> list(BOSHandling)
        [<BOSHandling.DO_NOTHING: 1>, <BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS: 2>]
    """

    DO_NOTHING = 1
    REPLACE_FIRST_TOKEN_WITH_BOS = 2


class ConcatThenSplitParameters(Parameters):
    length_struct: dict[str, int]
    meta_features: Collection[str] = field(in_repr=False)
    split_full_length_features: bool = field(in_repr=False)
    bos_handling: BOSHandling = field(in_repr=False)
    bos_features: Collection[str] = field(in_repr=False)
    bos_token_id: int | None = field(in_repr=False)


class ConcatThenSplitIterDataset(IterDataset[dict[str, Any]]):
    """Returns rows of fixed length, cut from all sequences joined one after another; only the last
    one has unused cells.

    A row is a dict: for each feature ``f`` its values; ``f_segment_ids``, ``int32``, which count
    the pieces of sequences in it from 1 and are 0 in unused cells; ``f_positions``, ``int32``,
    which count from 0 in each piece, also in one that continues a sequence. With several features a
    row ends with the element that does not fit: each of its features goes in up to the length that
    fits. Dtypes are those of the first sequence in a row.

    Law: the tokens of a feature come out once each, in order (but for full-length elements that are
    passed through, and first tokens that are overwritten).

    Order: the parent's. State: the parent's before the element in which a row begins, where in it,
    and the number of rows since; restoring makes that row again. ``skip_failed`` skips a single
    element, and the state says which one as long as rows are being made of its neighbours.
    Cost: a few µs per sequence and one copy.

    Args:
        parent: a dataset of dicts with exactly the features of ``length_struct``: arrays whose
            first axis is that of the sequence, lists of numbers, or scalars, sequences of length 1.
            ``None`` is skipped.
        length_struct: feature to length of a row, at least 1.
        meta_features: features that are never cut, but repeated in every row that has a piece of
            their element; without segment ids and positions.
        split_full_length_features: with ``False``, elements that fit into a row, and fill it with
            one of their features, are passed through as rows of their own. They come after the row
            in the making, so that as many of them are held in memory as come in succession.
        bos_handling: whether the first token of every piece is overwritten.
        bos_features: the features in which it is.
        bos_token_id: what with.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: a number is out of range, or arguments do not agree. When iterating, an element
            is not such a dict, a meta feature is longer than a row, or a trailing shape or values
            do not suit the row; names the feature.

    Example:
        >>> import numpy as np
        >>> from gristmill.dataset import MapDataset
        >>> ds = MapDataset.source([3, 4, 2]).map(lambda n: {"x": np.full(n, n)}).to_iter_dataset()
        >>> for row in ConcatThenSplitIterDataset(ds, length_struct={"x": 5}):
        ...     print(row["x"], row["x_segment_ids"], row["x_positions"])
        [3 3 3 4 4] [1 1 1 2 2] [0 1 2 0 1]
        [4 4 2 2 0] [1 1 2 2 0] [0 1 0 1 0]
    """

    _gm_num_elements = unknown_number  # the lengths of the sequences decide it

    def __init__(
        self,
        parent: IterDataset[Any] | MapDataset[Any],
        *,
        length_struct: Mapping[str, int],
        meta_features: Collection[str] = (),
        split_full_length_features: bool = True,
        bos_handling: BOSHandling = BOSHandling.DO_NOTHING,
        bos_features: Collection[str] = (),
        bos_token_id: int | None = None,
    ) -> None:
        super().__init__(parent)
        if not isinstance(length_struct, Mapping):
            raise TypeError(
                f"length_struct must be a dict of lengths by feature, got {length_struct!r:.200}"
            )
        if not length_struct:
            raise ValueError(
                "length_struct must name the features and their lengths in a row, got {}"
            )
        meta = _names("meta_features", meta_features, length_struct)
        bos = _names("bos_features", bos_features, length_struct)
        if not isinstance(bos_handling, BOSHandling):
            raise TypeError(f"bos_handling must be a BOSHandling, got {bos_handling!r:.200}")
        if bos_handling is BOSHandling.DO_NOTHING and (bos or bos_token_id is not None):
            raise ValueError(
                "bos_features and bos_token_id have no effect with BOSHandling.DO_NOTHING, got"
                f" {bos} and {bos_token_id!r}: pass BOSHandling.REPLACE_FIRST_TOKEN_WITH_BOS"
            )
        if bos_handling is not BOSHandling.DO_NOTHING and bos_token_id is None:
            raise ValueError(f"bos_token_id must be given with {bos_handling}")
        if both := sorted(set(meta) & set(bos)):
            raise ValueError(f"bos_features must not be meta_features as well, got {both}")
        bos_id = None if bos_token_id is None else as_int("bos_token_id", bos_token_id)
        lengths = {
            name: as_int(f"the length of feature {name!r}", n, minimum=1)
            for name, n in length_struct.items()
        }
        self._targets = [
            Target(name, n, name in meta, bos_id if name in bos else None)
            for name, n in lengths.items()
        ]
        outputs = [name for target in self._targets for name in _outputs(target)]
        if len(set(outputs)) < len(outputs):
            raise ValueError(
                "features must not be named as the segment ids or positions of others are, got"
                f" {list(lengths)}"
            )
        self._splits_full_length = bool(split_full_length_features)
        self._gm_parameters = ConcatThenSplitParameters(
            lengths,
            meta_features,
            self._splits_full_length,
            bos_handling,
            bos_features,
            bos_token_id,
        )

    @property
    def _element_spec(self) -> Any:
        spec = spec_of(self._gm_parent)
        lengths = {target.name: target.length for target in self._targets}
        if not isinstance(spec, Mapping) or spec.keys() != lengths.keys():
            raise _other_features(spec, lengths)
        row = {}
        for target in self._targets:
            leaf = spec[target.name]
            values, *numbers = _outputs(target)
            row[values] = ShapeDtypeStruct((target.length, *leaf.shape[1:]), leaf.dtype)
            row.update({name: ShapeDtypeStruct((target.length,), np.int32) for name in numbers})
        return row

    def _gm_traced(self, tracing: Tracing) -> Any:
        targets = [Target(target.name, target.length, target.is_meta) for target in self._targets]
        cells = tracing.of(self._gm_parent).map(noting_failed(partial(_as_cells, targets)))
        return tracing.over(self, _gm_parents=(cells,), _targets=targets).map(
            partial(_traced_row, self._targets)
        )

    def __iter__(self) -> DatasetIterator[dict[str, Any]]:
        read = partial(_sequences, {target.name: target.length for target in self._targets})
        make = partial(
            ConcatSplit,
            targets=self._targets,
            read=read,
            splits_full_length=self._splits_full_length,
        )
        return open_stage(self, make)


def _as_cells(targets: Sequence[Target], x: Traced) -> dict[str, Array] | None:
    """Returns an element each of whose tokens says whose it is, and which."""
    if x.value is None:
        return None
    cells = {}
    lengths = {target.name: target.length for target in targets}
    for name, sequence in zip(lengths, _sequences(lengths, x.value), strict=True):
        cells[name] = own = np.empty(len(sequence), object)
        for i in range(len(own)):
            own[i] = (x, i)
    return cells


def _sequences(lengths: Mapping[str, int], element: object) -> list[Array]:
    """Returns the sequences of an element, in the order of ``lengths``."""
    if (
        type(element) is not dict and not isinstance(element, Mapping)
    ) or element.keys() != lengths.keys():
        raise _other_features(element, lengths)
    return [as_sequence(repr(name), element[name]) for name in lengths]


def _traced_row(targets: Sequence[Target], row: dict[str, Array]) -> Traced:
    """Returns a row of such cells. A record without tokens in it is not named."""
    ids = {
        target.name: row[f"{target.name}_segment_ids"] for target in targets if not target.is_meta
    }
    num = max([int(segment_ids.max(initial=0)) for segment_ids in ids.values()], default=0)
    spans = {name: spans_of(segment_ids, num) for name, segment_ids in ids.items()}
    pieces: list[LineageRecord] = []
    for i in range(num):
        parts, x = [], None
        for name, found in spans.items():
            (start, stop), first = found[i], 0
            if stop > start:
                x, first = row[name][start]
            parts.append(Placed(Cells((name,), len(row[name]), start, stop), first))
        if x is not None:
            pieces += placed(x, parts, keeps_empty=False)
    return Traced(partial(_row_of, targets, row), [tuple(pieces)])


def _row_of(targets: Sequence[Target], row: dict[str, Array]) -> dict[str, Array]:
    """Returns the row of tokens that a row of cells stands for."""
    whole = dict(row)
    for target in targets:
        cells = [(i, cell) for i, cell in enumerate(row[target.name]) if cell]
        tokens = [(i, as_sequence(target.name, x.value[target.name])[k]) for i, (x, k) in cells]
        like = np.asarray(tokens[0][1]) if tokens else np.zeros((), np.int64)
        whole[target.name] = values = np.zeros((target.length, *like.shape), like.dtype)
        for i, token in tokens:
            values[i] = token
        if target.bos_id is not None:
            starts = (row[f"{target.name}_positions"] == 0) & (
                row[f"{target.name}_segment_ids"] > 0
            )
            values[starts] = target.bos_id
    return whole


def _names(
    argument: str, names: Collection[str], length_struct: Mapping[str, int]
) -> tuple[str, ...]:
    """Distinct names of features."""
    found = (names,) if isinstance(names, str) else tuple(dict.fromkeys(names))
    unknown = [name for name in found if name not in length_struct]
    if unknown:
        raise ValueError(
            f"{argument} must be features of length_struct, which are {list(length_struct)}, got"
            f" {unknown}"
        )
    return found


def _other_features(element: object, lengths: Mapping[str, int]) -> Exception:
    """Returns the error for an element that has other features than ``lengths`` has."""
    names = list(lengths)
    text = f"elements to pack must be dicts with exactly the features {names} of length_struct"
    if not isinstance(element, Mapping):
        return ValueError(f"{text}, got {element!r:.100} of type {type(element).__name__}")
    text = f"{text}, got the features {list(element)}"
    missing = [name for name in names if name not in element]
    if missing:
        return FeatureKeyError(
            f"{text}: add {missing} upstream (with map, say), or leave it out of length_struct"
        )
    extra = [name for name in element if name not in lengths]
    return ValueError(
        f"{text}: remove {extra} upstream (with map, say), or add it to length_struct"
    )


def _outputs(target: Target) -> list[str]:
    """Returns the names of values, segment ids and positions in a row."""
    name = target.name
    return [name] if target.is_meta else [name, f"{name}_segment_ids", f"{name}_positions"]
