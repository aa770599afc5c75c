"""Lanes: which and how many processes compute them cannot be told. That all stages obey is among the laws of iterators."""

import os
import signal
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from local_workers import LocalWorkersIterDataset
from operations import operation
from refusing import assert_raises
from waiting import wait_until

from gristmill import DataLoader, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.core.errors import StateMismatchError
from gristmill.samplers import IndexSampler
from gristmill.transforms import Batch, RandomMap


def chain(bad=()):
    """All that may depend on who computes it: random streams, positions, windows, and errors at some elements."""

    def fail(x):
        if x[0] in bad:
            raise ArithmeticError(f"bad record {x[0]}")
        return x

    ds = MapDataset.range(61).seed(3).shuffle().random_map(lambda x, rng: (x, int(rng.integers(100))))
    ds = ds.to_iter_dataset(ReadOptions(3, 7)).filter(lambda x: x[0] % 4).map(fail).map_with_index(lambda i, x: (*x, i))
    return ds.random_map(lambda x, rng: (*x, int(rng.integers(100))), seed=5).window_shuffle(5, seed=1).batch(3, batch_fn=list)


def trace(ds, state=None):
    """Elements, what errors say, and the states after them; what fails is skipped."""
    it, found = iter(ds), []
    if state is not None:
        it.set_state(state)
    while True:
        try:
            found.append((next(it), it.get_state()))
        except StopIteration:
            return found
        except ArithmeticError as error:
            before = it.get_state()
            assert_raises(ArithmeticError, str(error), next, it)  # it stays there
            assert it.get_state() == before
            it.skip_failed()
            found.append((str(error), it.get_state()))


def with_workers(num_workers, num_lanes=5, **options):
    return lambda ds: ds.mp_prefetch(MultiprocessingOptions(num_workers, num_lanes=num_lanes, **options))


def locally(num_workers, num_lanes=5):
    return lambda ds: LocalWorkersIterDataset(ds, num_workers, num_lanes=num_lanes)


COMPUTED = [locally(5, None), with_workers(0), locally(1), locally(2), locally(4), with_workers(2)]


@pytest.mark.parametrize("bad", [(), (1, 2, 30, 33, 58)], ids=["whole", "failing"])
def test_elements_errors_and_states_do_not_depend_on_workers(bad):
    expected = trace(COMPUTED[0](chain(bad)))
    assert any(type(x) is str for x, _ in expected) == bool(bad)
    for computed in COMPUTED[1:]:
        assert trace(computed(chain(bad))) == expected
    for position in (0, 2, 7, len(expected) - 2):
        for computed in COMPUTED[:-1]:
            assert trace(computed(chain(bad)), expected[position][1]) == expected[position + 1 :]


def test_a_lane_whose_elements_are_slow_or_large_does_not_hold_the_others_far_ahead():
    made = MapDataset.range(3000).map(lambda x: np.full(20_000, x) if x % 3 == 1 else x).to_iter_dataset()
    assert [int(np.max(x)) for x in with_workers(1, 3)(made)] == [*range(3000)]


def test_only_the_lanes_of_a_worker_that_died_are_computed_by_another():
    ds = MapDataset.range(10**6).map(lambda x: (x, os.getpid(), np.zeros(20_000))).to_iter_dataset()
    it = iter(ds.mp_prefetch(MultiprocessingOptions(2, num_lanes=5)))
    first = [*islice(it, 10)]
    pids = [pid for _, pid, _ in first[:5]]
    assert pids == [pids[0], pids[1], *pids[:2], pids[0]] and len(set(pids)) == 2  # of lanes 0, 2 and 4; of 1 and 3
    os.kill(pids[0], signal.SIGKILL)
    seen = [x for x, *_ in first]
    with pytest.raises(RuntimeError, match=r"Worker process 0 of 2 was .*, at work for lane [024] of 5: .*SIGKILL"):
        while True:
            seen.append(next(it)[0])
    it.set_state(it.get_state())
    later = [*islice(it, 20)]
    assert [*seen, *[x for x, *_ in later]] == [*range(len(seen) + 20)]
    assert {pid for x, pid, _ in later if x % 5 in (1, 3)} == {pids[1]} and pids[0] not in {pid for _, pid, _ in later}
    wait_until(lambda: it.close() or not Path(f"/proc/{pids[1]}").exists())


def test_init_functions_get_the_worker_and_options_are_checked():
    made = MapDataset.range(6).map(lambda x: os.environ["WORKER"]).to_iter_dataset()
    ds = made.mp_prefetch(MultiprocessingOptions(2, num_lanes=3), lambda i, n: os.environ.update(WORKER=f"{i} of {n}"))
    assert list(ds) == ["0 of 2", "1 of 2", "0 of 2"] * 2
    assert_raises(ValueError, "num_lanes must be at least num_workers, 3,", MultiprocessingOptions, 3, num_lanes=2)
    assert_raises(ValueError, "num_lanes must be", MultiprocessingOptions, num_lanes=0)
    assert_raises(TypeError, "num_lanes must be an integer", MultiprocessingOptions, num_lanes="2")
    assert "num_lanes=2" in repr(MultiprocessingOptions(1, num_lanes=2)) and "lanes" not in repr(MultiprocessingOptions(1))
    of_five, state = iter(with_workers(2, 5)(chain())), iter(with_workers(0, 4)(chain())).get_state()
    assert_raises(StateMismatchError, "taken with 4 workers", of_five.set_state, state)


NOISE = operation(RandomMap, "random_map", lambda x, rng: x + int(rng.integers(1000)) * 100)


@pytest.mark.parametrize("operations", [[NOISE], [NOISE, Batch(4)]], ids=["records", "batches"])
def test_loaders(operations):
    """What Grain gives with 4 workers, its states included, with any number of them."""

    def loader(worker_count, **options):
        sampler = IndexSampler(30, shuffle=True, seed=7, num_epochs=1)
        return DataLoader(data_source=range(30), sampler=sampler, operations=operations, worker_count=worker_count, **options)

    four = iter(loader(4))
    expected = [(np.asarray(x).tolist(), four.get_state()) for x in four]
    for worker_count in (0, 2):
        made = loader(worker_count, num_lanes=4)
        it = iter(made)
        assert [(np.asarray(x).tolist(), it.get_state()) for x in it] == expected
        it.set_state(expected[2][1])
        assert [np.asarray(x).tolist() for x in it] == [x for x, _ in expected[3:]]
        assert len(made) == len(expected) and made._description == loader(4)._description
    two = iter(loader(2)).get_state()
    assert_raises(StateMismatchError, "worker_count=2, the DataLoader has num_lanes=4", it.set_state, two)
