"""The files of a checkpoint: what is left of them when saving fails, and what files of somebody else may bring about."""

import copy
import errno
import json
import random
import subprocess
import sys
from pathlib import Path

import pytest
from state_damage import HOSTILE, is_harmless, part, places

import gristmill
from gristmill.checkpoint import CheckpointHandler
from gristmill.core.errors import StateMismatchError
from gristmill.dataset.telling.description import describe
from gristmill.experimental import ElasticIterator, InterleaveIterDataset

HANDLER = CheckpointHandler()
PROCESS, PIPELINE = "process_0-of-1.json", "pipeline_0-of-1.json"


def pipeline():
    return gristmill.MapDataset.range(100).shuffle(seed=1).to_iter_dataset().batch(4)


def at(position):
    it = iter(pipeline())
    for _ in range(position):
        next(it)
    return it


def rest(it):
    return [batch.tolist() for batch in it]


SAVER = """
import os, resource, sys
sys.path.append(sys.argv[1])
from test_checkpoint_files import HANDLER, at

for line in sys.stdin:
    what, limit, directory = line.rstrip().split(" ", 2)
    steps = int(limit)

    def die(event, args):
        global steps
        if event in ("open", "os.rename", "os.remove") and str(args[0]).startswith(directory):
            steps -= 1
            if steps < 0:
                os._exit(99)

    child = os.fork()
    if child == 0:
        it, code = at(5), 0
        if what == "full":  # a file gets so many bytes, and writing more fails, as on a disk that is full
            resource.setrlimit(resource.RLIMIT_FSIZE, (steps, steps))
        else:
            sys.addaudithook(die)
        try:
            HANDLER.save(directory, it)
        except OSError as error:
            code = error.errno
        os._exit(code)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def save_in_a_child():
    """A process that forks for every save, which is quicker than starting one; how each save ended."""
    command = [sys.executable, "-c", SAVER, Path(__file__).parent]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:

        def save(directory, what, limit):
            print(what, limit, directory, file=process.stdin, flush=True)
            return int(process.stdout.readline())

        yield save


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such limit")
@pytest.mark.parametrize("limit", [0, 10, 60])  # the state has 23 bytes, what describes its pipeline hundreds
def test_a_save_that_fails_leaves_the_checkpoint_that_was_there(tmp_path, limit, save_in_a_child):
    HANDLER.save(tmp_path, at(1))
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert save_in_a_child(tmp_path, "full", limit) == errno.EFBIG
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert rest(HANDLER.restore(tmp_path, at(0))) == rest(at(1))


@pytest.mark.skipif(sys.platform == "win32", reason="no module resource")
def test_a_save_that_is_killed_anywhere_leaves_a_checkpoint_that_restores(tmp_path, save_in_a_child):
    was_killed, step = True, 0
    while was_killed:  # at the first thing that it does in the directory, at the second, …
        HANDLER.save(tmp_path, at(1))
        code = save_in_a_child(tmp_path, "kill", step)
        assert code in (0, 99)
        was_killed = code == 99
        found = rest(HANDLER.restore(tmp_path, at(0)))
        assert found in ([rest(at(1)), rest(at(5))] if was_killed else [rest(at(5))])
        step += 1
    assert step > 4
    assert {file.name for file in tmp_path.iterdir()} == {PROCESS, PIPELINE}


NUMBERS = ["2", "3", "1000000000", "9" * 30, "9" * 200]


@pytest.mark.timeout(20)
@pytest.mark.parametrize("names", [*[["process_0-of-" + n] for n in NUMBERS], ["process_1-of-" + n for n in NUMBERS]])
def test_what_the_name_of_a_file_says_is_not_believed(tmp_path, names):
    """Here 10**9 processes would take all memory."""
    for name in names:
        (tmp_path / f"{name}.json").write_text('{"global_next_index": 4}')
    it = ElasticIterator(gristmill.MapDataset.range(16), 4, gristmill.sharding.NoSharding())
    with pytest.raises(StateMismatchError, match=f"files of all processes of one checkpoint, it has {len(names)}: ") as refusal:
        HANDLER.restore(tmp_path, it)
    assert is_harmless(str(refusal.value))


def hostile_descriptions():
    """Descriptions with something hostile in each place."""
    description, rng = json.loads(json.dumps(describe(at(0)))), random.Random(1)
    for path in places(description):
        for hostile in rng.sample(HOSTILE, 2):
            changed = copy.deepcopy(description)
            if path:
                part(changed, path[:-1])[path[-1]] = hostile
            yield changed if path else hostile
    yield {**description, next(text for text in HOSTILE if isinstance(text, str) and len(text) > 1000): 1}
    yield {**description, "length": 1.5, "more": ["x" * 10**7]}


def test_what_is_hostile_in_a_description_does_not_come_back_in_a_message(tmp_path):
    it = at(3)
    HANDLER.save(tmp_path, it)
    saved = json.loads((tmp_path / PIPELINE).read_text())
    before = it.get_state()
    num_refused = 0
    for description in hostile_descriptions():
        (tmp_path / PIPELINE).write_text(json.dumps({**saved, "pipeline": description}))
        with pytest.raises(StateMismatchError) as refusal:
            HANDLER.restore(tmp_path, it)
        assert is_harmless(str(refusal.value)), str(refusal.value)[:3000]
        num_refused += 1
    assert it.get_state() == before
    assert num_refused > 20


@pytest.mark.parametrize("crc32", HOSTILE)
def test_what_is_hostile_in_a_checksum_does_not_come_back_in_a_message(tmp_path, crc32):
    HANDLER.save(tmp_path, at(3))
    saved = json.loads((tmp_path / PIPELINE).read_text())
    (tmp_path / PIPELINE).write_text(json.dumps({**saved, "state_crc32": crc32}))
    with pytest.raises(StateMismatchError, match="checksum") as refusal:
        HANDLER.restore(tmp_path, at(0))
    assert is_harmless(str(refusal.value))


def shards(kind, count):
    if kind == "elements":
        ds, size = gristmill.MapDataset.range(64).filter(lambda x: x % 3), 4
    else:
        files = [gristmill.MapDataset.range(10 * i, 10 * i + 5).to_iter_dataset() for i in range(5)]
        ds, size = InterleaveIterDataset(files, cycle_length=2), 0
    return [ElasticIterator(ds, size, gristmill.sharding.ShardOptions(i, count)) for i in range(count)]


@pytest.mark.parametrize("form", ["processes", "datasets"])
@pytest.mark.parametrize("kind", ["elements", "files"])
def test_what_is_hostile_in_the_files_of_other_processes(tmp_path, kind, form):
    """They are refused, in words that may be shown, or taken."""
    rng, old, new = random.Random(1), shards(kind, 2), shards(kind, 1)[0]
    next(old[0]), next(old[1])
    before = new.get_state()
    if form == "processes":
        states = {f"process_{i}-of-2.json": json.loads(json.dumps(it.get_state())) for i, it in enumerate(old)}
    else:
        states = {f"shard_state_{i}.json": {"exhausted": 0, "state": {"next_index": 1}} for i in range(5)}
    for name, state in states.items():
        for path in places(state):
            for hostile in rng.sample(HOSTILE, 1 if form == "processes" else 2):
                changed = copy.deepcopy(state)
                if path:
                    part(changed, path[:-1])[path[-1]] = hostile
                for other, content in {**states, name: changed if path else hostile}.items():
                    (tmp_path / other).write_text(json.dumps(content))
                try:
                    HANDLER.restore(tmp_path, new)
                except StateMismatchError as refusal:
                    assert is_harmless(str(refusal)), str(refusal)[:3000]
                    assert new.get_state() == before
                else:
                    new.set_state(before)
