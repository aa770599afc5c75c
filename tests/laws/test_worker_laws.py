"""Laws of a single worker: elements, states, ends and what is skipped are those of the same pipeline without it."""

import pytest
from entry import run
from local_workers import LocalWorkersIterDataset, through_pickle
from stage_table import ITER_ENTRIES

from gristmill.dataset.bases.node import ancestors
from gristmill.dataset.stages.mp_prefetch import MultiprocessPrefetchIterDataset
from gristmill.workers.messages import Care


def has_workers(entry):
    return any(isinstance(ds, MultiprocessPrefetchIterDataset) for ds in ancestors(entry.make()))


ENTRIES = [entry for entry in ITER_ENTRIES if not has_workers(entry)]  # workers do not start workers


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
def test_elements_and_states_are_those_of_the_pipeline(entry):
    alone, worker = iter(entry.make()), iter(LocalWorkersIterDataset(entry.make()))
    state, (elements, states) = alone.get_state(), run(alone)
    assert worker.get_state()["iterators_in_use_states"] == [state]
    by_worker, worker_states = run(worker)
    # After a death, too, when there is one output at a time, and nothing ahead.
    carefully, careful_states = run(iter(LocalWorkersIterDataset(entry.make(), care=Care())))
    assert carefully == by_worker == elements
    if not entry.states_vary:
        assert [state["iterators_in_use_states"] for state in worker_states] == [[state] for state in states]
        assert careful_states == worker_states


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.name)
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
