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


def test_whatever_has_len_and_getitem_is_a_source():
    for source in ([1], (1,), "a", {"a": 1}, np.zeros(3), Letters()):
        assert isinstance(source, RandomAccessDataSource)
    for other in ({1, 2}, iter([1]), 3, None):
        assert not isinstance(other, RandomAccessDataSource)
    with pytest.raises(TypeError):
        RandomAccessDataSource()
    assert RandomAccessDataSource[int].__args__ == (int,)


def test_the_module_has_our_sources_under_their_own_names_and_no_others():
    for name in ("ArrayRecordDataSource", "RangeDataSource", "SharedMemoryDataSource"):
        source_class = getattr(gristmill.sources, name)
        assert source_class.__name__ == name
        assert issubclass(source_class, RandomAccessDataSource)
    assert gristmill.sources.InMemoryDataSource is gristmill.sources.SharedMemoryDataSource
    assert set(gristmill.sources.__all__) <= set(dir(gristmill.sources))
    with pytest.raises(AttributeError, match="NoSuchSource"):
        _ = gristmill.sources.NoSuchSource


def test_importing_the_sources_is_cheap():
    heavy = ["absl", "array_record", "etils", "jax", "multiprocessing.shared_memory"]
    program = f"import sys, gristmill.sources; print([name for name in {heavy} if name in sys.modules])"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"
