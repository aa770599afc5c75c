"""Trees of stream stages as plain generators: what they have to deliver, without blocks, threads,
iterators or states.

A tree is a tuple ``(name, arguments, trees)``. ``build`` makes the data set of it, ``outcomes``
computes its outputs. Elements are lists that user code changes in place, and so does the consumer;
in the model they are tuples.
"""

import itertools
import threading
from collections.abc import Iterator
from functools import partial
from typing import Any

import list_model
import numpy as np
from formulas import chosen, window_order
from hypothesis import strategies as st
from list_model import FAILED, MapModel, UserCode, finite, integer_weights, random_map
from list_model import weight as plain_weight  # its module cannot be sent to workers
from local_workers import LocalWorkersIterDataset

from gristmill import experimental as gx
from gristmill.core.options import MultiprocessingOptions
from gristmill.dataset import DatasetIterator, IterDataset, MapDataset
from gristmill.dataset.stages.stream_order import in_stream_order

MOST_RECORDS = 30  # of a source
END = object()


class UserDataset(IterDataset):
    """A stage as users write them."""

    def __iter__(self) -> Any:
        return UserIterator(self._parent.__iter__())


class UserIterator(DatasetIterator):
    _count = 0

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
    """The error of user code that fails once."""


class Interrupt(KeyboardInterrupt):
    """The user presses Ctrl-C."""


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
    """Changes a delivered element in place, as a consumer may."""
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


def source_model(tree: Any) -> MapModel:
    _, (length, steps, _, _), _ = tree
    return finite(length, steps, MOST_RECORDS)


def grown_by_one(x: Any) -> Any:
    return grown(x, 1)


def padded(ds: Any, size: int) -> Any:
    pad = partial(gx.batch_and_pad, batch_size=size, pad_value=-1)
    return ds.filter(is_there).map(number).batch(size, batch_fn=pad).map(as_list)


def by_workers_in_order(ds: Any, num_workers: int) -> Any:
    """The same stream, its chain computed by workers, if that is possible."""

    def workers(part: Any, num_lanes: int | None = None) -> Any:
        num = min(num_workers, num_lanes or num_workers)
        return LocalWorkersIterDataset(part, num, num_lanes=num_lanes)

    try:
        return in_stream_order(ds, workers)
    except ValueError:
        return ds


def may_be_none(tree: Any) -> bool:
    """True if an element may be ``None``, which workers that keep the order refuse."""
    return (
        tree[0] == "remove"
        or (tree[0] == "source" and tree[1][3] and not names(tree).isdisjoint(["remove", "filter"]))
        or any(map(may_be_none, tree[2]))
    )


def build(tree: Any) -> Any:
    """The data set of ``tree``."""
    name, args, trees = tree
    if name == "in_order" and may_be_none(tree):
        return build(trees[0])
    if name == "source":
        return list_model.build(
            list_model.read_with([*source_model(tree).steps, ("to_iter",)], *args[2:])
        ).map(lambda x: [x])
    parents = [build(t) for t in trees]
    if name == "mix":
        weights, is_named = args
        if not is_named:
            return IterDataset.mix(parents, weights)
        names = [f"{i:02}" for i in range(len(parents))]  # their order counts, not that of the dict
        return IterDataset.mix(
            dict([*zip(names, parents, strict=True)][::-1]), dict(zip(names, weights, strict=True))
        )
    if name == "zip":
        return gx.ZipIterDataset(parents, strict=args[0])
    if name == "interleave":
        cycle, threads, ahead, buffer, is_lazy = args
        return gx.InterleaveIterDataset(
            MapDataset.source(parents).map(TROUBLE.opening) if is_lazy else parents,
            cycle_length=cycle,
            num_make_iter_threads=threads,
            make_iter_buffer_size=ahead,
            iter_buffer_size=buffer,
        )
    return (_WORKERS.get(name) or _STAGES[name][0])(*parents, *args)


