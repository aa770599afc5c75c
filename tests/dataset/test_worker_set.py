"""Several ``mp_prefetch`` below one iterator: they share processes, of which nothing can be told but their number."""

import ctypes
import json
import os
import random
import signal
from collections import Counter
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from waiting import wait_until
from worker_pools import parked_for_long

from gristmill import IterDataset, MapDataset, MultiprocessingOptions, ReadOptions
from gristmill.core.cgroup import usable_cpus
from gristmill.dataset.bases.observing import running_upstream
from gristmill.experimental import InterleaveIterDataset, ZipIterDataset

patient = pytest.fixture(parked_for_long, name="patient")


def numbers(start, stop):
    return MapDataset.range(start, stop).to_iter_dataset()


def processes(it):
    """The processes that compute for ``it``, and how many workers are in each."""
    found = Counter([worker.process_id for worker in it._worker_processes()])
    return found + sum(map(processes, running_upstream(it)), Counter())


def component(rng, number, workers):
    """A random pipeline in lanes, which ``workers`` processes compute at most."""

    def change(x):
        if x == bad:
            raise OSError(5, f"bad record {x}", "file")
        return {"x": x, "of": number} if small else {"x": np.full(9000, x), "of": number}

    small, bad, seed = rng.random() < 0.8, rng.choice([-1, -1, 7, 12]), rng.randrange(100)
    ds = MapDataset.range(rng.randrange(25, 60)).shuffle(seed=seed).map(change)
    ds = ds.to_iter_dataset(rng.choice([None, ReadOptions(0, 0), ReadOptions(2, 3)]))
    if rng.random() < 0.4:
        ds = ds.filter(lambda element: np.max(element["x"]) % 3 != 1)
    if rng.random() < 0.3:
        ds = ds.random_map(lambda element, generator: {**element, "noise": int(generator.integers(99))}, seed=seed)
    if rng.random() < 0.3:
        ds = ds.batch(3)
    num, num_more, size = rng.randrange(1, 4), rng.randrange(3), rng.choice([1, 5, 500])
    return ds.mp_prefetch(MultiprocessingOptions(min(num, workers), size, num_lanes=num + num_more))


def tree(rng, workers, depth=2):
    kind = rng.choice(["mix", "mix", "zip", "interleave"]) if depth else "leaf"
    if kind == "leaf":
        return component(rng, rng.randrange(1000), workers)
    parents = [tree(rng, workers, rng.choice([0, depth - 1])) for _ in range(rng.randrange(2, 4))]
    if kind == "mix":
        return IterDataset.mix(parents, [rng.randrange(1, 4) for _ in parents])
    return ZipIterDataset(parents, strict=False) if kind == "zip" else InterleaveIterDataset(parents, cycle_length=2)


def plain(x):
    return json.dumps(x, default=lambda array: np.asarray(array).tolist())


def outcome(function):
    try:
        return plain(function())
    except StopIteration:
        return "the end"
    except OSError as error:
        return repr(error)


@pytest.mark.parametrize("seed", range(12))
def test_random_pipelines_are_those_without_processes(seed, patient):
    """Also where states are set, errors skipped, and iterators closed or left, in between."""
    made = [tree(random.Random(seed), workers) for workers in (0, 9)]
    rng = random.Random(seed)
    here, there = map(iter, made)
    saved = [here.get_state()]
    for _ in range(60):
        action = rng.choice(["next"] * 8 + ["save", "restore", "anew", "close", "prefetch"])
        if action == "next":
            results = [[outcome(it.__next__) for _ in range(4)] for it in (here, there)]
            assert results[0] == results[1]
            if "OSError" in results[0][-1] and rng.random() < 0.7:
                here.skip_failed()
                there.skip_failed()
        elif action == "save":
            saved.append(here.get_state())
        elif action == "prefetch":
            there.start_prefetch()
        else:
            if action == "close":
                there.close()
            if action != "restore":
                here, there = map(iter, made)
            state = json.loads(json.dumps(rng.choice(saved)))
            here.set_state(state)
            there.set_state(state)
        assert plain(there.get_state()) == plain(here.get_state())
    there.close()


