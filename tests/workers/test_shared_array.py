import copy
import dataclasses
import gc
import pickle
import signal
import sys
import textwrap
import threading
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import programs
import pytest
from blocks import exists
from refusing import assert_raises

from gristmill.core.shared_block import SharedBlock
from gristmill.multiprocessing import SharedMemoryArray, SharedMemoryArrayMetadata

FDS, BLOCKS = Path("/proc/self/fd"), Path("/dev/shm")


def filled(shape=(4, 3), dtype="int32"):
    array = SharedMemoryArray(shape, dtype)
    array.unlink_on_del()
    array[...] = np.arange(array.size).reshape(shape)
    return array


def over_new_block(size, shape, dtype):
    return SharedMemoryArray.from_shared_memory(SharedMemory(create=True, size=size), shape, dtype)


KINDS = [
    ((2, 3), np.int32),
    ([2, 3], "float16"),
    ((), "complex128"),
    ((0,), "int8"),
    ((2,), "<U3"),
    ((2,), ("i4", (3,))),
]
KINDS += [
    ((2,), "U"),
    (range(3), "int8"),
    (np.array([2, 3]), "int8"),
    ((2,), [("a", "i4"), ("b", "f8", (2,))]),
]


def test_it_is_what_zeros_gives_and_travels_by_name():
    for shape, dtype in KINDS:
        array = SharedMemoryArray(shape, dtype)
        array.unlink_on_del()
        zeros = np.zeros(tuple(shape), dtype)
        assert array.flags.writeable and array.flags.c_contiguous
        assert array.metadata == SharedMemoryArrayMetadata(array.shm.name, zeros.shape, zeros.dtype)
        for each in (
            array,
            SharedMemoryArray.from_metadata(array.metadata),
            pickle.loads(pickle.dumps(array)),
        ):
            assert type(each) is SharedMemoryArray
            np.testing.assert_array_equal(each, zeros, strict=True)
            assert each.metadata == array.metadata
    array = SharedMemoryArray(shape=iter((2, 1)))
    array.unlink_on_del()
    assert (array.shape, array.dtype) == ((2, 1), np.dtype(float))


def test_what_is_refused():
    threads = {*threading.enumerate()}
    over, start = SharedMemoryArray.from_shared_memory, SharedMemoryArray.enable_async_del
    for n in (5, np.int64(5), np.array(5), None):
        with pytest.raises(
            TypeError, match=r"shape must be a sequence of integers, as in \(5,\), got"
        ):
            SharedMemoryArray(n)
    for arguments, error, message in [
        ([(2.0,)], TypeError, r"shape\[0\] must be an integer, got 2.0"),
        ([(2, -1)], ValueError, r"shape\[1\] must be a non-negative integer, got -1"),
        ([(2**40, 2**40)], ValueError, "too large"),
        ([(2**70,)], ValueError, "dimension"),
        ([(2,), object], TypeError, "dtype must not have Python objects"),
        ([(2,), [("a", "i4"), ("b", "O")]], TypeError, "dtype must not have Python objects"),
        ([(2,), "no such dtype"], TypeError, "not understood"),
    ]:
        assert_raises(error, message, SharedMemoryArray, *arguments)
    assert_raises(TypeError, "Python objects", over, filled().shm, (1,), object)
    assert_raises(TypeError, "buffer is too small", over, filled().shm, (13,), "int32")
    shm = SharedMemory(create=True, size=32)
    shm.unlink()
    shm.close()
    assert_raises(ValueError, "shm must be open", over, shm, (1,), np.int8)
    for error, numbers in (
        (ValueError, [0]),
        (TypeError, [1.5]),
        (ValueError, [1, -1]),
        (TypeError, [1, "2"]),
    ):
        assert_raises(
            error, ["num_threads", "max_outstanding_requests"][len(numbers) - 1], start, *numbers
        )
    assert {*threading.enumerate()} <= threads


