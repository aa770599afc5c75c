"""The description that identifies a pipeline: its stages, and digests of functions and data.

Bytecode differs between versions of Python, so it is compared within one version only.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from gristmill.core.errors import StateMismatchError
from gristmill.core.naming import transform_name
from gristmill.core.state import shown
from gristmill.dataset.bases.node import is_of_library
from gristmill.dataset.bases.parameters import parameters_of
from gristmill.dataset.descriptions.digests import Digest
from gristmill.dataset.descriptions.pipeline import check_description, describe, source_first
from gristmill.sources.columns import ColumnsDataSource

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import DatasetNode

_PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


def described_pipeline(ds: DatasetNode) -> dict[str, Any]:
    """Returns the description of a dataset, as JSON: stages, digests of functions and data.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> described_pipeline(MapDataset.range(3).map(abs))["code"][1]["name"]
        'abs'
    """
    return {
        "stages": describe(ds),
        "python": _PYTHON,
        "code": [_code_of(*found) for found in _nodes(ds)],
    }


def pipeline_difference(saved: Mapping[str, Any], own: Mapping[str, Any]) -> str | None:
    """Returns the first difference of two descriptions in words; ``None`` if there is none."""
    try:
        check_description(saved.get("stages"), own["stages"])
    except StateMismatchError as error:
        _, is_difference, text = str(error).partition("pipeline: ")
        # without the remedy of checkpoints
        return text.rpartition(". ")[0] if is_difference else str(error)
    if saved.get("python") != own["python"]:
        return None
    for then, now in zip(saved.get("code", ()), own["code"], strict=False):
        if then != now:
            text = f"the code or the data of {now['stage']} differ"
            if then.get("name") != now["name"]:
                return f"{text}, {shown(then.get('name'))} then, {shown(now['name'])} now"
            return f"{text}: {now['name']}" if now["name"] else text
    return None


def _nodes(ds: DatasetNode, *, is_described: bool = True) -> Iterator[tuple[Any, bool]]:
    """Yield the datasets upstream, the sources first, and whether the description of ``ds`` has
    them.

    It has none of those that are sources of others.
    """
    for node in source_first(ds):
        for inner in node._gm_draws_from:
            if not node._gm_parents:
                yield from _nodes(inner, is_described=False)
        yield node, is_described


def _code_of(node: DatasetNode, is_described: bool) -> dict[str, str]:
    digest = Digest(_add_dataset)
    names = _add_node(digest, node, is_described)
    return {
        "stage": str(node.__class__.__name__),
        "name": ", ".join(names),
        "digest": digest.hexdigest(),
    }


def _add_node(digest: Digest, node: Any, is_described: bool) -> list[str]:
    """Adds a dataset without its parents to a digest. Returns the names of its functions."""
    parameters = parameters_of(node)
    if not is_described:
        digest.add(parameters.described())
    names = []
    if is_of_library(node):
        values = parameters.as_dict()
        described = parameters.described()
        for name in values:
            if name not in described and (callable(values[name]) or _is_object(values[name])):
                names.append(transform_name(values[name]).partition(" @ ")[0])
                digest.add(values[name])
        if not node._gm_parents and not node._gm_draws_from:
            data = node._gm_data
            is_in_memory = type(data).__module__ == ColumnsDataSource.__module__
            digest.add(vars(data) if is_in_memory else data)
    else:
        digest.add_class(type(node))
        digest.add_attributes(node, but="_gm_")  # those of the engine
    return names


def _add_dataset(digest: Digest, ds: DatasetNode) -> None:
    """Adds a dataset that an object refers to."""
    digest.add(describe(ds))
    for node, is_described in _nodes(ds):
        _add_node(digest, node, is_described)


def _is_object(value: object) -> bool:
    return not isinstance(value, int | float | complex | str | bytes | None) and hasattr(
        value, "__dict__"
    )
