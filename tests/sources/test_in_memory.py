import copy
import math
import os
import pickle
import subprocess
import sys
import textwrap
import threading
from multiprocessing.shared_memory import ShareableList, SharedMemory

import cloudpickle
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.sources import InMemoryDataSource, SharedMemoryDataSource


@pytest.fixture
def make():
    """Creates sources that are unlinked after the test."""
    sources = []

    def create(elements, **kwargs):
        sources.append(SharedMemoryDataSource(elements, **kwargs))
        return sources[-1]

    yield create
    for source in sources:
        try:
            source.unlink()
        except FileNotFoundError:
            pass


def run(program, *arguments, **kwargs):
    """Runs a program to its end, its resource tracker's end included (which holds the same stderr)."""
    command = [sys.executable, "-c", textwrap.dedent(program), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, **kwargs)


def exists(name):
    try:
        SharedMemoryDataSource(name=name)
    except FileNotFoundError:
        return False
    return True


# What goes in comes out.

elements = st.one_of(
    st.integers(), st.floats(allow_nan=False), st.booleans(), st.none(), st.binary(max_size=40), st.text(max_size=40)
)


@given(st.lists(elements, max_size=20))
def test_elements_come_back_as_they_were(values):
    source = SharedMemoryDataSource(values)
    try:
        attached = pickle.loads(pickle.dumps(source))
        for handle in (source, attached):
            assert len(handle) == len(values)
            assert [(type(value), value) for value in handle] == [(type(value), value) for value in values]
            positions = list(range(len(values)))[::-1]
            assert handle.__getitems__(positions) == values[::-1]
            assert [handle[position - len(values)] for position in positions] == values[::-1]
    finally:
        source.unlink()


EXACT = ["ééééé", "日本語", "a\0", "\0\0", b"\0", b"a\0\0", "", b"", "\ud800", -0.0, math.inf]
EXACT += [2**63 - 1, -(2**63), 2**64, -(10**40), True, 1, None, "x" * 20_000_000]


@pytest.mark.parametrize("value", EXACT, ids=lambda value: repr(value)[:20])
def test_values_that_the_standard_library_cuts_or_refuses(make, value):
    (result,) = make([value])
    assert (type(result), repr(result)) == (type(value), repr(value))


def test_not_a_number_stays_one(make):
    assert math.isnan(make([math.nan])[0])


@pytest.mark.parametrize("values", [range(5), (0, 1, 2, 3, 4), (i for i in range(5)), np.arange(5).tolist()])
def test_elements_may_be_any_iterable(make, values):
    source = make(values)
    assert list(source) == [0, 1, 2, 3, 4]
    assert isinstance(source, ShareableList)
    assert isinstance(source.shm, SharedMemory)


def test_no_elements(make):
    source = make([])
    assert (len(source), list(source), source.__getitems__([]), source.format) == (0, [], [], "")
    with pytest.raises(IndexError):
        source[0]


def test_the_methods_of_shareable_list(make):
    source = make([0, "abc", None, 1.5, True, b"x" * 8, 0])
    assert source.count(0) == 2
    assert source.index(1.5) == 3
    with pytest.raises(ValueError, match="7 not in this container"):
        source.index(7)
    assert source.format == "q8sxxxxxx?xdxxxxxxx?16sq"


# Errors.


@pytest.mark.parametrize("index", [5, -6, 10**30, np.int64(5)])
def test_an_index_outside_is_an_error(make, index):
    source = make(range(5))
    with pytest.raises(IndexError, match=f"index {int(index)} is out of range for .*len=5"):
        source[index]
    with pytest.raises(IndexError):
        source[index] = 1


@pytest.mark.parametrize("index", [slice(0, 2), 1.0, "1", None])
def test_only_integers_are_indices(make, index):
    with pytest.raises(TypeError):
        make(range(5))[index]


def test_every_kind_of_integer_is_an_index(make):
    source = make(range(5))
    assert source[np.int64(3)] == source[np.uint8(3)] == 3
    assert source[True] == 1


@pytest.mark.parametrize("value", [np.int64(1), np.str_("a"), np.float64(1), (1,), {}, [1], np.zeros(2), 1j])
def test_elements_of_other_types_are_named(make, value):
    with pytest.raises(TypeError, match=r"elements\[1\] must be exactly an int, float, bool, str, bytes or None, got"):
        SharedMemoryDataSource([0, value])
    with pytest.raises(TypeError, match="value must be exactly an int"):
        make([0])[0] = value


def test_neither_elements_nor_name():
    with pytest.raises(ValueError, match="Elements or name must be provided"):
        SharedMemoryDataSource()


