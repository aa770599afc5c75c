"""Interleaved datasets: the order, what is open when, states, and what happens when a dataset fails or cannot be opened."""

import gc
import json
import os
import random
import subprocess
import sys
import textwrap
import threading
import weakref
from collections import Counter

import numpy as np
import pytest
from local_workers import LocalWorkersIterDataset
from waiting import PATIENCE_SECONDS, running, wait_until

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.core.errors import StateIndexError, StateKeyError, StateMismatchError
from gristmill.dataset import DatasetIterator
from gristmill.dataset.ahead import readahead
from gristmill.experimental import (
    CacheIterDataset,
    DatasetOptions,
    FlatMapIterDataset,
    FlatMapTransform,
    InterleaveIterDataset,
    LimitIterDataset,
    RebatchIterDataset,
    RepeatIterDataset,
    ThreadPrefetchIterDataset,
    WindowShuffleIterDataset,
    WithOptionsIterDataset,
    get_next_index,
    multithread_prefetch,
    set_next_index,
)

DIRECT = ReadOptions(num_threads=0)
# Threads that open ahead, datasets open ahead, and elements ahead of each: none of it may be noticed.
WAYS = [
    {"num_make_iter_threads": 0, "make_iter_buffer_size": 0, "iter_buffer_size": 0},
    {},
    {"num_make_iter_threads": 2, "make_iter_buffer_size": 3, "iter_buffer_size": 0},
    {"num_make_iter_threads": 3, "make_iter_buffer_size": 2, "iter_buffer_size": 4},
]
each_way = pytest.mark.parametrize("way", WAYS, ids=["direct", "default", "opened_ahead", "all_ahead"])


def our_threads():
    return [*running("gristmill-read"), *running("gristmill-prefetch")]


@pytest.fixture(autouse=True)
def no_threads_left():
    yield
    wait_until(lambda: not our_threads() or gc.collect() < 0)


class Boom(Exception):
    pass


class Failing:
    """A function of an element that fails at some, the first ``times`` times."""

    def __init__(self, *bad, times=10**9, error=Boom):
        self.left = dict.fromkeys(bad, times)
        self.error = error
        self.lock = threading.Lock()

    def __call__(self, x):
        with self.lock:
            fails = self.left.get(x, 0) > 0
            if fails:
                self.left[x] -= 1
        if fails:
            raise self.error(x)
        return x


class Log:
    """What happened to the files of a test."""

    def __init__(self):
        self.lock = threading.RLock()
        self.opened = []
        self.closed = []
        self.reads = []
        self.num_open = 0
        self.most_open = 0

    def open(self, name):
        with self.lock:
            self.opened.append(name)
            self.num_open += 1
            self.most_open = max(self.most_open, self.num_open)

    def close(self, name):
        with self.lock:
            self.closed.append(name)
            self.num_open -= 1

    def read(self, x):
        with self.lock:
            self.reads.append(x)


class File(IterDataset):
    """A user's dataset over a file of ``n`` elements, which is open as long as its iterator is."""

    def __init__(self, name, n, log=None, check=lambda x: x):
        super().__init__()
        self.name = name
        self.n = n
        self.log = log or Log()
        self.check = check

    def __iter__(self):
        return Reader(self)


class Reader(DatasetIterator):
    def __init__(self, file):
        super().__init__()
        self.file = file
        self.position = 0
        self.is_open = True
        file.log.open(file.name)

    def __next__(self):
        assert self.is_open
        if self.position == self.file.n:
            raise StopIteration
        x = self.file.check((self.file.name, self.position))
        self.file.log.read(x)
        self.position += 1
        return x

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        self.position = state["position"]

    def _skip(self):
        self.position += 1

    def close(self):
        if self.is_open:
            self.is_open = False
            self.file.log.close(self.file.name)


def files(lengths, log=None, check=lambda x: x):
    return [File(name, n, log, check) for name, n in enumerate(lengths)]


def numbers(start, stop, fn=lambda x: x):
    return MapDataset.range(start, stop).to_iter_dataset(DIRECT).map(fn)


def draw(x, rng):
    return (x, int(rng.integers(10**6)))


def interleave(datasets, cycle_length, **way):
    return InterleaveIterDataset(datasets, cycle_length=cycle_length, **way)


def interleaved(lists, cycle_length):
    """The order in the words of the specification."""
    lists, num = [list(x) for x in lists], min(cycle_length, len(lists))
    slots, p, d, out = [None] * num, 0, 0, []
    while num:
        if slots[p] is not None:
            j, i = slots[p]
            if i < len(lists[j]):
                slots[p] = (j, i + 1)
                out.append(lists[j][i])
            else:
                slots[p] = None
            p = (p + 1) % num
        elif d < len(lists):
            slots[p] = (d, 0)
            d += 1
        elif all(slot is None for slot in slots):
            break
        else:
            p = (p + 1) % num
    return out


def contents(lengths):
    return [[(name, i) for i in range(n)] for name, n in enumerate(lengths)]


def stored(slot, num_opened, indices, positions, exhausted):
    """A state of map datasets, as they are at ``positions``."""
    return {
        "next_index_in_cycle": slot,
        "next_index_in_datasets": num_opened,
        "iterators_in_use_indices": indices,
        "iterators_in_use_states": [{"next_index": i} for i in positions],
        "exhausted": exhausted,
        "future_states": {},
    }


def through_json(state):
    return json.loads(json.dumps(state))


def record(it):
    """The elements, the states before, between and after them, and the state of the exhausted iterator."""
    elements, states = [], [it.get_state()]
    for x in it:
        elements.append(x)
        states.append(it.get_state())
    return elements, states, it.get_state()


