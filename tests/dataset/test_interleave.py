"""Interleaved datasets: the order, what is open when, states, and what happens when a dataset fails or cannot be opened."""

import gc
import json
import threading
import weakref
from collections import Counter

import numpy as np
import pytest
from computing_ahead import Boom, Failing, Gate, Plain, fails, no_threads_left, numbers, wait_for_no_threads, working  # noqa: F401
from local_workers import LocalWorkersIterDataset
from waiting import PATIENCE_SECONDS, wait_until

from gristmill import IterDataset, MapDataset, MultiprocessingOptions
from gristmill.core.errors import StateMismatchError
from gristmill.dataset import DatasetIterator
from gristmill.dataset.ahead import readahead
from gristmill.experimental import (
    DatasetOptions,
    InterleaveIterDataset,
    RepeatIterDataset,
    ThreadPrefetchIterDataset,
    WithOptionsIterDataset,
    get_next_index,
    multithread_prefetch,
    set_next_index,
)

# Threads that open ahead, datasets open ahead, and elements ahead of each: none of it may be noticed.
WAYS = [
    {"num_make_iter_threads": 0, "make_iter_buffer_size": 0, "iter_buffer_size": 0},
    {},
    {"num_make_iter_threads": 2, "make_iter_buffer_size": 3, "iter_buffer_size": 0},
    {"num_make_iter_threads": 3, "make_iter_buffer_size": 2, "iter_buffer_size": 4},
]
each_way = pytest.mark.parametrize("way", WAYS, ids=["direct", "default", "opened_ahead", "all_ahead"])


class Log:
    """What happened to the files of a test."""

    def __init__(self):
        self.opened, self.closed, self.reads, self.most_open = [], [], [], 0

    @property
    def num_open(self):
        return len(self.opened) - len(self.closed)

    def open(self, name):
        self.opened.append(name)
        self.most_open = max(self.most_open, self.num_open)


class File(IterDataset):
    """A user's dataset over a file of ``n`` elements, which is open as long as its iterator is."""

    def __init__(self, name, n, log=None, check=lambda x: x):
        super().__init__()
        self.name, self.n, self.log, self.check = name, n, log or Log(), check

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
        self.file.log.reads.append(x)
        self.position += 1
        return x

    def get_state(self):
        return {"position": self.position}

    def set_state(self, state):
        if state["position"] > self.file.n:
            raise Boom(state)
        self.position = state["position"]

    def _skip(self):
        self.position += 1

    def close(self):
        if self.is_open:
            self.is_open = False
            self.file.log.closed.append(self.file.name)


def files(lengths, log=None, check=lambda x: x):
    return [File(name, n, log, check) for name, n in enumerate(lengths)]


def draw(x, rng):
    return (x, int(rng.integers(10**6)))


def interleave(datasets, cycle_length, **way):
    return InterleaveIterDataset(datasets, cycle_length=cycle_length, **way)


def interleaved(lists, cycle_length):
    """The order in the words of the specification."""
    queues = [list(x) for x in lists]
    slots, out, p, d = [None] * min(cycle_length, len(queues)), [], 0, 0
    while d < len(queues) or slots.count(None) < len(slots):
        if slots[p] is None and d < len(queues):
            slots[p] = queues[d]
            d += 1
            continue
        if slots[p]:
            out.append(slots[p].pop(0))
        else:
            slots[p] = None
        p = (p + 1) % len(slots)
    return out


def of_files(lengths, cycle_length):
    return interleaved([[(name, i) for i in range(n)] for name, n in enumerate(lengths)], cycle_length)


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
    """The elements, and the states before, between and after them."""
    elements, states = [], [it.get_state()]
    for x in it:
        elements.append(x)
        states.append(it.get_state())
    return elements, states


class TestOrder:
    @each_way
    def test_plain_iterators(self, way):
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
        it, again = [iter(interleave(names.map(make), 2)) for _ in range(2)]
        order = [names[i] for i in range(12)]
        assert it._take(18) == interleaved([[10 * x, 10 * x + 1] for x in order], 2)[:18]
        assert len(opened) <= 10 + 1 and opened == order[: len(opened)]
        state = through_json(it.get_state())
        assert state["next_index_in_datasets"] <= 11
        again.set_state(state)
        assert again._take(20) == it._take(20)


