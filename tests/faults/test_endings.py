"""Every way to stop, in every situation: nothing is left, quickly and silently."""

import itertools
import signal

import pytest
from fault_harness import check_silent, check_traceback, run, run_all, start

SITUATIONS = [
    (workers, situation)
    for workers in (0, 1, 2)
    for situation in ("idle", "busy", "stuck", "full")
    if workers or situation in ("idle", "full")  # threads cannot be ended by force
]
SECONDS = 5.0  # one would do, on a quiet machine

# Endings within a program, for an iterator `it` whose workers are in the situation; `make()` gives another one of the same kind.
WITHIN = {
    "break": "for x in it:\n    break",
    "del": "pass",
    "cycle": "it.me = [it]",
    "close": "it.close()",
    "close_twice": "it.close(); it.close()",
    "close_by_a_thread": "thread = threading.Thread(target=it.close); thread.start(); thread.join()",
    "with": "with it: pass",
    "exception": "try: raise ValueError\nexcept ValueError as error: saved = error",
    "exception_with": "try:\n    with it: raise ValueError\nexcept ValueError: pass",
    "set_state": "it.set_state(it.get_state()); it.start_prefetch()",
    "rewind": "it.set_state(it.get_state())",
    "many": "others = [make() for _ in range(3)]",
}
BLOCKED = {"break"}  # ask for another element

# Endings of the program: what it does, and what comes out of it.
EXITS = {
    "end_of_program": ("pass", 0, None),
    "exception": ("raise ValueError('mine')", 1, "ValueError: mine"),
    "sys_exit": ("sys.exit(7)", 7, None),
    "sys_exit_in_function": ("def f(kept):\n    sys.exit(7)\nf(make())", 7, None),
    "os_exit": ("os._exit(7)", 7, None),
    "cycle": ("it.me = [it]; del it", 0, None),
    "in_a_module": ("sys.modules['keeper'] = it", 0, None),
    "atexit": ("import atexit; atexit.register(it.close)", 0, None),
    "in_a_thread": ("thread = threading.Thread(target=lambda it: None, args=(it,)); thread.start()", 0, None),
    "sigkill": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, None),
    "abort": ("os.abort()", -signal.SIGABRT, None),
}
SIGNALS = {"SIGINT": signal.SIGINT, "SIGTERM": signal.SIGTERM, "SIGKILL": signal.SIGKILL, "SIGHUP": signal.SIGHUP}
WAITING = {"next": "for x in it: pass\nsignal.pause()", "pause": "signal.pause()"}


APIS = ["loader", "dataset", "inside"]


def cases(*tables):
    """The product of the tables and the situations, with one API or another."""
    combinations = itertools.product(*tables, SITUATIONS)
    return [(*rest, *situation, APIS[i % 3]) for i, (*rest, situation) in enumerate(combinations)]


def check_within(folder, workers, situation, api, names=tuple(WITHIN)):
    """All endings within one program, one after the other; what is left is looked for at the end, and after ``close`` at once."""
    endings = [WITHIN[name] for name in names if name not in BLOCKED or situation not in ("busy", "stuck")]
    script = f"""
def make():
    return started({api!r}, {workers}, {situation!r})

watch = Watch()
for ending in {endings}:
    exec(ending, {{**globals(), "it": make()}})
    gc.collect()
watch.check()
it = make()
began = time.monotonic()
it.close()
assert time.monotonic() - began < {SECONDS}
watch.check()
"""
    check_silent(run(folder, script), out="")


def test_endings_within_a_program(tmp_path):
    check_within(tmp_path, 2, "full", "dataset", ("break", "cycle", "close_twice", "exception"))


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_all_endings_within_a_program(tmp_path):
    run_all(tmp_path, check_within, cases())


def test_end_of_data(tmp_path):
    script = """
watch = Watch()
iterators = []  # that they stay makes no difference
for api in APIS:
    for workers in 1, 2:
        ds, work = pipeline(api, workers, "idle")
        it = iter(ds)
        assert [int(x[0]) for x in it] == list(range(4 * workers)), api
        assert next(it, None) is None
        iterators.append(it)
watch.check()
"""
    check_silent(run(tmp_path, script), out="")