def check_states(ds, expected):
    """Continuing from every position, through JSON, fresh and in place, gives what is missing."""
    elements, states, end = record(iter(ds))
    assert elements == expected
    used = iter(ds)
    for k in random.Random(len(expected)).sample(range(len(states)), len(states)):
        for it in (used, iter(ds)):
            it.set_state(through_json(states[k]))
            assert it.get_state() == states[k]
            rest, after, its_end = record(it)
            assert (rest, after, its_end) == (expected[k:], states[k:], end)
    used.set_state(through_json(end))
    assert list(used) == []


class TestOrder:
    @each_way
    def test_is_that_of_the_lengths_alone(self, way):
        rng = random.Random(str(way))
        for kind in ["map", "iter", "user", "lazy"] * 4:
            lengths = [rng.choice([0, 1, 1, 2, 3, 5, 9]) for _ in range(rng.randint(0, 7))]
            cycle_length = rng.randint(1, 8)
            expected = interleaved(contents(lengths), cycle_length)
            datasets = files(lengths) if kind == "user" else [MapDataset.source(x) for x in contents(lengths)]
            if kind == "iter":
                datasets = [ds.to_iter_dataset(DIRECT).filter(lambda x: True) for ds in datasets]
            if kind == "lazy":
                datasets = MapDataset.source(contents(lengths)).map(MapDataset.source)
            ds = interleave(datasets, cycle_length, **way)
            assert list(ds) == expected
            it, got = iter(ds), []
            while block := it._take(rng.randint(1, 7)):
                got += block
            assert got == expected

    @each_way
    def test_states(self, way):
        for lengths, cycle_length in [
            ([2, 4, 1, 3], 2),
            ([0, 3, 0, 0, 2], 3),
            ([3, 1, 2], 9),
            ([1, 0, 4], 1),
            ([0, 0], 1),
            ([], 3),
        ]:
            expected = interleaved(contents(lengths), cycle_length)
            check_states(interleave(files(lengths), cycle_length, **way), expected)
            check_states(interleave([MapDataset.source(x) for x in contents(lengths)], cycle_length, **way), expected)

    def test_children_of_every_kind(self):
        class Bare(Reader):
            def __init__(self):  # does not call ``super().__init__``
                self.file = File("bare", 3)
                self.position = 0
                self.is_open = True

            def close(self):
                pass

        class BareFile(IterDataset):
            def __init__(self):
                pass

            def __iter__(self):
                return Bare()

        inner = interleave(files([2, 1, 3]), 2)
        children = [
            MapDataset.range(4).shuffle(seed=3),
            ThreadPrefetchIterDataset(numbers(10, 13), prefetch_buffer_size=2),
            multithread_prefetch(numbers(20, 25), 2, 2),
            numbers(30, 40).filter(lambda x: x % 3 == 0).map_with_index(lambda i, x: (i, x)).random_map(draw, seed=1),
            IterDataset.mix([numbers(50, 53), numbers(60, 62)]),
            RepeatIterDataset(numbers(70, 72), 2),
            BareFile(),
            interleave([inner, inner.map(lambda x: ("again", *x))], 2).batch(4, batch_fn=list),
            MapDataset.range(80, 84).filter(lambda x: x % 2),
        ]
        expected = interleaved([list(child) for child in children], 4)
        for way in (WAYS[0], WAYS[3]):
            check_states(interleave(children, 4, **way), expected)

    @each_way
    def test_plain_iterators(self, way):
        class Plain(IterDataset):
            def __init__(self, elements):
                super().__init__()
                self.elements = elements

            def __iter__(self):
                return iter(self.elements)

        ds = interleave([Plain("abc"), numbers(0, 2), Plain("xy")], 2, **way)
        expected = interleaved(["abc", range(2), "xy"], 2)
        assert list(ds) == expected
        assert list(ds.batch(4, batch_fn=list)) == [expected[:4], expected[4:]]
        it = iter(ds)
        next(it)
        with pytest.raises(NotImplementedError, match="plain Python iterator"):
            it.get_state()
        assert list(it) == expected[1:]

    def test_endless_reshuffled_lists(self):
        opened = []

        def make(name):
            opened.append(name)
            return numbers(10 * name, 10 * name + 2)

        names = MapDataset.range(3).shuffle(seed=5).repeat()
        ds = interleave(names.map(make), 2)
        it = iter(ds)
        got = it._take(18)
        order = [names[i] for i in range(12)]
        assert got == interleaved([[10 * x, 10 * x + 1] for x in order], 2)[:18]
        assert len(opened) <= 10 + 1 and opened == order[: len(opened)]
        state = through_json(it.get_state())
        assert state["next_index_in_datasets"] <= 11
        rest = it._take(20)
        fresh = iter(ds)
        fresh.set_state(state)
        assert fresh._take(20) == rest

    def test_text_and_a_list_that_changes_later(self):
        given = files([1, 2, 3])
        ds = interleave(given, 2)
        given.append(File("late", 2))
        assert str(ds) == "InterleaveIterDataset([3 datasets], cycle_length=2)"
        assert str(iter(ds)) == "InterleaveDatasetIterator([3 datasets], cycle_length=2)"
        assert list(ds) == interleaved(contents([1, 2, 3]), 2)


