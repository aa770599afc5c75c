"""A worker that dies, for any reason: reported at once and in words, and nothing is lost."""

import pytest
from fault_harness import check_parts

APIS = ["loader", "dataset", "inside"]
SITUATIONS = ("idle", "busy", "stuck", "full")
CHECKS = """
def check_death(it, expected, how):
    '''Checks what is delivered, with one death on the way; returns the number before it.'''
    seen = []
    text, state = take_all(it, seen), it.get_state()
    assert how in text, text
    assert re.match(
        r"Worker process \\d of \\d was terminated unexpectedly: it .*, at element \\d+ or", text
    ), text
    assert seen == expected[:len(seen)]
    for _ in range(2):  # it stays there
        assert str(error_of(next, it)) == text and it.get_state() == state
    num = len(seen)
    it.set_state(it.get_state())
    assert take_all(it, seen) is None and seen == expected, seen
    return num

def check_deaths(die, how, workers, api, is_small):
    # Elements of this size are sent one by one, so all before the deadly one arrive; those that
    # were begun with it may, too.
    num = check_death(iter(APIS[api](Deadly(die, 5, size=20_000), 12, workers)), [*range(12)], how)
    assert num >= 5, (how, num)
    # many are sent at a time; it dies once, which is reported at the latest after the elements that
    # it was at
    if is_small:
        num = check_death(iter(APIS[api](Deadly(die, 300), 5000, workers)), [*range(5000)], how)
        assert 0 < num < 5000, (how, num)
"""
DEATHS = {  # what the worker does, and the error of the consumer
    "kill_self(9)": "it was killed by signal 9 (SIGKILL",
    "sys.exit(123)": "it exited with code 123",
    "bus_error()": "it was killed by signal 7 (SIGBUS)",
    "os._exit(0)": "it exited with code 0",
    "kill_self(15)": "it was killed by signal 15 (SIGTERM)",
    "kill_self(11)": "it was killed by signal 11 (SIGSEGV)",
    "ctypes.string_at(0)": "it was killed by signal 11 (SIGSEGV)",
    "os.abort()": "it was killed by signal 6 (SIGABRT)",
    "sys.exit('text')": "it exited with code 1",
    "sys.exit(0)": "it exited with code 0",
}
# Of an exit there is no small one: a block that raises is taken again, which does not happen twice
# here.
DYING = [
    f"check_deaths(lambda: {die}, {how!r}, {1 + i % 2}, {APIS[1 - i % 3]!r},"
    f" {i % 2 == 0 and 'exit' not in die})"
    for i, (die, how) in enumerate(DEATHS.items())
]


RECORDS = """
def crash(bad):
    def fn(x):
        if x in bad:
            ctypes.string_at(0)
        return x
    return fn

class Crashing:
    def __init__(self, num, bad):
        self.num, self.fn = num, crash(bad)
    def __len__(self):
        return self.num
    def __getitem__(self, key):
        return self.fn(key)

def crashing_loader(num, bad, workers):
    sampler = gm.samplers.SequentialSampler(num)
    return gm.DataLoader(
        data_source=Crashing(num, bad), sampler=sampler, workers=processes(workers)
    )

DIRECT = gm.ReadOptions(num_threads=0)
PIPELINES = {
    "source": lambda num, bad, w: mp(gm.MapDataset.source(Crashing(num, bad)).to_iter_dataset(), w),
    "map": lambda num, bad, w: mp(
        gm.MapDataset.range(num).map(crash(bad)).to_iter_dataset(DIRECT), w
    ),
    "iter map": lambda num, bad, w: mp(
        gm.MapDataset.range(num).to_iter_dataset().filter(lambda x: True).map(crash(bad)), w
    ),
    "loader": crashing_loader,
    "lanes": lambda num, bad, w: mp(
        gm.MapDataset.range(num).map(crash(bad)).to_iter_dataset(DIRECT), w, num_lanes=3 * w - 1
    ),
    "batch": lambda num, bad, w: mp(
        gm.MapDataset.source(Crashing(num, bad)).to_iter_dataset().batch(4), w
    ),
}

def check_records(name, num, bad, workers):
    '''Elements before a record that kills its worker are delivered; the error names the record, and
    it alone can be skipped.
    '''
    it = iter(PIPELINES[name](num, bad, workers))
    model = gm.MapDataset.range(num).to_iter_dataset()
    left = [*bad]
    for output in mp(model.batch(4), workers) if name == "batch" else model:
        records = np.ravel(output).tolist()
        lost = [x for x in records if x in left]
        if not lost:
            assert np.ravel(next(it)).tolist() == records, records
            continue
        state = it.get_state()
        for is_last in False, True:
            text = str(error_of(next, it))
            assert (
                "SIGSEGV" in text
                and f"at element {lost[0]} or in what" in text
                and it.get_state() == state
            ), (lost, text)
            if not is_last:
                it.set_state(state)  # tried once more, it kills again
        it.skip_failed()
        left = [x for x in left if x not in lost]
    assert next(it, None) is None and not left
"""
BY_ACCIDENT = """
for api in "dataset", "inside":  # which is not skipped
    it, seen = iter(APIS[api](Deadly(lambda: kill_self(9), 5, size=20_000), 12, 1)), []
    assert "SIGKILL" in take_all(it, seen) and seen == [*range(5)], seen
    it.skip_failed()
    assert take_all(it, seen) is None and seen == [*range(12)], seen
"""


