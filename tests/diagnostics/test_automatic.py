"""What options of the process switch on: debug mode and visualisation mode."""

import json
import logging

import pytest
from programs import outcome

import gristmill
from gristmill import MapDataset, MultiprocessingOptions
from gristmill.diagnostics import get_execution_summary, probe
from gristmill.experimental import InterleaveIterDataset

SUMMARY, GRAPH = "Grain Dataset Execution Summary:", "Grain Dataset graph:"
CHAIN = MapDataset.range(20).shuffle(seed=1).map(str).to_iter_dataset().batch(2)


@pytest.fixture
def logged(caplog):
    caplog.set_level(logging.INFO, logger="gristmill")
    return lambda title: [record.getMessage() for record in caplog.records if record.getMessage().startswith(title)]


def test_one_summary_at_the_end_and_one_graph(logged, caplog, tmp_path):
    """``override`` takes effect without parsed flags; only the real output reports, once."""
    for ds in (
        CHAIN.mp_prefetch(MultiprocessingOptions(num_workers=2)),
        InterleaveIterDataset([CHAIN, CHAIN, CHAIN], cycle_length=2),
        MapDataset.range(20).zip(MapDataset.range(20).map(str)).to_iter_dataset(),
    ):
        caplog.clear()
        with gristmill.config.override(py_dataset_visualization_output_dir="", py_debug_mode=True):
            num = len(list(ds))
        (text,), (graph,) = logged(SUMMARY), logged(GRAPH)
        assert "percent" in text and f" {num} " in text.replace("|", " ")
        assert "RangeMapDataset(start=0, stop=20, step=1)" in graph and "MapMapDataset(transform=str)" in graph
    with gristmill.config.override(py_dataset_visualization_output_dir=str(tmp_path)):
        assert len(list(CHAIN)) == len(list(CHAIN)) == 10
    assert len(list(tmp_path.glob("*.svg"))) == len(list(tmp_path.glob("*.html"))) == 2
    assert "<U2[2]" in json.dumps(json.loads(sorted(tmp_path.glob("*.json"))[0].read_text()))


def test_debug_mode_reports_when_an_iterator_is_dropped_and_from_time_to_time(logged, monkeypatch):
    with gristmill.config.override(py_debug_mode=True):
        it = iter(CHAIN)
    next(it)
    assert not logged(SUMMARY) and get_execution_summary(it)[0].num_produced_elements == 1
    del it
    assert len(logged(SUMMARY)) == 1 and not logged(GRAPH)
    now = [1]
    monkeypatch.setattr(probe, "clock", lambda: now[0])
    monkeypatch.setattr("gristmill.diagnostics.automatic.clock", lambda: now[0])
    with gristmill.config.override(py_debug_mode=True, debug_report_seconds=60):
        it = iter(MapDataset.range(200).to_iter_dataset())
    for _ in range(130):
        next(it)
        now[0] += 10**9
    assert len(logged(SUMMARY)) == 1 + 2


def test_workers_report_nothing_by_themselves(tmp_path):
    script = """
        import logging, gristmill
        logging.basicConfig(level=logging.INFO)
        gristmill.config.update('py_debug_mode', True)
        gristmill.config.update('py_dataset_visualization_output_dir', '')
        ds = gristmill.MapDataset.range(9).map(str).to_iter_dataset().mp_prefetch(gristmill.MultiprocessingOptions(2))
        assert len(list(ds)) == 9
    """
    process = outcome(tmp_path, script)
    assert process.returncode == 0 and process.stderr.count(SUMMARY) == process.stderr.count(GRAPH) == 1
