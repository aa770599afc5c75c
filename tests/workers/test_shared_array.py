import copy
import dataclasses
import gc
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from multiprocessing import resource_tracker
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import numpy as np
import pytest

from gristmill.core.shared_block import SharedBlock
from gristmill.multiprocessing import SharedMemoryArray, SharedMemoryArrayMetadata

FDS = Path("/proc/self/fd")
BLOCKS = Path("/dev/shm")
PROTOCOLS = range(pickle.HIGHEST_PROTOCOL + 1)


def exists(name):
    try:
        SharedBlock(name)
    except FileNotFoundError:
        return False
    return True


def filled(shape=(4, 3), dtype="int32"):
    array = SharedMemoryArray(shape, dtype)
    array.unlink_on_del()
    array[...] = np.arange(array.size).reshape(shape)
    return array


def is_plain(array):
    return type(array) is np.ndarray


# --- Making one


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [
        ((2, 3), np.int32),
        ([2, 3], "float16"),
        ((np.int64(2),), bool),
        ((), "complex128"),
        ((0,), "int8"),
        ((2, 0, 3), "float64"),
        ((2,), "<U3"),
        ((2,), "datetime64[s]"),
        ((2,), [("a", "i4"), ("b", "f8", (2,))]),
        ((2,), ("i4", (3,))),
        ((2,), "U"),  # NumPy makes it U1
        (range(3), "int8"),
        (np.array([2, 3]), "int8"),
    ],
)
def test_it_is_what_zeros_gives_and_travels_by_name(shape, dtype):
    array = SharedMemoryArray(shape, dtype)
    array.unlink_on_del()
    zeros = np.zeros(tuple(shape), dtype)
    assert type(array) is SharedMemoryArray
    np.testing.assert_array_equal(array, zeros, strict=True)
    assert array.flags.writeable and array.flags.c_contiguous
    assert array.metadata == SharedMemoryArrayMetadata(array.shm.name, zeros.shape, zeros.dtype)
    for attached in (SharedMemoryArray.from_metadata(array.metadata), pickle.loads(pickle.dumps(array))):
        assert type(attached) is SharedMemoryArray
        np.testing.assert_array_equal(attached, zeros, strict=True)
        assert attached.metadata == array.metadata


def test_defaults_and_keywords():
    array = SharedMemoryArray(shape=iter((2, 1)))
    array.unlink_on_del()
    assert (array.shape, array.dtype) == ((2, 1), np.dtype(float))
    assert SharedMemoryArray(shape=(), dtype="int8").shape == ()


@pytest.mark.parametrize(
    ("shape", "dtype", "error", "message"),
    [
        *[
            (n, float, TypeError, r"shape must be a sequence of integers, as in \(5,\), got")
            for n in (5, np.int64(5), np.array(5))
        ],
        ((2.0,), float, TypeError, r"shape\[0\] must be an integer, got 2.0"),
        ((2, -1), float, ValueError, r"shape\[1\] must be a non-negative integer, got -1"),
        ((2**40, 2**40), float, ValueError, "too large"),
        ((2**70,), float, ValueError, "dimension"),
        ((1,) * 70, float, ValueError, "dimension"),
        (None, float, TypeError, "must be a sequence of integers"),
        ((2,), object, TypeError, "dtype must not have Python objects"),
        ((2,), [("a", "i4"), ("b", "O")], TypeError, "dtype must not have Python objects"),
        ((2,), "no such dtype", TypeError, "not understood"),
    ],
)
def test_what_it_cannot_be(shape, dtype, error, message):
    with pytest.raises(error, match=message):
        SharedMemoryArray(shape, dtype)


def test_python_objects_are_refused_wherever_they_come_in():
    array = filled((8,), "int64")
    for make in (
        lambda: SharedMemoryArray.from_shared_memory(array.shm, (8,), object),
        lambda: SharedMemoryArray.from_metadata(SharedMemoryArrayMetadata(array.shm.name, (8,), object)),
    ):
        with pytest.raises(TypeError, match="Python objects"):
            make()


