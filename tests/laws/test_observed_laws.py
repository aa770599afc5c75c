"""Observing changes nothing: elements, states, errors and ends are those of the pipeline that is
not observed.
"""

import contextlib
import gc
import itertools
import weakref

import pytest
from entry import plain, run
from stage_table import each_of_all, iterator_of

from gristmill.dataset import MapDataset
from gristmill.dataset.bases.iterator import iterate
from gristmill.dataset.descriptions.display import stage_inputs
from gristmill.diagnostics import observe
from gristmill.diagnostics.graph.seen_specs import seen_specs
from gristmill.diagnostics.graph.spec_text import spec_text
from gristmill.diagnostics.graph.stages import graph_of
from gristmill.diagnostics.runtime.metrics.prometheus import start_telemetry, stop_telemetry


@each_of_all
def test_elements_and_states_are_the_same(entry):
    it = iterator_of(entry)
    start = it.get_state()
    elements, states = run(it)
    with observe(iterator_of(entry)) as view:
        observed = view.iterator
        found, states_found = run(observed)
        assert found == elements
        assert states_found == states or getattr(entry, "states_vary", False)
        if len(elements) > 1:  # backwards, while it is observed
            observed.set_state(states_found[0])
            assert run(observed)[0] == elements[1:]
        observed.set_state(start)
        assert run(observed, 1)[0] == elements[:1]
    assert run(observed)[0] == elements[1:]  # and when it is no more
    summary = view.summary()
    assert summary[0].is_output
    if elements:
        assert summary[0].num_produced_elements >= len(elements)
        assert sum([node.wait_time_ratio for node in summary.values()]) == pytest.approx(
            1, abs=0.01
        )
    it.close()
    observed.close()


@each_of_all
def test_nothing_is_left_of_it(entry):
    it = iterator_of(entry)
    before, cls = set(vars(it)), type(it)
    methods = {**vars(cls)}
    with observe(it):
        next(it, None)
    assert not {"_gm_take", "_gm_current_instrument", "_gm_observed"} & (set(vars(it)) - before)
    assert getattr(it, "_tell", None) is None
    assert not hasattr(it, "_read_from") or it._read_from is it._ds
    assert {**vars(cls)} == methods
    assert type(it) is cls and it._ctx.joined is None
    ref = weakref.ref(it)
    it.close()
    del it
    if ref() is not None:
        gc.collect()
    assert ref() is None


def stages_of(ds):
    """A dataset and what it draws from, in the order of its graph."""
    found, todo = {}, [ds]
    while todo:
        node = todo.pop()
        if id(node) not in found:
            found[id(node)] = node
            todo.extend(reversed(stage_inputs(node)))
    return [*found.values()]


def without_faults(it):
    """The elements of a stage, which may fail where one downstream tolerates that."""
    while True:
        try:
            yield next(it)
        except StopIteration:
            return
        except ValueError:
            it.skip_failed()


@each_of_all
def test_what_is_seen_at_a_stage_is_what_it_gives(entry):
    ds = entry.make()
    graph = graph_of(ds)
    with contextlib.closing(iterator_of(entry)) as it, observe(it) as view:
        is_empty = not [*itertools.islice(it, 50)]
        found = seen_specs(graph, view.summary())
    stages = stages_of(ds)
    assert is_empty or 0 in found
    for number, spec in found.items():
        with contextlib.closing(iterate(stages[number])) as it:
            specs = {spec_text(x) for x in itertools.islice(without_faults(it), 200)}
        assert not specs or spec in specs, (number, stages[number], spec, specs)
    makes_datasets = any([isinstance(getattr(x, "_gm_datasets", None), MapDataset) for x in stages])
    is_chain = all([len(x.inputs) < 2 for x in graph.stages])
    if is_chain and not is_empty and not makes_datasets:
        assert len(found) == len(stages), [
            (i, str(x)) for i, x in enumerate(stages) if i not in found
        ]


@pytest.fixture
def registry():
    yield start_telemetry(port=0)
    stop_telemetry()


@each_of_all
def test_every_pipeline_is_counted_once_in_metrics(entry, registry):
    with iterator_of(entry) as it:
        found = [plain(x) for x in it]
        (counts,) = [
            metric for metric in registry.collect() if metric.name == "gristmill_next_duration_ns"
        ]
        pipelines = {
            sample.labels["pipeline"]: sample.value
            for sample in counts.samples
            if sample.name.endswith("_count")
        }
        assert pipelines == {"pipeline-0": len(found)}
    stop_telemetry()
    with iterator_of(entry) as it:
        assert [plain(x) for x in it] == found
