"""Several ``mp_prefetch`` below one iterator: they share processes, of which nothing can be
determined but their number.
"""

import ctypes
import os
import signal
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_until
from worker_pools import idle_for_long

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.core.cgroup import usable_cpus
from gristmill.dataset.bases.observing import running_upstream
from gristmill.experimental import ZipIterDataset

patient = pytest.fixture(idle_for_long, name="patient")


def parts_of(num, size, *options, **keywords):
    """Several components of ``size`` numbers each."""
    options = MultiprocessingOptions(*options, **keywords, executor="processes")
    return [
        MapDataset.range(size * i, size * i + size).to_iter_dataset().mp_prefetch(options)
        for i in range(num)
    ]


def processes(it):
    """The processes that compute for ``it``, and how many workers are in each."""
    wait_until(lambda: all([worker.process_id for worker in it._gm_engine.worker_processes()]))
    found = Counter([worker.process_id for worker in it._gm_engine.worker_processes()])
    return found + sum(map(processes, running_upstream(it)), Counter())


def test_one_set_of_processes_for_all_components_and_epochs(patient):
    numbers = MapDataset.range(90).map(str).to_iter_dataset()
    own = numbers.mp_prefetch(
        MultiprocessingOptions(2, executor="processes"), lambda i, n: os.environ.update(A="1")
    )
    other = numbers.mp_prefetch(
        MultiprocessingOptions(1, worker_env={"A": "1"}, executor="processes")
    )
    ds = IterDataset.mix(
        [IterDataset.mix(parts_of(34, 90, 2)), own, ZipIterDataset([other, *parts_of(1, 90, 1)])],
        [6000, 6, 1],
    )
    it = iter(ds)
    assert not processes(it)
    first = [*islice(it, 2000)]
    num, used = max(2, usable_cpus()), processes(it)
    assert sorted(used.values()) == sorted(
        [1, 1, *[2 * 34 // num + (i < 2 * 34 % num) for i in range(num)]]
    )
    it.start_prefetch()
    # one in another environment
    assert sum(processes(it).values()) == 2 * 34 + 4 and len(processes(it)) == num + 3
    del it
    again = iter(ds)
    assert [*islice(again, 2000)] == first
    again.start_prefetch()
    later = processes(again)
    # not those with a function
    assert len(later) == num + 3 and len(used.keys() & later.keys()) == num
    again.close()
    wait_until(lambda: not any([Path(f"/proc/{process}").exists() for process in later]))


@pytest.mark.parametrize("stuck", [3, 1000])
def test_no_component_waits_for_another_one(tmp_path, stuck):
    os.mkfifo(tmp_path / "pipe")

    def note(x):
        with (tmp_path / "made").open("a") as file:
            file.write(".")
        # no process ever writes
        return np.full(10_000, x) if x != stuck else (tmp_path / "pipe").read_bytes()

    options = MultiprocessingOptions(1, 2, executor="processes")
    full = MapDataset.range(1000).map(note).to_iter_dataset(ReadOptions(0, 0)).mp_prefetch(options)
    quick = parts_of(1, 50_000, 1, num_lanes=3)
    others = parts_of(usable_cpus() - 1, 9, 1)
    it = iter(IterDataset.mix([full, *others, *quick], [*[1 for _ in [full, *others]], 10_000]))
    it.start_prefetch()
    assert max(processes(it).values()) == 2  # the last one is where the first is
    assert sum([int(np.max(x)) for x in islice(it, 9_000)]) > 30_000_000
    assert len((tmp_path / "made").read_text()) < 10
    it.close()


def test_a_record_that_kills_is_reported_by_its_component():
    def taken(fail, workers, error, match):
        parts = [
            MapDataset.range(1000, 4000),
            MapDataset.range(60).map(lambda x: fail(0) if x == 40 else x),
        ]
        options = MultiprocessingOptions(workers, num_lanes=usable_cpus(), executor="processes")
        made = [
            ds.filter(lambda x: x % 5 != 1).to_iter_dataset(ReadOptions(0, 0)).mp_prefetch(options)
            for ds in parts * 2
        ]
        it, seen = iter(IterDataset.mix(made[:3])), []
        with pytest.raises(error, match=match):
            seen.extend(iter(it.__next__, None))
        it.skip_failed()
        return [*seen, *it], it.get_state()

    text = (
        r"(?s)Worker process \d of .*SIGSEGV.*, at element 40 or in what is made of"
        r" it.*input_index=1"
    )
    expected = taken(lambda _: 1 // 0, 0, ZeroDivisionError, "input_index=1")
    assert taken(ctypes.string_at, usable_cpus(), RuntimeError, text) == expected


@pytest.mark.parametrize("after", [0, 30, 700])
def test_after_a_death_all_continue_and_one_says_so(after):
    it, deaths = iter(IterDataset.mix(parts_of(4, 3000, 2, num_lanes=3))), []
    it.start_prefetch()
    seen = [*islice(it, after)]
    assert [os.kill(process, signal.SIGKILL) for process in processes(it)]
    while len(seen) < 4 * 3000:
        try:
            seen.append(next(it))
        except RuntimeError as error:
            deaths.append("SIGKILL" in str(error))
            it.set_state(it.get_state())
    assert seen == [3000 * i + x for x in range(3000) for i in range(4)]
    assert all(deaths) and len(deaths) <= max(2, usable_cpus())