def check_exit(folder, name, workers, situation, api):
    ending, code, error = EXITS[name]
    script = f"""
def make():
    return started({api!r}, {workers}, {situation!r})

it = make()
ready()
{ending}
"""
    outcome = run(folder, script)
    if error is None:
        check_silent(outcome, code=code)
    else:
        check_traceback(outcome, error, code)
    assert outcome.seconds < SECONDS


@pytest.mark.parametrize("name", ["exception", "sys_exit", "os_exit"])
def test_exit(tmp_path, name):
    check_exit(tmp_path, name, 2, "stuck", "dataset")


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
@pytest.mark.parametrize("name", EXITS)
def test_all_exits(tmp_path, name):
    run_all(tmp_path, check_exit, cases([name]))


def check_signal(folder, name, waiting, workers, situation, api):
    number = SIGNALS[name]
    script = f"""
it = started({api!r}, {workers}, {situation!r})
ready()
{WAITING[waiting]}
"""
    with_signal = start(folder, script)
    try:
        with_signal.wait_until_ready()
        with_signal.send(number, group=number == signal.SIGINT)  # as a terminal does it
    except BaseException:
        with_signal.kill()
        raise
    outcome = with_signal.outcome()
    assert outcome.seconds < SECONDS
    if number == signal.SIGINT:
        check_traceback(outcome, "KeyboardInterrupt", -number)
    else:
        check_silent(outcome, code=-number)


@pytest.mark.parametrize(
    ("name", "waiting", "situation"),
    [("SIGINT", "next", "stuck"), ("SIGINT", "pause", "full"), ("SIGTERM", "pause", "full"), ("SIGKILL", "next", "stuck")],
)
def test_signal(tmp_path, name, waiting, situation):
    check_signal(tmp_path, name, waiting, 2, situation, "dataset")


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
@pytest.mark.parametrize("name", SIGNALS)
def test_all_signals(tmp_path, name):
    run_all(tmp_path, check_signal, cases([name], WAITING))


def test_interrupt_while_workers_start(tmp_path):
    script = """
class Slow:
    def __reduce__(self):
        return time.sleep, (1000,)

slow = Slow()
it = iter(gm.MapDataset.range(9).to_iter_dataset().map(lambda x: (x, slow)).mp_prefetch(gm.MultiprocessingOptions(2)))
it.start_prefetch()
ready()
next(it)
"""
    program = start(tmp_path, script)
    program.wait_until_ready()
    program.send(signal.SIGINT, group=True)
    outcome = program.outcome()
    check_traceback(outcome, "KeyboardInterrupt", -signal.SIGINT)
    assert outcome.seconds < SECONDS


def test_interrupts_lose_and_repeat_nothing(tmp_path):
    script = """
class Interrupt(BaseException):
    pass

def interrupt(*_):
    raise Interrupt

def delivered(state):
    return sum([worker["next_index"] for worker in state["iterators_in_use_states"]])

signal.signal(signal.SIGALRM, interrupt)
ds = gm.MapDataset.range(10**6).to_iter_dataset().map(lambda x: np.full(10_000, x))
it = iter(ds.mp_prefetch(gm.MultiprocessingOptions(2)))
seen = []
for interrupts in range(42):
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.001 * 1.6 ** (interrupts % 14))
        while True:
            seen.append(int(next(it)[0]))
    except Interrupt:
        pass
    missed = delivered(it.get_state()) - len(seen)
    assert missed in (0, 1), missed
    if missed:  # interrupted between next() and append()
        seen.append(len(seen))
seen += [int(next(it)[0]) for _ in range(100)]
assert seen == list(range(len(seen)))
del it
wait_for(lambda: threading.active_count() == 1, "a thread stays", GONE_SECONDS)
"""
    check_silent(run(tmp_path, script), out="")
