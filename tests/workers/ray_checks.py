"""Checks that ``test_ray.py`` runs with pytest in another process: Ray leaves threads and handlers
behind.
"""

import contextlib
import gc
import logging
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from itertools import islice

import numpy as np
import pytest
from new_seed import SEED
from operations import NOISE, plain
from outcomes import outcomes
from refusing import assert_raises
from stream_model import frozen
from waiting import is_running, wait_until
from written import contents, packed, sparse

# read when Ray is imported: it listens at the loopback address alone
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
import ray
from ray.cluster_utils import Cluster

from gristmill import (
    DataLoader,
    MapDataset,
    MultiprocessingOptions,
    RayOptions,
    ReadOptions,
    observe,
    write,
)
from gristmill.diagnostics.report import report_html
from gristmill.diagnostics.runtime.stalls import waiting_text
from gristmill.experimental import InterleaveIterDataset
from gristmill.samplers import IndexSampler
from gristmill.transforms import Batch

LANES = MultiprocessingOptions(num_lanes=5)
# no check has to wait for actors of its own to start
SHARED = RayOptions(3, num_lanes=5, pool="checks", num_cpus=0)
MEGABYTE = 1 << 20


@pytest.fixture(scope="module")
def cluster():
    node = {"node_ip_address": "127.0.0.1", "object_store_memory": 200 * MEGABYTE}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 4, "include_dashboard": False, **node}
    )
    cluster.add_node(num_cpus=4, **node)
    ray.init(address=cluster.address, log_to_driver=False)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


pytestmark = pytest.mark.usefixtures("cluster")


def actors(it):
    return {worker.index: worker.process_id for worker in it.pool.workers}


def chain(bad):
    """Returns a chain of all that may depend on the worker: random streams, positions, windows, and
    errors at some elements.
    """

    def fail(x):
        if x[0] in bad:
            raise LookupError(f"bad record {x[0]}")
        return x

    ds = (
        MapDataset.range(61)
        .seed(3)
        .shuffle()
        .random_map(lambda x, rng: (x, int(rng.integers(100))))
    )
    ds = (
        ds.to_iter_dataset(ReadOptions(3, 7))
        .filter(lambda x: x[0] % 4)
        .map(fail)
        .map_with_index(lambda i, x: (*x, i))
    )
    return (
        ds.random_map(lambda x, rng: (*x, int(rng.integers(100))), seed=5)
        .window_shuffle(5, seed=1)
        .batch(3, batch_fn=list)
    )


def used_bytes():
    return ray.cluster_resources()["object_store_memory"] - ray.available_resources().get(
        "object_store_memory", 0
    )


def outcome_of(ds):
    """Elements, and the error or end after them."""
    elements = []
    try:
        elements.extend(frozen(x) for x in ds)
    except Exception as error:
        elements.append((type(error), str(error)))
    return elements


def slow(x):
    time.sleep(0.002)
    return np.full(3000, x)


@pytest.mark.parametrize(
    "bad", [pytest.param((), marks=pytest.mark.slow), (1, 2, 30, 33, 58)], ids=["whole", "failing"]
)
def test_elements_errors_and_states_are_those_of_lanes_anywhere(bad):
    expected = outcomes(iter(chain(bad).mp_prefetch(LANES)))
    it = iter(chain(bad).mp_prefetch(SHARED))
    assert outcomes(it) == expected
    for position in (0, 7):
        for other in (it, iter(chain(bad).mp_prefetch(MultiprocessingOptions(2, num_lanes=5)))):
            other.set_state(expected[position][1])
            assert outcomes(other) == expected[position + 1 :]


