"""Workers start from any kind of program, and find there what the pipeline needs."""

import signal
import sys

import pytest
from fault_harness import Program, check_parts, check_silent, run, start
from waiting import wait_until

# Classes, functions and closures of the program in source, transformation, result and exception; no
# main guard.
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
ds = (
    gm.MapDataset.source(Source())
    .map(lambda box: Box(box.value + offset))
    .map(Add(1))
    .to_iter_dataset()
    .map(closure(105))
)
it = iter(ds.mp_prefetch(gm.MultiprocessingOptions(2, executor="processes")))
seen = []
try:
    for box in it: seen.append(box)
except Bad as error:
    print(type(error) is Bad, type(error.box) is Box, error)

print([box.value for box in seen], all([type(box) is Box for box in seen]))
sampler = gm.samplers.IndexSampler(6, num_epochs=1)
loader = gm.DataLoader(data_source=Source(), sampler=sampler, operations=[Add(1)],
                       workers=gm.MultiprocessingOptions(2, executor="processes"))
print([box.value for box in loader if type(box) is Box])
"""
OUT = "True True too large: 105\n[101, 102, 103, 104] True\n[1, 2, 3, 4, 5, 6]\n"
NOTEBOOK = f"""
import sys, types
# Cells are executed there, and their text is in no file.
main = types.ModuleType("__main__")
sys.modules["__main__"] = main
for number, cell in enumerate({USES_MAIN!r}.split("\\n\\n")):
    exec(compile(cell, f"<cell {{number}}>", "exec"), vars(main))
"""
WRONG = (
    "json",
    "socket",
    "numpy",
    "pickle",
    "os",
    "marshal",
    "struct",
    "mmap",
    "gristmill",
    "site",
    "cloudpickle",
)

# The arguments of Python, the working directory, and what is read from standard input.
WAYS = {
    # A script does not import from the working directory; beside it, such files would break it
    # without workers.
    "script": (["-X", "dev", "../program.py"], "wrong", ""),
    "notebook": (["notebook.py"], ".", ""),
    "standard_input": (["-"], ".", USES_MAIN),
    "isolated": (["-I", "-W", "error", "../program.py"], "frozen", ""),
    "safe": (["-s", "-P", "-X", "utf8", "-O", "program.py"], ".", ""),
    "optimised": (["-OO", "-B", "-u", "-X", "frozen_modules=off", "program.py"], ".", ""),
    "command": (
        ["-c", "import beside\n" + USES_MAIN.replace("offset = 100", "offset = beside.offset")],
        ".",
        "",
    ),
    "module": (["-m", "some_module"], ".", ""),
    "directory": (["app"], ".", ""),
}


@pytest.mark.parametrize(
    "way",
    [way if i < 2 else pytest.param(way, marks=pytest.mark.slow) for i, way in enumerate(WAYS)],
)
def test_program(tmp_path, way):
    for folder in ("app", "wrong", "frozen"):
        (tmp_path / folder).mkdir()
    for name in ("program.py", "some_module.py", "app/__main__.py"):
        (tmp_path / name).write_text(USES_MAIN)
    (tmp_path / "beside.py").write_text("offset = 100")  # ``python -c`` imports from there
    (tmp_path / "notebook.py").write_text(NOTEBOOK)
    for name in WRONG:
        (tmp_path / "wrong" / f"{name}.py").write_text("raise ImportError('the wrong file')")
    (tmp_path / "frozen").chmod(0o555)
    arguments, folder, stdin = WAYS[way]
    check_silent(
        Program(
            tmp_path, [sys.executable, *arguments], cwd=tmp_path / folder, stdin=stdin
        ).outcome(),
        out=OUT,
    )


def test_interactive_without_terminal(tmp_path):
    outcome = Program(tmp_path, [sys.executable, "-i", "-q"], stdin=USES_MAIN).outcome()
    assert (outcome.code, outcome.out) == (0, OUT)
    assert set(outcome.err.split()) <= {">>>", "..."}, outcome.err


def test_the_program_continues_after_an_interrupt_of_all(tmp_path):
    """As a terminal sends it to an interactive session."""
    script = """
    ds, work = pipeline("dataset", 2, "busy")
    it, other = iter(ds), started("loader", 2, "full")
    assert [next(it)[0], next(it)[0]] == [0, 1]
    arrived(work, 2, "busy")
    processes = work.process_ids()
    error_of(lambda: (ready(), next(it)), kind=KeyboardInterrupt)
    it.close()
    assert {run_state(process_id) for process_id in processes} == {"Z"}
    assert [int(next(other)[0]) for _ in range(30)] == list(range(1, 31))  # its workers live
    """
    check_silent(start(tmp_path, script).signal_when_ready(signal.SIGINT, group=True))


STATES_AND_FLAGS = """
# Classes of the program travel in states, there and back, and in the values of flags.
import enum
from typing import NamedTuple
from absl import flags

