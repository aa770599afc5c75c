"""Elements of named features as sequences for bins, and what bins hold as elements again."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.errors import FeatureKeyError, as_int
from gristmill.transforms.bin_packing import Columns, Feature
from gristmill.transforms.sequences import Array, as_sequence

Path: TypeAlias = tuple[Any, ...]  # the key of a feature, or the keys of a nested one


class PackLayout:
    """Which features of an element are packed into bins, and how.

    The arguments are those of the datasets that pack. Features may be nested in dicts, and are so
    in a row. A meta feature with a length is packed like the others, but without segment ids and
    positions; one without a length is carried along as it is.

    Raises:
        TypeError: an argument has the wrong type.
        ValueError: there are no features, a number is not positive, or names do not agree.
    """

    def __init__(
        self,
        length_struct: Mapping[str, Any],
        meta_features: Sequence[str] = (),
        pack_alignment_struct: Mapping[str, Any] | None = None,
        padding_struct: Mapping[str, Any] | None = None,
    ) -> None:
        lengths = _leaves("length_struct", length_struct)
        alignments = _leaves("pack_alignment_struct", pack_alignment_struct or {})
        paddings = _leaves("padding_struct", padding_struct or {})
        for argument, given in (
            ("pack_alignment_struct", alignments),
            ("padding_struct", paddings),
        ):
            unknown = [_shown(path) for path in given if path not in lengths]
            if unknown:
                raise ValueError(
                    f"{argument} must have keys of length_struct, which are {_shown(*lengths)}, got"
                    f" {unknown}"
                )
        meta = (
            (meta_features,)
            if isinstance(meta_features, str)
            else tuple(dict.fromkeys(meta_features))
        )
        self._carried = [name for name in meta if name not in length_struct]
        self._paths = list(lengths)
        self._names = (
            [path[0] for path in lengths] if all([len(path) == 1 for path in lengths]) else None
        )
        self.features = []
        for path, length in lengths.items():
            name, is_meta = _shown(path), path[0] in meta
            length = as_int(f"the length of feature {name}", length, minimum=1)
            alignment = as_int(
                f"the alignment of feature {name}", alignments.get(path, 1), minimum=1
            )
            self.features.append(Feature(name, length, alignment, paddings.get(path), is_meta))
        outputs = [output for path, feature in self._packed() for output in _outputs(path, feature)]
        outputs += [(name,) for name in self._carried]
        if not outputs:
            raise ValueError(
                "length_struct must name the features to pack and their lengths in a bin, got {}"
            )
        inner = [output[:n] for output in outputs for n in range(1, len(output))]
        if len(set(outputs)) < len(outputs) or not set(outputs).isdisjoint(inner):
            raise ValueError(
                "features must not be named as the segment ids or positions of others are, got"
                f" {_shown(*outputs)}"
            )

    def index(self, name: str) -> int:
        """Returns which of ``features`` has this name."""
        if (name,) not in self._paths:
            names = [path[0] for path in self._paths if len(path) == 1]
            raise ValueError(
                f"a feature to group by must be in length_struct and not nested, one of {names},"
                f" got {name!r}"
            )
        return self._paths.index((name,))

    def read(self, element: Any) -> tuple[list[Array], tuple[Any, ...]]:
        """Returns the sequences of an element, one for each of ``features``, and what it has to
        carry along.

        Raises:
            TypeError: the element is not a dict, or not in the place of a dict of features.
            FeatureKeyError: it lacks a feature.
            ValueError: a feature cannot be a sequence.
        """
        if type(element) is not dict and not isinstance(element, Mapping):
            raise TypeError(
                f"elements to pack must be dicts of features, got {element!r:.100} of type"
                f" {type(element).__name__}"
            )
        try:
            if self._names is not None:
                values = [element[name] for name in self._names]
            else:
                values = [_value_at(element, path) for path in self._paths]
            carried = tuple([element[name] for name in self._carried]) if self._carried else ()
        except KeyError:
            self._check_features(element)
            raise
        for i, value in enumerate(values):
            if type(value) is not np.ndarray or not value.ndim:
                values[i] = as_sequence(
                    self.features[i].name, int(value) if isinstance(value, bool) else value
                )
        return values, carried

    def rows(
        self, columns: Sequence[Columns], carried: list[list[Any]], order: Sequence[int]
    ) -> PackedRows:
        """Returns the contents of bins, given as ``Bins.columns()`` and ``Bins.extras``, as
        elements in this order.
        """
        named = [
            (path, array)
            for (path, feature), arrays in zip(self._packed(), columns, strict=True)
            for path, array in zip(_outputs(path, feature), arrays, strict=False)
            if array is not None
        ]
        return PackedRows(named, self._carried, carried, order)

    def spec(self, spec: Any) -> Any:
        """Returns the spec of rows, from that of elements."""
        if self._carried:
            raise NotImplementedError(
                f"how many values a row carries of {self._carried}, meta features without a length,"
                " is not known beforehand"
            )
        self._check_features(spec)
        row: dict[str, Any] = {}
        for path, feature in self._packed():
            leaf = _value_at(spec, path)
            values, *numbers = _outputs(path, feature)
            _put(row, values, ShapeDtypeStruct((feature.length, *leaf.shape[1:]), leaf.dtype))
            for output in numbers:
                _put(row, output, ShapeDtypeStruct((feature.length,), np.int32))
        return row

    def spans(self, row: Any, num: int) -> list[tuple[Path, int, list[tuple[int, int]]]]:
        """Returns the features of a row that have segment ids, with the cells of ``num`` sequences.

        Each is a tuple of keys, length and bounds of cells.
        """
        return [
            (path, feature.length, spans_of(_value_at(row, _outputs(path, feature)[1]), num))
            for path, feature in self._packed()
            if not feature.is_meta
        ]

    def _check_features(self, element: Any) -> None:
        """Raises ``FeatureKeyError`` if ``element``, or the spec of elements, lacks a feature."""
        named = [("length_struct", path) for path in self._paths]
        for argument, path in [*named, *[("meta_features", (name,)) for name in self._carried]]:
            for depth, key in enumerate(path):
                outer = _value_at(element, path[:depth])
                if isinstance(outer, Mapping) and key not in outer:
                    inside = f" in feature {_shown(path[:depth])}" if depth else ""
                    raise FeatureKeyError(
                        f"elements to pack must have all features of {argument}, which names "
                        f"{_shown(path)}, got an element with {list(outer)}{inside}: add the "
                        f"feature upstream (with map, say), or leave it out of {argument}"
                    ) from None

    def _packed(self) -> Iterator[tuple[Path, Feature]]:
        return zip(self._paths, self.features, strict=True)


class PackedRows:
    """The elements that bins make, each a dict of views, made when asked for."""

    def __init__(
        self,
        columns: list[tuple[Path, Array]],
        carried: list[str],
        extras: list[list[Any]],
        order: Sequence[int],
    ) -> None:
        self._flat = [(path[0], column) for path, column in columns if len(path) == 1]
        self._nested = [(path, column) for path, column in columns if len(path) > 1]
        self._carried = carried
        self._extras = extras
        self._order = order

    def __len__(self) -> int:
        return len(self._order)

    @property
    def extras(self) -> list[list[Any]]:
        """The extras given with the sequences of each row."""
        return [self._extras[r] for r in self._order]

    def __getitem__(self, i: int) -> dict[str, Any]:
        r = self._order[i]
        row: dict[str, Any] = {name: column[r] for name, column in self._flat}
        for path, column in self._nested:
            _put(row, path, column[r])
        for k, name in enumerate(self._carried):
            row[name] = [extra[k] for extra in self._extras[r]]
        return row


def spans_of(segment_ids: Array, num: int) -> list[tuple[int, int]]:
    """Returns the cells ``(start, stop)`` of segments 1 to ``num``; those of one without any are
    between those beside it.
    """
    present, first, counts = np.unique(segment_ids, return_index=True, return_counts=True)
    known = {
        int(i): (int(start), int(start + n))
        for i, start, n in zip(present, first, counts, strict=True)
        if i > 0
    }
    spans: list[tuple[int, int]] = []
    stop = 0
    for i in range(1, num + 1):
        span = known.get(i, (stop, stop))
        spans.append(span)
        stop = span[1]
    return spans


def _leaves(argument: str, struct: Any) -> dict[Path, Any]:
    if not isinstance(struct, Mapping):
        raise TypeError(
            f"{argument} must be a dict with a value for each feature, got {struct!r:.200}"
        )
    found: dict[Path, Any] = {}
    for key, value in struct.items():
        inner = _leaves(argument, value) if isinstance(value, Mapping) else {(): value}
        found.update({(key, *path): leaf for path, leaf in inner.items()})
    return found


def _outputs(path: Path, feature: Feature) -> list[Path]:
    """Returns the paths of values, segment ids and positions of a feature in a row."""
    *outer, name = path
    return (
        [path]
        if feature.is_meta
        else [path, (*outer, f"{name}_segment_ids"), (*outer, f"{name}_positions")]
    )


def _shown(*paths: Path) -> str:
    return ", ".join(
        "".join([repr(path[0]), *[f"[{key!r}]" for key in path[1:]]]) for path in paths
    )


def _value_at(element: Any, path: Path) -> Any:
    for depth, key in enumerate(path):
        if not isinstance(element, Mapping):
            name = f"feature {_shown(path[:depth])}" if depth else "an element to pack"
            raise TypeError(
                f"{name} must be a dict of features as in length_struct, got {element!r:.100} of"
                f" type {type(element).__name__}"
            )
        element = element[key]
    return element


def _put(row: dict[Any, Any], path: Path, value: Any) -> None:
    for key in path[:-1]:
        row = row.setdefault(key, {})
    row[path[-1]] = value
