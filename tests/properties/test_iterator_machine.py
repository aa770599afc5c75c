"""Random pipelines whose user code fails at some elements, used in a random order of operations."""

import json

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from list_model import (
    FAILED,
    Boom,
    MapModel,
    StreamModel,
    build,
    failing_iter_steps,
    failing_map_steps,
    read_options,
)

LIMIT = 30


class IteratorMachine(RuleBasedStateMachine):
    """Model: the list of outcomes and the position in it; an outcome that fails is passed by skipping alone."""

    @initialize(
        length=st.integers(0, 14),
        before=failing_map_steps,
        options=read_options,
        allow_nones=st.booleans(),
        after=failing_iter_steps,
    )
    def begin(self, length, before, options, allow_nones, after):
        source = MapModel(length, before)
        if source.length > LIMIT:
            source = MapModel(length, [*before, ("slice", 0, LIMIT, None)])
        model = StreamModel(source, LIMIT, allow_nones, after)
        steps = [("to_iter", options, allow_nones) if step[0] == "to_iter" else step for step in model.steps]
        self.outcomes = model.outcomes
        self.ds = build(steps)
        self.it = iter(self.ds)
        self.position = 0
        self.failed = False
        self.saved = [(json.dumps(self.it.get_state()), 0)]

    @rule()
    def next(self):
        state = self.it.get_state()
        if self.position == len(self.outcomes):
            with pytest.raises(StopIteration):
                next(self.it)
            self.failed = False
        elif self.outcomes[self.position] is FAILED:
            with pytest.raises(Boom):
                next(self.it)
            self.failed = True
        else:
            assert next(self.it) == self.outcomes[self.position]
            self.position += 1
            self.failed = False
            assert self.it.get_state() != state

    @rule()
    def several(self):
        for _ in range(5):
            self.next()

    @rule()
    def skip(self):
        if self.failed:
            self.it.skip_failed()
            self.position += 1
            self.failed = False
        else:
            state = self.it.get_state()
            with pytest.raises(ValueError, match="nothing to skip"):
                self.it.skip_failed()
            assert self.it.get_state() == state

    @rule()
    def save(self):
        self.saved.append((json.dumps(self.it.get_state()), self.position))

    @rule(data=st.data())
    def restore(self, data):
        text, self.position = data.draw(st.sampled_from(self.saved))
        self.it.set_state(json.loads(text))
        assert json.dumps(self.it.get_state()) == text
        self.failed = False

    @rule(data=st.data())
    def restore_in_a_fresh_iterator(self, data):
        text, self.position = data.draw(st.sampled_from(self.saved))
        self.it = iter(self.ds)
        self.it.set_state(json.loads(text))
        self.failed = False

    @rule(state=st.sampled_from([None, {}, {"next_index": 10**9}, {"parent": {}}, [1], {"next_index": "1"}]))
    def restore_nonsense(self, state):
        with pytest.raises(ValueError):
            self.it.set_state(state)

    @rule()
    def start_prefetch(self):
        self.it.start_prefetch()

    @rule()
    def close(self):
        state = self.it.get_state()
        self.it.close()
        with pytest.raises(ValueError, match="closed"):
            next(self.it)
        assert self.it.get_state() == state
        self.it = iter(self.ds)
        self.it.set_state(state)
        self.failed = False

    @precondition(lambda self: hasattr(self, "it"))
    @invariant()
    def states_are_small_and_plain(self):
        assert len(json.dumps(self.it.get_state())) < 1000

    def teardown(self):
        if hasattr(self, "it"):
            self.it.close()


TestIteratorMachine = IteratorMachine.TestCase
TestIteratorMachine.settings = settings(max_examples=200, stateful_step_count=25, deadline=None)
