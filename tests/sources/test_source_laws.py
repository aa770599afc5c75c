"""The laws of sources, checked for every source of the table."""

import copy
import json
import os
import pickle
import random
import shutil
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from refusing import assert_raises
from servers import HttpServer
from source_table import SOURCES, source_classes

from gristmill.core.errors import KeyRangeError
from gristmill.sources import ChangedFileError
from gristmill.testing import assert_source_conforms

HERE = Path(__file__).parent
NO_KEYS = [-1, 10, -11, 10**30, np.int64(10)]
NO_INTEGERS = [1.0, "1", None, slice(2)]


def is_installed(package):
    try:
        return find_spec(package) is not None
    except ModuleNotFoundError:
        return False


AT_HAND = [entry for entry in SOURCES if all(map(is_installed, entry.needs))]


def of_entries(entries):
    return pytest.mark.parametrize("entry", [pytest.param(x, id=x.name) for x in entries])


of_all = of_entries(AT_HAND)
with_files = of_entries([entry for entry in AT_HAND if entry.write])
that_check_files = of_entries([entry for entry in AT_HAND if entry.write and entry.checks_files])
of_urls = of_entries([entry for entry in AT_HAND if entry.from_urls])


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a folder of files for each source."""
    top = tmp_path_factory.mktemp("sources")
    for entry in AT_HAND:
        (top / entry.name).mkdir()
        if entry.write:
            entry.write(top / entry.name)
    return top


@pytest.fixture
def many_switches():
    """Let threads take turns a hundred times as often."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(before / 100)
    yield
    sys.setswitchinterval(before)


def values(entry, source):
    return [entry.value(source[key]) for key in range(len(source))]


def block(source, keys):
    if hasattr(source, "__getitems__"):
        return source.__getitems__(keys)
    return [source[key] for key in keys]


def num_open(folder):
    links = [os.path.realpath(link) for link in Path("/proc/self/fd").iterdir()]
    return len([link for link in links if link.startswith(f"{folder.resolve()}/")])


def test_every_source_is_in_the_table(folder):
    if len(AT_HAND) == len(SOURCES):
        seen = {type(entry.make(folder / entry.name)) for entry in SOURCES}
        assert source_classes() - seen == set()
    assert len(source_classes()) > 10  # the search itself finds something


@of_all
def test_records_conform(entry, folder):
    source = entry.make(folder / entry.name)
    assert len(source) == entry.length
    assert_source_conforms(source)
    keys = [*range(entry.length)]
    assert values(entry, source) == keys
    assert [entry.value(record) for record in source] == keys
    assert [entry.value(record) for record in block(source, keys[::-1])] == keys[::-1]
    for key in (np.int64(1), np.uint8(1), True):
        assert entry.value(source[key]) == 1


@of_all
def test_wrong_keys_have_one_error(entry, folder):
    source = entry.make(folder / entry.name)
    if entry.takes_negative:
        assert entry.value(source[-1]) == 9
        assert_raises(IndexError, None, source.__getitem__, 10)
        return
    for key in NO_KEYS:
        allowed = rf"record key must be in \[0, {entry.length}\), the number of records"
        text = f"{allowed}, got {int(key)}$"
        assert_raises(KeyRangeError, text, source.__getitem__, key)
        assert_raises(KeyRangeError, text, block, source, [0, key])
    for key in NO_INTEGERS:
        assert_raises(TypeError, None, source.__getitem__, key)
        assert_raises(TypeError, None, block, source, [0, key, 10])
        assert_raises(KeyRangeError, "got 10", block, source, [0, 10, key])


@with_files
def test_a_block_raises_the_error_of_its_first_key(entry, folder, tmp_path):
    there = shutil.copytree(folder / entry.name, tmp_path / "data")
    source = entry.make(there)
    source.close()
    shutil.rmtree(there)
    assert_raises(KeyRangeError, "got 10", block, source, [10, 0])
    with pytest.raises(Exception) as caught:
        block(source, [0, 10])
    assert not isinstance(caught.value, KeyRangeError)


COPIES = [
    pytest.param(copy.copy, id="copy"),
    pytest.param(copy.deepcopy, id="deepcopy"),
    pytest.param(lambda source: pickle.loads(pickle.dumps(source)), id="pickle"),
    pytest.param(lambda source: pickle.loads(cloudpickle.dumps(source)), id="cloudpickle"),
]


