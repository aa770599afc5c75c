"""Any mixtures, concatenations and interleavings of anything: the elements, errors and states of plain lists and formulas."""

from __future__ import annotations

import json
import math
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from list_model import FAILED, OPTIONS, Boom, weight

from gristmill import IterDataset, MapDataset, ReadOptions
from gristmill.core.permutation import index_shuffle
from gristmill.experimental import InterleaveIterDataset, ThreadPrefetchIterDataset, WithOptionsIterDataset

LIMIT = 40  # elements of a map dataset that is made a stream


class Faults:
    """What fails for ever, and what fails some times and then heals."""

    def __init__(self) -> None:
        self.num_left: Counter[Any] = Counter()
        self.seen: set[Any] = set()
        self.lock = threading.Lock()

    def check(self, key: Any, x: Any, times: int | None) -> Any:
        if times is None:
            raise Boom(x)
        with self.lock:
            if (key, x) not in self.seen:
                self.seen.add((key, x))
                self.num_left[key, x] = times
            if self.num_left[key, x] > 0:
                self.num_left[key, x] -= 1
                raise Boom(x)
        return x


@dataclass
class MapPart:
    length: int
    at: Callable[[int], Any]  # the outcome at an index: an element, ``None`` or ``FAILED``
    make: Callable[[Faults], Any]


@dataclass
class StreamPart:
    outcomes: list[Any]
    make: Callable[[Faults], Any]


def kept(x: Any) -> Any:
    return None if weight(x) % 4 == 1 else x


def applied(fn: Callable[[Any], Any], x: Any) -> Any:
    return x if x is None or x is FAILED else fn(x)


def integer_weights(weights: list[float]) -> list[int]:
    scale = 100 / min(weights)
    return [int(w * scale) for w in weights]


def chosen(proportions: list[int], k: int) -> tuple[int, int]:
    a, b, total = k, k + 1, sum(proportions)
    for j, w in enumerate(proportions):
        share = Fraction(total - w, total)
        c, d = math.floor(a * share), math.floor(b * share)
        if a - c != b - d:
            return j, b - d - 1
        a, b, total = c, d, total - w
    raise AssertionError


def interleaved(lists: list[list[Any]], cycle_length: int) -> list[Any]:
    """The six lines of the specification."""
    queues = [list(x) for x in lists]
    slots: list[Any] = [None] * min(cycle_length, len(queues))
    out, p, d = [], 0, 0
    while slots:
        if slots[p] is not None:
            if slots[p]:
                out.append(slots[p].pop(0))
            else:
                slots[p] = None
            p = (p + 1) % len(slots)
        elif d < len(queues):
            slots[p] = queues[d]
            d += 1
        elif slots.count(None) == len(slots):
            break
        else:
            p = (p + 1) % len(slots)
    return out


some_weights = st.lists(st.one_of(st.integers(1, 5), st.floats(0.01, 3)), min_size=4, max_size=4)
faults = st.one_of(st.none(), st.tuples(st.integers(0, 6), st.one_of(st.none(), st.integers(1, 4))))


