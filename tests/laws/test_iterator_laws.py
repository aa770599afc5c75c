"""Laws of iterator stages: blocks are not observable, states restore anywhere, wrong states change nothing."""

import contextlib
import copy
import json
import random

import pytest
from entry import plain
from stage_table import ITER_ENTRIES, MAP_ENTRIES

from gristmill.core.errors import StateIndexError, StateKeyError, StateMismatchError

ENTRIES = [
    *[pytest.param(entry.make, entry.expected, id=entry.name) for entry in ITER_ENTRIES],
    *[
        pytest.param(
            lambda entry=entry: entry.make().to_iter_dataset(),
            [x for x in map(entry.model, range(entry.length)) if x is not None],
            id=f"map_{entry.name}",
        )
        for entry in MAP_ENTRIES
    ],
]
VARYING = {entry.name for entry in ITER_ENTRIES if entry.states_vary}
each_entry = pytest.mark.parametrize(("make", "expected"), ENTRIES)


def run(it, limit=10**6):
    """The next elements of ``it``, comparable, and the state after each."""
    elements, states = [], []
    while len(elements) < limit:
        try:
            elements.append(plain(next(it)))
        except StopIteration:
            break
        states.append(it.get_state())
    return elements, states


def record(make):
    """All elements, the states before, between and after them, and the state of the exhausted iterator."""
    it = iter(make())
    first = it.get_state()
    elements, states = run(it)
    return elements, [first, *states], it.get_state()


def through_json(state):
    text = json.dumps(state)
    assert len(text) < 1000
    return json.loads(text)


@each_entry
def test_elements_are_the_expected_ones_and_the_end_is_the_end(make, expected):
    ds = make()
    for _ in range(2):  # a data set can be iterated again
        it = iter(ds)
        assert iter(it) is it
        assert run(it)[0] == [plain(x) for x in expected]
        for _ in range(3):
            with pytest.raises(StopIteration):
                next(it)
    assert [plain(x) for x in ds] == [plain(x) for x in expected]


@each_entry
def test_block_size_is_not_observable(make, expected):
    elements, states, end = record(make)
    rng = random.Random(1)
    for trial in range(12):
        it, position = iter(make()), 0
        while position < len(elements):
            n = trial + 1 if trial < 6 else rng.randint(1, 5)
            n = min(n, len(elements) - position)
            assert [plain(x) for x in it._take(n)] == elements[position : position + n]
            position += n
            assert it.get_state() == states[position]
        assert it._take(trial + 1) == []
        assert it.get_state() == end
    it = iter(make())
    assert [plain(x) for x in it._take(len(elements) + 5)] == elements
    assert it.get_state() == end


@each_entry
def test_state_round_trip_at_every_position(make, expected, request):
    varies = request.node.callspec.id in VARYING
    elements, states, end = record(make)
    states = [through_json(state) for state in states]
    used, exhausted = iter(make()), iter(make())
    run(used, 3)
    run(exhausted)
    for position in [*range(len(states)), *reversed(range(len(states)))]:
        for it in (iter(make()), used, exhausted):
            for _ in range(2):
                it.set_state(states[position])
                assert it.get_state() == states[position]
            it.set_state(through_json(it.get_state()))
            got, after = run(it)
            assert got == elements[position:]
            if varies and it in (used, exhausted):
                for later, state in enumerate([*after, it.get_state()], position + 1):
                    again = iter(make())
                    again.set_state(through_json(state))
                    assert run(again)[0] == elements[later:]
            else:
                assert after == states[position + 1 :]
                assert it.get_state() == end
            it.set_state(through_json(end))
            with pytest.raises(StopIteration):
                next(it)
            it.set_state(states[position])
            assert run(it, 2)[0] == elements[position : position + 2]


@each_entry
def test_state_outlives_its_iterator(make, expected):
    elements, _, _ = record(make)
    it = iter(make())
    run(it, 2)
    state = it.get_state()
    it.close()
    assert it.get_state() == state
    del it
    again = iter(make())
    again.set_state(state)
    assert run(again)[0] == elements[2:]


