"""Interleaved datasets: the order, what is open when, states, and what happens when a dataset fails
or cannot be opened.
"""

import gc
import threading
import weakref
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from computing_ahead import (
    Boom,
    Failing,
    Gate,
    Plain,
    fails,
    no_threads_left,  # noqa: F401
    numbers,
    wait_for_no_threads,
    working,
)
from local_workers import LocalWorkersIterDataset, through_json
from refusing import assert_raises, assert_refused
from users_datasets import BareIterator
from waiting import PATIENCE_SECONDS, wait_until

from gristmill import IterDataset, MapDataset, MultiprocessingOptions
from gristmill import experimental as gx
from gristmill.core.errors import StateMismatchError
from gristmill.dataset.ahead import budget
from gristmill.experimental import DatasetOptions, WithOptionsIterDataset

# Threads that open ahead, datasets open ahead, and elements ahead of each: none of it may be
# noticed.
WAYS = [
    {"num_make_iter_threads": 0, "make_iter_buffer_size": 0, "iter_buffer_size": 0},
    {},
    {"num_make_iter_threads": 2, "make_iter_buffer_size": 3, "iter_buffer_size": 0},
    {"num_make_iter_threads": 3, "make_iter_buffer_size": 2, "iter_buffer_size": 4},
]
each_way = pytest.mark.parametrize(
    "way", WAYS, ids=["direct", "default", "opened_ahead", "all_ahead"]
)


class Log:
    """The events of the files of a test."""

    def __init__(self):
        self.opened, self.closed, self.reads, self.most_open = [], [], [], 0

    @property
    def num_open(self):
        return len(self.opened) - len(self.closed)


class File(IterDataset):
    """A user's dataset over a file of ``n`` elements, which is open as long as its iterator is."""

    def __init__(self, name, n, log=None, check=lambda x: x):
        self.name, self.n, self.log, self.check = name, n, log or Log(), check

    def __iter__(self):
        return Reader(self)


class Reader(BareIterator):
    def __init__(self, file):
        super().__init__(file.n)
        self.file, self.is_open = file, True
        file.log.opened.append(file.name)
        file.log.most_open = max(file.log.most_open, file.log.num_open)

    def __next__(self):
        assert self.is_open
        if self.position < self.n:
            self.file.log.reads.append(self.file.check((self.file.name, self.position)))
        return self.file.name, super().__next__()

    def _gm_skip(self):
        self.position += 1

    def close(self):
        if self.is_open:
            self.is_open = False
            self.file.log.closed.append(self.file.name)


def files(lengths, log=None):
    return [File(name, n, log) for name, n in enumerate(lengths)]


def interleave(datasets, cycle_length, **way):
    return gx.InterleaveIterDataset(datasets, cycle_length=cycle_length, **way)


def interleaved(lists, cycle_length):
    """The order in the words of the specification."""
    waiting, slots, out = [[*x] for x in lists], [None] * cycle_length, []
    while waiting or any(slot is not None for slot in slots):
        for i in range(cycle_length):
            if slots[i] is None and waiting:
                slots[i] = waiting.pop(0)
            if slots[i]:
                out.append(slots[i].pop(0))
            else:
                slots[i] = None
    return out


def of_files(lengths, cycle_length):
    return interleaved(
        [[(name, i) for i in range(n)] for name, n in enumerate(lengths)], cycle_length
    )


def stored(slot, num_opened, indices, states, exhausted):
    """A state; of map datasets, by their positions."""
    return {
        "next_index_in_cycle": slot,
        "next_index_in_datasets": num_opened,
        "iterators_in_use_indices": indices,
        "iterators_in_use_states": [{"next_index": x} if type(x) is int else x for x in states],
        "exhausted": exhausted,
        "future_states": {},
    }


