"""Trees of stream stages as plain generators: what they have to deliver, without blocks, threads, iterators or states.

A tree is a tuple ``(name, arguments, trees)``. ``build`` makes the data set of it, ``outcomes`` what comes out. Elements are
lists that user code changes in place, and so does whoever consumes them; in the model they are tuples.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st
from list_model import (
    FAILED,
    OPTIONS,
    MapModel,
    UserCode,
    chosen,
    failing_map_steps,
    finite,
    integer_weights,
    map_steps,
    random_map,
    read_options,
    read_with,
)
from list_model import build as build_map
from list_model import weight as plain_weight
from local_workers import LocalWorkersIterDataset

from gristmill.core.options import MultiprocessingOptions
from gristmill.core.permutation import index_shuffle
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.experimental import (
    BestFitPackIterDataset,
    CacheIterDataset,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
    FlatMapIterDataset,
    InterleaveIterDataset,
    LimitIterDataset,
    RebatchIterDataset,
    RepeatIterDataset,
    ThreadPrefetchIterDataset,
    WindowShuffleIterDataset,
    WithOptionsIterDataset,
    ZipIterDataset,
    batch_and_pad,
    multithread_prefetch,
)

MOST_RECORDS = 30  # of a source
END = object()


class UserDataset(IterDataset):
    """A stage as users write them."""

    def __iter__(self) -> Any:
        return UserIterator(self._parent.__iter__())


class UserIterator(DatasetIterator):
    def __init__(self, parent: Any) -> None:
        super().__init__(parent)
        self._count = 0

    def __next__(self) -> Any:
        x = next(self._parent)
        self._count += 1
        return x if x is None else grown(x, self._count - 1)

    def get_state(self) -> Any:
        return {"parent": self._parent.get_state(), "count": self._count}

    def set_state(self, state: Any) -> None:
        self._parent.set_state(state["parent"])
        self._count = state["count"]


class Transient(Exception):
    """What user code raises that fails once."""


class Interrupt(KeyboardInterrupt):
    """Somebody presses Ctrl-C."""


class Trouble:
    """User code that fails once, when it has been called some times more."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._countdown = 0
        self._kind: type[BaseException] = Transient

    def __reduce__(self) -> Any:
        return Trouble, ()  # in workers all goes well

    def arm(self, countdown: int, kind: type[BaseException]) -> None:
        with self._lock:
            self._countdown, self._kind = countdown, kind

    def __call__(self, x: Any) -> Any:
        with self._lock:
            self._countdown -= 1
            if self._countdown == 0:
                raise self._kind("trouble")
        return x

    def opening(self, ds: Any) -> Any:
        """Trouble when ``ds`` is opened."""
        return self(ds) if self._kind is Transient else ds


TROUBLE = Trouble()


def frozen(x: Any) -> Any:
    """An element as in the model."""
    if isinstance(x, list | tuple | np.ndarray):
        return tuple(map(frozen, x))
    return x.item() if isinstance(x, np.generic) else x


def spoil(x: Any) -> None:
    """What a consumer may do to an element that was delivered."""
    if isinstance(x, list | tuple):
        for part in x:
            spoil(part)
    if isinstance(x, list):
        x.append("spoilt")
    elif isinstance(x, np.ndarray):
        x.fill(-1)


def weight(x: Any) -> int:
    return plain_weight(frozen(x))


def grown(x: Any, *more: Any) -> Any:
    """``x`` with ``more`` at its end, in place."""
    x = x if type(x) is list else list(x)
    x.extend(more)
    return x


def with_draws(x: Any, rng: np.random.Generator) -> Any:
    return grown(x, int(rng.integers(1000)), int(rng.integers(2**40)))


def items(k: int, x: Any) -> Any:
    return [[frozen(x), j] for j in range(weight(x) % k)]


def is_there(x: Any) -> bool:
    return x is not None


def number(x: Any) -> int:
    return weight(x) % 1000


def as_list(array: Any) -> Any:
    array += 1  # in place
    return array.tolist()


def sequence(length: int, x: Any) -> Any:
    n = weight(x)
    return {"x": np.full(n % (length + 1), n % 1000), "m": frozen(x)}