class TestArguments:
    @pytest.mark.parametrize("name", ["cycle_length", "num_make_iter_threads", "make_iter_buffer_size", "iter_buffer_size"])
    def test_numbers(self, name):
        given = {"cycle_length": 2, name: np.int64(1)}
        assert list(InterleaveIterDataset(files([1]), **given)) == [(0, 0)]
        for wrong in (1.0, "1", None):
            with pytest.raises(TypeError, match=name):
                InterleaveIterDataset(files([1]), **{**given, name: wrong})
        for wrong in (-1, *([0] if name == "cycle_length" else [])):
            with pytest.raises(ValueError, match=name):
                InterleaveIterDataset(files([1]), **{**given, name: wrong})

    def test_what_is_no_list_of_datasets(self):
        for wrong in (None, 3, "ab", {"a": numbers(0, 1)}, {numbers(0, 1)}, iter([numbers(0, 1)]), numbers(0, 1)):
            with pytest.raises(TypeError, match=r"datasets(\[0\])? must be"):
                interleave(wrong, 2)
        for wrong in (3, [1, 2], None, iter(numbers(0, 1))):
            with pytest.raises(TypeError, match=r"datasets\[1\] must be a MapDataset or IterDataset"):
                interleave([numbers(0, 1), wrong], 2)

    @each_way
    def test_a_lazy_list_of_something_else(self, way):
        it = iter(interleave(MapDataset.source([numbers(0, 1), "b.txt", numbers(5, 6)]), 1, **way))
        assert next(it) == 0
        with pytest.raises(TypeError, match=r"datasets\[1\] must be a MapDataset or IterDataset, got 'b.txt'"):
            next(it)
        it.skip_failed()
        assert list(it) == [5]


