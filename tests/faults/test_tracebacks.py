"""The error output when a user's code fails: the user's own lines, then the stage and the
record.
"""

import re

from fault_harness import check_silent, run

# Each kind in a function of its own, whose failure is shown as at the end of a program.
TRAIN = """
class Transform(Map):
    def map(self, x):
        return user_code(x)

def pipeline(kind):
    ds = gm.MapDataset.source(range(20)).shuffle(seed=1)
    direct = gm.ReadOptions(num_threads=0)
    if kind == "map":
        return ds.map(user_code).to_iter_dataset()
    if kind == "iter":
        return ds.to_iter_dataset(direct).map(user_code).batch(3)
    if kind == "threads":
        return ds.map(user_code).to_iter_dataset(gm.ReadOptions(2, 8))
    if kind == "thread":
        return gm.experimental.ThreadPrefetchIterDataset(
            ds.map(user_code).to_iter_dataset(direct), prefetch_buffer_size=2
        )
    if kind == "workers":
        return ds.map(Transform()).to_iter_dataset().batch(3).mp_prefetch(processes(2))
    sampler = gm.samplers.IndexSampler(20, shuffle=True, seed=1, num_epochs=2)
    workers = {
        "loader": None,
        "loader with workers": processes(2),
        "loader with threads": threads(2),
    }[kind]
    return gm.DataLoader(
        data_source=range(20), sampler=sampler, operations=[Transform()], workers=workers
    )

def train(kind):
    if kind == "item":
        ds = gm.MapDataset.source(range(20)).shuffle(seed=1).map(user_code)
        for i in range(len(ds)):
            ds[i]
    for batch in pipeline(kind):
        pass

for kind in sys.argv[1:]:
    try:
        train(kind)
    except (ZeroDivisionError, KeyboardInterrupt) as error:
        sys.excepthook(type(error), error, error.__traceback__)
    sys.stderr.write("END\\n")
    sys.stderr.flush()
os._exit(0)  # threads may be in the user's code
"""
FAIL = f"""
def user_code(x):
    return 100 // (x - 7)
{TRAIN}"""
INTERRUPTED = f"""
MAIN = os.getpid()
WAITING = ("wait",)

def user_code(x):
    if x == 7:
        if os.getpid() == MAIN and threading.current_thread() is not threading.main_thread():
            ident = threading.main_thread().ident
            wait_for(lambda: sys._current_frames()[ident].f_code.co_name in WAITING, "no wait")
        os.kill(MAIN, signal.SIGINT)
        time.sleep(5)
    return x
{TRAIN}"""
OFF = "os.environ['GRISTMILL_PY_TRACEBACK_FILTERING'] = 'off'\n"
NOTE = "Frames of gristmill are left out of this traceback."
PLACE = r"at element \d+ \(epoch 0, source key 7\)\."
RECORD = r"at element (\d+) \(epoch 0, sampler index \1, record key 7\)\."
WHERE = {
    "item": rf"Raised by MapMapDataset\(transform=user_code @ \S+program\.py:\d+\) {PLACE}",
    "map": rf"Raised by MapMapDataset\(transform=user_code @ \S+program\.py:\d+\) {PLACE}",
    "iter": rf"Raised by MapDatasetIterator\(transform=user_code @ \S+program\.py:\d+\) {PLACE}",
    "workers": rf"Raised in worker \d of 2 by MapMapDataset\(transform=Transform\) {PLACE}",
    "loader": rf"Raised by MapDatasetIterator\(transform=Transform\) {RECORD}",
    "loader with workers": (
        rf"Raised in worker \d of 2 by MapDatasetIterator\(transform=Transform\) {RECORD}"
    ),
    "loader with threads": (
        rf"Raised in worker \d of 2 by MapDatasetIterator\(transform=Transform\) {RECORD}"
    ),
}


def settings_notes(kind):
    """Returns the notes on settings that errors of worker processes have."""
    text = (
        "Workers lack what the program has set or registered in libraries, unless worker_init_fn"
        " does so there, too."
    )
    return [text] if "workers" in kind else []


def functions_in(text):
    return re.findall(r'^  File ".*", line \d+, in (\S+)$', text, re.MULTILINE)


def shown(folder, script, *kinds):
    """The output of the program for each kind."""
    outcome = run(folder, script, *kinds)
    *texts, rest = outcome.err.split("END\n")
    assert (outcome.code, len(texts), rest) == (0, len(kinds), ""), outcome.err
    assert all([text.startswith("Traceback (most recent call last):\n") for text in texts]), (
        outcome.err
    )
    return dict(zip(kinds, texts, strict=True))


def stack(text):
    """The functions of the traceback, and the lines after it."""
    lines = text.splitlines()
    error = next(i for i, line in enumerate(lines) if line.startswith("ZeroDivisionError:"))
    return functions_in("\n".join(lines[:error])), lines[error + 1 :]


def test_only_the_users_own_lines_and_all_when_asked_for(tmp_path):
    for kind, text in shown(tmp_path, FAIL, *WHERE).items():
        functions, (where, *settings, note) = stack(text)
        methods = [] if kind in ("item", "map", "iter") else ["map"]
        assert functions == ["<module>", "train", *methods, "user_code"], text
        assert re.fullmatch(WHERE[kind], where), text
        assert settings == settings_notes(kind)
        assert note.startswith(NOTE)
        assert "GRISTMILL_PY_TRACEBACK_FILTERING=off" in note
    for kind, text in shown(tmp_path, OFF + FAIL, "item", "iter", "loader with workers").items():
        functions, (where, *settings) = stack(text)
        assert settings == settings_notes(kind)
        assert functions[:2] == ["<module>", "train"] and functions[-1] == "user_code", text
        own = (
            {"__getitem__", "_gm_items"}
            if kind == "item"
            else {"__next__", "call" if "call" in functions else "_run"}
        )
        assert own < set(functions), text
        assert re.fullmatch(WHERE[kind], where), text


def test_an_interrupt(tmp_path):
    kinds = (
        "item",
        "iter",
        "threads",
        "thread",
        "workers",
        "loader with workers",
        "loader with threads",
    )
    for kind, text in shown(tmp_path, INTERRUPTED, *kinds).items():
        assert text.splitlines()[-1] == "KeyboardInterrupt" and text.count("Traceback") == 1, text
        own = ["user_code"] if kind in ("item", "iter") else []
        assert functions_in(text) == ["<module>", "train", *own], text


def test_what_raises_after_the_interpreter_has_begun_to_end(tmp_path):
    script = """
    class Late:
        def __init__(self):
            self.ds = (
                gm.MapDataset.range(3)
                .map(lambda x: 1 // 0)
                .to_iter_dataset(gm.ReadOptions(num_threads=0))
            )

        def __del__(self):  # when other objects of the program may have been finalized
            try:
                next(iter(self.ds))
            except ZeroDivisionError:
                os.write(1, b"as it was")

    late = Late()
    """
    check_silent(run(tmp_path, script), out="as it was")