class Share:
    """Which share of a pipeline is run: slices of its sources, one after another, and the worker's
    index and count.
    """

    def __init__(
        self, slices: tuple[tuple[int, int], ...] = (), index: int = 0, count: int = 1
    ) -> None:
        self.slices, self.index, self.count = slices, index, count

    def of_thread(self, i: int, n: int) -> Any:
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
        return (
            x if x is None or x is FAILED else (x,)
            for x in elements
            if x is not None or allow_nones
        )
    if name == "interleave":
        parents = [outcomes(t) for t in share.of(trees)]
        return in_turn(parents, min(args[0], len(parents)))
    if name == "in_order":
        return outcomes(trees[0], share)
    if name in (*_WORKERS, "threads"):
        n = args[0]
        return (
            in_turn([outcomes(trees[0], share.of_thread(i, n)) for i in range(n)], n)
            if n
            else outcomes(trees[0], share)
        )
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
        return itertools.islice(
            itertools.chain.from_iterable(outcomes(trees[0], share) for _ in itertools.count()),
            args[0],
        )
    return _STAGES[name][1](
        outcomes(trees[0], share), *args, *[share] * (name in ("with_index", "random_map"))
    )


class Endless(Exception):
    """The tree repeats nothing forever."""


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


def bucketed(parent: Iterator[Any], *sizes: int) -> Iterator[Any]:
    held: list[Any] = [(), ()]
    for x in parent:
        if x is FAILED:
            yield FAILED
        elif x is not None:
            bucket = number(x) % 7 > 2
            held[bucket] += (number(x) + 1,)
            if len(held[bucket]) == sizes[bucket]:
                yield held[bucket]
                held[bucket] = ()
    yield from filter(None, held)


def shuffled(parent: Iterator[Any], size: int, seed: int) -> Iterator[Any]:
    for k in itertools.count():
        window = list(itertools.islice(parent, size))
        if not window:
            return
        if FAILED in window:
            yield FAILED
            continue
        yield from [window[i] for i in window_order(len(window), seed + k)]


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
            continue
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


def there(parent: Iterator[Any], size: int) -> Iterator[Any]:
    return batched(
        each((x for x in parent if x is not None), lambda i, x: number(x) + 1), size, False
    )


def same(parent: Iterator[Any], *_: Any) -> Iterator[Any]:
    return parent


# Random trees

_few = st.integers(1, 5)
_seeds = st.integers(0, 2**32 - 1)
_buffers = st.sampled_from([0, 1, 2, 9])
_lengths = st.sampled_from([12, 20, 9, 30, 16, 7, 4, 1, 0])
_sizes = st.sampled_from([3, 5, 2, 10, 4, 1, 17])