# --- Metadata


def test_metadata_is_a_value():
    metadata = SharedMemoryArrayMetadata("name", [2, np.int64(3)], np.int32)
    assert dataclasses.astuple(metadata) == ("name", (2, 3), np.dtype("int32"))
    assert metadata == SharedMemoryArrayMetadata(name="name", shape=(2, 3), dtype="int32")
    assert metadata == pickle.loads(pickle.dumps(metadata))
    assert len({metadata, SharedMemoryArrayMetadata("name", (2, 3), "i4"), copy.deepcopy(metadata)}) == 1
    assert metadata != SharedMemoryArrayMetadata("other", (2, 3), "int32")
    assert not hasattr(metadata, "__dict__")
    with pytest.raises(dataclasses.FrozenInstanceError):
        metadata.name = "other"
    assert SharedMemoryArrayMetadata("name", 5, "int8").shape == (5,)


def test_attached_arrays_share_the_memory():
    array = filled()
    metadata = array.metadata
    attached = SharedMemoryArray.from_metadata(metadata)
    assert attached.shm is not array.shm and attached.shm.name == array.shm.name
    attached[1, 1] = 77
    assert array[1, 1] == 77
    metadata.close_and_unlink_shm()
    array[1, 2] = 78
    assert attached[1, 2] == 78, "what is attached stays"
    with pytest.raises(FileNotFoundError):
        metadata.close_and_unlink_shm()
    with pytest.raises(FileNotFoundError):
        SharedMemoryArray.from_metadata(metadata)


# --- Open blocks


def test_any_open_block_will_do():
    shm = SharedMemory(create=True, size=100)
    array = SharedMemoryArray.from_shared_memory(shm, (2, 3), np.int64)
    assert array.shm is shm
    array[1, 2] = 5
    assert bytes(shm.buf[40:48]) == (5).to_bytes(8, sys.byteorder)
    attached = pickle.loads(pickle.dumps(array))
    attached[0, 0] = 6
    assert array.tolist() == [[6, 0, 0], [0, 0, 5]]
    with pytest.raises(TypeError, match="buffer is too small"):
        SharedMemoryArray.from_shared_memory(shm, (20, 3), np.int64)
    assert SharedMemoryArray.from_shared_memory(shm, 5, np.int8).shape == (5,)
    array.unlink_on_del()
    del array
    assert not exists(shm.name)
    shm.close()


@pytest.mark.parametrize("kind", [SharedMemory, SharedBlock])
def test_closing_the_block_does_not_harm_its_arrays(kind):
    shm = SharedMemory(create=True, size=32) if kind is SharedMemory else SharedBlock(size=32)
    numbers = SharedMemoryArray.from_shared_memory(shm, (4,), np.float64)
    raw = SharedMemoryArray.from_shared_memory(shm, (4, 8), np.uint8)
    shm.unlink()
    shm.close()
    numbers[2] = 1.0
    assert raw[2].tolist() == np.ones(1).view(np.uint8).tolist()
    del numbers
    assert raw[2].any()
    with pytest.raises(ValueError, match="shm must be open"):
        SharedMemoryArray.from_shared_memory(shm, (1,), np.int8)


def test_an_unlinked_block_is_open_still():
    shm = SharedMemory(create=True, size=8)
    shm.unlink()
    assert SharedMemoryArray.from_shared_memory(shm, (8,), np.int8).tolist() == [0] * 8


# --- Operations


VIEWS = [
    lambda a: a[1:],
    lambda a: a[::-2, 1],
    lambda a: a[4:],  # empty, at the end
    lambda a: a[...],
    lambda a: a.T,
    lambda a: a.reshape(-1),
    lambda a: a.view("uint8"),
    lambda a: a[1:][1:].T[::-1],
    lambda a: np.lib.stride_tricks.as_strided(a, (2, 2), (4, 4), subok=True),
    lambda a: np.broadcast_to(a, (2, 4, 3), subok=True),
]