def test_loaders_batches_for_hosts_and_streams():
    def loader(**options):
        sampler = IndexSampler(60, shuffle=True, seed=7, num_epochs=1)
        return DataLoader(
            data_source=np.arange(60), sampler=sampler, operations=[NOISE, Batch(4)], **options
        )

    here, there = iter(loader(num_lanes=5)), iter(loader(workers=SHARED))
    for position in range(2):
        there.resize(3 - position)
        for _ in range(4):
            assert plain(next(there)) == plain(next(here)) and there.get_state() == here.get_state()
    assert plain(there) == plain(here)
    stream = MapDataset.range(50).shuffle(2).to_iter_dataset().filter(lambda x: x % 3)
    two = RayOptions(2, pool="checks", num_cpus=0)
    assert plain(stream.global_batch(4, workers=two)) == plain(stream.global_batch(4))
    assert plain(loader().global_batch(4, workers=two)) == plain(loader().global_batch(4))
    assert plain(stream.batch(3).mp_prefetch(two, order="stream")) == plain(stream.batch(3))
    datasets = InterleaveIterDataset([stream.limit(5 + i) for i in range(5)], cycle_length=2)
    it = iter(datasets.mp_prefetch(two, order="stream"))
    expected, state = [*datasets], it.get_state()
    for _ in range(2):  # the second time from a state, by actors that compute other datasets
        assert [*it] == expected
        it.set_state(state)
    with pytest.raises(ValueError, match="worker_count must not be given beside workers"):
        loader(worker_count=2, workers=two)
    assert_raises(ValueError, "num_workers must be at most num_lanes, 5, got 6", there.resize, 6)
    assert_raises(ValueError, "no workers that can be resized", iter(stream).resize, 2)


def test_files_that_actors_write_are_those_of_one_process(tmp_path):
    actors = RayOptions(3, pool="checks", num_cpus=0)
    for make in (sparse, packed):
        folders = [tmp_path / f"{make.__name__}-{name}" for name in ("here", "actors")]
        for folder, workers in zip(folders, (0, actors), strict=True):
            assert write(make(), folder, records_per_file=9, workers=workers).complete
        assert contents(folders[0]) == contents(folders[1])


@pytest.mark.parametrize("writable", [True, pytest.param(False, marks=pytest.mark.slow)])
def test_arrays_and_what_the_pipeline_holds(writable):
    rows = np.arange(10**6).reshape(100, 10**4)
    ds = MapDataset.source(rows).map(
        lambda row: {"large": row * 2, "small": row[:3] * 2, "transposed": np.ones((300, 200)).T}
    )
    options = RayOptions(1, pool="checks", num_cpus=0, writable=writable)
    found = [*ds.to_iter_dataset().mp_prefetch(options)]
    assert [x["small"].tolist() for x in found] == (rows[:, :3] * 2).tolist()
    assert all(x["transposed"].flags.f_contiguous for x in found)
    assert all(np.array_equal(x["large"], row * 2) for x, row in zip(found, rows, strict=True))
    assert {array.flags.writeable for x in found for array in x.values()} == {writable}


def test_an_actor_that_dies_takes_nothing_along():
    ds = MapDataset.range(10**6).map(slow).to_iter_dataset()
    it = iter(ds.mp_prefetch(RayOptions(2, num_lanes=4, num_cpus=0.5)))
    seen = [int(next(it)[0])]
    while len(before := actors(it)) < 2:
        seen.append(int(next(it)[0]))
    os.kill(before[0], signal.SIGKILL)
    seen += [int(x[0]) for x in islice(it, 1500)]  # more than were ahead
    assert seen == [*range(len(seen))]
    it.close()
    wait_until(lambda: not any(map(is_running, before.values())))


