"""Entries of the table of stages, and what is needed to write them."""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from gristmill.core.options import ReadOptions
from gristmill.core.record import Record
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.transforms import FlatMap

DIRECT = ReadOptions(num_threads=0)
THREADED = ReadOptions(num_threads=3, prefetch_buffer_size=5)


@dataclass(frozen=True)
class MapEntry:
    name: str
    make: Callable[[], MapDataset[Any]]
    model: Callable[[int], Any]
    length: int
    endless: bool = True  # whether negative and later indices have a meaning


@dataclass(frozen=True)
class IterEntry:
    name: str
    make: Callable[[], IterDataset[Any]]
    expected: list[Any]
    # With what an iterator has in memory, or, always, with where it was restored: where they lead
    # does not.
    states_vary: bool | Literal["always"] = False


# The functions of the table have names in a module, so that plain ``pickle`` finds them.
def add_ten(x: Any) -> Any:
    return x + 10


def drop_threes(x: int) -> int | None:
    return None if x % 3 == 0 else x


def break_threes(x: int) -> int:
    if x % 3 == 0:
        raise ValueError(f"{x} is broken")
    return x


def remainder(x: int) -> int:
    return x % 3


def not_multiple_of_three(x: Any) -> bool:
    return x % 3 != 0


def pair(i: int, x: Any) -> Any:
    assert type(i) is int
    return (i, x)


def draw(x: Any, rng: np.random.Generator) -> Any:
    return (x, int(rng.integers(1000)), float(rng.normal()))


def is_big(x: Any) -> bool:
    return x is None or x > 4


def repeated(n: int | None) -> Any:
    return None if n is None else np.full(n % 12, n)


def unless_none(x: Any) -> Any:
    return "none" if x is None else x


class Fan(FlatMap):
    """``x % 4`` items of ``x``, by a generator."""

    max_fan_out = 3

    def flat_map(self, element: int) -> Any:
        for j in range(element % 4):
            yield (element, j)


def in_pairs(x: Any) -> str:
    return f"pair {x[1] // 2}"


def fan(x: int) -> list[tuple[int, int]]:
    return list(Fan().flat_map(x))


class Vectored:
    """A source that prefers to be asked for many records at once."""

    def __init__(self, records: list[Any]) -> None:
        self.records = records

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, key: int) -> Any:
        assert type(key) is int and 0 <= key < len(self.records)
        return self.records[key]

    def __getitems__(self, keys: list[int]) -> list[Any]:
        return [self[key] for key in keys]


def plain(x: Any) -> Any:
    """``x`` in a form that ``==`` compares exactly: types, dtypes and the state of generators
    included.
    """
    if isinstance(x, np.ndarray):
        return ("array", str(x.dtype), x.shape, x.tolist())
    if isinstance(x, list | tuple):
        return (type(x), [plain(v) for v in x])
    if isinstance(x, dict):
        return (type(x), {key: plain(v) for key, v in x.items()})
    if isinstance(x, Record):
        metadata = x.metadata
        rng = None if metadata.rng is None else str(metadata.rng.bit_generator.state)
        return ("record", metadata.index, metadata.record_key, rng, plain(x.data))
    return (type(x), x)


def nodes(it: DatasetIterator[Any]) -> Iterator[DatasetIterator[Any]]:
    """``it`` and all the iterators that it draws from."""
    yield it
    for parent in it._parents:
        yield from nodes(parent)


def run(it: DatasetIterator[Any], limit: int = 10**6) -> tuple[list[Any], list[Any]]:
    """The next elements of ``it``, comparable, and the state after each."""
    elements: list[Any] = []
    states: list[Any] = []
    while len(elements) < limit:
        try:
            elements.append(plain(next(it)))
        except StopIteration:
            break
        states.append(it.get_state())
    return elements, states


def through_json(state: Any) -> Any:
    text = json.dumps(state)
    assert len(text) < 1000
    return json.loads(text)
