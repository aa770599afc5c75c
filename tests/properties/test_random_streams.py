"""Random trees of stream stages deliver what plain generators say, after any operations on their
iterators.
"""

import itertools
import json
from functools import partial
from itertools import islice

import cloudpickle
import list_model
import pytest
import stream_model
from hypothesis import HealthCheck, Phase, assume, example, given, seed, settings
from hypothesis import strategies as st
from list_model import FAILED, Boom
from new_seed import SEED
from refusing import assert_raises
from stream_model import (
    TROUBLE,
    Endless,
    Interrupt,
    Transient,
    build,
    failing_chains,
    failing_trees,
    frozen,
    names,
    outcomes,
    spoil,
    trees,
)

from gristmill import experimental as gx
from gristmill.dataset.descriptions.pipeline import describe
from gristmill.dataset.engine.iterators import StreamIterator

pytestmark = [  # of shares, which streams that are drawn may have
    pytest.mark.filterwarnings("ignore:.*takes every n-th element"),
    pytest.mark.filterwarnings("ignore:.*takes a part of shuffled elements"),
]

ELSEWHERE = ["local_workers", "workers", "lanes", "local_lanes", "in_order", "threads", "prefetch"]
LIMIT = 50  # outcomes that are looked at
BUDGETS = [
    gx.DatasetOptions(),
    *[gx.DatasetOptions(max_threads=num, max_bytes_ahead=num * 200) for num in (1, 2, 16)],
]
ANYHOW = {
    "deadline": None,
    "suppress_health_check": [
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
        HealthCheck.data_too_large,
    ],
    # explaining takes minutes
    "phases": [Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
}
QUICK = settings(max_examples=140, derandomize=True, **ANYHOW)
THOROUGH = settings(max_examples=200, print_blob=True, **ANYHOW)  # with other examples every time


class Run:
    """An iterator of a tree, and where it must be."""

    def __init__(self, tree):
        try:
            self.outcomes = list(itertools.islice(outcomes(tree), LIMIT + 1))
        except Endless:
            assume(False)
        self.is_whole = len(self.outcomes) <= LIMIT
        self.names = names(tree)
        # a zip that is not strict and has ended
        if {"zip", "fail"} <= self.names and not self.names.isdisjoint(ELSEWHERE):
            # asks those again that had not, where its place is restored after the failed element
            assume(False)
        self.has_gaps = has_gaps(tree)
        # A cache skips the same elements in later epochs, a user's iterator does not know how to
        # skip.
        self.can_skip = self.names.isdisjoint(["cache", "user"])
        self.states_vary = has_lazy_interleave(tree)  # with which datasets could be opened so far
        self.ds = gx.WithOptionsIterDataset(build(tree), BUDGETS[len(repr(tree)) % len(BUDGETS)])
        self.it = iter(self.ds)
        self.old = []
        self.position = 0
        self.is_failed = False
        self.saved = [(json.dumps(self.it.get_state()), 0)]

    def next(self):
        """One ``next``, again and again as long as it fails only once; false where this stays."""
        if self.position >= LIMIT:
            return False
        for _ in range(3):
            before = self.state()
            try:
                x = next(self.it)
            except StopIteration:
                assert self.position == len(self.outcomes)
                return False
            except (Transient, Interrupt):
                assert self.state() == before
                if not self.names.isdisjoint(
                    ["threads", "local_workers", "in_order"]
                ):  # an error stays
                    self.it.set_state(self.it.get_state())
            except (Boom, ValueError) as error:
                assert type(error) is Boom or "ZipIterDataset argument" in str(error)
                assert self.outcomes[self.position] is FAILED
                assert self.state() == before
                self.is_failed = True
                return False
            else:
                self.passed([x])
                return True
        raise AssertionError("it fails more than once")

    def passed(self, elements):
        stop = self.position + len(elements)
        assert frozen(elements) == tuple(self.outcomes[self.position : stop])
        self.position = stop
        self.is_failed = False
        for x in elements:
            spoil(x)

    def state(self):
        return None if self.states_vary else json.dumps(self.it.get_state())

    def take(self, n):
        n = min(n, LIMIT - self.position)
        before = self.it.get_state()
        is_ours = isinstance(self.it, StreamIterator)
        try:
            elements = self.it._gm_take(n) if is_ours else list(islice(self.it, n))
        except (Boom, ValueError, Transient, Interrupt):
            if not is_ours:
                twice_if_transient(partial(self.it.set_state, before))
            assert self.states_vary or self.it.get_state() == before
            self.is_failed = False
            return
        assert len(elements) == n or self.position + len(elements) == len(self.outcomes)
        assert len(elements) <= n
        self.passed(elements)

    def skip(self):
        if self.is_failed and self.can_skip:
            TROUBLE.arm(0, Transient)
            self.it.skip_failed()
            self.position += 1
            self.is_failed = False

    def save(self):
        state = self.it.get_state()
        self.saved.append((json.dumps(state), self.position))
        spoil_state(state)
        assert self.states_vary or self.state() == self.saved[-1][0]

    def restore(self, number):
        text, self.position = self.saved[number % len(self.saved)]
        state = json.loads(text)
        twice_if_transient(partial(self.it.set_state, state))
        self.is_failed = False
        spoil_state(state)
        assert self.states_vary or self.state() == text

    def restart(self, number):
        self.old.append(self.it)
        self.it = iter(self.ds)
        self.restore(number)

    def close(self, number):
        before = self.state()
        self.it.close()
        assert_raises(ValueError, "closed", next, self.it)
        assert self.state() == before
        self.restart(number)

    def damage(self, number, value):
        """A state that is not one is refused, or leads somewhere, but never half applied."""
        if "user" in self.names:  # which may apply half of it
            return
        TROUBLE.arm(0, Transient)
        before = json.dumps(self.it.get_state())
        state = json.loads(before)
        places = list(containers_of(state))
        container, key = places[number % len(places)]
        if value == "missing":
            del container[key]
        else:
            container[key] = value
        try:
            self.it.set_state(state)
        except ValueError:
            assert self.state() in (None, before)
        else:
            self.it.set_state(json.loads(before))
            self.is_failed = False

    def jump(self, index):
        TROUBLE.arm(0, Transient)
        before = self.state()
        try:
            position = gx.get_next_index(self.it)
            if self.it._gm_has_gaps() or self.has_gaps:
                return
            assert position == self.position
            gx.set_next_index(self.it, index)
        except NotImplementedError:
            assert self.state() == before
        except IndexError:
            assert not self.is_whole or index > len(self.outcomes)
            assert self.state() == before
        else:
            assert index <= len(self.outcomes)
            assert gx.get_next_index(self.it) == index
            self.position, self.is_failed = index, False

    def start_prefetch(self):
        self.it.start_prefetch()

    def arm(self, *args):
        TROUBLE.arm(*args)

    def describe(self):
        before = self.state()
        json.dumps(describe(self.it))
        assert str(self.it) and str(self.ds)
        assert self.state() == before

    def finish(self):
        TROUBLE.arm(0, Transient)
        for _ in range(2 * LIMIT):
            if not self.next():
                if not (self.is_failed and self.can_skip):
                    break
                self.skip()
        end = self.state()
        if self.position < LIMIT and not self.is_failed:
            assert self.position == len(self.outcomes)
            for _ in range(2):
                assert_raises(StopIteration, None, next, self.it)
            # a zip that is not strict asks those again that had not ended
            if not ({"zip", "fail"} <= self.names):
                it = iter(self.ds)
                it.set_state(json.loads(json.dumps(self.it.get_state())))
                assert_raises(StopIteration, None, next, it)
                it.close()
        assert self.state() == end or self.is_failed
        for it in (self.it, *self.old):
            it.close()


def twice_if_transient(go):
    try:
        go()
    except Transient:  # a dataset could not be opened
        go()


def has_lazy_interleave(tree):
    return (tree[0] == "interleave" and tree[1][-1]) or any(map(has_lazy_interleave, tree[2]))


def has_gaps(tree):
    """True if a source has missing elements, at indices that cannot be known beforehand."""
    return (
        tree[0] == "source" and any(step[0] in ("remove", "filter") for step in tree[1][1])
    ) or any(map(has_gaps, tree[2]))


def spoil_state(state):
    if isinstance(state, dict | list):
        for value in state.values() if isinstance(state, dict) else state:
            spoil_state(value)
        state.clear()


def containers_of(state):
    items = list(state.items() if isinstance(state, dict) else enumerate(state))
    for key, value in items:
        yield state, key
        if isinstance(value, dict | list):
            yield from containers_of(value)


numbers, blocks = st.integers(0, 9), st.integers(1, 12)
kinds = st.sampled_from([Transient, Interrupt])


def _operation(name, *args):
    return st.tuples(st.just(name), *args)


_simple = [_operation(name) for name in ("next", "skip", "save", "start_prefetch")]
_simple += [_operation("take", blocks), _operation("restore", numbers)]
few_operations = st.lists(st.one_of(*_simple), max_size=6)
_damages = st.sampled_from([None, -1, 3, 10**9, "x", [], {}, "missing"])
_others = [_operation(name, numbers) for name in ("restart", "close", "jump")]
_others += [_operation("next"), _operation("take", blocks), _operation("describe")]
_others += [_operation("arm", st.integers(1, most), kinds) for most in (6, 25)]
operations = st.lists(
    st.one_of(*_simple, *_others, _operation("damage", st.integers(0, 99), _damages)), max_size=25
)


def check(tree, num_workers, script):
    TROUBLE.arm(0, Transient)
    run = Run(("local_workers", (num_workers,), (tree,)) if num_workers else tree)
    for name, *args in script:
        getattr(run, name)(*args)
    run.finish()


TWO_FILES = ("interleave", (1, 0, 0, 0, False), (("source", (3, [], (1, 1), False), ()),) * 2)
LISTED = ("interleave", (1, 0, 0, 0, True), (("source", (12, [], (0, 0), False), ()),))


@pytest.mark.timeout(300)
@QUICK
# the beginning, while nothing can be opened
@example(LISTED, 2, [("arm", 1, Transient), ("restore", 0)])
# members that a live run has are closed when a state is set
@example(("cache", (), (("double", (), (TWO_FILES,)),)), 0, [("next",)] * 4 + [("restore", 0)])
@given(trees | failing_trees, st.sampled_from([0, 0, 0, 1]), operations)
def test_streams(tree, num_workers, script):
    check(tree, num_workers, script)


@pytest.mark.timeout(300)
@settings(QUICK, max_examples=80)
@given(failing_chains, st.integers(1, 3), operations)
def test_streams_in_order(tree, num_workers, script):
    check(("in_order", (num_workers,), (tree,)), 0, script)


@pytest.mark.slow
@pytest.mark.timeout(900)  # an example that fails is made smaller
@seed(SEED)
@THOROUGH
@given(trees | failing_trees, st.sampled_from([0, 0, 1, 2]), operations)
def test_many_streams(tree, num_workers, script):
    check(tree, num_workers, script)


@pytest.fixture(scope="module")
def model_in_workers():
    """The modules of the tests are sent along: workers need not import what they import."""
    for module in (list_model, stream_model):
        cloudpickle.register_pickle_by_value(module)
    yield
    for module in (list_model, stream_model):
        cloudpickle.unregister_pickle_by_value(module)


def check_workers(tree, other, script):
    """Both components share processes."""
    components = ("workers", (2,), (tree,)), ("workers", (1,), (other,))
    check(("mix", ([2, 1], False), components), 0, script)


@settings(QUICK, max_examples=6)
@given(failing_trees, failing_trees, few_operations)
def test_streams_of_workers(model_in_workers, tree, other, script):
    check_workers(tree, other, script)


@pytest.mark.slow
@pytest.mark.timeout(900)  # an example that fails is made smaller
@seed(SEED)
@settings(THOROUGH, max_examples=5)
@given(trees | failing_trees, failing_trees, few_operations)
def test_many_streams_of_workers(model_in_workers, tree, other, script):
    check_workers(tree, other, script)