class Mode(enum.Enum):
    SLOW = 1
    QUICK = 2

class Position(NamedTuple):
    index: int

class Numbers(gm.DatasetIterator):
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

    def _gm_skip(self):
        self.index += 1

class Dataset(gm.IterDataset):
    def __iter__(self):
        return Numbers()

FLAGS = flags.FLAGS
flags.DEFINE_enum_class("mode", Mode.SLOW, Mode, "how")
FLAGS(["program", "--mode=QUICK"])
it = iter(mp(Dataset(), 1))
assert [next(it) for _ in range(3)] == [(i, Mode.QUICK) for i in range(3)]
state = it.get_state()
assert state["iterators_in_use_states"] == [Position(3)]
assert next(it)[0] == 3
it.set_state(state)
assert next(it)[0] == 3
error_of(next, it, kind=KeyError)
it.skip_failed()
assert next(it)[0] == 5
"""
SEVERAL_THREADS = """
results = {}

def consume(number):
    results[number] = list(
        mp(gm.MapDataset.range(50).to_iter_dataset().map(lambda x: x * number), 2)
    )

threads = [threading.Thread(target=consume, args=(number,)) for number in range(4)]
for thread in threads: thread.start()
for thread in threads: thread.join()
assert results == {number: [x * number for x in range(50)] for number in range(4)}
"""
SIGNALS = """
for number in signal.SIGCHLD, signal.SIGPIPE, signal.SIGINT:
    signal.signal(number, getattr(signal, HANDLING))
for situation in "idle", "busy", "full":
    watch = Watch()
    started("loader", 1, situation).close()
    watch.check()
ds, work = pipeline("dataset", 2, "full")
it = iter(ds)
seen = [int(next(it)[0])]
arrived(work, 2, "full")
kill_all(work)
assert "signal 9 (SIGKILL" in take_all(it, seen)
it.set_state(it.get_state())
seen += [int(next(it)[0]) for _ in range(5)]
assert seen == list(range(len(seen))), seen
"""


def test_states_and_flags_of_the_program_and_threads(tmp_path):
    tools = f"watch = Watch()\n{STATES_AND_FLAGS}it.close()\nwatch.check()\n"
    check_parts(tmp_path, SEVERAL_THREADS, tools=tools)


@pytest.mark.slow
def test_signal_handling_of_the_program(tmp_path):
    for handling in ("SIG_IGN", "SIG_DFL"):
        check_parts(tmp_path, SIGNALS, tools=f"HANDLING = {handling!r}\n")
    blocked = (
        "signal.pthread_sigmask(signal.SIG_BLOCK, set(signal.Signals))\nit = started('loader', 2,"
        " 'stuck')\nos._exit(0)"
    )
    check_silent(run(tmp_path, blocked))


def test_a_deleted_directory_a_closed_input_and_a_late_thread(tmp_path):
    script = """
    os.mkdir("gone")
    os.chdir("gone")
    os.rmdir("../gone")
    assert [int(x[0]) for x in loader(Work("idle"), 6, 2)] == list(range(6))
    # the descriptors that a worker gets must not be in the place of its standard streams
    os.close(0)
    assert [int(x[0]) for x in dataset(Work("idle"), 6, 2)] == list(range(6))
    begun = threading.Event()

    def iterate():
        for _ in loader(Work("idle"), 10**9, 2):
            begun.set()

    threading.Thread(target=iterate, daemon=True).start()
    begun.wait()
    """
    check_silent(run(tmp_path, script), out="")


THEIR_TEST = """
import gristmill as gm

class Local:
    def __init__(self, x): self.x = x

def test_workers():
    def local(x): return Local(x)
    workers = gm.MultiprocessingOptions(2, executor="processes")
    seen = list(gm.MapDataset.range(4).map(local).to_iter_dataset().mp_prefetch(workers))
    assert [type(x) is Local and x.x for x in seen] == [0, 1, 2, 3]
