"""The process that workers are forked from: its workers are like those that are started, and its
death does no harm.
"""

from fault_harness import check_parts, check_silent, run

TOOLS = """
ForkServer.idle_seconds = 60.0  # it stays from one part to the next

def look(x):
    import random
    a = np.random.rand(300, 300)
    # threads of libraries do not survive a fork by themselves
    np.testing.assert_allclose((a @ a)[5, 7], sum(a[5] * a[:, 7]))
    umask = os.umask(0)
    os.umask(umask)
    draws = float(np.random.rand()), random.random(), float(a[0, 0])
    surroundings = [
        os.environ.get("CHANGED"),
        umask,
        resource.getrlimit(resource.RLIMIT_NPROC)[0],
        os.getcwd(),
        sys.argv[-1],
    ]
    surroundings += [
        os.path.sameopenfile(1, 2),
        os.isatty(1),
        os.getpgrp() == os.getpid(),
        signal.getsignal(signal.SIGCHLD).name,
    ]
    links = [link.partition(":")[0] for fd, link in descriptors().items() if int(fd) > 2]
    open_now = {link for link in links if "libffi" not in link}  # which keeps its own file open
    return os.getppid(), draws, surroundings, open_now, sorted(sys.modules)

def looks(num=2, fn=look):
    with iter(mp(gm.MapDataset.range(num).map(fn).to_iter_dataset(), num)) as it:
        return list(it)
"""
SHARED = """
seen = [*looks(2), *looks(3)]
assert {x[0] for x in seen} == fork_servers() and len(fork_servers()) == 1
draws = [draw for x in seen for draw in x[1]]
assert len({*draws}) == len(draws) == 15, draws
assert all([x[2:4] == seen[0][2:4] for x in seen]) and seen[0][2][5:] == [
    os.path.sameopenfile(1, 2),
    False,
    True,
    "SIG_DFL",
]
assert seen[0][3] <= {"socket", "pipe", "/memfd"}, seen[0][3]

def imports(x):
    import colorsys
    return "colorsys" in sys.modules

assert looks(2, imports) == [True, True]
assert not [x for x in looks() if "colorsys" in x[4]]  # that was another one's
"""
CHANGES = """
@contextlib.contextmanager
def put_back(change, back):
    change()
    try:
        yield
    finally:
        back()

def limit(num):
    resource.setrlimit(resource.RLIMIT_NPROC, (num, hard))

def stdout_to_stderr():
    global old
    old = os.dup(1)
    os.dup2(2, 1)

soft, hard = resource.getrlimit(resource.RLIMIT_NPROC)
soft = hard if soft == resource.RLIM_INFINITY else soft
place, ignore = os.getcwd(), signal.getsignal(signal.SIGCHLD)
before = looks()[0]
# what is changed, which of the surroundings it is, and whether that takes another fork server
changes = [
    (lambda: os.environ.update(CHANGED="yes"), lambda: os.environ.pop("CHANGED"), 0, "yes", True),
    (lambda: os.umask(0o027), lambda: os.umask(before[2][1]), 1, 0o027, True),
    (lambda: limit(9999), lambda: limit(before[2][2]), 2, 9999, True),
    (lambda: os.chdir("/"), lambda: os.chdir(place), 3, "/", False),
    (lambda: sys.argv.append("more"), sys.argv.pop, 4, "more", False),
    (stdout_to_stderr, lambda: (os.dup2(old, 1), os.close(old)), 5, True, False),
    (
        lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
        lambda: signal.signal(signal.SIGCHLD, ignore),
        8,
        "SIG_IGN",
        True,
    ),
]
for change, back, number, value, is_another in changes:
    (fork_server,) = fork_servers()
    with put_back(change, back):
        seen = looks()
        assert [x[2][number] for x in seen] == [value] * 2, (number, seen[0][2])
        expected = [*before[2][:number], value, *before[2][number + 1:]]
        assert seen[0][2] == expected, (expected, seen[0][2])
        assert (seen[0][0] != fork_server) == is_another, number
        wait_for(lambda: fork_servers() == {seen[0][0]}, "the old one stays")
    assert looks()[0][2] == before[2]
    wait_for(lambda: len(fork_servers()) == 1, "the old one stays")
"""
KILLED = """
def kill_fork_servers():
    for process_id in fork_servers():
        os.kill(process_id, signal.SIGKILL)

# while it starts, or has just done so: others take the place of its workers
for number in range(5):
    os.environ["NUMBER"] = str(number)
    it = iter(mp(gm.MapDataset.range(30).to_iter_dataset(), 2))
    it.start_prefetch()
    began = time.monotonic()
    while time.monotonic() < began + 0.04 * number:
        pass
    kill_fork_servers()
    assert list(it) == [*range(30)]
    it.close()

def waits(x):
    # for the process that takes the place of this one
    if x == 9:
        (FOLDER / f"at_9_{os.getpid()}").touch()
        wait_for(lambda: len([*FOLDER.glob("at_9_*")]) > 1, "")
    return x

os.environ["NUMBER"] = "while they run"
it = iter(mp(gm.MapDataset.range(30).map(waits).to_iter_dataset(), 2))
seen = [next(it) for _ in range(2)]
before = worker_processes()
wait_for(lambda: [*FOLDER.glob("at_9_*")], "")
kill_fork_servers()
assert [*seen, *it] == [*range(30)]
wait_for(
    lambda: not any([Path(f"/proc/{process_id}").exists() for process_id in before]),
    "its workers live on",
)
assert looks(2)[0][0] in fork_servers()
"""
IN_FORKS = """
looks()
(fork_server,) = fork_servers()
child = os.fork()
if child == 0:
    with contextlib.ExitStack() as failing:
        failing.callback(os._exit, 1)
        assert looks()[0][0] != fork_server
        os._exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert fork_servers() == {fork_server} == {looks()[0][0]}
"""
STOPPED = """
def stop_template():
    (fork_server,) = wait_for(lambda: fork_servers() - stopped, "no fork server")
    os.kill(fork_server, signal.SIGSTOP)
    wait_for(lambda: run_state(fork_server) == "T", "it still runs")
    return fork_server

def parent(x):
    return os.getppid()

def single():
    return iter(mp(gm.MapDataset.range(9).map(parent).to_iter_dataset(), 2))

def shared():
    functions = parent, lambda x: os.getppid()
    parts = [mp(gm.MapDataset.range(9).map(fn).to_iter_dataset(), 2) for fn in functions]
    return iter(gm.IterDataset.mix(parts, [1, 1]))

def ends_quickly(it):
    began, processes = time.monotonic(), workers()
    it.close()
    assert time.monotonic() - began < 3
    assert {run_state(process_id) for process_id in processes} == {"Z"}

def while_it_runs(make):
    it = make()
    next(it)
    stopped.add(stop_template())
    ends_quickly(it)  # workers that it has forked

def continues(it):
    # Its workers are started directly, or forked from another fork server.
    assert not {*it} & stopped
    ends_quickly(it)

stopped = set()
os.environ["NUMBER"] = "before it starts"
it = single()
it.start_prefetch()
stopped.add(stop_template())
continues(it)
for make in single, shared:
    os.environ["NUMBER"] = f"{make}"
    while_it_runs(make)
continues(shared())
"""
KILLED_WORKERS = """
work = Work("idle", last=99)
it = iter(mp(gm.MapDataset.range(200).to_iter_dataset().map(work), 2))
seen = [int(next(it)[0]) for _ in range(2)]
(fork_server,) = fork_servers()
os.kill(fork_server, signal.SIGSTOP)
for process_id in workers():
    os.kill(process_id, signal.SIGKILL)
while take_all(it, seen):  # a worker died
    it.set_state(it.get_state())
assert seen == [*range(200)], seen
it.close()
"""
# nothing is left, in a while
AFTER_A_WHILE = "ForkServer.idle_seconds = 1.0; looks(); assert fork_servers()"
END = "gm.workers.registry.registry.close_all(); wait_for(lambda: not fork_servers(), 'it stays')"


