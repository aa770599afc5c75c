"""The position in a state, in words. The state suffices; the description beside it, if there is
one, adds lengths.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from gristmill.core.state import plain_int, shown
from gristmill.dataset.descriptions.display import abbreviated
from gristmill.diagnostics.cli.loader import loader_lines
from gristmill.diagnostics.cli.words import count_text, epoch_text, number_text, of_length, own_form

Description = Mapping[str, Any]

_MAX_PARTS = 16
_NOWHERE: Description = {}
_KEEP_THE_INDEX = (
    "FilterMapDataset",
    "MapMapDataset",
    "MapWithIndexMapDataset",
    "RandomMapMapDataset",
    "SeedMapDataset",
    "TolerateMapDataset",
)


def position_lines(state: Any, description: Any) -> list[str]:
    """Returns what a state says, a line for each place that it names.

    Args:
        state: decoded.
        description: of its pipeline (see ``dataset.description``); of another form if there is
            none.

    Example:
        >>> position_lines({"parent": {"next_index": 7}, "epoch": 1}, None)
        ['in epoch 2', '  next index: 7']
    """
    return list(_lines(state, description if isinstance(description, Mapping) else _NOWHERE, None))


def _lines(state: Any, stage: Any, share: tuple[int, int] | None) -> Iterator[str]:
    if isinstance(state, Mapping):
        for key, (owners, words) in _FORMS.items():
            if key in state:
                yield from words(state, _owner(stage, owners), share)
                if key in ("next_index", "global_next_index"):
                    yield from _skipped(state.get("faults"))
                return
    yield "nothing: not begun, or at its end" if state is None else own_form(state)


def _owner(stage: Any, names: tuple[str, ...]) -> Description:
    """Returns the first stage upstream of those names, to which a part of a state belongs."""
    while isinstance(stage, Mapping):
        if stage.get("stage") in names:
            return stage
        parents = stage.get("parents")
        stage = parents[0] if isinstance(parents, list) and len(parents) == 1 else None
    return _NOWHERE


def _parent(stage: Description, i: int = 0) -> Description:
    parents = stage.get("parents")
    found = parents[i] if isinstance(parents, list) and 0 <= i < len(parents) else None
    return found if isinstance(found, Mapping) else _NOWHERE


def _indented(lines: Iterator[str]) -> Iterator[str]:
    return ("  " + line for line in lines)


def _next_index(state: Any, stage: Description, share: tuple[int, int] | None) -> Iterator[str]:
    dataset = stage if stage.get("stage") == "DataLoader" else _parent(stage)
    index, length = plain_int(state["next_index"]), plain_int(dataset.get("length"))
    if length is None or index is None:
        yield f"next index: {number_text(state['next_index'])}"
        return
    where, epoch = dataset.get("stage"), _epoch(index, dataset, share)
    if length >= sys.maxsize:
        yield f"next index: {number_text(index)} in {where}, without end{epoch}"
    elif share is not None:
        own = len(range(share[0], length, share[1]))
        yield (
            f"next index: {number_text(index)} of about {number_text(own)} in its share of"
            f" {where}{epoch}"
        )
    else:
        ratio = f" ({number_text(100 * index // length)}%)" if length else ""
        yield f"next index: {number_text(index)} of {number_text(length)} in {where}{ratio}{epoch}"


def _epoch(index: int, stage: Description, share: tuple[int, int] | None) -> str:
    """Returns the epoch in words, empty if a stage after ``repeat`` changes the indices.

    Batching is taken into account.
    """
    if share is not None:
        index = index * share[1] + share[0]
    while stage.get("stage") != "RepeatMapDataset":
        if stage.get("stage") == "BatchMapDataset":
            index *= plain_int(stage.get("batch_size")) or 0
        elif stage.get("stage") not in _KEEP_THE_INDEX:
            return ""
        stage = _parent(stage)
    return epoch_text(
        index, plain_int(_parent(stage).get("length")), plain_int(stage.get("num_epochs"))
    )


def _each(items: list[Any], lines: Callable[[Any], Iterator[str]]) -> Iterator[str]:
    """Yields the lines of each item; of many, those of the first and the last ones."""
    for item in abbreviated(items, _MAX_PARTS, "… {} more …".format):
        yield from [item] if isinstance(item, str) else lines(item)


def _cycle(state: Any, stage: Description, share: tuple[int, int] | None) -> Iterator[str]:
    states, indices = state.get("iterators_in_use_states"), state.get("iterators_in_use_indices")
    ended = state.get("exhausted")
    if not isinstance(states, list) or not isinstance(indices, list) or len(states) != len(indices):
        yield own_form(state)
        return
    is_interleave = stage.get("stage") == "InterleaveDatasetIterator"
    what = "dataset" if is_interleave else "lane" if stage else "part"
    turn = plain_int(state["next_index_in_cycle"])
    yield f"next: {what} {indices[turn] if turn is not None and 0 <= turn < len(indices) else '?'}"
    if is_interleave:
        num_opened = state.get("next_index_in_datasets")
        yield f"opened: {of_length(num_opened, stage.get('num_datasets'), 'dataset')}"

    def lines(i: int) -> Iterator[str]:
        has_ended = isinstance(ended, list) and i < len(ended) and plain_int(ended[i])
        yield f"{what} {number_text(indices[i])}{', ended' if has_ended else ''}:"
        number = plain_int(indices[i]) or 0
        below, own = _parent(stage), (number, len(states)) if stage else None
        if is_interleave:  # of which a share has some of the datasets only
            below, own = _NOWHERE if share is not None else _parent(stage, number), None
        yield from _indented(_lines(states[i], below, own))

    yield from _each([*range(len(states))], lines)


def _global_batch(state: Any, stage: Description, share: tuple[int, int] | None) -> Iterator[str]:
    lanes, num_lanes = state.get("lanes"), plain_int(state["num_lanes"])
    if not isinstance(lanes, Mapping) or num_lanes is None:
        yield own_form(state)
        return
    rows = number_text(state.get("batch_size"))
    yield (
        f"global batches of {rows} rows: {count_text(state.get('step'), 'step')}; here are"
        f" {len(lanes)} of {num_lanes} lanes:"
    )

    def lines(lane: tuple[Any, Any]) -> Iterator[str]:
        number, inner = lane
        is_padded = isinstance(inner, Mapping) and inner.keys() == {"state", "rows"}
        after = f", {count_text(inner['rows'], 'element')} after" if is_padded else ""
        yield f"lane {number}{after}:"
        own = (int(number), num_lanes) if stage and str(number).isdecimal() else None
        yield from _indented(_lines(inner["state"] if is_padded else inner, _parent(stage), own))

    yield from _each([*lanes.items()], lines)


def _old_workers(state: Any, stage: Description, share: tuple[int, int] | None) -> Iterator[str]:
    states, skips = state["workers_state"], state.get("iterations_to_skip")
    last = plain_int(state.get("last_worker_index"))
    if not isinstance(states, Mapping) or not isinstance(skips, Mapping):
        yield own_form(state)
        return
    yield f"next: worker {'?' if last is None or not states else (last + 1) % len(states)}"
    for key, inner in states.items():
        yield f"worker {key}: {count_text(skips.get(key), 'element')} after"
        own = (int(key), len(states)) if stage and str(key).isdecimal() else None
        yield from _indented(_lines(inner, _parent(stage), own))


def _components(state: Any, stage: Description, share: tuple[int, int] | None) -> Iterator[str]:
    states, named = state["parents"], stage.get("components")
    if "index" in state:
        ended = ", ended" if state.get("stop") else ""
        yield f"mixed: {count_text(state['index'], 'element')}{ended}"
    items: list[Any] = []
    if isinstance(states, Mapping | list):
        items = [*(states.items() if isinstance(states, Mapping) else enumerate(states))]
    if not items:
        yield own_form(state)

    def lines(item: tuple[Any, Any]) -> Iterator[str]:
        key, inner = item
        below = _parent(stage, key) if isinstance(key, int) else _NOWHERE
        if isinstance(named, Mapping):
            below = named.get(key, _NOWHERE)
        yield f"dataset {key}:"
        yield from _indented(_lines(inner, below, share))

    yield from _each(items, lines)


def _elastic(state: Any, stage: Description, share: tuple[int, int] | None) -> Iterator[str]:
    index, count = plain_int(state["shard_index"]), plain_int(state.get("shard_count"))
    yield f"shard {number_text(state['shard_index'])} of {number_text(state.get('shard_count'))}"
    yield from _indented(_lines(state.get("parent"), _parent(stage), (index or 0, count or 1)))


def _skipped(faults: Any) -> Iterator[str]:
    """Yields the elements that error budgets of map datasets have skipped, one line for each
    stage.
    """
    for counts in faults if isinstance(faults, list) else ():
        if isinstance(counts, Mapping):
            of_tried = f" in {count_text(counts['tried'], 'element')}" if "tried" in counts else ""
            yield f"tolerated: {count_text(counts.get('total'), 'fault')}{of_tried}"


def _tolerated(state: Any, stage: Description) -> str:
    faults = state.get("faults")
    has_counts = isinstance(faults, list) and faults and isinstance(faults[0], Mapping)
    total = faults[0].get("total") if has_counts else None
    return f"tolerated: {count_text(total, 'fault')} in {count_text(state['tried'], 'element')}"


def _repeat(state: Any, stage: Description) -> str:
    number, num_epochs = plain_int(state["epoch"]), plain_int(stage.get("num_epochs"))
    if number is None:
        return f"in epoch {shown(state['epoch'])}"
    of = "" if num_epochs is None else f" of {number_text(num_epochs)}"
    return f"in epoch {number_text(number + 1)}{of}"


def _cache(state: Any, stage: Description) -> str:
    kind = "cached" if state["cache_filled"] else "being cached"
    num = count_text(state.get("position"), "element")
    return f"{kind}: {num} delivered, of those from here on:"


def _buckets(state: Any, stage: Description) -> str:
    num, held = count_text(state["num_read"], "element"), state.get("held") or "none"
    return f"in buckets: those of {num} from here on that are held ({held}):"


_Words: TypeAlias = str | Callable[[Any, Description], str]
_Form: TypeAlias = tuple[tuple[str, ...], Callable[..., Iterator[str]]]
_NUMBER = re.compile(r"\{(\w+)(?: (\w+))?(?: of (\w+))?\}")


def _in_words(words: _Words, state: Any, stage: Description) -> str:
    """Returns a text with the numbers of a state in it, such as ``{counter}``, ``{counter row}``
    for "12 rows", or ``{counter row of length}`` for "12 of 100 rows (12%)", the length being that
    of the stage.
    """

    def number(found: re.Match[str]) -> str:
        key, noun, length = found.groups()
        if length is not None:
            return of_length(state.get(key), stage.get(length), noun)
        return number_text(state.get(key)) if noun is None else count_text(state.get(key), noun)

    return _NUMBER.sub(number, words) if isinstance(words, str) else words(state, stage)


def _above(owner: str, words: _Words, key: str = "parent") -> _Form:
    """Returns the form of a stage whose only parent has its state at ``key``."""

    def lines(state: Any, stage: Description, share: tuple[int, int] | None) -> Iterator[str]:
        yield _in_words(words, state, stage)
        yield from _indented(_lines(state.get(key), _parent(stage), share))

    return (f"{owner}DatasetIterator", owner), lines


def _alone(words: str) -> _Form:
    """Returns the form of a state that needs no description."""
    return (), lambda state, stage, share: iter([_in_words(words, state, stage)])


# A form of state: the key that identifies it, its possible stages, and its words. The first key
# that is there decides.
_FORMS: dict[str, _Form] = {
    "last_seen_indices": (("DataLoader",), loader_lines),
    "workers_state": (("RoundRobinIterator",), _old_workers),
    "num_lanes": (("GlobalBatchDatasetIterator",), _global_batch),
    "next_index_in_cycle": (
        ("RoundRobinIterator", "InterleaveDatasetIterator", "DataLoader"),
        _cycle,
    ),
    "parents": (("MixedDatasetIterator", "ZipDatasetIterator"), _components),
    "parent_window_start_state": _above(
        "WindowShuffle",
        "window {window_index}: {pos_in_window element of window_size} delivered, of those from"
        " here on:",
        "parent_window_start_state",
    ),
    "remainder_slices": _above(
        "ConcatThenSplit",
        "packed: {elements_from_buffer_after_checkpoint row} delivered, of those from here on:",
        "parent_state",
    ),
    "cache_filled": _above("Cache", _cache),
    "count_elements_read": _above("Limit", "limited: {count_elements_read element of count}"),
    "epoch": _above("Repeat", _repeat),
    "batch_idx": _above(
        "Rebatch", "rebatched: {batch_idx row} delivered, of the batch from here on:"
    ),
    "next_index_in_buffer": _above(
        "FlatMap",
        "flat-mapped: {next_index_in_buffer item} delivered, of the element from here on:",
    ),
    "next_row": _above(
        "BinPack", "packed: {counter row} delivered, {next_row} of them from here on:"
    ),
    "num_read": _above("BucketBatch", _buckets),
    "index_for_rng": _above("RandomMap", "random map: {index_for_rng element}"),
    "counter": _above("MapWithIndex", "map with index: {counter element}"),
    "shard_index": (("ElasticIterator",), _elastic),
    "next_index": (("PrefetchDatasetIterator", "DataLoader"), _next_index),
    "tried": _above("Tolerate", _tolerated),
    "global_next_index": _alone("next index of all shards: {global_next_index}"),
    "row_group": _alone("row group {row_group}, row {index_within_row_group}"),
    "reader_offset": _alone("at byte {reader_offset} of the file"),
}
