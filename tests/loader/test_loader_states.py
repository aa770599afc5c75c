"""States of ``DataLoader`` iterators: their text, and what is refused (see also
``vectors/test_vectors_loaders.py``).
"""

import functools
import itertools
import json

import numpy as np
import pytest
from loaders import Mapped, Source, make
from refusing import assert_raises, assert_refused
from users_datasets import BareMap

from gristmill import (
    DataLoader,
    DataLoaderIterator,
    IndexSampler,
    MapDataset,
    ReadOptions,
    RecordMetadata,
    SequentialSampler,
)
from gristmill.core.errors import StateMismatchError
from gristmill.sharding import NoSharding, ShardOptions


def shuffled(n=10, **changes):
    return make(n, sampler=IndexSampler(n, NoSharding(), True, 2, 5), **changes)


def of(source, n):
    return iter(DataLoader(data_source=source, sampler=SequentialSampler(n)))


def parsed(it):
    return json.loads(it.get_state())


def test_names_to_drop_are_passed_on():
    it = iter(make(5))
    first, state = next(it), it.get_state()
    rest = [*it]
    it.set_state(state, drop={"gone"})
    assert [*it] == rest and first not in rest
    assert_raises(TypeError, "a set of names", it.set_state, state, drop="gone")


TRICKY = [
    'a "quoted" name',
    "back\\slash \\n \\u0041 \\",
    "new\nline\ttab\x00nul",
    "é ß 日本 \U0001f600 \ud800",
    '"0": 0',
]
TRICKY += ['{"last_seen_indices": {"0": 0}}', '"0": -1, "1": 2}', "", "% %s {0} {}"]


@pytest.mark.parametrize("text", TRICKY, ids=ascii)
def test_the_text_is_what_json_writes(text):
    named = Source(6, text=text)
    tricky = Source(6, lambda index: RecordMetadata(range(6)[index], index), text)
    for source, sampler in ((named, SequentialSampler(6)), (Source(6), tricky), (named, tricky)):
        it = iter(DataLoader(data_source=source, sampler=sampler, shard_options=NoSharding()))
        for position in range(7):
            state = {
                "version": 2,
                "last_seen_indices": {"0": position - 1},
                "last_worker_index": -1,
                "worker_count": 0,
            }
            state |= {"sampler": repr(sampler), "data_source": repr(source)}
            assert it.get_state() == json.dumps(state, indent=4).encode()
            next(it, None)
        it.set_state(it.get_state())
        assert list(it) == []


def test_forms_of_a_state_with_plain_containers():
    for source in ([0, 1], (0, 1), np.arange(2)):
        assert parsed(of(source, 2))["data_source"] == str(type(source))
        mine = type("Mine", (type(source),), {})
        source = source.view(mine) if isinstance(source, np.ndarray) else mine(source)
        assert parsed(of(source, 2))["data_source"] == str(mine)
    loader = shuffled(read_options=ReadOptions(4, 100))  # what is read ahead does not count
    it, elements = iter(loader), list(loader)
    for position in range(4):
        assert next(it) == elements[position] and parsed(it)["last_seen_indices"] == {"0": position}
    text, state = it.get_state(), parsed(it)
    # it names the worker of the last element, where newer ones have -1
    older = {**state, "last_worker_index": 0}
    more = {**state, "future": [1]}
    for form in (
        text,
        bytearray(text),
        text.decode(),
        state,
        json.dumps(state).encode(),
        older,
        more,
    ):
        it.set_state(form)
        assert list(it) == elements[4:]
        assert list(DataLoaderIterator(loader, form)) == elements[4:]
    it.set_state(state)
    state["last_seen_indices"]["0"] = 5
    assert parsed(it)["last_seen_indices"] == {"0": 3}  # the caller's mapping is not kept
    assert next(DataLoaderIterator(loader, None)) == elements[0]
    # Without validation positions still have to fit.
    found = next(DataLoaderIterator(data_loader=loader, state=None, validate_state=False))
    assert found == elements[0]
    state = parsed(iter(shuffled(11)))
    assert_raises(ValueError, "sampler", DataLoaderIterator, loader, state)
    it = DataLoaderIterator(loader, state, validate_state=False)
    assert len(list(it)) == 20
    assert_raises(IndexError, None, it.set_state, {**state, "last_seen_indices": {"0": 20}})
    it.set_state(json.dumps({**state, "last_seen_indices": {"0": 18}}).encode())
    assert len(list(it)) == 1


def changed(**changes):
    return lambda state: {**state, **changes}


def without(*keys):
    return lambda state: {key: value for key, value in state.items() if key not in keys}


def at(**positions):
    return changed(last_seen_indices={key.strip("w"): value for key, value in positions.items()})


SOURCE = (
    r"data_source D\(1\), the DataLoader has RangeDataSource\(start=0, stop=10, step=1\)\. Make"
)
SAMPLER = r"sampler S\(1\), the DataLoader has IndexSampler\(.*seed=5\)\. Make the DataLoader as"
SEED = r"sampler IndexSampler\(seed=6, …\), the DataLoader has IndexSampler\(seed=5, …\)\. Make"
VERSION, ALONE = "version of a DataLoader state must be 2, got ", "must have the key '0'"
WORKER = r"last_worker_index .* must be in \[-1, 0\], got "


