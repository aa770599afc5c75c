"""``assert_sampler_conforms`` accepts whatever is a sampler, and names the law that a wrong one breaks."""

import threading

import numpy as np
import pytest

from gristmill import IndexSampler, RecordMetadata, SequentialSampler
from gristmill.sharding import NoSharding, ShardOptions
from gristmill.testing import assert_sampler_conforms


class WithoutLength:
    """A sampler without any mistake, to derive mistakes from."""

    def __init__(self, shard_options=NoSharding()):  # noqa: B008
        self.shard_options = shard_options

    def __getitem__(self, index):
        if not 0 <= index < 20:
            raise IndexError(index)
        return RecordMetadata(index=index, record_key=self.key(index), rng=np.random.Generator(np.random.Philox(key=index)))

    def key(self, index):
        return 19 - index

    def __repr__(self):
        return f"{type(self).__name__}(20)"


class Right(WithoutLength):
    def __len__(self):
        return 20


class Endless(WithoutLength):
    def __getitem__(self, index):
        return RecordMetadata(index=index, record_key=index % 20)


class ByName(Right):
    def key(self, index):
        return f"record {index}"


class OfItsShard:
    """Answers only for the indices that a DataLoader asks for."""

    def __init__(self, shard_options):
        self._shard_options = shard_options

    def __len__(self):
        return 10

    def __getitem__(self, index):
        if index >= 10:
            raise IndexError(index)
        assert index % self._shard_options.shard_count == self._shard_options.shard_index
        return RecordMetadata(index=index, record_key=index)

    def __repr__(self):
        return "OfItsShard()"


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
    "endless": Endless(),
    "of_its_shard": OfItsShard(ShardOptions(1, 4)),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_right_is_accepted(name):
    assert_sampler_conforms(RIGHT[name], 20)
    assert_sampler_conforms(RIGHT[name], max_indices=3)


def test_keys_may_be_anything_if_no_number_of_records_is_given():
    assert_sampler_conforms(ByName())


@pytest.mark.parametrize("num_records", [1, 2, 3, 10, 17])
def test_shards_of_ours_are_accepted(num_records):
    for make in (
        lambda shard: IndexSampler(num_records, shard, shuffle=True, num_epochs=1, seed=3),
        lambda shard: IndexSampler(num_records, shard, num_epochs=1),
        lambda shard: SequentialSampler(num_records, shard),
    ):
        assert_sampler_conforms(make(NoSharding()), num_records, make_shard=make)
    assert_sampler_conforms(OfItsShard(ShardOptions(0, 1)), 10, make_shard=OfItsShard)


def test_a_worker_process_samples_the_same():
    assert_sampler_conforms(IndexSampler(20, shuffle=True, num_epochs=3, seed=5), 20, in_worker=True)


class Iterates(Right):
    """The next key at every access, whatever the index."""

    last = -1

    def key(self, index):
        self.last += 1
        return self.last % 20


class SharesAGenerator(Right):
    def __init__(self):
        super().__init__()
        self.rng = np.random.default_rng(0)

    def __getitem__(self, index):
        return RecordMetadata(super().__getitem__(index).index, index, self.rng)


class Unseeded(Right):
    def __getitem__(self, index):
        return RecordMetadata(super().__getitem__(index).index, index, np.random.default_rng())


class OfOneThread(Right):
    main = threading.get_ident()

    def key(self, index):
        return index if threading.get_ident() == self.main else 0


class HoldsALock(Right):
    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


class WithAddress(Right):
    __repr__ = object.__repr__


class OnlyKeys(Right):
    def __getitem__(self, index):
        return super().__getitem__(index).record_key


class WithoutIndex(Right):
    def __getitem__(self, index):
        return RecordMetadata(None, super().__getitem__(index).record_key)


class SeedInsteadOfGenerator(Right):
    def __getitem__(self, index):
        return RecordMetadata(index, super().__getitem__(index).record_key, 17)


class IndexOfTheEpoch(Right):
    def __getitem__(self, index):
        return RecordMetadata(super().__getitem__(index).index % 10, index)


class KeysPastTheEnd(Right):
    def key(self, index):
        return index + 1


