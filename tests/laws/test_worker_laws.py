"""Laws of a single worker: elements, states, ends and what is skipped are those of the same pipeline without it."""

import pytest
from entry import plain
from local_workers import LocalWorkersIterDataset, through_pickle
from stage_table import ITER_ENTRIES

from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterDataset
from gristmill.workers.messages import Care


def has_workers(entry):
    return any(isinstance(ds, MultiprocessPrefetchIterDataset) for ds in ancestors(entry.make()))


ENTRIES = [entry for entry in ITER_ENTRIES if not has_workers(entry)]  # workers do not start workers
each_entry = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)


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


def of_worker(state):
    return state["iterators_in_use_states"][0]


@each_entry
def test_elements_and_states_are_those_of_the_pipeline(entry):
    alone, worker = iter(entry.make()), iter(LocalWorkersIterDataset(entry.make()))
    assert of_worker(worker.get_state()) == alone.get_state()
    elements, states = run(alone)
    by_worker, worker_states = run(worker)
    assert by_worker == elements
    if not entry.states_vary:
        assert [of_worker(state) for state in worker_states] == states


@each_entry
def test_care_after_a_death_is_not_observable(entry):
    """One output at a time, and nothing ahead: elements and states are the same."""
    elements, states = run(iter(LocalWorkersIterDataset(entry.make())))
    carefully, later = run(iter(LocalWorkersIterDataset(entry.make(), care=Care())))
    assert carefully == elements
    if not entry.states_vary:
        assert later == states


@each_entry
def test_what_is_skipped_does_not_depend_on_how_an_iterator_came_there(entry):
    """A worker is told to leave out the next output by its state alone, or as the first of all."""
    ds = entry.make()
    states = [iter(ds).get_state(), *run(iter(ds))[1]]
    for position, state in enumerate(states[:-1]):
        used = iter(ds)
        run(used)
        outcomes = []
        for it in (iter(ds), iter(ds), used):
            if outcomes:
                it.set_state(through_pickle(state))
            else:
                run(it, position)
            it._skip()
            after = it.get_state()
            elements, later = run(it)
            outcomes.append((elements, None if entry.states_vary else [after, *later]))
        assert outcomes[1:] == outcomes[:1] * 2