class TestArguments:
    @pytest.mark.parametrize("name", ["cycle_length", "num_make_iter_threads", "make_iter_buffer_size", "iter_buffer_size"])
    def test_numbers(self, name):
        given = {"cycle_length": 2, name: np.int64(1)}
        assert list(InterleaveIterDataset(files([1]), **given)) == [(0, 0)]
        wrong = [(1.0, TypeError), ("1", TypeError), (None, TypeError), (-1, ValueError)]
        for value, error in [*wrong, (0, ValueError)] if name == "cycle_length" else wrong:
            with pytest.raises(error, match=name):
                InterleaveIterDataset(files([1]), **{**given, name: value})

    def test_texts_and_what_is_no_list_of_datasets(self):
        given = files([1, 2, 3])
        ds = interleave(given, 2)
        given.append(File("late", 2))
        assert str(ds) == "InterleaveIterDataset([3 datasets], cycle_length=2)"
        assert str(iter(ds)) == "InterleaveDatasetIterator([3 datasets], cycle_length=2)"
        assert list(ds) == of_files([1, 2, 3], 2)
        for wrong in (None, 3, "ab", {"a": numbers(0, 1)}, {numbers(0, 1)}, iter([numbers(0, 1)]), numbers(0, 1)):
            with pytest.raises(TypeError, match=r"datasets(\[0\])? must be"):
                interleave(wrong, 2)
        for wrong in (3, [1, 2], None, iter(numbers(0, 1))):
            with pytest.raises(TypeError, match=r"datasets\[1\] must be a MapDataset or IterDataset"):
                interleave([numbers(0, 1), wrong], 2)
        for datasets in (files([2, 2]), []):
            for use in (get_next_index, lambda it: set_next_index(it, 1)):
                with pytest.raises(NotImplementedError, match="single dataset"):
                    use(iter(interleave(datasets, 1)))

    @each_way
    def test_a_lazy_list_of_something_else(self, way):
        it = iter(interleave(MapDataset.source([numbers(0, 1), "b.txt", numbers(5, 6)]), 1, **way))
        assert next(it) == 0
        fails(it, TypeError, match=r"datasets\[1\] must be a MapDataset or IterDataset, got 'b.txt'")
        it.skip_failed()
        assert list(it) == [5]


