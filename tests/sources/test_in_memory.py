import copy
import math
import os
import pickle
import textwrap
from multiprocessing.shared_memory import ShareableList, SharedMemory

import cloudpickle
import numpy as np
import pytest
from programs import outcome
from refusing import assert_raises

from gristmill.sources import SharedMemoryDataSource


@pytest.fixture
def make():
    sources = []

    def create(elements, **kwargs):
        sources.append(SharedMemoryDataSource(elements, **kwargs))
        return sources[-1]

    yield create
    for source in sources:
        if exists(source.shm.name):
            source.unlink()


def run_program(folder, program, *arguments):
    """Runs a program to its end, its resource tracker's end included (which holds the same stderr);
    only a killed one speaks.
    """
    header = "import os, pickle, sys\nfrom gristmill.sources import *\n"
    done = outcome(folder, header + textwrap.dedent(program), *arguments)
    assert done.stderr == "" or done.returncode == -9
    return done.stdout.splitlines(), done.returncode


def exists(name):
    try:
        SharedMemoryDataSource(name=name)
    except FileNotFoundError:
        return False
    return True


def test_iterables_odd_values_and_methods_of_shareable_list(make):
    for values in (range(5), (0, 1, 2, 3, 4), (i for i in range(5)), np.arange(5).tolist()):
        source = make(values)
        assert list(source) == [0, 1, 2, 3, 4]
        assert isinstance(source, ShareableList) and isinstance(source.shm, SharedMemory)
    # The methods of lists, and values that the standard library's cuts or refuses.
    source = make([0, "abc", None, 1.5, True, b"x" * 8, 0])
    assert (source.count(0), source.index(1.5), source.format) == (2, 3, "q8sxxxxxx?xdxxxxxxx?16sq")
    assert_raises(ValueError, "not in", source.index, 7)
    empty = make([])
    assert (len(empty), list(empty), empty.__getitems__([]), empty.format) == (0, [], [], "")
    assert_raises(IndexError, None, empty.__getitem__, 0)
    values = ["ééééé", "日本語", "a\0", "\0\0", b"\0", b"a\0\0", "", b"", "\ud800"]
    values += [-0.0, math.inf, math.nan]
    values += [2**63 - 1, -(2**63), 2**64, -(10**40), True, 1, None, "x" * 20_000_000]
    source, positions = make(values), range(len(values))[::-1]
    for found in (
        source,
        [make([value])[0] for value in values],
        [source[i - len(values)] for i in range(len(values))],
    ):
        found = [(type(value), repr(value)) for value in found]
        assert found == [(type(value), repr(value)) for value in values]
    assert repr(source.__getitems__(positions)) == repr(values[::-1]) and len(source) == len(values)
    source = make(range(5))
    assert (source[np.int64(3)], source[np.uint8(3)], source[True]) == (3, 3, 1)
    for index in (5, -6, 10**30, np.int64(5)):
        match = f"index {int(index)} is out of range for .*len=5"
        assert_raises(IndexError, match, source.__getitem__, index)
        assert_raises(IndexError, None, source.__setitem__, index, 1)
    for value in (np.int64(1), np.str_("a"), np.float64(1), (1,), {}, [1], np.zeros(2), 1j):
        match = r"elements\[1\] must be exactly an int, float, bool, str, bytes or None, got"
        assert_raises(TypeError, match, SharedMemoryDataSource, [0, value])
        assert_raises(TypeError, "value must be exactly an int", source.__setitem__, 0, value)
    assert_raises(ValueError, "Elements or name must be provided", SharedMemoryDataSource)
    name = f"gristmill-test-{os.getpid()}"
    source = make([1], name=name)
    assert source.shm.name == name and str(source) == f"InMemoryDataSource(name={name}, len=1)"
    assert_raises(FileExistsError, None, SharedMemoryDataSource, [2], name=name)
    assert SharedMemoryDataSource(name=name)[0] == 1
    source.unlink()
    assert_raises(FileNotFoundError, None, SharedMemoryDataSource, name=name)
    other, small = ShareableList([1, 2, 3]).shm, SharedMemory(create=True, size=8)
    small.buf[:8] = b"grstmil1"
    for block in (other, small):
        match = "was not made by SharedMemoryDataSource"
        assert_raises(ValueError, match, SharedMemoryDataSource, name=block.name)
        block.close()
        block.unlink()


def test_assignment_reaches_all_handles(make):
    source = make([5, "long enough", 0.5])
    attached = SharedMemoryDataSource(name=source.shm.name)
    source[0] = 10
    attached[-2] = b"\0short\0"
    source[2] = None
    assert list(source) == list(attached) == [10, b"\0short\0", None]
    copies = (copy.copy, copy.deepcopy, lambda x: cloudpickle.loads(cloudpickle.dumps(x)))
    for handle in [copied(source) for copied in copies]:
        handle[0] = source[0] + 1
        assert source[0] == handle[0]
    assert len(pickle.dumps(make(["x" * 10_000] * 100))) < 300
    for old in (0, None, "", b"x"):
        source = make([1, old, 2])
        for value in (2**63 - 1, -(2**63), 1.5, True, None, "8 bytes!", b"\0" * 8):
            source[1] = value
            assert list(source) == [1, value, 2]
        for value in ("nine byte", "ééééé", 2**64):
            match = r"value exceeds available storage: it needs .* bytes, element 1 has 8"
            assert_raises(ValueError, match, source.__setitem__, 1, value)
            assert list(source) == [1, b"\0" * 8, 2]