class TestOrderAndArguments:
    @each_way
    def test_plain_iterators_and_a_lazy_list_of_something_else(self, way):
        ds = interleave([Plain("abc"), numbers(0, 2), Plain("xy")], 2, **way)
        expected = interleaved(["abc", range(2), "xy"], 2)
        assert list(ds) == expected
        assert list(ds.batch(4, batch_fn=list)) == [expected[:4], expected[4:]]
        it = iter(ds)
        next(it)
        assert_raises(NotImplementedError, "plain Python iterator", it.get_state)
        assert list(it) == expected[1:]
        it = iter(interleave(MapDataset.source([numbers(0, 1), "b.txt", numbers(5, 6)]), 1, **way))
        assert next(it) == 0
        fails(
            it, TypeError, match=r"datasets\[1\] must be a MapDataset or IterDataset, got 'b.txt'"
        )
        it.skip_failed()
        assert list(it) == [5]

    def test_endless_reshuffled_lists(self):
        opened = []
        names = MapDataset.range(3).shuffle(seed=5).repeat()
        ds = interleave(
            names.map(lambda name: opened.append(name) or numbers(10 * name, 10 * name + 2)), 2
        )
        it, again = iter(ds), iter(ds)
        order = [names[i] for i in range(12)]
        assert it._gm_take(18) == interleaved([[10 * x, 10 * x + 1] for x in order], 2)[:18]
        assert len(opened) <= 10 + 1 and opened == order[: len(opened)]
        state = through_json(it.get_state())
        assert state["next_index_in_datasets"] <= 11
        again.set_state(state)
        assert again._gm_take(20) == it._gm_take(20)

    def test_arguments_and_texts(self):
        given = files([1, 2, 3])
        ds = interleave(given, 2)
        given.append(File("late", 2))
        assert str(ds) == "InterleaveIterDataset([3 datasets], cycle_length=2)"
        assert str(iter(ds)) == "InterleaveDatasetIterator([3 datasets], cycle_length=2)"
        assert list(ds) == of_files([1, 2, 3], 2)
        for use in (gx.get_next_index, lambda it: gx.set_next_index(it, 1)):
            assert_raises(NotImplementedError, "single dataset", use, iter(interleave([], 1)))
        for wrong in (
            None,
            3,
            "ab",
            {"a": numbers(0, 1)},
            {numbers(0, 1)},
            iter([numbers(0, 1)]),
            numbers(0, 1),
        ):
            assert_raises(TypeError, r"datasets(\[0\])? must be", interleave, wrong, 2)
        for wrong in (3, [1, 2], None, iter(numbers(0, 1))):
            match = r"datasets\[1\] must be a MapDataset or IterDataset"
            assert_raises(TypeError, match, interleave, [numbers(0, 1), wrong], 2)