@pytest.mark.slow
def test_an_element_that_kills_and_one_that_hangs():
    def deadly(x):
        if x == 21:
            os.kill(os.getpid(), signal.SIGKILL)
        return x

    it = iter(
        MapDataset.range(40)
        .map(deadly)
        .to_iter_dataset()
        .mp_prefetch(RayOptions(2, num_lanes=4, num_cpus=0.5))
    )
    seen = []
    with pytest.raises(
        RuntimeError,
        match=r"Ray actors were lost, .*, while lane 1 of 4 was computed, at element 21",
    ):
        seen.extend(it)
    it.close()
    assert seen == [*range(21)]

    def stuck(x):
        if x == 21:
            threading.Event().wait()
        return x

    ds = MapDataset.range(40).map(stuck).to_iter_dataset(ReadOptions(0)).mp_prefetch(SHARED)
    it = iter(ds)
    waiter = threading.Thread(target=assert_raises, args=(ValueError, "was closed", list, it))
    waiter.start()
    awaited = (
        r"(?s)It waits for worker \d on node 127.0.0.1 \(\w{6}\), process \d+, lane \d, at element"
        r" \d.*Event\(\).wait\(\)"
    )
    # a look may find it between two waits
    wait_until(lambda: re.search(awaited, waiting_text(it, waiter.ident, 21, 1.0)))
    it.close()
    waiter.join()
    it = iter(ds)
    start = it.get_state()
    for _ in range(2):  # the second time from where others are, which do not answer
        assert [next(it) for _ in range(5)] == [*range(5)]
        wait_until(
            lambda: any(
                "threading.Event().wait()" in worker.transport.stacks()
                for worker in it.pool.workers
            )
        )
        it.set_state(start)
    it.close()