def test_names_are_unique(make):
    name = f"gristmill-test-{os.getpid()}"
    source = make([1], name=name)
    assert source.shm.name == name
    with pytest.raises(FileExistsError):
        SharedMemoryDataSource([2], name=name)
    assert SharedMemoryDataSource(name=name)[0] == 1
    source.unlink()
    with pytest.raises(FileNotFoundError):
        SharedMemoryDataSource(name=name)


def test_a_block_of_another_kind_is_refused():
    other = ShareableList([1, 2, 3])
    try:
        with pytest.raises(ValueError, match="was not made by SharedMemoryDataSource"):
            SharedMemoryDataSource(name=other.shm.name)
    finally:
        other.shm.close()
        other.shm.unlink()


# Assignment.


def test_assignment_reaches_all_handles(make):
    source = make([5, "long enough", 0.5])
    attached = SharedMemoryDataSource(name=source.shm.name)
    source[0] = 10
    attached[-2] = b"\0short\0"
    source[2] = None
    assert list(source) == list(attached) == [10, b"\0short\0", None]


@pytest.mark.parametrize("value", [2**63 - 1, -(2**63), 1.5, True, None, "8 bytes!", b"\0" * 8])
@pytest.mark.parametrize("old", [0, None, "", b"x"])
def test_every_element_has_room_for_eight_bytes(make, old, value):
    source = make([1, old, 2])
    source[1] = value
    assert list(source) == [1, value, 2]


@pytest.mark.parametrize("value", ["nine byte", "ééééé", 2**64])
def test_a_value_without_room_is_refused_and_nothing_changes(make, value):
    source = make([1, 7, 2])
    with pytest.raises(ValueError, match=r"value exceeds available storage: it needs .* bytes, element 1 has 8"):
        source[1] = value
    assert list(source) == [1, 7, 2]


# Texts.


def test_str_has_the_name(make):
    source = make(range(5))
    assert str(source) == f"InMemoryDataSource(name={source.shm.name}, len=5)"


def test_repr_depends_on_the_content_alone(make):
    source = make(range(5))
    assert repr(source) == repr(make([0, 1, 2, 3, 4])) == repr(pickle.loads(pickle.dumps(source)))
    assert repr(source) == repr(make(range(5), name=f"gristmill-repr-{os.getpid()}"))
    others = [make(values) for values in ([], [0, 1, 2, 3, 5], range(6), [0, 1, 2, 3, 4.0], ["a"], [b"a"])]
    assert len({repr(source), *map(repr, others)}) == 7
    assert len(repr(make(["x" * 1000] * 100))) < 80


def test_repr_is_the_same_in_every_run(make):
    program = "from gristmill.sources import *; print(repr(SharedMemoryDataSource(['é', 1, None])))"
    assert run(program).stdout.strip() == repr(make(["é", 1, None]))


def test_repr_follows_assignments(make):
    source = make(["first"])
    before = repr(source)
    source[0] = "2nd"
    assert repr(source) != before
    source[0] = "first"
    assert repr(source) == before


def test_descriptions_in_states_of_ours_and_of_grain(make):
    source = make([0, "it's", None])
    assert source.is_described_by(repr(source))
    assert source.is_described_by("""SharedMemoryDataSource([0, "it's", None], name='psm_4d41caad')""")
    assert not source.is_described_by("""SharedMemoryDataSource([1, "it's", None], name='psm_4d41caad')""")
    assert not source.is_described_by(repr(make([0])))


# Life and death.


def test_after_close_reading_is_a_type_error(make):
    source = make(range(5))
    attached = SharedMemoryDataSource(name=source.shm.name)
    source.close()
    source.close()
    for action in (lambda: source[0], lambda: source.__getitems__([1, 2]), lambda: list(source), lambda: source.format):
        with pytest.raises(TypeError, match="is closed"):
            action()
    with pytest.raises(TypeError, match="is closed"):
        source[0] = 1
    assert repr(source) == "SharedMemoryDataSource(len=5, content=closed)"
    assert list(attached) == [0, 1, 2, 3, 4]


def test_closing_the_memory_itself_is_the_same(make):
    source = make(range(5))
    source.shm.close()
    with pytest.raises(TypeError, match="is closed"):
        source[0]


@pytest.mark.parametrize("unlink", [lambda source: source.unlink(), lambda source: source.shm.unlink()])
def test_unlink_leaves_what_is_attached(make, unlink):
    source = make(range(5))
    attached = SharedMemoryDataSource(name=source.shm.name)
    unlink(source)
    assert list(source) == list(attached) == [0, 1, 2, 3, 4]
    assert not exists(source.shm.name)
    with pytest.raises(FileNotFoundError):
        unlink(source)


def test_deleting_the_creator_only_drops_its_handle():
    source = SharedMemoryDataSource(range(5))
    name = source.shm.name
    del source
    attached = SharedMemoryDataSource(name=name)
    assert list(attached) == [0, 1, 2, 3, 4]
    attached.unlink()