class TestStates:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: interleave([numbers(0, 2), numbers(10, 15), numbers(20, 21)], 2),
            lambda: multithread_prefetch(numbers(0, 7).filter(lambda x: x != 3), 2, 2),
            lambda: LocalWorkersIterDataset(numbers(0, 7).filter(lambda x: x != 3), 2),
        ],
        ids=["interleave", "threads", "workers"],
    )
    def test_every_checkpoint_of_every_epoch_of_a_repetition(self, make):
        elements, states, _ = record(iter(RepeatIterDataset(make(), 3)))
        assert elements == 3 * list(make())
        it = iter(RepeatIterDataset(make(), 3))
        for k, state in enumerate(states):
            it.set_state(through_json(state))
            assert list(it) == elements[k:], k

    def test_datasets_that_grain_says_have_ended(self):
        """With no dataset left to take its place, one that is said to have ended is asked all the same."""
        it = iter(interleave([numbers(0, 4), numbers(10, 13)], 2))
        for flags in ([0, 0], [0, 1], [1, 0], [1, 1]):
            state = stored(0, 2, [0, 1], [1, 1], flags)
            for _ in range(2):
                it.set_state(state)
                assert it.get_state() == state
                assert list(it) == [1, 11, 2, 12, 3]
                assert it.get_state()["exhausted"] == [1, 1]
            it.set_state(stored(0, 2, [0, 1], [4, 1], flags))
            assert list(it) == [11, 12]

    @pytest.mark.parametrize(
        ("slot", "num_opened", "indices", "positions", "exhausted", "first"),
        [  # as Grain 0.2.18 wrote them in the second epoch of a RepeatIterDataset, where flags of the first one stay
            (1, 2, [0, 1], [1, 0], [1, 1], [10, 1, 11, 12, 20, 13, 21, 14]),
            (0, 2, [0, 1], [1, 1], [1, 1], [1, 11, 12, 20, 13, 21, 14]),
            (0, 2, [0, 1], [2, 3], [1, 1], [20, 13, 21, 14]),
            (1, 3, [2, 1], [1, 3], [0, 1], [13, 21, 14]),
            (1, 3, [2, 1], [2, 4], [0, 1], [14]),
        ],
    )
    def test_a_dataset_that_is_wrongly_said_to_have_ended_goes_on(self, slot, num_opened, indices, positions, exhausted, first):
        datasets = [MapDataset.range(10 * i, 10 * i + n) for i, n in enumerate((2, 5, 4, 3, 2))]
        it = iter(interleave(datasets, 2))
        it.set_state(stored(slot, num_opened, indices, positions, exhausted))
        assert it.get_state()["exhausted"] == exhausted
        assert list(it) == [*first, 22, 23, 30, 31, 40, 32, 41]

    def test_an_error_loses_nothing_of_a_dataset_that_is_said_to_have_ended(self):
        """The flag stands in the state again when the block that found the truth failed; the truth stays known no longer."""
        failing = numbers(10, 15, Failing(14, times=4))  # in the block, alone, and in both once more
        it = iter(interleave([MapDataset.range(0, 3), failing], 2, iter_buffer_size=0))
        it.set_state(stored(0, 2, [0, 1], [1, 1], [1, 0]))
        got, num_errors = [], 0
        while True:
            try:
                block = it._take(20)
            except Boom:
                num_errors += 1
                continue
            got += block
            if not block:
                break
        assert got == [1, 11, 2, 12, 13, 14] and num_errors

    def test_states_are_copies(self):
        it = iter(interleave([numbers(0, 3), numbers(10, 13), numbers(20, 23)], 2))
        next(it)
        state = it.get_state()
        text = json.dumps(state)
        rest = list(it)
        for _ in range(2):
            assert json.dumps(state) == text
            it.set_state(state)
            assert list(it) == rest
        it.set_state(state)
        for given in (state, it.get_state()):
            given["iterators_in_use_states"][1]["next_index"] = 3
            for value in given.values():
                if isinstance(value, list):
                    value.clear()
            given["future_states"]["2"] = {"next_index": 3}
            assert json.dumps(it.get_state()) == text
        assert list(it) == rest

    @pytest.mark.parametrize("key_type", [int, str, np.int64])
    def test_future_states(self, key_type):
        """States of datasets that are still to be opened, as elastic iterators write them."""
        it = iter(interleave([numbers(10 * j, 10 * j + 4) for j in range(4)], 2))
        state = stored(1, 2, [0, 1], [3, 3], [0, 0])
        expected = interleaved([[13], [3], [22, 23], []], 2)
        it.set_state({**state, "future_states": {key_type(2): {"next_index": 2}, key_type(3): {"next_index": 4}}})
        assert it.get_state()["future_states"] == {2: {"next_index": 2}, 3: {"next_index": 4}}
        assert it._take(3) == expected[:3]
        later = it.get_state()
        assert later["future_states"] == {3: {"next_index": 4}}
        it.set_state(through_json(later))
        assert list(it) == expected[3:]
        assert it.get_state()["future_states"] == {}
        del state["future_states"]
        it.set_state(state)
        assert list(it) == interleaved([[13], [3], range(20, 24), range(30, 34)], 2)

    def test_numbers_of_other_types(self):
        it = iter(interleave([numbers(0, 3), numbers(10, 13), numbers(20, 23)], 2))
        it._take(3)
        state, rest = it.get_state(), list(it)
        others = {key: np.int64(state[key]) for key in ("next_index_in_cycle", "next_index_in_datasets")}
        indices = tuple(np.array(state["iterators_in_use_indices"]))
        it.set_state({**state, **others, "iterators_in_use_indices": indices, "exhausted": [False, np.False_]})
        assert json.dumps(it.get_state()) == json.dumps(state)
        assert list(it) == rest

    def test_wrong_states_change_nothing(self):
        ds = interleave([numbers(0, 3), numbers(10, 13), numbers(20, 23)], 2)
        it = iter(ds)
        it._take(3)
        before, rest = it.get_state(), [11, 2, 12, 20, 21, 22]
        for key in before:
            if key != "future_states":
                with pytest.raises(StateKeyError, match=key):
                    it.set_state({k: v for k, v in before.items() if k != key})
        wrong = [
            ("next_index_in_cycle", (2, -1, None, "0", 1.5)),
            ("next_index_in_datasets", (4, -1, None, "2")),
            ("iterators_in_use_indices", (None, [0], [0, 1, 2], [0, 0], [0, 7], [0, -1], [0, "1"], [0, 1.0], {0: 0})),
            ("iterators_in_use_states", (None, [{"next_index": 1}], [{}, {}], ["a", "b"], [{"next_index": 99}] * 2)),
            ("exhausted", (None, [0], [0, 0, 0], [0, 2], [0, None], "00")),
            ("future_states", (None, [1], {"a": {}}, {1.5: {}})),
        ]
        for key, values in wrong:
            for value in values:
                with pytest.raises(StateMismatchError):
                    it.set_state({**before, key: value})
                assert it.get_state() == before
        for state in (None, 3, [], "state"):
            with pytest.raises(StateMismatchError, match="mapping"):
                it.set_state(state)
        with pytest.raises(StateMismatchError, match="cycle length"):
            it.set_state(iter(interleave(files([2, 2, 2]), 3)).get_state())
        assert list(it) == rest

    def test_restoring_reads_nothing(self):
        log = Log()
        ds = interleave(files([3, 3, 3, 3], log), 2, iter_buffer_size=0)
        it = iter(ds)
        it._take(3)
        state = it.get_state()
        log.reads.clear()
        log.opened.clear()
        fresh = iter(ds)
        fresh.set_state(state)
        assert fresh.get_state() == state
        assert log.reads == [] and log.opened == [0, 1]
        assert next(fresh) == (1, 1) and log.reads == [(1, 1)]

    @each_way
    def test_the_state_before_the_beginning_reads_nothing(self, way):
        log = Log()
        it = iter(interleave(files([3, 3, 3], log), 2, **way))
        assert log.opened == []
        positions = [{"position": 0}, {"position": 0}]
        assert it.get_state() == {**stored(0, 2, [0, 1], [], [0, 0]), "iterators_in_use_states": positions}
        assert log.opened == [0, 1] and log.reads == []
        assert list(it) == interleaved(contents([3, 3, 3]), 2)
        assert log.opened == [0, 1, 2]

    def test_index_of_the_next_element(self):
        for ds in (MapDataset.range(9), numbers(0, 9)):
            it = iter(interleave([ds], 3))
            assert get_next_index(it) == 0
            assert next(it) == 0 and get_next_index(it) == 1
            set_next_index(it, 7)
            assert get_next_index(it) == 7
            state = it.get_state()
            assert list(it) == [7, 8] and get_next_index(it) == 9
            set_next_index(it, 2)
            assert next(it) == 2
            it.set_state(state)
            assert list(it) == [7, 8]
            with pytest.raises(StateIndexError):
                set_next_index(it, 10)
            assert list(it) == []
        for datasets in (files([2, 2]), []):
            it = iter(interleave(datasets, 1))
            with pytest.raises(NotImplementedError, match="single dataset"):
                get_next_index(it)
            with pytest.raises(NotImplementedError, match="single dataset"):
                set_next_index(it, 1)


class Spread(FlatMapTransform):
    max_fan_out = 2

    def flat_map(self, element):
        return [element, element]


# Stages that may ask for a state while they are made, or run in another thread or process.
BETWEEN = {
    "nothing": lambda ds: ds,
    "map": lambda ds: ds.map(lambda x: x),
    "batch": lambda ds: ds.batch(2),
    "thread_prefetch": lambda ds: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3),
    "repeat": lambda ds: RepeatIterDataset(ds, 2),
    "cache": CacheIterDataset,
    "window_shuffle": lambda ds: WindowShuffleIterDataset(ds, window_size=3, seed=1),
    "rebatch": lambda ds: RebatchIterDataset(ds.batch(3), 2),
    "flat_map": lambda ds: FlatMapIterDataset(ds, Spread()),
    "limit": lambda ds: LimitIterDataset(ds, 10**6),
    "mix": lambda ds: IterDataset.mix([ds, ds]),
    "interleave": lambda ds: interleave([ds, numbers(0, 3)], 2),
    "threads": lambda ds: multithread_prefetch(ds, 2, 2),
    "workers": LocalWorkersIterDataset,
}