@st.composite
def map_parts(draw: Any, depth: int, fails: bool = True) -> MapPart:
    kinds = ["range", "shuffle"]
    if depth:
        kinds += ["mix", "mix", "concatenate", "concatenate", "slice", "shuffle_parent", "remove", "with_index"]
        kinds += ["fail"] if fails else []
    kind = draw(st.sampled_from(kinds))
    if kind in ("range", "shuffle"):
        start, n, seed = 10 * draw(st.integers(0, 9)), draw(st.integers(0 if kind == "range" else 1, 7)), draw(st.integers(0, 9))
        if kind == "range":
            return MapPart(n, lambda i: start + i % n, lambda _: MapDataset.range(start, start + n))
        return MapPart(
            n,
            lambda i: start + index_shuffle(i % n, n - 1, (seed + i // n) % 2**32, 4) % n,
            lambda _: MapDataset.range(start, start + n).shuffle(seed=seed),
        )
    if kind in ("mix", "concatenate"):
        parts = draw(st.lists(map_parts(depth - 1, fails), min_size=1, max_size=4))
        if kind == "mix":
            parts = [part for part in parts if part.length] or [MapPart(3, lambda i: i % 3, lambda _: MapDataset.range(3))]
            weights = draw(st.one_of(st.none(), some_weights))
            weights = None if weights is None else weights[: len(parts)]
            proportions = [1] * len(parts) if weights is None else integer_weights(weights)
            total = sum(proportions)
            length = int(min(part.length / (p / total) for part, p in zip(parts, proportions, strict=True)))

            def at(i: int) -> Any:
                j, k = chosen(proportions, i)
                return parts[j].at(k)

            return MapPart(length, at, lambda code: MapDataset.mix([part.make(code) for part in parts], weights))
        total = sum(part.length for part in parts)

        def at_concatenated(i: int) -> Any:
            epoch, position = divmod(i, total)
            for part in parts:
                if position < part.length:
                    return part.at(position + epoch * part.length)
                position -= part.length
            raise AssertionError

        return MapPart(total, at_concatenated, lambda code: MapDataset.concatenate([part.make(code) for part in parts]))
    part = draw(map_parts(depth - 1, fails))
    n = part.length
    if kind == "shuffle_parent":
        seed = draw(st.integers(0, 9))
        if not n:
            return part
        return MapPart(
            n,
            lambda i: part.at(index_shuffle(i % n, n - 1, (seed + i // n) % 2**32, 4) + i // n * n),
            lambda code: part.make(code).shuffle(seed=seed),
        )
    if kind == "slice":
        sl = slice(draw(st.integers(-3, 3)), None, draw(st.sampled_from([1, 2, -1, -3])))
        own = range(*sl.indices(n))
        return MapPart(len(own), lambda i: part.at(own[i % len(own)] + i // len(own) * n), lambda code: part.make(code)[sl])
    if kind == "remove":
        return MapPart(n, lambda i: applied(kept, part.at(i)), lambda code: part.make(code).map(kept))
    if kind == "with_index":
        return MapPart(
            n, lambda i: applied(lambda x: (i, x), part.at(i)), lambda code: part.make(code).map_with_index(lambda i, x: (i, x))
        )
    which, times = draw(st.integers(0, 6)), draw(st.one_of(st.none(), st.integers(1, 4)))
    return MapPart(
        n, lambda i: applied(failing(which, times), part.at(i)), lambda code: part.make(code).map(fault(code, which, times))
    )


def failing(which: int, times: int | None) -> Callable[[Any], Any]:
    return lambda x: FAILED if times is None and weight(x) % 7 == which else x


def fault(code: Faults, which: int, times: int | None) -> Callable[[Any], Any]:
    key = object()
    return lambda x: code.check(key, x, times) if weight(x) % 7 == which else x


read_options = st.one_of(st.just(ReadOptions(num_threads=0)), st.builds(ReadOptions, st.just(2), st.sampled_from([2, 3, 50])))


@st.composite
def stream_parts(draw: Any, depth: int, fails: bool = True) -> StreamPart:
    kinds = ["map"]
    if depth:
        kinds += ["mix", "mix", "named", "interleave", "interleave", "lazy", "batch", "filter", "prefetch"] + (
            ["fail"] if fails else []
        )
    kind = draw(st.sampled_from(kinds))
    if kind == "map":
        source = draw(map_parts(min(depth, 2), fails))
        outcomes = [x for i in range(min(LIMIT, source.length)) if (x := source.at(i)) is not None]
        options = draw(read_options)
        return StreamPart(outcomes, lambda code: source.make(code)[:LIMIT].to_iter_dataset(options))
    if kind in ("mix", "named"):
        parts = draw(st.lists(stream_parts(depth - 1, fails), min_size=1, max_size=4))
        weights = draw(some_weights)[: len(parts)]
        outcomes = []
        for k in range(10**6):
            j, i = chosen(integer_weights(weights), k)
            if i == len(parts[j].outcomes):
                break
            outcomes.append(parts[j].outcomes[i])
        names = [f"part {j}" for j in range(len(parts))]
        order = draw(st.permutations(names))

        def mixed(code: Faults) -> Any:
            datasets = [part.make(code) for part in parts]
            if kind == "mix":
                return IterDataset.mix(datasets, weights)
            by_name = dict(zip(names, datasets, strict=True))
            return IterDataset.mix({name: by_name[name] for name in order}, dict(zip(names, weights, strict=True)))

        return StreamPart(outcomes, mixed)
    if kind in ("interleave", "lazy"):
        parts = draw(st.lists(stream_parts(depth - 1, fails), max_size=5))
        cycle_length = draw(st.integers(1, 6))
        way = {
            "num_make_iter_threads": draw(st.integers(0, 2)),
            "make_iter_buffer_size": draw(st.integers(0, 3)),
            "iter_buffer_size": draw(st.sampled_from([0, 0, 1, 4])),
        }
        lists = [part.outcomes for part in parts]
        missing, unopenable = None, None
        if kind == "lazy" and parts:
            missing, unopenable = draw(st.one_of(st.none(), st.integers(0, 4))), draw(faults if fails else st.none())
            lists = [[] if j == missing else x for j, x in enumerate(lists)]
        times = unopenable and (unopenable[1] or 2)  # for a time: to skip what cannot be opened is a test of its own

        def opened(code: Faults) -> Any:
            datasets = [part.make(code) for part in parts]
            if kind == "interleave":
                return InterleaveIterDataset(datasets, cycle_length=cycle_length, **way)
            key = object()

            def make(j: int) -> Any:
                if unopenable and unopenable[0] == j:
                    code.check(key, j, times)
                return None if j == missing else datasets[j]

            return InterleaveIterDataset(MapDataset.range(len(parts)).map(make), cycle_length=cycle_length, **way)

        return StreamPart(interleaved(lists, cycle_length), opened)
    part = draw(stream_parts(depth - 1, fails))
    before = part.outcomes
    if kind == "batch":
        size = draw(st.integers(1, 3))
        groups = [before[i : i + size] for i in range(0, len(before), size)]
        return StreamPart(
            [FAILED if FAILED in group else tuple(group) for group in groups],
            lambda code: part.make(code).batch(size, batch_fn=tuple),
        )
    if kind == "filter":
        return StreamPart(
            [x for x in before if x is FAILED or kept(x) is not None],
            lambda code: part.make(code).filter(lambda x: kept(x) is not None),
        )
    if kind == "prefetch":
        buffer_size = draw(st.integers(0, 5))
        return StreamPart(before, lambda code: ThreadPrefetchIterDataset(part.make(code), prefetch_buffer_size=buffer_size))
    which, times = draw(st.integers(0, 6)), draw(st.one_of(st.none(), st.integers(1, 4)))
    return StreamPart(
        [applied(failing(which, times), x) for x in before],
        lambda code: part.make(code).map(fault(code, which, times)),
    )


def dataset(part: StreamPart) -> Any:
    return WithOptionsIterDataset(part.make(Faults()), OPTIONS)


def proceed(it: Any, outcome: Any) -> None:
    """Makes ``it`` pass ``outcome``; what heals is tried again, what does not is skipped."""
    for _ in range(200):
        state = it.get_state()
        try:
            x = next(it)
        except Boom:
            if outcome is not FAILED:
                continue
            with pytest.raises(Boom):  # again, and after that the iterator is where it was
                while True:
                    next(it)
            it.skip_failed()
            return
        assert outcome is not FAILED and x == outcome
        assert it.get_state() != state
        return
    raise AssertionError("it does not heal")


@given(
    part=map_parts(3, fails=False), starts=st.lists(st.sampled_from([-100, -1, 0, 3, 50, 2**62, 2**63 + 5, -(2**70)]), max_size=3)
)
@settings(max_examples=60, deadline=None)
def test_map_datasets_at_any_index(part, starts):
    ds = part.make(Faults())
    assert len(ds) == part.length
    if not part.length:
        with pytest.raises(IndexError, match="empty"):
            ds[0]
        return
    for start in starts:
        for indices in (range(start, start + 9), range(start + 30, start - 30, -7), [start, start + 2, start, start - 5]):
            expected = [part.at(i) for i in indices]
            assert [ds[i] for i in indices] == expected
            assert ds._block(indices) == expected
    assert list(ds) == [x for i in range(part.length) if (x := part.at(i)) is not None]


@given(part=stream_parts(3, fails=False), sizes=st.lists(st.integers(1, 9), min_size=1, max_size=4))
@settings(max_examples=60, deadline=None)
def test_blocks_of_streams(part, sizes):
    ds = dataset(part)
    it, states = iter(ds), []
    states.append(it.get_state())
    for x in part.outcomes:
        assert next(it) == x
        states.append(it.get_state())
    assert next(it, FAILED) is FAILED
    end = it.get_state()
    it, position = iter(ds), 0
    for k in range(10**6):
        size = sizes[k % len(sizes)]
        block = it._take(size)
        assert block == part.outcomes[position : position + size]
        position += len(block)
        assert it.get_state() == (states[position] if len(block) == size else end)
        if len(block) < size:
            break


@given(part=stream_parts(3), data=st.data())
@settings(max_examples=70, deadline=None)
def test_errors_and_resuming_anywhere(part, data):
    outcomes = part.outcomes
    ds = dataset(part)
    it = iter(ds)
    texts = []
    for outcome in outcomes:
        texts.append(json.dumps(it.get_state()))
        proceed(it, outcome)
    texts.append(json.dumps(it.get_state()))
    check_end(it)
    for _ in range(4):
        k = data.draw(st.integers(0, len(outcomes)), label="position")
        if data.draw(st.booleans(), label="fresh"):
            it = iter(dataset(part) if data.draw(st.booleans(), label="with new faults") else ds)
        restore(it, texts[k])
        if data.draw(st.booleans(), label="start"):
            it.start_prefetch()
        for outcome in outcomes[k : k + data.draw(st.integers(0, 20), label="how far")]:
            proceed(it, outcome)
    restore(it, texts[-1])
    check_end(it)
    it.close()


def restore(it: Any, text: str) -> None:
    """Sets a state, which opens what is interleaved: that may have to heal, too."""
    for _ in range(100):
        try:
            it.set_state(json.loads(text))
        except Boom:
            continue
        return
    raise AssertionError("it does not heal")


def check_end(it: Any) -> None:
    for _ in range(100):  # what comes after the last element may have to heal, too
        try:
            next(it)
        except StopIteration:
            return
        except Boom:
            continue
        raise AssertionError("there is more")
    raise AssertionError("it does not end")
