import copy
import json
import re

import pytest
from vector_data import LATER, build, exists, load, needs, plain, runnable

SEEDS = load("ds_default_seeds")["rows"]
STATES = load("ds_iterator_states")["rows"]


@pytest.mark.parametrize("name", LATER.values())
def test_what_rows_wait_for_does_not_exist_yet(name):
    assert not exists(name), f"{name} exists now: take it out of LATER, so that its rows run"


def test_which_rows_run():
    """Every row either runs or waits for a name that does not exist yet."""
    assert (len(SEEDS), len(runnable(SEEDS))) == (68, 62)
    assert [(row["pipeline"], needs(row["pipeline"])) for row in SEEDS if needs(row["pipeline"])] == [
        (
            "mix([range(5).seed(1).shuffle(), range(5).map(f).seed(2), range(5)]).random_map(g)",
            ["MapDataset.mix"],
        ),
        ("mix([range(5).seed(42).shuffle(), range(5).seed(43).shuffle()]).random_map(g)", ["MapDataset.mix"]),
        ("mix([range(5).seed(42)]*2).shuffle()", ["MapDataset.mix"]),
        ("mix([range(5).seed(128)]+[range(5)]*6).random_map(g)", ["MapDataset.mix"]),
        (
            "concatenate([range(5).seed(9), mix([range(5).seed(8), range(5).seed(7)])]).shuffle()",
            ["MapDataset.mix", "MapDataset.concatenate"],
        ),
        (
            "IterDataset.mix([range(5).seed(1).shuffle().to_iter_dataset(), "
            "range(5).seed(2).shuffle().to_iter_dataset()]).random_map(g)",
            ["IterDataset.mix"],
        ),
    ]
    assert (len(STATES), len(runnable(STATES))) == (27, 12)
    assert [needs(row["pipeline"])[0] for row in STATES if needs(row["pipeline"])] == [
        "IterDataset.mix",
        "IterDataset.mix",
        "experimental.RepeatIterDataset",
        "experimental.RepeatIterDataset",
        "experimental.WindowShuffleIterDataset",
        "experimental.LimitIterDataset",
        "experimental.ZipIterDataset",
        "experimental.CacheIterDataset",
        "experimental.FlatMapIterDataset",
        "experimental.RebatchIterDataset",
        "experimental.InterleaveIterDataset",
        "experimental.InterleaveIterDataset",
        "experimental.FirstFitPackIterDataset",
        "experimental.ConcatThenSplitIterDataset",
        "experimental.ElasticIterator",
    ]


@pytest.mark.parametrize("row", runnable(SEEDS), ids=lambda row: row["pipeline"])
def test_default_seed(row):
    code = re.sub(r" \+ (\d+) x map\(f\) \+ ", lambda match: ".map(f)" * int(match[1]) + ".", row["pipeline"])
    seed = build(code)._default_seed
    assert seed == row["seed"]
    assert seed.dtype == "uint32"


@pytest.mark.parametrize("row", runnable(STATES), ids=lambda row: row["pipeline"])
def test_iterator_states(row):
    ds = build(row["pipeline"])
    it = iter(ds)
    states = []
    for step in row["steps"]:
        if step["after"] == "StopIteration":
            with pytest.raises(StopIteration):
                next(it)
        elif step["after"]:
            assert plain(next(it)) == step["element"]
        states.append(it.get_state())
        assert json.loads(json.dumps(states[-1])) == step["state"]
    if "multithread_prefetch" not in row["pipeline"]:  # which is an interleave in Grain
        assert str(it) == row["iterator"].replace(" @ FILE:LINE", "")

    # Each state restores, on a fresh and on a used iterator, and is not changed by that.
    for used in (iter(ds), it):
        for position, step in enumerate(row["steps"]):
            state = copy.deepcopy(step["state"])
            used.set_state(state)
            assert used.get_state() == step["state"]
            for later in row["steps"][position + 1 :]:
                if later["after"] == "StopIteration":
                    with pytest.raises(StopIteration):
                        next(used)
                else:
                    assert plain(next(used)) == later["element"]
                assert used.get_state() == later["state"]
            assert state == step["state"]
    assert [plain(state) for state in states] == [step["state"] for step in row["steps"]]