class TestOptions:
    def dropping(self, options=None):
        ds = MapDataset.range(3000).to_iter_dataset(DIRECT).filter(lambda x: x % 300 == 0)
        return ds if options is None else WithOptionsIterDataset(ds, options)

    @pytest.mark.parametrize("between", BETWEEN)
    def test_those_set_downstream_reach_the_datasets(self, between):
        quiet = DatasetOptions(filter_warn_threshold_ratio=None)
        ds = BETWEEN[between](interleave([self.dropping(), self.dropping()], 2))
        it = iter(WithOptionsIterDataset(ds, quiet.merge(DatasetOptions(filter_raise_threshold_ratio=0.95))))
        it.get_state()
        with pytest.raises(ValueError, match="filter_raise_threshold_ratio"):
            list(it)
        it.close()
        assert next(iter(WithOptionsIterDataset(ds, quiet))) is not None

    @each_way
    def test_those_of_a_dataset_do_not_get_out(self, way, caplog):
        strict = DatasetOptions(filter_raise_threshold_ratio=0.5)
        ds = interleave([WithOptionsIterDataset(numbers(0, 3000), strict), self.dropping()], 2, **way)
        ds = WithOptionsIterDataset(ds, DatasetOptions(filter_warn_threshold_ratio=None)).filter(lambda x: x % 1000 == 0)
        it = iter(ds)
        assert sorted(it) == [0, 0, 1000, 2000]
        assert it._ctx.options.filter_raise_threshold_ratio is None
        assert not caplog.records

    @each_way
    def test_those_of_a_dataset_hold_where_those_downstream_say_nothing(self, way):
        strict = DatasetOptions(filter_raise_threshold_ratio=0.95, filter_warn_threshold_ratio=None)
        ds = interleave([self.dropping(strict), numbers(0, 3)], 2, **way)
        with pytest.raises(ValueError, match="filter_raise_threshold_ratio"):
            list(ds)
        with pytest.raises(ValueError, match="filter_raise_threshold_ratio"):
            list(WithOptionsIterDataset(ds, DatasetOptions(min_shm_size=1)))
        assert len(list(WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=None)))) == 13


each_sharing = pytest.mark.parametrize(
    "share", [LocalWorkersIterDataset, lambda ds, n: multithread_prefetch(ds, n, 2)], ids=["workers", "threads"]
)


class TestWorkers:
    @each_sharing
    def test_every_worker_has_files_of_its_own(self, share):
        contents_ = [list(range(10 * j, 10 * j + n)) for j, n in enumerate([3, 1, 4, 0, 2])]
        for datasets in (
            [MapDataset.source(x) for x in contents_],
            MapDataset.source(contents_).map(MapDataset.source),
        ):
            for num, cycle_length in [(2, 2), (3, 1)]:
                shares = [interleaved(contents_[i::num], cycle_length) for i in range(num)]
                check = share(interleave(datasets, cycle_length), num)
                assert list(check) == interleaved(shares, num)

    @each_sharing
    def test_more_workers_than_files(self, share):
        ds = share(interleave([numbers(0, 3), numbers(10, 12)], 4), 3)
        expected = [0, 10, 1, 11, 2]
        it = iter(ds)
        assert [next(it) for _ in range(3)] == expected[:3]
        state = through_json(it.get_state())
        assert list(it) == expected[3:]
        it.set_state(state)
        assert list(it) == expected[3:]
        assert list(share(interleave([], 4), 2)) == []

    @each_sharing
    def test_files_are_whole_so_their_random_streams_and_indices_are_too(self, share):
        """A file is read by one worker: what is drawn does not depend on how many there are, as it does not in Grain."""

        def make(start):
            return numbers(start, start + 3).random_map(draw, seed=1).map_with_index(lambda i, x: (i, *x))

        ds = interleave(MapDataset.source([0, 10, 20, 30]).map(make), 2)
        alone = list(ds)
        assert [x[:2] for x in alone[:4]] == [(0, 0), (0, 10), (1, 1), (1, 11)]
        assert list(share(ds, 1)) == alone
        assert sorted(share(ds, 2)) == sorted(alone)

    def test_lists_of_users_that_know_no_slices(self):
        class Names(MapDataset):
            def __len__(self):
                return 5

            def __getitem__(self, index):
                return numbers(10 * (index % 5), 10 * (index % 5) + 2)

        ds = multithread_prefetch(interleave(Names(), 2), 2, 1)
        shares = [interleaved([[10 * j, 10 * j + 1] for j in range(i, 5, 2)], 2) for i in range(2)]
        assert list(ds) == interleaved(shares, 2)

    def test_processes_in_one_of_the_files(self):
        """Alone, and in a worker, which then has workers of its own; none is left."""

        def make(start):
            return numbers(start, start + 3).mp_prefetch(MultiprocessingOptions(num_workers=1))

        ds = interleave(MapDataset.source([0, 10]).map(make), 2)
        assert list(ds) == [0, 10, 1, 11, 2, 12]
        it = iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2)))
        assert list(it) == [0, 10, 1, 11, 2, 12]
        it.close()


class Opening:
    """Makes the files of a lazy list; some cannot be opened, for a time or for ever."""

    def __init__(self, lengths, *bad, times=10**9, error=Boom, log=None):
        self.lengths = lengths
        self.check = Failing(*bad, times=times, error=error)
        self.log = log or Log()

    def __call__(self, name):
        self.check(name)
        return File(name, self.lengths[name], self.log)

    def dataset(self, cycle_length, **way):
        return interleave(MapDataset.range(len(self.lengths)).map(self), cycle_length, **way)


