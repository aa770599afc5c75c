"""Little memory, few file descriptors, many iterators."""

import shutil
import subprocess
import sys

import pytest
from fault_harness import Program, check_silent, run


@pytest.mark.parametrize("api", ["loader", pytest.param("inside", marks=pytest.mark.slow)])
def test_few_file_descriptors(tmp_path, api):
    script = f"""
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
for epoch in range(3):
    seen = list(APIS[{api!r}](Work("full", size=100_000), 40, 2))
    assert [(x == i).all() for i, x in enumerate(seen)] == [True] * 40
"""
    check_silent(run(tmp_path, script), out="")


def test_arrays_that_outlive_their_workers_need_no_file_descriptors(tmp_path):
    script = """
resource.setrlimit(resource.RLIMIT_NOFILE, (32, 32))
watch, kept = Watch(), []
for number in range(24):
    with iter(dataset(Work("full"), 9, 1)) as it:
        next(it)
        kept.append(next(it))
gc.collect()
watch.check()
assert [(x == 1).all() for x in kept] == [True] * 24
"""
    check_silent(run(tmp_path, script), out="")


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_no_file_descriptors_at_all(tmp_path):
    """Then nothing stays half started."""
    script = """
import gristmill.dataset.stages.mp_prefetch  # imports need descriptors too
ds = dataset(Work("full"), 9, 2)
assert len(list(ds)) == 9
gc.collect()
wait_for(lambda: threading.active_count() == 1 and not children(), "workers stay")
files = []
num_free = 0
while num_free < 20:
    watch = Watch()
    taken = [os.open("/dev/null", os.O_RDONLY) for _ in range(3)]
    limit = max(map(int, os.listdir("/proc/self/fd"))) + num_free
    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, old[1]))
    it = iter(ds)
    try:
        assert next(it)[0] == 0
    except OSError as error:
        assert "Too many open files" in str(error), error
    else:
        break
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)
        for fd in taken: os.close(fd)
    assert threading.active_count() == 1 and not children()
    watch.check()
    num_free += 1
assert 3 < num_free < 20, num_free
"""
    check_silent(run(tmp_path, script), out="")


def test_small_dev_shm(tmp_path):
    unshare = shutil.which("unshare")
    command = "mount -t tmpfs -o size=4m none /dev/shm && test $(df --output=size -k /dev/shm | tail -1) = 4096"
    if unshare is None or subprocess.run([unshare, "-rm", "sh", "-c", command], capture_output=True).returncode:
        pytest.skip("this system does not let a user mount a file system of his own in a namespace")
    (tmp_path / "program.py").write_text(
        """from fault_tools import *
for api in APIS:
    it = iter(APIS[api](Work("full", size=1_000_000), 20, 2))  # 8 MB each
    assert [(x == i).all() for i, x in enumerate(list(it))] == [True] * 20
assert os.listdir("/dev/shm") == []
"""
    )
    program = [unshare, "-rm", "sh", "-c", f"{command} && exec {sys.executable} program.py"]
    check_silent(Program(tmp_path, program).outcome(), out="")


def check_abandoned(folder, num, api):
    script = f"""
def abandon():
    it = iter(ds)
    assert next(it)[0] == 0

work = Work("full")
ds = APIS[{api!r}](work, 1000, 2)
watch = Watch()
abandon()
before = surroundings()
most = 0
for number in range({num}):
    abandon()
    now = surroundings()
    most = max(most, len(now["descriptors"]))
    assert len(now["threads"]) <= len(before["threads"]), now
assert most <= len(before["descriptors"]) + 2, (most, before)
assert len(work.process_ids()) <= 4, work.process_ids()  # the next one takes over the processes of the one before
watch.check()
"""
    check_silent(run(folder, script), out="")


def test_abandoned_iterators(tmp_path):
    check_abandoned(tmp_path, 200, "dataset")


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
@pytest.mark.parametrize("api", ["loader", "inside"])
def test_abandoned_iterators_of_all_kinds(tmp_path, api):
    check_abandoned(tmp_path, 200, api)


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_abandoned_iterators_of_different_pipelines(tmp_path):
    """None can take over the processes of another one: they end, faster than they would pile up."""
    script = """
watch = Watch()
most = 0
for number in range(60):
    it = iter(dataset(Work("full"), 1000, 1))
    assert next(it)[0] == 0
    del it
    most = max(most, len(descriptors()))
assert most < 80, most
watch.check()
"""
    check_silent(run(tmp_path, script), out="")


def test_unused_iterators_cost_nothing(tmp_path):
    script = """
watch = Watch()
iterators = [iter(dataset(Work("full"), 1000, 2)) for _ in range(200)]
states = [it.get_state() for it in iterators]
for it, state in zip(iterators, states): it.set_state(state)
assert surroundings() == watch.before
"""
    check_silent(run(tmp_path, script), out="")


@pytest.mark.parametrize("api", [pytest.param("loader", marks=pytest.mark.slow), "dataset"])
def test_consumer_that_keeps_everything(tmp_path, api):
    """200 batches of 0.8 MB, half of which are let go of later and used again."""
    script = f"""
watch = Watch()
it = iter(APIS[{api!r}](Work("full", size=100_000), 400, 2))
kept = [next(it) for _ in range(200)]
assert [(x == i).all() for i, x in enumerate(kept)] == [True] * 200
del kept[::2]
for i in range(200, 300):
    x = next(it)
    assert (x == i).all()
    x[:] = -1  # the consumer's own
kept += list(it)
numbers = [*range(1, 200, 2), *range(300, 400)]
assert [(x == i).all() for i, x in zip(numbers, kept, strict=True)] == [True] * 200
it.close()
assert [(x == i).all() for i, x in zip(numbers, kept, strict=True)] == [True] * 200
del kept, x, it
watch.check()
"""
    check_silent(run(tmp_path, script), out="")


def test_memory_that_is_let_go_of_is_used_again(tmp_path):
    script = """
it = iter(dataset(Work("full", size=1_000_000), 300, 2))
first = np.array(next(it))
sizes = []
for x in it:
    used = 0
    for fd, link in descriptors().items():
        if "gristmill-worker" in link:
            used += os.fstat(int(fd)).st_blocks * 512
    sizes.append(used)
assert 0 < max(sizes) <= 2 * 8 * 8 * 2**20, max(sizes)  # eight batches of each worker
"""
    check_silent(run(tmp_path, script), out="")
