"""Workers start from any kind of program, and find there what the pipeline needs."""

import os
import pty
import select
import signal
import subprocess
import sys
import textwrap
import time

import pytest
from fault_harness import HERE, Program, check_silent, is_running, run, start

# Classes, functions and closures of the program in source, transformation, result and exception; no main guard.
USES_MAIN = """
import gristmill as gm

class Source:
    def __len__(self): return 6
    def __getitem__(self, i): return Box(i)
    def __repr__(self): return "Source()"

class Box:
    def __init__(self, value): self.value = value

class Bad(Exception):
    def __init__(self, box, why):
        super().__init__(f"{why}: {box.value}")
        self.box = box

class Add(gm.MapTransform):
    def __init__(self, n): self.n = n
    def map(self, box): return Box(box.value + self.n)

def closure(limit):
    def check(box):
        if box.value >= limit:
            raise Bad(box, "too large")
        return box
    return check

offset = 100
ds = gm.MapDataset.source(Source()).map(lambda box: Box(box.value + offset)).map(Add(1)).to_iter_dataset().map(closure(105))
it = iter(ds.mp_prefetch(gm.MultiprocessingOptions(2)))
seen = []
try:
    for box in it: seen.append(box)
except Bad as error:
    print(type(error) is Bad, type(error.box) is Box, error)

print([box.value for box in seen], all([type(box) is Box for box in seen]))
sampler = gm.samplers.IndexSampler(6, num_epochs=1)
loader = gm.DataLoader(data_source=Source(), sampler=sampler, operations=[Add(1)], worker_count=2)
print([box.value for box in loader if type(box) is Box])
"""
OUT = "True True too large: 105\n[101, 102, 103, 104] True\n[1, 2, 3, 4, 5, 6]\n"


def as_file(folder, text=USES_MAIN, name="program.py"):
    path = folder / name
    path.write_text(text)
    return str(path)


def check_program(folder, command, **kwargs):
    check_silent(Program(folder, command, **kwargs).outcome(), out=OUT)


@pytest.mark.parametrize(
    "flags",
    [
        pytest.param((), marks=pytest.mark.slow),
        pytest.param(("-I",), marks=pytest.mark.slow),
        pytest.param(("-s", "-P"), marks=pytest.mark.slow),
        pytest.param(("-W", "error"), marks=pytest.mark.slow),
        pytest.param(("-X", "utf8", "-O"), marks=pytest.mark.slow),
        ("-X", "dev"),
        pytest.param(("-OO", "-B", "-u"), marks=pytest.mark.slow),
        pytest.param(("-X", "frozen_modules=off"), marks=pytest.mark.slow),
    ],
    ids="".join,
)
def test_script(tmp_path, flags):
    check_program(tmp_path, [sys.executable, *flags, as_file(tmp_path)])


def test_standard_input(tmp_path):
    check_program(tmp_path, [sys.executable, "-"], stdin=USES_MAIN)


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_command(tmp_path):
    check_program(tmp_path, [sys.executable, "-c", USES_MAIN])


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_module(tmp_path):
    as_file(tmp_path, name="some_module.py")
    check_program(tmp_path, [sys.executable, "-m", "some_module"])


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_directory_and_zip(tmp_path):
    (tmp_path / "app").mkdir()
    as_file(tmp_path / "app", name="__main__.py")
    check_program(tmp_path, [sys.executable, "app"])


def test_notebook(tmp_path):
    """Cells that are executed in ``__main__``, and of which nobody has the text."""
    kernel = f"""
import sys, types
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
for number, cell in enumerate({USES_MAIN!r}.split("\\n\\n")):
    exec(compile(cell, f"<cell {{number}}>", "exec"), vars(main))
"""
    check_program(tmp_path, [sys.executable, as_file(tmp_path, kernel)])


def test_interactive_without_terminal(tmp_path):
    outcome = Program(tmp_path, [sys.executable, "-i", "-q"], stdin=USES_MAIN).outcome()
    assert outcome.code == 0
    assert outcome.out == OUT
    assert set(outcome.err.split()) <= {">>>", "..."}, outcome.err


