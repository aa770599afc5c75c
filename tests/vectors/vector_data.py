"""The recorded behaviour of Grain 0.2.18, and pipelines in the shorthand in which it is written down."""

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

import gristmill
from gristmill import IterDataset, MapDataset, experimental

_LAMBDAS = {"map": "x", "filter": "x", "random_map": "x, g", "map_with_index": "i, x"}
_BARE_BODY = re.compile(r"\.(map_with_index|random_map|filter|map)\((?!lambda|f\)|g\))")


def load(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text())


def build(pipeline: str) -> Any:
    """The dataset that ``pipeline`` spells: Python, with ``to_iter`` for ``to_iter_dataset()`` and functions as bare bodies."""
    code = re.sub(r"\.to_iter\b(?!_)", ".to_iter_dataset()", pipeline)
    code = re.sub(r"(\d)i\b", r"\1*i", code)  # as one writes it on paper
    code = code.replace("(same source", "(source([{a: arange(n)} for n in (2,3,4,1)]).to_iter_dataset()")
    code = _BARE_BODY.sub(lambda match: f"{match[0]}lambda {_LAMBDAS[match[1]]}: ", code)
    code = re.sub(r"x -> (.*)\)$", r"FM(lambda x: \1))", code)
    names = {
        "FM": FM,
        **{name: getattr(experimental, name) for name in experimental.__all__},
        "IterDataset": IterDataset,
        "a": "a",
        "arange": np.arange,
        "ShardOptions": gristmill.sharding.ShardOptions,
        "concatenate": MapDataset.concatenate,
        "mix": MapDataset.mix,
        "range": MapDataset.range,
        "source": MapDataset.source,
        "f": lambda x: x + 1,
        "g": lambda x, rng: x,
    }
    return eval(code, names)


class FM(experimental.FlatMapTransform):
    max_fan_out = 2

    def __init__(self, fn: Any) -> None:
        self.flat_map = fn

    def flat_map(self, element: Any) -> Any: ...


def plain(element: Any) -> Any:
    """``element`` as JSON would give it back."""
    if isinstance(element, tuple | list):
        return [plain(x) for x in element]
    if isinstance(element, dict):
        return {key: plain(x) for key, x in element.items()}
    return element.tolist() if hasattr(element, "tolist") else element
