import subprocess
import sys

import numpy as np
import pytest

import gristmill.sources
from gristmill.sources import RandomAccessDataSource


class Letters(RandomAccessDataSource[str]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, index: int, /) -> str:
        return "abc"[index]


@pytest.mark.parametrize("source", [[1], (1,), "a", {"a": 1}, np.zeros(3), Letters()])
def test_whatever_has_len_and_getitem_is_a_source(source):
    assert isinstance(source, RandomAccessDataSource)


@pytest.mark.parametrize("source", [{1, 2}, iter([1]), 3, None])
def test_whatever_lacks_one_of_them_is_none(source):
    assert not isinstance(source, RandomAccessDataSource)


def test_the_protocol_itself_has_no_instances():
    with pytest.raises(TypeError):
        RandomAccessDataSource()


def test_it_is_generic():
    assert RandomAccessDataSource[int].__args__ == (int,)


@pytest.mark.parametrize("name", ["ArrayRecordDataSource", "RangeDataSource", "SharedMemoryDataSource"])
def test_our_sources_are_sources_under_their_own_names(name):
    source_class = getattr(gristmill.sources, name)
    assert source_class.__name__ == name
    assert issubclass(source_class, RandomAccessDataSource)


def test_the_legacy_name_is_the_same_object():
    assert gristmill.sources.InMemoryDataSource is gristmill.sources.SharedMemoryDataSource


def test_the_module_lists_its_names_and_has_no_others():
    assert set(gristmill.sources.__all__) <= set(dir(gristmill.sources))
    with pytest.raises(AttributeError, match="NoSuchSource"):
        _ = gristmill.sources.NoSuchSource


def test_importing_the_sources_is_cheap():
    heavy = ["absl", "array_record", "etils", "jax", "multiprocessing.shared_memory"]
    program = f"import sys, gristmill.sources; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