"""
IMPORTS = """
import jax, absl.flags, sys, gristmill as gm
print("main is imported")
names = [
    "jax",
    "orbax",
    "absl",
    "pandas",
    "tensorflow",
    "gristmill.checkpoint",
    "gristmill.loader.load",
    "asyncio",
]
seen = list(
    gm.MapDataset.range(1)
    .map(lambda x: [n for n in names if n in sys.modules] + [sys.modules["__main__"].__file__])
    .to_iter_dataset()
    .mp_prefetch(gm.MultiprocessingOptions(1, executor="processes"))
)
print([n.rpartition("/")[2] for n in seen[0]])
"""


def test_a_test_of_a_user_and_what_a_worker_imports(tmp_path):
    (tmp_path / "test_theirs.py").write_text(THEIR_TEST)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-W",
        "error",
        "test_theirs.py",
    ]
    outcome = Program(tmp_path, command).outcome()
    assert (outcome.code, outcome.err) == (0, ""), outcome.out
    (tmp_path / "program.py").write_text(IMPORTS)
    check_silent(
        Program(tmp_path, [sys.executable, "program.py"]).outcome(),
        out="main is imported\n['boot.py']\n",
    )


# later versions of Python warn of forks while there are threads
FLAGS = ("-W", "ignore::DeprecationWarning")
FORKS = """
def in_child(function):
    process_id = os.fork()
    if process_id == 0:
        try:
            function()
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    return process_id

def expect(it, start, stop):
    for i in range(start, stop):
        x = next(it)
        assert (x == i).all(), (i, x)

def check_fork(api, workers, size):
    '''Both processes continue with the iterator, and keep the batches that they have.'''
    it = iter(APIS[api](Work("full", size=size), 60, workers))
    batches = [next(it) for _ in range(10)]
    parent_went_on = FOLDER / f"parent_went_on_{api}_{size}"

    def go_on():
        expect(it, 10, 30)
        wait_for(parent_went_on.exists, "the parent did not continue")
        expect(iter(batches), 0, 10)  # the inherited ones did not change
        expect(it, 30, 60)
        assert next(it, None) is None

    child = in_child(go_on)
    kept = batches[:3]
    del batches  # their memory is used again
    expect(it, 10, 41)
    parent_went_on.touch()
    expect(it, 41, 60)
    assert next(it, None) is None
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    expect(iter(kept), 0, 3)

def check_process(child, code):
    '''The child changes nothing for the parent, which is in the middle of its data meanwhile.'''
    import multiprocessing
    ds = dataset(Work("full", size=100_000), 40, 2)
    its = [iter(ds)]
    expect(its[0], 0, 5)
    process = multiprocessing.get_context("fork").Process(target=child, args=(ds, its))
    process.start()
    expect(its[0], 5, 20)
    process.join()
    assert process.exitcode == code
    process.close()
    expect(its[0], 20, 40)

def deletes(ds, its):
    its.clear()
    gc.collect()
    assert [int(x[0]) for x in ds][:3] == [0, 1, 2]

def closes(ds, its):
    its[0].close(); its[0].close()

def starts_others(ds, its):
    assert len(list(pipeline("loader", 2, "idle")[0])) == 8

def iterates_the_same_dataset(ds, its):
    assert [int(next(iter(ds))[0]) for _ in range(2)] == [0, 0]

def restores(ds, its):
    its[0].set_state(its[0].get_state())
    assert next(its[0])[0] == 5
"""
IN_CHILD = [
    "lambda *_: None",
    "lambda *_: sys.exit(0)",
    "closes",
    "starts_others",
    "iterates_the_same_dataset",
    "restores",
]
SOME = [
    "check_fork('dataset', 2, 5)",
    "check_fork('dataset', 2, 100_000)",
    "check_process(deletes, 0)",
]
OTHERS = [
    "check_process(lambda *_: os.kill(os.getpid(), 9), -9)",
    *[f"check_process({child}, 0)" for child in IN_CHILD],
]
OTHERS += ["check_fork('loader', 1, 100_000)", "check_fork('inside', 2, 5)"]


@pytest.mark.parametrize(
    "parts", [SOME, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["some", "others"]
)
def test_forks(tmp_path, parts):
    check_parts(tmp_path, *parts, tools=FORKS, flags=FLAGS)


@pytest.mark.slow
def test_parent_that_ends_before_its_fork(tmp_path):
    """The fork does not keep the workers of the process that it comes from."""
    script = f"""{FORKS}
it = started("dataset", 2, "stuck")
processes = workers()
assert len(processes) == 2

def outlive():
    states = lambda: {{run_state(process_id) for process_id in processes}}
    wait_for(lambda: states() == {{"Z"}}, "workers live on", GONE_SECONDS)
    (FOLDER / "good").touch()

in_child(outlive)
ready()
os.kill(os.getpid(), signal.SIGKILL)
"""
    program = start(tmp_path, script, flags=FLAGS)
    program.process.wait(60)
    wait_until((tmp_path / "good").exists)
    check_silent(program.outcome(), code=-signal.SIGKILL)
