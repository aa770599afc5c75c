import dataclasses
import logging
import pickle

import jax
import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from programs import output
from refusing import assert_raises

from gristmill.core.sharding import NoSharding, ShardByJaxProcess, ShardOptions, even_split, process_index_and_count


def test_fields_wrong_arguments_and_values_that_are_equal_by_class_too():
    options = ShardOptions(1, 3)
    assert dataclasses.astuple(options) == (1, 3, False)
    assert dataclasses.astuple(ShardOptions(shard_index=2, shard_count=4, drop_remainder=True)) == (2, 4, True)
    assert dataclasses.astuple(NoSharding()) == (0, 1, False)
    assert repr(options) == "ShardOptions(shard_index=1, shard_count=3, drop_remainder=False)"
    assert repr(NoSharding()) == "NoSharding(shard_index=0, shard_count=1, drop_remainder=False)"
    same = ShardOptions(np.int64(1), np.uint8(3))
    assert repr(same) == repr(options) and same == options
    assert type(same.shard_index) is type(same.shard_count) is int
    for call, arguments, error, match in [
        # The count is checked before the index.
        *((ShardOptions, (5, n), ValueError, f"^shard_count must be a positive integer, got {n}") for n in (0, -1)),
        *((ShardOptions, (i, 3), ValueError, rf"^shard_index must be in .* \[0, 3\), got {i}$") for i in (-1, 3, 7)),
        *((ShardOptions, (value, 3), TypeError, r"^shard_index must be an integer") for value in (1.0, "1", None)),
        *((ShardOptions, (0, value), TypeError, r"^shard_count must be an integer") for value in (1.0, "1", None)),
        (NoSharding, (0,), TypeError, None),
        (even_split, (-1, NoSharding()), ValueError, r"^num_examples must be"),
        *((even_split, (value, NoSharding()), TypeError, r"^num_examples must be") for value in (1.5, None)),
    ]:
        assert_raises(error, match, call, *arguments)
    for options in (ShardOptions(1, 3), NoSharding(), ShardByJaxProcess()):
        assert_raises(dataclasses.FrozenInstanceError, None, setattr, options, "shard_index", 0)
        other = pickle.loads(pickle.dumps(options))
        assert other == options and type(other) is type(options) and hash(other) == hash(options)
        assert isinstance(options, ShardOptions)
    assert NoSharding() == NoSharding() != ShardOptions(0, 1) != ShardByJaxProcess() != NoSharding()
    assert len({ShardOptions(0, 2), ShardOptions(0, 2), ShardOptions(0, 2, True)}) == 2


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


def test_by_jax_process_here_in_a_cluster_and_without_jax(tmp_path):
    """Real processes of a cluster are out of reach here; a module that answers as theirs would stands in."""
    assert process_index_and_count() == (jax.process_index(), jax.process_count())
    assert dataclasses.astuple(ShardByJaxProcess(drop_remainder=True)) == (jax.process_index(), jax.process_count(), True)
    assert repr(ShardByJaxProcess()) == "ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=False)"
    assert output(tmp_path, IN_A_CLUSTER) == [
        "ShardByJaxProcess(shard_index=2, shard_count=5, drop_remainder=True)",
        "not swallowed",
        "ShardByJaxProcess(shard_index=0, shard_count=1, drop_remainder=False)",
    ]


@given(st.integers(0, 10**6), st.integers(1, 50))
def test_shards_follow_one_another_and_differ_by_one_at_most_or_are_equal(num_examples, count):
    intervals = [even_split(num_examples, ShardOptions(i, count)) for i in range(count)]
    ends = [0, *(end for _, end in intervals)]
    assert ends[:-1] == [start for start, _ in intervals] and ends[-1] == num_examples
    sizes = [end - start for start, end in intervals]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] - sizes[-1] <= 1
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
