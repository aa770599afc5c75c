import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from refusing import assert_raises

import gristmill.sources
from gristmill.core.errors import KeyRangeError
from gristmill.sources import RandomAccessDataSource, RangeDataSource
from gristmill.testing import assert_source_conforms


def test_what_is_a_source_and_what_the_module_has():
    class Letters(RandomAccessDataSource[str]):
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int, /) -> str:
            return "abc"[index]

    for source in ([1], (1,), "a", {"a": 1}, np.zeros(3), Letters()):
        assert isinstance(source, RandomAccessDataSource)
    for other in ({1, 2}, iter([1]), 3, None):
        assert not isinstance(other, RandomAccessDataSource)
    assert_raises(TypeError, None, RandomAccessDataSource)
    for name in ("ArrayRecordDataSource", "RangeDataSource", "SharedMemoryDataSource"):
        source_class = getattr(gristmill.sources, name)
        assert source_class.__name__ == name and issubclass(source_class, RandomAccessDataSource)
    assert gristmill.sources.InMemoryDataSource is gristmill.sources.SharedMemoryDataSource
    assert set(gristmill.sources.__all__) <= set(dir(gristmill.sources))
    assert_raises(AttributeError, "NoSuchSource", getattr, gristmill.sources, "NoSuchSource")


@given(st.integers(-50, 50), st.integers(0, 50), st.integers(-7, 7).filter(bool))
def test_a_range_source_holds_what_range_holds(start, distance, step):
    stop = start + distance * (1 if step > 0 else -1)
    expected, source = list(range(start, stop, step)), RangeDataSource(start, stop, step)
    assert list(source) == expected and len(source) == len(expected)
    keys = list(range(len(expected)))[::-1] * 2
    assert source.__getitems__(keys) == [source[key] for key in keys] == [expected[key] for key in keys]


def test_lengths_texts_and_keys_of_range_sources():
    lengths = {(0, 0, 1): 0, (0, 1, 5): 1, (0, 3 * 10**17 + 1, 3): 10**17 + 1, (10, 0, -3): 4}
    assert {arguments: len(RangeDataSource(*arguments)) for arguments in lengths} == lengths
    source = RangeDataSource(start=np.int64(0), stop=10, step=2)
    assert_source_conforms(source)
    assert repr(source) == str(source) == "RangeDataSource(start=0, stop=10, step=2)"  # which states carry
    for index in (np.int64(1), np.uint8(1), True):
        assert (source[index], type(source[index])) == (2, int)
    for index in (-1, 5, 10**30):
        assert_raises(KeyRangeError, rf"{index} .*length 5", source.__getitem__, index)
    for index in (slice(0, 2), 1.0, "1", None):
        assert_raises(TypeError, None, source.__getitem__, index)
    for arguments, kind, message in [
        *(((0, 5, 0), ValueError, "step can't be zero"), ((0, 5, 0), AssertionError, "step can't be zero")),
        *(((5, 0, 1), ValueError, "length can't be negative"), ((0, 5, -1), AssertionError, "length can't be")),
        *(((3,), TypeError, "missing"), ((0, 1.5, 1), TypeError, r"stop must be an integer, got 1\.5")),
    ]:
        assert_raises(kind, message, RangeDataSource, *arguments)
