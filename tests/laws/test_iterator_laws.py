"""Laws of iterator stages: blocks are not observable, states restore anywhere, wrong ones change
nothing, nor does a worker.
"""

import contextlib
import copy
import gc
import random
from functools import partial, reduce
from operator import getitem

import pytest
from entry import plain, run, through_json
from interrupting import interrupted_where_handlers_run
from iter_entries import twins
from local_workers import LocalWorkersIterDataset, ResizedIterDataset, through_pickle
from new_seed import SEED
from refusing import assert_raises
from stage_table import ITER_ENTRIES, LOCAL_WORKERS, STREAMS, WITH_PROCESSES

from gristmill import MultiprocessingOptions, explain
from gristmill.core.errors import StateIndexError, StateKeyError, StateMismatchError
from gristmill.dataset.bases.node import ancestors
from gristmill.experimental import DatasetOptions, WithOptionsIterDataset
from gristmill.testing import assert_iter_dataset_conforms
from gristmill.testing.laws import spread
from gristmill.workers.protocol import Quarantine

each_entry = pytest.mark.parametrize("entry", STREAMS, ids=lambda entry: entry.name)


def record(ds):
    """All elements, the states before, between and after them, and the state of the exhausted
    iterator.
    """
    it = iter(ds)
    first = it.get_state()
    elements, states = run(it)
    return elements, [first, *states], it.get_state()


def started(it):
    it.start_prefetch()
    return next(it)


@each_entry
def test_elements_are_the_expected_ones_and_the_end_is_the_end(entry):
    ds, expected = entry.make(), [plain(x) for x in entry.expected]
    for step in (next, started):  # a data set can be iterated again
        it = iter(ds)
        assert iter(it) is it
        assert [plain(step(it)) for _ in expected] == expected
        for _ in range(3):
            assert_raises(StopIteration, None, step, it)
    assert [plain(x) for x in ds] == expected


@each_entry
def test_the_budget_is_not_observable(entry):
    """Not with one thread and no memory, nor with two or many."""
    expected = record(entry.make())
    for num_threads in (1, 2, 16):
        options = DatasetOptions(max_threads=num_threads, max_bytes_ahead=num_threads**4)
        elements, *states = record(WithOptionsIterDataset(entry.make(), options))
        assert elements == expected[0]
        assert entry.states_vary or states == [*expected[1:]]


# of those without elements there is little to say
CONFORMING = [entry for entry in STREAMS if len(entry.expected)]


@pytest.mark.parametrize(
    "entry", [x for x in CONFORMING if x.name not in WITH_PROCESSES], ids=lambda entry: entry.name
)
def test_it_conforms(entry):
    """Ends, threads and copies; states that are JSON, aliases and wrong; restoring, closing,
    reading ahead, batches.
    """
    assert_iter_dataset_conforms(entry.make(), max_elements=11, states_vary=bool(entry.states_vary))


@pytest.mark.slow
def test_it_conforms_with_processes():
    (entry,) = [entry for entry in CONFORMING if entry.name == "mp_prefetch"]
    assert_iter_dataset_conforms(entry.make(), max_elements=2)


# Workers that are no threads or processes would be interrupted, too.
INTERRUPTED = [x for x in STREAMS if x.name not in (*WITH_PROCESSES, *LOCAL_WORKERS)]


@pytest.fixture
def without_collector():
    gc.disable()  # an interrupt of a finalizer is printed, not raised
    yield
    gc.enable()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("entry", INTERRUPTED, ids=lambda entry: entry.name)
def test_an_interrupt_leaves_one_of_two_positions(entry, without_collector):
    ds, rng = entry.make(), random.Random(f"{SEED} {entry.name}")
    elements, states = run(iter(ds), 61)  # at most 52 + 9 are looked at
    states.insert(0, iter(ds).get_state())
    for _ in range(4):
        it = iter(ds)
        start, target = rng.choices(range(min(len(states), 50)), k=2)
        it.set_state(states[start])
        at = min(start + len(run(it, rng.randrange(3))[0]), len(elements))
        if rng.random() < 0.5:
            target, move = min(at + 1, len(elements)), partial(next, it, None)
        else:
            move = partial(it.set_state, states[target])
        number = int(10 ** rng.uniform(0, 3))
        was_interrupted = interrupted_where_handlers_run(move, number)
        again = iter(ds)
        again.set_state(it.get_state())
        following = run(it, 9)[0]
        assert run(again, 9)[0] == following
        positions = {at, target} if was_interrupted else {target}
        assert following in [elements[i : i + 9] for i in positions], (start, at, target, number)


