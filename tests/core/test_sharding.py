import dataclasses
import logging
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gristmill.core.sharding import NoSharding, ShardByJaxProcess, ShardOptions, even_split, process_index_and_count


def test_fields_and_defaults():
    options = ShardOptions(1, 3)
    assert dataclasses.astuple(options) == (1, 3, False)
    assert dataclasses.astuple(ShardOptions(shard_index=2, shard_count=4, drop_remainder=True)) == (2, 4, True)
    assert dataclasses.astuple(NoSharding()) == (0, 1, False)
    assert repr(options) == "ShardOptions(shard_index=1, shard_count=3, drop_remainder=False)"
    assert repr(NoSharding()) == "NoSharding(shard_index=0, shard_count=1, drop_remainder=False)"


@pytest.mark.parametrize("value", [0, -1])
def test_count_must_be_positive(value):
    with pytest.raises(ValueError, match=f"^shard_count must be a positive integer, got {value}"):
        ShardOptions(5, value)  # checked before the index


@pytest.mark.parametrize("value", [-1, 3, 7])
def test_index_must_be_in_range(value):
    with pytest.raises(ValueError, match=rf"^shard_index must be in .* \[0, 3\), got {value}$"):
        ShardOptions(value, 3)


@pytest.mark.parametrize("value", [1.0, "1", None])
def test_integers_only(value):
    with pytest.raises(TypeError, match=r"^shard_index must be an integer"):
        ShardOptions(value, 3)
    with pytest.raises(TypeError, match=r"^shard_count must be an integer"):
        ShardOptions(0, value)


def test_numpy_integers_become_built_in_ones():
    options = ShardOptions(np.int64(1), np.uint8(3))
    assert repr(options) == repr(ShardOptions(1, 3)) and options == ShardOptions(1, 3)
    assert type(options.shard_index) is type(options.shard_count) is int


@pytest.mark.parametrize("options", [ShardOptions(1, 3), NoSharding(), ShardByJaxProcess()], ids=repr)
def test_frozen_hashable_picklable(options):
    with pytest.raises(dataclasses.FrozenInstanceError):
        options.shard_index = 0
    other = pickle.loads(pickle.dumps(options))
    assert other == options and type(other) is type(options) and hash(other) == hash(options)
    assert isinstance(options, ShardOptions)


def test_equality_is_by_class_too():
    assert NoSharding() == NoSharding()
    assert NoSharding() != ShardOptions(0, 1)
    assert ShardOptions(0, 1) != ShardByJaxProcess() != NoSharding()
    assert len({ShardOptions(0, 2), ShardOptions(0, 2), ShardOptions(0, 2, True)}) == 2


def test_no_sharding_takes_no_arguments():
    with pytest.raises(TypeError):
        NoSharding(0)


def test_by_jax_process():
    import jax

    assert process_index_and_count() == (jax.process_index(), jax.process_count())
    options = ShardByJaxProcess(drop_remainder=True)
    assert dataclasses.astuple(options) == (jax.process_index(), jax.process_count(), True)
    assert repr(ShardByJaxProcess()) == "ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=False)"


IN_A_CLUSTER = """
import sys
from types import ModuleType
jax = sys.modules["jax"] = ModuleType("jax")
jax.process_index, jax.process_count = lambda: 2, lambda: 5
from gristmill.sharding import ShardByJaxProcess
print(ShardByJaxProcess(drop_remainder=True))
jax.process_index = lambda: 1 / 0
try:
    ShardByJaxProcess()
except ZeroDivisionError:
    print("not swallowed")
sys.modules["jax"] = None
print(ShardByJaxProcess())
"""


def test_by_jax_process_in_a_cluster_and_without_jax():
    """Real processes of a cluster are out of reach here; a module that answers as theirs would stands in."""
    process = subprocess.run([sys.executable, "-c", IN_A_CLUSTER], capture_output=True, text=True, env=os.environ)
    assert process.stdout.splitlines() == [
        "ShardByJaxProcess(shard_index=2, shard_count=5, drop_remainder=True)",
        "not swallowed",
        "ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=False)",
    ], process.stderr


@given(st.integers(0, 10**6), st.integers(1, 50))
def test_shards_follow_one_another_and_differ_by_one_at_most(num_examples, count):
    intervals = [even_split(num_examples, ShardOptions(i, count)) for i in range(count)]
    ends = [0, *(end for _, end in intervals)]
    assert ends[:-1] == [start for start, _ in intervals] and ends[-1] == num_examples
    sizes = [end - start for start, end in intervals]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1


@given(st.integers(0, 10**6), st.integers(1, 50))
def test_dropping_the_remainder_gives_equal_sizes(num_examples, count):
    size = num_examples // count
    for i in (0, count // 2, count - 1):
        assert even_split(num_examples, ShardOptions(i, count, drop_remainder=True)) == (size * i, size * (i + 1))


def test_a_dropped_remainder_is_logged_with_its_size(caplog):
    caplog.set_level(logging.WARNING, "gristmill")
    even_split(9, ShardOptions(0, 3, drop_remainder=True))
    even_split(10, ShardOptions(0, 3, drop_remainder=False))
    assert caplog.records == []
    even_split(11, ShardOptions(0, 3, drop_remainder=True))
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert [int(word) for word in record.getMessage().split() if word.isdigit()] == [2, 11, 3]


@pytest.mark.parametrize(("value", "error"), [(-1, ValueError), (1.5, TypeError), (None, TypeError)])
def test_number_of_examples_is_checked(value, error):
    with pytest.raises(error, match=r"^num_examples must be"):
        even_split(value, NoSharding())