@pytest.mark.slow
def test_what_is_wrong_is_said(caplog):
    def fail(x):
        time.sleep(0.7)
        raise ArithmeticError(f"bad {x}") from KeyError("cause")

    it = iter(MapDataset.range(4).map(fail).to_iter_dataset().mp_prefetch(SHARED))
    for x in range(2):  # what fails slowly is skipped slowly
        with pytest.raises(ArithmeticError, match=f"bad {x}") as caught:
            next(it)
        it.skip_failed()
    assert type(caught.value.__cause__) is KeyError
    notes = "".join(caught.value.__notes__)
    assert "on node 127.0.0.1 (" in notes
    assert "MapMapDataset(transform=fail" in notes
    assert "element 1" in notes
    wrong = {
        "num_lanes": 1,
        "pool": "",
        "max_bytes_ahead": 0,
        "writable": 1,
        "num_cpus": -1,
        "resources": {1: 1},
    }
    for name, value in [*wrong.items(), ("runtime_env", "env")]:
        assert_raises((TypeError, ValueError), name, RayOptions, 2, **{name: value})
    assert_raises(ValueError, "num_workers", RayOptions, 0)
    secret = RayOptions(
        1, num_cpus=0, runtime_env={"env_vars": {"TOKEN": "secret", "JAX_PLATFORMS": "tpu"}}
    )
    assert "secret" not in repr(secret)
    names = MapDataset.source(["TOKEN", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"]).map(
        lambda name: os.environ[name]
    )
    assert [*names.to_iter_dataset().mp_prefetch(secret)] == ["secret", "tpu", ""]
    starved = iter(names.to_iter_dataset().mp_prefetch(RayOptions(1, resources={"third": 1})))
    thread = threading.Thread(target=assert_raises, args=(RuntimeError, "closed", next, starved))
    caplog.clear()  # the one before may have waited, too
    with caplog.at_level(logging.WARNING, "gristmill"):
        thread.start()
        wait_until(lambda: "started none of 1 actors" in caplog.text)
    starved.close()
    thread.join()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_random_pipelines():
    from hypothesis import HealthCheck, Phase, assume, given, seed, settings
    from stream_model import Endless, build, outcomes, trees

    @seed(SEED)
    @settings(
        max_examples=10,
        deadline=None,
        suppress_health_check=[*HealthCheck],
        phases=[Phase.generate],
    )
    @given(tree=trees)
    def check(tree):
        try:
            assume(len(list(islice(outcomes(tree), 200))) < 200)
        except Endless:
            assume(False)
        ds = build(tree)
        try:
            expected = ds.mp_prefetch(MultiprocessingOptions(num_lanes=3))
        except ValueError:  # there are workers already
            assume(False)
        found = ds.mp_prefetch(RayOptions(2, num_lanes=3, pool="checks", num_cpus=0))
        assert outcome_of(found) == outcome_of(expected)

    check()


def test_the_number_of_actors_is_found():
    ds = MapDataset.range(10**6).map(slow).to_iter_dataset(ReadOptions(0))
    auto = RayOptions("auto", num_lanes=5, num_cpus=0.5, max_workers=3)
    lanes = iter(MapDataset.range(10**6).to_iter_dataset().mp_prefetch(LANES))
    with iter(ds.mp_prefetch(auto)) as it, observe(it) as view:
        while not (decisions := view.summary().decisions):
            assert int(next(it)[0]) == next(lanes)
        assert "2 → 3 workers: the consumer waited " in decisions[0]
        while len(actors(it)) < 3:
            assert int(next(it)[0]) == next(lanes)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_many_kills_resizes_and_a_node_that_goes(cluster):
    rng = random.Random(SEED)
    ds = (
        MapDataset.range(10**6)
        .shuffle(1)
        .map(slow)
        .to_iter_dataset()
        .filter(lambda x: int(x[0]) % 5)
    )
    lanes = iter(
        MapDataset.range(10**6)
        .shuffle(1)
        .to_iter_dataset()
        .filter(lambda x: x % 5)
        .mp_prefetch(LANES)
    )
    it = iter(ds.mp_prefetch(RayOptions(3, num_lanes=5, num_cpus=1)))
    extra = cluster.add_node(
        num_cpus=3, node_ip_address="127.0.0.1", object_store_memory=200 * MEGABYTE
    )
    kills, next_at = 0, 0.0
    while kills < 9:
        assert int(next(it)[0]) == next(lanes)
        if time.monotonic() > next_at:
            next_at = time.monotonic() + rng.choice([0.0, 0.1, 1.0]) * rng.random()
            with contextlib.suppress(ProcessLookupError):  # killed before, not noticed yet
                os.kill(rng.choice([*actors(it).values()]), signal.SIGKILL)
                kills += 1
                if kills % 3 == 2:
                    it.resize(rng.randint(1, 5))
                if kills == 5:
                    cluster.remove_node(extra, allow_graceful=False)
    assert all(int(next(it)[0]) == next(lanes) for _ in range(500))
    it.close()


@pytest.mark.slow
def test_the_object_store_is_not_filled():
    ds = MapDataset.range(200).map(lambda x: np.full(MEGABYTE // 8, x)).to_iter_dataset()
    before, most = used_bytes(), 0
    it = iter(
        ds.mp_prefetch(RayOptions(2, num_lanes=4, num_cpus=0.5, max_bytes_ahead=8 * MEGABYTE))
    )
    for i, x in enumerate(it):
        assert x[0] == i
        if not i % 20:
            threading.Event().wait(0.3)  # everything that is read ahead is there
            most = max(most, used_bytes() - before)
    assert MEGABYTE < most <= 8 * MEGABYTE + 100_000
    it.close()
    assert [
        int(x[0]) for x in ds.limit(20).mp_prefetch(RayOptions(2, num_lanes=4, max_bytes_ahead=999))
    ] == [*range(80)]


CONSUMER = """
import sys
import numpy as np
import ray
from gristmill import MapDataset, RayOptions
if sys.argv[1] != "alone":
    ray.init(address=sys.argv[1], log_to_driver=False)
ds = MapDataset.range(10**6).map(lambda x: np.full(10**5, x)).to_iter_dataset()
it = iter(ds.mp_prefetch(RayOptions(2, num_cpus=0.5, pool=sys.argv[2] or None)))
i = 0
while i == 0 or len(it.pool.workers) < 2:
    assert next(it)[0] == i
    i += 1
print(*[worker.process_id for worker in it.pool.workers], flush=True)
while sys.stdin.readline():
    assert next(it)[0] == i
    i += 1
    print("ok", flush=True)
"""


def consumer(address, pool=""):
    streams = {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "text": True,
    }
    process = subprocess.Popen([sys.executable, "-c", CONSUMER, address, pool], **streams)
    return process, [int(pid) for pid in process.stdout.readline().split()]


@pytest.mark.slow
@pytest.mark.parametrize("is_alone", [True, False], ids=["a cluster of its own", "a cluster"])
def test_nothing_is_left_of_a_consumer_that_was_killed(cluster, is_alone):
    before = used_bytes()
    process, pids = consumer("alone" if is_alone else cluster.address)
    found = subprocess.run(
        ["pgrep", "-P", str(process.pid)], capture_output=True, text=True, check=False
    )
    children = [int(pid) for pid in found.stdout.split()]
    process.kill()
    process.wait()
    began = time.monotonic()
    wait_until(
        lambda: (
            not any(map(is_running, [*pids, *children]))
            and (is_alone or used_bytes() <= before + 1)
        )
    )
    # the specification's limit; it takes 0.5 s when the machine has nothing else to do
    assert time.monotonic() - began < 5


@pytest.mark.slow
def test_nothing_is_left_of_an_iterator_that_was_dropped():
    it = iter(MapDataset.range(10**12).to_iter_dataset().mp_prefetch(RayOptions(2, num_cpus=0.5)))
    next(it)
    while len(actors(it)) < 2:
        next(it)
    pids = [*actors(it).values()]
    began = time.monotonic()
    del it
    gc.collect()
    wait_until(lambda: not any(map(is_running, pids)))
    assert time.monotonic() - began < 5  # the specification's limit


@pytest.mark.slow
def test_programs_share_actors_and_survive_one_another(cluster):
    first, pids = consumer(cluster.address, "shared")
    second, others = consumer(cluster.address, "shared")
    assert {*pids} == {*others} and len({*pids}) == 2
    for process in (first, second):
        process.stdin.write("\n" * 30)
        process.stdin.flush()
        assert [process.stdout.readline() for _ in range(30)] == ["ok\n"] * 30
    first.kill()
    first.wait()
    second.stdin.write("\n" * 300)
    second.stdin.flush()
    assert [second.stdout.readline() for _ in range(300)] == ["ok\n"] * 300
    second.stdin.close()
    assert second.wait() == 0


@pytest.mark.slow
def test_diagnosis_shows_compute_transfer_and_waiting_by_node(cluster):
    def loads():
        next(it)
        return {load.node: load for load in view.snapshot().workers}

    def until(*expected):
        wait_until(
            lambda: (
                sorted([(x.num_workers, x.num_restarts) for x in loads().values()]) == [*expected]
            )
        )

    extra = cluster.add_node(
        num_cpus=3, node_ip_address="127.0.0.1", object_store_memory=200 * MEGABYTE
    )
    # one actor on each of three nodes
    options = RayOptions(3, num_lanes=6, num_cpus=3, max_bytes_ahead=MEGABYTE)
    it = iter(
        MapDataset.range(10**6).map(slow).to_iter_dataset(ReadOptions(0)).mp_prefetch(options)
    )
    with observe(it) as view:
        until((1, 0), (1, 0), (1, 0))
        wait_until(
            lambda: all(
                min(x.room_ns, x.encoding_ns, x.storing_ns, x.decoding_ns) for x in loads().values()
            )
        )
        lost = next(node for node in loads() if node == f"127.0.0.1 ({extra.node_id[:6]})")
        os.kill(
            next(worker.process_id for worker in it.pool.workers if worker.transport.node != lost),
            signal.SIGKILL,
        )
        until((1, 0), (1, 0), (1, 1))
        cluster.remove_node(extra, allow_graceful=False)
        until((0, 0), (1, 0), (1, 1))
        found, slept = loads(), 2_000_000 * view.summary()[2].num_produced_elements
        assert sum(load.shares[0] * load.lifetime_ns for load in found.values()) > slept / 2
        for text in (str(view.diagnosis()), report_html(view.diagnosis())):
            assert all(word in text.lower() for word in (*found, "object store", "1 restarted"))
        assert {thread.process.partition(",")[0] for thread in view.snapshot().threads} == {
            "main",
            *[f"node {n}" for n in found],
        }
    it.close()