@each_entry
def test_block_size_is_not_observable(entry):
    ds = entry.make()
    elements, states, end = record(ds)
    rng = random.Random(1)
    for trial in (0, 1, 2, 6, 7):
        it, position = iter(ds), 0
        while position < len(elements):
            n = min(trial + 1 if trial < 6 else rng.randint(1, 5), len(elements) - position)
            assert [plain(x) for x in it._gm_take(n)] == elements[position : position + n]
            position += n
            assert it.get_state() == states[position]
        assert it._gm_take(trial + 1) == []
        assert it.get_state() == end
    it = iter(ds)
    assert [plain(x) for x in it._gm_take(len(elements) + 5)] == elements
    assert it.get_state() == end


@each_entry
def test_states_restore_at_every_position(entry):
    ds = entry.make()
    elements, states, end = record(ds)
    states = [through_json(state) for state in states]
    used, exhausted = iter(ds), iter(ds)
    run(used, 3)
    run(exhausted)
    positions = spread(len(states), 12)
    for position, later_one in [
        *[(i, exhausted) for i in positions],
        *[(i, iter(ds)) for i in positions[::-2]],
    ]:
        for it in (used, later_one):
            for state in (states[position], {**states[position], "unknown": [1, 2]}):
                it.set_state(state)
                assert it.get_state() == states[position]
            got, after = run(it)
            assert got == elements[position:]
            if entry.states_vary == "always" or (entry.states_vary and it in (used, exhausted)):
                for later, state in enumerate([*after, it.get_state()], position + 1):
                    again = iter(ds)
                    again.set_state(through_json(state))
                    assert run(again)[0] == elements[later:]
            else:
                assert after == states[position + 1 :]
                assert it.get_state() == end
            it.set_state(through_json(end))
            assert_raises(StopIteration, None, next, it)
            if it is used:
                it.set_state(states[position])
                assert run(it, 2)[0] == elements[position : position + 2]


def without_records(state):
    """Return a state without records of choices."""
    if isinstance(state, dict):
        return {key: without_records(value) for key, value in state.items() if key != "choices"}
    return [*map(without_records, state)] if isinstance(state, list) else state


def test_the_first_state_needs_no_records_of_choices():
    """States of Grain have none. In a lane, an interleave begins with fewer datasets than in the
    whole pipeline.
    """
    windows = twins().window_shuffle(3, seed=1)
    for ds in (windows, windows.mp_prefetch(MultiprocessingOptions(num_lanes=2))):
        elements, (start, *_), _ = record(ds)
        it = iter(ds)
        run(it, 2)
        it.set_state(without_records(start))
        assert run(it)[0] == elements


def paths(state, path=()):
    for key, value in state.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from paths(value, (*path, key))


def changed(state, path, *value):
    """A copy of ``state`` with another value at ``path``, or without the key if there is none."""
    state = copy.deepcopy(state)
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    del inner[path[-1]]
    if value:
        (inner[path[-1]],) = value
    return state


@each_entry
def test_wrong_states_are_refused_and_change_nothing(entry):
    ds = entry.make()
    elements, (start, *_), end = record(ds)
    it = iter(ds)
    run(it, 2)
    before = it.get_state()
    wrong = [
        (state, StateMismatchError)
        for state in (None, 3, "next_index", [], {}, [start], {"other": 1})
    ]
    for path in paths(end):
        # Old states do not have the ones; the others are components with names, which may be new.
        is_optional = path[-1] in ("future_states", "proportions", "choices", "from_choices")
        # A reader of map datasets computes it from next_index, and refuses another one.
        is_optional |= path[-1] == "tried" and isinstance(reduce(getitem, path, end), list)
        if not is_optional and path[-2:-1] not in (
            ("parents",),
            ("proportions",),
            ("counts",),
            ("choices",),
        ):
            wrong.append((changed(end, path), StateKeyError))
        states = [changed(end, path, value) for value in (None, "3", -1, [1], 1.5)]
        wrong += [(state, StateMismatchError) for state in states if state != end]
        if path[-1] == "next_index":
            wrong += [(changed(end, path, value), StateIndexError) for value in (-1, 10**6)]
    for state, error in wrong:
        with pytest.raises(error) as caught:
            it.set_state(state)
        assert isinstance(caught.value, ValueError)
        assert it.get_state() == before
    assert run(it)[0] == elements[2:]
    for state, error in wrong[:3]:  # also at the end
        assert_raises(error, None, it.set_state, state)
        assert it.get_state() == end
        assert_raises(StopIteration, None, next, it)