@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy, lambda x: cloudpickle.loads(cloudpickle.dumps(x))])
def test_copies_are_handles_to_the_same_memory(make, copy_of):
    source = make(["x" * 10_000] * 100)
    handle = copy_of(source)
    source[3] = "new"
    assert handle[3] == "new"
    assert len(pickle.dumps(source)) < 300


def test_many_threads_read_at_once(make):
    source = make([f"{i}" * (i % 50) for i in range(500)])
    expected, wrong = list(source), []

    def read(seed):
        positions = np.random.default_rng(seed).integers(0, 500, 2000).tolist()
        if source.__getitems__(positions) != [expected[position] for position in positions]:
            wrong.append(seed)

    threads = [threading.Thread(target=read, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_failing_constructors_print_nothing():
    result = run(
        """
        from gristmill.sources import SharedMemoryDataSource
        for elements, name in ((None, None), (None, "gristmill-none"), ([1j], None), (3, None), ([1], 3)):
            try:
                SharedMemoryDataSource(elements, name=name)
            except Exception:
                print("refused")
        """
    )
    assert (result.stdout.split(), result.stderr, result.returncode) == (["refused"] * 5, "", 0)


@pytest.mark.parametrize(
    "end", ["", "del source", "source.close()", "import sys; sys.exit(3)", "source.unlink()", "handle.unlink()"]
)
def test_the_creator_leaves_nothing_behind_and_says_nothing(end):
    result = run(
        f"""
        import pickle
        from gristmill.sources import SharedMemoryDataSource
        source = SharedMemoryDataSource(range(5))
        handle = pickle.loads(pickle.dumps(source))
        print(source.shm.name, flush=True)
        {end}
        """
    )
    assert result.stderr == ""
    assert not exists(result.stdout.strip())


def test_a_killed_creator_leaves_nothing_behind():
    result = run(
        """
        import os, signal
        from gristmill.sources import SharedMemoryDataSource
        source = SharedMemoryDataSource(range(5))
        print(source.shm.name, flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
        """
    )
    assert result.returncode == -9
    assert not exists(result.stdout.strip())


def test_a_process_that_attaches_leaves_everything_as_it_is(make):
    source = make(["é", 1])
    result = run(
        """
        import pickle, sys
        source = pickle.loads(bytes.fromhex(sys.argv[1]))
        source[1] = 7
        print(ascii(source[0]))
        """,
        pickle.dumps(source).hex(),
    )
    assert (result.stdout, result.stderr) == ("'\\xe9'\n", "")
    assert exists(source.shm.name)
    assert source[1] == 7


CHILDREN = """
import multiprocessing, os, sys
from gristmill.sources import SharedMemoryDataSource

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
    for unlink in (False, False, sys.argv[2] == "unlink in child"):
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


@pytest.mark.parametrize("unlink", ["unlink in child", "no unlink"])
@pytest.mark.parametrize("method", ["spawn", "fork", "forkserver"])
def test_children_of_multiprocessing(tmp_path, method, unlink):
    script = tmp_path / "script.py"
    script.write_text(CHILDREN)
    command = [sys.executable, str(script), method, unlink]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert result.stderr == ""
    message, _, name = result.stdout.strip().rpartition(" ")
    assert message == "gone with the child"
    assert not exists(name)


def test_a_fork_that_ends_does_not_take_the_memory_along():
    result = run(
        """
        import os, sys
        from gristmill.sources import SharedMemoryDataSource
        source = SharedMemoryDataSource(range(5))
        if os.fork() == 0:
            sys.exit(source[4])
        _, status = os.wait()
        print(os.waitstatus_to_exitcode(status), len(SharedMemoryDataSource(name=source.shm.name)))
        """
    )
    assert (result.stdout, result.stderr) == ("4 5\n", "")


def test_a_fork_may_unlink():
    result = run(
        """
        import os
        from gristmill.sources import SharedMemoryDataSource
        source = SharedMemoryDataSource(range(5))
        if os.fork() == 0:
            source.unlink()
            os._exit(0)
        os.wait()
        try:
            SharedMemoryDataSource(name=source.shm.name)
        except FileNotFoundError:
            print("unlinked")
        """
    )
    assert (result.stdout, result.stderr) == ("unlinked\n", "")


def test_the_tutorial():
    source = InMemoryDataSource(range(5))
    assert (source[0], len(source)) == (0, 5)
    source.unlink()
    source.close()


def test_a_block_too_small_to_be_a_source_is_refused():
    block = SharedMemory(create=True, size=8)
    try:
        block.buf[:8] = b"grstmil1"
        with pytest.raises(ValueError, match="was not made by"):
            SharedMemoryDataSource(name=block.name)
    finally:
        block.close()
        block.unlink()