def test_views_share_the_block_and_keep_it():
    for view in VIEWS:
        array = filled()
        name, result = array.shm.name, view(array)
        assert type(result) is SharedMemoryArray and result.shm is array.shm
        del array
        assert exists(name)
        del result
        assert not exists(name)


RESULTS = [
    lambda a: a + 1,
    lambda a: 1 + a,
    lambda a: a @ a.T,
    lambda a: np.sqrt(a),
    lambda a: np.divmod(a, 2)[1],
    lambda a: a.sum(0),
    lambda a: a.mean(1, keepdims=True),
    lambda a: np.stack([a, a]),
    lambda a: np.where(a > 1, a, 0),
    lambda a: np.add(a, 1, out=np.zeros((4, 3))),
    lambda a: np.array(a),
    lambda a: np.asarray(a),
    lambda a: a.view(np.ndarray),
]


def test_results_are_plain_and_single_ones_scalars():
    for operation in RESULTS:
        array = filled()
        result = operation(array)
        assert is_plain(result)
        np.testing.assert_array_equal(result, operation(np.array(array)))
    for operation in (np.sum, np.max, np.argmax, lambda a: a[1, 2], lambda a: np.add(a[0, 0], 1)):
        assert isinstance(operation(filled()), np.generic)
    assert isinstance(filled(()) + 1, np.generic)


def test_results_can_be_put_into_a_shared_array():
    array, out = filled(), filled((3,))
    assert np.add(array, 1, out=array) is array
    assert array.sum(0, out=out) is out and out.shm is not None
    part = array[1:]
    assert np.multiply(part, 2, out=part) is part
    before = array
    array += array
    assert array is before and array.shm is not None
    assert array.tolist() == [[2, 4, 6], [16, 20, 24], [28, 32, 36], [40, 44, 48]]


COPIES = [
    lambda a: a.copy(),
    lambda a: a.astype("float32"),
    lambda a: a[[0, 1]],
    lambda a: a[a > 2],
    lambda a: a[[0, 1]][1:],
    lambda a: a.flatten(),
    lambda a: a.take([0], axis=0),
    lambda a: np.zeros_like(a),
    lambda a: np.sort(a),
    copy.copy,
    copy.deepcopy,
]


def test_copies_share_nothing_and_pickle_as_ordinary_arrays():
    for make in COPIES:
        array = filled()
        name, made, expected = array.shm.name, make(array), make(np.array(array))
        assert isinstance(made, SharedMemoryArray) and made.shm is None
        with pytest.raises(AssertionError, match="no shared memory"):
            _ = made.metadata
        made.unlink_on_del()  # nothing to do
        del array
        assert not exists(name), "a copy does not keep the block"
        for protocol in PROTOCOLS:
            loaded = pickle.loads(pickle.dumps(made, protocol))
            assert is_plain(loaded)
            np.testing.assert_array_equal(loaded, expected, strict=True)


# --- Pickling


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_the_whole_block_is_pickled_by_name(protocol):
    for whole in (lambda a: a, lambda a: a[...], lambda a: a.reshape(50, 2, 100), lambda a: a.view("uint8"), lambda a: a.view()):
        array = filled((100, 100))
        pickled = pickle.dumps(whole(array), protocol)
        assert len(pickled) < 500
        loaded = pickle.loads(pickled)
        assert type(loaded) is SharedMemoryArray and loaded.metadata == whole(array).metadata
        loaded[0] = 7
        np.testing.assert_array_equal(whole(array), loaded, strict=True)
        name = array.shm.name
        del loaded
        assert exists(name), "unlink_on_del is off in what is unpickled"


PARTS = {
    "rows": lambda a: a[1:],
    "first rows": lambda a: a[:2],
    "columns": lambda a: a[:, 1:],
    "one row": lambda a: a[2],
    "transposed": lambda a: a.T,
    "reversed": lambda a: a[::-1],
    "strided": lambda a: a[::2],
    "nothing": lambda a: a[:0],
    "broadcast": lambda a: np.broadcast_to(a, (2, 4, 3), subok=True),
    "field": lambda a: a.view([("x", "i4"), ("y", "i4"), ("z", "i4")])["y"],
}