def boom(x):
    return ("boom", x)


def outcomes(it, limit=100, *, skip=False):
    """Elements, and errors as ``boom``; goes on after each error, at most ``limit`` times in all."""
    found = []
    for _ in range(limit):
        try:
            found.append(next(it))
        except StopIteration:
            break
        except Boom as error:
            found.append(boom(*error.args))
            if skip:
                it.skip_failed()
    return found


class TestErrors:
    LENGTHS = (2, 3, 2, 1)

    @each_way
    @pytest.mark.parametrize("bad", range(4))
    def test_a_file_that_cannot_be_opened_for_a_time(self, way, bad):
        """Elements before its turn come first; then the error, until it heals; nothing is lost."""
        for cycle_length in (1 + bad, 1 + (bad + 1 + WAYS.index(way) % 3) % 4):  # in turn
            expected = interleaved(contents(self.LENGTHS), cycle_length)
            opening = Opening(self.LENGTHS, bad, times=5)
            found = outcomes(iter(opening.dataset(cycle_length, **way)))
            assert [x for x in found if x != boom(bad)] == expected
            if boom(bad) in found:  # else all of the errors met a thread that tried again
                assert found.index(boom(bad)) <= expected.index((bad, 0))
            for size in (3, 100):
                opening.check.left[bad] = 5
                batches = outcomes(iter(opening.dataset(cycle_length, **way).batch(size, batch_fn=list)))
                assert [x for batch in batches if batch != boom(bad) for x in batch] == expected

    @each_way
    @pytest.mark.parametrize("bad", range(4))
    def test_a_file_that_can_never_be_opened(self, way, bad):
        lengths = [0 if name == bad else n for name, n in enumerate(self.LENGTHS)]
        for cycle_length in (4 - bad, 1 + (bad + WAYS.index(way)) % 4):  # in turn
            expected = interleaved(contents(lengths), cycle_length)  # as if it were empty
            ds = Opening(self.LENGTHS, bad).dataset(cycle_length, **way)
            it = iter(ds)
            found = outcomes(it, limit=len(expected) + 3)
            k = found.index(boom(bad))
            assert found == expected[:k] + [boom(bad)] * (len(expected) + 3 - k)
            before = it.get_state()
            with pytest.raises(Boom):
                next(it)
            assert it.get_state() == before
            it.skip_failed()
            rest, states, _ = record(it)
            assert rest == expected[k:]
            for i, state in enumerate(states):  # also behind it the file is not opened
                for again in (it, iter(ds)):
                    again.set_state(through_json(state))
                    assert list(again) == rest[i:]
            with pytest.raises(ValueError, match="nothing to skip"):
                it.skip_failed()

    @each_way
    def test_several_in_a_row_and_all(self, way):
        for bad in ([0, 1, 2], [1, 2, 3], [0, 1, 2, 3]):
            lengths = [0 if name in bad else n for name, n in enumerate(self.LENGTHS)]
            for cycle_length in (1, 3):
                it = iter(Opening(self.LENGTHS, *bad).dataset(cycle_length, **way))
                found = outcomes(it, skip=True)
                assert [x for x in found if x[0] == "boom"] == list(map(boom, bad))
                assert [x for x in found if x[0] != "boom"] == interleaved(contents(lengths), cycle_length)

    @each_way
    def test_missing_files_are_empty_ones(self, way):
        """Grain counts files that a filter has taken out, and ends too early."""
        present = [[] if name % 3 == 1 else [(name, i) for i in range(3)] for name in range(7)]
        for cycle_length in (1, 2, 4, 9):
            names = MapDataset.range(7).filter(lambda name: name % 3 != 1)
            ds = interleave(names.map(lambda name: File(name, 3)), cycle_length, **way)
            check_states(ds, interleaved(present, cycle_length))
        assert list(interleave(MapDataset.range(5).filter(lambda x: False), 2, **way)) == []

    @each_way
    def test_a_file_that_cannot_be_read(self, way):
        expected = interleaved(contents(self.LENGTHS), 2)
        k = expected.index((1, 1))
        for times in (1, 2, 7, 10**9):
            it = iter(interleave(files(self.LENGTHS, check=Failing((1, 1), times=times)), 2, **way))
            found = outcomes(it, limit=k + 20)
            if times < 10:
                num = len(found) - len(expected)
                assert found == expected[:k] + [boom((1, 1))] * num + expected[k:] and num <= times
        assert found == expected[:k] + [boom((1, 1))] * 20
        state = it.get_state()
        it.skip_failed()
        assert list(it) == expected[k + 1 :]
        it.set_state(through_json(state))
        with pytest.raises(Boom):
            next(it)

    @each_way
    def test_skipping_while_another_file_heals(self, way):
        """What can be opened between an error and ``skip_failed`` does not hide that there was an error."""
        opening = Opening([2, 2, 2], 1, times=3)
        make = opening.dataset(3, **way)._datasets.map(lambda file: File(file.name, file.n, check=Failing((0, 0))))
        it = iter(interleave(make, 3, **way))
        assert outcomes(it, limit=4) == 4 * [boom((0, 0))]
        it.skip_failed()
        assert [x for x in outcomes(it) if x[0] != "boom"] == interleaved(contents([2, 2, 2]), 3)[1:]

    def test_a_file_that_cannot_be_opened_is_tried_once_for_every_next(self):
        opening = Opening([2, 2], 1)
        it = iter(opening.dataset(2, **WAYS[0]))
        left = opening.check.left
        assert next(it) == (0, 0)
        for _ in range(3):
            before = left[1]
            with pytest.raises(Boom):
                next(it)
            it.get_state()
            it.start_prefetch()
            assert left[1] == before - 1

    @each_way
    def test_going_back_after_an_error_opens_nothing(self, way):
        """A batch that failed has to be begun again; files that cannot be opened again just then must not make that fail."""
        opened = Counter()
        check = Failing((1, 3), times=2)

        def make(name):
            opened[name] += 1
            if 2 <= opened[name] <= 4:
                raise Boom("opening again")
            return File(name, 6, check=check)

        it = iter(interleave(MapDataset.range(2).map(make), 2, **way).batch(5, batch_fn=list))
        batches = [x for x in outcomes(it) if x[0] != "boom"]
        expected = interleaved(contents([6, 6]), 2)
        assert batches == [expected[:5], expected[5:10], expected[10:]]

    def test_user_code_that_raises_stop_iteration(self):
        for way in WAYS:
            it = iter(interleave([numbers(0, 3, Failing(1, error=StopIteration)), numbers(10, 12)], 2, **way))
            assert [next(it), next(it)] == [0, 10]
            for _ in range(2):
                with pytest.raises(RuntimeError, match="StopIteration"):
                    next(it)
            it.skip_failed()
            assert list(it) == [11, 2]
        it = iter(Opening((1, 1), 1, error=StopIteration).dataset(1))
        assert next(it) == (0, 0)
        with pytest.raises(RuntimeError, match="StopIteration"):
            next(it)

    def test_a_state_that_a_file_refuses_changes_nothing(self):
        class Careful(Reader):
            def set_state(self, state):
                if state["position"] > self.file.n:
                    raise Boom(state)
                super().set_state(state)

        class CarefulFile(File):
            def __iter__(self):
                return Careful(self)

        it = iter(interleave([CarefulFile(0, 3), CarefulFile(1, 3)], 2))
        next(it)
        before = it.get_state()
        with pytest.raises(Boom):
            it.set_state({**before, "iterators_in_use_states": [{"position": 2}, {"position": 4}]})
        assert it.get_state() == before
        assert list(it) == [(1, 0), (0, 1), (1, 1), (0, 2), (1, 2)]