class TextKeys(Right):
    def key(self, index):
        return str(index)


class NeverEnds(Right):
    def __getitem__(self, index):
        return RecordMetadata(index, index % 20)


class EndsWithAnotherError(Right):
    def __getitem__(self, index):
        return RecordMetadata(index, range(20).index(index))


class EndsTooEarly(Right):
    def __getitem__(self, index):
        if index == 19:
            raise IndexError(index)
        return super().__getitem__(index)


class ComesBack(WithoutLength):
    """Has an end at 10, and more after it."""

    def __getitem__(self, index):
        if index == 10:
            raise IndexError(index)
        return super().__getitem__(index)


WRONG = {
    Iterates: r"depends on what is asked for alone.*sampler\[19\] must be",
    SharesAGenerator: r"depends on what is asked for alone.*sampler\[0\], after somebody drew from its rng, must be",
    Unseeded: r"depends on what is asked for alone.*sampler\[19\] must be",
    OfOneThread: r"several threads.*sampler\[\d+\] in one of 8 threads must be",
    HoldsALock: r"copy made by cloudpickle.*copying HoldsALock raised TypeError",
    WithAddress: r"the repr is the same.*has a memory address",
    OnlyKeys: r"sampler\[index\] is a RecordMetadata.*sampler\[0\] is 19",
    WithoutIndex: r"sampler\[index\] is a RecordMetadata.*sampler\[0\].index is None",
    SeedInsteadOfGenerator: r"sampler\[index\] is a RecordMetadata.*sampler\[0\].rng is 17",
    IndexOfTheEpoch: r"metadata.index grows.*sampler\[9\].index is 9, sampler\[10\].index is 0",
    KeysPastTheEnd: r"keys of the source.*sampler\[19\].record_key is 20, and num_records 20",
    TextKeys: r"keys of the source.*sampler\[0\].record_key is '0'",
    NeverEnds: r"raises IndexError.*sampler\[20\], with 20 indices before its end, gave RecordMetadata",
    EndsWithAnotherError: r"raises IndexError.*sampler\[20\], with 20 .* raised ValueError",
    EndsTooEarly: r"all that may be asked for is there.*sampler\[19\] raised IndexError",
    ComesBack: r"raises IndexError.*sampler\[11\], with 10 .* gave",
}


@pytest.mark.parametrize("kind", WRONG, ids=lambda kind: kind.__name__)
def test_mistakes_are_found_and_named(kind):
    with pytest.raises(AssertionError, match=f"(?s)^broken law: .*{WRONG[kind]}"):
        assert_sampler_conforms(kind(), 20)


class IgnoresTheShard(Right):
    def key(self, index):
        return index // self.shard_options.shard_count


class LosesTheRemainder(WithoutLength):
    """Contiguous pieces, all of the same size."""

    def __getitem__(self, index):
        count, shard = self.shard_options.shard_count, self.shard_options.shard_index
        if index >= 20 // count * count:
            raise IndexError(index)
        return RecordMetadata(index, 20 // count * shard + index // count)


SHARDS = {
    IgnoresTheShard: r"20 records in 2 shards, \[10, 11, .*\] are missing and \[0, 1, .*\] there again",
    LosesTheRemainder: r"20 records in 3 shards, \[18, 19\] are missing and \[\] there again",
    Endless: r"20 records in 1 shards, \[\] are missing and \[0, 1, .*\] there again",
}


@pytest.mark.parametrize("make", SHARDS, ids=lambda kind: kind.__name__)
def test_shards_that_are_no_partition(make):
    with pytest.raises(AssertionError, match=f"^broken law: the shards of an epoch have every record once.*{SHARDS[make]}"):
        assert_sampler_conforms(Right(), 20, make_shard=make)


def test_wrong_arguments():
    with pytest.raises(TypeError, match="sampler must have __getitem__"):
        assert_sampler_conforms(iter([1]))
    with pytest.raises(TypeError, match="num_records must be an integer, got None"):
        assert_sampler_conforms(Right(), make_shard=Right)
    with pytest.raises(ValueError, match="max_indices must be a positive integer"):
        assert_sampler_conforms(Right(), max_indices=0)
