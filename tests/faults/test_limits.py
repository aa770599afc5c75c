"""Little memory, few file descriptors, many iterators."""

import pytest
from fault_harness import check_parts

LIMITED = """
@contextlib.contextmanager
def limited(descriptors):
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)

def check(numbers, arrays):
    assert [(x == i).all() for i, x in zip(numbers, arrays, strict=True)] == [True] * len(numbers)
"""
FEW_DESCRIPTORS = """
with limited(64):
    for api in "loader", "inside", "loader":
        check(range(40), list(APIS[api](Work("full", size=100_000), 40, 2)))
"""
ABANDONED = """
# Idle pools would have more descriptors than there are: they are closed for any use.
from gristmill.workers.pool import WorkerPool
from gristmill.workers.registry import registry
seconds, WorkerPool.idle_seconds = WorkerPool.idle_seconds, 60.0
path = FOLDER / "numbers.jsonl"
path.write_text("7\\n" * 3)

def abandon(api):
    it = APIS[api](Work("full"), 1000, 2).__iter__()
    it.me = [it]  # only the garbage collector frees it
    return next(it)[0]

def fill(num_free):
    taken = []
    with contextlib.suppress(OSError):
        while True:
            taken.append(os.open("/dev/null", os.O_RDONLY))
    for fd in taken[:num_free]:
        os.close(fd)
    return taken[num_free:]

with limited(64):
    assert [abandon("dataset") for _ in range(12)] == [0] * 12
    gc.collect()
    wait_for(lambda: len(registry.idle) <= 3, "a fork server and 64 / 4 descriptors may stay")
    for num_free in range(0, 8, 2):
        source = gm.sources.JsonlSource(str(path))
        assert abandon("dataset") == abandon("dataset") == 0
        taken = fill(num_free)
        try:
            assert abandon("dataset") == 0
            fds = fill(0)
            assert source[1] == 7  # its file gets a descriptor of a worker
        finally:
            for fd in [*taken, *fds]: os.close(fd)
gc.collect()
registry.close_idle(lambda pool: isinstance(pool, WorkerPool))
WorkerPool.idle_seconds = seconds
del source
"""
AUTO = """
# What the system does not give is not needed.
workers = gm.MultiprocessingOptions("auto", num_lanes=8, executor="processes", max_workers=8)
ds = gm.MapDataset.range(10**5).map(lambda x: x + 1).to_iter_dataset().mp_prefetch(workers)
it, found = iter(ds), []

def take(num):
    for _ in range(num): found.append(next(it))

def take_until(num_workers):
    while len(it.executor.workers) != num_workers: take(1)

import logging
take(1)
logging.disable(logging.WARNING)
with limited(len(descriptors()) + 3):
    take(99)
    it.set_state(it.get_state())
    take(100)
    logging.disable(logging.NOTSET)
    assert not it.executor.workers
    (decision,) = it.executor.tuning.decisions
    assert str(decision).startswith("2 → 0 workers: the system gave no more: OSError"), decision
it.resize(1)
take_until(1)
with limited(len(descriptors()) + 3):
    it.resize(7)
    for _ in range(2):  # until another number is asked for
        try:
            take(10**5)
        except OSError as error:
            assert "Too many open files" in str(error), error
    it.resize(1)
    take(100)
it.resize(7)
take_until(7)
assert found == [*range(1, len(found) + 1)] and len(found) < 10**5
it.close()
"""
UNUSED_ITERATORS = """
watch = Watch()
iterators = [iter(dataset(Work("full"), 1000, 2)) for _ in range(200)]
states = [it.get_state() for it in iterators]
for it, state in zip(iterators, states): it.set_state(state)
assert surroundings() == watch.before
"""


def keeping(api):
    """200 batches of 0.8 MB, half of which are let go of later and used again."""
    return f"""
    it = iter(APIS[{api!r}](Work("full", size=100_000), 400, 2))
    kept = [next(it) for _ in range(200)]
    check(range(200), kept)
    del kept[::2]
    for i in range(200, 300):
        x = next(it)
        assert (x == i).all()
        x[:] = -1  # the consumer's own
    kept += list(it)
    numbers = [*range(1, 200, 2), *range(300, 400)]
    check(numbers, kept)
    it.close()
    check(numbers, kept)
    """


def abandoned(num, api):
    """The next iterator takes over the processes of the one before."""
    return f"""
    def abandon():
        it = iter(ds)
        assert next(it)[0] == 0

    work = Work("full")
    ds = APIS[{api!r}](work, 1000, 2)
    abandon()
    before = surroundings()
    most = 0
    for number in range({num}):
        abandon()
        now = surroundings()
        most = max(most, len(now["descriptors"]))
        assert len(now["threads"]) <= len(before["threads"]), now
    assert most <= len(before["descriptors"]) + 2, (most, before)
    assert len(work.process_ids()) <= 4, work.process_ids()
    """


def test_few_descriptors_much_memory_and_many_iterators(tmp_path):
    parts = (
        FEW_DESCRIPTORS,
        ABANDONED,
        AUTO,
        UNUSED_ITERATORS,
        keeping("dataset"),
        abandoned(30, "dataset"),
    )
    check_parts(tmp_path, *parts, tools=LIMITED)


OF_DIFFERENT_PIPELINES = """
# None can take over the processes of another one: they end, faster than they would pile up.
most = 0
for number in range(30):
    it = iter(dataset(Work("full"), 1000, 1))
    assert next(it)[0] == 0
    del it
    most = max(most, len(descriptors()))
assert most < 60, most
"""
NO_DESCRIPTORS = """
# Nothing stays half started.
import gristmill.dataset.stages.mp_prefetch  # imports need descriptors too
ds = dataset(Work("full"), 9, 2)
assert len(list(ds)) == 9
gc.collect()
wait_for(lambda: threading.active_count() == 1 and not children(), "workers stay")
num_free = 0
while num_free < 20:
    watch = Watch()
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    limit = max(map(int, os.listdir("/proc/self/fd"))) + num_free
    it = iter(ds)
    try:
        with limited(limit):
            assert next(it)[0] == 0
        break
    except OSError as error:
        assert "Too many open files" in str(error), error
    finally:
        for fd in taken: os.close(fd)
    watch.check()
    num_free += 1
assert 3 < num_free < 20, num_free
"""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_no_descriptors_and_iterators_of_all_kinds(tmp_path):
    kinds = [keeping("loader"), abandoned(100, "loader"), abandoned(100, "inside")]
    check_parts(tmp_path, NO_DESCRIPTORS, OF_DIFFERENT_PIPELINES, *kinds, tools=LIMITED)