class Terminal:
    """A program that has a terminal of its own."""

    def __init__(self, folder, *command):
        self._master, theirs = pty.openpty()
        environment = {**os.environ, "FAULT_FOLDER": str(folder), "PYTHONPATH": str(HERE), "TERM": "dumb", "PYTHONSTARTUP": ""}
        # A process without a terminal that opens one has it as its own.
        command = ["sh", "-c", 'exec "$@" <"$0" >"$0" 2>&1', os.ttyname(theirs), *command]
        self.process = subprocess.Popen(command, cwd=folder, env=environment, start_new_session=True)
        self._theirs = theirs
        self.shown = ""
        self._seen = 0

    def type(self, text):
        os.write(self._master, text.encode())

    def wait_for(self, text):
        """Waits until ``text`` is shown behind what was waited for before; returns what came before it."""
        deadline = time.monotonic() + 60
        start = self._seen
        while text not in self.shown[start:]:
            has_ended = self.process.poll() is not None
            if not select.select([self._master], [], [], 0.1)[0]:
                assert not has_ended, f"the program has ended: {self.shown}"
                assert time.monotonic() < deadline, f"{text!r} is not shown: {self.shown}"
                continue
            data = os.read(self._master, 1 << 16)
            self.shown += data.decode(errors="replace").replace("\r\n", "\n")
        end = self.shown.index(text, start)
        self._seen = end + len(text)
        return self.shown[start:end]

    def close(self):
        """Ends it like a terminal window that is closed; returns the program's exit code."""
        os.close(self._master)
        os.close(self._theirs)
        return self.process.wait(30)


def test_interrupt_in_an_interactive_session(tmp_path):
    terminal = Terminal(tmp_path, sys.executable, "-i", "-q")
    try:
        terminal.wait_for(">>> ")
        terminal.type("from fault_tools import *\n")
        terminal.wait_for(">>> ")
        terminal.type("ds, work = pipeline('dataset', 2, 'busy'); it = iter(ds); print('first', next(it)[0], next(it)[0])\n")
        terminal.wait_for("first 0 1\n")
        terminal.wait_for(">>> ")
        terminal.type("print('going', 'on'); next(it)\n")
        terminal.wait_for("going on\n")
        terminal.type("\x03")
        shown = terminal.wait_for(">>> ")
        assert shown.count("Traceback") == 1 and shown.rstrip().endswith("KeyboardInterrupt"), shown
        terminal.type("watch = work.process_ids(); it.close(); print('left', [p for p in watch if run_state(p) != 'Z'])\n")
        terminal.wait_for("left []\n")
        terminal.type("ds, work = pipeline('loader', 2, 'full'); it = iter(ds); seen = [int(next(it)[0]) for _ in range(9)]\n")
        terminal.wait_for(">>> ")
        terminal.type("seen += [int(next(it)[0]) for _ in range(9)]; print(seen == list(range(18)))\n")
        terminal.wait_for("True\n")
        terminal.type("exit()\n")
        assert terminal.process.wait(30) == 0
        assert "Error" not in terminal.shown
    finally:
        terminal.process.kill()
        terminal.close()