def row_of_bin(row: Any) -> Any:
    return [row["x"].tolist(), row["x_segment_ids"].tolist(), row["x_positions"].tolist(), row["m"]]


def long_sequence(x: Any) -> Any:
    n = weight(x)
    return {"x": np.full(n % 13, n % 1000)}


def row_of_pieces(row: Any) -> Any:
    return [row["x"].tolist(), row["x_segment_ids"].tolist(), row["x_positions"].tolist()]


def source_model(tree: Any) -> MapModel:
    _, (length, steps, _, _), _ = tree
    return finite(length, steps, MOST_RECORDS)


# The data sets


def grown_by_one(x: Any) -> Any:
    return grown(x, 1)


def padded(ds: Any, size: int) -> Any:
    pad = partial(batch_and_pad, batch_size=size, pad_value=-1)
    return ds.filter(is_there).map(number).batch(size, batch_fn=pad).map(as_list)


def rebatched_ds(ds: Any, small: int, large: int, drop: bool) -> Any:
    return RebatchIterDataset(ds.filter(is_there).map(number).batch(small), large, drop).map(as_list)


def packed_ds(ds: Any, is_best: bool, length: int, num_bins: int, seed: int) -> Any:
    stage = BestFitPackIterDataset if is_best else FirstFitPackIterDataset
    sequences, bins = ds.map(partial(sequence, length)), {"num_packing_bins": num_bins, "seed": seed, "meta_features": ["m"]}
    return stage(sequences, length_struct={"x": length}, **bins).map(row_of_bin)


_STAGES: dict[str, Any] = {
    "map": lambda ds: ds.map(grown_by_one),
    "with_index": lambda ds: ds.map_with_index(lambda i, x: grown(x, i)),
    "random_map": lambda ds, seed: ds.random_map(with_draws, seed=seed),
    "remove": lambda ds, k: ds.map(UserCode.removing(k)),
    "filter": lambda ds, k: ds.filter(UserCode.keeping(k)),
    "fail": lambda ds, k: ds.map(UserCode.failing(k)),
    "flaky": lambda ds: ds.map(TROUBLE),
    "flat_map": lambda ds, k: FlatMapIterDataset(ds, partial(items, k)),
    "batch": lambda ds, size, drop: ds.batch(size, drop_remainder=drop, batch_fn=list),
    "pad": padded,
    "rebatch": rebatched_ds,
    "window": lambda ds, size, seed: WindowShuffleIterDataset(ds, window_size=size, seed=seed),
    "limit": LimitIterDataset,
    "repeat": RepeatIterDataset,
    "endless": lambda ds, count: LimitIterDataset(RepeatIterDataset(ds, None), count),
    "cache": lambda ds: CacheIterDataset(ds, copy_elements=True),
    "pack": packed_ds,
    "concat": lambda ds, n: ConcatThenSplitIterDataset(ds.map(long_sequence), length_struct={"x": n}).map(row_of_pieces),
    "threads": multithread_prefetch,
    "workers": lambda ds, n: ds.mp_prefetch(MultiprocessingOptions(num_workers=n, per_worker_buffer_size=3)),
    "local_workers": LocalWorkersIterDataset,
    "prefetch": lambda ds, n: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=n),
    "options": lambda ds: WithOptionsIterDataset(ds, OPTIONS),
    "user": UserDataset,
    "double": lambda ds: ZipIterDataset([ds, ds]),
}


def build(tree: Any) -> Any:
    """The data set of ``tree``."""
    name, args, trees = tree
    if name == "source":
        return build_map(read_with([*source_model(tree).steps, ("to_iter",)], *args[2:])).map(lambda x: [x])
    parents = [build(t) for t in trees]
    if name == "mix":
        weights, is_named = args
        if not is_named:
            return IterDataset.mix(parents, weights)
        names = [f"{i:02}" for i in range(len(parents))]  # their order counts, not that of the dict
        return IterDataset.mix(dict([*zip(names, parents, strict=True)][::-1]), dict(zip(names, weights, strict=True)))
    if name == "zip":
        return ZipIterDataset(parents, strict=args[0])
    if name == "interleave":
        cycle, threads, ahead, buffer, is_lazy = args
        return InterleaveIterDataset(
            MapDataset.source(parents).map(TROUBLE.opening) if is_lazy else parents,
            cycle_length=cycle,
            num_make_iter_threads=threads,
            make_iter_buffer_size=ahead,
            iter_buffer_size=buffer,
        )
    return _STAGES[name](*parents, *args)


