"""Lanes: which and how many processes compute them cannot be determined. That all stages obey is
among the laws of iterators.
"""

import os
import signal
import threading
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from operations import NOISE
from refusing import assert_raises
from waiting import wait_until

from gristmill import DataLoader, MapDataset, MultiprocessingOptions
from gristmill.core.errors import StateMismatchError
from gristmill.samplers import IndexSampler
from gristmill.transforms import Batch


def with_workers(num_workers, num_lanes=5, **options):
    return lambda ds: ds.mp_prefetch(
        MultiprocessingOptions(num_workers, num_lanes=num_lanes, **options, executor="processes")
    )


def test_lanes_stay_close_and_only_those_of_a_dead_worker_move():
    made = (
        MapDataset.range(3000)
        .map(lambda x: np.full(20_000, x) if x % 3 == 1 else x)
        .to_iter_dataset()
    )
    assert [int(np.max(x)) for x in with_workers(1, 3)(made)] == [*range(3000)]
    ds = MapDataset.range(10**6).map(lambda x: (x, os.getpid(), np.zeros(20_000))).to_iter_dataset()
    it = iter(ds.mp_prefetch(MultiprocessingOptions(2, num_lanes=5, executor="processes")))
    first = [*islice(it, 10)]
    pids = [pid for _, pid, _ in first[:5]]
    # of lanes 0, 2 and 4; of 1 and 3
    assert pids == [pids[0], pids[1], *pids[:2], pids[0]] and len(set(pids)) == 2
    os.kill(pids[0], signal.SIGKILL)
    seen = [x for x, *_ in first]
    with pytest.raises(
        RuntimeError, match=r"Worker process 0 of 2 was .*, at work for lane [024] of 5: .*SIGKILL"
    ):
        while True:
            seen.append(next(it)[0])
    it.set_state(it.get_state())
    later = [*islice(it, 20)]
    assert [*seen, *[x for x, *_ in later]] == [*range(len(seen) + 20)]
    assert {pid for x, pid, _ in later if x % 5 in (1, 3)} == {pids[1]}
    assert pids[0] not in {pid for _, pid, _ in later}
    wait_until(lambda: it.close() or not Path(f"/proc/{pids[1]}").exists())


def test_init_functions_get_the_worker_and_options_are_checked():
    made = MapDataset.range(6).map(lambda x: os.environ["WORKER"]).to_iter_dataset()
    options = MultiprocessingOptions(2, num_lanes=3, executor="processes")
    ds = made.mp_prefetch(options, lambda i, n: os.environ.update(WORKER=f"{i} of {n}"))
    assert list(ds) == ["0 of 2", "1 of 2", "0 of 2"] * 2
    with pytest.raises(ValueError, match="num_lanes must be at least num_workers, 3,"):
        MultiprocessingOptions(3, num_lanes=2)
    assert_raises(ValueError, "num_lanes must be", MultiprocessingOptions, num_lanes=0)
    assert_raises(TypeError, "num_lanes must be an integer", MultiprocessingOptions, num_lanes="2")
    assert "num_lanes=2" in repr(MultiprocessingOptions(1, num_lanes=2))
    assert "lanes" not in repr(MultiprocessingOptions(1))
    of_five, state = iter(with_workers(2, 5)(made)), iter(with_workers(0, 4)(made)).get_state()
    assert_raises(StateMismatchError, "taken with 4 workers", of_five.set_state, state)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_that_a_later_stage_refuses_changes_nothing(num_workers):
    """Also where the lanes have taken note of their part of it."""
    numbers = MapDataset.range(60).to_iter_dataset()
    it = iter(with_workers(num_workers, 4)(numbers).zip(numbers.batch(1)))
    first = it.get_state()
    found = [next(it)[0] for _ in range(10)]
    refused = {**first, "parents": [first["parents"][0], {"next_index": "no"}]}
    for prefetches in (False, True):
        assert_raises(StateMismatchError, "next_index", it.set_state, refused)
        if prefetches:
            it.start_prefetch()
        found += [next(it)[0] for _ in range(10)]
    assert found + [x for x, _ in it] == [*range(60)]


@pytest.mark.parametrize("operations", [[NOISE], [NOISE, Batch(4)]], ids=["records", "batches"])
def test_loaders(operations):
    """A loader gives the elements and states of Grain with 4 workers, with any number of
    workers.
    """

    def loader(worker_count, **options):
        sampler = IndexSampler(30, shuffle=True, seed=7, num_epochs=1)
        return DataLoader(
            data_source=range(30),
            sampler=sampler,
            operations=operations,
            worker_count=worker_count,
            **options,
        )

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
    assert_raises(
        StateMismatchError, "worker_count=2, the DataLoader has num_lanes=4", it.set_state, two
    )


@pytest.mark.parametrize(("num_workers", "num_lanes", "stuck"), [(1, 4, 40), (2, 6, 7)])
def test_an_element_that_never_comes_holds_back_none_before_it(num_workers, num_lanes, stuck):
    """Of no lane, although its worker is stuck in another one."""
    ds = (
        MapDataset.range(100)
        .map(lambda x: threading.Event().wait() if x == stuck else x)
        .to_iter_dataset()
    )
    with iter(
        ds.mp_prefetch(
            MultiprocessingOptions(num_workers, num_lanes=num_lanes, executor="processes")
        )
    ) as it:
        assert [next(it) for _ in range(stuck)] == list(range(stuck))