@pytest.mark.parametrize("how", ["interrupt", pytest.param("hang_up", marks=pytest.mark.slow)])
def test_program_in_a_terminal(tmp_path, how):
    text = """
from fault_tools import *
it = started("loader", 2, "stuck")
print("workers", *workers(), flush=True)
next(it), next(it)
"""
    program = as_file(tmp_path, text)
    terminal = Terminal(tmp_path, sys.executable, program)
    try:
        terminal.wait_for("workers ")
        workers = [int(p) for p in terminal.wait_for("\n").split()]
        assert len(workers) == 2
        if how == "interrupt":
            terminal.type("\x03")
            assert terminal.process.wait(30) == -signal.SIGINT
            shown = terminal.wait_for("KeyboardInterrupt\n")
            assert shown.count("Traceback") == 1, shown
        else:
            assert terminal.close() == -signal.SIGHUP
        deadline = time.monotonic() + 6
        while any(map(is_running, workers)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        terminal.process.kill()
        if how == "interrupt":
            terminal.close()


def test_deleted_working_directory(tmp_path):
    script = """
os.mkdir("gone")
os.chdir("gone")
os.rmdir("../gone")
assert [int(x[0]) for x in loader(Work("idle"), 6, 2)] == list(range(6))
"""
    check_silent(run(tmp_path, script), out="")


def test_closed_standard_input(tmp_path):
    """The descriptors that a worker gets must not be in the place of its standard streams."""
    script = """
os.close(0)
assert [int(x[0]) for x in loader(Work("idle"), 6, 2)] == list(range(6))
"""
    check_silent(run(tmp_path, script), out="")


def test_states_and_flags_of_main(tmp_path):
    """Classes of the program travel in states, there and back, and in the values of flags."""
    script = """
import enum
import sys
from typing import NamedTuple

import gristmill
from absl import flags

class Mode(enum.Enum):
    SLOW = 1
    QUICK = 2

class Position(NamedTuple):
    index: int

class Numbers(gristmill.DatasetIterator):
    index = 0

    def __next__(self):
        if self.index == 4:
            raise KeyError("four")
        self.index += 1
        return self.index - 1, FLAGS.mode

    def get_state(self):
        return Position(self.index)

    def set_state(self, state):
        self.index = state.index

    def _skip(self):
        self.index += 1

class Dataset(gristmill.IterDataset):
    def __iter__(self):
        return Numbers()

FLAGS = flags.FLAGS
flags.DEFINE_enum_class("mode", Mode.SLOW, Mode, "how")
FLAGS(["program", "--mode=QUICK"])
it = iter(Dataset().mp_prefetch(gristmill.MultiprocessingOptions(num_workers=1)))
assert [next(it) for _ in range(3)] == [(i, Mode.QUICK) for i in range(3)]
state = it.get_state()
assert state["iterators_in_use_states"] == [Position(3)]
assert next(it)[0] == 3
it.set_state(state)
assert next(it)[0] == 3
try:
    next(it)
except KeyError:
    it.skip_failed()
assert next(it)[0] == 5
"""
    check_silent(run(tmp_path, script), out="")


def test_a_daemon_thread_iterates_when_the_program_ends(tmp_path):
    script = """
begun = threading.Event()

def iterate():
    for _ in loader(Work("idle"), 10**9, 2):
        begun.set()

threading.Thread(target=iterate, daemon=True).start()
begun.wait()
"""
    check_silent(run(tmp_path, "import threading" + script), out="")


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_read_only_working_directory(tmp_path):
    (tmp_path / "frozen").mkdir(mode=0o555)
    check_program(tmp_path, [sys.executable, as_file(tmp_path)], cwd=tmp_path / "frozen")


def test_files_with_names_of_standard_modules(tmp_path):
    """In the working directory, from which a script does not import; beside the script they would break it without workers."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in ("json", "socket", "numpy", "pickle", "os", "marshal", "struct", "mmap", "gristmill", "site", "cloudpickle"):
        (elsewhere / f"{name}.py").write_text("raise ImportError('the wrong file')")
    check_program(tmp_path, [sys.executable, as_file(tmp_path)], cwd=elsewhere)


def test_modules_of_the_program(tmp_path):
    """Beside the script, and in a directory that it adds to the path."""
    (tmp_path / "beside.py").write_text("def double(x): return 2 * x\nclass Pair(tuple): pass\n")
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "added.py").write_text("import beside\ndef pair(x): return beside.Pair((x, 'one'))\n")
    script = """
import beside
sys.path.insert(0, str(FOLDER / "more"))
import added
ds = gm.MapDataset.range(4).map(beside.double).to_iter_dataset().map(added.pair).mp_prefetch(gm.MultiprocessingOptions(2))
seen = list(ds)
assert seen == [(2 * i, "one") for i in range(4)], seen
assert all([type(x) is beside.Pair for x in seen])
os.chdir("/")
assert list(ds) == seen
"""
    check_silent(run(tmp_path, script), out="")


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_module_of_the_working_directory(tmp_path):
    """``python -c`` and ``-m`` import from there."""
    (tmp_path / "beside.py").write_text("def double(x): return 2 * x\n")
    text = """
import beside, gristmill as gm
print(list(gm.MapDataset.range(4).map(beside.double).to_iter_dataset().mp_prefetch(gm.MultiprocessingOptions(2))))
"""
    check_silent(Program(tmp_path, [sys.executable, "-c", text]).outcome(), out="[0, 2, 4, 6]\n")


@pytest.mark.parametrize("handling", ["SIG_IGN", pytest.param("SIG_DFL", marks=pytest.mark.slow)])
def test_signal_handling_of_the_program(tmp_path, handling):
    script = f"""
for number in signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT:
    signal.signal(number, signal.{handling})
watch = Watch()
for situation in "idle", "busy", "full":
    it = started("loader", 2, situation)
    it.close()
    watch.check()
ds, work = pipeline("dataset", 2, "full")
it = iter(ds)
seen = [int(next(it)[0])]
arrived(work, 2, "full")
for process_id in work.process_ids():
    os.kill(process_id, signal.SIGKILL)
wait_for(lambda: all(map(has_ended, work.process_ids())), "the workers do not die")
try:
    for x in it: seen.append(int(x[0]))
except RuntimeError as error:
    # The system tells nobody how they ended, if their ends are ignored.
    assert dict(SIG_DFL="signal 9 (SIGKILL", SIG_IGN="nobody knows how: this program ignores SIGCHLD")[{handling!r}] in str(error)
    it.set_state(it.get_state())
seen += [int(next(it)[0]) for _ in range(5)]
assert seen == list(range(len(seen))), seen
"""
    check_silent(run(tmp_path, script), out="")


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_blocked_signals(tmp_path):
    script = """
signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))
it = started("loader", 2, "stuck")
ready()
os._exit(0)
"""
    check_silent(run(tmp_path, script))


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_several_threads_start_workers_at_once(tmp_path):
    script = """