# The model


class Share:
    """Which share of a pipeline is run: slices of its sources, one after another, and the worker's index and count."""

    def __init__(self, slices: tuple[tuple[int, int], ...] = (), index: int = 0, count: int = 1) -> None:
        self.slices, self.index, self.count = slices, index, count

    def of_thread(self, i: int, n: int) -> Share:
        return Share((*self.slices, (i, n)), self.index + i * self.count, self.count * n)

    def of(self, positions: Any) -> Any:
        for i, n in self.slices:
            positions = positions[i::n]
        return positions


WHOLE = Share()


def outcomes(tree: Any, share: Share = WHOLE) -> Iterator[Any]:
    """Elements one after another; ``FAILED`` where ``next`` raises until that output is skipped."""
    name, args, trees = tree
    if name == "source":
        model, allow_nones = source_model(tree), args[3]
        elements = (model[i] for i in share.of(range(model.length)))
        return (x if x is None or x is FAILED else (x,) for x in elements if x is not None or allow_nones)
    if name == "interleave":
        parents = [outcomes(t) for t in share.of(trees)]
        return in_turn(parents, min(args[0], len(parents)))
    if name in ("threads", "workers", "local_workers"):
        n = args[0]
        return in_turn([outcomes(trees[0], share.of_thread(i, n)) for i in range(n)], n) if n else outcomes(trees[0], share)
    if name == "mix":
        return mixed([outcomes(t, share) for t in trees], args[0])
    if name == "zip":
        return zipped([outcomes(t, share) for t in trees], args[0])
    if name == "double":
        return zipped([outcomes(trees[0], share), outcomes(trees[0], share)], True)
    if name == "repeat":
        return itertools.chain.from_iterable(outcomes(trees[0], share) for _ in range(args[0]))
    if name == "endless":
        first = next(outcomes(trees[0], share), END)
        if first is END:
            raise Endless
        return itertools.islice(itertools.chain.from_iterable(outcomes(trees[0], share) for _ in itertools.count()), args[0])
    parent = outcomes(trees[0], share)
    if name in ("with_index", "random_map"):
        return each(parent, partial(_INDEXED[name], share, *args))
    return _OUTCOMES[name](parent, *args)


class Endless(Exception):
    """The tree repeats nothing for ever."""


def each(parent: Iterator[Any], fn: Any) -> Iterator[Any]:
    for i, x in enumerate(parent):
        yield x if x is None or x is FAILED else fn(i, x)


def flat(parent: Iterator[Any], k: int) -> Iterator[Any]:
    for x in parent:
        if x is FAILED:
            yield x
        elif x is not None:
            yield from map(frozen, items(k, x))


def batched(parent: Iterator[Any], size: int, drop: bool) -> Iterator[Any]:
    while batch := list(itertools.islice(parent, size)):
        if FAILED in batch:
            yield FAILED
        elif len(batch) == size or not drop:
            yield tuple(batch)


def rebatched(batches: Iterator[Any], size: int, drop: bool) -> Iterator[Any]:
    rows: list[Any] = []
    for batch in batches:
        if batch is FAILED:
            yield FAILED
            rows = []
            continue
        rows += batch
        while len(rows) >= size:
            yield tuple(rows[:size])
            del rows[:size]
    if rows and not drop:
        yield tuple(rows)


def shuffled(parent: Iterator[Any], size: int, seed: int) -> Iterator[Any]:
    for k in itertools.count():
        window = list(itertools.islice(parent, size))
        if not window:
            return
        if FAILED in window:
            yield FAILED
            continue
        m = len(window)
        yield from [window[index_shuffle(j, m - 1, (seed + k) % 2**32, 4)] for j in range(m)][::-1]


