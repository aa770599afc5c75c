import copy
import json
import re

import pytest
from vector_data import build, load, plain

SEEDS = load("ds_default_seeds")["rows"]
STATES = load("ds_iterator_states")["rows"]


def test_there_are_rows():
    assert (len(SEEDS), len(STATES)) == (68, 27)


@pytest.mark.parametrize("row", SEEDS, ids=lambda row: row["pipeline"])
def test_default_seed(row):
    code = re.sub(r" \+ (\d+) x map\(f\) \+ ", lambda match: ".map(f)" * int(match[1]) + ".", row["pipeline"])
    seed = build(code)._default_seed
    assert seed == row["seed"]
    assert seed.dtype == "uint32"


@pytest.mark.parametrize("row", STATES, ids=lambda row: row["pipeline"])
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
    # The first is an interleave in Grain, the second shows its address there.
    if "multithread_prefetch" not in row["pipeline"] and " at 0x" not in row["iterator"]:
        assert str(it) == row["iterator"].replace(" @ FILE:LINE", "").lstrip("_")

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
                if "CacheIterDataset" not in row["pipeline"]:  # whose states say what has come to be in memory
                    assert used.get_state() == later["state"]
            assert state == step["state"]
    assert [plain(state) for state in states] == [step["state"] for step in row["steps"]]