# name: what makes the data set, the outputs (if not written above), and what its arguments are
# drawn from
_STAGES: dict[str, Any] = {
    "flaky": (lambda ds: ds.map(TROUBLE), same),
    "map": (lambda ds: ds.map(grown_by_one), lambda p: each(p, lambda i, x: (*x, 1))),
    "with_index": (
        lambda ds: ds.map_with_index(lambda i, x: grown(x, i)),
        lambda p, share: each(p, lambda i, x: (*x, i * share.count + share.index)),
    ),
    "random_map": (
        lambda ds, seed: ds.random_map(with_draws, seed=seed),
        lambda p, seed, share: each(
            p, lambda i, x: (*x, *random_map(x, seed, i * share.count + share.index)[1:])
        ),
        _seeds,
    ),
    "remove": (
        lambda ds, k: ds.map(UserCode.removing(k)),
        lambda p, k: each(p, lambda i, x: UserCode.removing(k)(x)),
        st.integers(0, 3),
    ),
    "filter": (
        lambda ds, k: ds.filter(UserCode.keeping(k)),
        lambda p, k: (x for x in p if x is FAILED or UserCode.keeping(k)(x)),
        st.integers(0, 2),
    ),
    "flat_map": (lambda ds, k: ds.flat_map(partial(items, k)), flat, _few),
    "batch": (
        lambda ds, size, drop: ds.batch(size, drop_remainder=drop, batch_fn=list),
        batched,
        _sizes,
        st.booleans(),
    ),
    "pad": (
        padded,
        lambda p, size: each(there(p, size), lambda i, b: (*b, *[0] * (size - len(b)))),
        _sizes,
    ),
    "rebatch": (
        lambda ds, small, n, drop: (
            ds.filter(is_there)
            .map(number)
            .batch(small)
            .rebatch(n, drop_remainder=drop)
            .map(as_list)
        ),
        lambda p, small, *more: rebatched(there(p, small), *more),
        _sizes,
        _sizes,
        st.booleans(),
    ),
    "buckets": (
        lambda ds, *sizes: (
            ds.filter(is_there)
            .map(number)
            .bucket_batch(lambda x: x % 7, [2, 6], batch_sizes=sizes)
            .map(as_list)
        ),
        bucketed,
        _sizes,
        _sizes,
    ),
    "window": (lambda ds, size, seed: ds.window_shuffle(size, seed=seed), shuffled, _sizes, _seeds),
    "limit": (lambda ds, count: ds.limit(count), itertools.islice, st.integers(3, 25)),
    "repeat": (lambda ds, num: ds.repeat(num), None, st.integers(1, 3)),
    "endless": (lambda ds, count: ds.repeat().limit(count), None, st.integers(1, 40)),
    "cache": (lambda ds: ds.cache(copy_elements=True), same),
    "threads": (gx.multithread_prefetch, None, st.integers(0, 3), _buffers),
    "prefetch": (
        lambda ds, n: gx.ThreadPrefetchIterDataset(ds, prefetch_buffer_size=n),
        same,
        _buffers,
    ),
    "options": (lambda ds: gx.WithOptionsIterDataset(ds, list_model.OPTIONS), same),
    "user": (UserDataset, lambda p: each(p, lambda i, x: (*x, i))),
    "double": (lambda ds: ds.zip(ds), None),
    "fail": (
        lambda ds, k: ds.map(UserCode.failing(k)),
        lambda p, k: each(p, lambda i, x: FAILED if weight(x) % 5 == k else x),
        st.integers(0, 4),
    ),
}
_WORKERS = {
    "workers": lambda ds, n: ds.mp_prefetch(
        MultiprocessingOptions(num_workers=n, per_worker_buffer_size=3)
    ),
    "local_workers": LocalWorkersIterDataset,
    "lanes": lambda ds, n: ds.mp_prefetch(MultiprocessingOptions(num_lanes=n)),
    "local_lanes": lambda ds, n: LocalWorkersIterDataset(ds, -(-n // 2), num_lanes=n),
    "in_order": by_workers_in_order,
}
_steps = {
    name: st.tuples(st.just(name), st.tuples(*args)) for name, (_, _, *args) in _STAGES.items()
}
_fail = _steps.pop("fail")


def _sources(steps: Any) -> Any:
    few = steps.map(
        lambda steps: [step for step in steps if step[0] not in ("slice", "reindex", "batch")][:3]
    )
    return st.tuples(
        st.just("source"),
        st.tuples(_lengths, few, list_model.read_options, st.booleans()),
        st.just(()),
    )


_joins = {
    "mix": lambda n: st.tuples(
        st.lists(st.sampled_from([1, 1, 2, 0.5, 7]), min_size=n, max_size=n), st.booleans()
    ),
    "zip": lambda n: st.tuples(st.sampled_from([False, False, True])),
    "interleave": lambda n: st.tuples(
        _few,
        st.integers(0, 2),
        st.integers(0, 2),
        st.sampled_from([0, 1, 3]),
        st.sampled_from([False, n > 0]),
    ),
}


JOINS = ("interleave", "mix", "mix", "zip")


@st.composite
def trees_of_depth(draw: Any, depth: int, sources: Any, steps: Any, joins: Any = JOINS) -> Any:
    """A tree whose stages are joined at most so often on the way from a source to the output."""
    join = draw(st.sampled_from(joins)) if depth else None
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
    return st.integers(0, 3).flatmap(
        lambda depth: trees_of_depth(depth, sources, st.one_of(*steps))
    )


trees = _trees(_sources(list_model.map_steps), *_steps.values())
_failing_sources = _sources(list_model.map_steps) | _sources(list_model.failing_map_steps)
failing_trees = _trees(_failing_sources, *_steps.values(), _fail, _fail)
# Chains and interleaves of chains, which workers can compute in the order of the stream.
failing_chains = st.integers(0, 1).flatmap(
    lambda depth: trees_of_depth(
        depth, _failing_sources, st.one_of(*_steps.values(), _fail), ("interleave",)
    )
)


def names(tree: Any) -> set[str]:
    """Of the stages in ``tree``, those of its sources among them."""
    return {tree[0]}.union(
        [step[0] for step in (tree[1][1] if tree[0] == "source" else [])], *map(names, tree[2])
    )