class TestStates:
    def test_datasets_that_grain_says_have_ended(self):
        """With no dataset left to take its place, one that is said to have ended is asked all the same."""
        it = iter(interleave([numbers(0, 4), numbers(10, 13)], 2))
        for flags in ([0, 0], [0, 1], [1, 0], [1, 1]):
            for positions, rest in (([1, 1], [1, 11, 2, 12, 3]), ([1, 1], [1, 11, 2, 12, 3]), ([4, 1], [11, 12])):
                state = stored(0, 2, [0, 1], positions, flags)
                it.set_state(state)
                assert it.get_state() == state
                assert list(it) == rest
                assert it.get_state()["exhausted"] == [1, 1]

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
        failing = numbers(10, 15, fn=Failing(14, times=4))  # in the block, alone, and in both once more
        it = iter(interleave([MapDataset.range(0, 3), failing], 2, iter_buffer_size=0))
        it.set_state(stored(0, 2, [0, 1], [1, 1], [1, 0]))
        for _ in range(2):
            with pytest.raises(Boom):
                it._take(20)
        assert it._take(20) == [1, 11, 2, 12, 13, 14]

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

    def test_wrong_states_change_nothing(self):
        it = iter(interleave(files([3, 3, 3]), 2))
        it._take(3)
        before, rest = it.get_state(), of_files([3, 3, 3], 2)[3:]
        wrong = {
            "next_index_in_cycle": (2, -1),
            "next_index_in_datasets": (4, -1),
            "iterators_in_use_indices": ([0], [0, 1, 2], [0, 0], [0, 7], [0, -1], [0, "1"], [0, 1.0], {0: 0}),
            "iterators_in_use_states": ([{"position": 1}], "ab"),
            "exhausted": ([0], [0, 0, 0], [0, 2], [0, None], "00"),
            "future_states": ([1], {"a": {}}, {1.5: {}}),
        }
        for key, value in [(key, value) for key, values in wrong.items() for value in values]:
            with pytest.raises(StateMismatchError):
                it.set_state({**before, key: value})
            assert it.get_state() == before
        with pytest.raises(StateMismatchError, match="cycle length"):
            it.set_state(iter(interleave(files([2, 2, 2]), 3)).get_state())
        with pytest.raises(Boom):  # which a file refuses
            it.set_state({**before, "iterators_in_use_states": [{"position": 2}, {"position": 4}]})
        assert it.get_state() == before
        assert list(it) == rest

    @each_way
    def test_the_state_before_the_beginning_and_restoring_read_nothing(self, way):
        log = Log()
        ds = interleave(files([3, 3, 3, 3], log), 2, **way)
        it = iter(ds)
        assert log.opened == []
        positions = [{"position": 0}, {"position": 0}]
        assert it.get_state() == {**stored(0, 2, [0, 1], [], [0, 0]), "iterators_in_use_states": positions}
        assert log.opened == [0, 1] and log.reads == []
        assert it._take(3) == of_files([3, 3, 3, 3], 2)[:3]
        state = it.get_state()
        it.close()
        wait_for_no_threads()
        log.reads.clear(), log.opened.clear()
        fresh = iter(ds)
        fresh.set_state(state)
        assert fresh.get_state() == state
        assert log.reads == [] and log.opened == [0, 1]
        assert list(fresh) == of_files([3, 3, 3, 3], 2)[3:]
        assert log.opened == [0, 1, 2, 3]


class TestOptions:
    def dropping(self, **options):
        return WithOptionsIterDataset(numbers(3000).filter(lambda x: x % 300 == 0), DatasetOptions(**options))

    @pytest.mark.parametrize(
        "stage",  # which may ask for a state while it is made, or runs in another thread or process
        [
            lambda ds: ds,
            lambda ds: ThreadPrefetchIterDataset(ds, prefetch_buffer_size=3),
            lambda ds: ds.window_shuffle(3, seed=1).cache(),
            lambda ds: ds.batch(3).rebatch(2).repeat(2),
            lambda ds: interleave([IterDataset.mix([ds, ds]), numbers(0, 3)], 2),
            lambda ds: multithread_prefetch(ds, 2, 2),
            LocalWorkersIterDataset,
        ],
    )
    def test_those_set_downstream_reach_the_datasets(self, stage):
        quiet = DatasetOptions(filter_warn_threshold_ratio=None)
        ds = stage(interleave([self.dropping(), self.dropping()], 2))
        it = iter(WithOptionsIterDataset(ds, quiet.merge(DatasetOptions(filter_raise_threshold_ratio=0.95))))
        it.get_state()
        with pytest.raises(ValueError, match="filter_raise_threshold_ratio"):
            list(it)
        it.close()
        assert next(iter(WithOptionsIterDataset(ds, quiet))) is not None

    @each_way
    def test_those_of_a_dataset_hold_where_those_downstream_say_nothing_and_do_not_get_out(self, way, caplog):
        quiet, error = {"filter_warn_threshold_ratio": None}, "filter_raise_threshold_ratio"
        strict = WithOptionsIterDataset(numbers(0, 3000), DatasetOptions(filter_raise_threshold_ratio=0.5))
        ds = interleave([strict, self.dropping()], 2, **way)
        it = iter(WithOptionsIterDataset(ds, DatasetOptions(**quiet)).filter(lambda x: x % 1000 == 0))
        assert sorted(it) == [0, 0, 1000, 2000]
        assert it._ctx.options.filter_raise_threshold_ratio is None
        assert not caplog.records
        ds = interleave([self.dropping(filter_raise_threshold_ratio=0.95, **quiet), numbers(0, 3)], 2, **way)
        for same in (ds, WithOptionsIterDataset(ds, DatasetOptions(min_shm_size=1))):
            with pytest.raises(ValueError, match=error):
                list(same)
        assert len(list(WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=None)))) == 13