def of_another_seed(state):
    return {**state, "sampler": state["sampler"].replace("seed=5", "seed=6")}


REFUSED = {
    "worker_count": (changed(worker_count=2), "=2, the DataLoader has worker_count=0"),
    "sampler": (changed(sampler="S(1)"), SAMPLER),
    "one parameter of the sampler": (of_another_seed, SEED),
    "data_source": (changed(data_source="D(1)"), SOURCE),
    "first": (changed(worker_count=2, sampler="S", data_source="D"), "worker_count"),
    "second": (changed(sampler="S", data_source="D"), "taken with sampler S"),
    "worker_count is text": (changed(worker_count="0"), "worker_count"),
    "other version": (changed(version=1), f"{VERSION}1"),
    "version is text": (changed(version="2"), f"{VERSION}'2'"),
    "no version": (without("version"), r"must have the keys \['version'\]"),
    "no positions": (without("last_seen_indices"), r"must have the keys \['last_seen_indices'\]"),
    "a native state": (lambda state: {"next_index": 3}, "must have the keys"),
    "a list": (lambda state: [1], r"must be a JSON object, got \[1\]"),
    "null": (lambda state: None, "must be a JSON object, got None"),
    "source is null": (changed(data_source=None), "data_source"),
    "source in a list": (changed(data_source=["<class 'list'>"]), "data_source"),
    "positions in a list": (changed(last_seen_indices=[-1]), "must be a mapping with the key '0'"),
    "no worker": (at(), ALONE),
    "other worker": (at(w1=3), ALONE),
    "two workers": (at(w0=3, w1=4), r"last_seen_indices .* must have the keys \['0'\] alone"),
    "text": (at(w0="3"), "must be an index of worker 0 of 1 in shard 0 of 1, got '3'"),
    "position is a float": (at(w0=1.5), "last_seen_indices"),
    "position before the start": (at(w0=-2), r"\[0, 20\].*got -1"),
    "position after the end": (at(w0=20), r"\[0, 20\].*got 21"),
    "huge position": (at(w0=10**30), r"\[0, 20\]"),
    "worker before the first": (changed(last_worker_index=-2), f"{WORKER}-2"),
    "worker after the last": (changed(last_worker_index=1), f"{WORKER}1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_nothing_is_half_applied(name):
    change, message = REFUSED[name]
    kind = IndexError if "[0, 20" in message else ValueError
    kind = KeyError if name == "no positions" else kind
    loader = shuffled()
    everything = list(loader)
    for position in (0, 3, 20):
        it = iter(loader)
        assert list(itertools.islice(it, position)) == everything[:position]
        assert position < 20 or list(it) == []
        before = it.get_state()
        wrong = json.dumps(change(json.loads(before))).encode()
        assert_raises(kind, message, it.set_state, wrong)
        assert_refused(it, ValueError, message, wrong, before)  # regardless of other mistakes
        assert list(it) == everything[position:]


def test_states_of_another_shard_or_source():
    shards = [
        iter(make(10, sampler=IndexSampler(10, ShardOptions(i, 2), num_epochs=1))) for i in (0, 1)
    ]
    assert_raises(ValueError, "shard_index=0", shards[1].set_state, shards[0].get_state())
    between = {**parsed(shards[1]), "last_seen_indices": {"0": 2}}
    with pytest.raises(
        ValueError, match="must be an index of worker 0 of 1 in shard 1 of 2, got 2"
    ):
        shards[1].set_state(between)
    it = of(Source(6, text="x" * 10**6), 6)
    with pytest.raises(ValueError, match="data_source") as caught:
        it.set_state({**parsed(it), "data_source": "y" * 10**6})
    assert len(str(caught.value)) < 5000
    one, other = [of(Source(10, text=f"Unnamed at {number}"), 10) for number in range(2)]
    match = r"data_source Unnamed at .*Implement __repr__ so that it says the same"
    assert_raises(StateMismatchError, match, other.set_state, one.get_state())


def add(number, x):
    return x + number


def test_datasets_as_sources():
    ds = MapDataset.range(5).map(lambda x: x * 10)
    assert list(of(ds, 5)) == [0, 10, 20, 30, 40]
    with pytest.warns(UserWarning, match="num_records=7"):
        assert list(of(ds, 7)) == [0, 10, 20, 30, 40, 0, 10]
    it = of(BareMap(3), 3)
    assert parsed(it)["data_source"] == "BareMap(length=3)" and list(it) == [0, 1, 2]
    steps = (
        ds.seed(3)
        .shuffle()
        .map(Mapped(len))
        .random_map(lambda x, rng: x)
        .map(functools.partial(add, 3))
        .repeat(2)[1:]
    )
    text = of(steps, 5).get_state().decode()  # which another process must write as well
    assert " at 0x" not in text and len(text) < 1500
    sources = [
        ds,
        ds[1:],
        ds.shuffle(seed=1),
        ds.shuffle(seed=2),
        ds.repeat(2),
        ds.batch(2),
        ds.slice([1, 2]),
        ds.slice([2, 1]),
    ]
    for a, b in itertools.permutations([of(source, 1) for source in sources], 2):
        assert_raises(ValueError, "data_source", a.set_state, b.get_state())
