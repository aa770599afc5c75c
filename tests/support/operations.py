"""Operations of loaders from functions, and their outputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gristmill.transforms import RandomMap


def operation(base: type, method: str, function: Callable[..., Any], **attributes: Any) -> Any:
    """A transformation of the kind ``base``, of which ``method`` is ``function``."""
    return type(base.__name__, (base,), {method: staticmethod(function), **attributes})()


NOISE = operation(RandomMap, "random_map", lambda x, rng: x + int(rng.integers(1000)) * 100)


def plain(elements: Any) -> list[Any]:
    """Elements, arrays as lists."""
    return [x.tolist() if hasattr(x, "tolist") else x for x in elements]


def flat(element: Any) -> list[Any]:
    """The numbers of an element: of batches, and of the packed rows those that are not
    padding.
    """
    if isinstance(element, dict):
        return (
            flat(element["x"][element["x_segment_ids"] > 0])
            if "x_segment_ids" in element
            else flat(element["x"])
        )
    return (
        [x for part in element for x in flat(part)]
        if isinstance(element, list)
        else np.atleast_1d(element).tolist()
    )