@pytest.mark.parametrize("part", PARTS)
def test_other_views_are_pickled_as_ordinary_arrays_and_have_no_metadata(part):
    array, view_of = filled(), PARTS[part]
    view = view_of(array)
    with pytest.raises(ValueError, match="is a view of a part of its shared memory, or in another order"):
        _ = view.metadata
    loaded = [pickle.loads(pickle.dumps(view, protocol)) for protocol in PROTOCOLS]
    array[...] = -1
    for each in loaded:
        assert is_plain(each)
        np.testing.assert_array_equal(each, np.array(view_of(np.arange(12, dtype="int32").reshape(4, 3))), strict=True)


def test_ordinary_pickles_can_be_sent_out_of_band():
    view, buffers = filled()[1:], []
    pickled = pickle.dumps(view, 5, buffer_callback=buffers.append)
    assert len(buffers) == 1
    np.testing.assert_array_equal(pickle.loads(pickled, buffers=buffers), view)


# --- Deletion


def test_the_block_stays_until_somebody_unlinks_it():
    array = SharedMemoryArray((3,))
    array[:] = 1
    metadata = array.metadata
    del array
    again = SharedMemoryArray.from_metadata(metadata)
    assert again.tolist() == [1, 1, 1]
    del again
    assert exists(metadata.name)
    metadata.close_and_unlink_shm()


@pytest.mark.parametrize("who", [lambda a: a, lambda a: a[1:], lambda a: SharedMemoryArray.from_metadata(a.metadata)])
def test_who_is_responsible_unlinks_when_it_goes_away(who):
    array = SharedMemoryArray((3,))
    name, responsible = array.shm.name, who(array)
    responsible.unlink_on_del()
    responsible.unlink_on_del()
    assert exists(name)
    del array, responsible
    assert not exists(name)


def test_whatever_uses_the_memory_keeps_the_block():
    for hold in (lambda a: a[2:], lambda a: a.view(np.ndarray)[1:], lambda a: memoryview(a)[1:], lambda a: np.asarray(a).T):
        array = filled()
        name, expected, held = array.shm.name, np.array(hold(array)), hold(array)
        del array
        assert exists(name)
        np.testing.assert_array_equal(held, expected)
        del held
        assert not exists(name)


def test_an_array_that_somebody_else_has_unlinked_goes_quietly():
    array = filled()
    array.metadata.close_and_unlink_shm()
    assert array.sum() == 66
    del array  # pytest makes an error of an exception in a finalizer


def test_deleting_the_array_keeps_a_block_that_is_held():
    array = filled()
    shm = array.shm
    del array
    assert shm.buf[4] == 1 and not exists(shm.name)


@pytest.mark.skipif(not FDS.is_dir(), reason="maps and descriptors are listed on Linux only")
def test_nothing_is_left_open_or_mapped():
    def use():
        array = filled()
        views = [array[1:], pickle.loads(pickle.dumps(array)), SharedMemoryArray.from_metadata(array.metadata).T]
        shm = SharedMemory(create=True, size=8)
        views.append(SharedMemoryArray.from_shared_memory(shm, (8,), "int8"))
        views[-1].unlink_on_del()
        return {array.shm.name, shm.name}

    use()  # Starts the resource tracker.
    before = len(list(FDS.iterdir()))
    names = use()
    assert len(list(FDS.iterdir())) == before
    maps = Path("/proc/self/maps").read_text()
    assert not any(name in maps for name in names)


