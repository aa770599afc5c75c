"""Saves into a folder, with failing and killed saves in between: each leaves a checkpoint.

Forks for every save, which is quicker than starting a program.
"""

import errno
import os
import pathlib
import resource
import sys
import warnings

import gristmill
from gristmill.checkpoint import CheckpointHandler

# Every child would import them, which takes long.
sys.modules["jax"] = sys.modules["orbax"] = None

warnings.filterwarnings("ignore", ".* use of fork", DeprecationWarning)  # Orbax has threads
HANDLER = CheckpointHandler()
PROCESS, PIPELINE = "process_0-of-1.json", "pipeline_0-of-1.json"


def at(position):
    it = iter(gristmill.MapDataset.range(100).shuffle(seed=1).to_iter_dataset().batch(4))
    for _ in range(position):
        next(it)
    return it


def rest(it):
    return [batch.tolist() for batch in it]


directory = pathlib.Path(sys.argv[1])


def content():
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def save_in_a_child(prepare, *args):
    child = os.fork()
    if child == 0:
        it, code = at(5), 0
        prepare(*args)
        try:
            HANDLER.save(directory, it)
        except OSError as error:
            code = error.errno
        os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


HANDLER.save(directory, at(1))
before = content()
# bytes of a file: the state has 23, what describes its pipeline hundreds
for limit in (0, 10, 60):
    limits = (resource.RLIMIT_FSIZE, (limit, limit))
    assert save_in_a_child(resource.setrlimit, *limits) == errno.EFBIG
    assert content() == before and rest(HANDLER.restore(directory, at(0))) == rest(at(1))


def die_at(step):
    def die(event, args):
        global steps
        if event in ("open", "os.rename", "os.remove") and str(args[0]).startswith(str(directory)):
            steps -= 1
            if steps < 0:
                os._exit(99)

    global steps
    steps = step
    sys.addaudithook(die)


code, step = 99, 0
while code == 99:  # at the first thing that it does in the directory, at the second, …
    HANDLER.save(directory, at(1))
    code = save_in_a_child(die_at, step)
    found = rest(HANDLER.restore(directory, at(0)))
    assert found in ([rest(at(1)), rest(at(5))] if code == 99 else [rest(at(5))])
    step += 1
assert code == 0 and step > 5 and set(content()) == {PROCESS, PIPELINE}
