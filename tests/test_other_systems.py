"""macOS and Windows, simulated on Linux: programs run without the calls that those systems lack.

The missing calls are taken away by a ``sitecustomize`` that Python imports at its start, in worker
processes too. What cannot be taken away (paths with backslashes, the loader of programs) is not
tried here.
"""

import ast
import errno
import os
import re
import subprocess
import sys
import textwrap
import types
from pathlib import Path

import pytest
from package_files import modules
from programs import output
from refusing import assert_raises
from waiting import is_running, wait_until

import gristmill
from gristmill.diagnostics.cli.target import load_pipeline
from gristmill.sources.storage import local
from gristmill.sources.storage.local import LocalFile
from gristmill.workers import shared_array

if sys.platform != "linux":
    pytest.skip("tries other systems on Linux", allow_module_level=True)
REMOVE = """
import importlib.abc, os, sys
def remove(module, *names):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
class Hide(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name in hidden:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
def no_files_of_linux(event, args):
    if event in ("open", "os.listdir", "os.scandir") and str(args[0]).startswith(
        ("/proc", "/sys", "/dev/shm")
    ):
        raise FileNotFoundError(2, "No such file or directory", args[0])
def stat(path, *args, stat=os.stat, **kwargs):
    no_files_of_linux("open", [path])
    return stat(path, *args, **kwargs)
hidden = set()
sys.meta_path.insert(0, Hide())
sys.addaudithook(no_files_of_linux)
os.stat = stat
os.process_cpu_count = os.cpu_count
"""
SYSTEMS = {
    # Sockets there have room for 8 kB; the C library of Linux is asked for as little.
    "macOS": """
import types
sys.platform = "darwin"
sys.modules["_scproxy"] = types.SimpleNamespace(_get_proxies=dict, _get_proxy_settings=dict)
import mmap, select, signal, socket
signal.signal(signal.SIGIO, signal.SIG_IGN)  # the default there
remove(os, "memfd_create", "posix_fallocate", "posix_fadvise", "sched_getaffinity",
       "sched_setaffinity", "eventfd")
remove(os, "pidfd_open", "waitid", "preadv")
remove(mmap, "MADV_REMOVE")
remove(select, "epoll")
remove(socket, "MSG_NOSIGNAL")
def small_socketpair(*args, make=socket.socketpair):
    pair = make(*args)
    for end in pair:
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    return pair
socket.socketpair = small_socketpair
""",
    # The standard library is imported as it is, and then has the shared memory of Windows: no
    # descriptors, nothing to unlink.
    "Windows": """
import asyncio, concurrent.futures.thread, faulthandler, logging, mmap, random, select, shutil
import multiprocessing.resource_tracker, multiprocessing.shared_memory, signal, socket, ssl
import subprocess, tempfile, weakref
sys.platform = "win32"
hidden |= {"_posixshmem", "_posixsubprocess", "fcntl", "grp", "pwd", "resource", "termios",
    "array_record"}
for name in hidden:
    sys.modules.pop(name, None)
remove(os, "fork", "forkpty", "getuid", "geteuid", "memfd_create", "posix_fallocate", "pread",
       "pwrite", "preadv")
remove(os, "register_at_fork", "sched_getaffinity", "setsid", "killpg", "sysconf", "WNOHANG",
       "pidfd_open", "eventfd")
remove(mmap, "MADV_REMOVE", "MAP_PRIVATE", "PROT_READ", "PROT_WRITE")
remove(signal, "SIGKILL", "SIGUSR1", "SIGUSR2", "SIGHUP", "SIGALRM", "SIGCHLD", "setitimer",
       "pthread_sigmask")
remove(select, "poll", "epoll")
remove(socket, "AF_UNIX", "MSG_DONTWAIT", "MSG_NOSIGNAL", "send_fds", "recv_fds")
remove(faulthandler, "register")
class SharedMemory:
    _blocks = weakref.WeakValueDictionary()
    _name = _mmap = _buf = None
    _fd = -1
    def __init__(self, name=None, create=False, size=0, *, track=True):
        if create and name in self._blocks:
            raise FileExistsError(17, "File exists", name)
        if not create and name not in self._blocks:
            raise FileNotFoundError(2, "The system cannot find the file specified", name)
        self._name = name or f"wnsm_{id(self):x}"
        self._mmap = (
            self._blocks.setdefault(self._name, mmap.mmap(-1, -(-size // 4096) * 4096))
            if create
            else self._blocks[name]
        )
        self._size = len(self._mmap)
        self._buf = memoryview(self._mmap)
    name = property(lambda self: self._name)
    size = property(lambda self: self._size)
    buf = property(lambda self: self._buf)
    def close(self):
        if self._buf is not None:
            self._buf.release()
            self._buf = self._mmap = None
    def unlink(self):
        pass
multiprocessing.shared_memory.SharedMemory = SharedMemory
multiprocessing.shared_memory._USE_POSIX = False
""",
}


