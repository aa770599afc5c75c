"""Every way to stop, in every situation: nothing is left, quickly and silently."""

import itertools
import signal

import pytest
from fault_harness import check_parts, check_silent, check_traceback, run, run_all, start

SECONDS = 5.0  # one would do, on a quiet machine
APIS = ["loader", "dataset", "inside"]
SITUATIONS = ["idle", "busy", "stuck", "full"]

# Endings within a program, for an iterator `it` whose workers are in the situation; `make()` gives
# another one of the same kind.
WITHIN = {
    "break": "for x in it:\n    break",
    "cycle": "it.me = [it]",
    "close_twice": "it.close(); it.close()",
    "exception": "try: raise ValueError\nexcept ValueError as error: saved = error",
    "del": "pass",
    "close": "began = time.monotonic()\nit.close()\nassert time.monotonic() - began < 5",
    "close_by_a_thread": (
        "thread = threading.Thread(target=it.close); thread.start(); thread.join()"
    ),
    "with": "with it: pass",
    "exception_with": "try:\n    with it: raise ValueError\nexcept ValueError: pass",
    "set_state": "it.set_state(it.get_state()); it.start_prefetch()",
    "rewind": "it.set_state(it.get_state())",
    "many": "others = [make() for _ in range(3)]",
}
END_OF_DATA = """
iterators = []  # that they stay makes no difference
for api in APIS:
    ds, work = pipeline(api, 1 + (api == "dataset"), "idle")
    it = iter(ds)
    assert [int(x[0]) for x in it] == list(range(4 + 4 * (api == "dataset"))), api
    assert next(it, None) is None
    iterators.append(it)
"""
# Interrupts lose and repeat nothing.
INTERRUPTS = """
# An interrupted import leaves its file open.
from gristmill.dataset.lanes import processes as worker_lanes
from gristmill.dataset.workers import threads as thread_workers
signal.signal(signal.SIGALRM, signal.default_int_handler)
it = iter(mp(gm.MapDataset.range(10**6).to_iter_dataset().map(lambda x: np.full(10_000, x)), 2))
seen = []
for interrupts in range(28):
    with contextlib.suppress(KeyboardInterrupt):
        signal.setitimer(signal.ITIMER_REAL, 0.001 * 1.6 ** (interrupts % 14))
        while True:
            seen.append(int(next(it)[0]))
    missed = sum(
        [worker["next_index"] for worker in it.get_state()["iterators_in_use_states"]]
    ) - len(seen)
    assert missed in (0, 1), missed
    if missed:  # interrupted between next() and append()
        seen.append(len(seen))
seen += [int(next(it)[0]) for _ in range(100)]
assert seen == list(range(len(seen)))
"""


def making(workers, situation, api):
    return f"def make():\n    return started({api!r}, {workers}, {situation!r})\nit = make()\n"


def within(name, *choices):
    return making(*choices) + WITHIN[name]


def test_endings_and_interrupts_within_a_program(tmp_path):
    parts = [
        within(name, 2, "full", "dataset")
        for name in ("break", "cycle", "close_twice", "exception")
    ]
    check_parts(tmp_path, *parts, END_OF_DATA, INTERRUPTS, INTERRUPTS.replace("mp(", "by_threads("))


@pytest.mark.slow
@pytest.mark.parametrize("situation", SITUATIONS)
def test_all_endings_within_a_program(tmp_path, situation):
    # What asks for another element would wait forever; threads cannot be ended by force.
    names = [name for name in WITHIN if name != "break" or situation in ("idle", "full")]
    workers = itertools.cycle([1, 2, 1] if situation in ("busy", "stuck") else [1, 0, 2, 1])
    check_parts(
        tmp_path,
        *[within(name, next(workers), situation, APIS[i % 3]) for i, name in enumerate(names)],
    )


# Endings of the program: the action, and the result.
EXITS = {
    "exception": ("raise ValueError('mine')", 1, "ValueError: mine"),
    "sys_exit": ("sys.exit(7)", 7, None),
    "os_exit": ("os._exit(7)", 7, None),
    "end_of_program": ("pass", 0, None),
    "sys_exit_in_function": ("def f(kept):\n    sys.exit(7)\nf(make())", 7, None),
    "cycle": ("it.me = [it]; del it", 0, None),
    "in_a_module": ("sys.modules['keeper'] = it", 0, None),
    "atexit": ("import atexit; atexit.register(it.close)", 0, None),
    "in_a_thread": (
        "thread = threading.Thread(target=lambda it: None, args=(it,)); thread.start()",
        0,
        None,
    ),
    "sigkill": ("os.kill(os.getpid(), signal.SIGKILL)", -signal.SIGKILL, None),
    "abort": ("os.abort()", -signal.SIGABRT, None),
}


def check_end(outcome, error, code):
    if error is None:
        check_silent(outcome, code=code)
    else:
        check_traceback(outcome, error, code)
    assert outcome.seconds < SECONDS


def check_exit(folder, name, workers, situation, api):
    ending, code, error = EXITS[name]
    check_end(run(folder, f"{making(workers, situation, api)}ready()\n{ending}\n"), error, code)


@pytest.mark.parametrize("name", ["exception", "sys_exit", "os_exit"])
def test_exit(tmp_path, name):
    check_exit(tmp_path, name, 2, "stuck", "dataset")


SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGHUP]
WAITING = {"next": "for x in it: pass\nsignal.pause()", "pause": "signal.pause()"}


def check_signal(folder, number, waiting, workers, situation, api):
    program = start(folder, f"{making(workers, situation, api)}ready()\n{WAITING[waiting]}\n")
    # as a terminal does it
    outcome = program.signal_when_ready(number, group=number == signal.SIGINT)
    check_end(outcome, "KeyboardInterrupt" if number == signal.SIGINT else None, -number)


@pytest.mark.parametrize(
    "case", [(signal.SIGINT, "next", 2, "stuck"), (signal.SIGTERM, "pause", 2, "full")]
)
def test_signal(tmp_path, case):
    check_signal(tmp_path, *case, "dataset")


@pytest.mark.slow
@pytest.mark.timeout(400)  # many programs one after the other
def test_all_exits_and_signals(tmp_path):
    choices = [("busy", 1), ("stuck", 2), ("full", 0), ("idle", 1), ("full", 1)]
    cases = [
        (name, *choices[(i + k) % 5][::-1], APIS[(i + k) % 3])
        for i, name in enumerate(EXITS)
        for k in [3 * (i % 2)]
    ]
    run_all(tmp_path, check_exit, cases)
    choices = [("full", 2), ("stuck", 2), ("busy", 1), ("idle", 0), ("full", 0)]
    pairs = [*itertools.product(SIGNALS, WAITING)]
    run_all(
        tmp_path,
        check_signal,
        [(*pair, *choices[i % 5][::-1], APIS[i % 3]) for i, pair in enumerate(pairs)],
    )


def test_interrupt_while_workers_start(tmp_path):
    script = """
    class Slow:
        def __reduce__(self):
            return time.sleep, (1000,)

    slow = Slow()
    it = iter(
        gm.MapDataset.range(9).to_iter_dataset().map(lambda x: (x, slow)).mp_prefetch(processes(2))
    )
    it.start_prefetch()
    ready()
    next(it)
    """
    check_end(
        start(tmp_path, script).signal_when_ready(signal.SIGINT, group=True),
        "KeyboardInterrupt",
        -signal.SIGINT,
    )
