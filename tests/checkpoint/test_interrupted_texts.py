"""An interrupt while a state or a description is made spoils no later one: a later ``repr`` is
complete.
"""

import dataclasses
import gc
import json
from concurrent.futures import ThreadPoolExecutor

import pytest
from interrupting import interrupted

import gristmill
from gristmill.checkpoint.handler import _describe


@pytest.fixture(autouse=True)
def without_collector():
    # others have callbacks for it, in Python: an interrupt there is not theirs to raise
    gc.disable()
    yield
    gc.enable()


@dataclasses.dataclass
class Files:  # a user's source and a user's part of it
    name: str
    parts: list = dataclasses.field(default_factory=list)

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return index


@dataclasses.dataclass
class Backwards(Files):  # a user's sampler
    _shard_options: gristmill.sharding.ShardOptions = dataclasses.field(
        default_factory=gristmill.sharding.NoSharding
    )

    def __getitem__(self, index):
        return gristmill.RecordMetadata(index, range(5, -1, -1)[index])


@dataclasses.dataclass(frozen=True)
class OwnShard(gristmill.sharding.ShardOptions):
    host: str = "here"


def loader(sampler, source):
    return iter(
        gristmill.DataLoader(data_source=source, sampler=sampler, operations=[gristmill.Batch(2)])
    )


def chain(source):
    return gristmill.MapDataset.source(source).shuffle(seed=1)


def texts(it):
    return it.get_state(), json.dumps(_describe(it))


SHARD = gristmill.ShardOptions(0, 1)
NO_SHARD = gristmill.NoSharding()
sampler = gristmill.IndexSampler
# The parts of something, the same before and after the interrupt; how it is made; and what is asked
# for.
CASES = {
    "loader": (lambda: (sampler(6, SHARD, num_epochs=1), range(6)), loader, texts),
    "sequential": (lambda: (gristmill.SequentialSampler(6, NO_SHARD), range(6)), loader, texts),
    "own shard": (lambda: (sampler(6, OwnShard(0, 1), num_epochs=1), range(6)), loader, texts),
    "dataclasses": (
        lambda: (Backwards("b"), Files("a", [Files("b"), (Files("c"), {"d": Files("e")})])),
        loader,
        texts,
    ),
    "chain": (lambda: (Files("a", [Files("b")]),), lambda source: iter(chain(source)), texts),
    "packing": (
        lambda: (gristmill.MapDataset.source([{"x": [1, 2]}] * 3).to_iter_dataset(),),
        lambda ds: iter(
            gristmill.experimental.ConcatThenSplitIterDataset(ds, length_struct={"x": 3})
        ),
        texts,
    ),
    "map dataset": (lambda: (chain(Files("a")).map(len),), lambda ds: ds, repr),
    "stream": (lambda: (chain(Files("a")).to_iter_dataset(),), lambda ds: ds, repr),
    "iterator": (lambda: (iter(chain(Files("a")).to_iter_dataset()),), lambda it: it, repr),
}


@pytest.mark.parametrize("name", CASES)
def test_an_interrupt_at_any_line_spoils_no_later_text(name):
    parts, make, ask = CASES[name]
    expected = ask(make(*parts()))
    assert "..." not in str(expected)
    was_interrupted, number = True, 0
    while was_interrupted:
        arguments = parts()
        it = make(*arguments)
        was_interrupted = interrupted(lambda: ask(it), number)  # noqa: B023
        assert ask(it) == ask(make(*arguments)) == expected, number
        number += 1
    assert number > 50
    # an interrupt on the way out of a `with` leaves a lock behind
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(lambda: ask(make(*parts()))).result() == expected