class TestInterrupts:
    @each_way
    def test_in_the_middle_of_reading_and_opening(self, way):
        for num in (1, 3, 50):
            check = Failing((0, 0), (1, 1), (2, 2), times=1, error=KeyboardInterrupt)
            self.check_that_nothing_is_lost(interleave(files([3, 3, 3], check=check), 2, **way), [3, 3, 3], 2, num)
            opening = Opening([2, 2, 2, 2], 0, 1, 3, times=2, error=KeyboardInterrupt)
            self.check_that_nothing_is_lost(opening.dataset(2, **way), [2, 2, 2, 2], 2, num)
            assert not any([*check.left.values(), *opening.check.left.values()])

    def check_that_nothing_is_lost(self, ds, lengths, cycle_length, num):
        it, got, num_interrupts = iter(ds), [], 0
        while True:
            try:
                if num == 1:
                    block = [next(it)]
                else:
                    block = it._take(num)
            except StopIteration:
                break
            except KeyboardInterrupt:
                num_interrupts += 1
                assert num_interrupts < 20
                continue
            got += block
            if not block:
                break
        assert got == interleaved(contents(lengths), cycle_length)
        assert num_interrupts

    def test_of_get_state_and_start_prefetch(self):
        opening = Opening([2, 2, 2], 1, times=2, error=KeyboardInterrupt)
        it = iter(opening.dataset(2))
        with pytest.raises(KeyboardInterrupt):
            it.get_state()
        with pytest.raises(KeyboardInterrupt):
            it.start_prefetch()
        state = it.get_state()
        assert state["iterators_in_use_indices"] == [0, 1] and state["next_index_in_datasets"] == 2
        assert list(it) == interleaved(contents([2, 2, 2]), 2)


