"""The recorded behaviour of Grain 0.2.18, pipelines in the shorthand in which it is written down,
and how both are compared.
"""

import copy
import itertools
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
    """The dataset that ``pipeline`` spells: Python, with ``to_iter`` for ``to_iter_dataset()`` and
    functions as bare bodies.
    """
    code = re.sub(r"\.to_iter\b(?!_)", ".to_iter_dataset()", pipeline)
    code = re.sub(r"(\d)i\b", r"\1*i", code)  # as one writes it on paper
    code = code.replace(
        "(same source", "(source([{a: arange(n)} for n in (2,3,4,1)]).to_iter_dataset()"
    )
    code = _BARE_BODY.sub(lambda match: f"{match[0]}lambda {_LAMBDAS[match[1]]}: ", code)
    code = re.sub(r"x -> (.*)\)$", r"FM(lambda x: \1))", code)
    makers = {name: getattr(MapDataset, name) for name in ("concatenate", "mix", "range", "source")}
    names = (
        {name: getattr(experimental, name) for name in experimental.__all__}
        | makers
        | {"FM": FM, "IterDataset": IterDataset}
    )
    names |= {"a": "a", "arange": np.arange, "ShardOptions": gristmill.sharding.ShardOptions}
    names |= {"f": lambda x: x + 1, "g": lambda x, rng: x}
    return eval(code, names)


def FM(fn: Any, max_fan_out: int = 2) -> Any:
    return type(
        "FM",
        (experimental.FlatMapTransform,),
        {"flat_map": staticmethod(fn), "max_fan_out": max_fan_out},
    )()


FAN = FM(lambda element: [[element, j] for j in range(element % 3)], 3)


def plain(element: Any) -> Any:
    """``element`` as JSON would give it back."""
    if isinstance(element, tuple | list):
        return [plain(x) for x in element]
    if isinstance(element, dict):
        return {key: plain(x) for key, x in element.items()}
    if isinstance(element, bytes):
        return element.decode()
    return element.tolist() if hasattr(element, "tolist") else element


def recorded_states(row: dict[str, Any]) -> dict[int, Any]:
    """The states in a row, by the number of elements before them; -1 is after the end."""
    after_end = [row[key] for key in ("state_after_end", "state_after_stop") if key in row]
    return {
        **dict(enumerate(row.get("states") or ())),
        **dict.fromkeys([-1] * len(after_end), *after_end),
    }


def check(
    ds: Any, output: list[Any], recorded: dict[int, Any], *, ends: bool = True, new: bool = True
) -> None:
    """``ds`` has those elements and states; from each state, in an iterator that was used and a new
    one, the rest follows.
    """
    it, missing = iter(ds), object()
    states = [it.get_state()]
    for element in output:
        assert plain(next(it)) == element
        states.append(it.get_state())
    if ends:
        assert next(it, missing) is next(it, missing) is missing
        states.append(it.get_state())
    states = [json.loads(json.dumps(state)) for state in states]
    for position, state in recorded.items():
        assert states[position] == state, position
    for position, state in enumerate(states):
        for used in (it, iter(ds)) if new else (it,):
            given = copy.deepcopy(state)
            used.set_state(given)
            assert used.get_state() == state
            rest = itertools.islice(used, None if ends else len(output) - position)
            assert [plain(x) for x in rest] == output[position:]
            assert given == state