def packed(parent: Iterator[Any], is_best: bool, length: int, num_bins: int, seed: int) -> Iterator[Any]:
    bins: list[list[Any]] = []
    num_rows = 0

    def rows() -> Iterator[Any]:
        nonlocal bins, num_rows
        used = [b for b in bins if b]
        order = np.random.default_rng(seed + num_rows).permuted(range(len(used))).tolist()
        num_rows += len(used)
        bins = []
        yield from [row(length, [x for x, _ in used[i]], tuple(m for _, m in used[i])) for i in order]

    for x in parent:
        if x is FAILED:
            yield FAILED
        elif x is not None:
            tokens = sequence(length, x)["x"].tolist()
            for _ in range(2):
                bins = bins or [[] for _ in range(num_bins)]
                marks = [sum(len(s) for s, _ in b) for b in bins]
                suited = [i for i, mark in enumerate(marks) if mark + len(tokens) <= length]
                if suited:
                    break
                yield from rows()
            chosen = max(suited, key=lambda i: (marks[i], -i)) if is_best else suited[0]
            bins[chosen].append((tokens, x))
    yield from rows()


def cut(parent: Iterator[Any], length: int) -> Iterator[Any]:
    pieces: list[Any] = []
    for x in parent:
        if x is FAILED:
            yield FAILED
        elif x is not None:
            tokens, start = long_sequence(x)["x"].tolist(), 0
            while True:
                room = length - sum(map(len, pieces))
                if len(tokens) - start <= room:
                    pieces.append(tokens[start:])
                    break
                if room or start:
                    pieces.append(tokens[start : start + room])
                    start += room
                yield row(length, pieces)
                pieces = []
    if pieces:
        yield row(length, pieces)


def row(length: int, pieces: list[Any], *more: Any) -> Any:
    unused = (0,) * (length - sum(map(len, pieces)))
    values = tuple([token for piece in pieces for token in piece])
    numbers = tuple([i for i, piece in enumerate(pieces, 1) for _ in piece])
    positions = tuple([k for piece in pieces for k in range(len(piece))])
    return (values + unused, numbers + unused, positions + unused, *more)


def mixed(parents: list[Iterator[Any]], weights: Any) -> Iterator[Any]:
    proportions = integer_weights(weights)
    for k in itertools.count():
        x = next(parents[chosen(proportions, k)[0]], END)
        if x is END:
            return
        yield x


def zipped(parents: list[Iterator[Any]], strict: bool) -> Iterator[Any]:
    while True:
        rows = [next(parent, END) for parent in parents]
        if strict:
            if all(x is END for x in rows):
                return
            yield FAILED if any(x is END or x is FAILED for x in rows) else tuple(rows)
        else:
            stop = next((x for x in rows if x is END or x is FAILED), None)
            if stop is END:
                return
            yield FAILED if stop is FAILED else tuple(rows)


def in_turn(parents: list[Iterator[Any]], cycle_length: int) -> Iterator[Any]:
    waiting = iter(parents)
    slots: list[Any] = [None] * cycle_length
    while True:
        for i in range(cycle_length):
            if slots[i] is None:
                slots[i] = next(waiting, None)
            if slots[i] is not None:
                x = next(slots[i], END)
                if x is END:
                    slots[i] = None  # the next one opens when it is this slot's turn again
                else:
                    yield x
        if all(slot is None for slot in slots):
            rest = next(waiting, None)
            if rest is None:
                return
            waiting = itertools.chain([rest], waiting)


def there(parent: Iterator[Any], more: int) -> Iterator[Any]:
    return each((x for x in parent if x is not None), lambda i, x: number(x) + more)


def padded_batches(parent: Iterator[Any], size: int) -> Iterator[Any]:
    return each(batched(there(parent, 1), size, False), lambda i, b: (*b, *[0] * (size - len(b))))


def same(parent: Iterator[Any], *_: Any) -> Iterator[Any]:
    return parent


