"""The laws of sources, checked for every source of the table."""

import copy
import json
import os
import pickle
import shutil
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
from refusing import assert_raises
from source_table import SOURCES, source_classes

from gristmill.core.errors import KeyRangeError
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
PARAMETERS = [pytest.param(entry, id=entry.name) for entry in AT_HAND]
FILE_PARAMETERS = [pytest.param(entry, id=entry.name) for entry in AT_HAND if entry.write]
of_all = pytest.mark.parametrize("entry", PARAMETERS)
with_files = pytest.mark.parametrize("entry", FILE_PARAMETERS)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with a folder of files for each source."""
    top = tmp_path_factory.mktemp("sources")
    for entry in AT_HAND:
        (top / entry.name).mkdir()
        if entry.write:
            entry.write(top / entry.name)
    return top


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
    assert pickle.dumps(source) == fresh


@with_files
@pytest.mark.usefixtures("no_garbage")
def test_closed_sources_have_no_open_files_and_open_again(entry, folder):
    source = entry.make(folder / entry.name)
    for close in (source.close, source.close, getattr(source, "__exit__", source.close)):
        assert values(entry, source) == [*range(entry.length)]
        close(*[None] * (3 if close.__name__ == "__exit__" else 0))
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
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    environment = os.environ | {"PYTHONPATH": path, "PYTHONHASHSEED": "1"}
    process = subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env=environment,
    )
    assert process.returncode == 0, process.stderr
    there, in_fork = json.loads(process.stdout)
    assert in_fork == there
    for entry, (text, singles, together) in zip(AT_HAND, there, strict=True):
        source = entry.make(folder / entry.name)
        assert (text, singles) == (repr(source), values(entry, source)), entry.name
        assert together in ([], singles), entry.name


@of_all
def test_texts_name_the_class_and_no_folder(entry, folder):
    source = entry.make(folder / entry.name)
    text = repr(source)
    assert str(folder) not in text
    if entry.name != "series":  # which has the text of its library
        assert text.startswith(type(source).__name__) and "\n" not in text