class TestResources:
    LENGTHS = (1, 2, 0, 3, 1, 1, 2, 5, 0, 0, 4, 1)

    @each_way
    def test_how_many_files_are_open(self, way):
        for size in (1, 4, 100):
            log, got = Log(), []
            it = iter(interleave(files(self.LENGTHS, log), 3, **way))
            while block := it._take(size):
                got += block
            assert got == interleaved(contents(self.LENGTHS), 3)
            assert log.opened == list(range(12))
            assert log.most_open <= 3 + way.get("make_iter_buffer_size", 1)
            wait_until(lambda log=log: log.num_open == 0)
            assert sorted(log.closed) == list(range(12))

    def test_files_are_closed_when_they_have_ended(self):
        log, readers = Log(), []

        class Kept(File):
            def __iter__(self):
                readers.append(Reader(self))  # so that nothing but ``close`` closes it
                return readers[-1]

        datasets = [Kept(name, n, log) for name, n in enumerate([1, 3, 1])]
        it = iter(interleave(datasets, 2, **WAYS[0]))
        assert [next(it), next(it)] == [(0, 0), (1, 0)] and log.closed == []
        assert next(it) == (1, 1) and log.closed == [0]  # the slot of an ended one is filled at the next visit
        assert next(it) == (2, 0) and log.num_open == 2
        assert list(it) == [(1, 2)] and log.closed == [0, 2, 1]
        it = iter(interleave(datasets, 2, **WAYS[0]))
        it._take(2)
        it.close()
        assert sorted(log.closed[3:]) == [0, 1]

    @each_way
    @pytest.mark.parametrize("ending", ["close", "drop", "circle", "restore"])
    def test_nothing_is_left(self, way, ending):
        for num in (0, 1, 5):
            log = Log()
            it = iter(interleave(MapDataset.source(files([3] * 30, log)), 3, **way))
            it.start_prefetch()
            it._take(num)
            if ending == "close":
                it.close()
                it.close()
                with pytest.raises(ValueError, match="closed"):
                    next(it)
            elif ending == "circle":
                it.circle = it
            elif ending == "restore":
                state = it.get_state()
                it.set_state(state)
                assert it.get_state() == state
            ref = weakref.ref(it)
            del it
            if ending == "circle" and num == 5:
                gc.collect()  # of all three
            if ending != "circle" or num == 5:
                assert ref() is None
                wait_until(lambda log=log: log.num_open == 0 and not our_threads())

    def test_closing_in_the_middle_of_opening(self):
        """The pool's thread is in user code when the iterator is closed: what it opens then is closed too."""
        log, inside, gate = Log(), threading.Event(), threading.Event()

        def make(name):
            if name == 2:
                inside.set()
                assert gate.wait(PATIENCE_SECONDS)
            return File(name, 2, log)

        it = iter(interleave(MapDataset.range(9).map(make), 2))
        assert [next(it), next(it)] == [(0, 0), (1, 0)]
        assert inside.wait(PATIENCE_SECONDS)
        it.close()
        gate.set()
        wait_until(lambda: log.num_open == 0 and not our_threads())

    def test_start_prefetch_opens_and_starts_a_cycle(self):
        log = Log()
        started = threading.Semaphore(0)

        def check(x):
            started.release()
            return x

        it = iter(interleave(files([4] * 9, log, check), 3, iter_buffer_size=2))
        it.start_prefetch()
        assert log.opened == [0, 1, 2]
        for _ in range(3 * 2):
            assert started.acquire(timeout=PATIENCE_SECONDS)
        with log.lock:
            assert {name for name, _ in log.reads} == {0, 1, 2}
        it.start_prefetch()
        assert log.opened == [0, 1, 2]
        assert list(it) == interleaved(contents([4] * 9), 3)

    def test_files_work_ahead_of_their_turn(self):
        """The one that is opened ahead, and after a restore all of the cycle, as soon as there is something to do."""
        reads = {name: threading.Event() for name in range(4)}

        def check(x):
            reads[x[0]].set()
            return x

        ds = interleave(files([4] * 4, check=check), 2)
        it = iter(ds)
        assert next(it) == (0, 0)
        assert reads[1].wait(PATIENCE_SECONDS)
        state = it.get_state()
        it.close()
        for event in reads.values():
            event.clear()
        it = iter(ds)
        it.set_state({**state, "next_index_in_cycle": 0})
        assert not any(event.is_set() for event in reads.values())
        assert next(it) == (0, 1)
        assert reads[1].wait(PATIENCE_SECONDS)

    def test_start_prefetch_leaves_errors_to_their_turn(self):
        for way in WAYS:
            it = iter(Opening([2, 2, 2], 1).dataset(3, **way))
            it.start_prefetch()
            assert outcomes(it, skip=True) == [(0, 0), boom(1), (2, 0), (0, 1), (2, 1)]

    def test_the_next_file_is_opened_before_it_is_needed(self, monkeypatch):
        monkeypatch.setattr(readahead, "_ANEW_SECONDS", 3600.0)  # whoever misses something finds that out too late
        opened = threading.Semaphore(0)

        def make(name):
            opened.release()
            return File(name, 2)

        it = iter(interleave(MapDataset.range(9).map(make), 1))
        for num in range(1, 5):
            assert next(it) == (num - 1, 0)
            for _ in range(2 if num == 1 else 1):
                assert opened.acquire(timeout=PATIENCE_SECONDS)
            assert next(it) == (num - 1, 1)
            assert not opened.acquire(blocking=False)  # but no more than one
        it.close()

    def test_a_repetition_opens_the_files_of_each_epoch_once(self):
        log = Log()
        ds = RepeatIterDataset(interleave(files([1, 2, 1], log), 2), 3)
        assert list(ds) == 3 * interleaved(contents([1, 2, 1]), 2)
        wait_until(lambda: log.num_open == 0)
        assert {name: log.opened.count(name) for name in range(3)} == {0: 3, 1: 3, 2: 3}
        assert log.most_open <= 3


def run_script(body):
    script = """
import os, signal, sys, warnings
from gristmill import MapDataset
from gristmill.experimental import InterleaveIterDataset

warnings.simplefilter("ignore", DeprecationWarning)  # newer Pythons warn of forks of programs with threads

def make(name):
    ds = MapDataset.range(10 * name, 10 * name + 5).map(str).to_iter_dataset()
    return ds.filter(lambda x: True) if name % 2 else ds
""" + textwrap.dedent(body)
    done = subprocess.run([sys.executable, "-X", "dev", "-c", script], capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr[-2000:]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="the system has no fork")
def test_a_forked_process_goes_on_from_the_state():
    run_script(
        """
        ds = InterleaveIterDataset(
            MapDataset.range(8).map(make), cycle_length=3, num_make_iter_threads=2, make_iter_buffer_size=2, iter_buffer_size=3
        )
        whole = list(ds)
        assert len(whole) == 40
        for num in (0, 7, 40):
            it = iter(ds)
            assert it._take(num) == whole[:num]
            state = it.get_state()
            process_id = os.fork()
            if not process_id:
                signal.alarm(30)
                assert it.get_state() == state
                assert list(it) == whole[num:]
                it.set_state(state)
                assert list(it) == whole[num:]
                it.close()
                sys.exit(0)
            assert os.waitpid(process_id, 0)[1] == 0
            assert list(it) == whole[num:]
        """
    )


def test_exit_is_silent():
    run_script(
        """
        ds = InterleaveIterDataset(MapDataset.range(50).map(make), cycle_length=3, make_iter_buffer_size=3)
        read, started, asked = iter(ds), iter(ds), iter(ds)
        next(read); started.start_prefetch(); asked.get_state()
        for x in ds: break
        """
    )