@each_entry
def test_closing(entry):
    ds = entry.make()
    for before in (2, 100):
        it = iter(ds)
        run(it, before)
        state = it.get_state()
        it.close()
        it.close()
        with contextlib.suppress(ValueError):  # as a thread prefetch says that it is closed
            it.start_prefetch()
        assert_raises(ValueError, "closed", next, it)
        assert it.get_state() == state
        again = iter(ds)
        again.set_state(state)
        assert run(again)[0] == [plain(x) for x in entry.expected[before:]]


def has_workers(entry):
    try:
        ds = entry.make()
    except ModuleNotFoundError:  # its tests report it
        return False
    return any(
        ds._gm_starts_workers or isinstance(ds, LocalWorkersIterDataset) for ds in ancestors(ds)
    )


# workers do not start workers
ENTRIES = [entry for entry in ITER_ENTRIES if not has_workers(entry)]


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_elements_and_states_are_those_of_the_pipeline(entry):
    alone, worker = iter(entry.make()), iter(LocalWorkersIterDataset(entry.make()))
    state, (elements, states) = alone.get_state(), run(alone)
    assert worker.get_state()["iterators_in_use_states"] == [state]
    by_worker, worker_states = run(worker)
    # After a death, too, when there is one output at a time, and nothing ahead.
    carefully, careful_states = run(
        iter(LocalWorkersIterDataset(entry.make(), quarantine=Quarantine()))
    )
    assert carefully == by_worker == elements
    if not entry.states_vary:
        assert [state["iterators_in_use_states"] for state in worker_states] == [
            [state] for state in states
        ]
        assert careful_states == worker_states


LANES = {
    "none": lambda ds: ds.mp_prefetch(MultiprocessingOptions(num_workers=0, num_lanes=3)),
    "two": lambda ds: LocalWorkersIterDataset(ds, 2, num_lanes=3),
    "careful": lambda ds: LocalWorkersIterDataset(ds, 1, quarantine=Quarantine(), num_lanes=3),
    "threads": lambda ds: ds.mp_prefetch(
        MultiprocessingOptions(num_workers=2, num_lanes=3, executor="threads")
    ),
    "resized": lambda ds: ResizedIterDataset(ds, 2, num_lanes=3),
}


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_who_computes_the_lanes_is_not_observable(entry):
    def trace(lanes, state=None):
        elements, states = [], []
        try:
            it = iter(lanes(entry.make()))
            if state is not None:
                it.set_state(state)
            for x in it:
                elements.append((plain(x), it.faults().total, it.faults().tried))
                states.append(None if entry.states_vary else it.get_state())
        except ValueError as error:
            return elements, states, str(error)
        return elements, states, None

    def lineage(lanes):
        with contextlib.suppress(ValueError, NotImplementedError):
            it = iter(lanes(entry.make()))
            run(it, 3)
            return str(explain(it))

    # Workers without lanes compute the same, unless mixtures have lanes of their own.
    is_mixed = any(
        node._gm_is_mixed_in_lanes or node._gm_changes_in_lanes for node in ancestors(entry.make())
    )
    by_three = trace(lambda ds: LocalWorkersIterDataset(ds, 3, num_lanes=3 if is_mixed else None))
    elements, states, error = by_three
    for lanes in LANES.values():
        assert trace(lanes) == by_three
    assert lineage(LANES["resized"]) == lineage(LANES["none"])
    for position, state in enumerate(states):
        if state is not None and position % 2:
            lanes = [*LANES.values()][position % len(LANES)]
            assert trace(lanes, state) == (elements[position + 1 :], states[position + 1 :], error)


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_skipped_elements_do_not_depend_on_the_way_there(entry):
    """A worker is asked to skip the next output by its state alone, or as its first output."""
    ds = entry.make()
    states = [iter(ds).get_state(), *run(iter(ds))[1]]
    for position in spread(len(states) - 1, 7):
        state, used = states[position], iter(ds)
        run(used)
        outcomes = []
        for it in (iter(ds), iter(ds), used):
            if outcomes:
                it.set_state(through_pickle(state))
            else:
                run(it, position)
            it._gm_skip()
            after = it.get_state()
            elements, later = run(it)
            outcomes.append((elements, None if entry.states_vary else [after, *later]))
        assert outcomes[1:] == outcomes[:1] * 2