class TestStates:
    def test_datasets_that_grain_says_have_ended(self):
        """Each is asked all the same: with no dataset left to take its place, and with some."""
        it = iter(interleave([numbers(0, 4), numbers(10, 13)], 2))
        for flags in ([0, 0], [0, 1], [1, 0], [np.True_, True]):
            for positions, rest in (([1, 1], [1, 11, 2, 12, 3]), ([4, 1], [11, 12])):
                state = stored(0, 2, [0, 1], positions, flags)
                it.set_state(state)
                assert it.get_state() == state
                assert list(it) == rest
                assert it.get_state()["exhausted"] == [1, 1]
        it = iter(
            interleave(
                [MapDataset.range(10 * i, 10 * i + n) for i, n in enumerate((2, 5, 4, 3, 2))], 2
            )
        )
        # as Grain 0.2.18 wrote them in the second epoch of a RepeatIterDataset, with flags of the
        # first
        for state, first in [
            (stored(1, 2, [0, 1], [1, 0], [1, 1]), [10, 1, 11, 12, 20, 13, 21, 14]),
            (stored(0, 2, [0, 1], [1, 1], [1, 1]), [1, 11, 12, 20, 13, 21, 14]),
            (stored(0, 2, [0, 1], [2, 3], [1, 1]), [20, 13, 21, 14]),
            (stored(1, 3, [2, 1], [1, 3], [0, 1]), [13, 21, 14]),
            (stored(1, 3, [2, 1], [2, 4], [0, 1]), [14]),
        ]:
            it.set_state(state)
            assert it.get_state() == state
            assert list(it) == [*first, 22, 23, 30, 31, 40, 32, 41]
        # The flag is in the state again when the block that found the truth failed; the truth stays
        # known no longer.
        failing = numbers(10, 15, fn=Failing(14, times=2))
        it = iter(interleave([MapDataset.range(0, 3), failing], 2, iter_buffer_size=0))
        it.set_state(stored(0, 2, [0, 1], [1, 1], [1, 0]))
        for _ in range(2):
            assert_raises(Boom, None, it._gm_take, 20)
        assert it._gm_take(20) == [1, 11, 2, 12, 13, 14]

    def test_future_states(self):
        """States of datasets that are still to be opened, as elastic iterators write them."""
        it = iter(interleave([numbers(10 * j, 10 * j + 4) for j in range(4)], 2))
        state = stored(1, 2, [0, 1], [3, 3], [0, 0])
        expected = interleaved([[13], [3], [22, 23], []], 2)
        for key_type in (int, str, np.int64):
            it.set_state(
                {
                    **state,
                    "future_states": {
                        key_type(2): {"next_index": 2},
                        key_type(3): {"next_index": 4},
                    },
                }
            )
            assert it.get_state()["future_states"] == {2: {"next_index": 2}, 3: {"next_index": 4}}
            assert it._gm_take(3) == expected[:3]
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
        it._gm_take(3)
        before, rest = it.get_state(), of_files([3, 3, 3], 2)[3:]
        wrong = {
            "next_index_in_cycle": (2, -1),
            "next_index_in_datasets": (4, -1),
            "iterators_in_use_indices": (
                [0],
                [0, 1, 2],
                [0, 0],
                [0, 7],
                [0, -1],
                [0, "1"],
                [0, 1.0],
                {0: 0},
            ),
            "iterators_in_use_states": ([{"position": 1}], "ab"),
            "exhausted": ([0], [0, 0, 0], [0, 2], [0, None], "00"),
            "future_states": ([1], {"a": {}}, {1.5: {}}),
        }
        for key, value in [(key, value) for key, values in wrong.items() for value in values]:
            assert_refused(it, StateMismatchError, None, {**before, key: value}, before)
        other = iter(interleave(files([2, 2, 2]), 3)).get_state()
        assert_raises(StateMismatchError, "cycle length", it.set_state, other)
        refused = {**before, "iterators_in_use_states": [{"position": 2}, {}]}  # by a file
        assert_refused(it, KeyError, "position", refused, before)
        assert list(it) == rest

    @each_way
    def test_the_first_state_and_restoring_read_nothing(self, way):
        log = Log()
        ds = interleave(files([3, 3, 3, 3], log), 2, **way)
        it = iter(ds)
        assert log.opened == []
        assert it.get_state() == stored(0, 2, [0, 1], 2 * [{"position": 0}], [0, 0])
        assert log.opened == [0, 1] and log.reads == []
        assert it._gm_take(3) == of_files([3, 3, 3, 3], 2)[:3]
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
        return WithOptionsIterDataset(
            numbers(3000).filter(lambda x: x % 300 == 0), DatasetOptions(**options)
        )

    def test_those_set_downstream_reach_the_datasets(self):
        quiet = DatasetOptions(filter_warn_threshold_ratio=None)
        # which may ask for a state while it is made, or runs in another thread or process
        for stage in (
            lambda ds: ds,
            lambda ds: ds.thread_prefetch(3).window_shuffle(3, seed=1).cache(),
            lambda ds: ds.batch(3).rebatch(2).repeat(2),
            lambda ds: interleave([IterDataset.mix([ds, ds]), numbers(0, 3)], 2),
            lambda ds: ds.multithread_prefetch(2, 2),
            LocalWorkersIterDataset,
        ):
            ds = stage(interleave([self.dropping(), self.dropping()], 2))
            it = iter(
                WithOptionsIterDataset(
                    ds, quiet.merge(DatasetOptions(filter_raise_threshold_ratio=0.95))
                )
            )
            it.get_state()
            assert_raises(ValueError, "filter_raise_threshold_ratio", list, it)
            it.close()
            assert next(iter(WithOptionsIterDataset(ds, quiet))) is not None

    @each_way
    def test_those_of_a_dataset_hold_by_default(self, way, caplog):
        quiet = {"filter_warn_threshold_ratio": None}
        strict = {"filter_raise_threshold_ratio": 0.95}
        ds = interleave(
            [WithOptionsIterDataset(numbers(0, 3000), DatasetOptions(**strict)), self.dropping()],
            2,
            **way,
        )
        it = iter(
            WithOptionsIterDataset(ds, DatasetOptions(**quiet)).filter(lambda x: x % 1000 == 0)
        )
        assert sorted(it) == [0, 0, 1000, 2000] and not caplog.records  # they do not get out
        ds = interleave([self.dropping(**strict, **quiet), numbers(0, 3)], 2, **way)
        for same in (ds, WithOptionsIterDataset(ds, DatasetOptions(min_shm_size=1))):
            assert_raises(ValueError, "filter_raise_threshold_ratio", list, same)
        assert (
            len(list(WithOptionsIterDataset(ds, DatasetOptions(filter_raise_threshold_ratio=None))))
            == 13
        )