_INDEXED: dict[str, Any] = {
    "with_index": lambda share, i, x: (*x, i * share.count + share.index),
    "random_map": lambda share, seed, i, x: (*x, *random_map(x, seed, i * share.count + share.index)[1:]),
}
_OUTCOMES: dict[str, Any] = {
    "map": lambda parent: each(parent, lambda i, x: (*x, 1)),
    "user": lambda parent: each(parent, lambda i, x: (*x, i)),
    "remove": lambda parent, k: each(parent, lambda i, x: UserCode.removing(k)(x)),
    "filter": lambda parent, k: (x for x in parent if x is FAILED or UserCode.keeping(k)(x)),
    "fail": lambda parent, k: each(parent, lambda i, x: FAILED if weight(x) % 5 == k else x),
    "flaky": same,
    "cache": same,
    "prefetch": same,
    "options": same,
    "flat_map": flat,
    "batch": batched,
    "pad": padded_batches,
    "rebatch": lambda parent, small, large, drop: rebatched(batched(there(parent, 1), small, False), large, drop),
    "window": shuffled,
    "limit": itertools.islice,
    "pack": packed,
    "concat": cut,
}


# Random trees

_few = st.integers(1, 5)
_seeds = st.integers(0, 2**32 - 1)
_buffers = st.sampled_from([0, 1, 2, 9])
_lengths = st.sampled_from([12, 20, 9, 30, 16, 7, 4, 1, 0])
_sizes = st.sampled_from([3, 5, 2, 10, 4, 1, 17])


def _sources(steps: Any) -> Any:
    few = steps.map(lambda steps: [step for step in steps if step[0] not in ("slice", "reindex", "batch")][:3])
    return st.tuples(st.just("source"), st.tuples(_lengths, few, read_options, st.booleans()), st.just(()))


def _step(name: str, *args: Any) -> Any:
    return st.tuples(st.just(name), st.tuples(*args))


_harmless = [
    _step("flaky"),
    _step("map"),
    _step("with_index"),
    _step("random_map", _seeds),
    _step("remove", st.integers(0, 3)),
    _step("filter", st.integers(0, 2)),
    _step("flat_map", _few),
    _step("batch", _sizes, st.booleans()),
    _step("pad", _sizes),
    _step("rebatch", _sizes, _sizes, st.booleans()),
    _step("window", _sizes, _seeds),
    _step("limit", st.integers(3, 25)),
    _step("repeat", st.integers(1, 3)),
    _step("endless", st.integers(1, 40)),
    _step("cache"),
    _step("pack", st.booleans(), _sizes, _few, st.integers(0, 99)),
    _step("concat", _sizes),
    _step("threads", st.integers(0, 3), _buffers),
    _step("prefetch", _buffers),
    _step("options"),
    _step("user"),
    _step("double"),
]
_joins = {
    "mix": lambda n: st.tuples(st.lists(st.sampled_from([1, 1, 2, 0.5, 7]), min_size=n, max_size=n), st.booleans()),
    "zip": lambda n: st.tuples(st.sampled_from([False, False, True])),
    "interleave": lambda n: st.tuples(
        _few, st.integers(0, 2), st.integers(0, 2), st.sampled_from([0, 1, 3]), st.sampled_from([False, n > 0])
    ),
}


_fail = _step("fail", st.integers(0, 4))


@st.composite
def trees_of_depth(draw: Any, depth: int, sources: Any, steps: Any) -> Any:
    """A tree whose stages are joined at most so often on the way from a source to the output."""
    join = draw(st.sampled_from(["interleave", "mix", "mix", "zip"])) if depth else None
    if join is None:
        tree = draw(sources)
    else:
        below = st.integers(0, depth - 1).flatmap(lambda d: trees_of_depth(d, sources, steps))
        parents = tuple(draw(st.lists(below, min_size=1, max_size=3)))
        tree = (join, draw(_joins[join](len(parents))), parents)
    for name, args in draw(st.lists(steps, max_size=3)):
        tree = (name, args, (tree,))
    return tree


def _trees(sources: Any, *steps: Any) -> Any:
    return st.integers(0, 3).flatmap(lambda depth: trees_of_depth(depth, sources, st.one_of(*steps)))


trees = _trees(_sources(map_steps), *_harmless)
failing_trees = _trees(_sources(map_steps) | _sources(failing_map_steps), *_harmless, _fail, _fail)


def names(tree: Any) -> set[str]:
    """Of the stages in ``tree``."""
    return {tree[0]}.union(*map(names, tree[2]))
