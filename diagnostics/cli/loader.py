"""The position in the state of a ``DataLoader``, in words."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from gristmill.core.sharding import ShardOptions, even_split
from gristmill.core.state import plain_int
from gristmill.dataset.descriptions.display import abbreviated
from gristmill.diagnostics.cli.words import epoch_text, number_text, of_length, own_form

_MAX_LANES = 16


def loader_lines(state: Any, description: Mapping[str, Any], share: Any) -> Iterator[str]:
    """Yields the lines that a state gives, and those that the description of the ``DataLoader``
    (empty if there is none) adds.
    """
    last_seen, sampler = state["last_seen_indices"], str(state.get("sampler"))
    if not isinstance(last_seen, Mapping):
        yield own_form(state)
        return
    shard = _shard(description.get("shard_options", sampler)) or ShardOptions(0, 1)
    read = []  # by each worker or lane; a state does not say which
    stride = len(last_seen) * shard.shard_count
    for worker, index in enumerate(map(plain_int, last_seen.values())):
        before = shard.shard_index + worker * shard.shard_count - stride  # its first index
        read.append(0 if index is None else (index - before) // stride)
    if len(read) > 1:
        lanes = [f"lane {lane}: {number_text(num)} records read" for lane, num in enumerate(read)]
        yield from abbreviated(lanes, _MAX_LANES, lambda num: f"… {num} more …")
        last = plain_int(state.get("last_worker_index"))
        yield f"next: lane {'?' if last is None else (last + 1) % len(read)}"
    size, num_epochs = _number_in("num_records", sampler), _number_in("num_epochs", sampler)
    own = _shard(sampler)  # of the sampler, which goes through a piece of the records
    if size is not None and own is not None and own.shard_count > 1:
        start, stop = even_split(size, own)
        size = stop - start
    whole = None if size is None or num_epochs is None else size * num_epochs
    length = description.get("length", whole)
    epoch = epoch_text(sum(read), size, num_epochs) if sampler.startswith("IndexSampler(") else ""
    yield f"read: {of_length(sum(read), length, 'record')}{epoch}"


def _number_in(name: str, text: str) -> int | None:
    found = re.search(rf"\b{name}=(\d+)", text)
    return int(found[1]) if found else None


def _shard(text: Any) -> ShardOptions | None:
    index, count = _number_in("shard_index", str(text)), _number_in("shard_count", str(text))
    if index is None or count is None or not index < count:
        return None
    return ShardOptions(index, count, "drop_remainder=True" in str(text))