watch = Watch()
results = {}

def consume(number):
    ds = gm.MapDataset.range(50).to_iter_dataset().map(lambda x: x * number).mp_prefetch(gm.MultiprocessingOptions(2))
    results[number] = list(ds)

threads = [threading.Thread(target=consume, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert results == {number: [x * number for x in range(50)] for number in range(4)}
watch.check()
"""
    check_silent(run(tmp_path, script), out="")


def test_pytest(tmp_path):
    (tmp_path / "test_theirs.py").write_text(
        textwrap.dedent(
            """
            import gristmill as gm

            class Local:
                def __init__(self, x): self.x = x

            def test_workers():
                def local(x): return Local(x)
                seen = list(gm.MapDataset.range(4).map(local).to_iter_dataset().mp_prefetch(gm.MultiprocessingOptions(2)))
                assert [type(x) is Local and x.x for x in seen] == [0, 1, 2, 3]
            """
        )
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "error", str(tmp_path / "test_theirs.py")]
    outcome = Program(tmp_path, command).outcome()
    assert (outcome.code, outcome.err) == (0, ""), outcome.out


def test_what_a_worker_imports(tmp_path):
    text = """
import jax, orbax.checkpoint, absl.flags, sys, gristmill as gm
print("main is imported")
names = ["jax", "orbax", "absl", "pandas", "tensorflow", "gristmill.checkpoint", "gristmill.loader.load", "asyncio"]
seen = list(gm.MapDataset.range(1).map(lambda x: [n for n in names if n in sys.modules] + [sys.modules["__main__"].__file__])
            .to_iter_dataset().mp_prefetch(gm.MultiprocessingOptions(1)))
print([n.rpartition("/")[2] for n in seen[0]])
"""
    outcome = Program(tmp_path, [sys.executable, as_file(tmp_path, text)]).outcome()
    check_silent(outcome, out="main is imported\n['boot.py']\n")


def test_environment(tmp_path):
    script = """
os.environ["MINE"] = "mine"
os.environ["CUDA_VISIBLE_DEVICES"] = "0,1"
names = ["MINE", "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES"]

def seen(env):
    options = gm.MultiprocessingOptions(1, worker_env=env)
    def get(_): return [os.environ.get(name) for name in names]
    it = iter(gm.MapDataset.range(1).map(get).to_iter_dataset().mp_prefetch(options))
    sampler = gm.samplers.SequentialSampler(1)
    class Get(Map):
        def map(self, x): return get(x)
    loader = gm.DataLoader(data_source=range(1), sampler=sampler, operations=[Get()], worker_count=1, worker_env=env)
    values = next(it)
    assert next(iter(loader)) == values
    return values

assert seen(None) == ["mine", "cpu", ""]
assert seen({"CUDA_VISIBLE_DEVICES": "1", "MINE": None}) == [None, "cpu", "1"]
assert seen({"JAX_PLATFORMS": None, "CUDA_VISIBLE_DEVICES": None, "MINE": "other"}) == ["other", None, None]
assert os.environ["CUDA_VISIBLE_DEVICES"] == "0,1" and "JAX_PLATFORMS" not in os.environ
"""
    check_silent(run(tmp_path, script), out="")


# Later versions of Python warn of forks while there are threads.
FORKS = ("-W", "ignore::DeprecationWarning")
FORK = """
def in_child(function):
    process_id = os.fork()
    if process_id == 0:
        try:
            function()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
            code = 1
        os._exit(code)
    return process_id

def wait_for_child(process_id):
    assert os.waitstatus_to_exitcode(os.waitpid(process_id, 0)[1]) == 0

"""


@pytest.mark.parametrize(
    ("api", "workers"),
    [("dataset", 2), *[pytest.param(api, workers, marks=pytest.mark.slow) for api in ("loader", "inside") for workers in (1, 2)]],
)
def test_fork(tmp_path, api, workers):
    """Both processes go on with the iterator, and keep the batches that they have."""
    script = f"""
{FORK}
watch = Watch()
for size in 5, 100_000:
    it = iter(APIS[{api!r}](Work("full", size=size), 60, {workers}))
    batches = [next(it) for _ in range(10)]

    def go_on():
        others = [int(next(it)[0]) for _ in range(20)]
        assert others == list(range(10, 30)), others
        wait_for((FOLDER / f"parent_went_on_{{size}}").exists, "the parent did not go on")
        assert [(x == i).all() for i, x in enumerate(batches)] == [True] * 10, "inherited batches changed"
        assert [int(x[0]) for x in it] == list(range(30, 60))

    child = in_child(go_on)
    kept = batches[:3]
    del batches  # their memory is used again
    rest = []
    for i, x in enumerate(it, 10):
        assert (x == i).all(), (i, x)
        if i == 40:
            (FOLDER / f"parent_went_on_{{size}}").touch()
    assert i == 59
    wait_for_child(child)
    assert [(x == i).all() for i, x in enumerate(kept)] == [True] * 3
    it = x = kept = None
watch.check()
"""
    check_silent(run(tmp_path, script, flags=FORKS), out="")


IN_CHILD = {
    "does_nothing": "pass",
    "exits": "sys.exit(0)",
    "closes": "it.close(); it.close()",
    "deletes": "global it; del it; gc.collect(); assert [int(x[0]) for x in ds][:3] == [0, 1, 2]",
    "starts_others": "other = iter(pipeline('loader', 2, 'idle')[0]); assert len(list(other)) == 8",
    "same_dataset": "assert [int(next(iter(ds))[0]) for _ in range(2)] == [0, 0]",
    "restores": "it.set_state(it.get_state()); assert next(it)[0] == 5",
    "is_killed": "os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in ("exits", "deletes") else pytest.mark.slow) for n in IN_CHILD])
def test_fork_of_multiprocessing(tmp_path, name):
    """What the child does is of no consequence for the parent, which is in the middle of its data meanwhile."""
    script = f"""
import multiprocessing

def child():
    {IN_CHILD[name]}

watch = Watch()
ds = dataset(Work("full", size=100_000), 40, 2)
it = iter(ds)
seen = [int(next(it)[0]) for _ in range(5)]
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
for i in range(5, 20):
    x = next(it)
    assert (x == i).all(), (i, x)
process.join()
assert process.exitcode == ({-signal.SIGKILL} if {name!r} == "is_killed" else 0)
process.close()
for i in range(20, 40):
    x = next(it)
    assert (x == i).all(), (i, x)
it = x = None
watch.check()
"""
    check_silent(run(tmp_path, script, flags=FORKS), out="")


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_parent_that_ends_before_its_fork(tmp_path):
    """The fork does not keep the workers of the process that it comes from."""
    script = f"""
{FORK}
it = started("dataset", 2, "stuck")
processes = workers()
assert len(processes) == 2

def outlive():
    wait_for(lambda: {{run_state(process_id) for process_id in processes}} == {{"Z"}}, "workers live on", GONE_SECONDS)
    (FOLDER / "good").touch()

in_child(outlive)
ready()
os.kill(os.getpid(), signal.SIGKILL)
"""
    program = start(tmp_path, script, flags=FORKS)
    program.process.wait(60)
    deadline = time.monotonic() + 20
    while not (tmp_path / "good").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    outcome = program.outcome()
    check_silent(outcome, code=-signal.SIGKILL)
    assert (tmp_path / "good").exists()
