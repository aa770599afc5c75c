import json
import warnings

import numpy as np
import pytest
from vector_data import load, plain

from gristmill import DataLoader, MapDataset
from gristmill.experimental import (
    BestFitPackIterDataset,
    BOSHandling,
    ConcatThenSplitIterDataset,
    FirstFitPackIterDataset,
    PackAndBatchOperation,
)
from gristmill.samplers import SequentialSampler

BINS = load("pack_bins")["cases"]
CONCAT = load("pack_concat_then_split")["cases"]
OPERATION = load("pack_and_batch_operation")["cases"]


def stream(case):
    elements = [{k: np.array(v, np.int64) if isinstance(v, list) else v for k, v in e.items()} for e in case["elements"]]
    return MapDataset.source(elements).to_iter_dataset()


def check(ds, outputs, states=None):
    """The outputs, the state after each, and that each of the recorded ones restores."""
    it = iter(ds)
    seen, given = [it.get_state()], []
    for element in it:
        given.append(plain(element))
        seen.append(it.get_state())
    assert given == outputs
    if states is not None:
        assert seen == states
    for position, state in enumerate(json.loads(json.dumps(seen))):
        for restored in (iter(ds), it):
            restored.set_state(state)
            assert [plain(element) for element in restored] == outputs[position:]


@pytest.mark.parametrize("case", BINS, ids=lambda case: case["label"])
@pytest.mark.parametrize(
    ("name", "cls"), [("first_fit", FirstFitPackIterDataset), ("best_fit", BestFitPackIterDataset)], ids=["first", "best"]
)
def test_bins(case, name, cls):
    lengths, bins = case["length_struct"], case["num_packing_bins"]
    ds = cls(stream(case), length_struct=lengths, num_packing_bins=bins, **case["args"])
    check(ds, case[name]["output"], case[name]["states"])
    for row in ds:
        for key, value in row.items():
            assert not key.endswith(("_segment_ids", "_positions")) or value.dtype == np.int32


@pytest.mark.parametrize("case", CONCAT, ids=lambda case: case["label"])
def test_concat_then_split(case):
    arguments = dict(case["args"])
    if "bos_handling" in arguments:
        arguments["bos_handling"] = BOSHandling[arguments["bos_handling"].split(".")[-1]]
    ds = ConcatThenSplitIterDataset(stream(case), length_struct=case["length_struct"], **arguments)
    if "grain_defect" in case:
        check(ds, case["expected_correct"])
    else:
        check(ds, case["output"], case["states"])


def test_how_many_cases_there_are():
    assert (len(BINS), len(CONCAT), sum("grain_defect" in case for case in CONCAT), len(OPERATION)) == (15, 14, 2, 5)


@pytest.mark.parametrize("case", OPERATION, ids=lambda case: str(case["lengths"]))
def test_pack_and_batch_operation(case):
    length = case["length"]
    if "two_features" in case:
        elements = [{"inputs": np.arange(a), "targets": np.arange(100, 100 + b)} for a, b in case["lengths"]]
        length_struct = length
    else:
        elements = [{"x": np.arange(1, n + 1), "y": np.full((n, 2), n, np.float32)} for n in case["lengths"]]
        length_struct = {"x": length, "y": length}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        operation = PackAndBatchOperation(length_struct, case["batch_size"], case["max_sequences_per_bin"])
    loader = DataLoader(
        data_source=elements,
        sampler=SequentialSampler(len(elements)),
        operations=[operation],
    )
    for _ in range(2):  # Grain's operation begins the second time with what was left of the first
        assert [plain(batch) for batch in loader] == case["batches"]