def test_metadata_and_arrays_that_are_attached_by_them():
    metadata = SharedMemoryArrayMetadata("name", [2, np.int64(3)], np.int32)
    assert dataclasses.astuple(metadata) == ("name", (2, 3), np.dtype("int32"))
    assert metadata == SharedMemoryArrayMetadata(name="name", shape=(2, 3), dtype="int32")
    assert metadata == pickle.loads(pickle.dumps(metadata))
    assert (
        len({metadata, SharedMemoryArrayMetadata("name", (2, 3), "i4"), copy.deepcopy(metadata)})
        == 1
    )
    assert metadata != SharedMemoryArrayMetadata("other", (2, 3), "int32")
    assert not hasattr(metadata, "__dict__")
    assert_raises(dataclasses.FrozenInstanceError, None, setattr, metadata, "name", "other")
    assert SharedMemoryArrayMetadata("name", 5, "int8").shape == (5,)
    array = SharedMemoryArray((4, 3), "int32")
    array[...] = 1
    metadata = array.metadata
    attached = SharedMemoryArray.from_metadata(metadata)
    attached[1, 1] = 77
    assert (
        attached.shm is not array.shm and attached.shm.name == array.shm.name and array[1, 1] == 77
    )
    del array, attached
    attached = SharedMemoryArray.from_metadata(metadata)  # it stays until it is unlinked
    metadata.close_and_unlink_shm()
    assert attached.sum() == 77 + 11, "what is attached stays"
    assert_raises(FileNotFoundError, None, metadata.close_and_unlink_shm)
    assert_raises(FileNotFoundError, None, SharedMemoryArray.from_metadata, metadata)


@pytest.mark.parametrize(
    "make", [lambda: SharedMemory(create=True, size=100), lambda: SharedBlock(size=100)]
)
def test_any_open_block_will_do_and_may_be_closed(make):
    shm = make()
    array = SharedMemoryArray.from_shared_memory(shm, (2, 3), np.int64)
    array[1, 2] = 5
    assert array.shm is shm and bytes(shm.buf[40:48]) == (5).to_bytes(8, sys.byteorder)
    attached = pickle.loads(pickle.dumps(array))
    attached[0, 0] = 6
    assert array.tolist() == [[6, 0, 0], [0, 0, 5]]
    array.unlink_on_del()
    del array
    assert not exists(shm.name)
    again = SharedMemoryArray.from_shared_memory(shm, 5, np.int8)  # an unlinked block is open still
    raw = SharedMemoryArray.from_shared_memory(shm, (6, 8), np.uint8)
    shm.close()
    again[1] = 3
    del again
    assert raw[0].tolist() == [6, 3, 0, 0, 0, 0, 0, 0]


FIELDS = [("x", "i4"), ("y", "i4"), ("z", "i4")]
WHOLE = [
    lambda a: a,
    lambda a: a[...],
    lambda a: a.reshape(3, 2, 2),
    lambda a: a.view("uint8"),
    lambda a: a.view(),
]
PART = [
    lambda a: a[1:],
    lambda a: a[:2],
    lambda a: a[4:],
    lambda a: a.T,
    lambda a: a[::-2, 1],
    lambda a: a[1:][1:].T[::-1],
]
PART += [lambda a: np.broadcast_to(a, (2, 4, 3), subok=True), lambda a: a.view(FIELDS)["y"]]
PLAIN = [
    lambda a: a.view(np.ndarray)[1:],
    lambda a: np.asarray(memoryview(a)[1:]),
    lambda a: np.asarray(a).T,
]
RESULT = [
    lambda a: a + 1,
    lambda a: np.divmod(a, 2)[1],
    lambda a: a.sum(0),
    lambda a: a.mean(1, keepdims=True),
]
RESULT += [
    lambda a: np.stack([a, a]),
    lambda a: np.where(a > 1, a, 0),
    lambda a: np.add(a, 1, out=np.zeros((4, 3))),
]
COPY = [
    lambda a: a.copy(),
    lambda a: a.astype("float32"),
    lambda a: a[a > 2],
    lambda a: a[[0, 1]][1:],
    np.zeros_like,
]
COPY += [copy.deepcopy]
OPERATIONS = {"whole": WHOLE, "part": PART, "plain view": PLAIN, "result": RESULT, "copy": COPY}


