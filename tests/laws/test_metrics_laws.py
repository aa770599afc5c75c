"""While metrics are exported every pipeline is observed from its beginning: as one, and without being changed."""

import pytest
from entry import plain
from stage_table import ITER_ENTRIES, MAP_ENTRIES

from gristmill.core.options import ReadOptions
from gristmill.dataset.bases.iterator import iterate
from gristmill.diagnostics.metrics.prometheus import start_telemetry, stop_telemetry


def iterator_of(entry):
    ds = entry.make()
    return iterate(ds.to_iter_dataset(ReadOptions(num_threads=0)) if hasattr(ds, "to_iter_dataset") else ds)


@pytest.fixture
def registry():
    yield start_telemetry(port=0)
    stop_telemetry()


EVERY = [pytest.param(entry, id=f"{type(entry).__name__}-{entry.name}") for entry in [*MAP_ENTRIES, *ITER_ENTRIES]]


@pytest.mark.parametrize("entry", EVERY)
def test_every_stage_is_counted_once(entry, registry):
    with iterator_of(entry) as it:
        found = [plain(x) for x in it]
        (counts,) = [metric for metric in registry.collect() if metric.name == "gristmill_next_duration_ns"]
        pipelines = {sample.labels["pipeline"]: sample.value for sample in counts.samples if sample.name.endswith("_count")}
        assert pipelines == {"pipeline-0": len(found)}
    stop_telemetry()
    with iterator_of(entry) as it:
        assert [plain(x) for x in it] == found