def test_repr_depends_on_the_content_alone_and_grains_is_known(make):
    source = make(range(5))
    before = repr(source)
    named = make(range(5), name=f"gristmill-repr-{os.getpid()}")
    assert before == repr(make([0, 1, 2, 3, 4])) == repr(named)
    contents = ([], [0, 1, 2, 3, 5], range(6), [0, 1, 2, 3, 4.0], ["a"], [b"a"], ["x" * 1000] * 100)
    others = [make(values) for values in contents]
    assert len({before, *map(repr, others)}) == 8 and len(repr(others[-1])) < 80
    for value in (7, 0):
        source[0] = value
        assert (repr(source) == before) == (value == 0)
    source, grains = (
        make([0, "it's", None]),
        """SharedMemoryDataSource([{}, "it's", None], name='psm_4d41caad')""".format,
    )
    texts = repr(source), grains(0), grains(1), repr(make([0]))
    assert [source.is_described_by(text) for text in texts] == [True, True, False, False]


def test_closed_handles_raise_and_unlinked_ones_stay_attached(make):
    for close in (lambda source: source.close(), lambda source: source.shm.close()):
        source = make(range(5))
        attached = SharedMemoryDataSource(name=source.shm.name)
        close(source)
        close(source)
        calls = [
            (source.__getitem__, 0),
            (source.__getitems__, [1, 2]),
            (list, source),
            (getattr, source, "format"),
        ]
        for call, *arguments in [*calls, (source.__setitem__, 0, 1)]:
            assert_raises(TypeError, "is closed", call, *arguments)
        assert repr(source) == "SharedMemoryDataSource(len=5, content=closed)" and list(
            attached
        ) == [0, 1, 2, 3, 4]
    for unlink in (lambda source: source.unlink(), lambda source: source.shm.unlink()):
        source = SharedMemoryDataSource(range(5))
        name = source.shm.name
        del source
        first, second = [SharedMemoryDataSource(name=name) for _ in range(2)]
        unlink(first)
        assert list(first) == list(second) == [0, 1, 2, 3, 4] and not exists(name)
        assert_raises(FileNotFoundError, None, unlink, first)


ENDS = ["", "del source", "source.close()", "source.unlink()", "handle.unlink()", "sys.exit(3)"]
ENDS += ["os.kill(os.getpid(), 9)"]


@pytest.mark.parametrize("end", ENDS)
def test_the_creator_leaves_nothing_behind_and_says_nothing(tmp_path, end):
    create = (
        "source = SharedMemoryDataSource(range(5))\nhandle = pickle.loads(pickle.dumps(source))\n"
    )
    (name,), code = run_program(tmp_path, f"{create}print(source.shm.name, flush=True)\n{end}")
    assert code == {"sys": 3, "os": -9}.get(end.partition(".")[0], 0) and not exists(name)


def test_a_process_that_attaches_leaves_everything_as_it_is(tmp_path, make):
    source, same = make(["é", 1]), make(["é", 1, None])
    program = """
    source = pickle.loads(bytes.fromhex(sys.argv[1]))
    source[1] = 7
    print(ascii(source[0]), repr(SharedMemoryDataSource(['é', 1, None])))
    for elements, name in (
        (None, None),
        (None, "gristmill-none"),
        ([1j], None),
        (3, None),
        ([1], 3),
    ):
        try:
            SharedMemoryDataSource(elements, name=name)
        except Exception:
            print("refused")
    """
    assert run_program(tmp_path, program, pickle.dumps(source).hex()) == (
        [f"'\\xe9' {same!r}", *["refused"] * 5],
        0,
    )
    assert exists(source.shm.name) and source[1] == 7


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
def test_children_of_multiprocessing_and_forks(tmp_path, method):
    program = """
    import multiprocessing

    def read(source, unlink):
        assert source[4] == 4
        if unlink:
            source.unlink()

    def create(queue):
        source = SharedMemoryDataSource([1])
        queue.put(source.shm.name)

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        source = SharedMemoryDataSource(range(5))
        if os.fork() == 0:  # its end does not take the memory along
            sys.exit(source[4])
        assert os.waitstatus_to_exitcode(os.wait()[1]) == 4
        for unlink in (False, sys.argv[1] == "spawn"):
            assert SharedMemoryDataSource(name=source.shm.name)[4] == 4
            child = context.Process(target=read, args=(source, unlink))
            child.start()
            child.join()
            assert child.exitcode == 0
        queue = context.SimpleQueue()
        child = context.Process(target=create, args=(queue,))
        child.start()
        name = queue.get()
        child.join()
        try:
            SharedMemoryDataSource(name=name)
        except FileNotFoundError:
            print("gone with the child", source.shm.name)
    """
    (line,), code = run_program(tmp_path, program, method)
    message, _, name = line.rpartition(" ")
    assert (message, code) == ("gone with the child", 0) and not exists(name)
