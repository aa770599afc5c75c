"""The pipelines of the laws, as streams, and their states."""

import functools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "laws"))

from entry import IterEntry, plain
from stage_table import STREAMS
from state_damage import as_json

__all__ = ["PIPELINES", "SLOW", "VARYING", "plain", "states_of", "states_of_others"]

PIPELINES = {entry.name: entry.make for entry in STREAMS}
VARYING = {entry.name for entry in STREAMS if isinstance(entry, IterEntry) and entry.states_vary}
SLOW = ("mp_prefetch", "parquet_workers", "map_mix_without_table")  # processes, or long tables


@functools.cache
def states_of(name):
    it = iter(PIPELINES[name]())
    return [as_json(it.get_state()), *[as_json(it.get_state()) for _ in it]]


@functools.cache
def states_of_others():
    return [states_of(name)[len(states_of(name)) // 2] for name in PIPELINES]
