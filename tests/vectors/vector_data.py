"""The recorded behaviour of Grain 0.2.18, and pipelines in the shorthand in which it is written down."""

import json
import re
from pathlib import Path
from typing import Any

import gristmill
from gristmill import IterDataset, MapDataset, experimental

# Where pipelines of the vectors use what this version does not have yet: how it is spelt there, and its public name.
# A name that has come to exist must leave this table (a test says so), and its rows run from then on.
LATER = {
    r"\bIterDataset\.mix\(": "IterDataset.mix",
    r"(?<!\.)\bmix\(": "MapDataset.mix",
    r"\bconcatenate\(": "MapDataset.concatenate",
    **{
        rf"\b{name}\b": f"experimental.{name}"
        for name in (
            "CacheIterDataset",
            "ConcatThenSplitIterDataset",
            "ElasticIterator",
            "FirstFitPackIterDataset",
            "FlatMapIterDataset",
            "InterleaveIterDataset",
            "LimitIterDataset",
            "RebatchIterDataset",
            "RepeatIterDataset",
            "WindowShuffleIterDataset",
            "ZipIterDataset",
        )
    },
}

_LAMBDAS = {"map": "x", "filter": "x", "random_map": "x, g", "map_with_index": "i, x"}
_BARE_BODY = re.compile(r"\.(map_with_index|random_map|filter|map)\((?!lambda|f\)|g\))")


def load(name: str) -> dict[str, Any]:
    return json.loads((Path(__file__).parent / "data" / f"{name}.json").read_text())


def needs(pipeline: str) -> list[str]:
    """The names that ``pipeline`` uses and that do not exist yet."""
    return [name for pattern, name in LATER.items() if re.search(pattern, pipeline)]


def exists(name: str) -> bool:
    place: Any = gristmill
    for part in name.split("."):
        if not hasattr(place, part):
            return False
        place = getattr(place, part)
    return True


def runnable(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [row for row in rows if not needs(row["pipeline"])]


def build(pipeline: str) -> Any:
    """The dataset that ``pipeline`` spells: Python, with ``to_iter`` for ``to_iter_dataset()`` and functions as bare bodies."""
    code = re.sub(r"\.to_iter\b(?!_)", ".to_iter_dataset()", pipeline)
    code = _BARE_BODY.sub(lambda match: f"{match[0]}lambda {_LAMBDAS[match[1]]}: ", code)
    names = {
        **{name: getattr(experimental, name) for name in experimental.__all__},
        "IterDataset": IterDataset,
        "range": MapDataset.range,
        "source": MapDataset.source,
        "f": lambda x: x + 1,
        "g": lambda x, rng: x,
    }
    return eval(code, names)


def plain(element: Any) -> Any:
    """``element`` as JSON would give it back."""
    if isinstance(element, tuple | list):
        return [plain(x) for x in element]
    return element.tolist() if hasattr(element, "tolist") else element