@pytest.mark.parametrize(
    "share", [LocalWorkersIterDataset, lambda ds, n: ds.multithread_prefetch(n, 2)]
)
def test_every_worker_has_files_of_its_own(share):
    """The elements do not depend on the number of workers, unlike in Grain. Lists of users have no
    slices.
    """

    class Names(MapDataset):
        def __len__(self):
            return 5

        def __getitem__(self, index):
            drawn = numbers(10 * (index % 5), 10 * (index % 5) + 2).random_map(
                lambda x, rng: (x, rng.integers(10**6)), seed=1
            )
            return drawn.map_with_index(lambda i, x: (i, *x))

    lists = [list(ds) for ds in Names()]
    assert [x[:2] for x in lists[3]] == [(0, 30), (1, 31)]
    for num in (1, 2, 3):
        assert list(share(interleave(Names(), 2), num)) == interleaved(
            [interleaved(lists[i::num], 2) for i in range(num)], num
        )
    assert list(share(interleave([], 4), 2)) == []


def test_lanes_and_threads_begin_from_each_others_states():
    """Also where a share has fewer files than are open at once, so that its own first state is
    shorter.
    """
    ds = interleave([numbers(10 * i, 10 * i + 3) for i in range(4)], 3)
    ways = [ds.mp_prefetch(MultiprocessingOptions(num_lanes=3)), ds.multithread_prefetch(3, 1)]
    for way in ways:
        it, states, elements = iter(way), [], []
        while len(states) == len(elements):
            states.append(it.get_state())
            elements += islice(it, 1)
        for position, state in enumerate(states):
            for other in ways:
                again = iter(other)
                again.set_state(state)
                assert again.get_state() == state
                assert list(again) == elements[position:]


def test_the_index_of_lanes_of_which_one_has_no_file():
    it = iter(interleave([numbers(3)], 1).mp_prefetch(MultiprocessingOptions(num_lanes=2)))
    with pytest.raises(NotImplementedError, match="only an interleave of a single dataset does"):
        gx.get_next_index(it)
    assert list(it) == [0, 1, 2]


def test_processes_in_one_of_the_files():
    """Alone, and in a worker, which then has workers of its own; none is left."""
    starts = MapDataset.source([0, 10])
    ds = interleave(
        starts.map(lambda i: numbers(i, i + 3).mp_prefetch(MultiprocessingOptions(num_workers=1))),
        2,
    )
    assert list(ds) == [0, 10, 1, 11, 2, 12]
    with iter(ds.mp_prefetch(MultiprocessingOptions(num_workers=2))) as it:
        assert list(it) == [0, 10, 1, 11, 2, 12]