def test_there_is_one_set_of_processes_for_all_and_a_second_epoch_has_the_same(patient):
    many = [numbers(100 * i, 100 * i + 90).mp_prefetch(MultiprocessingOptions(2)) for i in range(34)]
    own = numbers(0, 90).map(str).mp_prefetch(MultiprocessingOptions(2), lambda i, n: os.environ.update(A="1"))
    other = numbers(0, 90).map(str).mp_prefetch(MultiprocessingOptions(1, worker_env={"A": "1"}))
    late = numbers(0, 90).mp_prefetch(MultiprocessingOptions(1))
    ds = IterDataset.mix([IterDataset.mix(many), own, ZipIterDataset([other, late])], [6000, 6, 1])
    it = iter(ds)
    assert not processes(it)
    first = [*islice(it, 2000)]
    num, used = max(2, usable_cpus()), processes(it)
    assert sorted(used.values()) == sorted([1, 1, *[2 * 34 // num + (i < 2 * 34 % num) for i in range(num)]])
    it.start_prefetch()
    assert sum(processes(it).values()) == 2 * 34 + 4 and len(processes(it)) == num + 3  # one in another environment
    del it
    again = iter(ds)
    assert [*islice(again, 2000)] == first
    again.start_prefetch()
    later = processes(again)
    assert len(later) == num + 3 and len(used.keys() & later.keys()) == num  # but where there is a function
    again.close()
    wait_until(lambda: not any([Path(f"/proc/{process}").exists() for process in later]))


def test_nobody_waits_for_what_is_not_taken_of_another_one(tmp_path):
    made = tmp_path / "made"

    def slow(x):
        with made.open("a") as file:
            file.write(".")
        return np.full(10_000, x)

    full = numbers(0, 1000).map(slow).mp_prefetch(MultiprocessingOptions(1, 2))
    quick = numbers(0, 50_000).mp_prefetch(MultiprocessingOptions(1, num_lanes=3))
    others = [numbers(0, 9).mp_prefetch(MultiprocessingOptions(1)) for _ in range(usable_cpus() - 1)]
    it = iter(IterDataset.mix([full, *others, quick], [1, *[1 for _ in others], 10_000]))
    it.start_prefetch()
    assert max(processes(it).values()) == 2  # the last one is where the first is
    assert sum([int(np.max(x)) for x in islice(it, 9_000)]) > 30_000_000
    assert len(made.read_text()) < 10


def test_a_record_that_kills_is_told_of_by_its_own_component_alone():
    def failing(fail):
        return lambda x: fail(0) if x == 40 else x

    def mixed(fail, workers):
        parts = [MapDataset.range(1000, 4000), MapDataset.range(60).map(failing(fail)), MapDataset.range(5000, 8000)]
        options = MultiprocessingOptions(workers, num_lanes=usable_cpus())
        made = [ds.filter(lambda x: x % 5).to_iter_dataset(ReadOptions(0, 0)).mp_prefetch(options) for ds in parts]
        return iter(IterDataset.mix(made))

    def taken(it, error, match):
        seen = []
        with pytest.raises(error, match=match):
            seen.extend(iter(it.__next__, None))
        it.skip_failed()
        return [*seen, *it]

    text = r"(?s)Worker process \d of .*SIGSEGV.*, at element 40 or in what is made of it.*input_index=1"
    here, there = mixed(lambda _: 1 // 0, 0), mixed(ctypes.string_at, usable_cpus())
    assert taken(there, RuntimeError, text) == taken(here, ZeroDivisionError, "input_index=1")
    assert there.get_state() == here.get_state()


@pytest.mark.parametrize("after", [0, 1, 30, 700])
def test_after_a_death_all_go_on_and_one_says_so(after):
    made = [numbers(10_000 * i, 10_000 * i + 3000).mp_prefetch(MultiprocessingOptions(2, num_lanes=3)) for i in range(4)]
    it, deaths = iter(IterDataset.mix(made)), []
    it.start_prefetch()
    seen = [*islice(it, after)]
    for process in processes(it):
        os.kill(process, signal.SIGKILL)
    while len(seen) < 4 * 3000:
        try:
            seen.append(next(it))
        except RuntimeError as error:
            deaths.append(str(error))
            it.set_state(it.get_state())
    assert seen == [10_000 * i + x for x in range(3000) for i in range(4)]
    assert len(deaths) <= max(2, usable_cpus()) and all(["SIGKILL" in text for text in deaths])