@pytest.mark.parametrize("copied", COPIES)
@of_all
def test_copies_are_equal(entry, folder, copied):
    source = entry.make(folder / entry.name)
    for _ in range(2):  # before and after reading
        other = copied(source)
        assert repr(other) == repr(source)
        assert values(entry, other) == values(entry, source) == [*range(entry.length)]


@with_files
def test_pickles_have_nothing_that_was_read(entry, folder):
    source = entry.make(folder / entry.name)
    fresh = pickle.dumps(source)
    values(entry, source)
    assert pickle.dumps(source) == fresh and len(fresh) < 3000


@with_files
@pytest.mark.usefixtures("no_garbage")
def test_closed_sources_have_no_open_files_and_open_again(entry, folder):
    source = entry.make(folder / entry.name)
    for _ in range(2):
        if hasattr(source, "__enter__"):
            with source as entered:
                assert entered is source
                assert values(entry, source) == [*range(entry.length)]
        else:
            assert values(entry, source) == [*range(entry.length)]
            source.close()
        source.close()
        if Path("/proc/self/fd").is_dir():
            assert num_open(folder / entry.name) == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks a process")
def test_other_processes_and_forks_read_the_same(folder):
    names = [entry.name for entry in AT_HAND]
    command = [
        sys.executable,
        "-W",
        "ignore::DeprecationWarning",
        HERE / "read_every_source.py",
        folder,
        *names,
    ]
    path = os.pathsep.join([str(HERE), str(HERE.parent / "support")])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "1"}
    process = subprocess.run(
        command, capture_output=True, text=True, timeout=100, check=False, env=environment
    )
    assert process.returncode == 0, process.stderr
    there, in_fork = json.loads(process.stdout)
    assert in_fork == there
    for entry, (text, singles, together) in zip(AT_HAND, there, strict=True):
        source = entry.make(folder / entry.name)
        assert (text, singles) == (repr(source), values(entry, source)), entry.name
        assert together in ([], singles), entry.name


@of_all
@pytest.mark.usefixtures("many_switches")
def test_threads_read_while_one_closes(entry, folder):
    source, start = entry.make(folder / entry.name), threading.Barrier(8)

    def read(number):
        rng = random.Random(number)
        start.wait(timeout=60)
        for _ in range(40):
            keys = rng.choices(range(entry.length), k=rng.choice([1, 8]))
            if number == 0 and entry.write:
                source.close()
            assert [entry.value(record) for record in block(source, keys)] == keys
            assert entry.value(source[keys[0]]) == keys[0]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read, range(8)))


@that_check_files
def test_a_changed_file_is_named(entry, folder, tmp_path):
    there = shutil.copytree(folder / entry.name, tmp_path / "data")
    paths = [path for path in there.rglob("*") if path.is_file() and path.suffix != ".gmidx"]
    sources = [entry.make(there) for _ in range(3)]
    sources[0][0]  # its files are open
    sources[1] = pickle.loads(pickle.dumps(sources[1]))
    for path in paths:
        path.write_bytes(path.read_bytes() + b"more")
    for source in sources:
        with pytest.raises(ChangedFileError, match=f"{there}.* has changed since this source"):
            block(source, range(entry.length))


@of_urls
def test_files_of_a_server_are_the_same(entry, folder, tmp_path):
    pytest.importorskip("obstore")
    there = shutil.copytree(folder / entry.name, tmp_path / "data")
    with HttpServer(tmp_path) as server:
        names = sorted(path.name for path in there.iterdir() if path.suffix != ".gmidx")
        urls = [f"{server.url}/data/{name}" for name in names]
        for _ in range(2):  # makes an index in the folder, and finds it
            source = entry.from_urls(urls, tmp_path / "indices")
            assert repr(source) == repr(entry.make(folder / entry.name))
            assert values(entry, source) == [*range(entry.length)]
        copy = pickle.loads(pickle.dumps(source))
        keys = [*range(entry.length)][::-1]
        before = server.num_requests
        assert [entry.value(record) for record in block(copy, keys)] == keys
        assert server.num_requests - before <= 5 * len(urls)


@of_all
def test_texts_name_the_class_and_no_folder(entry, folder, tmp_path):
    source = entry.make(folder / entry.name)
    text = repr(source)
    assert str(folder) not in text
    if entry.write and entry.name != "array_record":  # whose text is that of Grain, with paths
        assert repr(entry.make(shutil.copytree(folder / entry.name, tmp_path / "data"))) == text
    if entry.name != "series":  # which has the text of its library
        assert text.startswith(type(source).__name__) and "\n" not in text
