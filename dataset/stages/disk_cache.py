"""``cache(path)``: elements that are kept on disk when they are first computed."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gristmill.core.errors import as_int
from gristmill.core.indices import Indices, as_ints
from gristmill.core.locks import Lock
from gristmill.core.state import shown
from gristmill.dataset.bases.epochs import keeps_records
from gristmill.dataset.bases.items import item
from gristmill.dataset.bases.map import BlockMapDataset
from gristmill.dataset.bases.node import ancestors, spec_of_first_parent, tolerances
from gristmill.dataset.bases.parameters import Parameters, field
from gristmill.dataset.descriptions.code import described_pipeline, pipeline_difference
from gristmill.dataset.engine.disk_store import MISSING, DiskStore, store_at
from gristmill.dataset.errors.context import add_error_context
from gristmill.dataset.stages.map_with_index import MapWithIndexMapDataset
from gristmill.dataset.stages.random_map import RandomMapIterDataset, RandomMapMapDataset

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

_log = logging.getLogger("gristmill")

T = TypeVar("T")

_DESCRIPTION = "pipeline.json"


class DiskCacheParameters(Parameters):
    path: str = field(in_checkpoint=False, in_repr=False)
    max_bytes: int | None = field(in_checkpoint=False, in_repr=False)
    freeze: bool

    def __post_init__(self) -> None:
        if not isinstance(self.path, str | os.PathLike):
            raise TypeError(
                f"path must be a folder, got {shown(self.path)} of type {type(self.path).__name__}"
            )
        if not os.fspath(self.path) or "://" in os.fspath(self.path):
            raise ValueError(
                "path must be a folder of this machine or of a shared file system, got"
                f" {self.path!r}"
            )
        if self.max_bytes is not None:
            as_int("max_bytes", self.max_bytes, minimum=1)
        if not isinstance(self.freeze, bool):
            raise TypeError(f"freeze must be True or False, got {shown(self.freeze)}")
        path = os.path.expanduser(self.path)  # noqa: PTH111
        self._replace(path=os.path.abspath(path))  # noqa: PTH100


class DiskCache:
    """The store of the elements of one pipeline. It pickles into workers, which open it by
    themselves.

    Args:
        parent: the dataset whose elements are kept.
        parameters: of the stage.
    """

    def __init__(self, parent: DatasetNode, parameters: DiskCacheParameters) -> None:
        description = described_pipeline(parent)
        text = json.dumps(description, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._description = description
        self._folder = os.path.join(parameters.path, name)  # noqa: PTH118
        self._max_bytes = parameters.max_bytes

    def store(self) -> DiskStore:
        """Returns the store of this process, opened by the first call.

        Raises:
            OSError: the folder cannot be made, or written to.
        """
        try:
            return store_at(self._folder, self._max_bytes, self._begin)
        except OSError as error:
            if error.errno is None:
                raise
            root = Path(self._folder).parent
            text = f"path must be a folder that can be written to, got {root}: {error.strerror}"
            raise OSError(error.errno, text) from error

    def _begin(self) -> None:
        path = Path(self._folder, _DESCRIPTION)
        if not path.exists():
            self._say_what_differs()
            path.parent.mkdir(parents=True, exist_ok=True)
            beside = path.with_name(f"{_DESCRIPTION}.{os.getpid()}.{threading.get_ident()}")
            beside.write_text(json.dumps(self._description, indent=1))
            beside.replace(path)

    def _say_what_differs(self) -> None:
        root, own = Path(self._folder).parent, Path(self._folder, _DESCRIPTION)
        others = sorted(root.glob(f"*/{_DESCRIPTION}"), key=lambda path: path.stat().st_mtime)
        if own in others:  # another process has just written it
            return
        for other in others[-1:]:
            try:
                difference = pipeline_difference(json.loads(other.read_bytes()), self._description)
            except ValueError:
                difference = "its description is damaged"
            difference = difference or "its Python"
            _log.warning(
                "cache: %s begins another cache, since the pipeline has changed: %s",
                root,
                difference,
            )


def check_no_draws(
    parent: DatasetNode, parameters: DiskCacheParameters, *, is_stream: bool
) -> None:
    """Refuse random stages upstream, whose draws would be the same in all epochs.

    Raises:
        ValueError: there is one, and ``freeze`` is False.
    """
    if parameters.freeze:
        return
    remedy = (
        "Call cache before it, or pass freeze=True if all epochs are to have the elements of the"
        " first one"
    )
    for node in ancestors(parent):
        if isinstance(node, RandomMapMapDataset | RandomMapIterDataset):
            raise ValueError(f"cache would freeze the draws of {node!s:.200}. {remedy}")
        if not is_stream and isinstance(node, MapWithIndexMapDataset):
            raise ValueError(
                f"cache would freeze the indices of {node!s:.200}, which continue in later epochs."
                f" {remedy}"
            )
    if not is_stream and not keeps_records(parent):
        raise ValueError(
            f"cache needs the same element at a position in all epochs, which {parent!s:.200}, or a"
            f" shuffle, window or mixture before it, does not have. {remedy}"
        )


class DiskCacheMapDataset(BlockMapDataset[T]):
    """The elements of the parent, kept on disk when they are first computed, and read from there
    afterwards; see ``MapDataset.cache``.

    Order: the parent's. Cost: to store an element, its pickle; then one read, without copies of
    arrays.
    """

    _element_spec = spec_of_first_parent
    _gm_keeps_indices = True
    _gm_is_rebuilt = True

    def __init__(
        self, parent: object, path: Any, max_bytes: int | None = None, freeze: bool = False
    ) -> None:
        super().__init__(parent)
        self._gm_parameters: DiskCacheParameters = DiskCacheParameters(path, max_bytes, freeze)
        check_no_draws(self._gm_parent, self._gm_parameters, is_stream=False)
        self._cache = DiskCache(self._gm_parent, self._gm_parameters)
        self._keeps_nones = not tolerances(
            self._gm_parent
        )  # else faults would be counted once only

    def _gm_items(self, indices: Indices) -> Iterator[Any]:
        length = len(self)
        self._check_not_empty(length, indices)
        return self._found_or_computed([i % length for i in as_ints(indices)])

    def _found_or_computed(self, keys: Sequence[int]) -> Iterator[Any]:
        store = self._cache.store()
        for key in keys:
            element = store.value(key)
            if element is MISSING:
                element = self._computed(store, key)
            yield (element, element := None)[0]

    def _computed(self, store: DiskStore, key: int) -> Any:
        """Return the element at ``key``, computed by one thread."""
        claim = Lock()
        with claim:  # which others wait for, and which an interrupt releases
            other = store.claims.setdefault(key, claim)
            if other is claim:
                try:
                    return self._stored(store, key)
                finally:
                    store.claims.pop(key, None)
        with other:
            pass
        return self._stored(store, key)

    def _stored(self, store: DiskStore, key: int) -> Any:
        element = store.value(key)  # another thread may have stored it since the last look
        if element is MISSING:
            element = item(self._gm_parents[0], key)
            if element is not None or self._keeps_nones:
                self._keep(store, key, element)
        return element

    def _keep(self, store: DiskStore, key: int, element: object) -> None:
        try:
            store.put(key, element)
        except Exception as error:
            add_error_context(error, self, [key])
            raise
