"""Random trees of stream stages deliver what plain generators say, whatever is done to their iterators in between."""

import copy
import gc
import itertools
import json
import threading
import weakref

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from list_model import FAILED, Boom
from stream_model import TROUBLE, Endless, Interrupt, Transient, build, failing_trees, frozen, names, outcomes, spoil, trees

from gristmill.dataset.iterator import pull, rewind

LIMIT = 50  # outcomes that are looked at
QUICK = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]}


class Run:
    """An iterator of a tree, and where it must be."""

    def __init__(self, tree):
        try:
            self.outcomes = list(itertools.islice(outcomes(tree), LIMIT + 1))
        except Endless:
            assume(False)
        self.is_whole = len(self.outcomes) <= LIMIT
        self.names = names(tree)
        self.ds = build(tree)
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
                if "threads" in self.names:  # an error stays
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
        return json.dumps(self.it.get_state())

    def take(self, n):
        n = min(n, LIMIT - self.position)
        before = self.it.get_state()
        try:
            elements = pull(self.it, n)
        except (Boom, ValueError, Transient, Interrupt):
            rewind(self.it, before)
            self.is_failed = False
            return
        assert len(elements) == n or self.position + len(elements) == len(self.outcomes)
        assert len(elements) <= n
        self.passed(elements)

    def skip(self):
        if self.is_failed and "cache" not in self.names:
            TROUBLE.arm(0, Transient)
            self.it.skip_failed()
            self.position += 1
            self.is_failed = False

    def save(self):
        state = self.it.get_state()
        self.saved.append((json.dumps(state), self.position))
        spoil_state(state)
        assert self.state() == self.saved[-1][0]

    def restore(self, number):
        text, self.position = self.saved[number % len(self.saved)]
        state = json.loads(text)
        self.it.set_state(state)
        self.is_failed = False
        spoil_state(state)
        assert self.state() == text

    def restart(self, number):
        self.old.append(self.it)
        self.it = iter(self.ds)
        self.restore(number)

    def close(self, number):
        before = self.state()
        self.it.close()
        with pytest.raises(ValueError, match="closed"):
            next(self.it)
        assert self.state() == before
        self.restart(number)

    def finish(self):
        TROUBLE.arm(0, Transient)
        for _ in range(2 * LIMIT):
            if not self.next():
                if not self.is_failed or "cache" in self.names:
                    break
                self.skip()
        end = self.state()
        if self.position < LIMIT and not self.is_failed:
            assert self.position == len(self.outcomes)
            for _ in range(2):
                with pytest.raises(StopIteration):
                    next(self.it)
            it = iter(self.ds)
            it.set_state(json.loads(self.state()))
            with pytest.raises(StopIteration):
                next(it)
            it.close()
        assert self.state() == end or self.is_failed
        for it in (self.it, *self.old):
            it.close()


def spoil_state(state):
    if isinstance(state, dict):
        for value in state.values():
            spoil_state(value)
        state.clear()
    elif isinstance(state, list):
        for value in state:
            spoil_state(value)
        state.clear()


numbers = st.integers(0, 9)
operations = st.lists(
    st.one_of(
        st.tuples(st.just("next")),
        st.tuples(st.just("next")),
        st.tuples(st.just("take"), st.integers(1, 12)),
        st.tuples(st.just("skip")),
        st.tuples(st.just("save")),
        st.tuples(st.just("restore"), numbers),
        st.tuples(st.just("restart"), numbers),
        st.tuples(st.just("close"), numbers),
        st.tuples(st.just("start_prefetch")),
        st.tuples(st.just("arm"), st.integers(1, 15), st.sampled_from([Transient, Interrupt])),
    ),
    max_size=25,
)


def check(tree, script):
    TROUBLE.arm(0, Transient)
    run = Run(tree)
    for name, *args in script:
        if name == "start_prefetch":
            run.it.start_prefetch()
        elif name == "arm":
            TROUBLE.arm(*args)
        else:
            getattr(run, name)(*args)
    run.finish()


@settings(max_examples=300, **QUICK)
@given(trees, operations)
def test_streams(tree, script):
    check(tree, script)


@settings(max_examples=300, **QUICK)
@given(failing_trees, operations)
def test_streams_that_fail(tree, script):
    check(tree, script)