KILLS = """
def check_kill(situation, workers, api, number):
    '''Killed from outside, and the consumer learns it within a second.'''
    ds, work = pipeline(api, workers, situation)
    it = iter(ds)
    seen = [int(next(it)[0])]
    arrived(work, workers, situation)
    kill_all(work, number)
    killed = time.monotonic()
    text = take_all(it, seen)
    assert len(seen) < 100
    if text:
        assert f"signal {int(number)} ({number.name}" in text, text
        # one second, where the machine is quiet
        assert time.monotonic() - killed < 4, time.monotonic() - killed
    assert (text is None) == (situation == "idle"), text  # then all had been sent
    assert seen == list(range(len(seen)))
    if situation == "full":
        it.set_state(it.get_state())
        seen += [int(next(it)[0]) for _ in range(20)]
        assert seen == list(range(len(seen)))
    if situation == "idle":
        assert len(seen) == 4 * workers
        it.set_state(it.get_state())
        assert next(it, None) is None
"""


def test_deaths_of_each_kind(tmp_path):
    records = [
        "check_records('source', 400, [7, 399], 2)",
        "check_records('lanes', 60, [7, 8, 40], 2)",
    ]
    kill = "check_kill('full', 2, 'dataset', signal.SIGKILL)"
    check_parts(tmp_path, *DYING[:2], *records, BY_ACCIDENT, kill, tools=CHECKS + RECORDS + KILLS)


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_all_deaths(tmp_path):
    cases = [
        ("map", 5, [3], 1),
        ("iter map", 400, [300], 2),
        ("loader", 20, [7, 19], 1),
        ("batch", 40, [7, 8, 39], 2),
        ("lanes", 900, [500], 1),
    ]
    parts = [*DYING[2:], NO_DEATHS, *[f"check_records{case}" for case in cases]]
    for i in range(12):
        arguments = (
            f"{SITUATIONS[i % 4]!r}, {1 + (i + i // 4) % 2}, {APIS[i % 3]!r},"
            f" signal.{['SIGKILL', 'SIGTERM'][i // 4 % 2]}"
        )
        parts.append(f"check_kill({arguments})")
    for start in range(0, len(parts), 8):  # a program has a minute
        check_parts(tmp_path, *parts[start : start + 8], tools=CHECKS + RECORDS + KILLS)


THE_OTHER_GOES_ON = """
ds, work = pipeline("dataset", 2, "full")
it = iter(ds)
assert [int(next(it)[0]) for _ in range(10)] == list(range(10))
before = work.process_ids()
os.kill(before[0], signal.SIGKILL)
assert take_all(it, seen := [])
it.set_state(it.get_state())
assert next(it)[0] < 20
after = work.process_ids()
assert len(after) == 3, (before, after)  # one new process
os.kill(before[1], 0)
"""
IN_INIT_FN = """
def exits(index, count):
    if index == 1:
        sys.exit(5)

def ends(index, count):
    if index == 1:
        os._exit(0)

sampler = gm.samplers.IndexSampler(9, num_epochs=1)
loader = gm.DataLoader(
    data_source=range(9), sampler=sampler, workers=processes(2), worker_init_fn=exits
)
for ds in loader, mp(gm.MapDataset.range(9).to_iter_dataset(), 2, ends):
    it = iter(ds)
    assert next(it) == 0
    assert "Worker process 1 of 2" in str(error_of(next, it))
"""
MEMORY_LIMIT = """
def limit(index, count):
    resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))

it = iter(
    mp(
        gm.MapDataset.range(9).to_iter_dataset().map(lambda x: np.zeros(x << 29, "u1")[:5] + x),
        2,
        limit,
    )
)
seen = []
error = error_of(lambda: [seen.append(int(x.sum())) for x in it], kind=MemoryError)
assert "Unable to allocate" in str(error), error
# the sum of an empty array is 0 too
assert seen == [5 * x for x in range(len(seen))] and len(seen) > 3, seen
"""
CHILD_THAT_HOLDS_THE_CONNECTION = """
import warnings

def die(x):
    if x == 3:
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads
        if os.fork() == 0:  # has all that the worker had open
            wait_for((FOLDER / "end").exists, "")
            os._exit(0)
        os._exit(4)
    return x

it = iter(mp(gm.MapDataset.range(9).to_iter_dataset().map(die), 1))
began = time.monotonic()
assert "exited with code 4" in str(error_of(list, it)) and time.monotonic() - began < 10
it.close()
(FOLDER / "end").touch()
"""
NO_DEATHS = """
gc.disable()  # the iterator is freed with its last reference, with its error or without
watch = Watch()
errors = [
    ValueError("v"),
    MemoryError("m"),
    KeyboardInterrupt("k"),
    RecursionError("r"),
    GeneratorExit("g"),
]
for number, raised in enumerate(errors):
    def fail(x):
        if x == 3: raise errors[number]
        return x
    it = iter(mp(gm.MapDataset.range(9).to_iter_dataset().map(fail), 1 + number % 2))
    assert [next(it) for _ in range(3)] == [0, 1, 2]
    for _ in range(3):
        error = error_of(next, it, kind=type(raised))
        assert type(error) is type(raised) and error.args == raised.args, repr(error)
    error = it = None
watch.check()
"""


def test_other_ends_of_workers(tmp_path):
    check_parts(
        tmp_path, THE_OTHER_GOES_ON, IN_INIT_FN, MEMORY_LIMIT, CHILD_THAT_HOLDS_THE_CONNECTION
    )