@pytest.fixture(scope="module")
def environments(tmp_path_factory):
    """The environment variables of programs on each of the systems."""
    made = {}
    for name, removed in SYSTEMS.items():
        folder = tmp_path_factory.mktemp(name)
        (folder / "sitecustomize.py").write_text(REMOVE + removed)
        path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
        made[name] = {
            **os.environ,
            "PYTHONPATH": path,
            "TMPDIR": str(tmp_path_factory.mktemp("tmp")),
            "PYTHONSAFEPATH": "1",
        }
    return made


@pytest.fixture
def run(environments, tmp_path):
    """Runs a script; returns what it prints, as values."""

    def run(system, script):
        with pytest.MonkeyPatch.context() as patch:
            for name, value in {**environments[system], "PYTHONWARNINGS": "error"}.items():
                patch.setenv(name, value)
            lines = output(tmp_path, "import gristmill as grain\n" + textwrap.dedent(script))
        return [ast.literal_eval(line) for line in lines]

    return run


@pytest.mark.parametrize("system", SYSTEMS)
class TestEverywhere:
    def test_pipelines(self, run, system):
        script = """
            import pickle
            import numpy as np
            ds = (
                grain.MapDataset.range(40)
                .seed(3)
                .shuffle()
                .map(lambda x: {"x": np.full(3, x)})
                .repeat(2)
                .batch(4)
            )
            print([batch["x"][:, 0].tolist() for batch in ds])
            it = iter(ds.to_iter_dataset(grain.ReadOptions(num_threads=3, prefetch_buffer_size=5)))
            head = [next(it)["x"].sum().item() for _ in range(7)]
            state = it.get_state()
            tail = [batch["x"].sum().item() for batch in it]
            it.set_state(state)
            print(tail == [batch["x"].sum().item() for batch in it] != [])
            print(
                list(
                    grain.MapDataset.range(9)
                    .to_iter_dataset()
                    .map(lambda x: x * x)
                    .multithread_prefetch(2, 3)
                )
            )
            sampler = grain.samplers.IndexSampler(10, shuffle=True, num_epochs=1, seed=1)
            loader = grain.DataLoader(
                data_source=range(10), sampler=sampler, operations=[grain.transforms.Batch(3)]
            )
            print([batch.tolist() for batch in loader])
            source = grain.sources.SharedMemoryDataSource(["zero", b"one", 2])
            again = pickle.loads(pickle.dumps(source))
            again[2] = 3
            print((list(source), list(grain.MapDataset.source(again))))
            array = grain.multiprocessing.SharedMemoryArray((2, 3), "int32")
            array.unlink_on_del()
            attached = pickle.loads(pickle.dumps(array))
            attached[1] = 5
            print(array.tolist())
            name = source.shm.name
            source.unlink()
            del source, again
            try:
                grain.sources.SharedMemoryDataSource(name=name)
            except FileNotFoundError:
                print(repr("gone"))
            print(grain.start_telemetry(port=0) is not None)
            grain.stop_telemetry()
            """
        ds = gristmill.MapDataset.range(40).seed(3).shuffle().repeat(2).batch(4)
        sampler = gristmill.samplers.IndexSampler(10, shuffle=True, num_epochs=1, seed=1)
        loader = gristmill.DataLoader(
            data_source=range(10), sampler=sampler, operations=[gristmill.transforms.Batch(3)]
        )
        chains = [
            [batch.tolist() for batch in ds],
            True,
            [x * x for x in range(9)],
            [batch.tolist() for batch in loader],
        ]
        assert run(system, script) == [
            *chains,
            (["zero", b"one", 3],) * 2,
            [[0, 0, 0], [5, 5, 5]],
            "gone",
            True,
        ]

    def test_all_modules_and_looking_into_pipelines(self, run, system):
        """But the modules for Orbax, which has no Windows, and those that import Ray, which asks
        the real system.
        """
        names = [
            name
            for name in modules()
            if not re.search(r"checkpoint\.(arguments|handler)|ray_(actor|pool|transport)", name)
        ]
        assert len(names) > 100
        (found,) = run(
            system,
            f"""
            import importlib, os, sys
            for name in {names}:
                importlib.import_module(name)
            for name in dir(grain):
                if "Checkpoint" not in name:
                    getattr(grain, name)
            from gristmill.core.cgroup import available_memory, usable_cpus
            from gristmill.diagnostics.runtime.processes import cpu_demand_ns, free_memory
            from gristmill.diagnostics.runtime.stacks import show_stacks_when_asked, worker_stacks
            from gristmill.diagnostics.runtime.stalls import library_folders
            grain.diagnostics.diagnosis.verdict.usable_cpus = lambda: 64  # never all busy
            ds = grain.MapDataset.range(200).map(lambda x: x + 1).batch(5).to_iter_dataset()
            diagnosis = str(grain.diagnose(ds, seconds=0.2))
            with grain.observe(iter(ds)) as view:
                list(view.iterator)
            assert "Bound by" in diagnosis and str(view.summary()), diagnosis
            assert ("worker processes do it" in diagnosis) == (sys.platform == "darwin"), diagnosis
            assert usable_cpus() >= 1 and available_memory() == float("inf")
            assert cpu_demand_ns() > 0 and free_memory() > 0
            show_stacks_when_asked()
            assert any(grain.sources.__file__.startswith(folder) for folder in library_folders())
            print(repr(worker_stacks(os.getpid())))
            """,
        )
        assert (
            found
            == "(where it is cannot be shown: that needs os.memfd_create and /proc, which Linux"
            " has)"
        )

    def test_the_command_line(self, environments, system, tmp_path):
        (tmp_path / "train.py").write_text(
            "import gristmill as grain\nds = grain.MapDataset.range(5).map(lambda x: x * x)\n"
        )
        command = [
            sys.executable,
            "-W",
            "error",
            "-m",
            "gristmill",
            "head",
            "train.py:ds",
            "-n",
            "3",
        ]
        environment = {**environments[system], "PYTHONIOENCODING": "cp1252"}
        process = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, timeout=60
        )
        assert process.returncode == 0 and b"4" in process.stdout, process.stderr