@each_entry
def test_states_are_independent_of_the_iterator(make, expected):
    it = iter(make())
    taken = []
    while True:
        taken.append((state := it.get_state(), copy.deepcopy(state)))
        if not run(it, 1)[0]:
            break
    assert all(state == before for state, before in taken)
    given = copy.deepcopy(taken[0][0])
    it.set_state(given)
    run(it)
    assert given == taken[0][0]
    it.set_state(given)
    spoil(given)
    assert it.get_state() == taken[0][0]
    spoil(it.get_state())
    assert it.get_state() == taken[0][0]
    assert run(it)[0] == [plain(x) for x in expected]


def spoil(state):
    for key, value in list(state.items()):
        if isinstance(value, dict):
            spoil(value)
        state[key] = 999


def paths(state, path=()):
    for key, value in state.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from paths(value, (*path, key))


def changed(state, path, value):
    """A copy of ``state`` with another value at ``path``, or without the key if ``value`` is ``del``."""
    state = copy.deepcopy(state)
    inner = state
    for key in path[:-1]:
        inner = inner[key]
    if value == "del":
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    return state


@each_entry
def test_wrong_states_are_refused_and_change_nothing(make, expected):
    elements, (start, *_), end = record(make)
    it = iter(make())
    run(it, 2)
    before = it.get_state()
    wrong = [(state, StateMismatchError) for state in (None, 3, "next_index", [], {}, [start], {"other": 1})]
    for path in paths(end):
        # Old states do not have the ones; the others are components with names, which may be new.
        if path[-1] not in ("future_states", "proportions") and path[-2:-1] not in (("parents",), ("proportions",)):
            wrong.append((changed(end, path, "del"), StateKeyError))
        values = [value for value in (None, "3", -1, [1], 1.5) if changed(end, path, value) != end]
        wrong += [(changed(end, path, value), StateMismatchError) for value in values]
        if path[-1] == "next_index":
            wrong += [(changed(end, path, value), StateIndexError) for value in (-1, 10**6)]
    for state, error in wrong:
        with pytest.raises(error) as caught:
            it.set_state(state)
        assert isinstance(caught.value, ValueError)
        assert it.get_state() == before
    assert run(it)[0] == elements[2:]
    for state, error in wrong[:3]:  # also at the end
        with pytest.raises(error):
            it.set_state(state)
        assert it.get_state() == end
        with pytest.raises(StopIteration):
            next(it)


@each_entry
def test_unknown_keys_are_ignored(make, expected):
    elements, states, _ = record(make)
    it = iter(make())
    it.set_state({**states[min(1, len(elements))], "unknown": [1, 2]})
    assert run(it)[0] == elements[1:]


def test_a_state_of_another_stage_is_refused():
    shapes = {entry.name: entry for entry in ITER_ENTRIES if entry.name in ("direct", "map_with_index", "random_map", "chain")}
    for giver in shapes.values():
        for taker in shapes.values():
            if giver is taker:
                continue
            it = iter(taker.make())
            run(it, 1)
            before = it.get_state()
            with pytest.raises(StateKeyError):
                it.set_state(iter(giver.make()).get_state())
            assert it.get_state() == before
            assert run(it)[0] == [plain(x) for x in taker.expected[1:]]


@each_entry
def test_closing(make, expected):
    for before in (0, 2, 100):
        it = iter(make())
        run(it, before)
        state = it.get_state()
        it.close()
        it.close()
        with contextlib.suppress(ValueError):  # as a thread prefetch says that it is closed
            it.start_prefetch()
        with pytest.raises(ValueError, match="closed"):
            next(it)
        assert it.get_state() == state


@each_entry
def test_start_prefetch_changes_nothing(make, expected):
    it = iter(make())
    state = it.get_state()
    it.start_prefetch()
    assert it.get_state() == state
    got = []
    for _ in range(len(expected)):
        it.start_prefetch()
        got.append(plain(next(it)))
    assert got == [plain(x) for x in expected]
    it.start_prefetch()
    with pytest.raises(StopIteration):
        next(it)
