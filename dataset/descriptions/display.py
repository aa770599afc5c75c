"""The ``repr`` of a pipeline: a chain that one can read from top to bottom, the source first.

It is for people and says what is known without running anything; a user's object that cannot answer
is skipped. States and checkpoints distinguish pipelines by ``description`` instead, whose text
is complete.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import ref

from gristmill.core.naming import one_line, without_addresses
from gristmill.dataset.bases.length import has_own_length
from gristmill.dataset.descriptions.pipeline import as_json, file_paths

if TYPE_CHECKING:
    from gristmill.dataset.bases.node import Node

T = TypeVar("T")

_MAX_CHAIN = 24  # stages one after the other
_MAX_BRANCHES = 8  # side by side
_MAX_DEPTH = 4  # of branches in branches
_MAX_LINES = 100
_MAX_LINE = 200  # characters
_MAX_NAME = 40


class _Showing:
    """Marks that a pipeline is being shown; freed with the call that shows it."""


_being_shown: dict[tuple[int, int], ref[_Showing]] = {}  # by pipeline and thread


def chain_text(pipeline: Node) -> str:
    """Returns the stages of a dataset or iterator, one to a line, with their parameters and lengths
    where these change.

    The stage that joins several branches is below them; a stage with several consumers is shown
    once. Long chains and many branches are abbreviated in the middle.

    Example:
        >>> from gristmill.dataset import MapDataset
        >>> print(chain_text(MapDataset.range(3).batch(2)))
        MapDataset of 2 elements:
          RangeMapDataset(start=0, stop=3, step=1)  3 elements
          BatchMapDataset(batch_size=2, drop_remainder=False)  2 elements
    """
    key = id(pipeline), threading.get_ident()
    if key in _being_shown and _being_shown[key]() is not None:  # a user's ``__str__`` asks for it
        return "…"
    showing = _Showing()
    _being_shown[key] = ref(showing)
    try:
        return _chain_text(pipeline)
    finally:
        del showing  # a traceback may keep this frame
        _being_shown.pop(key, None)


def _chain_text(pipeline: Node) -> str:
    kind = pipeline._gm_node_family
    length = length_text(stage_length(pipeline))
    if length.endswith(("element", "elements")):
        head = f"{kind} of {length}:"
    else:
        head = f"{kind}{length and ', '}{length}:"
    lines = abbreviated(_lines(pipeline, {}, 0), _MAX_LINES, lambda num: f"… {num} more lines …")
    return "\n".join([head, *["  " + line for line in lines]])


def stage_name(stage: Node) -> str:
    """Returns the text of a stage in a chain: on one line, without memory addresses."""
    text = without_addresses(one_line(_answer(stage._gm_chain_text, ""), _MAX_LINE))
    return text if text.strip("…") else stage._gm_class_name


def stage_length(stage: Any) -> int | None:
    """Returns ``len(stage)``, if it has a length of its own."""
    return _answer(lambda: len(stage), None) if has_own_length(stage) else None


def length_text(length: int | None) -> str:
    """Returns the length of a stage in words; nothing if there is none."""
    if length is None:
        return ""
    return "endless" if length >= sys.maxsize else f"{length:,} element{'s' * (length != 1)}"


def stage_inputs(stage: Node) -> Sequence[Any]:
    """Returns the existing inputs of a dataset or iterator: the call makes no iterator."""
    return list(stage._gm_draws_from)


def component_names(stage: Node) -> list[str] | None:
    """Returns the names of the components of a mixture, if they have any."""
    names = stage._gm_component_names
    return None if not names else [one_line(str(name), _MAX_NAME) for name in names]


def joined(branches: Sequence[Sequence[str]]) -> list[str]:
    """Returns the lines of several branches, with a bar along them to the next stage."""
    return [
        ("│  " if j else "├─ " if i else "┌─ ") + line
        for i, branch in enumerate(branches)
        for j, line in enumerate(branch)
    ]


def named(lines: list[str], name: str) -> list[str]:
    """Returns the lines of a branch, with the name of the component at its beginning."""
    return [f"{name}: {lines[0]}", *lines[1:]] if name and lines else lines


def abbreviated(items: list[Any], limit: int, left_out: Callable[[int], str]) -> list[Any]:
    """Returns at most ``limit`` items; ``left_out`` makes one of the number in the middle."""
    if len(items) <= limit:
        return items
    half = (limit - 1) // 2
    return [*items[:half], left_out(len(items) - 2 * half), *items[-half:]]


def _inputs(stage: Node) -> Sequence[Any]:
    return _answer(lambda: stage_inputs(stage), [])


def _lines(stage: Node, shown: dict[int, Any], depth: int) -> list[str]:
    chain: list[Any] = []
    above: Sequence[Any] = [stage]
    while len(above) == 1 and id(above[0]) not in shown:
        chain.append(above[0])
        shown[id(above[0])] = above[0]
        above = _inputs(chain[-1])
    lines: list[str] = []
    if len(above) == 1:
        lines = [f"{_stage_text(above[0])}  (as above)"]
    elif depth == _MAX_DEPTH and above:
        lines = [f"… {len(above)} branches …"]
    else:
        branches = abbreviated(list(above), _MAX_BRANCHES, lambda num: f"… {num} more branches …")
        names = abbreviated(
            component_names(chain[-1]) or [""] * len(above), _MAX_BRANCHES, lambda num: ""
        )
        lines = joined(
            [
                named([x] if isinstance(x, str) else _lines(x, shown, depth + 1), name)
                for x, name in zip(branches, names, strict=True)
            ]
        )
    before = ""
    for x in abbreviated(chain[::-1], _MAX_CHAIN, lambda num: f"… {num} more stages …"):
        if isinstance(x, str):
            lines.append(x)
        else:
            length = length_text(stage_length(x))
            lines.append(_stage_text(x) + (f"  {length}" if length not in ("", before) else ""))
            before = length
    return lines


def _stage_text(stage: Node) -> str:
    """Returns the name of a stage and its parameters."""
    kind = type(stage)
    if not stage._gm_shows_chain and not _inputs(stage) and not file_paths(stage._gm_source):
        return without_addresses(one_line(_answer(lambda: repr(stage), kind.__name__), _MAX_LINE))
    text = stage_name(stage)
    found: dict[str, Any] = _answer(lambda: stage._gm_described_parameters, {})
    missing = [
        f"{name}={_answer(partial(as_json, value), '?')}"
        for name, value in found.items()
        if f"{name}=" not in text
    ]
    if not missing:
        return text
    parameters = ", ".join(missing)
    text = f"{text[:-1]}, {parameters})" if text.endswith(")") else f"{text}({parameters})"
    return one_line(text, _MAX_LINE)


def _answer(ask: Callable[[], T], otherwise: T) -> T:
    """Returns ``ask()``, or ``otherwise`` if a user's object raises: a ``repr`` must not raise."""
    try:
        return ask()
    except Exception:
        return otherwise