def test_finalizers_of_a_cycle_may_still_read_the_array():
    """The collector may finalize the block first."""
    read = []

    class Reader:
        def __init__(self, array):
            self.array, self.cycle = array, self

        def __del__(self):
            read.append(self.array.sum())

    array = filled()
    name = array.shm.name
    shm = SharedMemory(create=True, size=8)
    foreign = SharedMemoryArray.from_shared_memory(shm, (8,), "int8")
    foreign[:] = 3
    foreign.unlink_on_del()
    readers = [Reader(array), Reader(foreign), Reader(array[2:])]
    del array, foreign, shm, readers
    gc.collect()
    assert sorted(read) == [24, 51, 66]
    assert not exists(name)


def test_deletion_waits_for_no_lock():
    """A finalizer may run while this very thread is talking to the resource tracker."""
    arrays = [filled(), SharedMemoryArray.from_shared_memory(SharedMemory(create=True, size=8), (8,), "int8")]
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
    assert left == []
    assert not any(map(exists, names))


# --- Processes. Scripts print the names of the blocks that they make.


PRELUDE = r"""
import gc, multiprocessing.util, os, pickle, signal, sys, threading
from multiprocessing.shared_memory import SharedMemory
import numpy as np
from gristmill.core.shared_block import SharedBlock
from gristmill.multiprocessing import SharedMemoryArray, SharedMemoryArrayMetadata

def make(value=0, shape=(1000,)):
    array = SharedMemoryArray(shape)
    array[:] = value
    os.write(1, f"{array.shm.name}\n".encode())  # whole lines, whichever processes write
    return array

def exists(name):
    try:
        SharedBlock(name)
    except FileNotFoundError:
        return False
    return True
"""


def run(tmp_path, script, *arguments):
    """Runs a script in its own process. Returns what it printed; it must leave no block and say nothing."""
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + textwrap.dedent(script))
    process = subprocess.run([sys.executable, path, *map(str, arguments)], capture_output=True, text=True, timeout=100)
    assert process.stderr == ""
    assert process.returncode == 0
    lines = process.stdout.splitlines()
    names = [line for line in lines if line.startswith("gristmill_")]
    assert names
    assert not [name for name in names if exists(name)]
    return [line for line in lines if line not in names]


ALIVE_AT_EXIT = """
method, unlinks, background = sys.argv[1], sys.argv[2] == "True", sys.argv[3] == "True"

class Cycle:
    def __init__(self, array):
        self.array, self.cycle = array, self

    def __del__(self):
        self.array[:1] += 1

def keep(array):
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
    keep(make())
    shm = SharedMemory(create=True, size=100)
    shm.unlink()
    keep(SharedMemoryArray.from_shared_memory(shm, (10,), float))
    keep(SharedMemoryArray.from_metadata(make().metadata))
    keep(make(shape=(0,)))
    for _ in range(20):
        array = make()
        array.unlink_on_del()
        del array

if __name__ == "__main__":
    array = make()
    work(array)
    if method != "none":
        process = multiprocessing.get_context(method).Process(target=work, args=(array,))
        process.start()
        process.join()
        assert process.exitcode == 0
        assert unlinks or array.sum() == 0 and exists(array.shm.name)
"""


@pytest.mark.parametrize(
    ("method", "unlinks", "background"),  # so that any two choices meet
    [(m, u, u == (k % 2 == 0)) for k, m in enumerate(["none", "fork", "spawn", "forkserver"]) for u in (False, True)],
)
def test_arrays_alive_at_exit_are_freed_in_silence(tmp_path, method, unlinks, background):
    assert run(tmp_path, ALIVE_AT_EXIT, method, unlinks, background) == []


HANDED_OVER = """
def produce(queue, how):
    array = make(5)
    queue.put({"array": array, "metadata": array.metadata, "view": array[1:]}[how])
    sys.kept = array

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
        assert array.sum() == 5 * len(array), array
        if how != "view":
            assert exists(array.shm.name)
            if how == unlinked:
                array.unlink_on_del()
        sys.kept.append(array)
    del sys.kept[1]
    if os.path.isdir("/dev/shm"):  # elsewhere the tracker frees what nobody takes, and says so
        process = context.Process(target=produce, args=(queue, "array"))
        process.start()
        process.join()
"""


