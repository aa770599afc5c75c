"""Endless pipelines: nothing that is asked of them iterates until an end."""

import contextlib
import itertools
import json

import pytest

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions, explain
from gristmill.dataset.bases.length import Exact, dataset_length
from gristmill.dataset.descriptions.pipeline import describe
from gristmill.experimental import InterleaveIterDataset, get_next_index, set_next_index

LANES = MultiprocessingOptions(num_lanes=2)
five = MapDataset.range(5)
endless = five.repeat()


def lazy():
    datasets = endless.map(lambda i: MapDataset.range(10 * int(i), 10 * int(i) + 5))
    return InterleaveIterDataset(datasets, cycle_length=2)


PIPELINES = {
    "map dataset": lambda: endless.to_iter_dataset(ReadOptions(0)),
    "blocks": lambda: endless.block_shuffle(3, group_size=2, seed=1).to_iter_dataset(),
    "default blocks": lambda: endless.block_shuffle(seed=1).to_iter_dataset(ReadOptions(0)),
    "shuffle": lambda: endless.shuffle(seed=1).to_iter_dataset(),
    "flat_map": lambda: endless.flat_map(lambda x: [x, x], max_fan_out=2).to_iter_dataset(),
    "slice": lambda: endless[3::3].to_iter_dataset(),
    "mixed": lambda: MapDataset.mix({"a": endless, "b": endless}).to_iter_dataset(),
    "tolerant": lambda: endless.tolerate().to_iter_dataset(),
    "interleave": lazy,
    "window": lambda: lazy().window_shuffle(3, seed=1),
    "lanes": lambda: lazy().mp_prefetch(LANES),
    "rows": lambda: lazy().global_batch(2, num_lanes=2),
    "repeated rows": lambda: five.to_iter_dataset().global_batch(2, end="repeat"),
    "mixture": lambda: IterDataset.mix([endless, five.to_iter_dataset().repeat()]),
    "stop never": lambda: IterDataset.mix([five.to_iter_dataset()] * 2, stop="never"),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", PIPELINES)
def test_no_question_needs_an_end(name):
    ds = PIPELINES[name]()
    it = iter(ds)
    elements = [*itertools.islice(it, 7)]
    assert len(elements) == 7 and explain(it).records
    assert not isinstance(dataset_length(ds), Exact)
    assert repr(ds) and str(it) and json.dumps(describe(it)) and ds._repr_html_()
    with contextlib.suppress(NotImplementedError):  # some need a ledger, or have no index
        assert explain(ds, step=3).records
        set_next_index(it, 50)
        assert get_next_index(it) == 50
    again = iter(ds)
    again.set_state(it.get_state())
    assert repr(next(again)) == repr(next(it))


def test_blocks_of_an_endless_dataset_are_those_of_its_elements():
    for arguments in ({"block_size": 3, "group_size": 2}, {}):
        ds = endless.block_shuffle(**arguments, seed=1)
        assert [*map(int, ds._gm_items(range(40)))] == [ds[i] for i in range(40)]