@pytest.mark.parametrize(
    "share", [LocalWorkersIterDataset, lambda ds, n: multithread_prefetch(ds, n, 2)], ids=["workers", "threads"]
)
def test_every_worker_has_files_of_its_own(share):
    """What is drawn does not depend on how many there are, as it does not in Grain. Lists of users know no slices."""

    class Names(MapDataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            start = 10 * (index % 5)
            return numbers(start, start + 2).random_map(draw, seed=1).map_with_index(lambda i, x: (i, *x))

    lists = [list(ds) for ds in Names()]
    assert [x[:2] for x in lists[3]] == [(0, 30), (1, 31)]
    for num in (1, 2, 3):
        assert list(share(interleave(Names(), 2), num)) == interleaved([interleaved(lists[i::num], 2) for i in range(num)], num)
    assert list(share(interleave([], 4), 2)) == []


def test_processes_in_one_of_the_files():
    """Alone, and in a worker, which then has workers of its own; none is left."""

    def make(start):
        return numbers(start, start + 3).mp_prefetch(MultiprocessingOptions(num_workers=1))

    ds = interleave(MapDataset.source([0, 10]).map(make), 2)
    assert list(ds) == [0, 10, 1, 11, 2, 12]
    with iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2))) as it:
        assert list(it) == [0, 10, 1, 11, 2, 12]


class Opening:
    """Makes the files of a lazy list; some cannot be opened, for a time or for ever."""

    def __init__(self, lengths, *bad, **failing):
        self.lengths = lengths
        self.check = Failing(*bad, **failing)

    def __call__(self, name):
        self.check(name)
        return File(name, self.lengths[name])

    def dataset(self, cycle_length, **way):
        return interleave(MapDataset.range(len(self.lengths)).map(self), cycle_length, **way)


def boom(x):
    return ("boom", x)


def outcomes(it, limit=100):
    """Elements, and errors as ``boom``: so many in all."""
    found = []
    for _ in range(limit):
        try:
            found.append(next(it))
        except StopIteration:
            break
        except Boom as error:
            found.append(boom(*error.args))
    return found


class TestErrors:
    @each_way
    def test_a_file_that_can_never_be_opened(self, way):
        lengths = (2, 3, 2, 1)
        for bad in range(4):
            cycle_length = 1 + (bad + WAYS.index(way)) % 4  # in turn
            expected = of_files([0 if name == bad else n for name, n in enumerate(lengths)], cycle_length)  # as if it were empty
            ds = Opening(lengths, bad).dataset(cycle_length, **way)
            it = iter(ds)
            it.start_prefetch()  # leaves the error to its turn
            found = outcomes(it, limit=len(expected) + 3)
            k = found.index(boom(bad))
            assert found == expected[:k] + [boom(bad)] * (len(expected) + 3 - k)
            before = it.get_state()
            fails(it, Boom)
            assert it.get_state() == before
            it.skip_failed()
            rest, states = record(it)
            assert rest == expected[k:]
            for i, state in enumerate(states):  # also behind it the file is not opened
                for again in (it, iter(ds)):
                    again.set_state(through_json(state))
                    assert list(again) == rest[i:]
            with pytest.raises(ValueError, match="nothing to skip"):
                it.skip_failed()

    @each_way
    def test_skipping_while_another_file_heals(self, way):
        """What can be opened between an error and ``skip_failed`` does not hide that there was an error."""
        opening = Opening([2, 2, 2], 1, times=3)
        make = opening.dataset(3, **way)._datasets.map(lambda file: File(file.name, file.n, check=Failing((0, 0))))
        it = iter(interleave(make, 3, **way))
        assert outcomes(it, limit=4) == 4 * [boom((0, 0))]
        it.skip_failed()
        assert [x for x in outcomes(it) if x[0] != "boom"] == of_files([2, 2, 2], 3)[1:]

    def test_a_file_that_cannot_be_opened_is_tried_once_for_every_next(self):
        opening = Opening([2, 2], 1)
        it = iter(opening.dataset(2, **WAYS[0]))
        left = opening.check.left
        assert next(it) == (0, 0)
        for _ in range(3):
            before = left[1]
            fails(it, Boom)
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
        expected = of_files([6, 6], 2)
        assert [x for x in outcomes(it) if x[0] != "boom"] == [expected[:5], expected[5:10], expected[10:]]


