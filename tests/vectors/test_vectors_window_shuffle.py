"""Window shuffles against the recorded ones.

In Grain the last window of an epoch reaches into the next epoch when the window size does not divide the length; ours ends with
the epoch. So the map vectors are followed bit for bit where the size divides the length, and in all whole windows of the first
epoch; elsewhere the formula of that decision is checked, and that the epoch is complete.
"""

import json

import pytest
from vector_data import load

from gristmill import MapDataset
from gristmill.experimental import WindowShuffleIterDataset, WindowShuffleMapDataset, index_shuffle

MAP = [
    *[(case["n"], case["window_size"], case["seed"], case["values_0_to_2n"]) for case in load("exp_window_shuffle")["map"]],
    *[
        (case["n"], case["window_size"], case["seed"], [i % case["n"] for i in case["parent_index_for_0_to_2n"]])
        for case in load("ds_window_shuffle")["map"]
    ],
]
ITER = [
    *[(case, case["output"]) for case in load("exp_window_shuffle")["iter"]],
    *[(case, case["elements"]) for case in load("ds_window_shuffle")["iter"]],
]


def by_the_decision(i, n, size, seed):
    epoch, position = divmod(i, n)
    q = position // size
    m = min(size, n - q * size)
    return q * size + index_shuffle(position - q * size, m - 1, (seed + epoch * -(-n // size) + q) % 2**32, 4)


@pytest.mark.parametrize(("n", "size", "seed", "recorded"), MAP)
def test_map(n, size, seed, recorded):
    ds = WindowShuffleMapDataset(MapDataset.range(n), window_size=size, seed=seed)
    got = [ds[i] for i in range(2 * n)]
    assert len(recorded) == 2 * n
    assert got == ds._block(range(2 * n))
    if n % size == 0:
        assert got == recorded
    else:
        whole = n // size * size
        assert got[:whole] == recorded[:whole]
        assert got != recorded
        assert got == [by_the_decision(i, n, size, seed) for i in range(2 * n)]
    assert sorted(got[:n]) == sorted(got[n:]) == list(range(n))


@pytest.mark.parametrize(("case", "elements"), ITER)
def test_iter(case, elements):
    ds = WindowShuffleIterDataset(
        MapDataset.range(case["n"]).to_iter_dataset(), window_size=case["window_size"], seed=case["seed"]
    )
    it = iter(ds)
    states = [it.get_state()]
    for element in elements:
        assert next(it) == element
        states.append(it.get_state())
    recorded = case["states"] or []  # of all positions, of the first ones, or none
    assert states[: len(recorded)] == recorded
    with pytest.raises(StopIteration):
        next(it)
    if "state_after_stop" in case:
        assert it.get_state() == case["state_after_stop"]
    for position, state in enumerate(states):
        for used in (iter(ds), it):
            used.set_state(json.loads(json.dumps(state)))
            assert used.get_state() == state
            assert list(used) == elements[position:]


def test_no_row_is_left_out():
    assert (len(MAP), len(ITER)) == (17, 19)
    assert len([n for n, size, _, _ in MAP if n % size]) == 7
    assert sum([len(case["states"] or ()) for case, _ in ITER]) == 119