def opening(can_open, lengths, cycle_length, way, **file):
    """Files of a lazy list; ``can_open`` fails where one cannot be opened, for a time or
    forever.
    """
    names = MapDataset.range(len(lengths)).map(can_open)
    return interleave(
        names.map(lambda name: File(name, lengths[name], **file)), cycle_length, **way
    )


def outcomes(it, limit=100):
    """Elements and errors, ``limit`` in all."""
    found = []
    for _ in range(limit):
        try:
            found.append(next(it))
        except StopIteration:
            break
        except Boom as error:
            found.append(error)
    return found


def elements(found):
    return [x for x in found if type(x) is not Boom]


class TestErrors:
    @each_way
    def test_a_file_that_can_never_be_opened(self, way):
        lengths = (2, 3, 2, 1)
        for bad in range(4):
            cycle_length = 1 + (bad + WAYS.index(way)) % 4  # in turn
            # as if it were empty
            expected = of_files(
                [0 if name == bad else n for name, n in enumerate(lengths)], cycle_length
            )
            ds = opening(Failing(bad), lengths, cycle_length, way)
            it = iter(ds)
            it.start_prefetch()  # leaves the error to its turn
            found = outcomes(it, limit=len(expected) + 3)
            k = len(elements(found))
            assert found[:k] == expected[:k] and {error.args for error in found[k:]} == {(bad,)}
            before = it.get_state()
            fails(it, Boom)
            assert it.get_state() == before
            it.skip_failed()
            assert_raises(ValueError, "nothing to skip", it.skip_failed)
            states = [it.get_state()]
            for x in expected[k:]:
                assert next(it) == x
                states.append(it.get_state())
            assert next(it, "end") == "end"
            for i, state in enumerate(states, k):  # also after it the file is not opened
                for again in (it, iter(ds)):
                    again.set_state(through_json(state))
                    assert list(again) == expected[i:]

    @each_way
    def test_a_file_that_heals(self, way):
        """A file that can be opened between an error and ``skip_failed`` does not hide that
        error.
        """
        it = iter(opening(Failing(1, times=3), [2, 2, 2], 3, way, check=Failing((0, 0))))
        assert [error.args for error in outcomes(it, limit=4)] == 4 * [((0, 0),)]
        it.skip_failed()
        assert elements(outcomes(it)) == of_files([2, 2, 2], 3)[1:]
        can_open = Failing(1, times=100)
        it = iter(opening(can_open, [2, 2], 2, WAYS[0]))
        assert next(it) == (0, 0)
        for _ in range(3):  # one attempt for every ``next``
            before = can_open.left[1]
            fails(it, Boom)
            it.get_state()
            it.start_prefetch()
            assert can_open.left[1] == before - 1

    @each_way
    def test_going_back_after_an_error_opens_nothing(self, way):
        """A batch that failed has to be restarted; files that cannot be opened again just then must
        not make that fail.
        """
        opened = Counter()

        def can_open(name):
            opened[name] += 1
            if 2 <= opened[name] <= 4:
                raise Boom("opening again")
            return name

        it = iter(
            opening(can_open, [6, 6], 2, way, check=Failing((1, 3), times=2)).batch(
                5, batch_fn=list
            )
        )
        expected = of_files([6, 6], 2)
        assert elements(outcomes(it)) == [expected[:5], expected[5:10], expected[10:]]

    def test_an_interrupt_of_get_state_and_start_prefetch(self):
        it = iter(opening(Failing(1, times=2, error=KeyboardInterrupt), [2, 2, 2], 2, {}))
        for use in (it.get_state, it.start_prefetch):
            assert_raises(KeyboardInterrupt, None, use)
        assert it.get_state() == stored(0, 2, [0, 1], 2 * [{"position": 0}], [0, 0])
        assert list(it) == of_files([2, 2, 2], 2)