@pytest.mark.parametrize(
    ("kind", "operation"), [(kind, fn) for kind, fns in OPERATIONS.items() for fn in fns]
)
def test_what_shares_the_block_and_how_it_is_pickled(kind, operation):
    array = filled()
    name, expected, made = array.shm.name, operation(np.array(array)), operation(array)
    is_view = kind in ("whole", "part")
    assert type(made) is (np.ndarray if kind in ("plain view", "result") else SharedMemoryArray)
    assert getattr(made, "shm", None) is (array.shm if is_view else None)
    np.testing.assert_array_equal(made, expected)
    refused = {
        "part": (ValueError, "is a view of a part of its shared memory, or in another order")
    }
    refused["copy"] = (AssertionError, "no shared memory")
    if kind in refused:
        assert_raises(*refused[kind], getattr, made, "metadata")
    if kind == "copy":
        made.unlink_on_del()  # nothing to do
    loaded = [
        pickle.loads(pickle.dumps(made, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    ]
    (loaded[0] if kind == "whole" else array)[...] = 7
    if kind == "whole":
        assert all([each.metadata == made.metadata for each in loaded])
        expected = made
    for each in loaded:
        assert type(each) is (SharedMemoryArray if kind == "whole" else np.ndarray)
        np.testing.assert_array_equal(each, expected, strict=True)
    del array, each, loaded  # unlink_on_del is off in what was unpickled
    assert exists(name) == (is_view or kind == "plain view")
    del made, expected
    assert not exists(name)


def test_results_are_scalars_shared_or_sent_out_of_band():
    for operation in (np.sum, np.max, np.argmax, lambda a: a[1, 2], lambda a: np.add(a[0, 0], 1)):
        assert isinstance(operation(filled()), np.generic)
    assert isinstance(filled(()) + 1, np.generic)
    array, out, buffers = filled(), filled((3,)), []
    assert np.add(array, 1, out=array) is array
    assert array.sum(0, out=out) is out
    assert out.shm is not None
    part, before = array[1:], array
    assert np.multiply(part, 2, out=part) is part
    array += array
    assert array is before and array.shm is not None
    assert array.tolist() == [[2, 4, 6], [16, 20, 24], [28, 32, 36], [40, 44, 48]]
    pickled = pickle.dumps(array[1:], 5, buffer_callback=buffers.append)
    assert len(buffers) == 1
    np.testing.assert_array_equal(pickle.loads(pickled, buffers=buffers), array[1:])
    assert len(pickle.dumps(filled((100, 100)))) < 500


@pytest.mark.parametrize(
    "who", [lambda a: a, lambda a: a[1:], lambda a: SharedMemoryArray.from_metadata(a.metadata)]
)
def test_who_is_responsible_unlinks_when_it_goes_away(who):
    array = SharedMemoryArray((3,))
    shm, responsible = array.shm, who(array)
    responsible.unlink_on_del()
    responsible.unlink_on_del()
    assert exists(shm.name)
    del array, responsible
    assert not exists(shm.name) and shm.buf[0] == 0  # it is held
    whole = filled()
    array = who(whole)
    array.unlink_on_del()
    SharedBlock(array.shm.name).unlink()
    assert array.sum() > 60
    del array, whole  # pytest makes an error of an exception in a finalizer


@pytest.mark.skipif(not FDS.is_dir(), reason="maps and descriptors are listed on Linux only")
def test_nothing_is_left_open_or_mapped():
    def use():
        array, foreign = filled(), over_new_block(8, (8,), "int8")
        views = [
            array[1:],
            pickle.loads(pickle.dumps(array)),
            SharedMemoryArray.from_metadata(array.metadata).T,
        ]
        foreign.unlink_on_del()
        return {view.shm.name for view in (*views, foreign)}

    use()  # Starts the resource tracker.
    before = len(list(FDS.iterdir()))
    names = use()
    assert len(list(FDS.iterdir())) <= before
    maps = Path("/proc/self/maps").read_text()
    assert len(names) == 2 and not any(name in maps for name in names)


def test_finalizers_of_a_cycle_may_still_read_the_array():
    """The collector may finalize the block first."""
    read = []

    class Reader:
        def __init__(self, array):
            self.array, self.cycle = array, self

        def __del__(self):
            read.append(self.array.sum())

    array, foreign = filled(), over_new_block(8, (8,), "int8")
    name, foreign[:] = array.shm.name, 3
    foreign.unlink_on_del()
    readers = [Reader(array), Reader(foreign), Reader(array[2:])]
    del array, foreign, readers
    gc.collect()
    assert sorted(read) == [24, 51, 66] and not exists(name)


def test_deletion_waits_for_no_lock():
    """A finalizer may run while this very thread is talking to the resource tracker."""
    arrays = [filled(), over_new_block(8, (8,), "int8")]
    arrays[1].unlink_on_del()
    names = [array.shm.name for array in arrays]
    held, done = threading.Event(), threading.Event()

    def hold():
        with vars(resource_tracker)["_resource_tracker"]._lock:
            held.set()
            done.wait()

    thread = threading.Thread(target=hold)
    thread.start()
    held.wait()
    arrays.clear()
    left = [name for name in names if (BLOCKS / name).exists()]
    done.set()
    thread.join()
    assert left == [] and not any(map(exists, names))


# --- Programs, which print the names of the blocks that they make.


PRELUDE = f"""
import gc, multiprocessing.util, os, pickle, signal, subprocess, sys, threading, warnings
from multiprocessing.shared_memory import SharedMemory
import numpy as np
sys.path.insert(0, {str(Path(__file__).parent)!r})
from blocks import exists, make
from gristmill.multiprocessing import SharedMemoryArray, SharedMemoryArrayMetadata
"""


def run(tmp_path, script, *arguments):
    """Runs a program that leaves no block. Returns what it printed but their names."""
    lines = programs.output(tmp_path, PRELUDE + textwrap.dedent(script), *arguments)
    names = [line for line in lines if line.startswith("gristmill_")]
    assert names and not [name for name in names if exists(name)]
    return [line for line in lines if line not in names]


ALIVE_AT_EXIT = """
method, background = sys.argv[1], sys.argv[2] == "True"
class Cycle:
    def __init__(self, array):
        self.array, self.cycle = array, self
    def __del__(self):
        self.array[:1] += 1
def keep(array, unlinks):
    if unlinks:
        array.unlink_on_del()
    sys.kept = [*getattr(sys, "kept", []), array, array[1:], np.asarray(array)[2:], array.copy()]
    sys.cycle = Cycle(make())
    Cycle(make())
    globals()[f"kept{id(array)}"] = array[3:]
def work(given):
    if background:
        SharedMemoryArray.enable_async_del(num_threads=2)
    sys.given = given
    for unlinks in (False, True):
        shm = SharedMemory(create=True, size=100)
        shm.unlink()
        over, attached = (
            SharedMemoryArray.from_shared_memory(shm, (10,), float),
            SharedMemoryArray.from_metadata(make().metadata),
        )
        for array in (make(), over, attached, make(shape=(0,))):
            keep(array, unlinks)
    for _ in range(20):
        make().unlink_on_del()
if __name__ == "__main__":
    array = make()
    work(array)
    if method != "none":
        process = multiprocessing.get_context(method).Process(target=work, args=(array,))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert array.sum() == 0 and exists(array.shm.name)
"""


@pytest.mark.parametrize(
    ("method", "background"),
    [("none", True), ("fork", False), ("spawn", True), ("forkserver", False)],
)
def test_arrays_alive_at_exit_are_freed_in_silence(tmp_path, method, background):
    assert run(tmp_path, ALIVE_AT_EXIT, method, background) == []


HANDED_OVER = """
def produce(queue, how):
    array = make(5)
    queue.put({"array": array, "metadata": array.metadata, "view": array[1:]}[how])
    sys.kept = array
def produce_in_pool(value):
    array = make(value)
    sys.kept = [*getattr(sys, "kept", []), make()]
    return array
def show(array):
    print(array[0])
if __name__ == "__main__":
    context, unlinked = multiprocessing.get_context(sys.argv[1]), sys.argv[2]
    mine = make(1)  # With fork, the child shares our resource tracker only if there is one.
    sys.kept = [mine]
    for how in ("array", "metadata", "view"):
        queue = context.Queue()
        process = context.Process(target=produce, args=(queue, how))
        process.start()
        process.join()
        assert process.exitcode == 0
        array = queue.get()
        if how == "metadata":
            array = SharedMemoryArray.from_metadata(array)
        assert array.sum() == 5 * len(array) and (how == "view" or exists(array.shm.name)), array
        if how == unlinked:
            array.unlink_on_del()
        sys.kept.append(array)
    del sys.kept[1]
    # elsewhere the tracker frees unclaimed memory and that of killed children, and says so
    if os.path.isdir("/dev/shm"):
        process = context.Process(target=produce, args=(queue, "array"))
        process.start()
        process.join()
        with context.Pool(2) as pool:  # whose workers are terminated
            arrays = pool.map(produce_in_pool, range(6))
        assert [array[-1] for array in arrays] == list(range(6))
        arrays[0].unlink_on_del()
    array = make(7)
    array.unlink_on_del()
    # for which this one waits before it frees anything
    context.Process(target=show, args=(array,)).start()
"""


@pytest.mark.parametrize(
    ("method", "unlinked"), [("fork", "array"), ("spawn", "metadata"), ("forkserver", "array")]
)
def test_what_a_child_has_given_away_outlives_it(tmp_path, method, unlinked):
    assert run(tmp_path, HANDED_OVER, method, unlinked) == ["7.0"]


EARLY = """
if sys.argv[1] != "fork":
    array = make()  # a fork has none then, and a tracker of its own, which ends with it
def work(queue, gives):
    sys.kept = [make(), make().metadata]
    queue.put(None if sys.argv[1] == "fork" else (array.shm.name, make(7) if gives else None))
if __name__ == "__main__":
    context = multiprocessing.get_context(sys.argv[1])
    context.set_forkserver_preload(["json"])  # not the main program
    queue = context.SimpleQueue()
    for gives in (False, True) if sys.argv[1] == "spawn" else (True,):
        process = context.Process(target=work, args=(queue, gives))
        process.start()
        process.join()
        given = queue.get()
        assert not given or not (exists(given[0]) or gives and given[1][0] != 7)
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_what_a_child_makes_is_freed_when_it_ends(tmp_path, method):
    """It imports the main program first, and multiprocessing may then forget the registered exit
    functions.
    """
    assert run(tmp_path, EARLY, method) == []


def test_others_who_end_or_unlink_do_no_harm(tmp_path):
    """Programs that have nothing in common, and the standard library; names that are gone are not
    remembered.
    """
    script = """
    from gristmill.core import shared_block
    def attached(name):
        return SharedMemoryArray.from_metadata(SharedMemoryArrayMetadata(name, (1000,), float))
    if len(sys.argv) == 1:
        for _ in range(100):
            array = SharedMemoryArray((10,))
            pickle.loads(pickle.dumps(array)).unlink_on_del()
        del array
        print(len(shared_block._names))
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        creator = subprocess.Popen([sys.executable, __file__, "creates"], **pipes)
        name = creator.stdout.readline().strip()
        print(name)
        array = attached(name)
        creator.communicate("")
        assert creator.returncode == 0 and not exists(name) and array.sum() == 3000
        array = make(3)
        for how in ("uses", "unlinks"):
            subprocess.run([sys.executable, __file__, how, array.shm.name], check=True)
            assert exists(array.shm.name) == (how == "uses")
        assert array[0] == 5
        for unlinks in (False, True):
            array = make()
            if unlinks:
                array.unlink_on_del()
            SharedMemory(array.shm.name).unlink()  # which notifies the tracker, and so do we
    elif sys.argv[1] == "creates":
        array = make(3)
        sys.stdin.read()
    else:
        array = attached(sys.argv[2])
        array[0] += 1
        if sys.argv[1] == "unlinks":
            array.unlink_on_del()
    """
    assert run(tmp_path, script) == ["0"]


def test_a_fork_inherits_memory_but_no_duty(tmp_path):
    script = """
    from gristmill.workers import shared_array
    warnings.simplefilter("ignore")  # Python 3.12 does not like forks of processes with threads
    SharedMemoryArray.enable_async_del(3, max_outstanding_requests=0)
    assert len(shared_array._pool._permits) == threading.active_count() - 1 == 3
    array = make(1)
    array.unlink_on_del()
    for how in ("delete", "exit", "own"):
        child = os.fork()
        if child == 0:
            assert not any(
                thread.name.startswith("gristmill") for thread in threading.enumerate()
            ), threading.enumerate()
            name = array.shm.name
            array[0] += 1
            if how == "own":
                own = make()
                own.unlink_on_del()
                own = own.shm.name
                assert not exists(own), "without threads it happens at once"
                sys.kept = make()
            if how != "exit":
                del array
                assert exists(name)
            sys.exit()
        assert os.waitpid(child, 0)[1] == 0
        assert exists(array.shm.name)
    assert array[0] == 4
    """
    assert run(tmp_path, script) == []


def test_a_killed_creator_leaves_nothing(tmp_path):
    """The resource tracker cleans up, and says so."""
    process = programs.outcome(
        tmp_path, PRELUDE + "sys.kept = make()\nos.kill(os.getpid(), signal.SIGKILL)\n"
    )
    assert process.returncode == -signal.SIGKILL
    # and the tracker, which has stderr too, has ended
    assert "leaked shared_memory" in process.stderr
    assert not exists(process.stdout.strip())


def test_the_background_takes_its_limit_and_is_waited_for(tmp_path):
    script = """
    from gristmill.workers import shared_array
    class Slow:
        def __init__(self):
            self.going_on = threading.Event()
        def release(self):
            self.going_on.wait()
            print("released", flush=True)
    def droppable(n):
        arrays = [make() for _ in range(n)]
        [array.unlink_on_del() for array in arrays]
        return arrays
    SharedMemoryArray.enable_async_del(1, max_outstanding_requests=2)
    SharedMemoryArray.enable_async_del(7)
    print(
        [
            (thread.name, thread.daemon)
            for thread in threading.enumerate()
            if thread is not threading.main_thread()
        ]
    )
    slow, arrays = Slow(), droppable(3)
    names = [array.shm.name for array in arrays]
    shared_array._pool.take(slow)
    del arrays[0], arrays[0]
    print([exists(name) for name in names])
    slow.going_on.set()
    while exists(names[0]):
        os.sched_yield()
    del arrays[0]
    while exists(names[2]):
        os.sched_yield()
    at_exit = Slow()
    multiprocessing.util.Finalize(None, at_exit.going_on.set, exitpriority=-40)
    while not shared_array._pool.take(at_exit):
        pass
    droppable(20)
    """
    assert run(tmp_path, script) == [
        "[('gristmill-async-del-0', True)]",
        "[True, False, True]",
        "released",
        "released",
    ]