@pytest.mark.parametrize(("method", "unlinked"), [("fork", "array"), ("spawn", "metadata"), ("forkserver", "array")])
def test_what_a_child_has_given_away_outlives_it(tmp_path, method, unlinked):
    assert run(tmp_path, HANDED_OVER, method, unlinked) == []


@pytest.mark.skipif(not BLOCKS.is_dir(), reason="elsewhere the tracker frees what killed children leave, and says so")
@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_results_of_a_pool_whose_workers_are_terminated(tmp_path, method):
    script = """
    def produce(value):
        array = make(value)
        sys.kept = [*getattr(sys, "kept", []), make()]
        return array

    if __name__ == "__main__":
        mine = make()
        with multiprocessing.get_context(sys.argv[1]).Pool(2) as pool:
            arrays = pool.map(produce, range(6))
        assert [array[-1] for array in arrays] == list(range(6))
        arrays[0].unlink_on_del()
    """
    assert run(tmp_path, script, method) == []


def test_a_main_program_that_ends_waits_for_its_children_first(tmp_path):
    script = """
    def work(array):
        print(array[0])

    if __name__ == "__main__":
        array = make(5)
        array.unlink_on_del()
        multiprocessing.get_context("spawn").Process(target=work, args=(array,)).start()
    """
    assert run(tmp_path, script) == ["5.0"]


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_what_a_child_makes_before_it_starts_is_freed_when_it_ends(tmp_path, method):
    """It imports the main program first, and multiprocessing may then forget what was to be done at exit."""
    script = """
    array = make()

    def work(queue, gives):
        queue.put((array.shm.name, make(7) if gives else None))

    if __name__ == "__main__":
        context = multiprocessing.get_context(sys.argv[1])
        context.set_forkserver_preload(["json"])  # not the main program
        queue = context.SimpleQueue()
        for gives in (False, True) if sys.argv[1] == "spawn" else (True,):
            process = context.Process(target=work, args=(queue, gives))
            process.start()
            process.join()
            name, given = queue.get()
            assert not exists(name)
            assert not gives or given[0] == 7
    """
    assert run(tmp_path, script, method) == []


def test_a_child_with_a_tracker_of_its_own_leaves_nothing_to_it(tmp_path):
    """A fork of a process that has none: its tracker ends with it."""
    script = """
    def work():
        sys.kept = [make(), make().metadata]

    process = multiprocessing.get_context("fork").Process(target=work)
    process.start()
    process.join()
    """
    assert run(tmp_path, script) == []


def test_the_end_of_the_creator_does_not_harm_what_is_attached(tmp_path):
    """Two programs that have nothing in common; the creator ends first."""
    script = """
    import subprocess
    if len(sys.argv) == 1:
        creator = subprocess.Popen([sys.executable, __file__, ""], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        name = creator.stdout.readline().strip()
        print(name)
        array = SharedMemoryArray.from_metadata(SharedMemoryArrayMetadata(name, (1000,), float))
        creator.communicate("")
        assert creator.returncode == 0
        assert not exists(name)
        assert array.sum() == 3000
    else:
        array = make(3)
        sys.stdin.read()
    """
    assert run(tmp_path, script) == []


def test_the_end_of_a_user_does_not_harm_the_creator(tmp_path):
    script = """
    import subprocess
    if len(sys.argv) == 1:
        array = make(3)
        subprocess.run([sys.executable, __file__, array.shm.name], check=True)
        assert exists(array.shm.name)
        assert array[0] == 4
        subprocess.run([sys.executable, __file__, array.shm.name, "unlink"], check=True)
        assert not exists(array.shm.name)
        assert array[0] == 5
    else:
        array = SharedMemoryArray.from_metadata(SharedMemoryArrayMetadata(sys.argv[1], (1000,), float))
        array[0] += 1
        if len(sys.argv) > 2:
            array.unlink_on_del()
    """
    assert run(tmp_path, script) == []