def test_an_interrupt_of_get_state_and_start_prefetch():
    opening = Opening([2, 2, 2], 1, times=2, error=KeyboardInterrupt)
    it = iter(opening.dataset(2))
    for use in (it.get_state, it.start_prefetch):
        with pytest.raises(KeyboardInterrupt):
            use()
    state = it.get_state()
    assert state["iterators_in_use_indices"] == [0, 1] and state["next_index_in_datasets"] == 2
    assert list(it) == of_files([2, 2, 2], 2)


class TestResources:
    @each_way
    def test_how_many_files_are_open(self, way):
        lengths = (1, 2, 0, 3, 1, 1, 2, 5, 0, 0, 4, 1)
        for size in (1, 4, 100):
            log, got = Log(), []
            it = iter(interleave(files(lengths, log), 3, **way))
            while block := it._take(size):
                got += block
            assert got == of_files(lengths, 3)
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

    @pytest.mark.parametrize("ending", ["close", "drop", "circle", "restore"])
    def test_nothing_is_left(self, ending):
        for num, way in [(0, WAYS[3]), (1, WAYS[0]), (5, WAYS[1]), (1, WAYS[2]), (5, WAYS[3])]:
            log = Log()
            it = iter(interleave(MapDataset.source(files([3] * 30, log)), 3, **way))
            it.start_prefetch()
            it._take(num)
            if ending == "close":
                it.close()
                it.close()
                fails(it, ValueError, match="closed")
            elif ending == "circle":
                it.circle = it
            elif ending == "restore":
                state = it.get_state()
                it.set_state(state)
                assert it.get_state() == state
            ref = weakref.ref(it)
            del it
            if ending == "circle":
                gc.collect()
            assert ref() is None
            wait_until(lambda log=log: log.num_open == 0 and not working())

    def test_closing_in_the_middle_of_opening(self):
        """The pool's thread is in user code when the iterator is closed: what it opens then is closed too."""
        log, gate = Log(), Gate(2)
        it = iter(interleave(MapDataset.range(9).map(lambda name: File(gate(name), 2, log)), 2))
        assert [next(it), next(it)] == [(0, 0), (1, 0)]
        wait_until(lambda: gate.num_busy)
        it.close()
        gate.open.set()
        wait_until(lambda: log.num_open == 0 and not working())

    def test_files_work_ahead_of_their_turn(self):
        """After ``start_prefetch`` all of the cycle, and after a restore, as soon as there is something to do."""
        log = Log()
        ds = interleave(files([4] * 9, log), 3, iter_buffer_size=2)
        it = iter(ds)
        for _ in range(2):
            it.start_prefetch()
            assert log.opened == [0, 1, 2]
            wait_until(lambda: len(log.reads) >= 3 * 2)
            assert {name for name, _ in log.reads} == {0, 1, 2}
        assert next(it) == (0, 0)
        state = it.get_state()
        assert list(it) == of_files([4] * 9, 3)[1:]
        wait_for_no_threads()
        log.reads.clear()
        it.set_state(state)
        assert log.reads == []
        assert next(it) == (1, 0)
        wait_until(lambda: {(0, 1), (2, 0)} <= {*log.reads})
        it.close()

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
        assert list(ds) == 3 * of_files([1, 2, 1], 2)
        wait_until(lambda: log.num_open == 0)
        assert Counter(log.opened) == {0: 3, 1: 3, 2: 3}
        assert log.most_open <= 3