class TestMacOS:
    def test_files(self, run, tmp_path):
        path = tmp_path / "numbers.jsonl"
        path.write_text("1\n22\n")
        script = f"print(list(grain.MapDataset.source(grain.sources.JsonlSource({str(path)!r}))))"
        assert run("macOS", script) == [[1, 22]]

    @pytest.mark.parametrize("has_preadv", [True, False])
    def test_no_read_is_larger_than_the_system_allows(self, monkeypatch, tmp_path, has_preadv):
        """A read of 2 GiB or more is an error there."""
        (tmp_path / "data").write_bytes(data := os.urandom(3500))
        file = LocalFile(str(tmp_path / "data"))

        def limited(call, size):
            def read(descriptor, what, start):
                if size(what) > 1000:
                    raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
                return call(descriptor, what, start)

            return read

        monkeypatch.setattr(local, "_MAX_READ", 1000)
        monkeypatch.setattr(os, "pread", limited(os.pread, int))
        monkeypatch.setattr(os, "preadv", limited(os.preadv, lambda buffers: len(buffers[0])))
        if not has_preadv:
            monkeypatch.delattr(os, "preadv")
        assert file.read([(0, 3, 10), (0, 100, 3400)]) == [data[3:10], data[100:3400]]
        assert file.read_one(0, 3500) == data

    def test_workers(self, run, environments):
        """Small outputs, large ones in shared memory, and messages that do not fit into a
        socket.
        """
        *found, text = run(
            "macOS",
            """
            import os, signal
            import numpy as np
            options = grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=4)
            def ds(make, num, options=options):
                return grain.MapDataset.range(num).map(make).to_iter_dataset().mp_prefetch(options)
            print([len(text) for text in ds(lambda x: "a" * 14_000, 60)] == [14_000] * 60)
            kept = list(ds(lambda x: np.full(300_000, x), 60))
            print(all((array == i).all() for i, array in enumerate(kept)))
            sampler, batch = grain.samplers.SequentialSampler(40), grain.transforms.Batch(5)
            loader = grain.DataLoader(
                data_source=range(40), sampler=sampler, operations=[batch], worker_count=2
            )
            print(
                [batch.tolist() for batch in loader]
                == [[*range(i % 2 + i // 2 * 10, 40, 2)][:5] for i in range(8)]
            )
            # The consumer goes back while messages that do not fit into the socket are on their
            # way: workers are started again.
            it = iter(
                ds(
                    lambda x: (x, "a" * 9000),
                    200,
                    grain.MultiprocessingOptions(num_workers=2, per_worker_buffer_size=50),
                )
            )
            state, seen = it.get_state(), []
            for _ in range(2):
                seen.append([next(it)[0] for _ in range(7)])
                it.set_state(state)
            print(seen == [list(range(7))] * 2)
            print([x for x, _ in it] == list(range(200)))
            def die(x):
                if x == 5:
                    os.kill(os.getpid(), signal.SIGKILL)
                return x
            try:
                list(ds(die, 9))
            except RuntimeError as error:
                print(repr(str(error)))
            """,
        )
        assert found == [True] * 5
        assert (
            "Worker process 1 of 2 was terminated unexpectedly: it was killed by signal 9 (SIGKILL"
            in text
        )
        assert list(Path(environments["macOS"]["TMPDIR"]).iterdir()) == []  # the memory has no name

    def test_workers_that_wait_or_compute_end_with_the_program(self, environments):
        """The kernel does not kill them there, but sends a signal that is ignored by default."""
        program = """
            import ctypes, os, time
            import gristmill as grain
            def compute(x):
                while x > 3:
                    time.sleep(0.01)
                return os.getpid()
            def hold_the_gil(x):
                os.write(1, f"{os.getpid()}\\n".encode())
                ctypes.PyDLL(None).sleep(1000)
            options = grain.MultiprocessingOptions(num_workers=2)
            works = [lambda x: os.getpid(), compute, hold_the_gil]
            datasets = [grain.MapDataset.range(100).map(work) for work in works]
            *its, stuck = [iter(ds.to_iter_dataset().mp_prefetch(options)) for ds in datasets]
            print(*(next(it) for it in its for _ in range(2)), flush=True)
            next(stuck)
            """
        command = [sys.executable, "-c", textwrap.dedent(program)]
        with subprocess.Popen(
            command, env=environments["macOS"], stdout=subprocess.PIPE, text=True
        ) as process:
            workers = [int(word) for _ in range(3) for word in process.stdout.readline().split()]
            process.kill()
        assert len({*workers, process.pid}) == 7
        wait_until(lambda: not any(is_running(number) for number in workers))


