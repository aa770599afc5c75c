"""What an error budget skipped before a restore, behind mixtures, interleaves and repeats: no record comes twice."""

import json

import pytest

from gristmill import IterDataset, MapDataset, experimental

FAILS = {1, 2, 6, 11, 13, 20, 32, 43, 50}


def tolerant(start, num, fails):
    def read(x):
        if x in fails:
            raise OSError(x)
        return x

    return MapDataset.range(start, start + num).map(read).to_iter_dataset().tolerate(OSError, max_rate=None)


CHAINS = {
    "list": (1, lambda f: IterDataset.mix([tolerant(0, 30, f), tolerant(40, 30, f)])),
    "names": (1, lambda f: IterDataset.mix({"a": tolerant(0, 30, f), "b": tolerant(40, 30, f)})),
    "interleave": (1, lambda f: experimental.InterleaveIterDataset([tolerant(10 * j, 4, f) for j in range(5)], cycle_length=2)),
    "repeat": (3, lambda f: tolerant(0, 7, f).repeat(3)),
}


@pytest.mark.parametrize(("times", "chain"), CHAINS.values(), ids=CHAINS)
def test_what_was_skipped_is_skipped_again(times, chain):
    for k in range(12):
        fails = {*FAILS}
        it = iter(chain(fails).window_shuffle(6, seed=3))
        before = [next(it) for _ in range(k)]
        state = json.loads(json.dumps(it.get_state()))
        always = {*before, *it}
        fails.clear()  # nothing fails any more
        it = iter(chain(fails).window_shuffle(6, seed=3))
        it.set_state(state)
        found = [*before, *it]
        assert max(map(found.count, found)) <= times
        assert min(map(found.count, always)) >= times


def test_totals_never_go_back_when_components_begin_again():
    fails = {3}
    ds = IterDataset.mix({"a": tolerant(0, 5, fails), "b": tolerant(10, 50, set())}, stop="never")
    it, totals = iter(ds), []
    for _ in range(60):
        next(it)
        totals.append(it.faults().total)
    assert totals == sorted(totals) and totals[-1] > 1


def test_totals_continue_where_an_epoch_ends_after_going_back_there():
    it = iter(tolerant(0, 9, FAILS).limit(4).repeat(3))
    states, totals = [it.get_state()], [0]
    for _ in it:
        states.append(it.get_state())
        totals.append(it.faults().total)
    assert totals[-1] == 6
    for state, total in zip(states, totals, strict=True):
        it.set_state(state)
        assert it.faults().total == total
        list(it)
        assert it.faults().total == totals[-1]