def test_workers_of_a_fork_server_are_like_any_other(tmp_path):
    flags = ("-W", "ignore::DeprecationWarning")
    parts = [f"{part}\n{END}" for part in (SHARED, CHANGES, IN_FORKS)]
    check_parts(tmp_path, *parts, AFTER_A_WHILE, tools=TOOLS, flags=flags)


def test_a_fork_server_that_is_killed(tmp_path):
    check_parts(tmp_path, f"{KILLED}\n{END}", tools=TOOLS)


def test_a_fork_server_that_is_stopped(tmp_path):
    check_parts(tmp_path, f"{STOPPED}\n{END}", f"{KILLED_WORKERS}\n{END}", tools=TOOLS)


def test_where_none_can_be(tmp_path):
    """The interpreter's own start has threads, or the system allows no forks."""
    thread = (
        "import threading, time; threading.Thread(target=time.sleep, args=(1000,),"
        " daemon=True).start()"
    )
    no_forks = "import os\ndef fork(): raise BlockingIOError\nos.fork = fork"
    for text in thread, no_forks:
        (tmp_path / "sitecustomize.py").write_text(
            f"import sys\nif 'boot.py' in sys.argv[0]:\n    exec({text!r})\n"
        )
        script = "assert [x[0] for x in looks(3)] == [os.getpid()] * 3 == [x[0] for x in looks(3)]"
        check_silent(
            run(
                tmp_path,
                f"import os; os.environ['PYTHONPATH'] += ':' + str(FOLDER)\n{TOOLS}\n{script}",
            ),
            out="",
        )