NO_WORKERS = (
    "there are no worker processes on this platform (win32): it lacks os.pread and select.poll,"
    " which Linux and macOS have. Use threads: worker_count=0 for a DataLoader; for a chain,"
    " multithread_prefetch(...) in place of mp_prefetch(...)"
)


class TestWindows:
    def test_what_needs_processes_is_refused_and_the_rest_works(self, run):
        refused, again, shown, _, workers, array_record = run(
            "Windows",
            """
            options = grain.MultiprocessingOptions(num_workers=2)
            sampler = grain.samplers.IndexSampler(4, num_epochs=1)
            ds = grain.MapDataset.range(4).to_iter_dataset().mp_prefetch(options)
            def refusal(call, *arguments):
                try:
                    call(*arguments)
                except RuntimeError as error:
                    print(repr(str(error)))
            refusal(list, grain.DataLoader(data_source=range(4), sampler=sampler, worker_count=2))
            refusal(list, ds)
            print(repr(repr(ds)))
            print(repr(str(grain.experimental.get_element_spec(ds))))
            ds = grain.MapDataset.range(100).map(float).to_iter_dataset()
            config = grain.experimental.pick_performance_config(
                ds, ram_budget_mb=64, max_workers=None, max_buffer_size=None
            )
            print(config.multiprocessing_options.num_workers)
            refusal(grain.sources.ArrayRecordDataSource, "a.array_record")
            """,
        )
        assert refused == again == NO_WORKERS and workers == 0
        assert (
            "MultiprocessPrefetchIterDataset" in shown
            and "array_record does not exist for Windows" in array_record
        )

    def test_blocks_of_others_are_mapped_by_their_name(self, monkeypatch):
        block = types.SimpleNamespace(name="wnsm_1", size=4096, buf=b"", _fd=-1)
        mapped = []
        monkeypatch.setattr(
            shared_array.mmap,
            "mmap",
            lambda *args, **kwargs: mapped.append((args, kwargs)) or bytearray(4096),
        )
        assert shared_array.SharedMemoryArray.from_shared_memory(block, (2,), "int64").shape == (2,)
        assert mapped == [((-1, 4096), {"tagname": "wnsm_1"})]

    def test_a_file_on_a_drive(self):
        for name in ("C:\\train.py", "C:/train.py:ds", "C:\\train.py:make.ds"):
            assert_raises(Exception, r"there is no file C:[\\/]train\.py;", load_pipeline, name)
