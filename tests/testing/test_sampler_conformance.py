"""``assert_sampler_conforms`` accepts whatever is a sampler, and names the law that a wrong one breaks."""

import numpy as np
import pytest
from mistakes import assert_found, variant
from refusing import assert_raises

from gristmill import IndexSampler, RecordMetadata, SequentialSampler
from gristmill.sharding import NoSharding, ShardOptions
from gristmill.testing import assert_sampler_conforms


class WithoutLength:
    """A sampler without any mistake, to derive mistakes from."""

    def __init__(self, shard_options=NoSharding(), **attributes):  # noqa: B008
        vars(self).update(shard_options=shard_options, **attributes)

    def __getitem__(self, index):
        if not 0 <= index < 20:
            raise IndexError(index)
        return self.metadata(index)

    def metadata(self, index):
        return RecordMetadata(index=index, record_key=self.key(index), rng=np.random.Generator(np.random.Philox(key=index)))

    def key(self, index):
        return 19 - index

    def __repr__(self):
        return f"{type(self).__name__}(20)"


class Right(WithoutLength):
    def __len__(self):
        return 20


class OfItsShard(Right):
    """Answers only for the indices that a DataLoader asks for."""

    def __init__(self, shard_options):
        super().__init__(_shard_options=shard_options)

    def key(self, index):
        assert index % self._shard_options.shard_count == self._shard_options.shard_index
        return index


endless = variant(WithoutLength, __getitem__=lambda self, index: RecordMetadata(index, index % 20))
RIGHT = {
    "sequential": SequentialSampler(20),
    "sequential_seed": SequentialSampler(20, seed=2**100),
    "sequential_shard": SequentialSampler(20, ShardOptions(1, 3, drop_remainder=True), seed=1),
    "index": IndexSampler(20, shuffle=True, num_epochs=3, seed=5),
    "index_endless": IndexSampler(20, shuffle=True, seed=5),
    "index_huge": IndexSampler(20, shuffle=True, seed=5, num_epochs=10**15),
    "index_shard": IndexSampler(20, ShardOptions(2, 3), shuffle=True, num_epochs=1, seed=5),
    "right": Right(),
    "without_length": WithoutLength(),
    "endless": endless(),
    "of_its_shard": OfItsShard(ShardOptions(1, 4)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_accepted(name):
    assert_sampler_conforms(RIGHT[name], 20)
    assert_sampler_conforms(RIGHT[name], max_indices=3)


def test_options():
    assert_sampler_conforms(variant(Right, key=lambda self, index: f"record {index}")())  # no number of records is given
    assert_sampler_conforms(RIGHT["index"], 20, in_worker=True)


@pytest.mark.parametrize("num_records", [1, 2, 3, 10, 17])
def test_shards_of_ours_are_accepted(num_records):
    for make in (
        lambda shard: IndexSampler(num_records, shard, shuffle=True, num_epochs=1, seed=3),
        lambda shard: IndexSampler(num_records, shard, num_epochs=1),
        lambda shard: SequentialSampler(num_records, shard),
    ):
        assert_sampler_conforms(make(NoSharding()), num_records, make_shard=make)
    assert_sampler_conforms(OfItsShard(ShardOptions(0, 1)), 20, make_shard=OfItsShard)


def wrong(message, base=Right, **overrides):
    return message, variant(base, **overrides)()


WRONG = [
    (
        "depends on what is asked...sampler[19] must be",
        variant(Right, key=lambda self, i: self.used.append(i) or len(self.used))(used=[]),
    ),
    (
        "depends on what is asked...sampler[0], after somebody drew from its rng, must be",
        variant(Right, metadata=lambda self, i: RecordMetadata(i, i, self.rng))(rng=np.random.default_rng(0)),
    ),
    wrong("the repr is the same...has a memory address", __repr__=object.__repr__),
    wrong("is a RecordMetadata...sampler[0] is 19", metadata=lambda self, i: self.key(i)),
    wrong("is a RecordMetadata...sampler[0].index is None", metadata=lambda self, i: RecordMetadata(None, i)),
    wrong("is a RecordMetadata...sampler[0].rng is 17", metadata=lambda self, i: RecordMetadata(i, i, 17)),
    wrong(
        "metadata.index grows...sampler[9].index is 9, sampler[10].index is 0", metadata=lambda self, i: RecordMetadata(i % 10, i)
    ),
    wrong("keys of the source...sampler[19].record_key is 20, and num_records 20", key=lambda self, i: i + 1),
    wrong("keys of the source...sampler[0].record_key is '0'", key=lambda self, i: str(i)),
    wrong(
        "raises IndexError...sampler[20], with 20 indices before its end, gave RecordMetadata",
        __getitem__=lambda self, i: RecordMetadata(i, i % 20),
    ),
    wrong(
        "raises IndexError...sampler[20], with 20 ... raised ValueError",
        __getitem__=lambda self, i: RecordMetadata(i, range(20).index(i)),
    ),
    wrong("is there...sampler[19] raised IndexError", key=lambda self, i: range(19)[i]),
    wrong(  # it has an end at 10, and more after it
        "raises IndexError...sampler[11], with 10 ... gave", WithoutLength, key=lambda self, i: [i][i == 10]
    ),
]


@pytest.mark.parametrize(("message", "sampler"), WRONG)
def test_mistakes_are_found_and_named(message, sampler):
    assert_found(message, assert_sampler_conforms, sampler, 20)


def piece(shard, index):
    """An index of contiguous pieces, all of the same size: the remainder is lost."""
    size = 20 // shard.shard_count
    return range(size * shard.shard_index, size * (shard.shard_index + 1))[index // shard.shard_count]


def test_shards_that_are_no_partition():
    ignores_the_shard = variant(Right, key=lambda self, i: i // self.shard_options.shard_count)
    loses_the_remainder = variant(WithoutLength, key=lambda self, i: piece(self.shard_options, i))
    for message, make in (
        ("20 records in 2 shards, [10, 11, ...] are missing and [0, 1, ...] there again", ignores_the_shard),
        ("20 records in 3 shards, [18, 19] are missing and [] there again", loses_the_remainder),
        ("20 records in 1 shards, [] are missing and [0, 1, ...] there again", endless),
    ):
        message = f"the shards of an epoch have every record once...{message}"
        assert_found(message, assert_sampler_conforms, Right(), 20, make_shard=make)


def test_wrong_arguments():
    check = assert_sampler_conforms
    assert_raises(TypeError, "sampler must have __getitem__", check, iter([1]))
    assert_raises(TypeError, "num_records must be an integer, got None", check, Right(), make_shard=Right)
    assert_raises(ValueError, "max_indices must be a positive integer", check, Right(), max_indices=0)