class TestResources:
    @each_way
    def test_how_many_files_are_open(self, way):
        lengths = (1, 2, 0, 3, 1, 1, 2, 5, 0, 0, 4, 1)
        for size in (1, 4, 100):
            log, got = Log(), []
            it = iter(interleave(files(lengths, log), 3, **way))
            while block := it._gm_take(size):
                got += block
            assert got == of_files(lengths, 3)
            # Threads that open at the same time may do so in any order.
            opened = sorted(log.opened) if way.get("num_make_iter_threads", 1) > 1 else log.opened
            assert opened == list(range(12))
            assert log.most_open <= 3 + way.get("make_iter_buffer_size", 1)
            wait_until(lambda log=log: log.num_open == 0)
            assert sorted(log.closed) == list(range(12))
        log = Log()
        assert list(interleave(files([1, 2, 1], log), 2, **way).repeat(3)) == 3 * of_files(
            [1, 2, 1], 2
        )
        wait_until(lambda: log.num_open == 0)
        assert Counter(log.opened) == {0: 3, 1: 3, 2: 3}  # those of each epoch once
        assert log.most_open <= 2 + way.get("make_iter_buffer_size", 1)

    def test_files_are_closed_when_they_have_ended(self):
        log, readers = Log(), []

        class Kept(File):
            def __iter__(self):
                readers.append(Reader(self))  # so that nothing but ``close`` closes it
                return readers[-1]

        ds = interleave([Kept(name, n, log) for name, n in enumerate([1, 3, 1])], 2, **WAYS[0])
        it = iter(ds)
        assert [next(it), next(it)] == [(0, 0), (1, 0)] and log.closed == []
        # the slot of an ended one is filled at the next visit
        assert next(it) == (1, 1) and log.closed == [0]
        assert next(it) == (2, 0) and log.num_open == 2
        assert list(it) == [(1, 2)] and log.closed == [0, 2, 1]
        it = iter(ds)
        it._gm_take(2)
        it.close()
        assert {*log.closed[3:]} == {0, 1}

    @pytest.mark.parametrize("ending", ["close", "drop", "circle", "restore"])
    def test_nothing_is_left(self, ending):
        for num, way in [(0, WAYS[3]), (1, WAYS[0]), (5, WAYS[1]), (1, WAYS[2]), (5, WAYS[3])]:
            log = Log()
            it = iter(interleave(MapDataset.source(files([3] * 30, log)), 3, **way))
            it.start_prefetch()
            it._gm_take(num)
            if ending == "close":
                it.close()
            elif ending == "circle":
                it.circle = it
            elif ending == "restore":
                it.set_state(it.get_state())
            ref = weakref.ref(it)
            del it
            if ending == "circle":
                gc.collect()
            assert ref() is None
            wait_until(lambda log=log: log.num_open == 0 and not working())

    def test_closing_in_the_middle_of_opening(self):
        """The pool's thread is in user code when the iterator is closed: what it opens then is
        closed too.
        """
        log, gate = Log(), Gate(2)
        it = iter(opening(gate, [2] * 9, 2, {}, log=log))
        assert [next(it), next(it)] == [(0, 0), (1, 0)]
        wait_until(lambda: gate.num_busy)
        it.close()
        gate.open.set()
        wait_until(lambda: log.num_open == 0 and not working())

    def test_files_work_ahead_of_their_turn(self):
        """After ``start_prefetch`` all of the cycle, and after a restore, as soon as there is
        something to do.
        """
        log = Log()
        it = iter(interleave(files([4] * 9, log), 3, iter_buffer_size=2))
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
        # with the usual check, a missed signal would not be noticed
        monkeypatch.setattr(budget, "_ANEW_SECONDS", 3600.0)
        opened = threading.Semaphore(0)
        it = iter(opening(lambda name: opened.release() or name, [2] * 9, 1, {}))
        for num in range(1, 5):
            assert next(it) == (num - 1, 0)
            for _ in range(2 if num == 1 else 1):
                assert opened.acquire(timeout=PATIENCE_SECONDS)
            assert next(it) == (num - 1, 1)
            assert not opened.acquire(blocking=False)  # but no more than one
        it.close()
