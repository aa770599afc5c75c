"""``MapDataset.source``: records of a data source."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TypeVar

import numpy as np

from gristmill.core.cached import cached
from gristmill.core.element_spec import ShapeDtypeStruct
from gristmill.core.indices import Indices
from gristmill.dataset.bases.division import cut_into_parts
from gristmill.dataset.bases.items import read_items
from gristmill.dataset.bases.map import BlockMapDataset, MapDataset, source_reads_once
from gristmill.dataset.bases.node import (
    DatasetNode,
    dropping_steps,
    is_of_library,
    may_drop,
    spec_of,
)
from gristmill.dataset.bases.origins import RecordKey, UpstreamElement
from gristmill.dataset.descriptions.pipeline import (
    short_source_text,
    source_files,
    source_name,
    source_text,
)
from gristmill.dataset.errors.context import add_error_context
from gristmill.sources.base import check_source
from gristmill.sources.columns import ColumnsDataSource, by_position, is_columns
from gristmill.sources.reading import is_read_in_blocks, wrap_keys

T = TypeVar("T")


class SourceMapDataset(BlockMapDataset[T]):
    """Element ``i`` is ``source[i % len(source)]``; the length is taken every time.

    Order: the source's. Cost: that of the source's reads, a block in one vectored read where the
    source has one.
    """

    _gm_divided = cut_into_parts
    _gm_shared_by_threads = ("_gm_source",)

    def __init__(self, source: Any) -> None:
        super().__init__()
        if is_columns(source):
            self._gm_source: Any = ColumnsDataSource(source)
        else:
            check_source("source", source)
            self._gm_source = by_position(source)
        self._gm_has_one_epoch = isinstance(source, DatasetNode)  # of another dataset
        self._gm_drops = isinstance(source, DatasetNode) and bool(dropping_steps(source))

    def __len__(self) -> int:
        return len(self._gm_source)

    def __str__(self) -> str:
        return f"SourceMapDataset(source={source_name(self._gm_source)})"

    def __repr__(self) -> str:
        return f"SourceMapDataset(source={self._source_text})"

    @cached
    def _gm_may_drop(self) -> bool:
        """True if records may be ``None``, which cannot be known without reading them."""
        if isinstance(self._gm_source, DatasetNode):
            return may_drop(self._gm_source)
        return not (
            is_of_library(self._gm_source)
            or isinstance(self._gm_source, range | np.ndarray | str | bytes)
        )

    @property
    def _gm_draws_from(self) -> Sequence[Any]:
        return [self._gm_source] if isinstance(self._gm_source, DatasetNode) else []

    @property
    def _gm_data(self) -> Any:
        return self._gm_source

    @property
    def _gm_reads_once(self) -> bool:
        return source_reads_once(self._gm_source)

    @property
    def _gm_reads_many(self) -> bool:
        return is_read_in_blocks(self._gm_source)

    @property
    def _gm_described_parameters(self) -> dict[str, Any]:
        return {"source": self._source_text}

    @property
    def _source_text(self) -> str:
        return source_text(self._gm_source)

    @cached
    def _gm_record_source(self) -> str:
        return short_source_text(self._gm_source)

    @property
    def _gm_source_files(self) -> list[str] | None:
        return source_files(self._gm_source)

    @property
    def _element_spec(self) -> Any:
        source = self._gm_source
        if isinstance(source, DatasetNode):
            return spec_of(source)
        if isinstance(source, np.ndarray):
            return ShapeDtypeStruct(source.shape[1:], source.dtype)
        if not hasattr(source, "element_spec"):
            raise NotImplementedError(
                f"{self} does not say what its elements look like: give the source an attribute"
                " element_spec, a pytree of ShapeDtypeStruct"
            )
        return source.element_spec

    @property
    def paths(self) -> Any:
        """The source's ``paths``, if it has any."""
        return getattr(self._gm_source, "paths", [])

    @property
    def lengths(self) -> Any:
        """The source's ``lengths``, one for each record, if it has any."""
        return getattr(self._gm_source, "lengths", None)

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        source = self._gm_source
        try:
            keys = wrap_keys(source, indices)
        except Exception as error:
            add_error_context(error, self, indices[:1])
            raise
        return read_items(self, source, indices, keys)

    def _gm_origins(self, index: int) -> Iterable[UpstreamElement | RecordKey]:
        epoch, key = divmod(index, len(self))
        if isinstance(self._gm_source, MapDataset):
            return [UpstreamElement(self._gm_source, key, epoch)]
        return [RecordKey(key, epoch)]