def test_a_fork_inherits_memory_but_no_duty(tmp_path):
    script = """
    import warnings
    warnings.simplefilter("ignore")  # Python 3.12 does not like forks of processes with threads
    SharedMemoryArray.enable_async_del()
    array, name = make(1), None
    array.unlink_on_del()
    for how in ("delete", "exit", "own"):
        child = os.fork()
        if child == 0:
            assert not any(thread.name.startswith("gristmill") for thread in threading.enumerate()), threading.enumerate()
            name = array.shm.name
            array[0] += 1
            if how == "own":
                own = make()
                own.unlink_on_del()
                own_name = own.shm.name
                del own
                assert not exists(own_name), "without threads it happens at once"
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
    path = tmp_path / "script.py"
    path.write_text(PRELUDE + "sys.kept = make()\nos.kill(os.getpid(), signal.SIGKILL)\n")
    process = subprocess.run([sys.executable, path], capture_output=True, text=True, timeout=100)
    assert process.returncode == -signal.SIGKILL
    assert "leaked shared_memory" in process.stderr  # and the tracker, which has stderr too, has ended
    assert not exists(process.stdout.strip())


def test_other_hands_on_the_same_name_are_no_noise(tmp_path):
    """The standard library unlinks; the tracker is told by it, and again by us."""
    script = """
    for unlinks in (False, True):
        array = make()
        if unlinks:
            array.unlink_on_del()
        other = SharedMemory(array.shm.name)
        other.unlink()
        sys.kept = array
        del array
    """
    assert run(tmp_path, script) == []


def test_many_blocks_are_not_remembered(tmp_path):
    script = """
    from gristmill.core import shared_block
    for _ in range(100):
        array = SharedMemoryArray((10,))
        attached = pickle.loads(pickle.dumps(array))
        attached.unlink_on_del()
        del array, attached
    make()
    print(len(shared_block._names))
    """
    assert run(tmp_path, script) == ["1"]


# --- In the background


def test_the_background_takes_its_limit_and_no_more(tmp_path):
    script = """
    from gristmill.workers import shared_array

    class Slow:
        going_on = threading.Event()
        release = going_on.wait

    SharedMemoryArray.enable_async_del(1, max_outstanding_requests=2)
    SharedMemoryArray.enable_async_del(7)
    print([(thread.name, thread.daemon) for thread in threading.enumerate() if thread is not threading.main_thread()])
    arrays = [make() for _ in range(3)]
    names = [array.shm.name for array in arrays]
    for array in arrays:
        array.unlink_on_del()
    del array
    shared_array._pool.take(Slow())
    del arrays[0], arrays[0]
    print([exists(name) for name in names])
    Slow.going_on.set()
    while exists(names[0]):
        os.sched_yield()
    del arrays[0]
    while exists(names[2]):
        os.sched_yield()
    print("freed")
    """
    assert run(tmp_path, script) == ["[('gristmill-async-del-0', True)]", "[True, False, True]", "freed"]


def test_what_waits_at_exit_is_freed(tmp_path):
    script = """
    SharedMemoryArray.enable_async_del(num_threads=3, max_outstanding_requests=0)
    for _ in range(200):
        array = make()
        array.unlink_on_del()

    exiting = threading.Event()
    multiprocessing.util.Finalize(None, exiting.set, exitpriority=-40)

    class Slow:
        def release(self):
            exiting.wait()
            for _ in range(1000):
                os.sched_yield()
            print("released", flush=True)

    from gristmill.workers import shared_array
    while not shared_array._pool.take(Slow()):
        pass
    """
    assert run(tmp_path, script) == ["released"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [((0,), ValueError), ((1, -1), ValueError), ((1.5,), TypeError), ((1, "2"), TypeError)],
)
def test_what_the_background_cannot_be(arguments, error):
    threads = threading.active_count()
    with pytest.raises(error, match=r"num_threads|max_outstanding_requests"):
        SharedMemoryArray.enable_async_del(*arguments)
    assert threading.active_count() == threads
